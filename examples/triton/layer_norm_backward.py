"""The way back of layer normalisation: rows add their part of the weights' gradients up under locks."""

import kernbench.triton
import numpy as np
import triton
import triton.language as tl
from kernbench.policy.placement.dp import DPPolicy

ROWS = DPPolicy(pe="row_wise", num_cubes=1)


@triton.jit
def input_gradient_kernel(
    dx_ptr, dy_ptr, dw_ptr, db_ptr, x_ptr, w_ptr, mean_ptr, rstd_ptr, lock_ptr, N,
    GROUPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < N
    x = tl.load(x_ptr + row * N + columns, mask=mask, other=0.0)
    dy = tl.load(dy_ptr + row * N + columns, mask=mask, other=0.0)
    w = tl.load(w_ptr + columns, mask=mask, other=0.0)
    rstd = tl.load(rstd_ptr + row)
    normal = tl.where(mask, (x - tl.load(mean_ptr + row)) * rstd, 0.0)
    wdy = w * dy
    c1, c2 = tl.sum(normal * wdy, axis=0) / N, tl.sum(wdy, axis=0) / N
    tl.store(dx_ptr + row * N + columns, (wdy - (normal * c1 + c2)) * rstd, mask=mask)

    group = row % GROUPS
    at = group * N + columns
    while tl.atomic_cas(lock_ptr + group, 0, 1) == 1:
        pass
    tl.store(dw_ptr + at, tl.load(dw_ptr + at, mask=mask) + dy * normal, mask=mask)
    tl.store(db_ptr + at, tl.load(db_ptr + at, mask=mask) + dy, mask=mask)
    tl.debug_barrier()
    tl.atomic_xchg(lock_ptr + group, 0)


@triton.jit
def sum_kernel(parts_ptr, out_ptr, N, GROUPS: tl.constexpr, BLOCK: tl.constexpr):
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < N
    parts = tl.load(parts_ptr + tl.arange(0, GROUPS)[:, None] * N + columns[None, :], mask=mask[None, :], other=0.0)
    tl.store(out_ptr + columns, tl.sum(parts, axis=0), mask=mask)


def run(torch):
    rows, n, groups = 24, 100, 4
    rng = np.random.default_rng(0)
    x, dy = rng.standard_normal((2, rows, n), dtype=np.float32)
    w = rng.random(n, dtype=np.float32)
    mean, rstd = x.mean(1), 1 / np.sqrt(x.var(1) + 1e-5)

    def device(host, name):
        return torch.empty(*host.shape, dtype=host.dtype, dp=ROWS, name=name).copy_(host)

    def zeros(*shape, dtype="f32", name):
        return torch.zeros(*shape, dtype=dtype, dp=ROWS, name=name)

    dx, dw, db = zeros(rows, n, name="dx"), zeros(n, name="dw"), zeros(n, name="db")
    dw_parts, db_parts = zeros(groups, n, name="dw_parts"), zeros(groups, n, name="db_parts")
    locks = zeros(groups, dtype="i32", name="locks")
    operands = [device(host, name) for host, name in ((x, "x"), (w, "w"), (mean, "mean"), (rstd, "rstd"))]
    args = (dx, device(dy, "dy"), dw_parts, db_parts, *operands, locks)
    input_gradient_kernel[(rows,)](*args, n, GROUPS=groups, BLOCK=triton.next_power_of_2(n))
    for parts, out in ((dw_parts, dw), (db_parts, db)):
        sum_kernel[(triton.cdiv(n, 32),)](parts, out, n, GROUPS=groups, BLOCK=32)
    normal = (x - mean[:, None]) * rstd[:, None]
    wdy = w * dy
    wanted = (wdy - normal * (normal * wdy).mean(1, keepdims=True) - wdy.mean(1, keepdims=True)) * rstd[:, None]
    torch.testing.assert_close(dx, wanted, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(dw, (dy * normal).sum(0), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(db, dy.sum(0), atol=1e-4, rtol=1e-4)
