"""Linear layers: a product with sharded weights, its bias, and the feed-forward part of a transformer."""

from kernbench.common.dtypes import DTypeLike
from kernbench.common.dtypes import dtype as element_type
from kernbench.kernels.gemm import STAGE_BYTES, gemm_composite
from kernbench.kernels.gemm_grid import write_product
from kernbench.kernels.shares import blocks, columns_of, part, share
from kernbench.kernels.tiling import row_blocks
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
    if any(number >= size for number, size in zip(place, weight_grid, strict=True)):
        return
    (row, rows), (column, columns) = _part_of((m, n), place, weight_grid, by_column)
    if not columns:
        return
    item = element_type(dtype)
    # Each column shard is stored as a separate matrix, behind the shards before it.
    weight = View.row_major(w_ptr + column * k * item.itemsize, (k, columns), item).ref(tl)
    steps = (
        ()
        if bias_ptr is None
        else (("bias", View.row_major(bias_ptr, (n,), item).tile((column,), (columns,)).ref(tl)),)
    )
    x, y = View.row_major(x_ptr, (m, k), item), View.row_major(y_ptr, (m, n), item)
    for i, count in blocks(rows, max(1, stage_bytes // (k * item.itemsize)), row):
        left = x.tile((i, 0), (count, k)).load(tl)
        write_product(y.tile((i, column), (count, columns)), left, weight, tl, epilogue=steps)


def _part_of(
    shape: tuple[int, int], place: tuple[int, int], grid: tuple[int, int], by_column: tuple[int, int]
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return (first row, rows) and (first column, columns) of y that the program at ``place`` computes."""
    ranges = [(0, extent) for extent in shape]
    for number, size, axis in zip(place, grid, by_column, strict=True):
        first, count = ranges[axis]
        before, part_size = part(count, size, number)
        ranges[axis] = first + before, part_size
    return ranges[0], ranges[1]


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
