"""Bags of rows of a table: their sums, means and maxima, and the gradients of the table and of the rows' weights.

Bag b has the indices from its offset up to the offset of the next bag. A program loads the offsets and the indices of
its bags, and waits for them. Bags of equal size are computed together: one list of the DMA gathers all their rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

import numpy as np

from kernbench.common.dtypes import F32, Array, DType
from kernbench.common.errors import InputError
from kernbench.common.values import value
from kernbench.kernels.indexing import IndexedAxis
from kernbench.kernels.shares import blocks, share
from kernbench.kernels.tiling import MOST_NUMBERS, most_elements, most_runs
from kernbench.kernels.view import View
from kernbench.triton_emu.handles import Handle
from kernbench.triton_emu.tl_context import Runs, TLContext

BagMode: TypeAlias = Literal["sum", "mean", "max"]
NO_PADDING = -1


@value(guarded=False)
class BagGroup:
    """Bags (b,) of one size k: their numbers, and the positions and the table rows of their entries, each (b, k)."""

    bags: Array
    entries: Array
    rows: Array

    @property
    def size(self) -> int:
        """Entries of a bag."""
        return self.rows.shape[1]

    def pieces(self, most: int) -> Iterator[BagGroup]:
        """Yield groups of at most ``most`` entries: some bags, or consecutive entries of one bag."""
        for first, count in blocks(len(self.bags), max(1, most // max(self.size, 1))):
            yield BagGroup(*[x[first : first + count] for x in (self.bags, self.entries, self.rows)])

    def parts(self, most: int) -> Iterator[BagGroup]:
        """Yield parts with all bags and at most ``most`` entries, but at least one of each bag."""
        for at, width in blocks(self.size, max(1, most // len(self.bags))):
            yield BagGroup(self.bags, self.entries[:, at : at + width], self.rows[:, at : at + width])


@value
class OwnBags:
    """The bags of a program from ``first`` on: the position of the first entry, and the entries of each bag.

    ``groups`` are bags without their padding, by size. ``sizes`` are the sizes of the bags without padding.
    """

    first: int
    first_entry: int
    lengths: Array
    sizes: Array
    groups: tuple[BagGroup, ...]


@value
class Bags:
    """Bags of rows of a table (rows, columns). ``indices`` and ``offsets`` describe their arrays.

    ``count`` is the number of bags, ``entries`` of all indices. ``offsets`` may have one element more than bags, the
    end of the last bag. Entries with index ``padding`` do not count.
    """

    operator: str
    dtype: DType
    columns: int
    count: int
    entries: int
    indices: IndexedAxis
    offsets: IndexedAxis
    padding: int = NO_PADDING

    def own(self, indices_ptr: int, offsets_ptr: int, tl: TLContext) -> OwnBags | None:
        """Load and group the bags of this program; None if it has none.

        Raises InputError for offsets that do not ascend from 0 to the number of indices, and for a row beyond the
        table.
        """
        first, count = share(self.count, tl)
        if not count:
            return None
        limits = min(count + 1, self.offsets.extent - first)
        starts = self.offsets.load(offsets_ptr, first, limits, tl).astype(np.int64)
        starts = starts if limits > count else np.append(starts, self.entries)
        self._check_offsets(first, starts)
        lengths = np.diff(starts)
        rows = self._load_rows(indices_ptr, int(starts[0]), int(starts[-1]), tl)
        entries = np.flatnonzero(rows != self.padding)
        bag_of = np.repeat(np.arange(count), lengths)[entries]
        sizes = np.bincount(bag_of, minlength=count)
        ends = np.cumsum(sizes)
        groups = []
        for size in np.unique(sizes).tolist():
            bags = np.flatnonzero(sizes == size)
            chosen = entries[(ends[bags] - size)[:, None] + np.arange(size)]
            groups.append(BagGroup(first + bags, int(starts[0]) + chosen, rows[chosen]))
        return OwnBags(first, int(starts[0]), lengths, sizes, tuple(groups))

    def _check_offsets(self, first: int, starts: Array) -> None:
        if (first == 0 and starts[0]) or (np.diff(starts) < 0).any() or starts[-1] > self.entries:
            raise InputError(
                f"{self.operator}: offsets {starts.tolist()[:8]} from bag {first} on must ascend from 0 to at most "
                f"{self.entries}, the number of indices"
            )

    def _load_rows(self, ptr: int, first: int, end: int, tl: TLContext) -> Array:
        pieces = [self.indices.load(ptr, at, n, tl) for at, n in blocks(end - first, most_elements(tl), first)]
        rows = np.concatenate(pieces).astype(np.int64) if pieces else np.zeros(0, np.int64)
        is_outside = (rows < 0) | (rows >= self.indices.extent)
        if is_outside.any():
            raise InputError(
                f"{self.operator}: index {rows[is_outside][0]} is not within a table of {self.indices.extent} rows"
            )
        return rows

    def runs(self, ptr: int, rows: Array, dtype: DType) -> Runs:
        """Return the scatter-gather list of rows of a matrix with the columns of the table."""
        nbytes = self.columns * dtype.itemsize
        return [(ptr + row * nbytes, nbytes) for row in rows.reshape(-1).tolist()]


def _element_runs(ptr: int, places: Array, dtype: DType) -> Runs:
    """Return the scatter-gather list of single elements."""
    return [(ptr + place * dtype.itemsize, dtype.itemsize) for place in places.reshape(-1).tolist()]


@value
class BagSums:
    """Sums, means or maxima of bags. ``weights``: the type of an array that scales each entry, if there is one."""

    bags: Bags
    mode: BagMode
    weights: DType | None = None

    def compute(self, addresses: Sequence[int], tl: TLContext) -> None:
        """Write the results of this program's bags.

        ``addresses``: of the results (bags, columns), the bag of each entry, and the size of each bag. For maxima, that
        of their rows (bags, columns) follows. Then come the table, the indices, the offsets, and the weights.
        """
        out_ptr, bag_of_ptr, sizes_ptr, *more = addresses
        places_ptr = more.pop(0) if self.mode == "max" else None
        table_ptr, indices_ptr, offsets_ptr, *weights_ptr = more
        local = self.bags.own(indices_ptr, offsets_ptr, tl)
        if local is None:
            return
        columns = self.bags.columns
        for group in local.groups:
            for piece in group.pieces(most_runs(columns)):
                places: Handle | None = None
                if piece.size and places_ptr is not None:
                    total, places = self._find_maxima(piece, table_ptr, tl)
                else:
                    total = self._add(piece, table_ptr, weights_ptr, tl)
                    if places_ptr is not None:
                        places = tl.full((1, columns), 0, self.bags.indices.dtype)
                shape = (len(piece.bags), columns)
                total = tl.broadcast(tl.cast(total, self.bags.dtype), shape)
                tl.store(self.bags.runs(out_ptr, piece.bags, self.bags.dtype), total)
                if places_ptr is not None and places is not None:
                    item = self.bags.indices.dtype
                    tl.store(self.bags.runs(places_ptr, piece.bags, item), tl.broadcast(places, shape))
        item = self.bags.offsets.dtype
        _write(
            bag_of_ptr,
            local.first_entry,
            np.repeat(local.first + np.arange(len(local.lengths)), local.lengths),
            item,
            tl,
        )
        _write(sizes_ptr, local.first, local.sizes, item, tl)

    def _add(self, group: BagGroup, table_ptr: int, weights_ptr: Sequence[int], tl: TLContext) -> Handle:
        """Return the sums or means (b, columns) in f32; 0 for empty bags."""
        total = tl.zeros((1, self.bags.columns), F32) if not group.size else None
        for part in group.parts(most_runs(self.bags.columns)):
            elements = _load_entries(self.bags, part, table_ptr, tl)
            if self.weights is not None:
                elements = elements * _load_weights(part, weights_ptr[0], self.weights, tl)
            piece = tl.sum(elements, 1)
            total = piece if total is None else total + piece
        assert total is not None, "a bag has entries, or is empty"
        return total / group.size if self.mode == "mean" and group.size else total

    def _find_maxima(self, group: BagGroup, table_ptr: int, tl: TLContext) -> tuple[Handle, Handle]:
        """Return the maximum of each column (b, columns), and its row in the table."""
        largest: Handle | None = None
        places: Handle | None = None
        for part in group.parts(most_runs(self.bags.columns)):
            elements = _load_entries(self.bags, part, table_ptr, tl)
            maximum = tl.max(elements, 1)
            rows = tl.take(tl.constant(part.rows, self.bags.indices.dtype), tl.argmax(elements, 1))
            if largest is None or places is None:
                largest, places = maximum, rows
            else:
                places = tl.where(tl.elementwise("gt", maximum, largest), rows, places)
                largest = tl.maximum(largest, maximum)
        assert largest is not None, "a bag has entries"
        assert places is not None, "a bag has entries"
        return largest, places


def _load_entries(bags: Bags, group: BagGroup, table_ptr: int, tl: TLContext) -> Handle:
    """Load the rows of a table, as (b, k, columns) in f32."""
    shape = (*group.rows.shape, bags.columns)
    return tl.cast(tl.load(bags.runs(table_ptr, group.rows, bags.dtype), shape, bags.dtype), F32)


def _load_weights(group: BagGroup, ptr: int, dtype: DType, tl: TLContext) -> Handle:
    """Load the weights of entries, as (b, k, 1) in f32."""
    runs = _element_runs(ptr, group.entries, dtype)
    return tl.cast(tl.load(runs, (*group.entries.shape, 1), dtype), F32)


def _load_gradients(bags: Bags, group: BagGroup, ptr: int, dtype: DType, tl: TLContext) -> Handle:
    """Load the gradients of bags, as (b, 1, columns) in f32."""
    shape = (len(group.bags), 1, bags.columns)
    return tl.cast(tl.load(bags.runs(ptr, group.bags, dtype), shape, dtype), F32)


def _write(ptr: int, first: int, numbers: Array, dtype: DType, tl: TLContext) -> None:
    """Write ``numbers`` to a vector, from element ``first`` on."""
    for at, count in blocks(len(numbers), MOST_NUMBERS):
        out = View.row_major(ptr + (first + at) * dtype.itemsize, (count,), dtype)
        out.store(tl.constant(numbers[at : at + count], dtype), tl)


@value
class BagGradients:
    """Gradients of the table of bags whose results have gradients (bags, columns) of type ``grad``.

    ``weights``: the type of an array that scales each entry, if there is one.
    """

    bags: Bags
    mode: BagMode
    grad: DType
    weights: DType | None = None

    def add(self, addresses: Sequence[int], tl: TLContext) -> None:
        """Add the gradients of sums or means of this program's bags to the rows of the table, which is in f32.

        ``addresses``: of the table's gradient, the bags' gradients, the indices, the offsets, and the weights.
        """
        out_ptr, grad_ptr, indices_ptr, offsets_ptr, *weights_ptr = addresses
        bags = self.bags
        local = bags.own(indices_ptr, offsets_ptr, tl)
        for group in () if local is None else local.groups:
            most = most_runs(bags.columns)
            for piece in group.pieces(most) if group.size else ():
                grad = _load_gradients(bags, piece, grad_ptr, self.grad, tl)
                grad = grad / group.size if self.mode == "mean" else grad
                for part in piece.parts(most):
                    scaled = grad
                    if self.weights is not None:
                        scaled = grad * _load_weights(part, weights_ptr[0], self.weights, tl)
                    elements = tl.broadcast(scaled, (*part.rows.shape, bags.columns))
                    tl.atomic_add(bags.runs(out_ptr, part.rows, F32), elements)

    def add_to_maxima(self, rows: IndexedAxis, addresses: Sequence[int], tl: TLContext) -> None:
        """Add the gradients of maxima of this program's bags to the elements of the table, which is in f32.

        ``rows`` describes the rows of the maxima (bags, columns). ``addresses``: of the table's gradient, the bags'
        gradients, the indices, the offsets, and the rows.
        """
        out_ptr, grad_ptr, indices_ptr, offsets_ptr, rows_ptr = addresses
        bags, columns = self.bags, self.bags.columns
        local = bags.own(indices_ptr, offsets_ptr, tl)
        if local is None:
            return
        # A list has at most as many elements as `most_runs` allows; a longer row has several lists.
        width = min(columns, most_runs(1))
        for bag in (local.first + np.flatnonzero(local.sizes)).tolist():
            for column, count in blocks(columns, width):
                at = bag * columns + column
                places = rows.load(rows_ptr, at, count, tl).astype(np.int64) * columns + column + np.arange(count)
                grad = View.row_major(grad_ptr + at * self.grad.itemsize, (count,), self.grad).load(tl)
                tl.atomic_add(_element_runs(out_ptr, places, F32), tl.cast(grad, F32))

    def weigh(self, addresses: Sequence[int], tl: TLContext) -> None:
        """Write the gradients of the weights of this program's entries, which have the type of the table.

        ``addresses``: of the weights' gradients, the bags' gradients, the table, the indices, and the offsets.
        """
        out_ptr, grad_ptr, table_ptr, indices_ptr, offsets_ptr = addresses
        bags = self.bags
        local = bags.own(indices_ptr, offsets_ptr, tl)
        for group in () if local is None else local.groups:
            most = most_runs(bags.columns)
            for piece in group.pieces(most) if group.size else ():
                grad = _load_gradients(bags, piece, grad_ptr, self.grad, tl)
                for part in piece.parts(most):
                    products = tl.sum(_load_entries(bags, part, table_ptr, tl) * grad, 2)
                    runs = _element_runs(out_ptr, part.entries, bags.dtype)
                    tl.store(runs, tl.cast(products, bags.dtype))
