"""Closed forms of an uncontended transaction, by component.

- Read: route there, header over the bottleneck, access, route back, max(M, S over the bottleneck)
- Write: route there, max(M, S over the bottleneck), access, route back, header over the bottleneck

S is the number of bytes, M the memory's time for them. The forms hold for the first transaction at a memory. They are
exact unless a refresh of all banks delays the transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from kernbench.common.units import ns_to_ps, ps_to_ns, transfer_ps
from kernbench.common.values import value
from kernbench.components.hbm.controller import idle_memory
from kernbench.engine.machine import Machine
from kernbench.messages.fabric import Access
from kernbench.probe.cases import ProbeFlow
from kernbench.topology.cube_spec import SramAttrs
from kernbench.topology.hbm_spec import HbmCtrlAttrs


@value(kw_only=True)
class Breakdown:
    """The components of a latency in ps, with an exact sum.

    - ``overhead``: the overheads of nodes, and the DMA's set-up
    - ``wire``: the wire delay of links
    - ``memory``: access latency, and the memory's time for the data as far as it exceeds their drain
    - ``drain``: the time of the data and of the header on the narrowest links of their routes
    - ``queue``: waiting for other transactions
    - ``difference``: the measured latency less all of the above, which may be negative
    """

    overhead_ps: int
    wire_ps: int
    memory_ps: int
    drain_ps: int
    queue_ps: int = 0
    difference_ps: int = 0

    @property
    def parts_ns(self) -> tuple[tuple[str, float], ...]:
        """The components by name, in ns, in the order of reports."""
        return (
            ("overhead_ns", ps_to_ns(self.overhead_ps)),
            ("wire_ns", ps_to_ns(self.wire_ps)),
            ("memory_ns", ps_to_ns(self.memory_ps)),
            ("drain_ns", ps_to_ns(self.drain_ps)),
            ("queue_ns", ps_to_ns(self.queue_ps)),
            ("difference_ns", ps_to_ns(self.difference_ps)),
        )

    @property
    def total_ps(self) -> int:
        """The sum of all components in ps."""
        form_ps = self.overhead_ps + self.wire_ps + self.memory_ps + self.drain_ps
        return form_ps + self.queue_ps + self.difference_ps

    def with_measured(self, latency_ps: int, *, alone: bool = False) -> Breakdown:
        """Return a breakdown of a measured latency: its excess over this breakdown counts as waiting for others.

        The excess counts as a difference if the transaction was ``alone``, or if the excess is negative. The components
        of the closed form do not change.
        """
        excess_ps = latency_ps - self.total_ps
        if excess_ps > 0 and not alone:
            return replace(self, queue_ps=self.queue_ps + excess_ps)
        return replace(self, difference_ps=self.difference_ps + excess_ps)


@value
class WayCost:
    """The route from one node to another: the time of a packet's head, and the bandwidth of the narrowest link."""

    overhead_ps: int
    wire_ps: int
    bottleneck_gbs: float

    def drain_ps(self, nbytes: int, packet_bytes: int) -> int:
        """Return the time in ps of ``nbytes`` over the narrowest link, rounded per packet as links do."""
        full, last = divmod(nbytes - 1, packet_bytes)
        return full * transfer_ps(packet_bytes, self.bottleneck_gbs) + transfer_ps(last + 1, self.bottleneck_gbs)


def measure_way(machine: Machine, src: str, dst: str) -> WayCost:
    """Return the cost of the route between two nodes of a machine."""
    route = machine.route(src, dst)
    edges = [machine.graph.edge(link.src, link.dst) for link in route.links]
    wire_ps = sum(ns_to_ps(machine.spec.wire_ns(edge.length_mm)) for edge in edges)
    return WayCost(route.total_overhead_ps - wire_ps, wire_ps, route.bottleneck_gbs)


def memory_times_ps(machine: Machine, flow: ProbeFlow, nbytes: int, since_ps: int) -> tuple[int, int]:
    """Return the access latency and M, in ps, of an access at ``since_ps`` to a flow's memory, which is idle."""
    node = machine.graph.node(flow.memory)
    attrs = node.attrs
    if isinstance(attrs, HbmCtrlAttrs):
        alone = idle_memory(machine, node).serve(Access(flow.pa, nbytes), not flow.reading, 0, nbytes, since_ps)
        access_ps = ns_to_ps(machine.spec.cube.hbm.access_ns(attrs))
        return access_ps + alone.first_ps - since_ps, alone.last_ps - alone.first_ps
    assert isinstance(attrs, SramAttrs), "the memory of a flow is HBM or SRAM"
    return attrs.access_ps, transfer_ps(nbytes, machine.graph.sram_bw_gbs(flow.memory))


def compute_closed_form(machine: Machine, flow: ProbeFlow, nbytes: int) -> Breakdown:
    """Return the breakdown of one transaction of ``nbytes``, the first on the machine and uncontended."""
    packet, header = machine.network.packet_bytes, machine.header_bytes
    forth, back = measure_way(machine, flow.initiator, flow.memory), measure_way(machine, flow.memory, flow.initiator)
    data, answer = (back, forth) if flow.reading else (forth, back)
    drain, header_drain = data.drain_ps(nbytes, packet), answer.drain_ps(header, packet)
    set_up = set_up_ps(machine, flow)
    comes = set_up + forth.overhead_ps + forth.wire_ps + (header_drain if flow.reading else 0)
    access, channels = memory_times_ps(machine, flow, nbytes, comes)
    return Breakdown(
        overhead_ps=set_up + forth.overhead_ps + back.overhead_ps,
        wire_ps=forth.wire_ps + back.wire_ps,
        memory_ps=access + max(0, channels - drain),
        drain_ps=drain + header_drain,
    )


def set_up_ps(machine: Machine, flow: ProbeFlow) -> int:
    """Return the DMA set-up time of a descriptor in ps, 0 for the host."""
    return 0 if flow.pe is None else machine.spec.pe.dma.setup_ps


def fair_rates_gbs(machine: Machine, flows: Iterable[ProbeFlow]) -> tuple[float, ...]:
    """Return the rates of simultaneous flows in GB/s: the share of each flow in its narrowest link or memory.

    Flows that use the same link or memory get equal shares.
    """
    used = [_capacities(machine, flow) for flow in flows]
    sharers = Counter(part for parts in used for part in parts)
    return tuple(min(gbs / sharers[part] for part, gbs in parts.items()) for parts in used)


def _capacities(machine: Machine, flow: ProbeFlow) -> dict[tuple[str, str], float]:
    """Return the bandwidths of the links on the route of the data, and of the memory."""
    links = machine.route(*flow.data_ends).links
    bandwidths = {(link.src, link.dst): link.bw_gbs for link in links}
    in_hbm = isinstance(machine.graph.node(flow.memory).attrs, HbmCtrlAttrs)
    bandwidths[flow.memory, ""] = machine.spec.cube.slice_bw_gbs if in_hbm else machine.graph.sram_bw_gbs(flow.memory)
    return bandwidths
