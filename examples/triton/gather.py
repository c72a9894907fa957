"""Rows of a table by their numbers, which lie in memory; and sums of rows whose lengths do."""

import kernbench.triton
import numpy as np
import triton
import triton.language as tl
from kernbench.policy.placement.dp import DPPolicy

ROWS = DPPolicy(pe="row_wise", num_cubes=1)


@triton.jit
def gather_kernel(ids_ptr, table_ptr, out_ptr, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, WIDTH)
    ids = tl.load(ids_ptr + rows)
    x = tl.load(table_ptr + ids[:, None] * WIDTH + columns[None, :])
    tl.store(out_ptr + rows[:, None] * WIDTH + columns[None, :], x)


@triton.jit
def ragged_sum_kernel(lengths_ptr, x_ptr, out_ptr, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    length = tl.load(lengths_ptr + row)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, length, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + row * stride + columns, mask=columns < length, other=0.0)
    tl.store(out_ptr + row, tl.sum(total, axis=0))


def run(torch):
    rng = np.random.default_rng(0)
    ids, table = rng.integers(0, 100, 32).astype(np.int32), rng.standard_normal((100, 64), dtype=np.float32)
    lengths = rng.integers(0, 64, 24).astype(np.int32)

    def device(host, name):
        return torch.empty(*host.shape, dtype=host.dtype, dp=ROWS, name=name).copy_(host)

    table_dev = device(table, "table")
    out = torch.empty(32, 64, dtype="f32", dp=ROWS, name="out")
    gather_kernel[(4,)](device(ids, "ids"), table_dev, out, WIDTH=64, ROWS=8)
    torch.testing.assert_close(out, table[ids])
    sums = torch.empty(24, dtype="f32", dp=ROWS, name="sums")
    ragged_sum_kernel[(24,)](device(lengths, "lengths"), table_dev, sums, 64, BLOCK=16)
    torch.testing.assert_close(
        sums, np.array([table[i, :n].sum() for i, n in enumerate(lengths)]), atol=1e-4, rtol=1e-4
    )
