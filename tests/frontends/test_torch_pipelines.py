"""Pipelines of torch.distributed in ranks: schedules of PyTorch, their numbers, their time and their bubbles."""

from __future__ import annotations

from typing import Any

import pytest

from extras import need

need("triton")
need("torch")

import torch  # noqa: E402, I001

import kernbench.torch  # noqa: E402
import kernbench.triton  # noqa: E402

from frontends.torch_programs import machine  # noqa: E402
from frontends.torch_rank_programs import run_ranks, sips, time_of  # noqa: E402

from torch import Tensor, nn  # noqa: E402
from torch.distributed.pipelining import (  # noqa: E402
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    SplitPoint,
    pipeline,
)

from kernbench.engine.requests import RequestHandle  # noqa: E402
from kernbench.frontends.torch.storage import current  # noqa: E402
from kernbench.observe.works import Works  # noqa: E402
from kernbench.runtime_api.launch_report import launches_of  # noqa: E402

WIDTH, BATCH, MICROBATCHES = 16, 8, 4


def make_stage(index: int) -> nn.Sequential:
    torch.manual_seed(index)
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(BATCH, WIDTH, generator=generator), torch.randn(BATCH, WIDTH, generator=generator)


def gradients(module: nn.Module) -> list[Tensor]:
    return [p.grad.cpu() for p in module.parameters() if p.grad is not None]


def step(schedule: Any, rank: int, last: int, *, read: bool = True) -> list[Tensor]:
    """Run a step of a schedule in a rank, and return the losses of the last stage, if the program reads them."""
    x, y = (t.to("cuda") for t in batch())
    losses: list[Tensor] = []
    if rank == last:
        schedule.step(*([x] if last == 0 else []), target=y, losses=losses)
    else:
        schedule.step(*([x] if rank == 0 else []))
    return [loss.detach().cpu() for loss in losses] if read else []


def run_pipeline(kind: Any, n: int) -> list[tuple[list[Tensor], list[Tensor], float]]:
    """Return losses, gradients and simulated time of each rank after two steps."""

    def program(rank: int) -> Any:
        device = torch.device("cuda", rank)
        module = make_stage(rank).to(device)
        schedule = kind(PipelineStage(module, rank, n, device), MICROBATCHES, loss_fn=nn.functional.mse_loss)
        step(schedule, rank, n - 1)
        module.zero_grad()
        losses = step(schedule, rank, n - 1)
        return losses, gradients(module), current().engine.now

    return run_ranks(program, n)


def on_one_process(stages: list[nn.Sequential]) -> list[Tensor]:
    """Compute gradients of the stages, and return the losses of the microbatches."""
    losses = []
    for x, y in zip(*(t.chunk(MICROBATCHES) for t in batch()), strict=True):
        loss = nn.functional.mse_loss(nn.Sequential(*stages)(x), y)
        (loss / MICROBATCHES).backward()
        losses.append(loss.detach())
    return losses


def assert_same(tensors: list[Tensor], wanted: list[Tensor]) -> None:
    assert len(tensors) == len(wanted) > 0
    for a, b in zip(tensors, wanted, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6 * b.abs().max().item(), rtol=0)


