"""Tensor parallelism: DTensor, ``parallelize_module`` and their collectives, with the numbers of one process."""

from __future__ import annotations

from contextlib import nullcontext
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest

from extras import need

need("triton")
need("torch")

import torch  # noqa: E402, I001

import kernbench.torch  # noqa: E402, F401

from torch import distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed import tensor as distributed  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor  # noqa: E402
from torch.distributed.tensor.parallel import (  # noqa: E402
    ColwiseParallel,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)

from frontends.torch_parallel_models import (  # noqa: E402
    assert_near,
    batches,
    gradients,
    loss_of,
    new_gpt,
    parallelize,
    whole_tensors,
)
from frontends.torch_rank_programs import run_ranks  # noqa: E402

A, B = torch.arange(6 * 8.0).view(6, 8), torch.arange(8 * 5.0).view(8, 5) - 7


def test_tensors_are_distributed_and_products_have_the_placements_of_pytorch() -> None:
    def program(rank: int) -> Any:
        mesh = init_device_mesh("cuda", (4,))
        a = distribute_tensor(A.cuda(), mesh, [Shard(0)])  # shards of 2, 2, 2 and 0 rows
        b = distribute_tensor(B.cuda(), mesh, [Replicate()])
        c = a @ b
        d = distribute_tensor(A.cuda(), mesh, [Shard(1)]) @ distribute_tensor(B.cuda(), mesh, [Shard(0)])
        return (
            tuple(a.to_local().shape),
            (c.placements, d.placements),
            [x.full_tensor().cpu() for x in (a, c, d, d.redistribute(mesh, [Shard(0)]))],
        )

    for rank, (shape, placements, results) in enumerate(run_ranks(program, 4)):
        assert shape == ((2, 8) if rank < 3 else (0, 8))
        assert placements == ((Shard(0),), (Partial(),))
        for result, expected in zip(results, [A, A @ B, A @ B, A @ B], strict=True):
            assert torch.equal(result, expected)


def test_a_mesh_of_two_axes_has_groups_for_both() -> None:
    def program(rank: int) -> Any:
        mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))
        x = distribute_tensor(A.cuda(), mesh, [Shard(0), Shard(1)])
        moved = x.redistribute(mesh, [Shard(1), Shard(0)])
        part = DTensor.from_local(torch.full((2,), rank + 1.0).cuda(), mesh["tp"], [Partial()])
        total = part.redistribute(mesh["tp"], [Replicate()]).to_local().tolist()
        return x.to_local().cpu(), moved.to_local().cpu(), moved.full_tensor().cpu(), total, mesh.get_coordinate()

    for rank, (local, moved, whole, total, place) in enumerate(run_ranks(program, 4)):
        row, column = divmod(rank, 2)
        assert torch.equal(local, A.chunk(2)[row].chunk(2, 1)[column])
        assert torch.equal(moved, A.chunk(2)[column].chunk(2, 1)[row])
        assert torch.equal(whole, A)
        assert (total, tuple(place)) == ([[3.0, 3.0], [7.0, 7.0]][row], (row, column))


@pytest.mark.parametrize("n", [2, 4])
def test_a_dimension_moves_by_one_exchange(n: int) -> None:
    def program(rank: int) -> Any:
        mesh = init_device_mesh("cuda", (n,))
        x = distribute_tensor(A.repeat(1, 2).cuda(), mesh, [Shard(1)])
        moved = x.redistribute(mesh, [Shard(0)])
        return moved.to_local().cpu(), moved.redistribute(mesh, [Shard(1)]).full_tensor().cpu()

    whole = A.repeat(1, 2)
    for rank, (moved, back) in enumerate(run_ranks(program, n)):
        shards = [*whole.chunk(n), whole[:0]]
        assert torch.equal(moved, shards[rank])
        assert torch.equal(back, whole)


