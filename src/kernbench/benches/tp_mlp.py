"""The MLP of Megatron-LM over all SIPs: columns of the first weight and rows of the second split over ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import PositiveInt

from kernbench.benches.operands import FloatName, normal_data
from kernbench.benches.parallel import check_ranks, gelu_of, on_every_rank, over_cubes
from kernbench.common.config import ConfigModel
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.arrays import Array
from kernbench.runtime_api.bench_registry import bench
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.tensor import Tensor
from kernbench.tp.block import MlpWeights, ParallelMLP


class TpMlpParams(ConfigModel):
    """``tokens`` of ``hidden`` features, ``ffn`` in between; each SIP works with the PEs of its first ``cubes``."""

    tokens: PositiveInt = 32
    hidden: PositiveInt = 256
    ffn: PositiveInt = 1024
    cubes: PositiveInt = 1
    dtype: FloatName = "f16"


@bench("tp-mlp", "Megatron MLP over all SIPs, one all-reduce", params=TpMlpParams)
def run(torch: RuntimeContext[TpMlpParams]) -> None:
    """y = gelu(x W_up + b_up) W_down + b_down, the same on every rank."""
    p = torch.params
    x_host = normal_data(torch, (p.tokens, p.hidden), p.dtype, seed=1)
    weights = mlp_weights(torch, p.hidden, p.ffn, p.dtype, seed=2)

    def program() -> Tensor:
        mlp = ParallelMLP(p.hidden, p.ffn, p.dtype, dp=over_cubes(p.cubes), torch=torch)
        mlp.load(weights)
        x = torch.empty(p.tokens, p.hidden, dtype=p.dtype, dp=DPPolicy(num_cubes=p.cubes), name="x").copy_(x_host)
        # Weights come to the SIPs one after the other; without this the all-reduce would wait for the last.
        torch.distributed.barrier()
        return mlp(x)

    check_ranks(torch, on_every_rank(torch, program), lambda: mlp_reference(x_host, weights), p.dtype)


def mlp_weights(torch: RuntimeContext[Any], hidden: int, ffn: int, dtype: str, *, seed: int) -> MlpWeights:
    """Weights that keep values at about 1."""
    return MlpWeights(
        w_up=normal_data(torch, (hidden, ffn), dtype, seed=seed, scale=hidden**-0.5),
        b_up=normal_data(torch, (ffn,), dtype, seed=seed + 1),
        w_down=normal_data(torch, (ffn, hidden), dtype, seed=seed + 2, scale=ffn**-0.5),
        b_down=normal_data(torch, (hidden,), dtype, seed=seed + 3),
    )


def mlp_reference(x: Array, weights: MlpWeights) -> Array:
    """The same on one device, in f64."""
    w_up, b_up, w_down, b_down = (
        each.astype(np.float64) for each in (weights.w_up, weights.b_up, weights.w_down, weights.b_down)
    )
    return np.asarray(gelu_of(x.astype(np.float64) @ w_up + b_up) @ w_down + b_down)
