"""torch.distributed of ranks: collectives of tensors on the machine and on the host, groups, stores, DDP."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from math import prod
from typing import Any

import pytest

from extras import need

need("triton")
need("torch")

import torch  # noqa: E402, I001

import kernbench.torch  # noqa: E402

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed import _functional_collectives as functional  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import DTensor, Shard  # noqa: E402
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from frontends.torch_programs import machine  # noqa: E402
from frontends.torch_rank_programs import run_ranks, sips  # noqa: E402
from kernbench.common.errors import InputError, SimulationDeadlock  # noqa: E402
from kernbench.common.program_line import SpawnException  # noqa: E402
from kernbench.frontends.torch.storage import current  # noqa: E402
from kernbench.topology.builder import resolve_topology  # noqa: E402

TWO_CUBES = resolve_topology(
    "default", ["system.sips.count=2", "sip.cube_mesh.w=2", "sip.cube_mesh.h=1", "cube.pe_layout.pe_per_corner=1"]
)
N = 4
ROWS = [[10.0 * rank + i for i in range(N)] for rank in range(N)]
"""The tensor of each rank"""


def block(rank: int, device: str) -> torch.Tensor:
    return torch.tensor(ROWS[rank], device=device)


def in_place(collective: Callable[[torch.Tensor], object]) -> Callable[[int, str], Any]:
    def call(rank: int, device: str) -> list[float]:
        x = block(rank, device)
        collective(x)
        return x.tolist()

    return call


def gather_list(rank: int, device: str) -> list[list[float]]:
    outputs = [torch.zeros(N, device=device) for _ in range(N)]
    dist.all_gather(outputs, block(rank, device))
    return [x.tolist() for x in outputs]


def into(size: int, collective: Callable[[torch.Tensor, torch.Tensor], object]) -> Callable[[int, str], Any]:
    def call(rank: int, device: str) -> list[float]:
        output = torch.zeros(size, device=device)
        collective(output, block(rank, device))
        return output.tolist()

    return call


def scatter_lists(rank: int, device: str) -> list[float]:
    output = torch.zeros(1, device=device)
    dist.reduce_scatter(output, list(block(rank, device).split(1)))
    return output.tolist()


def exchange_lists(rank: int, device: str) -> list[float]:
    outputs = [torch.zeros(1, device=device) for _ in range(N)]
    dist.all_to_all(outputs, list(block(rank, device).split(1)))
    return torch.cat(outputs).tolist()


def scatter(rank: int, device: str) -> list[float]:
    output = torch.zeros(1, device=device)
    dist.scatter(output, list(block(rank, device).split(1)) if rank == 1 else None, 1)
    return output.tolist()


def gather(rank: int, device: str) -> list[list[float]] | None:
    outputs = [torch.zeros(N, device=device) for _ in range(N)] if rank == 2 else None
    dist.gather(block(rank, device), outputs, 2)
    return None if outputs is None else [x.tolist() for x in outputs]


def exchange_uneven(rank: int, device: str) -> list[float]:
    """Send to each rank as many elements as its number, plus one on odd ranks."""
    sizes = [to + rank % 2 for to in range(N)]
    x = torch.arange(float(sum(sizes)), device=device) + 100 * rank
    come = [rank + source % 2 for source in range(N)]
    output = torch.zeros(sum(come), device=device)
    dist.all_to_all_single(output, x, come, sizes)
    return output.tolist()


def uneven_result(rank: int) -> list[float]:
    begins = [sum(to + source % 2 for to in range(rank)) for source in range(N)]
    counts = [rank + source % 2 for source in range(N)]
    return [100.0 * source + begins[source] + i for source in range(N) for i in range(counts[source])]


def reduce_bits(rank: int, device: str) -> list[list[int]]:
    results = []
    for op in (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR):
        x = torch.tensor([rank + 4, 7], device=device)
        dist.all_reduce(x, op)
        results.append(x.tolist())
    return results


def send_around(rank: int, device: str) -> list[float]:
    y = torch.zeros(N, device=device)
    ops = [
        dist.P2POp(dist.isend, block(rank, device), (rank + 1) % N),
        dist.P2POp(dist.irecv, y, (rank - 1) % N),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return y.tolist()


SUM = [sum(column) for column in zip(*ROWS, strict=True)]
COLUMNS = [list(column) for column in zip(*ROWS, strict=True)]
FLAT = [x for row in ROWS for x in row]
COLLECTIVES: dict[str, tuple[Callable[[int, str], Any], Callable[[int], Any]]] = {
    "all_reduce": (in_place(dist.all_reduce), lambda _: SUM),
    "all_reduce AVG": (in_place(lambda x: dist.all_reduce(x, dist.ReduceOp.AVG)), lambda _: [x / N for x in SUM]),
    "all_reduce MAX": (in_place(lambda x: dist.all_reduce(x, dist.ReduceOp.MAX)), lambda _: ROWS[-1]),
    "all_reduce MIN": (in_place(lambda x: dist.all_reduce(x, dist.ReduceOp.MIN)), lambda _: ROWS[0]),
    "all_reduce PRODUCT": (
        in_place(lambda x: dist.all_reduce(x, dist.ReduceOp.PRODUCT)),
        lambda _: [prod(column) for column in COLUMNS],
    ),
    "all_reduce BAND, BOR, BXOR": (reduce_bits, lambda _: [[4, 7], [7, 7], [0, 0]]),
    "scatter": (scatter, lambda rank: [ROWS[1][rank]]),
    "gather": (gather, lambda rank: ROWS if rank == 2 else None),
    "uneven all_to_all_single": (exchange_uneven, uneven_result),
    "broadcast": (in_place(lambda x: dist.broadcast(x, 2)), lambda _: ROWS[2]),
    "reduce": (in_place(lambda x: dist.reduce(x, 1)), lambda rank: SUM if rank == 1 else ROWS[rank]),
    "all_gather": (gather_list, lambda _: ROWS),
    "all_gather_single": (into(N * N, dist.all_gather_single), lambda _: FLAT),
    "reduce_scatter": (scatter_lists, lambda rank: [SUM[rank]]),
    "reduce_scatter_single": (into(1, dist.reduce_scatter_single), lambda rank: [SUM[rank]]),
    "all_to_all": (exchange_lists, lambda rank: COLUMNS[rank]),
    "all_to_all_single": (into(N, dist.all_to_all_single), lambda rank: COLUMNS[rank]),
    "send and receive": (send_around, lambda rank: ROWS[rank - 1]),
}


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_collectives_have_the_values_of_pytorch(device: str) -> None:
    names = list(COLLECTIVES) if device == "cuda" else [name for name in COLLECTIVES if "send" not in name]

    def program(rank: int) -> dict[str, Any]:
        return {name: COLLECTIVES[name][0](rank, device) for name in names}

    for rank, results in enumerate(run_ranks(program, N)):
        assert results == {name: COLLECTIVES[name][1](rank) for name in names}


def test_a_collective_of_a_view_leaves_the_elements_beside_it() -> None:
    def program(rank: int) -> Any:
        x = (torch.arange(12.0, device="cuda") + 100 * rank).view(3, 4)
        dist.all_reduce(x[1])
        y = torch.zeros(2, 4, device="cuda")
        dist.all_gather_single(y[:, 1:3].unbind(0)[0], x[2, 3:])
        dist.broadcast(x.T[0], 0)
        return x.tolist(), y.tolist()

    first, second = run_ranks(program)
    assert first[0] == [[0, 1, 2, 3], [108, 110, 112, 114], [8, 9, 10, 11]]
    assert second[0] == [[0, 101, 102, 103], [108, 110, 112, 114], [8, 109, 110, 111]]
    assert first[1] == second[1] == [[0, 11, 111, 0], [0, 0, 0, 0]]


def test_launches_begin_after_the_collective_of_their_tensors() -> None:
    def program(rank: int) -> Any:
        x = torch.full((1000,), rank + 1.0, device="cuda")
        work = dist.all_reduce(x, async_op=True)
        begun = work.is_completed()
        y = x * 2
        x += 1
        dist.all_reduce(x)
        assert work.wait()
        assert work.get_future().wait()[0] is x
        return begun, y[-1].item(), x[-1].item()

    for queue in (0, 64):
        assert run_ranks(program, 2, f"torch.queue={queue}") == [(False, 6, 8)] * 2


def test_groups_of_some_ranks() -> None:
    def program(rank: int) -> Any:
        pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        pair = pairs[rank % 2]
        x = torch.tensor([float(rank)], device="cuda")
        dist.all_reduce(x, group=pair)
        dist.broadcast(x, src=2 + rank % 2, group=pair)
        objects: list[Any] = [None, None]
        dist.all_gather_object(objects, {"rank": rank}, group=pair)
        alone, _ = dist.new_subgroups(1)
        dist.all_reduce(x, group=alone)
        dist.barrier(group=pair)
        return x.item(), objects, dist.get_rank(pair), dist.get_process_group_ranks(pair), dist.get_backend(pair)

    for rank, result in enumerate(run_ranks(program, 4)):
        ranks = [rank % 2, rank % 2 + 2]
        assert result == (float(sum(ranks)), [{"rank": other} for other in ranks], rank // 2, ranks, "nccl")


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_roots_of_a_group_are_counted_among_all_ranks(device: str) -> None:
    def program(rank: int) -> Any:
        group = dist.new_group([0, 2])
        if rank == 1:
            return None
        x = block(rank, device)
        reduced, sent = x.clone(), x.clone()
        gathered = [torch.zeros_like(x) for _ in range(2)] if rank == 2 else None
        scattered = torch.zeros(2, device=device)
        dist.reduce(reduced, 2, group=group)
        dist.broadcast(sent, 2, group=group)
        dist.gather(x, gathered, 2, group=group)
        dist.scatter(scattered, list(x.split(2)) if rank == 2 else None, 2, group=group)
        return reduced.tolist(), sent.tolist(), gathered and [y.tolist() for y in gathered], scattered.tolist()

    first, _, last = run_ranks(program, 3)
    total = [a + b for a, b in zip(ROWS[0], ROWS[2], strict=True)]
    assert first == (ROWS[0], ROWS[2], None, ROWS[2][:2])
    assert last == (total, ROWS[2], [ROWS[0], ROWS[2]], ROWS[2][2:])


def test_objects_and_host_tensors_are_exchanged_in_no_simulated_time() -> None:
    def program(rank: int) -> Any:
        context = current()
        begin = context.engine.now
        objects: list[Any] = [rank, "x"] if rank == 0 else [None, None]
        dist.broadcast_object_list(objects, src=0)
        received: list[Any] = [None]
        dist.scatter_object_list(received, [[other] for other in range(2)] if rank == 1 else None, src=1)
        collected = [None, None] if rank == 0 else None
        dist.gather_object({rank}, collected, dst=0)
        x = torch.tensor([rank + 1, 6])
        for op in (dist.ReduceOp.PRODUCT, dist.ReduceOp.BXOR):
            dist.all_reduce(x, op)
        parts = [torch.zeros(rank + 1) for _ in range(2)]
        dist.all_to_all(parts, [torch.full((to + 1,), float(rank)) for to in range(2)])
        if rank == 0:
            dist.send(torch.ones(2), 1)
        else:
            dist.recv(x, 0)
        dist.barrier()
        return objects, received, collected, x.tolist(), [part.tolist() for part in parts], context.engine.now - begin

    first, second = run_ranks(program, backend="gloo")
    assert first == ([0, "x"], [[0]], [{0}, {1}], [0, 0], [[0], [1]], 0)
    assert second == ([0, "x"], [[1]], None, [1, 1], [[0, 0], [1, 1]], 0)


def test_whole_numbers_that_ranks_know_stay_known_without_data() -> None:
    def program(rank: int) -> Any:
        x = torch.arange(3, device="cuda") + rank
        outputs = [torch.empty_like(x) for _ in range(2)]
        dist.all_gather(outputs, x)
        flat = torch.zeros(6, dtype=x.dtype, device="cuda")
        dist.all_gather_single(flat, x)
        dist.all_reduce(x)
        dist.broadcast(flat, 1)
        return x.tolist(), [output.tolist() for output in outputs], flat.tolist()

    assert run_ranks(program, data=False) == [([1, 3, 5], [[0, 1, 2], [1, 2, 3]], [0, 1, 2, 1, 2, 3])] * 2


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: dist.recv(torch.ones(2, device="cuda")), "name the rank, src=N"),
        (lambda: dist.all_reduce(torch.ones(2, device="cuda"), dist._make_nccl_premul_sum(2.0)), "a reduction by"),  # noqa: SLF001
        (lambda: dist.all_gather([torch.ones(2)] * 2, torch.ones(2, device="cuda")), "move both to one"),
    ],
)
def test_a_collective_that_the_machine_lacks_is_refused_at_its_line(call: Callable[[], object], text: str) -> None:
    with pytest.raises(SpawnException, match=rf"rank \d failed: InputError: test_torch_distributed.py:\d+: .*{text}"):
        run_ranks(lambda _: call())


@pytest.mark.parametrize("comm", ["same", "cube", "pes:1"])
def test_collectives_run_on_the_pes_of_the_setting(comm: str) -> None:
    with machine("torch.queue=64", f"torch.comm={comm}", topology=TWO_CUBES) as context, kernbench.torch.as_cuda():
        results = []

        def main(rank: int) -> None:
            dist.init_process_group("nccl")
            x = torch.full((4096,), rank + 1.0, device="cuda") * 2
            dist.all_reduce(x)
            results.append((x[0].item(), x[-1].item()))

        torch.multiprocessing.spawn(main, nprocs=2)
        pes = {pe[1:] for trace in context.traces if trace.name == "all_reduce" for pe in trace.pe_exec_ns}
        owners = {pe[1:] for trace in context.traces if trace.name.startswith("mul") for pe in trace.pe_exec_ns}
        remarks = context.remarks
    assert results == [(6, 6)] * 2
    cubes = {"same": {0}, "cube": {1}, "pes:1": {0}}[comm]
    assert {cube for cube, _ in pes} == cubes
    assert (pes == owners) is (comm == "same")
    assert comm == "same" or not pes & owners
    assert any(remark.startswith("collectives of 2 ranks: on the PEs of") for remark in remarks)


def test_a_setting_that_leaves_no_pes_is_refused_before_ranks_start() -> None:
    with pytest.raises(InputError, match=r"torch.comm=cube: tensors lie on all 1 cubes"):
        run_ranks(print, 2, "torch.comm=cube")


def test_ranks_that_never_join_are_named() -> None:
    def program(rank: int) -> None:
        x = torch.ones(4, device="cuda")
        if rank == 0:
            dist.all_reduce(x)
            x.tolist()
        else:
            objects: list[Any] = [None, None]
            dist.all_gather_object(objects, 1)

    with pytest.raises(SimulationDeadlock) as caught:
        run_ranks(program)
    assert "which rank 1 never joined" in str(caught.value)
    assert "rank 1 waits for all_gather on the host, which rank 0 never joined" in str(caught.value)


# joining


def join(rank: int, /, **options: Any) -> float:
    dist.init_process_group("nccl", **options)
    x = torch.full((2,), rank + 1.0, device="cuda")
    dist.all_reduce(x)
    dist.destroy_process_group()
    return x[0].item()


JOINS: dict[str, Callable[[int], dict[str, Any]]] = {
    "nothing": lambda _: {},
    "tcp": lambda rank: {"init_method": "tcp://127.0.0.1:23456", "rank": rank, "world_size": 2},
    "file": lambda rank: {"init_method": "file:///tmp/no_such_folder/x", "rank": rank, "world_size": 2},
    "env": lambda rank: {"init_method": "env://", "rank": rank, "world_size": 2},
    "device_id": lambda rank: {"device_id": torch.device("cuda", rank)},
    "HashStore": lambda rank: {"store": dist.HashStore(), "rank": rank, "world_size": 2},
    "TCPStore": lambda rank: {
        "store": dist.TCPStore("localhost", 1, 2, rank == 0, timedelta(seconds=1)),
        "rank": rank,
        "world_size": 2,
    },
}


@pytest.mark.parametrize("way", JOINS)
def test_ranks_join_in_every_way_of_pytorch(way: str) -> None:
    assert run_ranks(lambda rank: join(rank, **JOINS[way](rank)), backend=None) == [3, 3]


def test_a_group_can_be_created_again() -> None:
    assert run_ranks(lambda rank: join(rank) + join(rank), backend=None) == [6, 6]


def test_a_rank_that_says_it_is_another_one_is_refused() -> None:
    with pytest.raises(SpawnException, match=r"\d+: init_process_group: world_size is 3, but this is rank 0 of 2"):
        run_ranks(lambda rank: join(rank, rank=rank, world_size=3), backend=None)
    with pytest.raises(SpawnException, match=r"backend 'mpi'"):
        run_ranks(lambda _: None, backend="mpi")


def test_a_rank_that_waits_for_a_key_lets_the_others_run() -> None:
    def program(rank: int) -> Any:
        store = dist.TCPStore("localhost", 1, 2, rank == 0)
        if rank == 0:
            store.wait(["key"])
            return store.get("key"), store.add("count", 2)
        torch.ones(4, device="cuda").sum().item()
        store.set("key", "value")
        return store.add("count", 3), store.check(["key", "other"])

    assert run_ranks(program, backend=None) == [(b"value", 5), (3, False)]
    with pytest.raises(SimulationDeadlock, match="rank 0 waits for key 'never' of the store"):
        run_ranks(lambda rank: rank or dist.FileStore("/tmp/x", 2).get("never"), backend=None)


# DDP


class Model(nn.Module):
    """A small model. Without ``extra``, a part of it has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 8)
        self.extra = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, extra: bool = True) -> torch.Tensor:
        y = self.last(torch.nn.functional.gelu(self.norm(self.first(x))))
        return self.extra(y) if extra else y


