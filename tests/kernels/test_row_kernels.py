"""Softmax, layernorm, rmsnorm and elementwise kernels against NumPy: one piece, many pieces, split rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import Array, Machine, assert_near, normal, wide

from kernbench.common.dtypes import BF16, F8E4M3, F8E5M2, F16, F32, I8, I32, DType
from kernbench.kernels.elementwise import add, elementwise, elementwise_composite, mul, silu_mul
from kernbench.kernels.norms import layernorm, rmsnorm, softmax
from kernbench.messages.commands import STORE

FLOATS = (F32, F16, BF16, F8E4M3, F8E5M2)
rows_and_columns = st.tuples(st.integers(1, 130), st.integers(1, 130))
# Relative to a row: several pieces a row, one row, several rows, all.
rows_a_block = st.sampled_from((0.3, 1, 20, 200))
grids = st.sampled_from(((1, 1), (2, 3)))


def softmax_of(x: Array) -> Array:
    e = np.exp(wide(x) - wide(x).max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def run_on_rows(kernel: Any, x: Array, item: DType, extra: list[int | None], machine: Machine, **how: Any) -> Array:
    at, out = machine.put(x), machine.room(x.shape, item)
    machine.run(kernel, at, *extra, out, *x.shape, item.name, **how)
    machine.assert_only_wrote((out, x.size * item.itemsize))
    return machine.get(out, x.shape, item)


@given(rows_and_columns, rows_a_block, grids, st.sampled_from(FLOATS), st.none() | st.integers(0, 9))
def test_softmax_of_any_rows(
    shape: tuple[int, int], part: float, grid: tuple[int, int], item: DType, order: int | None
) -> None:
    x = normal(np.random.default_rng(shape[0]), shape, item, 3)
    found = run_on_rows(softmax, x, item, [], Machine(), block=math.ceil(part * shape[1]), grid=grid, order=order)
    assert_near(found, softmax_of(x))


@pytest.mark.parametrize("block", [2, 65536])
def test_softmax_is_stable(block: int) -> None:
    x = np.array([[3e4, 3e4, 2e4, -np.inf, -np.inf], [-np.inf, -np.inf, -np.inf, 0, 0]], np.float16)
    found = run_on_rows(softmax, x, F16, [], Machine(), block=block)
    assert found.tolist() == [[0.5, 0.5, 0, 0, 0], [0, 0, 0, 0.5, 0.5]]


@given(
    rows_and_columns,
    rows_a_block,
    grids,
    st.sampled_from((F32, F16, BF16)),
    st.tuples(st.booleans(), st.booleans()),
    st.none() | st.integers(0, 9),
)
def test_layernorm_and_rmsnorm_of_any_rows(
    shape: tuple[int, int],
    part: float,
    grid: tuple[int, int],
    item: DType,
    given_: tuple[bool, bool],
    order: int | None,
) -> None:
    rng, machine = np.random.default_rng(shape[1]), Machine()
    x = (wide(normal(rng, shape, item)) + 2).astype(item.numpy)
    weight, bias = (normal(rng, shape[1:], item) if there else None for there in given_)
    w_at, b_at = (None if v is None else machine.put(v) for v in (weight, bias))
    w, b = (None if v is None else wide(v) for v in (weight, bias))
    how = {"block": math.ceil(part * shape[1]), "grid": grid, "order": order}
    found = run_on_rows(layernorm, x, item, [w_at, b_at], machine, **how)
    centred = wide(x) - wide(x).mean(1, keepdims=True)
    wanted = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5) * (1 if w is None else w)
    added = 0 if b is None else b
    # Few columns may lie close together: what rounding makes of their distance from the mean is then magnified.
    assert_near(found, wanted + added, magnitude=np.abs(added) + 0.5)
    found = run_on_rows(rmsnorm, x, item, [w_at], machine, **how)
    wanted = wide(x) / np.sqrt((wide(x) ** 2).mean(1, keepdims=True) + 1e-6) * (1 if w is None else w)
    assert_near(found, wanted)


def test_replicated_rows_are_computed_by_every_program() -> None:
    x = normal(np.random.default_rng(0), (5, 7), F32)
    for kernel, extra in ((softmax, []), (layernorm, [None, None]), (rmsnorm, [None])):
        machine = Machine()
        run_on_rows(kernel, x, F32, extra, machine, grid=(1, 2), split=False)
        stores = sum(c.op is STORE for c in machine.last.commands)
        assert stores == 1


def test_long_rows_fit_in_little_scratch() -> None:
    x = normal(np.random.default_rng(0), (3, 5000), F32)
    found = run_on_rows(softmax, x, F32, [], Machine(), block=512, scratch_bytes=20 * 1024, order=1)
    assert_near(found, softmax_of(x))


@given(st.integers(1, 300), st.sampled_from((7, 64, 65536)), grids, st.sampled_from((*FLOATS, I8, I32)))
def test_add_and_mul_of_any_arrays(n: int, block: int, grid: tuple[int, int], item: DType) -> None:
    rng = np.random.default_rng(n)
    x, y = (rng.integers(-3, 4, n).astype(item.numpy) for _ in range(2))
    for kernel, fn in ((add, np.add), (mul, np.multiply)):
        machine = Machine()
        args, out = [machine.put(x), machine.put(y)], machine.room((n,), item)
        machine.run(kernel, *args, out, n, item.name, block, grid=grid)
        machine.assert_only_wrote((out, n * item.itemsize))
        assert np.array_equal(machine.get(out, (n,), item), fn(wide(x), wide(y)).astype(item.numpy))


@given(st.integers(1, 300), grids, st.sampled_from((F32, F16, BF16)))
def test_silu_mul(n: int, grid: tuple[int, int], item: DType) -> None:
    rng, machine = np.random.default_rng(n), Machine()
    gate, up = normal(rng, (n,), item), normal(rng, (n,), item)
    args, out = [machine.put(gate), machine.put(up)], machine.room((n,), item)
    machine.run(silu_mul, *args, out, n, item.name, 64, grid=grid)
    assert_near(machine.get(out, (n,), item), wide(gate) / (1 + np.exp(-wide(gate))) * wide(up))


OPERATORS: list[tuple[str, int, Any]] = [
    ("exp", 1, np.exp),
    ("relu", 1, lambda x: np.maximum(x, 0)),
    ("maximum", 2, np.maximum),
    ("div", 2, np.divide),
    ("fma", 3, lambda x, y, z: x * y + z),
]


@given(rows_and_columns, grids, st.sampled_from(OPERATORS), st.sampled_from((F32, F16, BF16)))
def test_any_operator_by_blocks_and_by_tiles(
    shape: tuple[int, int], grid: tuple[int, int], case: tuple[str, int, Any], item: DType
) -> None:
    name, arity, fn = case
    rng, machine = np.random.default_rng(shape[0]), Machine()
    arrays = [(np.abs(wide(normal(rng, shape, item))) + 0.5).astype(item.numpy) for _ in range(arity)]
    pointers = [*map(machine.put, arrays), None, None][:3]
    for kernel, sizes in ((elementwise, (shape[0] * shape[1],)), (elementwise_composite, shape)):
        out = machine.room(shape, item)
        machine.run(kernel, name, *pointers, out, *sizes, item.name, grid=grid)
        machine.assert_only_wrote((out, arrays[0].size * item.itemsize))
        assert_near(machine.get(out, shape, item), fn(*map(wide, arrays)))


@pytest.mark.parametrize("grid", [(1, 1), (1, 2)])
def test_comparisons_make_i8_if_asked(grid: tuple[int, int]) -> None:
    rng, machine = np.random.default_rng(0), Machine()
    x, y = normal(rng, (5, 3), F16), normal(rng, (5, 3), F16)
    args, out, other = (machine.put(x), machine.put(y), None), machine.room((5, 3), I8), machine.room((5, 3), I8)
    machine.run(elementwise, "lt", *args, out, 15, "f16", grid=grid)
    machine.run(elementwise_composite, "lt", *args, other, 5, 3, "f16", "i8", grid=grid)
    for at in (out, other):
        assert np.array_equal(machine.get(at, (5, 3), I8), wide(x) < wide(y))
