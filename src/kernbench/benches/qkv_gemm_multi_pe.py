"""QKV projection at the width of GPT-3 on all PEs of a SIP."""

from __future__ import annotations

from pydantic import PositiveInt

from kernbench.benches.shared import FloatName, project
from kernbench.common.config import ConfigModel
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.bench_registry import bench
from kernbench.runtime_api.context import RuntimeContext


class QkvMultiPeParams(ConfigModel):
    """A projection of ``m`` tokens with ``width`` features. GPT-3 has 12288."""

    m: PositiveInt = 32
    """Tokens."""
    width: PositiveInt = 12288
    """Features of a token, and of each of Q, K and V."""
    dtype: FloatName = "f16"
    """Type of the operands."""


@bench("qkv-gemm-multi-pe", "GPT-3-width QKV projection, weights column-sharded over a SIP", params=QkvMultiPeParams)
def run(torch: RuntimeContext[QkvMultiPeParams]) -> None:
    """Project X, which is replicated on every PE. Weights and results are split by columns over all cubes and PEs."""
    p = torch.params
    everywhere, by_column = DPPolicy("replicate", "replicate"), DPPolicy("column_wise", "column_wise")
    project(torch, p.m, p.width, p.width, p.dtype, inputs=everywhere, weights=by_column)