def make_model() -> Model:
    torch.manual_seed(0)
    return Model()


BATCH = 4


def train(model: nn.Module, x: torch.Tensor, y: torch.Tensor, extra: bool, steps: int = 3) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x, extra), y).backward()
        optimizer.step()


def batch(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(BATCH * n, 16, generator=generator), torch.randn(BATCH * n, 8, generator=generator)


def check_ddp(n: int, *, extra: bool = True, steps: int = 3, **options: Any) -> None:
    """Weights are those of one process to 1e-6 of the largest of all, and bit-equal on all ranks."""

    def program(rank: int) -> list[torch.Tensor]:
        model = make_model().to(rank)
        x, y = (part[rank * BATCH : (rank + 1) * BATCH].to(rank) for part in batch(n))
        train(DistributedDataParallel(model, device_ids=[rank], **options), x, y, extra, steps)
        return [p.detach().cpu() for p in model.parameters()]

    ranks = run_ranks(program, n)
    reference = make_model()
    train(reference, *batch(n), extra, steps)
    for other in ranks[1:]:
        assert all(torch.equal(a, b) for a, b in zip(ranks[0], other, strict=True))
    largest = max(p.detach().abs().max().item() for p in reference.parameters())
    for trained, wanted in zip(ranks[0], reference.parameters(), strict=True):
        torch.testing.assert_close(trained, wanted.detach(), atol=1e-6 * largest, rtol=0)


def test_ddp_trains_as_one_process() -> None:
    check_ddp(2, steps=2, gradient_as_bucket_view=True)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"static_graph": True}, {"bucket_cap_mb": 0.001}], ids=str)
