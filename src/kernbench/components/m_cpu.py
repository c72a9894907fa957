"""The management CPU of a cube: it sends orders to the PEs, runs their barriers and fills memory by its own DMA."""

from __future__ import annotations

from collections import deque
from dataclasses import field

import simpy

from kernbench.common.errors import KernelError
from kernbench.common.ids import cube_part, pe_part
from kernbench.common.values import state
from kernbench.components.control_cpu import ControlCpu
from kernbench.components.initiator import Initiator
from kernbench.core.log import NONE, By, Kind, Row
from kernbench.di.registry import register
from kernbench.engine.machine import Machine
from kernbench.engine.thinking import Behaviour
from kernbench.messages.control import (
    BarrierArrival,
    BarrierRelease,
    CubeOrder,
    FillOrder,
    PeOrder,
    Report,
)
from kernbench.messages.fabric import Access, ReadReply, WriteAck
from kernbench.topology.cube_spec import MCpuAttrs
from kernbench.topology.graph import Node
from kernbench.transport import Transfer


@state
class Meeting:
    """A barrier of one launch: the participating PEs, the PEs that have arrived, and the PEs that have failed."""

    mates: frozenset[int]
    here: list[int] = field(default_factory=list)
    gone: dict[int, Exception | None] = field(default_factory=dict)


@register("builtin.m_cpu", kind="m_cpu")
class MCpu(ControlCpu):
    """The M_CPU. It fans orders out to PEs, gathers their reports, and fills memory with its DMA channels."""

    Attrs = MCpuAttrs

    def __init__(self, node: Node, machine: Machine) -> None:
        super().__init__(node, machine)
        n_channels = self.attrs_as(MCpuAttrs).dma_channels
        self.channels = simpy.Resource(self.env, n_channels)
        self._idle_dmas = deque(Initiator(self, f"dma{i}") for i in range(n_channels))
        self._dma_of: dict[int, Initiator] = {}
        self._filled: Row = NONE  # by the channel that became free last
        self._meetings: dict[int, Meeting] = {}

    def receive(self, message: object, transfer: Transfer) -> None:
        """Pass replies to the DMA, since they do not occupy the CPU; queue all other messages."""
        if isinstance(message, WriteAck | ReadReply):
            self._dma_of[message.op].on_answer(message)
        else:
            super().receive(message, transfer)

    def handle(self, message: object) -> None:
        """Act on an order, a PE's report, or a PE's arrival at a barrier."""
        match message:
            case CubeOrder(order=FillOrder() as order):
                self.process(self._fill(message, order))
            case CubeOrder():
                self._fan_out(message)
            case Report():
                self._mark_failed(message)
                self.collect(message)
                if message.request_id not in self.gatherings:
                    self._meetings.pop(message.request_id, None)
            case BarrierArrival():
                self._enter_barrier(message)
            case _:
                super().handle(message)

    def _fan_out(self, message: CubeOrder) -> None:
        self.gather(message, len(message.pes))
        for pe in message.pes:
            order = PeOrder(
                request_id=message.request_id,
                order=message.order,
                start_ps=message.start_ps,
                mates=message.pes,
                start_row=message.start_row,
            )
            self.tell(self._pe_cpu(pe), order)

    def _pe_cpu(self, pe: int) -> str:
        return pe_part(*self.node.cube_coord, pe, "pe_cpu")

    def _fill(self, message: CubeOrder, order: FillOrder) -> Behaviour:
        """Fill the range of an order with its pattern, by one channel of the DMA."""
        log = self.machine.log
        with self.channels.request() as turn:
            waits = not turn.triggered
            yield turn
            cause = (self._filled, By.ENGINE) if waits else self.cause
            row = log.open(log.part(self.node.id), Kind.RAW, self.clock.time, cause, launch=message.request_id)
            dma = self._dma_of[order.op] = self._idle_dmas.popleft()
            places = self.machine.addresses.by_node(((order.pa, order.nbytes),))
            written = self.env.event()
            dma.write(order.op, [(node, Access(pa, nbytes)) for node, (pa, nbytes) in places], written.succeed)
            yield written
            log.close(row, self.clock.time)
            self._idle_dmas.append(self._dma_of.pop(order.op))
            self._filled = row
        self.cause = row, By.OPERAND
        self.answer(message)

    def _enter_barrier(self, message: BarrierArrival) -> None:
        meeting = self._meetings.setdefault(message.request_id, Meeting(frozenset(message.mates)))
        meeting.here.append(message.pe)
        self._settle(message.request_id, meeting)

    def _mark_failed(self, report: Report) -> None:
        """Record the PEs that have failed, so that no PE waits for them at a barrier."""
        failed = [p for p in report.pes if p.error is not None]
        if not failed:
            return
        mates = frozenset(range(self.machine.spec.pes_per_cube))
        meeting = self._meetings.setdefault(report.request_id, Meeting(mates))
        meeting.gone.update((p.pe[2], p.error) for p in failed)
        self._settle(report.request_id, meeting)

    def _settle(self, request_id: int, meeting: Meeting) -> None:
        error: Exception | None = None
        if meeting.gone:
            pe = min(meeting.gone)
            name = cube_part(*self.node.cube_coord, f"pe{pe}")
            error = KernelError(f"barrier: {name} cannot arrive, its kernel failed: {meeting.gone[pe]}")
        elif meeting.mates != frozenset(meeting.here):
            return
        for pe in meeting.here:
            self.cause = self.cause[0], By.BARRIER
            self.tell(self._pe_cpu(pe), BarrierRelease(request_id=request_id, error=error))
        meeting.here.clear()
        if not meeting.gone:
            del self._meetings[request_id]

    def reset(self) -> None:
        """Reset the CPU, but keep the barriers of requests that were not abandoned."""
        given_up = self.machine.given_up
        self._meetings = {
            request_id: meeting for request_id, meeting in self._meetings.items() if request_id not in given_up
        }
        super().reset()

    def blocked(self) -> tuple[str, ...]:
        """Return a line for each order that lacks reports, and for each barrier that lacks PEs."""
        waits = [
            f"barrier of request {request_id} waits for PEs {sorted(m.mates - set(m.here))}"
            for request_id, m in self._meetings.items()
            if m.here
        ]
        return (*super().blocked(), *waits)
