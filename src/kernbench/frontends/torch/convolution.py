"""Convolutions as matrix products: the windows of the input are a view, or a copy, with many rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
Ints = Sequence[int]


def _windows(x: Tensor, kernel: Ints, stride: Ints, dilation: Ints) -> Any:
    """Return a view of padded ``x``, (n, c, …), as windows, (n, places…, c, kernel…), and the numbers of places."""
    places = [
        (size - d * (k - 1) - 1) // s + 1 for size, k, s, d in zip(x.shape[2:], kernel, stride, dilation, strict=True)
    ]
    steps = x.stride()
    shape = (x.shape[0], *places, x.shape[1], *kernel)
    strides = (
        steps[0],
        *[t * s for t, s in zip(steps[2:], stride, strict=True)],
        steps[1],
        *[t * d for t, d in zip(steps[2:], dilation, strict=True)],
    )
    return x.as_strided(shape, strides, x.storage_offset()), places


def _pad_around(x: Tensor, padding: Ints) -> Any:
    if not any(padding):
        return x
    return aten.constant_pad_nd.default(x, [each for p in reversed(padding) for each in (p, p)], 0.0)


def _columns(x: Tensor, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, groups: int) -> Any:
    """Return one matrix per group, (groups, n · places, c · kernel), and the number of places along each axis."""
    seen, places = _windows(_pad_around(x, padding), kernel, stride, dilation)
    rows, depth = x.shape[0] * prod(places), x.shape[1] // groups * prod(kernel)
    flat = seen.reshape(rows, groups, depth)
    return flat.transpose(0, 1), places


def _convolution(
    x: Tensor,
    weight: Tensor,
    bias: Any,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    transposed: bool,
    output_padding: Ints,
    groups: int,
) -> Any:
    if transposed:
        return _convolve_transposed(x, weight, bias, stride, padding, dilation, output_padding, groups)
    axes = x.dim() - 2
    stride, padding, dilation = (_each(v, axes) for v in (stride, padding, dilation))
    kernel = tuple(weight.shape[2:])
    columns, places = _columns(x, kernel, stride, padding, dilation, groups)
    out_channels = weight.shape[0] // groups
    by_group = weight.reshape(groups, out_channels, -1).transpose(1, 2)
    if groups == 1 and bias is not None:
        found = torch.addmm(bias, columns[0], by_group[0]).unsqueeze(0)
    else:
        found = torch.bmm(columns, by_group)
    shaped = found.reshape(groups, x.shape[0], prod(places), out_channels).permute(1, 0, 3, 2)
    out = shaped.reshape(x.shape[0], weight.shape[0], *places)
    if groups > 1 and bias is not None:
        out = out + bias.reshape(1, -1, *[1] * axes)
    return out


def _each(v: Ints, axes: int) -> list[int]:
    return list(v) * axes if len(v) == 1 else list(v)


def _convolve_transposed(
    x: Tensor, weight: Tensor, bias: Any, stride: Ints, padding: Ints, dilation: Ints, more: Ints, groups: int
) -> Any:
    """Compute a transposed convolution, which is the gradient of a convolution with respect to its input."""
    axes = x.dim() - 2
    stride, padding, dilation, more = (_each(v, axes) for v in (stride, padding, dilation, more))
    sizes = [
        (n - 1) * s - 2 * p + d * (k - 1) + 1 + extra
        for n, s, p, d, k, extra in zip(x.shape[2:], stride, padding, dilation, weight.shape[2:], more, strict=True)
    ]
    shape = (x.shape[0], weight.shape[1] * groups, *sizes)
    out = _by_input(x, shape, weight, stride, padding, dilation, groups)
    return out if bias is None else out + bias.reshape(1, -1, *[1] * axes)


def _by_input(
    grad: Tensor, shape: Ints, weight: Tensor, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> Any:
    """Compute the gradient of the input: multiply each place's gradient by the weights, and add up the windows."""
    kernel = tuple(weight.shape[2:])
    n, places = grad.shape[0], tuple(grad.shape[2:])
    rows = grad.reshape(n, groups, weight.shape[0] // groups, prod(places)).permute(1, 0, 3, 2)
    rows = rows.reshape(groups, n * prod(places), weight.shape[0] // groups)
    columns = torch.bmm(rows, weight.reshape(groups, weight.shape[0] // groups, -1))
    windows = columns.reshape(groups, n, *places, shape[1] // groups, *kernel)
    return _put_back(windows, shape, stride, padding, dilation)


def _put_back(windows: Any, shape: Ints, stride: Ints, padding: Ints, dilation: Ints) -> Any:
    """Return a tensor of ``shape``, the sum of windows (groups, n, places…, channels, kernel…) at their places.

    Each step adds the elements at one kernel offset, for all windows.
    """
    axes = len(shape) - 2
    groups, n, places = windows.shape[0], windows.shape[1], windows.shape[2 : 2 + axes]
    channels, kernel = windows.shape[2 + axes], tuple(windows.shape[3 + axes :])
    wide = [size + 2 * p for size, p in zip(shape[2:], padding, strict=True)]
    out = torch.zeros((n, groups, channels, *wide), dtype=windows.dtype, device=windows.device)
    for at in _offsets(kernel):
        window = windows[(..., *at)]
        part = window.permute(1, 0, 2 + axes, *range(2, 2 + axes))
        where = tuple(
            slice(i * d, i * d + (count - 1) * s + 1, s)
            for i, d, s, count in zip(at, dilation, stride, places, strict=True)
        )
        out[(slice(None), slice(None), slice(None), *where)].add_(part)
    inside = tuple(slice(p, p + size) for p, size in zip(padding, shape[2:], strict=True))
    return out[(slice(None), slice(None), slice(None), *inside)].reshape(tuple(shape))


def _offsets(kernel: Ints) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [()]
    for n in kernel:
        found = [(*each, i) for each in found for i in range(n)]
    return found


def _convolution_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Any,  # noqa: ARG001 - the mask has it
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    transposed: bool,
    output_padding: Ints,  # noqa: ARG001 - the shape of grad has it
    groups: int,
    output_mask: Sequence[bool],
) -> Any:
    axes = x.dim() - 2
    by_bias = grad.sum([0, *range(2, grad.dim())]) if output_mask[2] else None
    stride, padding, dilation = (_each(v, axes) for v in (stride, padding, dilation))
    if transposed:  # computed as for a convolution, with gradient and input exchanged
        by_x = None
        if output_mask[0]:
            by_x = _convolution(grad, weight, None, stride, padding, dilation, False, [0] * axes, groups)
        by_weight = _by_weight(x, grad, weight, stride, padding, dilation, groups) if output_mask[1] else None
        return by_x, by_weight, by_bias
    by_x = _by_input(grad, x.shape, weight, stride, padding, dilation, groups) if output_mask[0] else None
    by_weight = _by_weight(grad, x, weight, stride, padding, dilation, groups) if output_mask[1] else None
    return by_x, by_weight, by_bias


def _by_weight(
    grad: Tensor, x: Tensor, weight: Tensor, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> Any:
    """Compute the gradient of the weights: multiply the gradients of all places by their windows."""
    columns, places = _columns(x, tuple(weight.shape[2:]), stride, padding, dilation, groups)
    channels = weight.shape[0] // groups
    rows = grad.reshape(grad.shape[0], groups, channels, prod(places)).permute(1, 2, 0, 3)
    return torch.bmm(rows.reshape(groups, channels, -1), columns).reshape(weight.shape)


def _avg_pool(
    x: Tensor,
    kernel: Ints,
    stride: Ints = (),
    padding: Ints = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    axes = len(kernel) if len(kernel) > 1 else x.dim() - 2
    kernel, padding = _each(kernel, axes), _each(padding, axes)
    if ceil_mode or divisor_override or (any(padding) and not count_include_pad) or x.dim() != axes + 2:
        return NotImplemented
    seen, places = _windows(_pad_around(x, padding), kernel, _each(stride or kernel, axes), [1] * axes)
    mean = seen.mean([*range(2 + len(places), 2 + 2 * axes)])
    return mean.movedim(-1, 1).contiguous()


def _avg_pool_backward(
    grad: Tensor,
    x: Tensor,
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Any:
    axes = len(kernel) if len(kernel) > 1 else x.dim() - 2
    kernel, padding = _each(kernel, axes), _each(padding, axes)
    if ceil_mode or divisor_override or (any(padding) and not count_include_pad) or x.dim() != axes + 2:
        return NotImplemented
    n, channels, places = x.shape[0], x.shape[1], tuple(grad.shape[2:])
    each: Any = grad * (1.0 / prod(kernel))
    share = each.movedim(1, 1 + axes)
    windows = share.reshape(1, n, *places, channels, *[1] * axes).expand(1, n, *places, channels, *kernel)
    return _put_back(windows, x.shape, _each(stride or kernel, axes), padding, [1] * axes)


LOWERINGS: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        aten.convolution.default: _convolution,
        aten.convolution_overrideable.default: _convolution,
        aten.avg_pool2d.default: _avg_pool,
        aten.avg_pool2d_backward.default: _avg_pool_backward,
        aten.convolution_backward.default: _convolution_backward,
        aten.convolution_backward_overrideable.default: _convolution_backward,
    }
)