def test_ddp_trains_as_one_process_with_other_options(options: dict[str, Any]) -> None:
    check_ddp(2, **options)


@pytest.mark.slow
def test_ddp_finds_unused_parameters() -> None:
    check_ddp(2, extra=False, find_unused_parameters=True)


@pytest.mark.slow
@pytest.mark.parametrize("n", [4, 8])
def test_ddp_trains_more_ranks_as_one_process(n: int) -> None:
    check_ddp(n)


def gradients(model: nn.Module, inputs: list[torch.Tensor], *, skip: Callable[[], Any] | None = None) -> list[Any]:
    for at, x in enumerate(inputs):
        with skip() if skip is not None and at < len(inputs) - 1 else torch.enable_grad():
            model(x).square().mean().backward()
    return [None if p.grad is None else p.grad.detach().cpu() for p in model.parameters()]


@pytest.mark.slow
def test_ddp_adds_gradients_without_exchange_under_no_sync() -> None:
    def program(rank: int) -> list[Any]:
        ddp = DistributedDataParallel(make_model().to(rank), device_ids=[rank])
        inputs = [x[rank * BATCH : (rank + 1) * BATCH].to(rank) for x in (batch(2)[0], batch(2)[0] + 1)]
        return gradients(ddp, inputs, skip=ddp.no_sync)

    first, second = run_ranks(program)
    wanted = gradients(make_model(), [batch(2)[0], batch(2)[0] + 1])
    for a, b, c in zip(first, second, wanted, strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, c, atol=1e-6 * c.abs().max().item() + 1e-7, rtol=0)


