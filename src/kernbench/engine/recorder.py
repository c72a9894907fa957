"""Writes the rows of the log that are records of the op-log, so that phase 2 can replay what components do.

A record says of a command, beside its times: kind, name, operands and parameters. ``Observation`` adds, when somebody
asks, what the transfers are and when memories took turns.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from math import prod
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

from kernbench.common.dtypes import U8, Array, DType
from kernbench.common.errors import KernbenchError
from kernbench.common.operators import PLAIN
from kernbench.common.values import state
from kernbench.core.clock import NEVER
from kernbench.core.log import COMMIT, LAUNCH, LINE, NONE, READ, Cause, Kind, Log, Row, pack_row
from kernbench.core.observed import BankTime, Carries, Observed
from kernbench.core.op_log import NO_PARAMS, Epilogue, OpParams, Work
from kernbench.engine.address_map import MemoryPlace, Segment
from kernbench.messages.commands import (
    NOWHERE,
    AtomicCommand,
    DotCommand,
    EpilogueStep,
    GemmComposite,
    LoadCommand,
    MathCommand,
    MathComposite,
    MemoryRef,
    Operand,
    PeCommand,
    SendCommand,
    StoreCommand,
    StreamOperand,
)
from kernbench.messages.fabric import QueueArrival, QueueData, ReadReply, ReadRequest, WriteAck, WriteData
from kernbench.messages.requests import HostBytes, HostMsg, MemoryWriteMsg
from kernbench.transport import Network, Transfer
from kernbench.transport.watch import About


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


_MATH, _IPCQ_COPY = int(Kind.MATH), int(Kind.IPCQ_COPY)


def _never() -> None:
    raise AssertionError("without a limit nothing is ever full")


class OpStarted(NamedTuple):
    """Operation ``op`` of a launch (-1: of none) occupies ``component`` from ``start_ps`` on.

    ``reads``: how many memory accesses have to happen before its operands are read; 0: they are read now. ``writes``:
    how many have to happen before its result is in memory; 0: it is there when it ends.
    """

    op: int
    component: str
    what: Moved | Streamed | TileMoved | PeCommand
    start_ps: int
    reads: int
    writes: int
    launch_id: int


@state
class Operation:
    """A record under way: how many accesses are missing until it has read its operands, and until all is written.

    ``done`` are called once either is so.
    """

    row: Row
    reads_left: int
    writes_left: int
    done: tuple[Callable[[Row], None], ...] = ()

    def tell(self) -> None:
        """Call all of ``done``."""
        for told in self.done:
            told(self.row)


class Recorder:
    """Opens and closes records in ``log``; without ``keep_data`` they tell of times only.

    What reads memory reads its operands when the last of its accesses happens. A message says itself when it is there.
    ``on_full`` is called before a command is kept that would be more than ``most_commands``; it may end the keeping.
    """

    def __init__(self, log: Log, *, keep_data: bool) -> None:
        self.log = log
        self.keep_data = keep_data
        self.most_commands = NEVER
        self.on_full: Callable[[], None] = _never
        self._operations: dict[int, Operation] = {}
        self._computed: dict[tuple[str, int], int] = {}
        self._names: dict[str, int] = {}  # of records, if they tell of times only
        self._told: dict[int, tuple[Callable[[Row], None], ...]] = {}  # of operations that have not begun

    def math(self, part: int, command: MathCommand, nbytes: int, start: int, launch: int, cause: Cause) -> Row:
        """A MATH command that ``part`` begins; its widest operand has ``nbytes``."""
        log = self.log
        if self.keep_data:
            what = len(log.whats)
            if what >= self.most_commands:
                self.on_full()
            log.whats.append(command if self.keep_data else thinned(command))
        else:
            key = (command.operator, nbytes)
            what = self._computed.get(key, NONE)
            if what < 0:
                what = self._computed[key] = log.about(Computed(*key))
        rows, (after, by) = log.rows, cause
        row = len(rows)
        rows.frombytes(
            pack_row(part, _MATH, what, launch, command.line, NONE, NONE, start, start, NONE, NONE, after, by, NONE)
        )
        return row

    def message(
        self, part: int, name: str, command: SendCommand, slot: Operand, start: int, launch: int, cause: Cause
    ) -> Row:
        """A message that ``part`` begins to send: a copy to the receiver's ``slot``."""
        log = self.log
        if self.keep_data:
            what = len(log.whats)
            if what >= self.most_commands:
                self.on_full()
            log.whats.append(SentMessage(name, command, slot) if self.keep_data else name)
        else:
            what = self._names.get(name, NONE)
            if what < 0:
                what = self._names[name] = log.named(name)
        rows, (after, by) = log.rows, cause
        row = len(rows)
        rows.frombytes(
            pack_row(
                part, _IPCQ_COPY, what, launch, command.line, NONE, NONE, start, start, NONE, NONE, after, by, NONE
            )
        )
        return row

    def started(self, event: OpStarted, cause: Cause) -> Row:
        """An operation occupies its part; it reads its operands now, or has accesses to make first."""
        log, what = self.log, event.what
        kind, name, line = describe(what)
        if self.keep_data and len(log.whats) >= self.most_commands:
            self.on_full()
        number = log.about(what) if self.keep_data and what.__class__ is not TileMoved else log.named(name)
        launch, tile, parent = event.launch_id, NONE, NONE
        if what.__class__ is TileMoved:  # a tile's DMA is a part of its composite, which knows the launch
            tile, whole = log.tile(what.tile), self._operations.get(what.parent)
            if whole is not None:
                parent, rows = whole.row, log.rows
                launch, line = rows[parent + LAUNCH], rows[parent + LINE]
        start = event.start_ps
        part, read, (after, by), rows = log.part(event.component), NONE if event.reads else start, cause, log.rows
        row = len(rows)
        rows.frombytes(
            pack_row(part, kind, number, launch, line, tile, parent, start, read, NONE, NONE, after, by, NONE)
        )
        operation = self._operations[event.op] = Operation(row, event.reads, event.writes)
        if self._told:
            operation.done = self._told.pop(event.op, ())
        return row

    def accessed(self, op: int, time_ps: int) -> None:
        """A memory has read one access of ``op``."""
        operation = self._operations.get(op)
        if operation is None:  # raw traffic: nothing to replay
            return
        operation.reads_left = left = operation.reads_left - 1
        if not left:
            self.log.rows[operation.row + READ] = time_ps
            if not operation.writes_left:  # of an atomic they are called when it has written
                operation.tell()

    def committed(self, op: int, time_ps: int) -> None:
        """A memory holds what one access of ``op`` writes."""
        operation = self._operations.get(op)
        if operation is None or not operation.writes_left:
            return
        operation.writes_left = left = operation.writes_left - 1
        if not left:
            self.log.rows[operation.row + COMMIT] = time_ps
            operation.tell()

    def is_done(self, op: int, writing: bool) -> bool:
        """Whether operation ``op``, a DMA's that has not ended, has read all it reads, or has written it to memory."""
        operation = self._operations.get(op)
        return operation is not None and not (operation.writes_left if writing else operation.reads_left)

    def when_done(self, op: int, told: Callable[[Row], None]) -> None:
        """Call ``told`` with its row when that will be so, behind all that are to be told already."""
        operation = self._operations.get(op)
        if operation is None:
            self._told[op] = (*self._told.get(op, ()), told)
        else:
            operation.done = (*operation.done, told)

    def ended(self, op: int, time_ps: int, last: Row = NONE) -> Row:
        """Operation ``op`` is over; ``last``: the row that ended it, if it is made of others. Returns its row."""
        operation = self._operations.pop(op)
        if operation.reads_left:
            component = self.log.parts[self.log.rows[operation.row]]
            raise KernbenchError(f"operation {op} on {component} ended before it read its operands")
        self.log.close(operation.row, time_ps, last)
        return operation.row

    def row_of(self, op: int) -> Row:
        """The row of an operation under way; NONE before it has begun."""
        operation = self._operations.get(op)
        return NONE if operation is None else operation.row


