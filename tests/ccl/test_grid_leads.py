"""How far a place of a grid may be ahead: nothing is held up for ever, and more slots than that change nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from algorithm_support import assert_reduced, longest_kernel_ns, over_sips, shards_of, small
from hypothesis import given
from hypothesis import strategies as st

from kernbench.ccl.steps.grids import Axis, all_reduce_by, timetable
from kernbench.ccl.steps.messages import Messages
from kernbench.ccl.steps.rings import Ring
from kernbench.ccl.steps.sip_grids import SipGrid
from kernbench.ccl.testing import run_kernel_in_mock

ADD = Messages("f32", "sum", 1)


def axes_of(kind: Any, w: int, h: int, rank: int) -> list[Axis]:
    y, x = divmod(rank, w)
    return [Axis(Ring("E", "W", x, w), kind), Axis(Ring("S", "N", y, h), kind)]


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


def exchange(t_ptr: int, n: int, kind: Any, w: int, h: int, lead: int, *, tl: Any) -> None:
    """All-reduce ``n`` values of one element."""
    values = [tl.load(t_ptr + 4 * i, 1, "f32") for i in range(n)]
    steps = timetable(axes_of(kind, w, h, tl.program_id(2)), n)
    all_reduce_by(steps, values, ADD, w * h, tl, lead)
    for i, x in enumerate(values):
        tl.store(t_ptr + 4 * i, x)


@given(
    kind=st.sampled_from(("line", "ring", "torus")),
    size=st.sampled_from(((2, 2), (3, 2), (3, 3), (4, 1))),
    n=st.integers(1, 40),
    lead=st.integers(1, 6),
    n_slots=st.integers(1, 3),
)
def test_no_lead_stops_a_grid(kind: str, size: tuple[int, int], n: int, lead: int, n_slots: int) -> None:
    w, h = size
    inputs = [np.arange(n, dtype=np.float32) + 100 * rank for rank in range(w * h)]
    args = (n, kind, w, h, lead)
    outputs = run_kernel_in_mock(exchange, w * h, neighbours(w, h), inputs, args, n_slots=n_slots, slot_size=64)
    assert_reduced(outputs, inputs, "sum")


class Came:
    """What has come by a queue at a time of the timetable, or, without one, was there from the beginning."""

    shape = (1,)
    dtype = "f32"

    def __init__(self, when: int = -1) -> None:
        self.when = when

    def __add__(self, other: Came) -> Came:
        return Came(max(self.when, other.when))


class Language:
    """``tl`` of one place: it notes what has been waited for before each message is sent."""

    def __init__(self, arrivals: list[int]) -> None:
        self._arrivals = iter(arrivals)
        self._waited = -1
        self.waited_before: list[int] = []

    def send(self, *_: object) -> None:
        self.waited_before.append(self._waited)

    def recv_async(self, *_: object) -> Came:
        return Came(next(self._arrivals))

    def wait(self, x: Came) -> None:
        self._waited = x.when

    def trans(self, x: Came, _: object) -> Came:
        return x


@pytest.mark.parametrize("kind", ["line", "torus"])
@pytest.mark.parametrize("lead", [1, 4])
def test_a_place_waits_for_what_had_to_come_before_its_lead(kind: str, lead: int) -> None:
    """And for nothing that comes later."""
    n = 48
    steps = timetable(axes_of(kind, 3, 2, 1), n)
    language = Language([step.when for step in steps if step.does != "send"])
    all_reduce_by(steps, [Came() for _ in range(n)], ADD, 6, language, lead)
    due: list[int] = []
    came: list[int] = []
    for step in steps:
        if step.does == "send":
            due.append(max((when for when in came if when <= step.when - lead), default=-1))
        else:
            came.append(step.when)
    assert language.waited_before == due
    assert max(due) > 0


def test_a_lead_is_what_is_on_its_way() -> None:
    torus, mesh = (SipGrid(6, kind, 3, 2) for kind in ("torus_2d", "mesh_2d_no_wrap"))
    assert [torus.lead(4096, sharers) for sharers in (1, 2, 4, 8)] == [4, 3, 3, 2]
    assert [mesh.lead(4096, sharers) for sharers in (1, 2, 4, 8)] == [7, 5, 4, 4]
    assert torus.lead(1024, 4) == torus.lead(4096, 1)
    assert SipGrid(4, "mesh_2d_no_wrap", 2, 2).lead(1 << 20, 8) == 3


OWNERS = tuple((cube, pe) for cube in range(2) for pe in range(4))


@pytest.mark.parametrize(
    ("kind", "sips", "grid", "owners", "elements"),
    [
        ("mesh_2d_no_wrap", 4, "2x2", 4, 16384),
        ("mesh_2d_no_wrap", 4, "2x2", 1, 65536),
        ("torus_2d", 4, "2x2", 4, 40000),
        ("torus_2d", 6, "3x2", 1, 65536),
    ],
)
def test_more_slots_than_a_lead_change_nothing(kind: str, sips: int, grid: str, owners: int, elements: int) -> None:
    """PEs that share links keep in step by it; without, more slots cost up to a sixth here. 1 % is what FIFOs do."""
    tensor = shards_of(sips, dict.fromkeys(OWNERS[:owners], elements), np.random.default_rng(1))
    times = []
    for n_slots in (2, 4, 8, 16):
        run = over_sips("sip_allreduce", small(sips, "2x1", 1, kind, grid), [tensor])
        run.n_slots = n_slots
        times.append(longest_kernel_ns(run))
    assert all(later <= 1.01 * min(times[:at]) for at, later in enumerate(times) if at)
    assert times[2] == times[3]
