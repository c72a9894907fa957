"""Pipelines of torch.distributed in ranks: schedules of PyTorch, their numbers, their time and their bubbles."""

from __future__ import annotations

from typing import Any

import pytest

from extras import need

need("triton")
need("torch")

import torch  # noqa: E402, I001

import kernbench.torch  # noqa: E402, F401
import kernbench.triton  # noqa: E402, F401

from frontends.torch_rank_programs import run_ranks  # noqa: E402, I001

from torch import Tensor, nn  # noqa: E402
from torch.distributed.pipelining import (  # noqa: E402
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    SplitPoint,
    pipeline,
)

from kernbench.frontends.torch.storage import current  # noqa: E402

WIDTH, BATCH, MICROBATCHES = 16, 8, 4


def make_stage(index: int) -> nn.Sequential:
    torch.manual_seed(index)
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(BATCH, WIDTH, generator=generator), torch.randn(BATCH, WIDTH, generator=generator)


def gradients(module: nn.Module) -> list[Tensor]:
    return [p.grad.cpu() for p in module.parameters() if p.grad is not None]


def step(schedule: Any, rank: int, last: int) -> list[Tensor]:
    """Run a step of a schedule in a rank, and return the losses of the last stage."""
    x, y = (t.to("cuda") for t in batch())
    losses: list[Tensor] = []
    if rank == last:
        schedule.step(*([x] if last == 0 else []), target=y, losses=losses)
    else:
        schedule.step(*([x] if rank == 0 else []))
    return [loss.detach().cpu() for loss in losses]


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
    (ScheduleGPipe, 2),
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
