"""Linear layers: a product with sharded weights, its bias, and the feed-forward part of a transformer."""

from kernbench.common.dtypes import DTypeLike
from kernbench.common.dtypes import dtype as element_type
from kernbench.kernels.composite import Matmul, matmul
from kernbench.kernels.shares import blocks, columns_of, part, row_blocks, share
from kernbench.kernels.view import View
from kernbench.triton_emu.tl_context import TLContext


def linear(
    x_ptr: int,
    w_ptr: int,
    bias_ptr: int | None,
    y_ptr: int,
    m: int,
    k: int,
    n: int,
    dtype: DTypeLike,
    weight_grid: tuple[int, int],
    by_column: tuple[int, int] = (1, 1),
    stage_bytes: int = 2 << 20,
    *,
    tl: TLContext,
) -> None:
    """Compute ``y = x W + bias``: x (m, k), y (m, n) row-major in virtual addresses, with any placement; bias (n,).

    W (k, n) is stored on the first ``weight_grid`` = (cubes, PEs per cube); the other programs do nothing.
    ``by_column`` has a flag for each axis of that grid. At 1, W is split by columns along the axis, and each program
    computes its columns. At 0, W is replicated, and the rows of x are split instead. x is staged, ``stage_bytes`` at a
    time. W is read by panels.
    """
    place = tl.program_id(1), tl.program_id(0)
    if any(at >= size for at, size in zip(place, weight_grid, strict=True)):
        return
    (row, rows), (column, columns) = _own_part((m, n), place, weight_grid, by_column)
    if not columns:
        return
    item = tl.itemsize(dtype)
    # Each column shard is stored as a separate matrix, behind the shards before it.
    weight = tl.ref(w_ptr + column * k * item, (k, columns), dtype)
    steps = () if bias_ptr is None else (("bias", tl.ref(bias_ptr + column * item, columns, dtype)),)
    for at, count in blocks(rows, max(1, stage_bytes // (k * item)), row):
        x = tl.load(x_ptr + at * k * item, (count, k), dtype)
        out = y_ptr + (at * n + column) * item
        tl.composite("gemm", x, weight, out_ptr=out, epilogue=steps, out_strides=(n * item, item), block="auto")


def _own_part(
    shape: tuple[int, int], place: tuple[int, int], grid: tuple[int, int], by_column: tuple[int, int]
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return (first row, rows) and (first column, columns) of y that the program at ``place`` computes."""
    parts = [(0, extent) for extent in shape]
    for at, size, axis in zip(place, grid, by_column, strict=True):
        first, count = parts[axis]
        before, own = part(count, size, at)
        parts[axis] = first + before, own
    return parts[0], parts[1]


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
    stage_bytes: int = 4 << 20,
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
        up = Matmul(rows, k, hidden, dtype, variant, "bias,gelu", b1_ptr, stage_bytes=stage_bytes)
        matmul(x_ptr + first * k * item, w1_ptr, hidden_at, up, tl)
    # Only a barrier orders the write of a composite before the read of the next; every PE of the cube must reach it.
    tl.barrier()
    if rows:
        down = Matmul(rows, hidden, n, dtype, variant, "bias", b2_ptr, stage_bytes=stage_bytes)
        matmul(hidden_at, w2_ptr, y_ptr + first * n * item, down, tl)
