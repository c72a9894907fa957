"""Routes: the ways of the specification, and properties that hold on any machine."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernbench.common.errors import UnknownNameError
from kernbench.policy.routing.planner import RoutePlanner, SipRoutes, xy_cells
from kernbench.topology.builder import Topology
from kernbench.topology.graph import Graph, Node

Compile = Callable[..., Topology]
SMALL = ("sip.cube_mesh={w: 2, h: 1}", "cube.noc.w=1", "cube.noc.h=1")


@pytest.fixture(scope="module")
def graph(compiled: Compile) -> Graph:
    return compiled().topology_obj


@pytest.fixture(scope="module")
def planner(graph: Graph) -> RoutePlanner:
    return RoutePlanner(graph)


def written(route: tuple[str, ...]) -> str:
    return " ".join(route)


def kinds(graph: Graph, route: tuple[str, ...]) -> set[str]:
    return {graph.node(name).kind for name in route}


def test_a_pe_reaches_its_own_corner_through_the_xbar_alone(planner: RoutePlanner) -> None:
    assert planner.route("sip0.cube3.pe5.pe_dma", "sip0.cube3.hbm4") == (
        "sip0.cube3.pe5.pe_dma",
        "sip0.cube3.xbar_SW",
        "sip0.cube3.hbm4",
    )


def test_another_corner_is_reached_over_the_mesh_x_first(planner: RoutePlanner) -> None:
    route = planner.route("sip0.cube0.pe0.pe_dma", "sip0.cube0.hbm7")
    names = [name.removeprefix("sip0.cube0.") for name in route]
    assert names == ["pe0.pe_dma", "xbar_NW", "r0_0", "r1_0", "r2_0", "r3_0", "r3_1", "r3_2", "r3_3", "xbar_SE", "hbm7"]


def test_sram_and_m_cpu_hang_on_routers(planner: RoutePlanner) -> None:
    assert planner.route("sip0.cube0.m_cpu", "sip0.cube0.sram")[1:-1] == (
        "sip0.cube0.r1_1",
        "sip0.cube0.r2_1",
        "sip0.cube0.r2_2",
    )
    assert written(planner.route("sip0.cube0.m_cpu", "sip0.cube0.pe0.pe_cpu")).endswith(
        "r0_0 sip0.cube0.xbar_NW sip0.cube0.pe0.pe_cpu"
    )


def test_straight_traffic_through_a_cube_never_turns(planner: RoutePlanner) -> None:
    route = planner.route("sip0.cube4.pe0.pe_dma", "sip0.cube6.pe0.pe_dma")
    within = [name.removeprefix("sip0.cube5.") for name in route if ".cube5." in name]
    assert within == ["ucie_W", "r0_2", "r1_2", "r2_2", "r3_2", "ucie_E"]


def test_cubes_are_crossed_x_first(graph: Graph, planner: RoutePlanner) -> None:
    route = planner.route("sip0.cube0.m_cpu", "sip0.cube10.m_cpu")
    cubes = list(dict.fromkeys(graph.node(name).cube for name in route))
    assert cubes == [0, 1, 2, 6, 10]


def test_the_host_enters_by_the_column_of_the_cube(planner: RoutePlanner) -> None:
    route = planner.route("host", "sip1.cube6.sram")
    assert route[:6] == ("host", "switch", "sip1.pcie_ep", "sip1.io_noc", "sip1.io_ucie_2", "sip1.cube2.ucie_N")
    assert "sip1.cube6.ucie_N" in route
    assert "sip1.io_cpu" not in route


def test_the_way_back_leaves_by_the_own_column(planner: RoutePlanner) -> None:
    route = planner.route("sip1.cube6.pe1.pe_dma", "host")
    assert route[-5:] == ("sip1.io_ucie_2", "sip1.io_noc", "sip1.pcie_ep", "switch", "host")


def test_rows_serve_when_the_chiplet_lies_east(compiled: Compile) -> None:
    planner = RoutePlanner(compiled("sip.io_chiplet.edge=E").topology_obj)
    route = planner.route("host", "sip0.cube9.sram")
    assert route[4:6] == ("sip0.io_ucie_2", "sip0.cube11.ucie_E")


def test_control_goes_by_the_io_cpu(planner: RoutePlanner) -> None:
    assert planner.route("host", "sip0.io_cpu") == ("host", "switch", "sip0.pcie_ep", "sip0.io_noc", "sip0.io_cpu")
    assert planner.route("sip0.io_cpu", "sip0.cube0.m_cpu")[:3] == ("sip0.io_cpu", "sip0.io_noc", "sip0.io_ucie_0")
    assert planner.route("sip0.io_cpu", "sip0.pcie_ep") == ("sip0.io_cpu", "sip0.io_noc", "sip0.pcie_ep")


def test_parts_of_the_io_chiplet_are_ends_like_others(planner: RoutePlanner) -> None:
    assert planner.route("host", "sip0.pcie_ep") == ("host", "switch", "sip0.pcie_ep")
    assert planner.route("sip0.pcie_ep", "sip1.pcie_ep")[1:4] == ("sip0.io_noc", "sip0.sip_port_0", "sip1.sip_port_1")
    assert planner.route("sip0.io_ucie_1", "sip0.cube1.ucie_N") == ("sip0.io_ucie_1", "sip0.cube1.ucie_N")
    assert planner.route("sip0.io_noc", "sip0.io_noc") == ("sip0.io_noc",)
    assert planner.route("host", "switch") == ("host", "switch")


def test_parts_inside_a_pe_are_reached_through_its_dma(planner: RoutePlanner) -> None:
    assert planner.route("host", "sip0.cube0.pe0.pe_tcm")[-1] == "sip0.cube0.pe0.pe_dma"
    assert planner.route("sip0.cube0.pe0.pe_ipcq", "sip0.cube0.pe1.pe_ipcq") == (
        "sip0.cube0.pe0.pe_dma",
        "sip0.cube0.xbar_NW",
        "sip0.cube0.pe1.pe_dma",
    )
    assert planner.route("sip0.cube0.pe0.pe_mmu", "sip0.cube0.hbm0")[0] == "sip0.cube0.pe0.pe_dma"
    assert planner.route("sip0.cube0.pe0.pe_tcm", "sip0.cube0.pe0.pe_dma") == ("sip0.cube0.pe0.pe_dma",)


def test_a_named_port_is_taken_when_it_leads_there(planner: RoutePlanner) -> None:
    src, dst = "sip0.cube0.pe0.pe_dma", "sip1.cube0.pe0.pe_dma"
    assert "sip0.sip_port_0" in planner.route(src, dst)
    assert "sip0.sip_port_0" in planner.route(src, dst, via_port="E")
    assert written(planner.route(src, dst, via_port="W")).count("sip0.sip_port_1 sip1.sip_port_0") == 1
    assert planner.route(src, dst, via_port="N") == planner.route(src, dst)


def sips_on(graph: Graph, route: tuple[str, ...]) -> list[int | None]:
    return list(dict.fromkeys(graph.node(name).sip for name in route))


def test_far_sips_are_reached_over_several_hops(compiled: Compile) -> None:
    graph = compiled("system.sips.count=6", *SMALL).topology_obj
    planner = RoutePlanner(graph)
    assert sips_on(graph, planner.route("sip0.cube0.sram", "sip2.cube0.sram")) == [0, 1, 2]
    assert sips_on(graph, planner.route("sip0.cube0.sram", "sip4.cube0.sram")) == [0, 5, 4]
    assert sips_on(graph, planner.route("sip0.cube0.sram", "sip3.cube0.sram")) == [0, 1, 2, 3]
    route = planner.route("sip0.cube0.sram", "sip2.cube0.sram")
    assert "sip1.sip_port_1 sip1.io_noc sip1.sip_port_0" in written(route)


def test_a_port_that_leads_elsewhere_does_not_count(compiled: Compile) -> None:
    graph = compiled("system.sips.count=6", *SMALL).topology_obj
    assert sips_on(graph, RoutePlanner(graph).route("sip0.io_cpu", "sip2.io_cpu", via_port="W")) == [0, 1, 2]


def test_ties_are_broken_east_first(compiled: Compile) -> None:
    graph = compiled("system.sips={count: 9, topology: mesh_2d_no_wrap}", *SMALL).topology_obj
    planner = RoutePlanner(graph)
    assert sips_on(graph, planner.route("sip0.io_cpu", "sip8.io_cpu")) == [0, 1, 2, 5, 8]
    assert sips_on(graph, planner.route("sip8.io_cpu", "sip0.io_cpu")) == [8, 7, 6, 3, 0]


def test_a_one_way_ring_goes_round(compiled: Compile) -> None:
    graph = compiled("system.sips={count: 4, topology: ring_1d_unidir}", *SMALL).topology_obj
    assert sips_on(graph, RoutePlanner(graph).route("sip1.io_cpu", "sip0.io_cpu")) == [1, 2, 3, 0]


def test_without_scale_up_links_the_switch_serves(compiled: Compile) -> None:
    graph = compiled("system.sips={count: 3, topology: switch}", *SMALL).topology_obj
    route = RoutePlanner(graph).route("sip0.cube0.sram", "sip2.cube1.sram")
    assert "sip0.io_noc sip0.pcie_ep switch sip2.pcie_ep sip2.io_noc" in written(route)
    assert RoutePlanner(graph).route("sip0.pcie_ep", "sip1.io_cpu") == (
        "sip0.pcie_ep",
        "switch",
        "sip1.pcie_ep",
        "sip1.io_noc",
        "sip1.io_cpu",
    )


def test_a_sip_without_way_has_none(compiled: Compile) -> None:
    routes = SipRoutes(compiled("system.sips={count: 2, topology: switch}").spec.system.sips)
    assert routes.between(0, 1) is None
    assert routes.between(0, 0) == ()


def test_an_unknown_node_is_named(planner: RoutePlanner) -> None:
    with pytest.raises(UnknownNameError, match=r"sip0\.cube99\.sram"):
        planner.route("host", "sip0.cube99.sram")


def machines() -> st.SearchStrategy[tuple[str, ...]]:
    sips = st.sampled_from(
        [
            "{count: 1, topology: ring_1d}",
            "{count: 2, topology: ring_1d}",
            "{count: 3, topology: ring_1d_unidir}",
            "{count: 6, topology: torus_2d, w: 3, h: 2}",
            "{count: 6, topology: mesh_2d_no_wrap, w: 2, h: 3}",
            "{count: 4, topology: fully_connected}",
            "{count: 3, topology: switch}",
        ]
    )
    size = st.integers(1, 3)
    corners = st.lists(st.sampled_from(["NW", "NE", "SW", "SE"]), min_size=1, max_size=4, unique=True)

    def build(
        sips: str, w: int, h: int, x: int, y: int, edge: str, corners: list[str], per: int, k: int
    ) -> tuple[str, ...]:
        return (
            f"system.sips={sips}",
            f"sip.cube_mesh={{w: {w}, h: {h}}}",
            f"cube.noc.w={x}",
            f"cube.noc.h={y}",
            f"sip.io_chiplet.edge={edge}",
            f"cube.pe_layout={{pe_per_corner: {per}, corners: [{', '.join(corners)}]}}",
            f"cube.hbm.slices={k * len(corners)}",
        )

    return st.builds(build, sips, size, size, size, size, st.sampled_from("NSWE"), corners, size, size)


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(machines(), st.data())
def test_on_any_machine_routes_are_sound(compiled: Compile, machine: tuple[str, ...], data: st.DataObject) -> None:
    graph = compiled(*machine).topology_obj
    planner = RoutePlanner(graph)
    nodes = st.sampled_from(list(graph.nodes))
    for _ in range(20):
        src, dst = data.draw(nodes), data.draw(nodes)
        route = planner.route(src, dst)
        assert (route[0], route[-1]) == (linked(graph, src), linked(graph, dst))
        assert all(graph.has_edge(a, b) for a, b in pairwise(route))
        assert len(set(route)) == len(route)
        _turns_at_most_once_in_a_cube(graph, route)


def linked(graph: Graph, name: str) -> str:
    """A part with links of its own, or the DMA of its PE."""
    return name if graph.out_edges(name) else f"{name.rpartition('.')[0]}.pe_dma"


def _turns_at_most_once_in_a_cube(graph: Graph, route: tuple[str, ...]) -> None:
    """XY: within a cube no step along Y comes before a step along X."""
    routers = [graph.node(name) for name in route if graph.node(name).xy is not None]
    for a, b, c in zip(routers, routers[1:], routers[2:], strict=False):
        if (a.sip, a.cube) == (b.sip, b.cube) == (c.sip, c.cube):
            assert _along_x(a, b) or not _along_x(b, c)


def _along_x(a: Node, b: Node) -> bool:
    assert a.xy is not None
    assert b.xy is not None
    return a.xy[1] == b.xy[1]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(machines())
def test_on_any_machine_the_local_slice_needs_no_router(compiled: Compile, machine: tuple[str, ...]) -> None:
    graph = compiled(*machine).topology_obj
    planner = RoutePlanner(graph)
    for sip, cube, pe in graph.pes():
        name = f"sip{sip}.cube{cube}"
        route = planner.route(f"{name}.pe{pe}.pe_dma", f"{name}.hbm{graph.local_slice(pe)}")
        assert kinds(graph, route) == {"pe_dma", "xbar", "hbm_ctrl"}


@given(st.tuples(st.integers(0, 9), st.integers(0, 9)), st.tuples(st.integers(0, 9), st.integers(0, 9)))
def test_xy_is_shortest(src: tuple[int, int], dst: tuple[int, int]) -> None:
    cells = list(xy_cells(src, dst))
    assert (cells[0], cells[-1]) == (src, dst)
    assert len(cells) == 1 + abs(src[0] - dst[0]) + abs(src[1] - dst[1])
