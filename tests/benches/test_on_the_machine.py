"""The benches on the simulated machine, small enough to be quick."""

from __future__ import annotations

import pytest

import kernbench.benches
import kernbench.components
from kernbench.runtime_api.bench_loader import load_bench
from kernbench.runtime_api.bench_runner import run_bench
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology.builder import resolve_topology

SIZES = {
    "gemm-single-pe": ("bench.m=96", "bench.k=128", "bench.n=64"),
    "qkv-gemm": ("bench.m=32", "bench.width=128", "bench.head_dim=64"),
    "qkv-gemm-multi-pe": ("bench.m=4", "bench.width=64"),
    "va-offset-verify": (),
}
assert kernbench.benches.__all__


@pytest.fixture(scope="module")
def machine():
    return resolve_topology("default", ["sip.cube_mesh.w=2", "sip.cube_mesh.h=2"])


@pytest.mark.parametrize("name", SIZES)
def test_its_numbers_are_right_and_its_time_does_not_depend_on_them(machine, name):
    timed, verified = (
        run_bench(
            topology=machine,
            bench_fn=load_bench(name),
            params=SIZES[name],
            verify=verify,
            engine_factory=lambda topology, device, data=verify: GraphEngine(topology, enable_data=data),
        )
        for verify in (False, True)
    )
    assert verified.error is None
    assert [str(each) for each in verified.comparisons if not each.passed] == []
    assert verified.verified
    assert timed.sim_ns == verified.sim_ns > 0
    assert timed.traces == verified.traces
    assert verified.cleanup.leaked == ()
