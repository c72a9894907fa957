"""Descriptors of pointers and masks: what they read and write is what NumPy gathers and scatters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.frontends.triton.descriptors import ElementDescriptor, List, StridedBox, add_offsets, describe, in_bytes

ITEM = 4
MEMORY = np.arange(4096, dtype=np.int32)
Array = np.ndarray[Any, Any]


def gathered(found: ElementDescriptor | None, shape: tuple[int, ...], other: int) -> Array:
    """What a load by ``found`` has in TCM: ``other`` where nothing is read."""
    if found is None:
        return np.full(shape, other, np.int32)
    read = np.full(found.shape, other, np.int32)
    for at, index in places_of(found):
        read.reshape(-1)[at] = MEMORY[index]
    return np.broadcast_to(read, shape)


def scattered(found: ElementDescriptor | None, block: Array) -> Array:
    """Memory after a store of ``block`` by ``found``."""
    memory = MEMORY.copy()
    if found is not None:
        assert found.shape == block.shape
        places = list(places_of(found))
        if isinstance(found, StridedBox):
            assert len({index for _, index in places}) == len(places), "a box of a store covers no byte twice"
        for at, index in places:
            memory[index] = block.reshape(-1)[at]
    return memory


def places_of(found: ElementDescriptor) -> Iterator[tuple[int, int]]:
    """Which element of the block lies at which element of the memory."""
    if isinstance(found, StridedBox):
        for at in np.ndindex(found.valid or found.shape):
            yield int(np.ravel_multi_index(at, found.shape)), (found.base + int(np.dot(at, found.strides))) // ITEM
        return
    first = 0
    for address, nbytes in found.runs:
        for i in range(nbytes // ITEM):
            if address is not None:
                yield first + i, address // ITEM + i
        first += nbytes // ITEM
    assert first == np.prod(found.shape)


@st.composite
def blocks(draw: st.DrawFn) -> tuple[Array, Array | None]:
    """Pointers and a mask: strided, with wraps, negative and zero strides, or any at all."""
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    index = np.full(shape, 2000, np.int64)
    for axis, n in enumerate(shape):
        along = np.arange(n)
        if draw(st.booleans()):
            along = along % draw(st.integers(1, n))
        step = draw(st.sampled_from([1, 0, n, -1, 2, 7, 36, -20]))
        index = index + (along * step).reshape([n if i == axis else 1 for i in range(len(shape))])
    if draw(st.integers(0, 5)) == 0:
        index.reshape(-1)[draw(st.integers(0, index.size - 1))] = draw(st.integers(0, 4000))
    mask = None
    match draw(st.sampled_from(["none", "corner", "any"])):
        case "corner":
            mask = np.ones(shape, bool)
            for axis, n in enumerate(shape):
                head = np.arange(n) < draw(st.integers(0, n))
                mask = mask & head.reshape([n if i == axis else 1 for i in range(len(shape))])
        case "any":
            mask = np.array(draw(st.lists(st.booleans(), min_size=index.size, max_size=index.size))).reshape(shape)
    return (index * ITEM).astype(np.uint64), mask


@given(blocks())
@settings(deadline=None, max_examples=200)
def test_a_load_is_a_gather(block: tuple[Array, Array | None]) -> None:
    pointers, mask = block
    wanted = np.where(True if mask is None else mask, MEMORY[pointers.astype(np.int64) // ITEM], -7)
    assert (gathered(describe(pointers, mask, ITEM, writing=False), pointers.shape, -7) == wanted).all()


@given(blocks())
@settings(deadline=None, max_examples=200)
def test_a_store_is_a_scatter_in_the_order_of_the_elements(block: tuple[Array, Array | None]) -> None:
    pointers, mask = block
    values = -1 - np.arange(pointers.size, dtype=np.int32).reshape(pointers.shape)
    wanted = MEMORY.copy()
    for at in np.ndindex(pointers.shape):
        if mask is None or mask[at]:
            wanted[int(pointers[at]) // ITEM] = values[at]
    assert (scattered(describe(pointers, mask, ITEM, writing=True), values) == wanted).all()


def at(*offsets: Any) -> Array:
    """Pointers of a block whose index is the sum of ``offsets``, from address 1000."""
    index: Any = sum(np.asarray(each, np.int64) for each in offsets)
    return (1000 + index * ITEM).astype(np.uint64)


ROWS, COLUMNS = np.arange(8)[:, None], np.arange(16)[None, :]


@pytest.mark.parametrize(
    ("pointers", "mask", "box"),
    [
        (at(ROWS * 100, COLUMNS), None, StridedBox(1000, (8, 16), (400, 4))),
        (at(ROWS, COLUMNS * 100), None, StridedBox(1000, (8, 16), (4, 400))),
        (at(ROWS * 100, COLUMNS), (ROWS < 3) & (COLUMNS < 5), StridedBox(1000, (8, 16), (400, 4), (3, 5))),
        (at(ROWS * 100, COLUMNS), COLUMNS < 5, StridedBox(1000, (8, 16), (400, 4), (8, 5))),
        (at(ROWS * 0, COLUMNS), None, StridedBox(1000, (1, 16), (64, 4))),
        (at(ROWS * 0, COLUMNS * 0), None, StridedBox(1000, (1, 1), (4, 4))),
        (at(ROWS * 0, COLUMNS), ROWS < 3, StridedBox(1000, (8, 16), (0, 4), (3, 16))),
        (at(ROWS % 3 * 100, COLUMNS), ROWS < 3, StridedBox(1000, (8, 16), (400, 4), (3, 16))),
        (at([5]), None, StridedBox(1020, (1,), (4,))),
    ],
)  # fmt: skip
def test_what_is_one_box(pointers: Array, mask: Array | None, box: StridedBox) -> None:
    assert describe(pointers, mask, ITEM, writing=False) == box


def test_what_wraps_is_a_run_for_each_stretch() -> None:
    # 16 elements that wrap after 10: elements 0 to 9, then 10 to 15 from the beginning again.
    assert describe(at(COLUMNS[0] % 10), None, ITEM, writing=False) == List((16,), ((1000, 40), (1000, 24)))


def test_nothing_is_left_of_an_empty_mask() -> None:
    assert describe(at(COLUMNS[0]), COLUMNS[0] < 0, ITEM, writing=False) is None


def test_a_store_to_one_place_keeps_the_last() -> None:
    assert describe(at(COLUMNS[0, :3] * 0), None, ITEM, writing=True) == List((3,), ((1000, 4),) * 3)


def test_what_is_masked_out_in_the_middle_is_a_run_of_nothing() -> None:
    found = describe(at(COLUMNS[0]), (COLUMNS[0] < 4) | (COLUMNS[0] > 13), ITEM, writing=False)
    assert found == List((16,), ((1000, 16), (None, 40), (1056, 8)))


def test_rows_that_are_gathered_for_many_columns_are_read_once() -> None:
    found = describe(at(np.array([[7], [3], [3]]), COLUMNS * 0), None, ITEM, writing=False)
    assert found == List((3, 1), ((1028, 4), (1012, 4), (1012, 4)))


FAR = 2**31 - 8
"""Near the last element that an offset of 32 bits names."""


@pytest.mark.parametrize("item", [np.int32, np.int64])
def test_offsets_beyond_32_bits_add_up(item: type[np.signedinteger[Any]]) -> None:
    """`ptr + row * stride + column`: each offset may fit 32 bits, the element is where their sum says."""
    rows, columns = np.array([0, FAR], item)[:, None], np.arange(0, 32, 8, dtype=item)
    expected = [[row + column for column in range(0, 32, 8)] for row in (0, FAR)]
    assert add_offsets(rows, columns).tolist() == expected
    assert add_offsets(-rows, -columns).tolist() == [[-at for at in row] for row in expected]


@pytest.mark.parametrize("itemsize", [1, 2, 4])
def test_elements_beyond_4_gib_are_where_they_are(itemsize: int) -> None:
    """A tensor of 2**31 elements of 4 bytes has 8 GiB: an address that wrapped would be of another tensor."""
    steps = np.array([-FAR, -1, 0, 1, FAR], np.int32)
    assert in_bytes(steps, itemsize).tolist() == [step * itemsize for step in steps.tolist()]
