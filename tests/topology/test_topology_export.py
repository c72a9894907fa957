"""Tables, JSON, DOT and pictures of a machine."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

from kernbench.topology.builder import Topology
from kernbench.topology.drawing.canvas import round_length
from kernbench.topology.drawing.figure import draw, to_png, to_svg
from kernbench.topology.drawing.shapes import host_cables, scale_up_cables
from kernbench.topology.export import link_rows, machine_document, machine_rows, part_rows, to_dot
from kernbench.topology.geometry import MachineGeometry, Rect

Compile = Callable[..., Topology]
TINY = ("system.sips.count=1", "sip.cube_mesh={w: 1, h: 1}")


def test_rows_add_up_to_the_graph(compiled: Compile) -> None:
    graph = compiled().topology_obj
    assert sum(row.parts for row in part_rows(graph)) == len(graph.nodes)
    assert sum(row.links for row in link_rows(graph)) == len(graph.edges)
    assert [row.place for row in part_rows(graph) if row.kind == "ucie"] == ["sip", "cube"]
    cables = next(row for row in link_rows(graph) if row.link_class == "sip_to_sip")
    assert (cables.links, cables.length_mm, cables.fifo_bytes) == (4, (100.0, 100.0), None)
    assert dict(machine_rows(compiled()))["PEs"] == "256, 8 a cube"


def test_json_holds_the_machine(compiled: Compile) -> None:
    topology = compiled(*TINY)
    document = machine_document(topology)
    assert len(document["nodes"]) == len(topology.topology_obj.nodes)
    assert len(document["edges"]) == len(topology.topology_obj.edges)
    assert document["digest"] == topology.digest
    assert document["config"]["cube"]["hbm"]["slices"] == 8
    xbar = next(node for node in document["nodes"] if node["id"] == "sip0.cube0.xbar_NE")
    assert xbar["side"] == "NE"
    assert xbar["attrs"] == {"overhead_ns": 2.0}


@pytest.mark.parametrize("sips", ["{count: 2, topology: ring_1d}", "{count: 3, topology: ring_1d_unidir}"])
def test_dot_has_every_node_once_in_balanced_clusters(compiled: Compile, sips: str) -> None:
    topology = compiled(f"system.sips={sips}", "sip.cube_mesh={w: 2, h: 1}")
    text = to_dot(topology)
    assert text.count("{") == text.count("}")
    for name in topology.topology_obj.nodes:
        assert text.count(f'"{name}" [label') == 1
    one_way = text.count("dir=forward")
    assert one_way == (3 if "unidir" in sips else 0)
    assert 2 * text.count("dir=both") + one_way == len(topology.topology_obj.edges)


def test_svg_is_well_formed_and_the_same_every_time(compiled: Compile) -> None:
    first = to_svg(compiled(*TINY))
    assert first == to_svg(compiled(*TINY))
    assert ET.fromstring(first).tag.endswith("svg")
    assert "HBM 7" in first
    assert "cables are not to scale" in first


def test_png_is_a_png(compiled: Compile) -> None:
    assert to_png(compiled(*TINY), dpi=40).startswith(b"\x89PNG")


SHAPES = [
    "{count: 6, topology: torus_2d, w: 3, h: 2}",
    "{count: 4, topology: mesh_2d_no_wrap}",
    "{count: 5, topology: fully_connected}",
    "{count: 6, topology: ring_1d_unidir}",
    "{count: 6, topology: ring_1d}",
]


@pytest.mark.parametrize("edge", "NSWE")
@pytest.mark.parametrize("sips", SHAPES)
def test_cables_run_between_the_sips(compiled: Compile, sips: str, edge: str) -> None:
    """No cable crosses a cube."""
    graph = compiled(f"system.sips={sips}", "sip.cube_mesh={w: 2, h: 1}", f"sip.io_chiplet.edge={edge}").topology_obj
    geometry = MachineGeometry(graph.spec)
    cubes = [geometry.cube_rect(geometry.sip(s), c) for s in range(graph.spec.num_sips) for c in range(2)]
    paths = [*(cable.path for cable in scale_up_cables(graph)), *host_cables(graph)]
    assert len(paths) > graph.spec.num_sips
    for path in paths:
        for a, b in pairwise(path):
            assert a[0] == pytest.approx(b[0]) or a[1] == pytest.approx(b[1])
            assert not any(_crosses(rect, a, b) for rect in cubes)


RINGS_AND_TORI = [
    "{count: 2, topology: ring_1d}",
    "{count: 16, topology: ring_1d}",
    "{count: 5, topology: ring_1d_unidir}",
    "{count: 16, topology: torus_2d}",
    "{count: 6, topology: torus_2d, w: 2, h: 3}",
]
LEAST_GAP_MM = 0.3
"""Between the middles of cables side by side: a millimetre is 3 points or more, a cable 2 points wide or less."""


@pytest.mark.parametrize("edge", "NSWE")
@pytest.mark.parametrize("sips", RINGS_AND_TORI)
def test_no_two_cables_merge(compiled: Compile, sips: str, edge: str) -> None:
    """Cables may cross; none runs along another, nor along one to the host."""
    graph = compiled(f"system.sips={sips}", "sip.cube_mesh={w: 2, h: 1}", f"sip.io_chiplet.edge={edge}").topology_obj
    between = [cable.path for cable in scale_up_cables(graph)]
    lines = [[tuple(_straight(path)) for path in paths] for paths in (between, list(host_cables(graph)))]
    for number, one in enumerate(lines[0]):
        for other in [*lines[0][:number], *lines[1]]:
            assert not [(a, b) for a in one for b in other if _runs_along(a, b)]


Straight = tuple[bool, float, float, float]


def _straight(path: tuple[tuple[float, float], ...]) -> Iterator[Straight]:
    """Yield the pieces of a path: whether upright, where, from where to where."""
    for (x0, y0), (x1, y1) in pairwise(path):
        if abs(y1 - y0) > abs(x1 - x0):
            yield True, x0, min(y0, y1), max(y0, y1)
        else:
            yield False, y0, min(x0, x1), max(x0, x1)


def _runs_along(a: Straight, b: Straight) -> bool:
    shared = min(a[3], b[3]) - max(a[2], b[2])
    return a[0] == b[0] and abs(a[1] - b[1]) < LEAST_GAP_MM and shared > LEAST_GAP_MM


def _crosses(rect: Rect, a: tuple[float, float], b: tuple[float, float]) -> bool:
    """True when an upright or level line enters a rectangle."""
    left, right = sorted((a[0], b[0]))
    top, bottom = sorted((a[1], b[1]))
    return left < rect.x + rect.w and right > rect.x and top < rect.y + rect.h and bottom > rect.y


@pytest.mark.parametrize("overrides", [("cube.noc.w=1", "cube.noc.h=1"), ("cube.pe_layout.corners=[SE]",)])
def test_odd_cubes_can_be_drawn(compiled: Compile, overrides: tuple[str, ...]) -> None:
    assert draw(compiled(*TINY, *overrides)).axes


@pytest.mark.parametrize(
    ("limit", "length"), [(0.3, 0.2), (1.0, 1.0), (2.6, 2.0), (9.9, 5.0), (23.0, 20.0), (730.0, 500.0)]
)
def test_scale_bars_have_round_lengths(limit: float, length: float) -> None:
    assert round_length(limit) == pytest.approx(length)
