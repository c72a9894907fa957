"""PyTorch operators along axes: sums, extremes, softmax, counts; and launches of kernels that compute on rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any, TypeAlias

import torch
from torch import Tensor

from kernbench.common.dtypes import F32
from kernbench.common.errors import InputError
from kernbench.frontends.placed import grid_for
from kernbench.frontends.torch.launches import dtype_of, launch
from kernbench.frontends.torch.modules import program_place
from kernbench.frontends.torch.storage import current
from kernbench.frontends.torch.tensor import device_of, new, sip_of
from kernbench.kernels import reduce as kernels
from kernbench.kernels.norms import backpropagate_softmax, log_sum_exp_rows, softmax_rows
from kernbench.kernels.reduce import MAX, MIN, SUM, SUM_OF_SQUARES, RowBody, RowFold, count_bins, fold_parts, fold_rows
from kernbench.kernels.tiling import is_row_shared, reduction_parts
from kernbench.kernels.view import View
from kernbench.triton_emu.handles import Handle, Number
from kernbench.triton_emu.tl_context import TLContext

aten = torch.ops.aten
wide = kernels.wide
Dim: TypeAlias = int | Sequence[int] | None
"""The argument ``dim`` of an operator along axes"""
TensorRows: TypeAlias = tuple[Tensor, View]
"""A tensor and its layout as rows (rows, n), at address 0"""


def contiguous_rows(x: Tensor, n: int) -> TensorRows:
    """Return contiguous ``x`` as rows of ``n`` elements."""
    return x, View.row_major(0, (x.numel() // n, n), dtype_of(x))


def launch_rows(
    operator: str,
    kernel: Callable[..., None],
    outs: Sequence[TensorRows | None],
    inputs: Sequence[TensorRows | None],
    work_bytes: int | None = None,
) -> None:
    """Launch ``kernel(*views, tl=tl)`` on the views of ``outs``, then of ``inputs``. The view of None is None."""
    layouts = [None if rows is None else rows[1] for rows in (*outs, *inputs)]

    def program(*addresses: int, tl: TLContext) -> None:
        remaining = iter(addresses)
        kernel(*[None if layout is None else layout.on(next(remaining)) for layout in layouts], tl=tl)

    results, operands = ([rows[0] for rows in group if rows is not None] for group in (outs, inputs))
    launch(operator, program, results, operands, work_bytes)


def map_rows(operator: str, body: RowBody, x: Tensor, outs: Sequence[Tensor], *vectors: Tensor | None) -> None:
    """Launch ``body`` on blocks of complete rows of ``x``. ``x`` is contiguous along its last axis.

    ``body(tl, rows, *vectors)`` gets rows (count, n), floats in f32, and each vector as (1, n). It returns one array
    (count, …) for each of ``outs``, which are contiguous, or None to leave the output unchanged.
    """
    n, split = x.shape[-1], len(outs)
    rows = x.numel() // n

    def kernel(*views: Any, tl: TLContext) -> None:
        kernels.map_rows(body, views[:split], views[split], views[split + 1 :], tl=tl)

    if rows:
        results = [contiguous_rows(out, out.numel() // rows) for out in outs]
        operands = [None if operand is None else contiguous_rows(operand, n) for operand in (x, *vectors)]
        launch_rows(operator, kernel, results, operands)


def as_rows(x: Tensor, dims: Sequence[int]) -> TensorRows:
    """Return ``x``, or a copy, and its layout as rows along ``dims``; rows follow the order of the other axes."""
    outer_dims = [d for d in range(x.dim()) if d not in dims]
    permuted = x.permute(*outer_dims, *dims)
    rows, size = prod(x.shape[d] for d in outer_dims), prod(x.shape[d] for d in dims)
    split = len(outer_dims)
    outer = _one_stride(permuted.shape[:split], permuted.stride()[:split])
    inner = _one_stride(permuted.shape[split:], permuted.stride()[split:])
    if outer is None or inner is None or (inner == 0 and size > 1) or (outer == 0 and rows > 1):
        return permuted.contiguous(), View(0, (rows, size), (size, 1), dtype_of(x))
    return permuted, View(0, (rows, size), (outer, inner), dtype_of(x))


def _one_stride(shape: Sequence[int], strides: Sequence[int]) -> int | None:
    """Return the stride of these axes merged into one; None if they cannot be merged."""
    axes = [(n, step) for n, step in zip(shape, strides, strict=True) if n != 1]
    if not axes:
        return 1
    for (_, outer), (n, inner) in pairwise(axes):
        if outer != n * inner:
            return None
    return axes[-1][1]


def _axes_of(x: Tensor, dim: Dim) -> list[int]:
    """Return the axes that ``dim`` selects: all for None or an empty list. Raises IndexError if out of range."""
    dims = [dim] if isinstance(dim, int) else list(dim or range(x.dim()))
    axes = max(x.dim(), 1)
    if any(not -axes <= d < axes for d in dims):
        raise IndexError(f"dimension {dims} of a tensor of {x.dim()} axes")
    return sorted({d % axes for d in dims})


def _count_along(x: Tensor, dim: Dim) -> int:
    return prod(x.shape[d] for d in _axes_of(x, dim)) if x.dim() else 1


def _shape_without(x: Tensor, dims: Sequence[int], keepdim: bool) -> tuple[int, ...]:
    if keepdim:
        return tuple(1 if d in dims else n for d, n in enumerate(x.shape))
    return tuple(n for d, n in enumerate(x.shape) if d not in dims)


def reduce(
    operator: str,
    fold: RowFold,
    x: Tensor,
    dim: Dim,
    keepdim: bool,
    dtype: torch.dtype | None = None,
    scale: float = 1.0,
) -> Tensor:
    """Reduce ``x`` along axes, in f32 for floats, times ``scale``, rounded once to ``dtype``.

    If there are fewer rows than PEs, each PE reduces a part of the elements, and a second launch reduces the partial
    results.
    """
    if x.dim() == 0:
        return reduce(operator, fold, x.reshape(1), 0, False, dtype, scale).reshape(())
    dims = _axes_of(x, dim)
    if dtype is not None and not dtype.is_floating_point and x.dtype.is_floating_point:
        x = x.to(dtype)
    out = new(_shape_without(x, dims, keepdim), dtype or x.dtype, sip_of(x))
    if not out.numel():
        return out
    if not x.numel():
        return _fill_without_elements(operator, out)
    rows = as_rows(x, dims)
    cubes, pes = grid_for(current(), x.numel() * x.element_size())
    count, size = rows[1].extents
    result = out, View.row_major(0, (count,), dtype_of(out))
    parts = reduction_parts(count, size, cubes * pes)
    if parts == 1:
        launch_rows(operator, partial(fold_rows, fold=fold, scale=scale), (result,), (rows,))
        return out
    partial_results = new((parts, count), torch.float32 if x.dtype.is_floating_point else torch.int64, sip_of(x))
    by_part = contiguous_rows(partial_results, count)
    launch_rows(operator, partial(fold_parts, fold=fold), (by_part,), (rows,))
    by_row = partial_results, by_part[1].transposed
    combine = replace(fold, square=False)
    launch_rows(operator, partial(fold_rows, fold=combine, scale=scale), (result,), (by_row,))
    return out


def _fill_without_elements(operator: str, out: Tensor) -> Tensor:
    """Fill the results of a reduction without elements. Raises InputError for a maximum or minimum."""
    if operator in ("mean", "var"):
        return out.fill_(float("nan"))
    if operator in ("max", "min", "amax", "amin"):
        raise InputError(f"{program_place()}: {operator} of no elements")
    return out.fill_(1 if operator == "all" else 0)


def sum_elements(x: Tensor, dim: Dim = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    """Add elements along axes; sums of integers are int64."""
    return reduce("sum", SUM, x, dim, keepdim, dtype or (x.dtype if x.dtype.is_floating_point else torch.int64))


def mean(x: Tensor, dim: Dim = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    """Compute means along axes."""
    return reduce("mean", SUM, x, dim, keepdim, dtype, 1.0 / max(_count_along(x, dim), 1))


def amax(x: Tensor, dim: Dim = (), keepdim: bool = False) -> Tensor:
    """Compute maxima along axes."""
    return reduce("amax", MAX, x, dim, keepdim)


def amin(x: Tensor, dim: Dim = (), keepdim: bool = False) -> Tensor:
    """Compute minima along axes."""
    return reduce("amin", MIN, x, dim, keepdim)


def max_elements(x: Tensor) -> Tensor:
    """Compute the maximum of all elements."""
    return reduce("max", MAX, x, None, False)


def min_elements(x: Tensor) -> Tensor:
    """Compute the minimum of all elements."""
    return reduce("min", MIN, x, None, False)


def any_elements(x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Return whether any element along axes is not 0."""
    return reduce("any", MAX, _truths_of(x), dim, keepdim, _truth_type(x))


