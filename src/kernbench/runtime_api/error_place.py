"""Where an error comes from: the line of the user's program and, when it is known, the PE, the kernel and the rank."""

from __future__ import annotations

from dataclasses import replace

from kernbench.common.errors import InputError, KernelNote, ProgramExitError, RunError, notes_of, text_of
from kernbench.common.program_line import ProgramLine, program_line
from kernbench.common.values import value


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
    """What ranks have raised, a line or a few for each."""
    return "\n".join(f"rank {rank} failed: {_told(error)}" for rank, error in sorted(errors.items()))


def _told(error: BaseException) -> str:
    """What an error is, and the line of the rank's program that it comes from."""
    line = program_line(error)
    text = text_of(ProgramExitError(error.code) if isinstance(error, SystemExit) else error)
    what = f"{type(error).__name__}: {text}" + (f" (at {line})" if line and str(line) not in text else "")
    return "\n  ".join([what, *notes_of(error)])


@value(kw_only=True)
class ErrorPlace:
    """What is known of the place of an error; None for what is not."""

    line: ProgramLine | None = None
    pe: tuple[int, int, int] | None = None
    kernel: str | None = None
    rank: int | None = None


def place_of(error: BaseException) -> ErrorPlace:
    """Where ``error`` was raised; of ranks that failed, the place in the first."""
    if isinstance(error, SpawnException) and error.errors:
        rank, first = min(error.errors.items())
        return replace(place_of(first), rank=rank)
    kernel = next((note for note in notes_of(error) if isinstance(note, KernelNote)), None)
    line = program_line(error)
    if kernel is None:
        return ErrorPlace(line=line)
    return ErrorPlace(line=line, pe=kernel.pe, kernel=kernel.kernel)
