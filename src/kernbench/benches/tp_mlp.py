"""The MLP of Megatron-LM over all SIPs: columns of the first weight and rows of the second are split over ranks."""

from __future__ import annotations

from pydantic import PositiveInt

from kernbench.benches.shared import (
    FloatName,
    check_ranks,
    compute_mlp,
    make_mlp_weights,
    make_normal_data,
    over_cubes,
    run_on_every_rank,
)
from kernbench.common.config import ConfigModel
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.bench_registry import bench
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.tensor import Tensor
from kernbench.tp.block import ParallelMLP


class TpMlpParams(ConfigModel):
    """An MLP for ``tokens`` of ``hidden`` features, ``ffn`` in between. Each SIP uses PEs of its first ``cubes``."""

    tokens: PositiveInt = 32
    """Tokens."""
    hidden: PositiveInt = 256
    """Features of a token."""
    ffn: PositiveInt = 1024
    """Features in between."""
    cubes: PositiveInt = 1
    """Cubes of each SIP whose PEs are used."""
    dtype: FloatName = "f16"
    """Type of the operands."""


@bench("tp-mlp", "Megatron MLP over all SIPs, one all-reduce", params=TpMlpParams)
def run(torch: RuntimeContext[TpMlpParams]) -> None:
    """Compute y = gelu(x W_up + b_up) W_down + b_down, equal on every rank."""
    p = torch.params
    x_host = make_normal_data(torch, (p.tokens, p.hidden), p.dtype, seed=1)
    weights = make_mlp_weights(torch, p.hidden, p.ffn, p.dtype, seed=2)

    def program() -> Tensor:
        mlp = ParallelMLP(p.hidden, p.ffn, p.dtype, dp=over_cubes(p.cubes), torch=torch)
        mlp.load(weights)
        x = torch.empty(p.tokens, p.hidden, dtype=p.dtype, dp=DPPolicy(num_cubes=p.cubes), name="x").copy_(x_host)
        # Weights arrive at the SIPs one after another. The barrier keeps their arrival out of the all-reduce.
        torch.distributed.barrier()
        return mlp(x)

    check_ranks(torch, run_on_every_rank(torch, program), lambda: compute_mlp(x_host, weights), p.dtype)
