"""Links that parts limit, on the page of a run: their load is that of what they can carry."""

from __future__ import annotations

from typing import Any

from kernbench.engine.engine import GraphEngine
from kernbench.topology.builder import resolve_topology
from kernbench.web.machine_view import view_machine


def test_a_limited_link_has_its_rate() -> None:
    topology = resolve_topology("default", ["sip.cube_mesh={w: 1, h: 1}", "cube.components.xbar.attrs.rate_gbs=16"])
    machine, graph = GraphEngine(topology).machine, topology.topology_obj
    ends = [("sip0.cube0.pe0.pe_dma", "sip0.cube0.xbar_NW"), ("sip0.cube0.xbar_NW", "sip0.cube0.hbm0")]
    machine.route(ends[0][0], ends[1][1])
    at = [[(edge.src, edge.dst) for edge in graph.edges].index(each) for each in ends]
    plain, used = (view["edges"] for view in (view_machine(topology), view_machine(topology, machine.network.links)))
    bandwidths: list[Any] = [[edges["bw_gbs"][number] for number in at] for edges in (plain, used)]
    assert bandwidths == [[256, 256], [256, 16]]
