"""CPUs that hand orders on to several parts below them and gather their answers: io_cpu and m_cpu."""

from __future__ import annotations

from dataclasses import field

from kernbench.common.errors import UnsupportedError
from kernbench.common.units import ps_to_ns
from kernbench.common.values import state
from kernbench.engine.machine import Machine
from kernbench.engine.thinking import Behaviour, Delivery, ThinkingPart
from kernbench.messages.control import CubeOrder, PeReport, Report, SipOrder
from kernbench.topology.graph import Node


@state
class Gathering:
    """An order under way: how many answers are missing, and what came back so far."""

    order: SipOrder | CubeOrder
    left: int
    pes: list[PeReport] = field(default_factory=list)
    error: Exception | None = None


class ControlCpu(ThinkingPart):
    """Handles messages one after another, each for ``handling_ns``."""

    def __init__(self, node: Node, machine: Machine) -> None:
        super().__init__(node, machine)
        self.gatherings: dict[int, Gathering] = {}
        self._handling_ns = ps_to_ns(self.overhead_ps)

    @property
    def handles_serially(self) -> bool:
        """Return True: its overhead is its own time, not the link's."""
        return True

    def run(self) -> Behaviour:
        """Take messages in the order they arrive; act on one when its time is over."""
        while True:
            message = yield self.inbox.get()
            handling_ns = self.handling_ns(message)
            if handling_ns:
                yield self.wait_ns(handling_ns)
            self.handle(message)

    def handling_ns(self, message: object) -> float:
        """Return how long the CPU is busy with a message before it acts on it: ``overhead_ns``."""
        return self._handling_ns

    def handle(self, message: object) -> None:
        """Act on a message: send what follows from it, all at once. UnsupportedError for one that is not for it."""
        raise UnsupportedError(f"{self.node.id} cannot take a {type(message).__name__}")

    def gather(self, order: SipOrder | CubeOrder, expected: int) -> None:
        """Expect ``expected`` reports on an order that is handed on."""
        self.gatherings[order.request_id] = Gathering(order, expected)

    def collect(self, report: Report) -> None:
        """Take a report from below; the last one makes the answer."""
        gathering = self.gatherings[report.request_id]
        gathering.pes += report.pes
        gathering.error = gathering.error or report.error
        gathering.left -= 1
        if not gathering.left:
            del self.gatherings[report.request_id]
            self.answer(gathering.order, pes=tuple(gathering.pes), error=gathering.error)

    def failures(self) -> tuple[tuple[int, PeReport], ...]:
        """Return the failures gathered of requests whose other PEs have not answered."""
        return tuple(
            (request_id, pe) for request_id, g in self.gatherings.items() for pe in g.pes if pe.error is not None
        )

    def standing(self, delivery: Delivery) -> str:
        """Return how many answers an order waits for that was handed on."""
        order = delivery.message
        gathering = self.gatherings.get(order.request_id) if isinstance(order, SipOrder | CubeOrder) else None
        if gathering is None:
            return super().standing(delivery)
        return f"waits for {gathering.left} answers to request {gathering.order.request_id}"

    def reset(self) -> None:
        """Begin anew; orders that are not given up stand."""
        given_up = self.machine.given_up
        self.gatherings = {each: found for each, found in self.gatherings.items() if each not in given_up}
        super().reset()
