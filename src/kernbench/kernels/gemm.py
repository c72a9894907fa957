"""Matrix products of row-major matrices: in blocks that a kernel loads, or as composites of the tile scheduler.

Block sizes need not divide the shapes. ``dtype`` is that of the factors. The product has ``out_dtype``, else the
dtype of ``tl.dot`` (``dtype``; i32 for i8). Floats that are summed over several blocks of K are accumulated in
``acc_dtype``, else in the product's dtype. Integers are accumulated in the dtype of ``tl.dot``.
"""

from collections.abc import Mapping, Sequence

from kernbench.common.dtypes import DType, DTypeLike
from kernbench.common.dtypes import dtype as element_type
from kernbench.kernels.gemm_grid import product_dtype, write_product
from kernbench.kernels.shares import blocks, own_lines, share
from kernbench.kernels.view import View
from kernbench.triton_emu.composites import EpilogueCall
from kernbench.triton_emu.handles import Handle
from kernbench.triton_emu.tl_context import TLContext

BLOCKED = "blocked"
STAGED = {"ref_ref": (False, False), "load_ref": (True, False), "load_load": (True, True), BLOCKED: (False, False)}
"""Whether ``tl.load`` stages A, and B, by variant. Other operands are streamed, or read by panels (``blocked``)."""
VARIANTS = tuple(STAGED)
STAGE_BYTES = 4 << 20
"""Bytes of a staged operand by default; a larger operand is staged in blocks."""


# --- blocks that a kernel loads


def gemm_simple(
    a_ptr: int,
    b_ptr: int,
    c_ptr: int,
    m: int,
    k: int,
    n: int,
    dtype: DTypeLike,
    block_m: int = 256,
    block_k: int = 512,
    block_n: int = 256,
    acc_dtype: DTypeLike | None = None,
    out_dtype: DTypeLike | None = None,
    *,
    tl: TLContext,
) -> None:
    """Compute C = A B, A (m, k), B (k, n): every program computes the full result."""
    dtypes, block = (dtype, acc_dtype, out_dtype), (block_m, block_k, block_n)
    multiply(a_ptr, (b_ptr,), (c_ptr,), (m, k), (0, n), dtypes, block, tl)


def gemm_columns(
    a_ptr: int,
    b_ptr: int,
    c_ptr: int,
    m: int,
    k: int,
    n: int,
    dtype: DTypeLike,
    block_m: int = 256,
    block_k: int = 512,
    block_n: int = 256,
    acc_dtype: DTypeLike | None = None,
    out_dtype: DTypeLike | None = None,
    *,
    tl: TLContext,
) -> None:
    """Compute this program's columns of C = A B. B and C are split by columns over cubes, then PEs."""
    dtypes, block = (dtype, acc_dtype, out_dtype), (block_m, block_k, block_n)
    multiply(a_ptr, (b_ptr,), (c_ptr,), (m, k), share(n, tl), dtypes, block, tl)


def qkv_projection(
    x_ptr: int,
    wq_ptr: int,
    wk_ptr: int,
    wv_ptr: int,
    q_ptr: int,
    k_ptr: int,
    v_ptr: int,
    m: int,
    k: int,
    n: int,
    dtype: DTypeLike,
    block_m: int = 256,
    block_k: int = 512,
    block_n: int = 128,
    acc_dtype: DTypeLike | None = None,
    out_dtype: DTypeLike | None = None,
    *,
    tl: TLContext,
) -> None:
    """Compute the projections of attention, Q = X W_Q, K = X W_K and V = X W_V, each (m, n), of X (m, k).

    X is replicated. Weights and results are split by columns over cubes, then PEs. Each program computes its columns of
    all three results and reads X once for them.
    """
    dtypes, block = (dtype, acc_dtype, out_dtype), (block_m, block_k, block_n)
    multiply(x_ptr, (wq_ptr, wk_ptr, wv_ptr), (q_ptr, k_ptr, v_ptr), (m, k), share(n, tl), dtypes, block, tl)


