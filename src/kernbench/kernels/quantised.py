"""Products of floats and integer weights with scales. The weights stay integers in memory, and are read as such.

With few rows, the matrix unit multiplies integers: each float of A is split into digits of 7 bits. The rows of A that a
tile has room for carry the digits, at no cost, and sums of integers are exact. With more rows, MATH converts weights to
the dtype of A, panel by panel in scratch, and all rows use each converted panel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from math import gcd
from typing import TypeAlias

from kernbench.common.dtypes import BF16, F32, I8, I32
from kernbench.common.values import value
from kernbench.kernels.gemv import GemvEpilogue
from kernbench.kernels.shares import blocks, share
from kernbench.kernels.tiling import DIGIT_BITS, QuantisedTiles, packed_panel_size
from kernbench.kernels.view import View
from kernbench.triton_emu.handles import Handle
from kernbench.triton_emu.tl_context import TLContext

_EXPONENT = 0x7F800000
"""The bits of an f32's exponent"""
WeightPanel: TypeAlias = tuple[int, int, int, int]
"""Part of the weights (n, k): first column of A and their number, first row of the weights and their number"""


@value
class Digits:
    """Floats as whole numbers of ``count`` digits of `DIGIT_BITS` bits. The leading digit has the sign.

    ``values`` has digits and rows along its last axis but one, in i8. A digit at ``row`` of A counts
    ``units[digit, row]``, shape (count * m, 1) in f32.
    """

    values: Handle
    units: Handle
    count: int

    @staticmethod
    def unit_of(pieces: Sequence[Handle], count: int, tl: TLContext) -> Handle:
        """Return the value of the last of ``count`` digits in each row of ``pieces`` (m, depth), as (m, 1) in f32.

        It is a power of two, so that division by it is exact. The largest magnitude of the row has at most ``count *
        DIGIT_BITS - 1`` bits. The unit of a row with an infinity or a NaN is NaN, as are then the sums of the row.
        """
        maxima = [tl.max(tl.elementwise("abs", piece), 1) for piece in pieces]
        largest = tl.cast(reduce(tl.maximum, maxima), F32)
        power = tl.bitcast(tl.bitcast(tl.maximum(largest, 1e-30), I32) & _EXPONENT, F32)
        return tl.reshape(power * 2.0 ** (2 - count * DIGIT_BITS) + largest * 0.0, (pieces[0].shape[0], 1))

    @staticmethod
    def of(floats: Handle, unit: Handle, count: int, tl: TLContext) -> Digits:
        """Return the digits of ``floats``, (groups, m, k), in which the last digit counts ``unit``, (m, 1)."""
        groups, m, k = floats.shape
        divisor = unit
        if floats.dtype is F32 or floats.dtype is BF16:
            divisor = tl.cast(unit, floats.dtype)
        else:
            floats = tl.cast(floats, F32)  # f16 has no room for quotients
        whole = tl.cast(floats / divisor, I32)
        places = [DIGIT_BITS * (count - 1 - digit) for digit in range(count)]
        masks = [-1, *[(1 << DIGIT_BITS) - 1] * (count - 1)]
        shifted = tl.reshape(whole, (groups, 1, m, k)) >> tl.constant([[[place]] for place in places], I32)
        values = tl.cast(shifted & tl.constant([[[mask]] for mask in masks], I32), I8)
        weights = tl.constant([[[2.0**place]] for place in places], F32)
        units = tl.reshape(tl.reshape(unit, (1, m, 1)) * weights, (count * m, 1))
        return Digits(tl.reshape(values, (groups, count * m, k)), units, count)

    def add_up(self, sums: Handle, tl: TLContext) -> Handle:
        """Return the sums of rows of A, (m, n), from ``sums`` of their digits in f32, (count * m, n)."""
        rows, n = sums.shape
        return tl.sum(tl.reshape(sums * self.units, (self.count, rows // self.count, n)), 0)


@value
class Int8Product:
    """A product of A, (m, k), by the transpose of i8 weights, (n, k), with a scale for each row of the weights.

    The scales are a factor of ``epilogue``, whose result is (1, m, n).
    """

    a: View
    weights: View
    epilogue: GemvEpilogue
    tiles: QuantisedTiles

    def run(self, out: int, a: int, weights: int, scales: int, *, tl: TLContext) -> None:
        """Compute this program's columns of the result. The arguments are addresses."""
        placed = replace(
            self, a=self.a.on(a), weights=self.weights.on(weights), epilogue=self.epilogue.on(out, (scales,))
        )
        columns = share(self.weights.extents[0], tl)
        if not columns[1]:
            return
        if self.tiles.digits:
            placed.multiply_digits(columns, tl)
        else:
            placed.multiply_converted(columns, tl)

    def multiply_digits(self, columns: tuple[int, int], tl: TLContext) -> None:
        """Multiply the digits of A by weights as they are. MATH splits a part of A while another one is multiplied."""
        (m, k), count = self.a.extents, self.tiles.digits
        panels = list(self.tiles.panels(k, columns))
        extents = sorted({panel[:2] for panel in panels})
        rows = {(row, depth): self.a.tile((0, row), (m, depth)).load(tl) for row, depth in extents}
        loaded = [self._load(panel, tl) for panel in panels[: self.tiles.prefetched]]
        unit = Digits.unit_of(list(rows.values()), count, tl)
        pieces: dict[tuple[int, int], Digits] = {}
        sums: Handle | None = None
        for number, (row, depth, column, _) in enumerate(panels):
            if (row, depth) not in pieces:
                floats = tl.reshape(rows.pop((row, depth)), (1, m, depth))
                digits = pieces[row, depth] = Digits.of(floats, unit, count, tl)
                tl.wait(digits.values)  # MATH would otherwise split all pieces at once, and the first one late
            digits, ahead = pieces[row, depth], number + self.tiles.prefetched
            if ahead < len(panels):
                loaded.append(self._load(panels[ahead], tl))
            sums = tl.dot(tl.part(digits.values, 0), loaded.pop(0), sums, out_dtype=I32, trans_b=True)
            if row + depth == k:
                out = self.epilogue.tile((0, 0, 0), (1, *self.epilogue.out.extents[1:]))
                out.store(digits.add_up(tl.cast(sums, F32), tl), column, tl)
                sums = None

    def multiply_converted(self, columns: tuple[int, int], tl: TLContext) -> None:
        """Multiply A by weights that MATH has converted to the dtype of A."""
        k, rows = self.a.extents[1], ConvertedRows(self.a, self.epilogue, self.tiles)
        most = rows.most_columns(columns[1])
        for column, count in blocks(columns[1], most, columns[0]):
            panels = [(row, depth, column, count) for row, depth in blocks(k, self.tiles.depth(k, most))]
            rows.multiply(((panel, tl.cast(self._load(panel, tl), self.a.dtype)) for panel in panels), tl)

    def _load(self, panel: WeightPanel, tl: TLContext) -> Handle:
        row, depth, column, count = panel
        return self.weights.tile((column, row), (count, depth)).load(tl)


class ConvertedRows:
    """Rows of A, which are multiplied by converted weights. If A takes little of scratch, it is loaded once."""

    def __init__(self, a: View, epilogue: GemvEpilogue, tiles: QuantisedTiles) -> None:
        self._a = a
        self._epilogue = epilogue
        self._tiles = tiles
        self._retains_a = tiles.retains(*a.extents)
        self._pieces: dict[tuple[int, int], Handle] = {}

    def most_columns(self, columns: int) -> int:
        """Return the number of columns to convert at a time, of ``columns``: few if A is not loaded again for them."""
        if self._retains_a:
            return min(columns, self._tiles.tile_n)
        return self._tiles.most_columns(self._a.extents[1], columns)

    def multiply(self, weights: Iterable[tuple[WeightPanel, Handle]], tl: TLContext) -> None:
        """Multiply all rows by panels of the same columns, which cover K, and store the result."""
        m, panels = self._a.extents[0], list(weights)
        column = panels[0][0][2]
        for i, rows in blocks(m, self._tiles.rows_of_block):
            sums: Handle | None = None
            for (row, depth, _, _), right in panels:
                sums = tl.dot(self._load((i, row), (rows, depth), tl), right, sums, out_dtype=F32, trans_b=True)
            assert sums is not None, "K has a panel"
            self._epilogue.tile((0, i, 0), (1, rows, self._epilogue.out.extents[2])).store(sums, column, tl)

    def _load(self, corner: tuple[int, int], extents: tuple[int, int], tl: TLContext) -> Handle:
        piece = self._pieces.get(corner)
        if piece is None:
            piece = self._a.tile(corner, extents).load(tl)
            if self._retains_a:
                self._pieces[corner] = piece
        return piece


@value
class Int4Product:
    """A product of A, (m, k), by the transpose of 4-bit weights, (n, k), with scales of groups of ``group`` weights.

    ``packed`` is (n, k / 2) in i8: byte j has weight j, less 8, in its upper half, and weight j + k / 2 in its lower
    half. Weights are 0 to 15. Weight q of group g in row i stands for ``(q - 8) * scales[g, i, 0] + scales[g, i, 1]``.

    A *piece* is a part of a group that is stored in one half of bytes: mostly a complete group.
    """

    a: View
    packed: View
    scales: View
    epilogue: GemvEpilogue
    group: int
    tiles: QuantisedTiles

    def run(self, out: int, a: int, packed: int, scales: int, *, tl: TLContext) -> None:
        """Compute this program's columns of the result. The arguments are addresses."""
        placed = replace(
            self,
            a=self.a.on(a),
            packed=self.packed.on(packed),
            scales=self.scales.on(scales),
            epilogue=self.epilogue.on(out, ()),
        )
        first, size = share(self.packed.extents[0], tl)
        if not size:
            return
        if self.tiles.scales_sums(self.group):
            placed.multiply_digits((first, size), tl)
            return
        rows = ConvertedRows(placed.a, placed.epilogue, self.tiles)
        most = rows.most_columns(size)
        depth = self.tiles.depth(self.packed.extents[1], most)
        for column, count in blocks(size, most, first):
            rows.multiply(placed.converted_panels(column, count, depth, tl), tl)

    @property
    def _piece(self) -> int:
        return gcd(self.group, self.packed.extents[1])

    @property
    def _pieces(self) -> int:
        """Return the number of pieces of all upper halves, which is that of all lower halves."""
        return self.packed.extents[1] // self._piece

    def multiply_digits(self, columns: tuple[int, int], tl: TLContext) -> None:
        """Multiply the digits of A by the halves of bytes. ``columns``: first column of the result, and their number.

        The upper halves are weights less 8. The lower halves are weights, so 8 is subtracted with the zero points: sums
        of pieces of A are multiplied by them.
        """
        m, size, pieces = self.a.extents[0], self._piece, self._pieces
        panels = list(self._digit_panels(columns))
        floats = View(self.a.address, (2 * pieces, m, size), (size, self.a.extents[1], 1), self.a.dtype).load(tl)
        loaded = [self._load(*panel, tl) for panel in panels[: self.tiles.prefetched]]
        flat = tl.reshape(tl.trans(floats, (1, 0, 2)), (m, 2 * pieces * size)) if m > 1 else floats
        unit = Digits.unit_of([tl.reshape(flat, (m, 2 * pieces * size))], self.tiles.digits, tl)
        digits = Digits.of(floats, unit, self.tiles.digits, tl)
        tl.wait(digits.values)  # MATH would otherwise split panels before it ends the digits that all products need
        piece_sums = tl.sum(tl.cast(floats, F32), 2)
        below = tl.constant([[0.0]] * pieces + [[-8.0]] * pieces, F32)
        total: Handle | None = None
        for number, (column, count, first, held) in enumerate(panels):
            packed = loaded[number] if number < len(loaded) else self._load(*panels[number], tl)
            halves = packed >> 4, packed & 15
            if not first:
                scales, zeros = self._load_scales(column, count, tl)
                shifts = tl.dot(piece_sums, tl.fma(scales, below, zeros), trans_a=True)
                total = None
            for piece in range(held):
                for half, weights in enumerate(halves):
                    index = half * pieces + first + piece
                    sums = tl.dot(tl.part(digits.values, index), tl.part(weights, piece), out_dtype=I32, trans_b=True)
                    scale = tl.reshape(tl.part(scales, index), (1, count))
                    floats = tl.cast(sums, F32)
                    total = floats * scale if total is None else tl.fma(floats, scale, total)
            if first + held == pieces:
                assert total is not None, "K has a group"
                self.epilogue.store(digits.add_up(total, tl) + shifts, column, tl)

    def _digit_panels(self, columns: tuple[int, int]) -> Iterator[tuple[int, int, int, int]]:
        """Yield the panels of packed weights: first column and columns of the result, then first piece and pieces."""
        most = packed_panel_size(self._piece * self.tiles.tile_n) * self.tiles.tile_n
        for column, count in blocks(columns[1], most, columns[0]):
            for first, pieces in blocks(self._pieces, packed_panel_size(count * self._piece)):
                yield column, count, first, pieces

    def converted_panels(
        self, column: int, count: int, depth: int, tl: TLContext
    ) -> Iterator[tuple[WeightPanel, Handle]]:
        """Yield the panels of some columns with their weights in the dtype of A: (columns, about ``depth`` rows)."""
        size, dtype = self._piece, self.a.dtype
        # Pieces that are no complete groups need not begin with their group: one at a time has its scale.
        most = max(1, depth // size) if size == self.group else 1
        for first, pieces in blocks(self._pieces, most):
            row, rows = first * size, pieces * size
            packed = self.packed.tile((column, row), (count, rows)).load(tl)
            for start, half in ((row, packed >> 4), (row + self.packed.extents[1], (packed & 15) - 8)):
                floats = tl.reshape(tl.cast(half, dtype), (count, pieces, size))
                corner = self.scales.at((start // self.group, column, 0))
                stride = 2 * self.packed.extents[0]
                scales = View(corner, (2, count, pieces, 1), (1, 2, stride, 1), self.scales.dtype)
                loaded = tl.cast(scales.load(tl), dtype)
                right = tl.fma(floats, tl.part(loaded, 0), tl.part(loaded, 1))
                yield (start, rows, column, count), tl.reshape(right, (count, rows))

    def _load(self, column: int, count: int, first: int, pieces: int, tl: TLContext) -> Handle:
        """Load a panel of packed weights, (pieces, columns, bytes)."""
        size, row = self._piece, self.packed.extents[1]
        return View(self.packed.at((column, first * size)), (pieces, count, size), (size, row, 1), I8).load(tl)

    def _load_scales(self, column: int, count: int, tl: TLContext) -> tuple[Handle, Handle]:
        """Load the scales and zero points of all pieces, each (pieces, columns) in f32."""
        n, repeats = self.packed.extents[0], self.group // self._piece
        groups = self.a.extents[1] // self.group
        both = View(self.scales.at((0, column, 0)), (2, groups, 1, count), (1, 2 * n, 0, 2), self.scales.dtype)
        loaded = tl.broadcast(tl.cast(both.load(tl), F32), (2, groups, repeats, count))
        by_piece = tl.reshape(loaded, (2, groups * repeats, count))
        return tl.part(by_piece, 0), tl.part(by_piece, 1)
