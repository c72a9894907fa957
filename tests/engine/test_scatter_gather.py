"""Loads and stores by scatter-gather lists: what they move, what they cost, and how they are kept in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_support import fetch, launch, place, two_cubes
from ideal_memory import IDEAL
from kernbench.ccl.testing import run_kernel_in_mock
from kernbench.common.errors import KernbenchError
from kernbench.core.op_log import OpRecord
from kernbench.engine.engine import GraphEngine
from kernbench.messages.fabric import ReadRequest
from kernbench.triton_emu.tl_context import TLContext as Tl
from observed import findings, sanitized

Runs: TypeAlias = list[tuple[int | None, int]]
N = 64
"""Elements of the arrays here, of 4 bytes."""


def runs_of(base: int, index: Sequence[int | None]) -> Runs:
    """Where elements ``index`` of an array at ``base`` lie: neighbours as one run, None for those masked off."""
    runs: Runs = []
    for i in index:
        at = None if i is None else base + 4 * i
        if runs and at is not None and runs[-1][0] is not None and runs[-1][0] + runs[-1][1] == at:
            runs[-1] = (runs[-1][0], runs[-1][1] + 4)
        else:
            runs.append((at, 4))
    return runs


indices = st.lists(st.none() | st.integers(0, N - 1) | st.integers(3, 7), min_size=1, max_size=12)


@given(st.lists(st.tuples(st.booleans(), indices), min_size=1, max_size=8))
def test_lists_do_what_numpy_does_one_after_another(steps: list[tuple[bool, list[int | None]]]) -> None:
    """Repeated, overlapping, backwards, masked off: stores and loads in the order of the program."""
    memory = np.arange(N, dtype=np.float32)
    expected: list[list[float]] = []
    for number, (stores, index) in enumerate(steps):
        for at, i in enumerate(index):
            if stores and i is not None:
                memory[i] = 1000 * number + at
        if not stores:
            expected.append([-1.0 if i is None else memory[i] for i in index])

    def kernel(x: int, y: int, *, tl: Tl) -> None:
        out = y
        for number, (stores, index) in enumerate(steps):
            if stores:
                source = tl.constant(np.arange(len(index)) + 1000 * number, "f32")
                tl.store(runs_of(x, index), source)
            else:
                tl.store(out, tl.load(runs_of(x, index), len(index), "f32", other=-1))
                out += 4 * len(index)

    engine = sanitized(two_cubes())
    x = place(engine, np.arange(N, dtype=np.float32), name="x")
    y = place(engine, np.zeros(128, np.float32), name="y")
    launch(engine, kernel, x, y)
    assert np.array_equal(fetch(engine, x), memory)
    loaded = [value for each in expected for value in each]
    assert fetch(engine, y)[: len(loaded)].tolist() == loaded
    assert findings(engine) == ()


def run(kernel: Callable[..., object], engine: GraphEngine | None = None) -> tuple[list[OpRecord], GraphEngine]:
    """The loads and stores of a kernel on one array."""
    engine = engine or GraphEngine(two_cubes())
    launch(engine, kernel, place(engine, np.arange(4096, dtype=np.float32)))
    return [each for each in engine.op_log if each.kind in ("dma_read", "dma_write")], engine


@pytest.mark.parametrize("n", [2, 5])
def test_every_run_has_a_request_of_its_own(n: int) -> None:
    """There is one set-up; then an event each for the request, the access and the data.

    Data of several channels come at once, and meet on the way: an event each for the links. There are no banks, which
    would have more of them come at times of their own.
    """

    def kernel(x: int, *, tl: Tl) -> None:
        tl.load([(x + 2048 * i, 64 + 4 * i) for i in range(n)], 16 * n + n * (n - 1) // 2, "f32")

    def alone(x: int, *, tl: Tl) -> None:
        tl.load([(x, 64)], (1, 16), "f32")

    def listed(x: int, *, tl: Tl) -> None:
        for i in range(n):
            tl.load([(x + 2048 * i, 64 + 4 * i)], 16 + i, "f32")

    (read,), engine = run(kernel, GraphEngine(two_cubes(*IDEAL)))
    _, other = run(alone, GraphEngine(two_cubes(*IDEAL)))
    singles, _ = run(listed, GraphEngine(two_cubes(*IDEAL)))
    assert 3 * (n - 1) <= engine.n_events - other.n_events <= 6 * (n - 1)
    assert read.inputs[0].segments == tuple((read.inputs[0].address + 2048 * i, 64 + 4 * i) for i in range(n))
    assert read.t_end_ps <= singles[-1].t_end_ps


def test_equal_steps_cost_what_a_strided_box_costs() -> None:
    def listed(x: int, *, tl: Tl) -> None:
        tl.load([(x + 256 * i, 64) for i in range(8)], (8, 16), "f32")

    def strided(x: int, *, tl: Tl) -> None:
        tl.load(x, (8, 16), "f32", strides=(256, 4))

    (a,), first = run(listed)
    (b,), second = run(strided)
    assert (a.t_start_ps, a.t_read_ps, a.t_end_ps) == (b.t_start_ps, b.t_read_ps, b.t_end_ps)
    assert first.n_events == second.n_events


def test_memories_are_asked_once_each_for_their_equal_runs() -> None:
    engine = GraphEngine(two_cubes(), trace_hops=True)
    arrays = [place(engine, np.full(64, pe, np.float32), pe=(0, 0, pe), name=f"x{pe}") for pe in range(2)]
    out = place(engine, np.zeros((8, 4), np.float32), name="out")

    def kernel(x: int, y: int, out: int, *, tl: Tl) -> None:
        tl.store(out, tl.load([((x, y)[i % 2] + 32 * (i // 2), 16) for i in range(8)], (8, 4), "f32"))

    launch(engine, kernel, *arrays, out)
    assert sum(isinstance(transfer.arg, ReadRequest) for transfer in engine.machine.network.traced) == 2
    assert fetch(engine, out)[:, 0].tolist() == [0, 1] * 4


def test_lists_are_compared_run_by_run() -> None:
    def kernel(x: int, *, tl: Tl) -> None:
        tl.store([(x + 64 * i, 4) for i in (0, 5, 3)], tl.zeros(3, "f32"))
        tl.load([(x + 64 * i + 4, 4) for i in (0, 5, 3)], 3, "f32")
        tl.load([(x + 1024, 4), (x + 64 * 3, 8)], 3, "f32")
        tl.store([(x + 64 * 9, 4), (x + 64 * 3 + 4, 4)], tl.zeros(2, "f32"))
        tl.store([(x + 64 * 5, 4), (x + 64 * 9, 4)], tl.zeros(2, "f32"))

    records, _ = run(kernel)
    line = kernel.__code__.co_firstlineno
    assert {each.line - line: each.order for each in records} == {1: "", 2: "", 3: "bytes", 4: "bytes", 5: "bytes"}


def test_the_sanitizer_knows_the_runs() -> None:
    """Two PEs write every other element of an array: no race, until both write one."""

    def kernel(x: int, last: int, *, tl: Tl) -> None:
        me = tl.program_id(0)
        tl.store([(x + 8 * i + 4 * me, 4) for i in range(8)] + [(x + last * me + 400, 4)], tl.zeros(9, "f32"))

    def races(last: int) -> int:
        engine = sanitized(two_cubes())
        x = place(engine, np.ones(128, np.float32))
        launch(engine, kernel, x, last, targets=((0, 0, 0), (0, 0, 1)))
        return len(findings(engine))

    assert races(last=8) == 0
    assert races(last=0) == 1


def test_what_is_all_masked_off_moves_nothing() -> None:
    def kernel(x: int, *, tl: Tl) -> None:
        a = tl.load([(None, 256)], 64, "f32", other=7)
        tl.store([(None, 256)], a)
        tl.store(x, a)

    (stored,), engine = run(kernel)
    assert engine.read_memory(stored.output.address, 256).view(np.float32).tolist() == [7] * 64


def test_what_nothing_maps_is_refused_at_the_line() -> None:
    def kernel(x: int, *, tl: Tl) -> None:
        tl.load([(x, 4), (x + (1 << 40), 4)], 2, "f32")

    with pytest.raises(KernbenchError, match=r"0x[0-9a-f]+") as caught:
        run(kernel)
    assert any("PE" in note or "kernel" in note for note in caught.value.__notes__)


def test_a_list_in_the_mock_is_the_same() -> None:
    def kernel(t: int, *, tl: Tl) -> None:
        tl.store([(t + 12, 4), (None, 4), (t, 8)], tl.load([(t + 4, 8), (None, 4), (t, 4)], 4, "f32", other=9))

    (found,) = run_kernel_in_mock(kernel, 1, {}, [np.array([1, 2, 3, 4], np.float32)])
    assert found.tolist() == [9, 1, 3, 2]
