"""Small machines that work, and ways to run ranks on them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fake_engine import SMALL

from compiled import compiled
from kernbench.engine.engine import GraphEngine
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology.builder import Topology

INTERCUBE = "{module: intercube_allreduce, topology: intercube, mapper: pe0_of_every_cube, validator: row_per_cube}"
HIERARCHICAL = (
    "{module: hierarchical_allreduce, topology: hierarchical_3level, mapper: all_pes, validator: multi_pe_sip_local}"
)
RING = "{module: ring_allreduce, topology: ring_1d}"


def working_machine(sips: int = 2, *overrides: str) -> Topology:
    """SIPs of two cubes of four PEs."""
    return compiled(*SMALL, f"system.sips.count={sips}", *overrides)


def context_on(topology: Topology, folder: Path, algorithm: str = INTERCUBE, **options: object) -> RuntimeContext:
    """A context with data on a new engine, whose collectives are by ``algorithm``."""
    file = folder / "ccl.yaml"
    file.write_text(f"algorithms:\n  chosen: {algorithm}\n")
    return RuntimeContext(GraphEngine(topology), ccl=file, **options)


def run_ranks(torch: RuntimeContext, program: Callable[[int], object], nprocs: int | None = None) -> list[object]:
    """``program(rank)`` on every rank of a process group; what each returned."""
    results: dict[int, object] = {}

    def main(rank: int) -> None:
        torch.ahbm.set_device(rank)
        torch.distributed.init_process_group("ahbm")
        results[rank] = program(rank)
        torch.distributed.destroy_process_group()

    torch.multiprocessing.spawn(main, nprocs=nprocs or torch.topology.num_sips)
    return [results[rank] for rank in sorted(results)]
