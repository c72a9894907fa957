"""Which line of a user's program an error comes from."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

import kernbench

_PACKAGE = Path(kernbench.__file__).parent
# Kernels and benches that ship with the package are programs like a user's own.
_PROGRAMS = (_PACKAGE / "kernels", _PACKAGE / "benches", _PACKAGE / "ccl" / "algorithms")


def program_line(error: BaseException) -> str:
    """``file:line`` of the innermost line of a bench or a kernel that led to an error; empty when there is none."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_program(Path(frame.filename))]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def is_program(file: Path) -> bool:
    """Whether a file is one of a bench or a kernel, not of a library."""
    if any(folder in file.parents for folder in _PROGRAMS):
        return True
    library = _PACKAGE in file.parents or "site-packages" in file.parts or str(file).startswith("<")
    return not library and not str(file).startswith(f"{sys.base_prefix}/")
