"""The arrows of a timeline: from the span in which a message leaves to the span in which it arrives."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernbench.common.ids import HOST, pe_part
from kernbench.common.units import PS_PER_NS
from kernbench.core.clock import NEVER
from kernbench.core.log import Row
from kernbench.engine.hooks import MemoryServed, QueueWaited
from kernbench.messages.control import PeOrder, Report
from kernbench.messages.fabric import QueueData
from kernbench.messages.requests import PeCoord
from kernbench.observe.trace_log import Exchange, Handled, Seen, TraceLog
from kernbench.observe.trace_model import Flow, Span, Trace
from kernbench.observe.trace_queues import Message
from kernbench.observe.works import Work


@dataclass(slots=True)
class FlowMaker:
    """Is told every span, and adds the flows whose two ends are shown.

    ``sending`` has, by node and request, the spans in which a CPU works on a message: what leaves at the end of one
    was caused by it.
    """

    log: TraceLog
    trace: Trace
    requests: dict[int, Span] = field(default_factory=dict)
    kernels: dict[tuple[int, str], Span] = field(default_factory=dict)
    works: dict[Row, Span] = field(default_factory=dict)
    served: dict[tuple[int, str], list[Span]] = field(default_factory=dict)
    slots: dict[Row, Span] = field(default_factory=dict)
    waits: list[tuple[QueueWaited, Span]] = field(default_factory=list)
    handled: list[tuple[Handled, Span | None]] = field(default_factory=list)

    @property
    def seen(self) -> Seen:
        """What the run did."""
        return self.log.seen

    def note_request(self, request_id: int, span: Span | None) -> None:
        """The span of a request."""
        if span is not None:
            self.requests[request_id] = span

    def note_kernel(self, request_id: int, pe: PeCoord, span: Span | None) -> None:
        """The span of a kernel on a PE."""
        if span is not None:
            self.kernels[request_id, pe_part(*pe, "pe_cpu")] = span

    def note_work(self, work: Work, span: Span | None) -> None:
        """The span of what an engine did."""
        if span is not None:
            self.works[work.row] = span

    def note_slot(self, message: Message, span: Span | None) -> None:
        """The span of a message in its slot."""
        if span is not None:
            self.slots[message.row] = span

    def note_wait(self, wait: QueueWaited, span: Span | None) -> None:
        """The span in which a kernel waits for a queue."""
        if span is not None:
            self.waits.append((wait, span))

    def note_turn(self, turn: MemoryServed, span: Span | None) -> None:
        """The span of a turn of a memory."""
        if span is not None:
            self.served.setdefault((turn.op, turn.node), []).append(span)

    def note_control(self, handled: Handled, span: Span | None) -> None:
        """The span in which a CPU works on a message."""
        self.handled.append((handled, span))

    def make(self) -> None:
        """Add the flows."""
        for op, exchanges in self.seen.exchanges.items():
            span = self.works.get(self.log.row_of[op])
            if span is not None:
                for exchange in exchanges:
                    self._of_exchange(op, exchange, span)
        for message in self.log.queues.messages.values():
            self._of_message(message)
        for wait, span in self.waits:
            self._of_wait(wait, span)
        self._of_control()

    def _of_exchange(self, op: int, exchange: Exchange, work: Span) -> None:
        """To the memory, and back."""
        turns = self.served.get((op, exchange.node))
        if not turns:
            return
        first, last = turns[0], turns[-1]
        asked, answered = exchange.asked, exchange.answered
        leaves = max(work.start_ps, asked.injected_ps)
        self._add("data" if exchange.writing else "request", work, leaves, first, max(leaves, first.start_ps))
        if answered is not None and answered.delivered_ps < NEVER and not isinstance(asked.arg, QueueData):
            name = "acknowledgement" if exchange.writing else "data"
            left = last.end_ps if exchange.writing else first.start_ps
            self._add(name, last if exchange.writing else first, left, work, answered.delivered_ps)

    def _of_message(self, message: Message) -> None:
        """From the send to the slot; a memory beside the receiver rings its doorbell."""
        slot, sent = self.slots.get(message.row), self.works.get(message.row)
        if slot is None:
            return
        op = self.seen.op_of[message.row]
        (exchange,) = self.seen.exchanges[op]
        if sent is not None:
            self._add("message", sent, exchange.asked.injected_ps, slot, message.arrived_ps)
        turns = self.served.get((op, exchange.node))
        if exchange.answered is not None and turns:
            self._add("doorbell", turns[-1], exchange.answered.injected_ps, slot, message.arrived_ps)

    def _of_wait(self, wait: QueueWaited, span: Span) -> None:
        """From what a wait ended by: the send of the message, or the slot that was given back."""
        if wait.kind == "recv":
            for message in self.log.queues.arrivals.get((wait.pe, wait.end_ps), ()):
                sent = self.works.get(message.row) if message.queue == wait.direction else None
                if sent is not None:
                    leaves = self.seen.exchanges[self.seen.op_of[message.row]][0].asked.injected_ps
                    self._add("message", sent, leaves, span, wait.end_ps)
            return
        credit = self.log.queues.credit_before((wait.pe, wait.direction), wait.start_ps, wait.end_ps)
        freed = None if credit is None else self.log.queues.released.get((credit.pe, credit.direction, credit.time_ps))
        slot = None if freed is None else self.slots.get(freed.row)
        if credit is not None and credit.credited_ps is not None and slot is not None:
            self._add("credit", slot, credit.time_ps, span, credit.credited_ps)

    def _of_control(self) -> None:
        """Every message goes from the span that its sender was in when it left."""
        left = {
            (each.dst, each.message.request_id, each.handled_ps): span
            for each, span in self.handled
            if span is not None
        }
        for each, span in self.handled:
            request_id, leaves = each.message.request_id, each.transfer.injected_ps
            src = self._sender(each, left)
            dst = span if span is not None else self._receiver(each)
            if src is not None and dst is not None:
                self._add(type(each.message).__name__, src, leaves, dst, self._arrival(each, dst, request_id))

    def _sender(self, each: Handled, left: dict[tuple[str, int, int], Span]) -> Span | None:
        request_id = each.message.request_id
        if each.src == HOST:
            return self.requests.get(request_id)
        found = left.get((each.src, request_id, each.transfer.injected_ps))
        return found if found is not None else self.kernels.get((request_id, each.src))

    def _receiver(self, each: Handled) -> Span | None:
        """Where a message arrives whose handling takes no time."""
        request_id = each.message.request_id
        if each.dst == HOST and isinstance(each.message, Report):
            return self.requests.get(request_id)
        return self.kernels.get((request_id, each.dst))

    def _arrival(self, each: Handled, dst: Span, request_id: int) -> int:
        """When it is there: an order waits for the kernel's start."""
        if isinstance(each.message, PeOrder) and dst is self.kernels.get((request_id, each.dst)):
            return dst.start_ps
        return each.transfer.delivered_ps if each.dst == HOST else max(each.begun_ps, dst.start_ps)

    def _add(self, name: str, src: Span, leaves: int, dst: Span, arrives: int) -> None:
        """A flow; both ends are drawn within their spans."""
        self.trace.flows.append(Flow(name, src, _within(src, leaves), dst, _within(dst, arrives)))


def _within(span: Span, when: int) -> int:
    """``when``, or a moment within ``span``. Readers keep whole ns, and a span is over at its end."""
    return max(span.start_ps, min(when, span.end_ps - PS_PER_NS))
