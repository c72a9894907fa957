"""``tl.barrier(writes_only=True)``: PEs of a cube wait for each other's writes, while their loads stay in flight."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from queue_support import install, line_of

from causes import check_causes
from engine_support import fetch, launch, machine, place, two_cubes
from kernbench.ccl.testing import run_kernel_in_mock
from kernbench.common.errors import IpcqDeadlock
from kernbench.engine.engine import GraphEngine
from kernbench.triton_emu.tl_context import TLContext as Tl
from observed import findings, sanitized

N = 4096
BIG = 65536
PES = ((0, 0, 0), (0, 0, 1))
Array = np.ndarray[Any, Any]


def exchange(x: int, y: int, far: int, writes_only: bool | None, *, tl: Tl) -> None:
    """Load ``far``, store a half of x, wait at a barrier, and copy the half of the other PE to y."""
    pe = tl.program_id(0)
    ahead = tl.load(far, BIG, "f32")
    tl.store(x + 4 * N * pe, tl.full(N, pe + 1, "f32"))
    if writes_only is not None:
        tl.barrier(writes_only=writes_only)
    other = tl.load(x + 4 * N * (1 - pe), N, "f32")
    tl.store(y + 4 * N * (1 - pe), other)
    tl.wait(ahead)


def exchanged(writes_only: bool | None, *overrides: str) -> tuple[Array, set[str], bool]:
    """Return y, the tensors that races are reported for, and whether the last loads begin before the first end."""
    engine = sanitized(machine("sip.cube_mesh={w: 2, h: 1}", *overrides))
    x, y = (place(engine, np.zeros(2 * N, np.float32), PES[0], name) for name in ("x", "y"))
    far = place(engine, np.zeros(BIG, np.float32), (0, 1, 0), "far")
    launch(engine, exchange, x, y, far, writes_only, targets=PES)
    check_causes(engine.machine)
    races = {finding.tensor for finding in findings(engine) if finding.kind == "race"}
    loads = [record for record in engine.op_log if record.kind == "dma_read"]
    ends = [record.t_end_ps for record in loads if record.output is not None and record.output.nbytes == 4 * BIG]
    starts = [record.t_start_ps for record in loads if record.output is not None and record.output.nbytes == 4 * N]
    return fetch(engine, y), races, max(starts) < min(ends)


@pytest.mark.parametrize("ordering", ["program", "relaxed"])
def test_writes_are_there_and_loads_stay_in_flight(ordering: str) -> None:
    values, races, overlap = exchanged(True, f"pe.dma.ordering={ordering}")
    np.testing.assert_array_equal(values, np.repeat([1, 2], N))
    assert (races, overlap) == (set(), True)


def test_a_full_barrier_waits_for_the_loads() -> None:
    values, races, overlap = exchanged(False)
    np.testing.assert_array_equal(values, np.repeat([1, 2], N))
    assert (races, overlap) == (set(), False)


def test_without_a_barrier_the_sanitizer_reports_the_race() -> None:
    _, races, _ = exchanged(None)
    assert "x" in races


def overwrite(x: int, writes_only: bool, *, tl: Tl) -> None:
    """PE 0 loads x, and PE 1 writes x after a barrier."""
    if tl.program_id(0) == 0:
        tl.load(x, BIG, "f32")
    tl.barrier(writes_only=writes_only)
    if tl.program_id(0) == 1:
        tl.store(x, tl.full(BIG, 1, "f32"))


@pytest.mark.parametrize("writes_only", [False, True])
def test_only_a_full_barrier_orders_loads_before_later_writes(writes_only: bool) -> None:
    engine = sanitized(machine("sip.cube_mesh={w: 2, h: 1}"))
    x = place(engine, np.zeros(BIG, np.float32), (0, 1, 0), "x")
    launch(engine, overwrite, x, writes_only, targets=PES)
    check_causes(engine.machine)
    assert ("race" in {finding.kind for finding in findings(engine)}) == writes_only


def never_written(x: int, *, tl: Tl) -> None:
    if tl.program_id(1) == 0:
        tl.store(x, tl.recv_async("E", 4, "f32"))
        tl.barrier(writes_only=True)


def test_a_deadlock_names_the_write_that_a_barrier_waits_for() -> None:
    line = never_written.__code__.co_firstlineno + 3
    engine = GraphEngine(two_cubes())
    install(engine, line_of((0, 0, 0), (0, 1, 0)))
    with pytest.raises(IpcqDeadlock) as caught:
        launch(engine, never_written, place(engine, np.zeros(4, np.float32)))
    assert f"waits for its stores and atomics to be in memory, at the fence of line {line}" in str(caught.value)


def pass_on(x: int, *, tl: Tl) -> None:
    """Receive while the barrier is passed: the message stays in flight."""
    ahead = tl.recv_async("E", 4, "f32")
    tl.barrier(writes_only=True)
    tl.send("E", tl.full(4, 3, "f32"))
    tl.store(x + 16 * tl.program_id(0), ahead)


def test_the_mock_passes_it_with_a_message_in_flight() -> None:
    arrays = [np.zeros(4, np.float32) for _ in range(2)]
    results = run_kernel_in_mock(pass_on, 2, {0: {"E": 1}, 1: {"E": 0}}, arrays)
    assert all((result == 3).all() for result in results)
