"""The machine on which times are asserted: no figure on it can be taken for another, and each is where it belongs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from kernbench.common.units import parse_size
from kernbench.topology.builder import topology_file
from skewed import FILE, kind_of, link_between, overhead_ns, skewed

UNITS = ("_ns", "_gbs", "_mm", "per_ns", "bytes")


def numbers(document: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], float]]:
    """Every number of a file, sizes in bytes."""
    if isinstance(document, dict):
        for key, value in document.items():
            yield from numbers(value, (*path, key))
    elif path[-1] == "bytes" or path[-1].endswith(("_bytes", "bytes_per_slice")):
        if document is not None:
            yield path, parse_size(document)
    elif isinstance(document, int | float) and not isinstance(document, bool):
        yield path, document


@pytest.fixture(scope="module")
def figures() -> tuple[dict[tuple[str, ...], float], dict[tuple[str, ...], float]]:
    """Those of the default machine, and the skewed one's."""
    with open(topology_file("default")) as usual, FILE.open() as odd:
        return dict(numbers(yaml.safe_load(usual))), dict(numbers(yaml.safe_load(odd)))


def test_every_figure_differs_from_the_default(figures: Any) -> None:
    default, odd = figures
    assert [".".join(path) for path, value in default.items() if odd.get(path, value) == value] == []


def test_no_two_figures_of_a_unit_are_equal(figures: Any) -> None:
    """Counts have no unit: they differ within their section."""
    groups: defaultdict[tuple[str, float], list[str]] = defaultdict(list)
    for path, value in figures[1].items():
        unit = next((u for u in UNITS if any(key.endswith(u) for key in path[-2:])), path[0])
        groups[unit, value].append(".".join(path))
    assert [paths for paths in groups.values() if len(paths) > 1] == []


def test_no_mesh_is_square() -> None:
    spec = skewed().spec
    assert spec.sip.cube_mesh.w != spec.sip.cube_mesh.h
    assert spec.cube.noc.w != spec.cube.noc.h
    assert spec.pe.tcm.read_bw_gbs != spec.pe.tcm.write_bw_gbs


def test_every_node_and_link_has_the_figures_of_its_name() -> None:
    machine = skewed()
    graph = machine.topology_obj
    outside_pes = [node for node in graph.nodes.values() if not node.kind.startswith("pe_") or node.kind == "pe_dma"]
    for node in outside_pes:
        if kind_of(node.id) not in ("io_cpu", "m_cpu"):
            assert node.attrs.overhead_ns == overhead_ns(machine, node.id), node.id
    for edge in graph.edges:
        link = link_between(machine, edge.src, edge.dst)
        assert (edge.bw_gbs, edge.overhead_ns) == (link.bw_gbs, link.overhead_ns), edge
        assert link.length_mm in (None, edge.length_mm), edge
