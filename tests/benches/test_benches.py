"""Every bench is registered, right, and independent of whether it verifies."""

from __future__ import annotations

import pytest
from fake_engine import FakeEngine, small_machine

from kernbench import benches
from kernbench.benches.operands import matmul_f32, normal_data
from kernbench.runtime_api.bench_loader import load_bench
from kernbench.runtime_api.bench_registry import known_benches
from kernbench.runtime_api.bench_runner import run_bench
from kernbench.runtime_api.context import RuntimeContext

MACHINE = small_machine()
# Small sizes that do not divide evenly where the kernel allows it.
SIZES = {
    "gemm-single-pe": ("bench.m=33", "bench.k=70", "bench.n=17"),
    "qkv-gemm": ("bench.m=5", "bench.width=96", "bench.head_dim=24"),
    "qkv-gemm-multi-pe": ("bench.m=3", "bench.width=76"),
    "va-offset-verify": ("bench.rows_per_pe=3", "bench.columns=40"),
}


def run(name, *, verify, data=True, extra=()):
    return run_bench(
        topology=MACHINE,
        bench_fn=load_bench(name),
        params=[*SIZES[name], *extra],
        verify=verify,
        engine_factory=lambda topology, device: FakeEngine(topology, enable_data=data, run_kernels=data),
    )


def test_importing_the_package_registers_all():
    assert benches.__all__
    names = [each.name for each in known_benches()]
    assert set(SIZES) <= set(names)
    assert all(each.description for each in known_benches())


@pytest.mark.parametrize("name", SIZES)
def test_its_numbers_are_right(name):
    found = run(name, verify=True)
    assert found.error is None
    assert found.comparisons
    assert [str(each) for each in found.comparisons if not each.passed] == []
    assert found.status == "ok"


@pytest.mark.parametrize("name", [name for name in SIZES if name != "va-offset-verify"])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_other_types(name, dtype):
    assert run(name, verify=True, extra=[f"bench.dtype={dtype}"]).verified


@pytest.mark.parametrize("name", SIZES)
def test_time_does_not_depend_on_data(name):
    timed, verified = run(name, verify=False, data=False), run(name, verify=True)
    assert timed.sim_ns == verified.sim_ns > 0
    assert timed.traces == verified.traces
    assert timed.skipped_comparisons == len(verified.comparisons)


def test_a_kernel_at_a_wrong_offset_is_caught():
    torch = RuntimeContext(FakeEngine(MACHINE))
    rows = normal_data(torch, (256, 12288), "f16", seed=1)
    assert len({row.tobytes() for row in rows}) == 256
    assert (normal_data(torch, (8, 8), "f16", seed=1) == rows.reshape(-1)[:64].reshape(8, 8)).all()


def test_the_product_on_the_host():
    torch = RuntimeContext(FakeEngine(MACHINE))
    a, b = normal_data(torch, (3, 5), "f32", seed=1), normal_data(torch, (5, 5000), "f32", seed=2)
    assert abs(matmul_f32(a, b) - a @ b).max() < 1e-5
