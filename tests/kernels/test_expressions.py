"""Expressions of several operations and results, in one launch, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import Machine, assert_near, normal, wide

from kernbench.common.dtypes import BF16, F16, F32, I32, DType, row_major
from kernbench.kernels.elementwise import COPY, Expression, Input, Intermediate, Operation, Task
from kernbench.kernels.functions import call
from kernbench.kernels.view import View
from kernbench.messages.commands import LOAD, STORE
from kernbench.triton_emu.handles import Handle
from kernbench.triton_emu.tl_context import TLContext

Array = np.ndarray[Any, Any]


def square_and_add(tl: TLContext, x: Handle, y: Handle, *, scale: float) -> Handle:
    return tl.fma(x, x, y * scale)


SQUARES = Expression(
    (
        Operation(square_and_add, (Input(0), Input(1)), compute=F32, options=(("scale", 0.5),)),
        Operation(call("sqrt"), (Intermediate(0),), compute=F32, rounded=F16),
        Operation(call("gt"), (Intermediate(1), 1.25), compute=F32),
        Operation(call("sub"), (Intermediate(0), Input(0)), compute=F32),
    ),
    (Intermediate(3), Intermediate(2), Intermediate(1)),
)
"""Three results: x² + y/2 - x, its condition root > 1.25, and root = sqrt(x² + y/2) in f16"""


def compute_squares(x: Array, y: Array) -> tuple[Array, Array, Array]:
    total = wide(x) ** 2 + wide(y) * 0.5
    root = np.sqrt(total).astype(np.float16)
    return total - wide(x), wide(root) > 1.25, wide(root)


def run(
    expression: Expression, arrays: list[Array], result_types: list[DType], machine: Machine, **options: Any
) -> list[Array]:
    """Run a task on row-major arrays of one shape, once on each PE."""
    shape = arrays[0].shape
    inputs = [machine.put(array) for array in arrays]
    results = [machine.room(shape, item) for item in result_types]
    views = [View(0, shape, row_major(shape, 1), item) for item in result_types]
    task = Task(expression, tuple(views), tuple(views_of(arrays)))
    machine.run(lambda *addresses, tl: task.run(addresses, tl), *results, *inputs, **options)
    placed = list(zip(results, result_types, strict=True))
    machine.assert_only_wrote(*[(at, arrays[0].size * item.itemsize) for at, item in placed])
    return [machine.get(at, shape, item) for at, item in placed]


def views_of(arrays: list[Array]) -> list[View]:
    items = {np.dtype(item.numpy): item for item in (F32, F16, BF16, I32)}
    return [View(0, x.shape, row_major(x.shape, 1), items[x.dtype]) for x in arrays]


@given(
    st.tuples(st.integers(1, 40), st.integers(1, 90)),
    st.sampled_from((F32, F16, BF16)),
    st.sampled_from([(1, 1), (1, 3), (2, 2)]),
    st.none() | st.integers(0, 9),
)
def test_several_operations_and_results(
    shape: tuple[int, int], item: DType, grid: tuple[int, int], order: int | None
) -> None:
    rng = np.random.default_rng(shape[1])
    x, y = normal(rng, shape, item), np.abs(normal(rng, shape, F32))
    total, condition, root = run(SQUARES, [x, y], [item, I32, F32], Machine(), grid=grid, order=order)
    expected_total, expected_condition, expected_root = compute_squares(x, y)
    assert_near(total, expected_total, magnitude=wide(x) ** 2 + wide(y) + np.abs(wide(x)))
    near = np.abs(expected_root - 1.25) < 1e-2
    assert np.array_equal(condition.astype(bool) | near, expected_condition | near)
    assert_near(root.astype(np.float16), expected_root)


def test_each_input_is_loaded_and_cast_once_and_each_result_stored_once() -> None:
    machine, rng = Machine(), np.random.default_rng(0)
    x, y = normal(rng, (4, 8), BF16), np.abs(normal(rng, (4, 8), F32))
    run(SQUARES, [x, y], [F32, I32, F16], machine)
    commands = machine.last.commands
    assert [sum(c.op is op for c in commands) for op in (LOAD, STORE)] == [2, 3]
    # x to f32, the root to f16 and back, the condition to i32
    assert sum(c.name == "cast" for c in commands) == 4


def test_expressions_compose() -> None:
    half = Expression.of(call("mul"), Input(0), 0.5)
    difference = Expression.of(call("sub"), Input(1), Input(0))
    composed = half.then(difference, (half.results[0], Input(1)), stored=half.results)
    assert composed.operations == (*half.operations, Operation(call_of(difference), (Input(1), Intermediate(0))))
    x, y = (normal(np.random.default_rng(seed), (5, 7), F32) for seed in (0, 1))
    results = run(composed, [x, y], [F32, F32], Machine())
    np.testing.assert_array_equal(results, [y - x * np.float32(0.5), x * np.float32(0.5)])


def call_of(expression: Expression) -> Any:
    return expression.operations[0].function


def test_a_copy_has_no_operations() -> None:
    x = normal(np.random.default_rng(0), (3, 5), BF16)
    assert np.array_equal(run(COPY, [x], [F32], Machine())[0], wide(x))
    again = Expression.of(call("neg"), Input(0)).then(COPY, (Intermediate(0),))
    assert np.array_equal(run(again, [x], [BF16], Machine())[0], -x)


@pytest.mark.parametrize("length", [3, 40])
def test_intermediate_results_are_dropped_after_their_last_use(length: int) -> None:
    steps = [Operation(call("add"), (Input(0), 1.0))]
    steps += [Operation(call("add"), (Intermediate(index), 1.0)) for index in range(length - 1)]
    x = normal(np.random.default_rng(0), (8, 128), F32)
    chain = Expression(tuple(steps), (Intermediate(length - 1),))
    (result,) = run(chain, [x], [F32], Machine(), scratch_bytes=4 * x.nbytes)
    assert_near(result, wide(x) + length)
