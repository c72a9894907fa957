"""Bags of embeddings, distances of rows and searches against PyTorch's CPU, and elements of views that repeat."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from extras import need

need("torch")

import torch  # noqa: E402
from torch import nn  # noqa: E402

import kernbench.torch  # noqa: E402, F401
from frontends.torch_programs import AHBM, machine  # noqa: E402
from kernbench.common.errors import KernbenchError  # noqa: E402
from kernbench.topology.builder import resolve_topology  # noqa: E402

INDICES = torch.tensor([4, 1, 6, 6, 0, 2, 2, 2, 5, 1, 3])
BAGS: dict[str, tuple[dict[str, Any], torch.Tensor]] = {
    "sum": ({"mode": "sum"}, torch.tensor([0, 3, 3, 4])),
    "mean": ({"mode": "mean"}, torch.tensor([0, 3, 3, 4])),
    "max": ({"mode": "max"}, torch.tensor([0, 3, 3, 4])),
    "ends": ({"mode": "mean", "include_last_offset": True}, torch.tensor([0, 1, 6, 11])),
    "padded sum": ({"mode": "sum", "padding_idx": 2}, torch.tensor([0, 5, 8])),
    "padded maximum": ({"mode": "max", "padding_idx": 2}, torch.tensor([0, 5, 8])),
}
CUBES = resolve_topology("default", ["system.sips.count=1", "sip.cube_mesh.w=2", "sip.cube_mesh.h=2"])


def assert_near(output: torch.Tensor, expected: torch.Tensor, limit: float = 1e-5) -> None:
    """Assert that an output of the machine has the dtype and, up to ``limit`` of the largest, the elements."""
    assert output.dtype is expected.dtype
    largest = max(1.0, expected.detach().float().abs().max().item()) if expected.numel() else 1.0
    torch.testing.assert_close(output.detach().cpu(), expected.detach(), atol=limit * largest, rtol=0, equal_nan=True)


@pytest.mark.parametrize("columns", [3, 37])
@pytest.mark.parametrize("case", BAGS)
def test_bags(case: str, columns: int) -> None:
    options, offsets = BAGS[case]
    bag = nn.EmbeddingBag(7, columns, **options)
    with machine() as context:
        twin = copy.deepcopy(bag).to(AHBM)
        expected, output = bag(INDICES, offsets), twin(INDICES.to(AHBM), offsets.to(AHBM))
        grad = torch.randn(expected.shape)
        expected.backward(grad)
        output.backward(grad.to(AHBM))
        assert_near(output, expected)
        assert_near(twin.weight.grad, bag.weight.grad)
        assert not context.unmodelled


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_gradients_are_divided_by_how_often_a_row_occurs(mode: str) -> None:
    weight, offsets = torch.randn(7, 3), torch.tensor([0, 5, 8])
    gradients = []
    with machine() as context:
        for by_frequency in (False, True):
            table = weight.to(AHBM).requires_grad_()
            operands = INDICES.to(AHBM), table, offsets.to(AHBM)
            result = nn.functional.embedding_bag(*operands, mode=mode, scale_grad_by_freq=by_frequency)
            result.sum().backward()
            gradients.append(table.grad.cpu())
        assert not context.unmodelled
    assert_near(gradients[1], gradients[0] / torch.bincount(INDICES)[:, None])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_of_entries(dtype: torch.dtype) -> None:
    weight, factors, offsets = torch.randn(7, 5).to(dtype), torch.rand(11).to(dtype), torch.tensor([0, 2, 9])
    with machine() as context:
        pairs = []
        for device in ("cpu", AHBM):
            operands = [x.detach().clone().to(device).requires_grad_() for x in (weight, factors)]
            result = nn.functional.embedding_bag(
                INDICES.to(device), operands[0], offsets.to(device), mode="sum", per_sample_weights=operands[1]
            )
            result.backward(torch.ones(result.shape, dtype=dtype, device=device))
            pairs.append([result, *[x.grad for x in operands]])
        for expected, output in zip(*pairs, strict=True):
            assert_near(output, expected, 1e-5 if dtype is torch.float32 else 2e-2)
        assert not context.unmodelled


def test_bags_of_equal_length_and_of_no_entries() -> None:
    weight, indices = torch.randn(9, 4), torch.randint(0, 9, (6, 5), dtype=torch.int32)
    with machine() as context:
        output = nn.functional.embedding_bag(indices.to(AHBM), weight.to(AHBM))
        assert_near(output, nn.functional.embedding_bag(indices, weight))
        nothing = torch.zeros(0, dtype=torch.long), torch.zeros(3, dtype=torch.long)
        output = nn.functional.embedding_bag(nothing[0].to(AHBM), weight.to(AHBM), nothing[1].to(AHBM))
        assert torch.equal(output.cpu(), torch.zeros(3, 4))
        assert not context.unmodelled


@pytest.mark.parametrize(("indices", "offsets"), [([0, 9], [0, 1]), ([0, 1], [0, 3]), ([0, 1, 2], [0, 2, 1])])
def test_bags_beyond_the_table_or_the_indices(indices: list[int], offsets: list[int]) -> None:
    with machine():
        operands = [torch.tensor(numbers, device=AHBM) for numbers in (indices, offsets)]
        weight = torch.randn(9, 4, device=AHBM)
        with pytest.raises(KernbenchError, match="embedding_bag"):
            nn.functional.embedding_bag(operands[0], weight, operands[1])


def test_bags_without_data() -> None:
    with machine(data=False) as context:
        bag = nn.EmbeddingBag(100, 16, mode="sum", device=AHBM)
        bag(torch.zeros(64, dtype=torch.long, device=AHBM), torch.arange(0, 64, 8, device=AHBM)).sum().backward()
        context.accelerator.synchronize()
        assert not context.unmodelled


@pytest.mark.parametrize("order", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, float("inf")])
@pytest.mark.parametrize("shapes", [((5, 7), (6, 7)), ((2, 1, 3, 33), (4, 2, 33)), ((30, 3), (27, 3))])
def test_distances(order: float, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    operands = [torch.randn(shape, generator=torch.Generator().manual_seed(5)) for shape in shapes]
    wanted = [x.clone().requires_grad_() for x in operands]
    expected = torch.cdist(*wanted, p=order)
    grad = torch.randn(expected.shape)
    expected.backward(grad)
    with machine() as context:
        inputs = [x.to(AHBM).requires_grad_() for x in operands]
        output = torch.cdist(*inputs, p=order)
        output.backward(grad.to(AHBM))
        assert_near(output, expected, 1e-4)
        for x, y in zip(inputs, wanted, strict=True):
            assert_near(x.grad, y.grad, 1e-3)
        assert not context.unmodelled


def test_distances_of_equal_rows_have_no_gradient() -> None:
    with machine():
        x = torch.ones(3, 4, device=AHBM, requires_grad=True)
        torch.cdist(x, torch.ones(2, 4, device=AHBM)).sum().backward()
        assert torch.equal(x.grad.cpu(), torch.zeros(3, 4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.int8])
@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("shapes", [((13,), (3, 5)), ((4, 9), (4, 7)), ((2, 3, 1), (2, 3, 40)), ((5000,), (33,))])
def test_searches(dtype: torch.dtype, right: bool, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    generator = torch.Generator().manual_seed(2)
    sequences = torch.randint(-9, 10, shapes[0], generator=generator).sort(-1).values.to(dtype)
    values = torch.randint(-11, 12, shapes[1], generator=generator).to(dtype)
    with machine() as context:
        for narrow in (False, True):
            options = {"right": right, "out_int32": narrow}
            output = torch.searchsorted(sequences.to(AHBM), values.to(AHBM), **options)
            expected = torch.searchsorted(sequences, values, **options)
            assert output.dtype is expected.dtype
            assert torch.equal(output.cpu(), expected)
        assert not context.unmodelled


def test_searches_of_nan_of_numbers_and_with_a_sorter() -> None:
    x = torch.tensor([3.0, float("nan"), 1.0, 2.0, float("inf")])
    order = x.argsort()
    values = torch.tensor([float("nan"), 2.5, float("-inf")])
    with machine() as context:
        for right in (False, True):
            output = torch.searchsorted(x.to(AHBM), values.to(AHBM), sorter=order.to(AHBM), right=right)
            assert torch.equal(output.cpu(), torch.searchsorted(x, values, sorter=order, right=right))
        bounds = torch.tensor([1, 4, 6])
        assert torch.searchsorted(bounds.to(AHBM), 4).item() == 1
        assert torch.bucketize(5, bounds.to(AHBM)).item() == 2
        ids = torch.tensor([[0, 4], [6, 9]])
        assert torch.equal(torch.bucketize(ids.to(AHBM), bounds.to(AHBM)).cpu(), torch.bucketize(ids, bounds))
        assert not context.unmodelled


@pytest.mark.parametrize("batch", [2, 4])
def test_a_view_times_a_row_that_repeats(batch: int) -> None:
    x, row = torch.randn(batch, 6 * 128), torch.randn(1, 128)
    with machine("torch.cubes=4", topology=CUBES) as context:
        q = x.to(AHBM).view(batch, 1, 6, 128).transpose(1, 2)[:, :4]
        output = q * row.to(AHBM)
        assert torch.equal(output.cpu(), x.view(batch, 1, 6, 128).transpose(1, 2)[:, :4] * row)
        assert not context.unmodelled


def test_events_of_a_view_grow_with_its_bytes() -> None:
    events = []
    for batch in (2, 4, 8):
        with machine("torch.cubes=4", data=False, topology=CUBES) as context:
            x, row = (torch.empty(shape, dtype=torch.bfloat16, device=AHBM) for shape in ((batch, 6144), (1, 128)))
            context.accelerator.synchronize()
            before = context.engine.n_events
            x.view(batch, 1, 48, 128).transpose(1, 2)[:, :32] * row
            context.accelerator.synchronize()
            events.append(context.engine.n_events - before)
    assert events[2] - events[1] <= 2.2 * (events[1] - events[0])
    assert events[2] < 20_000
