"""Fully sharded data parallelism (FSDP2): numbers of one process, memory, alone and with tensor parallelism."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from extras import need

need("triton")
need("torch")

import torch  # noqa: E402, I001

import kernbench.torch  # noqa: E402, F401

from torch import Tensor, nn  # noqa: E402
from torch.distributed import checkpoint  # noqa: E402
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard  # noqa: E402

from frontends.torch_parallel_models import (  # noqa: E402
    assert_near,
    batches,
    gradients,
    loss_of,
    new_gpt,
    parallelize,
    whole_tensors,
)
from frontends.torch_programs import machine  # noqa: E402
from frontends.torch_rank_programs import run_ranks  # noqa: E402
from kernbench.common.errors import InputError  # noqa: E402
from kernbench.frontends.torch.storage import current  # noqa: E402


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 10), nn.Linear(10, 6)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(x)))


def new_layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Layer(), Layer())


def inputs(n: int) -> list[Tensor]:
    numbers = torch.Generator().manual_seed(1)
    return [torch.randn(4 * n, 6, generator=numbers) for _ in range(2)]


def train(model: nn.Module, xs: list[Tensor], *, max_norm: float = 0.02) -> tuple[Any, Any, Any]:
    """Take two steps; return the gradients of the first, its norm, and the weights."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-4)
    for step, x in enumerate(xs):
        model(x).square().mean().backward()
        if step == 0:
            first = gradients(model)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        if step == 0:
            first_norm = norm.full_tensor().item() if hasattr(norm, "full_tensor") else norm.item()
        optimizer.step()
        optimizer.zero_grad()
    return first, first_norm, whole_tensors(model.state_dict())


def shard(model: nn.Sequential, mesh: Any, **options: Any) -> nn.Sequential:
    for layer in model:
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


@pytest.mark.parametrize("n", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_fsdp_has_the_gradients_and_weights_of_one_process(n: int) -> None:
    def program(rank: int) -> Any:
        model = shard(new_layers().cuda(), init_device_mesh("cuda", (n,)), reshard_after_forward=n == 2)
        return train(model, [x.chunk(n)[rank].cuda() for x in inputs(n)])

    first, norm, weights = train(new_layers(), inputs(n))
    results = run_ranks(program, n)
    assert_near([result[0] for result in results], first)
    assert_near([result[2] for result in results], weights)
    assert [result[1] for result in results] == pytest.approx([norm] * n, rel=1e-6)


@pytest.mark.parametrize(
    ("shapes", "dim", "n"), [(((6, 4), (5,), (1, 3)), 0, 4), (((8, 4), (4, 2)), 0, 4), (((2, 6), (2, 5, 3)), 1, 4)]
)
def test_shards_are_joined_and_separated_in_one_launch(shapes: Any, dim: int, n: int) -> None:
    numbers = torch.Generator().manual_seed(0)
    tensors = [torch.randn(shape, generator=numbers) for shape in shapes]
    expected = torch._chunk_cat(tensors, dim, n)  # noqa: SLF001 - FSDP2 calls it
    with machine() as context:
        on_machine = [x.to("ahbm") for x in tensors]
        rounded = torch.empty(expected.shape, dtype=torch.bfloat16, device="ahbm")
        torch._chunk_cat(on_machine, dim, n, out=rounded)  # noqa: SLF001
        joined = torch._chunk_cat(on_machine, dim, n)  # noqa: SLF001
        sizes = [1, expected.shape[-1] - 1]
        pieces = [torch.empty(*expected.shape[:-1], size, device="ahbm") for size in sizes]
        torch.split_with_sizes_copy(joined, sizes, expected.dim() - 1, out=pieces)
        uses = {use.name: (use.calls, use.launches) for use in context.operators.uses()}
        assert torch.equal(joined.cpu(), expected)
        assert torch.equal(rounded.cpu(), expected.bfloat16())
        assert all(torch.equal(x.cpu(), y) for x, y in zip(pieces, expected.split(sizes, -1), strict=True))
    assert (uses["_chunk_cat"], uses["split_with_sizes_copy"]) == ((2, 2), (1, 1))


@pytest.mark.slow
def test_parameters_of_the_meta_device_get_the_numbers_of_one_process() -> None:
    def program(rank: int) -> Any:
        mesh = init_device_mesh("cuda", (2,))
        with torch.device("meta"):
            model = nn.Sequential(Layer(), Layer())
        shard(model, mesh)
        model[0].set_modules_to_forward_prefetch([model[1]])
        model[1].set_modules_to_backward_prefetch([model[0]])
        model.to_empty(device="cuda")
        torch.manual_seed(0)
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.reset_parameters()
        begin = whole_tensors(model.state_dict())
        return begin, *train(model, [x.chunk(2)[rank].cuda() for x in inputs(2)])

    begin = whole_tensors(new_layers().state_dict())
    first, _, weights = train(new_layers(), inputs(2))
    for result in run_ranks(program):
        assert all(torch.equal(x, begin[name]) for name, x in result[0].items())
        assert_near([result[1]], first)
        assert_near([result[3]], weights)


@pytest.mark.slow
def test_a_model_of_the_host_is_sharded_over_one_axis_and_its_weights_may_stay_there() -> None:
    def program(rank: int) -> Any:
        xs = [x.chunk(4)[rank].cuda() for x in inputs(4)]
        mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("replicate", "shard"))
        offloaded = shard(new_layers(), init_device_mesh("cuda", (4,)), offload_policy=CPUOffloadPolicy())
        return train(shard(new_layers(), mesh), xs), train(offloaded, xs), next(offloaded.parameters()).device.type

    first, _, weights = train(new_layers(), inputs(4))
    for *results, device in run_ranks(program, 4):
        assert device == "cpu"
        for result in results:
            assert_near([result[0]], first)
            assert_near([result[2]], weights)


