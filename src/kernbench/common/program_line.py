"""The origin of an error: the line of a user's program and, if they are known, PE, kernel and rank."""

from __future__ import annotations

import linecache
import sys
import traceback
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import FrameType

from kernbench.common.errors import InputError, KernelNote, ProgramExitError, RunError, notes_of, text_of
from kernbench.common.figures import figure
from kernbench.common.values import value

_PACKAGE = Path(__file__).parents[1]
# Kernels and benches that ship with the package count as programs of the user.
_PROGRAMS = (_PACKAGE / "kernels", _PACKAGE / "benches", _PACKAGE / "ccl" / "algorithms")


@value
class ProgramLine:
    """A line of a bench or a kernel, and the function that contains it."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def program_line(error: BaseException) -> ProgramLine | None:
    """Return the innermost line of a bench or a kernel in an error's traceback, or None if there is none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if _is_of_program(frame.filename):
            return ProgramLine(frame.filename, frame.lineno or 0, frame.name)
    return None


def calling_line() -> ProgramLine | None:
    """Return the innermost line of a bench or a kernel on the call stack, or None; cheap enough for every call."""
    # Start at the caller: a frame that refers to itself would live until the next garbage collection.
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - documented, public in all but name
    while frame is not None and not _is_of_program(frame.f_code.co_filename):
        frame = frame.f_back
    return None if frame is None else ProgramLine(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def describe_call() -> tuple[str, str]:
    """Return the function of this package that a bench or a kernel called, and the place of the call.

    The first text is the function with the source of the calling line, the second is ``file:line: ``.
    """
    # Start at the caller: a frame that refers to itself would live until the next garbage collection.
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
    """Errors of ranks. ``errors`` has the error that each rank raised, by rank; it omits ranks that were stopped."""

    def __init__(self, errors: dict[int, BaseException]) -> None:
        super().__init__(errors)
        self.errors = errors
        if all(isinstance(error, InputError) for error in errors.values()):
            self.exit_code = InputError.exit_code  # the input of the ranks was wrong

    def __str__(self) -> str:
        return describe_failures(self.errors)


def describe_failures(errors: dict[int, BaseException]) -> str:
    """Return the errors of ranks as text, a few lines for each rank."""
    return "\n".join(f"rank {rank} failed: {_describe_error(error)}" for rank, error in sorted(errors.items()))


def _describe_error(error: BaseException) -> str:
    """Return an error as text, with the line of the rank's program that raised it."""
    line = program_line(error)
    text = text_of(ProgramExitError(error.code) if isinstance(error, SystemExit) else error)
    description = f"{type(error).__name__}: {text}" + (f" (at {line})" if line and str(line) not in text else "")
    return "\n  ".join([description, *notes_of(error)])


@value(kw_only=True)
class ErrorPlace:
    """The place of an error; None for each part that is unknown."""

    line: ProgramLine | None = figure(inline=True, default=None)
    pe: tuple[int, int, int] | None = None
    kernel: str | None = None
    rank: int | None = None


def place_of(error: BaseException) -> ErrorPlace:
    """Return the place where ``error`` was raised; if several ranks failed, the place in the first of them."""
    if isinstance(error, SpawnException) and error.errors:
        rank, first = min(error.errors.items())
        return replace(place_of(first), rank=rank)
    kernel = next((note for note in notes_of(error) if isinstance(note, KernelNote)), None)
    line = program_line(error)
    if kernel is None:
        return ErrorPlace(line=line)
    return ErrorPlace(line=line, pe=kernel.pe, kernel=kernel.kernel)
