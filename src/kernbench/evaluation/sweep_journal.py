"""The journal of a sweep: a header, then a line per finished point, flushed to disk before the next wait.

If the process is killed, only the points in flight are lost. The last line may be incomplete: it is dropped, and its
point runs again. A sweep continues only from a journal of the identical sweep. Differences are listed by axis and by
parameter.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from kernbench.common.errors import InputError
from kernbench.common.files import parse_json
from kernbench.common.values import value
from kernbench.evaluation.sweep_measure import (
    STATUSES,
    PointRow,
    fits,
    flat_configuration,
    is_whole,
    list_columns,
)
from kernbench.evaluation.sweep_point import PointOutcome
from kernbench.result.columns import Cell

GRID = "grid"
SEPARATOR = "."
"""Separates a section and a figure in the name of a column"""
# The digest of the complete "configuration".
MACHINE = "machine"
# Sections that are compared by parameter, with the prefix of their paths.
_SECTIONS: Mapping[str, str] = {"configuration": "", "set": "set ", "ccl": "ccl.", "machines": "machine "}
LONGEST_VALUE = 80
MOST_VALUES = 8


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the differences of two identities as sentences, axes of the grid first."""
    found = list(_axes(before.get(GRID), now.get(GRID)))
    by_path = {key for key in _SECTIONS if isinstance(before.get(key), dict) and isinstance(now.get(key), dict)}
    was, is_now = _by_parameter(before, by_path), _by_parameter(now, by_path)
    for key in {**was, **is_now}:
        if key not in was:
            found.append(f"{key} is new: {_short(is_now[key])}")
        elif key not in is_now:
            found.append(f"{key} is gone, it was {_short(was[key])}")
        elif _text(was[key]) != _text(is_now[key]):
            found.append(f"{key} was {_short(was[key])}, is {_short(is_now[key])}")
    return found


def _by_parameter(identity: Mapping[str, Any], by_path: Set[str]) -> dict[str, Any]:
    """Return an identity without its grid. Its sections ``by_path`` are split into parameters."""
    plain: dict[str, Any] = {}
    for key, content in identity.items():
        if key in by_path:
            plain |= {f"{_SECTIONS[key]}{path}": each for path, each in flat_configuration(content).items()}
        elif key not in (GRID, MACHINE):
            plain[key] = content
    return plain


def _axes(before: Any, now: Any) -> Iterator[str]:
    """Yield the differences between the axes of two grids. Their order matters: it is the order of points."""
    was = before if isinstance(before, dict) else {}
    is_now = now if isinstance(now, dict) else {}
    for axis in {**was, **is_now}:
        if axis not in was:
            yield f"axis {axis} is new: {_values(is_now[axis])}"
        elif axis not in is_now:
            yield f"axis {axis} is gone, it had {_values(was[axis])}"
        elif _text(was[axis]) != _text(is_now[axis]):
            yield f"axis {axis} has other values: {_say_changed(was[axis], is_now[axis])}"
    common = [[axis for axis in side if axis in was and axis in is_now] for side in (was, is_now)]
    if common[0] != common[1]:
        yield f"the axes were in the order {', '.join(common[0])}, are {', '.join(common[1])}"


def _say_changed(before: Any, now: Any) -> str:
    was, is_now = ([_text(each) for each in side] if isinstance(side, list) else [] for side in (before, now))
    new, gone = [each for each in is_now if each not in was], [each for each in was if each not in is_now]
    said = [f"{_join_listed(values)} {word}" for values, word in ((new, "added"), (gone, "removed")) if values]
    return ", ".join(said) or f"the same in another order: it had {_join_listed(was)}, has {_join_listed(is_now)}"


def _values(values: Any) -> str:
    return _join_listed([_text(each) for each in values]) if isinstance(values, list) else _short(values)


def _join_listed(texts: Sequence[str]) -> str:
    shown = texts if len(texts) <= MOST_VALUES else [*texts[: MOST_VALUES - 1], "…", texts[-1]]
    return ", ".join(_shorten(each) for each in shown)


