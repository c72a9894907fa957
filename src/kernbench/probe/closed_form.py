"""The closed forms of a transaction alone on the machine, part by part.

Read: way there, header over the bottleneck, access, way back, max(M, S over the bottleneck). Write: way there,
max(M, S over the bottleneck), access, way back, header over the bottleneck. M is the memory's own time for the access.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from kernbench.common.units import ns_to_ps, ps_to_ns, transfer_ps
from kernbench.components.hbm.controller import idle_memory
from kernbench.engine.machine import Machine
from kernbench.messages.fabric import Access
from kernbench.probe.site import ProbeFlow
from kernbench.topology.attrs import HbmCtrlAttrs, SramAttrs


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Where a latency goes, in ps, so that the parts add up exactly.

    ``overhead``: nodes and DMA set-up; ``wire``: distance; ``memory``: access, and channel time that the drain does
    not hide; ``drain``: the data and the header over their bottlenecks; ``queue``: waiting.
    """

    overhead_ps: int
    wire_ps: int
    memory_ps: int
    drain_ps: int
    queue_ps: int = 0

    @property
    def parts_ns(self) -> tuple[tuple[str, float], ...]:
        """The parts by name, in ns, in the order in which reports show them."""
        return (
            ("overhead_ns", ps_to_ns(self.overhead_ps)),
            ("wire_ns", ps_to_ns(self.wire_ps)),
            ("memory_ns", ps_to_ns(self.memory_ps)),
            ("drain_ns", ps_to_ns(self.drain_ps)),
            ("queue_ns", ps_to_ns(self.queue_ps)),
        )

    @property
    def total_ps(self) -> int:
        """All parts together."""
        return self.overhead_ps + self.wire_ps + self.memory_ps + self.drain_ps + self.queue_ps

    def with_measured(self, latency_ps: int) -> Breakdown:
        """This closed form, with what a measured latency has beyond it as queueing.

        A latency below the closed form differs by rounding alone; the drain, which is rounded per packet, takes it.
        """
        rest = latency_ps - self.total_ps
        return replace(self, queue_ps=max(0, rest), drain_ps=self.drain_ps + min(0, rest))


@dataclass(frozen=True, slots=True)
class Way:
    """One direction between two parts: what its head costs, and the bandwidth of its narrowest link."""

    overhead_ps: int
    wire_ps: int
    bottleneck_gbs: float

    def drain_ps(self, nbytes: int, packet_bytes: int) -> int:
        """Time of ``nbytes`` over the narrowest link, rounded per packet as links do."""
        full, last = divmod(nbytes - 1, packet_bytes)
        return full * transfer_ps(packet_bytes, self.bottleneck_gbs) + transfer_ps(last + 1, self.bottleneck_gbs)


def way(machine: Machine, src: str, dst: str) -> Way:
    """The way between two parts of a machine."""
    route = machine.route(src, dst)
    edges = [machine.graph.edge(link.src, link.dst) for link in route.links]
    wire_ps = sum(ns_to_ps(machine.spec.wire_ns(edge.length_mm)) for edge in edges)
    return Way(route.total_overhead_ps - wire_ps, wire_ps, route.bottleneck_gbs)


@dataclass(frozen=True, slots=True)
class MemoryTime:
    """What a memory takes for an access alone, and what it sustains."""

    access_ps: int
    channel_ps: int
    sustained_gbs: float


def memory_time(machine: Machine, flow: ProbeFlow, nbytes: int) -> MemoryTime:
    """The time of the memory of a flow for an access of ``nbytes``."""
    cube, attrs = machine.spec.cube, machine.graph.node(flow.memory).attrs
    if isinstance(attrs, HbmCtrlAttrs):
        alone = idle_memory(machine).serve(Access(flow.pa, nbytes), not flow.reading, 0, nbytes, 0)
        return MemoryTime(attrs.access_ps + alone.first_ps, alone.last_ps - alone.first_ps, cube.slice_bw_gbs)
    access_ps = attrs.access_ps if isinstance(attrs, SramAttrs) else 0
    return MemoryTime(access_ps, cube.sram_ps(nbytes), cube.sram_bw_gbs)


def closed_form(machine: Machine, flow: ProbeFlow, nbytes: int) -> Breakdown:
    """One transaction of ``nbytes`` alone on the machine."""
    packet, header = machine.network.packet_bytes, machine.header_bytes
    there, back = way(machine, flow.initiator, flow.memory), way(machine, flow.memory, flow.initiator)
    data, answer = (back, there) if flow.reading else (there, back)
    drain = data.drain_ps(nbytes, packet)
    memory = memory_time(machine, flow, nbytes)
    return Breakdown(
        overhead_ps=set_up_ps(machine, flow) + there.overhead_ps + back.overhead_ps,
        wire_ps=there.wire_ps + back.wire_ps,
        memory_ps=memory.access_ps + max(0, memory.channel_ps - drain),
        drain_ps=drain + answer.drain_ps(header, packet),
    )


def set_up_ps(machine: Machine, flow: ProbeFlow) -> int:
    """What the DMA of a PE takes for a descriptor; the host's is ready."""
    return 0 if flow.pe is None else machine.spec.pe.dma.setup_ps


def fair_rates_gbs(machine: Machine, flows: Iterable[ProbeFlow]) -> tuple[float, ...]:
    """What each of some flows can sustain at once: its share of the narrowest link or memory on the data's way.

    Flows that share something get equal parts of it.
    """
    used = [_capacities(machine, flow) for flow in flows]
    sharers = Counter(part for parts in used for part in parts)
    return tuple(min(gbs / sharers[part] for part, gbs in parts.items()) for parts in used)


def _capacities(machine: Machine, flow: ProbeFlow) -> dict[tuple[str, str], float]:
    """The links that the data takes, and the memory, with their bandwidths."""
    links = machine.route(*flow.data_ends).links
    found = {(link.src, link.dst): link.bw_gbs for link in links}
    found[flow.memory, ""] = memory_time(machine, flow, 1).sustained_gbs
    return found
