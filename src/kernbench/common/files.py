"""Files of the user: inputs of bounded size, results that are written whole or not at all, and JSON documents."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from kernbench.common.errors import InputError, UnreadableFileError

MOST_INPUT_BYTES = 16_000_000
_OTHERS = {
    stat.S_IFDIR: "Is a directory",
    stat.S_IFIFO: "Is a pipe",
    stat.S_IFSOCK: "Is a socket",
    stat.S_IFCHR: "Is a device",
    stat.S_IFBLK: "Is a device",
}
"""What is no regular file, by its type, in the words of the system."""
_DEVICES = os.path.dirname(os.devnull)
_FROM_PIPE = "write what comes out of it into a file, and name that"


def read_input(path: str | os.PathLike[str], most: int | None = MOST_INPUT_BYTES) -> bytes:
    """Return what is in an input file. UnreadableFileError as of ``check_input``."""
    check_input(path, most)
    try:
        with Path(path).open("rb") as file:
            # Some files have more in them than they say, such as those of /proc.
            content = file.read() if most is None else file.read(most + 1)
    except OSError as error:
        raise _make_unreadable(path, error) from error
    if most is not None and len(content) > most:
        raise _make_refusal(path, f"it has more than {most:,} bytes", most)
    return content


def check_input(path: str | os.PathLike[str], most: int | None = MOST_INPUT_BYTES) -> None:
    """Raise UnreadableFileError unless ``path`` leads to a regular file of at most ``most`` bytes (None: of any size).

    Anything else may have no end (devices), or make its reader wait for ever (pipes).
    """
    try:
        found = os.stat(path)
    except (OSError, ValueError) as error:  # ValueError: no file system has such a name
        raise _make_unreadable(path, error) from error
    kind = stat.S_IFMT(found.st_mode)
    if kind != stat.S_IFREG:
        raise _make_refusal(
            path, _OTHERS.get(kind, "Is no regular file"), most, _FROM_PIPE if kind == stat.S_IFIFO else ""
        )
    if most is not None and found.st_size > most:
        raise _make_refusal(path, f"it has {found.st_size:,} bytes", most)
    if not os.access(path, os.R_OK):
        raise UnreadableFileError(os.fspath(path), os.strerror(errno.EACCES))


def _make_refusal(path: str | os.PathLike[str], what: str, most: int | None, advice: str = "") -> UnreadableFileError:
    size = "" if most is None else f" of at most {most / 1e6:g} MB"
    why = f"{what}; only regular files{size} are read{advice and f': {advice}'}"
    return UnreadableFileError(os.fspath(path), why)


def _make_unreadable(path: str | os.PathLike[str], error: OSError | ValueError) -> UnreadableFileError:
    if not os.fspath(path):
        return UnreadableFileError("''", "no file has an empty name", missing=True)
    if isinstance(error, FileNotFoundError | NotADirectoryError | ValueError):
        return UnreadableFileError(os.fspath(path), f"no such file (looked from {os.getcwd()})", missing=True)
    return UnreadableFileError(os.fspath(path), error.strerror or str(error))


def writable(path: str | Path) -> Path:
    """Return ``path`` if a file can be written there. InputError when it cannot: better said before a long run.

    A device or a pipe is none: the file would take its place.
    """
    place, folder = Path(path), Path(os.path.realpath(path)).parent
    if not str(path):
        raise InputError("'': a file to write needs a name")
    try:
        kind = stat.S_IFMT(os.stat(place).st_mode)
    except FileNotFoundError:
        kind = None
    except OSError as error:
        raise InputError(f"{path}: cannot be written there: {error.strerror}") from error
    if kind == stat.S_IFDIR:
        raise InputError(f"{path}: is a folder; name a file in it")
    if kind not in (None, stat.S_IFREG) or os.path.realpath(place.parent) == _DEVICES:
        raise InputError(f"{path}: is no regular file; only such are written")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{path}: cannot be written there: no such folder, or not allowed")
    if kind is not None and not os.access(place, os.W_OK):
        raise InputError(f"{path}: is there, and may not be written")
    return place


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a name beside ``path`` to write to. The file there takes the place of ``path`` once it is complete.

    Of a link it takes the place of what that leads to. InputError when the system refuses.
    """
    path = Path(os.path.realpath(path)) if path.is_symlink() else path
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write all of a file or nothing. InputError when it cannot be written."""
    with replacing(writable(path)) as temporary:
        temporary.write_bytes(content)


TIMES: Mapping[str, int] = {"ns": 3}
"""Decimals by the last word of a name"""
FIGURES: Mapping[str, int] = {**TIMES, "gbs": 3} | dict.fromkeys(
    ("utilisation", "occupancy", "fairness", "efficiency", "beyond", "macs"), 6
)
"""Those of bandwidths and shares too, for a reader; data that are read again have them in full"""
# What a user has given is shown as it was given.
_GIVEN = frozenset(("configuration", "config", "attrs", "params", "parameters"))


def json_text(document: object, indent: int, decimals: Mapping[str, int] = TIMES) -> str:
    """Return ``document`` as JSON, its figures rounded by their names. ValueError for NaN and infinities."""
    return json.dumps(round_figures(document, decimals), indent=indent, ensure_ascii=False, allow_nan=False)


def round_figures(value: Any, decimals: Mapping[str, int] = TIMES, digits: int | None = None) -> Any:
    """Return ``value`` with every figure of a name in ``decimals`` rounded.

    ``digits``: for figures that have no such name.
    """
    if isinstance(value, dict):
        return {
            name: each if name in _GIVEN else round_figures(each, decimals, decimals.get(_last_word(name), digits))
            for name, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [round_figures(each, decimals, digits) for each in value]
    return value if digits is None or not isinstance(value, float) else round(value, digits)


def plain_document(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document as JSON has it: figures rounded for a reader, and as texts those that JSON does not have."""
    found: dict[str, Any] = _finite(round_figures(document, FIGURES))
    return found


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _last_word(name: object) -> str:
    """Return the last word of a name, such as ``ns`` of ``launch.kernel_ns``."""
    return str(name).replace(".", "_").rpartition("_")[2]


# Results are a few levels deep; far deeper ones exhaust the stack of whoever walks through them.
DEEPEST = 100
_HALF = re.compile(r"\\u[dD][89a-fA-F]")


def parse_json(text: str | bytes) -> Any:
    """Return the value that ``text`` holds, UTF-8 when it is bytes.

    ValueError, one line long, for a text that is no JSON, for NaN and infinities, for halves of characters, and for
    values nested too deeply.
    """
    try:
        plain = text.decode() if isinstance(text, bytes) else text
        value = json.loads(plain, **_STRICT)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 text: byte {error.object[error.start]:#04x} at {error.start}") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if _is_deeper(value, DEEPEST):
        raise ValueError("nested too deeply")
    if _HALF.search(plain):
        _must_be_text(value)
    return value


def _must_be_text(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError("half of a character (an escape from \\ud800 to \\udfff) stands alone") from error


def _is_deeper(value: Any, levels: int) -> bool:
    """Return True when lists and mappings stand in each other over more than so many levels."""
    level = [value]
    while level and levels:
        level = [inside for each in level for inside in _list_inside(each)]
        levels -= 1
    return bool(level)


def _list_inside(value: Any) -> list[Any]:
    found = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return [each for each in found if isinstance(each, dict | list)]


def _parse_finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"found {text[:20]}, which no number is large enough for")
    return number


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"found {text}, which JSON does not have")


_STRICT: dict[str, Any] = {"parse_float": _parse_finite, "parse_constant": _refuse}
