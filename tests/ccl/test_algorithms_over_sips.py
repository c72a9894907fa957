"""Collectives over SIPs and over the cubes of SIPs, in the mock."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
from algorithm_support import (
    Collective,
    Shards,
    algorithm,
    all_reduce,
    assert_reduced,
    assert_same_bits,
    expected,
    of_pe,
    over_sips,
    small,
    values,
)

from kernbench.ccl.testing import run_kernel_in_mock
from kernbench.common.errors import InputError

PES = ((0, 0), (0, 3), (1, 2))
SIZES = (5, 1, 700)
FABRICS = [
    (1, "ring_1d", ""),
    (2, "ring_1d", ""),
    (5, "ring_1d", ""),
    (3, "ring_1d_unidir", ""),
    (4, "torus_2d", "2x2"),
    (6, "torus_2d", "3x2"),
    (6, "mesh_2d_no_wrap", "3x2"),
    (4, "fully_connected", ""),
    (3, "switch", ""),
]
fabrics = pytest.mark.parametrize(("sips", "fabric", "grid"), FABRICS)


def shards(sips: int, seed: int, dtype: str = "f32", blocks: int = 1) -> tuple[Shards, list[int]]:
    """Shards of different sizes for ``PES``, ``blocks`` times as large as ``SIZES``, and where each begins."""
    rng = np.random.default_rng(seed)
    found: Shards = {}
    offsets: list[int] = []
    for sip in range(sips):
        at = 64
        offsets = []
        for (cube, pe), n in zip(PES, SIZES, strict=True):
            array = values(rng, (blocks, n), dtype)
            found[sip, cube, pe] = (at, array)
            offsets.append(at)
            at += array.nbytes
    return found, offsets


def in_place(name: str, machine: Any, tensor: Shards, offsets: list[int], **config: Any) -> Collective:
    table = tuple(v for (cube, pe), at, n in zip(PES, offsets, SIZES, strict=True) for v in (cube, pe, at, n))
    return over_sips(name, machine, PES, [tensor], table, **config)


def between(name: str, machine: Any, source: Shards, target: Shards, **config: Any) -> Collective:
    """A collective from one tensor to another; blocks of a rank lie one behind the other in each shard."""
    table: list[int] = []
    for (cube, pe), n in zip(PES, SIZES, strict=True):
        table += [cube, pe, source[0, cube, pe][0], n, target[0, cube, pe][0], 4 * n]
    return over_sips(name, machine, PES, [source, target], tuple(table), **config)


@fabrics
@pytest.mark.parametrize("op", ["sum", "avg", "max"])
def test_sip_allreduce(sips: int, fabric: str, grid: str, op: str) -> None:
    tensor, offsets = shards(sips, seed=1, dtype="f16")
    machine = small(sips, fabric=fabric, grid=grid)
    (after,) = in_place("sip_allreduce", machine, tensor, offsets, dtype="f16", reduce_op=op).on_mock()
    for pe in PES:
        assert_reduced(of_pe(after, pe), of_pe(tensor, pe), op)
        assert_same_bits(of_pe(after, pe))


@fabrics
def test_broadcast_from_any_root(sips: int, fabric: str, grid: str) -> None:
    tensor, offsets = shards(sips, seed=2)
    root = sips - 1
    (after,) = in_place("broadcast", small(sips, fabric=fabric, grid=grid), tensor, offsets, root=root).on_mock()
    for pe in PES:
        for x in of_pe(after, pe):
            np.testing.assert_array_equal(x, of_pe(tensor, pe)[root])


@fabrics
@pytest.mark.parametrize("op", ["sum", "avg"])
def test_reduce_leaves_the_others_as_they_were(sips: int, fabric: str, grid: str, op: str) -> None:
    tensor, offsets = shards(sips, seed=3)
    root = sips // 2
    machine = small(sips, fabric=fabric, grid=grid)
    (after,) = in_place("reduce", machine, tensor, offsets, root=root, reduce_op=op).on_mock()
    for pe in PES:
        before, now = of_pe(tensor, pe), of_pe(after, pe)
        assert_reduced([now[root]], before, op)
        for rank in set(range(sips)) - {root}:
            np.testing.assert_array_equal(now[rank], before[rank])


@fabrics
def test_all_gather(sips: int, fabric: str, grid: str) -> None:
    source, _ = shards(sips, seed=4)
    target, _ = shards(sips, seed=5, blocks=sips)
    _, after = between("all_gather", small(sips, fabric=fabric, grid=grid), source, target).on_mock()
    for pe in PES:
        for x in of_pe(after, pe):
            np.testing.assert_array_equal(x, np.concatenate(of_pe(source, pe)))


@fabrics
@pytest.mark.parametrize("op", ["sum", "avg"])
def test_reduce_scatter(sips: int, fabric: str, grid: str, op: str) -> None:
    source, _ = shards(sips, seed=6, blocks=sips)
    target, _ = shards(sips, seed=7)
    machine = small(sips, fabric=fabric, grid=grid)
    _, after = between("reduce_scatter", machine, source, target, reduce_op=op).on_mock()
    for pe in PES:
        want = expected(of_pe(source, pe), op)
        for rank, x in enumerate(of_pe(after, pe)):
            np.testing.assert_allclose(x[0], want[rank], rtol=1e-5, atol=1e-5)


@fabrics
def test_all_to_all(sips: int, fabric: str, grid: str) -> None:
    source, _ = shards(sips, seed=8, blocks=sips)
    target, _ = shards(sips, seed=9, blocks=sips)
    _, after = between("all_to_all", small(sips, fabric=fabric, grid=grid), source, target).on_mock()
    for pe in PES:
        blocks = of_pe(source, pe)
        for rank, x in enumerate(of_pe(after, pe)):
            np.testing.assert_array_equal(x, np.stack([block[rank] for block in blocks]))


def test_send_and_receive_by_the_direct_queue() -> None:
    tensor, offsets = shards(5, seed=10)
    (after,) = in_place("send_recv", small(5), tensor, offsets, src=1, dst=4).on_mock()
    for pe in PES:
        before, now = of_pe(tensor, pe), of_pe(after, pe)
        for rank in range(5):
            np.testing.assert_array_equal(now[rank], before[1 if rank == 4 else rank])


@fabrics
def test_barrier(sips: int, fabric: str, grid: str) -> None:
    tensor, _ = shards(sips, seed=11)
    machine = small(sips, fabric=fabric, grid=grid)
    over_sips("barrier", machine, PES, [tensor], ()).on_mock()


def test_a_rank_that_does_not_exist() -> None:
    tensor, offsets = shards(2, seed=12)
    with pytest.raises(InputError, match=r"root=2: there are ranks 0\.\.1"):
        in_place("broadcast", small(2), tensor, offsets, root=2)


def rows(n: int, dtype: str = "f32") -> Any:
    rng = np.random.default_rng(n)
    return lambda pe: values(rng, n, dtype)


def intercube(
    sips: int,
    cubes: str = "2x2",
    fabric: str = "ring_1d",
    grid: str = "",
    n: int = 40,
    dtype: str = "f32",
    **config: Any,
) -> Collective:
    op = config.pop("op", "sum")
    chosen = algorithm("intercube_allreduce", "intercube", sips, "pe0_of_every_cube", **config)
    return all_reduce(chosen, small(sips, cubes, 1, fabric, grid), rows(n, dtype), op)


def assert_all_reduced(collective: Collective, op: str = "sum") -> None:
    (before,), (after,) = collective.tensors, collective.on_mock()
    outputs = [x for _, x in after.values()]
    assert_reduced(outputs, [x for _, x in before.values()], op)
    assert_same_bits(outputs)


@fabrics
def test_intercube_allreduce_on_every_fabric(sips: int, fabric: str, grid: str) -> None:
    assert_all_reduced(intercube(sips, fabric=fabric, grid=grid))


@pytest.mark.parametrize("cubes", ["1x1", "1x3", "3x1", "3x2", "4x4"])
def test_intercube_allreduce_on_any_mesh_of_cubes(cubes: str) -> None:
    assert_all_reduced(intercube(2, cubes))


@pytest.mark.parametrize("root_cube", range(6))
def test_sips_meet_at_any_root_cube(root_cube: int) -> None:
    assert_all_reduced(intercube(2, "3x2", root_cube=root_cube))


@pytest.mark.parametrize("op", ["avg", "max", "min"])
@pytest.mark.parametrize("dtype", ["f16", "bf16", "i32"])
def test_intercube_allreduce_of_other_kinds(dtype: str, op: str) -> None:
    assert_all_reduced(intercube(3, "3x2", dtype=dtype, op=op, n=5000), op)


def test_the_known_example() -> None:
    """2 SIPs x 16 cubes, every cube of rank r starting from r+1: 16 (1 + 2) = 48."""
    chosen = algorithm("intercube_allreduce", "intercube", 2, "pe0_of_every_cube")
    run = all_reduce(chosen, small(2, "4x4", 1), lambda pe: np.full(16, pe[0] + 1, np.float32))
    (after,) = run.on_mock()
    assert all(np.all(x == 48) for _, x in after.values())


def test_a_root_cube_that_does_not_exist() -> None:
    with pytest.raises(InputError, match=r"root_cube=4: a SIP has cubes 0\.\.3"):
        intercube(2, root_cube=4)


@pytest.mark.parametrize("sips", [1, 2, 5])
@pytest.mark.parametrize("cubes", ["1x1", "2x1", "3x2"])
def test_hierarchical_allreduce_over_every_pe(sips: int, cubes: str) -> None:
    chosen = algorithm("hierarchical_allreduce", "hierarchical_3level", sips, "all_pes")
    machine = small(sips, cubes)
    run = all_reduce(chosen, machine, rows(70), "avg")
    assert len(run.pes) == machine.spec.num_pes
    assert_all_reduced(run, "avg")


@pytest.mark.parametrize("name", ["sip_allreduce", "intercube_allreduce"])
def test_by_the_short_way(name: str) -> None:
    module = importlib.import_module(f"kernbench.ccl.algorithms.{name}")
    inputs = [values(np.random.default_rng(rank), 100, "f32") for rank in range(16)]
    pattern = "intercube" if name.startswith("intercube") else "none"
    outputs = run_kernel_in_mock(module.kernel, 16, pattern, inputs, algo_module=module)
    assert_reduced(outputs, inputs, "sum")
    assert_same_bits(outputs)
