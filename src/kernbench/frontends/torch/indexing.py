"""PyTorch operators with indices: the DMA gathers and scatters the selected elements.

A run without data knows integer tensors of at most 1 MiB that the host wrote, or that follow from such tensors. For
other indices, it uses 0, 1, 2, …
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from types import NotImplementedType
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from kernbench.common.dtypes import I32
from kernbench.common.errors import InputError
from kernbench.common.values import value
from kernbench.frontends.torch.launches import DeviceProgram, dtype_of, launch
from kernbench.frontends.torch.storage import current
from kernbench.frontends.torch.tensor import AhbmTensor, from_host, known_elements, new, sip_of
from kernbench.kernels.indexing import (
    IndexedAxis,
    IndexValues,
    RunChange,
    RunSelection,
    fill_runs,
    gather_runs,
    list_nonzero,
    scatter_runs,
)
from kernbench.triton_emu.handles import Number

aten = torch.ops.aten
_ATOMIC = (torch.float32, torch.float16, torch.bfloat16, torch.int32)
"""Types with atomic updates in memory."""
_NOT_ATOMIC = (torch.bool, torch.uint8, torch.int8, torch.int16)
"""Types without atomic updates in memory. A 32-bit copy is updated, and its values wrap when they are copied back."""
Selected: TypeAlias = tuple[RunSelection, tuple[Tensor, ...]]
"""A selection, and the flat tensors with the indices of its axes"""


def _gather_into(out: Tensor, x: Tensor, selection: RunSelection, indices: Sequence[Tensor]) -> Tensor:
    """Fill contiguous ``out`` with the selected runs of ``x``, in order."""
    _launch(selection, partial(gather_runs, selection), out, (x, *indices))
    return out


def _scatter_to(
    x: Tensor, source: Tensor | Number, selection: RunSelection, indices: Sequence[Tensor], change: RunChange = "set"
) -> Tensor:
    """Write ``source`` (contiguous, or a number) to the selected runs of ``x``, or update them atomically with it."""
    if not isinstance(source, Tensor):
        _launch(selection, partial(fill_runs, selection, source), x, indices)
    elif change != "set" and x.dtype in _NOT_ATOMIC:
        wide = new(tuple(x.shape), torch.int32, sip_of(x), x.stride())
        wide_source = source.to(torch.int32)
        x.copy_(_scatter_to(wide.copy_(x), wide_source, replace(selection, dtype=I32), indices, change))
    else:
        _launch(selection, partial(scatter_runs, selection, change), x, (source, *indices))
    return x


def _launch(selection: RunSelection, program: DeviceProgram, out: Tensor, inputs: Sequence[Tensor]) -> None:
    if selection.nbytes:
        launch(selection.operator, program, (out,), inputs, selection.nbytes)


def _index_axis(index: Tensor, extent: int, stride: int) -> IndexedAxis:
    return IndexedAxis(dtype_of(index), extent, stride, index_values(index, extent))


def index_values(x: Tensor, extent: int) -> IndexValues | None:
    """Return the values of indices below ``extent`` for a run without data; None if the run has data."""
    if current().has_data:
        return None
    elements = known_elements(x)
    if elements is None:
        return lambda first, count: np.arange(first, first + count, dtype=np.int64) % extent
    flat = elements.reshape(-1).numpy()
    return lambda first, count: flat[first : first + count]


def _flatten(x: Tensor) -> Tensor:
    return x.contiguous().reshape(-1)


def _on_copy(
    in_place: Callable[..., Any], memory_format: torch.memory_format = torch.preserve_format
) -> Callable[..., Any]:
    """Return the out-of-place form of a function: it changes a copy of its first operand."""

    def out_of_place(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        return in_place(x.clone(memory_format=memory_format), *args, **kwargs)

    return out_of_place


# slices along an axis


def _select_rows(operator: str, x: Tensor, dim: int, index: Tensor) -> Selected:
    """Return a selection of slices along ``dim`` of a contiguous tensor, one for each number of ``index``, in order."""
    shape, stride = x.shape, x.stride()
    lead, inner = prod(shape[:dim]), prod(shape[dim + 1 :])
    numbers = index.reshape(-1)
    if lead > 1:
        numbers = numbers.expand(lead, numbers.numel()).contiguous().reshape(-1)
    counted = ((lead, prod(shape[dim:])), (index.numel(), 0)) if lead > 1 else ()
    flat = _flatten(numbers)
    axis = _index_axis(flat, shape[dim], stride[dim] or inner)
    return RunSelection(operator, dtype_of(x), flat.numel(), inner, (axis,), counted), (flat,)


def index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """Return the slices along ``dim`` that ``index`` selects."""
    x = x.contiguous()
    dim = dim % max(x.dim(), 1)
    out = new((*x.shape[:dim], index.numel(), *x.shape[dim + 1 :]), x.dtype, sip_of(x))
    return _gather_into(out, x, *_select_rows("index_select", x, dim, index))


def embedding(weight: Tensor, indices: Tensor, *_: object, **__: object) -> Tensor:
    """Return the rows of ``weight`` that ``indices`` selects. The other arguments matter in backward alone."""
    weight = weight.contiguous()
    out = new((*indices.shape, weight.shape[1]), weight.dtype, sip_of(weight))
    return _gather_into(out, weight, *_select_rows("embedding", weight, 0, indices))


def embedding_dense_backward(
    grad: Tensor, indices: Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Tensor | NotImplementedType:
    """Add the rows of ``grad`` to the gradient of the table, in f32."""
    if scale_grad_by_freq:
        return NotImplemented
    out = new((num_weights, grad.shape[-1]), torch.float32, sip_of(grad)).zero_()
    source = grad.to(torch.float32).contiguous()
    _scatter_to(out, source, *_select_rows("embedding_dense_backward", out, 0, indices), "add")
    if padding_idx >= 0:
        out[padding_idx].zero_()
    return out.to(grad.dtype)


def _change_rows(
    operator: str, x: Tensor, dim: int, index: Tensor, source: Tensor, change: RunChange, alpha: Number = 1
) -> Tensor:
    """Change slices of ``x`` along ``dim`` by ``source`` times ``alpha``."""
    rows = x.contiguous()
    source = (source if alpha == 1 else source * alpha).to(x.dtype).contiguous()
    _scatter_to(rows, source, *_select_rows(operator, rows, dim % max(x.dim(), 1), index), change)
    return x if rows is x else x.copy_(rows)


def index_add_(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Number = 1) -> Tensor:
    """Add slices of ``source`` times ``alpha`` to those that ``index`` selects."""
    return _change_rows("index_add", x, dim, index, source, "add", alpha)


def index_copy_(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """Write slices of ``source`` to those that ``index`` selects."""
    return _change_rows("index_copy", x, dim, index, source, "set")


index_add = _on_copy(index_add_, torch.contiguous_format)
index_copy = _on_copy(index_copy_, torch.contiguous_format)


# elements along an axis


def _select_elements(operator: str, x: Tensor, dim: int, index: Tensor) -> Selected:
    """Return a selection of one element per element of ``index``: its position, with its number along ``dim``."""
    lead = tuple([(n, 0 if d == dim else x.stride(d)) for d, n in enumerate(index.shape)])
    flat = _flatten(index)
    axis = _index_axis(flat, x.shape[dim], x.stride(dim))
    return RunSelection(operator, dtype_of(x), index.numel(), 1, (axis,), lead), (flat,)


def gather(x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:  # noqa: ARG001
    """Return one element along ``dim`` for each element of ``index``."""
    out = new(tuple(index.shape), x.dtype, sip_of(x))
    if x.dim() == 0:
        x, index = x.reshape(1), index.reshape(-1)
    return _gather_into(out, x, *_select_elements("gather", x, dim % x.dim(), index))


def _scatter_into(
    operator: str, x: Tensor, dim: int, index: Tensor, src: Tensor | Number, change: RunChange = "set"
) -> Tensor:
    """Change one element along ``dim`` for each element of ``index``."""
    if x.dim() == 0:
        flat = src.reshape(-1) if isinstance(src, Tensor) else src
        _scatter_into(operator, x.unsqueeze(0), dim, index.reshape(-1), flat, change)
        return x
    if isinstance(src, Tensor):
        if any(n > m for n, m in zip(index.shape, src.shape, strict=False)):
            raise InputError(
                f"{operator}: the index has shape {tuple(index.shape)}, must be within the source's, {tuple(src.shape)}"
            )
        src = src[tuple(slice(0, n) for n in index.shape)].to(x.dtype).contiguous()
    return _scatter_to(x, src, *_select_elements(operator, x, dim % x.dim(), index), change)


def scatter_(x: Tensor, dim: int, index: Tensor, src: Tensor | Number) -> Tensor:
    """Write elements of ``src``, or a number, at the positions that ``index`` selects."""
    return _scatter_into("scatter", x, dim, index, src)


def scatter_add_(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """Add elements of ``src`` at the positions that ``index`` selects."""
    return _scatter_into("scatter_add", x, dim, index, src, "add")


def scatter_reduce_(
    x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor | NotImplementedType:
    """Combine elements of ``x`` with those of ``src`` by ``reduce``, at the positions that ``index`` selects."""
    changes: Mapping[str, RunChange] = {"sum": "add", "mean": "add", "amax": "max", "amin": "min"}
    if reduce == "prod":
        return _scatter_products(x, dim, index, src, include_self)
    if reduce not in changes or x.dtype not in _ATOMIC:
        return NotImplemented
    if not include_self:
        least = float("-inf") if x.dtype.is_floating_point else torch.iinfo(x.dtype).min
        most = float("inf") if x.dtype.is_floating_point else torch.iinfo(x.dtype).max
        start: Number = {"sum": 0, "mean": 0, "amax": least, "amin": most}[reduce]
        _scatter_into("scatter", x, dim, index, start)
    _scatter_into("scatter_reduce", x, dim, index, src, changes[reduce])
    if reduce == "mean":
        counts = torch.full_like(x, 1 if include_self else 0)
        _scatter_into("scatter_reduce", counts, dim, index, torch.ones_like(src), "add")
        x.div_(counts.clamp_(min=1), rounding_mode=None if x.dtype.is_floating_point else "floor")
    return x


def _scatter_products(x: Tensor, dim: int, index: Tensor, src: Tensor, include_self: bool) -> Tensor:
    """Multiply slices of ``src`` into ``x``, one slice after another. Within a slice, all positions differ."""
    if not include_self:
        _scatter_into("scatter", x, dim, index, 1)
    axis = dim % max(x.dim(), 1)
    slices = [t.narrow(axis, 0, index.shape[axis]).split(1, axis) if t.dim() else [t] for t in (index, src)]
    for places, factors in zip(*slices, strict=True):
        factor = factors[tuple(slice(0, n) for n in places.shape)]
        x.scatter_(dim, places, x.gather(dim, places) * factor)
    return x


scatter, scatter_add, scatter_reduce = _on_copy(scatter_), _on_copy(scatter_add_), _on_copy(scatter_reduce_)


# x[i, j]

Indices: TypeAlias = Sequence[Tensor | None]
"""The tensors in the brackets of ``x[i, :, j]``; None stands for a complete axis"""


def _as_numbers(x: Tensor, indices: Indices) -> list[Tensor | None]:
    """Return indices without masks. A mask becomes one tensor per axis: the positions of its true elements."""
    numbers: list[Tensor | None] = []
    for index in indices:
        on_ahbm = index if index is None or isinstance(index, AhbmTensor) else from_host(index, sip_of(x))
        if on_ahbm is not None and on_ahbm.dtype in (torch.bool, torch.uint8):
            _check_mask(x, on_ahbm, len(numbers))
            numbers += on_ahbm.nonzero().unbind(1)
        else:
            numbers.append(on_ahbm)
    return numbers + [None] * (x.dim() - len(numbers))


def _check_mask(x: Tensor, mask: Tensor, first_axis: int) -> None:
    """Raise IndexError, in PyTorch's words, unless a mask has the shape of the axes that it indexes."""
    for axis, size in enumerate(mask.shape):
        if size != x.shape[first_axis + axis]:
            raise IndexError(
                f"The shape of the mask {list(mask.shape)} at index {axis} does not match the shape of the indexed "
                f"tensor {list(x.shape)} at index {first_axis + axis}"
            )


