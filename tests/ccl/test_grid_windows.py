"""How many slots places of a grid use: nothing is held up for ever, and more slots than that change nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from algorithm_support import assert_reduced, longest_kernel_ns, over_sips, shards_of, small
from hypothesis import given
from hypothesis import strategies as st

from kernbench.ccl.steps.grids import WINDOW_BYTES, Axis, all_reduce_by, timetable
from kernbench.ccl.steps.messages import Messages, on_the_way
from kernbench.ccl.steps.ranks import owners
from kernbench.ccl.steps.rings import RingPlace
from kernbench.ccl.testing import run_kernel_in_mock

ADD = Messages("f32", "sum", 1)


def axes_of(kind: Any, w: int, h: int, rank: int) -> list[Axis]:
    y, x = divmod(rank, w)
    return [Axis(RingPlace("E", "W", x, w), kind), Axis(RingPlace("S", "N", y, h), kind)]


def neighbours(w: int, h: int) -> dict[int, dict[str, int]]:
    """Of every rank, with the ends of rows and columns joined."""

    def at(x: int, y: int) -> int:
        return y % h * w + x % w

    found = {}
    for rank in range(w * h):
        y, x = divmod(rank, w)
        sides = {"E": at(x + 1, y), "W": at(x - 1, y), "S": at(x, y + 1), "N": at(x, y - 1)}
        found[rank] = {side: other for side, other in sides.items() if other != rank}
    return found


def exchange(t_ptr: int, n: int, kind: Any, w: int, h: int, window: int, *, tl: Any) -> None:
    """All-reduce ``n`` values of one element."""
    values = [tl.load(t_ptr + 4 * i, 1, "f32") for i in range(n)]
    steps = timetable(axes_of(kind, w, h, tl.program_id(2)), n)
    all_reduce_by(steps, values, ADD, w * h, tl, window)
    for i, x in enumerate(values):
        tl.store(t_ptr + 4 * i, x)


@given(
    kind=st.sampled_from(("line", "ring", "torus")),
    size=st.sampled_from(((2, 2), (3, 2), (3, 3), (4, 1))),
    n=st.integers(1, 40),
    window=st.integers(1, 4),
    n_slots=st.integers(1, 3),
)
def test_no_window_stops_a_grid(kind: str, size: tuple[int, int], n: int, window: int, n_slots: int) -> None:
    w, h = size
    inputs = [np.arange(n, dtype=np.float32) + 100 * rank for rank in range(w * h)]
    args = (n, kind, w, h, window)
    outputs = run_kernel_in_mock(
        exchange, w * h, neighbours(w, h), inputs, args, ranks_are_sips=True, n_slots=n_slots, slot_size=64
    )
    assert_reduced(outputs, inputs, "sum")


def test_a_window_is_what_is_on_its_way() -> None:
    """In whole messages, and one more that is being added."""
    assert [on_the_way(WINDOW_BYTES, 4096 * sharers) for sharers in (1, 2, 4, 8)] == [7, 4, 3, 2]
    assert [on_the_way(8192, each) for each in (4095, 4096, 8192, 1 << 20)] == [4, 3, 2, 2]


def test_a_pe_with_several_shards_shares_links_once() -> None:
    assert owners((0, 0, 0, 8, 0, 0, 64, 8, 1, 2, 0, 8)) == 2


OWNERS = tuple((cube, pe) for cube in range(2) for pe in range(4))


@pytest.mark.parametrize(
    ("kind", "sips", "grid", "n_owners", "elements"),
    [
        ("mesh_2d_no_wrap", 4, "2x2", 4, 16384),
        ("mesh_2d_no_wrap", 4, "2x2", 1, 65536),
        pytest.param("torus_2d", 4, "2x2", 4, 40000, marks=pytest.mark.slow),
        pytest.param("torus_2d", 6, "3x2", 1, 65536, marks=pytest.mark.slow),
    ],
)
def test_more_slots_than_a_window_change_nothing(kind: str, sips: int, grid: str, n_owners: int, elements: int) -> None:
    """PEs that share links keep in step by it; without, more slots cost up to a tenth here."""
    tensor = shards_of(sips, dict.fromkeys(OWNERS[:n_owners], elements), np.random.default_rng(1))
    times = []
    for n_slots in (2, 4, 8, 16):
        run = over_sips("sip_allreduce", small(sips, "2x1", 1, kind, grid), [tensor])
        run.n_slots = n_slots
        times.append(longest_kernel_ns(run))
    assert times == sorted(times, reverse=True)
    assert times[2] == times[3]
