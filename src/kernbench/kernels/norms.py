"""Normalisation of the rows of a matrix: layer norm, RMS norm and softmax, and their gradients; log-sum-exp.

All are computed in f32. Programs share the rows (``split=False``: every program computes all). At most ``block``
elements are processed at a time; longer rows are read in pieces, once in each pass. Without ``block``, only rows that
do not fit in scratch are cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from operator import add, mul, sub, truediv

from kernbench.common.dtypes import F32, DTypeLike
from kernbench.common.dtypes import dtype as element_type
from kernbench.kernels.shares import RowPieces, all_gather, blocks, columns_of, program_number, share
from kernbench.kernels.tiling import (
    NORM_BYTES,
    NORM_GRADIENT_BYTES,
    SOFTMAX_BYTES,
    most_elements,
    piece_of_row,
    row_ranges,
)
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
    weight, bias = _view_vector(weight_ptr, x), _view_vector(bias_ptr, x)
    normalize_rows(y, None, None, x, weight, bias, eps=eps, centred=True, block=block, split=split, tl=tl)


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
    weight = _view_vector(weight_ptr, x)
    normalize_rows(y, None, None, x, weight, None, eps=eps, centred=False, block=block, split=split, tl=tl)


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
    """Compute ``y = softmax(x)`` along each row, numerically stable, in f32."""
    x, y = _view_rows((x_ptr, y_ptr), rows, columns, dtype)
    softmax_rows(y, x, block=block, split=split, tl=tl)


def _view_rows(ptrs: Sequence[int], rows: int, columns: int, dtype: DTypeLike) -> list[View]:
    return [View.row_major(ptr, (rows, columns), element_type(dtype)) for ptr in ptrs]


def _view_vector(ptr: int | None, rows: View) -> View | None:
    return None if ptr is None else rows.on(ptr).tile((0, 0), (1, rows.extents[1]))


def normalize_rows(
    y: View,
    mean: View | None,
    rstd: View | None,
    x: View,
    weight: View | None,
    bias: View | None,
    *copies: View,
    eps: float,
    centred: bool,
    block: int | None = None,
    split: bool = True,
    tl: TLContext,
) -> None:
    """Compute the layer norm of rows (rows, n) or, unless ``centred``, their RMS norm.

    ``weight`` and ``bias`` are (1, n). ``mean`` and ``rstd`` (rows, 1) receive the mean and 1 / standard deviation, or
    1 / root mean square, of each row. If there are ``copies`` (cubes, n), each cube gathers its copy of ``weight`` and
    of ``bias`` there.
    """
    weight, bias = _gather((weight, bias), copies, tl)
    if not share(x.extents[0], tl, split)[1]:
        return
    n = x.extents[1]
    width = block or piece_of_row(n, NORM_BYTES, tl)
    scale, shift = (None if vector is None else columns_of(vector, width, tl) for vector in (weight, bias))
    for row, count in row_ranges(x, block or most_elements(tl), split, tl):
        values = columns_of(x.tile((row, 0), (count, n)), width, tl)
        average = values.sum(tl) / n if centred else None
        values = values if average is None else values.map(sub, average)
        inverse = tl.rsqrt(values.map(_square).sum(tl) / n + eps)
        values = values.map(mul, inverse)
        values = values if scale is None else values.map(mul, scale)
        values = values if shift is None else values.map(add, shift)
        values.store(y, row, tl)
        for statistic, result in ((mean, average), (rstd, inverse)):
            if statistic is not None and result is not None:
                statistic.tile((row, 0), result.shape).store(result, tl)


def _gather(vectors: Sequence[View | None], copies: Sequence[View], tl: TLContext) -> list[View | None]:
    """Return the copies of ``vectors`` in this program's cube, or ``vectors`` themselves without ``copies``."""
    if not copies:
        return list(vectors)
    gathered = iter(all_gather([vector for vector in vectors if vector is not None], copies, tl))
    return [None if vector is None else next(gathered) for vector in vectors]


def _square(x: Handle) -> Handle:
    return x * x


