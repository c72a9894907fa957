"""Tensor-parallel ranks on small machines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from compiled import compiled
from covering import sample
from kernbench.engine.engine import GraphEngine
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology.builder import Topology
from kernbench.tp import initialize_model_parallel

SMALL = ("sip.cube_mesh.w=2", "sip.cube_mesh.h=1", "cube.pe_layout.pe_per_corner=1", "cube.hbm.slices=4")
LAYOUTS = {
    "one PE": None,
    "copies": DPPolicy(),
    "rows": DPPolicy("row_wise", "row_wise"),
    "rows in copies": DPPolicy("replicate", "row_wise"),
    "columns": DPPolicy("column_wise", "column_wise"),
    "rows of columns": DPPolicy("row_wise", "column_wise"),
}
SOME_LAYOUTS = sample(LAYOUTS, "one PE", "rows in copies", "rows of columns")


def machine(sips: int) -> Topology:
    """SIPs of two cubes of four PEs."""
    return compiled(*SMALL, f"system.sips.count={sips}")


def spawn_ranks(torch: RuntimeContext[Any], program: Callable[[int], object]) -> list[Any]:
    """``program(rank)`` on a rank for every SIP, all in one process group."""
    results: dict[int, object] = {}

    def main(rank: int) -> None:
        torch.ahbm.set_device(rank)
        torch.distributed.init_process_group("ahbm")
        results[rank] = program(rank)
        torch.distributed.destroy_process_group()

    torch.multiprocessing.spawn(main, nprocs=torch.topology.num_sips)
    return [results[rank] for rank in sorted(results)]


def in_parallel(program: Callable[[RuntimeContext[Any], int], object], sips: int = 2) -> list[Any]:
    """``program(torch, rank)`` on every rank of a tensor-parallel group, on a machine of its own."""
    with RuntimeContext(GraphEngine(machine(sips))) as torch:

        def main(rank: int) -> object:
            initialize_model_parallel(sips, torch=torch)
            return program(torch, rank)

        return spawn_ranks(torch, main)


def numbers(seed: int, *shape: int, dtype: Any = np.float32, scale: float = 1.0) -> Any:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(dtype)


def same_bits(results: list[Any]) -> bool:
    return len({each.tobytes() for each in results}) == 1
