"""Ranks of PyTorch programs: what each has of its own, its errors, and scripts that start as with torchrun."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from extras import need

need("triton")
need("torch")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

import kernbench as kb  # noqa: E402
import kernbench.torch  # noqa: E402
from frontends.torch_programs import machine  # noqa: E402
from frontends.torch_rank_programs import run_ranks, sips  # noqa: E402
from kernbench.common.errors import InputError  # noqa: E402
from kernbench.common.program_line import SpawnException  # noqa: E402
from kernbench.frontends.torch.device import STREAMS_NOTE  # noqa: E402


def test_a_rank_has_a_sip_and_generators_of_its_own() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()

    def program(rank: int) -> Any:
        first = torch.initial_seed()
        torch.manual_seed(rank)
        np.random.seed(rank)
        numbers = []
        for _ in range(3):
            x = torch.ones(4, device="cuda") * rank
            numbers.append((torch.rand(()).item(), float(np.random.rand()), x.sum().item(), str(x.device)))
        return first, torch.cuda.current_device(), numbers

    results = run_ranks(program, backend=None)
    for rank, (first, device, numbers) in enumerate(results):
        host, array = torch.Generator().manual_seed(rank), np.random.RandomState(rank)
        drawn = [(torch.rand((), generator=host).item(), array.rand()) for _ in range(3)]
        assert (first, device) == (torch.Generator().initial_seed(), rank)
        assert [(a, b) for a, b, _, _ in numbers] == drawn
        assert [(total, name) for _, _, total, name in numbers] == [(4.0 * rank, f"cuda:{rank}")] * 3
    assert torch.equal(torch.get_rng_state(), before)


def test_the_report_says_once_that_streams_are_names() -> None:
    def program(rank: int) -> None:
        for _ in range(2):
            with torch.cuda.stream(torch.cuda.Stream()):
                torch.ones(4, device="cuda").sum().item()

    with machine(topology=sips(2)) as context, kernbench.torch.as_cuda():
        torch.multiprocessing.spawn(program, nprocs=2)
        assert [remark for remark in context.remarks if "streams" in remark] == [STREAMS_NOTE]


def test_launches_are_named_by_the_modules_of_their_rank() -> None:
    def program(rank: int) -> None:
        model = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8))).cuda()
        name = ("here", "there")[rank]
        model.register_module(name, nn.Linear(8, 8).cuda())
        for _ in range(2):
            model(torch.ones(2, 8, device="cuda")).sum().item()

    with machine(topology=sips(2)) as context, kernbench.torch.as_cuda():
        torch.multiprocessing.spawn(program, nprocs=2)
        names = {(trace.sip, trace.name.split()[0]) for trace in context.traces if "addmm" in trace.name}
        uses = {use.name: use for use in context.operators.uses()}
    assert names == {(sip, name) for sip, last in ((0, "here"), (1, "there")) for name in ("0", "1.0", last)}
    assert uses["addmm"].calls == 2 * 2 * 3


def fail_in_backward(_: torch.Tensor) -> None:
    raise ValueError("in the hook")


def test_an_error_in_the_backward_of_a_rank_names_the_rank_and_the_line() -> None:
    reached = []

    def program(rank: int) -> None:
        x = torch.ones(4, device="cuda", requires_grad=True)
        y = x * 2
        if rank == 1:
            y.register_hook(fail_in_backward)
        y.sum().backward()
        reached.append(rank)

    with pytest.raises(SpawnException) as caught:
        run_ranks(program)
    assert list(caught.value.errors) == [1]
    line = fail_in_backward.__code__.co_firstlineno + 1
    assert f"rank 1 failed: ValueError: in the hook (at {__file__}:{line})" in str(caught.value)
    assert 1 not in reached
    assert run_ranks(lambda rank: (torch.ones(3, device="cuda") * rank).sum().item()) == [0, 3]


def test_an_error_of_a_queued_launch_is_that_of_its_rank() -> None:
    def program(rank: int) -> None:
        index = torch.tensor([0, 9 if rank else 1], device="cuda")
        values = torch.ones(4, device="cuda")[index]
        for _ in range(3):
            values = values + 1
        values.sum().item()

    with pytest.raises(SpawnException) as caught:
        run_ranks(program)
    assert list(caught.value.errors) == [1]


def test_ranks_need_a_sip_each_and_cannot_be_processes() -> None:
    with machine(topology=sips(2)):
        with pytest.raises(InputError, match=r"3 ranks for 2 SIPs: .* --set system.sips.count=3"):
            torch.multiprocessing.spawn(print, nprocs=3)
        for start in (torch.multiprocessing.Process, torch.multiprocessing.get_context("spawn").Process):
            with pytest.raises(InputError, match=r"test_torch_ranks.py:\d+: a Process .* torch.multiprocessing.spawn"):
                start(target=print)


def test_a_data_loader_of_a_rank_may_have_processes() -> None:
    def program(rank: int) -> list[float]:
        data = torch.utils.data.TensorDataset(torch.arange(4.0) + rank)
        loader = torch.utils.data.DataLoader(data, batch_size=2, num_workers=1, pin_memory=True)
        return [x.cuda().sum().item() for (x,) in loader]

    assert run_ranks(program, backend=None) == [[1, 5], [3, 7]]


# scripts

TORCHRUN = """
import os, sys, torch
import state
rank = int(os.environ["LOCAL_RANK"])
for _ in range(3):
    state.seen.append(rank)
    torch.ones(4, device="cuda").sum().item()
