"""In which order collectives add, to the bit: f32 sums in NumPy by what each algorithm says of itself.

Adding two numbers gives the same whichever is first; adding three does not. Data are such that any other order shows.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import pytest
from algorithm_support import Array, Shards, algorithm, all_reduce, over_sips, small

from kernbench.ccl.testing import run_kernel_in_mock
from kernbench.kernels.shares import part

N = 60


def data(ranks: int) -> list[Array]:
    """Numbers of many sizes, so that nearly every sum is rounded."""
    rng = np.random.default_rng(ranks)
    return [(rng.standard_normal(N) * 10.0 ** rng.integers(-2, 3, N)).astype(np.float32) for _ in range(ranks)]


def chain(xs: list[Array]) -> Array:
    """One after another."""
    return reduce(add, xs)


def by_tree(xs: list[Array], at: int = 0) -> Array:
    """Own, then the left child's, then the right child's."""
    total = xs[at]
    for child in (2 * at + 1, 2 * at + 2):
        if child < len(xs):
            total = total + by_tree(xs, child)
    return total


def from_both_sides(xs: list[Array]) -> Array:
    """Place 0 of a ring: own, then what has come from places 1 … n / 2 (the last of them first), then from the rest."""
    middle = len(xs) // 2
    total = xs[0]
    if len(xs) > 1:
        total = total + chain(xs[1 : middle + 1][::-1])
    if len(xs) > 2:
        total = total + chain(xs[middle + 1 :])
    return total


def by_parts(xs: list[Array]) -> Array:
    """Part p starts at rank p and goes round: p-1 is the last to add."""
    n = len(xs)
    total = np.empty_like(xs[0])
    for p in range(n):
        first, count = part(N, n, p)
        of_part = slice(first, first + count)
        total[of_part] = chain([xs[(p + i) % n][of_part] for i in range(n)])
    return total


def run(name: str, topology: str, inputs: list[Array], pes_per_cube: int = 1) -> list[Array]:
    module = importlib.import_module(f"kernbench.ccl.algorithms.{name}")
    return run_kernel_in_mock(
        module.kernel, len(inputs), topology, inputs, algo_module=module, pes_per_cube=pes_per_cube
    )


def assert_bits(outputs: list[Array], wanted: list[Array]) -> None:
    assert [x.tobytes() for x in outputs] == [x.tobytes() for x in wanted]


def test_the_data_tell_orders_apart() -> None:
    """Else nothing here could fail."""
    a, b, c = data(3)
    assert len({((a + b) + c).tobytes(), ((a + c) + b).tobytes(), ((b + c) + a).tobytes()}) == 3


@pytest.mark.parametrize("ranks", [2, 3, 4, 6, 7])
def test_a_tree_adds_its_left_child_first(ranks: int) -> None:
    inputs = data(ranks)
    assert_bits(run("tree_allreduce", "tree_binary", inputs), [by_tree(inputs)] * ranks)


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_every_rank_of_a_plain_ring_adds_what_comes(ranks: int) -> None:
    """Its own, then that of the rank before it, then that of the one before."""
    inputs = data(ranks)
    wanted = [chain([inputs[(rank - i) % ranks] for i in range(ranks)]) for rank in range(ranks)]
    assert_bits(run("ring_allreduce", "ring_1d", inputs), wanted)


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_a_part_of_a_ring_goes_round_from_its_rank(ranks: int) -> None:
    inputs = data(ranks)
    assert_bits(run("ring_allreduce_rs_ag", "ring_1d", inputs), [by_parts(inputs)] * ranks)


@pytest.mark.parametrize(("pes", "ranks"), [(3, 3), (4, 4), (8, 8)])
def test_a_cube_adds_what_comes_from_the_east_first(pes: int, ranks: int) -> None:
    inputs = data(ranks)
    outputs = run("hierarchical_allreduce", "hierarchical_3level", inputs, pes_per_cube=pes)
    assert_bits(outputs, [from_both_sides(inputs)] * ranks)


def test_the_levels_of_a_hierarchy_follow_each_other() -> None:
    """PE 0 of a cube: those of its cube; of cube 0: then the other cubes; of SIP 0: then the other SIPs, as a tree."""
    machine = small(3, "3x1", 1)
    inputs = iter(data(36))
    rows = {(sip, cube, pe): next(inputs) for sip in range(3) for cube in range(3) for pe in range(4)}
    chosen = algorithm("hierarchical_allreduce", "hierarchical_3level", 36, "all_pes")
    (found,) = all_reduce(chosen, machine, lambda pe: rows[pe]).on_mock()

    def of_cube(sip: int, cube: int) -> list[Array]:
        return [rows[sip, cube, pe] for pe in range(4)]

    def of_sip(sip: int) -> Array:
        cubes = [from_both_sides(of_cube(sip, cube)) for cube in (1, 2)]
        return from_both_sides(of_cube(sip, 0)) + cubes[0] + cubes[1]

    total = by_tree([of_sip(sip) for sip in range(3)])
    assert_bits([x for _, x in found.values()], [total] * 36)


def test_cubes_add_rows_from_the_west_and_the_last_column_from_the_north() -> None:
    w, h = 3, 2
    inputs = data(w * h)
    chosen = algorithm("intercube_allreduce", "intercube", 1, mapper="pe0_of_every_cube", root_cube=1)
    (found,) = all_reduce(chosen, small(1, f"{w}x{h}", 1), lambda pe: inputs[pe[1]]).on_mock()
    north = chain([inputs[2], chain([inputs[1], inputs[0]])])
    south = chain([inputs[5], chain([inputs[4], inputs[3]]), north])
    assert_bits([x for _, x in found.values()], [south] * (w * h))


def over_ring(name: str, inputs: list[Array], **config: Any) -> list[Array]:
    """A collective of one PE of each SIP: what each holds then."""
    shards: Shards = {(sip, 0, 0): (0, x.reshape(1, -1)) for sip, x in enumerate(inputs)}
    (found,) = over_sips(name, small(len(inputs), "1x1", 1), [shards], **config).on_mock()
    return [x.reshape(-1) for _, x in found.values()]


@pytest.mark.parametrize("root", [0, 2])
def test_a_reduction_starts_behind_its_root(root: int) -> None:
    inputs = data(4)
    wanted = list(inputs)
    wanted[root] = chain([inputs[(root + 1 + i) % 4] for i in range(4)])
    assert_bits(over_ring("reduce", inputs, root=root), wanted)


def test_sips_reduce_by_parts() -> None:
    inputs = data(3)
    assert_bits(over_ring("sip_allreduce", inputs), [by_parts(inputs)] * 3)


@pytest.mark.parametrize("order", [by_tree, from_both_sides, by_parts, chain])
def test_each_order_is_a_sum(order: Callable[[list[Array]], Array]) -> None:
    inputs = data(6)
    np.testing.assert_allclose(order(inputs), np.sum(inputs, axis=0, dtype=np.float64), rtol=1e-4, atol=1e-3)
