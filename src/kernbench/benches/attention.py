"""Flash-style attention, one head on each PE."""

from __future__ import annotations

from pydantic import PositiveInt

from kernbench.benches.shared import FloatName, compute_attention, make_later_data, product_atol
from kernbench.common.config import ConfigModel
from kernbench.kernels.attention import attention
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.bench_registry import bench
from kernbench.runtime_api.context import RuntimeContext


class AttentionParams(ConfigModel):
    """Queries (heads, lq, d), keys and values (heads, lk, d). Heads are split over the PEs of ``cubes`` cubes."""

    heads: PositiveInt = 8
    """Heads, split over the PEs."""
    lq: PositiveInt = 128
    """Queries."""
    lk: PositiveInt = 256
    """Keys and values."""
    d: PositiveInt = 64
    """Features of a head."""
    cubes: PositiveInt = 1
    """Cubes whose PEs are used."""
    causal: bool = True
    """Causal mask: a query sees only keys up to its own position."""
    dtype: FloatName = "f16"
    """Type of the operands."""


@bench("attention", "flash-style attention, one head per PE", params=AttentionParams)
def run(torch: RuntimeContext[AttentionParams]) -> None:
    """Compute O = softmax(Q Kᵀ / √d) V for every head, on the PEs of the first cubes of a SIP."""
    p = torch.params
    by_head = DPPolicy(cube="row_wise", pe="row_wise", num_cubes=p.cubes)
    lengths = {"Q": p.lq, "K": p.lk, "V": p.lk}
    host = {
        name: make_later_data((p.heads, length, p.d), p.dtype, seed=seed)
        for seed, (name, length) in enumerate(lengths.items())
    }
    q, k, v = (
        torch.empty(*data.shape, dtype=p.dtype, dp=by_head, name=name).copy_(data) for name, data in host.items()
    )
    o = torch.empty(p.heads, p.lq, p.d, dtype=p.dtype, dp=by_head, name="O")
    torch.launch("attention", attention, q, k, v, o, p.lq, p.lk, p.d, p.dtype, heads=p.heads, causal=p.causal)
    torch.testing.assert_close(
        o, lambda: compute_attention(host["Q"], host["K"], host["V"], causal=p.causal), atol=4 * product_atol(p.dtype)
    )
