"""Normalisation of rows, forward and backward: one launch for each direction, and one to add partial sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from kernbench.common.dtypes import F32
from kernbench.frontends.placed import pes_for
from kernbench.frontends.torch.launches import dtype_of, launch_on, measure, refuse_graph
from kernbench.frontends.torch.reductions import map_rows
from kernbench.frontends.torch.storage import current
from kernbench.frontends.torch.tensor import new, sip_of, without_elements
from kernbench.kernels.shares import blocks, load_rows, share
from kernbench.kernels.tiling import most_elements
from kernbench.kernels.view import View

aten = torch.ops.aten
_RENORM_EPS = 1e-7
"""Number that PyTorch adds to a norm before it divides by the norm."""


def _flat(x: Tensor, shape: Sequence[int]) -> tuple[Any, int]:
    """Return ``x`` as contiguous rows, and their length. Each row is normalised separately."""
    n = prod(shape)
    return x.contiguous().reshape(-1, n), n


def _vector(v: Any) -> Any:
    return None if v is None else v.contiguous().reshape(-1)


def _per_row(x: Tensor, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of a tensor with one element for each row."""
    return (*x.shape[: x.dim() - len(shape)], *[1 for _ in shape])


def _layer_norm(x: Tensor, shape: Sequence[int], weight: Any, bias: Any, eps: float) -> tuple[Tensor, Any, Any]:
    """Compute the normalised rows, and the mean and 1 / standard deviation of each row, in f32."""
    rows, n = _flat(x, shape)
    sip = sip_of(x)
    y, mean, rstd = (new(s, t, sip) for s, t in ((x.shape, x.dtype), *[((rows.shape[0],), torch.float32)] * 2))

    def body(tl: Any, v: Any, w: Any, b: Any) -> tuple[Any, Any, Any]:
        mu = tl.sum(v, 1, keepdims=True) / n
        v = v - mu
        r = tl.rsqrt(tl.sum(v * v, 1, keepdims=True) / n + eps)
        v = v * r
        v = v if w is None else v * w
        return v if b is None else v + b, mu, r

    map_rows("layer_norm", body, rows, (y, mean, rstd), _vector(weight), _vector(bias))
    return y, mean.reshape(_per_row(x, shape)), rstd.reshape(_per_row(x, shape))


def _rms_norm(x: Tensor, shape: Sequence[int], weight: Any, eps: float | None) -> tuple[Tensor, Any]:
    """Compute the normalised rows, and 1 / root mean square of each row, in f32."""
    rows, n = _flat(x, shape)
    sip = sip_of(x)
    y, rstd = new(tuple(x.shape), x.dtype, sip), new((rows.shape[0],), torch.float32, sip)
    least = torch.finfo(torch.float32).eps if eps is None else eps  # f32, in which PyTorch's kernels compute

    def body(tl: Any, v: Any, w: Any) -> tuple[Any, Any]:
        r = tl.rsqrt(tl.sum(v * v, 1, keepdims=True) / n + least)
        return (v * r if w is None else v * r * w), r

    map_rows("rms_norm", body, rows, (y, rstd), _vector(weight))
    return y, rstd.reshape(_per_row(x, shape))


