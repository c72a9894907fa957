"""Reductions along the rows of a matrix, programs that map each row to results, counts of bins, and distances of rows.

The distance of order p of two rows is the p-norm of their difference: (sum |x - y| ** p) ** (1 / p). Of order 0, it is
the number of elements that differ; of order infinity, the largest difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from kernbench.common.dtypes import F32, I32, I64
from kernbench.common.values import value
from kernbench.kernels.functions import power, sign
from kernbench.kernels.shares import blocks, load_rows, part, program_number, share
from kernbench.kernels.tiling import MOST_ROWS_OF_PARTS, most_elements, own_boxes, reduced_rows, row_ranges
from kernbench.kernels.view import View
from kernbench.triton_emu.handles import Handle
from kernbench.triton_emu.tl_context import TLContext


@value
class RowFold:
    """A reduction: its ``tl`` function, and the operator that combines two results; ``square``: of x * x."""

    name: Literal["sum", "max", "min"]
    combine: str
    square: bool = False

    def along_rows(self, x: Handle, tl: TLContext) -> Handle:
        """Reduce each row of ``x``."""
        return {"sum": tl.sum, "max": tl.max, "min": tl.min}[self.name](x * x if self.square else x, 1)


SUM, SUM_OF_SQUARES = RowFold("sum", "add"), RowFold("sum", "add", square=True)
MAX, MIN = RowFold("max", "maximum"), RowFold("min", "minimum")


def wide(x: Handle, tl: TLContext) -> Handle:
    """Cast elements to the accumulation type: i64 for integers."""
    return x if x.dtype.is_float else tl.cast(x, I64)


def fold_rows(out: View, x: View, *, fold: RowFold, scale: float = 1.0, tl: TLContext) -> None:
    """Reduce each row of ``x`` (rows, n), times ``scale``, to ``out`` (rows,). Programs share the rows."""
    rows, columns = x.extents
    first, size = share(rows, tl)
    for row, count in blocks(size, reduced_rows(columns, tl), first):
        total = _fold_elements(fold, x.tile((row, 0), (count, columns)), tl)
        total = total if scale == 1 else tl.cast(total, F32) * scale
        out.tile((row,), total.shape).store(total, tl)


def fold_parts(out: View, x: View, *, fold: RowFold, tl: TLContext) -> None:
    """Reduce one part of each row of ``x`` (rows, n) in each of the first programs, to ``out`` (parts, rows)."""
    (parts, rows), columns = out.extents, x.extents[1]
    program = program_number(tl)
    if program < parts:
        first, size = part(columns, parts, program)
        for row, count in blocks(rows, MOST_ROWS_OF_PARTS):
            total = _fold_elements(fold, x.tile((row, first), (count, size)), tl)
            out.tile((program, row), total.shape).store(total, tl)


def _fold_elements(fold: RowFold, rows: View, tl: TLContext) -> Handle:
    """Return the reduction of each row, in f32 for floats, by pieces that fit in scratch."""
    total: Handle | None = None
    count, size = rows.extents
    for first, width in blocks(size, max(1, most_elements(tl) // count)):
        piece = fold.along_rows(wide(load_rows(rows.tile((0, first), (count, width)), tl), tl), tl)
        total = piece if total is None else tl.elementwise(fold.combine, total, piece)
    assert total is not None, "a row has elements"
    return total


RowBody = Callable[..., Sequence[Handle | None]]
"""``body(tl, rows, *vectors)`` of `map_rows`: returns an array (count, …) for each output, or None to leave it."""


def map_rows(
    body: RowBody,
    outs: Sequence[View],
    x: View,
    vectors: Sequence[View | None],
    *,
    block: int | None = None,
    tl: TLContext,
) -> None:
    """Compute ``body`` of blocks of complete rows of ``x`` (rows, n). Floats are cast to f32.

    ``vectors`` are (1, n), in f32. ``outs`` are contiguous (rows, …).
    """
    if not share(x.extents[0], tl)[1]:
        return
    loaded = [None if vector is None else tl.cast(vector.load(tl), F32) for vector in vectors]
    for row, count in row_ranges(x, block or most_elements(tl), True, tl):
        results = body(tl, load_rows(x.tile((row, 0), (count, x.extents[1])), tl), *loaded)
        for out, result in zip(outs, results, strict=True):
            if result is not None:
                View.row_major(out.at((row,)), result.shape, out.dtype).store(result, tl)


def count_bins(out: View, x: View, *, bin_of: Callable[[TLContext, Handle], Handle], tl: TLContext) -> None:
    """Count the elements of ``x`` (1, n) for which ``bin_of`` returns each index of ``out`` (bins,)."""
    first, bins = share(out.extents[0], tl)
    if not bins:
        return
    total = tl.zeros((bins,), I32)
    numbers = tl.iota((bins, 1), I32, axis=0) + first
    for at, count in blocks(x.extents[1], max(1, most_elements(tl) // bins)):
        bin_numbers = tl.cast(bin_of(tl, load_rows(x.tile((0, at), (1, count)), tl)), I32)
        total = total + tl.sum(tl.cast(tl.elementwise("eq", bin_numbers, numbers), I32), 1)
    out.tile((first,), total.shape).store(total, tl)


# distances of rows


def measure_distances(out: View, x: View, y: View, *, order: float, tl: TLContext) -> None:
    """Write the distance of each row of ``x`` (batch, n, k) from each row of ``y`` (batch, m, k) to ``out``.

    Programs share the distances (batch, n, m). Floats are in f32.
    """
    k = x.extents[2]
    most = most_elements(tl)
    for batch, (row, count), (column, width) in _own_matrices(out, max(1, most // k), tl):
        total: Handle | None = None
        for at, depth in blocks(k, max(1, most // (count * width))):
            part_of_x = _load_matrix(x, batch, (row, count), (at, depth), tl)
            part_of_y = _load_matrix(y, batch, (column, width), (at, depth), tl)
            difference = tl.expand_dims(part_of_x, 1) - tl.expand_dims(part_of_y, 0)
            piece = _fold_differences(tl, difference, order)
            total = piece if total is None else tl.elementwise(_fold_of(order), total, piece)
        assert total is not None, "rows have elements"
        out.tile((batch, row, column), (1, count, width)).store(tl.expand_dims(_root(tl, total, order), 0), tl)


def backpropagate_distances(
    out: View, grad: View, x: View, y: View, distances: View, *, order: float, tl: TLContext
) -> None:
    """Write the gradient of ``x`` (batch, n, k) to ``out``: ``grad`` and ``distances`` are (batch, n, m).

    Programs share the elements of the gradient, and add the gradients of all distances of a row.
    """
    m, most = y.extents[1], most_elements(tl)
    for batch, rows, columns in _own_matrices(out, max(1, most // min(m, _LEAST_DISTANCES)), tl):
        elements = tl.expand_dims(_load_matrix(x, batch, rows, columns, tl), 1)
        total: Handle | None = None
        for at, count in blocks(m, max(1, most // (rows[1] * columns[1]))):
            part_of_y = tl.expand_dims(_load_matrix(y, batch, (at, count), columns, tl), 0)
            grads, lengths = [
                tl.expand_dims(_load_matrix(view, batch, rows, (at, count), tl), 2) for view in (grad, distances)
            ]
            piece = tl.sum(_backpropagate_differences(tl, elements - part_of_y, grads, lengths, order), 1)
            total = piece if total is None else total + piece
        assert total is not None, "a gradient is a sum over distances"
        out.tile((batch, rows[0], columns[0]), (1, *total.shape)).store(tl.expand_dims(total, 0), tl)


_LEAST_DISTANCES = 64
"""Distances whose gradients a program adds at a time, so that a command has several rows to subtract."""
_RowRange = tuple[int, int]


def _own_matrices(x: View, limit: int, tl: TLContext) -> Iterator[tuple[int, _RowRange, _RowRange]]:
    """Yield batch, rows and columns of this program's parts of ``x`` (batch, n, m), of at most ``limit`` elements."""
    for (first, row, column), (batches, count, width) in own_boxes((x,), tl, limit=limit):
        for batch in range(first, first + batches):
            yield batch, (row, count), (column, width)


