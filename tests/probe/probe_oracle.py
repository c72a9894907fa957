"""The closed forms of a transaction alone, worked out from edges and spec in exact fractions."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cache

from kernbench.common.ids import HOST
from kernbench.policy.routing.planner import RoutePlanner
from kernbench.topology.builder import Topology
from kernbench.topology.cube_spec import SramAttrs
from kernbench.topology.graph import Edge, Graph
from kernbench.topology.hbm_spec import HbmCtrlAttrs
from kernbench.topology.spec import TopologySpec


@dataclass(frozen=True, slots=True)
class Expected:
    """A latency, and how far rounding may take a simulation away from it: 1 ps per packet, link and stage."""

    ns: Fraction
    slack_ns: Fraction


def exact(value: float) -> Fraction:
    """The decimal that a configuration says."""
    return Fraction(str(value))


def head_ns(graph: Graph, edges: tuple[Edge, ...]) -> Fraction:
    """Nodes entered, wires, links' own overheads."""
    per_mm = exact(graph.spec.ns_per_mm)
    return sum(
        (
            exact(graph.nodes[edge.dst].attrs.overhead_ns) + Fraction(edge.length_mm) * per_mm + exact(edge.overhead_ns)
            for edge in edges
        ),
        Fraction(0),
    )


def drain_ns(edges: tuple[Edge, ...], nbytes: int) -> Fraction:
    """Bytes over the narrowest link."""
    return nbytes / min(exact(edge.bw_gbs) for edge in edges)


def channel_of(burst: int, spec: TopologySpec) -> int:
    """The pseudo-channel of a burst, digit by digit."""
    hbm = spec.cube.hbm
    if hbm.channel_hash == "mod":
        return burst % hbm.num_pcs
    channel = 0
    while burst:
        burst, digit = divmod(burst, hbm.num_pcs)
        channel ^= digit
    return channel


def hbm_ns(spec: TopologySpec, pa: int, nbytes: int) -> Fraction:
    """M: every piece touched, counted on its channel; the busiest channel decides."""
    hbm = spec.cube.hbm
    loads = [0] * hbm.num_pcs
    for piece in range(pa // hbm.access_bytes, (pa + nbytes - 1) // hbm.access_bytes + 1):
        loads[channel_of(piece * hbm.access_bytes // hbm.burst_bytes, spec)] += hbm.access_bytes
    efficiency = exact(spec.cube.components.hbm_ctrl.attrs.efficiency)
    return max(loads) / (exact(spec.cube.links.xbar_to_hbm.bw_gbs) / hbm.num_pcs * efficiency)


class Oracle:
    """Expected latencies on one machine."""

    def __init__(self, topology: Topology) -> None:
        self.graph = topology.topology_obj
        self.spec = topology.spec
        self.planner = RoutePlanner(self.graph)
        self.channel_ns = cache(lambda pa, nbytes: hbm_ns(self.spec, pa, nbytes))

    def latency(self, initiator: str, memory: str, pa: int, nbytes: int, *, reading: bool) -> Expected:
        """A read or write of ``nbytes`` at ``pa`` by ``initiator`` (the host or a PE's DMA)."""
        there = self.graph.edges_along(self.planner.route(initiator, memory))
        back = self.graph.edges_along(self.planner.route(memory, initiator))
        header = self.spec.transport.header_bytes
        data, answer = (back, there) if reading else (there, back)
        access, own = self._memory(memory, pa, nbytes, reading)
        set_up = Fraction(0) if initiator == HOST else exact(self.spec.pe.dma.setup_ns)
        ns = (
            set_up
            + head_ns(self.graph, there)
            + head_ns(self.graph, back)
            + drain_ns(answer, header)
            + access
            + max(own, drain_ns(data, nbytes))
        )
        packets = -(-nbytes // self.spec.transport.packet_bytes)
        stages = 3  # set-up, access, channels
        return Expected(ns, Fraction(packets + len(there) + len(back) + stages, 1000))

    def _memory(self, memory: str, pa: int, nbytes: int, reading: bool) -> tuple[Fraction, Fraction]:
        """Access time and own time of a memory."""
        attrs, spec = self.graph.nodes[memory].attrs, self.spec
        if isinstance(attrs, HbmCtrlAttrs):
            return exact(attrs.access_ns), self.channel_ns(pa, nbytes)
        if isinstance(attrs, SramAttrs):
            bandwidth = attrs.bw_gbs or spec.cube.links.router_to_sram.bw_gbs
            return exact(attrs.access_ns), nbytes / exact(bandwidth)
        tcm = spec.pe.tcm
        return Fraction(0), nbytes / exact(tcm.read_bw_gbs if reading else tcm.write_bw_gbs)
