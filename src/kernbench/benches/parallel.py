"""Ranks of tensor-parallel benches: one for every SIP, and what their results have to be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kernbench.benches.operands import FloatName
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.arrays import Array
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.tensor import Tensor
from kernbench.tp.parallel_state import initialize_model_parallel

# Of values that are about 1, and as absolute tolerance too: sums that cancel are as far off as what they add up.
TOLERANCE: dict[FloatName, float] = {"f32": 1e-5, "f16": 1e-2, "bf16": 8e-2}


def on_every_rank(torch: RuntimeContext[Any], program: Callable[[], Tensor]) -> list[Tensor]:
    """Run ``program`` on a rank for every SIP, all one tensor-parallel group; the result of each."""
    results: dict[int, Tensor] = {}
    ranks = torch.topology.num_sips

    def main(rank: int) -> None:
        torch.ahbm.set_device(rank)
        torch.distributed.init_process_group("ahbm")
        initialize_model_parallel(ranks, torch=torch)
        results[rank] = program()
        torch.distributed.destroy_process_group()

    torch.multiprocessing.spawn(main, nprocs=ranks)
    return [results[rank] for rank in range(ranks)]


def check_ranks(
    torch: RuntimeContext[Any], results: list[Tensor], expected: Callable[[], Array], dtype: FloatName
) -> None:
    """The first result is near ``expected``, the others have the same bits."""
    first, *others = results
    torch.testing.assert_close(first, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype], name="rank 0")
    for rank, other in enumerate(others, 1):
        torch.testing.assert_close(other, first, rtol=0, atol=0, name=f"rank {rank} beside rank 0")


def over_cubes(cubes: int) -> DPPolicy:
    """Weights by columns over all PEs of the first cubes."""
    return DPPolicy("column_wise", "column_wise", num_cubes=cubes)


def gelu_of(x: Array) -> Array:
    """GELU in its tanh form."""
    return np.asarray(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))
