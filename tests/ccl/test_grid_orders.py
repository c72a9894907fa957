"""In which order an all-reduce over a grid uses its values, and is done with them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.ccl.steps.grids import Axis, all_reduce_over, order_of_results, order_of_use
from kernbench.ccl.steps.messages import Messages
from kernbench.ccl.steps.rings import Ring

MANY = 48


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

    def send(self, _: str, x: Value) -> None:
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
    all_reduce_over(axes, values, Messages("f32", "sum", 1), Language(used))
    return used, values.done


def axis(kind: Any, place: int, size: int) -> Axis:
    return Axis(Ring("E", "W", place, size), kind)


def grids() -> st.SearchStrategy[list[Axis]]:
    """Up to two axes of one kind, and a place on each."""
    place = st.integers(1, 5).flatmap(lambda size: st.tuples(st.integers(0, size - 1), st.just(size)))
    return st.sampled_from(("line", "ring", "torus")).flatmap(
        lambda kind: st.lists(place.map(lambda at: axis(kind, *at)), max_size=2)
    )


@given(grids(), st.integers(0, 40))
def test_every_value_is_used_and_done_once(axes: list[Axis], n: int) -> None:
    assert sorted(order_of_use(axes, n)) == list(range(n))
    assert sorted(order_of_results(axes, n)) == list(range(n))


@given(grids())
def test_values_are_wanted_about_when_they_are_used(axes: list[Axis]) -> None:
    """What is added to a message is wanted when that has come: a few messages later than it could be asked for."""
    used, _ = run(axes, MANY)
    wanted = order_of_use(axes, MANY)
    assert all(abs(wanted.index(i) - at) <= 10 for at, i in enumerate(used))


@pytest.mark.parametrize("kind", ["line", "ring"])
@pytest.mark.parametrize("sizes", [(2,), (3,), (5,), (2, 3), (4, 2)])
def test_values_are_done_in_the_order_that_is_told(kind: str, sizes: tuple[int, ...]) -> None:
    for place in range(sizes[0]):
        axes = [axis(kind, place % size, size) for size in sizes]
        _, done = run(axes, MANY)
        assert order_of_results(axes, MANY) == done


def test_both_ways_round_a_torus_are_done_together() -> None:
    axes = [axis("torus", 1, 4), axis("torus", 0, 3)]
    _, done = run(axes, MANY)
    told = order_of_results(axes, MANY)
    assert all(abs(told.index(i) - at) <= 2 for at, i in enumerate(done))


def test_a_single_place_takes_values_as_they_are() -> None:
    assert order_of_use([axis("ring", 0, 1)], 5) == order_of_results([], 5) == [0, 1, 2, 3, 4]
