"""Every bench is registered, right on a small machine, and independent of whether it verifies."""

from __future__ import annotations

from pkgutil import iter_modules

import pytest

from compiled import compiled
from covering import covering, sample, slow
from kernbench import benches
from kernbench.benches.shared import make_normal_data, multiply_f32
from kernbench.engine.engine import GraphEngine
from kernbench.runtime_api.bench_registry import known_benches, load_bench
from kernbench.runtime_api.bench_runner import run_bench
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology.builder import Topology

# Small sizes that do not divide evenly where the kernel allows it.
SIZES = {
    "gemm-single-pe": ("bench.m=33", "bench.k=70", "bench.n=17"),
    "qkv-gemm": ("bench.m=5", "bench.width=96", "bench.head_dim=24"),
    "qkv-gemm-multi-pe": ("bench.m=3", "bench.width=76"),
    "matmul-composite": ("bench.m=33", "bench.k=130", "bench.n=17", "bench.epilogue=bias_gelu"),
    "attention": ("bench.heads=11", "bench.lq=9", "bench.lk=20", "bench.d=24"),
    "tp-mlp": ("bench.tokens=5", "bench.hidden=24", "bench.ffn=48", "bench.cubes=2"),
    "tp-block": ("bench.tokens=5", "bench.hidden=24", "bench.heads=4", "bench.ffn=48", "bench.cubes=2"),
    "va-offset-verify": ("bench.rows_per_pe=3", "bench.columns=40"),
    "ccl-allreduce": ("bench.n_elem=33",),
    "ipcq-allreduce": ("bench.n_elem=33",),
    "hello-send": ("bench.text=hi",),
}


def machine() -> Topology:
    """Four cubes in one SIP."""
    return compiled("sip.cube_mesh.w=2", "sip.cube_mesh.h=2", "system.sips.count=1")


def run(name, *, verify, extra=()):
    return run_bench(
        topology=machine(),
        bench_fn=load_bench(name),
        params=[*SIZES[name], *extra],
        verify=verify,
        engine_factory=lambda topology, device: GraphEngine(topology, enable_data=verify),
    )


def test_importing_the_package_registers_all():
    registered = {each.name: each for each in known_benches()}
    shipped = {module.name.replace("_", "-") for module in iter_modules(benches.__path__)} - {"shared"}
    assert shipped <= set(registered)
    # Evaluations make simulations of their own; they have their tests in tests/evaluation.
    assert set(SIZES) == {name for name in shipped if not registered[name].evaluation}
    assert all(each.description for each in known_benches())


@pytest.mark.parametrize("name", sample(SIZES, *(name for name in SIZES if name != "tp-block")))
def test_its_numbers_are_right_and_its_time_does_not_depend_on_them(name):
    timed, verified = run(name, verify=False), run(name, verify=True)
    assert verified.error is None
    assert [str(each) for each in verified.comparisons if not each.passed] == []
    assert verified.verified
    assert timed.sim_ns == verified.sim_ns > 0
    assert timed.traces == verified.traces
    assert timed.skipped_comparisons == len(verified.comparisons) > 0
    assert verified.cleanup.leaked == ()


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *covering(
            [name for name in SIZES if name not in {"va-offset-verify", "hello-send", "tp-block"}], ("f32", "bf16")
        ),
        *(slow("tp-block", dtype) for dtype in ("f32", "bf16")),
    ],
)
def test_other_types(name, dtype):
    assert run(name, verify=True, extra=[f"bench.dtype={dtype}"]).verified


@pytest.mark.parametrize(
    ("variant", "epilogue"),
    covering(("ref_ref", "load_ref", "load_load"), ("none", "relu", "silu", "gelu", "bias")),
)
def test_every_variant_and_epilogue(variant, epilogue):
    extra = [f"bench.variant={variant}", f"bench.epilogue={epilogue}"]
    assert run("matmul-composite", verify=True, extra=extra).verified


@pytest.mark.parametrize("text", ["x", "grüße, PE 1!", "y" * 4096])
def test_what_one_pe_says_comes_to_the_other(text):
    done = run("hello-send", verify=True, extra=[f"bench.text={text}"])
    assert (done.verified, done.value) == (True, f"PE 1 got: {text}")
    (launch,) = [each for each in done.traces if each.phase == "launch"]
    assert sorted(launch.pe_exec_ns) == [(0, 0, 0), (0, 0, 1)]


def test_a_greeting_that_fits_no_slot():
    error = run("hello-send", verify=True, extra=[f"bench.text={'y' * 4097}"]).error
    assert "4097 bytes does not fit a slot of queue W: slot_size is 4096" in str(error)


def test_a_gemm_by_blocks():
    assert run("gemm-single-pe", verify=True, extra=["bench.streamed=false"]).verified


def test_attention_over_all_keys():
    assert run("attention", verify=True, extra=["bench.causal=false", "bench.cubes=2", "bench.heads=16"]).verified


@pytest.mark.parametrize("name", ["attention", "gemm-single-pe", "matmul-composite", "va-offset-verify"])
def test_a_bench_that_nobody_reads_draws_no_operands(name, monkeypatch):
    """To draw them takes up to a fifth of such a run."""
    drawn = []
    monkeypatch.setattr("kernbench.runtime_api.transfers.LaterArray.__array__", lambda *args: drawn.append(args))
    done = run_bench(topology=machine(), bench_fn=load_bench(name), params=SIZES.get(name), verify=False)
    assert (done.error, done.data.kept, drawn) == (None, True, [])


def test_a_kernel_at_a_wrong_offset_is_caught():
    torch = RuntimeContext(GraphEngine(machine()))
    rows = make_normal_data(torch, (256, 12288), "f16", seed=1)
    assert len({row.tobytes() for row in rows}) == 256
    assert (make_normal_data(torch, (8, 8), "f16", seed=1) == rows.reshape(-1)[:64].reshape(8, 8)).all()


def test_the_product_on_the_host():
    torch = RuntimeContext(GraphEngine(machine()))
    a, b = make_normal_data(torch, (3, 5), "f32", seed=1), make_normal_data(torch, (5, 5000), "f32", seed=2)
    assert abs(multiply_f32(a, b) - a @ b).max() < 1e-5
