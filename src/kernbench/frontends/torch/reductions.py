"""PyTorch operators along axes: sums, extremes, normalisation, counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import prod
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from kernbench.common.dtypes import F32, I32
from kernbench.common.errors import InputError
from kernbench.common.values import value
from kernbench.frontends.placed import grid_for
from kernbench.frontends.torch.launches import dtype_of, launch
from kernbench.frontends.torch.modules import program_place
from kernbench.frontends.torch.storage import current
from kernbench.frontends.torch.tensor import device_of, new, sip_of
from kernbench.kernels.shares import blocks, load_rows, part, share
from kernbench.kernels.tiling import most_elements
from kernbench.kernels.view import View

aten = torch.ops.aten


def as_rows(x: Tensor, dims: Sequence[int]) -> tuple[Tensor, View]:
    """Return ``x``, or a copy, and its layout as rows along ``dims``; rows follow the order of the other axes."""
    kept = [d for d in range(x.dim()) if d not in dims]
    seen = x.permute(*kept, *dims)
    rows, size = prod(x.shape[d] for d in kept), prod(x.shape[d] for d in dims)
    outer = _one_stride(seen.shape[: len(kept)], seen.stride()[: len(kept)])
    inner = _one_stride(seen.shape[len(kept) :], seen.stride()[len(kept) :])
    if outer is None or inner is None or (inner == 0 and size > 1) or (outer == 0 and rows > 1):
        seen = seen.contiguous()
        outer, inner = size, 1
    return seen, View(0, (rows, size), (outer, inner), dtype_of(x))


def _one_stride(shape: Sequence[int], strides: Sequence[int]) -> int | None:
    """Return the stride of these axes merged into one; None if they cannot be merged."""
    axes = [(n, step) for n, step in zip(shape, strides, strict=True) if n != 1]
    if not axes:
        return 1
    for (_, outer), (n, inner) in pairwise(axes):
        if outer != n * inner:
            return None
    return axes[-1][1]


def _dims(x: Tensor, dim: Any) -> list[int]:
    """Return the axes that ``dim`` selects: all for None or an empty list. Raises IndexError if out of range."""
    if dim is None or (isinstance(dim, list | tuple) and not dim):
        return list(range(x.dim()))
    asked, axes = [dim] if isinstance(dim, int) else list(dim), max(x.dim(), 1)
    if any(not -axes <= each < axes for each in asked):
        raise IndexError(f"dimension {asked} of a tensor of {x.dim()} axes")
    return sorted({each % axes for each in asked})


def _shape_without(x: Tensor, dims: Sequence[int], keepdim: bool) -> tuple[int, ...]:
    if keepdim:
        return tuple(1 if d in dims else n for d, n in enumerate(x.shape))
    return tuple(n for d, n in enumerate(x.shape) if d not in dims)


@value
class Fold:
    """A reduction: its ``tl`` function, and the operator that combines two results; ``square``: of x * x."""

    name: str
    combine: str
    square: bool = False


_SUM, _MAX, _MIN = Fold("sum", "add"), Fold("max", "maximum"), Fold("min", "minimum")


def reduce(operator: str, fold: Fold, x: Tensor, dim: Any, keepdim: bool, dtype: Any = None, scale: float = 1.0) -> Any:
    """Reduce ``x`` along axes, in f32 for floats, times ``scale``, rounded once to ``dtype``.

    If there are fewer rows than PEs, each PE reduces a part of the elements, and a second launch reduces the partial
    results.
    """
    if x.dim() == 0:
        return reduce(operator, fold, x.reshape(1), 0, False, dtype, scale).reshape(())
    dims = _dims(x, dim)
    if dtype is not None and not dtype.is_floating_point and x.dtype.is_floating_point:
        x = x.to(dtype)
    out = new(_shape_without(x, dims, keepdim), dtype or x.dtype, sip_of(x))
    if not out.numel():
        return out
    if not x.numel():
        return _of_nothing(operator, out)
    seen, rows = as_rows(x, dims)
    cubes, pes = grid_for(current(), x.numel() * x.element_size())
    count, size = rows.extents
    parts = min(cubes * pes, size // 256) if count < cubes * pes else 1
    wide = torch.float32 if x.dtype.is_floating_point else torch.int64
    if parts <= 1:
        _fold_rows(operator, fold, seen, rows, out, scale, 1)
        return out
    partial_results = new((parts, count), wide, sip_of(x))
    _fold_rows(operator, fold, seen, rows, partial_results, 1.0, parts)
    layout = View(0, (count, parts), (1, count), dtype_of(partial_results))
    _fold_rows(operator, Fold(fold.name, fold.combine), partial_results, layout, out, scale, 1)
    return out


def _of_nothing(operator: str, out: Tensor) -> Any:
    """Fill the results of a reduction without elements. Raises InputError for a maximum or minimum."""
    if operator in ("mean", "var"):
        return out.fill_(float("nan"))
    if operator in ("max", "min", "amax", "amin"):
        raise InputError(f"{program_place()}: {operator} of no elements")
    return out.fill_(1 if operator == "all" else 0)


def _fold_rows(operator: str, fold: Fold, x: Tensor, layout: View, out: Tensor, scale: float, parts: int) -> None:
    """Launch the reduction of rows to (rows,), or of their ``parts``, one for each program, to (parts, rows)."""
    to, (all_rows, columns) = dtype_of(out), layout.extents

    def fold_elements(rows: View, tl: Any) -> Any:
        total, (count, size) = None, rows.extents
        for first, width in blocks(size, max(1, most_elements(tl) // count)):
            part_of_rows = wide(load_rows(rows.tile((0, first), (count, width)), tl), tl)
            part_of_rows = part_of_rows * part_of_rows if fold.square else part_of_rows
            found = _fold_axis(fold, part_of_rows, tl)
            total = found if total is None else tl.elementwise(fold.combine, total, found)
        return total

    def program(out_at: int, x_at: int, *, tl: Any) -> None:
        x_view = layout.on(x_at)
        if parts > 1:
            me = tl.site.cube * tl.site.num_pes + tl.site.pe
            if me >= parts:
                return
            first, size = part(columns, parts, me)
            for row, count in blocks(all_rows, 512):
                total = fold_elements(x_view.tile((row, first), (count, size)), tl)
                tl.store(out_at + (me * all_rows + row) * to.itemsize, tl.cast(total, to))
            return
        first_row, row_count = share(all_rows, tl)
        block = max(1, min(most_elements(tl) // max(columns, 1), 4096))
        for row, count in blocks(row_count, block, first_row):
            total = fold_elements(x_view.tile((row, 0), (count, columns)), tl)
            total = total if scale == 1 else tl.cast(total, "f32") * scale
            tl.store(out_at + row * to.itemsize, tl.cast(total, to))

    launch(operator, program, (out,), (x,))


def wide(x: Any, tl: Any) -> Any:
    """Cast elements to the accumulation type: i64 for integers."""
    return x if x.dtype.is_float else tl.cast(x, "i64")


def _fold_axis(fold: Fold, x: Any, tl: Any) -> Any:
    return {"sum": tl.sum, "max": tl.max, "min": tl.min}[fold.name](x, 1)


def _sum(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    whole = torch.int64 if not x.dtype.is_floating_point else x.dtype
    return reduce("sum", _SUM, x, dim, keepdim, dtype or whole)


def _mean(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    count = prod(x.shape[d] for d in _dims(x, dim)) if x.dim() else 1
    return reduce("mean", _SUM, x, dim, keepdim, dtype, 1.0 / max(count, 1))


def _amax(x: Tensor, dim: Any = (), keepdim: bool = False) -> Any:
    return reduce("amax", _MAX, x, list(dim), keepdim)


def _amin(x: Tensor, dim: Any = (), keepdim: bool = False) -> Any:
    return reduce("amin", _MIN, x, list(dim), keepdim)


def _max(x: Tensor) -> Any:
    return reduce("max", _MAX, x, None, False)


def _min(x: Tensor) -> Any:
    return reduce("min", _MIN, x, None, False)


def _any(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return reduce("any", _MAX, x if x.dtype is torch.bool else x != 0, dim, keepdim, _truth_type(x))


def _all(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return reduce("all", _MIN, x if x.dtype is torch.bool else x != 0, dim, keepdim, _truth_type(x))


def _truth_type(x: Any) -> Any:
    """Return the type of PyTorch's truth values: uint8 for uint8, else bool."""
    return torch.uint8 if x.dtype is torch.uint8 else torch.bool


