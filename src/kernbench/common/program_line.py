"""The lines of users' programs in a traceback."""

from __future__ import annotations

import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
# Kernels and benches that ship with the package are programs like a user's own.
_PROGRAMS = (_PACKAGE / "kernels", _PACKAGE / "benches", _PACKAGE / "ccl" / "algorithms")


@dataclass(frozen=True, slots=True)
class ProgramLine:
    """A line of a bench or a kernel, and the function that it is in."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def program_line(error: BaseException) -> ProgramLine | None:
    """The innermost line of a bench or a kernel that led to an error; None when there is none."""
    return _innermost(traceback.extract_tb(error.__traceback__))


def calling_line() -> ProgramLine | None:
    """The line of a bench or a kernel that led here; None when there is none."""
    return _innermost(traceback.extract_stack())


def _innermost(frames: traceback.StackSummary) -> ProgramLine | None:
    for frame in reversed(frames):
        if is_program(Path(frame.filename)):
            return ProgramLine(frame.filename, frame.lineno or 0, frame.name)
    return None


def is_program(file: Path) -> bool:
    """Whether a file is of a user, or one of the benches, kernels and algorithms that ship with the package."""
    if any(folder in file.parents for folder in _PROGRAMS):
        return True
    library = _PACKAGE in file.parents or "site-packages" in file.parts or str(file).startswith("<")
    return not library and not str(file).startswith(f"{sys.base_prefix}/")
