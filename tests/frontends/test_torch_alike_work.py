"""The report of work that ranks do alike, which more ranks do not divide."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from extras import need

need("triton")
need("torch")

import torch  # noqa: E402, I001

import kernbench.torch  # noqa: E402

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module  # noqa: E402
from torch.nn import functional  # noqa: E402

from frontends.torch_programs import machine  # noqa: E402
from frontends.torch_rank_programs import sips  # noqa: E402
from kernbench.runtime_api.alike_work import ScalingReport  # noqa: E402


def report_of(program: Callable[[int], object], n: int = 2, *, data: bool = True) -> ScalingReport:
    """Return the report of ``program(rank)`` on ``n`` ranks. All its time counts."""

    def main(rank: int) -> None:
        dist.init_process_group("nccl")
        program(rank)

    with machine("torch.queue=64", data=data, topology=sips(n)) as context, kernbench.torch.as_cuda():
        torch.multiprocessing.spawn(main, nprocs=n)
        context.queue.wait()
        run_ps = round(context.engine.now * 1000)
        exposed_ps = context.collectives.exposed_ps(context.engine.handles, 0)
        return context.alike_work.report(context.engine.machine.log.on_device, 0, run_ps, exposed_ps)


def compute(rank: int) -> None:
    """Compute with equal and with different values."""
    torch.manual_seed(0)
    x, weights = torch.randn(32, 16).cuda(), torch.randn(2, 16, 16)[rank].cuda()
    product = x @ weights  # the weights differ
    dist.all_reduce(product)
    total = product + torch.relu(x)  # all values are equal
    torch.exp(total * (rank + 1.5))  # the number differs, and so does the product
    torch.rand(32, 16, device="cuda").sqrt()  # the seed is equal
    torch.manual_seed(rank)
    torch.rand(32, 16, device="cuda").sin()  # the seed differs


def test_launches_are_alike_if_their_programs_and_values_are_equal() -> None:
    report = report_of(compute)
    assert {use.name: use.launches for use in report.alike} == {"add": 2, "relu": 2, "sqrt": 2, "uniform_": 2}
    assert 0 < report.collective_share < report.alike_share + report.collective_share < 1
    assert report_of(compute, data=False) == report


def test_groups_of_some_ranks_are_alike_within() -> None:
    def program(rank: int) -> None:
        pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        x = torch.full((16, 16), float(rank), device="cuda")
        dist.all_reduce(x, group=pairs[rank // 2])
        torch.exp(x)
        dist.all_reduce(x[:4], group=pairs[rank // 2])
        torch.sin(x)  # only a part of it is a result of the collective

    report = report_of(program, 4)
    assert {use.name: use.launches for use in report.alike} == {"exp": 4, "sin": 4}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.RMSNorm(32), nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(functional.silu(self.up(self.norm(x))))


def test_tensor_parallelism_does_not_divide_norms_and_additions() -> None:
    def program(rank: int) -> None:
        torch.manual_seed(0)
        model, x = Block(), torch.randn(8, 32)
        mesh = init_device_mesh("cuda", (2,))
        parallelize_module(model.cuda(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        with torch.no_grad():
            model(x.cuda())

    names = {use.name for use in report_of(program).alike}
    assert {"rms_norm", "add"} <= names
    assert not {"addmm", "mm", "silu"} & names


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_report_without_alike_work_is_empty(ranks: int) -> None:
    report = report_of(lambda rank: torch.full((8,), rank + 0.5, device="cuda"), ranks)
    assert report.is_empty
    assert report.alike_share == 0
