"""The ways among which a part in transit may choose."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from random import Random

import pytest

from kernbench.policy.routing.planner import RouteChoices, RoutePlanner
from kernbench.topology.graph import Graph


@pytest.fixture(scope="module")
def graph(compiled) -> Graph:
    return compiled().topology_obj


def other_ways(graph: Graph, src: str, dst: str) -> tuple[tuple[str, ...], ...]:
    planner = RoutePlanner(graph)
    return RouteChoices(graph, planner).instead_of(planner.route(src, dst))


def test_in_a_mesh_there_is_a_way_by_each_axis(graph: Graph) -> None:
    assert other_ways(graph, "sip0.cube0.r0_0", "sip0.cube0.hbm6") == (
        (
            *(f"sip0.cube0.r{xy}" for xy in ("0_0", "0_1", "1_1", "2_1", "3_1", "3_2", "3_3")),
            "sip0.cube0.xbar_SE",
            "sip0.cube0.hbm6",
        ),
    )


@pytest.mark.parametrize(
    ("src", "dst"),
    [
        ("sip0.cube0.r0_0", "sip0.cube0.r3_0"),  # along one axis
        ("sip0.cube0.xbar_NW", "sip0.cube0.hbm6"),  # one link leads there
        ("switch", "sip0.cube5.hbm0"),
        ("sip0.io_noc", "sip0.cube5.hbm0"),  # the other columns are farther
    ],
)
def test_where_there_is_only_one_way(graph: Graph, src: str, dst: str) -> None:
    assert other_ways(graph, src, dst) == ()


def test_from_cube_to_cube_by_either_axis(graph: Graph) -> None:
    # r2_2 is one hop from the routers of both ports; the way planned leaves by E.
    (way,) = other_ways(graph, "sip0.cube0.r2_2", "sip0.cube5.hbm0")
    assert way[:4] == ("sip0.cube0.r2_2", "sip0.cube0.r2_3", "sip0.cube0.ucie_S", "sip0.cube4.ucie_N")


def test_from_sip_to_sip_by_the_other_port_but_not_over_pcie(graph: Graph) -> None:
    (way,) = other_ways(graph, "sip0.io_noc", "sip1.cube0.hbm0")
    assert way[:4] == ("sip0.io_noc", "sip0.sip_port_1", "sip1.sip_port_0", "sip1.io_noc")


def hops_between(graph: Graph, dst: str, classes: set[str]) -> dict[str, int]:
    """Hops to ``dst``, by looking at every link in turn until nothing changes."""
    hops, waiting = {dst: 0}, deque([dst])
    while waiting:
        near = waiting.popleft()
        for edge in graph.edges:
            if edge.dst == near and edge.link_class in classes and edge.src not in hops:
                hops[edge.src] = hops[near] + 1
                waiting.append(edge.src)
    return hops


def test_every_other_way_has_the_fewest_hops(compiled) -> None:
    graph = compiled("sip.cube_mesh.w=2", "sip.cube_mesh.h=2").topology_obj
    random, planner = Random(7), RoutePlanner(graph)
    choices = RouteChoices(graph, planner)
    parts = [node.id for node in graph.nodes.values() if node.kind in {"noc_router", "hbm_ctrl", "pe_dma", "io_noc"}]
    found = 0
    for _ in range(40):
        planned = planner.route(*random.sample(parts, 2))
        classes = {edge.link_class for edge in graph.edges_along(planned)}
        hops = hops_between(graph, planned[-1], classes)
        others = choices.instead_of(planned)
        found += len(others)
        assert len({way[1] for way in (planned, *others)}) == 1 + len(others)
        for way in others:
            assert (way[0], way[-1]) == (planned[0], planned[-1])
            assert len(way) - 1 == hops[planned[0]] <= len(planned) - 1
            assert all(graph.edge(*ends).link_class in classes for ends in pairwise(way))
    assert found
