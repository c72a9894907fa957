"""Softmax along the rows of a matrix."""

from typing import Any

from kernbench.kernels.shares import RowBlock, RowMajorMatrix, row_blocks

# The lowest f32: a piece of minus infinities then adds 0 to the sum of its row, where -inf - -inf would be no number.
LOWEST = -3.4028234663852886e38


def softmax(
    x_ptr: int,
    y_ptr: int,
    rows: int,
    columns: int,
    dtype: Any,
    block: int = 65536,
    split: bool = True,
    *,
    tl: Any,
) -> None:
    """Compute ``y = softmax(x)`` along each row, numerically stable, in f32.

    Rows are split over programs (``split=False``: every program takes all). At most ``block`` elements are worked on at
    a time; rows that are longer are read twice, with a running maximum and sum.
    """
    x, y = RowMajorMatrix(x_ptr, columns, dtype), RowMajorMatrix(y_ptr, columns, dtype)
    for row, block_of_rows in row_blocks(x, rows, block, split, tl):
        if columns <= block:
            y.store(row, 0, tl.softmax(block_of_rows.part(0, columns)), tl)
        else:
            _softmax_in_pieces(row, block_of_rows, y, tl)


def _softmax_in_pieces(row: int, x: RowBlock, y: RowMajorMatrix, tl: Any) -> None:
    largest = total = None
    for _, part in x.pieces():
        top = tl.maximum(tl.max(part, 1, keepdims=True), LOWEST if largest is None else largest)
        sums = tl.sum(tl.exp(part - top), 1, keepdims=True)
        total = sums if total is None else sums + total * tl.exp(largest - top)
        largest = top
    for column, part in x.pieces():
        y.store(row, column, tl.exp(part - largest) / total, tl)
