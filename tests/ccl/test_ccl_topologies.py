"""Who is whose neighbour, for every topology, and which PEs ranks are."""

from __future__ import annotations

import pytest
from ccl_support import by_source, config, machine, sips
from hypothesis import given
from hypothesis import strategies as st

from kernbench.ccl.layouts import leader_only, rank_pes
from kernbench.ccl.topologies import (
    TOPOLOGIES,
    fabric_edges,
    hierarchical_3level,
    intercube,
    mesh_2d_no_wrap,
    none,
    rank_grid,
    ranks_of,
    ring_1d,
    ring_1d_unidir,
    torus_2d,
    tree_binary,
)
from kernbench.common.errors import InputError, UnknownNameError

DEFAULT = machine().spec
RANKED = ("ring_1d", "ring_1d_unidir", "torus_2d", "mesh_2d_no_wrap", "tree_binary")


def neighbours(function, n: int, **values: object) -> dict[int, dict[str, int]]:
    """By rank, where ranks are the first n PEs of the default machine."""
    edges = by_source(function(DEFAULT, config(world_size=n, passthrough=tuple(values.items()))))
    rank = {pes[0]: r for r, pes in enumerate(ranks_of(DEFAULT, config(world_size=n)))}
    return {rank[src]: {direction: rank[dst] for direction, dst in out.items()} for src, out in edges.items()}


def test_as_many_ranks_as_sips_are_sips() -> None:
    assert ranks_of(DEFAULT, config()) == (((0, 0, 0),), ((1, 0, 0),))
    every = ranks_of(DEFAULT, config(mapper="pe0_of_every_cube"))
    assert every[1] == tuple((1, cube, 0) for cube in range(16))
    assert len(ranks_of(DEFAULT, config(mapper="all_pes"))[0]) == 128


def test_any_other_number_of_ranks_are_pes_in_order() -> None:
    ranks = ranks_of(DEFAULT, config(world_size=130, mapper="all_pes"))
    assert [ranks[r] for r in (0, 7, 8, 127, 128, 129)] == [
        ((0, 0, 0),), ((0, 0, 7),), ((0, 1, 0),), ((0, 15, 7),), ((1, 0, 0),), ((1, 0, 1),)
    ]  # fmt: skip


@pytest.mark.parametrize("n", [0, 257])
def test_a_world_that_the_machine_has_not_names_the_limit(n: int) -> None:
    with pytest.raises(InputError, match=rf"world_size={n}: .* this machine has 256"):
        rank_pes(DEFAULT, n, leader_only)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ([], "names no PE for rank 0"),
        ([(0, 0), (0, 0)], "names a PE twice for rank 0"),
        ([(16, 0)], "names PE 0 of cube 16 for rank 0; .* 0..15"),
    ],
)
def test_a_mapper_names_pes_that_exist(answer: list[tuple[int, int]], says: str) -> None:
    def mine(topology: object, rank: int) -> list[tuple[int, int]]:
        return answer

    with pytest.raises(InputError, match=f"mapper mine {says}"):
        rank_pes(DEFAULT, 2, mine)


def test_an_unknown_mapper_lists_the_known() -> None:
    with pytest.raises(UnknownNameError, match="there are: leader_only, all_pes, pe0_of_every_cube"):
        ranks_of(DEFAULT, config(mapper="leader"))


def test_a_ring() -> None:
    assert neighbours(ring_1d, 3) == {0: {"E": 1, "W": 2}, 1: {"E": 2, "W": 0}, 2: {"E": 0, "W": 1}}


def test_a_ring_of_two_sips_has_both_directions() -> None:
    assert by_source(ring_1d(DEFAULT, config())) == {
        (0, 0, 0): {"E": (1, 0, 0), "W": (1, 0, 0)},
        (1, 0, 0): {"E": (0, 0, 0), "W": (0, 0, 0)},
    }


def test_a_ring_joins_the_same_pes_of_ranks_that_have_several() -> None:
    edges = by_source(ring_1d(DEFAULT, config(mapper="all_pes")))
    assert len(edges) == 256
    assert edges[0, 3, 5] == {"E": (1, 3, 5), "W": (1, 3, 5)}


def test_a_one_way_ring() -> None:
    assert neighbours(ring_1d_unidir, 3) == {0: {"E": 1}, 1: {"E": 2}, 2: {"E": 0}}
    assert ring_1d_unidir(DEFAULT, config()) == ring_1d(DEFAULT, config())


def test_a_torus() -> None:
    found = neighbours(torus_2d, 6, kernel_w=3)
    assert found[0] == {"E": 1, "W": 2, "N": 3, "S": 3}
    assert found[5] == {"E": 3, "W": 4, "N": 2, "S": 2}


def test_a_torus_of_one_row_has_no_north() -> None:
    assert neighbours(torus_2d, 4, kernel_h=1)[0] == {"E": 1, "W": 3}


def test_a_mesh_ends_at_its_border() -> None:
    found = neighbours(mesh_2d_no_wrap, 9)
    assert found[0] == {"E": 1, "S": 3}
    assert found[4] == {"E": 5, "W": 3, "N": 1, "S": 7}
    assert found[8] == {"W": 7, "N": 5}