def test_random_numbers_of_distributed_tensors_are_those_of_one_process() -> None:
    def program(rank: int) -> Any:
        mesh = init_device_mesh("cuda", (4,))
        torch.manual_seed(3 + rank)  # the ranks draw as the first does
        x = distributed.randn(6, 5, device_mesh=mesh, placements=[Shard(0)])
        y = distributed.zeros(6, 5, device_mesh=mesh, placements=[Shard(1)]).uniform_(-1, 1)
        z = nn.functional.dropout(distributed.ones(6, 5, device_mesh=mesh, placements=[Shard(0)]), 0.5)
        return [tensor.full_tensor().cpu() for tensor in (x, y, z)]

    torch.manual_seed(3)
    expected = [torch.randn(6, 5), torch.zeros(6, 5).uniform_(-1, 1), nn.functional.dropout(torch.ones(6, 5), 0.5)]
    for results in run_ranks(program, 4):
        for result, tensor in zip(results, expected, strict=True):
            assert torch.equal(result, tensor)


def test_a_module_is_distributed() -> None:
    def program(rank: int) -> Any:
        mesh = init_device_mesh("cuda", (2,))
        layer = distribute_module(nn.Linear(4, 6).cuda(), mesh)
        y = layer(DTensor.from_local(torch.full((2, 4), rank + 1.0).cuda(), mesh, [Shard(0)]))
        y.sum().backward()
        return y.full_tensor().detach().cpu(), layer.weight.grad.full_tensor().cpu()

    (y, gradient), second = run_ranks(program)
    assert torch.equal(y, second[0])
    assert torch.equal(gradient, torch.full((6, 4), 6.0))
    assert torch.equal(gradient, second[1])


@pytest.mark.slow
@pytest.mark.parametrize(("n", "parallel_loss"), [(2, True), (4, False)])
def test_a_gpt_with_tensor_and_sequence_parallelism_has_the_gradients_of_one_process(
    n: int, parallel_loss: bool
) -> None:
    def program(rank: int) -> Any:
        mesh = init_device_mesh("cuda", (n,))
        model = parallelize(new_gpt().cuda(), mesh, parallel_loss=parallel_loss)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-4, foreach=True)
        for step, (ids, targets) in enumerate(batches(2)):
            with loss_parallel() if parallel_loss else nullcontext():
                loss = loss_of(model, ids.cuda(), targets.cuda())
                loss.backward()
            if step == 0:
                first = gradients(model)
            optimizer.step()
            optimizer.zero_grad()
        return first, whole_tensors(model.state_dict())

    model = new_gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-4)
    for step, batch in enumerate(batches(2)):
        loss_of(model, *batch).backward()
        if step == 0:
            first = gradients(model)
        optimizer.step()
        optimizer.zero_grad()
    results = run_ranks(program, n)
    assert_near([result[0] for result in results], first)
    assert_near([result[1] for result in results], whole_tensors(model.state_dict()))


def test_a_parallel_loss_is_that_of_one_rank_while_others_compute_another_way() -> None:
    x, targets = torch.arange(24.0).view(3, 8) % 5, torch.tensor([0, 7, 3])

    def program(rank: int) -> Any:
        mesh = init_device_mesh("cuda", (2,))
        part = distribute_tensor(x.cuda(), mesh, [Shard(1)]).requires_grad_()
        with loss_parallel():
            if rank == 0:
                dist.barrier()  # the other rank computes beside this region
            else:
                torch.ones(4, device="cuda").sum().item()
                dist.barrier()
            loss = nn.functional.cross_entropy(part, targets.cuda())
            loss.backward()
        plain = nn.functional.log_softmax(distribute_tensor(x.cuda(), mesh, [Shard(1)]), -1)
        return loss.full_tensor().item(), part.grad.full_tensor().cpu(), plain.full_tensor().cpu()

    leaf = x.clone().requires_grad_()
    expected = nn.functional.cross_entropy(leaf, targets)
    expected.backward()
    for loss, gradient, plain in run_ranks(program):
        assert loss == pytest.approx(expected.item(), rel=1e-6)
        torch.testing.assert_close(gradient, leaf.grad)
        torch.testing.assert_close(plain, nn.functional.log_softmax(x, -1))


