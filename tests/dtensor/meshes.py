"""Machines of small SIPs, and programs on a mesh of all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np

from compiled import compiled
from kernbench.dtensor import DeviceMesh, DTensor, Partial, Replicate, Shard, distribute_tensor, init_device_mesh
from kernbench.dtensor.placements import local_window
from kernbench.engine.engine import GraphEngine
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology.builder import Topology

SMALL = ("sip.cube_mesh.h=1", "cube.pe_layout.pe_per_corner=1", "cube.hbm.slices=4")
TORUS = ("system.sips.topology=torus_2d", "system.sips.w=2", "system.sips.h=2")
PLACEMENTS = (Shard(0), Shard(1), Replicate(), Partial())


def machine(sips: int, cubes: int = 1) -> Topology:
    """SIPs of so many cubes of four PEs; four of them are a torus."""
    overrides = [*SMALL, f"sip.cube_mesh.w={cubes}", f"system.sips.count={sips}", *(TORUS if sips == 4 else ())]
    return compiled(*overrides)


def on_mesh(
    shape: tuple[int, ...], program: Callable[[DeviceMesh], object], cubes: int = 1
) -> tuple[list[object], RuntimeContext]:
    """``program`` on every rank of a mesh of this shape; what each returned, and the context, which has ended."""
    every = np.arange(np.prod(shape)).reshape(shape)
    return _on_ranks(every.size, every, lambda: program(init_device_mesh("ahbm", shape)), cubes)


def on_some_ranks(
    world: int, ranks: Sequence[int] | Sequence[Sequence[int]], program: Callable[[DeviceMesh], object], cubes: int = 1
) -> tuple[list[object], RuntimeContext]:
    """The same on a mesh of some ranks of ``world``; the others do nothing."""
    return _on_ranks(world, np.array(ranks), lambda: program(DeviceMesh("ahbm", ranks)), cubes)


def _on_ranks(
    world: int, taking_part: np.ndarray, program: Callable[[], object], cubes: int
) -> tuple[list[object], RuntimeContext]:
    with RuntimeContext(GraphEngine(machine(world, cubes))) as torch:
        results: dict[int, object] = {}

        def main(rank: int) -> None:
            torch.ahbm.set_device(rank)
            torch.distributed.init_process_group("ahbm")
            if rank in taking_part:
                results[rank] = program()
            torch.distributed.destroy_process_group()

        torch.multiprocessing.spawn(main, nprocs=world)
    return [results[rank] for rank in sorted(results)], torch


def placed(array: np.ndarray, mesh: DeviceMesh, placements: tuple, **options: object) -> DTensor:
    """``array`` over a mesh, with contributions too."""
    first = [Replicate() if isinstance(each, Partial) else each for each in placements]
    return distribute_tensor(array, mesh, first, **options).redistribute(placements)


def check_locals(array: np.ndarray, shape: tuple[int, ...], placements: tuple, locals_: list[np.ndarray]) -> None:
    """The local tensors of all ranks, by rank, are the parts of ``array``; contributions add up to them."""
    full = [Replicate() if isinstance(each, Partial) else each for each in placements]
    sums: dict[tuple, np.ndarray] = {}
    for place, local in zip(product(*map(range, shape)), locals_, strict=True):
        key = tuple(None if isinstance(each, Partial) else at for each, at in zip(placements, place, strict=True))
        sums[key] = sums.get(key, 0) + local
    for place in product(*map(range, shape)):
        key = tuple(None if isinstance(each, Partial) else at for each, at in zip(placements, place, strict=True))
        np.testing.assert_array_equal(sums[key], array[local_window(array.shape, full, shape, place).index])
