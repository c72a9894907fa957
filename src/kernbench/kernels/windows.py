"""Windows of images: which elements each window covers, and the bands of an image that a program computes.

An image has planes (one for each image of the batch and each channel) of one to three axes. A program loads complete
rows of its planes into scratch. It computes all windows there, axis by axis, without further access to memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod

import numpy as np

from kernbench.common.dtypes import I8, I32, Array, Shape
from kernbench.common.values import value
from kernbench.kernels.shares import blocks, share
from kernbench.kernels.tiling import most_elements
from kernbench.kernels.view import View
from kernbench.triton_emu.handles import Handle, Number
from kernbench.triton_emu.tl_context import TLContext

ABSENT = -1
"""Entry of a table for an element outside its axis."""


@value(eq=False)
class WindowAxis:
    """Windows along an axis of ``extent`` elements. ``table`` (windows, width) has the elements of each window.

    Elements outside the axis are `ABSENT`.
    """

    extent: int
    table: Array

    @staticmethod
    def regular(extent: int, windows: int, width: int, stride: int, padding: int, dilation: int) -> WindowAxis:
        """Return the axis of ``windows`` equal windows: ``width`` elements at distance ``dilation``."""
        starts = np.arange(windows)[:, None] * stride - padding
        return WindowAxis._within(extent, starts + np.arange(width) * dilation)

    @staticmethod
    def adaptive(extent: int, windows: int) -> WindowAxis:
        """Return the axis of windows that cover all elements, as PyTorch's adaptive pools divide them."""
        index = np.arange(windows)
        starts, ends = index * extent // windows, -(-(index + 1) * extent // windows)
        elements = starts[:, None] + np.arange((ends - starts).max())
        return WindowAxis._within(extent, np.where(elements < ends[:, None], elements, ABSENT))

    @staticmethod
    def _within(extent: int, elements: Array) -> WindowAxis:
        return WindowAxis(extent, np.where((elements >= 0) & (elements < extent), elements, ABSENT))

    @property
    def windows(self) -> int:
        """Number of windows."""
        return int(self.table.shape[0])

    @property
    def width(self) -> int:
        """Maximum number of elements of a window."""
        return int(self.table.shape[1])

    @property
    def counts(self) -> Array:
        """Number of elements of each window within the axis."""
        return np.asarray((self.table != ABSENT).sum(1))

    @property
    def is_identity(self) -> bool:
        """True if window i consists of element i."""
        return self.width == 1 and np.array_equal(self.table[:, 0], np.arange(self.extent))

    def entries(self) -> Array:
        """Return the entries of the table, in ascending order, that contain each element: (extent, most entries).

        An entry is window · width + place in the window.
        """
        order = np.argsort(self.table.ravel(), kind="stable")
        elements = self.table.ravel()[order]
        order, elements = order[elements != ABSENT], elements[elements != ABSENT]
        first = np.searchsorted(elements, np.arange(self.extent))
        position = np.arange(len(elements)) - first[elements]
        entries = np.full((self.extent, int(position.max(initial=0)) + 1), ABSENT)
        entries[elements, position] = order
        return entries

    def inverse(self) -> WindowAxis:
        """Return the axis of windows, whose table has the windows that contain each element, in ascending order."""
        entries = self.entries()
        return WindowAxis(self.windows, np.where(entries == ABSENT, ABSENT, entries // self.width))

    def band(self, first: int, count: int) -> tuple[int, WindowAxis]:
        """Return the first element of ``count`` windows from ``first`` on, and their axis from this element on."""
        table = self.table[first : first + count]
        present = table[table != ABSENT]
        low, high = (int(present.min()), int(present.max())) if present.size else (0, 0)
        return low, WindowAxis(high + 1 - low, np.where(table == ABSENT, ABSENT, table - low))

    def nearest(self) -> Array:
        """Return the table with the nearest element of the same window in place of absent ones.

        All elements of a window without elements are 0.
        """
        present = self.table != ABSENT
        width = np.arange(self.width)
        before = np.maximum.accumulate(np.where(present, width, -1), 1)
        after = np.minimum.accumulate(np.where(present, width, self.width)[:, ::-1], 1)[:, ::-1]
        nearest = np.where(before >= 0, before, np.minimum(after, self.width - 1))
        return np.asarray(np.maximum(np.take_along_axis(self.table, nearest, 1), 0))

    def gather(self, x: Handle, absent: Number | None, tl: TLContext) -> Handle:
        """Return the elements of all windows along the last axis of ``x``: (…, windows, width).

        Absent elements are ``absent``. With None, the nearest element of the window replaces them.
        """
        shape = (*x.shape[:-1], self.windows, self.width)
        if np.array_equal(self.table.ravel(), np.arange(self.extent)):
            return tl.reshape(x, shape)
        ones = tuple([1 for _ in x.shape[:-1]])
        places = tl.constant(self.nearest().reshape(*ones, -1), I32)
        elements = tl.take(x, places)
        if absent is not None and (self.table == ABSENT).any():
            present = tl.constant((self.table != ABSENT).reshape(*ones, -1).astype(np.int8), I8)
            elements = tl.where(present, elements, absent)
        return tl.reshape(elements, shape)


def next_axis(x: Handle, tl: TLContext) -> Handle:
    """Move the last axis of planes (planes, …) in front of the other axes of a plane."""
    planes, *axes = x.shape
    if prod(axes[:-1]) == 1 or axes[-1] == 1:
        return tl.reshape(x, (planes, axes[-1], *axes[:-1]))
    return tl.trans(x, (0, len(axes), *range(1, len(axes))))


@value
class Band:
    """Rows ``row`` to ``row + rows`` of some channels of an image. A row is an index of the first axis of a plane."""

    image: int
    channel: int
    channels: int
    row: int
    rows: int

    def load(self, images: View, row: int, rows: int, tl: TLContext) -> Handle:
        """Load other rows of the channels of this band: (channels, rows, …)."""
        extents = (self.channels, rows, *images.extents[3:])
        tile = images.tile((self.image, self.channel, row, *[0 for _ in images.extents[3:]]), extents)
        if tile.strides[0] >= tile.strides[-1] or self.channels == 1:
            return tl.broadcast(tile.load(tl), extents)
        channels_last = View(tile.address, (*extents[1:], extents[0]), (*tile.strides[1:], tile.strides[0]), tile.dtype)
        loaded = tl.broadcast(channels_last.load(tl), channels_last.extents)
        values = tl.reshape(loaded, (prod(extents[1:]), extents[0]))
        return tl.reshape(tl.trans(values), extents)

    def store(self, images: View, values: Handle, tl: TLContext) -> None:
        """Store the first elements of ``values`` (channels, rows or more, …) as this band, rounded to the dtype."""
        item = images.dtype
        strides = [stride * item.itemsize for stride in images.strides[1:]]
        extents = (self.channels, self.rows, *images.extents[3:])
        address, values = images.at((self.image, self.channel, self.row)), tl.cast(values, item)
        if strides[0] < strides[-1] and self.channels > 1:
            channels, *axes = values.shape
            values = tl.reshape(tl.trans(tl.reshape(values, (channels, prod(axes)))), (*axes, channels))
            strides, extents = [*strides[1:], strides[0]], (*extents[1:], extents[0])
        valid = None if extents == values.shape else extents
        tl.store(address, values, strides=strides, valid=valid)


def own_bands(extents: Shape, row_elements: int, tl: TLContext) -> Iterator[Band]:
    """Yield the bands of results that this program computes, with at most as many elements as fit in scratch.

    Programs share the planes of all images. If there are more programs than planes, they share the rows of all planes.
    ``extents`` of the results begin with images, channels and rows. ``row_elements``: elements that a program has in
    scratch for a row of results.
    """
    images, channels, rows, *_ = extents
    most, planes = max(1, most_elements(tl) // row_elements), images * channels
    if planes < tl.num_programs(0) * tl.num_programs(1):
        first, size = share(planes * rows, tl)
        while size:
            plane, row = divmod(first, rows)
            extent = min(size, rows - row, most)
            image, channel = divmod(plane, channels)
            yield Band(image, channel, 1, row, extent)
            first, size = first + extent, size - extent
        return
    first, size = share(planes, tl)
    while size:
        image, channel = divmod(first, channels)
        count = min(size, channels - channel, max(1, most // rows))
        for row, extent in blocks(rows, most):
            yield Band(image, channel, count, row, extent)
        first, size = first + count, size - count


def merge_images(views: Sequence[View]) -> list[View]:
    """Return arrays (images, channels, axes…) as one image of all planes, if the layout of all of them allows it."""
    if any(view.strides[0] != view.extents[1] * view.strides[1] for view in views):
        return list(views)
    return [
        View(
            view.address, (1, view.extents[0] * view.extents[1], *view.extents[2:]), (0, *view.strides[1:]), view.dtype
        )
        for view in views
    ]


def join_axes(axes: Sequence[WindowAxis]) -> WindowAxis:
    """Return the windows of several axes as those of one axis: elements and windows of a plane in row-major order."""
    extent, table = 1, np.zeros((1, 1), np.int64)
    for axis in axes:
        extent *= axis.extent
        outer, inner = table[:, None, :, None], axis.table[None, :, None, :]
        joined = np.where((outer == ABSENT) | (inner == ABSENT), ABSENT, outer * axis.extent + inner)
        table = joined.reshape(table.shape[0] * axis.windows, -1)
    return WindowAxis(extent, table)


# images (images, channels, places): a place is an index of a plane in row-major order


def flat_places(view: View) -> View | None:
    """Return images (images, channels, axes…) with the axes of a plane as one; None if its layout does not allow it."""
    images, channels, *axes = view.extents
    steps = [(n, step) for n, step in zip(axes, view.strides[2:], strict=True) if n > 1]
    for (_, outer), (n, inner) in pairwise(steps):
        if outer != n * inner:
            return None
    place = steps[-1][1] if steps else 1
    return View(view.address, (images, channels, prod(axes)), (*view.strides[:2], place), view.dtype)


def load_places(
    x: View, region: tuple[int, int], channels: tuple[int, int], places: tuple[int, int], spare: bool, tl: TLContext
) -> Handle:
    """Load some images, channels and places of ``x``: (channels, images · places).

    Each argument is a first index and a count. ``spare``: a zero follows the places of each image.
    """
    (image, images), (channel, count), (first, size) = region, channels, places
    by_image, by_channel, by_place = [stride * x.dtype.itemsize for stride in x.strides]
    address, extent = x.at((image, channel, first)), size + spare
    is_channels_last = by_channel < (by_place if x.extents[2] > 1 else by_image)
    if not is_channels_last:
        shape, steps, valid = (count, images, extent), (by_channel, by_image, by_place), (count, images, size)
    else:
        shape, steps, valid = (images, extent, count), (by_image, by_place, by_channel), (images, size, count)
    values = tl.load(address, shape, x.dtype, strides=steps, valid=valid if spare else None)
    if not is_channels_last:
        return tl.reshape(values, (count, images * extent))
    return tl.trans(tl.reshape(values, (images * extent, count)))


def store_places(
    out: View, values: Handle, corner: tuple[int, int, int], shape: tuple[int, int, int], tl: TLContext
) -> None:
    """Store ``values`` (channels, images · places), in the dtype of ``out``, from ``corner`` of ``out`` on.

    ``shape``: channels, images and places of ``values``.
    """
    by_image, by_channel, by_place = [stride * out.dtype.itemsize for stride in out.strides]
    channels, images, places = shape
    values = tl.cast(values, out.dtype)
    if by_channel >= (by_place if out.extents[2] > 1 else by_image):
        tl.store(out.at(corner), tl.reshape(values, shape), strides=(by_channel, by_image, by_place))
    else:
        turned = tl.reshape(tl.trans(values), (images, places, channels))
        tl.store(out.at(corner), turned, strides=(by_image, by_place, by_channel))


class PlaceTables:
    """Tables of places in scratch. Blocks with equal tables share one of them."""

    def __init__(self, tl: TLContext) -> None:
        self._tl = tl
        self._last: tuple[bytes, Handle] | None = None

    def take(self, x: Handle, places: Array) -> Handle:
        """Return the elements of each row of ``x`` at ``places``."""
        key = places.tobytes()
        if self._last is None or self._last[0] != key:
            self._last = None
            self._last = key, self._tl.constant(places.reshape(1, -1), I32)
        return self._tl.take(x, self._last[1])