SCHEDULES = [
    pytest.param(ScheduleGPipe, 2, marks=pytest.mark.slow),
    (Schedule1F1B, 2),
    pytest.param(ScheduleGPipe, 4, marks=pytest.mark.slow),
    pytest.param(Schedule1F1B, 4, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("kind", "n"), SCHEDULES)
def test_stages_are_trained_as_one_process(kind: Any, n: int) -> None:
    stages = [make_stage(index) for index in range(n)]
    losses = on_one_process(stages)
    results = run_pipeline(kind, n)
    assert_same(results[-1][0], losses)
    for (_, trained, _), stage in zip(results, stages, strict=True):
        assert_same(trained, gradients(stage))


@pytest.mark.slow
def test_schedules_take_the_same_time_twice_and_without_data() -> None:
    def program(rank: int) -> None:
        device = torch.device("cuda", rank)
        stage = PipelineStage(make_stage(rank).to(device), rank, 2, device)
        step(Schedule1F1B(stage, 2, loss_fn=nn.functional.mse_loss), rank, 1, read=False)

    time_of(program, 2)  # PyTorch's caches of a first use store tensors, whose memory is then not reused
    times = [time_of(program, 2, data=data) for data in (True, True, False)]
    assert times == times[:1] * 3


@pytest.mark.slow
def test_a_rank_may_have_several_stages() -> None:
    stages = [make_stage(index) for index in range(4)]
    losses = on_one_process(stages)

    def program(rank: int) -> Any:
        device = torch.device("cuda", rank)
        modules = [make_stage(index).to(device) for index in (rank, rank + 2)]
        parts = [
            PipelineStage(module, index, 4, device) for module, index in zip(modules, (rank, rank + 2), strict=True)
        ]
        schedule = ScheduleInterleaved1F1B(parts, MICROBATCHES, loss_fn=nn.functional.mse_loss)
        return step(schedule, rank, 1), [gradients(module) for module in modules]

    results = run_ranks(program, 2)
    assert_same(results[1][0], losses)
    for rank, (_, trained) in enumerate(results):
        for of_module, stage in zip(trained, (stages[rank], stages[rank + 2]), strict=True):
            assert_same(of_module, gradients(stage))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return x


@pytest.mark.slow
def test_pipeline_splits_a_model_as_one_process() -> None:
    x, _ = batch()
    wanted = Net()(x)

    def program(rank: int) -> Any:
        device = torch.device("cuda", rank)
        split = {"layers.1": SplitPoint.BEGINNING}
        pipe = pipeline(Net(), mb_args=(x.chunk(MICROBATCHES)[0],), split_spec=split)
        schedule = ScheduleGPipe(pipe.build_stage(rank, device), MICROBATCHES)
        with torch.no_grad():
            y = schedule.step(*([x.to(device)] if rank == 0 else []))
        return None if y is None else y.cpu()

    first, second = run_ranks(program, 2)
    assert first is None
    torch.testing.assert_close(second, wanted.detach(), atol=1e-6, rtol=1e-6)


def kernel_ns(handle: RequestHandle) -> float:
    assert handle.outcome is not None
    reports = [report for report in handle.outcome.reports if report.end_ps]
    return (max(report.end_ps for report in reports) - min(report.start_ps for report in reports)) / 1000


def test_bubbles_are_the_time_without_kernels_and_messages() -> None:
    def main(rank: int) -> None:
        torch.distributed.init_process_group("nccl")
        device = torch.device("cuda", rank)
        stage = PipelineStage(make_stage(rank).to(device), rank, 2, device)
        step(ScheduleGPipe(stage, 2, loss_fn=nn.functional.mse_loss), rank, 1, read=False)

    with machine("torch.queue=64", data=False, topology=sips(2)) as context, kernbench.torch.as_cuda():
        torch.multiprocessing.spawn(main, nprocs=2)
        engine = context.engine
        log = engine.machine.log
        report = context.rank_notes.report(engine, Works(log, log.columns(), engine.machine.passed))
        (sent,) = context.collectives.uses(engine.handles, 0)
    (use,) = report.pipelines
    assert (use.name, use.ranks, use.microbatches, use.steps) == ("ScheduleGPipe", (0, 1), 2, 1)
    assert 0 <= sent.hidden <= 1, "a send may end before its receive starts"
    assert report.bubble_share == use.bubble_share
    end_ps = max(handle.ended_ps for handle in engine.handles)
    launches = [handle for handle in launches_of(engine.handles) if handle.begun_ps >= end_ps - use.ns * 1000]
    messages = [handle for handle in launches if handle.msg.title.startswith("send_recv")]
    assert messages
    for rank in range(2):
        own = [handle for handle in launches if handle not in messages and handle.msg.targets[0][0] == rank]
        idle_ns = use.ns - sum(map(kernel_ns, own))
        waits_ns = max(kernel_ns(handle) for handle in messages)
        assert 0 < use.bubble_ns[rank] <= idle_ns
        assert use.bubble_ns[rank] > waits_ns, "a receive that waits is a bubble"
