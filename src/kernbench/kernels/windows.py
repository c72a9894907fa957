"""Kernels for tensors of any layout: a work table lists what each program does.

A work table is a flat tuple of integers with a fixed number per line. Each line begins with its cube and PE.
"""

from kernbench.common.dtypes import DTypeLike
from kernbench.kernels.composite import product_dtype
from kernbench.kernels.shares import blocks, own_lines
from kernbench.triton_emu.tl_context import TLContext


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

    ``lines``: (cube, pe, first row, rows, first column, columns, offset of the window in C, row stride of C), the last
    two in bytes. A is staged, ``stage_bytes`` at a time. B is read by panels.
    """
    item = tl.itemsize(dtype)
    for row, rows, column, columns, offset, row_bytes in own_lines(lines, 8, tl):
        b = tl.ref(b_ptr + column * item, (k, columns), dtype, strides=(n * item, item))
        for at, count in blocks(rows, max(1, stage_bytes // (k * item))):
            a = tl.load(a_ptr + (row + at) * k * item, (count, k), dtype)
            out = product_dtype(a, out_dtype)
            where, strides = c_ptr + offset + at * row_bytes, (row_bytes, tl.itemsize(out))
            tl.composite("gemm", a, b, out_ptr=where, out_dtype=out, out_strides=strides, block="auto")
