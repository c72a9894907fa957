"""What a record of the op-log says of a command beside its times: kind, name, operands, parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from operator import attrgetter
from typing import Any, NamedTuple

from kernbench.common.dtypes import U8, Array, DType
from kernbench.common.operators import PLAIN
from kernbench.core.log import Kind
from kernbench.core.op_log import NO_PARAMS, Epilogue, OpParams, Work
from kernbench.engine.address_map import MemoryPlace, Segment
from kernbench.messages.commands import (
    AtomicCommand,
    DotCommand,
    EpilogueStep,
    GemmComposite,
    LoadCommand,
    MathCommand,
    MathComposite,
    MemoryRef,
    SendCommand,
    StoreCommand,
    StreamOperand,
)
from kernbench.messages.operands import NOWHERE, Operand
from kernbench.messages.requests import HostBytes, HostMsg, MemoryWriteMsg


class Moved(NamedTuple):
    """What a DMA operation moves: ``segments`` are the physical (address, nbytes) ranges of the memory side."""

    what: LoadCommand | StoreCommand | AtomicCommand | HostMsg
    segments: tuple[tuple[int, int], ...]


class Streamed(NamedTuple):
    """A composite; ``segments`` are the physical ranges of what it streams: inputs, epilogue operands, output."""

    what: GemmComposite | MathComposite
    segments: tuple[tuple[tuple[int, int], ...], ...]


class TileMoved(NamedTuple):
    """A tile of operation ``parent`` moves its window of ``operand``: ``a``, ``b``, ``x0``, ``epilogue0``, ``out`` …"""

    parent: int
    operand: str
    tile: tuple[int, ...]
    reading: bool


class SentMessage(NamedTuple):
    """A message, called ``name``, to the ``slot`` of its receiver."""

    name: str
    command: SendCommand
    slot: Operand


class Computed(NamedTuple):
    """All that a run without data says of a MATH command: its operator, and the bytes of its widest operand."""

    name: str
    nbytes: int


class TileAmounts(NamedTuple):
    """How much work a tile is, stage by stage: bytes, and multiply-accumulates of ``element`` (None: none)."""

    fetch_bytes: int
    macs: int
    element: DType | None
    math_bytes: int
    store_bytes: int


def name_of(what: object) -> str:
    """The name of a record that is about ``what``."""
    read = _NAMED_BY.get(what.__class__)
    return describe(what)[1] if read is None else read(what)


def describe(what: Any) -> tuple[Kind, str, int]:
    """The kind, name and line of a record. KeyError for what is none."""
    return _DESCRIBED[what.__class__](what)


def _described_move(moved: Moved) -> tuple[Kind, str, int]:
    what = moved.what
    if isinstance(what, LoadCommand):
        return Kind.DMA_READ, "load", what.line
    if isinstance(what, StoreCommand):
        return Kind.DMA_WRITE, "store", what.line
    if isinstance(what, AtomicCommand):
        return Kind.ATOMIC, what.operator, what.line
    return (Kind.MEMORY_WRITE if isinstance(what, MemoryWriteMsg) else Kind.MEMORY_READ), what.name, 0


def _described_composite(streamed: Streamed) -> tuple[Kind, str, int]:
    command = streamed.what
    if isinstance(command, GemmComposite):
        return Kind.GEMM, "composite", command.line
    return Kind.MATH, command.operator, command.line


_DESCRIBED: dict[type, Callable[[Any], tuple[Kind, str, int]]] = {
    Moved: _described_move,
    TileMoved: lambda tile: (Kind.DMA_READ if tile.reading else Kind.DMA_WRITE, tile.operand, 0),
    DotCommand: lambda dot: (Kind.GEMM, "dot", dot.line),
    Streamed: _described_composite,
    MathCommand: lambda math: (Kind.MATH, math.operator, math.line),
    Computed: lambda math: (Kind.MATH, math.name, 0),
    SentMessage: lambda message: (Kind.IPCQ_COPY, message.name, message.command.line),
}


# Most records are of these.
_NAMED_BY: dict[type, Callable[[Any], str]] = {
    str: str,
    MathCommand: attrgetter("operator"),
    Computed: attrgetter("name"),
    SentMessage: attrgetter("name"),
}


def thinned(what: object) -> object:
    """Return what a run without data would say in place of ``what``: its name, of a MATH command its size too."""
    if isinstance(what, MathCommand):
        return Computed(what.operator, what.widest_bytes)
    return name_of(what) if isinstance(what, Moved | Streamed | DotCommand | SentMessage) else what


class ContentMaker:
    """Makes of what the log has of a command the work that phase 2 does for it.

    ``place_of``: what memory is at an address; ``tile_sizes`` (m, k, n) go into the work of composites.
    ``host_arrays``: what requests of the host write, by their number, until phase 2 has written it.
    """

    def __init__(self, place_of: Callable[[int], MemoryPlace], tile_sizes: tuple[int, int, int]) -> None:
        self.host_arrays: dict[int, Array | HostBytes] = {}
        self._written: set[int] = set()  # requests whose array is in memory
        self._place_of = place_of
        self._tile_sizes = tile_sizes
        self._makers: dict[type, Callable[[Any], Work]] = {
            Moved: self._of_moved,
            DotCommand: self._of_dot,
            Streamed: self._of_composite,
            MathCommand: _of_math,
            Computed: lambda math: Work("math", math.name),
            SentMessage: _of_message,
        }

    def of(self, what: object) -> Work:
        """Return the work of a record that is about ``what``, which is no name."""
        return self._makers[what.__class__](what)

    def has_work(self, what: object) -> bool:
        """Whether phase 2 has something to do for a record that is about ``what``."""
        if what.__class__ is not Moved:
            return what.__class__ not in _TIMES_ONLY
        msg = what.what
        if not isinstance(msg, HostMsg):
            return True
        if not isinstance(msg, MemoryWriteMsg):
            return False
        return msg.pattern is not None or msg.request_id in self.host_arrays or msg.request_id in self._written

    def let_go(self, what: object) -> None:
        """Drop the array of a host's write, which is in memory now."""
        assert isinstance(what, Moved)
        assert isinstance(what.what, MemoryWriteMsg)
        del self.host_arrays[what.what.request_id]
        self._written.add(what.what.request_id)

    def _of_moved(self, moved: Moved) -> Work:
        what = moved.what
        if isinstance(what, LoadCommand):
            return Work("dma_read", "load", (self._moved(what, what.dst, moved, what.other),), what.dst)
        if isinstance(what, StoreCommand):
            return Work("dma_write", "store", (what.src,), self._moved(what, what.src, moved, 0))
        if isinstance(what, AtomicCommand):
            there = self._moved(what, what.src, moved, 0)
            given = (what.src,) if what.compared is None else (what.compared, what.src)
            params = NO_PARAMS if what.dst is None else OpParams(old=what.dst)
            return Work("atomic", what.operator, (there, *given), there, params)
        if not isinstance(what, MemoryWriteMsg):
            return Work("memory_read", what.name)
        if not self.has_work(moved):
            return Work("memory_write", what.name)
        params = OpParams(pattern=what.pattern) if what.pattern is not None else NO_PARAMS
        out = self.bytes_at(*moved.segments[0])
        return Work("memory_write", what.name, (), out, params, self.host_arrays.get(what.request_id))

    def bytes_at(self, pa: int, nbytes: int) -> Operand:
        """Return a range of physical memory, as bytes."""
        place = self._place_of(pa)
        return Operand(place.space, place.owner, pa, nbytes, (nbytes,), U8)

    def _of_dot(self, command: DotCommand) -> Work:
        arrays = (command.a, command.b) if command.acc is None else (command.a, command.b, command.acc)
        params = OpParams(trans_a=command.trans_a, trans_b=command.trans_b)
        return Work("gemm", "dot", arrays, command.dst, params)

    def _of_composite(self, streamed: Streamed) -> Work:
        """Return the work of a whole composite."""
        command = streamed.what
        segments = iter(streamed.segments)
        is_gemm = isinstance(command, GemmComposite)
        given = (command.a, command.b) if isinstance(command, GemmComposite) else command.inputs
        inputs = tuple(x if isinstance(x, float | int) else self._operand(x, segments) for x in given)
        epilogue = tuple(self._step(step, segments) for step in command.epilogue)
        out = self._operand(command.out, segments)
        params = OpParams(epilogue=epilogue, tile_sizes=self._tile_sizes)
        return Work("gemm" if is_gemm else "math", name_of(streamed), inputs, out, params)

    def _step(self, step: EpilogueStep, segments: Iterator[tuple[Segment, ...]]) -> Epilogue:
        operand = step.operand
        if isinstance(operand, Operand | MemoryRef):
            return Epilogue(step.name, self._operand(operand, segments))
        return Epilogue(step.name, operand)

    def _operand(self, x: StreamOperand, segments: Iterator[tuple[Segment, ...]]) -> Operand:
        if isinstance(x, Operand):
            return x
        ranges = next(segments)
        place = self._place_of(ranges[0][0])
        nbytes = prod(x.shape) * x.dtype.itemsize
        several = ranges if len(ranges) > 1 else ()
        return Operand(place.space, place.owner, ranges[0][0], nbytes, x.shape, x.dtype, x.strides, several)

    def _moved(
        self, command: LoadCommand | StoreCommand | AtomicCommand, array: Operand, moved: Moved, other: float
    ) -> Operand:
        """Return the memory side of a DMA: ``moved.segments`` hold its extent in the order of offsets."""
        address = next(pa for pa, _ in moved.segments if pa != NOWHERE)
        place = self._place_of(address)
        several = moved.segments if len(moved.segments) > 1 else ()
        layout = (command.strides, several, command.valid, other)
        return Operand(place.space, place.owner, address, array.nbytes, array.shape, array.dtype, *layout)


_TIMES_ONLY = frozenset((str, Computed))
"""What the log has of commands whose operands it does not keep"""


def _of_math(command: MathCommand) -> Work:
    given = command.attributes
    params = NO_PARAMS
    if given is not PLAIN:
        params = OpParams(
            axis=given.axis, perm=given.perm, trans_a=given.trans_a, trans_b=given.trans_b, pattern=given.pattern
        )
    return Work("math", command.operator, command.inputs, command.dst, params)


def _of_message(message: SentMessage) -> Work:
    return Work("ipcq_copy", message.name, (message.command.src,), message.slot)