print(__name__, sys.argv[1:], rank, os.environ["WORLD_SIZE"], state.seen, torch.cuda.current_device())
if sys.argv[1] == "fail" and rank == 1:
    raise ValueError("of rank 1")
"""
SPAWN = """
import state, torch
import torch.multiprocessing as mp
print("main" if __name__ == "__main__" else __name__)

def work(rank, options):
    options["rank"] = rank
    for _ in range(2):
        state.seen.append(rank)
        (torch.ones(4, device="cuda") * rank).sum().item()
    print(rank, options, state.seen)

if __name__ == "__main__":
    options = {}
    context = mp.spawn(work, args=(options,), nprocs=2, join=False)
    context.join()
    mp.start_processes(work, args=(options,), nprocs=1, start_method="spawn")
    print("end", options, state.seen)
"""
MACHINE = {"system.sips.count": 2, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1}


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "state.py").write_text("seen = []\n", encoding="utf-8")
    return tmp_path / "program.py"


def run_script(script: Path, text: str, *args: str, **options: Any) -> Any:
    script.write_text(text, encoding="utf-8")
    return kb.run(script=script, args=args, as_cuda=True, machine=kb.load_machine(overrides=MACHINE), **options)


@pytest.mark.parametrize("ranks", [2, "all"])
def test_a_script_runs_once_for_each_rank(script: Path, capsys: pytest.CaptureFixture[str], ranks: Any) -> None:
    run = run_script(script, TORCHRUN, "x", ranks=ranks)
    run.raise_for_status()
    assert capsys.readouterr().out.splitlines() == [
        "__main__ ['x'] 0 2 [0, 0, 0] 0",
        "__main__ ['x'] 1 2 [1, 1, 1] 1",
    ]
    assert not run.left
    assert "state" not in sys.modules


def test_an_error_of_a_rank_of_a_script_names_rank_and_line(script: Path) -> None:
    run = run_script(script, TORCHRUN, "fail", ranks=2)
    assert run.error is not None
    assert run.error.text == f"rank 1 failed: ValueError: of rank 1 (at {script}:10)"
    assert (run.place.rank, run.place.line.line) == (1, 10)
    assert run.exit_code == 1


def test_a_script_needs_a_sip_for_each_rank(script: Path) -> None:
    run = run_script(script, TORCHRUN, "x", ranks=3)
    assert run.exit_code == 2
    assert "3 ranks for 2 SIPs" in run.error.text


def test_a_rank_that_a_script_spawns_has_modules_and_arguments_of_its_own(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_script(script, SPAWN).raise_for_status()
    assert capsys.readouterr().out.splitlines() == [
        *("main", "__mp_main__", "__mp_main__"),
        *("0 {'rank': 0} [0, 0]", "1 {'rank': 1} [1, 1]"),
        *("__mp_main__", "0 {'rank': 0} [0, 0]"),
        "end {} []",
    ]


def test_a_script_that_spawns_in_its_ranks_is_told_of_the_guard(script: Path) -> None:
    run = run_script(script, "import torch\ndef f(rank): ...\ntorch.multiprocessing.spawn(f, nprocs=2)\n")
    assert run.exit_code == 2
    assert "program.py:3: a rank cannot spawn ranks" in run.error.text
    assert 'if __name__ == "__main__":' in run.error.text


def test_the_same_time_twice_and_without_data(script: Path) -> None:
    text = TORCHRUN.replace(".item()", "")
    times = [run_script(script, text, "x", ranks=2, data=data).latency_ns for data in (True, True, False)]
    assert times[0] == times[1] == times[2] > 0


def test_a_rank_cannot_capture_a_graph() -> None:
    def program(_: int) -> None:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            torch.ones(4, device="cuda").add_(1)

    with pytest.raises(SpawnException, match=r"test_torch_ranks.py:\d+: a graph of launches: only a program without"):
        run_ranks(program, backend=None)
