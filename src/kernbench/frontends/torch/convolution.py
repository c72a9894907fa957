"""Convolutions as matrix products: the windows of the input are a view, or a copy, with many rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from types import EllipsisType

import torch
from torch import Tensor

from kernbench.common.values import value

aten = torch.ops.aten
Sizes = Sequence[int]


@value
class _WindowRule:
    """Stride, padding and dilation along each axis of an image, and the number of groups of channels."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1

    @staticmethod
    def of(axes: int, stride: Sizes, padding: Sizes, dilation: Sizes = (1,), groups: int = 1) -> _WindowRule:
        """Return the rule for ``axes`` axes."""
        return _WindowRule(_per_axis(stride, axes), _per_axis(padding, axes), _per_axis(dilation, axes), groups)


def _per_axis(numbers: Sizes, axes: int) -> tuple[int, ...]:
    """Return a number for each axis: a single number counts for all."""
    return tuple(numbers) * axes if len(numbers) == 1 else tuple(numbers)


def _windows(x: Tensor, kernel: Sizes, rule: _WindowRule) -> tuple[Tensor, list[int]]:
    """Pad ``x`` (n, c, …). Return a view as windows, (n, places…, c, kernel…), and the numbers of places."""
    if any(rule.padding):
        x = aten.constant_pad_nd.default(x, [p for p in reversed(rule.padding) for _ in range(2)], 0.0)
    places = [
        (size - d * (k - 1) - 1) // s + 1
        for size, k, s, d in zip(x.shape[2:], kernel, rule.stride, rule.dilation, strict=True)
    ]
    image, channel, *steps = x.stride()
    between = [step * s for step, s in zip(steps, rule.stride, strict=True)]
    inside = [step * d for step, d in zip(steps, rule.dilation, strict=True)]
    shape = (x.shape[0], *places, x.shape[1], *kernel)
    return x.as_strided(shape, (image, *between, channel, *inside), x.storage_offset()), places


def _columns(x: Tensor, kernel: Sizes, rule: _WindowRule) -> tuple[Tensor, list[int]]:
    """Return one matrix per group, (groups, n · places, c · kernel), and the number of places along each axis."""
    windows, places = _windows(x, kernel, rule)
    rows, depth = x.shape[0] * prod(places), x.shape[1] // rule.groups * prod(kernel)
    return windows.reshape(rows, rule.groups, depth).transpose(0, 1), places


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
) -> Tensor:
    """Compute a convolution: the product of windows and weights, or for a transposed one its gradient."""
    axes = x.dim() - 2
    rule = _WindowRule.of(axes, stride, padding, dilation, groups)
    if not transposed:
        return _convolve(x, weight, bias, rule)
    more = _per_axis(output_padding, axes)
    sizes = [
        (x.shape[2 + i] - 1) * s - 2 * p + d * (weight.shape[2 + i] - 1) + 1 + more[i]
        for i, (s, p, d) in enumerate(zip(rule.stride, rule.padding, rule.dilation, strict=True))
    ]
    out = _differentiate_input(x, (x.shape[0], weight.shape[1] * groups, *sizes), weight, rule)
    return out if bias is None else out + bias.reshape(1, -1, *[1] * axes)


def _convolve(x: Tensor, weight: Tensor, bias: Tensor | None, rule: _WindowRule) -> Tensor:
    groups = rule.groups
    columns, places = _columns(x, weight.shape[2:], rule)
    out_channels = weight.shape[0] // groups
    by_group = weight.reshape(groups, out_channels, -1).transpose(1, 2)
    if groups == 1 and bias is not None:
        rows = torch.addmm(bias, columns[0], by_group[0]).unsqueeze(0)
    else:
        rows = torch.bmm(columns, by_group)
    shaped = rows.reshape(groups, x.shape[0], prod(places), out_channels).permute(1, 0, 3, 2)
    out = shaped.reshape(x.shape[0], weight.shape[0], *places)
    if groups > 1 and bias is not None:
        out = out + bias.reshape(1, -1, *[1] * len(places))
    return out


def _differentiate_input(grad: Tensor, shape: Sizes, weight: Tensor, rule: _WindowRule) -> Tensor:
    """Compute the gradient of the input: multiply each place's gradient by the weights, and add up the windows."""
    n, places, groups = grad.shape[0], grad.shape[2:], rule.groups
    channels = weight.shape[0] // groups
    rows = grad.reshape(n, groups, channels, prod(places)).permute(1, 0, 3, 2)
    rows = rows.reshape(groups, n * prod(places), channels)
    columns = torch.bmm(rows, weight.reshape(groups, channels, -1))
    windows = columns.reshape(groups, n, *places, shape[1] // groups, *weight.shape[2:])
    return _add_windows(windows, shape, rule)


def _add_windows(windows: Tensor, shape: Sizes, rule: _WindowRule) -> Tensor:
    """Return a tensor of ``shape``, the sum of windows (groups, n, places…, channels, kernel…) at their places.

    Each step adds the elements at one kernel offset, for all windows.
    """
    axes = len(shape) - 2
    groups, n, *places = windows.shape[: 2 + axes]
    channels, *kernel = windows.shape[2 + axes :]
    padded = [size + 2 * p for size, p in zip(shape[2:], rule.padding, strict=True)]
    out = torch.zeros((n, groups, channels, *padded), dtype=windows.dtype, device=windows.device)
    for offset in product(*map(range, kernel)):
        addend = _index(windows, offset).permute(1, 0, 2 + axes, *range(2, 2 + axes))
        target = tuple(
            slice(i * d, i * d + (count - 1) * s + 1, s)
            for i, d, s, count in zip(offset, rule.dilation, rule.stride, places, strict=True)
        )
        _index(out, target).add_(addend)
    inside = tuple(slice(p, p + size) for p, size in zip(rule.padding, shape[2:], strict=True))
    return _index(out, inside).reshape(tuple(shape))


def _index(x: Tensor, last: Sequence[int] | Sequence[slice]) -> Tensor:
    """Return the part of ``x`` at these places of its last axes."""
    places: tuple[EllipsisType | int | slice, ...] = (..., *last)
    return x[places]


def convolution_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Sizes | None,  # noqa: ARG001 - the mask has it
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,  # noqa: ARG001 - the shape of grad has it
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Compute the gradients of input, weights and bias that ``output_mask`` requests."""
    rule = _WindowRule.of(x.dim() - 2, stride, padding, dilation, groups)
    by_x = by_weight = None
    by_bias = grad.sum([0, *range(2, grad.dim())]) if output_mask[2] else None
    if output_mask[0]:
        by_x = _convolve(grad, weight, None, rule) if transposed else _differentiate_input(grad, x.shape, weight, rule)
    if output_mask[1]:  # a transposed convolution exchanges gradient and input
        image, by_place = (grad, x) if transposed else (x, grad)
        by_weight = _differentiate_weight(by_place, image, weight, rule)
    return by_x, by_weight, by_bias


def _differentiate_weight(grad: Tensor, x: Tensor, weight: Tensor, rule: _WindowRule) -> Tensor:
    """Compute the gradient of the weights: multiply the gradients of all places by their windows."""
    columns, places = _columns(x, weight.shape[2:], rule)
    channels = weight.shape[0] // rule.groups
    rows = grad.reshape(grad.shape[0], rule.groups, channels, prod(places)).permute(1, 2, 0, 3)
    return torch.bmm(rows.reshape(rule.groups, channels, -1), columns).reshape(weight.shape)
