"""One tiled GEMM on one PE, with shape, staging and epilogue as parameters."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
from pydantic import PositiveInt

from kernbench.benches.shared import FloatName, Variant, make_later_data, product_atol
from kernbench.common.config import ConfigModel
from kernbench.common.dtypes import Array
from kernbench.common.dtypes import dtype as dtype_of
from kernbench.common.operators import gemm
from kernbench.kernels.gemm import gemm_composite
from kernbench.runtime_api.bench_registry import bench
from kernbench.runtime_api.context import RuntimeContext

EpilogueName: TypeAlias = Literal["none", "bias", "relu", "gelu", "silu", "bias_gelu"]


class CompositeParams(ConfigModel):
    """An (m, k) by (k, n) product."""

    m: PositiveInt = 128
    """Rows of the result."""
    k: PositiveInt = 256
    """Columns of the left operand."""
    n: PositiveInt = 128
    """Columns of the result."""
    variant: Variant = "blocked"
    """Delivery of operands to the scheduler: both tile by tile (ref_ref), the left one (load_ref) or both (load_load)
    staged before, or by panels."""
    epilogue: EpilogueName = "none"
    """Operation on each tile of the result."""
    dtype: FloatName = "f16"
    """Type of the operands."""


@bench("matmul-composite", "one GEMM by tile plan, shape and staging variant as parameters", params=CompositeParams)
def run(torch: RuntimeContext[CompositeParams]) -> None:
    """Compute C = epilogue(A B) on PE 0 of cube 0."""
    p = torch.params
    a_host = make_later_data((p.m, p.k), p.dtype, seed=1)
    b_host = make_later_data((p.k, p.n), p.dtype, seed=2, scale=p.k**-0.5)
    bias_host = make_later_data((p.n,), p.dtype, seed=3)
    a = torch.empty(p.m, p.k, dtype=p.dtype, name="A").copy_(a_host)
    b = torch.empty(p.k, p.n, dtype=p.dtype, name="B").copy_(b_host)
    c = torch.empty(p.m, p.n, dtype=p.dtype, name="C")
    steps = () if p.epilogue == "none" else tuple(p.epilogue.split("_"))
    bias = torch.empty(p.n, dtype=p.dtype, name="bias").copy_(bias_host) if "bias" in steps else None
    torch.launch(
        "matmul",
        gemm_composite,
        a,
        b,
        c,
        p.m,
        p.k,
        p.n,
        p.dtype,
        p.variant,
        epilogue_ops=",".join(steps),
        bias_ptr=bias,
    )

    def compute_expected() -> Array:
        epilogue = [(step, np.asarray(bias_host)) if step == "bias" else (step,) for step in steps]
        with np.errstate(all="ignore"):
            return gemm((np.asarray(a_host), np.asarray(b_host)), dtype_of(p.dtype), epilogue)

    torch.testing.assert_close(c, compute_expected, atol=2 * product_atol(p.dtype))
