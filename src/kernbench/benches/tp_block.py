"""A transformer block over all SIPs: the heads of attention and the MLP are split over ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import PositiveInt

from kernbench.benches.shared import (
    FloatName,
    check_ranks,
    compute_attention,
    compute_mlp,
    make_mlp_weights,
    make_normal_data,
    over_cubes,
    run_on_every_rank,
)
from kernbench.common.config import ConfigModel
from kernbench.common.dtypes import Array
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.bench_registry import bench
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.tensor import Tensor
from kernbench.tp.block import AttentionWeights, BlockWeights, TransformerBlock


class TpBlockParams(ConfigModel):
    """A block for ``tokens`` of ``hidden`` features, with ``heads`` heads and ``ffn`` features inside the MLP.

    GPT-2 has 768, 12 and 3072. Each SIP uses the PEs of its first ``cubes``.
    """

    tokens: PositiveInt = 32
    """Tokens."""
    hidden: PositiveInt = 128
    """Features of a token."""
    heads: PositiveInt = 8
    """Heads of the attention."""
    ffn: PositiveInt = 512
    """Features inside the MLP."""
    causal: bool = True
    """Causal mask: a token sees only tokens up to its own position."""
    cubes: PositiveInt = 1
    """Cubes of each SIP whose PEs are used."""
    dtype: FloatName = "f16"
    """Type of the operands."""


@bench("tp-block", "transformer block over all SIPs, two all-reduces", params=TpBlockParams)
def run(torch: RuntimeContext[TpBlockParams]) -> None:
    """Compute y = x + attention(norm(x)); y + mlp(norm(y)), equal on every rank."""
    p = torch.params
    x_host = make_normal_data(torch, (p.tokens, p.hidden), p.dtype, seed=1)
    weights = make_block_weights(torch, p.hidden, p.ffn, p.dtype)

    def program() -> Tensor:
        dp = over_cubes(p.cubes)
        block = TransformerBlock(p.hidden, p.heads, p.ffn, p.causal, p.dtype, dp=dp, torch=torch)
        block.load(weights)
        x = torch.empty(p.tokens, p.hidden, dtype=p.dtype, dp=DPPolicy(num_cubes=p.cubes), name="x").copy_(x_host)
        # Weights arrive at the SIPs one after another. The barrier keeps their arrival out of the first all-reduce.
        torch.distributed.barrier()
        return block(x)

    results = run_on_every_rank(torch, program)
    check_ranks(torch, results, lambda: compute_block(x_host, weights, p.heads, causal=p.causal), p.dtype)


def make_block_weights(torch: RuntimeContext[Any], hidden: int, ffn: int, dtype: str) -> BlockWeights:
    """Make weights that keep activations at about 1."""

    def matrix(seed: int) -> Array:
        return make_normal_data(torch, (hidden, hidden), dtype, seed=seed, scale=hidden**-0.5)

    return BlockWeights(
        norm1=make_normal_data(torch, (2, hidden), dtype, seed=2),
        attention=AttentionWeights(wq=matrix(3), wk=matrix(4), wv=matrix(5), wo=matrix(6)),
        norm2=make_normal_data(torch, (2, hidden), dtype, seed=7),
        mlp=make_mlp_weights(torch, hidden, ffn, dtype, seed=8),
    )


def compute_block(x: Array, weights: BlockWeights, heads: int, *, causal: bool) -> Array:
    """Compute the block on one device, in f64."""
    wide = x.astype(np.float64)
    y = wide + _attend(_normalize(wide, weights.norm1), weights.attention, heads, causal=causal)
    return np.asarray(y + compute_mlp(_normalize(y, weights.norm2), weights.mlp))


def _normalize(x: Array, norm: Array) -> Array:
    weight, bias = norm.astype(np.float64)
    centred = x - x.mean(axis=1, keepdims=True)
    return np.asarray(centred / np.sqrt(np.mean(centred**2, axis=1, keepdims=True) + 1e-5) * weight + bias)


def _attend(x: Array, weights: AttentionWeights, heads: int, *, causal: bool) -> Array:
    q, k, v = (
        (x @ w.astype(np.float64)).reshape(len(x), heads, -1).swapaxes(0, 1)
        for w in (weights.wq, weights.wk, weights.wv)
    )
    mixed = compute_attention(q, k, v, causal=causal).swapaxes(0, 1).reshape(x.shape)
    return np.asarray(mixed @ weights.wo.astype(np.float64))
