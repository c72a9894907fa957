"""The commands a running kernel hands to its PE, the arrays they work on, and the waits between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from enum import IntEnum
from math import prod
from typing import Literal, NamedTuple, TypeAlias, cast

from kernbench.common.dtypes import DType, row_major
from kernbench.common.operators import Attributes
from kernbench.common.values import value

ByteRun: TypeAlias = tuple[int, int]
"""Bytes in one piece: (address, how many)."""
NOWHERE = (1 << 64) - 1
"""The address of a run that lies in no memory: elements that are masked off."""


@value(guarded=False)
class Operand:
    """An array at physical addresses. It never changes; it is not frozen because that costs ten times as much.

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
    segments: tuple[ByteRun, ...] = ()
    valid: tuple[int, ...] | None = None
    other: float = 0
    by_address: bool = field(default=False, compare=False)

    @property
    def byte_strides(self) -> tuple[int, ...]:
        """``strides``, or those of a row-major array."""
        return row_major(self.shape, self.dtype.itemsize) if self.strides is None else self.strides


def in_tcm(owner: tuple[int, ...], address: int, shape: tuple[int, ...], dtype: DType) -> Operand:
    """Make a row-major array in the TCM of the PE ``owner``."""
    return Operand("tcm", owner, address, prod(shape) * dtype.itemsize, shape, dtype)


@value(guarded=False)
class MemoryRef:
    """An array in memory at virtual address ``va``; ``strides`` in bytes, None: row-major.

    Elements at or beyond ``valid`` (per axis) are not accessed: a read gives ``other``. ``runs``: a scatter-gather list
    instead of ``va``: where the elements lie, in their order; those at ``NOWHERE`` are not accessed. ``physical``: the
    address is a physical one, as of a slot of a queue.
    """

    va: int
    shape: tuple[int, ...]
    dtype: DType
    strides: tuple[int, ...] | None = None
    valid: tuple[int, ...] | None = None
    other: float = 0
    runs: tuple[ByteRun, ...] = ()
    physical: bool = False


ArrayPlace: TypeAlias = Operand | MemoryRef
"""Where an array lies: at physical addresses, or at virtual ones."""
CommandSource: TypeAlias = Operand | MemoryRef | float | str


BlockChoice: TypeAlias = Literal["auto", "least"]
"""How blocks are chosen: the smallest that keep the matrix unit busy, or those for which least is read"""
Block: TypeAlias = tuple[int, int, int] | BlockChoice | None
"""The (m, k, n) of the blocks by which a product goes, or how they are chosen; None: it is streamed tile by tile"""

BY_BLOCKS = "by blocks of "
"""Stands in the name of the record of a product by blocks, before their m×k×n"""


class Epilogue(NamedTuple):
    """A step on each output tile.

    ``bias`` (a vector along N), ``add`` (a matrix like the output), ``scale`` (a number), ``relu``, ``gelu``, ``silu``.
    """

    name: str
    operand: ArrayPlace | float | None = None


@value(kw_only=True)
class Params(Attributes):
    """The parameters of a command beside its arrays: the attributes of its operator, and the fields below.

    ``epilogue``: of a composite. ``block``: of a product, as ``Block`` says; its blocks go round from (m, k, n)
    ``begin``. ``tile_sizes``: (m, k, n) of a composite that has been recorded. ``old``: where an atomic puts the
    elements that it finds.
    """

    epilogue: tuple[Epilogue, ...] = ()
    block: Block = None
    begin: tuple[int, int, int] = (0, 0, 0)
    tile_sizes: tuple[int, int, int] | None = None
    old: Operand | None = None


NO_PARAMS = Params()


class Opcode(IntEnum):
    """The kinds of commands, and the ``name``, ``srcs``, ``dst`` and ``params`` that a command of each has.

    LOAD: the DMA reads a MemoryRef to ``dst``. STORE: it writes an Operand to a MemoryRef, ``dst``.
    ATOMIC: the memory changes a MemoryRef, which is the first of ``srcs`` and ``dst``, by the operator ``name`` of
    ``ATOMICS`` and the other ``srcs``: the values, for ``atomic_cas`` behind the array to compare with; ``params.old``
    gets what was there before, None: nobody wants it.
    SEND: an Operand goes to a slot of the peer of queue ``name``, once one is free. RECEIVE: the next message of queue
    ``name`` is to have so many bytes, the one of ``srcs``; done when it is there.
    DOT: ``dst = op(a) @ op(b) + acc`` by tiles on the GEMM engine, 2-D; op transposes if ``params`` say so, and ``acc``
    may be missing. MATH: ``dst`` is what the operator ``name`` makes of ``srcs``, of which numbers take the arrays'
    dtype.
    GEMM: a whole tiled product, ``dst = epilogue(a @ b)``, 2-D. TILED_MATH: ``dst = epilogue(name(*srcs))``
    elementwise, for 2-D arrays of one shape. Both go tile by tile: Operands are staged in TCM, MemoryRefs streamed, and
    ``dst`` is a MemoryRef.
    PRINT: a line of output with time and PE; arrays show their values once phase 2 knows them.
    """

    LOAD = 0
    STORE = 1
    ATOMIC = 2
    SEND = 3
    RECEIVE = 4
    DOT = 5
    MATH = 6
    GEMM = 7
    TILED_MATH = 8
    PRINT = 9


