"""torch.distributed in a program without ranks: one rank has the right values, more ranks are refused."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from extras import need

need("triton")
need("torch")

import torch  # noqa: E402, I001

import kernbench.torch  # noqa: E402
import kernbench.triton  # noqa: E402 - before DTensor, which imports triton

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed import _functional_collectives as functional  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import Replicate, Shard, distribute_tensor  # noqa: E402
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module  # noqa: E402

from frontends.torch_programs import machine  # noqa: E402
from kernbench.common.errors import InputError  # noqa: E402
from kernbench.runtime_api.context import RuntimeContext  # noqa: E402

MORE = "start a rank for each SIP with --ranks N, or with torch.multiprocessing.spawn"


@pytest.fixture
def context() -> Iterator[RuntimeContext[Any]]:
    with machine() as running, kernbench.torch.as_cuda():
        yield running


@pytest.fixture
def group(context: RuntimeContext[Any]) -> Iterator[RuntimeContext[Any]]:
    """A group of one rank, of gloo."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield context
    dist.destroy_process_group()


def ones() -> torch.Tensor:
    return torch.ones(3, device="cuda")


def zeros() -> torch.Tensor:
    return torch.zeros(3, device="cuda")


def into(collective: Callable[[Any], object]) -> Callable[[], Any]:
    """Return what a collective writes to a tensor of zeros."""

    def call() -> Any:
        result = zeros()
        collective(result)
        return result

    return call


def in_place(collective: Callable[[Any], object]) -> Callable[[], Any]:
    def call() -> Any:
        x = ones()
        collective(x)
        return x

    return call


def coalesced() -> Any:
    x = ones()
    with dist._coalescing_manager():  # noqa: SLF001 - as programs do
        dist.all_reduce(x)
        dist.all_reduce(ones())
    return x


def awaited() -> Any:
    x = ones()
    work = dist.all_reduce(x, async_op=True)
    assert work.is_completed()
    work.wait()
    assert work.get_future().wait()[0] is x
    return x


COLLECTIVES: dict[str, Callable[[], Any]] = {
    "all_reduce": in_place(dist.all_reduce),
    "all_reduce AVG": in_place(lambda x: dist.all_reduce(x, op=dist.ReduceOp.AVG)),
    "all_reduce async": awaited,
    "all_reduce coalesced": coalesced,
    "broadcast": in_place(lambda x: dist.broadcast(x, 0)),
    "reduce": in_place(lambda x: dist.reduce(x, 0)),
    "scatter": into(lambda x: dist.scatter(x, [ones()], 0)),
    "gather": into(lambda x: dist.gather(ones(), [x], 0)),
    "all_gather": into(lambda x: dist.all_gather([x], ones())),
    "all_gather_into_tensor": into(lambda x: dist.all_gather_into_tensor(x, ones())),
    "reduce_scatter": into(lambda x: dist.reduce_scatter(x, [ones()])),
    "reduce_scatter_tensor": into(lambda x: dist.reduce_scatter_tensor(x, ones())),
    "all_to_all": into(lambda x: dist.all_to_all([x], [ones()])),
    "all_to_all_single": into(lambda x: dist.all_to_all_single(x, ones())),
    "functional all_reduce": lambda: functional.all_reduce(ones(), "sum", dist.group.WORLD),
    "functional all_gather": lambda: functional.all_gather_tensor(ones(), 0, dist.group.WORLD),
    "functional reduce_scatter": lambda: functional.reduce_scatter_tensor(ones(), "sum", 0, dist.group.WORLD),
    "functional all_to_all": lambda: functional.all_to_all_single(ones(), None, None, dist.group.WORLD),
    "functional broadcast": lambda: functional.broadcast(ones(), 0, dist.group.WORLD),
}


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_collectives_of_one_rank_have_its_values(group: RuntimeContext[Any], collective: str) -> None:
    assert COLLECTIVES[collective]().tolist() == [1, 1, 1]
    dist.barrier()
    assert not group.unmodelled


@pytest.mark.usefixtures("group")
def test_what_one_rank_cannot_do_is_refused_at_its_line() -> None:
    with pytest.raises(InputError, match=r"test_torch_collectives.py:\d+: a collective with root 1: .* rank 0 alone"):
        dist.broadcast(ones(), 1)
    with pytest.raises(InputError, match=r"test_torch_collectives.py:\d+: .* has 6 elements of torch.float32, .* 3 of"):
        dist.all_gather_single(torch.zeros(6, device="cuda"), ones())
    with pytest.raises(InputError, match=r"test_torch_collectives.py:\d+: operator c10d::send .* schema does not say"):
        torch.ops.c10d.send([ones()], dist.group.WORLD.boxed(), 0, 0)


