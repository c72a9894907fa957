"""Pools, convolutions and batch normalisation of images against PyTorch's CPU: numbers, types, layouts, launches."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from extras import need

need("torch")

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import kernbench.torch  # noqa: E402, F401
from frontends.torch_programs import AHBM, machine  # noqa: E402
from kernbench.topology.builder import resolve_topology  # noqa: E402

LAST = torch.channels_last
NAN, LOW = float("nan"), float("-inf")
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}

MAXIMA = {
    "padded": ("max_pool2d", (2, 3, 9, 7), (3, 2, 1)),
    "dilated": ("max_pool2d", (1, 3, 11, 8), ((3, 2), (2, 1), (1, 0), (2, 3))),
    "ceil": ("max_pool2d", (1, 2, 8, 5), (3, 2, 1, 1, True)),
    "unbatched": ("max_pool2d", (3, 6, 5), (2,)),
    "long": ("max_pool1d", (2, 1, 37), (5, 3, 2)),
    "volume": ("max_pool3d", (1, 2, 5, 6, 4), ((2, 3, 2), 2, 1)),
    "adaptive": ("adaptive_max_pool2d", (2, 3, 7, 10), ((3, 4),)),
    "more windows": ("adaptive_max_pool2d", (1, 2, 3, 4), ((5, 6),)),
    "adaptive volume": ("adaptive_max_pool3d", (1, 2, 4, 5, 3), ((2, 3, 2),)),
}
AVERAGES = {
    "padded": ("avg_pool2d", (2, 3, 9, 7), (3, 2, 1)),
    "ceil": ("avg_pool2d", (1, 2, 8, 6), (3, 2, 1, True)),
    "inside": ("avg_pool2d", (1, 2, 8, 6), (3, 2, 1, True, False)),
    "divisor": ("avg_pool2d", (1, 2, 8, 6), (3, 2, 1, False, True, 4)),
    "gaps": ("avg_pool2d", (1, 2, 9, 9), (2, 4)),
    "line": ("avg_pool1d", (2, 3, 17), (4, 3, 1)),
    "volume": ("avg_pool3d", (1, 2, 5, 6, 4), (2, 2, 1, True, False)),
    "adaptive": ("adaptive_avg_pool2d", (2, 3, 7, 10), ((3, 4),)),
    "adaptive line": ("adaptive_avg_pool1d", (2, 3, 11), (4,)),
    "adaptive volume": ("adaptive_avg_pool3d", (1, 2, 4, 5, 3), ((2, 3, 2),)),
}
CONVOLUTIONS = {
    "padded": ("conv2d", (2, 5, 9, 7), (6, 5, 3, 3), {"stride": 2, "padding": 1}),
    "dilated": ("conv2d", (3, 4, 8, 11), (3, 4, 2, 3), {"dilation": (2, 3), "padding": (0, 2)}),
    "groups": ("conv2d", (2, 6, 5, 6), (9, 2, 3, 2), {"groups": 3, "padding": 1}),
    "pointwise": ("conv2d", (2, 40, 3, 5), (33, 40, 1, 1), {"stride": 2}),
    "one place": ("conv2d", (3, 7, 1, 1), (5, 7, 3, 3), {"padding": 1}),
    "line": ("conv1d", (2, 4, 13), (5, 4, 4), {"stride": 3, "padding": 2}),
    "volume": ("conv3d", (1, 3, 4, 5, 3), (4, 3, 2, 3, 2), {"padding": 1, "stride": (1, 2, 1)}),
    "depthwise": ("conv2d", (2, 10, 7, 6), (10, 1, 5, 3), {"groups": 10, "padding": 2, "stride": (1, 2)}),
    "two each": ("conv2d", (2, 9, 5, 7), (18, 1, 3, 3), {"groups": 9, "padding": 1, "dilation": 2, "stride": 2}),
    "depthwise line": ("conv1d", (2, 11, 9), (11, 1, 3), {"groups": 11, "padding": 1}),
    "transposed": ("conv_transpose2d", (2, 4, 5, 3), (4, 6, 3, 2), {"stride": 2, "padding": 1, "output_padding": 1}),
    "depthwise transposed": ("conv_transpose2d", (2, 4, 5, 3), (4, 1, 3, 3), {"groups": 4, "stride": 2}),
}


def launches(context: Any) -> int:
    return sum(request.phase == "launch" for request in context.traces)


def check(program: Callable[..., Any], operands: list[Any], dtype: Any, forward: int, backward: int) -> None:
    """Results, gradients, layouts and numbers of launches are right, and the host computes nothing."""
    wanted = [x.clone().requires_grad_() for x in operands]
    results = program(*wanted)
    grad = torch.randn(results[0].shape).to(dtype)
    results[0].backward(grad)
    with machine() as context:
        on_machine = [x.to(AHBM).requires_grad_() for x in operands]
        outputs = program(*on_machine)
        assert launches(context) == forward
        outputs[0].backward(grad.to(AHBM))
        assert launches(context) <= forward + backward
        pairs = [
            *zip(outputs, results, strict=True),
            *[(x.grad, y.grad) for x, y in zip(on_machine, wanted, strict=True)],
        ]
        for output, result in pairs:
            assert (output.dtype, output.stride()) == (result.dtype, result.stride())
            limit = TOLERANCES[dtype] * max(1.0, result.detach().float().nan_to_num(0, 0, 0).abs().max().item())
            torch.testing.assert_close(output.detach().cpu(), result.detach(), atol=limit, rtol=0, equal_nan=True)
        assert not context.unmodelled


def pool(name: str, rule: tuple[Any, ...], **options: Any) -> Callable[..., Any]:
    function = getattr(functional, name)

    def program(x: Any) -> tuple[Any, ...]:
        results = function(x, *rule, **options)
        return results if isinstance(results, tuple) else (results,)

    return program


@pytest.mark.parametrize("case", MAXIMA)
def test_maxima_with_ties(case: str) -> None:
    name, shape, rule = MAXIMA[case]
    x = torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(1)).float()
    check(pool(name, rule, return_indices=True), [x], torch.float32, 1, 1)


@pytest.mark.parametrize("case", AVERAGES)
def test_averages(case: str) -> None:
    name, shape, rule = AVERAGES[case]
    check(pool(name, rule), [torch.randn(shape, generator=torch.Generator().manual_seed(1))], torch.float32, 1, 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["max_pool2d", "avg_pool2d"])
def test_narrow_floats_and_channels_last(name: str, dtype: Any) -> None:
    x = torch.randn(2, 5, 6, 7).to(dtype).contiguous(memory_format=LAST)
    check(pool(name, (3, 2, 1)), [x], dtype, 1, 1)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8])
def test_maxima_of_integers(dtype: Any) -> None:
    x = torch.arange(48).reshape(1, 2, 4, 6).to(dtype) * 3 % 17
    with machine() as context:
        values, places = functional.max_pool2d(x.to(AHBM), 3, 2, 1, return_indices=True)
        wanted = functional.max_pool2d(x, 3, 2, 1, return_indices=True)
        assert torch.equal(values.cpu(), wanted[0])
        assert torch.equal(places.cpu(), wanted[1])
        assert not context.unmodelled


def test_averages_of_integers_are_truncated() -> None:
    x = torch.arange(-12, 12).reshape(1, 1, 4, 6)
    with machine():
        assert torch.equal(functional.avg_pool2d(x.to(AHBM), 2).cpu(), functional.avg_pool2d(x, 2))


def test_the_last_nan_and_windows_of_minus_infinity() -> None:
    rows = [[1.0, NAN, 2.0, LOW, LOW], [NAN, 5.0, 5.0, LOW, LOW], [LOW, LOW, 7.0, LOW, LOW], [LOW, LOW, NAN, 0.0, -0.0]]
    x = torch.tensor([[rows]])
    for rule in ((3, 2, 1), (2, 1), (3, 1, 1, 2)):
        check(pool("max_pool2d", rule, return_indices=True), [x], torch.float32, 1, 1)


def test_a_plane_is_divided_among_programs() -> None:
    x = torch.randn(1, 1, 61, 40)
    check(pool("max_pool2d", (3, 2, 1), return_indices=True), [x], torch.float32, 1, 1)
    check(pool("avg_pool2d", (3, 2, 1)), [x], torch.float32, 1, 1)


def test_times_do_not_depend_on_data() -> None:
    x, weight = torch.randn(2, 16, 14, 14), torch.randn(16, 1, 7, 7)
    times = []
    for data in (True, False):
        with machine(data=data) as context:
            images = x.to(AHBM).requires_grad_()
            y = functional.conv2d(images, weight.to(AHBM), padding=3, groups=16)
            z = functional.avg_pool2d(functional.max_pool2d(y, 3, 2, 1), 2, 2, 1)
            z.sum().backward()
            context.accelerator.synchronize()
            times.append((context.engine.now, context.engine.n_events))
    assert times[0] == times[1]


def convolution(name: str, options: dict[str, Any]) -> Callable[..., Any]:
    return lambda x, weight, bias: (getattr(functional, name)(x, weight, bias, **options),)


def convolution_operands(case: str, dtype: Any = torch.float32) -> tuple[Callable[..., Any], list[Any]]:
    name, shape, weight, options = CONVOLUTIONS[case]
    channels = weight[1] * options.get("groups", 1) if "transpose" in name else weight[0]
    return convolution(name, options), [torch.randn(n).to(dtype) for n in (shape, weight, (channels,))]


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolutions(case: str) -> None:
    program, operands = convolution_operands(case)
    bias_launches = 1 if "transposed" in case else 0
    check(program, operands, torch.float32, 1 + bias_launches, 4)


@pytest.mark.parametrize("case", ["padded", "depthwise"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_convolutions_of_narrow_floats(case: str, dtype: Any) -> None:
    check(*convolution_operands(case, dtype), dtype, 1, 4)


@pytest.mark.parametrize("case", ["padded", "groups", "depthwise", "transposed"])
@pytest.mark.parametrize("operand", [0, 1])
def test_layouts_of_convolutions(case: str, operand: int) -> None:
    program, operands = convolution_operands(case)
    operands[operand] = operands[operand].contiguous(memory_format=LAST)
    with machine():
        on_machine = [x.to(AHBM).requires_grad_() for x in operands]
        wanted = [x.clone().requires_grad_() for x in operands]
        (y,), (result,) = program(*on_machine), program(*wanted)
        y.sum().backward()
        result.sum().backward()
        assert y.stride() == result.stride()
        torch.testing.assert_close(y.detach().cpu(), result.detach(), atol=1e-4, rtol=0)
        for x, other in zip(on_machine, wanted, strict=True):
            torch.testing.assert_close(x.grad.cpu(), other.grad, atol=1e-3, rtol=0)


@pytest.mark.parametrize("shape", [(2, 5, 4, 3), (7, 19), (3, 5, 7), (2, 3, 3, 2, 4)])
@pytest.mark.parametrize("trains", [True, False])
def test_batch_normalisation(shape: tuple[int, ...], trains: bool) -> None:
    layer = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[len(shape)](shape[1])
    nn.init.normal_(layer.weight)
    nn.init.uniform_(layer.running_var, 0.5, 2.0)
    layer.train(trains)
    with machine() as context:
        twin = copy.deepcopy(layer).to(AHBM)
        before = launches(context)
        x = torch.randn(shape)
        a, b = x.clone().requires_grad_(), x.to(AHBM).requires_grad_()
        y, z = layer(a), twin(b)
        grad = torch.randn(shape)
        y.backward(grad)
        z.backward(grad.to(AHBM))
        assert launches(context) - before == 2 + trains  # forward, backward, and the count of batches
        pairs = [(z, y), (b.grad, a.grad), *zip(twin.buffers(), layer.buffers(), strict=True)]
        pairs += [(x.grad, w.grad) for x, w in zip(twin.parameters(), layer.parameters(), strict=True)]
        for output, result in pairs:
            torch.testing.assert_close(output.detach().cpu(), result.detach(), atol=1e-5, rtol=1e-5)
        assert not context.unmodelled


# Operators of nets of images, and the most time that their launch and that of their gradients may take, in ns.
BOUNDS: list[tuple[Callable[[Any], Any], tuple[int, ...], tuple[float, float]]] = [
    (lambda x: functional.max_pool2d(x, 3, 2, 1), (1, 64, 28, 28), (3_000, 3_000)),
    (lambda x: functional.max_pool2d(x, 3, 2, 1, ceil_mode=True), (1, 64, 28, 28), (3_000, 3_000)),
    (lambda x: functional.avg_pool2d(x, 3, 2, 1), (1, 64, 28, 28), (3_000, 3_000)),
    (lambda x: functional.avg_pool2d(x, 3, 2, 1, divisor_override=5), (1, 64, 28, 28), (3_000, 3_000)),
    (lambda x: functional.adaptive_avg_pool2d(x, 5), (1, 64, 28, 28), (3_000, 3_000)),
    (lambda x: functional.adaptive_max_pool2d(x, 5), (1, 64, 28, 28), (3_000, 3_000)),
    (lambda x: functional.conv2d(x, x.new_empty(16, 1, 7, 7), padding=3, groups=16), (1, 16, 14, 14), (1_500, 1_500)),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("number", range(len(BOUNDS)))
def test_operators_take_one_short_launch(number: int, dtype: Any) -> None:
    program, shape, bounds = BOUNDS[number]
    with machine(data=False, topology=resolve_topology("default")) as context:
        x = torch.empty(shape, dtype=dtype, device=AHBM, requires_grad=True)
        result = program(x)
        result.backward(torch.empty(result.shape, dtype=dtype, device=AHBM))
        times = [trace.total_ns for trace in context.traces if trace.phase == "launch"]
    assert len(times) == 2
    assert all(ns <= bound for ns, bound in zip(times, bounds, strict=True)), times


def test_a_convolution_of_a_tensor_by_itself() -> None:
    x = torch.randn(2, 1, 3, generator=torch.Generator().manual_seed(0))
    results = []
    with machine():
        for operand in (x, x.to(AHBM)):
            twice = operand.detach().requires_grad_()
            result = functional.conv1d(twice, twice, padding=1)
            (gradient,) = torch.autograd.grad(result.square().sum(), twice)
            results.append((result.detach().cpu(), gradient.cpu()))
    torch.testing.assert_close(results[1], results[0])
