"""Latency and throughput of a mesh under load: warm up, measure, and run until all measured messages have arrived.

Latency is the time from the creation of a message to the delivery of its last flit, including the source queue.
The mean covers the messages that are created in the measured window. Accepted throughput counts the flits delivered in
that window.
"""

from __future__ import annotations

from math import ceil, log2, sqrt
from statistics import fmean, stdev

from kernbench.common.values import value
from kernbench.transport import Network, Transfer
from mesh.network import (
    CYCLE_PS,
    MeshFlow,
    MeshSpec,
    MeshTraffic,
    build_mesh,
    flow_traffic,
    messages,
    pattern_traffic,
    xy_route,
)

SATURATED_AT = 3.0


@value
class LoadPlan:
    """The length of a run per seed: at least ``cycles`` and about ``messages`` messages, after ``warmup_cycles``.

    For messages that are still in flight after ``drain_cycles``, their age is used as latency.
    """

    warmup_cycles: int = 2000
    cycles: int = 4000
    messages: int = 20_000
    drain_cycles: int = 20_000
    seeds: tuple[int, ...] = (1, 2, 3)

    def window_cycles(self, spec: MeshSpec, traffic: MeshTraffic) -> int:
        """Return the length of the measured window."""
        per_cycle = float(traffic.rates.sum()) / spec.packet_flits
        return max(self.cycles, ceil(self.messages / per_cycle))


@value
class LoadPoint:
    """The result at one offered load. ``accepted``: flits per node and cycle. ``error_cycles``: standard error."""

    offered: float
    latency_cycles: float
    accepted: float
    error_cycles: float


@value
class MeshRun:
    """One run. ``accepted[s]``: delivered flits per cycle from node s. ``events``: events of the simulation."""

    latency_cycles: float
    accepted: tuple[float, ...]
    events: int


class MeasuredWindow:
    """Collects the messages of a time window [``start``, ``end``) in cycles."""

    def __init__(self, nodes: int, start: int, end: int) -> None:
        self.start_ps, self.end_ps = start * CYCLE_PS, end * CYCLE_PS
        self.flits = [0] * nodes
        self.in_flight: dict[int, Transfer] = {}
        self.latencies_ps: list[int] = []

    def record_sent(self, transfer: Transfer) -> None:
        """Record the creation of ``transfer``."""
        if self.start_ps <= transfer.injected_ps < self.end_ps:
            self.in_flight[transfer.serial] = transfer

    def record_delivered(self, transfer: Transfer) -> None:
        """Record the arrival of ``transfer``."""
        source = transfer.arg
        assert isinstance(source, int)
        if self.start_ps <= transfer.delivered_ps < self.end_ps:
            self.flits[source] += transfer.nbytes
        if self.in_flight.pop(transfer.serial, None) is not None:
            self.latencies_ps.append(transfer.delivered_ps - transfer.injected_ps)

    def latency_cycles(self, now_ps: int) -> float:
        """Return the mean latency. For messages in flight, their age is used as latency."""
        ages = [now_ps - t.injected_ps for t in self.in_flight.values()]
        return fmean(self.latencies_ps + ages) / CYCLE_PS


def simulate(spec: MeshSpec, traffic: MeshTraffic, plan: LoadPlan, seed: int, *, drain: bool = True) -> MeshRun:
    """Run ``traffic`` with one seed. Without ``drain``, stop at the window's end, and count only arrived messages.

    Sources continue to send until all measured messages have arrived, so that the load stays constant.
    """
    net = build_mesh(spec)
    end = plan.warmup_cycles + plan.window_cycles(spec, traffic)
    window = MeasuredWindow(spec.nodes, plan.warmup_cycles, end)
    last = end + (plan.drain_cycles if drain else 0)
    for cycle, source, target in messages(spec, traffic, seed):
        if cycle >= end and (cycle >= last or not window.in_flight):
            break
        _advance(net, cycle)
        transfer = net.make(
            net.port(f"s{source}"),
            net.route(xy_route(spec.k, source, target)),
            spec.packet_flits,
            window.record_delivered,
            source,
        )
        net.inject(transfer)
        window.record_sent(transfer)
    cycles = end - plan.warmup_cycles
    accepted = tuple(flits / cycles for flits in window.flits)
    return MeshRun(window.latency_cycles(net.clock.time), accepted, net.clock.n_events)


def _advance(net: Network, cycle: int) -> None:
    if net.clock.time < cycle * CYCLE_PS:
        net.clock.advance(cycle * CYCLE_PS)


def load_point(spec: MeshSpec, pattern: str, offered: float, plan: LoadPlan) -> LoadPoint:
    """Return mean latency and accepted throughput at one offered load (flits per node and cycle), over all seeds."""
    traffic = pattern_traffic(spec, pattern, offered)
    runs = [simulate(spec, traffic, plan, seed) for seed in plan.seeds]
    latencies = [run.latency_cycles for run in runs]
    error = stdev(latencies) / sqrt(len(runs)) if len(runs) > 1 else 0.0
    return LoadPoint(offered, fmean(latencies), fmean(fmean(run.accepted) for run in runs), error)


def measure_full_load(spec: MeshSpec, pattern: str, plan: LoadPlan) -> float:
    """Return the flits per node and cycle that arrive if every node offers one flit per cycle."""
    traffic = pattern_traffic(spec, pattern, 1.0)
    return fmean(fmean(simulate(spec, traffic, plan, seed, drain=False).accepted) for seed in plan.seeds)


def saturation_load(spec: MeshSpec, pattern: str, plan: LoadPlan, resolution: float) -> tuple[float, float]:
    """Return two offered loads, at most ``resolution`` apart, around saturation.

    Between them, the mean latency exceeds 3 times the zero-load latency.
    """
    limit = SATURATED_AT * pattern_traffic(spec, pattern, 1.0).zero_load_cycles(spec)
    low, high = 0.0, 1.0
    for _ in range(ceil(-log2(resolution))):
        middle = (low + high) / 2
        if load_point(spec, pattern, middle, plan).latency_cycles > limit:
            high = middle
        else:
            low = middle
    return low, high


def flow_shares(spec: MeshSpec, flows: tuple[MeshFlow, ...], plan: LoadPlan) -> tuple[float, ...]:
    """Return the delivered flits per cycle of each of ``flows``, without other traffic."""
    traffic = flow_traffic(spec, flows)
    runs = [simulate(spec, traffic, plan, seed, drain=False) for seed in plan.seeds]
    return tuple(fmean(run.accepted[flow.src] for run in runs) for flow in flows)