def test_a_printed_tensor_has_the_elements_of_the_collective_in_flight() -> None:
    def program(_: int) -> str:
        torch.full((2,), 7.0, device="cuda")  # its memory is used again
        return repr(distribute_tensor(torch.arange(4.0), init_device_mesh("cuda", (2,)), [Shard(0)]).to_local())

    assert [text.split(", dev")[0] for text in run_ranks(program)] == ["tensor([0., 1.]", "tensor([2., 3.]"]


def attend(q: Any, k: Any, v: Any, weight: Any, mask: torch.Tensor | None = None) -> Any:
    normal = nn.functional.rms_norm(q, (8,), weight)
    return nn.functional.scaled_dot_product_attention(normal, k, v, mask, is_causal=mask is None, enable_gqa=True)


@pytest.mark.parametrize(
    ("dim", "mask_shape", "kv_heads", "is_divided"),
    [
        (1, None, 2, True),
        (0, (2, 1, 6, 6), 2, True),
        (1, (4, 6, 6), 2, True),
        pytest.param(0, (6, 6), 2, True, marks=pytest.mark.slow),
        (2, None, 2, False),
        (1, None, 1, False),
    ],
)
def test_attention_of_distributed_tensors_is_that_of_one_process(
    dim: int, mask_shape: tuple[int, ...] | None, kv_heads: int, is_divided: bool
) -> None:
    """It stays divided by batch and by heads, if the ranks divide these evenly."""
    numbers = torch.Generator().manual_seed(0)
    heads = (4, kv_heads, kv_heads)
    operands = [torch.randn(2, n, 6, 8, generator=numbers) for n in heads] + [torch.rand(8, generator=numbers)]
    mask = None if mask_shape is None else torch.randn(*mask_shape, generator=numbers)

    def program(_: int) -> Any:
        mesh = init_device_mesh("cuda", (2,))
        placements = [Shard(dim), Shard(dim), Shard(dim), Replicate()]
        parts = [
            distribute_tensor(x, mesh, [placement]).requires_grad_()  # of the host
            for x, placement in zip(operands, placements, strict=True)
        ]
        y = attend(*parts, None if mask is None else mask.cuda())
        (y * y).sum().backward()
        return y.placements, whole_tensors({"y": y} | {str(i): x.grad for i, x in enumerate(parts)})

    leaves = [x.clone().requires_grad_() for x in operands]
    y = attend(*leaves, mask)
    (y * y).sum().backward()
    expected = whole_tensors({"y": y} | {str(i): x.grad for i, x in enumerate(leaves)})
    for placements, results in run_ranks(program):
        assert placements == ((Shard(dim),) if is_divided else (Replicate(),))
        assert_near([results], expected)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
def test_a_llama_of_hugging_face_has_the_gradients_of_one_process() -> None:
    transformers = import_module("transformers")
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=16,
    )
    ids = torch.randint(64, (2, 8), generator=torch.Generator().manual_seed(1))

    def new_llama() -> Any:
        torch.manual_seed(0)
        return transformers.LlamaForCausalLM(config)

    def program(_: int) -> Any:
        mesh = init_device_mesh("cuda", (2,))
        model = new_llama().cuda()
        columns = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"]
        plan = {name: ColwiseParallel() for name in columns}
        plan |= {name: RowwiseParallel() for name in ("self_attn.o_proj", "mlp.down_proj")}
        for layer in model.model.layers:
            parallelize_module(layer, mesh, plan)
        model(input_ids=ids.cuda(), labels=ids.cuda()).loss.backward()
        return gradients(model)

    model = new_llama()
    model(input_ids=ids, labels=ids).loss.backward()
    assert_near(run_ranks(program), gradients(model))
