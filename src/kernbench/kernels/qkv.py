"""The projections of attention: X W_Q, X W_K and X W_V."""

from typing import Any

from kernbench.kernels.gemm import Product, multiply_columns


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
    dtype: Any,
    block_m: int = 256,
    block_k: int = 512,
    block_n: int = 128,
    acc_dtype: Any = None,
    out_dtype: Any = None,
    *,
    tl: Any,
) -> None:
    """Q, K and V, each (m, n), of X (m, k) and weights (k, n).

    X is replicated; weights and results are split by columns over cubes, then PEs, and each program computes its
    columns of all three, reading X once for them. Types as in ``kernbench.kernels.gemm``.
    """
    product = Product(m, k, n, dtype, block_m, block_k, block_n, acc_dtype, out_dtype)
    multiply_columns(x_ptr, (wq_ptr, wk_ptr, wv_ptr), (q_ptr, k_ptr, v_ptr), product, tl)
