"""Flash-style attention, one head on each PE."""

from __future__ import annotations

import numpy as np
from pydantic import PositiveInt

from kernbench.benches.operands import FloatName, later_data, product_atol
from kernbench.common.config import ConfigModel
from kernbench.kernels.attention import attention
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.arrays import Array
from kernbench.runtime_api.bench_registry import bench
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.transfers import HostSource


class AttentionParams(ConfigModel):
    """Queries (heads, lq, d), keys and values (heads, lk, d); heads are split over the PEs of ``cubes`` cubes."""

    heads: PositiveInt = 8
    lq: PositiveInt = 128
    lk: PositiveInt = 256
    d: PositiveInt = 64
    cubes: PositiveInt = 1
    causal: bool = True
    dtype: FloatName = "f16"


@bench("attention", "flash-style attention, one head per PE", params=AttentionParams)
def run(torch: RuntimeContext[AttentionParams]) -> None:
    """O = softmax(Q Kᵀ / √d) V for every head, on the PEs of the first cubes of a SIP."""
    p = torch.params
    by_head = DPPolicy(cube="row_wise", pe="row_wise", num_cubes=p.cubes)
    lengths = {"Q": p.lq, "K": p.lk, "V": p.lk}
    host = {
        name: later_data((p.heads, length, p.d), p.dtype, seed=seed)
        for seed, (name, length) in enumerate(lengths.items())
    }
    q, k, v = (
        torch.empty(*data.shape, dtype=p.dtype, dp=by_head, name=name).copy_(data) for name, data in host.items()
    )
    o = torch.empty(p.heads, p.lq, p.d, dtype=p.dtype, dp=by_head, name="O")
    torch.launch("attention", attention, q, k, v, o, p.lq, p.lk, p.d, p.dtype, heads=p.heads, causal=p.causal)
    torch.testing.assert_close(
        o, lambda: reference(host["Q"], host["K"], host["V"], causal=p.causal), atol=4 * product_atol(p.dtype)
    )


def reference(queries: HostSource, keys: HostSource, values: HostSource, *, causal: bool) -> Array:
    """The same in f32, a head at a time; the last query sees all keys."""
    q, k, v = map(np.asarray, (queries, keys, values))
    wide_q, wide_k, wide_v = (x.astype(np.float32) for x in (q, k, v))
    scores = wide_q @ wide_k.swapaxes(1, 2) / np.sqrt(np.float32(q.shape[2]))
    if causal:
        lq, lk = scores.shape[1:]
        scores = np.where(np.arange(lk)[None, :] <= np.arange(lq)[:, None] + lk - lq, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    return np.asarray((weights @ wide_v) / weights.sum(axis=2, keepdims=True)).astype(q.dtype)
