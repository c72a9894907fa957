"""The commands that a running kernel issues to its PE, their operands, and the waits between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from enum import IntEnum
from math import prod
from typing import Literal, NamedTuple, TypeAlias, cast

from kernbench.common.dtypes import Array, DType, row_major
from kernbench.common.operators import Attributes
from kernbench.common.values import value

ByteRun: TypeAlias = tuple[int, int]
"""Contiguous bytes: (address, number of bytes)."""
NOWHERE = (1 << 64) - 1
"""The address of a run that is in no memory, since its elements are masked off."""


@value(guarded=False)
class Operand:
    """An array at physical addresses. Operands never change.

    The class is not frozen, because construction would cost ten times as much.

    - ``space``: hbm, sram or tcm. ``owner``: (sip, cube) or (sip, cube, pe).
    - ``address``: physical address of the first element. ``nbytes``: the size of the elements.
    - ``strides``: in bytes; None stands for row-major.
    - ``segments``: the (address, nbytes) ranges of the array's bytes, in order, if there are several ranges. Byte x
      after the first element is byte x of the joined segments.
    - ``valid``: the number of elements per axis that are in memory. For all other elements, and in segments at
      ``NOWHERE``, a read returns ``other`` and a write does nothing.
    - ``by_address``: the kernel computed the address, so no allocator separates the bytes from other arrays. The flag
      is ignored when operands are compared, and files of the op-log omit it.
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
        """``strides``, or the strides of a row-major array."""
        return row_major(self.shape, self.dtype.itemsize) if self.strides is None else self.strides


def in_tcm(owner: tuple[int, ...], address: int, shape: tuple[int, ...], dtype: DType) -> Operand:
    """Return a row-major array in the TCM of the PE ``owner``."""
    return Operand("tcm", owner, address, prod(shape) * dtype.itemsize, shape, dtype)


@value(guarded=False)
class MemoryRef:
    """An array in memory at virtual address ``va``; ``strides`` in bytes, None: row-major.

    Elements at or beyond ``valid`` on any axis are not accessed: a read returns ``other``. ``runs``: a scatter-gather
    list instead of ``va``, with the runs of the elements in order; runs at ``NOWHERE`` are not accessed. ``physical``:
    the address is physical, for example that of a queue's slot.
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
"""The place of an array: at physical addresses, or at virtual addresses."""
CommandSource: TypeAlias = Operand | MemoryRef | float | str


BlockChoice: TypeAlias = Literal["auto", "least"]
"""The rule that chooses blocks: the smallest that keep the matrix unit busy, or the blocks with fewest bytes read"""
Block: TypeAlias = tuple[int, int, int] | BlockChoice | None
"""The (m, k, n) of a product's blocks, or the rule that chooses them; None: the product is streamed tile by tile"""

BY_BLOCKS = "by blocks of "
"""The text before m×k×n in the record's name of a product by blocks"""


class Epilogue(NamedTuple):
    """A step on each output tile.

    ``name`` is ``bias`` (a vector along N), ``add`` (a matrix of the output's shape), ``scale`` (a number), ``relu``,
    ``gelu`` or ``silu``.
    """

    name: str
    operand: ArrayPlace | float | None = None


@value(kw_only=True)
class Params(Attributes):
    """The parameters of a command beside its arrays: the attributes of its operator, and the fields below.

    - ``epilogue``: the steps of a composite.
    - ``block``: the blocks of a product, as ``Block`` defines. Their order starts at block (m, k, n) ``begin`` and
      wraps around.
    - ``tile_sizes``: (m, k, n) of a recorded composite.
    - ``old``: the array in which an atomic stores the previous elements.
    """

    epilogue: tuple[Epilogue, ...] = ()
    block: Block = None
    begin: tuple[int, int, int] = (0, 0, 0)
    tile_sizes: tuple[int, int, int] | None = None
    old: Operand | None = None


NO_PARAMS = Params()


