"""Every collective on the machines it is tried on: its ranks, its data, and what NumPy makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from algorithm_support import (
    Array,
    Collective,
    Shards,
    algorithm,
    all_reduce,
    assert_reduced,
    over_sips,
    shards_of,
    small,
    values,
)
from collective_checks import assert_all_reduced, assert_collective

from compiled import compiled
from kernbench.ccl.config import AlgorithmConfig
from kernbench.ccl.loading import find_packaged_file, load_ccl_config
from kernbench.topology.builder import Topology

KINDS = ("tcm", "hbm", "sram")
DTYPES = ("f32", "f16", "bf16")
SIZES = (1, 8, 1000, 65536)
REDUCTIONS = ("sum", "avg", "max", "min")

PATTERN_OF = {
    "ring_allreduce": "ring_1d",
    "ring_allreduce_rs_ag": "ring_1d",
    "mesh_allreduce": "torus_2d",
    "tree_allreduce": "tree_binary",
    "hierarchical_allreduce": "hierarchical_3level",
    "intercube_allreduce": "intercube",
}
IN_PLACE = ("sip_allreduce", "broadcast", "reduce", "send_recv")
BETWEEN = ("all_gather", "reduce_scatter", "all_to_all")
EXCHANGE = "exchange"
MOVES_ONLY = ("broadcast", "send_recv", "all_gather", "all_to_all", "barrier", EXCHANGE)
PES = ((0, 0), (1, 2))


@dataclass(frozen=True, kw_only=True)
class World:
    """An algorithm on a machine. ``machine``: the arguments of ``small``; None is the packaged machine.

    ``pes``: which PEs of a SIP own the tensor, for collectives over SIPs.
    """

    name: str
    ranks: int
    machine: tuple[Any, ...] | None = ()
    pattern: str = ""
    mapper: str = "leader_only"
    passed: tuple[tuple[str, Any], ...] = ()
    pes: tuple[tuple[int, int], ...] = PES

    def __str__(self) -> str:
        where = "default" if self.machine is None else "-".join(str(each) for each in self.machine if each) or "1"
        extra = [self.pattern, *(f"{key}={value}" for key, value in self.passed)]
        return "-".join(text for text in (self.name, f"{self.ranks}on", where, *extra) if text)

    @property
    def topology(self) -> Topology:
        return compiled() if self.machine is None else small(*self.machine)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Elements of each rank: for many ranks the largest takes too long."""
        return SIZES if self.ranks <= 16 else SIZES[:-1]

    @property
    def reductions(self) -> tuple[str, ...]:
        return REDUCTIONS[:1] if self.name in MOVES_ONLY else REDUCTIONS

    def collective(self, n: int, dtype: str, op: str) -> Collective:
        """Of ``n`` elements for every rank; of a tensor with a block for every rank, so many in each block."""
        rng = np.random.default_rng((n, self.ranks))
        if self.name in PATTERN_OF:
            return self._where_topologies_say(lambda pe: values(rng, n, dtype), op)
        return self._over_sips(rng, n, dtype, op)

    def _where_topologies_say(self, data: Any, op: str) -> Collective:
        pattern = self.pattern or PATTERN_OF[self.name]
        chosen = algorithm(self.name, pattern, self.ranks, self.mapper, **dict(self.passed))
        return all_reduce(chosen, self.topology, data, op)

    def _over_sips(self, rng: np.random.Generator, n: int, dtype: str, op: str) -> Collective:
        """From tensor to tensor: the one that has a block for every rank is the source, the target, or both."""
        owned = self._owned(n)
        blocks = {"all_gather": (1, self.ranks), "reduce_scatter": (self.ranks, 1)}.get(self.name, (self.ranks,) * 2)
        each = blocks if self.name in (*BETWEEN, EXCHANGE) else (1,)
        tensors = [shards_of(self.ranks, owned, rng, dtype, count) for count in each]
        return over_sips(self.name, self.topology, tensors, dtype=dtype, reduce_op=op, **dict(self.passed))

    def _owned(self, n: int) -> dict[tuple[int, int], int]:
        """How many elements each PE of a SIP owns: the first few have more than the last, which has the rest."""
        each = -(-n // len(self.pes))
        counts = [min(each, n - i * each) for i in range(len(self.pes))]
        return {pe: count for pe, count in zip(self.pes, counts, strict=True) if count > 0}

    def check(self, before: list[Shards], after: list[Shards], op: str) -> None:
        """What the tensors have become is what NumPy makes of what they were: reductions up to their rounding."""
        if self.name in PATTERN_OF:
            reduced = assert_reduced if self.name == "ring_allreduce" else assert_all_reduced
            reduced(arrays(after[0]), arrays(before[0]), op)
            return
        assert_collective(self.name, before, after, op, dict(self.passed))


def arrays(tensor: Shards) -> list[Array]:
    """The data of every PE."""
    return [x for _, x in tensor.values()]


def _where_ranks_are_pes() -> list[World]:
    """On one SIP of two cubes, on two such SIPs, and where ranks are SIPs."""
    worlds = [World(name=name, ranks=n) for name in RINGS_AND_TREES for n in (1, 2, 3, 8, 16)]
    worlds += [World(name=name, ranks=20, machine=(2,)) for name in RINGS_AND_TREES]
    worlds += [World(name=name, ranks=3, machine=(3,)) for name in RINGS_AND_TREES]
    worlds += [World(name=name, ranks=4, pattern="ring_1d_unidir") for name in RINGS_AND_TREES[:2]]
    worlds += [World(name="mesh_allreduce", ranks=n) for n in (1, 4, 9, 16)]
    worlds += [World(name="mesh_allreduce", ranks=6, passed=(("kernel_h", h), ("kernel_w", 6 // h))) for h in (1, 2, 6)]
    worlds += [World(name="mesh_allreduce", ranks=6, machine=(6, "2x1", 2, "torus_2d", "3x2"))]
    worlds += [World(name="hierarchical_allreduce", ranks=n) for n in (2, 5, 8, 16)]
    worlds += [World(name="hierarchical_allreduce", ranks=32, machine=(2,))]
    return worlds


RINGS_AND_TREES = ("ring_allreduce", "ring_allreduce_rs_ag", "tree_allreduce")
FABRICS: tuple[tuple[int, str, str], ...] = (
    (1, "ring_1d", ""),
    (2, "ring_1d", ""),
    (3, "ring_1d_unidir", ""),
    (4, "torus_2d", "2x2"),
    (6, "mesh_2d_no_wrap", "3x2"),
    (4, "fully_connected", ""),
    (3, "switch", ""),
)


def _where_ranks_are_sips() -> list[World]:
    """On every kind of fabric between SIPs."""
    worlds: list[World] = []
    for sips, fabric, grid in FABRICS:
        tiny, cubes = (sips, "2x1", 1, fabric, grid), (sips, "2x2", 1, fabric, grid)
        worlds.append(World(name="intercube_allreduce", ranks=sips, machine=cubes, mapper="pe0_of_every_cube"))
        if fabric in ("ring_1d", "torus_2d"):
            worlds.append(World(name="hierarchical_allreduce", ranks=sips, machine=tiny, mapper="all_pes"))
        for name in (*IN_PLACE, *BETWEEN, "barrier", EXCHANGE):
            worlds.append(World(name=name, ranks=sips, machine=tiny, passed=_roots(name, sips)))
    return worlds


def _roots(name: str, ranks: int) -> tuple[tuple[str, Any], ...]:
    if name in ("broadcast", "reduce"):
        return (("root", ranks - 1),)
    return (("dst", ranks - 1), ("src", (ranks - 1) // 2)) if name == "send_recv" else ()


WORLDS = (*_where_ranks_are_pes(), *_where_ranks_are_sips())


def packaged() -> dict[str, AlgorithmConfig]:
    """The algorithms of the packaged file."""
    return {config.name: config for config in load_ccl_config(find_packaged_file()).algorithms}


def as_packaged(config: AlgorithmConfig) -> World:
    """An algorithm as it is configured there, on the packaged machine."""
    spec = compiled().spec
    ranks = spec.num_sips if config.world_size is None else config.world_size
    every = tuple((cube, pe) for cube in range(spec.cubes_per_sip) for pe in range(spec.pes_per_cube))
    return World(
        name=config.module, ranks=ranks, machine=None, mapper=config.mapper, passed=config.passthrough, pes=every
    )


def assert_on_machine(world: World, n: int, dtype: str, op: str = "sum", kinds: Sequence[str] = KINDS) -> None:
    """With each kind of queues the numbers of NumPy, up to rounding, and to the bit those of the mock."""
    run = world.collective(n, dtype, op)
    wanted = run.on_mock()
    world.check(run.tensors, wanted, op)
    for kind in kinds:
        run.kind = kind
        found = run.on_machine()
        world.check(run.tensors, found, op)
        assert_same(found, wanted, kind)


def assert_same(found: list[Shards], wanted: list[Shards], kind: str) -> None:
    """To the bit."""
    assert [list(tensor) for tensor in found] == [list(tensor) for tensor in wanted]
    differ = [
        (i, pe)
        for i, (mine, theirs) in enumerate(zip(found, wanted, strict=True))
        for pe in mine
        if mine[pe][1].tobytes() != theirs[pe][1].tobytes()
    ]
    assert not differ, f"{kind}: tensors and PEs that differ from the mock: {differ}"
