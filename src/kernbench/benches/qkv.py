"""The QKV projection of attention, however its tensors are spread."""

from __future__ import annotations

from functools import partial
from typing import Any

from kernbench.benches.operands import FloatName, later_data, matmul_f32, product_atol
from kernbench.kernels.qkv import qkv_projection
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext


def project(
    torch: RuntimeContext[Any], m: int, k: int, n: int, dtype: FloatName, *, inputs: DPPolicy, weights: DPPolicy
) -> None:
    """Q, K, V (m, n) of X (m, k), which lies as ``inputs`` say; weights and results lie as ``weights`` say."""
    x_host = later_data((m, k), dtype, seed=1)
    w_host = {which: later_data((k, n), dtype, seed=seed, scale=k**-0.5) for seed, which in enumerate("QKV", 2)}
    x = torch.empty(m, k, dtype=dtype, dp=inputs, name="X").copy_(x_host)
    placed = [torch.empty(k, n, dtype=dtype, dp=weights, name=f"W_{which}").copy_(w_host[which]) for which in "QKV"]
    results = [torch.empty(m, n, dtype=dtype, dp=weights, name=which) for which in "QKV"]
    torch.launch("qkv", qkv_projection, x, *placed, *results, m, k, n, dtype, acc_dtype="f32", out_dtype=dtype)
    for which, result in zip("QKV", results, strict=True):
        torch.testing.assert_close(result, partial(matmul_f32, x_host, w_host[which]), atol=product_atol(dtype))
