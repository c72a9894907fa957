"""The queue of launches of each SIP, as the host sees it: a program continues while its launches run in order.

The IO_CPU of the SIP begins a launch of the queue when the one before it has ended. The host waits where it reads a
tensor that a launch uses, and where the queue is full.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from itertools import chain
from typing import TypeAlias

from kernbench.common.errors import InputError
from kernbench.common.figures import figure
from kernbench.common.ids import HOST, sip_part
from kernbench.common.units import format_ns, ps_to_ns
from kernbench.common.values import state, value
from kernbench.engine.engine import GraphEngine
from kernbench.engine.requests import RequestHandle
from kernbench.runtime_api.launch import Launch
from kernbench.runtime_api.operators import OperatorCall
from kernbench.runtime_api.requests import Requests, Work


@value(kw_only=True)
class QueueReport:
    """The use of the queues of launches in a run, over all SIPs."""

    launches: int = figure("launches in the queues")
    behind: int = figure("launches that waited in a queue")
    deepest: int = figure("most launches ordered ahead of the one that runs")
    hidden_ns: float = figure("time of orders before such launches, and of answers to launches before them")
    full: int = figure("waits of the host for room in a queue")
    full_ns: float = figure("time of these waits")

    def __str__(self) -> str:
        full = f"; {self.full:,} waits for room, {format_ns(self.full_ns)}" if self.full else ""
        return (
            f"queue: {self.launches:,} launches, {self.behind:,} of them behind another, at most {self.deepest:,} "
            f"ahead; {format_ns(self.hidden_ns)} of orders and answers hidden{full}"
        )


@value
class CapturedLaunch:
    """A launch of a graph: it starts at each replay.

    ``call``: the operator that made it, if any. ``begins_call``: its first launch in the call. ``on_start``
    is called with each start.
    """

    launch: Launch
    call: OperatorCall | None
    begins_call: bool
    on_start: OnStart | None


OnStart: TypeAlias = Callable[[Work], None]


@state
class _Lane:
    """The queue of a SIP: all its launches, and the orders of launches whose ends the host has not seen."""

    launches: list[RequestHandle] = field(default_factory=list)
    in_flight: deque[Sequence[RequestHandle]] = field(default_factory=deque)


class LaunchQueue:
    """The queues of all SIPs. ``depth``: launches ahead of the one that runs; 0: the host waits for each launch."""

    def __init__(self, engine: GraphEngine, requests: Requests, depth: int) -> None:
        self.depth = depth
        self._captured: list[CapturedLaunch] | None = None
        self._machine, self._requests = engine.machine, requests
        self._lanes: dict[int, _Lane] = {}
        self._deepest = self._n_full = self._full_ps = 0

    @property
    def is_on(self) -> bool:
        """True if the host continues after a launch."""
        return self.depth > 0

    @property
    def is_capturing(self) -> bool:
        """True while launches are captured for a graph, and do not start."""
        return self._captured is not None

    def begin_capture(self) -> None:
        """Begin to capture launches. Raises InputError in a capture."""
        if self._captured is not None:
            raise InputError("a graph of launches is being captured already; one capture can run at a time")
        self._captured, self._requests.is_capturing = [], True

    def end_capture(self) -> tuple[CapturedLaunch, ...]:
        """End the capture and return its launches. Raises InputError without a capture."""
        if self._captured is None:
            raise InputError("capture_end: no graph of launches is being captured; call capture_begin first")
        captured, self._captured, self._requests.is_capturing = self._captured, None, False
        return tuple(captured)

    def capture(self, captured: CapturedLaunch) -> None:
        """Add a launch to the capture."""
        assert self._captured is not None, "only a capture takes launches"
        self._captured.append(captured)

    def make_room(self, sip: int) -> None:
        """Wait until the queue of a SIP has room for a launch. Raises the errors of launches that have ended."""
        lane = self._lanes.setdefault(sip, _Lane())
        self._see_ended(lane)
        if len(lane.in_flight) > self.depth:
            began_ps = self._machine.clock.time
            self._wait_unseen(lane.in_flight[0])
            self._n_full += 1
            self._full_ps += self._machine.clock.time - began_ps
            self._see_ended(lane)

    def add(self, sip: int, handles: Sequence[RequestHandle]) -> None:
        """Add the launches of an order that has been submitted."""
        lane = self._lanes.setdefault(sip, _Lane())
        self._deepest = max(self._deepest, len(lane.in_flight))
        lane.in_flight.append(handles)
        lane.launches += handles
        for handle in handles:
            self._requests.raise_at_next_wait(handle)

    def last(self, sip: int) -> RequestHandle | None:
        """Return the last launch of a SIP's queue; None if there was none."""
        lane = self._lanes.get(sip)
        return lane.launches[-1] if lane is not None and lane.launches else None

    def wait_for(self, handle: RequestHandle) -> None:
        """Wait for a launch, and raise the errors of those before it."""
        for lane in tuple(self._lanes.values()):
            if any(other is handle for order in lane.in_flight for other in order):
                self._wait_unseen([handle])
                self._see_ended(lane)

    def wait(self, sip: int | None = None) -> None:
        """Wait for all launches of a SIP's queue; None: of all queues. Raises the error of the first that failed.

        A rank does not wait for the launches of other ranks.
        """
        for number, lane in tuple(self._lanes.items()):
            if sip in (None, number) and lane.in_flight:
                orders = list(lane.in_flight)
                others = [order for order in orders if self._requests.is_of_another_rank(order[-1])]
                lane.in_flight = deque(others)
                self._wait_unseen(chain.from_iterable(order for order in orders if order not in others))

    def report(self, since_ps: int) -> QueueReport | None:
        """Return the use of the queues from ``since_ps`` on; None if no launch was in a queue."""
        log = self._machine.log
        n_launches = n_behind = hidden_ps = 0
        for sip, lane in self._lanes.items():
            before, order_ps = None, self._order_ps(sip)
            for handle in lane.launches:
                if handle.submitted_ps >= since_ps and handle.done:
                    n_launches += 1
                    if handle.request_id in log.queued:
                        n_behind += 1
                        hidden_ps += order_ps
                        if before is not None and before.request_id in log.on_device:
                            hidden_ps += before.ended_ps - log.on_device[before.request_id][1]
                before = handle
        if not n_launches:
            return None
        return QueueReport(
            launches=n_launches,
            behind=n_behind,
            deepest=self._deepest,
            hidden_ns=ps_to_ns(hidden_ps),
            full=self._n_full,
            full_ns=ps_to_ns(self._full_ps),
        )

    def _order_ps(self, sip: int) -> int:
        """Return the time in ps of an order from the host until the IO_CPU of a SIP can begin it."""
        io_cpu, machine = sip_part(sip, "io_cpu"), self._machine
        route = machine.route(HOST, io_cpu)
        return route.latency_ps(machine.header_bytes) + machine.component(io_cpu).overhead_ps

    def _see_ended(self, lane: _Lane) -> None:
        """Remove the orders that have ended. Raises the error of one that failed."""
        while lane.in_flight and lane.in_flight[0][-1].done:
            self._wait_unseen(lane.in_flight.popleft())

    def _wait_unseen(self, handles: Iterable[RequestHandle]) -> None:
        """Wait for launches. An error that the program has seen is not raised again."""
        self._requests.wait([handle for handle in handles if self._requests.unseen(handle)])


def depth_of(setting: int | None, largest: int) -> int:
    """Return the depth of queues by the setting ``torch.queue``; None: ``largest``, that of the IO_CPU.

    Raises InputError for a larger one.
    """
    if setting is not None and setting > largest:
        raise InputError(
            f"torch.queue: found {setting}, the IO_CPU has a queue of {largest} launches "
            f"(sip.components.io_cpu.attrs.queue)"
        )
    return largest if setting is None else setting
