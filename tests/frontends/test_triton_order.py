"""Triton kernels in order: stores and loads that overlap, programs of many PEs on one place, kernels side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extras import need
from kernbench.engine.engine import GraphEngine
from kernbench.observe.sanitizer import Sanitizer
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology.builder import resolve_topology

need("triton")

import kernbench.triton  # noqa: E402, F401

# isort: split
import triton  # noqa: E402
import triton.language as tl  # noqa: E402

SMALL = ["sip.cube_mesh.w=1", "sip.cube_mesh.h=1"]
MACHINE = resolve_topology("default", ["system.sips.count=1", *SMALL])
TWO = resolve_topology("default", ["system.sips.count=2", *SMALL])
ONE_PE = DPPolicy(num_pes=1, num_cubes=1)
Array = np.ndarray[Any, Any]
CELLS = 96
LANES = 16


@triton.jit
def copies(steps: tl.constexpr, x_ptr):
    """Each step loads 16 elements of x and stores them, changed, elsewhere in x."""
    lane = tl.arange(0, 16)
    for source, step, target, stride, limit in steps:
        x = tl.load(x_ptr + source + lane * step, mask=lane < limit, other=7.0)
        tl.store(x_ptr + target + lane * stride, x * 2 + 1, mask=lane < limit)


def copied(steps: Any, x: Array) -> Array:
    """The same by NumPy."""
    lane = np.arange(LANES)
    for source, step, target, stride, limit in steps:
        here = lane[:limit]
        x[target + here * stride] = x[source + here * step] * 2 + 1
    return x


BEGIN = st.integers(0, CELLS // 2 - 1)
STEP = st.tuples(BEGIN, st.integers(0, 3), BEGIN, st.integers(1, 3), st.integers(1, LANES))


@given(st.lists(STEP, min_size=2, max_size=8))
@settings(deadline=None, max_examples=30)
def test_loads_and_stores_that_overlap_are_in_program_order(steps: list[tuple[int, ...]]) -> None:
    """Store then load, load then store and store then store, of boxes and of what is read once for many lanes."""
    x = np.arange(CELLS, dtype=np.float32)
    with RuntimeContext(engine=GraphEngine(MACHINE)) as torch:
        device = torch.empty(CELLS, dtype="f32", dp=ONE_PE, name="x").copy_(x)
        copies[(1,)](tuple(steps), device)
        np.testing.assert_array_equal(device.numpy(), copied(steps, x))


@triton.jit
def takes_turns(x_ptr, old_ptr, sum_ptr, last_ptr, most_ptr):
    """Every program adds its number of x to one sum, and keeps what it found there."""
    program = tl.program_id(0)
    x = tl.load(x_ptr + program)
    tl.store(old_ptr + program, tl.atomic_add(sum_ptr, x))
    tl.atomic_max(most_ptr, x)
    tl.atomic_xchg(last_ptr, x)


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=24), st.integers(1, 8))
@settings(deadline=None, max_examples=15)
def test_atomics_of_many_pes_are_as_if_one_came_after_another(numbers: list[int], pes: int) -> None:
    """Some order of the programs explains what each found: from 0, each finds what the one before left."""
    n = len(numbers)
    dp = DPPolicy(pe="row_wise", num_pes=pes, num_cubes=1)
    with RuntimeContext(engine=GraphEngine(MACHINE)) as torch:
        x = torch.empty(n, dtype="i32", dp=dp, name="x").copy_(np.array(numbers, np.int32))
        old = torch.zeros(n, dtype="i32", dp=dp, name="old")
        total, last, most = (torch.zeros(1, dtype="i32", dp=ONE_PE, name=name) for name in ("sum", "last", "most"))
        takes_turns[(n,)](x, old, total, last, most)
        found = old.numpy().tolist()
        assert total.numpy()[0] == sum(numbers)
        assert most.numpy()[0] == max(0, *numbers)
        assert last.numpy()[0] in numbers
    assert one_after_another(found, numbers)


@triton.jit
def drops_and_keeps(sum_ptr, out_ptr):
    """Two atomics whose results nobody wants, and one whose result is stored."""
    tl.atomic_add(sum_ptr, 1)
    tl.atomic_max(sum_ptr, 1)
    found = tl.atomic_add(sum_ptr, 1)
    tl.store(out_ptr, found)


def test_a_dropped_result_of_an_atomic_is_not_fetched() -> None:
    """Two programs: the calls of the second one are replayed, and ask for the same."""
    engine = GraphEngine(MACHINE)
    with RuntimeContext(engine=engine) as torch:
        total, out = (torch.zeros(1, dtype="i32", dp=ONE_PE, name=name) for name in ("total", "out"))
        drops_and_keeps[(2,)](total, out)
        assert total.numpy()[0] == 4
    fetched = [each.params.old is not None for each in engine.op_log if each.kind == "atomic"]
    assert fetched == [False, False, True] * 2


MANY = 65536


@triton.jit
def hands_over(x_ptr, flag_ptr, seen_ptr, N: tl.constexpr, SEM: tl.constexpr):
    """Program 0 writes x, which is at the other PE, and raises the flag; program 1 waits for the flag and reads x."""
    at = tl.arange(0, N)
    x_ptr += N
    if tl.program_id(0) == 0:
        tl.store(x_ptr + at, at.to(tl.float32) + 1)
        if SEM is None:
            tl.atomic_xchg(flag_ptr, 1)
        else:
            tl.atomic_xchg(flag_ptr, 1, sem=SEM)
    else:
        while tl.atomic_add(flag_ptr, 0, sem="acquire") == 0:
            pass
        tl.store(seen_ptr + at, tl.load(x_ptr + at))


@pytest.mark.parametrize(("sem", "right"), [("release", MANY), ("acq_rel", MANY), (None, MANY), ("relaxed", 0)])
def test_an_atomic_that_releases_comes_after_what_was_stored_before(sem: str | None, right: int) -> None:
    """As after ``tl.fence``; so does one that says nothing, as Triton has it: ``acq_rel`` is its default."""
    sanitizer = Sanitizer()
    with RuntimeContext(engine=GraphEngine(MACHINE, observers=[sanitizer])) as torch:
        dp = DPPolicy(pe="row_wise", num_pes=2, num_cubes=1)
        flag = torch.zeros(2, dtype="i32", dp=dp, name="flag")
        x, seen = (torch.zeros(2, MANY, dtype="f32", dp=dp, name=name) for name in ("x", "seen"))
        hands_over[(2,)](x, flag, seen, MANY, sem)
        assert int((seen.numpy()[0] == np.arange(MANY) + 1).sum()) == right
        races = [each for each in sanitizer.findings(torch.engine) if each.kind == "race"]
        assert [each.tensor for each in races] == ([] if right else ["x"])


def one_after_another(found: list[int], numbers: list[int]) -> bool:
    """Whether steps from ``found[i]`` to ``found[i] + numbers[i]`` make one walk that begins at 0.

    A walk that uses every step once is there when each place is left as often as it is reached, but for the two ends,
    and all places hang together.
    """
    ends = [place + number for place, number in zip(found, numbers, strict=True)]
    places = {0, *found, *ends}
    balanced = all(found.count(at) - ends.count(at) == (at == 0) - (at == sum(numbers)) for at in places)
    reached, grown = set(), {0}
    while grown - reached:
        reached |= grown
        grown = {end for place, end in zip(found, ends, strict=True) if place in reached} | {0}
    return balanced and places == reached


@triton.jit
def doubles(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n) * 2 + tl.num_programs(0), mask=at < n)


@triton.jit
def adds_rows(x_ptr, out_ptr, WIDTH: tl.constexpr):
    row, rows = tl.program_id(1), tl.num_programs(1)
    x = tl.load(x_ptr + row * WIDTH + tl.arange(0, WIDTH))
    tl.store(out_ptr + row, tl.sum(x, 0) + 100 * rows)


def test_two_kernels_side_by_side_have_grids_of_their_own() -> None:
    """Each on a PE of its own, of two SIPs, and both under way at once."""
    x = np.arange(64, dtype=np.float32)
    with RuntimeContext(engine=GraphEngine(TWO)) as torch:
        results: dict[int, Array] = {}

        def rank(sip: int) -> None:
            torch.ahbm.set_device(sip)
            device = torch.empty(64, dtype="f32", dp=ONE_PE, name="x").copy_(x)
            out = torch.zeros(64, dtype="f32", dp=ONE_PE, name="out")
            if sip == 0:
                doubles[(7,)](device, out, 50, BLOCK=8)
            else:
                adds_rows[(1, 4)](device, out, WIDTH=16)
            results[sip] = out.numpy()

        torch.multiprocessing.spawn(rank, nprocs=2)
        launches = [each for each in torch.traces if each.phase == "launch"]
    first, second = launches
    assert max(first.t_start_ns, second.t_start_ns) < min(first.t_end_ns, second.t_end_ns), "at once"
    np.testing.assert_array_equal(results[0], np.where(np.arange(64) < 50, 2 * x + 7, 0))
    np.testing.assert_array_equal(results[1], np.pad(x.reshape(4, 16).sum(1) + 400, (0, 60)))
