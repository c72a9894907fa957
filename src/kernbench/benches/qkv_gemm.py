"""QKV projection on one PE."""

from __future__ import annotations

from pydantic import PositiveInt

from kernbench.benches.shared import FloatName, project
from kernbench.common.config import ConfigModel
from kernbench.policy.placement.dp import SINGLE_PE
from kernbench.runtime_api.bench_registry import bench
from kernbench.runtime_api.context import RuntimeContext


class QkvParams(ConfigModel):
    """A projection of ``m`` tokens with ``width`` features to ``head_dim`` features for each of Q, K and V."""

    m: PositiveInt = 128
    """Tokens."""
    width: PositiveInt = 512
    """Features of a token."""
    head_dim: PositiveInt = 128
    """Features of each of Q, K and V."""
    dtype: FloatName = "f16"
    """Type of the operands."""


@bench("qkv-gemm", "single-PE QKV projection", params=QkvParams)
def run(torch: RuntimeContext[QkvParams]) -> None:
    """Compute Q, K, V = X W_Q, X W_K, X W_V on PE 0 of cube 0."""
    p = torch.params
    project(torch, p.m, p.width, p.head_dim, p.dtype, inputs=SINGLE_PE, weights=SINGLE_PE)
