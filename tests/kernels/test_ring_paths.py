"""Rings of PEs through cubes: their order, their length, and the links that they use."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from compiled import compiled
from kernbench.kernels.ring_paths import CubeForm, CubeRing, block_counts, distance, order_cells, plan_rings
from kernbench.policy.routing.planner import RoutePlanner
from kernbench.topology.grid import Grid

MESHES = [(w, h) for w in range(1, 7) for h in range(1, 7)]


def length_of(ring):
    return sum(distance(a, b) for a, b in zip(ring, [*ring[1:], ring[0]], strict=True))


@pytest.mark.parametrize(("w", "h"), [*MESHES, (16, 16)])
def test_a_ring_of_cubes_is_as_short_as_can_be(w, h):
    cells = [(x, y) for y in range(h) for x in range(w)]
    ring = order_cells(cells)
    assert sorted(ring) == sorted(cells)
    if min(w, h) == 1:
        assert length_of(ring) == 2 * (w * h - 1)
        assert max(distance(a, b) for a, b in zip(ring, [*ring[1:], ring[0]], strict=True)) <= 2
    else:
        assert length_of(ring) == w * h + w * h % 2


@pytest.mark.parametrize("n", range(2, 17))
def test_the_first_cubes_of_a_mesh_form_a_ring(n):
    grid = Grid(4, 4)
    cells = [grid.xy(cube) for cube in range(n)]
    ring = order_cells(cells)
    assert sorted(ring) == sorted(cells)
    assert length_of(ring) <= n + 3


def test_blocks_have_complete_rows_of_the_mesh():
    assert block_counts(Grid(4, 4), 16) == [1, 2, 4]
    assert block_counts(Grid(4, 4), 6) == [1]
    assert block_counts(Grid(4, 1), 4) == [1, 2]


def hops(block: CubeRing):
    for ring in block.rings:
        for place, after in zip(ring, [*ring[1:], ring[0]], strict=True):
            yield f"sip0.cube{place.cube}.pe{place.pe}.pe_dma", f"sip0.cube{after.cube}.pe{after.pe}.pe_dma"


def uses_of_links(topology, block: CubeRing):
    """Return how often the hops of both rings use each directed link inside a cube."""
    planner = RoutePlanner(topology.topology_obj)
    return Counter(
        link
        for src, dst in hops(block)
        for link in pairwise(planner.route(src, dst))
        if link[0].split(".")[1] == link[1].split(".")[1]
    )


def rings_of(topology, pes=8):
    spec = topology.spec
    return plan_rings(spec.sip.cube_mesh.grid, CubeForm.of(spec.cube, pes), spec.cubes_per_sip)[0]


# On a line, or in a mesh of an odd number of cubes, some rings pass through a cube between others.
@pytest.mark.parametrize(("w", "h"), [(2, 2), (3, 2), (4, 3), (4, 4), (5, 4)])
def test_no_link_of_a_cube_is_used_twice(w, h):
    topology = compiled("system.sips.count=1", f"sip.cube_mesh.w={w}", f"sip.cube_mesh.h={h}")
    block = rings_of(topology)
    assert {(place.cube, place.pe) for ring in block.rings for place in ring} == {
        (cube, pe) for cube in range(w * h) for pe in range(8)
    }
    assert max(uses_of_links(topology, block).values()) == 1


@pytest.mark.parametrize(("w", "h"), [(1, 2), (4, 1), (3, 3), (5, 5)])
def test_links_are_used_twice_only_where_rings_pass_a_cube_by(w, h):
    topology = compiled("system.sips.count=1", f"sip.cube_mesh.w={w}", f"sip.cube_mesh.h={h}")
    uses = uses_of_links(topology, rings_of(topology))
    cubes_with_two = {link[0].split(".")[1] for link, count in uses.items() if count > 1}
    assert max(uses.values()) <= 2
    assert len(cubes_with_two) <= (w * h if min(w, h) == 1 else 3)


@pytest.mark.parametrize("pes", range(1, 9))
def test_any_number_of_pes_has_part_in_a_ring(pes):
    topology = compiled("system.sips.count=1", "sip.cube_mesh.w=2", "sip.cube_mesh.h=2")
    block = rings_of(topology, pes)
    assert len(block.rings) == (1 if pes % 2 else 2)
    for ring in block.rings:
        for cube in range(4):
            assert sorted(place.part for place in ring if place.cube == cube) == list(range(block.parts))