def test_ddp_has_the_same_time_with_and_without_data() -> None:
    def program(rank: int) -> None:
        ddp = DistributedDataParallel(nn.Linear(16, 8).to(rank), device_ids=[rank])
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            ddp(torch.ones(BATCH, 16, device="cuda")).square().mean().backward()
            optimizer.step()

    times = []
    for data in (True, False):
        with machine("torch.queue=64", data=data, topology=sips(2)) as context, kernbench.torch.as_cuda():

            def main(rank: int) -> None:
                dist.init_process_group("nccl")
                program(rank)

            torch.multiprocessing.spawn(main, nprocs=2)
            times.append(context.engine.now)
    assert times[0] == times[1]


def backward_ns(comm: str) -> float:
    """Return the time of the fourth backward of a perceptron under DDP, on two devices of the packaged machine."""
    backward: list[float] = []

    def main(rank: int) -> None:
        dist.init_process_group("nccl")
        layers = nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 64)
        model = nn.Sequential(*layers).to(rank)
        ddp = DistributedDataParallel(model, device_ids=[rank], bucket_cap_mb=0.1, gradient_as_bucket_view=True)
        x, y = torch.randn(2, 64, 64, device="cuda")
        for _ in range(4):
            model.zero_grad()
            loss = nn.functional.mse_loss(ddp(x), y)
            events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            torch.cuda.synchronize()
            events[0].record()
            loss.backward()
            torch.cuda.synchronize()
            events[1].record()
            if rank == 0:
                backward.append(events[0].elapsed_time(events[1]) * 1e6)

    settings = ("torch.queue=64", f"torch.comm={comm}")
    topology = resolve_topology("default", ["cube.hbm.refresh=spread"])
    with machine(*settings, data=False, topology=topology), kernbench.torch.as_cuda():
        torch.multiprocessing.spawn(main, nprocs=2)
    return backward[-1]


