"""Writes the rows of the log that are records of the op-log: what components do, as phase 2 can replay it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kernbench.common.errors import KernbenchError
from kernbench.common.values import state
from kernbench.core.clock import NEVER
from kernbench.core.log import COMMIT, LAUNCH, LINE, NONE, READ, Cause, Kind, Log, Row, pack_row
from kernbench.engine.record_content import Computed, Moved, SentMessage, Streamed, TileMoved, describe, thinned
from kernbench.messages.commands import MathCommand, PeCommand, SendCommand
from kernbench.messages.operands import Operand

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
