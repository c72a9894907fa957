"""The address of each element that a view loads, stores or references, against its closed form."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from itertools import product
from math import prod
from random import Random
from typing import Any

import pytest

from kernbench.common.dtypes import F16, F32, I8, I64, DType
from kernbench.kernels.shares import columns_of
from kernbench.kernels.tiling import row_blocks
from kernbench.kernels.view import View

Index = tuple[int, ...]


class Values:
    """A handle: its shape and its dtype."""

    def __init__(self, shape: Index, dtype: DType) -> None:
        self.shape, self.dtype = shape, dtype


class RecordedCalls:
    """The calls of ``tl`` that a view makes: (name, address, extents, dtype, strides in bytes)."""

    def __init__(self, counts: tuple[int, int] = (1, 1), ids: tuple[int, int] = (0, 0)) -> None:
        self.calls: list[tuple[str, int, Index, DType, Index]] = []
        self.num_programs, self.program_id = counts.__getitem__, ids.__getitem__

    def load(self, address: int, extents: Index, dtype: DType, strides: Index) -> Values:
        self.calls.append(("load", address, extents, dtype, strides))
        return Values(extents, dtype)

    def ref(self, address: int, extents: Index, dtype: DType, strides: Index) -> None:
        self.calls.append(("ref", address, extents, dtype, strides))

    def store(self, address: int, values: Values, strides: Index) -> None:
        self.calls.append(("store", address, values.shape, values.dtype, strides))

    def cast(self, values: Values, dtype: DType) -> Values:
        return Values(values.shape, dtype)

    def reshape(self, values: Values, shape: Index) -> Values:
        assert prod(shape) == prod(values.shape)
        return Values(shape, values.dtype)


def addresses(call: tuple[str, int, Index, DType, Index], shape: Index) -> list[int]:
    """Return the addresses of a call's elements, broadcast to ``shape``."""
    _, first, extents, _, strides = call
    if len(extents) < len(shape):  # axes that continue each other are one
        assert prod(extents) == prod(shape)
        shape = extents
    assert len(extents) == len(strides) == len(shape)
    assert all(n in (extent, 1) or extent == 1 for n, extent in zip(shape, extents, strict=True))
    steps = [0 if extent == 1 else stride for extent, stride in zip(extents, strides, strict=True)]
    return [first + sum(i * step for i, step in zip(index, steps, strict=True)) for index in indices(shape)]


def indices(shape: Index) -> list[Index]:
    return list(product(*map(range, shape)))


def random_view(random: Random, axes: int, strides: tuple[int, ...]) -> View:
    steps = tuple(random.choice(strides) for _ in range(axes))
    return View(random.randint(0, 1 << 30), (12,) * axes, steps, random.choice((I8, F16, F32, I64)))


def random_tile(random: Random, view: View) -> tuple[Index, Index, list[int]]:
    """Return a corner with all indices or without the last ones, extents, and the addresses of their elements."""
    axes = len(view.extents)
    extents = tuple(random.randint(1, 4) for _ in range(random.randint(1, axes)))
    corner = tuple(random.randint(0, 8) for _ in range(random.randint(0, axes)))
    origin = (*corner, *(0 for _ in range(axes - len(corner))))
    inner = [(*(0 for _ in range(axes - len(index))), *index) for index in indices(extents)]
    places = [[first + i for first, i in zip(origin, index, strict=True)] for index in inner]
    elements = [sum(i * stride for i, stride in zip(place, view.strides, strict=True)) for place in places]
    return corner, extents, [view.address + element * view.dtype.itemsize for element in elements]


@pytest.mark.parametrize("axes", [1, 2, 3, 4])
def test_tiles_access_their_elements(axes: int) -> None:
    random = Random(axes)
    for _ in range(300):
        tl = RecordedCalls()
        view = random_view(random, axes, (0, 1, 1, 7, 64, 640))
        corner, extents, expected = random_tile(random, view)
        tile = view.tile(corner, extents)
        assert tile.address == view.at(corner) == expected[0]
        tile.load(tl)
        tile.ref(tl)
        assert [call[0] for call in tl.calls] == ["load", "ref"]
        assert all(addresses(call, extents) == expected and call[3] is view.dtype for call in tl.calls)
        placed = view.on(0).on(view.address)
        assert placed == view
        assert hash(placed) == hash(view)


