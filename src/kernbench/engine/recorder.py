"""The writer of op-log records in the log, so that phase 2 can replay the commands of components.

A record has the times, kind, name, operands and parameters of a command. ``Observation`` also records transfers and
grants of memories, if an observer requests them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from kernbench.common.dtypes import U8, Array, DType
from kernbench.common.errors import KernbenchError
from kernbench.common.operators import COUNTED_BY_INPUT, SORTS, passes
from kernbench.common.values import state
from kernbench.core.clock import NEVER
from kernbench.core.log import COMMIT, LAUNCH, LINE, NONE, READ, Cause, Kind, Log, Row, pack_row
from kernbench.core.observed import BankTime, Carries, Observed
from kernbench.core.op_log import ReplayWork
from kernbench.engine.address_map import MemoryPlace, Segment
from kernbench.messages.commands import (
    ATOMIC,
    COMPOSITES,
    LOAD,
    MATH,
    NO_PARAMS,
    NOWHERE,
    OPCODE_WORDS,
    SEND,
    STORE,
    Command,
    Epilogue,
    MemoryRef,
    Opcode,
    Operand,
    Params,
)
from kernbench.messages.fabric import QueueArrival, QueueData, ReadReply, ReadRequest, WriteAck, WriteData
from kernbench.messages.requests import HostBytes, HostMsg, MemoryWriteMsg
from kernbench.transport import Network, Transfer
from kernbench.transport.watch import About

Place: TypeAlias = tuple[Segment, ...] | int
"""The physical (address, nbytes) ranges of an array in memory, or the address of its only range."""
Places: TypeAlias = tuple[Place, ...]


class Recorded(NamedTuple):
    """A command, or a request of the host, with the physical places of its arrays.

    ``places``: the place of each ``MemoryRef``, in order; or the address of the only ``MemoryRef``; or the receiver's
    slot of a message.
    """

    command: Command | HostMsg
    places: Places | int | Operand


class PlainMove(NamedTuple):
    """A load or a store (``op``) between ``array`` and a row-major array of its shape in one range at ``address``.

    The log stores this record instead of the command, which would need twice the memory. ``other``: the value of
    elements that a ``MemoryRef`` masks off.
    """

    op: Opcode
    array: Operand
    address: int
    other: float


class TileMove(NamedTuple):
    """A move of a tile of operation ``parent``: its window of ``operand``, such as ``a``, ``x0`` or ``out``."""

    parent: int
    operand: str
    tile: tuple[int, ...]
    reading: bool


class MathSize(NamedTuple):
    """The size of a MATH operation, which is also the record of a MATH command in a run without data.

    - ``name``: the operator. ``dtype``: the type of its first array, or of its result if no operand is an array.
    - ``nbytes``: the bytes of its widest operand, in all its passes.
    - ``elements``: the elements of its result; those of its input for a reduction or scan, in all passes of a sort.
    - ``tcm_bytes``: the bytes that it reads and writes in TCM.
    """

    name: str
    nbytes: int
    dtype: str
    elements: int
    tcm_bytes: int


def size_of(command: Command) -> MathSize:
    """Return the size of a MATH command."""
    name: str = command.name
    dst: Any = command.dst
    widest, tcm_bytes, first = dst.nbytes, dst.nbytes, None
    for x in command.srcs:
        if x.__class__ is Operand:
            nbytes = x.nbytes
            first = first or x
            widest = nbytes if nbytes > widest else widest
            if x.space == "tcm":
                tcm_bytes += nbytes
    first = first or dst
    counted = first if name in COUNTED_BY_INPUT else dst
    elements = counted.nbytes // counted.dtype.itemsize
    if name in SORTS:
        n = passes(name, dst.shape[-1])
        widest, elements = widest * n, elements * n
    return MathSize(name, widest, first.dtype.name, elements, tcm_bytes)


class TileAmounts(NamedTuple):
    """The work of a tile by stage: bytes, and multiply-accumulates (``macs``) of ``element`` (None: no product).

    ``math``: its MATH operations, whose operands are among the bytes that the tile fetches and stores.
    """

    fetch_bytes: int
    macs: int
    element: DType | None
    math_bytes: int
    store_bytes: int
    math: tuple[MathSize, ...] = ()


_KINDS = {
    Opcode.LOAD: Kind.DMA_READ,
    Opcode.STORE: Kind.DMA_WRITE,
    Opcode.ATOMIC: Kind.ATOMIC,
    Opcode.SEND: Kind.IPCQ_COPY,
    Opcode.DOT: Kind.GEMM,
    Opcode.MATH: Kind.MATH,
    Opcode.GEMM: Kind.GEMM,
    Opcode.TILED_MATH: Kind.MATH,
}
"""The kind of record, by opcode; other opcodes have no record."""
_LABELS: dict[Opcode, Any] = {opcode: kind.label for opcode, kind in _KINDS.items()}


def name_of(subject: object) -> str:
    """Return the name of a record about ``subject``."""
    if isinstance(subject, str):
        return subject
    if isinstance(subject, PlainMove):
        return OPCODE_WORDS[subject.op]
    if isinstance(subject, Recorded):
        subject = subject.command
    if isinstance(subject, Command):
        return f"send {subject.name}" if subject.op is SEND else subject.name
    assert isinstance(subject, HostMsg | MathSize)
    return subject.name


def strip_array(subject: object) -> object:
    """Return the form of ``subject`` in a run without data: its name, with the size of a MATH command."""
    if isinstance(subject, Command) and subject.op is MATH:
        return size_of(subject)
    return name_of(subject) if isinstance(subject, Command | Recorded | PlainMove) else subject


def condense(command: Command, places: Places) -> Recorded | PlainMove:
    """Return the smallest form in which the log can store a command that accesses memory."""
    if len(places) != 1:
        return Recorded(command, tuple([_short(ranges) for ranges in places]))
    ranges = places[0]
    if isinstance(ranges, int) or len(ranges) > 1:
        return Recorded(command, places)
    ((address, _),) = ranges
    op, (source, *_), dst = command.op, command.srcs, command.dst
    ref, array = (source, dst) if op is LOAD else (dst, source)
    if (
        (op is LOAD or op is STORE)
        and isinstance(ref, MemoryRef)
        and isinstance(array, Operand)
        and ref.strides is ref.valid is None
        and not ref.runs
        and ref.shape == array.shape
        and ref.dtype is array.dtype
        and command.name == OPCODE_WORDS[op]
    ):
        return PlainMove(op, array, address, ref.other)
    return Recorded(command, address)


def _short(ranges: Place) -> Place:
    return ranges if isinstance(ranges, int) or len(ranges) > 1 else ranges[0][0]


def is_composite(subject: object) -> bool:
    """Return True for the record of a complete composite, with its operands."""
    return isinstance(subject, Recorded) and isinstance(subject.command, Command) and subject.command.op in COMPOSITES


class ContentMaker:
    """The conversion of log records to the work of phase 2.

    ``place_of`` returns the memory at an address. ``tile_sizes`` (m, k, n) are parameters of composites.
    ``host_arrays``: by request number, the array of a host write, until phase 2 has written it.
    """

    def __init__(self, place_of: Callable[[int], MemoryPlace], tile_sizes: tuple[int, int, int]) -> None:
        self.host_arrays: dict[int, Array | HostBytes] = {}
        self._written: set[int] = set()  # requests whose array phase 2 has written
        self._place_of = place_of
        self._tile_sizes = tile_sizes

    def has_work(self, subject: object) -> bool:
        """Return True if phase 2 has work for a record about ``subject``."""
        if subject.__class__ is Command or subject.__class__ is PlainMove:
            return True
        if not isinstance(subject, Recorded):
            return False
        msg = subject.command
        if isinstance(msg, Command):
            return True
        if not isinstance(msg, MemoryWriteMsg):
            return False
        return msg.pattern is not None or msg.request_id in self.host_arrays or msg.request_id in self._written

    def drop_array(self, subject: object) -> None:
        """Drop the array of a host write that is in memory now."""
        assert isinstance(subject, Recorded)
        assert isinstance(subject.command, MemoryWriteMsg)
        del self.host_arrays[subject.command.request_id]
        self._written.add(subject.command.request_id)

    def bytes_at(self, pa: int, nbytes: int) -> Operand:
        """Return a range of physical memory as an operand of bytes."""
        place = self._place_of(pa)
        return Operand(place.space, place.owner, pa, nbytes, (nbytes,), U8)

    def resolve(self, subject: object) -> ReplayWork:
        """Return the work of a record about ``subject``, which must not be a text.

        An Operand replaces each reference of a command to memory.
        """
        places: Places | int | Operand = ()
        if isinstance(subject, PlainMove):
            return self._of_plain_move(subject)
        if isinstance(subject, Recorded):
            subject, places = subject
        if not isinstance(subject, Command):
            return (
                self._of_request(subject, places)
                if isinstance(subject, HostMsg)
                else ReplayWork("math", name_of(subject))
            )
        op, name, params = subject.op, subject.name, subject.params
        inputs: Any = subject.srcs
        out: Any = subject.dst
        if isinstance(places, Operand):
            name, out = f"send {name}", places
        elif places:
            next_places, located = iter((places,) if isinstance(places, int) else places), []
            for x in inputs:
                located.append(self._locate(x, next_places) if isinstance(x, MemoryRef) else x)
            inputs = tuple(located)
            if op in COMPOSITES:
                steps = tuple([self._step(step, next_places) for step in params.epilogue])
                params = Params(epilogue=steps, tile_sizes=self._tile_sizes)
            if op is ATOMIC:  # the reference is also the first source
                out = inputs[0]
            elif isinstance(out, MemoryRef):
                out = self._locate(out, next_places)
        return ReplayWork(_LABELS[op], name, inputs, out, params)

    def _of_plain_move(self, move: PlainMove) -> ReplayWork:
        op, array, address, other = move
        place = self._place_of(address)
        layout = (array.nbytes, array.shape, array.dtype, None, (), None, other)
        in_memory = Operand(place.space, place.owner, address, *layout)
        source, out = (in_memory, array) if op is LOAD else (array, in_memory)
        return ReplayWork(_LABELS[op], OPCODE_WORDS[op], (source,), out)

    def _step(self, step: Epilogue, places: Iterator[Place]) -> Epilogue:
        operand = step.operand
        return Epilogue(step.name, self._locate(operand, places)) if isinstance(operand, MemoryRef) else step

    def _locate(self, ref: MemoryRef, places: Iterator[Place]) -> Operand:
        """Return the array of ``ref``; the next item of ``places`` has the array's address ranges, by offset."""
        ranges = next(places)
        segments = () if isinstance(ranges, int) else ranges
        address = ranges if isinstance(ranges, int) else segments[0][0]
        if address == NOWHERE:
            address = next(pa for pa, _ in segments if pa != NOWHERE)
        place = self._place_of(address)
        nbytes = prod(ref.shape) * ref.dtype.itemsize
        several = segments if len(segments) > 1 else ()
        layout = (ref.strides, several, ref.valid, ref.other)
        return Operand(place.space, place.owner, address, nbytes, ref.shape, ref.dtype, *layout)

    def _of_request(self, msg: HostMsg, places: Places | int | Operand) -> ReplayWork:
        if not isinstance(msg, MemoryWriteMsg):
            return ReplayWork("memory_read", msg.name)
        if msg.pattern is None and msg.request_id not in self.host_arrays and msg.request_id not in self._written:
            return ReplayWork("memory_write", msg.name)
        params = Params(pattern=msg.pattern) if msg.pattern is not None else NO_PARAMS
        return ReplayWork(
            "memory_write",
            msg.name,
            (),
            self.bytes_at(msg.pa, msg.nbytes),
            params,
            self.host_arrays.get(msg.request_id),
        )


