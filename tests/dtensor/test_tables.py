"""Tables of local work, played with arrays: every element gets where it belongs, once."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from meshes import machine

from kernbench.common.dtypes import F32
from kernbench.dtensor.layouts import copy_table, gemm_table, is_plain, local_policy, reads_in_order
from kernbench.policy.placement.deploy import Deployment
from kernbench.policy.placement.dp import DPPolicy
from kernbench.policy.placement.geometry import PlacementError, Window
from kernbench.policy.placement.views import shard_views
from kernbench.runtime_api.layout import TensorLayout

CUBES, PES = 2, 4
POLICIES = [
    DPPolicy(num_cubes=1, num_pes=1),
    *(
        DPPolicy(cube, pe, num_pes=2)
        for cube in ("row_wise", "column_wise", "replicate")
        for pe in ("row_wise", "column_wise", "replicate")
    ),
]


def layout_of(shape, dp):
    views = shard_views(dp, shape=shape, itemsize=4, num_pe=PES, num_cubes=CUBES, target_sip=0)
    nbytes = int(np.prod(shape)) * 4
    deployment = Deployment(name="x", nbytes=nbytes, mem_kind="hbm", va_base=0, shards=())
    return TensorLayout(shape=shape, dtype=F32, dp=dp, sip=0, va=0, deployment=deployment, views=views)


def memory_of(layout, array):
    """What lies where, by virtual address."""
    held = np.zeros(array.size, array.dtype)
    for view in layout.views:
        first = view.spec.offset_bytes // 4
        held[first : first + view.window.size] = array[view.index].reshape(-1)
    return held


def play(lines, axes, source, target):
    """What copy_windows does; PEs that write their own copy write the same."""
    width = 4 + 3 * axes
    for at in range(0, len(lines), width):
        src, dst, *box = lines[at + 2 : at + width]
        shape, near, far = (box[i : i + axes] for i in range(0, 3 * axes, axes))
        for index in np.ndindex(*shape):
            target[dst // 4 + sum(i * s for i, s in zip(index, far, strict=True)) // 4] = source[
                src // 4 + sum(i * s for i, s in zip(index, near, strict=True)) // 4
            ]


def box_in(data, shape):
    bounds = []
    for extent in shape:
        start = data.draw(st.integers(0, extent - 1))
        bounds.append((start, data.draw(st.integers(start + 1, extent))))
    return Window(tuple(bounds))


@given(st.data(), st.sampled_from(POLICIES), st.sampled_from(POLICIES), st.booleans())
def test_windows_are_copied_between_any_layouts(data, before, behind, deep):
    shape = (4, 5, 6) if deep else (9, 7)
    taken = box_in(data, shape)
    source, target = layout_of(shape, before), layout_of(taken.shape, DPPolicy(num_cubes=1, num_pes=1))
    array = np.arange(np.prod(shape)).reshape(shape)
    out = np.full(taken.size, -1)
    play(copy_table(source, target, [(taken, target.whole)]), len(shape), memory_of(source, array), out)
    np.testing.assert_array_equal(out, array[taken.index].reshape(-1))
    back = np.full(array.size, -1)
    whole = layout_of(shape, behind)
    play(copy_table(target, whole, [(target.whole, taken)]), len(shape), out, back)
    expected = np.full(shape, -1)
    expected[taken.index] = array[taken.index]
    np.testing.assert_array_equal(back, memory_of(whole, expected))


@given(st.sampled_from(POLICIES), st.tuples(st.integers(1, 300), st.integers(1, 300)), st.integers(1, 8))
def test_a_product_is_computed_once_for_each_copy(policy, shape, pes):
    try:
        layout = layout_of(shape, policy)
    except PlacementError:
        return
    there = [(0, at // PES, at % PES) for at in range(pes)]
    lines = np.array(gemm_table(layout, there, (32, 32))).reshape(-1, 8)
    times = np.zeros(shape, int)
    for _, _, row, rows, column, columns, _, _ in lines:
        times[row : row + rows, column : column + columns] += 1
    copies = len(layout.views) // len({view.window for view in layout.views})
    assert np.all(times == (1 if is_plain(layout) else copies))
    assert len({(cube, pe) for cube, pe, *_ in lines.tolist()}) == len(lines)


def test_large_products_are_work_for_all_pes():
    layout = layout_of((4, 256), DPPolicy(num_cubes=1, num_pes=1))
    assert len(gemm_table(layout, [(0, 0, pe) for pe in range(4)], (32, 32))) == 4 * 8
    assert len(gemm_table(layout_of((32, 32), layout.dp), [(0, 0, pe) for pe in range(4)], (32, 32))) == 8


def test_parts_lie_by_their_size():
    topology = machine(2, cubes=2).spec
    grids = {
        shape: (policy.num_cubes, policy.num_pes)
        for shape in [(8, 8), (2, 2048), (64, 64), (512, 64), (1, 1 << 20), (3000,), ()]
        for policy in [local_policy(shape, 4, None, topology)]
    }
    assert grids == {
        (8, 8): (1, 1),
        (2, 2048): (2, 1),
        (64, 64): (2, 4),
        (512, 64): (2, 4),
        (1, 1 << 20): (2, 4),
        (3000,): (2, 2),
        (): (1, 1),
    }
    assert layout_of((64, 64), DPPolicy("row_wise", "row_wise")).is_row_major
    assert layout_of((1, 64), DPPolicy("column_wise", "column_wise")).is_row_major
    assert not layout_of((64, 64), DPPolicy("row_wise", "column_wise")).is_row_major
    single = layout_of((1, 4), DPPolicy("column_wise", "column_wise", num_cubes=1, num_pes=4))
    assert single.is_row_major
    assert not reads_in_order(single)


def test_a_policy_is_kept_where_it_fits():
    topology, wanted = machine(2, cubes=2).spec, DPPolicy("column_wise", "row_wise")
    assert local_policy((4, 4), 4, wanted, topology) == wanted
    assert local_policy((3, 4), 4, wanted, topology) == DPPolicy(num_cubes=1, num_pes=1)
