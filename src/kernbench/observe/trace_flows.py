"""The arrows of a timeline: from the span in which a message leaves to the span in which it arrives."""

from __future__ import annotations

from dataclasses import field

from kernbench.common.ids import HOST
from kernbench.common.units import PS_PER_NS
from kernbench.common.values import state
from kernbench.core.log import Row
from kernbench.core.observed import Carries
from kernbench.engine.hooks import QueueWaited
from kernbench.messages.control import PeOrder, Report
from kernbench.observe.trace_log import Handled, Seen, TraceLog
from kernbench.observe.trace_model import MessageArrow, Trace, TrackSpan
from kernbench.observe.trace_queues import QueueMessage


@state
class FlowMaker:
    """Is given every span, None for those that are not shown, and adds the flows whose two ends are.

    ``sending`` has, by node and request, the spans in which a CPU works on a message: what leaves at the end of one
    was caused by it.
    """

    log: TraceLog
    trace: Trace
    requests: dict[int, TrackSpan | None] = field(default_factory=dict)
    kernels: dict[tuple[int, str], TrackSpan | None] = field(default_factory=dict)
    works: dict[Row, TrackSpan | None] = field(default_factory=dict)
    served: dict[int, list[TrackSpan]] = field(default_factory=dict)
    slots: dict[Row, TrackSpan | None] = field(default_factory=dict)
    waits: list[tuple[QueueWaited, TrackSpan | None]] = field(default_factory=list)
    handled: list[tuple[Handled, TrackSpan | None]] = field(default_factory=list)

    @property
    def seen(self) -> Seen:
        """The run as seen by its log."""
        return self.log.seen

    def note_turn(self, asked: int, span: TrackSpan | None) -> None:
        """The span of a turn of a memory for what transfer ``asked`` asked for."""
        if span is not None:
            self.served.setdefault(asked, []).append(span)

    def make(self) -> None:
        """Add the flows."""
        for asked, turns in self.served.items():
            work = self.works.get(self.seen.row_of(asked))
            if work is not None:
                self._of_access(asked, turns[0], turns[-1], work)
        for message in self.log.queues.messages.values():
            self._of_message(message)
        for wait, span in self.waits:
            if span is not None:
                self._of_wait(wait, span)
        self._of_control()

    def _of_access(self, number: int, first: TrackSpan, last: TrackSpan, work: TrackSpan) -> None:
        """To the memory, and back."""
        asked, answer = self.seen.tables.transfer(number), self.seen.answer(number)
        leaves = max(work.start_ps, asked.start)
        reading = asked.what == Carries.REQUEST
        self._add("request" if reading else "data", work, leaves, first, max(leaves, first.start_ps))
        if answer is not None and answer.end >= 0 and reading:
            self._add("data", first, first.start_ps, work, answer.end)
        elif answer is not None and answer.end >= 0 and asked.what == Carries.WRITE:
            self._add("acknowledgement", last, last.end_ps, work, answer.end)

    def _of_message(self, message: QueueMessage) -> None:
        """From the send to the slot; a memory beside the receiver rings its doorbell."""
        slot, sent = self.slots.get(message.row), self.works.get(message.row)
        if slot is None:
            return
        asked = self._find_send(message)
        if asked is not None:
            doorbell, turns = self.seen.answer(asked), self.served.get(asked)
            if sent is not None:
                self._add("message", sent, self.seen.tables.transfer(asked).start, slot, message.arrived_ps)
            if doorbell is not None and turns:
                self._add("doorbell", turns[-1], doorbell.start, slot, message.arrived_ps)

    def _find_send(self, message: QueueMessage) -> int | None:
        """The transfer of a message; None before it is on its way."""
        send = self.seen.send_of.get(message.row)
        return None if send is None else next(iter(self.seen.asked_by.get(send, ())), None)

    def _of_wait(self, wait: QueueWaited, span: TrackSpan) -> None:
        """From what a wait ended by: the send of the message, or the slot that was given back."""
        if wait.kind == "recv":
            for message in self.log.queues.arrivals.get((wait.pe, wait.end_ps), ()):
                sent = self.works.get(message.row) if message.queue == wait.direction else None
                asked = self._find_send(message)
                if sent is not None and asked is not None:
                    self._add("message", sent, self.seen.tables.transfer(asked).start, span, wait.end_ps)
            return
        credit = self.log.queues.credit_before((wait.pe, wait.direction), wait.start_ps, wait.end_ps)
        freed = None if credit is None else self.log.queues.released.get((credit.pe, credit.direction, credit.time_ps))
        slot = None if freed is None else self.slots.get(freed.row)
        if credit is not None and credit.credited_ps is not None and slot is not None:
            self._add("credit", slot, credit.time_ps, span, credit.credited_ps)

    def _of_control(self) -> None:
        """Every message goes from the span that its sender was in when it left."""
        left = {(each.dst, each.request_id, each.handled_ps): span for each, span in self.handled if span is not None}
        for each, span in self.handled:
            src = self._sender(each, left)
            dst = span if span is not None else self._receiver(each)
            if src is not None and dst is not None:
                self._add(each.name, src, each.sent_ps, dst, self._arrival(each, dst))

    def _sender(self, each: Handled, left: dict[tuple[str, int, int], TrackSpan]) -> TrackSpan | None:
        if each.src == HOST:
            return self.requests.get(each.request_id)
        found = left.get((each.src, each.request_id, each.sent_ps))
        return found if found is not None else self.kernels.get((each.request_id, each.src))

    def _receiver(self, each: Handled) -> TrackSpan | None:
        """Find the span in which a message arrives whose handling takes no time."""
        if each.dst == HOST and each.name == Report.__name__:
            return self.requests.get(each.request_id)
        return self.kernels.get((each.request_id, each.dst))

    def _arrival(self, each: Handled, dst: TrackSpan) -> int:
        """Find the time when it is there: an order waits for the kernel's start."""
        if each.name == PeOrder.__name__ and dst is self.kernels.get((each.request_id, each.dst)):
            return dst.start_ps
        return each.delivered_ps if each.dst == HOST else max(each.begun_ps, dst.start_ps)

    def _add(self, name: str, src: TrackSpan, leaves: int, dst: TrackSpan, arrives: int) -> None:
        """A flow; both ends are drawn within their spans."""
        self.trace.flows.append(MessageArrow(name, src, _within(src, leaves), dst, _within(dst, arrives)))


def _within(span: TrackSpan, when: int) -> int:
    """``when``, or a moment within ``span``. Readers keep whole ns, and a span is over at its end."""
    return max(span.start_ps, min(when, span.end_ps - PS_PER_NS))
