"""Experts over ranks: uneven all-to-all, forward and backward, its report, and its refusals without data."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

import kernbench as kb
from extras import need

need("triton")
need("torch")

import torch  # noqa: E402, I001

import kernbench.torch  # noqa: E402
import kernbench.triton  # noqa: E402

import torch.distributed as dist  # noqa: E402
import torch.distributed.nn.functional as differentiable  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.distributed._functional_collectives import all_to_all_single_autograd  # noqa: E402

from frontends.torch_programs import machine  # noqa: E402
from frontends.torch_rank_programs import run_ranks, sips, time_of  # noqa: E402
from kernbench.common.data_policy import DataPolicy  # noqa: E402
from kernbench.common.program_line import SpawnException  # noqa: E402
from kernbench.engine.engine import GraphEngine  # noqa: E402
from kernbench.observe.works import Works  # noqa: E402
from kernbench.runtime_api.context import RuntimeContext  # noqa: E402
from kernbench.runtime_api.rank_report import RankNotes, RanksReport  # noqa: E402

WIDTH, TOKENS = 8, 12


class Parts(nn.Module):
    """The weights of an MoE layer with an expert for each rank."""

    def __init__(self, n: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gate = nn.Linear(WIDTH, n, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH)) for _ in range(n)
        )


def tokens(n: int) -> Tensor:
    return torch.randn(n, TOKENS, WIDTH, generator=torch.Generator().manual_seed(1)) + 0.3


def exchange(x: Tensor, received: list[int], sent: list[int], way: str) -> Tensor:
    if way == "functional":
        return all_to_all_single_autograd(x, received, sent, dist.group.WORLD)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return differentiable.all_to_all_single(x.new_empty(sum(received), WIDTH), x, received, sent)


def on_one_process(n: int) -> tuple[Tensor, Tensor, Parts]:
    """Return outputs, gradients of the tokens, and the layer with its gradients."""
    parts, x = Parts(n), tokens(n).requires_grad_()
    weights, chosen = parts.gate(x).softmax(-1).max(-1)
    every = torch.stack([expert(x) for expert in parts.experts])
    y = every.gather(0, chosen[None, ..., None].expand(1, *x.shape))[0] * weights[..., None]
    y.square().sum().backward()
    assert x.grad is not None
    return y.detach(), x.grad, parts


def on_ranks(rank: int, n: int, way: str) -> Any:
    """Run the layer in a rank: tokens go to the rank of their expert, and back."""
    parts = Parts(n).to("cuda")
    x = tokens(n)[rank].to("cuda").requires_grad_()
    weights, chosen = parts.gate(x).softmax(-1).max(-1)
    order = chosen.argsort(stable=True)
    counts = torch.bincount(chosen, minlength=n)
    arriving = torch.empty_like(counts)
    dist.all_to_all_single(arriving, counts)
    sent, received = counts.tolist(), arriving.tolist()
    routed = exchange(x[order], received, sent, way)
    back = exchange(parts.experts[rank](routed), sent, received, way)
    y = torch.zeros_like(x).index_copy(0, order, back) * weights[:, None]
    y.square().sum().backward()
    dist.all_reduce(parts.gate.weight.grad)
    gradients = [p.grad.cpu() for p in (parts.gate.weight, *parts.experts[rank].parameters())]
    assert x.grad is not None
    return y.detach().cpu(), x.grad.cpu(), gradients, sent, received


def assert_same(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, atol=1e-6 * b.abs().max().item(), rtol=0)


@pytest.mark.parametrize(
    ("n", "way"),
    [
        (2, "functional"),
        pytest.param(2, "nn", marks=pytest.mark.slow),
        pytest.param(4, "functional", marks=pytest.mark.slow),
    ],
)
def test_experts_of_ranks_compute_as_one_process(n: int, way: str) -> None:
    y, gradient, parts = on_one_process(n)
    results = run_ranks(lambda rank: on_ranks(rank, n, way), n)
    assert len({count for *_, sent, _ in results for count in sent}) > 1, "the routing is uneven"
    for rank, (of_rank, of_tokens, gradients, _, _) in enumerate(results):
        assert_same(of_rank, y[rank])
        assert_same(of_tokens, gradient[rank])
        wanted = (parts.gate.weight, *parts.experts[rank].parameters())
        for trained, p in zip(gradients, wanted, strict=True):
            assert p.grad is not None
            assert_same(trained, p.grad)


def route(rank: int) -> None:
    """Exchange rows: rank 0 keeps 1 of 4 and sends 3, rank 1 keeps all of its 2."""
    sent, received = ([1, 3], [1, 0]) if rank == 0 else ([0, 2], [3, 2])
    x = torch.ones(sum(sent), WIDTH, device="cuda")
    dist.all_to_all_single(torch.empty(sum(received), WIDTH, device="cuda"), x, received, sent)
    dist.all_to_all_single(torch.empty(2, device="cuda"), torch.ones(2, device="cuda"))


def report_of(data: bool) -> RanksReport:
    def main(rank: int) -> None:
        dist.init_process_group("nccl")
        route(rank)

    with machine("torch.queue=64", data=data, topology=sips(2)) as context, kernbench.torch.as_cuda():
        torch.multiprocessing.spawn(main, nprocs=2)
        log = context.engine.machine.log
        return context.rank_notes.report(context.engine, Works(log, log.columns(), context.engine.machine.passed))


def test_the_report_has_the_rows_of_each_rank() -> None:
    with_data, without = report_of(True), report_of(False)
    (use,) = with_data.exchanges
    assert (use.calls, use.sent, use.received) == (1, (4, 2), (1, 5))
    assert use.received_bytes == (4 * WIDTH, 4 * WIDTH * 5)
    assert use.imbalance == with_data.imbalance == pytest.approx(5 / 3)
    assert with_data == without


def test_uneven_exchanges_take_the_same_time_twice_and_without_data() -> None:
    assert len({time_of(route, 2, data=data) for data in (True, True, False)}) == 1


def read_splits(rank: int) -> None:
    counts = torch.bincount(torch.randn(4, device="cuda").argsort() % 2, minlength=2)
    x = torch.ones(4, WIDTH, device="cuda")
    dist.all_to_all_single(torch.empty(4, WIDTH, device="cuda"), x, [2, 2], counts.tolist())


def run_read_splits(policy: DataPolicy) -> None:
    def main(rank: int) -> None:
        dist.init_process_group("nccl")
        read_splits(rank)

    engine = GraphEngine(sips(2), policy)
    with RuntimeContext(engine=engine), kernbench.torch.as_cuda():
        torch.multiprocessing.spawn(main, nprocs=2)


def test_splits_that_a_run_without_data_does_not_know_are_refused_with_the_tensor() -> None:
    refusal = r"NoDataError: tensor 'storage\d+': .* the tensor is from test_torch_experts.py:\d+"
    with pytest.raises(SpawnException, match=refusal):
        run_read_splits(DataPolicy(keep=False))
    zeros = r"test_torch_experts.py:\d+: .*input splits \[0, 0\] of 4 rows.*read zeros from tensor 'storage\d+'"
    with pytest.raises(SpawnException, match=zeros):
        run_read_splits(DataPolicy(keep=False, zeros=True))
    run_read_splits(DataPolicy())


def test_splits_that_do_not_add_up_are_refused_at_their_line() -> None:
    def program(_: int) -> None:
        x = torch.ones(4, WIDTH, device="cuda")
        dist.all_to_all_single(torch.empty_like(x), x, [2, 2], [1, 2])

    with pytest.raises(SpawnException, match=r"test_torch_experts.py:\d+: .*input splits \[1, 2\] of 4 rows"):
        run_ranks(program)


def test_imbalance_is_that_of_the_worst_call() -> None:
    notes = RankNotes()
    for sent in ((6, 2), (2, 6)):
        for rank in range(2):
            notes.note_exchange("moe.py:3", rank, (0, 1), sent[rank], 4, 16)
    engine = GraphEngine(sips(2))
    works = Works(engine.machine.log, engine.machine.log.columns(), engine.machine.passed)
    (use,) = notes.report(engine, works).exchanges
    assert (use.sent, use.received, use.calls, use.imbalance) == ((8, 8), (8, 8), 2, 1.5)


def test_an_uneven_exchange_is_explained(tmp_path: Path) -> None:
    """The path of a launch crosses those of other ranks, whose blocks have other sizes."""
    script = tmp_path / "route.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('nccl')\n"
        "sent, received = ([2, 10], [2, 11]) if dist.get_rank() == 0 else ([11, 3], [10, 3])\n"
        "x = torch.ones(sum(sent), 8, device='cuda')\n"
        "if dist.get_rank() == 1:\n"
        "    for _ in range(8):\n"
        "        x = x + 1\n"
        "dist.all_to_all_single(torch.empty(sum(received), 8, device='cuda'), x, received, sent)\n"
    )
    run = kb.run(script=script, machine=sips(2), as_cuda=True, ranks=2)
    assert run.explain().launches
    assert run.ranks is not None
    assert run.ranks.exchanges[0].received == (13, 13)
    assert run.to_dict()["ranks"]["imbalance"] == pytest.approx(14 / 13)
