"""The precomputed schedule of an all-reduce over a grid: both ends of a message, and the orders of values it makes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.ccl.grids import Axis, all_reduce_by, grid_schedule, order_of_results, order_of_use
from kernbench.ccl.pieces import Messages
from kernbench.ccl.rings import RingPlace
from kernbench.messages.steps import Chunk

MANY = 48
ALONG = (("E", "W"), ("S", "N"))


def run(axes: list[Axis], n: int) -> tuple[list[int], list[int]]:
    """The order in which a place first uses its values, and that in which they are written last."""
    steps = all_reduce_by(grid_schedule(axes, n), [Chunk(i, 1) for i in range(n)], Messages("sum", 1, 4), 1)
    used = [step.source for step in steps if step.does in ("send", "reduce") and isinstance(step.source, int)]
    done = [step.to for step in steps if step.does in ("reduce", "copy") and isinstance(step.to, int)]
    return list(dict.fromkeys(used)), list(dict.fromkeys(done[::-1]))[::-1]


def axis(kind: Any, place: int, size: int, queues: tuple[str, str] = ("E", "W")) -> Axis:
    return Axis(RingPlace(*queues, place, size), kind)


def place_of(kind: str, w: int, h: int, x: int, y: int) -> list[Axis]:
    """The axes of column ``x`` and row ``y`` of a grid."""
    return [axis(kind, x, w), axis(kind, y, h, ("S", "N"))]


KINDS = st.sampled_from(("line", "ring", "closed"))
SIZES = st.tuples(st.integers(1, 5), st.integers(1, 4))


def grids() -> st.SearchStrategy[list[Axis]]:
    """A place of a grid of up to 5 by 4."""
    places = SIZES.flatmap(lambda wh: st.tuples(st.just(wh), *(st.integers(0, n - 1) for n in wh)))
    return st.tuples(KINDS, places).map(lambda drawn: place_of(drawn[0], *drawn[1][0], *drawn[1][1:]))


@given(KINDS, SIZES, st.integers(0, 40))
def test_both_ends_of_a_message_have_it_at_the_same_time(kind: str, size: tuple[int, int], n: int) -> None:
    """And a queue has one message at a time, so that none waits for a later one, however few the slots."""
    w, h = size
    for x, y in ((x, y) for x in range(w) for y in range(h)):
        there = {"E": ((x + 1) % w, y), "W": ((x - 1) % w, y), "S": (x, (y + 1) % h), "N": (x, (y - 1) % h)}
        for queue, back in zip("EWSN", "WENS", strict=True):
            here = [step for step in grid_schedule(place_of(kind, w, h, x, y), n) if step.queue == queue]
            peer = [step for step in grid_schedule(place_of(kind, w, h, *there[queue]), n) if step.queue == back]
            sent = [step[:2] for step in here if step.does == "send"]
            assert sent == [step[:2] for step in peer if step.does != "send"]
            assert len({when for when, _ in sent}) == len(sent) or n >= 2 * w * h


@given(grids(), st.integers(0, 40))
def test_every_value_is_used_and_done_once(axes: list[Axis], n: int) -> None:
    assert sorted(order_of_use(grid_schedule(axes, n), n, 4)) == list(range(n))
    assert sorted(order_of_results(grid_schedule(axes, n), n)) == list(range(n))


@given(grids())
def test_values_are_wanted_about_when_they_are_used(axes: list[Axis]) -> None:
    """What is added to a message is wanted when that has come: a few messages later than it could be asked for."""
    used, _ = run(axes, MANY)
    wanted = order_of_use(grid_schedule(axes, MANY), MANY, 4)
    assert all(abs(wanted.index(i) - at) <= MANY // 2 for at, i in enumerate(used))


@pytest.mark.parametrize("kind", ["line", "ring"])
@pytest.mark.parametrize("sizes", [(2,), (3,), (5,), (2, 3), (4, 2)])
def test_values_are_done_in_the_order_that_is_told(kind: str, sizes: tuple[int, ...]) -> None:
    for place in range(sizes[0]):
        axes = [axis(kind, place % size, size, queues) for size, queues in zip(sizes, ALONG, strict=False)]
        _, done = run(axes, MANY)
        assert order_of_results(grid_schedule(axes, MANY), MANY) == done


def test_both_ways_round_a_torus_are_done_together() -> None:
    axes = place_of("closed", 4, 3, 1, 0)
    _, done = run(axes, MANY)
    assert order_of_results(grid_schedule(axes, MANY), MANY) == done


def test_a_single_place_takes_values_as_they_are() -> None:
    assert (
        order_of_use(grid_schedule([axis("ring", 0, 1)], 5), 5, 4)
        == order_of_results(grid_schedule([], 5), 5)
        == [0, 1, 2, 3, 4]
    )
