"""The ring over all SIPs: complete, agreed on by both ends, along links wherever there is one."""

from __future__ import annotations

import pytest
from ccl_support import by_source, sips
from hypothesis import given
from hypothesis import strategies as st

from kernbench.ccl.queues import pair_queues
from kernbench.ccl.rings import SipRing, ring_of_all
from kernbench.ccl.topologies import fabric_edges
from kernbench.topology.spec import TopologySpec

KINDS = ("ring_1d", "ring_1d_unidir", "fully_connected", "switch", "torus_2d", "mesh_2d_no_wrap")


def check(spec: TopologySpec) -> int:
    """How many steps of the ring are direct pairs, once it is known to be a ring that both ends agree on."""
    ring = places(spec)
    assert sorted(ring[0].order) == list(range(spec.num_sips))
    edges = by_source(fabric_edges(spec))
    ends = {(e.pe, e.direction): (e.peer, e.peer_direction) for e in pair_queues(fabric_edges(spec), spec)}
    for sip, (place, order) in enumerate(ring):
        assert order == ring[0].order
        assert order[place.place] == sip
        after = order[(place.place + 1) % len(order)]
        assert edges[sip, 0, 0][place.next] == (after, 0, 0)
        assert ends[(sip, 0, 0), place.next] == ((after, 0, 0), ring[after].ring.prev)
    return sum(place.next.startswith("sip") for place, _ in ring)


def places(spec: TopologySpec) -> list[SipRing]:
    """The place of every SIP in the ring."""
    return [ring_of_all(spec, sip) for sip in range(spec.num_sips)]


@given(st.sampled_from(KINDS), st.integers(1, 8), st.integers(1, 8))
def test_it_is_a_ring_that_both_ends_agree_on(kind: str, w: int, h: int) -> None:
    grid = (w, h) if kind in ("torus_2d", "mesh_2d_no_wrap") else (None, None)
    if 1 < w * h <= 16:
        check(sips(w * h, kind, *grid))


@pytest.mark.parametrize("count", [2, 3, 8])
@pytest.mark.parametrize("kind", ["ring_1d", "ring_1d_unidir"])
def test_a_ring_of_sips_is_followed(kind: str, count: int) -> None:
    ring = places(sips(count, kind))
    assert ring[0].order == tuple(range(count))
    assert {(place.next, place.prev) for place, _ in ring} == {("global_E", "global_W")}


@pytest.mark.parametrize(
    ("kind", "w", "h", "direct"),
    [
        ("torus_2d", 2, 2, 0), ("torus_2d", 3, 2, 0), ("torus_2d", 3, 3, 0), ("torus_2d", 5, 3, 0),
        ("torus_2d", 3, 5, 0), ("torus_2d", 5, 1, 0), ("torus_2d", 1, 4, 0),
        ("mesh_2d_no_wrap", 2, 2, 0), ("mesh_2d_no_wrap", 4, 3, 0), ("mesh_2d_no_wrap", 3, 4, 0),
        ("mesh_2d_no_wrap", 3, 3, 1), ("mesh_2d_no_wrap", 4, 1, 1), ("mesh_2d_no_wrap", 2, 1, 0),
    ],
)  # fmt: skip
def test_a_grid_of_sips_is_followed_along_its_links(kind: str, w: int, h: int, direct: int) -> None:
    assert check(sips(w * h, kind, w, h)) == direct


@pytest.mark.parametrize("kind", ["fully_connected", "switch"])
def test_sips_without_sides_talk_in_pairs(kind: str) -> None:
    assert check(sips(5, kind)) == 5
