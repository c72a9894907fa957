"""Normalisation of rows, forward and backward: one launch for each direction, and one for each parameter's gradient."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from kernbench.frontends.placed import grid_for, pes_for
from kernbench.frontends.torch.launches import measure, refuse_graph
from kernbench.frontends.torch.reductions import TensorRows, contiguous_rows, launch_rows
from kernbench.frontends.torch.storage import current
from kernbench.frontends.torch.tensor import AhbmTensor, new, sip_of, without_elements
from kernbench.kernels.norms import backpropagate_norm, normalize_rows
from kernbench.kernels.tiling import is_all_gather_faster

aten = torch.ops.aten
_RENORM_EPS = 1e-7
"""Number that PyTorch adds to a norm before it divides by the norm."""


def native_layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the normalised rows, and the mean and 1 / standard deviation of each row, in f32."""
    rows, y = x.contiguous(), new(tuple(x.shape), x.dtype, sip_of(x))
    mean, rstd = _new_per_row(x, shape), _new_per_row(x, shape)
    _normalize("layer_norm", prod(shape), (y, mean, rstd), (rows, weight, bias), eps)
    return y, mean, rstd


def fused_rms_norm(x: Tensor, shape: Sequence[int], weight: Tensor | None, eps: float | None) -> tuple[Tensor, Tensor]:
    """Compute the normalised rows, and 1 / root mean square of each row, in f32."""
    rows, y, rstd = x.contiguous(), new(tuple(x.shape), x.dtype, sip_of(x)), _new_per_row(x, shape)
    least = torch.finfo(torch.float32).eps if eps is None else eps  # f32, in which PyTorch's kernels compute
    _normalize("rms_norm", prod(shape), (y, None, rstd), (rows, weight, None), least)
    return y, rstd


