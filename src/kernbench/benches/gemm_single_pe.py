"""One GEMM on one PE: the complete path from the host to a PE and back."""

from __future__ import annotations

from pydantic import PositiveInt

from kernbench.benches.shared import FloatName, Variant, make_later_data, multiply_f32, product_atol
from kernbench.common.config import ConfigModel
from kernbench.kernels.gemm import gemm_composite, gemm_simple
from kernbench.runtime_api.bench_registry import bench
from kernbench.runtime_api.context import RuntimeContext


class GemmParams(ConfigModel):
    """An (m, k) by (k, n) product."""

    m: PositiveInt = 512
    """Rows of the result."""
    k: PositiveInt = 512
    """Columns of the left operand."""
    n: PositiveInt = 512
    """Columns of the result."""
    dtype: FloatName = "f16"
    """Type of the operands."""
    streamed: bool = True
    """Use the tile scheduler; else blocks are loaded, multiplied and stored one after another."""
    variant: Variant = "blocked"
    """Delivery of operands to the scheduler: both tile by tile (ref_ref), the left one (load_ref) or both (load_load)
    staged before, or by panels."""


@bench("gemm-single-pe", "full host-to-PE path, one PE, operands by panels", params=GemmParams)
def run(torch: RuntimeContext[GemmParams]) -> None:
    """Compute C = A B on PE 0 of cube 0."""
    p = torch.params
    a_host = make_later_data((p.m, p.k), p.dtype, seed=1)
    b_host = make_later_data((p.k, p.n), p.dtype, seed=2, scale=p.k**-0.5)
    a = torch.empty(p.m, p.k, dtype=p.dtype, name="A").copy_(a_host)
    b = torch.empty(p.k, p.n, dtype=p.dtype, name="B").copy_(b_host)
    c = torch.empty(p.m, p.n, dtype=p.dtype, name="C")
    if p.streamed:
        torch.launch("gemm", gemm_composite, a, b, c, p.m, p.k, p.n, p.dtype, p.variant)
    else:
        torch.launch("gemm", gemm_simple, a, b, c, p.m, p.k, p.n, p.dtype, acc_dtype="f32", out_dtype=p.dtype)
    torch.testing.assert_close(c, lambda: multiply_f32(a_host, b_host), atol=product_atol(p.dtype))
