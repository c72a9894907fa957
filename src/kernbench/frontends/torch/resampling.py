"""Gradients of scaled or pooled images: a product with the weights of the scaling along each axis.

A scaling is linear, and scales one axis after another. The result for an identity matrix therefore contains the weights
along an axis. The host computes the weights, in no simulated time, and transfers them to the machine. The gradient is
the product with the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from kernbench.frontends.torch.tensor import from_host, sip_of

aten = torch.ops.aten


def _weights(scaling: Callable[..., Any], axis: int, axes: int, n: int) -> Any:
    """Return the weights along an axis of ``n`` elements: row i is the scaling of the i-th unit vector."""
    sizes = [n if each == axis else 1 for each in range(axes)]
    return scaling(torch.eye(n).reshape(1, n, *sizes)).reshape(n, -1)


def _scale_back(grad: Tensor, sizes: Sequence[int], scalings: Sequence[Callable[..., Any]]) -> Any:
    """Return the gradient of the operand, whose last axes have ``sizes``. Each of ``scalings`` scales one of them."""
    found: Any = grad
    for axis, (n, scaling) in enumerate(zip(sizes, scalings, strict=True)):
        weights = _weights(scaling, axis, len(sizes), n).to(grad.dtype)
        there = from_host(weights, sip_of(grad))
        at = axis - len(sizes)
        found = (found.movedim(at, -1) @ there.T).movedim(-1, at)
    return found.contiguous()


def _gradient_of(forward: Any) -> Callable[..., Any]:
    """Return the lowering of the gradient of ``forward``, an ``upsample`` operator."""

    def lowering(grad: Tensor, output_size: Sequence[int], input_size: Sequence[int], *rule: Any) -> Any:
        axes = len(output_size)
        given = len(forward._schema.arguments) - 2 - axes  # noqa: SLF001 - 1 if it has align_corners
        options, scales = rule[:given], (*rule[given:], *[None] * axes)[:axes]

        def along(axis: int) -> Callable[..., Any]:
            size = [n if each == axis else 1 for each, n in enumerate(output_size)]
            factors = [scale if each == axis else None for each, scale in enumerate(scales)]
            return lambda x: forward(x, size, *options, *factors)

        return _scale_back(grad, list(input_size)[2:], [along(axis) for axis in range(axes)])

    return lowering


def _pool_back(grad: Tensor, x: Tensor) -> Any:
    """Compute the gradient of adaptive average pooling."""

    def along(axis: int) -> Callable[..., Any]:
        size = [grad.shape[-2] if axis == 0 else 1, grad.shape[-1] if axis == 1 else 1]
        return lambda identity: aten._adaptive_avg_pool2d.default(identity, size)  # noqa: SLF001 - an operator's name

    return _scale_back(grad, x.shape[-2:], [along(0), along(1)])


_SCALINGS = (
    "upsample_nearest1d",
    "upsample_nearest2d",
    "upsample_nearest3d",
    "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d",
    "_upsample_nearest_exact3d",
    "upsample_linear1d",
    "upsample_bilinear2d",
    "upsample_trilinear3d",
    "upsample_bicubic2d",
)
LOWERINGS: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {getattr(aten, f"{name}_backward").default: _gradient_of(getattr(aten, name).default) for name in _SCALINGS}
    | {aten._adaptive_avg_pool2d_backward.default: _pool_back}  # noqa: SLF001 - an operator's name
)
