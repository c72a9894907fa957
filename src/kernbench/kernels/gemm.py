"""Matrix products of row-major matrices: by blocks that a kernel loads, and by composites of the tile scheduler.

Sizes need not divide. ``dtype`` is the type of the factors. The product has ``out_dtype``, else what ``tl.dot`` gives
(``dtype``; i32 for i8). Blocks: sums of floats over several blocks of K are kept in ``acc_dtype``, else in the
product's type; sums of integers, in dot's.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from kernbench.kernels.composite import Matmul, matmul, product_dtype
from kernbench.kernels.shares import blocks, own_lines, part, share


class BlockedProduct(NamedTuple):
    """A product (m, k) by (k, n): its types and the sizes of its blocks."""

    m: int
    k: int
    n: int
    dtype: Any
    block_m: int
    block_k: int
    block_n: int
    acc_dtype: Any
    out_dtype: Any


def gemm_simple(
    a_ptr: int,
    b_ptr: int,
    c_ptr: int,
    m: int,
    k: int,
    n: int,
    dtype: Any,
    block_m: int = 256,
    block_k: int = 512,
    block_n: int = 256,
    acc_dtype: Any = None,
    out_dtype: Any = None,
    *,
    tl: Any,
) -> None:
    """Compute C = A B, where A is (m, k) and B is (k, n): every program computes all of it."""
    product = BlockedProduct(m, k, n, dtype, block_m, block_k, block_n, acc_dtype, out_dtype)
    multiply(a_ptr, (b_ptr,), (c_ptr,), product, 0, tl)


def gemm_columns(
    a_ptr: int,
    b_ptr: int,
    c_ptr: int,
    m: int,
    k: int,
    n: int,
    dtype: Any,
    block_m: int = 256,
    block_k: int = 512,
    block_n: int = 256,
    acc_dtype: Any = None,
    out_dtype: Any = None,
    *,
    tl: Any,
) -> None:
    """Compute this program's columns of C = A B, where B and C are split by columns over cubes, then PEs."""
    product = BlockedProduct(m, k, n, dtype, block_m, block_k, block_n, acc_dtype, out_dtype)
    multiply_columns(a_ptr, (b_ptr,), (c_ptr,), product, tl)


def multiply_columns(
    a_ptr: int, b_ptrs: Sequence[int], c_ptrs: Sequence[int], product: BlockedProduct, tl: Any
) -> None:
    """Multiply A by this program's columns of each B."""
    first, columns = share(product.n, tl)
    before = first * product.k * tl.itemsize(product.dtype)
    multiply(a_ptr, [b + before for b in b_ptrs], c_ptrs, product._replace(n=columns), first, tl)


def multiply(
    a_ptr: int, b_ptrs: Sequence[int], c_ptrs: Sequence[int], product: BlockedProduct, first_column: int, tl: Any
) -> None:
    """Multiply A by each B, which are (k, n); a block of A is read once for all of them.

    A column shard is stored as a matrix of its own, behind those before it: ``first_column`` columns in each C.
    """
    m, k, n, dtype, block_m, block_k, block_n, acc_dtype, out_dtype = product
    item = tl.itemsize(dtype)
    for i, rows in blocks(m, block_m):
        for j, columns in blocks(n, block_n):
            totals: list[Any] = [None] * len(b_ptrs)
            for p, depth in blocks(k, block_k):
                a = tl.load(a_ptr + (i * k + p) * item, (rows, depth), dtype, strides=(k * item, item))
                for at, b_ptr in enumerate(b_ptrs):
                    b = tl.load(b_ptr + (p * n + j) * item, (depth, columns), dtype, strides=(n * item, item))
                    sums = (acc_dtype or out_dtype) if a.dtype.is_float else None
                    totals[at] = tl.dot(a, b, totals[at], out_dtype=sums)
            for c_ptr, total in zip(c_ptrs, totals, strict=True):
                # Integer products keep the wider type of their sums; float ones go back to that of the factors.
                done = tl.cast(total, out_dtype or (dtype if total.dtype.is_float else total.dtype))
                wide = tl.itemsize(done.dtype)
                tl.store(c_ptr + (first_column * m + i * n + j) * wide, done, strides=(n * wide, wide))


