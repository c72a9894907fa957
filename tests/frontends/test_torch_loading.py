"""Time zero of a program of PyTorch is after loading."""

from __future__ import annotations

import gc
import io
import subprocess
import sys
import weakref
from typing import Any

import pytest

from extras import need

need("torch")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import kernbench.torch  # noqa: E402
from frontends.torch_programs import AHBM, ONE_CUBE, machine  # noqa: E402
from frontends.torch_rank_programs import sips  # noqa: E402
from kernbench.common.errors import InputError  # noqa: E402
from kernbench.library.loading import run_of  # noqa: E402
from kernbench.library.machines import load_machine  # noqa: E402
from kernbench.library.running import simulate  # noqa: E402
from kernbench.library.runs import Run  # noqa: E402
from kernbench.runtime_api.bench_runner import as_bench, run_bench  # noqa: E402
from kernbench.runtime_api.frontends import frontend_settings  # noqa: E402
from kernbench.runtime_api.prepared_run import PreparedRun  # noqa: E402


class Scaled(nn.Module):
    """Computes while it is made."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", 1.0 / (torch.arange(16, device=AHBM) + 1))
        self.weight = nn.Parameter(torch.empty(16, 16, device=AHBM))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x: Any) -> Any:
        return functional.rms_norm(x, (16,)) @ self.weight * self.scale


def infer(_: Any) -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU()).to(AHBM)
    own = Scaled().half().float()
    x = torch.randn(4, 16).to(AHBM)
    own(x)
    model(x)


def simulate_program(program: Any, *settings: str, advise: bool = False, refresh: str = "all-bank") -> Run:
    torch.manual_seed(0)
    return simulate(
        PreparedRun(
            bench=as_bench(program),
            machine=load_machine(overrides={"cube.hbm.refresh": refresh}).topology,
            frontends=frontend_settings(settings),
            advise=advise,
        )
    )


def test_the_time_of_a_run_begins_with_the_first_operator_that_computes() -> None:
    run, whole = simulate_program(infer), simulate_program(infer, "torch.from_load=true")
    assert run.load is not None
    assert whole.load is not None
    assert run.load.ns == whole.load.ns > 0
    assert run.load.until.startswith("rms_norm test_torch_loading.py")
    assert run.latency_ns == pytest.approx(whole.latency_ns - run.load.ns, abs=1e-3)
    assert run.explain().total_ns == run.latency_ns
    assert sum(each.ns for each in run.operators) == pytest.approx(run.latency_ns, abs=1e-3)
    assert {each.name for each in whole.operators} - {each.name for each in run.operators} >= {"copy_", "reciprocal"}
    assert run.launches[0].title.startswith("rms_norm")
    assert not any(each.phase == "h2d" for each in run.phases)
    assert any(each.phase == "h2d" for each in whole.phases)


def test_the_document_of_a_run_says_what_loading_took() -> None:
    run = simulate_program(infer)
    document = run.to_dict()
    assert document["load"] == {"ns": run.load.ns, "until": run.load.until, "counted": False}
    assert run_of(document).load == run.load


def test_advice_on_a_program_with_backward() -> None:
    """PyTorch refuses a second backward in a forked process."""

    def train(_: Any) -> None:
        nn.Linear(16, 16).to(AHBM)(torch.randn(4, 16, device=AHBM)).sum().backward()

    run = simulate_program(train, advise=True, refresh="spread")
    assert run.ok
    assert run.advised is not None
    assert run.advised["run_ns"] == run.latency_ns


def test_a_program_that_never_computes_counts_from_its_beginning() -> None:
    def copy_back(_: Any) -> None:
        torch.ones(8, 8).to(AHBM).cpu()

    result = run_bench(topology=ONE_CUBE, bench_fn=copy_back)
    assert result.load is None
    assert result.sim_ns > 0


def test_a_checkpoint_is_loaded_by_the_host() -> None:
    kept = io.BytesIO()
    torch.save({"weight": torch.ones(2)}, kept)
    with machine():
        kept.seek(0)
        with pytest.raises(InputError, match="map_location='cpu'"):
            torch.load(kept, map_location=AHBM)
        kept.seek(0)
        assert torch.load(kept, map_location="cpu")["weight"].to(AHBM).sum().item() == 2


def test_a_kernel_of_the_program_begins_the_run() -> None:
    def kernel(x: Any, *, tl: Any) -> None:
        tl.load(x, (4,), "f32")

    with machine() as context:
        context.launch("own", kernel, context.zeros((4,), dtype="f32"))
        torch.ones(4, device=AHBM).sum()
        assert context.operators.load is None


@pytest.mark.parametrize("n", [1 << 10, 1 << 20])
def test_collectives_of_weights_are_part_of_loading(n: int) -> None:
    def load_and_compute(_: int) -> None:
        dist.init_process_group("nccl")
        x, weight = torch.ones(4, device="cuda"), torch.empty(n, device="cuda")
        dist.broadcast(weight, 0)
        torch.neg(x)

    with machine("torch.queue=64", data=False, topology=sips(2)) as context, kernbench.torch.as_cuda():
        torch.multiprocessing.spawn(load_and_compute, nprocs=2)
        load = context.operators.load
        assert load is not None
        assert context.engine.now - load.ns < 2000


TWICE = """
import gc
import kernbench as kb
import kernbench.torch
import torch
import weakref
from torch.nn import functional

def learn(_):
    x = torch.ones(16, 64, device="ahbm", requires_grad=True)
    for _ in range(2):
        functional.gelu(x).sum().backward()

def scaled():
    x = torch.ones(16, 64, device="ahbm")
    functional.rms_norm(x, (64,))
    return weakref.ref(x)

def scale(_):
    assert scaled()() is None

gc.disable()
first, second = (kb.run(PROGRAM, "one-cube") for _ in range(2))
print(len(first.engine.handles) == len(second.engine.handles), first.latency_ns == second.latency_ns)
"""


@pytest.mark.slow
@pytest.mark.parametrize("program", ["learn", "scale"])
def test_the_first_run_of_a_process_takes_as_long_as_the_next(program: str) -> None:
    """PyTorch imports its compiler in the first: what that leaves in cycles held tensors, so that more were made."""
    code = TWICE.replace("PROGRAM", program)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["True", "True"]


_LOOKUPS: dict[str, Any] = {
    "embedding": functional.embedding,
    "index_copy": lambda ids, y: y.index_copy(0, ids, y),
    "gather": lambda ids, y: y.gather(1, ids.view(1, -1)),
    "cross_entropy": lambda ids, y: functional.cross_entropy(y, ids),
}


@pytest.mark.parametrize("name", _LOOKUPS)
def test_a_checked_operator_keeps_no_tensor(name: str) -> None:
    """PyTorch's error for stand-ins has a traceback, which held the operands until a garbage collection."""

    def look_up() -> weakref.ref[Any]:
        y = torch.ones(67, 71, device=AHBM) + 1  # sizes of no other test: the check of a signature is cached
        _LOOKUPS[name](torch.arange(67).to(AHBM), y)
        return weakref.ref(y)

    gc.collect()
    gc.disable()
    try:
        with machine():
            assert look_up()() is None
    finally:
        gc.enable()
