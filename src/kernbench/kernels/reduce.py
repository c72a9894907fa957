"""Reductions along the rows of a matrix, programs that map each row to results, and counts of bins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from kernbench.common.dtypes import F32, I32, I64
from kernbench.common.values import value
from kernbench.kernels.shares import blocks, load_rows, part, program_number, share
from kernbench.kernels.tiling import MOST_ROWS_OF_PARTS, most_elements, reduced_rows, row_ranges
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
