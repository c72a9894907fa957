"""Collectives on the machine: the numbers of the mock to the bit, and queues that end empty.

All kinds of queues, types and sizes with each other are in test_full_cross, which is slow.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from algorithm_support import Collective, Shards, algorithm, all_reduce, over_sips, shards_of, small, values
from cross_support import KINDS, WORLDS, World, assert_on_machine, packaged

from covering import covering, slow
from kernbench.ccl.loading import MODULES

PATTERNS = [
    ("ring_allreduce", "ring_1d", 5),
    ("ring_allreduce_rs_ag", "ring_1d", 8),
    ("mesh_allreduce", "torus_2d", 9),
    ("tree_allreduce", "tree_binary", 7),
    ("hierarchical_allreduce", "hierarchical_3level", 16),
]


def assert_as_in_the_mock(run: Collective) -> None:
    wanted, found = run.on_mock(), run.on_machine()
    for before, mine, theirs in zip(run.tensors, wanted, found, strict=True):
        assert list(mine) == list(before) == list(theirs)
        for pe, (_, x) in mine.items():
            assert x.tobytes() == theirs[pe][1].tobytes(), pe


def random(n: int, dtype: str = "f32") -> Any:
    rng = np.random.default_rng(n)
    return lambda pe: values(rng, n, dtype)


@pytest.mark.parametrize(("case", "kind", "n"), covering(PATTERNS, ("tcm", "hbm", "sram"), (100, 1)))
def test_all_reduce_where_ranks_are_pes(case: tuple[str, str, int], n: int, kind: str) -> None:
    name, pattern, ranks = case
    chosen = algorithm(name, pattern, ranks)
    assert_as_in_the_mock(all_reduce(chosen, small(), random(n), "avg", kind=kind))


@pytest.mark.parametrize(("case", "dtype"), covering(PATTERNS, ("f32", "bf16", "i8")))
def test_all_reduce_of_several_messages(case: tuple[str, str, int], dtype: str) -> None:
    name, pattern, ranks = case
    chosen = algorithm(name, pattern, ranks, n_slots=2)
    assert_as_in_the_mock(all_reduce(chosen, small(), random(5000, dtype)))


@pytest.mark.parametrize(
    ("sips", "fabric", "grid", "kind"),
    [
        (2, "ring_1d", "", "tcm"),
        (3, "ring_1d_unidir", "", "hbm"),
        slow(6, "torus_2d", "3x2", "sram"),
        (6, "mesh_2d_no_wrap", "3x2", "hbm"),
        (4, "torus_2d", "2x2", "sram"),
        (3, "switch", "", "tcm"),
    ],
)
def test_intercube_allreduce(sips: int, fabric: str, grid: str, kind: str) -> None:
    chosen = algorithm("intercube_allreduce", "intercube", sips, "pe0_of_every_cube", root_cube=1)
    machine = small(sips, "2x2", 1, fabric, grid)
    assert_as_in_the_mock(all_reduce(chosen, machine, random(1500), kind=kind))


@pytest.mark.parametrize("sips", [1, 3])
def test_hierarchical_allreduce_over_sips(sips: int) -> None:
    chosen = algorithm("hierarchical_allreduce", "hierarchical_3level", sips, "all_pes")
    assert_as_in_the_mock(all_reduce(chosen, small(sips), random(70)))


def shards(sips: int, blocks: int = 1) -> Shards:
    return shards_of(sips, {(0, 0): 3, (1, 2): 1500}, np.random.default_rng(blocks), blocks=blocks)


FABRICS = ((2, "ring_1d", ""), (4, "torus_2d", "2x2"), (3, "fully_connected", ""))


@pytest.mark.parametrize(("name", "over"), covering(("sip_allreduce", "broadcast", "reduce", "send_recv"), FABRICS))
def test_collectives_in_place_over_sips(name: str, over: tuple[int, str, str]) -> None:
    sips, fabric, grid = over
    assert_as_in_the_mock(over_sips(name, small(sips, fabric=fabric, grid=grid), [shards(sips)]))


@pytest.mark.parametrize(
    ("name", "over"), covering(("all_gather", "reduce_scatter", "all_to_all"), (*FABRICS[:2], (3, "switch", "")))
)
def test_collectives_between_two_tensors(name: str, over: tuple[int, str, str]) -> None:
    sips, fabric, grid = over
    many_in, many_out = name != "all_gather", name != "reduce_scatter"
    source, target = shards(sips, sips if many_in else 1), shards(sips, sips if many_out else 1)
    assert_as_in_the_mock(over_sips(name, small(sips, fabric=fabric, grid=grid), [source, target]))


def test_the_cross_has_every_algorithm() -> None:
    """What test_full_cross.py, which is slow, runs."""
    assert {world.name for world in WORLDS} == set(MODULES)
    assert {config.module for config in packaged().values()} <= set(MODULES)


@pytest.mark.parametrize(
    ("world", "kind"),
    [(world, KINDS[at % 3]) for at, world in enumerate({w.name: w for w in WORLDS if 3 <= w.ranks <= 5}.values())],
    ids=str,
)
def test_a_sample_of_the_cross(world: World, kind: str) -> None:
    assert_on_machine(world, 1000, "f16", kinds=[kind])


def test_no_rank_leaves_a_barrier_before_the_last_has_come() -> None:
    """The token of the SIP that comes late is what the others wait for."""
    machine = small(3)
    tensor = shards_of(3, {(0, 0): 3}, np.random.default_rng(0))
    at, _ = tensor[1, 0, 0]
    run = over_sips("barrier", machine, [tensor])
    barrier = run.kernel

    def late(t_ptr: int, *args: Any, tl: Any) -> None:
        if tl.program_id(2) == 1:
            for _ in range(50):
                tl.wait(tl.load(t_ptr + at, 3, "f32"))
            tl.device_print("comes")
        tl.barrier()
        barrier(t_ptr, *args, tl=tl)
        tl.device_print("leaves")

    run.kernel = late
    run.on_machine()
    assert run.engine is not None
    lines = run.engine.printed()
    assert [line.text for line in lines] == ["comes", "leaves", "leaves", "leaves"]