def gemm_composite(
    a_ptr: int,
    b_ptr: int,
    c_ptr: int,
    m: int,
    k: int,
    n: int,
    dtype: Any,
    variant: str = "ref_ref",
    epilogue_ops: str | Sequence[str] = (),
    bias_ptr: int | None = None,
    add_ptr: int | None = None,
    scale: float = 1.0,
    out_dtype: Any = None,
    stage_bytes: int = 4 << 20,
    *,
    tl: Any,
) -> None:
    """Compute C = epilogue(A B) by the tile scheduler, A (m, k), B (k, n): every program computes all of it.

    ``variant``: ``ref_ref`` streams both operands, ``load_ref`` loads A first, ``load_load`` both; a loaded one goes in
    blocks of ``stage_bytes`` at most. ``epilogue_ops``: names of steps in order, ``"bias,gelu"`` or a sequence;
    ``bias`` (n,) and ``add`` (m, n) have type ``dtype``.
    """
    product = Matmul(m, k, n, dtype, variant, epilogue_ops, bias_ptr, add_ptr, scale, out_dtype, stage_bytes)
    matmul(a_ptr, b_ptr, c_ptr, product, tl)


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
    dtype: Any,
    variant: str = "ref_ref",
    split: bool = True,
    stage_bytes: int = 4 << 20,
    *,
    tl: Any,
) -> None:
    """Compute ``y = gelu(x W1 + b1) W2 + b2``: x (m, k), W1 (k, hidden), W2 (hidden, n); the middle goes to memory.

    ``hidden_ptr``: room for (m, hidden) elements of ``dtype``. Rows of x, of the hidden part and of y are split over
    programs (``split=False``: every program takes all). Products by composites, as in ``gemm_composite``.
    """
    first, rows = share(m, tl, split)
    item = tl.itemsize(dtype)
    hidden_at = hidden_ptr + first * hidden * item
    if rows:
        up = Matmul(rows, k, hidden, dtype, variant, "bias,gelu", b1_ptr, stage_bytes=stage_bytes)
        matmul(x_ptr + first * k * item, w1_ptr, hidden_at, up, tl)
    # The one order between what a composite writes and what the next reads; every PE of the cube has to come to it.
    tl.barrier()
    if rows:
        down = Matmul(rows, hidden, n, dtype, variant, "bias", b2_ptr, stage_bytes=stage_bytes)
        matmul(hidden_at, w2_ptr, y_ptr + first * n * item, down, tl)


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
    it says 0 there are copies, and rows of x are split instead. x is staged, ``stage_bytes`` at a time; W is streamed.
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
        tl.composite("gemm", x, weight, out_ptr=out, epilogue=steps, out_strides=(n * item, item))


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


def gemm_windows(
    a_ptr: int,
    b_ptr: int,
    c_ptr: int,
    lines: tuple[int, ...],
    k: int,
    n: int,
    dtype: Any,
    out_dtype: Any = None,
    stage_bytes: int = 2 << 20,
    *,
    tl: Any,
) -> None:
    """Compute windows of C = A B; A (m, k) and B (k, n) are row-major in virtual addresses, wherever they lie.

    ``lines``: (cube, pe, first row, rows, first column, columns, offset in bytes of the window in C, bytes from row to
    row there). A is staged, ``stage_bytes`` at a time; B is streamed.
    """
    item = tl.itemsize(dtype)
    for row, rows, column, columns, offset, row_bytes in own_lines(lines, 8, tl):
        b = tl.ref(b_ptr + column * item, (k, columns), dtype, strides=(n * item, item))
        for at, count in blocks(rows, max(1, stage_bytes // (k * item))):
            a = tl.load(a_ptr + (row + at) * k * item, (count, k), dtype)
            out = product_dtype(a, out_dtype)
            where, strides = c_ptr + offset + at * row_bytes, (row_bytes, tl.itemsize(out))
            tl.composite("gemm", a, b, out_ptr=where, out_dtype=out, out_strides=strides)
