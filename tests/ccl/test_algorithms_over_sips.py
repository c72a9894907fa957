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
    over_sips,
    shards_of,
    small,
    values,
)
from collective_checks import assert_all_reduced, assert_collective
from hypothesis import given
from hypothesis import strategies as st

from covering import covering
from kernbench.ccl.grids import SipGrid
from kernbench.ccl.testing import run_kernel_in_mock
from kernbench.common.errors import InputError
from kernbench.topology.builder import Topology

OWNED = {(0, 0): 5, (0, 3): 1, (1, 2): 700}
"""How many elements of a rank each PE has"""
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


def shards(sips: int, seed: int, dtype: str = "f32", blocks: int = 1) -> Shards:
    return shards_of(sips, OWNED, np.random.default_rng(seed), dtype, blocks)


def assert_on_mock(
    name: str, machine: Topology, tensors: list[Shards], op: str = "sum", dtype: str = "f32", **passed: int
) -> None:
    """In the mock the tensors become what NumPy makes of them."""
    after = over_sips(name, machine, tensors, reduce_op=op, dtype=dtype, **passed).on_mock()
    assert_collective(name, tensors, after, op, passed)


@pytest.mark.parametrize(("over", "op"), covering(FABRICS, ("sum", "avg", "max")))
def test_sip_allreduce(over: tuple[int, str, str], op: str) -> None:
    sips, fabric, grid = over
    tensor = shards(sips, seed=1, dtype="f16")
    assert_on_mock("sip_allreduce", small(sips, fabric=fabric, grid=grid), [tensor], op, "f16")


