"""The projections of attention: X W_Q, X W_K and X W_V."""

from kernbench.common.dtypes import DTypeLike
from kernbench.kernels.composite import product_dtype
from kernbench.kernels.gemm import BlockedKernel, multiply_columns
from kernbench.kernels.shares import blocks, share
from kernbench.triton_emu.tl_context import TLContext


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
    """Compute Q, K and V, each (m, n), of X (m, k) and weights (k, n).

    X is replicated. Weights and results are split by columns over cubes, then PEs. Each program computes its columns of
    all three results and reads X once for them. Dtypes are those of ``kernbench.kernels.gemm``.
    """
    product = BlockedKernel(m, k, n, dtype, block_m, block_k, block_n, acc_dtype, out_dtype)
    multiply_columns(x_ptr, (wq_ptr, wk_ptr, wv_ptr), (q_ptr, k_ptr, v_ptr), product, tl)


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
    stage_bytes: int = 4 << 20,
    *,
    tl: TLContext,
) -> None:
    """Compute ``qkv_projection`` by the tile scheduler.

    X is loaded once, in blocks of rows of at most ``stage_bytes``. The program's columns of W_Q, W_K and W_V are read
    by panels.
    """
    first, columns = share(n, tl)
    item = tl.itemsize(dtype)
    if not columns:
        return
    for i, rows in blocks(m, max(1, stage_bytes // (k * item))):
        x = tl.load(x_ptr + i * k * item, (rows, k), dtype)
        out = product_dtype(x, out_dtype)
        wide = tl.itemsize(out)
        for w_ptr, y_ptr in ((wq_ptr, q_ptr), (wk_ptr, k_ptr), (wv_ptr, v_ptr)):
            w = tl.ref(w_ptr + first * k * item, (k, columns), dtype)
            tl.composite("gemm", x, w, y_ptr + (first * m + i * columns) * wide, out_dtype=out, block="auto")
