"""Writes the op-log from the hooks: what components do becomes records that phase 2 can replay."""

from __future__ import annotations

from dataclasses import dataclass

from kernbench.common.errors import KernbenchError
from kernbench.sim_engine.hooks import Hooks, MemoryAccessed, OpEnded, OpStarted, StageEnded, TileMoved
from kernbench.sim_engine.op_log import OpLog, OpRecord
from kernbench.sim_engine.record_content import ContentMaker


@dataclass(slots=True)
class _Unread:
    """An operation that has started and not read its operands, and how many accesses are missing until it has."""

    started: OpStarted
    reads_left: int


class Recorder:
    """Subscribes ``op_log`` to the hooks of a machine; without ``enable_data`` records carry times only."""

    def __init__(self, op_log: OpLog, hooks: Hooks, contents: ContentMaker, *, enable_data: bool) -> None:
        self._log = op_log
        self._content_of = contents.of if enable_data else contents.without_data
        self._unread: dict[int, _Unread] = {}
        self._open: dict[int, OpRecord] = {}
        self._writes_left: dict[int, int] = {}
        hooks.op_started.subscribe(self._started)
        hooks.accessed.subscribe(self._accessed)
        hooks.committed.subscribe(self._committed)
        hooks.op_ended.subscribe(self._ended)
        hooks.stage_ended.subscribe(self._stage)

    def _started(self, event: OpStarted) -> None:
        if event.writes:
            self._writes_left[event.op] = event.writes
        if event.reads:
            self._unread[event.op] = _Unread(event, event.reads)
        else:
            self._begin(event, event.start_ps)

    def _accessed(self, event: MemoryAccessed) -> None:
        unread = self._unread.get(event.op)
        if unread is None:  # raw traffic: nothing to replay
            return
        unread.reads_left -= 1
        if not unread.reads_left:
            del self._unread[event.op]
            self._begin(unread.started, event.time_ps)

    def _committed(self, event: MemoryAccessed) -> None:
        op = event.op
        left = self._writes_left.get(op)
        if left is None:
            return
        self._writes_left[op] = left - 1
        if left == 1 and op in self._open:
            self._log.commit(self._open[op], event.time_ps)

    def _ended(self, event: OpEnded) -> None:
        op = event.op
        self._writes_left.pop(op, None)
        record = self._open.pop(op, None)
        if record is None:
            component = self._unread.pop(op).started.component
            raise KernbenchError(f"operation {op} on {component} ended before it read its operands")
        self._log.finish(record, event.time_ps)

    def _stage(self, event: StageEnded) -> None:
        whole = self._open.get(event.op)
        kernel, launch_id, line, parent = ("", -1, 0, -1) if whole is None else _inherited(whole)
        record = OpRecord(
            seq=-1,
            component=event.component,
            kind=event.stage,
            t_start_ps=event.start_ps,
            t_read_ps=event.start_ps,
            name="stage",
            kernel=kernel,
            launch_id=launch_id,
            line=line,
            tile=event.tile,
            parent=parent,
        )
        self._log.finish(self._log.add(record), event.end_ps)

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
        )
        self._open[started.op] = self._log.add(record)


def _inherited(whole: OpRecord) -> tuple[str, int, int, int]:
    """Kernel, launch, line and parent of a part of ``whole``."""
    return whole.kernel, whole.launch_id, whole.line, whole.seq
