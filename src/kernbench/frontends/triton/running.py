"""Assign programs of a grid to PEs: the interpreter's operations belong to the program that runs."""

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


class Refused(KernelError):  # noqa: N818 - it says what happened
    """A Triton kernel asks for what the machine does not have."""


def refused(message: str) -> Refused:
    """A Refused error that begins with the line of the kernel."""
    return Refused(f"{call_place()}: {message}")


@state
class Running:
    """A kernel on one PE: its ``tl``, the grid, and the program that it is at.

    ``window``: how many loads may be under way; None: as many as the machine takes. That is how far a kernel runs ahead
    of its data, which ``num_stages`` says. ``on_write``: called with the SIP, the first address and the one behind the
    last of what the kernel writes. ``plans``: what loads and stores of it become, by what they are found by.
    """

    tl: TLContext
    grid: LaunchGrid
    window: int | None = None
    on_write: Callable[[int, int, int], None] | None = None
    program: LaunchGrid = (0, 0, 0)
    plans: dict[Hashable, tuple[Array, ElementDescriptor | None]] = field(default_factory=dict)
    _loads: list[Handle] = field(default_factory=list)

    def admit_load(self) -> None:
        """Wait until one more load may be under way."""
        if self.window is not None and len(self._loads) >= self.window:
            self.tl.wait(self._loads.pop(0))

    def note_load(self, handle: Handle) -> None:
        """A load is under way."""
        if self.window is not None:
            self._loads.append(handle)

    def note_write(self, what: ElementDescriptor, itemsize: int) -> None:
        """The kernel writes elements of ``itemsize`` bytes."""
        if self.on_write is not None:
            self.on_write(self.tl.site.sip, *what.extent(itemsize))


# Each kernel is a flow of execution of its own, which sees its own.
_RUNNING: ContextVar[Running] = ContextVar("kernbench_triton_kernel")


def running() -> Running:
    """The kernel that runs; KernelError outside of one."""
    try:
        return _RUNNING.get()
    except LookupError:
        raise kernel_error("an operation of triton.language outside a kernel that runs on a PE") from None


def begin(kernel: Running) -> None:
    """From now on this flow of execution is ``kernel``."""
    _RUNNING.set(kernel)


def programs_of(order: GridOrder, total: int, pe: int, pes: int) -> Iterable[int]:
    """The programs of ``total`` that the PE number ``pe`` of ``pes`` runs, in its order."""
    if order == "cyclic":
        return range(pe, total, pes)
    each, more = divmod(total, pes)
    first = pe * each + min(pe, more)
    return range(first, first + each + (pe < more))


def coordinates(programs: Iterable[int], grid: LaunchGrid) -> Iterator[LaunchGrid]:
    """Yield the places of programs in the grid; the first axis counts fastest."""
    for program in programs:
        rest, x = divmod(program, grid[0])
        z, y = divmod(rest, grid[1])
        yield x, y, z
