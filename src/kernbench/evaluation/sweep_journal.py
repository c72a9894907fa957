"""The journal of a sweep: a header, then a line for each finished point, on disk before the next is waited for.

A kill loses only points that are under way. The last line may be torn by it; it is dropped, and its point runs again.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from kernbench.common.errors import InputError
from kernbench.evaluation.sweep_measure import COLUMNS, Cell, Row
from kernbench.evaluation.sweep_point import Outcome

JOURNAL_FILE = "journal.jsonl"
HEADER = "kernbench sweep"


class Journal:
    """Finished points, by number, in memory and in the file ``path``. A context manager that closes it."""

    def __init__(self, path: Path, file: BinaryIO, finished: dict[int, Outcome]) -> None:
        self.path = path
        self.finished = finished
        self._file = file

    def append(self, outcomes: Iterable[Outcome]) -> None:
        """Add points; they are safe when this returns. A point that is there already stays as it is."""
        new = [outcome for outcome in outcomes if outcome.index not in self.finished]
        self._file.write(b"".join(_line(_entry(outcome)) for outcome in new))
        self._file.flush()
        os.fsync(self._file.fileno())
        # As they will be read: a sweep that was resumed ends with the same bytes.
        self.finished |= {outcome.index: _outcome(json.loads(_line(_entry(outcome)))) for outcome in new}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def begin_journal(path: Path, identity: Mapping[str, Any], n_points: int) -> Journal:
    """A new journal. InputError when a sweep that was not finished would be lost."""
    found = _lines(path) if path.exists() else []
    if 1 < len(found) <= n_points_of(found):
        raise InputError(
            f"{path}: {len(found) - 1} of {n_points_of(found)} points are finished already; "
            "go on with --resume, choose another --out, or remove the file"
        )
    path.write_bytes(_line({"journal": HEADER, "points": n_points, "identity": dict(identity)}))
    _sync_folder(path.parent)
    return _open(path, {})


def resume_journal(path: Path, identity: Mapping[str, Any], n_points: int) -> Journal:
    """The journal at ``path`` to go on with; a new one when there is none.

    InputError for a file that is no journal, and for one of another sweep, whose rows could not be compared.
    """
    found = _lines(path) if path.exists() else []
    if not found:
        return begin_journal(path, identity, n_points)
    _must_match(path, found[0], identity)
    finished: dict[int, Outcome] = {}
    for entry in found[1:]:
        outcome = _outcome(entry)
        finished.setdefault(outcome.index, outcome)
    return _open(path, finished)


def n_points_of(entries: list[dict[str, Any]]) -> int:
    """How many points the sweep of a journal has."""
    return int(entries[0].get("points", 0))


def _open(path: Path, finished: dict[int, Outcome]) -> Journal:
    file = path.open("r+b")
    content = path.read_bytes()
    file.truncate(_whole(content))
    file.seek(0, os.SEEK_END)
    return Journal(path, file, finished)


def _whole(content: bytes) -> int:
    """Bytes of ``content`` up to the end of the last line that is complete and can be read."""
    end = content.rfind(b"\n") + 1
    last = content[:end].rstrip(b"\n").rfind(b"\n") + 1
    return end if _parsed(content[last:end]) is not None else last


def _lines(path: Path) -> list[dict[str, Any]]:
    """What a journal says, without a torn last line. InputError when another line cannot be read."""
    content = path.read_bytes()
    found = []
    for number, line in enumerate(content[: _whole(content)].splitlines(), start=1):
        entry = _parsed(line)
        if entry is None or (number == 1 and entry.get("journal") != HEADER):
            raise InputError(f"{path}:{number}: no line of the journal of a sweep; choose another --out, or remove it")
        found.append(entry)
    return found


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None


def _must_match(path: Path, header: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    before, now = header["identity"], json.loads(json.dumps(identity))
    wrong = [key for key in now if before.get(key) != now[key]]
    if wrong:
        changes = "; ".join(f"{key} was {_short(before.get(key))}, is {_short(now[key])}" for key in wrong)
        raise InputError(
            f"{path} belongs to another sweep, whose rows cannot be compared with these: {changes}; "
            "choose another --out, or remove it"
        )


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _entry(outcome: Outcome) -> dict[str, Any]:
    row = {name: str(cell) if _is_odd(cell) else cell for name, cell in outcome.row.items()}
    return {"point": outcome.index, "wall_s": round(outcome.wall_s, 6), "row": row}


def _is_odd(cell: Cell) -> bool:
    """JSON has no infinities and no NaN; they are written as texts, which ``float`` reads back."""
    return isinstance(cell, float) and not math.isfinite(cell)


def _outcome(entry: Mapping[str, Any]) -> Outcome:
    row: Row = {
        name: float(cell) if isinstance(cell, str) and COLUMNS[name] is float else cell
        for name, cell in entry["row"].items()
    }
    return Outcome(entry["point"], row, entry["wall_s"])


def _line(entry: Mapping[str, Any]) -> bytes:
    return json.dumps(entry, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode() + b"\n"


def _sync_folder(folder: Path) -> None:
    """Make the name of a new file as safe as its content."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