# For whatever handles every command: finding a member in its Enum takes as long as the work itself.
LOAD, STORE, ATOMIC, SEND, RECEIVE, DOT, MATH, GEMM, TILED_MATH, PRINT = Opcode
OPCODE_WORDS = ("load", "store", "atomic", "send", "recv", "dot", "math", "gemmcomposite", "mathcomposite", "print")
"""The name of each opcode in deadlock reports."""
COMPOSITES = frozenset((GEMM, TILED_MATH))
MEMORY_WRITERS = frozenset((STORE, ATOMIC, GEMM, TILED_MATH))
"""The opcodes that write memory."""


@value(eq=False, guarded=False)
class Command:
    """An order of a kernel to its PE: ``op`` says what to do, and what the other fields mean.

    ``name``: the operator of a command that has one, the direction of a queue, else the name in the op-log.
    ``serial`` counts commands in program order, ``line`` is where the kernel made the call. ``after`` are the serials
    of the commands whose results it uses: it starts when they are done.
    """

    op: Opcode
    name: str
    serial: int
    line: int
    after: tuple[int, ...]
    srcs: tuple[CommandSource, ...]
    dst: ArrayPlace | None = None
    params: Params = NO_PARAMS

    @property
    def reads(self) -> tuple[Operand, ...]:
        """The arrays at physical addresses that it reads."""
        return tuple([x for x in self._sources if isinstance(x, Operand)])

    @property
    def writes(self) -> tuple[Operand, ...]:
        """The arrays at physical addresses that it writes."""
        return tuple([x for x in (self.dst, self.params.old) if isinstance(x, Operand)])

    @property
    def reads_of_memory(self) -> tuple[MemoryRef, ...]:
        """The arrays at virtual addresses that it reads, in order."""
        return tuple([x for x in self._sources if isinstance(x, MemoryRef)])

    @property
    def _sources(self) -> tuple[CommandSource | None, ...]:
        steps = self.params.epilogue
        return (*self.srcs, *[step.operand for step in steps]) if steps else self.srcs

    @property
    def array(self) -> Operand:
        """The side of a load, store, atomic or send that lies in the PE."""
        found = self.dst if self.op is LOAD else self.srcs[-1]
        assert isinstance(found, Operand)
        return found

    @property
    def ref(self) -> MemoryRef:
        """The side of a DMA's command that lies in memory: where it writes, else what it reads."""
        found = self.dst if isinstance(self.dst, MemoryRef) else self.srcs[0]
        assert isinstance(found, MemoryRef)
        return found

    @property
    def compared(self) -> Operand | None:
        """The array that an ``atomic_cas`` compares memory with."""
        found = self.srcs[1] if len(self.srcs) > 2 else None
        assert not isinstance(found, MemoryRef | float | str)
        return found

    @property
    def a(self) -> ArrayPlace:
        """The first factor of a product."""
        return _array(self.srcs[0])

    @property
    def b(self) -> ArrayPlace:
        """The second factor of a product."""
        return _array(self.srcs[1])

    @property
    def acc(self) -> Operand | None:
        """The array that a dot adds to."""
        found = self.srcs[2] if len(self.srcs) > 2 else None
        assert not isinstance(found, MemoryRef | float | str)
        return found

    @property
    def inputs(self) -> tuple[ArrayPlace | float, ...]:
        """The arrays and numbers that an operator works on."""
        return cast("tuple[ArrayPlace | float, ...]", self.srcs)

    @property
    def result(self) -> Operand:
        """The array in the PE that a load, dot or MATH command writes."""
        assert isinstance(self.dst, Operand)
        return self.dst

    @property
    def out(self) -> MemoryRef:
        """The array in memory that a composite writes."""
        assert isinstance(self.dst, MemoryRef)
        return self.dst

    @property
    def nbytes(self) -> int:
        """The size of the message of a receive."""
        (found,) = self.srcs
        assert isinstance(found, int)
        return found

    @property
    def parts(self) -> tuple[Operand | str, ...]:
        """The parts of a line of output."""
        return cast("tuple[Operand | str, ...]", self.srcs)

    @property
    def widest_bytes(self) -> int:
        """The size of the widest operand of a MATH command: the engine works on that much."""
        return max(self.result.nbytes, *(x.nbytes for x in self.reads), 0)


def _array(x: CommandSource) -> ArrayPlace:
    assert isinstance(x, Operand | MemoryRef)
    return x


def fill_of(command: Command) -> Command | None:
    """Return what a DMA does that accesses no element: a load sets ``other``, an atomic finds 0; None: nothing."""
    dst, other = (command.dst, command.ref.other) if command.op is LOAD else (command.params.old, 0)
    if not isinstance(dst, Operand):
        return None
    return Command(MATH, "full", command.serial, command.line, (), (other,), dst)


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


KernelRequest: TypeAlias = Command | AwaitSpace | Meet | Fence | Receive | AwaitCommand | ReadValue
"""A command is issued, and the kernel goes on: after a SEND once a slot of the receiver is its; a RECEIVE takes
the next message of its queue, and is answered with its slot."""


def awaited_by(request: KernelRequest | None, place: Callable[[int], str] = "line {}".format) -> str:
    """Say in words what a kernel that made ``request`` waits for; without a request, for its start.

    ``place``: what a line of the kernel is called.
    """
    text = "its start"
    match request:
        case Command(op=Opcode.SEND, name=direction, line=line):
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
