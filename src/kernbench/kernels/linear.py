"""A linear layer on weights that are spread by columns, and what goes with it."""

from typing import Any

from kernbench.kernels.shares import RowBlock, RowMajorMatrix, blocks, part, row_blocks


def linear(
    x_ptr: int,
    w_ptr: int,
    bias_ptr: int | None,
    y_ptr: int,
    m: int,
    k: int,
    n: int,
    dtype: Any,
    weight_grid: tuple[int, int],
    by_column: tuple[int, int] = (1, 1),
    stage_bytes: int = 2 << 20,
    *,
    tl: Any,
) -> None:
    """Compute ``y = x W + bias``: x (m, k), y (m, n) row-major in virtual addresses, wherever rows lie; bias (n,).

    W (k, n) lies on the first ``weight_grid`` = (cubes, PEs of each); the other programs have nothing to do. Along an
    axis of the grid W is split by columns where ``by_column`` says 1, and then each program computes its columns; where
    it says 0 there are copies, and rows of x are split instead. x is staged, ``stage_bytes`` at a time; W in panels.
    """
    place = tl.program_id(1), tl.program_id(0)
    if any(at >= size for at, size in zip(place, weight_grid, strict=True)):
        return
    (row, rows), (column, columns) = _own_part((m, n), place, weight_grid, by_column)
    if not columns:
        return
    item = tl.itemsize(dtype)
    # A column shard is stored as a matrix of its own, behind those before it.
    weight = tl.ref(w_ptr + column * k * item, (k, columns), dtype)
    steps = () if bias_ptr is None else (("bias", tl.ref(bias_ptr + column * item, columns, dtype)),)
    for at, count in blocks(rows, max(1, stage_bytes // (k * item)), row):
        x = tl.load(x_ptr + at * k * item, (count, k), dtype)
        out = y_ptr + (at * n + column) * item
        tl.composite("gemm", x, weight, out_ptr=out, epilogue=steps, out_strides=(n * item, item), block="auto")


def _own_part(
    shape: tuple[int, int], place: tuple[int, int], grid: tuple[int, int], by_column: tuple[int, int]
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return first and number of the rows, and of the columns, of y that the program at ``place`` computes."""
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
    dtype: Any,
    block: int = 65536,
    split: bool = True,
    *,
    tl: Any,
) -> None:
    """Compute ``y = x + bias`` for each row, in f32 and rounded once; bias (columns,). y may be x.

    Rows are split over programs (``split=False``: every program takes all), at most ``block`` elements at a time.
    """
    x, y = RowMajorMatrix(x_ptr, columns, dtype), RowMajorMatrix(y_ptr, columns, dtype)
    bias = RowBlock(RowMajorMatrix(bias_ptr, columns, dtype), 0, 1, block, tl)
    for row, values in row_blocks(x, rows, block, split, tl):
        for column, piece in values.pieces():
            y.store(row, column, piece + bias.part(column, piece.shape[1]), tl)
