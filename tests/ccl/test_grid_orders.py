"""The timetable of an all-reduce over a grid: both ends of a message, and the orders of values it makes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.ccl.steps.grids import MANY_MESSAGES, Axis, all_reduce_by, order_of_results, order_of_use, timetable
from kernbench.ccl.steps.messages import Messages
from kernbench.ccl.steps.rings import RingPlace

MANY = 48
ALONG = (("E", "W"), ("S", "N"))


class Value:
    """A value of the list, or, without a number, what has been made of some."""

    shape = (1,)
    dtype = "f32"

    def __init__(self, used: list[int], number: int | None = None) -> None:
        self.used, self.number = used, number

    def use(self) -> None:
        if self.number is not None and self.number not in self.used:
            self.used.append(self.number)

    def __add__(self, other: Value) -> Value:
        self.use()
        other.use()
        return Value(self.used)


class Language:
    """``tl``, as far as such a kernel uses it; messages are there at once."""

    def __init__(self, used: list[int]) -> None:
        self.used = used

    def send(self, _: str, x: Value, *, window: int) -> None:
        x.use()

    def recv_async(self, *_: object) -> Value:
        return Value(self.used)

    def trans(self, x: Value, _: object) -> Value:
        return x


class Noted(list[Any]):
    """A list that notes which of its values were set, the last time of each counting."""

    def __init__(self, values: list[Any]) -> None:
        super().__init__(values)
        self.done: list[int] = []

    def __setitem__(self, at: Any, value: Any) -> None:
        if at in self.done:
            self.done.remove(at)
        self.done.append(at)
        super().__setitem__(at, value)


def run(axes: list[Axis], n: int) -> tuple[list[int], list[int]]:
    """The order of use and that of results of an all-reduce on one place."""
    used: list[int] = []
    values = Noted([Value(used, i) for i in range(n)])
    all_reduce_by(timetable(axes, n), values, Messages("f32", "sum", 1), 1, Language(used))
    return used, values.done


def axis(kind: Any, place: int, size: int, queues: tuple[str, str] = ("E", "W")) -> Axis:
    return Axis(RingPlace(*queues, place, size), kind)


def place_of(kind: str, w: int, h: int, x: int, y: int) -> list[Axis]:
    """The axes of column ``x`` and row ``y`` of a grid."""
    return [axis(kind, x, w), axis(kind, y, h, ("S", "N"))]


KINDS = st.sampled_from(("line", "ring", "torus"))
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
            here = [step for step in timetable(place_of(kind, w, h, x, y), n) if step.queue == queue]
            peer = [step for step in timetable(place_of(kind, w, h, *there[queue]), n) if step.queue == back]
            sent = [step[:2] for step in here if step.does == "send"]
            assert sent == [step[:2] for step in peer if step.does != "send"]
            assert len({when for when, _ in sent}) == len(sent) or n >= MANY_MESSAGES


@given(grids(), st.integers(0, 40))
def test_every_value_is_used_and_done_once(axes: list[Axis], n: int) -> None:
    assert sorted(order_of_use(timetable(axes, n), n)) == list(range(n))
    assert sorted(order_of_results(timetable(axes, n), n)) == list(range(n))


@given(grids())
def test_values_are_wanted_about_when_they_are_used(axes: list[Axis]) -> None:
    """What is added to a message is wanted when that has come: a few messages later than it could be asked for."""
    used, _ = run(axes, MANY)
    wanted = order_of_use(timetable(axes, MANY), MANY)
    assert all(abs(wanted.index(i) - at) <= 20 for at, i in enumerate(used))


@pytest.mark.parametrize("kind", ["line", "ring"])
@pytest.mark.parametrize("sizes", [(2,), (3,), (5,), (2, 3), (4, 2)])
def test_values_are_done_in_the_order_that_is_told(kind: str, sizes: tuple[int, ...]) -> None:
    for place in range(sizes[0]):
        axes = [axis(kind, place % size, size, queues) for size, queues in zip(sizes, ALONG, strict=False)]
        _, done = run(axes, MANY)
        assert order_of_results(timetable(axes, MANY), MANY) == done


def test_both_ways_round_a_torus_are_done_together() -> None:
    axes = place_of("torus", 4, 3, 1, 0)
    _, done = run(axes, MANY)
    assert order_of_results(timetable(axes, MANY), MANY) == done


def test_a_single_place_takes_values_as_they_are() -> None:
    assert (
        order_of_use(timetable([axis("ring", 0, 1)], 5), 5) == order_of_results(timetable([], 5), 5) == [0, 1, 2, 3, 4]
    )
