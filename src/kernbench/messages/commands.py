"""The commands a running kernel hands to its PE, the arrays they work on, and the waits between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from math import prod
from typing import TypeAlias

from kernbench.common.dtypes import DType, row_major
from kernbench.common.operators import Attributes
from kernbench.common.values import value

Run: TypeAlias = tuple[int, int]
"""Bytes in one piece: (address, how many)."""
NOWHERE = (1 << 64) - 1
"""The address of a run that lies in no memory: elements that are masked off."""


@value(guarded=False)
class Operand:
    """Where an array lies in memory. Never changed, but not frozen either: that would make it ten times as dear.

    ``space``: hbm, sram, tcm; ``owner``: coordinates (sip, cube) or (sip, cube, pe); ``address``: physical, of the
    first element; ``nbytes``: what the elements hold; ``strides`` in bytes, row-major without. ``segments``: the
    (address, nbytes) ranges, in order, that the array's bytes lie in when they are not one range: a byte at offset x
    from the first element is byte x of all segments put together. ``valid``: how many elements per axis are in memory;
    outside them, and in segments at ``NOWHERE``, a read gives ``other`` and a write does nothing. ``by_address``: the
    kernel named the address itself, so no allocator keeps its bytes apart from those of others; the array is the same,
    and files of the op-log do not say it.
    """

    space: str
    owner: tuple[int, ...]
    address: int
    nbytes: int
    shape: tuple[int, ...]
    dtype: DType
    strides: tuple[int, ...] | None = None
    segments: tuple[Run, ...] = ()
    valid: tuple[int, ...] | None = None
    other: float = 0
    by_address: bool = field(default=False, compare=False)

    @property
    def byte_strides(self) -> tuple[int, ...]:
        """``strides``, or those of a row-major array."""
        return row_major(self.shape, self.dtype.itemsize) if self.strides is None else self.strides


def in_tcm(owner: tuple[int, ...], address: int, shape: tuple[int, ...], dtype: DType) -> Operand:
    """A row-major array in the TCM of the PE ``owner``."""
    return Operand("tcm", owner, address, prod(shape) * dtype.itemsize, shape, dtype)


@value
class MemoryRef:
    """An array that stays in memory at virtual address ``va``; ``strides`` in bytes, row-major without."""

    va: int
    shape: tuple[int, ...]
    dtype: DType
    strides: tuple[int, ...] | None = None


@value(eq=False, guarded=False)
class Command:
    """Common to all commands: ``serial`` counts them in program order, ``line`` is where the kernel made the call.

    ``after`` are the serials of the commands whose results it uses: it starts when they are done.
    """

    serial: int
    line: int
    after: tuple[int, ...]


@value(eq=False, guarded=False)
class LoadCommand(Command):
    """DMA read from virtual address ``va`` to ``dst``. ``strides`` in bytes (row-major without).

    Elements at or beyond ``valid`` (per axis) are not read but set to ``other``. ``physical``: the address is a
    physical one, as of a slot of a queue. ``runs``: a scatter-gather list instead of ``va``: where the elements lie, in
    their order; those at ``NOWHERE`` are ``other``.
    """

    dst: Operand
    va: int
    strides: tuple[int, ...] | None = None
    valid: tuple[int, ...] | None = None
    other: float = 0
    physical: bool = False
    runs: tuple[Run, ...] = ()


@value(eq=False, guarded=False)
class StoreCommand(Command):
    """DMA write of ``src`` to virtual address ``va``; elements at or beyond ``valid`` are left out.

    ``physical``: the address is a physical one. ``runs``: as for a load; elements at ``NOWHERE`` are left out.
    """

    src: Operand
    va: int
    strides: tuple[int, ...] | None = None
    valid: tuple[int, ...] | None = None
    physical: bool = False
    runs: tuple[Run, ...] = ()


@value(kw_only=True, eq=False, guarded=False)
class AtomicCommand(Command):
    """The memory makes of its elements at ``va`` and of ``src`` what ``operator`` of ``ATOMICS`` says.

    ``compared``: of a ``cas``. ``dst`` gets what was there before; None: nobody wants it. The rest as in a store.
    """

    operator: str
    src: Operand
    compared: Operand | None
    dst: Operand | None
    va: int
    strides: tuple[int, ...] | None = None
    valid: tuple[int, ...] | None = None
    physical: bool = False
    runs: tuple[Run, ...] = ()


@value(eq=False, guarded=False)
class SendCommand(Command):
    """``src`` goes to a slot of the peer of queue ``direction``, once one is free."""

    direction: str
    src: Operand


@value(eq=False, guarded=False)
class RecvCommand(Command):
    """The next message of queue ``direction`` is to have ``nbytes``; done when it is there."""

    direction: str
    nbytes: int


@value(kw_only=True, eq=False, guarded=False)
class DotCommand(Command):
    """``dst = op(a) @ op(b) + acc`` by tiles on the GEMM engine, 2-D; op transposes when asked."""

    a: Operand
    b: Operand
    dst: Operand
    acc: Operand | None = None
    trans_a: bool = False
    trans_b: bool = False


@value(eq=False, guarded=False)
class MathCommand(Command):
    """``dst = operator(*inputs)`` on the MATH engine; numbers among the inputs take the arrays' dtype."""

    operator: str
    inputs: tuple[Operand | float, ...]
    dst: Operand
    attributes: Attributes

    @property
    def widest_bytes(self) -> int:
        """What its widest operand holds: the engine works on that much."""
        widest = self.dst.nbytes
        for x in self.inputs:
            if x.__class__ is Operand and x.nbytes > widest:
                widest = x.nbytes
        return widest


