"""The compiled machine against the wiring it must have."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from itertools import product
from pathlib import Path

import pytest
import yaml

from bare_machines import bare_registry
from kernbench.common.config import parse_document
from kernbench.common.dtypes import dtype
from kernbench.common.errors import UnknownNameError
from kernbench.common.ids import pe_part
from kernbench.di.part import PE_KINDS
from kernbench.di.registry import Registry
from kernbench.topology.builder import Topology, compile_topology, resolve_topology, topology_file
from kernbench.topology.geometry import MachineGeometry, manhattan_mm
from kernbench.topology.graph import Graph
from kernbench.topology.spec import fabric_links, sip_neighbours, sip_ports

Compile = Callable[..., Topology]


@pytest.fixture(scope="module")
def graph(compiled: Compile) -> Graph:
    return compiled().topology_obj


def ends(graph: Graph, link_class: str) -> set[tuple[str, str]]:
    return {(e.src, e.dst) for e in graph.edges if e.link_class == link_class}


def test_the_default_machine_has_the_parts_of_the_specification(graph: Graph) -> None:
    spec = graph.spec
    assert (spec.num_sips, spec.cubes_per_sip, spec.pes_per_cube, spec.num_pes) == (2, 16, 8, 256)
    assert graph.count_of_kinds() == {
        "host": 1,
        "switch": 1,
        "pcie_ep": 2,
        "io_cpu": 2,
        "io_noc": 2,
        "sip_port": 4,
        "ucie": 2 * 4 + 32 * 4,
        "noc_router": 32 * 16,
        "xbar": 32 * 4,
        "hbm_ctrl": 256,
        "m_cpu": 32,
        "sram": 32,
        **dict.fromkeys(PE_KINDS, 256),
    }
    beside_refresh = 1 - (350 + 16.3 + 19.4 + 0.7 * 45) / 3900
    assert spec.cube.slice_bw_gbs == pytest.approx(8 * 25.6 * beside_refresh)
    assert spec.hbm_bytes_per_sip == 16 * 8 * 6 * 2**30


def test_times_of_a_pe_follow_from_its_numbers(compiled: Compile) -> None:
    changes = ("pe.dma.setup_ns=1.3", "pe.tcm.write_bw_gbs=256", "pe.math.startup_ns=0.5")
    graph = compiled(*changes).topology_obj
    spec = graph.spec
    pe, cube = spec.pe, spec.cube
    assert pe.dma.setup_ps == 1300
    assert (pe.tcm.read_ps(1024), pe.tcm.write_ps(1024)) == (2000, 4000)
    assert [pe.gemm.tile_ps(dtype(name)) for name in ("f32", "f16", "i8")] == [64_000, 16_000, 8_000]
    assert (pe.math.operation_ns(64), pe.math.operation_ps(64)) == (0.75, 750)
    assert pe.components.pe_cpu.attrs.first_issue_ps == 6000
    assert pe.components.pe_scheduler.attrs.issue_ps == 1000
    assert (graph.sram_bw_gbs("sip0.cube0.sram"), cube.hbm.round_bytes) == (256, 2048)
    assert (spec.quantum_packets, spec.wire_ns(3.0)) == (2, pytest.approx(0.03))


def test_every_edge_has_its_opposite_and_known_ends(graph: Graph) -> None:
    pairs = {(e.src, e.dst) for e in graph.edges}
    assert len(pairs) == len(graph.edges)
    assert {(b, a) for a, b in pairs} == pairs
    assert {name for pair in pairs for name in pair} <= set(graph.nodes)


def test_the_cube_is_wired_as_specified(graph: Graph) -> None:
    c = "sip1.cube5."
    neighbours = {name: {e.dst for e in graph.out_edges(c + name)} for name in ("xbar_SE", "r1_1", "r2_2", "r0_0")}
    assert neighbours["xbar_SE"] == {
        c + name for name in ("r3_3", "hbm6", "hbm7", "pe6.pe_dma", "pe6.pe_cpu", "pe7.pe_dma", "pe7.pe_cpu")
    }
    assert neighbours["r1_1"] == {c + name for name in ("r0_1", "r2_1", "r1_0", "r1_2", "m_cpu")}
    assert neighbours["r2_2"] == {c + name for name in ("r1_2", "r3_2", "r2_1", "r2_3", "sram")}
    assert neighbours["r0_0"] == {c + name for name in ("r1_0", "r0_1", "xbar_NW")}


def test_ucie_stands_at_the_middle_of_each_edge(graph: Graph) -> None:
    c = "sip0.cube5."
    at = {c + "ucie_N": "r2_0", c + "ucie_S": "r2_3", c + "ucie_W": "r0_2", c + "ucie_E": "r3_2"}
    for name, router in at.items():
        assert c + router in {e.dst for e in graph.out_edges(name)}
    assert ("sip0.cube5.ucie_E", "sip0.cube6.ucie_W") in ends(graph, "cube_to_cube")
    assert ("sip0.cube5.ucie_S", "sip0.cube9.ucie_N") in ends(graph, "cube_to_cube")
    assert len(graph.out_edges("sip0.cube0.ucie_W")) == 1


@pytest.mark.parametrize(
    ("edge", "cubes", "side"), [("N", (0, 1, 2), "N"), ("S", (3, 4, 5), "S"), ("W", (0, 3), "W"), ("E", (2, 5), "E")]
)
def test_the_io_chiplet_reaches_its_edge(compiled: Compile, edge: str, cubes: tuple[int, ...], side: str) -> None:
    graph = compiled("sip.cube_mesh={w: 3, h: 2}", f"sip.io_chiplet.edge={edge}").topology_obj
    assert {pair for pair in ends(graph, "io_to_cube") if pair[0].startswith("sip0.io")} == {
        (f"sip0.io_ucie_{index}", f"sip0.cube{cube}.ucie_{side}") for index, cube in enumerate(cubes)
    }


def fabric(graph: Graph) -> set[tuple[int, str | int | None, int, str | int | None]]:
    found = set()
    for src, dst in ends(graph, "sip_to_sip"):
        a, b = graph.node(src), graph.node(dst)
        found.add((a.sip, a.side or a.peer, b.sip, b.side or b.peer))
    return found


def test_a_ring_of_two_has_two_links(graph: Graph) -> None:
    assert fabric(graph) == {(0, "E", 1, "W"), (1, "W", 0, "E"), (1, "E", 0, "W"), (0, "W", 1, "E")}


SMALL = ("sip.cube_mesh={w: 1, h: 1}", "cube.noc.w=1", "cube.noc.h=1")


def test_a_one_way_ring_sends_by_its_east_ports_only(compiled: Compile) -> None:
    graph = compiled("system.sips={count: 3, topology: ring_1d_unidir}", *SMALL).topology_obj
    assert fabric(graph) == {(0, "E", 1, "W"), (1, "E", 2, "W"), (2, "E", 0, "W")}
    assert graph.count_of_kinds()["sip_port"] == 6


def test_a_torus_wraps_and_a_mesh_does_not(compiled: Compile) -> None:
    torus = compiled("system.sips={count: 6, topology: torus_2d, w: 3, h: 2}", *SMALL).topology_obj
    assert len(fabric(torus)) == 2 * 12
    assert {(2, "E", 0, "W"), (0, "S", 3, "N"), (3, "S", 0, "N")} <= fabric(torus)
    mesh = compiled("system.sips={count: 6, topology: mesh_2d_no_wrap, w: 3, h: 2}", *SMALL).topology_obj
    assert len(fabric(mesh)) == 2 * 7
    assert sip_neighbours(mesh.spec.system.sips, 4) == {"E": 5, "W": 3, "N": 1}


def test_a_torus_one_wide_has_no_links_there(compiled: Compile) -> None:
    graph = compiled("system.sips={count: 3, topology: torus_2d, w: 1, h: 3}", *SMALL).topology_obj
    assert {side for _, side, _, _ in fabric(graph)} == {"N", "S"}


def test_fully_connected_has_a_port_per_peer_and_a_switch_has_none(compiled: Compile) -> None:
    full = compiled("system.sips={count: 4, topology: fully_connected}", *SMALL).topology_obj
    assert fabric(full) == {(a, b, b, a) for a, b in product(range(4), range(4)) if a != b}
    assert [port.peer for port in sip_ports(full.spec.system.sips, 2)] == [0, 1, 3]
    for sips in ("{count: 4, topology: switch}", "{count: 1, topology: ring_1d}", "{count: 1, topology: torus_2d}"):
        assert fabric(compiled(f"system.sips={sips}", *SMALL).topology_obj) == set()


def test_nodes_carry_their_coordinates(graph: Graph) -> None:
    assert graph.node("sip1.cube6.r3_1").xy == (3, 1)
    assert graph.node("sip1.cube6.xbar_SW").side == "SW"
    assert graph.node("sip1.cube6.hbm5").index == 5
    assert graph.node("sip1.sip_port_0").side == "E"
    assert graph.node("host").sip is None
    for sip, cube, pe in graph.pes():
        node = graph.node(pe_part(sip, cube, pe, "pe_tcm"))
        assert (node.sip, node.cube, node.pe) == (sip, cube, pe)


def test_slices_and_pes_of_a_corner_belong_together(compiled: Compile) -> None:
    for slices, per_corner, corners in ((8, 2, "[NW, NE, SW, SE]"), (4, 4, "[SE, NW]"), (12, 1, "[NE, SW, SE]")):
        layout = f"cube.pe_layout={{pe_per_corner: {per_corner}, corners: {corners}}}"
        graph = compiled(layout, f"cube.hbm.slices={slices}", *SMALL).topology_obj
        for pe in range(graph.spec.pes_per_cube):
            corner = graph.spec.cube.pe_layout.corner_of(pe)
            assert graph.corner_of_slice(graph.local_slice(pe)) == corner
            xbar = f"sip0.cube0.xbar_{corner}"
            assert graph.has_edge(xbar, f"sip0.cube0.hbm{graph.local_slice(pe)}")
            assert graph.has_edge(xbar, f"sip0.cube0.pe{pe}.pe_dma")


def test_lengths_follow_positions_unless_given(compiled: Compile) -> None:
    graph = compiled("cube.links.xbar_to_hbm.length_mm=7.5").topology_obj
    for edge in graph.edges:
        if edge.link_class == "xbar_to_hbm":
            assert edge.length_mm == 7.5
        elif edge.link_class in {"noc", "pe_to_xbar", "router_to_sram", "io_internal"}:
            a, b = graph.node(edge.src).pos_mm, graph.node(edge.dst).pos_mm
            assert edge.length_mm == pytest.approx(manhattan_mm(a, b), abs=1e-5)


def test_positions_lie_within_the_dies(compiled: Compile) -> None:
    for edge, noc in product("NSWE", ((1, 1), (1, 4), (5, 3))):
        overrides = (f"sip.io_chiplet.edge={edge}", f"cube.noc.w={noc[0]}", f"cube.noc.h={noc[1]}")
        graph = compiled("sip.cube_mesh={w: 2, h: 1}", *overrides).topology_obj
        geometry = MachineGeometry(graph.spec)
        for node in (n for n in graph.nodes.values() if n.sip is not None):
            outline = geometry.sip(node.sip or 0)
            rect = outline if node.cube is None else geometry.cube_rect(outline, node.cube)
            assert rect.x <= node.pos_mm[0] <= rect.x + rect.w
            assert rect.y <= node.pos_mm[1] <= rect.y + rect.h


def test_fifos_are_sized_by_transport(compiled: Compile) -> None:
    graph = compiled("transport.fifo_bytes=null", "transport.packet_bytes=512").topology_obj
    assert graph.edge("sip0.cube0.r0_0", "sip0.cube0.r1_0").fifo_bytes == 4 * 512
    assert graph.edge("sip0.cube0.ucie_E", "sip0.cube1.ucie_W").unbounded
    assert graph.edge("sip0.cube0.ucie_E", "sip0.cube1.ucie_W").fifo_bytes is None
    # 200 mm and a PCIe endpoint of 20 ns: 22 ns there and back at 64 GB/s, and four packets.
    assert graph.edge("switch", "sip0.pcie_ep").fifo_bytes == 2 * 22 * 64 + 4 * 512
    fixed = compiled("transport.long_link_fifo_bytes=65536", "cube.links.pe_to_xbar.fifo_bytes=8192").topology_obj
    assert fixed.edge("switch", "sip0.pcie_ep").fifo_bytes == 65536
    assert fixed.edge("sip0.cube0.pe0.pe_dma", "sip0.cube0.xbar_NW").fifo_bytes == 8192


def test_a_hop_costs_the_node_entered_and_the_wire(graph: Graph) -> None:
    assert graph.hop_overhead_ns(graph.edge("sip0.cube0.ucie_E", "sip0.cube1.ucie_W")) == pytest.approx(8.01)
    assert graph.head_ns(("sip0.cube0.ucie_E", "sip0.cube1.ucie_W", "sip0.cube0.ucie_E")) == pytest.approx(16.02)


def test_attrs_are_shared_and_can_differ_between_levels(compiled: Compile) -> None:
    graph = compiled("sip.components.ucie.attrs.overhead_ns=3").topology_obj
    assert graph.node("sip0.io_ucie_0").attrs.overhead_ns == 3.0
    assert graph.node("sip0.cube0.ucie_N").attrs.overhead_ns == 8.0
    assert graph.node("sip0.cube0.ucie_N").attrs is graph.node("sip1.cube9.ucie_E").attrs


def test_unknown_nodes_and_links_say_what_there_is(graph: Graph) -> None:
    with pytest.raises(UnknownNameError, match=r"sip9\.io_cpu"):
        graph.node("sip9.io_cpu")
    with pytest.raises(UnknownNameError, match="there are: switch"):
        graph.edge("host", "sip0.io_noc")


def test_the_smallest_machine_works(compiled: Compile) -> None:
    one = "cube.pe_layout={pe_per_corner: 1, corners: [SE]}"
    graph = compiled("system.sips.count=1", one, "cube.hbm.slices=1", *SMALL).topology_obj
    assert (len(graph.nodes), graph.spec.num_pes) == (24, 1)


def test_the_resolved_file_means_the_same_machine(compiled: Compile, registry: Registry) -> None:
    topology = compiled("system.sips={count: 4, topology: mesh_2d}", "cube.hbm.bytes_per_slice=1GiB")
    again = compile_topology(parse_document(topology.resolved_yaml(), "resolved"), registry)
    assert again.topology_obj == topology.topology_obj
    assert again.digest == topology.digest != compiled().digest
    assert yaml.safe_load(topology.resolved_yaml())["system"]["sips"]["topology"] == "torus_2d"


def test_a_graph_can_be_sent_to_another_process(graph: Graph) -> None:
    assert pickle.loads(pickle.dumps(graph.edges)) == graph.edges


def test_names_of_topologies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert topology_file() == topology_file("default")
    assert topology_file("default").endswith("kernbench/defaults/topology.yaml")
    (tmp_path / "topology.yaml").write_text("")
    assert topology_file() == "topology.yaml"
    assert topology_file(tmp_path / "mine.yaml") == str(tmp_path / "mine.yaml")


def test_the_packaged_machine_is_the_projects(registry: Registry, default_text: str) -> None:
    assert Path(topology_file("default")).read_text() == default_text
    assert resolve_topology("default", ["system.sips.count=3"], registry).spec.num_sips == 3


def digests() -> str:
    """Of the machine's configuration, and of its parts and links in their order."""
    topology = resolve_topology(str(Path(__file__).parents[2] / "topology.yaml"), registry=bare_registry())
    graph = topology.topology_obj
    return f"{topology.digest} {sha256(repr((graph.edges, list(graph.nodes))).encode()).hexdigest()}"


