"""A run as a timeline: tracks with spans on them, and arrows from where a message leaves to where it arrives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field

from kernbench.common.collector import patient_collector
from kernbench.common.ids import pe_name, pe_part
from kernbench.common.values import state
from kernbench.core.clock import NEVER
from kernbench.core.log import END, LAUNCH, LINE, PART, READ, Row
from kernbench.core.observed import Carries
from kernbench.engine.hooks import QueueWaited
from kernbench.engine.requests import RequestHandle
from kernbench.messages.control import PeReport
from kernbench.messages.requests import PeCoord
from kernbench.observe.trace_filter import (
    CONTROL,
    CPU,
    ENGINE_KINDS,
    HOST,
    LINKS,
    MEMORY,
    PES,
    WAITS,
    TraceFilter,
)
from kernbench.observe.trace_flows import FlowMaker
from kernbench.observe.trace_log import Handled, Seen, TraceLog
from kernbench.observe.trace_model import Fact, Trace, Track, TrackGroup, TrackSpan
from kernbench.observe.trace_queues import QueueMessage
from kernbench.observe.works import EngineWork
from kernbench.topology.graph import Graph

IPCQ = "ipcq"
# The rows of a PE, from top to bottom: its kernels and its engines.
PE_ROWS = ("cpu", "scheduler", "DMA in", "fetch", "GEMM", "MATH", "store", "DMA out", IPCQ, "other")
# Rows below one of these.
WAITS_ROW, SLOTS_ROW = "cpu waits", "ipcq slots"
_ORDER = {name: 2 * at for at, name in enumerate(PE_ROWS)}
_ORDER |= {WAITS_ROW: _ORDER["cpu"] + 1, SLOTS_ROW: _ORDER[IPCQ] + 1}


@patient_collector()
def make_trace(log: TraceLog, handles: Sequence[RequestHandle], keep: TraceFilter) -> Trace:
    """Make a trace of what ``log`` has seen of a run with the requests ``handles``, on the tracks that ``keep`` leaves.

    What was still under way at the end is shown up to then.
    """
    return _Maker(log, keep).make(handles)


@state
class _Maker:
    """Makes spans track by track, then the flows between them."""

    log: TraceLog
    keep: TraceFilter
    trace: Trace = field(default_factory=Trace)
    tracks: dict[tuple[TrackGroup, str], Track] = field(default_factory=dict)

    @property
    def seen(self) -> Seen:
        """The run as seen by its log."""
        return self.log.seen

    @property
    def graph(self) -> Graph:
        """The machine's parts."""
        return self.log.machine.graph

    def make(self, handles: Sequence[RequestHandle]) -> Trace:
        """Everything."""
        flows = FlowMaker(self.log, self.trace)
        for handle in handles:
            flows.requests[handle.request_id] = self._request(handle)
            for report in _kernels(handle):
                flows.kernels[handle.request_id, pe_part(*report.pe, "pe_cpu")] = self._kernel(handle, report)
        for work in self.seen.each_work():
            flows.works[work.row] = self._work(work)
        for message in self.log.queues.messages.values():
            flows.slots[message.row] = self._slot(message)
        for wait in self.log.queues.waits:
            flows.waits.append((wait, self._wait(wait)))
        for row in self.seen.fences:
            self._fence(row)
        for each in self.seen.control():
            flows.handled.append((each, self._control(each)))
        self._memories(flows)
        self._links()
        flows.make()
        return self.trace

    def _track(self, place: TrackGroup, row: str, order: int, kinds: tuple[str, ...], *nodes: str) -> Track | None:
        """The track, made when it is first used; None when it is filtered out."""
        found = self.tracks.get((place, row))
        if found is None:
            found = self.tracks[place, row] = Track(place, row, order, self.keep.keeps(kinds, nodes))
        return found if found.kept else None

    def _span(self, track: Track | None, span: TrackSpan) -> TrackSpan | None:
        if track is None:
            return None
        span.end_ps = min(span.end_ps, self.log.machine.clock.time)
        span.track = track
        self.trace.spans.append(span)
        return span

    def _request(self, handle: RequestHandle) -> TrackSpan | None:
        what = type(handle.msg).__name__.removesuffix("Msg")
        track = self._track(TrackGroup("host"), "requests", 0, (HOST,), "host")
        name = f"{what} {handle.msg.title}".strip()
        facts = (("request", handle.request_id),)
        return self._span(track, TrackSpan(name, handle.submitted_ps, handle.ended_ps, facts))

    def _kernel(self, handle: RequestHandle, report: PeReport) -> TrackSpan | None:
        node = pe_part(*report.pe, "pe_cpu")
        track = self._track(self._place(node), "cpu", 0, (PES, CPU), node)
        facts = (("request", handle.request_id), ("late", report.late))
        return self._span(track, TrackSpan(handle.msg.title, report.start_ps, report.end_ps, facts))

    def _work(self, work: EngineWork) -> TrackSpan | None:
        kind = ENGINE_KINDS.get(work.engine, work.engine)
        track = self._track(self._place(work.node), work.engine, _ORDER[work.engine], (PES, kind), work.node)
        facts = (("line", work.line), ("kernel", work.kernel), ("launch", work.launch_id))
        message = self.log.queues.messages.get(work.row)
        if message is None:
            return self._span(track, TrackSpan(_name(work), work.start_ps, work.end_ps, facts))
        name = f"send {message.direction} #{message.sequence}"
        about = _about(message, message.direction, message.peer)
        return self._span(track, TrackSpan(name, work.start_ps, work.end_ps, (*about, *facts)))

    def _slot(self, message: QueueMessage) -> TrackSpan | None:
        """A message in its slot, from its arrival until the kernel has done with it."""
        if message.arrived_ps == NEVER:
            return None
        node = pe_part(*message.peer, "pe_ipcq")
        track = self._track(self._place(node), SLOTS_ROW, _ORDER[SLOTS_ROW], (PES, IPCQ), node)
        name = f"{message.queue} #{message.sequence}"
        facts = _about(message, message.queue, message.pe)
        return self._span(track, TrackSpan(name, message.arrived_ps, message.released_ps, facts))

    def _wait(self, wait: QueueWaited) -> TrackSpan | None:
        """A kernel waits for a queue."""
        node = pe_part(*wait.pe, "pe_cpu")
        track = self._track(self._place(node), WAITS_ROW, _ORDER[WAITS_ROW], (PES, CPU, WAITS), node)
        what = "slot" if wait.kind == "send" else "message"
        facts = (("line", wait.line), ("kernel", wait.kernel), ("launch", wait.launch_id))
        return self._span(track, TrackSpan(f"{what} of {wait.direction}", wait.start_ps, wait.end_ps, facts))

    def _fence(self, row: Row) -> None:
        """A kernel waits for what it has written."""
        log = self.log.machine.log
        begin, end = log.rows[row + READ], log.rows[row + END]
        if end == begin:
            return
        node, launch = log.parts[log.rows[row + PART]], log.rows[row + LAUNCH]
        track = self._track(self._place(node), WAITS_ROW, _ORDER[WAITS_ROW], (PES, CPU, WAITS), node)
        facts = (("line", log.rows[row + LINE]), ("kernel", log.kernels[launch]), ("launch", launch))
        self._span(track, TrackSpan("fence", begin, NEVER if end < 0 else end, facts))

    def _control(self, each: Handled) -> TrackSpan | None:
        if each.handled_ps == each.begun_ps:  # a CPU that takes no time for messages has no row
            return None
        kind = self.graph.node(each.dst).kind
        track = self._track(self._place(each.dst), kind, 0, (CONTROL,), each.dst)
        return self._span(track, TrackSpan(each.name, each.begun_ps, each.handled_ps))

    def _memories(self, flows: FlowMaker) -> None:
        """One span for each turn."""
        place, seen = TrackGroup("memories", 1), self.seen
        works = {work.row: work for work in seen.each_work()}
        for asked, memory, start, end in zip(*(column.tolist() for column in seen.turns[:4]), strict=True):
            node = seen.columns.parts[memory]
            way = "read" if seen.transfers.what[asked] == Carries.REQUEST else "write"
            tcm = self.graph.node(node).kind == "pe_dma"  # behind the DMA that answers for it, with two ports
            track = self._track(place, f"{node} TCM {way}" if tcm else node, 0, (MEMORY,), node)
            work = works.get(seen.row_of(asked))
            name = way if work is None else f"{way} {_name(work)}"
            flows.note_turn(asked, self._span(track, TrackSpan(name, start, end)))

    def _links(self) -> None:
        edges, place = self.graph.edges, TrackGroup("links", 2)
        for transfer, link, start, end, nbytes in zip(
            *(column.tolist() for column in self.seen.tables.carried()), strict=True
        ):
            edge = edges[link]
            track = self._track(place, f"{edge.src} → {edge.dst}", link, (LINKS,), edge.src, edge.dst)
            self._span(track, TrackSpan(f"{nbytes} B", start, end, (("transfer", transfer),)))

    def _place(self, node_id: str) -> TrackGroup:
        node = self.graph.node(node_id)
        if node.sip is None:
            return TrackGroup(node_id)
        at = tuple(-1 if part is None else part for part in (node.sip, node.cube, node.pe))
        return TrackGroup(process_of((node.sip, node.cube, node.pe)), 0, at)


def process_of(place: tuple[int | None, ...]) -> str:
    """Return the process of a SIP, of a cube or of a PE: ``SIP 0, cube 1, PE 2``."""
    named = zip(("SIP", "cube", "PE"), place, strict=True)
    return ", ".join(f"{what} {number}" for what, number in named if number is not None)


def _about(message: QueueMessage, direction: str, peer: PeCoord) -> tuple[Fact, ...]:
    """List the facts of a message, seen from one of its ends."""
    return (
        ("direction", direction),
        ("sequence", message.sequence),
        ("bytes", message.nbytes),
        ("peer", pe_name(peer)),
        ("slot", f"{message.pa:#x}"),
    )


def _name(work: EngineWork) -> str:
    """Name a work, and its tile."""
    return work.name if work.tile is None else f"{work.name} {','.join(map(str, work.tile))}"


def _kernels(handle: RequestHandle) -> Iterator[PeReport]:
    """The PEs that ran a kernel for a request."""
    reports: Iterable[PeReport] = handle.outcome.reports if handle.outcome is not None else ()
    return (report for report in reports if 0 < report.end_ps < NEVER)