@pytest.mark.usefixtures("group")
def test_distributed_tensors_on_a_mesh_of_one() -> None:
    mesh = init_device_mesh("cuda", (1,))
    host = torch.arange(8.0).view(2, 4)
    for placement in (Shard(0), Shard(1), Replicate()):
        x = distribute_tensor(host.to("cuda"), mesh, [placement])
        assert x.to_local().tolist() == x.full_tensor().tolist() == host.tolist()
        assert x.redistribute(placements=[Shard(1)]).sum().full_tensor().item() == 28
        assert (x @ x.T).full_tensor().tolist() == (host @ host.T).tolist()


def parallel(model: Any) -> Any:
    mesh = init_device_mesh("cuda", (1,))
    return parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("wrap", [parallel, nn.parallel.DistributedDataParallel])
def test_parallel_models_are_trained_as_on_the_host(wrap: Callable[[Any], Any]) -> None:
    torch.manual_seed(0)
    on_host, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.randn(3, 4)
    on_machine = wrap(copy.deepcopy(on_host).to("cuda"))
    for _ in range(2):
        results = []
        for model, there in ((on_host, x), (on_machine, x.to("cuda"))):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            result = model(there)
            result.square().sum().backward()
            optimizer.step()
            results.append(result.detach().cpu())
        torch.testing.assert_close(results[1], results[0], atol=1e-6, rtol=0)


WAYS_TO_MORE: dict[str, Callable[[], object]] = {
    "world_size": lambda: dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=2),
    "torchrun": lambda: dist.init_process_group("gloo"),
    "fake": lambda: dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=4),
    "mesh": lambda: init_device_mesh("cuda", (2,)),
    "DataParallel": lambda: nn.DataParallel(nn.Linear(2, 2).cuda()),
    "data_parallel": lambda: nn.parallel.data_parallel(nn.Linear(2, 2).cuda(), torch.ones(2, 2)),
    "replicate": lambda: nn.parallel.replicate(nn.Linear(2, 2).cuda(), [0, 0]),
}


@pytest.mark.usefixtures("context")
@pytest.mark.parametrize("way", WAYS_TO_MORE)
def test_more_ranks_are_refused_at_their_line(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, text in environment.items():
        monkeypatch.setenv(name, text)
    with pytest.raises(InputError, match=rf"test_torch_collectives.py:\d+: .*{MORE}"):
        WAYS_TO_MORE[way]()
    assert not dist.is_initialized()


def test_without_a_machine_nothing_is_refused() -> None:
    dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=4)
    assert dist.get_world_size() == 4
    dist.destroy_process_group()


@pytest.mark.usefixtures("context")
def test_the_host_writes_what_the_schema_of_an_operator_says() -> None:
    library = torch.library.Library("kernbench_writes", "DEF")

    def define(schema: str, function: Callable[..., Any]) -> Any:
        library.define(schema)
        name = schema.partition("(")[0]
        library.impl(name, function, "CPU")
        return getattr(torch.ops.kernbench_writes, name)

    def add(x: Any, ys: Any) -> None:
        for tensor in (x, *ys):
            tensor.add_(1)

    def fill(x: Any, out: Any) -> None:
        for tensor in out:
            tensor.resize_(3).copy_(x)

    x, ys = torch.tensor([1.0, float("nan"), 3.0], device="cuda"), [zeros(), torch.zeros(3, 2, device="cuda").T[1]]
    assert define("returns(Tensor x) -> Tensor", lambda x: x + 1)(x)[::2].tolist() == [2, 4]
    define("adds(Tensor(a!) x, Tensor(b!)[] ys) -> ()", add)(x, ys)
    assert [x[::2].tolist(), *[y.tolist() for y in ys]] == [[2, 4], [1, 1, 1], [1, 1, 1]]
    outs = [torch.zeros(0, device="cuda"), torch.zeros(5, device="cuda")]
    define("fills(Tensor x, *, Tensor(a!)[] out) -> ()", fill)(ones(), out=outs)
    assert [y.tolist() for y in outs] == [[1, 1, 1], [1, 1, 1]]
    rounded = torch.ones(2, dtype=torch.bfloat16, device="cuda")
    assert define("changes(Tensor(a!) x) -> Tensor(a!)", lambda x: x.add_(1))(rounded) is rounded
    assert rounded.tolist() == [2, 2]
    silent = define("silent(Tensor x, Tensor[] ys) -> ()", add)
    with pytest.raises(
        InputError, match=r"collectives.py:\d+: operator kernbench_writes::silent, .* write Tensor\(a!\)"
    ):
        silent(x, ys)
    assert x[::2].tolist() == [2, 4]


def test_whole_numbers_that_a_collective_moves_stay_known_without_data() -> None:
    with machine(data=False), kernbench.torch.as_cuda():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            result = torch.zeros(3, dtype=torch.int64, device="cuda")
            dist.scatter(result, [torch.arange(3, device="cuda")], 0)
            assert result.tolist() == [0, 1, 2]
            dist.all_reduce(result)
            assert result.tolist() == [0, 1, 2]
        finally:
            dist.destroy_process_group()
