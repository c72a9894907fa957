"""What ``spawn`` raises when ranks have failed."""

from __future__ import annotations

from kernbench.common.errors import InputError, ProgramExitError, RunError, text_of
from kernbench.common.notes import notes_of
from kernbench.runtime_api.program_line import program_line


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