def all_elements(x: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Return whether all elements along axes are not 0."""
    return reduce("all", MIN, _truths_of(x), dim, keepdim, _truth_type(x))


def _truths_of(x: Tensor) -> Tensor:
    return x if x.dtype is torch.bool else x != 0


def _truth_type(x: Tensor) -> torch.dtype:
    """Return the type of PyTorch's truth values: uint8 for uint8, else bool."""
    return torch.uint8 if x.dtype is torch.uint8 else torch.bool


def linalg_vector_norm(
    x: Tensor,
    ord: Number = 2,  # noqa: A002 - PyTorch's name
    dim: Dim = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Compute the ``ord``-norm along axes."""
    to, norm = dtype or x.dtype, partial(reduce, "linalg_vector_norm")
    if ord == 2:
        return norm(SUM_OF_SQUARES, x, dim, keepdim, torch.float32).sqrt_().to(to)
    if abs(ord) == float("inf"):
        return norm(MAX if ord > 0 else MIN, x.abs(), dim, keepdim, dtype)
    if ord == 1:
        return norm(SUM, x.abs(), dim, keepdim, dtype)
    if ord == 0:
        return norm(SUM, (x != 0).to(torch.float32), dim, keepdim, to)
    powers = x.to(torch.float32).abs().pow(ord)
    return norm(SUM, powers, dim, keepdim, torch.float32).pow(1.0 / ord).to(to)


def var_mean(
    x: Tensor, dim: Dim = None, *, correction: Number | None = 1, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    """Compute the variance, in two passes, and the mean."""
    variance, average = _var_mean_in_f32(x.to(torch.float32), dim, correction, keepdim)
    return variance.to(x.dtype), average.to(x.dtype)


def _var_mean_in_f32(x: Tensor, dim: Dim, correction: Number | None, keepdim: bool) -> tuple[Tensor, Tensor]:
    """Compute the variance, in two passes, and the mean of f32 elements."""
    elements = _count_along(x, dim)
    average = mean(x, dim, True)
    count = elements - (1 if correction is None else correction)
    scale = 1.0 / count if count > 0 else float("inf")
    variance = reduce("var", SUM_OF_SQUARES, x - average, dim, keepdim, None, scale)
    return variance, average if keepdim else average.reshape(variance.shape)


def var(x: Tensor, dim: Dim = None, *, correction: Number | None = 1, keepdim: bool = False) -> Tensor:
    """Compute the variance along axes."""
    return var_mean(x, dim, correction=correction, keepdim=keepdim)[0]


def std(x: Tensor, dim: Dim = None, *, correction: Number | None = 1, keepdim: bool = False) -> Tensor:
    """Compute the standard deviation along axes."""
    return _var_mean_in_f32(x.to(torch.float32), dim, correction, keepdim)[0].sqrt_().to(x.dtype)


def prod_elements(
    x: Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    """Multiply the elements along an axis one by one: MATH has no product along an axis."""
    operand = x.reshape(-1) if dim is None else x
    axis = 0 if dim is None else dim % max(x.dim(), 1)
    to = dtype or (x.dtype if x.dtype.is_floating_point else torch.int64)
    factors = operand.to(to).unbind(axis)
    keepdim = keepdim and dim is not None
    if not factors:
        return torch.ones(_shape_without(operand, [axis], keepdim), dtype=to, device=device_of(x))
    product = factors[0].clone()
    for factor in factors[1:]:
        product.mul_(factor)
    return product.unsqueeze(axis) if keepdim else product


def equal(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors have equal shapes and elements."""
    return a.shape == b.shape and not bool((a != b).any().item())


def allclose(a: Tensor, b: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    """Return whether all elements of two tensors are close."""
    return bool(torch.isclose(a, b, rtol, atol, equal_nan).all().item())


def softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    """Compute the softmax along an axis."""
    return _softmax_along("softmax", softmax_rows, x, dim, torch.float32 if half_to_float else x.dtype)


def log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    """Compute the logarithm of the softmax along an axis."""
    kernel = partial(softmax_rows, log=True)
    return _softmax_along("log_softmax", kernel, x, dim, torch.float32 if half_to_float else x.dtype)


def safe_softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Compute the softmax along an axis; it is 0 where all elements along the axis are minus infinity."""
    x = x.to(dtype or x.dtype)
    return _softmax_along("_safe_softmax", partial(softmax_rows, safe=True), x, dim, x.dtype)


def _softmax_along(operator: str, kernel: Callable[..., None], x: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    if x.dim() == 0:
        return _softmax_along(operator, kernel, x.reshape(1), 0, dtype).reshape(())
    return _map_axis(operator, kernel, dim, dtype, x)


def logsumexp(x: Tensor, dim: Dim, keepdim: bool = False) -> Tensor:
    """Compute log(sum(exp(x))) along axes, in f32: by one launch, or by several if PEs should share a few long rows."""
    x = x if x.dtype.is_floating_point else x.to(torch.float32)
    if x.dim() == 0 or not x.numel():
        return x.clone() if x.dim() == 0 else sum_elements(x, dim, keepdim).log_()
    dims = _axes_of(x, dim)
    size = prod(x.shape[d] for d in dims)
    if is_row_shared(x.numel() // size, size, prod(grid_for(current(), x.numel() * x.element_size()))):
        largest = x.amax(dims, keepdim=True)
        largest = torch.where(largest.abs() == torch.inf, 0.0, largest)
        total = (x - largest).exp().sum(dims, keepdim=True).log().add(largest)
        return total.reshape(_shape_without(x, dims, keepdim))
    rows = x.permute(*[d for d in range(x.dim()) if d not in dims], *dims).contiguous()
    out = new(_shape_without(x, dims, keepdim), x.dtype, sip_of(x))
    launch_rows("logsumexp", log_sum_exp_rows, (contiguous_rows(out, 1),), (contiguous_rows(rows, size),))
    return out


def softmax_backward_data(grad: Tensor, y: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """Compute the gradient of a softmax from its result ``y``."""
    return _map_axis("softmax_backward", partial(backpropagate_softmax, log=False), dim, dtype, grad, y)


def log_softmax_backward_data(grad: Tensor, y: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """Compute the gradient of a logarithmic softmax from its result ``y``."""
    return _map_axis("log_softmax_backward", partial(backpropagate_softmax, log=True), dim, dtype, grad, y)


def _map_axis(operator: str, kernel: Callable[..., None], dim: int, dtype: torch.dtype, *operands: Tensor) -> Tensor:
    """Launch ``kernel(y, *operands, tl=tl)`` on rows along axis ``dim`` of ``operands``. Return y, of their shape."""
    operands = tuple([_swap_last(x, dim).contiguous() for x in operands])
    out = new(tuple(operands[0].shape), dtype, sip_of(operands[0]))
    if out.numel():
        n = out.shape[-1]
        launch_rows(operator, kernel, (contiguous_rows(out, n),), [contiguous_rows(x, n) for x in operands])
    return _swap_last(out, dim)


def _swap_last(x: Tensor, dim: int) -> Tensor:
    return x if dim % x.dim() == x.dim() - 1 else x.transpose(dim, -1)


def smooth_l1_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int, beta: float) -> Tensor:
    """Compute the gradient of the smooth L1 loss: differences over ``beta``, clamped to 1; ``reduction`` 1 is a mean.

    A NaN difference has a NaN gradient.
    """
    difference = x - target
    slope = (difference / beta).clamp(-1, 1) if beta else difference.sign()
    return slope * grad if reduction != 1 else slope * (grad / difference.numel())


def _count_into(
    operator: str, x: Tensor, bins: int, bin_of: Callable[[TLContext, Handle], Handle], dtype: torch.dtype
) -> Tensor:
    """For each bin number 0, 1, …, count the elements for which ``bin_of`` returns it; programs split the bins."""
    out = new((bins,), dtype, sip_of(x))
    result = out, View.row_major(0, (bins,), dtype_of(out))
    row = x.contiguous(), View.row_major(0, (1, x.numel()), dtype_of(x))
    kernel = partial(count_bins, bin_of=bin_of)
    launch_rows(operator, kernel, (result,), (row,), max(out.numel() * out.element_size(), 1))
    return out


def histc(x: Tensor, bins: int = 100, min: Number = 0, max: Number = 0) -> Tensor:  # noqa: A002 - PyTorch's names
    """Count the elements in each of ``bins`` equal intervals."""
    low, high = (min, max) if (min, max) != (0, 0) else (x.min().item(), x.max().item())
    if low == high:
        low, high = low - 1, high + 1
    scale = bins / (high - low)

    def bin_of(tl: TLContext, elements: Handle) -> Handle:
        elements = tl.cast(elements, F32)
        is_last = tl.elementwise("eq", elements, float(high))
        return tl.where(is_last, float(bins - 1), tl.floor((elements - low) * scale))

    return _count_into("histc", x, bins, bin_of, x.dtype)


def bincount(x: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """Count the elements equal to 0, 1, …, or add their weights. Return NotImplemented if weights are not f32."""
    bins = max(minlength, int(x.max().item()) + 1 if x.numel() else 0)
    if weights is None:
        return _count_into("bincount", x, bins, lambda _tl, elements: elements, torch.int64)
    if weights.dtype is not torch.float32:
        return NotImplemented
    return weights.new_zeros(bins).scatter_add_(0, x, weights)


# distances of rows


def _as_batches(x1: Tensor, x2: Tensor) -> tuple[torch.Size, list[Tensor]]:
    """Return the batch shape of two operands (…, rows, k), and both contiguous, with that batch shape."""
    batch = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    return batch, [x.expand(*batch, *x.shape[-2:]).contiguous() for x in (x1, x2)]


def _as_stack(x: Tensor) -> TensorRows:
    """Return contiguous ``x`` (…, rows, k), and its layout with one batch axis."""
    rows, columns = x.shape[-2:]
    return x, View.row_major(0, (x.numel() // max(rows * columns, 1), rows, columns), dtype_of(x))


def cdist_forward(x1: Tensor, x2: Tensor, p: float, compute_mode: int | None) -> Tensor:
    """Return the distance of order ``p`` of each row of ``x1`` from each row of ``x2``.

    ``compute_mode`` 0 (or None) and 1 allow PyTorch's product of matrices for ``p`` 2; 0, for more than 25 rows.
    """
    batch, (x, y) = _as_batches(x1, x2)
    n, m = x.shape[-2], y.shape[-2]
    if (
        p == 2
        and x.numel()
        and y.numel()
        and (compute_mode == 1 or (not compute_mode and max(n, m) > _ROWS_OF_PRODUCT))
    ):
        return aten._euclidean_dist.default(x, y)  # noqa: SLF001 - an operator's name
    out = new((*batch, n, m), x.dtype, sip_of(x))
    if not out.numel():
        return out
    if not x.shape[-1]:
        return out.zero_()
    launch_rows("cdist", partial(kernels.measure_distances, order=p), [_as_stack(out)], [_as_stack(x), _as_stack(y)])
    return out


def cdist_backward(grad: Tensor, x1: Tensor, x2: Tensor, p: float, cdist: Tensor) -> Tensor:
    """Return the gradient of ``x1``, which autograd sums over broadcast axes."""
    _, (x, y) = _as_batches(x1, x2)
    out = new(tuple(x.shape), x.dtype, sip_of(x))
    if not out.numel():
        return out
    if not y.numel() or p == 0:
        return out.zero_()
    operands = [_as_stack(operand) for operand in (grad.contiguous(), x, y, cdist.contiguous())]
    launch_rows("cdist_backward", partial(kernels.backpropagate_distances, order=p), [_as_stack(out)], operands)
    return out


_ROWS_OF_PRODUCT = 25
"""Rows above which PyTorch computes Euclidean distances as a product of matrices."""