def _load_matrix(x: View, batch: int, rows: _RowRange, columns: _RowRange, tl: TLContext) -> Handle:
    return load_rows(x.tile((batch, rows[0], columns[0]), (rows[1], columns[1])), tl)


def _fold_of(order: float) -> str:
    return "maximum" if math.isinf(order) else "add"


def _fold_differences(tl: TLContext, difference: Handle, order: float) -> Handle:
    """Reduce differences (n, m, k) along their last axis to the distances' power ``order``."""
    if order == 0:
        return tl.sum(tl.cast(tl.elementwise("ne", difference, 0), F32), 2)
    if math.isinf(order):
        return tl.max(tl.abs(difference), 2)
    return tl.sum(difference * difference if order == 2 else power(tl, tl.abs(difference), order), 2)


def _root(tl: TLContext, total: Handle, order: float) -> Handle:
    """Return the distance for its power ``order``."""
    return total if order == 0 or math.isinf(order) else power(tl, total, 1 / order)


def _backpropagate_differences(
    tl: TLContext, difference: Handle, grad: Handle, distances: Handle, order: float
) -> Handle:
    """Return the gradient of x - y (n, m, k) for the gradients of distances (n, m, 1)."""
    if order == 1:
        return sign(tl, difference) * grad
    if math.isinf(order):
        return tl.where(tl.elementwise("eq", tl.abs(difference), distances), sign(tl, difference) * grad, 0.0)
    scale = tl.where(tl.elementwise("eq", distances, 0), 0.0, grad / power(tl, distances, order - 1))
    if order == 2:
        return difference * scale
    slope = sign(tl, difference) * power(tl, tl.abs(difference), order - 1) * scale
    return tl.where(tl.elementwise("eq", difference, 0), 0.0, slope) if order < 1 else slope