@value
class _Indexed:
    """``x[indices]`` with all indexed axes first: the selection, the shape of the result, and the order of axes."""

    selected: Selected
    shape: tuple[int, ...]
    order: tuple[int, ...] | None

    def restore_order(self, out: Tensor) -> Tensor:
        """Return ``out``, whose indexed axes are first, with the axes in PyTorch's order."""
        return out if self.order is None else out.permute(self.order)

    def expand(self, values: Tensor) -> Tensor:
        """Return ``values``, which broadcast to PyTorch's shape of ``x[indices]``, with the indexed axes first."""
        if self.order is None:
            return values.expand(self.shape)
        shape = [self.shape[axis] for axis in self.order]
        return values.expand(shape).permute([self.order.index(axis) for axis in range(len(shape))])


def _select_indexed(operator: str, x: Tensor, indices: Indices) -> _Indexed:
    """Return the selection of ``x[indices]``. It uses the strides of ``x``, so that writes go to ``x`` itself."""
    numbers = {axis: index for axis, index in enumerate(_as_numbers(x, indices)) if index is not None}
    axes = list(numbers)
    complete = [axis for axis in range(x.dim()) if axis not in numbers]
    flat: list[Tensor] = list(torch.broadcast_tensors(*[index.to(torch.int64) for index in numbers.values()]))
    indexed_shape = tuple(flat[0].shape)
    shape = (*indexed_shape, *[x.shape[axis] for axis in complete])
    # Contiguous axes at the end form one run. Run numbers count through the axes before them.
    inner, split = 1, len(complete)
    while split and x.stride(complete[split - 1]) == inner:
        inner *= x.shape[complete[split - 1]]
        split -= 1
    looped = complete[:split]
    loops = prod(x.shape[axis] for axis in looped)
    flat = [_flatten(index) for index in flat]
    if loops > 1:
        flat = [_flatten(index.unsqueeze(1).expand(index.numel(), loops)) for index in flat]
    lead = ((prod(indexed_shape), 0), *[(x.shape[axis], x.stride(axis)) for axis in looped])
    pairs = [_index_axis(index, x.shape[axis], x.stride(axis)) for index, axis in zip(flat, axes, strict=True)]
    selection = RunSelection(operator, dtype_of(x), prod(indexed_shape) * loops, inner, tuple(pairs), lead, wraps=True)
    return _Indexed((selection, tuple(flat)), shape, _order_of(axes, len(indexed_shape), len(shape)))


