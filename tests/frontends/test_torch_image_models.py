"""Published nets of images and of clicks at small sizes: a step of training is right, and the host computes nothing."""

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


def convolve(inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Return a convolution without bias and its normalisation."""
    layer = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs))


class Residual(nn.Module):
    """The basic block of ResNet-18."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(convolve(inputs, outputs, 3, stride), nn.ReLU(True), convolve(outputs, outputs, 3))
        self.skip = nn.Identity() if stride == 1 and inputs == outputs else convolve(inputs, outputs, 1, stride)

    def forward(self, x: Any) -> Any:
        return functional.relu(self.body(x) + self.skip(x))


def resnet18(width: int = 64) -> nn.Module:
    """Return ResNet-18 with ``width`` channels in its first stage."""
    widths = [width, width, 2 * width, 4 * width, 8 * width]
    stages = [
        nn.Sequential(Residual(widths[i], widths[i + 1], 1 if i == 0 else 2), Residual(widths[i + 1], widths[i + 1], 1))
        for i in range(4)
    ]
    stem = nn.Sequential(convolve(3, width, 7, 2), nn.ReLU(True), nn.MaxPool2d(3, 2, 1))
    return nn.Sequential(stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, 10))


class ConvNextBlock(nn.Module):
    """A depthwise convolution, a layer norm of channels and two linear layers, scaled and added."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.layers = nn.Sequential(nn.Linear(channels, 4 * channels), nn.GELU(), nn.Linear(4 * channels, channels))
        self.scale = nn.Parameter(torch.full((channels,), 0.5))

    def forward(self, x: Any) -> Any:
        y = self.layers(self.norm(self.depthwise(x).permute(0, 2, 3, 1)))
        return x + (y * self.scale).permute(0, 3, 1, 2)


class ChannelNorm(nn.LayerNorm):
    """A layer norm of the channels of images."""

    def forward(self, x: Any) -> Any:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def convnext() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 4, 4), ChannelNorm(16), ConvNextBlock(16), ChannelNorm(16), nn.Conv2d(16, 32, 2, 2),
        ConvNextBlock(32), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(32), nn.Linear(32, 10),
    )  # fmt: skip


class Gate(nn.Module):
    """The squeeze and excitation of MobileNet: a factor of each channel from the channels' means."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, 8, 1), nn.ReLU(), nn.Conv2d(8, channels, 1), nn.Hardsigmoid()
        )

    def forward(self, x: Any) -> Any:
        return x * self.layers(x)


class Inverted(nn.Module):
    """MobileNet's inverted residual."""

    def __init__(self, inputs: int, hidden: int, outputs: int, size: int, stride: int) -> None:
        super().__init__()
        self.adds = stride == 1 and inputs == outputs
        self.body = nn.Sequential(
            convolve(inputs, hidden, 1), nn.Hardswish(), convolve(hidden, hidden, size, stride, hidden),
            nn.ReLU6(), Gate(hidden), convolve(hidden, outputs, 1),
        )  # fmt: skip

    def forward(self, x: Any) -> Any:
        return x + self.body(x) if self.adds else self.body(x)


def mobilenet() -> nn.Module:
    blocks = Inverted(8, 24, 8, 3, 1), Inverted(8, 32, 12, 5, 2), Inverted(12, 36, 12, 3, 1)
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 10)
    return nn.Sequential(convolve(3, 8, 3, 2), nn.Hardswish(), *blocks, *head)


class UNet(nn.Module):
    """Two levels of a UNet: pooling down, a transposed convolution and interpolation up, and joined channels."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU())
        self.middle = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.SiLU())
        self.deep = nn.Conv2d(16, 16, 3, padding=1)
        self.rise = nn.ConvTranspose2d(16, 8, 2, 2)
        self.out = nn.Conv2d(16, 2, 3, padding=1)

    def forward(self, x: Any) -> Any:
        first = self.down(x)
        second = self.middle(functional.max_pool2d(first, 2))
        deep = self.deep(functional.avg_pool2d(second, 2))
        deep = functional.interpolate(deep, scale_factor=2.0, mode="nearest") + second
        return self.out(torch.cat([first, self.rise(deep)], 1))


class Dlrm(nn.Module):
    """DLRM: bags of three tables and a net of dense features, joined by the products of all pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.EmbeddingBag(n, 8, mode="sum") for n in (50, 31, 7)])
        self.dense = nn.Sequential(nn.Linear(13, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(8 + 6, 16), nn.ReLU(), nn.Linear(16, 1), nn.Sigmoid())
        pairs = [(i, j) for i in range(4) for j in range(i)]
        self.register_buffer("rows", torch.tensor([i for i, _ in pairs]))
        self.register_buffer("columns", torch.tensor([j for _, j in pairs]))

    def forward(self, dense: Any, *bags: Any) -> Any:
        x = self.dense(dense)
        features = [x, *[table(bags[2 * i], bags[2 * i + 1]) for i, table in enumerate(self.tables)]]
        stack = torch.cat(features, dim=1).view(len(x), 4, 8)
        products = torch.bmm(stack, stack.transpose(1, 2))
        return self.top(torch.cat([x, products[:, self.rows, self.columns]], dim=1))


def images(*shape: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(7)),)


def clicks() -> tuple[torch.Tensor, ...]:
    bags = [x for n in (50, 31, 7) for x in (torch.randint(0, n, (12,)), torch.tensor([0, 3, 3, 8, 9]))]
    return (torch.randn(5, 13), *bags)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "resnet18": (lambda: resnet18(8), lambda: images(2, 3, 32, 32)),
    "convnext": (convnext, lambda: images(2, 3, 16, 16)),
    "mobilenet": (mobilenet, lambda: images(2, 3, 18, 18)),
    "unet": (UNet, lambda: images(1, 3, 12, 16)),
    "dlrm": (Dlrm, clicks),
}


def check_model(model: nn.Module, inputs: tuple[torch.Tensor, ...], limit: float = 1e-3) -> None:
    """Assert that forward and backward are right up to ``limit`` of the largest element of each gradient."""
    with machine() as context:
        twin = copy.deepcopy(model).to(AHBM)
        output = twin(*[x.to(AHBM) for x in inputs])
        output.square().mean().backward()
        expected = model(*inputs)
        expected.square().mean().backward()
        pairs = [
            (name, x.grad, y.grad) for (name, x), y in zip(twin.named_parameters(), model.parameters(), strict=True)
        ]
        for name, result, wanted in [("output", output, expected), *pairs]:
            atol = 1e-6 + limit * wanted.abs().max().item()
            torch.testing.assert_close(
                result.detach().cpu(), wanted.detach(), atol=atol, rtol=0, msg=lambda text, name=name: f"{name}: {text}"
            )
        assert not context.unmodelled


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_models(name: str) -> None:
    torch.manual_seed(0)
    create, inputs = MODELS[name]
    check_model(create(), inputs())


@pytest.mark.slow
def test_resnet18_of_its_full_width() -> None:
    torch.manual_seed(0)
    check_model(resnet18(), images(2, 3, 56, 56), 1e-2)
