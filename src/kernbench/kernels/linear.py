"""Bias of linear layers, and the feed-forward part of a transformer."""

from kernbench.common.dtypes import DTypeLike
from kernbench.common.dtypes import dtype as element_type
from kernbench.kernels.gemm import STAGE_BYTES, gemm_composite
from kernbench.kernels.shares import blocks, columns_of, row_blocks, share
from kernbench.kernels.view import View
from kernbench.triton_emu.tl_context import TLContext


def add_bias(
    x_ptr: int,
    bias_ptr: int,
    y_ptr: int,
    rows: int,
    columns: int,
    dtype: DTypeLike,
    block: int = 65536,
    split: bool = True,
    *,
    tl: TLContext,
) -> None:
    """Compute ``y = x + bias`` for each row, in f32, rounded once. bias is (columns,); y may be x.

    Rows are split over programs (``split=False``: every program computes all), at most ``block`` elements at a time.
    """
    x, y = (View.row_major(ptr, (rows, columns), element_type(dtype)) for ptr in (x_ptr, y_ptr))
    bias = columns_of(x.on(bias_ptr).tile((0, 0), (1, columns)), block, tl)
    for row, columns_of_x in row_blocks(x, block, split, tl):
        for column, count in blocks(columns, block):
            values = columns_of_x(column, count)
            y.tile((row, column), values.shape).store(values + bias(column, count), tl)


def mlp(
    x_ptr: int,
    w1_ptr: int,
    b1_ptr: int,
    w2_ptr: int,
    b2_ptr: int,
    hidden_ptr: int,
    y_ptr: int,
    m: int,
    k: int,
    hidden: int,
    n: int,
    dtype: DTypeLike,
    variant: str = "blocked",
    split: bool = True,
    stage_bytes: int = STAGE_BYTES,
    *,
    tl: TLContext,
) -> None:
    """Compute ``y = gelu(x W1 + b1) W2 + b2``: x (m, k), W1 (k, hidden), W2 (hidden, n).

    ``hidden_ptr`` is a buffer in memory for the (m, hidden) intermediate elements of ``dtype``. The rows of x, of this
    buffer and of y are split over programs (``split=False``: every program computes all). The products are composites,
    as in ``gemm_composite``.
    """
    first, rows = share(m, tl, split)
    item = tl.itemsize(dtype)
    hidden_at = hidden_ptr + first * hidden * item
    if rows:
        x_at, sizes = x_ptr + first * k * item, (rows, k, hidden, dtype, variant)
        gemm_composite(x_at, w1_ptr, hidden_at, *sizes, "bias,gelu", b1_ptr, stage_bytes=stage_bytes, tl=tl)
    # Only a barrier orders the write of a composite before the read of the next; every PE of the cube must reach it.
    tl.barrier()
    if rows:
        y_at, sizes = y_ptr + first * n * item, (rows, hidden, n, dtype, variant)
        gemm_composite(hidden_at, w2_ptr, y_at, *sizes, "bias", b2_ptr, stage_bytes=stage_bytes, tl=tl)
