"""Gathers, scatters, positions of elements, sorting and written numbers against NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import Array, Machine

from kernbench.common.dtypes import F32, I32, I64
from kernbench.common.errors import InputError
from kernbench.kernels.elementwise import write_numbers
from kernbench.kernels.indexing import IndexedAxis, RunSelection, fill_runs, gather_runs, list_nonzero, scatter_runs
from kernbench.kernels.sort import find_extremes, find_rank, find_running_extremes, sort_rows, sum_running
from kernbench.kernels.view import View
from kernbench.triton_emu.handles import Handle
from kernbench.triton_emu.tl_context import TLContext

GRID = (2, 3)


def rows_of(shape: tuple[int, int], runs: int) -> RunSelection:
    """Rows of a matrix, with negative numbers from its end."""
    axis = IndexedAxis(I64, shape[0], shape[1])
    return RunSelection("rows", F32, runs, shape[1], (axis,), ((runs, 0),), wraps=True)


@given(st.lists(st.integers(-7, 6), min_size=1, max_size=30), st.integers(1, 20))
def test_rows_are_gathered_scattered_and_filled(index: list[int], columns: int) -> None:
    machine, x = Machine(), np.arange(7 * columns, dtype=np.float32).reshape(7, columns)
    selection, shape = rows_of(x.shape, len(index)), (len(index), columns)
    x_at, index_at, y_at = machine.put(x), machine.put(np.array(index, np.int64)), machine.room(shape, F32)
    machine.run(partial(gather_runs, selection), y_at, x_at, index_at, grid=GRID)
    machine.assert_only_wrote((y_at, 4 * len(index) * columns))
    assert np.array_equal(machine.get(y_at, shape, F32), x[index])

    source = -np.abs(x[index]) - 1
    machine.run(partial(scatter_runs, selection, "set"), x_at, machine.put(source), index_at, grid=GRID)
    changed = x.copy()
    changed[index] = source
    assert np.array_equal(machine.get(x_at, x.shape, F32), changed)
    machine.run(partial(fill_runs, selection, 2.5), x_at, index_at, grid=GRID)
    changed[index] = 2.5
    assert np.array_equal(machine.get(x_at, x.shape, F32), changed)


def test_elements_of_two_indexed_axes_and_a_counted_one() -> None:
    machine, x = Machine(), np.arange(3 * 4 * 5, dtype=np.float32).reshape(3, 4, 5)
    i, j = np.array([2, 0, 1, 2]), np.array([1, 3, 0, 0])
    flat = [machine.put(np.repeat(index, 5)) for index in (i, j)]  # a number for each run: those of an axis of 5
    axes = (IndexedAxis(I64, 3, 20), IndexedAxis(I64, 4, 5))
    selection = RunSelection("index", F32, 20, 1, axes, ((4, 0), (5, 1)))
    y_at = machine.room((4, 5), F32)
    machine.run(partial(gather_runs, selection), y_at, machine.put(x), *flat, grid=GRID)
    assert np.array_equal(machine.get(y_at, (4, 5), F32), x[i, j])


@pytest.mark.parametrize(("index", "wraps"), [(7, True), (-8, True), (-1, False)])
def test_an_index_beyond_its_axis_is_refused(index: int, wraps: bool) -> None:
    selection = RunSelection("gather", F32, 3, 1, (IndexedAxis(I64, 7, 1),), (), wraps)
    with pytest.raises(InputError, match=f"^gather: index {index} is not within an axis of 7$"):
        selection.offsets(0, [np.array([0, index, 9])])


def test_a_run_without_data_uses_known_values() -> None:
    machine, x = Machine(), np.arange(12, dtype=np.float32).reshape(4, 3)
    axis = IndexedAxis(I64, 4, 3, lambda first, count: np.arange(first, first + count) % 4)
    selection = RunSelection("rows", F32, 6, 3, (axis,), ())
    y_at = machine.room((6, 3), F32)
    machine.run(partial(gather_runs, selection), y_at, machine.put(x), machine.put(np.full(6, 99)), grid=GRID)
    assert np.array_equal(machine.get(y_at, (6, 3), F32), x[[0, 1, 2, 3, 0, 1]])


def test_positions_of_nonzero_elements() -> None:
    machine, x = Machine(), np.array([[0, 3, 0], [1, 0, 2]], np.int32)
    out_at = machine.room((3, 2), I64)
    machine.run(partial(list_nonzero, x.shape, I32, None), out_at, machine.put(x))
    assert np.array_equal(machine.get(out_at, (3, 2), I64), np.argwhere(x))


@given(st.integers(1, 15), st.integers(1, 12), st.data())
def test_rows_are_sorted(rows: int, columns: int, data: st.DataObject) -> None:
    keep, descending = data.draw(st.integers(1, columns)), data.draw(st.booleans())
    x = np.random.default_rng(rows).integers(-3, 4, (rows, columns)).astype(np.float32)
    machine, layout = Machine(), View.row_major(0, x.shape, F32)
    values_at, indices_at = machine.room((rows, keep), F32), machine.room((rows, keep), I64)
    machine.run(partial(sort_rows, layout, keep, descending), values_at, indices_at, machine.put(x), grid=GRID)
    machine.assert_only_wrote((values_at, 4 * rows * keep), (indices_at, 8 * rows * keep))
    order = np.argsort(-x if descending else x, axis=1, kind="stable")[:, :keep]
    assert np.array_equal(machine.get(indices_at, order.shape, I64), order)
    assert np.array_equal(machine.get(values_at, order.shape, F32), np.take_along_axis(x, order, 1))


def results_of(body: Callable[..., Sequence[Handle]], x: Array, count: int) -> list[Array]:
    """The results of a program of rows, stored one after another as f32."""
    machine = Machine()
    x_at, outs = machine.put(x), [machine.room(x.shape, F32) for _ in range(count)]
    shapes = []

    def kernel(*, tl: TLContext) -> None:
        for at, result in zip(outs, body(tl, tl.load(x_at, x.shape, "f32")), strict=True):
            shapes.append(result.shape)
            tl.store(at, tl.cast(result, F32))

    machine.run(kernel)
    return [machine.get(at, shape, F32) for at, shape in zip(outs, shapes, strict=True)]


def test_extremes_and_running_extremes_and_sums() -> None:
    x = np.array([[3, 1, 4, 1, 5, 5], [2, 7, 7, 0, 9, 1]], np.float32)
    values, index = results_of(partial(find_extremes, kind="min"), x, 2)
    assert np.array_equal(values, x.min(1))
    assert np.array_equal(index, x.argmin(1))
    values, index = results_of(partial(find_running_extremes, kind="max"), x, 2)
    assert np.array_equal(values, np.maximum.accumulate(x, 1))
    assert np.array_equal(index, [[0, 0, 2, 2, 4, 5], [0, 1, 2, 2, 4, 4]])
    assert np.array_equal(results_of(sum_running, x, 1)[0], x.cumsum(1))


def test_ranks_with_nan() -> None:
    x = np.array([[3, np.nan, 1, 2], [4, 1, 3, 2]], np.float32)
    assert np.array_equal(results_of(partial(find_rank, rank=2, nan="last"), x, 2)[0], [[3], [3]])
    assert np.array_equal(results_of(partial(find_rank, rank=1, nan="left out"), x, 2)[0], [[2], [2]])
    assert np.array_equal(results_of(partial(find_rank, rank=1, nan="wins"), x, 2)[0], [[np.nan], [2]], equal_nan=True)


@pytest.mark.parametrize("with_data", [True, False])
def test_written_numbers(with_data: bool) -> None:
    machine, numbers = Machine(), np.arange(100, dtype=np.float32)
    at = machine.room(numbers.shape, F32)
    machine.run(write_numbers, at, size=100, dtype=F32, numbers=numbers if with_data else None, grid=GRID)
    assert np.array_equal(machine.get(at, numbers.shape, F32), numbers if with_data else np.zeros(100))