@value(kw_only=True, eq=False, guarded=False)
class PrintCommand(Command):
    """A line of output with time and PE; arrays show their values once phase 2 knows them."""

    parts: tuple[Operand | str, ...]


StreamOperand: TypeAlias = Operand | MemoryRef
"""What a composite works on: staged in TCM, or streamed from memory tile by tile."""


@value
class EpilogueStep:
    """A step on each output tile.

    ``bias`` (a vector along N), ``add`` (a matrix like the output), ``scale`` (a number), ``relu``, ``gelu``, ``silu``.
    """

    name: str
    operand: StreamOperand | float | None = None


@value(kw_only=True, eq=False, guarded=False)
class GemmComposite(Command):
    """A whole tiled GEMM: ``out = epilogue(a @ b)``, 2-D, tile by tile; the output is streamed to memory."""

    a: StreamOperand
    b: StreamOperand
    out: MemoryRef
    epilogue: tuple[EpilogueStep, ...] = ()


@value(kw_only=True, eq=False, guarded=False)
class MathComposite(Command):
    """``out = epilogue(operator(*inputs))`` elementwise, tile by tile; arrays have the shape of ``out``, 2-D."""

    operator: str
    inputs: tuple[StreamOperand | float, ...]
    out: MemoryRef
    epilogue: tuple[EpilogueStep, ...] = ()


Composite: TypeAlias = GemmComposite | MathComposite
PeCommand: TypeAlias = (
    LoadCommand
    | StoreCommand
    | AtomicCommand
    | SendCommand
    | RecvCommand
    | DotCommand
    | MathCommand
    | PrintCommand
    | GemmComposite
    | MathComposite
)

MEMORY_WRITERS = (StoreCommand, AtomicCommand, GemmComposite, MathComposite)
"""The commands that write memory."""


@value
class AwaitSpace:
    """The kernel needs scratch that commands under way still use: it goes on when one of them is done."""

    nbytes: int
    line: int


@value
class Meet:
    """The kernel waits at a barrier for the other PEs of its launch in its cube."""

    line: int


@value
class Fence:
    """The kernel waits until what its earlier commands write is in memory."""

    line: int


@value(eq=False, guarded=False)
class Receive:
    """The kernel waits for the next message of queue ``direction`` (None: of whichever has one, in turn).

    It is to have ``nbytes``. Answered with its slot.
    """

    direction: str | None
    nbytes: int
    line: int


@value
class AwaitCommand:
    """The kernel waits until the command ``serial`` is done."""

    serial: int
    line: int


@value
class ReadValue:
    """The kernel wants the numbers of ``array``, whose producer is done: answered with a NumPy array.

    None: this run keeps no data.
    """

    array: Operand
    line: int


KernelRequest: TypeAlias = PeCommand | AwaitSpace | Meet | Fence | Receive | AwaitCommand | ReadValue
"""A command is issued, and the kernel goes on: after a SendCommand once a slot of the receiver is its; a RecvCommand
takes the next message of its queue, and is answered with its slot."""


def awaited_by(request: KernelRequest | None, place: Callable[[int], str] = "line {}".format) -> str:
    """What a kernel that made ``request`` waits for, in words; before its first one, its start.

    ``place``: what a line of the kernel is called.
    """
    text = "its start"
    match request:
        case SendCommand(direction=direction, line=line):
            text = f"a slot of queue {direction}, at {place(line)}"
        case Receive(direction, _, line):
            queue = "any queue" if direction is None else f"queue {direction}"
            text = f"a message of {queue}, at {place(line)}"
        case AwaitCommand(_, line):
            text = f"the command that {place(line)} waits for"
        case ReadValue(_, line):
            text = f"its CPU, to read the value of {place(line)}"
        case AwaitSpace(nbytes, line):
            text = f"{nbytes} bytes of scratch at {place(line)}"
        case Meet(line):
            text = f"barrier at {place(line)}"
        case Fence(line):
            text = f"its stores and atomics to be in memory, at the fence of {place(line)}"
        case Command(line=line):
            text = f"its CPU, to issue {place(line)}"
    return text
