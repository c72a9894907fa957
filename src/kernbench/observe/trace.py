"""Timeline of a run: tracks with spans, and arrows from the departure of each message to its arrival."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field

from kernbench.common.collector import patient_collector
from kernbench.common.ids import HOST as HOST_PART
from kernbench.common.ids import pe_name, pe_part
from kernbench.common.units import PS_PER_NS, ns_to_ps, ps_to_ns
from kernbench.common.values import state
from kernbench.core.clock import NEVER
from kernbench.core.log import CAUSE, END, LAUNCH, LINE, PART, READ, WHAT, Row
from kernbench.core.observed import Carries
from kernbench.engine.hooks import QueueWaited
from kernbench.engine.passed_launches import PassedLaunches
from kernbench.engine.requests import RequestHandle
from kernbench.messages.control import PeOrder, PeReport, Report
from kernbench.messages.requests import PeCoord
from kernbench.observe.energy import EnergyCounts, die_of, name_die
from kernbench.observe.energy_events import choose_window_ns, measure_power
from kernbench.observe.trace_filter import (
    CONTROL,
    CPU,
    ENGINE_KINDS,
    HOST,
    LINKS,
    MEMORY,
    PES,
    POWER,
    WAITS,
    TraceFilter,
)
from kernbench.observe.trace_log import LogView, TraceLog
from kernbench.observe.trace_model import Counter, Fact, MessageArrow, Trace, Track, TrackGroup, TrackSpan
from kernbench.observe.trace_queues import QueueMessage
from kernbench.observe.works import EngineWork
from kernbench.topology.graph import Graph

IPCQ = "ipcq"
# The tracks of a PE, from top to bottom: its kernels and its engines.
PE_ROWS = ("cpu", "scheduler", "DMA in", "fetch", "GEMM", "MATH", "store", "DMA out", IPCQ, "other")
# Tracks below one of these.
WAITS_ROW, SLOTS_ROW = "cpu waits", "ipcq slots"
_ORDER = {name: 2 * at for at, name in enumerate(PE_ROWS)}
_ORDER |= {WAITS_ROW: _ORDER["cpu"] + 1, SLOTS_ROW: _ORDER[IPCQ] + 1}


@patient_collector()
def make_trace(log: TraceLog, handles: Sequence[RequestHandle], keep: TraceFilter) -> Trace:
    """Return the trace of a run with the requests ``handles``, as ``log`` observed it.

    ``keep`` selects the tracks. Spans in flight at the end of the log extend to that end.
    """
    return _Maker(log, keep).make(handles)


@state
class _Maker:
    """Builds spans track by track, and the arrows whose two ends are shown.

    A span on a hidden track is None. ``kernels`` are stored by request and CPU, ``works`` and ``slots`` by row.
    ``served`` holds the spans in which memories served a transfer, by its number.
    """

    log: TraceLog
    keep: TraceFilter
    trace: Trace = field(default_factory=Trace)
    tracks: dict[tuple[TrackGroup, str], Track] = field(default_factory=dict)
    requests: dict[int, TrackSpan | None] = field(default_factory=dict)
    kernels: dict[tuple[int, str], TrackSpan | None] = field(default_factory=dict)
    works: dict[Row, TrackSpan | None] = field(default_factory=dict)
    names: dict[Row, str] = field(default_factory=dict)
    served: dict[int, list[TrackSpan]] = field(default_factory=dict)
    slots: dict[Row, TrackSpan | None] = field(default_factory=dict)

    @property
    def snapshot(self) -> LogView:
        """The observed run."""
        return self.log.seen

    @property
    def graph(self) -> Graph:
        """The components of the machine."""
        return self.log.machine.graph

    def make(self, handles: Sequence[RequestHandle]) -> Trace:
        """Build all spans and arrows."""
        for handle in handles:
            self.requests[handle.request_id] = self._request(handle)
            for report in _kernels(handle):
                self.kernels[handle.request_id, pe_part(*report.pe, "pe_cpu")] = self._kernel(handle, report)
        for work in self.snapshot.each_work():
            self.names[work.row] = _name(work)
            self.works[work.row] = self._work(work)
        self._memories()
        self._links()
        for number, turns in self.served.items():
            self._connect_access(number, turns)
        for message in self.log.queues.messages.values():
            self.slots[message.row] = self._slot(message)
            self._connect_message(message)
        for wait in self.log.queues.waits:
            self._connect_wait(wait, self._wait(wait))
        for row in self.snapshot.fences:
            self._fence(row)
        self._control()
        self._power()
        return self.trace

    def _power(self) -> None:
        """Add a counter of the dynamic power of each die that did something."""
        view, energy = self.snapshot, self.log.machine.spec.energy
        if energy is None or not self.keep.may_keep(POWER) or not len(view.transfers.of):
            return
        counts = EnergyCounts(self.log.machine, energy, view.columns)
        curve = measure_power(counts, view, choose_window_ns(view))
        window_ps = ns_to_ps(curve.window_ns)
        for die, watts in curve.watts.items():
            nodes = [node for node in self.graph.nodes.values() if die_of(node) == die][:1]
            if watts.any() and die is not None and self.keep.keeps((POWER,), tuple(node.id for node in nodes)):
                samples = tuple((at * window_ps, number) for at, number in enumerate(watts.tolist()))
                self.trace.counters.append(Counter(f"dynamic power of {name_die(die)}", "W", samples))

    def _track(self, place: TrackGroup, row: str, order: int, kinds: tuple[str, ...], *nodes: str) -> Track | None:
        """Return a track, created at its first use; None if the filter hides it."""
        track = self.tracks.get((place, row))
        if track is None:
            track = self.tracks[place, row] = Track(place, row, order, self.keep.keeps(kinds, nodes))
        return track if track.shown else None

    def _span(self, track: Track | None, span: TrackSpan) -> TrackSpan | None:
        if track is None:
            return None
        span.end_ps = min(span.end_ps, self.log.machine.clock.time)
        span.track = track
        self.trace.spans.append(span)
        return span

    def _request(self, handle: RequestHandle) -> TrackSpan | None:
        kind = type(handle.msg).__name__.removesuffix("Msg")
        track = self._track(TrackGroup("host"), "requests", 0, (HOST,), "host")
        name = f"{kind} {title_of(handle, self.log.machine.passed)}".strip()
        queued_ps = handle.begun_ps - handle.submitted_ps
        facts = (("request", handle.request_id), *((("queued_ns", ps_to_ns(queued_ps)),) if queued_ps else ()))
        return self._span(track, TrackSpan(name, handle.begun_ps, handle.ended_ps, facts))

    def _kernel(self, handle: RequestHandle, report: PeReport) -> TrackSpan | None:
        node = pe_part(*report.pe, "pe_cpu")
        track = self._track(self._place(node), "cpu", 0, (PES, CPU), node)
        facts = (("request", handle.request_id), ("late", report.late))
        return self._span(track, TrackSpan(handle.msg.title, report.start_ps, report.end_ps, facts))

    def _work(self, work: EngineWork) -> TrackSpan | None:
        kind = ENGINE_KINDS.get(work.engine, work.engine)
        track = self._track(self._place(work.node), work.engine, _ORDER[work.engine], (PES, kind), work.node)
        facts = (("line", work.line), ("kernel", work.kernel), ("launch", work.launch_id))
        message = self.log.queues.messages.get(self.snapshot.row_in_run(work.row))
        if message is None:
            return self._span(track, TrackSpan(_name(work), work.start_ps, work.end_ps, facts))
        name = f"send {message.direction} #{message.sequence}"
        about = _about(message, message.direction, message.peer)
        return self._span(track, TrackSpan(name, work.start_ps, work.end_ps, (*about, *facts)))

    def _slot(self, message: QueueMessage) -> TrackSpan | None:
        """Add a message in its slot, from its arrival until the kernel frees the slot."""
        if message.arrived_ps == NEVER:
            return None
        node = pe_part(*message.peer, "pe_ipcq")
        track = self._track(self._place(node), SLOTS_ROW, _ORDER[SLOTS_ROW], (PES, IPCQ), node)
        name = f"{message.queue} #{message.sequence}"
        facts = _about(message, message.queue, message.pe)
        return self._span(track, TrackSpan(name, message.arrived_ps, message.released_ps, facts))

    def _wait(self, wait: QueueWaited) -> TrackSpan | None:
        """Add the wait of a kernel for a queue."""
        node = pe_part(*wait.pe, "pe_cpu")
        track = self._track(self._place(node), WAITS_ROW, _ORDER[WAITS_ROW], (PES, CPU, WAITS), node)
        subject = "slot" if wait.kind == "send" else "message"
        facts = (("line", wait.line), ("kernel", wait.kernel), ("launch", wait.launch_id))
        return self._span(track, TrackSpan(f"{subject} of {wait.direction}", wait.start_ps, wait.end_ps, facts))

    def _fence(self, row: Row) -> None:
        """Add the wait of a kernel for its writes."""
        log = self.snapshot.log
        begin, end = log.rows[row + READ], log.rows[row + END]
        if end == begin:
            return
        node, launch = log.parts[log.rows[row + PART]], log.rows[row + LAUNCH]
        track = self._track(self._place(node), WAITS_ROW, _ORDER[WAITS_ROW], (PES, CPU, WAITS), node)
        facts = (("line", log.rows[row + LINE]), ("kernel", log.kernels[launch]), ("launch", launch))
        self._span(track, TrackSpan("fence", begin, NEVER if end < 0 else end, facts))

    def _memories(self) -> None:
        """Add a span for each grant of a memory."""
        place, snapshot = TrackGroup("memories", 1), self.snapshot
        for number, memory, start, end in zip(*(column.tolist() for column in snapshot.turns[:4]), strict=True):
            node = snapshot.columns.parts[memory]
            way = "read" if snapshot.transfers.what[number] == Carries.REQUEST else "write"
            tcm = self.graph.node(node).kind == "pe_dma"  # the DMA represents the PE's TCM, which has two ports
            track = self._track(place, f"{node} TCM {way}" if tcm else node, 0, (MEMORY,), node)
            name = f"{way} {self.names.get(snapshot.row_of(number), '')}".rstrip()
            span = self._span(track, TrackSpan(name, start, end))
            if span is not None:
                self.served.setdefault(number, []).append(span)

    def _links(self) -> None:
        edges, place = self.graph.edges, TrackGroup("links", 2)
        for transfer, link, start, end, nbytes in zip(
            *(column.tolist() for column in self.snapshot.tables.carried()), strict=True
        ):
            edge = edges[link]
            track = self._track(place, f"{edge.src} → {edge.dst}", link, (LINKS,), edge.src, edge.dst)
            self._span(track, TrackSpan(f"{nbytes} B", start, end, (("transfer", transfer),)))

    def _connect_access(self, number: int, turns: list[TrackSpan]) -> None:
        """Add the arrows from a work to the memory, and back."""
        work, first, last = self.works.get(self.snapshot.row_of(number)), turns[0], turns[-1]
        if work is None:
            return
        transfer, answer = self.snapshot.tables.transfer(number), self.snapshot.answer(number)
        leaves = max(work.start_ps, transfer.start)
        reading = transfer.what == Carries.REQUEST
        self._add("request" if reading else "data", work, leaves, first, max(leaves, first.start_ps))
        if answer is not None and answer.end >= 0 and reading:
            self._add("data", first, first.start_ps, work, answer.end)
        elif answer is not None and answer.end >= 0 and transfer.what == Carries.WRITE:
            self._add("acknowledgement", last, last.end_ps, work, answer.end)

    def _connect_message(self, message: QueueMessage) -> None:
        """Add the arrow from a send to its slot, and that of the doorbell which a memory beside the receiver sends."""
        slot, sent = self.slots.get(message.row), self.works.get(self.snapshot.find_row(message.row))
        if slot is None:
            return
        number = self._find_send(message)
        if number is not None:
            doorbell, turns = self.snapshot.answer(number), self.served.get(number)
            if sent is not None:
                self._add("message", sent, self.snapshot.tables.transfer(number).start, slot, message.arrived_ps)
            if doorbell is not None and turns:
                self._add("doorbell", turns[-1], doorbell.start, slot, message.arrived_ps)

    def _find_send(self, message: QueueMessage) -> int | None:
        """Return the number of the transfer of a message, None before it departs."""
        send = self.snapshot.send_of.get(self.snapshot.find_row(message.row))
        return None if send is None else next(iter(self.snapshot.asked_by.get(send, ())), None)

    def _connect_wait(self, wait: QueueWaited, span: TrackSpan | None) -> None:
        """Add the arrow that ends a wait: from the send of the message, or from the slot that became free."""
        if span is None:
            return
        if wait.kind == "recv":
            for message in self.log.queues.arrivals.get((wait.pe, wait.end_ps), ()):
                sent = self.works.get(self.snapshot.find_row(message.row)) if message.queue == wait.direction else None
                number = self._find_send(message)
                if sent is not None and number is not None:
                    self._add("message", sent, self.snapshot.tables.transfer(number).start, span, wait.end_ps)
            return
        credit = self.log.queues.credit_before((wait.pe, wait.direction), wait.start_ps, wait.end_ps)
        freed = None if credit is None else self.log.queues.released.get((credit.pe, credit.direction, credit.time_ps))
        slot = None if freed is None else self.slots.get(freed.row)
        if credit is not None and credit.credited_ps is not None and slot is not None:
            self._add("credit", slot, credit.time_ps, span, credit.credited_ps)

    def _control(self) -> None:
        """Add the spans of CPUs on messages of the control path, each with its arrow.

        The message that a CPU sends at the end of a span has that span as its cause.
        """
        log = self.snapshot.log
        handled: dict[Row, TrackSpan | None] = {}
        ended = [row for row in self.snapshot.control_of if log.rows[row + END] >= 0]
        for row in sorted(ended, key=lambda row: log.rows[row + END]):
            transfer = self.snapshot.tables.transfer(self.snapshot.control_of[row])
            name, request, end = str(log.whats[log.rows[row + WHAT]]), log.rows[row + LAUNCH], log.rows[row + END]
            src, dst = log.parts[transfer.src], log.parts[transfer.dst]
            cpu = self.log.machine.component(dst)
            begun = end - cpu.overhead_ps if cpu.handles_serially else transfer.end
            if begun < end:  # a CPU without overhead has no span
                track = self._track(self._place(dst), self.graph.node(dst).kind, 0, (CONTROL,), dst)
                handled[row] = self._span(track, TrackSpan(name, begun, end))
            if src == HOST_PART:
                sender = self.requests.get(request)
            else:
                sender = handled.get(log.rows[row + CAUSE]) or self.kernels.get((request, src))
            kernel, receiver = self.kernels.get((request, dst)), handled.get(row)
            if receiver is None:
                at_host = dst == HOST_PART and name == Report.__name__
                receiver = self.requests.get(request) if at_host else kernel
            if sender is None or receiver is None:
                continue
            arrives = transfer.end if dst == HOST_PART else max(begun, receiver.start_ps)
            if name == PeOrder.__name__ and receiver is kernel:  # a launch order waits for the kernel's start
                arrives = receiver.start_ps
            self._add(name, sender, transfer.start, receiver, arrives)

    def _add(self, name: str, src: TrackSpan, leaves: int, dst: TrackSpan, arrives: int) -> None:
        """Add an arrow, with both ends moved into their spans."""
        self.trace.flows.append(MessageArrow(name, src, _within(src, leaves), dst, _within(dst, arrives)))

    def _place(self, node_id: str) -> TrackGroup:
        node = self.graph.node(node_id)
        if node.sip is None:
            return TrackGroup(node_id)
        at = tuple(-1 if part is None else part for part in (node.sip, node.cube, node.pe))
        return TrackGroup(process_of((node.sip, node.cube, node.pe)), 0, at)


def process_of(place: tuple[int | None, ...]) -> str:
    """Return the process name of a SIP, of a cube or of a PE: ``SIP 0, cube 1, PE 2``."""
    named = zip(("SIP", "cube", "PE"), place, strict=True)
    return ", ".join(f"{label} {number}" for label, number in named if number is not None)


def title_of(handle: RequestHandle, passed: PassedLaunches) -> str:
    """Return the title of a request, marked if it is a launch without rows: it passed, or its rows are folded."""
    if handle.request_id in passed.folded:
        return f"{handle.msg.title} (folded)"
    return f"{handle.msg.title} (passed)" if handle.request_id in passed.launches else handle.msg.title


def _about(message: QueueMessage, direction: str, peer: PeCoord) -> tuple[Fact, ...]:
    """Return the facts of a message, as seen from one of its ends."""
    return (
        ("direction", direction),
        ("sequence", message.sequence),
        ("bytes", message.nbytes),
        ("peer", pe_name(peer)),
        ("slot", f"{message.pa:#x}"),
    )


def _name(work: EngineWork) -> str:
    """Return the name of a work, with its tile."""
    return work.name if work.tile is None else f"{work.name} {','.join(map(str, work.tile))}"


def _kernels(handle: RequestHandle) -> Iterator[PeReport]:
    """Return the reports of the PEs that ran a kernel for a request."""
    reports: Iterable[PeReport] = handle.outcome.reports if handle.outcome is not None else ()
    return (report for report in reports if 0 < report.end_ps < NEVER)


def _within(span: TrackSpan, when: int) -> int:
    """Return ``when``, moved into ``span``. Viewers round to whole ns, and a span excludes its end."""
    return max(span.start_ps, min(when, span.end_ps - PS_PER_NS))
