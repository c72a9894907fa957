"""Depthwise convolutions and their gradients: each group has one input channel.

A program gathers complete rows of its channels in scratch, with channels last. For each tap it multiplies rows at an
offset by the weights of the tap, and adds them. An offset is a view of the same rows, without a copy.
"""

from __future__ import annotations

from math import prod

import numpy as np

from kernbench.common.dtypes import F32, Array
from kernbench.common.values import value
from kernbench.kernels.shares import blocks, share
from kernbench.kernels.tiling import most_elements
from kernbench.kernels.view import View
from kernbench.kernels.windows import (
    ABSENT,
    Band,
    PlaceTables,
    WindowAxis,
    join_axes,
    load_places,
    own_bands,
    store_places,
)
from kernbench.triton_emu.handles import Handle
from kernbench.triton_emu.tl_context import TLContext


@value
class TapAxis:
    """Taps of ``windows`` windows along an axis: tap k of window i is number ``i stride - padding + k dilation``.

    Number j is element ``j / spread`` of the axis, of ``extent`` elements. All other numbers stand for 0.
    """

    extent: int
    windows: int
    width: int
    stride: int
    padding: int
    dilation: int
    spread: int = 1

    @property
    def transposed(self) -> TapAxis:
        """The axis of the gradient: the taps that contain each element, the last tap of a window first."""
        padding = self.dilation * (self.width - 1) - self.padding
        return TapAxis(self.windows, self.extent, self.width, 1, padding, self.dilation, self.stride)

    def elements(self, numbers: Array) -> Array:
        """Return the elements of some numbers, or `ABSENT`."""
        index, rest = np.divmod(numbers, self.spread)
        return np.where((rest == 0) & (index >= 0) & (index < self.extent), index, ABSENT)

    def table(self) -> WindowAxis:
        """Return the elements of each window."""
        starts = np.arange(self.windows)[:, None] * self.stride - self.padding
        return WindowAxis(self.extent, self.elements(starts + np.arange(self.width) * self.dilation))

    def rows(self, first: int, count: int) -> tuple[Array, list[int]]:
        """Return the elements of ``count`` windows from ``first`` on, and the first index of each tap among them.

        The elements of a tap in all windows are adjacent.
        """
        shifts, phases = np.divmod(np.arange(self.width) * self.dilation, self.stride)
        numbers: list[Array] = []
        begins: dict[int, int] = {}
        for phase in sorted(set(phases.tolist())):
            begins[phase] = sum(len(part) for part in numbers)
            windows = np.arange(first, first + count + shifts[phases == phase].max())
            numbers.append(windows * self.stride + phase - self.padding)
        starts = [begins[phase] + shift for phase, shift in zip(phases.tolist(), shifts.tolist(), strict=True)]
        return self.elements(np.concatenate(numbers)), starts


@value(eq=False)
class _Gathered:
    """Rows of some channels in scratch, (inner taps · rows, inner windows, channels), for a band of windows."""

    rows: Handle
    starts: tuple[int, ...]
    inner_taps: int
    count: int

    def add_taps(self, weights: Handle, is_reversed: bool, total: Handle | None, tl: TLContext) -> Handle:
        """Add all taps times ``weights`` (taps, channels) to ``total``: (windows, channels)."""
        per_tap = self.rows.shape[0] // self.inner_taps
        taps = len(self.starts) * self.inner_taps
        for number in range(taps):
            outer, inner = divmod(number, self.inner_taps)
            rows = tl.part(self.rows, inner * per_tap + self.starts[outer], self.count)
            weight = tl.part(weights, taps - 1 - number if is_reversed else number)
            total = rows * weight if total is None else tl.fma(rows, weight, total)
        assert total is not None, "a window has taps"
        return total


def _gather(
    x: View, axes: tuple[TapAxis, ...], inner: WindowAxis, band: Band, tables: PlaceTables, tl: TLContext
) -> _Gathered:
    """Load the rows of ``x`` (images, channels, places) that a band of windows contains, and gather them."""
    elements, starts = axes[0].rows(band.row, band.rows)
    present = elements[elements != ABSENT]
    low, high = (int(present.min()), int(present.max()) + 1) if present.size else (0, 1)
    size = (high - low) * inner.extent
    places = (elements[None, :, None] - low) * inner.extent + inner.table.T[:, None, :]
    is_absent = (elements == ABSENT)[None, :, None] | (inner.table == ABSENT).T[:, None, :]
    spare = bool(is_absent.any())
    channels = band.channel, band.channels
    values = load_places(x, (band.image, 1), channels, (low * inner.extent, size), spare, tl)
    by_place = tl.trans(tables.take(tl.cast(values, F32), np.where(is_absent, size, places)))
    rows = tl.reshape(by_place, (inner.width * len(elements), inner.windows, band.channels))
    return _Gathered(rows, tuple(starts), inner.width, band.rows)