_MATH, _IPCQ_COPY = int(Kind.MATH), int(Kind.IPCQ_COPY)


def _never() -> None:
    raise AssertionError("without a limit nothing is ever full")


class OpStarted(NamedTuple):
    """The start of operation ``op`` of a launch (-1: no launch), which occupies ``component`` from ``start_ps`` on.

    ``reads``: number of memory accesses until its operands are read; 0: they are read now. ``writes``: number of
    accesses until its result is in memory; 0: the result is in memory when the operation ends.
    """

    op: int
    component: str
    subject: Recorded | TileMove | Command
    start_ps: int
    reads: int
    writes: int
    launch_id: int


@state
class OpenRecord:
    """An open record: the number of accesses left until its operands are read, and until its result is written.

    The callbacks ``done`` are called when the last write is done; without writes, when the last read is done.
    """

    row: Row
    reads_left: int
    writes_left: int
    done: tuple[Callable[[Row], None], ...] = ()

    def notify(self) -> None:
        """Call all of ``done`` with the row."""
        for callback in self.done:
            callback(self.row)


class Recorder:
    """The writer that opens and closes records in ``log``; without ``keep_data`` records have only times and names.

    An operation that reads memory has read its operands when memory has read the bytes of all its accesses. The sender
    of a message writes the message's times. ``on_full`` is called before a command would exceed ``most_commands``, and
    may clear ``keep_data``.
    """

    def __init__(self, log: Log, *, keep_data: bool) -> None:
        self.log = log
        self.keep_data = keep_data
        self.most_commands = NEVER
        self.on_full: Callable[[], None] = _never
        self._operations: dict[int, OpenRecord] = {}
        self._computed: dict[MathSize, int] = {}
        self._names: dict[str, int] = {}  # in runs without data: the log's number of each message name
        self._callbacks: dict[int, tuple[Callable[[Row], None], ...]] = {}  # of operations not begun

    def math(self, part: int, command: Command, nbytes: int, start: int, launch: int, cause: Cause) -> Row:
        """Open the row of a MATH command that ``part`` starts; its widest operand has ``nbytes`` in all passes.

        ``nbytes`` is 0 for a command that takes no time.
        """
        log = self.log
        if self.keep_data:
            number = len(log.whats)
            if number >= self.most_commands:
                self.on_full()
            log.whats.append(command if self.keep_data else strip_array(command))
        else:
            size = size_of(command)
            if size.nbytes != nbytes:
                size = size._replace(nbytes=nbytes)
            number = self._computed.get(size, NONE)
            if number < 0:
                number = self._computed[size] = log.about(size)
        rows, (after, by) = log.rows, cause
        row = len(rows)
        rows.frombytes(
            pack_row(part, _MATH, number, launch, command.line, NONE, NONE, start, start, NONE, NONE, after, by, NONE)
        )
        return row

    def message(
        self, part: int, name: str, command: Command, slot: Operand, start: int, launch: int, cause: Cause
    ) -> Row:
        """Open the row of a message that ``part`` starts to send: a copy to the receiver's ``slot``."""
        log = self.log
        if self.keep_data:
            number = len(log.whats)
            if number >= self.most_commands:
                self.on_full()
            log.whats.append(Recorded(command, slot) if self.keep_data else name)
        else:
            number = self._names.get(name, NONE)
            if number < 0:
                number = self._names[name] = log.intern(name)
        rows, (after, by) = log.rows, cause
        row = len(rows)
        rows.frombytes(
            pack_row(
                part, _IPCQ_COPY, number, launch, command.line, NONE, NONE, start, start, NONE, NONE, after, by, NONE
            )
        )
        return row

    def started(self, event: OpStarted, cause: Cause) -> Row:
        """Open the row of an operation on its part. With ``event.reads`` 0 the operation reads its operands now."""
        log, subject, line = self.log, event.subject, 0
        if self.keep_data and len(log.whats) >= self.most_commands:
            self.on_full()
        launch, tile, parent = event.launch_id, NONE, NONE
        if isinstance(subject, TileMove):  # the row of its composite has the launch and the line
            kind, number = Kind.DMA_READ if subject.reading else Kind.DMA_WRITE, log.intern(subject.operand)
            tile, composite = log.tile(subject.tile), self._operations.get(subject.parent)
            if composite is not None:
                parent, rows = composite.row, log.rows
                launch, line = rows[parent + LAUNCH], rows[parent + LINE]
        else:
            command = subject.command if isinstance(subject, Recorded) else subject
            if isinstance(command, Command):
                kind, line = _KINDS[command.op], command.line
            else:
                kind = Kind.MEMORY_WRITE if isinstance(command, MemoryWriteMsg) else Kind.MEMORY_READ
            if not self.keep_data:
                number = log.intern(command.name)
            elif isinstance(subject, Recorded) and isinstance(command, Command) and isinstance(subject.places, tuple):
                number = log.about(condense(command, subject.places))
            else:
                number = log.about(subject)
        start = event.start_ps
        part, read, (after, by), rows = log.part(event.component), NONE if event.reads else start, cause, log.rows
        row = len(rows)
        rows.frombytes(
            pack_row(part, kind, number, launch, line, tile, parent, start, read, NONE, NONE, after, by, NONE)
        )
        operation = self._operations[event.op] = OpenRecord(row, event.reads, event.writes)
        if self._callbacks:
            operation.done = self._callbacks.pop(event.op, ())
        return row

    def accessed(self, op: int, time_ps: int) -> None:
        """Record that a memory has read the bytes of one access of ``op``."""
        operation = self._operations.get(op)
        if operation is None:  # raw traffic: nothing to replay
            return
        operation.reads_left = left = operation.reads_left - 1
        if not left:
            self.log.rows[operation.row + READ] = time_ps
            if not operation.writes_left:  # an atomic calls ``done`` when it has written
                operation.notify()

    def committed(self, op: int, time_ps: int) -> None:
        """Record that a memory has committed the bytes of one access of ``op``."""
        operation = self._operations.get(op)
        if operation is None or not operation.writes_left:
            return
        operation.writes_left = left = operation.writes_left - 1
        if not left:
            self.log.rows[operation.row + COMMIT] = time_ps
            operation.notify()

    def is_done(self, op: int, writing: bool) -> bool:
        """Return True if the open DMA operation ``op`` has read all its bytes, or, with ``writing``, written all."""
        operation = self._operations.get(op)
        return operation is not None and not (operation.writes_left if writing else operation.reads_left)

    def when_done(self, op: int, notify: Callable[[Row], None]) -> None:
        """Call ``notify`` with the row of ``op`` when the operation's accesses are done, after earlier callbacks."""
        operation = self._operations.get(op)
        if operation is None:
            self._callbacks[op] = (*self._callbacks.get(op, ()), notify)
        else:
            operation.done = (*operation.done, notify)

    def ended(self, op: int, time_ps: int, last: Row = NONE) -> Row:
        """Close the row of operation ``op``, and return the row; ``last`` is the child row that ended it, if any.

        Raises KernbenchError if the operation has not read its operands.
        """
        operation = self._operations.pop(op)
        if operation.reads_left:
            component = self.log.parts[self.log.rows[operation.row]]
            raise KernbenchError(f"operation {op} on {component} ended before it read its operands")
        self.log.close(operation.row, time_ps, last)
        return operation.row

    def row_of(self, op: int) -> Row:
        """Return the row of an operation in flight; NONE before its start."""
        operation = self._operations.get(op)
        return NONE if operation is None else operation.row