AccessMessage: TypeAlias = ReadRequest | WriteData


class Observation:
    """Has transfers, turns of memories and, with ``links``, what links carry kept in ``tables``."""

    __slots__ = ("_asked", "_recorder", "tables")

    def __init__(self, log: Log, recorder: Recorder, network: Network, *, links: bool) -> None:
        self.tables = Observed(links=links)
        self._recorder = recorder
        self._asked: dict[tuple[int, int], int] = {}  # the transfer that asked for a part of an operation
        network.watch.begin(self.tables, log.part, self._about)

    def turn(self, asked: AccessMessage, server: Hashable, start_ps: int, end_ps: int) -> None:
        """``server`` of a memory works on an access.

        A turn that is cut short for another was announced with the end that it would have had.
        """
        self.tables.open_turn(self._asked[asked.op, asked.part], server, start_ps, end_ps)

    def turn_in_banks(
        self, asked: AccessMessage, server: Hashable, span: tuple[int, int], waited: bool, took: BankTime
    ) -> None:
        """The same of a slice with banks, which has turns overlap: from when it had its bus, and what it took."""
        self.tables.open_turn_in_banks(self._asked[asked.op, asked.part], server, span, waited, took)

    def cut_in_banks(self, asked: AccessMessage, span: tuple[int, int], took: BankTime) -> None:
        """Its last turn there is over earlier."""
        self.tables.cut_turn(self._asked[asked.op, asked.part], span, took)

    def _about(self, transfer: Transfer) -> About:
        match message := transfer.arg:
            case ReadReply():
                return Carries.REPLY, NONE, self._asked[message.op, message.part]
            case WriteAck():
                return Carries.ACK, NONE, self._asked[message.op, message.part]
            case QueueArrival(data=data):
                return Carries.DOORBELL, data.row, self._asked[data.op, data.part]
            case ReadRequest() | WriteData():
                self._asked[message.op, message.part] = self.tables.n_transfers
                if isinstance(message, QueueData):
                    return Carries.MESSAGE, message.sent, NONE
                what = Carries.REQUEST if isinstance(message, ReadRequest) else Carries.WRITE
                return what, self._recorder.row_of(message.op), NONE
            case _:
                return (Carries.OTHER if transfer.row < 0 else Carries.CONTROL), transfer.row, NONE