class Opcode(IntEnum):
    """The kinds of commands, with the ``name``, ``srcs``, ``dst`` and ``params`` of each.

    - LOAD: the DMA reads a MemoryRef to ``dst``. STORE: the DMA writes an Operand to the MemoryRef ``dst``.
    - ATOMIC: the memory changes a MemoryRef, which is both ``srcs[0]`` and ``dst``. ``name`` is an operator of
      ``ATOMICS``. The other ``srcs`` are the values; for ``atomic_cas``, the array to compare with comes before them.
      ``params.old`` receives the previous elements; None: the kernel does not use them.
    - SEND: an Operand goes to a free slot of the peer of queue ``name``. RECEIVE: the next message of queue ``name``,
      whose size in bytes is the only item of ``srcs``; done when the message arrives.
    - DOT: ``dst = op(a) @ op(b) + acc`` by tiles on the GEMM engine, 2-D. ``op`` transposes if ``params`` say so;
      ``acc`` is optional. MATH: ``dst = name(*srcs)``; numbers take the arrays' dtype.
    - GEMM: a complete tiled product, ``dst = epilogue(a @ b)``, 2-D. TILED_MATH: ``dst = epilogue(name(*srcs))``
      elementwise, for 2-D arrays of one shape. Both run tile by tile: Operands are in TCM, MemoryRefs are streamed,
      and ``dst`` is a MemoryRef.
    - PRINT: a line of output with time and PE. Arrays show their values after phase 2 has computed them.
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


# Globals for code that handles every command: the look-up of an Enum member costs as much as the work itself.
LOAD, STORE, ATOMIC, SEND, RECEIVE, DOT, MATH, GEMM, TILED_MATH, PRINT = Opcode
OPCODE_WORDS = ("load", "store", "atomic", "send", "recv", "dot", "math", "gemmcomposite", "mathcomposite", "print")
"""The name of each opcode in deadlock reports."""
COMPOSITES = frozenset((GEMM, TILED_MATH))
MEMORY_WRITERS = frozenset((STORE, ATOMIC, GEMM, TILED_MATH))
"""The opcodes that write memory."""


@value(eq=False, guarded=False)
class Command:
    """A command of a kernel to its PE: ``op`` selects the operation and the meaning of the other fields.

    ``name``: the operator of the command, the direction of its queue, or else its name in the op-log. ``serial`` counts
    commands in program order. ``line`` is the kernel line of the call. ``after``: the serials of the commands whose
    results this command uses; this command starts when those commands are done.
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
        """The arrays at physical addresses that the command reads."""
        return tuple([x for x in self._sources if isinstance(x, Operand)])

    @property
    def writes(self) -> tuple[Operand, ...]:
        """The arrays at physical addresses that the command writes."""
        return tuple([x for x in (self.dst, self.params.old) if isinstance(x, Operand)])

    @property
    def reads_of_memory(self) -> tuple[MemoryRef, ...]:
        """The arrays at virtual addresses that the command reads, in order."""
        return tuple([x for x in self._sources if isinstance(x, MemoryRef)])

    @property
    def _sources(self) -> tuple[CommandSource | None, ...]:
        steps = self.params.epilogue
        return (*self.srcs, *[step.operand for step in steps]) if steps else self.srcs

    @property
    def array(self) -> Operand:
        """The operand of a load, store, atomic or send that is in the PE."""
        array = self.dst if self.op is LOAD else self.srcs[-1]
        assert isinstance(array, Operand)
        return array

    @property
    def ref(self) -> MemoryRef:
        """The operand of a DMA's command that is in memory: the destination if it is in memory, else the source."""
        ref = self.dst if isinstance(self.dst, MemoryRef) else self.srcs[0]
        assert isinstance(ref, MemoryRef)
        return ref

    @property
    def compared(self) -> Operand | None:
        """The array that an ``atomic_cas`` compares memory with."""
        array = self.srcs[1] if len(self.srcs) > 2 else None
        assert not isinstance(array, MemoryRef | float | str)
        return array

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
        array = self.srcs[2] if len(self.srcs) > 2 else None
        assert not isinstance(array, MemoryRef | float | str)
        return array

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
        (nbytes,) = self.srcs
        assert isinstance(nbytes, int)
        return nbytes

    @property
    def parts(self) -> tuple[Operand | str, ...]:
        """The arrays and texts of a line of output."""
        return cast("tuple[Operand | str, ...]", self.srcs)

    @property
    def widest_bytes(self) -> int:
        """The size in bytes of the widest operand of a MATH command, which decides the duration of the command."""
        return max(self.result.nbytes, *(x.nbytes for x in self.reads), 0)


def _array(x: CommandSource) -> ArrayPlace:
    assert isinstance(x, Operand | MemoryRef)
    return x


def fill_of(command: Command) -> Command | None:
    """Return the fill that replaces a DMA command without elements to access.

    A load fills its destination with ``other``, an atomic fills ``params.old`` with 0. None: nothing to fill.
    """
    dst, other = (command.dst, command.ref.other) if command.op is LOAD else (command.params.old, 0)
    if not isinstance(dst, Operand):
        return None
    return Command(MATH, "full", command.serial, command.line, (), (other,), dst)


@value
class AwaitSpace:
    """The kernel needs scratch that commands in flight still use, and continues when one of these commands is done."""

    nbytes: int
    line: int


@value
class Meet:
    """The kernel waits at a barrier for the other PEs of its launch in its cube.

    ``drains``: it first waits until all its earlier commands are done.
    """

    line: int
    drains: bool = True


@value
class Fence:
    """The kernel waits until the writes of its earlier commands are in memory."""

    line: int


@value(eq=False, guarded=False)
class Receive:
    """The kernel waits for the next message of queue ``direction`` (None: of all queues, round-robin).

    The message must have ``nbytes``. The kernel receives the message's slot as the answer.
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
    """The kernel reads the values of ``array``, whose producer is done.

    The answer is a NumPy array, or None in a run without data. ``expected``: the answer, if the kernel knows it.
    """

    array: Operand
    line: int
    expected: Array | None = None


KernelRequest: TypeAlias = Command | AwaitSpace | Meet | Fence | Receive | AwaitCommand | ReadValue
"""A request of a kernel. After a command is issued, the kernel continues; after a SEND, it first waits for a slot of
the receiver. A RECEIVE claims the next message of its queue; the answer is the message's slot."""


def awaited_by(request: KernelRequest | None, place: Callable[[int], str] = "line {}".format) -> str:
    """Return a text that says what the kernel of ``request`` waits for; without a request, its start.

    ``place`` returns the name of a line of the kernel.
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
        case Meet(line=line):
            text = f"barrier at {place(line)}"
        case Fence(line):
            text = f"its stores and atomics to be in memory, at the fence of {place(line)}"
        case Command(line=line):
            text = f"its CPU, to issue {place(line)}"
    return text
