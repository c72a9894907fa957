"""Files of the user's: inputs that are read, of bounded size; and results, whole or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
_FROM_PIPE = "write what comes out of it into a file, and name that"


def read_input(path: str | os.PathLike[str], most: int | None = MOST_INPUT_BYTES) -> bytes:
    """Return what is in an input file. UnreadableFileError as of ``check_input``."""
    check_input(path, most)
    try:
        with Path(path).open("rb") as file:
            # Some files have more in them than they say, such as those of /proc.
            content = file.read() if most is None else file.read(most + 1)
    except OSError as error:
        raise _unreadable(path, error) from error
    if most is not None and len(content) > most:
        raise _refused(path, f"it has more than {most:,} bytes", most)
    return content


def check_input(path: str | os.PathLike[str], most: int | None = MOST_INPUT_BYTES) -> None:
    """Raise UnreadableFileError unless ``path`` leads to a regular file of at most ``most`` bytes (None: of any size).

    Anything else may have no end (devices), or make its reader wait for ever (pipes).
    """
    try:
        found = os.stat(path)
    except (OSError, ValueError) as error:  # ValueError: no file system has such a name
        raise _unreadable(path, error) from error
    kind = stat.S_IFMT(found.st_mode)
    if kind != stat.S_IFREG:
        raise _refused(path, _OTHERS.get(kind, "Is no regular file"), most, _FROM_PIPE if kind == stat.S_IFIFO else "")
    if most is not None and found.st_size > most:
        raise _refused(path, f"it has {found.st_size:,} bytes", most)


def _refused(path: str | os.PathLike[str], what: str, most: int | None, advice: str = "") -> UnreadableFileError:
    size = "" if most is None else f" of at most {most / 1e6:g} MB"
    why = f"{what}; only regular files{size} are read{advice and f': {advice}'}"
    return UnreadableFileError(os.fspath(path), why)


def _unreadable(path: str | os.PathLike[str], error: OSError | ValueError) -> UnreadableFileError:
    if isinstance(error, FileNotFoundError | NotADirectoryError | ValueError):
        return UnreadableFileError(os.fspath(path), f"no such file (looked from {os.getcwd()})", missing=True)
    return UnreadableFileError(os.fspath(path), error.strerror or str(error))


def writable(path: str | Path) -> Path:
    """``path`` if its folder can be written to. InputError when it cannot: better said before a long run."""
    place = Path(path)
    if place.is_dir() or not os.access(place.parent, os.W_OK):
        why = "is a folder" if place.is_dir() else "cannot be written there: no such folder, or not allowed"
        raise InputError(f"{path}: {why}")
    return place


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name beside ``path`` to write to; what is there takes the place of ``path`` once it is complete.

    InputError when the system refuses.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
