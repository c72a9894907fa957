"""Pools: sums and maxima of the windows of images, and their gradients, in one launch each.

A program reduces the windows along the last axis, then along the axis before it, and so on. Sums and maxima of boxes
are sums and maxima along each axis in turn. Floats are summed in f32, integers in i64.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

import numpy as np

from kernbench.common.dtypes import F32, I8, I32, Array, Shape
from kernbench.common.values import value
from kernbench.kernels.reduce import wide
from kernbench.kernels.view import View
from kernbench.kernels.windows import ABSENT, Band, WindowAxis, next_axis, own_bands
from kernbench.triton_emu.handles import Handle
from kernbench.triton_emu.tl_context import TLContext


def _elements_per_row(axes: Sequence[WindowAxis]) -> int:
    """Return the maximum number of elements of a stage per index of the first axis of the results."""
    first, *inner = axes
    rows_in = max(1, first.extent / first.windows)
    stages = [prod(axis.extent for axis in inner) * rows_in]
    for at, axis in enumerate(inner):
        before, after = prod(a.extent for a in inner[:at]), prod(a.windows for a in inner[at:])
        stages.append(rows_in * before * after * axis.width)
    stages.append(prod(axis.windows for axis in inner) * first.width)
    return max(1, int(max(stages)))


@value(eq=False)
class Divisors:
    """Divisors of windows: ``number`` times a factor for each axis.

    ``factors`` has (windows,) integers for each axis, or is empty.
    """

    factors: tuple[Array, ...]
    number: int = 1

    def divide(self, x: Handle, first: int, tl: TLContext) -> Handle:
        """Divide ``x`` (planes, windows…), which begins with window ``first`` of the first axis."""
        numbers = [axis if at else axis[first : first + x.shape[1]] for at, axis in enumerate(self.factors)]
        common = self.number * prod([int(axis[0]) for axis in numbers if (axis == axis[0]).all()])
        x = x if common == 1 else tl.elementwise("div", x, float(common) if x.dtype.is_float else common)
        varying: Handle | None = None
        for at, axis in enumerate(numbers):
            if (axis != axis[0]).any():
                shape = [1 for _ in x.shape]
                shape[at + 1] = len(axis)
                factor = tl.constant(axis.reshape(shape), x.dtype)
                varying = factor if varying is None else varying * factor
        return x if varying is None else tl.elementwise("div", x, varying)


@value(eq=False)
class WindowSums:
    """Sums of the elements of windows, divided before or after the sum.

    ``before`` are divisors of the elements, ``after`` those of the sums.
    """

    axes: tuple[WindowAxis, ...]
    before: Divisors | None = None
    after: Divisors | None = None

    def run(self, out: View, x: View, *, tl: TLContext) -> None:
        """Compute this program's share. ``out`` and ``x`` are (images, channels, axes…)."""
        first, *inner = self.axes
        for band in own_bands(out.extents, _elements_per_row(self.axes), tl):
            row, axis = first.band(band.row, band.rows)
            values = wide(band.load(x, row, axis.extent, tl), tl)
            values = tl.cast(values, F32) if values.dtype.is_float else values
            if self.before is not None:
                values = self.before.divide(values, row, tl)
            for windows in (*reversed(inner), axis):
                if not windows.is_identity:
                    elements = windows.gather(values, 0, tl)
                    shape = elements.shape[:-1]
                    values = tl.reshape(elements, shape) if windows.width == 1 else tl.sum(elements, len(shape))
                values = next_axis(values, tl)
            if self.after is not None:
                values = self.after.divide(values, band.row, tl)
            band.store(out, values, tl)


@value(eq=False)
class WindowMaxima:
    """Maxima of windows, and their positions: the first maximum of a window in row-major order, or its last NaN.

    A position is the index of an element in its plane, in row-major order.
    """

    axes: tuple[WindowAxis, ...]

    def run(self, out: View, positions: View, x: View, *, tl: TLContext) -> None:
        """Compute this program's share. All arrays are (images, channels, axes…)."""
        first, *inner = self.axes
        for band in own_bands(out.extents, _elements_per_row(self.axes), tl):
            row, axis = first.band(band.row, band.rows)
            values, places, step = band.load(x, row, axis.extent, tl), None, 1
            for windows, low in (*[(windows, 0) for windows in reversed(inner)], (axis, row)):
                place = _place_of_maximum(windows, values, tl)
                offset = (place + low) * step if low or step != 1 else place
                places = offset if places is None else tl.take(places, place) + offset
                values, places = next_axis(tl.take(values, place), tl), next_axis(places, tl)
                step *= windows.extent
            assert places is not None, "a plane has axes"
            band.store(out, values, tl)
            band.store(positions, places, tl)


def _place_of_maximum(windows: WindowAxis, x: Handle, tl: TLContext) -> Handle:
    """Return the place along the last axis of ``x`` of the first maximum, or of the last NaN, of each window."""
    elements, axis = windows.gather(x, None, tl), len(x.shape)
    index = tl.argmax(elements, axis, keepdims=True)
    if x.dtype.is_float:
        counts = I8 if windows.width <= 128 else I32
        is_nan = tl.cast(tl.elementwise("isnan", elements), counts)
        numbers = tl.constant(np.arange(windows.width), counts)
        index = tl.maximum(index, tl.argmax(is_nan * numbers, axis, keepdims=True))
    table = tl.constant(windows.nearest().reshape(*[1 for _ in x.shape[:-1]], windows.windows, windows.width), I32)
    return tl.reshape(tl.take(table, index), (*x.shape[:-1], windows.windows))


