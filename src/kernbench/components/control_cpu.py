"""CPUs that forward orders to several components below them and gather the answers: io_cpu and m_cpu."""

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
    """An order in flight: the number of missing answers, and the answers so far."""

    order: SipOrder | CubeOrder
    left: int
    pes: list[PeReport] = field(default_factory=list)
    error: Exception | None = None

    @property
    def failed(self) -> bool:
        """True if a component below has failed."""
        return self.error is not None or any(pe.error is not None for pe in self.pes)


class ControlCpu(ThinkingPart):
    """A CPU that handles messages one after another, each for ``handling_ns``."""

    def __init__(self, node: Node, machine: Machine) -> None:
        super().__init__(node, machine)
        self.gatherings: dict[int, Gathering] = {}
        self._handling_ns = ps_to_ns(self.overhead_ps)

    @property
    def handles_serially(self) -> bool:
        """Return True: the overhead occupies the CPU, not the link."""
        return True

    def run(self) -> Behaviour:
        """Handle messages in arrival order: act on a message when its handling time is over."""
        while True:
            message = yield self.inbox.get()
            handling_ns = self.handling_ns(message)
            if handling_ns:
                yield self.wait_ns(handling_ns)
            self.handle(message)

    def handling_ns(self, message: object) -> float:
        """Return the time in ns that the CPU spends on a message before acting on it: ``overhead_ns``."""
        return self._handling_ns

    def handle(self, message: object) -> None:
        """Act on a message: send all resulting messages at once. Raises UnsupportedError for an unknown type."""
        raise UnsupportedError(f"{self.node.id} cannot take a {type(message).__name__}")

    def gather(self, order: SipOrder | CubeOrder, expected: int) -> None:
        """Expect ``expected`` reports on a forwarded order."""
        self.gatherings[order.request_id] = Gathering(order, expected)

    def collect(self, report: Report) -> None:
        """Collect a report from below. The last report completes the answer."""
        gathering = self.add_report(report)
        if gathering is not None:
            self.answer(gathering.order, pes=tuple(gathering.pes), error=gathering.error)

    def add_report(self, report: Report) -> Gathering | None:
        """Add a report from below. Return the order with all its reports if this is the last one."""
        gathering = self.gatherings[report.request_id]
        gathering.pes += report.pes
        gathering.error = gathering.error or report.error
        gathering.left -= 1
        if gathering.left:
            return None
        del self.gatherings[report.request_id]
        return gathering

    def failures(self) -> tuple[tuple[int, PeReport], ...]:
        """Return the collected failures of requests that still wait for other PEs."""
        return tuple(
            (request_id, pe) for request_id, g in self.gatherings.items() for pe in g.pes if pe.error is not None
        )

    def standing(self, delivery: Delivery) -> str:
        """Return the number of missing answers to a forwarded order, as text."""
        order = delivery.message
        gathering = self.gatherings.get(order.request_id) if isinstance(order, SipOrder | CubeOrder) else None
        if gathering is None:
            return super().standing(delivery)
        return f"waits for {gathering.left} answers to request {gathering.order.request_id}"

    def reset(self) -> None:
        """Reset the CPU, but keep the orders of requests that were not abandoned."""
        given_up = self.machine.given_up
        self.gatherings = {
            request_id: gathering for request_id, gathering in self.gatherings.items() if request_id not in given_up
        }
        super().reset()
