from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import basic_indices

from kernbench.common.errors import InputError
from kernbench.policy.placement.dp import DPPolicy, PlacementError, tiled_column_major, tiled_row_major
from kernbench.policy.placement.geometry import Window
from kernbench.policy.placement.views import ShardView, assemble, first_copies, pieces, select, shard_views, split_array

NAMES = ("replicate", "column_wise", "row_wise")
shapes = st.lists(st.integers(1, 9), max_size=3).map(tuple)


@st.composite
def placed(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[ShardView, ...]]:
    policy = DPPolicy(draw(st.sampled_from(NAMES)), draw(st.sampled_from(NAMES)))
    shape = draw(shapes)
    cubes, pes = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    try:
        views = shard_views(policy, shape=shape, itemsize=4, num_pe=pes, num_cubes=cubes, target_sip=0)
    except PlacementError:
        assume(False)
    return shape, views


def numbered(shape: tuple[int, ...]) -> np.ndarray:
    return np.arange(np.prod(shape, dtype=int), dtype=np.int32).reshape(shape)


@given(placed())
def test_apart_and_together_again(case):
    shape, views = case
    array = numbered(shape)
    assert np.array_equal(assemble(shape, np.int32, views, split_array(array, views)), array)
    firsts = first_copies(views)
    assert np.array_equal(assemble(shape, np.int32, firsts, split_array(array, firsts)), array)


@given(placed())
def test_parts_fill_the_virtual_range_in_order(case):
    shape, views = case
    end = 0
    for view in first_copies(views):
        assert view.spec.offset_bytes == end
        end += view.spec.nbytes
        assert view.spec.nbytes == view.window.size * 4
    assert end == numbered(shape).nbytes
    assert [(v.spec.cube, v.spec.pe) for v in views] == sorted((v.spec.cube, v.spec.pe) for v in views)
    for view in views:
        assert view.window == next(f.window for f in views if f.spec.offset_bytes == view.spec.offset_bytes)


@given(st.sampled_from(["row_wise", "replicate"]), st.sampled_from(["row_wise", "replicate"]), st.integers(6, 20))
def test_rows_lie_in_virtual_order_as_in_memory(cube, pe, rows):
    array = numbered((rows, 3))
    views = shard_views(DPPolicy(cube, pe), shape=(rows, 3), itemsize=4, num_pe=3, num_cubes=2, target_sip=0)
    firsts = first_copies(views)
    assert b"".join(part.tobytes() for part in split_array(array, firsts)) == array.tobytes()


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 4), st.integers(1, 4), st.booleans())
def test_tiles_come_together(m, k, tile_m, tile_k, by_column):
    deal = tiled_column_major if by_column else tiled_row_major
    views = [ShardView(s.on(0, 0), s.window) for s in deal((m, k), 4, 3, tile_m=tile_m, tile_k=tile_k)]
    array = numbered((m, k))
    assert np.array_equal(assemble((m, k), np.int32, views, split_array(array, views)), array)


def test_the_first_copy_counts():
    views = shard_views(DPPolicy(), shape=(2,), itemsize=4, num_pe=2, target_sip=0)
    assert list(assemble((2,), np.int32, views, [np.array([1, 2]), np.array([8, 9])])) == [1, 2]
    with pytest.raises(InputError, match="hold 0 elements"):
        assemble((2,), np.int32, (), ())


@given(placed(), st.data())
def test_any_index_reads_what_numpy_reads(case, data):
    shape, views = case
    array = numbered(shape)
    index = data.draw(basic_indices(shape, allow_newaxis=True))
    selection = select(index, shape)
    shards = dict(zip(views, split_array(array, views), strict=True))
    fetched = np.empty(selection.window.shape, array.dtype)
    for piece in pieces(first_copies(views), selection.window):
        flat = shards[piece.view].reshape(-1).view(np.uint8)
        offset, nbytes = piece.span(4)
        assert 0 <= offset < offset + nbytes <= flat.nbytes
        fetched[piece.target.index] = shards[piece.view][piece.source.index]
    assert np.array_equal(fetched[selection.rest], array[index])
    if selection.dense:
        assert fetched[selection.rest].size == fetched.size


def test_a_span_is_the_shortest_stretch():
    (view,) = shard_views(DPPolicy(), shape=(4, 6), itemsize=2, num_pe=1, target_sip=0)
    (piece,) = pieces([view], Window(((1, 3), (2, 4))))
    assert piece.span(2) == ((6 + 2) * 2, (6 + 2) * 2)


def test_indices_of_arrays_take_the_whole_tensor():
    array = numbered((4, 5))
    for index in ([0, 2], np.array([1, 1]), array > 3, (slice(1, 3), [0, 1]), True, np.array(2)):
        selection = select(index, (4, 5))
        assert selection.window == Window.whole((4, 5))
        assert not selection.dense
        assert np.array_equal(array[selection.rest], array[index])


@pytest.mark.parametrize("index", [4, (0, 5), (0, 0, 0), -5, (Ellipsis, Ellipsis)])
def test_a_bad_index_is_numpys_error(index):
    with pytest.raises(IndexError):
        select(index, (4, 5))


def test_indices_of_a_window_and_of_its_tensor():
    window = Window(((2, 5), (0, 4)))
    assert window.outward((1, 3)) == (3, 3)
    assert window.inward((3, 3)) == (1, 3)
    assert Window(()).outward(()) == Window(()).inward(()) == ()