@value(eq=False)
class Cells:
    """Elements of an axis in cells of ``size``. ``windows`` has the windows that contain an element of each cell."""

    size: int
    windows: WindowAxis

    @staticmethod
    def of(windows: WindowAxis, size: int) -> Cells:
        """Return the elements of the axis of ``windows`` in cells. Cells of a stride are quickest for equal windows."""
        size = min(size, windows.extent)
        covering = windows.inverse()
        count = -(-windows.extent // size)
        padded = np.full((count * size, covering.width), ABSENT)
        padded[: windows.extent] = covering.table
        rows = [np.unique(row[row != ABSENT]) for row in padded.reshape(count, -1)]
        table = np.full((count, max(1, *[len(row) for row in rows], 1)), ABSENT)
        for line, row in zip(table, rows, strict=True):
            line[: len(row)] = row
        return Cells(size, WindowAxis(covering.extent, table))


@value(eq=False)
class MaximaGradient:
    """The gradient of `WindowMaxima`: each element gets the gradients of the windows whose position is the element."""

    axes: tuple[Cells, ...]

    def run(self, out: View, grad: View, positions: View, *, tl: TLContext) -> None:
        """Compute this program's share. All arrays are (images, channels, axes…)."""
        first, inner, extent = self.axes[0], self.axes[1:], out.extents[2]
        for cells in own_bands((*out.extents[:2], first.windows.windows), first.size * prod(out.extents[3:]), tl):
            row, windows = first.windows.band(cells.row, cells.rows)
            axes = (Cells(first.size, windows), *inner)
            by_window = tl.cast(cells.load(grad, row, windows.extent, tl), F32)
            targets = tl.cast(cells.load(positions, row, windows.extent, tl), I32)
            begin = cells.row * first.size
            positions_of_elements = _positions(axes, out.extents[3:], begin, tl)
            total = _sum_of_hits(axes, by_window, targets, positions_of_elements, tl)
            rows = min(cells.rows * first.size, extent - begin)
            Band(cells.image, cells.channel, cells.channels, begin, rows).store(out, total, tl)


def _positions(axes: Sequence[Cells], inner: Shape, first: int, tl: TLContext) -> Handle:
    """Return the position of each element of a plane in cells, (1, cells, size, …), from row ``first`` on."""
    total: Handle | None = None
    for at, axis in enumerate(axes):
        shape = [1 for _ in range(2 * len(axes) + 1)]
        shape[2 * at + 1 : 2 * at + 3] = axis.windows.windows, axis.size
        numbers = tl.reshape(tl.iota((prod(shape),), I32), shape)
        numbers = numbers + first if at == 0 and first else numbers
        step = prod(inner[at:])
        numbers = numbers if step == 1 else numbers * step
        total = numbers if total is None else total + numbers
    assert total is not None, "a plane has axes"
    return total


def _sum_of_hits(axes: Sequence[Cells], by_window: Handle, targets: Handle, positions: Handle, tl: TLContext) -> Handle:
    """Add ``by_window`` of the windows whose target is an element's position in ``positions``: (planes, elements…)."""
    planes, *counts = by_window.shape
    flat = (planes, prod(counts))
    by_window, targets = tl.reshape(by_window, flat), tl.reshape(targets, flat)
    cells = [count for axis in axes for count in (axis.windows.windows, 1)]
    total: Handle | None = None
    for places in _candidates([axis.windows for axis in axes]):
        index = tl.constant(np.maximum(places, 0).reshape(1, -1), I32)
        target = tl.take(targets, index)
        if (places == ABSENT).any():
            target = tl.where(tl.constant((places != ABSENT).reshape(1, -1).astype(np.int8), I8), target, ABSENT)
        is_hit = tl.elementwise("eq", tl.reshape(target, (planes, *cells)), positions)
        addend = tl.where(is_hit, tl.reshape(tl.take(by_window, index), (planes, *cells)), 0.0)
        total = addend if total is None else total + addend
    assert total is not None, "some window covers some element"
    return tl.reshape(total, (planes, *[axis.windows.windows * axis.size for axis in axes]))


def _candidates(axes: Sequence[WindowAxis]) -> Iterator[Array]:
    """Yield, for each cell of a plane in row-major order, one window that may cover it, or `ABSENT`; all in turn."""
    for slots in product(*[range(axis.width) for axis in axes]):
        places, is_absent = np.zeros((1,), np.int64), np.zeros((1,), bool)
        for axis, slot in zip(axes, slots, strict=True):
            column = axis.table[:, slot]
            places = (places[:, None] * axis.extent + np.maximum(column, 0)).ravel()
            is_absent = (is_absent[:, None] | (column == ABSENT)).ravel()
        if not is_absent.all():
            yield np.where(is_absent, ABSENT, places)