def test_order_does_not_depend_on_the_hash_seed() -> None:
    """Another process, with another seed than this one, compiles the same."""
    here, seed = Path(__file__).parent, "1" if os.environ.get("PYTHONHASHSEED") == "0" else "0"
    paths = (str(here), str(here.parent), str(here.parents[1] / "src"))
    done = subprocess.run(
        [sys.executable, "-c", "from test_topology_graph import digests; print(digests())"],
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == digests()


def test_compiling_is_linear_in_nodes(compiled: Compile) -> None:
    """Python calls a node, which no load of the machine that runs the test can change."""

    def calls_a_node(*overrides: str) -> float:
        calls = 0

        def count(*_: object) -> None:
            nonlocal calls
            calls += 1

        sys.setprofile(count)
        try:
            nodes = len(compiled(*overrides).topology_obj.nodes)
        finally:
            sys.setprofile(None)
        return calls / nodes

    assert calls_a_node("system.sips.count=16") < calls_a_node("system.sips.count=2")


def test_fabric_links_come_in_a_fixed_order(compiled: Compile) -> None:
    sips = compiled("system.sips={count: 4, topology: torus_2d}", *SMALL).spec.system.sips
    keys = [(link.src.sip, link.src.index) for link in fabric_links(sips)]
    assert keys == sorted(keys)


def test_json_of_the_spec_is_plain(compiled: Compile) -> None:
    json.dumps(compiled().spec.model_dump(mode="json"))