@pytest.mark.slow
def test_a_checkpoint_has_the_shards_of_all_ranks(tmp_path: Path) -> None:
    def program(_: int) -> Any:
        mesh = init_device_mesh("cuda", (2,))
        model, loaded = (shard(new_layers().cuda(), mesh) for _ in range(2))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        model(inputs(2)[0].cuda()).sum().backward()
        optimizer.step()
        checkpoint.save(model.state_dict(), checkpoint_id=tmp_path)
        states = loaded.state_dict()
        checkpoint.load(states, checkpoint_id=tmp_path)
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        full, full_of_optimizer = get_state_dict(model, optimizer, options=options)
        return whole_tensors(model.state_dict()), whole_tensors(states), full, full_of_optimizer

    for rank, (weights, loaded, full, full_of_optimizer) in enumerate(run_ranks(program)):
        assert all(torch.equal(x, weights[name]) for name, x in loaded.items())
        assert full.keys() == (weights.keys() if rank == 0 else set())
        assert all(torch.equal(x, weights[name]) for name, x in full.items())
        assert bool(full_of_optimizer) is (rank == 0)
    assert {file.name for file in tmp_path.iterdir()} == {".metadata", "__0_0.distcp", "__1_0.distcp"}


@pytest.mark.slow
def test_a_mixed_precision_policy_computes_in_bf16_and_stores_in_f32() -> None:
    def program(rank: int) -> Any:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        model = shard(new_layers().cuda(), init_device_mesh("cuda", (2,)), mp_policy=policy)
        types = []
        model[0].up.register_forward_hook(lambda module, _, y: types.append((module.weight.dtype, y.dtype)))
        results = train(model, [x.chunk(2)[rank].cuda() for x in inputs(2)])
        return types[0], {p.dtype for p in model.parameters()}, *results

    first, _, weights = train(new_layers(), inputs(2))
    for computed, stored, gradient, _, after in run_ranks(program):
        assert computed == (torch.bfloat16, torch.bfloat16)
        assert stored == {torch.float32}
        assert_near([gradient], first, 0.01)
        assert_near([after], weights, 0.01)


def test_resharding_gives_memory_back_and_a_tensor_without_memory_is_refused() -> None:
    def program(_: int) -> Any:
        mesh = init_device_mesh("cuda", (2,))
        models = [
            fully_shard(nn.Linear(64, 64, device="cuda"), mesh=mesh, reshard_after_forward=x) for x in (True, False)
        ]
        begin = torch.cuda.memory_allocated()
        after = []
        for model in models:
            with torch.no_grad():
                model(torch.ones(1, 64, device="cuda"))
            after.append(torch.cuda.memory_allocated() - begin)
        x = torch.ones(8, device="cuda")
        storage = x.untyped_storage()
        full, address = storage.size(), storage.data_ptr()
        storage.resize_(0)
        empty = storage.size(), storage.data_ptr()
        with pytest.raises(InputError, match=r"test_torch_sharded.py:\d+: a tensor of 8 elements .* \(resize_\(0\)"):
            x + 1
        storage.resize_(full)
        x.fill_(2)
        return after, (full, address > 0, empty), x.tolist()

    for after, storage, x in run_ranks(program):
        assert after[0] < 4096 < 64 * 64 * 4 <= after[1]
        assert storage == (32, True, (0, 0))
        assert x == [2.0] * 8


@pytest.mark.slow
def test_a_gpt_with_fsdp_and_tensor_parallelism_on_one_mesh_has_the_numbers_of_one_process() -> None:
    def program(rank: int) -> Any:
        mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))
        model = parallelize(new_gpt().cuda(), mesh["tp"])
        for block in model.blocks:
            fully_shard(block, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
        row = mesh["dp"].get_local_rank()
        return train_gpt(model, [(ids.chunk(2)[row].cuda(), y.chunk(2)[row].cuda()) for ids, y in batches(4)])

    first, weights = train_gpt(new_gpt(), list(batches(4)))
    results = run_ranks(program, 4)
    assert_near([result[0] for result in results], first)
    assert_near([result[1] for result in results], weights)


@pytest.mark.slow
def test_a_step_takes_the_same_time_twice_and_without_data() -> None:
    def program(_: int) -> float:
        mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))
        model = fully_shard(parallelize(new_gpt().cuda(), mesh["tp"]), mesh=mesh["dp"])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ((ids, targets),) = batches(4, 1)
        loss_of(model, ids.cuda(), targets.cuda()).backward()
        optimizer.step()
        torch.cuda.synchronize()
        return current().engine.now

    first, second, without_data = (run_ranks(program, 4, data=data) for data in (True, True, False))
    assert first == second == without_data
    assert min(first) > 0


def train_gpt(model: nn.Module, pairs: list[tuple[Tensor, Tensor]]) -> tuple[Any, Any]:
    """Take a step for each batch; return the gradients of the first, and the weights."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-4)
    first: dict[str, Tensor] = {}
    for ids, targets in pairs:
        loss_of(model, ids, targets).backward()
        first = first or gradients(model)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    return first, whole_tensors(model.state_dict())
