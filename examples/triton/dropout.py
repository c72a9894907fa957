"""Dropout whose mask is random numbers that the kernel makes of a seed: nothing has to be kept for the way back."""

import kernbench.triton
import numpy as np
import triton
import triton.language as tl
from kernbench.policy.placement.dp import DPPolicy

ROWS = DPPolicy(cube="row_wise", pe="row_wise", num_cubes=1)


@triton.jit
def dropout_kernel(x_ptr, out_ptr, n, p, seed, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    kept = tl.rand(seed, offsets) > p
    tl.store(out_ptr + offsets, tl.where(kept, x / (1 - p), 0.0), mask=mask)


def run(torch):
    n, p = 10_000, 0.25
    x = np.random.default_rng(0).random(n, dtype=np.float32) + 1
    x_dev = torch.empty(n, dtype="f32", dp=ROWS, name="x").copy_(x)
    first, again = (torch.empty(n, dtype="f32", dp=ROWS, name=name) for name in ("first", "again"))
    for out in (first, again):
        dropout_kernel[(triton.cdiv(n, 512),)](x_dev, out, n, p, 123, BLOCK=512)
    if torch.has_data:
        kept = first.peek() != 0
        assert abs(kept.mean() - (1 - p)) < 0.02
        torch.testing.assert_close(first, np.where(kept, x / np.float32(1 - p), 0))
        torch.testing.assert_close(again, first.peek())