def multiply(
    a_ptr: int,
    b_ptrs: Sequence[int],
    c_ptrs: Sequence[int],
    shape: tuple[int, int],
    shard: tuple[int, int],
    dtypes: tuple[DTypeLike, DTypeLike | None, DTypeLike | None],
    block: tuple[int, int, int],
    tl: TLContext,
) -> None:
    """Multiply A, (m, k), by a shard of each B, (first column, columns). A block of A is read once for all of them.

    In memory, a shard of B or C is a row-major matrix behind the shards of the columns before it. ``dtypes``: factors,
    accumulated sums, result. ``block``: its sizes (m, k, n).
    """
    (m, k), (first, width), (block_m, block_k, block_n) = shape, shard, block
    dtype, acc_dtype, out_dtype = element_type(dtypes[0]), *dtypes[1:]
    out = product_dtype(dtype, out_dtype)
    a = View.row_major(a_ptr, (m, k), dtype)
    shards_b = [View.row_major(ptr + first * k * dtype.itemsize, (k, width), dtype) for ptr in b_ptrs]
    shards_c = [View.row_major(ptr + first * m * out.itemsize, (m, width), out) for ptr in c_ptrs]
    sum_dtype = (acc_dtype or out_dtype) if dtype.is_float else None
    for i, rows in blocks(m, block_m):
        for j, columns in blocks(width, block_n):
            totals: list[Handle | None] = [None] * len(b_ptrs)
            for p, depth in blocks(k, block_k):
                left = a.tile((i, p), (rows, depth)).load(tl)
                for index, b in enumerate(shards_b):
                    right = b.tile((p, j), (depth, columns)).load(tl)
                    totals[index] = tl.dot(left, right, totals[index], out_dtype=sum_dtype)
            for c, total in zip(shards_c, totals, strict=True):
                assert total is not None, "K has a block"
                c.tile((i, j), (rows, columns)).store(total, tl)


# --- composites of the tile scheduler


