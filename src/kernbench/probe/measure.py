"""Measurement of probe cases, each on a separate engine, so that no case influences another."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from kernbench.common.errors import InputError
from kernbench.common.units import format_size, ns_to_ps
from kernbench.common.values import value
from kernbench.engine.engine import GraphEngine
from kernbench.engine.requests import RequestHandle
from kernbench.observe.statistics import link_traffic
from kernbench.probe.cases import Absent, ProbeCase, ProbeFlow, Site, StreamPlan, dma_stream, transaction
from kernbench.probe.closed_form import compute_closed_form, fair_rates_gbs
from kernbench.probe.report import Crowd, LinkLoad, NotHere, ProbeReport, Sustained, TraceRow, Transaction, trace_rows
from kernbench.topology.builder import Topology
from kernbench.topology.elaborate import elaborate

DEFAULT_BYTES = 4096
SWEEP_BYTES = tuple(4096 << step for step in range(9))
# Large enough to amortise descriptors and headers, small enough for many transactions in flight.
STREAM_BYTES = 4096
# The length of a stream in latencies: filling and emptying the pipeline is then a small share of the stream.
STREAM_LATENCIES = 40
BUSIEST_LINKS = 5


@value
class Span:
    """The time from the first request of a flow to its last completion."""

    start_ps: int
    end_ps: int

    @property
    def ps(self) -> int:
        """The length of the span in ps."""
        return self.end_ps - self.start_ps


def spread_refresh(topology: Topology) -> Topology:
    """Return the topology with ``refresh: spread`` in place of all-bank refresh; cases are measured on the result.

    The outages of all-bank refresh would lengthen transactions, and closed forms would no longer be exact.
    """
    spec = topology.spec
    if spec.cube.hbm.refresh_mode != "all-bank":
        return topology
    hbm = spec.cube.hbm.model_copy(update={"refresh": "spread"})
    cube = spec.cube.model_copy(update={"hbm": hbm})
    return Topology(elaborate(spec.model_copy(update={"cube": cube})), topology.source)


def probe_cases(
    topology: Topology, cases: Iterable[ProbeCase], nbytes: int = DEFAULT_BYTES, *, details: bool = False
) -> Iterator[ProbeReport | NotHere]:
    """Probe cases one after another; see ``probe_case``."""
    topology = spread_refresh(topology)
    site = Site(topology.topology_obj)
    for case in cases:
        yield probe_case(topology, case, nbytes, details=details, site=site)


def probe_case(
    topology: Topology,
    case: ProbeCase,
    nbytes: int = DEFAULT_BYTES,
    *,
    details: bool = False,
    site: Site | None = None,
) -> ProbeReport | NotHere:
    """Measure a case with transactions of ``nbytes``; ``details`` adds the sweep over sizes and the hops.

    The topology is that of ``spread_refresh``. Raises InputError for a size that its memory cannot hold.
    """
    topology = spread_refresh(topology)
    flows = case.place(site or Site(topology.topology_obj))
    if isinstance(flows, Absent):
        return NotHere(case=case.name, description=case.description, why=flows.why)
    room = min(flow.room_bytes for flow in flows)
    if not 1 <= nbytes <= room:
        raise InputError(f"size {nbytes} bytes: {case.name} takes 1 byte to {format_size(room)}")
    spans = run_once(GraphEngine(topology, enable_data=False), flows, nbytes)
    slowest = max(range(len(flows)), key=lambda at: spans[at].ps)
    single = _transaction(topology, flows, slowest, nbytes, spans[slowest].ps)
    sustained, streams = _measure_streams(topology, flows)
    return ProbeReport(
        case=case.name,
        description=case.description,
        operation="read" if flows[0].reading else "write",
        initiator=flows[slowest].initiator,
        pe=flows[slowest].pe,
        memory=flows[slowest].memory,
        single=single,
        sustained=sustained,
        crowd=_crowd(flows, spans, streams, sustained) if len(flows) > 1 else None,
        sweep=_sweep(topology, flows, room) if details else (),
        trace=_trace(topology, flows[slowest], nbytes) if details else (),
    )


def run_once(engine: GraphEngine, flows: Sequence[ProbeFlow], nbytes: int) -> tuple[Span, ...]:
    """Run one transaction per flow, all at once; return the span of each flow."""
    handles = [engine.submit(transaction(flow, nbytes)) for flow in flows]
    for handle in handles:
        engine.wait(handle)
    return tuple(_span(handle) for handle in handles)


def run_streams(engine: GraphEngine, flows: Sequence[ProbeFlow], plan: StreamPlan) -> tuple[Span, ...]:
    """Run a stream per flow, all at once, and return their spans.

    Flows of the host run one after another, since the host has no descriptor queue.
    """
    queued = {at: engine.submit(dma_stream(flow, flow.pe, plan)) for at, flow in enumerate(flows) if flow.pe}
    spans = {at: _host_stream(engine, flow, plan) for at, flow in enumerate(flows) if flow.pe is None}
    for at, handle in queued.items():
        engine.wait(handle)
        spans[at] = _span(handle)
    return tuple(spans[at] for at in range(len(flows)))


def _host_stream(engine: GraphEngine, flow: ProbeFlow, plan: StreamPlan) -> Span:
    """Run transactions of the host; a new one starts when the oldest has ended."""
    start_ps = ns_to_ps(engine.now)
    in_flight: deque[RequestHandle] = deque()
    for number in range(plan.transactions):
        if len(in_flight) == plan.outstanding:
            engine.wait(in_flight.popleft())
        in_flight.append(engine.submit(transaction(flow, plan.nbytes, number)))
    for handle in in_flight:
        engine.wait(handle)
    return Span(start_ps, max(handle.ended_ps for handle in in_flight))


def _span(handle: RequestHandle) -> Span:
    return Span(handle.submitted_ps, handle.ended_ps)


def _transaction(topology: Topology, flows: Sequence[ProbeFlow], at: int, nbytes: int, latency_ps: int) -> Transaction:
    machine = GraphEngine(topology, enable_data=False).machine
    form = compute_closed_form(machine, flows[at], nbytes)
    alone_ps = latency_ps
    if len(flows) > 1:
        alone_ps = run_once(GraphEngine(topology, enable_data=False), flows[at : at + 1], nbytes)[0].ps
    return Transaction(
        nbytes=nbytes,
        latency_ps=latency_ps,
        closed_form_ps=form.total_ps,
        breakdown=form.with_measured(alone_ps, alone=True).with_measured(latency_ps),
        bottleneck_gbs=fair_rates_gbs(machine, flows)[at],
    )


def _sweep(topology: Topology, flows: Sequence[ProbeFlow], room: int) -> tuple[Transaction, ...]:
    return tuple(_sweep_step(topology, flows, nbytes) for nbytes in SWEEP_BYTES if nbytes <= room)


def _sweep_step(topology: Topology, flows: Sequence[ProbeFlow], nbytes: int) -> Transaction:
    spans = run_once(GraphEngine(topology, enable_data=False), flows, nbytes)
    slowest = max(range(len(flows)), key=lambda at: spans[at].ps)
    return _transaction(topology, flows, slowest, nbytes, spans[slowest].ps)


def _trace(topology: Topology, flow: ProbeFlow, nbytes: int) -> tuple[TraceRow, ...]:
    """Return the hops of one uncontended transaction."""
    engine = GraphEngine(topology, enable_data=False, trace_hops=True)
    handle = engine.submit(transaction(flow, nbytes))
    engine.wait(handle)
    return trace_rows(engine, flow, handle)


def stream_plan(engine: GraphEngine, flows: Sequence[ProbeFlow], nbytes: int) -> StreamPlan:
    """Return a plan with enough transactions in flight to cover the round trip at the rate of the flows.

    The round trip is that of simultaneous transactions, with the contention among the flows.
    """
    latency_ns = max(span.ps for span in run_once(engine, flows, nbytes)) / 1000
    rate = max(fair_rates_gbs(engine.machine, flows))
    return StreamPlan(
        nbytes=nbytes,
        transactions=math.ceil(STREAM_LATENCIES * latency_ns * rate / nbytes),
        outstanding=math.ceil(latency_ns * rate / nbytes) + 2,
    )


def _measure_streams(topology: Topology, flows: Sequence[ProbeFlow]) -> tuple[Sustained, tuple[Span, ...]]:
    nbytes = min(STREAM_BYTES, *(flow.room_bytes for flow in flows))
    plan = stream_plan(GraphEngine(topology, enable_data=False), flows, nbytes)
    engine = GraphEngine(topology, enable_data=False)
    spans = run_streams(engine, flows, plan)
    duration = max(span.end_ps for span in spans) - min(span.start_ps for span in spans)
    sustained = Sustained(
        nbytes=plan.nbytes,
        transactions=plan.transactions,
        outstanding=plan.outstanding,
        flows=len(flows),
        duration_ps=duration,
        bottleneck_gbs=sum(fair_rates_gbs(engine.machine, flows)),
        busiest=_busiest(engine),
    )
    return sustained, spans


def _busiest(engine: GraphEngine) -> tuple[LinkLoad, ...]:
    loads = [
        LinkLoad(src=link.src, dst=link.dst, nbytes=link.nbytes, bw_gbs=link.bw_gbs, utilisation=link.utilisation)
        for link in link_traffic(engine.machine)
    ]
    return tuple(sorted(loads, key=lambda load: -load.utilisation)[:BUSIEST_LINKS])


def _crowd(flows: Sequence[ProbeFlow], once: Sequence[Span], streams: Sequence[Span], sustained: Sustained) -> Crowd:
    streamed = sustained.nbytes * sustained.transactions
    return Crowd(
        initiators=tuple(flow.initiator for flow in flows),
        latencies_ps=tuple(span.ps for span in once),
        rates_gbs=tuple(streamed * 1000 / span.ps for span in streams),
    )
