"""Writes the op-log from the hooks: what components do becomes records that phase 2 can replay."""

from __future__ import annotations

from dataclasses import dataclass

from kernbench.common.dtypes import U8
from kernbench.common.errors import KernbenchError
from kernbench.messages.commands import (
    DotCommand,
    LoadCommand,
    MathCommand,
    PeCommand,
    StoreCommand,
    TcmArray,
)
from kernbench.messages.requests import HostMsg, MemoryReadMsg, MemoryWriteMsg
from kernbench.policy.address.layout import Component
from kernbench.sim_engine.address_map import AddressMap
from kernbench.sim_engine.hooks import Hooks, MemoryAccessed, Moved, OpEnded, OpStarted, StageEnded
from kernbench.sim_engine.op_log import NO_PARAMS, Kind, Operand, OpLog, OpParams, OpRecord


@dataclass(slots=True)
class _Open:
    """An operation under way: how many accesses are missing before it reads, and before its result is there."""

    started: OpStarted
    reads_left: int
    writes_left: int
    record: OpRecord | None = None


@dataclass(frozen=True, slots=True)
class _Content:
    """What a record says beside its times."""

    kind: Kind
    name: str = ""
    inputs: tuple[Operand | float, ...] = ()
    output: Operand | None = None
    params: OpParams = NO_PARAMS
    line: int = 0


class Recorder:
    """Subscribes ``op_log`` to the hooks of a machine; without ``enable_data`` records carry times only."""

    def __init__(self, op_log: OpLog, hooks: Hooks, addresses: AddressMap, enable_data: bool) -> None:
        self._log = op_log
        self._addresses = addresses
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
        record = self._log.begin(
            component=event.component,
            kind=event.stage,
            t_start_ps=event.start_ps,
            t_read_ps=event.start_ps,
            name="stage",
            tile=event.tile,
        )
        self._log.finish(record, event.end_ps)

    def _begin(self, opened: _Open, read_ps: int) -> None:
        started = opened.started
        content = self._content(started)
        what = started.what.what if isinstance(started.what, Moved) else started.what
        opened.record = self._log.begin(
            component=started.component,
            kind=content.kind,
            t_start_ps=started.start_ps,
            t_read_ps=read_ps,
            name=content.name,
            inputs=content.inputs,
            output=content.output,
            params=content.params,
            kernel=started.kernel,
            launch_id=started.launch_id,
            line=content.line,
            data=what.data if isinstance(what, MemoryWriteMsg) and self._enable_data else None,
        )

    def _content(self, started: OpStarted) -> _Content:
        what = started.what
        if isinstance(what, Moved):
            inner = what.what
            content = self._of_host(inner, what) if isinstance(inner, HostMsg) else self._of_dma(inner, what, started)
        else:
            content = self._of_compute(what, started)
        if self._enable_data:
            return content
        return _Content(content.kind, content.name, line=content.line)

    def _of_host(self, msg: HostMsg, moved: Moved) -> _Content:
        if isinstance(msg, MemoryReadMsg):
            return _Content("memory_read", msg.name)
        assert isinstance(msg, MemoryWriteMsg)
        if msg.data is None and msg.pattern is None:
            return _Content("memory_write", msg.name)
        return _Content(
            "memory_write",
            msg.name,
            output=self._bytes_at(moved.segments),
            params=OpParams(pattern=msg.pattern) if msg.pattern is not None else NO_PARAMS,
        )

    def _of_dma(self, command: LoadCommand | StoreCommand, moved: Moved, started: OpStarted) -> _Content:
        if isinstance(command, LoadCommand):
            there = self._remote(command, command.dst, moved, command.other)
            return _Content("dma_read", "load", (there,), self._local(command.dst, started), line=command.line)
        there = self._remote(command, command.src, moved, 0)
        return _Content("dma_write", "store", (self._local(command.src, started),), there, line=command.line)

    def _of_compute(self, command: PeCommand, started: OpStarted) -> _Content:
        if isinstance(command, MathCommand):
            inputs = tuple(self._local(x, started) if isinstance(x, TcmArray) else x for x in command.inputs)
            attributes = command.attributes
            params = OpParams(
                axis=attributes.axis, perm=attributes.perm, trans_a=attributes.trans_a, trans_b=attributes.trans_b
            )
            dst = self._local(command.dst, started)
            return _Content("math", command.operator, inputs, dst, params, command.line)
        assert isinstance(command, DotCommand)
        arrays = (command.a, command.b) if command.acc is None else (command.a, command.b, command.acc)
        params = OpParams(trans_a=command.trans_a, trans_b=command.trans_b)
        inputs = tuple(self._local(x, started) for x in arrays)
        return _Content("gemm", "dot", inputs, self._local(command.dst, started), params, command.line)

    def _local(self, array: TcmArray, started: OpStarted) -> Operand:
        assert started.pe is not None
        return Operand("tcm", started.pe, array.address, array.nbytes, array.shape, array.dtype)

    def _remote(self, command: LoadCommand | StoreCommand, array: TcmArray, moved: Moved, other: float) -> Operand:
        """The memory side of a DMA: ``moved.segments`` hold its extent in the order of offsets."""
        space, owner = self._place(moved.segments[0][0])
        address = moved.segments[0][0]
        if command.strides is not None:
            address -= sum((n - 1) * s for n, s in zip(array.shape, command.strides, strict=True) if s < 0)
        several = moved.segments if len(moved.segments) > 1 else ()
        return Operand(
            space,
            owner,
            address,
            array.nbytes,
            array.shape,
            array.dtype,
            command.strides,
            several,
            command.valid,
            other,
        )

    def _bytes_at(self, segments: tuple[tuple[int, int], ...]) -> Operand:
        pa, nbytes = segments[0]
        space, owner = self._place(pa)
        return Operand(space, owner, pa, nbytes, (nbytes,), U8)

    def _place(self, pa: int) -> tuple[str, tuple[int, ...]]:
        addr = self._addresses.decode(pa)
        if addr.component == Component.TCM:
            assert addr.pe_id is not None
            return "tcm", (addr.sip_id, addr.cube_id, addr.pe_id)
        return str(addr.component), (addr.sip_id, addr.cube_id)
