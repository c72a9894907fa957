"""Files of the user: inputs of bounded size, outputs that are written atomically, and JSON documents."""

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
_FILE_TYPES = {
    stat.S_IFDIR: "Is a directory",
    stat.S_IFIFO: "Is a pipe",
    stat.S_IFSOCK: "Is a socket",
    stat.S_IFCHR: "Is a device",
    stat.S_IFBLK: "Is a device",
}
"""The system's words for types of files that are not regular."""
_DEVICES = os.path.dirname(os.devnull)
_FROM_PIPE = "write its output to a file, and pass that file"


def read_input(path: str | os.PathLike[str], most: int | None = MOST_INPUT_BYTES) -> bytes:
    """Return the bytes of an input file. Raises UnreadableFileError as ``check_input`` does."""
    check_input(path, most)
    try:
        with Path(path).open("rb") as file:
            # Some files hold more bytes than their status says, such as those of /proc.
            content = file.read() if most is None else file.read(most + 1)
    except OSError as error:
        raise _make_unreadable(path, error) from error
    if most is not None and len(content) > most:
        raise _make_refusal(path, f"it has more than {most:,} bytes", most)
    return content


def check_input(path: str | os.PathLike[str], most: int | None = MOST_INPUT_BYTES) -> None:
    """Raise UnreadableFileError unless ``path`` leads to a regular file of at most ``most`` bytes (None: no limit).

    A device may never end, and a pipe may block its reader for ever.
    """
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:  # ValueError: no file system has such a name
        raise _make_unreadable(path, error) from error
    kind = stat.S_IFMT(status.st_mode)
    if kind != stat.S_IFREG:
        raise _make_refusal(
            path, _FILE_TYPES.get(kind, "Is no regular file"), most, _FROM_PIPE if kind == stat.S_IFIFO else ""
        )
    if most is not None and status.st_size > most:
        raise _make_refusal(path, f"it has {status.st_size:,} bytes", most)
    if not os.access(path, os.R_OK):
        raise UnreadableFileError(os.fspath(path), os.strerror(errno.EACCES))


def _make_refusal(path: str | os.PathLike[str], reason: str, most: int | None, advice: str = "") -> UnreadableFileError:
    size = "" if most is None else f" of at most {most / 1e6:g} MB"
    why = f"{reason}; only regular files{size} are read{advice and f': {advice}'}"
    return UnreadableFileError(os.fspath(path), why)


def _make_unreadable(path: str | os.PathLike[str], error: OSError | ValueError) -> UnreadableFileError:
    if not os.fspath(path):
        return UnreadableFileError("''", "no file has an empty name", missing=True)
    if isinstance(error, FileNotFoundError | NotADirectoryError | ValueError):
        return UnreadableFileError(os.fspath(path), f"no such file (looked from {os.getcwd()})", missing=True)
    return UnreadableFileError(os.fspath(path), error.strerror or str(error))


def writable(path: str | Path) -> Path:
    """Return ``path`` if a file can be written there. Raises InputError otherwise; call it before a long run.

    Devices and pipes are refused, because the file would replace them.
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
        raise InputError(f"{path}: is no regular file; only regular files are written")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{path}: cannot be written there: no such folder, or not allowed")
    if kind is not None and not os.access(place, os.W_OK):
        raise InputError(f"{path}: exists, and may not be written")
    return place


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; at the end of the block its file replaces ``path``.

    A symbolic link stays, and the file replaces its target. Raises InputError if the system refuses.
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
    """Write a file completely or not at all. Raises InputError if it cannot be written."""
    with replacing(writable(path)) as temporary:
        temporary.write_bytes(content)


TIMES: Mapping[str, int] = {"ns": 3}
"""Decimals of times, by the last word of their names"""
FIGURES: Mapping[str, int] = {**TIMES, "gbs": 3} | dict.fromkeys(
    ("utilisation", "occupancy", "fairness", "efficiency", "beyond", "macs"), 6
)
"""Decimals of times, bandwidths and shares for human readers; data for programs do not round bandwidths and shares"""
# The user's own values are shown unchanged.
_UNROUNDED = frozenset(("configuration", "config", "attrs", "params", "parameters"))


def json_text(document: object, indent: int, decimals: Mapping[str, int] = TIMES) -> str:
    """Return ``document`` as JSON, its figures rounded by their names. Raises ValueError for NaN and infinities."""
    return json.dumps(round_figures(document, decimals), indent=indent, ensure_ascii=False, allow_nan=False)


def round_figures(value: Any, decimals: Mapping[str, int] = TIMES, digits: int | None = None) -> Any:
    """Round in ``value`` every figure whose name ends in a word of ``decimals``, and return the result.

    ``digits`` is the number of decimals of the other figures; None leaves them as they are.
    """
    if isinstance(value, dict):
        return {
            name: entry
            if name in _UNROUNDED
            else round_figures(entry, decimals, decimals.get(_last_word(name), digits))
            for name, entry in value.items()
        }
    if isinstance(value, list | tuple):
        return [round_figures(entry, decimals, digits) for entry in value]
    return value if digits is None or not isinstance(value, float) else round(value, digits)


def plain_document(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document as JSON data: figures rounded for a reader, NaN and infinities as texts."""
    plain: dict[str, Any] = _finite(round_figures(document, FIGURES))
    return plain


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_finite(entry) for entry in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _last_word(name: object) -> str:
    """Return the last word of a name, such as ``ns`` of ``launch.kernel_ns``."""
    return str(name).replace(".", "_").rpartition("_")[2]


# Results have a few levels. Far deeper ones exhaust the stack of a recursive walk.
DEEPEST = 100
_HALF = re.compile(r"\\u[dD][89a-fA-F]")


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text, which is UTF-8 if it is bytes.

    Raises ValueError with one line of text for invalid JSON, NaN, infinities, lone surrogates, and values nested too
    deeply.
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
    """Return True if lists and mappings are nested more than ``levels`` deep."""
    level = [value]
    while level and levels:
        level = [inner for container in level for inner in _list_inside(container)]
        levels -= 1
    return bool(level)


def _list_inside(value: Any) -> list[Any]:
    contents = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return [content for content in contents if isinstance(content, dict | list)]


def _parse_finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"found {text[:20]}, which is too large for a number")
    return number


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"found {text}, which JSON does not have")


_STRICT: dict[str, Any] = {"parse_float": _parse_finite, "parse_constant": _refuse}
