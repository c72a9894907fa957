"""The host: bulk transfers by its DMA, orders to the SIPs' control path."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernbench.common.errors import UnsupportedError
from kernbench.common.ids import sip_part
from kernbench.components.initiator import Initiator
from kernbench.core.log import Row
from kernbench.di.registry import register
from kernbench.engine.machine import Component, Done, Machine, Outcome
from kernbench.engine.record_content import Moved
from kernbench.engine.recorder import OpStarted
from kernbench.messages.control import (
    CubeTargets,
    FillOrder,
    LaunchOrder,
    MapOrder,
    Order,
    PeReport,
    QueueOrder,
    QueueRemoval,
    Report,
    SipOrder,
    UnmapOrder,
)
from kernbench.messages.fabric import Access, ReadReply, WriteAck
from kernbench.messages.queues import IpcqInitMsg, IpcqRemoveMsg
from kernbench.messages.requests import (
    HostMsg,
    KernelLaunchMsg,
    MemoryReadMsg,
    MemoryWriteMsg,
    MmuMapMsg,
    MmuUnmapMsg,
    PeCoord,
)
from kernbench.topology.graph import Node
from kernbench.transport import Transfer


@dataclass(slots=True)
class _Ordered:
    """An order given to one or several SIPs."""

    left: int
    done: Done
    op: int | None
    reports: list[PeReport] = field(default_factory=list)
    error: Exception | None = None


@register("builtin.host", kind="host")
class Host(Component):
    """Serves the requests of host programs."""

    def __init__(self, node: Node, machine: Machine) -> None:
        super().__init__(node, machine)
        self._dma = Initiator(self, "dma")
        self._ordered: dict[int, _Ordered] = {}

    def accept(self, msg: HostMsg, done: Done) -> None:
        """Start a request."""
        match msg:
            case MemoryWriteMsg(pattern=None) | MemoryReadMsg():
                self._move(msg, done)
            case MemoryWriteMsg():
                self._fill(msg, done)
            case KernelLaunchMsg():
                self._launch(msg, done)
            case MmuMapMsg():
                self._order_pes(msg, MapOrder(msg.mapping), msg.sip, msg.target_pe, done)
            case MmuUnmapMsg():
                self._order_pes(msg, UnmapOrder(msg.va_base), msg.sip, msg.target_pe, done)
            case IpcqInitMsg():
                self._order_pes(msg, QueueOrder(msg), msg.pe[0], (msg.pe,), done)
            case IpcqRemoveMsg():
                self._order_pes(msg, QueueRemoval(msg.installation), msg.pe[0], (msg.pe,), done)
            case _:
                super().accept(msg, done)

    def receive(self, message: object, transfer: Transfer) -> None:
        """Data, acknowledgements, and reports of the SIPs."""
        match message:
            case ReadReply() | WriteAck():
                self._dma.answered(message)
            case Report():
                self.machine.log.close(transfer.row, self.clock.time)
                self._reported(message, transfer.row)
            case _:
                super().receive(message, transfer)

    def _move(self, msg: MemoryWriteMsg | MemoryReadMsg, done: Done) -> None:
        places = self.machine.addresses.by_node(((msg.pa, msg.nbytes),))
        targets = [(node, Access(pa, nbytes)) for node, (pa, nbytes) in places]
        reading = isinstance(msg, MemoryReadMsg)
        op = self._begin(msg, reads=len(targets) if reading else 0, writes=0 if reading else len(targets))

        def over() -> None:
            done(Outcome(last=self.machine.end_op(op)))

        (self._dma.read if reading else self._dma.write)(op, targets, over)

    def _begin(self, msg: MemoryWriteMsg | MemoryReadMsg, *, reads: int, writes: int) -> int:
        op = self.machine.next_op()
        moved = Moved(msg, ((msg.pa, msg.nbytes),))
        started = OpStarted(op, self.node.id, moved, self.clock.time, reads, writes, -1)
        self.machine.begin_op(started, self.machine.log.cause_of(msg.request_id))
        return op

    def _fill(self, msg: MemoryWriteMsg, done: Done) -> None:
        addr = self.machine.addresses.decode(msg.pa)
        assert msg.pattern is not None
        op = self._begin(msg, reads=0, writes=len(self.machine.addresses.by_node(((msg.pa, msg.nbytes),))))
        order = FillOrder(op, msg.pa, msg.nbytes, msg.pattern)
        self._send(msg, {addr.sip_id: (CubeTargets(cube=addr.cube_id, pes=()),)}, order, done, op)

    def _launch(self, msg: KernelLaunchMsg, done: Done) -> None:
        sips, cubes, pes = ({target[axis] for target in msg.targets} for axis in range(3))
        order = LaunchOrder(msg, msg.grid or (len(pes), len(cubes), len(sips)))
        self._send(msg, _by_sip(msg.targets), order, done)

    def _order_pes(
        self, msg: HostMsg, order: Order, sip: int, target_pe: str | tuple[PeCoord, ...], done: Done
    ) -> None:
        spec = self.machine.spec
        if isinstance(target_pe, str):
            everyone = tuple(range(spec.pes_per_cube))
            targets = tuple(CubeTargets(cube=c, pes=everyone) for c in range(spec.cubes_per_sip))
            self._send(msg, {sip: targets}, order, done)
        else:
            self._send(msg, _by_sip(target_pe), order, done)

    def _send(
        self,
        msg: HostMsg,
        targets: dict[int, tuple[CubeTargets, ...]],
        order: Order,
        done: Done,
        op: int | None = None,
    ) -> None:
        if not targets:
            raise UnsupportedError(f"{type(msg).__name__} {msg.name!r} has no target PE")
        self._ordered[msg.request_id] = _Ordered(len(targets), done, op)
        cause = self.machine.log.cause_of(msg.request_id)
        for sip, cubes in targets.items():
            message = SipOrder(request_id=msg.request_id, order=order, targets=cubes)
            self.machine.send_control(self.node.id, sip_part(sip, "io_cpu"), message, cause)

    def _reported(self, report: Report, row: Row) -> None:
        ordered = self._ordered[report.request_id]
        ordered.reports += report.pes
        ordered.error = ordered.error or report.error or next((p.error for p in report.pes if p.error), None)
        ordered.left -= 1
        if not ordered.left:
            del self._ordered[report.request_id]
            if ordered.op is not None:
                row = self.machine.end_op(ordered.op, row)
            ordered.done(Outcome(ordered.error, tuple(sorted(ordered.reports, key=lambda r: r.pe)), row))


def _by_sip(pes: tuple[PeCoord, ...]) -> dict[int, tuple[CubeTargets, ...]]:
    """PEs grouped by SIP and cube, in order."""
    cubes: dict[int, dict[int, list[int]]] = {}
    for sip, cube, pe in sorted(set(pes)):
        cubes.setdefault(sip, {}).setdefault(cube, []).append(pe)
    return {
        sip: tuple(CubeTargets(cube=cube, pes=tuple(members)) for cube, members in of_sip.items())
        for sip, of_sip in cubes.items()
    }
