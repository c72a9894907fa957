"""Results as files: whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kernbench.common.errors import InputError


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
