"""The QKV projection of attention, however its tensors are spread."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kernbench.benches.operands import FloatName, matmul_f32, normal_data, product_atol
from kernbench.kernels.qkv import qkv_projection
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.arrays import Array
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.host_values import LaterArray


def project(
    torch: RuntimeContext[Any], m: int, k: int, n: int, dtype: FloatName, *, inputs: DPPolicy, weights: DPPolicy
) -> None:
    """Q, K, V (m, n) of X (m, k), which lies as ``inputs`` say; weights and results lie as ``weights`` say."""
    x_host = normal_data(torch, (m, k), dtype, seed=1)
    x = torch.empty(m, k, dtype=dtype, dp=inputs, name="X").copy_(x_host)

    def weight(which: str) -> Array:
        """Made anew for each use: three of them on the host would be as large as those on the machine."""
        return normal_data(torch, (k, n), dtype, seed=2 + "QKV".index(which), scale=k**-0.5)

    placed = [
        torch.empty(k, n, dtype=dtype, dp=weights, name=f"W_{which}").copy_(LaterArray((k, n), partial(weight, which)))
        for which in "QKV"
    ]
    results = [torch.empty(m, n, dtype=dtype, dp=weights, name=which) for which in "QKV"]
    torch.launch("qkv", qkv_projection, x, *placed, *results, m, k, n, dtype, acc_dtype="f32", out_dtype=dtype)
    for which, result in zip("QKV", results, strict=True):
        expected = partial(_product, x_host, partial(weight, which))
        torch.testing.assert_close(result, expected, atol=product_atol(dtype))


def _product(x: Array, weight: Callable[[], Array]) -> Array:
    return matmul_f32(x, weight())
