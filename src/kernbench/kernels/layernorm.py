"""Normalisation of the rows of a matrix: layernorm, rmsnorm and softmax.

All are computed in f32. Rows are split over programs (``split=False``: every program computes all). At most ``block``
elements are processed at a time; longer rows are read once in each pass.
"""

from collections.abc import Callable
from typing import Any

from kernbench.kernels.shares import RowBlock, RowMajorMatrix, row_blocks

# The lowest f32, in place of -inf: -inf - -inf is NaN, while a piece of minus infinities adds 0 to its row's sum.
LOWEST = -3.4028234663852886e38


def layernorm(
    x_ptr: int,
    weight_ptr: int | None,
    bias_ptr: int | None,
    y_ptr: int,
    rows: int,
    columns: int,
    dtype: Any,
    eps: float = 1e-5,
    block: int = 65536,
    split: bool = True,
    *,
    tl: Any,
) -> None:
    """Compute ``y = (x - mean) / sqrt(variance + eps) * weight + bias`` by rows; weight, bias (columns,) or None."""
    x, y = RowMajorMatrix(x_ptr, columns, dtype), RowMajorMatrix(y_ptr, columns, dtype)
    weight, bias = (_vector(ptr, columns, dtype, block, tl) for ptr in (weight_ptr, bias_ptr))
    for row, rows_of_x in row_blocks(x, rows, block, split, tl):
        mean = _mean(rows_of_x, columns, lambda part: part, tl)
        variance = _mean(rows_of_x, columns, _square_distance_to(mean), tl)
        scale = tl.rsqrt(variance + eps)
        for column, part in rows_of_x.pieces():
            y.store(row, column, _affine((part - mean) * scale, weight, bias, column), tl)


def rmsnorm(
    x_ptr: int,
    weight_ptr: int | None,
    y_ptr: int,
    rows: int,
    columns: int,
    dtype: Any,
    eps: float = 1e-6,
    block: int = 65536,
    split: bool = True,
    *,
    tl: Any,
) -> None:
    """Compute ``y = x / sqrt(mean(x * x) + eps) * weight`` for each row; weight (columns,) or None."""
    x, y = RowMajorMatrix(x_ptr, columns, dtype), RowMajorMatrix(y_ptr, columns, dtype)
    weight = _vector(weight_ptr, columns, dtype, block, tl)
    for row, rows_of_x in row_blocks(x, rows, block, split, tl):
        scale = tl.rsqrt(_mean(rows_of_x, columns, lambda part: part * part, tl) + eps)
        for column, part in rows_of_x.pieces():
            y.store(row, column, _affine(part * scale, weight, None, column), tl)


def _vector(ptr: int | None, columns: int, dtype: Any, block: int, tl: Any) -> RowBlock | None:
    return None if ptr is None else RowBlock(RowMajorMatrix(ptr, columns, dtype), 0, 1, block, tl)


def _mean(x: RowBlock, columns: int, of: Callable[[Any], Any], tl: Any) -> Any:
    """Return the mean of ``of(x)`` along each row, shape (rows, 1)."""
    sums = [tl.sum(of(part), 1, keepdims=True) for _, part in x.pieces()]
    total = sums[0]
    for more in sums[1:]:
        total = total + more
    return total / columns


def _square_distance_to(mean: Any) -> Callable[[Any], Any]:
    def of(part: Any) -> Any:
        distance = part - mean
        return distance * distance

    return of


def _affine(x: Any, weight: RowBlock | None, bias: RowBlock | None, column: int) -> Any:
    columns = x.shape[1]
    x = x if weight is None else x * weight.part(column, columns)
    return x if bias is None else x + bias.part(column, columns)


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

    Rows are split over programs (``split=False``: every program computes all). At most ``block`` elements are processed
    at a time. Longer rows are read twice, with a running maximum and sum.
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