@pytest.mark.slow
def test_ddp_hides_its_sums_behind_the_backward_pass() -> None:
    assert backward_ns("cube") <= 0.85 * backward_ns("same")


def test_ddp_refuses_models_of_different_shapes() -> None:
    def program(rank: int) -> None:
        DistributedDataParallel(nn.Linear(2 + rank, 2).cuda())

    for data in (True, False):
        with pytest.raises(SpawnException, match=r"appears not to match sizes|shape|number of params"):
            run_ranks(program, data=data)


def test_ranks_may_be_fewer_than_sips() -> None:
    results: dict[int, Any] = {}

    def program(rank: int) -> None:
        dist.init_process_group("nccl")
        outputs = [torch.zeros(2, device="cuda") for _ in range(3)]
        dist.all_gather(outputs, torch.full((2,), float(rank), device="cuda"))
        x = torch.stack(outputs)
        dist.all_reduce(x)
        dist.barrier()
        results[rank] = x.tolist(), dist.get_world_size()

    with machine("torch.queue=64", topology=sips(4)), kernbench.torch.as_cuda():
        torch.multiprocessing.spawn(program, nprocs=3)
    assert results == dict.fromkeys(range(3), ([[0, 0], [3, 3], [6, 6]], 3))


def test_one_rank_needs_no_collective() -> None:
    def program(rank: int) -> float:
        x = torch.ones(4, device="cuda")
        dist.all_reduce(x)
        outputs = [torch.zeros(4, device="cuda")]
        dist.all_gather(outputs, x)
        model = DistributedDataParallel(nn.Linear(4, 1).cuda())
        model(outputs[0]).sum().backward()
        assert model.module.weight.grad is not None
        return float(model.module.weight.grad.sum().item()) + rank

    assert run_ranks(program, 1) == [4]
    with pytest.raises(InputError), machine(topology=sips(1)):
        dist.init_process_group("nccl", rank=0, world_size=2, store=dist.HashStore())


