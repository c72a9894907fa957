"""All-reduce where ranks are PEs: numbers against NumPy, in the mock."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
from algorithm_support import assert_reduced, assert_same_bits, values
from hypothesis import given
from hypothesis import strategies as st

from covering import covering
from kernbench.ccl.testing import run_kernel_in_mock
from kernbench.common.errors import InputError, IpcqDeadlock, UnknownNameError

TOPOLOGY = {
    "ring_allreduce": "ring_1d",
    "ring_allreduce_rs_ag": "ring_1d",
    "mesh_allreduce": "torus_2d",
    "tree_allreduce": "tree_binary",
    "hierarchical_allreduce": "hierarchical_3level",
}
SAME_BITS = [name for name in TOPOLOGY if name != "ring_allreduce"]
RANKS = {"mesh_allreduce": (1, 4, 9), "hierarchical_allreduce": (1, 2, 5, 8)}


def module(name: str) -> Any:
    return importlib.import_module(f"kernbench.ccl.algorithms.{name}")


def run(name: str, inputs: list[Any], pes_per_cube: int = 0, **config: Any) -> list[Any]:
    m = module(name)
    return run_kernel_in_mock(
        m.kernel, len(inputs), TOPOLOGY[name], inputs, algo_module=m, pes_per_cube=pes_per_cube, **config
    )


def inputs_of(ranks: int, n: int, dtype: str = "f32") -> list[Any]:
    rng = np.random.default_rng((ranks, n))
    return [values(rng, n, dtype) for _ in range(ranks)]


CASES = [(name, ranks) for name in TOPOLOGY for ranks in RANKS.get(name, (1, 2, 3, 7))]


@pytest.mark.parametrize(("case", "n", "dtype"), covering(CASES, (1, 8, 1000), ("f32", "f16", "bf16", "i32")))
def test_sums_are_those_of_numpy(case: tuple[str, int], n: int, dtype: str) -> None:
    name, ranks = case
    inputs = inputs_of(ranks, n, dtype)
    assert_reduced(run(name, inputs), inputs, "sum")


@pytest.mark.parametrize(
    ("name", "dtype", "op"), covering(TOPOLOGY, ("f32", "f16", "bf16", "i32", "i8"), ("max", "min", "avg"))
)
def test_the_other_reductions(name: str, dtype: str, op: str) -> None:
    inputs = inputs_of(4, 77, dtype)
    assert_reduced(run(name, inputs, reduce_op=op), inputs, op)


@pytest.mark.parametrize("name", list(TOPOLOGY))
def test_a_tensor_of_many_slots(name: str) -> None:
    inputs = inputs_of(4, 65536 + 3)
    outputs = run(name, inputs, pes_per_cube=4)
    assert_reduced(outputs, inputs, "sum")


@pytest.mark.parametrize("name", SAME_BITS)
def test_all_ranks_end_with_the_same_bits(name: str) -> None:
    assert_same_bits(run(name, inputs_of(4, 3001, "f16")))


@pytest.mark.parametrize(("name", "n_slots"), covering(TOPOLOGY, (2, 3, 16)))
def test_slots_change_nothing_in_the_result(name: str, n_slots: int) -> None:
    inputs = inputs_of(4, 500)
    few = run(name, inputs, n_slots=n_slots, slot_size=64)
    usual = run(name, inputs, slot_size=64)
    for a, b in zip(few, usual, strict=True):
        assert a.tobytes() == b.tobytes()


def test_a_ring_that_forwards_slots_needs_two() -> None:
    def forwards(t_ptr: int, n: int, *, tl: Any) -> None:
        tl.send("E", tl.load(t_ptr, n, "f32"))
        for _ in range(2):
            tl.send("E", tl.recv("W", n, "f32"))
        tl.recv("W", n, "f32")

    with pytest.raises(IpcqDeadlock, match="n_slots=1, slots that are forwarded without a copy cannot move"):
        run_kernel_in_mock(forwards, 3, "ring_1d", inputs_of(3, 8), (8,), n_slots=1)


@pytest.mark.parametrize("name", list(TOPOLOGY))
def test_one_slot_is_enough(name: str) -> None:
    inputs = inputs_of(4, 100)
    assert_reduced(run(name, inputs, n_slots=1, slot_size=64), inputs, "sum")


@pytest.mark.parametrize("name", list(TOPOLOGY))
def test_a_tensor_of_several_segments(name: str) -> None:
    inputs = inputs_of(4, 1000)
    assert_reduced(run(name, inputs, slot_size=64, scratch_bytes=4096), inputs, "sum")


def test_a_rectangular_mesh() -> None:
    inputs = inputs_of(6, 1000)
    for w, h in ((3, 2), (2, 3), (6, 1), (1, 6)):
        outputs = run("mesh_allreduce", inputs, kernel_w=w, kernel_h=h)
        assert_reduced(outputs, inputs, "sum")
        assert_same_bits(outputs)


def test_one_pe_of_every_rank_by_cubes() -> None:
    inputs = inputs_of(12, 33)
    for name in ("ring_allreduce_rs_ag", "tree_allreduce", "hierarchical_allreduce"):
        assert_reduced(run(name, inputs, pes_per_cube=4), inputs, "sum")


@given(
    name=st.sampled_from([n for n in TOPOLOGY if n != "mesh_allreduce"]),
    ranks=st.integers(1, 9),
    n=st.integers(1, 200),
    slot=st.sampled_from([64, 128]),
    n_slots=st.integers(2, 5),
)
def test_any_ranks_sizes_and_slots(name: str, ranks: int, n: int, slot: int, n_slots: int) -> None:
    inputs = inputs_of(ranks, n, "i32")
    assert_reduced(run(name, inputs, n_slots=n_slots, slot_size=slot), inputs, "sum")


def test_chunks_smaller_than_a_slot() -> None:
    inputs = inputs_of(3, 100)
    assert_reduced(run("ring_allreduce_rs_ag", inputs, chunk_size=16), inputs, "sum")


@pytest.mark.parametrize("chunk_size", [2, 8192])
def test_a_chunk_has_an_element_and_fits_a_slot(chunk_size: int) -> None:
    with pytest.raises(InputError, match="slot_size 4096"):
        run("ring_allreduce", inputs_of(2, 8), chunk_size=chunk_size)


def test_an_unknown_reduction_lists_those_that_exist() -> None:
    with pytest.raises(UnknownNameError, match="sum, max, min, avg"):
        run("tree_allreduce", inputs_of(2, 8), reduce_op="prod")


@pytest.mark.parametrize("name", list(TOPOLOGY))
def test_kernel_args_need_no_more_than_a_size_and_ranks(name: str) -> None:
    assert module(name).kernel_args(n_elem=8, world_size=4)
