"""The host: it copies data by its DMA, and sends orders along the control path of the SIPs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import TypeAlias

from kernbench.common.errors import UnsupportedError
from kernbench.common.ids import pe_name, sip_part
from kernbench.common.values import state, value
from kernbench.components.initiator import Initiator, Target
from kernbench.di.registry import register
from kernbench.engine.machine import Done, Machine, Outcome
from kernbench.engine.recorder import OpStarted, Recorded
from kernbench.engine.thinking import Behaviour, ThinkingPart
from kernbench.messages.control import (
    CubeTargets,
    FillOrder,
    LaunchOrder,
    MapOrder,
    Order,
    PartOrder,
    PeReport,
    QueueOrder,
    QueueRemoval,
    Report,
    SipOrder,
    UnmapOrder,
)
from kernbench.messages.fabric import Access, ReadReply, WriteAck
from kernbench.messages.requests import (
    HostMsg,
    IpcqInitMsg,
    IpcqRemoveMsg,
    KernelLaunchMsg,
    MemoryReadMsg,
    MemoryWriteMsg,
    MmuMapMsg,
    MmuUnmapMsg,
    PartMsg,
    PeCoord,
)
from kernbench.topology.graph import Node
from kernbench.transport import Transfer

Targets: TypeAlias = Mapping[int, tuple[CubeTargets, ...]]
"""The target PEs of an order, by SIP"""


@value
class _Copy:
    """A request to copy bytes, with the memories that store them."""

    msg: MemoryWriteMsg | MemoryReadMsg
    targets: tuple[Target, ...]
    done: Done


@value
class _Fill:
    """A request to fill memory, the number of memories in its range, and the M_CPU that fills them."""

    msg: MemoryWriteMsg
    pattern: bytes
    n_memories: int
    targets: Targets
    done: Done


@value
class _PendingOrder:
    """A request that becomes an order to SIPs."""

    msg: HostMsg
    order: Order
    targets: Targets
    done: Done


@value
class _Asking:
    """A request to an extra component."""

    msg: PartMsg
    done: Done


@state
class _Ordered:
    """An order in flight to one or several SIPs, or to an extra component. ``op`` is the operation of a fill."""

    left: int
    done: Done
    op: int | None
    reports: list[PeReport] = field(default_factory=list)
    error: Exception | None = None


@register("builtin.host", kind="host")
class Host(ThinkingPart):
    """The host. It serves the requests of host programs in the order of submission."""

    def __init__(self, node: Node, machine: Machine) -> None:
        super().__init__(node, machine)
        self._dma = Initiator(self, "dma")
        self._ordered: dict[int, _Ordered] = {}
        self._together: list[SipOrder] = []  # launches of an order that is not complete

    def accept(self, msg: HostMsg, done: Done) -> None:
        """Check a request and put it into the inbox."""
        match msg:
            case MemoryWriteMsg(pattern=None) | MemoryReadMsg():
                places = self.machine.addresses.by_node(((msg.pa, msg.nbytes),))
                self.inbox.deliver(_Copy(msg, tuple((node, Access(*place)) for node, place in places), done))
            case MemoryWriteMsg(pattern=bytes() as pattern):
                addr = self.machine.addresses.decode(msg.pa)
                targets = {addr.sip_id: (CubeTargets(cube=addr.cube_id, pes=()),)}
                n_memories = len(self.machine.addresses.by_node(((msg.pa, msg.nbytes),)))
                self.inbox.deliver(_Fill(msg, pattern, n_memories, targets, done))
            case KernelLaunchMsg():
                self._accept_order(msg, LaunchOrder(msg, msg.counts), _by_sip(msg.targets), done)
            case MmuMapMsg():
                self._accept_order(msg, MapOrder(msg.mapping), self._pes_of(msg), done)
            case MmuUnmapMsg():
                self._accept_order(msg, UnmapOrder(msg.va_base), self._pes_of(msg), done)
            case IpcqInitMsg():
                self._accept_order(msg, QueueOrder(msg), _by_sip((msg.pe,)), done)
            case IpcqRemoveMsg():
                self._accept_order(msg, QueueRemoval(msg.installation), _by_sip((msg.pe,)), done)
            case PartMsg():
                self._accept_asking(msg, done)
            case _:
                super().accept(msg, done)

    def _accept_order(self, msg: HostMsg, order: Order, targets: Targets, done: Done) -> None:
        self._check_targets(msg, targets)
        self.inbox.deliver(_PendingOrder(msg, order, targets, done))

    def _accept_asking(self, msg: PartMsg, done: Done) -> None:
        if not self.machine.graph.node(msg.part).is_extra:
            raise UnsupportedError(f"PartMsg: {msg.part} is not in cube.extra or pe.extra")
        self.inbox.deliver(_Asking(msg, done))

    def _check_targets(self, msg: HostMsg, targets: Targets) -> None:
        """Raise UnsupportedError if a request has no target PEs, or targets that the machine lacks."""
        spec, subject = self.machine.spec, f"{type(msg).__name__} {msg.name!r}"
        if not targets:
            raise UnsupportedError(f"{subject} has no target PE")
        size = spec.num_sips, spec.cubes_per_sip, spec.pes_per_cube
        for pe in ((sip, cube.cube, max(cube.pes)) for sip, cubes in targets.items() for cube in cubes):
            if any(at >= n for at, n in zip(pe, size, strict=True)):
                available = "{} SIPs of {} cubes of {} PEs".format(*size)
                raise UnsupportedError(f"{subject} targets {pe_name(pe)}: there are {available}")

    def _pes_of(self, msg: MmuMapMsg | MmuUnmapMsg) -> Targets:
        if not isinstance(msg.target_pe, str):
            return _by_sip(msg.target_pe)
        spec = self.machine.spec
        everyone = tuple(range(spec.pes_per_cube))
        return {msg.sip: tuple(CubeTargets(cube=c, pes=everyone) for c in range(spec.cubes_per_sip))}

    def receive(self, message: object, transfer: Transfer) -> None:
        """Pass replies to the DMA. Put all other messages into the inbox."""
        if isinstance(message, ReadReply | WriteAck):
            self._dma.on_answer(message)
        else:
            super().receive(message, transfer)

    def run(self) -> Behaviour:
        """Begin requests, and gather the reports of the SIPs, in arrival order."""
        while True:
            message = yield self.inbox.get()
            self.handle(message)

    def handle(self, message: object) -> None:
        """Act on an accepted request or a report. Raises UnsupportedError for any other message."""
        match message:
            case _Copy():
                self._move(message)
            case _Fill():
                self._fill(message)
            case _PendingOrder():
                self._order(message.msg, message.order, message.targets, message.done)
            case _Asking():
                self._ask(message)
            case Report():
                self._collect(message)
            case _:
                raise UnsupportedError(f"{self.node.id} cannot take a {type(message).__name__}")

    def _move(self, copy: _Copy) -> None:
        n, reading = len(copy.targets), isinstance(copy.msg, MemoryReadMsg)
        op = self._begin(copy.msg, reads=n if reading else 0, writes=0 if reading else n)

        def on_end() -> None:
            copy.done(Outcome(last=self.machine.end_op(op)))

        (self._dma.read if reading else self._dma.write)(op, copy.targets, on_end)

    def _begin(self, msg: MemoryWriteMsg | MemoryReadMsg, *, reads: int, writes: int) -> int:
        op = self.machine.next_op()
        recorded = Recorded(msg, (((msg.pa, msg.nbytes),),))
        started = OpStarted(op, self.node.id, recorded, self.clock.time, reads, writes, -1)
        self.machine.begin_op(started, self.machine.log.cause_of(msg.request_id))
        return op

    def _fill(self, fill: _Fill) -> None:
        msg = fill.msg
        op = self._begin(msg, reads=0, writes=fill.n_memories)
        self._order(msg, FillOrder(op, msg.pa, msg.nbytes, fill.pattern), fill.targets, fill.done, op)

    def _order(self, msg: HostMsg, order: Order, targets: Targets, done: Done, op: int | None = None) -> None:
        self._ordered[msg.request_id] = _Ordered(len(targets), done, op)
        self.cause = self.machine.log.cause_of(msg.request_id)
        for sip, cubes in targets.items():
            to_sip = SipOrder(request_id=msg.request_id, order=order, targets=cubes)
            self._together.append(to_sip)
            if isinstance(msg, KernelLaunchMsg) and msg.n_following:
                return
            first, *following = self._together
            self._together.clear()
            self.tell(sip_part(sip, "io_cpu"), replace(first, following=tuple(following)) if following else first)

    def _ask(self, asking: _Asking) -> None:
        msg = asking.msg
        self._ordered[msg.request_id] = _Ordered(1, asking.done, None)
        self.cause = self.machine.log.cause_of(msg.request_id)
        self.tell(msg.part, PartOrder(request_id=msg.request_id, content=msg.content))

    def _collect(self, report: Report) -> None:
        ordered = self._ordered[report.request_id]
        ordered.reports += report.pes
        ordered.error = ordered.error or report.error or next((p.error for p in report.pes if p.error), None)
        ordered.left -= 1
        if not ordered.left:
            del self._ordered[report.request_id]
            row = self.cause[0] if ordered.op is None else self.machine.end_op(ordered.op, self.cause[0])
            ordered.done(Outcome(ordered.error, tuple(sorted(ordered.reports, key=lambda r: r.pe)), row))

    def reset(self) -> None:
        """Reset the host, but keep the orders of requests that were not abandoned."""
        self._ordered = {
            request_id: ordered
            for request_id, ordered in self._ordered.items()
            if request_id not in self.machine.given_up
        }
        self._together.clear()
        super().reset()


def _by_sip(pes: tuple[PeCoord, ...]) -> Targets:
    """Group PEs by SIP and cube, in order."""
    cubes: dict[int, dict[int, list[int]]] = {}
    for sip, cube, pe in sorted(set(pes)):
        cubes.setdefault(sip, {}).setdefault(cube, []).append(pe)
    return {
        sip: tuple(CubeTargets(cube=cube, pes=tuple(members)) for cube, members in of_sip.items())
        for sip, of_sip in cubes.items()
    }