AccessMessage: TypeAlias = ReadRequest | WriteData


class Observation:
    """The record of transfers, grants of memories (*turns*) and, with ``links``, packets on links in ``tables``."""

    __slots__ = ("_recorder", "_requests", "tables")

    def __init__(self, log: Log, recorder: Recorder, network: Network, *, links: bool) -> None:
        self.tables = Observed(links=links)
        self._recorder = recorder
        self._requests: dict[tuple[int, int], int] = {}  # by (op, part), the transfer that requested the access
        network.watch.begin(self.tables, log.part, self._about)

    def turn(self, request: AccessMessage, server: Hashable, start_ps: int, end_ps: int) -> None:
        """Record a turn: ``server`` of a memory works on the access of ``request``.

        ``end_ps`` is the planned end. The server's next turn may end this turn earlier.
        """
        access = self._requests.get((request.op, request.part))
        if access is not None:
            self.tables.open_turn(access, server, start_ps, end_ps)

    def turn_in_banks(
        self, request: AccessMessage, server: Hashable, span: tuple[int, int], waited: bool, bank_time: BankTime
    ) -> None:
        """Record a turn in a slice with banks, where turns overlap: its ``span`` on the bus, and its time by reason."""
        access = self._requests.get((request.op, request.part))
        if access is not None:
            self.tables.open_turn_in_banks(access, server, span, waited, bank_time)

    def cut_in_banks(self, request: AccessMessage, span: tuple[int, int], bank_time: BankTime) -> None:
        """Shorten to ``span`` the last turn of an access to a slice with banks."""
        access = self._requests.get((request.op, request.part))
        if access is not None:
            self.tables.cut_turn(access, span, bank_time)

    def fold(self, log: Log) -> None:
        """Fold what belongs to folded rows. Memories may still work on such accesses; no turn of theirs is recorded."""
        gaps = self.tables.fold(log)
        transfers = np.fromiter(self._requests.values(), np.int64, len(self._requests))
        over = gaps.contain(transfers).tolist()
        self._requests = {
            access: transfer
            for (access, transfer), is_over in zip(self._requests.items(), over, strict=True)
            if not is_over
        }

    def _about(self, transfer: Transfer) -> About:
        if transfer.row >= 0:
            return Carries.CONTROL, transfer.row, NONE
        match message := transfer.arg:
            case ReadReply() | WriteAck():
                carries = Carries.REPLY if isinstance(message, ReadReply) else Carries.ACK
                return carries, NONE, self._requests.get((message.op, message.part), NONE)
            case QueueArrival(data=data):
                return Carries.DOORBELL, data.row, self._requests[data.op, data.part]
            case ReadRequest() | WriteData():
                self._requests[message.op, message.part] = self.tables.n_transfers
                if isinstance(message, QueueData):
                    return Carries.MESSAGE, message.sent, NONE
                carries = Carries.REQUEST if isinstance(message, ReadRequest) else Carries.WRITE
                return carries, self._recorder.row_of(message.op), NONE
            case _:
                return Carries.OTHER, NONE, NONE