def backpropagate_norm(
    by_x: View,
    by_weight: View | None,
    by_bias: View | None,
    grad: View,
    x: View,
    mean: View | None,
    rstd: View,
    weight: View | None,
    *copies: View,
    tl: TLContext,
) -> None:
    """Compute the gradients of `normalize_rows`; without ``mean``, those of an RMS norm.

    ``by_weight`` and ``by_bias`` (programs, n) receive the sums over the rows of each program. ``copies``: as there.
    """
    (weight,) = _gather((weight,), copies, tl)
    n = x.extents[1]
    width = piece_of_row(n, NORM_GRADIENT_BYTES, tl)
    pieces, program = list(blocks(n, width)), program_number(tl)
    scale = None if weight is None else columns_of(weight, width, tl)
    gradients = [gradient for gradient in (by_weight, by_bias) if gradient is not None]
    sums = [[tl.zeros((1, count), F32) for _, count in pieces] for _ in gradients]
    for row, count in row_ranges(x, most_elements(tl), True, tl):
        g, v = (columns_of(operand.tile((row, 0), (count, n)), width, tl) for operand in (grad, x))
        inverse = rstd.tile((row, 0), (count, 1)).load(tl)
        v = v if mean is None else v.map(sub, mean.tile((row, 0), (count, 1)).load(tl))
        v = v.map(mul, inverse)
        for number, gradient in enumerate(gradients):
            terms = g.map(mul, v) if gradient is by_weight else g
            sums[number] = [
                total + tl.sum(terms(*piece), 0, keepdims=True)
                for total, piece in zip(sums[number], pieces, strict=True)
            ]
        g = g if scale is None else g.map(mul, scale)
        inner = g.map(_subtract_product, v, g.map(mul, v).sum(tl) / n)
        inner = inner if mean is None else inner.map(sub, g.sum(tl) / n)
        inner.map(mul, inverse).store(by_x, row, tl)
    for gradient, totals in zip(gradients, sums, strict=True):
        for (first, _), total in zip(pieces, totals, strict=True):
            gradient.tile((program, first), total.shape).store(total, tl)


def _subtract_product(x: Handle, y: Handle, factor: Handle) -> Handle:
    return x - y * factor


def softmax_rows(
    y: View,
    x: View,
    *,
    log: bool = False,
    safe: bool = False,
    block: int | None = None,
    split: bool = True,
    tl: TLContext,
) -> None:
    """Compute the softmax of rows (rows, n) or, with ``log``, its logarithm; ``safe``: 0 for rows of minus infinities.

    Rows in several pieces are read twice, with a running maximum and sum.
    """
    n = x.extents[1]
    width = block or piece_of_row(n, SOFTMAX_BYTES, tl)
    for row, count in row_ranges(x, block or most_elements(tl), split, tl):
        values = columns_of(x.tile((row, 0), (count, n)), width, tl)
        if len(values.pieces) > 1:
            largest, total = _sum_exponentials(values, tl)
            total = tl.maximum(total, 1.0) if safe else total  # exp(0) is a term, unless all elements are -inf
            values = values.map(sub, largest)
            result = values.map(sub, tl.log(total)) if log else values.map(tl.exp).map(truediv, total)
        elif log:
            values = values.map(sub, values.max(tl))
            result = values.map(sub, tl.log(values.map(tl.exp).sum(tl)))
        elif safe:
            is_empty = tl.elementwise("eq", values.max(tl), -inf)
            result = values.map(lambda piece, rows: tl.where(rows, 0.0, tl.softmax(piece)), is_empty)
        else:
            result = values.map(tl.softmax)
        result.store(y, row, tl)


def log_sum_exp_rows(out: View, x: View, *, tl: TLContext) -> None:
    """Compute log(sum(exp(x))) of each row of ``x`` (rows, n), to ``out`` (rows, 1)."""
    n = x.extents[1]
    width = piece_of_row(n, SOFTMAX_BYTES, tl)
    for row, count in row_ranges(x, most_elements(tl), True, tl):
        values = columns_of(x.tile((row, 0), (count, n)), width, tl)
        largest = values.max(tl)
        largest = tl.where(tl.elementwise("eq", tl.abs(largest), inf), 0.0, largest)
        total = tl.log(values.map(sub, largest).map(tl.exp).sum(tl)) + largest
        out.tile((row, 0), total.shape).store(total, tl)


def _sum_exponentials(x: RowPieces, tl: TLContext) -> tuple[Handle, Handle]:
    """Return the maximum of each row, and the sum of exp(x - maximum), in one pass over the pieces."""
    state: tuple[Handle, Handle] | None = None
    for piece in x.pieces:
        values = x(*piece)
        largest = tl.maximum(tl.max(values, 1, keepdims=True), LOWEST if state is None else state[0])
        total = tl.sum(tl.exp(values - largest), 1, keepdims=True)
        if state is not None:
            total = total + state[1] * tl.exp(state[0] - largest)
        state = largest, total
    assert state is not None
    return state


def backpropagate_softmax(by_x: View, grad: View, y: View, *, log: bool, tl: TLContext) -> None:
    """Compute the gradient of `softmax_rows` from the gradient of its result ``y``, all (rows, n)."""
    n = y.extents[1]
    width = piece_of_row(n, NORM_BYTES, tl)
    for row, count in row_ranges(y, most_elements(tl), True, tl):
        g, p = (columns_of(operand.tile((row, 0), (count, n)), width, tl) for operand in (grad, y))
        product = p.map(tl.exp).map(mul, g.sum(tl)) if log else p.map(mul, g.map(sub, g.map(mul, p).sum(tl)))
        result = g.map(sub, product) if log else product
        result.store(by_x, row, tl)
