"""The tensor-parallel benches over several SIPs."""

from __future__ import annotations

from functools import cache

import pytest

from compiled import compiled
from covering import covering
from kernbench.engine.engine import GraphEngine
from kernbench.runtime_api.bench_registry import load_bench
from kernbench.runtime_api.bench_runner import BenchResult, run_bench

SMALL = ("sip.cube_mesh.w=2", "sip.cube_mesh.h=1", "cube.pe_layout.pe_per_corner=1", "cube.hbm.slices=4")
SIZES = {
    "tp-mlp": ("bench.tokens=3", "bench.hidden=20", "bench.ffn=24", "bench.cubes=2"),
    "tp-block": ("bench.tokens=3", "bench.hidden=16", "bench.heads=4", "bench.ffn=24", "bench.cubes=2"),
}


@cache
def run(name: str, sips: int, *more: str, verify: bool = True) -> BenchResult:
    return run_bench(
        topology=compiled(*SMALL, f"system.sips.count={sips}"),
        bench_fn=load_bench(name),
        params=[*SIZES[name], *more],
        verify=verify,
        engine_factory=lambda topology, device: GraphEngine(topology, enable_data=verify),
    )


@pytest.mark.parametrize(("name", "over"), covering(["tp-block", "tp-mlp"], ((2, "f32"), (4, "f16"))))
def test_every_rank_has_the_right_numbers_and_the_same(name: str, over: tuple[int, str]) -> None:
    sips, dtype = over
    result = run(name, sips, f"bench.dtype={dtype}")
    assert [str(each) for each in result.comparisons if not each.passed] == []
    assert len(result.comparisons) == sips
    assert (result.cleanup.leaked, result.cleanup.left) == ((), ())


@pytest.mark.parametrize("name", SIZES)
def test_time_does_not_depend_on_numbers(name: str) -> None:
    assert run(name, 2, "bench.dtype=f32").traces == run(name, 2, "bench.dtype=f32", verify=False).traces


@pytest.mark.parametrize(("name", "halves"), [("tp-mlp", 1), ("tp-block", 2)])
def test_one_all_reduce_for_each_half_of_a_block(name: str, halves: int) -> None:
    traces = run(name, 2, "bench.dtype=f32", verify=False).traces
    assert sum(each.name == "all_reduce" for each in traces) == 2 * halves


def test_as_many_tokens_as_cubes() -> None:
    # A row on PE 0 of each cube, which the packaged default of ccl.yaml would add up over cubes too.
    assert run("tp-mlp", 2, "bench.tokens=2").verified


def test_all_keys() -> None:
    assert run("tp-block", 2, "bench.causal=false").verified


def test_sizes_that_cannot_be_split() -> None:
    result = run("tp-mlp", 2, "bench.ffn=25")
    assert "out_features=25 cannot be split evenly over 2 ranks" in str(result.error)
