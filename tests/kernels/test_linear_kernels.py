"""The kernels of tensor-parallel layers against NumPy: linear layers, biases, embeddings, copies with strides."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import Array, Machine, assert_near, normal, wide

from kernbench.common.dtypes import BF16, F16, F32, I32, DType
from kernbench.kernels.elementwise import shards_to_rows, strided_copy
from kernbench.kernels.indexing import NOT_HERE, embedding_one_hot, embedding_rows
from kernbench.kernels.linear import add_bias, linear
from kernbench.policy.placement.dp import DPPolicy
from kernbench.policy.placement.views import shard_views, split_array

GRID = (2, 3)
floats = st.sampled_from((F32, F16, BF16))


def put_shards(machine: Machine, array: Array, policy: DPPolicy) -> int:
    """The address of an array that is stored as its shards lie in virtual addresses."""
    views = shard_views(
        policy, shape=array.shape, itemsize=array.itemsize, num_pe=GRID[1], num_cubes=GRID[0], target_sip=0
    )
    parts = {view.spec.offset_bytes: part for view, part in zip(views, split_array(array, views), strict=True)}
    return machine.put(np.concatenate([parts[offset].reshape(-1) for offset in sorted(parts)]))


@given(
    st.tuples(st.integers(1, 40), st.integers(1, 70), st.integers(6, 70)),
    st.sampled_from(("column_wise", "replicate")),
    st.sampled_from(("column_wise", "replicate")),
    st.sampled_from((64, 2 << 20)),
    st.booleans(),
    floats,
)
def test_linear_on_any_spread_of_the_weight(
    sizes: tuple[int, int, int], cube: str, pe: str, stage: int, biased: bool, item: DType
) -> None:
    m, k, n = sizes
    rng, machine = np.random.default_rng(m), Machine()
    x, w, bias = normal(rng, (m, k), item), normal(rng, (k, n), item, k**-0.5), normal(rng, (n,), item)
    at, w_at = machine.put(x), put_shards(machine, w, DPPolicy(cube, pe))
    bias_at = machine.put(bias) if biased else None
    y = machine.room((m, n), item)
    by_column = int(cube == "column_wise"), int(pe == "column_wise")
    machine.run(linear, at, w_at, bias_at, y, m, k, n, item.name, GRID, by_column, stage, grid=GRID)
    machine.assert_only_wrote((y, m * n * item.itemsize))
    wanted, size = wide(x) @ wide(w), np.abs(wide(x)) @ np.abs(wide(w))
    assert_near(machine.get(y, (m, n), item), wanted + wide(bias) * biased, magnitude=size + np.abs(wide(bias)))


def test_programs_without_a_part_of_the_weight_do_nothing() -> None:
    machine, x, w = Machine(), np.ones((2, 4), np.float32), np.ones((4, 3), np.float32)
    args = machine.put(x), machine.put(w), None, machine.room((2, 3), F32)
    machine.run(linear, *args, 2, 4, 3, "f32", (1, 1), grid=GRID)
    assert machine.get(args[3], (2, 3), F32).tolist() == [[4.0] * 3] * 2
    assert machine.last.commands == []


@given(st.integers(1, 40), st.integers(1, 40), st.sampled_from((1, 30, 65536)), floats)
def test_add_bias(rows: int, columns: int, block: int, item: DType) -> None:
    rng, machine = np.random.default_rng(rows), Machine()
    x, bias = normal(rng, (rows, columns), item), normal(rng, (columns,), item)
    at, bias_at = machine.put(x), machine.put(bias)
    machine.run(add_bias, at, bias_at, at, rows, columns, item.name, block, grid=GRID)
    machine.assert_only_wrote((at, x.nbytes))
    assert_near(machine.get(at, x.shape, item), wide(x) + wide(bias))


@given(st.lists(st.integers(0, 29), min_size=1, max_size=20), st.integers(1, 20), st.sampled_from((3, 65536)), floats)
def test_embeddings_of_a_part_of_the_table(ids: list[int], columns: int, block: int, item: DType) -> None:
    first, rows = 10, 12
    table = normal(np.random.default_rng(columns), (30, columns), item)
    here = [first <= each < first + rows for each in ids]
    wanted = np.where(np.array(here)[:, None], table[ids], table.dtype.type(0))
    machine = Machine()
    w = machine.put(table[first : first + rows])
    ids_at = machine.put(np.array(ids, np.int32))
    y, z = machine.room(wanted.shape, item), machine.room(wanted.shape, item)
    numbers = tuple(each - first if there else NOT_HERE for each, there in zip(ids, here, strict=True))
    machine.run(embedding_rows, w, y, numbers, columns, item.name, block, grid=GRID)
    sizes = (len(ids), first, rows, columns)
    machine.run(embedding_one_hot, ids_at, w, z, *sizes, item.name, 3, min(block, 5), grid=GRID)
    machine.assert_only_wrote((z, wanted.nbytes))
    assert np.array_equal(machine.get(y, wanted.shape, item), wanted)
    assert np.array_equal(machine.get(z, wanted.shape, item), wanted)


@given(st.tuples(st.integers(1, 9), st.integers(1, 5), st.integers(1, 6)), st.sampled_from((1, 7, 65536)))
def test_a_copy_with_other_strides(shape: tuple[int, int, int], block: int) -> None:
    x = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    y = x.swapaxes(0, 1)
    machine = Machine()
    src, dst = machine.put(x), machine.room((*y.shape, 1), I32)
    turned = (x.strides[1], x.strides[0], x.strides[2])
    plain = (shape[0] * shape[2] * 4, shape[2] * 4, 4)
    machine.run(strided_copy, src - 8, dst + 4, y.shape, turned, plain, "i32", 8, -4, block, grid=GRID)
    machine.assert_only_wrote((dst, x.nbytes))
    assert np.array_equal(machine.get(dst, y.shape, I32), y)


@pytest.mark.parametrize("cube", ["column_wise", "row_wise", "replicate"])
@pytest.mark.parametrize("pe", ["column_wise", "row_wise", "replicate"])
def test_shards_become_rows(cube: str, pe: str) -> None:
    x = np.arange(7 * 8, dtype=np.float32).reshape(7, 8)
    machine, policy = Machine(), DPPolicy(cube, pe)
    src, dst = put_shards(machine, x, policy), machine.room(x.shape, F32)
    table = []
    for view in shard_views(policy, shape=x.shape, itemsize=4, num_pe=3, num_cubes=2, target_sip=0):
        (row, _), (column, _) = view.window.bounds
        table += [view.spec.cube, view.spec.pe, view.spec.offset_bytes, *view.shape, (row * 8 + column) * 4]
    machine.run(shards_to_rows, src, dst, tuple(table), 32, "f32", grid=GRID)
    machine.assert_only_wrote((dst, x.nbytes))
    assert np.array_equal(machine.get(dst, x.shape, F32), x)
