"""Where an error comes from: the line of the user's program and, when it is known, the PE, the kernel and the rank."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kernbench.common.notes import KernelNote, notes_of
from kernbench.runtime_api.program_line import ProgramLine, program_line
from kernbench.runtime_api.spawn_exception import SpawnException


@dataclass(frozen=True, slots=True, kw_only=True)
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