def _backward(
    name: str, grad: Tensor, x: Tensor, shape: Sequence[int], mean: Any, rstd: Tensor, weight: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of ``x``, weight and bias, in f32; without ``mean``, those of an RMS norm.

    Each program sums the gradients of weight and bias over its own rows. A second launch adds these partial sums.
    """
    sip, (g_rows, n), (x_rows, _) = sip_of(x), _flat(grad, shape), _flat(x, shape)
    count = x_rows.shape[0]
    pes = pes_for(current(), sip, x.numel() * x.element_size())
    dx = new(tuple(x.shape), x.dtype, sip)
    by_weight, by_bias = (new((len(pes), n), torch.float32, sip) for _ in range(2))
    given = [None if v is None else v.contiguous() for v in (mean, rstd, weight)]
    layouts = [View.row_major(0, (count, n), dtype_of(t)) for t in (dx, g_rows, x_rows)]

    def program(dx_at: int, dw_at: int, db_at: int, g_at: int, x_at: int, *rest: int, tl: Any) -> None:
        me = tl.site.cube * tl.site.num_pes + tl.site.pe
        views = [layout.on(address) for layout, address in zip(layouts, (dx_at, g_at, x_at), strict=True)]
        at = iter(rest)
        mean_at, rstd_at, weight_at = (None if v is None else next(at) for v in given)
        w = None if weight_at is None else tl.cast(tl.load(weight_at, (1, n), dtype_of(weight)), F32)
        assert rstd_at is not None
        sums = [tl.zeros((1, n), F32), tl.zeros((1, n), F32)]
        first, mine = share(count, tl)
        for row, some in blocks(mine, max(1, min(-(-mine // 4), most_elements(tl) // n)), first):
            dx_tile, *operands = [view.tile((row, 0), (some, n)) for view in views]
            g, v = (load_rows(operand, tl) for operand in operands)
            r = tl.load(rstd_at + row * F32.itemsize, (some, 1), F32)
            v = v if mean_at is None else v - tl.load(mean_at + row * F32.itemsize, (some, 1), F32)
            v = v * r
            sums = [sums[0] + tl.sum(g * v, 0, keepdims=True), sums[1] + tl.sum(g, 0, keepdims=True)]
            g = g if w is None else g * w
            inner = g - v * (tl.sum(g * v, 1, keepdims=True) / n)
            inner = inner if mean_at is None else inner - tl.sum(g, 1, keepdims=True) / n
            dx_tile.store(inner * r, tl)
        for address, total in zip((dw_at, db_at), sums, strict=True):
            tl.store(address + me * n * F32.itemsize, total)

    read = (g_rows, x_rows, *[v for v in given if v is not None])
    launch_on(name, pes, program, (dx, by_weight, by_bias), read)
    return dx, by_weight, by_bias


def _parameter(partial: Tensor, like: Tensor) -> Any:
    """Add the partial sums of all programs."""
    return partial.sum(0, dtype=torch.float32).to(like.dtype).reshape(like.shape)


def _layer_norm_backward(
    grad: Tensor,
    x: Tensor,
    shape: Sequence[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Any,
    bias: Any,
    output_mask: Sequence[bool],
) -> tuple[Any, Any, Any]:
    dx, by_weight, by_bias = _backward("layer_norm_backward", grad, x, shape, mean, rstd, weight)
    dw = _parameter(by_weight, weight) if output_mask[1] and weight is not None else None
    db = _parameter(by_bias, bias) if output_mask[2] and bias is not None else None
    return dx, dw, db


def _rms_norm_backward(
    grad: Tensor, x: Tensor, shape: Sequence[int], rstd: Tensor, weight: Any, output_mask: Sequence[bool]
) -> tuple[Any, Any]:
    dx, by_weight, _ = _backward("rms_norm_backward", grad, x, shape, None, rstd, weight)
    return dx, _parameter(by_weight, weight) if output_mask[1] and weight is not None else None


class _RmsNorm(torch.autograd.Function):
    """The RMS norm as one operator: PyTorch would decompose it before the kernels of this module are called."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, shape: Sequence[int], eps: float | None) -> Any:
        with measure("rms_norm"):
            y, rstd = _rms_norm(x, shape, weight, eps)
        ctx.save_for_backward(x, weight, rstd)
        ctx.shape = shape
        return y

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        refuse_graph("rms_norm")
        x, weight, rstd = ctx.saved_tensors
        with measure("rms_norm_backward"):
            by_x, by_weight = _rms_norm_backward(grad, x, ctx.shape, rstd, weight, (True, ctx.needs_input_grad[1]))
        return by_x, by_weight, None, None


def rms_norm(x: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    """Normalise by the root mean square. Arguments are those of ``torch.nn.functional.rms_norm``."""
    return _RmsNorm.apply(x, weight, list(normalized_shape), eps)


def renorm(x: Any, p: float, dim: int, maxnorm: float) -> Any:
    """Scale slices along ``dim`` whose ``p``-norm exceeds ``maxnorm`` down to it, by differentiable operators.

    PyTorch's own gradient computes f32 tensors in f64 unless the device is CUDA. Here all is computed in f32, except
    that the scale is rounded to the dtype of ``x``, as in PyTorch.
    """
    aten.renorm.default(without_elements(x), p, dim, maxnorm)  # raises PyTorch's errors for the arguments
    others = [axis for axis in range(x.dim()) if axis != dim % x.dim()]
    wide = x.to(torch.float32)
    norms = torch.linalg.vector_norm(wide, p, others, keepdim=True)
    scale = torch.where(norms > maxnorm, maxnorm / (norms + _RENORM_EPS), 1.0)
    return (wide * scale.to(x.dtype)).to(x.dtype)


def renorm_in_place(x: Any, p: float, dim: int, maxnorm: float) -> Any:
    """Apply `renorm` in place."""
    return x.copy_(renorm(x, p, dim, maxnorm))


def _weight_norm_backward(grad: Tensor, v: Tensor, g: Tensor, norms: Tensor, dim: int) -> tuple[Any, Any]:
    """Compute the gradients of direction ``v`` and length ``g`` of weights. Each slice along ``dim`` has one length."""
    others = [each for each in range(v.dim()) if each != dim % v.dim()]
    wide: Any = grad.to(norms.dtype)
    along: Any = (wide * v).sum(others, keepdim=True)
    by_v = (wide - v * (along / (norms * norms))) * (g / norms)
    return by_v.to(v.dtype), (along / norms).to(g.dtype)


LOWERINGS: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        aten.native_layer_norm.default: _layer_norm,
        aten.native_layer_norm_backward.default: _layer_norm_backward,
        aten._fused_rms_norm.default: _rms_norm,  # noqa: SLF001 - operators' names
        aten._fused_rms_norm_backward.default: _rms_norm_backward,  # noqa: SLF001
        aten._weight_norm_interface_backward.default: _weight_norm_backward,  # noqa: SLF001
    }
)
