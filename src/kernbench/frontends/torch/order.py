"""PyTorch operators on positions and order: extremes with indices, running extremes, sorting, ranks, uniqueness."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor
from torch._prims_common import canonicalize_dim

from kernbench.common.dtypes import I32, I64
from kernbench.common.errors import InputError
from kernbench.frontends.torch.launches import dtype_of, launch
from kernbench.frontends.torch.modules import program_place
from kernbench.frontends.torch.reductions import map_rows, wide
from kernbench.frontends.torch.tensor import device_of, new, sip_of
from kernbench.kernels.shares import blocks, share
from kernbench.kernels.tiling import most_elements
from kernbench.kernels.view import View

aten = torch.ops.aten


def _along_last(x: Tensor, dim: int) -> tuple[Tensor, int]:
    """Return ``x``, contiguous and with axis ``dim`` last, and that axis as a non-negative number."""
    if x.dim() == 0:
        return x.reshape(1), 0
    at = canonicalize_dim(x.dim(), dim)
    return x.movedim(at, -1).contiguous(), at


def _back(x: Tensor, like: Tensor, dim: int) -> Any:
    """Move the last axis of a result back to position ``dim``."""
    if like.dim() == 0:
        return x.reshape(())
    return x if dim == like.dim() - 1 else x.movedim(-1, dim).contiguous()


def _extreme(operator: str, call: str, x: Tensor, dim: int, keepdim: bool) -> tuple[Any, Any]:
    """Return the maximum or minimum along an axis, and its index."""
    seen, at = _along_last(x, dim)
    if not seen.shape[-1]:
        raise IndexError(f"{operator}(): Expected reduction dim {at} to have non-zero size.")
    shape, sip = tuple(seen.shape[:-1]), sip_of(x)
    values, indices = new(shape, x.dtype, sip), new(shape, torch.int64, sip)

    def body(tl: Any, v: Any) -> tuple[Any, Any]:
        found = {"max": (tl.max, tl.argmax), "min": (tl.min, tl.argmin)}[call]
        return found[0](v, 1), found[1](v, 1)

    map_rows(operator, body, seen, (values, indices))
    if keepdim and x.dim():
        return values.unsqueeze(at), indices.unsqueeze(at)
    return (values, indices) if x.dim() else (values.reshape(()), indices.reshape(()))


def _max_dim(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Any, Any]:
    return _extreme("max", "max", x, dim, keepdim)


def _min_dim(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Any, Any]:
    return _extreme("min", "min", x, dim, keepdim)


def _argmax(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    return _where_extreme("argmax", "max", x, dim, keepdim)


def _argmin(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    return _where_extreme("argmin", "min", x, dim, keepdim)


def _where_extreme(operator: str, call: str, x: Tensor, dim: int | None, keepdim: bool) -> Any:
    if dim is None:
        found = _extreme(operator, call, x.reshape(-1), 0, False)[1]
        return found.reshape([1] * x.dim()) if keepdim else found
    return _extreme(operator, call, x, dim, keepdim)[1]


def _cumsum(x: Any, dim: int, *, dtype: Any = None) -> Any:
    to = dtype or (x.dtype if x.dtype.is_floating_point else torch.int64)
    seen, at = _along_last(x.to(to), dim)
    out = new(tuple(seen.shape), to, sip_of(x))
    if x.numel():
        map_rows("cumsum", lambda tl, v: (tl.cumsum(wide(v, tl), 1),), seen, (out,))
    return _back(out, x, at)


def _order(operator: str, x: Tensor, dim: int, descending: bool, count: int | None) -> tuple[Any, Any]:
    """Return sorted values along an axis, and their indices. ``count``: number of elements to return; None: all."""
    seen, at = _along_last(x, dim)
    n = seen.shape[-1]
    keep = n if count is None else count
    shape, sip = (*seen.shape[:-1], keep), sip_of(x)
    values, indices = new(shape, x.dtype, sip), new(shape, torch.int64, sip)
    rows = seen.numel() // max(n, 1)
    if not keep or not rows:
        return values, indices
    to, item = I64.itemsize, dtype_of(x)
    layout = View.row_major(0, (rows, n), item)

    def program(values_at: int, indices_at: int, x_at: int, *, tl: Any) -> None:
        first, mine = share(rows, tl)
        for row, lines in blocks(mine, max(1, most_elements(tl) // n), first):
            v = layout.on(x_at).tile((row, 0), (lines, n)).load(tl)
            order = tl.argsort(v, descending=descending)
            valid = (lines, keep)
            strides = (keep * item.itemsize, item.itemsize)
            tl.store(values_at + row * keep * item.itemsize, tl.take(v, order), strides=strides, valid=valid)
            tl.store(indices_at + row * keep * to, tl.cast(order, I64), strides=(keep * to, to), valid=valid)

    launch(operator, program, (values, indices), (seen,))
    return _back(values, x, at), _back(indices, x, at)


def _sort(x: Tensor, dim: int = -1, descending: bool = False) -> tuple[Any, Any]:
    return _order("sort", x, dim, descending, None)


def _sort_stable(x: Tensor, *, stable: bool | None, dim: int = -1, descending: bool = False) -> tuple[Any, Any]:  # noqa: ARG001
    return _order("sort", x, dim, descending, None)


def _topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Any, Any]:  # noqa: A002, ARG001
    return _order("topk", x, dim, largest, k)


def _find_running_extreme(name: str, first_is: str, x: Tensor, dim: int) -> tuple[Any, Any]:
    """Return the extreme up to each element, and its index. Each step looks back twice as far as the step before."""
    seen, at = _along_last(x, dim)
    n = seen.shape[-1]
    values, indices = (
        new(tuple(seen.shape), x.dtype, sip_of(x)),
        new(tuple(seen.shape), torch.int64, sip_of(x)),
    )

    def body(tl: Any, v: Any) -> tuple[Any, Any]:
        place = tl.broadcast(tl.iota((1, n), I32), v.shape)
        found, step = place, 1
        while step < n:
            before = tl.maximum(place - step, 0)
            other = tl.take(v, before)
            own = tl.elementwise(first_is, v, other)
            if v.dtype.is_float:
                own = tl.elementwise("or", own, tl.elementwise("isnan", v))
            found = tl.where(own, found, tl.take(found, before))
            v, step = tl.where(own, v, other), step * 2
        return v, found

    if x.numel():
        map_rows(name, body, seen, (values, indices))
    return _back(values, x, at), _back(indices, x, at)


def _cummax(x: Tensor, dim: int) -> tuple[Any, Any]:
    return _find_running_extreme("cummax", "ge", x, dim)


def _cummin(x: Tensor, dim: int) -> tuple[Any, Any]:
    return _find_running_extreme("cummin", "le", x, dim)


def _find_rank(
    name: str, x: Tensor, rank: int, dim: int, keepdim: bool, nan: Literal["last", "wins", "left out"]
) -> tuple[Any, Any]:
    """Return the element with rank ``rank`` along an axis, and its index. Ranks count from 0 in ascending order.

    ``nan``: with ``last``, NaN sorts last. With ``wins``, the result is NaN if there is any. With ``left out``, NaN is
    excluded, and the result is the median of the other elements.
    """
    seen, at = _along_last(x, dim)
    n, sip = seen.shape[-1], sip_of(x)
    values, indices = new((*seen.shape[:-1], 1), x.dtype, sip), new((*seen.shape[:-1], 1), torch.int64, sip)

    def body(tl: Any, v: Any) -> tuple[Any, Any]:
        wanted = tl.full((v.shape[0], 1), rank, I32)
        if nan != "last" and v.dtype.is_float:
            count = tl.sum(tl.cast(tl.elementwise("isnan", v), I32), 1, keepdims=True)
            middle = tl.elementwise("shr", tl.maximum(n - 1 - count, 0), 1)
            wanted = middle if nan == "left out" else tl.where(count > 0, n - count, wanted)
        place = tl.take(tl.argsort(v), wanted)
        return tl.take(v, place), place

    map_rows(name, body, seen, (values, indices))
    found = [_back(each, x, at) for each in (values, indices)]
    element, where = (each if keepdim or not x.dim() else each.squeeze(at) for each in found)
    return element, where


def _length(x: Tensor, dim: int) -> int:
    return x.shape[canonicalize_dim(x.dim(), dim)] if x.dim() else 1


def _find_median(name: str, nan: Literal["wins", "left out"], x: Tensor, dim: int, keepdim: bool) -> tuple[Any, Any]:
    n = _length(x, dim)
    if not n:
        raise IndexError(f"{program_place()}: {name}: axis {dim} has no elements, must have some")
    return _find_rank(name, x, (n - 1) // 2, dim, keepdim, nan)


def _median_of_all(name: str, nan: Literal["wins", "left out"], x: Tensor) -> Any:
    flat = x.reshape(-1)
    if not flat.numel():
        return torch.full((), float("nan")).to(x.dtype).to(device_of(x))  # as the CPU casts NaN to whole numbers
    return _find_median(name, nan, flat, 0, False)[0]


def _median(x: Tensor) -> Any:
    return _median_of_all("median", "wins", x)


def _median_dim(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Any, Any]:
    return _find_median("median", "wins", x, dim, keepdim)


def _nanmedian(x: Tensor) -> Any:
    return _median_of_all("nanmedian", "left out", x)


def _nanmedian_dim(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Any, Any]:
    return _find_median("nanmedian", "left out", x, dim, keepdim)


def _kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Any, Any]:
    n = _length(x, dim)
    if not 1 <= k <= n:
        raise InputError(f"{program_place()}: kthvalue: k is {k}, must be from 1 to {n}")
    return _find_rank("kthvalue", x, k - 1, dim, keepdim, "last")


def _mark_first(x: Tensor) -> Any:
    """Return a mask of the elements that differ from the element before them along the first axis."""
    marks = torch.ones(x.shape[:1], dtype=torch.bool, device=device_of(x))
    if len(x) > 1:
        differ: Any = x[1:] != x[:-1]
        marks[1:] = differ if x.dim() == 1 else differ.flatten(1).any(1)
    return marks


def _unique(x: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False) -> Any:  # noqa: A002, ARG001
    """Return the unique elements. The host waits for their number, which determines the shape."""
    values, order = _sort(x.reshape(-1), 0)
    found, inverse, counts = _find_runs(values, return_inverse, return_counts)
    if return_inverse:
        inverse = torch.empty_like(inverse).scatter_(0, order, inverse).reshape(x.shape)
    return found, inverse, counts


def _unique_consecutive(x: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: Any = None) -> Any:
    if dim is not None and x.dim() != 1:
        found, inverse, counts = _find_runs(x.movedim(dim, 0).contiguous(), return_inverse, return_counts)
        return found.movedim(0, dim), inverse, counts
    found, inverse, counts = _find_runs(x.reshape(-1), return_inverse, return_counts)
    return found, inverse.reshape(x.shape) if return_inverse else inverse, counts


def _unique_dim(
    x: Tensor,
    dim: int,
    sorted: bool = True,  # noqa: A002, ARG001 - the result is always sorted
    return_inverse: bool = False,
    return_counts: bool = False,
) -> Any:
    """Return the unique slices along an axis, in lexicographic order of their elements."""
    slices = x.movedim(dim, 0).contiguous()
    order = torch.arange(len(slices), device=device_of(x))
    for column in reversed(slices.flatten(1).unbind(1) if slices.dim() > 1 else [slices]):
        order = order[column[order].sort(stable=True)[1]]
    found, inverse, counts = _find_runs(slices.index_select(0, order), return_inverse, return_counts)
    if return_inverse:
        inverse = torch.empty_like(inverse).scatter_(0, order, inverse)
    return found.movedim(0, dim), inverse, counts


def _find_runs(values: Any, return_inverse: bool, return_counts: bool) -> tuple[Any, Any, Any]:
    """Return the distinct runs along the first axis, the run number of each element, and the length of each run."""
    marks = _mark_first(values)
    begins = marks.nonzero().reshape(-1)
    inverse = counts = values.new_empty((0,), dtype=torch.int64)
    if return_inverse:
        inverse = marks.cumsum(0) - 1
    if return_counts:
        ends = torch.full_like(begins, len(values))
        ends[:-1] = begins[1:]
        counts = ends - begins
    return values.index_select(0, begins), inverse, counts


LOWERINGS: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        aten.max.dim: _max_dim,
        aten.min.dim: _min_dim,
        aten.argmax.default: _argmax,
        aten.argmin.default: _argmin,
        aten.cumsum.default: _cumsum,
        aten.cummax.default: _cummax,
        aten.cummin.default: _cummin,
        aten.sort.default: _sort,
        aten.sort.stable: _sort_stable,
        aten.topk.default: _topk,
        aten.median.default: _median,
        aten.median.dim: _median_dim,
        aten.nanmedian.default: _nanmedian,
        aten.nanmedian.dim: _nanmedian_dim,
        aten.kthvalue.default: _kthvalue,
        aten._unique2.default: _unique,  # noqa: SLF001 - an operator's name
        aten.unique_dim.default: _unique_dim,
        aten.unique_consecutive.default: _unique_consecutive,
    }
)