@fabrics
def test_broadcast_from_any_root(sips: int, fabric: str, grid: str) -> None:
    machine = small(sips, fabric=fabric, grid=grid)
    for root in {0, sips // 2, sips - 1}:
        assert_on_mock("broadcast", machine, [shards(sips, seed=2)], root=root)


@fabrics
@pytest.mark.parametrize("op", ["sum", "avg"])
def test_reduce_leaves_the_others_as_they_were(sips: int, fabric: str, grid: str, op: str) -> None:
    machine = small(sips, fabric=fabric, grid=grid)
    assert_on_mock("reduce", machine, [shards(sips, seed=3)], op, root=sips // 2)


@fabrics
def test_all_gather(sips: int, fabric: str, grid: str) -> None:
    tensors = [shards(sips, seed=4), shards(sips, seed=5, blocks=sips)]
    assert_on_mock("all_gather", small(sips, fabric=fabric, grid=grid), tensors)


@fabrics
@pytest.mark.parametrize("op", ["sum", "avg"])
def test_reduce_scatter(sips: int, fabric: str, grid: str, op: str) -> None:
    tensors = [shards(sips, seed=6, blocks=sips), shards(sips, seed=7)]
    assert_on_mock("reduce_scatter", small(sips, fabric=fabric, grid=grid), tensors, op)


@pytest.mark.parametrize("name", ["sip_allreduce", "reduce_scatter"])
@fabrics
def test_pes_far_from_the_memory_have_the_same_results(name: str, sips: int, fabric: str, grid: str) -> None:
    tensors = [shards(sips, seed=12, blocks=1 if name == "sip_allreduce" else sips)]
    tensors += [shards(sips, seed=13)] if name == "reduce_scatter" else []
    assert_on_mock(name, small(sips, fabric=fabric, grid=grid), tensors, "avg", far=True)


@pytest.mark.parametrize("name", ["all_to_all", "exchange"])
@fabrics
def test_all_to_all(name: str, sips: int, fabric: str, grid: str) -> None:
    tensors = [shards(sips, seed=seed, blocks=sips) for seed in (8, 9)]
    assert_on_mock(name, small(sips, fabric=fabric, grid=grid), tensors)


def test_send_and_receive_by_the_direct_queue() -> None:
    assert_on_mock("send_recv", small(5), [shards(5, seed=10)], src=1, dst=4)


@fabrics
def test_barrier(sips: int, fabric: str, grid: str) -> None:
    assert_on_mock("barrier", small(sips, fabric=fabric, grid=grid), [shards(sips, seed=11)])


def test_a_rank_that_does_not_exist() -> None:
    with pytest.raises(InputError, match=r"root=2: there are ranks 0\.\.1"):
        over_sips("broadcast", small(2), [shards(2, seed=12)], root=2)


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


def assert_all_have(collective: Collective, op: str = "sum") -> None:
    (before,), (after,) = collective.tensors, collective.on_mock()
    assert_all_reduced([x for _, x in after.values()], [x for _, x in before.values()], op)


@fabrics
def test_intercube_allreduce_on_every_fabric(sips: int, fabric: str, grid: str) -> None:
    assert_all_have(intercube(sips, fabric=fabric, grid=grid))


@pytest.mark.parametrize("cubes", ["1x1", "1x3", "3x1", "3x2", "4x4"])
def test_intercube_allreduce_on_any_mesh_of_cubes(cubes: str) -> None:
    assert_all_have(intercube(2, cubes))


@pytest.mark.parametrize("root_cube", range(6))
def test_sips_meet_at_any_root_cube(root_cube: int) -> None:
    assert_all_have(intercube(2, "3x2", root_cube=root_cube))


@pytest.mark.parametrize(("dtype", "op"), covering(("f16", "bf16", "i32"), ("avg", "max", "min")))
def test_intercube_allreduce_of_other_kinds(dtype: str, op: str) -> None:
    assert_all_have(intercube(3, "3x2", dtype=dtype, op=op, n=5000), op)


def test_the_known_example() -> None:
    """2 SIPs x 16 cubes, every cube of rank r starting from r+1: 16 (1 + 2) = 48."""
    chosen = algorithm("intercube_allreduce", "intercube", 2, "pe0_of_every_cube")
    run = all_reduce(chosen, small(2, "4x4", 1), lambda pe: np.full(16, pe[0] + 1, np.float32))
    (after,) = run.on_mock()
    assert all(np.all(x == 48) for _, x in after.values())


def test_a_root_cube_that_does_not_exist() -> None:
    with pytest.raises(InputError, match=r"root_cube=4: a SIP has cubes 0\.\.3"):
        intercube(2, root_cube=4)


@pytest.mark.parametrize(("sips", "cubes"), covering([1, 5, 2], ["2x1", "1x1", "3x2"]))
def test_hierarchical_allreduce_over_every_pe(sips: int, cubes: str) -> None:
    chosen = algorithm("hierarchical_allreduce", "hierarchical_3level", sips, "all_pes")
    machine = small(sips, cubes)
    run = all_reduce(chosen, machine, rows(70), "avg")
    assert len(run.pes) == machine.spec.num_pes
    assert_all_have(run, "avg")


@pytest.mark.parametrize("name", ["sip_allreduce", "intercube_allreduce"])
def test_by_the_short_way(name: str) -> None:
    module = importlib.import_module(f"kernbench.ccl.algorithms.{name}")
    inputs = [values(np.random.default_rng(rank), 100, "f32") for rank in range(16)]
    pattern = "intercube" if name.startswith("intercube") else "none"
    outputs = run_kernel_in_mock(module.kernel, 16, pattern, inputs, algo_module=module, ranks_are_sips=True)
    assert_all_reduced(outputs, inputs)


@given(
    fabric=st.sampled_from(("ring_1d", "torus_2d", "mesh_2d_no_wrap")),
    grid=st.sampled_from(((2, 1), (2, 2), (3, 2), (3, 3))),
    n=st.integers(1, 700),
    n_slots=st.integers(1, 3),
)
def test_intercube_never_waits_in_a_circle(fabric: str, grid: tuple[int, int], n: int, n_slots: int) -> None:
    """Up to 44 messages, of 64 bytes."""
    w, h = grid
    machine = small(w * h, "2x1", 1, fabric, "" if fabric == "ring_1d" else f"{w}x{h}")
    rng = np.random.default_rng(n)
    inputs = {(sip, cube, 0): values(rng, n, "i32") for sip in range(w * h) for cube in range(2)}
    chosen = algorithm(
        "intercube_allreduce", "intercube", w * h, mapper="pe0_of_every_cube", n_slots=n_slots, chunk_size=64
    )
    (after,) = all_reduce(chosen, machine, lambda pe: inputs[pe]).on_mock()
    assert_all_reduced([x for _, x in after.values()], list(inputs.values()))


@given(
    fabric=st.sampled_from(("torus_2d", "mesh_2d_no_wrap")),
    grid=st.sampled_from(((2, 2), (3, 2), (2, 3), (3, 3))),
    n=st.integers(1, 900),
    n_slots=st.integers(1, 3),
    op=st.sampled_from(("sum", "avg")),
)
def test_sips_in_a_grid_never_wait_in_a_circle(
    fabric: str, grid: tuple[int, int], n: int, n_slots: int, op: str
) -> None:
    w, h = grid
    tensor = shards_of(w * h, {(0, 0): n, (1, 0): 5}, np.random.default_rng(n), "i32")
    run = over_sips(
        "sip_allreduce", small(w * h, "2x1", 1, fabric, f"{w}x{h}"), [tensor], dtype="i32", reduce_op=op, chunk_size=64
    )
    run.n_slots = n_slots
    assert_collective("sip_allreduce", [tensor], run.on_mock(), op)


@given(
    kind=st.sampled_from(("torus_2d", "mesh_2d_no_wrap")),
    w=st.integers(2, 5),
    h=st.integers(2, 5),
    n=st.integers(1, 10**6),
    chunk=st.integers(1, 4096),
)
def test_pieces_fit_messages_and_are_as_many_for_every_place(kind: str, w: int, h: int, n: int, chunk: int) -> None:
    pieces = SipGrid(w * h, kind, w, h).pieces(n, chunk)
    assert 1 <= pieces <= n
    assert -(-n // pieces) <= chunk
    assert pieces % (w * h) == 0 or pieces == n
