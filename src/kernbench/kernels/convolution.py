"""Convolutions of images, and their gradients: products of weights and windows that a program gathers in scratch.

Images are (images, channels, places): a place is an index of a plane in row-major order. A program loads complete rows
of planes once and gathers the elements of all windows in scratch: the columns of a product. The columns of a channel
are its taps, the elements of a window.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import prod

import numpy as np

from kernbench.common.dtypes import F32, I32, Array, DType
from kernbench.common.values import value
from kernbench.kernels.product_grids import PeRates
from kernbench.kernels.shares import blocks, part
from kernbench.kernels.tiling import most_elements
from kernbench.kernels.view import View
from kernbench.kernels.windows import ABSENT, PlaceTables, WindowAxis, join_axes, load_places, store_places
from kernbench.triton_emu.handles import Handle
from kernbench.triton_emu.tl_context import TLContext

_NEARLY = 1.05
"""Ratio of predicted times below which one grid is as good as another."""


def sums_in(item: DType) -> DType:
    """Return the type in which products of elements of type ``item`` are summed."""
    return F32 if item.is_float else I32


@value
class _ImageRows:
    """Complete rows of some images: ``images`` from ``image`` on, and ``rows`` from ``row`` on of each of them."""

    image: int
    images: int
    row: int
    rows: int


@value(eq=False)
class Windows:
    """Windows of the images of a convolution. ``axes`` map the elements of an image to the windows, the places."""

    axes: tuple[WindowAxis, ...]

    @property
    def taps(self) -> int:
        """Elements of a window."""
        return prod([axis.width for axis in self.axes])

    @property
    def inner(self) -> tuple[int, int]:
        """Elements, and windows, of a row."""
        return prod([axis.extent for axis in self.axes[1:]]), prod([axis.windows for axis in self.axes[1:]])

    def of_rows(self, row: int, rows: int) -> tuple[int, int, WindowAxis]:
        """Return the first row and the number of rows of elements of some rows of windows, and these windows."""
        low, first = self.axes[0].band(row, rows)
        return low, first.extent, join_axes((first, *self.axes[1:]))

    def around_rows(self, row: int, rows: int) -> tuple[int, int, WindowAxis]:
        """Return the first row and the number of rows of the windows that contain some rows of elements.

        The windows returned have only these elements.
        """
        low, inverse = self.axes[0].inverse().band(row, rows)
        table = self.axes[0].table[low : low + inverse.extent] - row
        first = WindowAxis(rows, np.where((table >= 0) & (table < rows), table, ABSENT))
        return low, inverse.extent, join_axes((first, *self.axes[1:]))


@value
class ConvolutionGrid:
    """A division of a convolution over PEs: by groups, by rows of the product, and by its columns."""

    groups: int
    rows: int
    columns: int

    def place(self, tl: TLContext) -> tuple[int, int, int] | None:
        """Return the indices of this program in the grid, or None if it is outside."""
        number = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        if number >= self.groups * self.rows * self.columns:
            return None
        group, number = divmod(number, self.rows * self.columns)
        return group, *divmod(number, self.columns)


@lru_cache(maxsize=4096)
def choose_convolution_grid(
    rates: PeRates,
    math_bytes_per_ns: float,
    pes: int,
    groups: int,
    product: tuple[int, int, int],
    gathered: int,
    itemsize: int,
) -> ConvolutionGrid:
    """Return the grid with the least predicted time for the PE with the most work.

    ``product``: rows, depth and columns of a group's product. ``gathered``: bytes that MATH gathers for an element of a
    column. Of nearly equal grids, the one that splits rows most is returned: it reads and writes complete weights.
    """
    tile_m, tile_k, tile_n = rates.tile
    m, k, n = product
    group_parts = min(groups, pes)
    grids: list[tuple[float, ConvolutionGrid]] = []
    for rows in range(1, min(pes // group_parts, m) + 1):
        columns = min(pes // group_parts // rows, n)
        pe_m, pe_n = -(-m // rows), -(-n // columns)
        tiles = -(-pe_m // tile_m) * -(-pe_n // tile_n) * -(-k // tile_k)
        nbytes = (pe_m + pe_n) * k * itemsize
        ns = tiles * rates.tile_ns + gathered * pe_n * k / math_bytes_per_ns + nbytes / rates.bytes_per_ns
        grids.append((ns, ConvolutionGrid(group_parts, rows, columns)))
    least = min(ns for ns, _ in grids)
    return next(grid for ns, grid in reversed(grids) if ns <= _NEARLY * least)


def _regions(images: int, rows: int, parts: int, index: int, most_rows: int) -> Iterator[_ImageRows]:
    """Yield part ``index`` of ``parts`` of the rows of all images, in regions of at most ``most_rows`` rows.

    A region has several images only if it has all their rows.
    """
    image, count, first, size = 0, images, 0, rows
    if parts <= images:
        image, count = part(images, parts, index)
    else:
        per_image = parts // images
        image, at = divmod(index, per_image)
        if image >= images:
            return
        count, (first, size) = 1, part(rows, per_image, at)
    if first == 0 and size == rows and rows <= most_rows:
        for begin, extent in blocks(count, max(1, most_rows // rows), image):
            yield _ImageRows(begin, extent, 0, rows)
        return
    for one in range(image, image + count):
        for begin, extent in blocks(size, max(1, most_rows), first):
            yield _ImageRows(one, 1, begin, extent)


def _is_identity(windows: WindowAxis) -> bool:
    return windows.width == 1 and windows.is_identity


def _column_places(windows: WindowAxis, images: int) -> tuple[Array, bool]:
    """Return the places of the columns (taps, images, windows) of a channel, and whether they need a spare zero."""
    spare = bool((windows.table == ABSENT).any())
    in_image = np.where(windows.table == ABSENT, windows.extent, windows.table).T
    begins = np.arange(images)[None, :, None] * (windows.extent + spare)
    return in_image[:, None, :] + begins, spare


@value(eq=False)
class Convolution:
    """A convolution of ``groups`` groups of channels, with the grid of its PEs.

    ``images`` are the numbers of images. ``channels`` are those of input and of output in a group.
    ``acc_bytes``: room for sums in the matrix unit.
    """

    windows: Windows
    images: int
    groups: int
    channels: tuple[int, int]
    grid: ConvolutionGrid
    acc_bytes: int

    def _groups(self, index: int) -> range:
        first, count = part(self.groups, self.grid.groups, index)
        return range(first, first + count)

    def _weights(
        self, weight: View, group: int, out: tuple[int, int], channels: tuple[int, int], tl: TLContext
    ) -> Handle:
        """Load the weights of some output channels and input channels of a group: (out, channels · taps)."""
        taps = self.windows.taps
        corner = (group * self.channels[1] + out[0], channels[0] * taps)
        return weight.tile(corner, (out[1], channels[1] * taps)).load(tl)

    def _columns(
        self, x: View, group: int, region: _ImageRows, channels: tuple[int, int], tables: PlaceTables, tl: TLContext
    ) -> Handle:
        """Return the columns of some channels of a group: (channels · taps, images · windows)."""
        row, rows, windows = self.windows.of_rows(region.row, region.rows)
        (inner, _), images = self.windows.inner, (region.image, region.images)
        of_x = group * self.channels[0] + channels[0], channels[1]
        if _is_identity(windows):
            return load_places(x, images, of_x, (row * inner, rows * inner), False, tl)
        places, spare = _column_places(windows, region.images)
        values = load_places(x, images, of_x, (row * inner, rows * inner), spare, tl)
        return tl.reshape(tables.take(values, places), (channels[1] * windows.width, region.images * windows.windows))

    def _depth_block(self, columns: int, tl: TLContext) -> int:
        """Return the number of channels whose ``columns`` fit in scratch beside the next ones."""
        return max(1, min(self.channels[0], most_elements(tl) // (columns * self.windows.taps)))

    def run(self, out: View, x: View, weight: View, bias: View | None = None, *, tl: TLContext) -> None:
        """Compute this program's part. ``weight``: (output channels, input channels · taps); ``bias``: (channels,)."""
        place = self.grid.place(tl)
        if place is None:
            return
        begin, count = part(self.channels[1], self.grid.rows, place[1])
        row_windows, tables = self.windows.inner[1], PlaceTables(tl)
        sums = self.acc_bytes // 8  # half of the room, in f32: the next product begins before the last one is stored
        regions = list(
            _regions(
                self.images,
                self.windows.axes[0].windows,
                self.grid.columns,
                place[2],
                max(1, sums // min(max(count, 1), 512) // row_windows),
            )
        )
        for group in self._groups(place[0]):
            for region in regions:
                columns = region.images * region.rows * row_windows
                for first, rows in blocks(count, max(32, sums // columns), begin):
                    self._compute(out, x, weight, bias, group, region, (first, rows), tables, tl)

    def _compute(
        self,
        out: View,
        x: View,
        weight: View,
        bias: View | None,
        group: int,
        region: _ImageRows,
        rows: tuple[int, int],
        tables: PlaceTables,
        tl: TLContext,
    ) -> None:
        """Compute some output channels of a region."""
        row_windows, total = self.windows.inner[1], None
        columns = region.images * region.rows * row_windows
        for channels in blocks(self.channels[0], self._depth_block(columns, tl)):
            factor = self._weights(weight, group, rows, channels, tl)
            total = tl.dot(
                factor, self._columns(x, group, region, channels, tables, tl), total, out_dtype=sums_in(factor.dtype)
            )
        assert total is not None, "a convolution has channels"
        first = group * self.channels[1] + rows[0]
        if bias is not None:
            addend = tl.cast(bias.tile((first,), (rows[1],)).load(tl), total.dtype)
            total = total + tl.reshape(addend, (rows[1], 1))
        shape = rows[1], region.images, region.rows * row_windows
        store_places(out, total, (region.image, first, region.row * row_windows), shape, tl)

    def run_input_gradient(self, out: View, grad: View, weight: View, *, tl: TLContext) -> None:
        """Compute this program's part of the gradient of the input. ``grad`` is that of the output."""
        place = self.grid.place(tl)
        if place is None:
            return
        begin, count = part(self.channels[0], self.grid.rows, place[1])
        row_elements, tables, taps = self.windows.inner[0], PlaceTables(tl), self.windows.taps
        rows = self.windows.axes[0].extent
        most_rows = max(1, most_elements(tl) // (taps * row_elements))
        regions = list(_regions(self.images, rows, self.grid.columns, place[2], most_rows))
        for group in self._groups(place[0]):
            for region in regions:
                elements = region.images * region.rows * row_elements
                for channels in blocks(count, max(1, most_elements(tl) // (taps * elements)), begin):
                    self._distribute(out, grad, weight, group, region, channels, tables, tl)

    def _distribute(
        self,
        out: View,
        grad: View,
        weight: View,
        group: int,
        region: _ImageRows,
        channels: tuple[int, int],
        tables: PlaceTables,
        tl: TLContext,
    ) -> None:
        """Compute the gradient of some input channels of a region: products for each window, gathered and added."""
        row, rows, windows = self.windows.around_rows(region.row, region.rows)
        row_elements, row_windows = self.windows.inner
        elements, n_out = region.rows * row_elements, self.channels[1]
        entries = windows.entries()
        spare = bool((entries == ABSENT).any())
        places, images, total = (row * row_windows, rows * row_windows), (region.image, region.images), None
        columns = region.images * (places[1] + spare)
        for out_channels in blocks(n_out, max(32, most_elements(tl) // columns)):
            of_grad = group * n_out + out_channels[0], out_channels[1]
            gradients = load_places(grad, images, of_grad, places, spare, tl)
            factor = self._weights(weight, group, out_channels, channels, tl)
            total = tl.dot(factor, gradients, total, out_dtype=sums_in(factor.dtype), trans_a=True)
        assert total is not None, "a convolution has channels"
        if not _is_identity(windows):
            per_channel = tl.reshape(total, (channels[1], windows.width * columns))
            window, tap = np.divmod(entries, windows.width)
            begins = np.arange(region.images)[:, None, None] * (places[1] + spare)
            of_entry = np.where(entries == ABSENT, places[1], tap * columns + window) + begins
            addends = tl.reshape(
                tables.take(per_channel, of_entry), (channels[1], region.images * elements, entries.shape[1])
            )
            total = tl.reshape(addends, addends.shape[:2]) if entries.shape[1] == 1 else tl.sum(addends, 2)
        corner = region.image, group * self.channels[0] + channels[0], region.row * row_elements
        store_places(out, total, corner, (channels[1], region.images, elements), tl)

    def run_weight_gradient(self, out: View, grad: View, x: View, *, tl: TLContext) -> None:
        """Compute this program's part of the gradient of the weights, (output channels, input channels · taps)."""
        place = self.grid.place(tl)
        if place is None:
            return
        begin, count = part(self.channels[1], self.grid.rows, place[1])
        first, size = part(self.channels[0], self.grid.columns, place[2])
        row_windows, taps, tables = self.windows.inner[1], self.windows.taps, PlaceTables(tl)
        most_rows = max(1, most_elements(tl) // (row_windows * taps * min(max(size, 1), 8)))
        regions = list(_regions(self.images, self.windows.axes[0].windows, 1, 0, most_rows))
        columns = max(region.images * region.rows for region in regions) * row_windows
        for group in self._groups(place[0]):
            for channels in blocks(size, self._depth_block(columns, tl), first):
                totals: list[Handle | None] = [None for _ in blocks(count, 512)]
                for region in regions:
                    gathered = self._columns(x, group, region, channels, tables, tl)
                    places = region.row * row_windows, region.rows * row_windows
                    for index, (channel, rows) in enumerate(blocks(count, 512, begin)):
                        of_grad = group * self.channels[1] + channel, rows
                        gradients = load_places(grad, (region.image, region.images), of_grad, places, False, tl)
                        totals[index] = tl.dot(
                            gradients, gathered, totals[index], out_dtype=sums_in(gathered.dtype), trans_b=True
                        )
                for total, (channel, _) in zip(totals, blocks(count, 512, begin), strict=True):
                    assert total is not None, "there are images"
                    corner = group * self.channels[1] + channel, channels[0] * taps
                    out.tile(corner, total.shape).store(total, tl)
