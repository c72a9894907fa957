"""The feed-forward part of a transformer."""

from typing import Any

from kernbench.kernels.composite import Matmul, matmul
from kernbench.kernels.shares import share


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
    variant: str = "blocked",
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