def gemm_composite(
    a_ptr: int,
    b_ptr: int,
    c_ptr: int,
    m: int,
    k: int,
    n: int,
    dtype: DTypeLike,
    variant: str = "blocked",
    epilogue_ops: str | Sequence[str] = (),
    bias_ptr: int | None = None,
    add_ptr: int | None = None,
    scale: float = 1.0,
    out_dtype: DTypeLike | None = None,
    stage_bytes: int = STAGE_BYTES,
    *,
    tl: TLContext,
) -> None:
    """Compute C = epilogue(A B) by the tile scheduler, A (m, k), B (k, n): every program computes the full result.

    ``variant``: ``blocked`` reads panels of both operands for blocks of the result that suit the machine. ``ref_ref``
    streams both operands tile by tile, ``load_ref`` loads A first, ``load_load`` loads both. A loaded operand goes in
    blocks of at most ``stage_bytes``. ``epilogue_ops`` names the steps in order, as ``"bias,gelu"`` or as a sequence.
    ``bias_ptr`` (n,) and ``add_ptr`` (m, n) point to elements of ``dtype``.
    """
    if variant not in VARIANTS:
        raise ValueError(f"variant {variant!r} is none of {', '.join(VARIANTS)}")
    names = epilogue_ops
    if isinstance(names, str):
        names = [name.strip() for name in names.split(",") if name.strip()]
    pointers = {"bias": bias_ptr, "add": add_ptr}
    (stage_a, stage_b), item = STAGED[variant], element_type(dtype)
    a, b = View.row_major(a_ptr, (m, k), item), View.row_major(b_ptr, (k, n), item)
    c = View.row_major(c_ptr, (m, n), product_dtype(item, out_dtype))
    fit = max(1, stage_bytes // (k * item.itemsize))
    for j, columns in blocks(n, fit if stage_b else n):
        columns_of_b = b.tile((0, j), (k, columns))
        right = columns_of_b.load(tl) if stage_b else columns_of_b.ref(tl)
        for i, rows in blocks(m, fit if stage_a else m):
            rows_of_a = a.tile((i, 0), (rows, k))
            left = rows_of_a.load(tl) if stage_a else rows_of_a.ref(tl)
            box = (i, j), (rows, columns)
            steps = [
                (name, scale) if name == "scale" else _make_step(name, pointers, (m, n), box, item, tl)
                for name in names
            ]
            write_product(c.tile(*box), left, right, tl, epilogue=steps, block="auto" if variant == BLOCKED else None)


def _make_step(
    name: str,
    pointers: Mapping[str, int | None],
    shape: tuple[int, int],
    box: tuple[tuple[int, int], tuple[int, int]],
    dtype: DType,
    tl: TLContext,
) -> EpilogueCall:
    """Return the epilogue step ``name`` for a box of the result, with its operand in memory if it has one."""
    if name not in pointers:
        return (name,)
    ptr, (corner, extents) = pointers[name], box
    if ptr is None:
        raise ValueError(f"the epilogue has {name!r}, but {name}_ptr is None")
    axes = 1 if name == "bias" else 2
    return name, View.row_major(ptr, shape[-axes:], dtype).tile(corner[-axes:], extents[-axes:]).ref(tl)


def qkv_composite(
    x_ptr: int,
    wq_ptr: int,
    wk_ptr: int,
    wv_ptr: int,
    q_ptr: int,
    k_ptr: int,
    v_ptr: int,
    m: int,
    k: int,
    n: int,
    dtype: DTypeLike,
    out_dtype: DTypeLike | None = None,
    stage_bytes: int = STAGE_BYTES,
    *,
    tl: TLContext,
) -> None:
    """Compute ``qkv_projection`` by the tile scheduler.

    X is loaded once, in blocks of rows of at most ``stage_bytes``. The program's columns of W_Q, W_K and W_V are read
    by panels.
    """
    (first, columns), item = share(n, tl), element_type(dtype)
    if not columns:
        return
    x, out = View.row_major(x_ptr, (m, k), item), product_dtype(item, out_dtype)
    for i, rows in blocks(m, max(1, stage_bytes // (k * item.itemsize))):
        left = x.tile((i, 0), (rows, k)).load(tl)
        for w_ptr, y_ptr in ((wq_ptr, q_ptr), (wk_ptr, k_ptr), (wv_ptr, v_ptr)):
            w = View.row_major(w_ptr + first * k * item.itemsize, (k, columns), item)
            y = View.row_major(y_ptr + first * m * out.itemsize, (m, columns), out)
            write_product(y.tile((i, 0), (rows, columns)), left, w.ref(tl), tl)


def gemm_windows(
    a_ptr: int,
    b_ptr: int,
    c_ptr: int,
    lines: tuple[int, ...],
    k: int,
    n: int,
    dtype: DTypeLike,
    out_dtype: DTypeLike | None = None,
    stage_bytes: int = 2 << 20,
    *,
    tl: TLContext,
) -> None:
    """Compute windows of C = A B. A (m, k) and B (k, n) are row-major in virtual addresses, with any placement.

    ``lines`` is a work table: (cube, pe, first row, rows, first column, columns, offset of the window in C, row stride
    of C), the last two in bytes. A is staged, ``stage_bytes`` at a time. B is read by panels.
    """
    item, out = element_type(dtype), product_dtype(element_type(dtype), out_dtype)
    for row, rows, column, columns, offset, row_bytes in own_lines(lines, 8, tl):
        a = View.row_major(a_ptr, (row + rows, k), item)
        right = View.row_major(b_ptr, (k, n), item).tile((0, column), (k, columns)).ref(tl)
        window = View(c_ptr + offset, (rows, columns), (row_bytes // out.itemsize, 1), out)
        for i, count in blocks(rows, max(1, stage_bytes // (k * item.itemsize))):
            left = a.tile((row + i, 0), (count, k)).load(tl)
            write_product(window.tile((i, 0), (count, columns)), left, right, tl)