def _text(value: object) -> str:
    """Return a value as YAML text, which differs for 1, 1.0 and true, although these are equal in Python."""
    return json.dumps(value)


def _short(value: object) -> str:
    return _shorten(_text(value))


def _shorten(text: str) -> str:
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}..."


JOURNAL_FILE = "journal.jsonl"
HEADER = "kernbench sweep"
MOST_NAMED = 8


class Journal:
    """Finished points by number, in memory and in the file ``path``. A context manager that closes the file."""

    def __init__(self, path: Path, file: BinaryIO, finished: dict[int, PointOutcome]) -> None:
        self.path = path
        self.finished = finished
        self._file = file

    def append(self, outcomes: Iterable[PointOutcome]) -> None:
        """Add points. They are on disk when this method returns. An existing point stays unchanged."""
        new = [outcome for outcome in outcomes if outcome.index not in self.finished]
        lines = [_line(_entry(outcome)) for outcome in new]
        with _refusing(self.path):
            self._file.write(b"".join(lines))
            self._file.flush()
            os.fsync(self._file.fileno())
        # Store values as they are read back, so a resumed sweep writes the same bytes.
        self.finished |= {outcome.index: _outcome(json.loads(line)) for outcome, line in zip(new, lines, strict=True)}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Buffered data could not be written. The error has been reported already.
        with suppress(OSError):
            self._file.close()


def begin_journal(path: Path, identity: Mapping[str, Any], n_points: int, *, force: bool = False) -> Journal:
    """Return a new journal. Raises InputError if finished points would be lost without ``force``."""
    found = None if force else read_state(path)
    if found is not None and found.finished:
        raise InputError(
            f"{path}: {found}; continue with --resume, restart with --force, which loses them, or choose another --out"
        )
    with _refusing(path):
        path.write_bytes(_line({"journal": HEADER, "points": n_points, "identity": dict(identity)}))
        _sync_folder(path.parent)
    return _open(path, {})


def resume_journal(path: Path, identity: Mapping[str, Any], n_points: int) -> Journal:
    """Return the journal at ``path``, to continue it, or a new one if there is none.

    Raises InputError for a file that is no journal, and for the journal of another sweep: its rows differ.
    """
    found = _lines(path) if path.exists() else []
    if not found:
        return begin_journal(path, identity, n_points)
    _must_match(path, found[0], identity, n_points)
    return _open(path, _read_finished(path, found, n_points))


@value
class JournalState:
    """The progress of a journal's sweep, as ``--resume`` counts it. ``identity``: the identity of the sweep."""

    points: int
    finished: int
    identity: Mapping[str, Any]

    @property
    def is_finished(self) -> bool:
        """True if no point is missing."""
        return self.finished == self.points

    def is_of(self, identity: Mapping[str, Any]) -> bool:
        """Return True if the journal belongs to the sweep ``identity``, which can then continue."""
        return not _differences_to(self.identity, identity)

    def __str__(self) -> str:
        return f"{self.finished} of {self.points} points are finished already"


def is_begun(path: Path) -> bool:
    """Return True if a journal at ``path`` has at least its first line."""
    return path.exists() and bool(_lines(path))


def read_state(path: Path) -> JournalState | None:
    """Read the progress of the journal at ``path``; None if there is none. Raises InputError for other files."""
    found = _lines(path) if path.exists() else []
    if not found:
        return None
    n_points = int(found[0]["points"])
    return JournalState(n_points, len(_read_finished(path, found, n_points)), found[0]["identity"])


def _read_finished(path: Path, entries: Sequence[Mapping[str, Any]], n_points: int) -> dict[int, PointOutcome]:
    """Return the points of a journal. Raises InputError for a line that does not belong to the sweep."""
    finished: dict[int, PointOutcome] = {}
    for number, entry in enumerate(entries[1:], start=2):
        try:
            outcome = _outcome(entry)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _foreign(path, number) from error
        if outcome.index not in range(n_points):
            raise _foreign(path, number)
        finished.setdefault(outcome.index, outcome)
    return finished


