"""Writes the rows of the log that are records of the op-log, so that phase 2 can replay what components do.

A record says of a command, beside its times: kind, name, operands and parameters. ``Observation`` adds, when somebody
asks, what the transfers are and when memories took turns.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from math import prod
from typing import Any, NamedTuple, TypeAlias

from kernbench.common.dtypes import U8, Array, DType
from kernbench.common.errors import KernbenchError
from kernbench.common.values import state
from kernbench.core.clock import NEVER
from kernbench.core.log import COMMIT, LAUNCH, LINE, NONE, READ, Cause, Kind, Log, Row, pack_row
from kernbench.core.observed import BankTime, Carries, Observed
from kernbench.core.op_log import Work
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
"""The physical (address, nbytes) ranges of an array in memory, or the address of its one range."""
Places: TypeAlias = tuple[Place, ...]


class Recorded(NamedTuple):
    """A command, or a request of the host, and where the machine found what it works on.

    ``places``: the place of each ``MemoryRef`` of the command, or of the request, in order, or the address of the only
    one; of a message the slot of its receiver.
    """

    command: Command | HostMsg
    places: Places | int | Operand


class PlainMove(NamedTuple):
    """A load or a store (``op``) between ``array`` and a row-major array of its shape in one range at ``address``.

    The log keeps it in place of the command, which takes twice the memory; ``other`` is that of the ``MemoryRef``.
    """

    op: Opcode
    array: Operand
    address: int
    other: float


class TileMove(NamedTuple):
    """A tile of operation ``parent`` moves its window of ``operand``: ``a``, ``b``, ``x0``, ``epilogue0``, ``out`` …"""

    parent: int
    operand: str
    tile: tuple[int, ...]
    reading: bool


class MathSize(NamedTuple):
    """All that a run without data says of a MATH command: its operator, and the bytes of its widest operand."""

    name: str
    nbytes: int


class TileAmounts(NamedTuple):
    """The work of a tile by stage: bytes, and multiply-accumulates (``macs``) of ``element`` (None: no product)."""

    fetch_bytes: int
    macs: int
    element: DType | None
    math_bytes: int
    store_bytes: int


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
"""The kind of the record of each command that has one."""
_LABELS: dict[Opcode, Any] = {opcode: kind.label for opcode, kind in _KINDS.items()}


def name_of(what: object) -> str:
    """Return the name of a record that is about ``what``."""
    if isinstance(what, str):
        return what
    if isinstance(what, PlainMove):
        return OPCODE_WORDS[what.op]
    if isinstance(what, Recorded):
        what = what.command
    if isinstance(what, Command):
        return f"send {what.name}" if what.op is SEND else what.name
    assert isinstance(what, HostMsg | MathSize)
    return what.name


def strip_array(what: object) -> object:
    """Return what a run without data would say in place of ``what``: its name, of a MATH command its size too."""
    if isinstance(what, Command) and what.op is MATH:
        return MathSize(what.name, what.widest_bytes)
    return name_of(what) if isinstance(what, Command | Recorded | PlainMove) else what


def condense(command: Command, places: Places) -> Recorded | PlainMove:
    """Return what the log keeps of a command that accesses memory, in as few bytes as it takes."""
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


def is_composite(what: object) -> bool:
    """Return whether a record is that of a whole composite, with its operands."""
    return isinstance(what, Recorded) and isinstance(what.command, Command) and what.command.op in COMPOSITES


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

    def has_work(self, what: object) -> bool:
        """Return True when phase 2 has work for a record about ``what``."""
        if what.__class__ is Command or what.__class__ is PlainMove:
            return True
        if not isinstance(what, Recorded):
            return False
        msg = what.command
        if isinstance(msg, Command):
            return True
        if not isinstance(msg, MemoryWriteMsg):
            return False
        return msg.pattern is not None or msg.request_id in self.host_arrays or msg.request_id in self._written

    def drop_array(self, what: object) -> None:
        """Drop the array of a host's write, which is in memory now."""
        assert isinstance(what, Recorded)
        assert isinstance(what.command, MemoryWriteMsg)
        del self.host_arrays[what.command.request_id]
        self._written.add(what.command.request_id)

    def bytes_at(self, pa: int, nbytes: int) -> Operand:
        """Return a range of physical memory, as bytes."""
        place = self._place_of(pa)
        return Operand(place.space, place.owner, pa, nbytes, (nbytes,), U8)

    def resolve(self, what: object) -> Work:
        """Return the work of a record that is about ``what``, which is no name.

        For each reference of a command to memory it has an Operand.
        """
        places: Places | int | Operand = ()
        if isinstance(what, PlainMove):
            return self._of_plain_move(what)
        if isinstance(what, Recorded):
            what, places = what
        if not isinstance(what, Command):
            return self._of_request(what, places) if isinstance(what, HostMsg) else Work("math", name_of(what))
        op, name, params = what.op, what.name, what.params
        inputs: Any = what.srcs
        out: Any = what.dst
        if isinstance(places, Operand):
            name, out = f"send {name}", places
        elif places:
            given, found = iter((places,) if isinstance(places, int) else places), []
            for x in inputs:
                found.append(self._locate(x, given) if isinstance(x, MemoryRef) else x)
            inputs = tuple(found)
            if op in COMPOSITES:
                steps = tuple([self._step(step, given) for step in params.epilogue])
                params = Params(epilogue=steps, tile_sizes=self._tile_sizes)
            if op is ATOMIC:  # the reference is its source too
                out = inputs[0]
            elif isinstance(out, MemoryRef):
                out = self._locate(out, given)
        return Work(_LABELS[op], name, inputs, out, params)

    def _of_plain_move(self, move: PlainMove) -> Work:
        op, array, address, other = move
        place = self._place_of(address)
        layout = (array.nbytes, array.shape, array.dtype, None, (), None, other)
        there = Operand(place.space, place.owner, address, *layout)
        source, out = (there, array) if op is LOAD else (array, there)
        return Work(_LABELS[op], OPCODE_WORDS[op], (source,), out)

    def _step(self, step: Epilogue, places: Iterator[Place]) -> Epilogue:
        operand = step.operand
        return Epilogue(step.name, self._locate(operand, places)) if isinstance(operand, MemoryRef) else step

    def _locate(self, ref: MemoryRef, places: Iterator[Place]) -> Operand:
        """Return an array in memory, whose extent lies in the next segments of ``places`` in the order of offsets."""
        found = next(places)
        segments = () if isinstance(found, int) else found
        address = found if isinstance(found, int) else segments[0][0]
        if address == NOWHERE:
            address = next(pa for pa, _ in segments if pa != NOWHERE)
        place = self._place_of(address)
        nbytes = prod(ref.shape) * ref.dtype.itemsize
        several = segments if len(segments) > 1 else ()
        layout = (ref.strides, several, ref.valid, ref.other)
        return Operand(place.space, place.owner, address, nbytes, ref.shape, ref.dtype, *layout)

    def _of_request(self, msg: HostMsg, places: Places | int | Operand) -> Work:
        if not isinstance(msg, MemoryWriteMsg):
            return Work("memory_read", msg.name)
        if msg.pattern is None and msg.request_id not in self.host_arrays and msg.request_id not in self._written:
            return Work("memory_write", msg.name)
        params = Params(pattern=msg.pattern) if msg.pattern is not None else NO_PARAMS
        return Work(
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
    """Operation ``op`` of a launch (-1: of none) occupies ``component`` from ``start_ps`` on.

    ``reads``: how many memory accesses have to happen before its operands are read; 0: they are read now. ``writes``:
    how many have to happen before its result is in memory; 0: it is there when it ends.
    """

    op: int
    component: str
    what: Recorded | TileMove | Command
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

    def math(self, part: int, command: Command, nbytes: int, start: int, launch: int, cause: Cause) -> Row:
        """Open the row of a MATH command that ``part`` begins; its widest operand has ``nbytes``."""
        log = self.log
        if self.keep_data:
            what = len(log.whats)
            if what >= self.most_commands:
                self.on_full()
            log.whats.append(command if self.keep_data else strip_array(command))
        else:
            key = (command.name, nbytes)
            what = self._computed.get(key, NONE)
            if what < 0:
                what = self._computed[key] = log.about(MathSize(*key))
        rows, (after, by) = log.rows, cause
        row = len(rows)
        rows.frombytes(
            pack_row(part, _MATH, what, launch, command.line, NONE, NONE, start, start, NONE, NONE, after, by, NONE)
        )
        return row

    def message(
        self, part: int, name: str, command: Command, slot: Operand, start: int, launch: int, cause: Cause
    ) -> Row:
        """Open the row of a message that ``part`` begins to send: a copy to the receiver's ``slot``."""
        log = self.log
        if self.keep_data:
            what = len(log.whats)
            if what >= self.most_commands:
                self.on_full()
            log.whats.append(Recorded(command, slot) if self.keep_data else name)
        else:
            what = self._names.get(name, NONE)
            if what < 0:
                what = self._names[name] = log.intern(name)
        rows, (after, by) = log.rows, cause
        row = len(rows)
        rows.frombytes(
            pack_row(
                part, _IPCQ_COPY, what, launch, command.line, NONE, NONE, start, start, NONE, NONE, after, by, NONE
            )
        )
        return row

    def started(self, event: OpStarted, cause: Cause) -> Row:
        """Open the row of an operation on its part; it reads its operands now, or has accesses to make first."""
        log, what, line = self.log, event.what, 0
        if self.keep_data and len(log.whats) >= self.most_commands:
            self.on_full()
        launch, tile, parent = event.launch_id, NONE, NONE
        if isinstance(what, TileMove):  # a part of its composite, which knows the launch
            kind, number = Kind.DMA_READ if what.reading else Kind.DMA_WRITE, log.intern(what.operand)
            tile, whole = log.tile(what.tile), self._operations.get(what.parent)
            if whole is not None:
                parent, rows = whole.row, log.rows
                launch, line = rows[parent + LAUNCH], rows[parent + LINE]
        else:
            command = what.command if isinstance(what, Recorded) else what
            if isinstance(command, Command):
                kind, line = _KINDS[command.op], command.line
            else:
                kind = Kind.MEMORY_WRITE if isinstance(command, MemoryWriteMsg) else Kind.MEMORY_READ
            if not self.keep_data:
                number = log.intern(command.name)
            elif isinstance(what, Recorded) and isinstance(command, Command) and isinstance(what.places, tuple):
                number = log.about(condense(command, what.places))
            else:
                number = log.about(what)
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
        """Note that a memory has read one access of ``op``."""
        operation = self._operations.get(op)
        if operation is None:  # raw traffic: nothing to replay
            return
        operation.reads_left = left = operation.reads_left - 1
        if not left:
            self.log.rows[operation.row + READ] = time_ps
            if not operation.writes_left:  # of an atomic they are called when it has written
                operation.tell()

    def committed(self, op: int, time_ps: int) -> None:
        """Note that a memory holds what one access of ``op`` writes."""
        operation = self._operations.get(op)
        if operation is None or not operation.writes_left:
            return
        operation.writes_left = left = operation.writes_left - 1
        if not left:
            self.log.rows[operation.row + COMMIT] = time_ps
            operation.tell()

    def is_done(self, op: int, writing: bool) -> bool:
        """Return True when the open DMA operation ``op`` has read all its bytes; with ``writing``, written them all."""
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
        """Return the row of an operation under way; NONE before it has begun."""
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
        """Note a turn in a slice with banks, where turns overlap: its time on the bus, and what it took."""
        self.tables.open_turn_in_banks(self._asked[asked.op, asked.part], server, span, waited, took)

    def cut_in_banks(self, asked: AccessMessage, span: tuple[int, int], took: BankTime) -> None:
        """Cut the last turn of an access there: it ends earlier."""
        self.tables.cut_turn(self._asked[asked.op, asked.part], span, took)

    def _about(self, transfer: Transfer) -> About:
        if transfer.row >= 0:
            return Carries.CONTROL, transfer.row, NONE
        match message := transfer.arg:
            case ReadReply() | WriteAck():
                what = Carries.REPLY if isinstance(message, ReadReply) else Carries.ACK
                return what, NONE, self._asked[message.op, message.part]
            case QueueArrival(data=data):
                return Carries.DOORBELL, data.row, self._asked[data.op, data.part]
            case ReadRequest() | WriteData():
                self._asked[message.op, message.part] = self.tables.n_transfers
                if isinstance(message, QueueData):
                    return Carries.MESSAGE, message.sent, NONE
                what = Carries.REQUEST if isinstance(message, ReadRequest) else Carries.WRITE
                return what, self._recorder.row_of(message.op), NONE
            case _:
                return Carries.OTHER, NONE, NONE
