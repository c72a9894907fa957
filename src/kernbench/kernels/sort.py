"""Device programs on positions and order in rows: extremes with indices, running sums, sorting, ranks, searches.

Programs with the arguments ``(tl, rows)`` compute results of a block of complete rows (count, n). Floats are in f32.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from kernbench.common.dtypes import I32, I64
from kernbench.kernels.shares import blocks, load_rows, share
from kernbench.kernels.tiling import most_elements, own_boxes
from kernbench.kernels.view import View
from kernbench.triton_emu.handles import Handle
from kernbench.triton_emu.tl_context import TLContext

ExtremeKind: TypeAlias = Literal["max", "min"]
NanRank: TypeAlias = Literal["last", "wins", "left out"]
"""The rank of NaN. With ``last``, NaN sorts last. With ``wins``, the result is NaN if a row has any. With ``left out``,
NaN is excluded, and the result is the median of the other elements."""


def find_extremes(tl: TLContext, rows: Handle, *, kind: ExtremeKind) -> tuple[Handle, Handle]:
    """Return the extreme of each row, and its index."""
    extreme, place = (tl.max, tl.argmax) if kind == "max" else (tl.min, tl.argmin)
    return extreme(rows, 1), place(rows, 1)


def sum_running(tl: TLContext, rows: Handle) -> tuple[Handle]:
    """Return the sum up to each element. Integers are added in i64."""
    return (tl.cumsum(rows if rows.dtype.is_float else tl.cast(rows, I64), 1),)


def find_running_extremes(tl: TLContext, rows: Handle, *, kind: ExtremeKind) -> tuple[Handle, Handle]:
    """Return the extreme up to each element, and its index. Each step looks back twice as far as the step before."""
    n, comparison = rows.shape[1], {"max": "ge", "min": "le"}[kind]
    position = tl.broadcast(tl.iota((1, n), I32), rows.shape)
    indices, step = position, 1
    while step < n:
        before = tl.maximum(position - step, 0)
        earlier = tl.take(rows, before)
        is_extreme = tl.elementwise(comparison, rows, earlier)
        if rows.dtype.is_float:
            is_extreme = tl.elementwise("or", is_extreme, tl.elementwise("isnan", rows))
        indices = tl.where(is_extreme, indices, tl.take(indices, before))
        rows, step = tl.where(is_extreme, rows, earlier), step * 2
    return rows, indices


def find_rank(tl: TLContext, rows: Handle, *, rank: int, nan: NanRank) -> tuple[Handle, Handle]:
    """Return the element with rank ``rank`` of each row, and its index. Ranks count from 0 in ascending order."""
    n = rows.shape[1]
    wanted = tl.full((rows.shape[0], 1), rank, I32)
    if nan != "last" and rows.dtype.is_float:
        count = tl.sum(tl.cast(tl.elementwise("isnan", rows), I32), 1, keepdims=True)
        middle = tl.elementwise("shr", tl.maximum(n - 1 - count, 0), 1)
        wanted = middle if nan == "left out" else tl.where(count > 0, n - count, wanted)
    place = tl.take(tl.argsort(rows), wanted)
    return tl.take(rows, place), place


def sort_rows(
    layout: View, keep: int, descending: bool, values_ptr: int, indices_ptr: int, x_ptr: int, *, tl: TLContext
) -> None:
    """Sort each row of x, which has ``layout``. Write the first ``keep`` elements, and their indices as i64.

    The results are row-major. Programs share the rows.
    """
    x, (rows, columns) = layout.on(x_ptr), layout.extents
    values, indices = (View.row_major(p, (rows, keep), t) for p, t in ((values_ptr, x.dtype), (indices_ptr, I64)))
    first, size = share(rows, tl)
    for row, count in blocks(size, max(1, most_elements(tl) // columns), first):
        elements = x.tile((row, 0), (count, columns)).load(tl)
        order = tl.argsort(elements, descending=descending)
        _store_first(values, row, tl.take(elements, order), tl)
        _store_first(indices, row, tl.cast(order, I64), tl)


def _store_first(out: View, row: int, elements: Handle, tl: TLContext) -> None:
    """Store the first columns of ``elements`` to the rows of ``out`` from ``row`` on."""
    columns, item = out.extents[1], out.dtype.itemsize
    tl.store(out.at((row,)), elements, strides=(columns * item, item), valid=(elements.shape[0], columns))


def accumulate_probabilities(tl: TLContext, rows: Handle) -> tuple[Handle]:
    """Return the cumulative probabilities of each row: they are added in order, and divided by the total."""
    sums = tl.cumsum(rows, 1)
    return (sums / tl.max(sums, 1, keepdims=True),)


def search_rows(out: View, sequences: View, values: View, *, right: bool, tl: TLContext) -> None:
    """Write the place of each of ``values`` (rows, m) in its row of the sorted ``sequences`` (rows, n) to ``out``.

    The place is the number of elements below the value; with ``right``, of elements that are not above it. A longer
    row than fits in scratch is searched part by part. Programs share the values.
    """
    n = sequences.extents[1]
    for (row, column), (rows, columns) in own_boxes((values,), tl):
        for first, count in blocks(rows, max(1, most_elements(tl) // max(n, 1)), row):
            wanted = load_rows(values.tile((first, column), (count, columns)), tl)
            place = tl.zeros((count, columns), I32)
            for at, width in blocks(n, most_elements(tl)):
                sequence = load_rows(sequences.tile((first, at), (count, width)), tl)
                place = place + _search(tl, sequence, wanted, right)
            out.tile((first, column), (count, columns)).store(place, tl)


def _search(tl: TLContext, sequence: Handle, wanted: Handle, right: bool) -> Handle:
    """Return the place of each of ``wanted`` in its sorted row, by halving the range of candidates in each step."""
    n, shape = sequence.shape[1], wanted.shape
    low, high = tl.zeros(shape, I32), tl.full(shape, n, I32)
    for _ in range(n.bit_length()):
        middle = tl.elementwise("shr", low + high, 1)
        is_behind = tl.elementwise("gt" if right else "ge", tl.take(sequence, tl.minimum(middle, n - 1)), wanted)
        # An empty range stays as it is. NaN is behind no value.
        moves = tl.elementwise("gt", high - low, tl.cast(is_behind, I32) * n)
        low, high = tl.where(moves, middle + 1, low), tl.where(is_behind, middle, high)
    return low