def _new_per_row(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Return an uninitialised tensor with one f32 element for each row of ``x``, which has the last axes ``shape``."""
    return new((*x.shape[: x.dim() - len(shape)], *[1 for _ in shape]), torch.float32, sip_of(x))


def _normalize(
    operator: str,
    n: int,
    outs: tuple[Tensor, Tensor | None, Tensor],
    inputs: tuple[Tensor, Tensor | None, Tensor | None],
    eps: float,
) -> None:
    """Launch the norm of rows of ``n``: ``outs`` are y, mean and rstd, ``inputs`` x, weight and bias."""
    y, mean, rstd = outs
    if y.numel():
        kernel = partial(normalize_rows, eps=eps, centred=mean is not None)
        results = _rows_of(y, n), _rows_of(mean, 1), _rows_of(rstd, 1)
        operands = [_rows_of(operand, n) for operand in inputs]
        nbytes = max(x.numel() * x.element_size() for x in (*outs, *inputs) if x is not None)
        launch_rows(operator, kernel, results, [*operands, *_copies(inputs[1:], n, y, nbytes)], nbytes)


def _copies(parameters: Sequence[Tensor | None], n: int, x: Tensor, work_bytes: int) -> list[TensorRows]:
    """Return buffers (cubes, n) for copies of parameters, if the launch on ``x`` should gather them in each cube."""
    context = current()
    cubes, pes = grid_for(context, work_bytes)
    vectors = [parameter for parameter in parameters if parameter is not None]
    if not is_all_gather_faster(context.topology, cubes, pes, sum(n * vector.element_size() for vector in vectors)):
        return []
    return [contiguous_rows(new((cubes, n), vector.dtype, sip_of(x)), n) for vector in vectors]


def _rows_of(x: Tensor | None, n: int) -> TensorRows | None:
    return None if x is None else contiguous_rows(x.contiguous(), n)


def _backpropagate(
    operator: str,
    grad: Tensor,
    x: Tensor,
    statistics: tuple[Tensor | None, Tensor],
    weight: Tensor | None,
    n: int,
    parameters: Sequence[Tensor | None],
) -> tuple[Tensor, list[Tensor | None]]:
    """Compute the gradients of ``x`` and of ``parameters``, weight and bias; None stands for one that is not needed.

    ``statistics`` are mean and rstd of each row of ``n`` elements; an RMS norm has no mean. Each program sums the
    gradients of the parameters over its rows. A launch for each parameter adds these partial sums.
    """
    operands = _rows_of(grad, n), _rows_of(x, n)
    sip, nbytes = sip_of(x), x.numel() * x.element_size()
    by_x, programs = new(tuple(x.shape), x.dtype, sip), len(pes_for(current(), sip, nbytes))
    sums = [None if parameter is None else new((programs, n), torch.float32, sip) for parameter in parameters]
    outs = [_rows_of(result, n) for result in (by_x, *sums)]
    inputs = [*operands, *[_rows_of(statistic, 1) for statistic in statistics], _rows_of(weight, n)]
    inputs += _copies((weight,), n, x, nbytes)
    launch_rows(operator, backpropagate_norm, outs, inputs, nbytes)
    gradients = [
        None if parameter is None or by_program is None else _add_rows(by_program, parameter)
        for parameter, by_program in zip(parameters, sums, strict=True)
    ]
    return by_x, gradients


def _add_rows(sums: Tensor, parameter: Tensor) -> Tensor:
    """Add the sums of all programs, in the type and shape of ``parameter``."""
    return sums.sum(0, dtype=parameter.dtype).reshape(parameter.shape)


def native_layer_norm_backward(
    grad: Tensor,
    x: Tensor,
    shape: Sequence[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    output_mask: Sequence[bool],
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Compute the gradients of ``x``, weight and bias, as far as ``output_mask`` selects them."""
    needed = weight if output_mask[1] else None, bias if output_mask[2] else None
    by_x, (by_weight, by_bias) = _backpropagate(
        "layer_norm_backward", grad, x, (mean, rstd), weight, prod(shape), needed
    )
    return by_x, by_weight, by_bias


def fused_rms_norm_backward(
    grad: Tensor, x: Tensor, shape: Sequence[int], rstd: Tensor, weight: Tensor | None, output_mask: Sequence[bool]
) -> tuple[Tensor, Tensor | None]:
    """Compute the gradients of ``x`` and weight, as far as ``output_mask`` selects them."""
    needed = weight if output_mask[1] else None, None
    by_x, (by_weight, _) = _backpropagate("rms_norm_backward", grad, x, (None, rstd), weight, prod(shape), needed)
    return by_x, by_weight


class _RmsNorm(torch.autograd.Function):
    """The RMS norm as one operator: PyTorch would decompose it before the kernels of this module are called."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, shape: Sequence[int], eps: float | None) -> Tensor:
        """Compute the normalised rows, and save the operands of the gradient."""
        with measure("rms_norm"):
            y, rstd = fused_rms_norm(x, shape, weight, eps)
        ctx.save_for_backward(x, weight, rstd)
        ctx.shape = shape
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        """Compute the gradients of input and weight."""
        refuse_graph("rms_norm")
        x, weight, rstd = ctx.saved_tensors
        with measure("rms_norm_backward"):
            by_x, by_weight = fused_rms_norm_backward(grad, x, ctx.shape, rstd, weight, (True, ctx.needs_input_grad[1]))
        return by_x, by_weight, None, None


def rms_norm(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """Normalise by the root mean square. Arguments are those of ``torch.nn.functional.rms_norm``."""
    if not isinstance(x, AhbmTensor):  # a compiler traces the call, and fuses the parts with their neighbours
        parts: Tensor = aten.rms_norm.default.decompose(x, normalized_shape, weight, eps)
        return parts
    return _RmsNorm.apply(x, weight, list(normalized_shape), eps)


def renorm(x: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """Scale slices along ``dim`` whose ``p``-norm exceeds ``maxnorm`` down to it, by differentiable operators.

    PyTorch's own gradient computes f32 tensors in f64 unless the device is CUDA. Here all is computed in f32, except
    that the scale is rounded to the dtype of ``x``, as in PyTorch.
    """
    aten.renorm.default(without_elements(x), p, dim, maxnorm)  # raises PyTorch's errors for the arguments
    elements = x.to(torch.float32)
    norms = torch.linalg.vector_norm(elements, p, _axes_but(x, dim), keepdim=True)
    scale = torch.where(norms > maxnorm, maxnorm / (norms + _RENORM_EPS), 1.0)
    return (elements * scale.to(x.dtype)).to(x.dtype)


def _axes_but(x: Tensor, dim: int) -> list[int]:
    return [axis for axis in range(x.dim()) if axis != dim % x.dim()]


def renorm_in_place(x: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """Apply `renorm` in place."""
    return x.copy_(renorm(x, p, dim, maxnorm))


def weight_norm_interface_backward(
    grad: Tensor, v: Tensor, g: Tensor, norms: Tensor, dim: int
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of direction ``v`` and length ``g`` of weights. Each slice along ``dim`` has one length."""
    grad = grad.to(norms.dtype)
    along = (grad * v).sum(_axes_but(v, dim), keepdim=True)
    by_v = (grad - v * (along / (norms * norms))) * (g / norms)
    return by_v.to(v.dtype), (along / norms).to(g.dtype)