def _open(path: Path, finished: dict[int, PointOutcome]) -> Journal:
    with _refusing(path):
        file = path.open("r+b")
        content = path.read_bytes()
        file.truncate(_whole(content))
        file.seek(0, os.SEEK_END)
    return Journal(path, file, finished)


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Inside the block, raise InputError if the system refuses an operation, for lack of space or permission."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read or written: {error.strerror or error}; fix that and continue with "
            "--resume, because the points in it are safe, or choose another --out"
        ) from error


def _foreign(path: Path, line: int) -> InputError:
    return InputError(
        f"{path}:{line}: this line does not belong to the journal of this sweep; choose another --out, "
        "or remove the journal (--force does)"
    )


def _whole(content: bytes) -> int:
    """Return the bytes of ``content`` up to the end of the last complete and valid line."""
    end = content.rfind(b"\n") + 1
    last = content[:end].rstrip(b"\n").rfind(b"\n") + 1
    return end if _parse(content[last:end]) is not None else last


def _lines(path: Path) -> list[dict[str, Any]]:
    """Read the lines of a journal, without a torn last line. Raises InputError for another invalid line."""
    with _refusing(path):
        content = path.read_bytes()
    found = []
    for number, line in enumerate(content[: _whole(content)].splitlines(), start=1):
        entry = _parse(line)
        if entry is None or (number == 1 and not _is_header(entry)):
            raise _foreign(path, number)
        found.append(entry)
    return found


def _is_header(entry: Mapping[str, Any]) -> bool:
    known = entry.get("journal") == HEADER and is_whole(entry.get("points"))
    return known and isinstance(entry.get("identity"), dict)


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        entry = parse_json(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None


def _must_match(path: Path, header: Mapping[str, Any], identity: Mapping[str, Any], n_points: int) -> None:
    wrong = _differences_to(header["identity"], identity)
    if wrong:
        more = [f"and {len(wrong) - MOST_NAMED} more"] if len(wrong) > MOST_NAMED else []
        raise InputError(
            f"{path} belongs to another sweep, whose rows cannot be compared with these: "
            f"{'; '.join([*wrong[:MOST_NAMED], *more])}; choose another --out, or remove it (--force does)"
        )
    if header["points"] != n_points:
        raise _foreign(path, 1)


def _differences_to(before: Mapping[str, Any], identity: Mapping[str, Any]) -> list[str]:
    """Return the differences between an identity from a journal and ``identity``."""
    return differences(before, json.loads(json.dumps(identity)))


def _entry(outcome: PointOutcome) -> dict[str, Any]:
    row = {name: str(cell) if _is_odd(cell) else cell for name, cell in outcome.row.items()}
    return {"point": outcome.index, "wall_s": round(outcome.wall_s, 6), "row": row}


def _is_odd(cell: Cell) -> bool:
    """Return True for infinities and NaN. JSON lacks these numbers, so the journal stores them as texts."""
    return isinstance(cell, float) and not math.isfinite(cell)


def _outcome(entry: Mapping[str, Any]) -> PointOutcome:
    """Return the outcome of a line. Raises ValueError, KeyError or TypeError for other lines."""
    index, wall_s = entry["point"], entry["wall_s"]
    row: PointRow = {name: _cell(name, cell) for name, cell in entry["row"].items()}
    if not is_whole(index) or wall_s is None or not fits(wall_s, float) or row["status"] not in STATUSES:
        raise ValueError("not the outcome of a point")
    return PointOutcome(index, row, float(wall_s))


def _cell(name: str, found: Any) -> Cell:
    kind = list_columns().get(name)
    if kind is None and SEPARATOR in name:
        raise InputError(f"the journal has column {name!r} of a section that is not registered: register it, as before")
    if kind is None:
        raise KeyError(name)
    cell: Cell = float(found) if isinstance(found, str) and kind is float else found
    if not fits(cell, kind):
        raise ValueError(f"{name} is {type(cell).__name__}")
    return cell


def _line(entry: Mapping[str, Any]) -> bytes:
    return json.dumps(entry, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode() + b"\n"


def _sync_folder(folder: Path) -> None:
    """Flush the folder entry of a new file to disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