def test_ranks_that_are_sips_take_the_grid_of_the_sips() -> None:
    edges = by_source(mesh_2d_no_wrap(sips(6, "torus_2d", 3, 2), config()))
    assert edges[4, 0, 0] == {"E": (5, 0, 0), "W": (3, 0, 0), "N": (1, 0, 0)}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "6 ranks are no square; give the algorithm kernel_w and kernel_h with kernel_w x kernel_h = 6"),
        ({"kernel_w": 4}, r"kernel_w x kernel_h = 4 x 1 is not 6"),
        ({"kernel_w": 2, "kernel_h": 2}, r"kernel_w x kernel_h = 2 x 2 is not 6"),
        ({"kernel_h": "3"}, "kernel_h='3': must be a whole number"),
        ({"kernel_w": 0}, "kernel_w=0: must be a whole number, at least 1"),
    ],
)
def test_ranks_that_form_no_rectangle_are_told_so(given: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        rank_grid(6, **given)  # type: ignore[arg-type]


def test_a_tree() -> None:
    assert neighbours(tree_binary, 4) == {
        0: {"child_left": 1, "child_right": 2},
        1: {"parent": 0, "child_left": 3},
        2: {"parent": 0},
        3: {"parent": 1},
    }


def test_the_three_levels_of_sips() -> None:
    edges = by_source(hierarchical_3level(sips(4), config(mapper="all_pes")))
    assert edges[0, 0, 0] == {
        "E": (0, 0, 1), "W": (0, 0, 3), "S": (0, 1, 0), "N": (0, 1, 0),
        "child_left": (1, 0, 0), "child_right": (2, 0, 0),
    }  # fmt: skip
    assert edges[3, 0, 0]["parent"] == (1, 0, 0)
    assert edges[3, 1, 0] == {"E": (3, 1, 1), "W": (3, 1, 3), "S": (3, 0, 0), "N": (3, 0, 0)}
    assert edges[3, 1, 3] == {"E": (3, 1, 0), "W": (3, 1, 2)}


def test_the_three_levels_of_pes() -> None:
    assert neighbours(hierarchical_3level, 3)[2] == {"E": 0, "W": 1}
    assert neighbours(hierarchical_3level, 16)[8] == {"E": 9, "W": 15, "S": 0, "N": 0}
    assert neighbours(hierarchical_3level, 256)[128]["parent"] == 0
    with pytest.raises(InputError, match="9 PEs fill no whole cubes"):
        neighbours(hierarchical_3level, 9)
    with pytest.raises(InputError, match="136 PEs fill no whole SIPs"):
        neighbours(hierarchical_3level, 136)


@given(st.integers(1, 16))
def test_every_sip_of_a_hierarchy_leads_to_the_first(count: int) -> None:
    edges = by_source(hierarchical_3level(sips(count), config(mapper="all_pes")))
    for sip in range(count):
        at = (sip, 0, 0)
        while "parent" in edges[at]:
            up = edges[at]["parent"]
            assert at in (edges[up].get("child_left"), edges[up].get("child_right"))
            at = up
        assert at == (0, 0, 0)


def test_cubes_and_sips() -> None:
    edges = by_source(intercube(DEFAULT, config()))
    assert set(edges) == {(sip, cube, 0) for sip in range(2) for cube in range(16)}
    beyond = {"global_E", "global_W"}
    assert set(edges[0, 0, 0]) == {"E", "S"} | beyond
    assert set(edges[1, 5, 0]) == {"E", "W", "N", "S"} | beyond
    assert set(edges[0, 15, 0]) == {"N", "W"} | beyond
    assert edges[0, 5, 0]["N"] == (0, 1, 0)
    assert edges[0, 5, 0]["global_W"] == (1, 5, 0)


@pytest.mark.parametrize("kind", ["fully_connected", "switch"])
def test_sips_without_sides_form_a_ring(kind: str) -> None:
    edges = by_source(intercube(sips(3, kind), config()))
    assert edges[0, 1, 0] == {"W": (0, 0, 0), "global_E": (1, 1, 0), "global_W": (2, 1, 0)}


def test_sips_in_a_mesh_have_no_neighbour_beyond_it() -> None:
    edges = by_source(intercube(sips(4, "mesh_2d_no_wrap"), config()))
    assert edges[0, 0, 0] == {"E": (0, 1, 0), "global_E": (1, 0, 0), "global_S": (2, 0, 0)}


def test_ranks_of_intercube_are_sips() -> None:
    with pytest.raises(InputError, match="intercube: world_size=4, but its ranks are the SIPs"):
        intercube(DEFAULT, config(world_size=4))


def test_none() -> None:
    assert none(DEFAULT, config()) == []


@pytest.mark.parametrize("name", sorted(TOPOLOGIES))
def test_one_rank_has_no_neighbours_among_ranks(name: str) -> None:
    edges = TOPOLOGIES[name](sips(1), config())
    assert all(src[0] == dst[0] and src != dst for src, _, dst in edges)
    if name in RANKED:
        assert edges == []


@given(st.sampled_from(RANKED), st.integers(1, 5), st.integers(1, 4))
def test_no_rank_is_its_own_neighbour_and_every_one_is_reached(name: str, w: int, h: int) -> None:
    found = neighbours(TOPOLOGIES[name], w * h, kernel_w=w, kernel_h=h)
    assert all(rank != peer for rank, out in found.items() for peer in out.values())
    reached, fresh = {0}, {0}
    while fresh:
        fresh = {peer for rank in fresh for peer in found.get(rank, {}).values()} - reached
        reached |= fresh
    assert reached == set(range(w * h))


def test_fabric_edges_reach_every_sip_from_every_pe() -> None:
    spec = sips(4)
    edges = by_source(fabric_edges(spec))
    assert len(edges) == spec.num_pes
    assert edges[1, 1, 3] == {
        "global_E": (2, 1, 3), "global_W": (0, 1, 3), "sip0": (0, 1, 3), "sip2": (2, 1, 3), "sip3": (3, 1, 3)
    }  # fmt: skip
    assert fabric_edges(sips(1)) == []
