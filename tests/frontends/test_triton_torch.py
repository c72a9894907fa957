"""Triton programs with PyTorch's tensors, as they are published: host descriptors, hooks, fp8; how a run ends."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from extras import need
from kernbench.common.errors import InputError, LimitReached, RunStopped
from kernbench.engine.engine import GraphEngine
from kernbench.engine.requests import Limits
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology.builder import resolve_topology

need("triton")
need("torch")

import kernbench.torch  # noqa: E402
import kernbench.triton  # noqa: E402, F401

# isort: split
import torch  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402
import triton.profiler  # noqa: E402
from triton._C.libtriton import nvidia  # noqa: E402
from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402

from kernbench.frontends.triton.launch import LaunchPace  # noqa: E402

MACHINE = resolve_topology("default", ["system.sips.count=1", "sip.cube_mesh.w=1", "sip.cube_mesh.h=1"])
AHBM = torch.device("ahbm")


@pytest.fixture(autouse=True)
def context() -> Iterator[RuntimeContext[Any]]:
    with RuntimeContext(engine=GraphEngine(MACHINE)) as made:
        yield made


def set_blocks(arguments: dict[str, Any]) -> None:
    """A hook of a configuration: descriptors get the blocks that it chose."""
    for name in ("a_desc", "b_desc", "c_desc"):
        arguments[name].block_shape = [arguments["BLOCK"], arguments["BLOCK"]]


def describe_launch(grid: Any, kernel: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """What only a profiler of GPUs asks for."""
    raise AssertionError("nobody asks")


@triton.autotune([triton.Config({"BLOCK": 32}, pre_hook=set_blocks)], key=["K"])
@triton.jit(launch_metadata=describe_launch)
def product(a_desc, b_desc, c_desc, K, BLOCK: tl.constexpr, SPECIALIZE: tl.constexpr):
    row, column = tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK
    acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for k in tl.range(0, tl.cdiv(K, BLOCK), warp_specialize=SPECIALIZE, flatten=True):
        acc = tl.dot(a_desc.load([row, k * BLOCK]), b_desc.load([column, k * BLOCK]).T, acc)
    c_desc.store([row, column], acc.to(c_desc.dtype))


@triton.jit
def fill(x_ptr, BLOCK: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, BLOCK), tl.full((BLOCK,), 3.0, tl.float32))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float8_e5m2, torch.float8_e4m3fn])
def test_descriptors_of_the_host_get_their_blocks_from_a_hook(dtype: torch.dtype) -> None:
    """Whole numbers of at most 2, and sums of them that fit in five bits with the sign: exact in all types.

    Neither 40 nor 80 is a multiple of the block: the descriptors leave out what lies outside of the matrices.
    """
    torch.manual_seed(0)
    sparse = torch.rand(2, 48, 80) < 0.02
    a, b = (torch.randint(-2, 3, (2, 48, 80)) * sparse).to(dtype)
    c = torch.full((48, 48), 7.0).to(dtype).to(AHBM)
    descriptors = [TensorDescriptor.from_tensor(each, [1, 16]) for each in (a.to(AHBM), b.to(AHBM), c)]
    product[2, 2](*descriptors, 80, SPECIALIZE=True)
    wanted = a.float() @ b.float().T
    assert wanted.abs().max() > 0
    assert torch.equal(c.cpu().float(), wanted)


def test_a_descriptor_of_a_view_begins_where_the_view_does() -> None:
    whole = torch.arange(64 * 64, dtype=torch.float32).reshape(64, 64)
    part = whole.to(AHBM)[32:, 32:]
    c = torch.zeros(32, 32, device=AHBM)
    one = torch.eye(32).to(AHBM)
    product[1, 1](*(TensorDescriptor.from_tensor(each, [1, 16]) for each in (part, one, c)), 32, SPECIALIZE=False)
    assert torch.equal(c.cpu(), whole[32:, 32:])


def test_descriptors_that_are_refused() -> None:
    host, there = torch.zeros(32, 32), torch.zeros(32, 32, device=AHBM)
    good = TensorDescriptor.from_tensor(there, [32, 32])
    for bad, message in (
        (TensorDescriptor.from_tensor(host, [32, 32]), "a tensor descriptor of a Tensor, which is no tensor of the m"),
        (TensorDescriptor.from_tensor(there, [32, 32], round_f32_to_tf32=True), "the machine has no tf32"),
    ):
        with pytest.raises(InputError, match=message):
            product[1, 1](bad, good, good, 32, SPECIALIZE=False)


@pytest.mark.parametrize(
    ("limit_s", "programs", "stops"), [(1e-9, 12, True), (1e-9, 1, False), (1e9, 12, False), (None, 12, False)]
)
def test_a_launch_that_takes_too_long_is_stopped(limit_s: float | None, programs: int, stops: bool) -> None:
    """Of 1 ns nothing is left, which is enough for what has run; of 32 years no tenth is over."""
    pace = LaunchPace("attention", (programs, 1, 1), GraphEngine(MACHINE, limits=Limits(wall_s=limit_s)))
    pace.begin()
    with pytest.raises(RunStopped) if stops else nullcontext() as stopped:
        pace.count_program()
    if stopped is not None:
        message = str(stopped.value.why)
        assert (
            "stopped by --max-wall-s 1e-09 before it is over: kernel 'attention' has run 1 of the 12 programs"
            in message
        )
        assert "and 0 s are left. Make the problem smaller (of a benchmark: --points N)" in message


def test_a_report_that_is_stopped_shows_what_it_has_measured(capsys: pytest.CaptureFixture[str]) -> None:
    def measure(n: int, provider: str, scale: int) -> float:
        if n == 2:
            raise RunStopped(LimitReached("the time is over"))
        return n * 0.5 + scale

    names = {
        "x_names": ["n"],
        "x_vals": [1, 2, 3],
        "line_arg": "provider",
        "line_vals": ["ours"],
        "line_names": ["Ours"],
    }
    report = triton.testing.Benchmark(**names, plot_name="sums", ylabel="GB/s", args={"scale": 2})
    with pytest.raises(RunStopped):
        triton.testing.perf_report(report)(measure).run(print_data=True)
    assert capsys.readouterr().out == "sums (GB/s), incomplete:\n  n=1, provider=ours: 2.5\n"


def test_a_column_of_operators_of_the_host_is_not_measured(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def measure(n: int, m: int, provider: str) -> Any:
        x = torch.zeros(n, device=AHBM)
        work = (lambda: fill[1,](x, BLOCK=8)) if provider == "ours" else x.mode
        return triton.testing.do_bench(work, quantiles=[0.5, 0.2, 0.8])

    report = triton.testing.Benchmark(
        x_names=["n", "m"],
        x_vals=[8, (16, 2)],
        line_arg="provider",
        line_vals=["torch", "ours"],
        line_names=["Torch", "Ours"],
        styles=[("red", "-"), ("blue", "--")],
        plot_name="fills",
        ylabel="ms",
        args={},
    )
    table = triton.testing.perf_report(report)(measure).run(print_data=True, return_df=True, save_path=str(tmp_path))
    assert list(table.columns) == ["n", "m", "Torch (ms)", "Ours (ms)"]
    assert table["Torch (ms)"].tolist() == ["n/a", "n/a"]
    assert (table["Ours (ms)"] > 0).all()
    assert "n/a: Torch is of copies only: the host computed mode" in capsys.readouterr().out
    assert (tmp_path / "fills.csv").read_text().startswith("n,m,Ours (ms)")


def test_the_profiler_of_gpus_records_nothing_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with triton.profiler.scope("a part", {"flops": 1}):
        session = triton.profiler.start("profile", hook="triton")
        triton.profiler.deactivate(session)
        triton.profiler.finalize()
    assert "records nothing here; --explain and --trace say where the time went" in capsys.readouterr().out
    with pytest.raises(InputError, match="nothing here that could be shown"):
        triton.profiler.viewer.parse(["time/ms"], "profile.hatchet")


def test_products_of_the_library_of_gpus() -> None:
    a, b, c = torch.randn(4, 6), torch.randn(5, 6), torch.randn(4, 5)
    blas, made = nvidia.cublas.CublasLt(torch.empty(8, device=AHBM)), torch.empty(4, 5, device=AHBM)
    blas.matmul(a.to(AHBM), b.to(AHBM), made)
    assert torch.allclose(made.cpu(), a @ b.T)
    blas.gemm(a.to(AHBM), b.to(AHBM), c.to(AHBM), made, 2.0, 0.5)
    assert torch.allclose(made.cpu(), 2 * (a @ b.T) + c / 2)
    with pytest.raises(InputError, match="no block-scaled"):
        blas.block_scaled_matmul_mxfp8(a, b, c)


def test_a_launch_takes_options_of_all_gpus() -> None:
    x = torch.zeros(8, device=AHBM)
    fill[1,](x, BLOCK=8, num_warps=2, maxnreg=64, waves_per_eu=1, llvm_fn_attrs="", extern_libs={"libdevice": "x.bc"})
    assert x.tolist() == [3] * 8


EXAMPLE = Path(__file__).parents[2] / "examples" / "triton" / "vector_add.py"
OF_TORCH = "import kernbench.torch\nimport torch\n\ndef run(bench):\n    torch.zeros(8, device='ahbm') + 1\n"


@pytest.mark.parametrize(
    "program",
    [pytest.param(EXAMPLE.read_text(), id="triton"), pytest.param(OF_TORCH, id="torch", marks=pytest.mark.slow)],
)
def test_a_run_leaves_nothing_on_stderr(program: str, tmp_path: Path) -> None:
    """Triton's library, which PyTorch loads too, complains at exit of objects that nobody has freed."""
    (tmp_path / "program.py").write_text(program)
    command = "import sys; from kernbench.cli.main import entry; sys.argv[0] = 'kernbench'; entry()"
    ran = subprocess.run(
        [sys.executable, "-c", command, "run", "--bench", str(tmp_path / "program.py")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "leaked" not in ran.stderr
