"""Fan-out and gathering of orders: what io_cpu and m_cpu have in common."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernbench.components.serial_cpu import SerialCpu
from kernbench.engine.machine import Machine
from kernbench.messages.control import PeReport, Report
from kernbench.topology.graph import Node


@dataclass(slots=True)
class Gathering:
    """An order under way: whom to answer, how many answers are missing, and what came back so far."""

    reply_to: str
    left: int
    pes: list[PeReport] = field(default_factory=list)
    error: Exception | None = None


class Gatherer(SerialCpu):
    """Sends orders to several parts below and answers upwards when all have answered."""

    def __init__(self, node: Node, machine: Machine) -> None:
        super().__init__(node, machine)
        self.gatherings: dict[int, Gathering] = {}

    def open(self, request_id: int, reply_to: str, expected: int) -> None:
        """Expect ``expected`` reports on a request."""
        self.gatherings[request_id] = Gathering(reply_to, expected)

    def collect(self, report: Report) -> None:
        """A report from below; the last one makes the answer."""
        gathering = self.gatherings[report.request_id]
        gathering.pes += report.pes
        gathering.error = gathering.error or report.error
        gathering.left -= 1
        if not gathering.left:
            del self.gatherings[report.request_id]
            answer = Report(request_id=report.request_id, pes=tuple(gathering.pes), error=gathering.error)
            self.tell(gathering.reply_to, answer)

    def failures(self) -> tuple[tuple[int, PeReport], ...]:
        """What has been gathered of requests whose other PEs have not answered."""
        return tuple(
            (request_id, pe) for request_id, g in self.gatherings.items() for pe in g.pes if pe.error is not None
        )

    def blocked(self) -> tuple[str, ...]:
        """Orders whose answers are missing."""
        return tuple(f"waits for {g.left} answers to request {request_id}" for request_id, g in self.gatherings.items())
