"""Writes the op-log: what components do becomes records that phase 2 can replay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kernbench.common.errors import KernbenchError
from kernbench.common.operators import PLAIN
from kernbench.core.op_log import NO_PARAMS, OpLog, OpParams, OpRecord
from kernbench.engine.hooks import OpStarted, StageEnded, TileMoved
from kernbench.engine.record_content import ContentMaker, params_of
from kernbench.messages.commands import MathCommand, SendCommand
from kernbench.messages.operands import Operand

_NO_DATA: tuple[tuple[Operand | float, ...], Operand | None, OpParams] = ((), None, NO_PARAMS)


@dataclass(slots=True)
class _Unread:
    """An operation that has started and not read its operands, and how many accesses are missing until it has."""

    started: OpStarted
    reads_left: int


class Recorder:
    """Writes ``log``; without ``keep_data`` records carry times only.

    What reads memory reads its operands when the last of its accesses happens, so an operation is told of step by step.
    MATH commands and messages, of which there are most, read theirs when they begin: whoever carries one out has its
    record, and enters there when it commits and when it is over.
    """

    def __init__(self, log: OpLog, contents: ContentMaker, *, keep_data: bool) -> None:
        self.log = log
        self.contents = contents
        self._keep_data = keep_data
        self._content_of = contents.of if keep_data else contents.without_data
        self._unread: dict[int, _Unread] = {}
        self._open: dict[int, OpRecord] = {}
        self._writes_left: dict[int, int] = {}
        self._told: dict[int, Callable[[], None]] = {}

    def math(self, component: str, command: MathCommand, start_ps: int, kernel: str, launch_id: int) -> OpRecord:
        """The record of a command that ``component`` begins."""
        inputs, output, params = _NO_DATA
        if self._keep_data:
            inputs, output = command.inputs, command.dst
            if command.attributes is not PLAIN:
                params = params_of(command.attributes)
        at, name, line, log = start_ps, command.operator, command.line, self.log.records
        n = len(log)  # numbered as by ``OpLog.add``, a call less for what there is most of; so below
        record = OpRecord(n, component, "math", at, at, -1, -1, name, inputs, output, params, kernel, launch_id, line)
        log.append(record)
        return record

    def message(
        self, component: str, name: str, command: SendCommand, slot: Operand, start_ps: int, kernel: str, launch_id: int
    ) -> OpRecord:
        """The record of a message that ``component`` begins to send: a copy to the receiver's ``slot``."""
        inputs, output, params = _NO_DATA
        if self._keep_data:
            inputs, output = (command.src,), slot
        at, line, log = start_ps, command.line, self.log.records
        record = OpRecord(
            len(log), component, "ipcq_copy", at, at, -1, -1, name, inputs, output, params, kernel, launch_id, line
        )
        log.append(record)
        return record

    def started(self, event: OpStarted) -> None:
        """An operation occupies its component; it reads its operands now, or has accesses to make first."""
        if event.writes:
            self._writes_left[event.op] = event.writes
        if event.reads:
            self._unread[event.op] = _Unread(event, event.reads)
        else:
            self._begin(event, event.start_ps)

    def accessed(self, op: int, time_ps: int) -> None:
        """A memory has read one access of ``op``."""
        unread = self._unread.get(op)
        if unread is None:  # raw traffic: nothing to replay
            return
        unread.reads_left -= 1
        if not unread.reads_left:
            del self._unread[op]
            self._begin(unread.started, time_ps)
            self._tell(op)

    def committed(self, op: int, time_ps: int) -> None:
        """A memory holds what one access of ``op`` writes."""
        left = self._writes_left.get(op)
        if left is None:
            return
        self._writes_left[op] = left - 1
        if left == 1:
            if op in self._open:
                self.log.commit(self._open[op], time_ps)
            self._tell(op)

    def is_done(self, op: int, writing: bool) -> bool:
        """Whether operation ``op``, a DMA's that has not ended, has read all it reads, or has written it to memory."""
        return self._writes_left.get(op) == 0 if writing else op in self._open

    def when_done(self, op: int, told: Callable[[], None]) -> None:
        """Call ``told`` when that will be so."""
        self._told[op] = told

    def _tell(self, op: int) -> None:
        told = self._told.pop(op, None)
        if told is not None:
            told()

    def ended(self, op: int, time_ps: int) -> None:
        """Operation ``op`` is over."""
        self._writes_left.pop(op, None)
        record = self._open.pop(op, None)
        if record is None:
            component = self._unread.pop(op).started.component
            raise KernbenchError(f"operation {op} on {component} ended before it read its operands")
        self.log.finish(record, time_ps)

    def stage(self, event: StageEnded) -> None:
        """A tile has passed a stage."""
        whole = self._open.get(event.op)
        kernel, launch_id, line, parent = ("", -1, 0, -1) if whole is None else _inherited(whole)
        start, end = event.start_ps, event.end_ps
        inputs, output, params = _NO_DATA
        where = (kernel, launch_id, line, event.tile, parent)
        self.log.add(
            OpRecord(-1, event.component, event.stage, start, start, end, end, "stage", inputs, output, params, *where)
        )

    def _begin(self, started: OpStarted, read_ps: int) -> None:
        kernel, launch_id, parent = started.kernel, started.launch_id, -1
        kind, name, inputs, output, params, line, tile, data = self._content_of(started)
        if started.what.__class__ is TileMoved:  # a tile's DMA is a part of its composite, which knows the launch
            whole = self._open.get(started.what.parent)
            if whole is not None:
                kernel, launch_id, line, parent = _inherited(whole)
        record = OpRecord(  # in the order of its fields: naming them all would cost more than the record
            -1,
            started.component,
            kind,
            started.start_ps,
            read_ps,
            -1,
            -1,
            name,
            inputs,
            output,
            params,
            kernel,
            launch_id,
            line,
            tile,
            parent,
            data,
            started.order,
        )
        self._open[started.op] = self.log.add(record)


def _inherited(whole: OpRecord) -> tuple[str, int, int, int]:
    """Kernel, launch, line and parent of a part of ``whole``."""
    return whole.kernel, whole.launch_id, whole.line, whole.seq
