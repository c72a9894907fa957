"""Writes the op-log from the hooks: what components do becomes records that phase 2 can replay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from kernbench.common.errors import KernbenchError
from kernbench.messages.requests import HostMsg, MemoryWriteMsg
from kernbench.sim_engine.hooks import (
    Hooks,
    MemoryAccessed,
    Moved,
    OpEnded,
    OpStarted,
    Queued,
    StageEnded,
    Streamed,
    TileMoved,
)
from kernbench.sim_engine.op_log import OpLog, OpRecord
from kernbench.sim_engine.record_content import Content, ContentMaker

Array: TypeAlias = np.ndarray[Any, Any]


@dataclass(slots=True)
class _Open:
    """An operation under way: how many accesses are missing before it reads, and before its result is there."""

    started: OpStarted
    reads_left: int
    writes_left: int
    record: OpRecord | None = None


class Recorder:
    """Subscribes ``op_log`` to the hooks of a machine; without ``enable_data`` records carry times only."""

    def __init__(self, op_log: OpLog, hooks: Hooks, contents: ContentMaker, *, enable_data: bool) -> None:
        self._log = op_log
        self._contents = contents
        self._enable_data = enable_data
        self._open: dict[int, _Open] = {}
        hooks.op_started.subscribe(self._started)
        hooks.accessed.subscribe(self._accessed)
        hooks.committed.subscribe(self._committed)
        hooks.op_ended.subscribe(self._ended)
        hooks.stage_ended.subscribe(self._stage)

    def _started(self, event: OpStarted) -> None:
        opened = _Open(event, event.reads, event.writes)
        self._open[event.op] = opened
        if not event.reads:
            self._begin(opened, event.start_ps)

    def _accessed(self, event: MemoryAccessed) -> None:
        opened = self._open.get(event.op)
        if opened is None:  # raw traffic: nothing to replay
            return
        opened.reads_left -= 1
        if not opened.reads_left:
            self._begin(opened, event.time_ps)

    def _committed(self, event: MemoryAccessed) -> None:
        opened = self._open.get(event.op)
        if opened is None:
            return
        opened.writes_left -= 1
        if not opened.writes_left and opened.record is not None:
            self._log.commit(opened.record, event.time_ps)

    def _ended(self, event: OpEnded) -> None:
        opened = self._open.pop(event.op)
        if opened.record is None:
            raise KernbenchError(
                f"operation {event.op} on {opened.started.component} ended before it read its operands"
            )
        self._log.finish(opened.record, event.time_ps)

    def _stage(self, event: StageEnded) -> None:
        parent = self._record_of(event.op)
        record = self._log.begin(
            component=event.component,
            kind=event.stage,
            t_start_ps=event.start_ps,
            t_read_ps=event.start_ps,
            name="stage",
            tile=event.tile,
            kernel=parent.kernel if parent is not None else "",
            launch_id=parent.launch_id if parent is not None else -1,
            line=parent.line if parent is not None else 0,
            parent=parent.seq if parent is not None else -1,
        )
        self._log.finish(record, event.end_ps)

    def _record_of(self, op: int) -> OpRecord | None:
        opened = self._open.get(op)
        return opened.record if opened is not None else None

    def _begin(self, opened: _Open, read_ps: int) -> None:
        started = opened.started
        content = self._content(started)
        # A tile's DMA is a part of its composite, which knows the launch.
        whole = self._record_of(started.what.parent) if isinstance(started.what, TileMoved) else None
        opened.record = self._log.begin(
            component=started.component,
            kind=content.kind,
            t_start_ps=started.start_ps,
            t_read_ps=read_ps,
            name=content.name,
            inputs=content.inputs,
            output=content.output,
            params=content.params,
            kernel=whole.kernel if whole is not None else started.kernel,
            launch_id=whole.launch_id if whole is not None else started.launch_id,
            line=whole.line if whole is not None else content.line,
            tile=content.tile,
            parent=whole.seq if whole is not None else -1,
            data=_data_of(started) if self._enable_data else None,
        )

    def _content(self, started: OpStarted) -> Content:
        what = started.what
        if isinstance(what, TileMoved):
            kind = "dma_read" if what.reading else "dma_write"
            return Content(kind, what.operand, tile=what.tile)  # type: ignore[arg-type]
        content = self._of_whole(what, started) if isinstance(what, Moved) else self._on_pe(started)
        return content if self._enable_data else content.without_data()

    def _of_whole(self, moved: Moved, started: OpStarted) -> Content:
        if isinstance(moved.what, HostMsg):
            return self._contents.of_host(moved.what, moved.segments)
        assert started.pe is not None
        return self._contents.of_dma(moved.what, moved, started.pe)

    def _on_pe(self, started: OpStarted) -> Content:
        what = started.what
        assert started.pe is not None
        if isinstance(what, Streamed):
            return self._contents.of_composite(what, started.pe)
        if isinstance(what, Queued):
            return self._contents.of_message(what, started.pe)
        assert not isinstance(what, Moved | TileMoved)
        return self._contents.of_compute(what, started.pe)


def _data_of(started: OpStarted) -> Array | None:
    """The array that a host write brings."""
    what = started.what.what if isinstance(started.what, Moved) else None
    return what.data if isinstance(what, MemoryWriteMsg) else None
