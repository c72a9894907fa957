"""PyTorch operators on positions and order: extremes with indices, sorting, ranks, searches, uniqueness."""

from __future__ import annotations

from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor
from torch._prims_common import canonicalize_dim

from kernbench.common.errors import InputError
from kernbench.frontends.torch.launches import dtype_of, launch
from kernbench.frontends.torch.modules import program_place
from kernbench.frontends.torch.reductions import contiguous_rows, launch_rows, map_rows
from kernbench.frontends.torch.tensor import device_of, new, sip_of, without_elements
from kernbench.kernels.sort import (
    ExtremeKind,
    NanRank,
    find_extremes,
    find_rank,
    find_running_extremes,
    search_rows,
    sort_rows,
    sum_running,
)
from kernbench.kernels.view import View
from kernbench.triton_emu.handles import Number

aten = torch.ops.aten
ValuesAndIndices: TypeAlias = tuple[Tensor, Tensor]
"""Elements and their indices"""


def _along_last(x: Tensor, dim: int) -> tuple[Tensor, int]:
    """Return ``x``, contiguous and with axis ``dim`` last, and that axis as a non-negative number."""
    if x.dim() == 0:
        return x.reshape(1), 0
    axis = canonicalize_dim(x.dim(), dim)
    return x.movedim(axis, -1).contiguous(), axis


def _back(x: Tensor, like: Tensor, axis: int) -> Tensor:
    """Move the last axis of a result back to position ``axis``."""
    if like.dim() == 0:
        return x.reshape(())
    return x if axis == like.dim() - 1 else x.movedim(-1, axis).contiguous()


def _new_pair(x: Tensor, shape: tuple[int, ...]) -> ValuesAndIndices:
    """Return uninitialised tensors for elements of ``x``, and for their indices."""
    return new(shape, x.dtype, sip_of(x)), new(shape, torch.int64, sip_of(x))


# extremes


def _find_extreme(operator: str, kind: ExtremeKind, x: Tensor, dim: int, keepdim: bool = False) -> ValuesAndIndices:
    """Return the maximum or minimum along an axis, and its index."""
    rows, axis = _along_last(x, dim)
    if not rows.shape[-1]:
        raise IndexError(f"{operator}(): Expected reduction dim {axis} to have non-zero size.")
    values, indices = _new_pair(x, tuple(rows.shape[:-1]))
    map_rows(operator, partial(find_extremes, kind=kind), rows, (values, indices))
    if keepdim and x.dim():
        return values.unsqueeze(axis), indices.unsqueeze(axis)
    return (values, indices) if x.dim() else (values.reshape(()), indices.reshape(()))


def _locate_extreme(
    operator: str, kind: ExtremeKind, x: Tensor, dim: int | None = None, keepdim: bool = False
) -> Tensor:
    """Return the index of the maximum or minimum along an axis, or of all elements."""
    if dim is not None:
        return _find_extreme(operator, kind, x, dim, keepdim)[1]
    index = _find_extreme(operator, kind, x.reshape(-1), 0)[1]
    return index.reshape([1] * x.dim()) if keepdim else index


def _find_running_extreme(operator: str, kind: ExtremeKind, x: Tensor, dim: int) -> ValuesAndIndices:
    """Return the extreme up to each element, and its index."""
    rows, axis = _along_last(x, dim)
    values, indices = _new_pair(x, tuple(rows.shape))
    if x.numel():
        map_rows(operator, partial(find_running_extremes, kind=kind), rows, (values, indices))
    return _back(values, x, axis), _back(indices, x, axis)


max_dim, min_dim = partial(_find_extreme, "max", "max"), partial(_find_extreme, "min", "min")
argmax, argmin = partial(_locate_extreme, "argmax", "max"), partial(_locate_extreme, "argmin", "min")
cummax, cummin = partial(_find_running_extreme, "cummax", "max"), partial(_find_running_extreme, "cummin", "min")