@value(eq=False)
class DepthwiseConvolution:
    """A depthwise convolution: ``groups`` input channels, and ``multiplier`` output channels for each of them."""

    axes: tuple[TapAxis, ...]
    images: int
    groups: int
    multiplier: int

    def _every(self, x: View, index: int) -> View:
        """Return output channel ``index`` of each group of an array (images, output channels, places)."""
        image, channel, place = x.strides
        return View(
            x.at((0, index)),
            (x.extents[0], self.groups, x.extents[2]),
            (image, channel * self.multiplier, place),
            x.dtype,
        )

    def _weights(self, weight: View, index: int, band: Band, tl: TLContext) -> Handle:
        """Load the weights of output channel ``index`` of some groups: (taps, channels)."""
        taps = weight.extents[1]
        first = weight.at((band.channel * self.multiplier + index,))
        rows = View(first, (band.channels, taps), (taps * self.multiplier, 1), weight.dtype)
        return tl.trans(tl.cast(rows.load(tl), F32))

    def _bands(self, axes: tuple[TapAxis, ...], inner: WindowAxis, tl: TLContext) -> list[Band]:
        row_elements = max(inner.width * inner.windows, inner.extent) * axes[0].stride
        return list(own_bands((self.images, self.groups, axes[0].windows), row_elements, tl))

    def run(self, out: View, x: View, weight: View, bias: View | None = None, *, tl: TLContext) -> None:
        """Compute this program's share. ``weight`` is (output channels, taps), ``bias`` (output channels,)."""
        inner, tables = join_axes([axis.table() for axis in self.axes[1:]]), PlaceTables(tl)
        for band in self._bands(self.axes, inner, tl):
            gathered = _gather(x, self.axes, inner, band, tables, tl)
            for index in range(self.multiplier):
                total = None
                if bias is not None:
                    first = bias.at((band.channel * self.multiplier + index,))
                    total = tl.cast(View(first, (band.channels,), (self.multiplier,), bias.dtype).load(tl), F32)
                total = gathered.add_taps(self._weights(weight, index, band, tl), False, total, tl)
                _store(self._every(out, index), total, band, inner.windows, tl)

    def run_input_gradient(self, out: View, grad: View, weight: View, *, tl: TLContext) -> None:
        """Compute this program's share of the gradient of the input. ``grad`` is that of the output."""
        axes = tuple([axis.transposed for axis in self.axes])
        inner, tables = join_axes([axis.table() for axis in axes[1:]]), PlaceTables(tl)
        for band in self._bands(axes, inner, tl):
            total = None
            for index in range(self.multiplier):
                gathered = _gather(self._every(grad, index), axes, inner, band, tables, tl)
                total = gathered.add_taps(self._weights(weight, index, band, tl), True, total, tl)
            assert total is not None, "a group has output channels"
            _store(out, total, band, inner.windows, tl)

    def run_weight_gradient(self, out: View, grad: View, x: View, *, tl: TLContext) -> None:
        """Compute this program's share of the gradient of the weights, (output channels, taps)."""
        first, size = share(self.groups, tl)
        windows, tables, taps = [axis.table() for axis in self.axes], PlaceTables(tl), out.extents[1]
        (outer, *inner), per_row = windows, prod(axis.windows for axis in windows[1:])
        elements = prod(axis.extent for axis in inner)
        most_rows = max(1, most_elements(tl) // (taps * per_row))
        most_channels = max(1, most_elements(tl) // (taps * per_row * min(outer.windows, most_rows)))
        for channels in blocks(size, most_channels, first):
            totals: list[Handle | None] = [None for _ in range(self.multiplier)]
            for image in range(self.images):
                for row, rows in blocks(outer.windows, most_rows):
                    low, band = outer.band(row, rows)
                    table = join_axes((band, *inner))
                    places = np.where(table.table == ABSENT, table.extent, table.table).T
                    spare = bool((table.table == ABSENT).any())
                    source = low * elements, table.extent
                    values = tl.cast(load_places(x, (image, 1), channels, source, spare, tl), F32)
                    values_of_taps = tl.reshape(tables.take(values, places), (channels[1], taps, table.windows))
                    for index in range(self.multiplier):
                        target = row * per_row, table.windows
                        by_window = load_places(self._every(grad, index), (image, 1), channels, target, False, tl)
                        factor = tl.reshape(tl.cast(by_window, F32), (channels[1], 1, table.windows))
                        addend, total = tl.sum(values_of_taps * factor, 2), totals[index]
                        totals[index] = addend if total is None else total + addend
            for index, total in enumerate(totals):
                assert total is not None, "there are images"
                corner = out.at((channels[0] * self.multiplier + index,))
                View(corner, total.shape, (taps * self.multiplier, 1), out.dtype).store(total, tl)


def _store(out: View, total: Handle, band: Band, row_windows: int, tl: TLContext) -> None:
    """Store a band of windows (rows, row windows, channels)."""
    places = band.rows * row_windows
    values = tl.trans(tl.reshape(total, (places, band.channels)))
    store_places(out, values, (band.image, band.channel, band.row * row_windows), (band.channels, 1, places), tl)
