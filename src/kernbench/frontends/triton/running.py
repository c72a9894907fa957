"""The Triton kernel that runs on a PE, and the assignment of the grid's programs to PEs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import field
from typing import Literal, TypeAlias

from kernbench.common.dtypes import Array
from kernbench.common.errors import KernelError
from kernbench.common.values import state
from kernbench.frontends.triton.descriptors import ElementDescriptor
from kernbench.triton_emu.handles import Handle
from kernbench.triton_emu.source import call_place, kernel_error
from kernbench.triton_emu.tl_context import TLContext

LaunchGrid: TypeAlias = tuple[int, int, int]
GridOrder: TypeAlias = Literal["cyclic", "blocked"]


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
    behind the last byte of each write. ``plans`` caches the descriptors of loads and stores.
    """

    tl: TLContext
    grid: LaunchGrid
    window: int | None = None
    on_write: Callable[[int, int, int], None] | None = None
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
    each, more = divmod(total, pes)
    first = pe * each + min(pe, more)
    return range(first, first + each + (pe < more))


def coordinates(programs: Iterable[int], grid: LaunchGrid) -> Iterator[LaunchGrid]:
    """Yield the grid coordinates of programs; the first axis changes fastest."""
    for program in programs:
        rest, x = divmod(program, grid[0])
        z, y = divmod(rest, grid[1])
        yield x, y, z