@pytest.mark.parametrize("axes", [1, 2, 3, 4])
def test_stores_write_each_element_once_in_the_dtype_of_the_view(axes: int) -> None:
    random = Random(10 + axes)
    for _ in range(300):
        tl = RecordedCalls()
        view = random_view(random, axes, (1, 7, 64, 640))
        corner, extents, expected = random_tile(random, view)
        view.tile(corner, extents).store(Values(extents, F32), tl)
        (call,) = tl.calls
        assert prod(call[2]) == prod(extents)
        assert addresses(call, extents) == expected
        assert call[3] is view.dtype


def test_an_axis_of_repeated_elements_is_read_once() -> None:
    tl = RecordedCalls()
    view = View(1000, (5, 6, 7), (0, 2, 0), F16)
    view.load(tl)
    assert tl.calls == [("load", 1000, (1, 6, 1), F16, (2, 4, 2))]


def test_axes_of_elements_that_are_apart_are_one_where_they_continue_each_other() -> None:
    tl = RecordedCalls()
    values = View(0, (2, 3, 1, 4), (48, 8, 8, 2), F32).load(tl)
    assert values.shape == (2, 3, 1, 4)
    View(0, (2, 3, 4), (24, 8, 2), F32).store(Values((2, 3, 4), F32), tl)
    View(0, (2, 3, 4), (12, 4, 1), F32).load(tl)  # contiguous: the DMA joins the elements
    assert [(call[2], call[4]) for call in tl.calls] == [
        ((2, 12), (192, 8)),
        ((24,), (8,)),
        ((2, 3, 4), (48, 16, 4)),
    ]


def test_transposed_swaps_the_last_two_axes() -> None:
    random = Random(20)
    for _ in range(300):
        view = random_view(random, 3, (1, 7, 64))
        z, i, j = (random.randint(0, 9) for _ in range(3))
        assert view.transposed.at((z, j, i)) == view.at((z, i, j))
        assert view.transposed.transposed == view
    assert View.row_major(0, (2, 3, 5), F16).transposed.extents == (2, 5, 3)


def test_row_major_numbers_elements_in_order() -> None:
    view = View.row_major(64, (3, 4, 5), F32)
    assert [view.at(index) for index in indices(view.extents)] == list(range(64, 64 + 60 * 4, 4))


def test_a_view_is_frozen() -> None:
    view: Any = View.row_major(0, (2, 2), F32)
    with pytest.raises(FrozenInstanceError):
        view.address = 4


def test_programs_read_each_row_once_or_once_in_each_pass() -> None:
    random = Random(30)
    for _ in range(100):
        rows, columns, width = random.randint(1, 20), random.randint(1, 30), random.randint(1, 60)
        matrix = View.row_major(random.randint(0, 99), (rows, columns), F16)
        counts = random.randint(1, 3), random.randint(1, 3)
        read: list[int] = []
        for pe, cube in indices(counts):
            tl = RecordedCalls(counts, (pe, cube))
            for _row, load_columns in row_blocks(matrix, width, True, tl):
                for _ in range(2):
                    for first in range(0, columns, width):
                        values = load_columns(first, min(width, columns - first))
                        assert values.dtype is F32
            read += [address for call in tl.calls for address in addresses(call, call[2])]
        passes = 1 if columns <= width else 2
        assert sorted(read) == sorted(passes * [matrix.at(index) for index in indices((rows, columns))])


def test_columns_are_those_of_the_rows() -> None:
    tl = RecordedCalls()
    columns_of(View.row_major(100, (2, 10), F16), 4, tl)(4, 3)
    assert tl.calls == [("load", 108, (2, 3), F16, (20, 2))]
