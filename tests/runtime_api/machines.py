"""Small machines that work, ways to run ranks on them, and tensors to put there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from fake_engine import SMALL, FakeEngine
from hypothesis import strategies as st

from compiled import compiled
from kernbench.common.dtypes import F32, DType
from kernbench.engine.engine import GraphEngine
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology.builder import Topology

INTERCUBE = "{module: intercube_allreduce, topology: intercube, mapper: pe0_of_every_cube, validator: row_per_cube}"
HIERARCHICAL = (
    "{module: hierarchical_allreduce, topology: hierarchical_3level, mapper: all_pes, validator: multi_pe_sip_local}"
)
RING = "{module: ring_allreduce, topology: ring_1d}"


KINDS = ("replicate", "column_wise", "row_wise")
POLICIES = st.builds(
    DPPolicy,
    cube=st.sampled_from(KINDS),
    pe=st.sampled_from(KINDS),
    num_pes=st.sampled_from((1, 2, 3, 4)),
    num_cubes=st.sampled_from((1, 2)),
)


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


def numbered(shape: tuple[int, ...], dtype: DType = F32) -> np.ndarray[Any, Any]:
    """Small integers, exact in every type, and no two neighbours alike."""
    count = int(np.prod(shape))
    return (np.arange(count) % 13).reshape(shape).astype(np.float32).astype(dtype.numpy)


def copies_agree(engine: FakeEngine, tensor: Any) -> bool:
    """Return True when all copies of each shard hold the same bytes."""
    held: dict[int, set[bytes]] = {}
    for shard in tensor.shards:
        held.setdefault(shard.offset_bytes, set()).add(engine.read_memory(shard.pa, shard.nbytes).tobytes())
    return all(len(each) == 1 for each in held.values())
