"""Small machines of several SIPs, and rank programs on them, for tests of PyTorch programs with ranks."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.distributed as dist

import kernbench.torch
from frontends.torch_programs import machine
from kernbench.topology.builder import Topology, resolve_topology


@cache
def sips(n: int) -> Topology:
    """Return a machine of ``n`` SIPs, each of one cube of four PEs."""
    one_cube = ["sip.cube_mesh.w=1", "sip.cube_mesh.h=1", "cube.pe_layout.pe_per_corner=1", "cube.hbm.slices=4"]
    return resolve_topology("default", [f"system.sips.count={n}", *one_cube])


def run_ranks(
    program: Callable[[int], Any], n: int = 2, *settings: str, data: bool = True, backend: str | None = "nccl"
) -> list[Any]:
    """Return the results of ``program(rank)`` on ``n`` ranks of a group; ``backend`` None: without a group."""
    results: dict[int, Any] = {}

    def main(rank: int) -> None:
        if backend is not None:
            dist.init_process_group(backend)
        results[rank] = program(rank)

    with machine("torch.queue=64", *settings, data=data, topology=sips(n)), kernbench.torch.as_cuda():
        torch.multiprocessing.spawn(main, nprocs=n)
    return [results[rank] for rank in range(n)]


def time_of(program: Callable[[int], object], n: int, *settings: str, data: bool = True) -> float:
    """Return the simulated time of ``program(rank)`` on ``n`` ranks of a group, in ns."""

    def main(rank: int) -> None:
        dist.init_process_group("nccl")
        program(rank)

    with machine("torch.queue=64", *settings, data=data, topology=sips(n)) as context, kernbench.torch.as_cuda():
        torch.multiprocessing.spawn(main, nprocs=n)
        return context.engine.now