def _order_of(axes: Sequence[int], count: int, n_axes: int) -> tuple[int, ...] | None:
    """Return PyTorch's order of the axes of ``x[indices]``; None if the ``count`` indexed axes are first."""
    if not axes[0] or list(axes) != list(range(axes[0], axes[-1] + 1)):
        return None
    before = axes[0]
    return (*range(count, count + before), *range(count), *range(count + before, n_axes))


def fake_index_tensor(x: Tensor, indices: Indices) -> Tensor:
    """Return an empty tensor with the shape and the strides that `index_tensor` returns for indices without masks."""
    numbers = {axis: index for axis, index in enumerate(indices) if index is not None}
    indexed_shape = torch.broadcast_shapes(*[index.shape for index in numbers.values()])
    shape = (*indexed_shape, *[size for axis, size in enumerate(x.shape) if axis not in numbers])
    order, out = _order_of(list(numbers), len(indexed_shape), len(shape)), x.new_empty(shape)
    return out if order is None else out.permute(order)


def index_tensor(x: Tensor, indices: Indices) -> Tensor:
    """Return ``x[indices]``."""
    indexed = _select_indexed("index", x, indices)
    out = new(indexed.shape, x.dtype, sip_of(x))
    return indexed.restore_order(_gather_into(out, x, *indexed.selected))


