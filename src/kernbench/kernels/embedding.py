"""Embedding lookups: with row numbers that the host knows, or that only the machine's memory holds.

The table may be a shard of a larger one: the row of a number outside the shard is zeros.
"""

from kernbench.common.dtypes import DTypeLike
from kernbench.kernels.shares import blocks, share
from kernbench.triton_emu.handles import Handle
from kernbench.triton_emu.tl_context import TLContext

NOT_HERE = -1
"""Row number that stands for a row of zeros."""


def embedding_rows(
    w_ptr: int, y_ptr: int, rows: tuple[int, ...], columns: int, dtype: DTypeLike, block: int = 65536, *, tl: TLContext
) -> None:
    """Copy ``y[i] = w[rows[i]]``, or zeros for ``NOT_HERE``. w and y are row-major, ``columns`` wide.

    The rows of y are split over programs. At most ``block`` elements are copied at a time.
    """
    first, mine = share(len(rows), tl)
    item = tl.itemsize(dtype)
    for at in range(first, first + mine):
        for column, count in blocks(columns, block):
            there = w_ptr + (rows[at] * columns + column) * item
            values = tl.zeros(count, dtype) if rows[at] == NOT_HERE else tl.load(there, count, dtype)
            tl.store(y_ptr + (at * columns + column) * item, values)


def embedding_one_hot(
    ids_ptr: int,
    w_ptr: int,
    y_ptr: int,
    m: int,
    first_id: int,
    rows: int,
    columns: int,
    dtype: DTypeLike,
    block_m: int = 128,
    block_k: int = 512,
    *,
    tl: TLContext,
) -> None:
    """Compute ``y[i] = w[ids[i] - first_id]``, or zeros where w has no such row; ids (m,) of i32, w (rows, columns).

    A kernel cannot use loaded numbers as addresses. It multiplies w by a one-hot matrix instead, so w must be finite.
    Columns are split over programs.
    """
    column, mine = share(columns, tl)
    if not mine:
        return
    item = tl.itemsize(dtype)
    for i, count in blocks(m, block_m):
        ids = tl.load(ids_ptr + i * tl.itemsize("i32"), (count, 1), "i32")
        total: Handle | None = None
        for row, depth in blocks(rows, block_k):
            hot = tl.cast(tl.iota((1, depth), "i32") + (first_id + row) == ids, dtype)
            at = w_ptr + (row * columns + column) * item
            table = tl.load(at, (depth, mine), dtype, strides=(columns * item, item))
            total = tl.dot(hot, table, total, out_dtype="f32")
        assert total is not None, "a table has rows"
        tl.store(y_ptr + (i * columns + column) * item, tl.cast(total, dtype), strides=(columns * item, item))
