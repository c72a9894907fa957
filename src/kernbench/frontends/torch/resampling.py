"""Gradients of scaled images: a product with the weights of the scaling along each axis.

A scaling is linear, and scales one axis after another. The result for an identity matrix therefore contains the weights
along an axis. The host computes the weights, in no simulated time, and transfers them to the machine. The gradient is
the product with the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from kernbench.frontends.torch.storage import TorchOperator
from kernbench.frontends.torch.tensor import from_host, sip_of

Scaling: TypeAlias = Callable[[Tensor], Tensor]
"""A function that scales one axis of an image."""


def _weights(scale: Scaling, axis: int, axes: int, n: int) -> Tensor:
    """Return the weights along an axis of ``n`` elements: row i is the scaling of the i-th unit vector."""
    sizes = [n if other_axis == axis else 1 for other_axis in range(axes)]
    return scale(torch.eye(n).reshape(1, n, *sizes)).reshape(n, -1)


def _scale_back(grad: Tensor, sizes: Sequence[int], scalings: Sequence[Scaling]) -> Tensor:
    """Return the gradient of the operand, whose last axes have ``sizes``. Each of ``scalings`` scales one of them."""
    for axis, (n, scale) in enumerate(zip(sizes, scalings, strict=True)):
        weights = from_host(_weights(scale, axis, len(sizes), n).to(grad.dtype), sip_of(grad))
        from_end = axis - len(sizes)
        grad = (grad.movedim(from_end, -1) @ weights.T).movedim(-1, from_end)
    return grad.contiguous()


def upsample_backward(forward: TorchOperator) -> Callable[..., Tensor]:
    """Return the lowering of the gradient of ``forward``, an ``upsample`` operator."""

    def lowering(grad: Tensor, output_size: Sequence[int], input_size: Sequence[int], *rule: Any) -> Tensor:
        axes = len(output_size)
        n_options = len(forward._schema.arguments) - 2 - axes  # noqa: SLF001 - 1 if it has align_corners
        options, factors = rule[:n_options], (*rule[n_options:], *[None] * axes)[:axes]

        def along(axis: int) -> Scaling:
            sizes = [n if i == axis else 1 for i, n in enumerate(output_size)]
            factor = [factors[i] if i == axis else None for i in range(axes)]
            return lambda x: forward(x, sizes, *options, *factor)

        return _scale_back(grad, list(input_size)[2:], [along(axis) for axis in range(axes)])

    return lowering
