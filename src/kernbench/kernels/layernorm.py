"""Normalisation of the rows of a matrix: layernorm, rmsnorm and softmax.

All are computed in f32. Rows are split over programs (``split=False``: every program computes all). At most ``block``
elements are processed at a time; longer rows are read once in each pass.
"""

from collections.abc import Callable, Sequence

from kernbench.common.dtypes import DTypeLike
from kernbench.common.dtypes import dtype as element_type
from kernbench.kernels.shares import Columns, blocks, columns_of, row_blocks
from kernbench.kernels.view import View
from kernbench.triton_emu.handles import Handle
from kernbench.triton_emu.tl_context import TLContext

# The lowest f32, in place of -inf: -inf - -inf is NaN, while a piece of minus infinities adds 0 to its row's sum.
LOWEST = -3.4028234663852886e38


def layernorm(
    x_ptr: int,
    weight_ptr: int | None,
    bias_ptr: int | None,
    y_ptr: int,
    rows: int,
    columns: int,
    dtype: DTypeLike,
    eps: float = 1e-5,
    block: int = 65536,
    split: bool = True,
    *,
    tl: TLContext,
) -> None:
    """Compute ``y = (x - mean) / sqrt(variance + eps) * weight + bias`` by rows; weight, bias (columns,) or None."""
    x, y = _view_rows((x_ptr, y_ptr), rows, columns, dtype)
    weight, bias = (_vector(ptr, x, block, tl) for ptr in (weight_ptr, bias_ptr))
    pieces = list(blocks(columns, block))
    for row, columns_of_x in row_blocks(x, block, split, tl):
        mean = _mean(columns_of_x, pieces, lambda part: part, tl)
        variance = _mean(columns_of_x, pieces, _square_distance_to(mean), tl)
        scale = tl.rsqrt(variance + eps)
        for piece in pieces:
            values = _affine((columns_of_x(*piece) - mean) * scale, weight, bias, piece)
            y.tile((row, piece[0]), values.shape).store(values, tl)


def rmsnorm(
    x_ptr: int,
    weight_ptr: int | None,
    y_ptr: int,
    rows: int,
    columns: int,
    dtype: DTypeLike,
    eps: float = 1e-6,
    block: int = 65536,
    split: bool = True,
    *,
    tl: TLContext,
) -> None:
    """Compute ``y = x / sqrt(mean(x * x) + eps) * weight`` for each row; weight (columns,) or None."""
    x, y = _view_rows((x_ptr, y_ptr), rows, columns, dtype)
    weight = _vector(weight_ptr, x, block, tl)
    pieces = list(blocks(columns, block))
    for row, columns_of_x in row_blocks(x, block, split, tl):
        scale = tl.rsqrt(_mean(columns_of_x, pieces, lambda part: part * part, tl) + eps)
        for piece in pieces:
            values = _affine(columns_of_x(*piece) * scale, weight, None, piece)
            y.tile((row, piece[0]), values.shape).store(values, tl)


def _view_rows(ptrs: Sequence[int], rows: int, columns: int, dtype: DTypeLike) -> list[View]:
    return [View.row_major(ptr, (rows, columns), element_type(dtype)) for ptr in ptrs]


def _vector(ptr: int | None, rows: View, block: int, tl: TLContext) -> Columns | None:
    return None if ptr is None else columns_of(rows.on(ptr).tile((0, 0), (1, rows.extents[1])), block, tl)


def _mean(x: Columns, pieces: Sequence[tuple[int, int]], of: Callable[[Handle], Handle], tl: TLContext) -> Handle:
    """Return the mean of ``of(x)`` along each row, shape (rows, 1)."""
    total, *more_sums = [tl.sum(of(x(*piece)), 1, keepdims=True) for piece in pieces]
    first, count = pieces[-1]
    return sum(more_sums, total) / (first + count)


def _square_distance_to(mean: Handle) -> Callable[[Handle], Handle]:
    def of(part: Handle) -> Handle:
        distance = part - mean
        return distance * distance

    return of


def _affine(x: Handle, weight: Columns | None, bias: Columns | None, piece: tuple[int, int]) -> Handle:
    x = x if weight is None else x * weight(*piece)
    return x if bias is None else x + bias(*piece)


def softmax(
    x_ptr: int,
    y_ptr: int,
    rows: int,
    columns: int,
    dtype: DTypeLike,
    block: int = 65536,
    split: bool = True,
    *,
    tl: TLContext,
) -> None:
    """Compute ``y = softmax(x)`` along each row, numerically stable, in f32.

    Rows are split over programs (``split=False``: every program computes all). At most ``block`` elements are processed
    at a time. Longer rows are read twice, with a running maximum and sum.
    """
    x, y = _view_rows((x_ptr, y_ptr), rows, columns, dtype)
    pieces = list(blocks(columns, block))
    for row, columns_of_x in row_blocks(x, block, split, tl):
        if len(pieces) == 1:
            values = tl.softmax(columns_of_x(*pieces[0]))
            y.tile((row, 0), values.shape).store(values, tl)
        else:
            _softmax_in_pieces(row, columns_of_x, pieces, y, tl)


def _softmax_in_pieces(row: int, x: Columns, pieces: Sequence[tuple[int, int]], y: View, tl: TLContext) -> None:
    state: tuple[Handle, Handle] | None = None
    for piece in pieces:
        part = x(*piece)
        largest = tl.maximum(tl.max(part, 1, keepdims=True), LOWEST if state is None else state[0])
        total = tl.sum(tl.exp(part - largest), 1, keepdims=True)
        if state is not None:
            total = total + state[1] * tl.exp(state[0] - largest)
        state = largest, total
    for piece in pieces:
        values = tl.exp(x(*piece) - largest) / total
        y.tile((row, piece[0]), values.shape).store(values, tl)
