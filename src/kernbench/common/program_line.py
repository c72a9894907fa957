"""Find where an error comes from: the line of a user's program and, when they are known, PE, kernel and rank."""

from __future__ import annotations

import linecache
import sys
import traceback
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any

from kernbench.common.errors import InputError, KernelNote, ProgramExitError, RunError, notes_of, text_of
from kernbench.common.values import value

_PACKAGE = Path(__file__).parents[1]
# Kernels and benches that ship with the package are programs like a user's own.
_PROGRAMS = (_PACKAGE / "kernels", _PACKAGE / "benches", _PACKAGE / "ccl" / "algorithms")


@value
class ProgramLine:
    """A line of a bench or a kernel, and the function that it is in."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def program_line(error: BaseException) -> ProgramLine | None:
    """Return the innermost line of a bench or a kernel that led to an error; None when there is none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if _is_of_program(frame.filename):
            return ProgramLine(frame.filename, frame.lineno or 0, frame.name)
    return None


def calling_line() -> ProgramLine | None:
    """Return the line of a bench or a kernel that led here; None when there is none. Cheap enough for every call."""
    # The caller's: a frame that holds itself would live until the garbage collector finds it.
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - documented, public in all but name
    while frame is not None and not _is_of_program(frame.f_code.co_filename):
        frame = frame.f_back
    return None if frame is None else ProgramLine(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def describe_call() -> tuple[str, str]:
    """Return the function of this package that a bench or a kernel has called.

    It comes with the text of the calling line; the second text is ``file:line: ``.
    """
    # The caller's: a frame that holds itself would live until the garbage collector finds it.
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - documented, public in all but name
    called = ""
    while frame is not None and not _is_of_program(frame.f_code.co_filename):
        if _PACKAGE in Path(frame.f_code.co_filename).parents:
            called = frame.f_code.co_qualname
        frame = frame.f_back
    if frame is None:
        return called, ""
    text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    return f"{called} (`{text}`)" if text else called, f"{frame.f_code.co_filename}:{frame.f_lineno}: "


@lru_cache(maxsize=4096)
def _is_of_program(file: str) -> bool:
    return is_program(Path(file))


def is_program(file: Path) -> bool:
    """Return True for a file of a user, and for the benches, kernels and algorithms that ship with the package."""
    if any(folder in file.parents for folder in _PROGRAMS):
        return True
    library = _PACKAGE in file.parents or "site-packages" in file.parts or str(file).startswith("<")
    return not library and not str(file).startswith(f"{sys.base_prefix}/")


class SpawnException(RunError):  # noqa: N818 - the name users know
    """Ranks that raised. ``errors``: by rank, what each raised by itself; ranks that were stopped are not in it."""

    def __init__(self, errors: dict[int, BaseException]) -> None:
        super().__init__(errors)
        self.errors = errors
        if all(isinstance(error, InputError) for error in errors.values()):
            self.exit_code = InputError.exit_code  # what ranks were given was wrong, not what they did

    def __str__(self) -> str:
        return tell_all(self.errors)


def tell_all(errors: dict[int, BaseException]) -> str:
    """Return the errors of ranks as text, a line or a few for each."""
    return "\n".join(f"rank {rank} failed: {_tell_error(error)}" for rank, error in sorted(errors.items()))


def _tell_error(error: BaseException) -> str:
    """Return an error as text, with the line of the rank's program that it comes from."""
    line = program_line(error)
    text = text_of(ProgramExitError(error.code) if isinstance(error, SystemExit) else error)
    what = f"{type(error).__name__}: {text}" + (f" (at {line})" if line and str(line) not in text else "")
    return "\n  ".join([what, *notes_of(error)])


@value(kw_only=True)
class ErrorPlace:
    """The known parts of the place of an error; None for those not known."""

    line: ProgramLine | None = None
    pe: tuple[int, int, int] | None = None
    kernel: str | None = None
    rank: int | None = None


def place_document(place: ErrorPlace | None) -> dict[str, Any] | None:
    """Return the place where an error comes from as an entry of a document."""
    if place is None:
        return None
    line = place.line
    return {
        "file": None if line is None else line.file,
        "line": None if line is None else line.line,
        "function": None if line is None else line.function,
        "pe": None if place.pe is None else list(place.pe),
        "kernel": place.kernel,
        "rank": place.rank,
    }


def place_of(error: BaseException) -> ErrorPlace:
    """Return the place where ``error`` was raised; of ranks that failed, the place in the first."""
    if isinstance(error, SpawnException) and error.errors:
        rank, first = min(error.errors.items())
        return replace(place_of(first), rank=rank)
    kernel = next((note for note in notes_of(error) if isinstance(note, KernelNote)), None)
    line = program_line(error)
    if kernel is None:
        return ErrorPlace(line=line)
    return ErrorPlace(line=line, pe=kernel.pe, kernel=kernel.kernel)