def index_put_(x: Tensor, indices: Indices, values: Tensor, accumulate: bool = False, unsafe: bool = False) -> Tensor:  # noqa: ARG001
    """Write ``values`` to ``x[indices]``, or add them with ``accumulate``. Indices are always checked."""
    if not isinstance(values, AhbmTensor):
        values = from_host(values.to(x.dtype), sip_of(x))
    mask = indices[0] if len(indices) == 1 and isinstance(indices[0], AhbmTensor) else None
    is_number = values.numel() == 1 and not accumulate
    if mask is not None and mask.dtype is torch.bool and mask.shape == x.shape and is_number:
        return x.copy_(torch.where(mask, values.to(x.dtype), x))
    indexed = _select_indexed("index_put", x, indices)
    source = indexed.expand(values.to(x.dtype)).contiguous()
    return _scatter_to(x, source, *indexed.selected, "add" if accumulate else "set")


index_put = _on_copy(index_put_)


# masks


def masked_select(x: Tensor, mask: Tensor) -> Tensor:
    """Return the elements where the mask is true."""
    elements, marks = torch.broadcast_tensors(x, mask)
    return index_tensor(elements.contiguous(), [marks.contiguous()])


def masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """Write elements of ``source``, in order, where the mask is true. A running sum of the mask gives their numbers."""
    elements, marks = torch.broadcast_tensors(x, mask)
    place = (marks.reshape(-1).cumsum(0) - 1).clamp_(min=0)
    if not source.numel() or not elements.numel():
        return elements.clone()
    return torch.where(marks, source.reshape(-1).index_select(0, place).reshape(elements.shape), elements)


def nonzero(x: Tensor) -> Tensor:
    """Return the indices of elements that are not 0. The host waits for their number, which determines the shape."""
    flags = (x != 0).contiguous()
    count = int(flags.sum().item())
    out = new((count, x.dim()), torch.int64, sip_of(x))
    if count and x.dim():
        program = partial(list_nonzero, tuple(x.shape), dtype_of(flags), index_values(flags, 2))
        launch("nonzero", program, (out,), (flags,), 1)
    return out
