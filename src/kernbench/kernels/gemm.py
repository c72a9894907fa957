"""Matrix products of row-major matrices: in blocks that a kernel loads, or as composites of the tile scheduler.

Block sizes need not divide the shapes. ``dtype`` is that of the factors. The product has ``out_dtype``, else the
dtype of ``tl.dot`` (``dtype``; i32 for i8). Floats that are summed over several blocks of K are accumulated in
``acc_dtype``, else in the product's dtype. Integers are accumulated in the dtype of ``tl.dot``.
"""

from collections.abc import Sequence
from typing import NamedTuple

from kernbench.common.dtypes import DTypeLike
from kernbench.kernels.composite import Matmul, matmul
from kernbench.kernels.shares import blocks, share
from kernbench.triton_emu.handles import Handle
from kernbench.triton_emu.tl_context import TLContext


class BlockedKernel(NamedTuple):
    """A product (m, k) by (k, n): its dtypes and block sizes."""

    m: int
    k: int
    n: int
    dtype: DTypeLike
    block_m: int
    block_k: int
    block_n: int
    acc_dtype: DTypeLike | None
    out_dtype: DTypeLike | None


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
    product = BlockedKernel(m, k, n, dtype, block_m, block_k, block_n, acc_dtype, out_dtype)
    multiply(a_ptr, (b_ptr,), (c_ptr,), product, 0, tl)


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
    product = BlockedKernel(m, k, n, dtype, block_m, block_k, block_n, acc_dtype, out_dtype)
    multiply_columns(a_ptr, (b_ptr,), (c_ptr,), product, tl)


def multiply_columns(
    a_ptr: int, b_ptrs: Sequence[int], c_ptrs: Sequence[int], product: BlockedKernel, tl: TLContext
) -> None:
    """Multiply A by this program's columns of each B."""
    first, columns = share(product.n, tl)
    before = first * product.k * tl.itemsize(product.dtype)
    multiply(a_ptr, [b + before for b in b_ptrs], c_ptrs, product._replace(n=columns), first, tl)


def multiply(
    a_ptr: int, b_ptrs: Sequence[int], c_ptrs: Sequence[int], product: BlockedKernel, first_column: int, tl: TLContext
) -> None:
    """Multiply A by each B, which are (k, n). A block of A is read once for all of them.

    Each column shard is stored as a separate matrix, behind the ``first_column`` columns before it in each C.
    """
    m, k, n, dtype, block_m, block_k, block_n, acc_dtype, out_dtype = product
    item = tl.itemsize(dtype)
    for i, rows in blocks(m, block_m):
        for j, columns in blocks(n, block_n):
            totals: list[Handle | None] = [None] * len(b_ptrs)
            for p, depth in blocks(k, block_k):
                a = tl.load(a_ptr + (i * k + p) * item, (rows, depth), dtype, strides=(k * item, item))
                for at, b_ptr in enumerate(b_ptrs):
                    b = tl.load(b_ptr + (p * n + j) * item, (depth, columns), dtype, strides=(n * item, item))
                    sums = (acc_dtype or out_dtype) if a.dtype.is_float else None
                    totals[at] = tl.dot(a, b, totals[at], out_dtype=sums)
            for c_ptr, total in zip(c_ptrs, totals, strict=True):
                assert total is not None, "K has a block"
                # Integer products keep the wider dtype of their sums; float products return to the factors' dtype.
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
    dtype: DTypeLike,
    variant: str = "blocked",
    epilogue_ops: str | Sequence[str] = (),
    bias_ptr: int | None = None,
    add_ptr: int | None = None,
    scale: float = 1.0,
    out_dtype: DTypeLike | None = None,
    stage_bytes: int = 4 << 20,
    *,
    tl: TLContext,
) -> None:
    """Compute C = epilogue(A B) by the tile scheduler, A (m, k), B (k, n): every program computes the full result.

    ``variant``: ``blocked`` reads panels of both operands for blocks of the result that suit the machine. ``ref_ref``
    streams both operands tile by tile, ``load_ref`` loads A first, ``load_load`` loads both. A loaded operand goes in
    blocks of at most ``stage_bytes``. ``epilogue_ops`` names the steps in order, as ``"bias,gelu"`` or as a sequence.
    ``bias_ptr`` (n,) and ``add_ptr`` (m, n) point to elements of ``dtype``.
    """
    product = Matmul(m, k, n, dtype, variant, epilogue_ops, bias_ptr, add_ptr, scale, out_dtype, stage_bytes)
    matmul(a_ptr, b_ptr, c_ptr, product, tl)
