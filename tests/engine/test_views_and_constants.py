"""What a kernel may write without a cost, and what a constant costs, on the machine."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from engine_support import fetch, launch, place, two_cubes
from kernbench.engine.engine import GraphEngine
from kernbench.triton_emu.tl_context import TLContext as Tl

VALUES = np.arange(64, dtype=np.float32).reshape(4, 16)


def run(kernel: Callable[..., object]) -> tuple[GraphEngine, np.ndarray]:
    engine = GraphEngine(two_cubes())
    x = place(engine, VALUES)
    launch(engine, kernel, x)
    return engine, fetch(engine, x)


def test_a_view_takes_no_time_and_no_event() -> None:
    def plain(x: int, *, tl: Tl) -> None:
        a = tl.load(x, (4, 16), "f32")
        tl.store(x, a + a)

    def viewed(x: int, *, tl: Tl) -> None:
        a = tl.reshape(tl.load(x, (4, 16), "f32"), (8, -1))
        tl.store(x, tl.reshape(a + a, (4, 16)))

    (first, doubled), (second, same) = run(plain), run(viewed)
    assert (first.now, first.n_events) == (second.now, second.n_events)
    assert np.array_equal(doubled, 2 * VALUES)
    assert np.array_equal(same, doubled)


def test_a_constant_is_one_command_of_math() -> None:
    row = np.arange(16, dtype=np.float32) - 3

    def kernel(x: int, *, tl: Tl) -> None:
        a = tl.load(x, (4, 16), "f32")
        tl.store(x, a * tl.constant(row, "f32"))

    engine, values = run(kernel)
    assert np.array_equal(values, VALUES * row)
    made = next(each for each in engine.op_log if each.name == "constant")
    assert made.t_end_ps - made.t_start_ps == engine.spec.pe.math.operation_ps(16 * 4)