def _vector_norm(x: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:  # noqa: A002
    to = dtype or x.dtype
    if ord == 2:
        squares = reduce("linalg_vector_norm", Fold("sum", "add", square=True), x, dim, keepdim, torch.float32)
        return squares.sqrt_().to(to)
    if abs(ord) == float("inf"):
        return reduce("linalg_vector_norm", _MAX if ord > 0 else _MIN, x.abs(), dim, keepdim, dtype)
    if ord == 1:
        return reduce("linalg_vector_norm", _SUM, x.abs(), dim, keepdim, dtype)
    if ord == 0:
        return reduce("linalg_vector_norm", _SUM, (x != 0).to(torch.float32), dim, keepdim, to)
    powers = x.to(torch.float32).abs().pow(ord)
    return reduce("linalg_vector_norm", _SUM, powers, dim, keepdim, torch.float32).pow(1.0 / ord).to(to)


def _var_mean(x: Any, dim: Any = None, *, correction: Any = 1, keepdim: bool = False) -> tuple[Any, Any]:
    """Compute the variance, in two passes, and the mean."""
    variance, mean = _wide_var_mean(x.to(torch.float32), dim, correction, keepdim)
    return variance.to(x.dtype), mean.to(x.dtype)


def _wide_var_mean(x: Any, dim: Any, correction: Any, keepdim: bool) -> tuple[Any, Any]:
    """Compute the variance, in two passes, and the mean of f32 elements."""
    many = prod(x.shape[d] for d in _dims(x, dim)) if x.dim() else 1
    mean = reduce("mean", _SUM, x, dim, True, None, 1.0 / max(many, 1))
    count = many - (1 if correction is None else correction)
    scale = 1.0 / count if count > 0 else float("inf")
    variance = reduce("var", Fold("sum", "add", square=True), x - mean, dim, keepdim, None, scale)
    return variance, mean if keepdim else mean.reshape(variance.shape)


def _var(x: Tensor, dim: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Any:
    return _var_mean(x, dim, correction=correction, keepdim=keepdim)[0]


def _std(x: Any, dim: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Any:
    return _wide_var_mean(x.to(torch.float32), dim, correction, keepdim)[0].sqrt_().to(x.dtype)


def _prod(x: Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Multiply the elements along an axis one by one: MATH has no product along an axis."""
    seen = x.reshape(-1) if dim is None else x
    at = 0 if dim is None else dim % max(x.dim(), 1)
    to = dtype or (x.dtype if x.dtype.is_floating_point else torch.int64)
    total = None
    for each in seen.to(to).unbind(at):
        total = each.clone() if total is None else total.mul_(each)
    if total is None:
        return torch.ones(_shape_without(seen, [at], keepdim and dim is not None), dtype=to, device=device_of(x))
    return total.unsqueeze(at) if keepdim and dim is not None else total


def _equal(a: Any, b: Any) -> bool:
    return a.shape == b.shape and not bool((a != b).any().item())


def _allclose(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    return bool(torch.isclose(a, b, rtol, atol, equal_nan).all().item())


# row by row, each with its own result


def map_rows(
    operator: str, body: Callable[..., Sequence[Any]], x: Tensor, outs: Sequence[Tensor], *vectors: Any
) -> None:
    """Launch ``body`` on blocks of complete rows of ``x``. ``x`` is contiguous along its last axis.

    ``body(tl, rows, *vectors)`` gets rows (count, n), floats in f32, and each vector as (1, n). It returns one array
    (count, …) for each of ``outs``, which are contiguous, or None to leave the output unchanged.
    """
    n = x.shape[-1]
    rows = x.numel() // n
    layout = View.row_major(0, (rows, n), dtype_of(x))
    given = [v for v in vectors if v is not None]

    def program(*addresses: int, tl: Any) -> None:
        first, mine = share(rows, tl)
        if not mine:
            return
        out_at, x_at, rest = addresses[: len(outs)], addresses[len(outs)], iter(addresses[len(outs) + 1 :])
        loaded = [None if v is None else tl.cast(tl.load(next(rest), (1, n), dtype_of(v)), "f32") for v in vectors]
        block = max(1, min(-(-mine // 4), max(1, most_elements(tl) // n)))
        for row, count in blocks(mine, block, first):
            results = body(tl, load_rows(layout.on(x_at).tile((row, 0), (count, n)), tl), *loaded)
            for out, at, y in zip(outs, out_at, results, strict=True):
                if y is not None:
                    to = dtype_of(out)
                    tl.store(at + row * (out.numel() // rows) * to.itemsize, tl.cast(y, to))

    if rows:
        launch(operator, program, outs, (x, *given))


def _softmax_of(operator: str, log: bool, x: Tensor, dim: int, dtype: Any) -> Any:
    if x.dim() == 0:
        return _softmax_of(operator, log, x.reshape(1), 0, dtype).reshape(())
    last = x.dim() - 1
    seen = (x if dim % x.dim() == last else x.transpose(dim, last)).contiguous()
    out = new(tuple(seen.shape), dtype, sip_of(x))

    def body(tl: Any, v: Any) -> tuple[Any]:
        if not log:
            return (tl.softmax(v),)
        v = v - tl.max(v, 1, keepdims=True)
        return (v - tl.log(tl.sum(tl.exp(v), 1, keepdims=True)),)

    if x.numel():
        map_rows(operator, body, seen, (out,))
    return out if dim % x.dim() == last else out.transpose(dim, last)


def _softmax(x: Tensor, dim: int, half_to_float: bool) -> Any:
    return _softmax_of("softmax", False, x, dim, torch.float32 if half_to_float else x.dtype)


def _log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Any:
    return _softmax_of("log_softmax", True, x, dim, torch.float32 if half_to_float else x.dtype)


def _rows_of(operator: str, grad: Tensor, y: Tensor, dim: int, dtype: Any, body: Callable[..., Any]) -> Any:
    """Launch ``body(tl, grad rows, y rows)``, which returns rows of the result."""
    last = grad.dim() - 1
    g, y = ((t if dim % t.dim() == last else t.transpose(dim, last)).contiguous() for t in (grad, y))
    n = g.shape[-1]
    rows = g.numel() // n
    out = new(tuple(g.shape), dtype, sip_of(g))
    layouts = [View.row_major(0, (rows, n), dtype_of(t)) for t in (out, g, y)]

    def program(*addresses: int, tl: Any) -> None:
        views = [layout.on(address) for layout, address in zip(layouts, addresses, strict=True)]
        first, mine = share(rows, tl)
        for row, count in blocks(mine, max(1, min(-(-mine // 4), max(1, most_elements(tl) // n))), first):
            out_tile, *operands = [view.tile((row, 0), (count, n)) for view in views]
            out_tile.store(body(tl, *[load_rows(operand, tl) for operand in operands]), tl)

    if rows:
        launch(operator, program, (out,), (g, y))
    return out if dim % grad.dim() == last else out.transpose(dim, last)


def _softmax_backward(grad: Tensor, y: Tensor, dim: int, dtype: Any) -> Any:
    return _rows_of("softmax_backward", grad, y, dim, dtype, lambda tl, g, p: p * (g - tl.sum(g * p, 1, keepdims=True)))


def _log_softmax_backward(grad: Tensor, y: Tensor, dim: int, dtype: Any) -> Any:
    return _rows_of(
        "log_softmax_backward", grad, y, dim, dtype, lambda tl, g, p: g - tl.exp(p) * tl.sum(g, 1, keepdims=True)
    )


def _smooth_l1_backward(grad: Any, x: Any, target: Any, reduction: int, beta: float) -> Any:
    """Compute the gradient of the smooth L1 loss: differences over ``beta``, clamped to 1; ``reduction`` 1 is a mean.

    A NaN difference has a NaN gradient.
    """
    difference = x - target
    slope = (difference / beta).clamp(-1, 1) if beta else difference.sign()
    return slope * grad if reduction != 1 else slope * (grad / difference.numel())


def _count_into(x: Tensor, bins: int, bin_of: Callable[..., Any], dtype: Any, name: str) -> Tensor:
    """For each bin number 0, 1, …, count the elements for which ``bin_of`` returns it; programs split the bins."""
    out = new((bins,), dtype, sip_of(x))
    flat, to = x.contiguous().reshape(-1), dtype_of(out)
    layout = View.row_major(0, (1, flat.numel()), dtype_of(x))

    def program(out_at: int, x_at: int, *, tl: Any) -> None:
        first, mine = share(bins, tl)
        if not mine:
            return
        total = tl.zeros((mine,), I32)
        wanted = tl.iota((mine, 1), I32, axis=0) + first
        for at, count in blocks(flat.numel(), max(1, most_elements(tl) // mine)):
            bin_numbers = bin_of(tl, load_rows(layout.on(x_at).tile((0, at), (1, count)), tl))
            total = total + tl.sum(tl.cast(tl.elementwise("eq", tl.cast(bin_numbers, I32), wanted), I32), 1)
        tl.store(out_at + first * to.itemsize, tl.cast(total, to))

    launch(name, program, (out,), (flat,), max(out.numel() * out.element_size(), 1))
    return out


def _histc(x: Tensor, bins: int = 100, min: Any = 0, max: Any = 0) -> Any:  # noqa: A002 - PyTorch's names
    low, high = (min, max) if (min, max) != (0, 0) else (x.min().item(), x.max().item())
    if low == high:
        low, high = low - 1, high + 1
    scale = bins / (high - low)

    def bin_of(tl: Any, v: Any) -> Any:
        at = (tl.cast(v, F32) - low) * scale
        return tl.where(tl.elementwise("eq", tl.cast(v, F32), float(high)), float(bins - 1), tl.floor(at))

    return _count_into(x, bins, bin_of, x.dtype, "histc")


def _bincount(x: Tensor, weights: Any = None, minlength: int = 0) -> Any:
    bins = max(minlength, int(x.max().item()) + 1 if x.numel() else 0)
    if weights is not None:
        if weights.dtype is not torch.float32:
            return NotImplemented
        return weights.new_zeros(bins).scatter_add_(0, x, weights)
    return _count_into(x, bins, lambda tl, v: v, torch.int64, "bincount")  # noqa: ARG005


LOWERINGS: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        aten.sum.default: _sum,
        aten.sum.dim_IntList: _sum,
        aten.mean.default: _mean,
        aten.mean.dim: _mean,
        aten.amax.default: _amax,
        aten.amin.default: _amin,
        aten.max.default: _max,
        aten.min.default: _min,
        aten.any.default: _any,
        aten.any.dim: _any,
        aten.any.dims: _any,
        aten.all.default: _all,
        aten.all.dim: _all,
        aten.all.dims: _all,
        aten.linalg_vector_norm.default: _vector_norm,
        aten.var_mean.correction: _var_mean,
        aten.var.correction: _var,
        aten.std.correction: _std,
        aten.prod.default: _prod,
        aten.prod.dim_int: _prod,
        aten.equal.default: _equal,
        aten.allclose.default: _allclose,
        aten._is_all_true.default: _all,  # noqa: SLF001 - operators' names
        aten._is_any_true.default: _any,  # noqa: SLF001
        aten._softmax.default: _softmax,  # noqa: SLF001 - operators' names
        aten._log_softmax.default: _log_softmax,  # noqa: SLF001
        aten._softmax_backward_data.default: _softmax_backward,  # noqa: SLF001
        aten._log_softmax_backward_data.default: _log_softmax_backward,  # noqa: SLF001
        aten.smooth_l1_loss_backward.default: _smooth_l1_backward,
        aten.histc.default: _histc,
        aten.bincount.default: _bincount,
    }
)