def test_tensor_parallel_models_are_trained_as_one_process() -> None:
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))

    def make() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))

    def program(_: int) -> Any:
        mesh = init_device_mesh("cuda", (2,))
        model: Any = parallelize_module(make().cuda(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        y = model(x.cuda())
        y.square().sum().backward()
        return y.detach().cpu(), [p.grad.full_tensor().cpu() for p in model.parameters()]

    host = make()
    wanted = host(x)
    wanted.square().sum().backward()
    for y, trained in run_ranks(program):
        torch.testing.assert_close(y, wanted.detach(), atol=1e-6, rtol=1e-6)
        for gradient, p in zip(trained, host.parameters(), strict=True):
            torch.testing.assert_close(gradient, p.grad, atol=1e-5, rtol=1e-5)


def test_functional_collectives() -> None:
    def program(rank: int) -> Any:
        x, group = torch.arange(4.0, device="cuda") + 10 * rank, dist.group.WORLD
        results = [
            functional.all_reduce(x, "sum", group),
            functional.all_gather_single(x, 0, group),
            functional.reduce_scatter_single(x, "max", 0, group),
            functional.all_to_all_single(x, None, None, group),
            functional.broadcast(x, 1, group),
            x,
        ]
        mesh = init_device_mesh("cuda", (2,))
        sharded = DTensor.from_local(x.view(2, 2), mesh, [Shard(0)])
        return [y.tolist() for y in results], sharded.redistribute(placements=[Shard(1)]).to_local().tolist()

    for rank, (results, column) in enumerate(run_ranks(program)):
        assert results == [
            [10, 12, 14, 16],
            [0, 1, 2, 3, 10, 11, 12, 13],
            [10, 11] if rank == 0 else [12, 13],
            [0, 1, 10, 11] if rank == 0 else [2, 3, 12, 13],
            [10, 11, 12, 13],
            [10.0 * rank + i for i in range(4)],
        ]
        assert column == [[rank], [2 + rank], [10 + rank], [12 + rank]]


def test_the_report_has_collectives_with_their_bandwidth_and_the_part_beside_kernels() -> None:
    with machine("torch.queue=64", topology=TWO_CUBES, data=False) as context, kernbench.torch.as_cuda():

        def main(rank: int) -> None:
            dist.init_process_group("nccl")
            x, a = torch.ones(16384, device="cuda"), torch.ones(128, 128, device="cuda")
            dist.all_reduce(x)
            torch.cuda.synchronize()
            dist.all_reduce(x, async_op=True)
            for _ in range(8):
                a = a @ a
            y = torch.zeros(2, 8, device="cuda")
            dist.all_gather_single(y, a[0, :8])
            if rank == 0:
                dist.send(y, 1)
            else:
                dist.recv(y, 0)

        torch.multiprocessing.spawn(main, nprocs=2)
        uses = {use.name: use for use in context.collectives.uses(context.engine.handles, 0)}
        late = context.collectives.uses(context.engine.handles, context.engine.machine.clock.time)
    assert late == ()
    assert {name: (use.calls, use.nbytes) for name, use in uses.items()} == {
        "all_reduce": (2, 2 * 65536),
        "all_gather": (1, 64),
        "send_recv": (1, 64),
    }
    reduced = uses["all_reduce"]
    assert reduced.algorithm == "sip_allreduce"
    assert reduced.bus_gbs == pytest.approx(2 * 65536 / reduced.ns)
    assert 0.2 < reduced.hidden < 0.8  # the second of two, which a product runs beside
    assert uses["send_recv"].bus_gbs == pytest.approx(64 / uses["send_recv"].ns)
    assert uses["all_gather"].bus_gbs == pytest.approx(32 / uses["all_gather"].ns)


def test_a_collective_counts_the_bytes_of_all_blocks() -> None:
    """Count the tensor that a rank reduces or broadcasts, or the blocks of all ranks, also of a root."""

    def main(rank: int) -> None:
        dist.init_process_group("nccl")
        x, blocks = torch.ones(32, device="cuda"), [torch.ones(32, device="cuda") for _ in range(3)]
        dist.all_reduce(x)
        dist.broadcast(x, 1)
        dist.reduce(x, 1)
        dist.all_gather(blocks, x)
        dist.reduce_scatter(x, blocks)
        dist.all_to_all(blocks, [x, x, x])
        dist.gather(x, blocks if rank == 1 else None, 1)
        dist.scatter(x, blocks if rank == 1 else None, 1)

    with machine("torch.queue=64", topology=sips(3), data=False) as context, kernbench.torch.as_cuda():
        torch.multiprocessing.spawn(main, nprocs=3)
        uses = {use.name: (use.calls, use.nbytes) for use in context.collectives.uses(context.engine.handles, 0)}
    whole = ("all_reduce", "broadcast", "reduce")
    of_blocks = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
    assert uses == dict.fromkeys(whole, (1, 128)) | dict.fromkeys(of_blocks, (1, 3 * 128))


def test_memory_that_a_message_uses_is_not_reused_before_it_has_left() -> None:
    results: dict[int, float] = {}

    def program(rank: int) -> None:
        dist.init_process_group("nccl")
        n = 100_000  # more than the queues hold
        x = torch.full((n,), rank + 1.0, device="cuda")
        sent = dist.isend(x, 1 - rank)
        del x, sent
        y = torch.zeros(n, device="cuda")
        dist.irecv(y, 1 - rank).wait()
        results[rank] = y[-1].item()

    with machine("torch.queue=64", topology=TWO_CUBES), kernbench.torch.as_cuda():
        torch.multiprocessing.spawn(program, nprocs=2)
    assert results == {0: 2, 1: 1}


def test_a_program_of_ranks_that_runs_as_one_is_told_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with machine(), pytest.raises(ValueError, match=r"RANK expected.*--ranks N runs the script in N ranks"):
        dist.init_process_group("nccl")
