"""The sum of two vectors: kernbench run --bench examples/triton/vector_add.py --verify-data --explain"""

import kernbench.triton
import numpy as np
import triton
import triton.language as tl
from kernbench.policy.placement.dp import DPPolicy

ROWS = DPPolicy(cube="row_wise", pe="row_wise", num_cubes=1)


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x + y, mask=mask)


def run(torch):
    n = 50_000
    x, y = np.random.default_rng(0).standard_normal((2, n), dtype=np.float32)
    x_dev, y_dev = (torch.empty(n, dtype="f32", dp=ROWS, name=name).copy_(v) for name, v in (("x", x), ("y", y)))
    out = torch.empty(n, dtype="f32", dp=ROWS, name="out")
    grid = lambda meta: (triton.cdiv(n, meta["BLOCK"]),)
    add_kernel[grid](x_dev, y_dev, out, n, BLOCK=1024)
    torch.testing.assert_close(out, x + y)
