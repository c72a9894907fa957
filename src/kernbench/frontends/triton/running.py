"""The Triton kernel that runs on a PE: its state, its errors, its programs, and its use of the results of calls."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import field
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Literal, TypeAlias

import triton

from kernbench.common.dtypes import Array, DType
from kernbench.common.errors import KernelError
from kernbench.common.values import state
from kernbench.frontends.triton.descriptors import ElementDescriptor
from kernbench.triton_emu.handles import Handle
from kernbench.triton_emu.source import call_place, kernel_error
from kernbench.triton_emu.tl_context import TLContext

ExpectedIntegers: TypeAlias = Callable[[Array, DType], Array | None]
"""A function of addresses, and of the type of the elements there"""
LaunchGrid: TypeAlias = tuple[int, int, int]
GridOrder: TypeAlias = Literal["cyclic", "blocked"]
_PACKAGE = Path(__file__).parents[2]
_LIBRARIES = (*map(str, triton.__path__), str(_PACKAGE))
"""Folders of the code between a kernel's line and the front end"""


class Refused(KernelError):  # noqa: N818 - the name says what happened
    """An error of a Triton kernel that requests an operation or a type that the machine lacks."""


def refused(message: str) -> Refused:
    """Return a Refused error that begins with the line of the kernel."""
    return Refused(f"{call_place()}: {message}")


@state
class Running:
    """A kernel on one PE: its ``tl``, the grid, and the current program.

    ``window`` is the maximum number of loads in flight, from ``num_stages``, or None for the machine's limit. It limits
    how far the kernel runs ahead of its data. ``on_write`` is called with the SIP, the first address, and the address
    behind the last byte of each write. ``expect`` returns the integers at addresses, where a run without data knows or
    assumes them; None in a run with data. ``plans`` caches the descriptors of loads and stores.
    """

    tl: TLContext
    grid: LaunchGrid
    window: int | None = None
    on_write: Callable[[int, int, int], None] | None = None
    expect: ExpectedIntegers | None = None
    program: LaunchGrid = (0, 0, 0)
    plans: dict[Hashable, tuple[Array, ElementDescriptor | None]] = field(default_factory=dict)
    _loads: list[Handle] = field(default_factory=list)

    def admit_load(self) -> None:
        """Wait until the number of loads in flight is below ``window``."""
        if self.window is not None and len(self._loads) >= self.window:
            self.tl.wait(self._loads.pop(0))

    def note_load(self, handle: Handle) -> None:
        """Count ``handle`` as a load in flight."""
        if self.window is not None:
            self._loads.append(handle)

    def note_write(self, target: ElementDescriptor, itemsize: int) -> None:
        """Report to ``on_write`` a write of elements of ``itemsize`` bytes."""
        if self.on_write is not None:
            self.on_write(self.tl.site.sip, *target.extent(itemsize))


# Each running kernel is a separate flow of execution with its own value of this variable.
_RUNNING: ContextVar[Running] = ContextVar("kernbench_triton_kernel")


def running() -> Running:
    """Return the kernel that runs. Raises KernelError outside of one."""
    try:
        return _RUNNING.get()
    except LookupError:
        raise kernel_error("an operation of triton.language outside a kernel that runs on a PE") from None


def begin(kernel: Running) -> None:
    """Make ``kernel`` the running kernel of this flow of execution."""
    _RUNNING.set(kernel)


def programs_of(order: GridOrder, total: int, pe: int, pes: int) -> Iterable[int]:
    """Return, in order, the programs that PE number ``pe`` of ``pes`` runs; there are ``total`` programs."""
    if order == "cyclic":
        return range(pe, total, pes)
    share, more = divmod(total, pes)
    first = pe * share + min(pe, more)
    return range(first, first + share + (pe < more))


def coordinates(programs: Iterable[int], grid: LaunchGrid) -> Iterator[LaunchGrid]:
    """Yield the grid coordinates of programs; the first axis changes fastest."""
    for program in programs:
        rest, x = divmod(program, grid[0])
        z, y = divmod(rest, grid[1])
        yield x, y, z


def result_is_dropped() -> bool:
    """Return whether the call is a complete statement, so the kernel does not use its result."""
    return _next_instruction() == ("POP_TOP", "")


def result_is_added() -> bool:
    """Return whether the kernel's next instruction adds the result to an earlier value: ``x += call(...)``."""
    return _next_instruction() in (("BINARY_OP", "+="), ("BINARY_OP", "+"))


def _next_instruction() -> tuple[str, str] | None:
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - documented, public in all but name
    while frame is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame = frame.f_back
    return None if frame is None else _followers(frame.f_code).get(frame.f_lasti)


@cache
def _followers(code: CodeType) -> dict[int, tuple[str, str]]:
    """Return the name and argument of the instruction that follows each offset of ``code``.

    While a frame calls a Python function, its offset is at the cache entries after the call. While it calls a C
    function, its offset is at the call.
    """
    return {
        offset: (following.opname, following.argrepr)
        for instruction, following in pairwise(dis.get_instructions(code))
        for offset in range(instruction.offset, following.offset, 2)
    }
