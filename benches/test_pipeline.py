"""The tile pipeline: one large product, and the sweep of eight shapes in three stagings."""

from __future__ import annotations

import pytest

from kernbench.engine.engine import GraphEngine
from kernbench.runtime_api.bench_registry import load_bench
from kernbench.runtime_api.bench_runner import BenchResult, run_bench
from kernbench.topology.builder import Topology

VARIANTS = ("ref_ref", "load_ref", "load_load")
SHAPES = (
    (16, 32, 16),
    (32, 64, 32),
    (64, 64, 64),
    (32, 512, 32),
    (128, 128, 128),
    (32, 256, 256),
    (256, 256, 256),
    (512, 512, 512),
)


def matmul(topology: Topology, shape: tuple[int, int, int], variant: str, verify: bool) -> BenchResult:
    m, k, n = shape
    return run_bench(
        topology=topology,
        bench_fn=load_bench("matmul-composite"),
        params=[f"bench.m={m}", f"bench.k={k}", f"bench.n={n}", f"bench.variant={variant}"],
        verify=verify,
        engine_factory=lambda topology, _: GraphEngine(topology, enable_data=verify),
    )


@pytest.mark.parametrize("verify", [False, True], ids=["timing", "verified"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_512_cubed(benchmark, topology: Topology, variant: str, verify: bool) -> None:
    done = benchmark.pedantic(lambda: matmul(topology, (512, 512, 512), variant, verify), rounds=3, warmup_rounds=1)
    benchmark.extra_info |= {"sim_ns": done.sim_ns, "events": done.engine.n_events, "tiles": 2048}


@pytest.mark.parametrize("verify", [False, True], ids=["timing", "verified"])
def test_24_runs(benchmark, topology: Topology, verify: bool) -> None:
    def sweep() -> int:
        return sum(matmul(topology, shape, variant, verify).status == "ok" for shape in SHAPES for variant in VARIANTS)

    assert benchmark.pedantic(sweep, rounds=2) == 24