def cumsum(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """Return the sum up to each element along an axis."""
    dtype = dtype or (x.dtype if x.dtype.is_floating_point else torch.int64)
    rows, axis = _along_last(x.to(dtype), dim)
    out = new(tuple(rows.shape), dtype, sip_of(x))
    if x.numel():
        map_rows("cumsum", sum_running, rows, (out,))
    return _back(out, x, axis)


# order


def _order(operator: str, x: Tensor, dim: int, descending: bool, count: int | None) -> ValuesAndIndices:
    """Return sorted values along an axis, and their indices. ``count``: number of elements to return; None: all."""
    ordered, axis = _along_last(x, dim)
    n = ordered.shape[-1]
    keep = n if count is None else count
    values, indices = _new_pair(x, (*ordered.shape[:-1], keep))
    rows = ordered.numel() // max(n, 1)
    if not keep or not rows:
        return values, indices
    program = partial(sort_rows, View.row_major(0, (rows, n), dtype_of(x)), keep, descending)
    launch(operator, program, (values, indices), (ordered,))
    return _back(values, x, axis), _back(indices, x, axis)


def sort(x: Tensor, dim: int = -1, descending: bool = False, *, stable: bool | None = None) -> ValuesAndIndices:  # noqa: ARG001
    """Return sorted values along an axis, and their indices. The sort is always stable."""
    return _order("sort", x, dim, descending, None)


def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> ValuesAndIndices:  # noqa: A002, ARG001
    """Return the ``k`` largest or smallest values along an axis, in order, and their indices."""
    return _order("topk", x, dim, largest, k)


def _find_rank(operator: str, x: Tensor, rank: int, dim: int, keepdim: bool, nan: NanRank) -> ValuesAndIndices:
    """Return the element with rank ``rank`` along an axis, and its index. Ranks count from 0 in ascending order."""
    rows, axis = _along_last(x, dim)
    pair = _new_pair(x, (*rows.shape[:-1], 1))
    map_rows(operator, partial(find_rank, rank=rank, nan=nan), rows, pair)
    element, index = (_back(result, x, axis) for result in pair)
    return (element, index) if keepdim or not x.dim() else (element.squeeze(axis), index.squeeze(axis))


def _length(x: Tensor, dim: int) -> int:
    return x.shape[canonicalize_dim(x.dim(), dim)] if x.dim() else 1


def _find_median(operator: str, nan: NanRank, x: Tensor, dim: int, keepdim: bool = False) -> ValuesAndIndices:
    n = _length(x, dim)
    if not n:
        raise IndexError(f"{program_place()}: {operator}: axis {dim} has no elements, must have some")
    return _find_rank(operator, x, (n - 1) // 2, dim, keepdim, nan)


def _find_median_of_all(operator: str, nan: NanRank, x: Tensor) -> Tensor:
    flat = x.reshape(-1)
    if not flat.numel():
        return torch.full((), float("nan")).to(x.dtype).to(device_of(x))  # as the CPU casts NaN to whole numbers
    return _find_median(operator, nan, flat, 0)[0]


median, median_dim = (partial(find, "median", "wins") for find in (_find_median_of_all, _find_median))
nanmedian, nanmedian_dim = (partial(find, "nanmedian", "left out") for find in (_find_median_of_all, _find_median))


def kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> ValuesAndIndices:
    """Return the ``k``-th smallest element along an axis, and its index."""
    n = _length(x, dim)
    if not 1 <= k <= n:
        raise InputError(f"{program_place()}: kthvalue: k is {k}, must be from 1 to {n}")
    return _find_rank("kthvalue", x, k - 1, dim, keepdim, "last")


# places in sorted sequences


def searchsorted(
    sorted_sequence: Tensor,
    x: Tensor | Number,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """Return the place of each of ``x`` in a sorted sequence, or in its row of several sequences.

    ``sorter``: the order that sorts the sequences.
    """
    sequences = sorted_sequence if sorter is None else sorted_sequence.gather(-1, sorter)
    dtype = torch.result_type(without_elements(sequences), without_elements(x))
    x = x.to(dtype) if isinstance(x, Tensor) else torch.full((), x, dtype=dtype, device=device_of(sequences))
    out = new(tuple(x.shape), torch.int32 if out_int32 else torch.int64, sip_of(x))
    n, m = sequences.shape[-1], x.numel() if sequences.dim() == 1 else x.shape[-1]
    if not x.numel():
        return out
    if not n:
        return out.zero_()
    kernel = partial(search_rows, right=right or side == "right")
    operands = [contiguous_rows(sequences.to(dtype).contiguous(), n), contiguous_rows(x.contiguous(), m)]
    launch_rows("searchsorted", kernel, [contiguous_rows(out, m)], operands, out.numel() * out.element_size())
    return out


def bucketize(x: Tensor | Number, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """Return the number of the bucket between sorted boundaries that contains each of ``x``."""
    return searchsorted(boundaries, x, out_int32=out_int32, right=right)


# uniqueness: the host waits for the number of unique elements, which determines the shape

Unique: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""Unique elements, the number of the unique element that equals each operand, and the count of each unique element"""


def unique2(x: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False) -> Unique:  # noqa: A002, ARG001
    """Return the unique elements, always in ascending order."""
    values, order = sort(x.reshape(-1), 0)
    elements, inverse, counts = _find_runs(values, return_inverse, return_counts)
    if return_inverse:
        inverse = torch.empty_like(inverse).scatter_(0, order, inverse).reshape(x.shape)
    return elements, inverse, counts


def unique_consecutive(
    x: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Unique:
    """Return the first element, or slice along an axis, of each run of equal ones."""
    if dim is not None and x.dim() != 1:
        slices, inverse, counts = _find_runs(x.movedim(dim, 0).contiguous(), return_inverse, return_counts)
        return slices.movedim(0, dim), inverse, counts
    elements, inverse, counts = _find_runs(x.reshape(-1), return_inverse, return_counts)
    return elements, inverse.reshape(x.shape) if return_inverse else inverse, counts


def unique_dim(
    x: Tensor,
    dim: int,
    sorted: bool = True,  # noqa: A002, ARG001
    return_inverse: bool = False,
    return_counts: bool = False,
) -> Unique:
    """Return the unique slices along an axis, always in lexicographic order of their elements."""
    slices = x.movedim(dim, 0).contiguous()
    order = torch.arange(len(slices), device=device_of(x))
    for column in reversed(slices.flatten(1).unbind(1) if slices.dim() > 1 else [slices]):
        order = order[column[order].sort(stable=True)[1]]
    unique, inverse, counts = _find_runs(slices.index_select(0, order), return_inverse, return_counts)
    if return_inverse:
        inverse = torch.empty_like(inverse).scatter_(0, order, inverse)
    return unique.movedim(0, dim), inverse, counts


def _find_runs(values: Tensor, return_inverse: bool, return_counts: bool) -> Unique:
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


def _mark_first(x: Tensor) -> Tensor:
    """Return a mask of the elements that differ from the element before them along the first axis."""
    marks = torch.ones(x.shape[:1], dtype=torch.bool, device=device_of(x))
    if len(x) > 1:
        differ = x[1:] != x[:-1]
        marks[1:] = differ if x.dim() == 1 else differ.flatten(1).any(1)
    return marks
