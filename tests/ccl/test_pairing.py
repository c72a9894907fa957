"""Which queue is the other end of which, and edges that cannot be installed."""

from __future__ import annotations

import random

import pytest
from ccl_support import machine, sips
from hypothesis import given
from hypothesis import strategies as st

from kernbench.ccl.queues import QueueEnd, pair_queues, unite
from kernbench.ccl.topologies import QueueEdge, fabric_edges, intercube_edges
from kernbench.common.errors import IpcqError
from kernbench.messages.requests import PeCoord

SPEC = machine().spec
A, B, C, D = (0, 0, 0), (0, 0, 1), (0, 0, 2), (1, 0, 0)


def ends(*edges: QueueEdge) -> dict[tuple[PeCoord, str], QueueEnd]:
    found = pair_queues(edges, SPEC)
    assert len({(end.pe, end.direction) for end in found}) == len(found)
    return {(end.pe, end.direction): end for end in found}


def peers(*edges: QueueEdge) -> dict[tuple[PeCoord, str], str]:
    return {key: end.peer_direction for key, end in ends(*edges).items()}


def test_the_opposite_direction_is_the_reverse() -> None:
    assert peers((A, "E", B), (B, "W", A)) == {(A, "E"): "W", (B, "W"): "E"}
    assert peers((A, "global_N", D), (D, "global_S", A)) == {(A, "global_N"): "global_S", (D, "global_S"): "global_N"}


def test_two_queues_between_the_same_pes_do_not_mix() -> None:
    found = peers((A, "E", B), (A, "W", B), (B, "E", A), (B, "W", A))
    assert found == {(A, "E"): "W", (A, "W"): "E", (B, "E"): "W", (B, "W"): "E"}


def test_else_any_direction_that_points_back() -> None:
    assert peers((A, "E", B), (B, "N", A)) == {(A, "E"): "N", (B, "N"): "E"}
    assert peers((A, "E", B), (B, "E", A)) == {(A, "E"): "E", (B, "E"): "E"}


def test_a_parent_is_the_reverse_of_its_child() -> None:
    found = peers((A, "child_left", B), (A, "child_right", C), (B, "parent", A), (C, "parent", A))
    assert found == {
        (A, "child_left"): "parent", (A, "child_right"): "parent", (B, "parent"): "child_left",
        (C, "parent"): "child_right",
    }  # fmt: skip


def test_the_opposite_wins_over_one_that_comes_first() -> None:
    found = peers((A, "E", B), (B, "N", A), (B, "W", A))
    assert (found[A, "E"], found[B, "W"]) == ("W", "E")


def test_no_direction_is_the_reverse_of_two() -> None:
    found = ends((A, "x", B), (A, "y", B), (B, "z", A))
    assert (found[A, "x"].peer_direction, found[B, "z"].peer_direction) == ("z", "x")
    assert found[A, "y"].peer_direction == "from_y"


@pytest.mark.parametrize(
    ("direction", "name"),
    [("E", "W"), ("global_N", "global_S"), ("parent", "child_left"), ("child_right", "parent"), ("left", "from_left")],
)
def test_an_edge_without_a_reverse_ends_in_a_queue_that_only_receives(direction: str, name: str) -> None:
    found = ends((A, direction, B))
    sender, receiver = found[A, direction], found[B, name]
    assert (sender.sends, sender.receives, sender.peer_direction) == (True, False, name)
    assert (receiver.sends, receiver.receives) == (False, True)
    assert (receiver.peer, receiver.peer_direction) == (A, direction)


def test_two_children_without_a_way_back_come_in_left_and_right() -> None:
    found = peers((B, "parent", A), (C, "parent", A))
    assert (found[B, "parent"], found[C, "parent"]) == ("child_left", "child_right")


def test_what_a_sip_sends_directly_comes_in_under_its_number() -> None:
    assert peers((D, "sip0", A))[A, "sip1"] == "sip0"


def test_a_receiving_queue_whose_name_is_taken_names_both_edges() -> None:
    with pytest.raises(IpcqError) as error:
        pair_queues([(A, "E", B), (B, "W", C)], SPEC)
    assert "sip0.cube0.pe0 E -> sip0.cube0.pe1" in str(error.value)
    assert "sip0.cube0.pe1 W -> sip0.cube0.pe2" in str(error.value)
    with pytest.raises(IpcqError, match=r"pe2 E -> sip0.cube0.pe1 .* taken: sip0.cube0.pe0 E -> sip0.cube0.pe1"):
        pair_queues([(A, "E", B), (C, "E", B)], SPEC)


@pytest.mark.parametrize(
    ("edges", "says"),
    [
        ([(A, "E", A)], r"sip0.cube0.pe0 E -> sip0.cube0.pe0: a PE cannot be its own neighbour"),
        ([(A, "E", B), (A, "E", C)], r"sip0.cube0.pe0 has direction E twice: .*pe1 and .*pe2"),
        ([(A, "E", B), (A, "E", B)], r"sip0.cube0.pe0 has direction E twice"),
        ([(A, "E", (2, 0, 0))], r"this machine has sip 0..1, not 2"),
        ([((0, 16, 0), "E", A)], r"this machine has cube 0..15, not 16"),
        ([(A, "E", (0, 0, -1))], r"this machine has pe 0..7, not -1"),
    ],
)
def test_edges_that_cannot_be_installed(edges: list[QueueEdge], says: str) -> None:
    with pytest.raises(IpcqError, match=says):
        pair_queues(edges, SPEC)


def test_united_edges_come_once() -> None:
    spec = sips(3)
    together = unite(intercube_edges(spec), fabric_edges(spec))
    assert len(together) == len(set(together)) < len(intercube_edges(spec)) + len(fabric_edges(spec))


def test_fabric_queues_do_not_serve_as_the_way_back_of_others() -> None:
    found = {(e.pe, e.direction): e for e in pair_queues(unite([(A, "E", D)], fabric_edges(SPEC)), SPEC)}
    assert found[A, "E"].peer_direction == "W"
    assert found[A, "sip1"].peer_direction == "sip0"
    assert found[A, "global_E"].peer_direction == "global_W"


NAMES = st.sampled_from(["E", "W", "N", "S", "parent", "x", "y"])
PES = st.sampled_from([A, B, C, D])


@given(st.dictionaries(st.tuples(PES, NAMES), PES, max_size=16), st.randoms(use_true_random=False))
def test_ends_are_each_others_whatever_the_edges(
    chosen: dict[tuple[PeCoord, str], PeCoord], rng: random.Random
) -> None:
    edges = [(src, name, dst) for (src, name), dst in chosen.items() if src != dst]
    rng.shuffle(edges)
    try:
        found = ends(*edges)
    except IpcqError:
        # A queue that only receives had no name left.
        return
    for (pe, direction), end in found.items():
        other = found[end.peer, end.peer_direction]
        assert (other.peer, other.peer_direction) == (pe, direction)
        assert (other.sends, other.receives) == (end.receives, end.sends)
    assert {(end.pe, end.direction) for end in found.values() if end.sends} == {(e[0], e[1]) for e in edges}
