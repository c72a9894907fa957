"""The CPU of an IO chiplet: it forwards orders to the cubes and sets the common start of a launch.

A launch that passes is not forwarded: its time passes here, and its PEs count as busy. So does the rest of a launch of
which a part is simulated. Launches in order wait here, until the one before them has ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace

from simpy import Event, Timeout

from kernbench.common.errors import AbandonedError
from kernbench.common.ids import cube_part, pe_part
from kernbench.common.units import transfer_ps
from kernbench.components.control_cpu import ControlCpu, Gathering
from kernbench.core.log import By, Cause, Kind
from kernbench.di.registry import register
from kernbench.engine.machine import Machine
from kernbench.engine.passed_launches import ANSWERS, ORDERS
from kernbench.engine.thinking import Behaviour, Question
from kernbench.messages.control import (
    CubeOrder,
    CubeTargets,
    LaunchOrder,
    PeReport,
    QueueRemoval,
    Report,
    SipOrder,
)
from kernbench.messages.requests import KernelLaunchMsg
from kernbench.topology.graph import Node
from kernbench.topology.spec import IoCpuAttrs


@register("builtin.io_cpu", kind="io_cpu")
class IoCpu(ControlCpu):
    """The IO_CPU: it sends an order to each cube, adds the common start to launches, and gathers the answers."""

    Attrs = IoCpuAttrs

    def __init__(self, node: Node, machine: Machine) -> None:
        super().__init__(node, machine)
        self._passing: dict[int, tuple[SipOrder, Event]] = {}  # by launch; the event ends it early
        self._held: list[tuple[SipOrder, Cause]] = []  # orders to PEs that are busy with a passed launch
        self._queue: deque[SipOrder] = deque()  # launches in order that have not begun
        self._in_order: int | None = None  # the launch in order that is under way
        self._n_orders = self._n_answers = 0

    def handle(self, message: object) -> None:
        """Act on an order from the host, or on a cube's report."""
        self._n_orders += isinstance(message, SipOrder)
        match message:
            case SipOrder(order=LaunchOrder(launch=KernelLaunchMsg(in_order=True))):
                for order in message.following:
                    self.accept_within(order, message)
                if self._queue or self._must_queue(message):
                    self._queue.append(message)
                else:
                    self._begin(message)
                self._queue += message.following
            case SipOrder():
                if self._must_wait(message):
                    self._held.append((message, self.cause))
                else:
                    self._begin(message)
            case Report():
                gathering = self.add_report(message)
                if gathering is not None:
                    self._end(gathering)
            case _:
                super().handle(message)

    def answer(self, question: Question, *, pes: tuple[PeReport, ...] = (), error: Exception | None = None) -> None:
        """Answer an order of the host."""
        self._n_answers += 1
        super().answer(question, pes=pes, error=error)

    def counts(self) -> Mapping[str, int]:
        """Return the numbers of orders from the host and of answers to it."""
        return {**super().counts(), ORDERS: self._n_orders, ANSWERS: self._n_answers}

    def abandon(self, request_ids: frozenset[int]) -> None:
        """End the passed launches among these requests. They fail."""
        for request_id in request_ids & self._passing.keys():
            self._passing[request_id][1].succeed()

    def reset(self) -> None:
        """Reset the CPU, but keep the queued orders of requests that were not abandoned. No launch passes any more."""
        given_up = self.machine.given_up
        self._passing.clear()
        self._held = [held for held in self._held if held[0].request_id not in given_up]
        self._queue = deque(order for order in self._queue if order.request_id not in given_up)
        if self._in_order in given_up:
            self._in_order = None
        super().reset()

    def _must_queue(self, order: SipOrder) -> bool:
        """Return True for a launch in order that cannot begin: because of the one before, or a request on its data."""
        if self._in_order is not None or self._must_wait(order):
            return True
        assert isinstance(order.order, LaunchOrder), "only launches are in order"
        after = order.order.launch.after
        under_way = (self.gatherings, self._passing, {held.request_id for held, _ in self._held})
        return any(request_id in requests for request_id in after for requests in under_way)

    def _must_wait(self, order: SipOrder) -> bool:
        """Return True for an order behind a passed launch: another launch on its PEs, or a removal of their queues."""
        if not self._passing or not isinstance(order.order, LaunchOrder | QueueRemoval):
            return False
        before = [*(passing for passing, _ in self._passing.values()), *(held for held, _ in self._held)]
        pes = _list_pes(order)
        return any(pes & _list_pes(earlier) for earlier in before)

    def _begin(self, order: SipOrder) -> None:
        """Forward an order, or let the time of a passed launch pass."""
        if not isinstance(order.order, LaunchOrder):
            self._fan_out(order)
            return
        launch, now_ps = order.order.launch, self.clock.time
        self.machine.log.on_device[order.request_id] = now_ps, now_ps
        if launch.in_order:
            self._in_order = order.request_id
        passed_ps = None if launch.on_device is None else launch.on_device.begin(order.request_id, now_ps)
        if passed_ps is None:
            self._fan_out(order)
        else:
            self._passing[order.request_id] = order, self.env.event()
            self.process(self._pass(order, passed_ps))

    def _end(self, gathering: Gathering) -> None:
        """Answer an order with all its reports, when the rest of its time has passed; begin the orders behind it."""
        order, pes = gathering.order, tuple(gathering.pes)
        rest_ps = self._note_end(order, failed=gathering.failed)
        if rest_ps:
            assert isinstance(order, SipOrder), "the host orders launches"
            self._passing[order.request_id] = order, self.env.event()
            later = tuple([replace(report, end_ps=report.end_ps + rest_ps) for report in pes])
            self.process(self._pass(order, rest_ps, later))
        else:
            self._begin_waiting(order.request_id)
            self.answer(order, pes=pes, error=gathering.error)

    def _note_end(self, order: SipOrder | CubeOrder, *, failed: bool) -> int:
        """Note the end of a launch on this SIP. Return the time in ps that passes before it has ended."""
        request_id, now_ps = order.request_id, self.clock.time
        if not isinstance(order.order, LaunchOrder):
            return 0
        self._set_end(request_id)
        observer = order.order.launch.on_device
        return 0 if observer is None or failed else observer.end(request_id, now_ps)

    def _set_end(self, launch: int) -> None:
        on_device = self.machine.log.on_device
        on_device[launch] = on_device[launch][0], self.clock.time

    def _begin_waiting(self, ended: int) -> None:
        """Begin the orders that need not wait any more, after the end of request ``ended`` on this SIP.

        They leave before the answer to the host, which would delay them.
        """
        if ended == self._in_order:
            self._in_order = None
        cause = self.cause
        row = cause[0]
        held, self._held = self._held, []
        for order, cause in held:
            if self._must_wait(order):
                self._held.append((order, cause))
            else:
                self.cause = row, By.KERNEL
                self._begin(order)
        while self._queue and not self._must_queue(self._queue[0]):
            order = self._queue.popleft()
            self.machine.log.queued[order.request_id] = self.clock.time
            self.cause = row, By.KERNEL
            self._begin(order)
        self.cause = cause

    def _pass(self, order: SipOrder, passed_ps: int, pes: tuple[PeReport, ...] = ()) -> Behaviour:
        """Answer a launch after ``passed_ps``, or at once if it is abandoned; then begin the orders behind it.

        ``pes``: the reports of a launch of which a part was simulated.
        """
        log, launch = self.machine.log, order.request_id
        row = log.open(
            log.part(self.node.id),
            Kind.PASSED,
            self.clock.time,
            self.cause,
            launch=launch,
            parent=log.requests.get(launch, -1),
        )
        if launch not in self.machine.given_up:
            yield Timeout(self.env, passed_ps) | self._passing[launch][1]
        _, ended_early = self._passing.pop(launch)
        log.close(row, self.clock.time)
        self.cause = row, By.OPERAND
        is_abandoned = ended_early.triggered or launch in self.machine.given_up
        if pes:
            self._set_end(launch)
        else:
            self._note_end(order, failed=is_abandoned)
        self._begin_waiting(launch)
        self.answer(order, pes=pes, error=AbandonedError("its launch was abandoned") if is_abandoned else None)

    def _fan_out(self, message: SipOrder) -> None:
        self.gather(message, len(message.targets))
        start = self._common_start(message) if isinstance(message.order, LaunchOrder) else 0
        for target in message.targets:
            order = CubeOrder(
                request_id=message.request_id,
                order=message.order,
                pes=target.pes,
                start_ps=start,
                start_row=self.cause[0],
            )
            self.tell(self._m_cpu(target), order)

    def _m_cpu(self, target: CubeTargets) -> str:
        return cube_part(self._sip, target.cube, "m_cpu")

    @property
    def _sip(self) -> int:
        assert self.node.sip is not None
        return self.node.sip

    def _common_start(self, message: SipOrder) -> int:
        """Return the earliest time in ps at which every target PE of the SIP can have received the order.

        Each order waits for earlier orders on the slowest link that the orders share. The M_CPU handles the order
        before forwarding it. An idle fabric adds no other delay.
        """
        latest = 0
        for i, target in enumerate(message.targets):
            m_cpu = self._m_cpu(target)
            handled = self._header_ps(self.node.id, m_cpu, i) + self.machine.component(m_cpu).overhead_ps
            for j, pe in enumerate(target.pes):
                pe_cpu = pe_part(self._sip, target.cube, pe, "pe_cpu")
                at_pe = handled + self._header_ps(m_cpu, pe_cpu, j) + self.machine.component(pe_cpu).overhead_ps
                latest = max(latest, at_pe)
        return self.clock.time + latest

    def _header_ps(self, src: str, dst: str, before: int) -> int:
        """Return the time in ps of a header from ``src`` to ``dst`` behind ``before`` other headers."""
        route = self.machine.route(src, dst)
        header = self.machine.header_bytes
        return route.latency_ps(header) + before * transfer_ps(header, route.bottleneck_gbs)


def _list_pes(order: SipOrder) -> set[tuple[int, int]]:
    """Return the target PEs of an order, as (cube, pe)."""
    return {(target.cube, pe) for target in order.targets for pe in target.pes}
