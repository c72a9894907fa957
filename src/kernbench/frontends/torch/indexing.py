"""PyTorch operators with indices: the DMA gathers and scatters the selected elements.

Each PE loads its share of the indices, waits for them, and computes the addresses. A run without data knows integer
tensors of at most 1 MiB that the host wrote, or that follow from such tensors. For other indices, it
uses 0, 1, 2, …
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from kernbench.common.errors import InputError
from kernbench.common.values import value
from kernbench.frontends.torch.launches import dtype_of, launch
from kernbench.frontends.torch.storage import current
from kernbench.frontends.torch.tensor import AhbmTensor, from_host, known_elements, new, sip_of
from kernbench.kernels.shares import blocks, share

aten = torch.ops.aten
RunChange: TypeAlias = Literal["set", "add", "max", "min"]
_ATOMIC = (torch.float32, torch.float16, torch.bfloat16, torch.int32)
"""Types with atomic updates in memory."""
_NOT_ATOMIC = (torch.bool, torch.uint8, torch.int8, torch.int16)
"""Types without atomic updates in memory. A 32-bit copy is updated, and its values wrap when they are copied back."""
_RUNS = 1024
"""Maximum number of runs in one DMA command."""


@value
class RunSelection:
    """Places of runs of ``inner`` elements in a tensor. The offset of a run is the sum over ``lead`` and ``indices``.

    ``indices``: for each indexed axis, (tensor with one number per run, extent, stride). ``lead``: (extent, stride) of
    the axes that runs are numbered along in row-major order; the stride of an indexed axis is 0. ``wraps``: negative
    indices count from the end of an axis; otherwise they are errors.
    """

    runs: int
    inner: int
    indices: tuple[tuple[Tensor, int, int], ...]
    lead: tuple[tuple[int, int], ...]
    wraps: bool = False

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Return the index tensors."""
        return tuple([each for each, _, _ in self.indices])

    def places(self, first: int, count: int, values: Sequence[Any], operator: str) -> Any:
        """Return the element offsets of ``count`` runs from run ``first`` on. Raises InputError beyond an axis."""
        run = np.arange(first, first + count, dtype=np.int64)
        found = np.zeros(count, np.int64)
        rest = run
        for extent, stride in reversed(self.lead):
            found += rest % extent * stride
            rest = rest // extent
        for (_, extent, stride), given in zip(self.indices, values, strict=True):
            at = np.asarray(given, np.int64)
            least = -extent if self.wraps else 0
            if at.size and (at.min() < least or at.max() >= extent):
                wrong = int(at[(at < least) | (at >= extent)][0])
                raise InputError(f"{operator}: index {wrong} is not within an axis of {extent}")
            found += np.where(at < 0, at + extent, at) * stride
        return found


def _values_of(
    selection: RunSelection, addresses: Sequence[int], first: int, count: int, known: Sequence[Any], tl: Any
) -> list[Any]:
    """Load the indices of ``count`` runs from run ``first`` on, wait for them, and return their numbers."""
    found = []
    for (each, extent, _), address, here in zip(selection.indices, addresses, known, strict=True):
        item = dtype_of(each)
        loaded = tl.load(address + first * item.itemsize, (count,), item)
        if here is None:
            found.append(tl.value(loaded))
        else:
            tl.wait(loaded)
            found.append(here(first, count, extent))
    return found


def _known(x: Tensor) -> Callable[[int, int, int], Any] | None:
    """Return a function that yields index values for a run without data; None if the run has data."""
    if current().has_data:
        return None
    elements = known_elements(x)
    if elements is None:
        return lambda first, count, extent: np.arange(first, first + count, dtype=np.int64) % extent
    found = elements.reshape(-1).numpy()
    return lambda first, count, _: found[first : first + count]


def _runs_of(address: int, places: Any, nbytes: int, item: int) -> list[tuple[int, int]]:
    return [(address + int(at) * item, nbytes) for at in places]


def gather_runs(operator: str, out: Tensor, x: Tensor, selection: RunSelection) -> Tensor:
    """Fill contiguous ``out`` with the selected runs of ``x``, in order."""
    known, item, inner = [_known(each) for each in selection.tensors], dtype_of(x), selection.inner

    def program(out_at: int, x_at: int, *index_at: int, tl: Any) -> None:
        first, mine = share(selection.runs, tl)
        for at, count in blocks(mine, _block(inner), first):
            values = _values_of(selection, index_at, at, count, known, tl)
            places = selection.places(at, count, values, operator)
            found = tl.load(_runs_of(x_at, places, inner * item.itemsize, item.itemsize), (count, inner), item)
            tl.store(out_at + at * inner * item.itemsize, found)

    if out.numel():
        launch(operator, program, (out,), (x, *selection.tensors), out.numel() * out.element_size())
    return out


def scatter_runs(
    operator: str, x: Tensor, source: Tensor | float, selection: RunSelection, change: RunChange
) -> Tensor:
    """Write ``source`` (contiguous, or a number) to the selected runs of ``x``, or update them atomically with it."""
    if change != "set" and x.dtype in _NOT_ATOMIC:
        wide: Any = new(tuple(x.shape), torch.int32, sip_of(x), x.stride())
        wide_source: Any = source.to(torch.int32) if isinstance(source, AhbmTensor) else source
        target: Any = x
        changed: Tensor = target.copy_(scatter_runs(operator, wide.copy_(x), wide_source, selection, change))
        return changed
    known, item, inner = [_known(each) for each in selection.tensors], dtype_of(x), selection.inner
    given = source if isinstance(source, AhbmTensor) else None

    def program(x_at: int, *rest: int, tl: Any) -> None:
        first, mine = share(selection.runs, tl)
        index_at = rest[1:] if given is not None else rest
        for at, count in blocks(mine, _block(inner), first):
            values = _values_of(selection, index_at, at, count, known, tl)
            places = selection.places(at, count, values, operator)
            if given is None:
                data = tl.full((count, inner), source, item)
            else:
                data = tl.load(rest[0] + at * inner * item.itemsize, (count, inner), item)
            runs = _runs_of(x_at, places, inner * item.itemsize, item.itemsize)
            if change == "set":
                tl.store(runs, data)
            else:
                {"add": tl.atomic_add, "max": tl.atomic_max, "min": tl.atomic_min}[change](runs, data)

    if selection.runs and inner:
        work = selection.runs * inner * item.itemsize
        launch(operator, program, (x,), (*([given] if given is not None else []), *selection.tensors), work)
    return x


def _block(inner: int) -> int:
    return max(1, min(_RUNS, 65536 // max(inner, 1)))


def _index(x: Tensor) -> Any:
    return x.contiguous().reshape(-1)


def select_rows(x: Tensor, dim: int, index: Tensor) -> RunSelection:
    """Return a selection of slices along ``dim`` of a contiguous tensor, one for each number of ``index``, in order."""
    shape, stride = x.shape, x.stride()
    lead, inner = prod(shape[:dim]), prod(shape[dim + 1 :])
    flat = index.reshape(-1)
    if lead > 1:
        flat = flat.expand(lead, flat.numel()).contiguous().reshape(-1)
    counted = ((lead, prod(shape[dim:])), (index.numel(), 0)) if lead > 1 else ()
    return RunSelection(flat.numel(), inner, ((_index(flat), shape[dim], stride[dim] or inner),), counted)


def _index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    x = x.contiguous()
    dim = dim % max(x.dim(), 1)
    out = new((*x.shape[:dim], index.numel(), *x.shape[dim + 1 :]), x.dtype, sip_of(x))
    return gather_runs("index_select", out, x, select_rows(x, dim, index))


def _embedding(
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,  # noqa: ARG001 - matters in backward
    scale_grad_by_freq: bool = False,  # noqa: ARG001
    sparse: bool = False,  # noqa: ARG001
) -> Tensor:
    weight = weight.contiguous()
    out = new((*indices.shape, weight.shape[1]), weight.dtype, sip_of(weight))
    return gather_runs("embedding", out, weight, select_rows(weight, 0, indices))


def _embedding_backward(
    grad: Tensor, indices: Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Any:
    if scale_grad_by_freq:
        return NotImplemented
    n = grad.shape[-1]
    out = new((num_weights, n), torch.float32, sip_of(grad)).zero_()
    source = grad.to(torch.float32).contiguous()
    scatter_runs("embedding_dense_backward", out, source, select_rows(out, 0, indices), "add")
    if padding_idx >= 0:
        out[padding_idx].zero_()
    return out.to(grad.dtype)


def select_elements(x: Tensor, dim: int, index: Tensor) -> RunSelection:
    """Return a selection of one element per element of ``index``: its position, with its number along ``dim``."""
    lead = tuple((n, 0 if d == dim else x.stride(d)) for d, n in enumerate(index.shape))
    return RunSelection(index.numel(), 1, ((_index(index), x.shape[dim], x.stride(dim)),), lead)


def _gather(x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:  # noqa: ARG001
    out = new(tuple(index.shape), x.dtype, sip_of(x))
    if x.dim() == 0:
        x, index = x.reshape(1), index.reshape(-1)
    return gather_runs("gather", out, x, select_elements(x, dim % x.dim(), index))


def _scatter_into(x: Tensor, dim: int, index: Tensor, src: Any, change: RunChange, name: str) -> Tensor:
    if x.dim() == 0:
        _scatter_into(
            x.unsqueeze(0),
            dim,
            index.reshape(-1),
            src.reshape(-1) if isinstance(src, AhbmTensor) else src,
            change,
            name,
        )
        return x
    if isinstance(src, AhbmTensor):
        if any(n > m for n, m in zip(index.shape, src.shape, strict=False)):
            raise InputError(
                f"{name}: the index has shape {tuple(index.shape)}, must be within the source's, {tuple(src.shape)}"
            )
        src = src[tuple(slice(0, n) for n in index.shape)].to(x.dtype).contiguous()
    scatter_runs(name, x, src, select_elements(x, dim % max(x.dim(), 1), index), change)
    return x


def _scatter(x: Tensor, dim: int, index: Tensor, src: Any) -> Tensor:
    return _scatter_into(x.clone(), dim, index, src, "set", "scatter")


def _scatter_(x: Tensor, dim: int, index: Tensor, src: Any) -> Tensor:
    return _scatter_into(x, dim, index, src, "set", "scatter")


def _scatter_add(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return _scatter_into(x.clone(), dim, index, src, "add", "scatter_add")


def _scatter_add_(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return _scatter_into(x, dim, index, src, "add", "scatter_add")


def _scatter_reduce(x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True) -> Any:
    return _scatter_reduce_(x.clone(), dim, index, src, reduce, include_self=include_self)


def _scatter_reduce_(x: Any, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True) -> Any:
    """Combine elements of ``x`` with those of ``src`` by ``reduce``, at the positions that ``index`` selects."""
    changes: Mapping[str, RunChange] = {"sum": "add", "mean": "add", "amax": "max", "amin": "min"}
    if reduce == "prod":
        return _scatter_products(x, dim, index, src, include_self)
    if reduce not in changes or x.dtype not in _ATOMIC:
        return NotImplemented
    if not include_self:
        least = float("-inf") if x.dtype.is_floating_point else torch.iinfo(x.dtype).min
        most = float("inf") if x.dtype.is_floating_point else torch.iinfo(x.dtype).max
        start = {"add": 0, "max": least, "min": most}[changes[reduce]]
        _scatter_into(x, dim, index, start, "set", "scatter")
    _scatter_into(x, dim, index, src, changes[reduce], "scatter_reduce")
    if reduce == "mean":
        counts = torch.full_like(x, 1 if include_self else 0)
        _scatter_into(counts, dim, index, torch.ones_like(src), "add", "scatter_reduce")
        x.div_(counts.clamp_(min=1), rounding_mode=None if x.dtype.is_floating_point else "floor")
    return x


def _scatter_products(x: Any, dim: int, index: Tensor, src: Tensor, include_self: bool) -> Any:
    """Multiply slices of ``src`` into ``x``, one slice after another. Within a slice, all positions differ."""
    if not include_self:
        _scatter_into(x, dim, index, 1, "set", "scatter")
    at = dim % max(x.dim(), 1)
    factors = (each.narrow(at, 0, index.shape[at]).split(1, at) if each.dim() else [each] for each in (index, src))
    for places, factor in zip(*factors, strict=True):
        here = factor[tuple(slice(0, n) for n in places.shape)]
        x.scatter_(dim, places, x.gather(dim, places) * here)
    return x


def _index_add_(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Any:
    dim = dim % max(x.dim(), 1)
    seen = x.contiguous()
    source = _scale_by(source, alpha).to(x.dtype).contiguous()
    scatter_runs("index_add", seen, source, select_rows(seen, dim, index), "add")
    return x if seen is x else x.copy_(seen)


def _scale_by(x: Any, alpha: float) -> Any:
    return x if alpha == 1 else x * alpha


def _index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Any:
    return _index_add_(x.clone(memory_format=torch.contiguous_format), dim, index, source, alpha=alpha)


def _index_copy_(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Any:
    dim = dim % max(x.dim(), 1)
    seen = x.contiguous()
    scatter_runs("index_copy", seen, source.to(x.dtype).contiguous(), select_rows(seen, dim, index), "set")
    return x if seen is x else x.copy_(seen)


def _index_copy(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Any:
    return _index_copy_(x.clone(memory_format=torch.contiguous_format), dim, index, source)


# x[i, j]


def _as_numbers(x: Tensor, indices: Sequence[Any]) -> list[Any]:
    """Return indices without masks. A mask becomes one tensor per axis: the positions of its true elements."""
    found: list[Any] = []
    for given in indices:
        each = given if given is None or isinstance(given, AhbmTensor) else from_host(given, sip_of(x))
        if each is not None and each.dtype in (torch.bool, torch.uint8):
            _check_mask(x, each, len(found))
            found += each.nonzero().unbind(1)
        else:
            found.append(each)
    return found + [None] * (x.dim() - len(found))


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

    x: Tensor
    selection: RunSelection
    shape: tuple[int, ...]
    order: tuple[int, ...] | None

    def back(self, out: Tensor) -> Any:
        """Return ``out``, whose indexed axes are first, with the axes in PyTorch's order."""
        return out if self.order is None else out.permute(self.order)

    def forth(self, out: Tensor) -> Any:
        """Return ``out``, whose axes are in PyTorch's order, with the indexed axes first."""
        if self.order is None:
            return out
        return out.permute([self.order.index(i) for i in range(len(self.order))])


def _select_indexed(x: Tensor, given: Sequence[Any]) -> _Indexed:
    """Return the selection of ``x[indices]``. It uses the strides of ``x``, so that writes go to ``x`` itself."""
    indices = _as_numbers(x, given)
    at = [d for d, each in enumerate(indices) if each is not None]
    rest = [d for d in range(x.dim()) if d not in at]
    together = at == list(range(at[0], at[-1] + 1))
    numbers = torch.broadcast_tensors(*[indices[d].to(torch.int64) for d in at])
    shape = tuple(numbers[0].shape)
    kept = tuple(x.shape[d] for d in rest)
    # Contiguous axes at the end form one run. Run numbers count through the axes before them.
    inner, split = 1, len(rest)
    while split and x.stride(rest[split - 1]) == inner:
        inner *= x.shape[rest[split - 1]]
        split -= 1
    looped = rest[:split]
    loops = prod(x.shape[d] for d in looped)
    flat = [each.contiguous().reshape(-1) for each in numbers]
    if loops > 1:
        flat = [each.unsqueeze(1).expand(each.numel(), loops).contiguous().reshape(-1) for each in flat]
    lead = ((prod(shape), 0), *[(x.shape[d], x.stride(d)) for d in looped])
    pairs = tuple((each, x.shape[d], x.stride(d)) for each, d in zip(flat, at, strict=True))
    order: tuple[int, ...] | None = None
    if together and at[0] > 0:
        lead_axes, n = at[0], len(shape)
        total = n + len(kept)
        order = (*range(n, n + lead_axes), *range(n), *range(n + lead_axes, total))
    return _Indexed(x, RunSelection(prod(shape) * loops, inner, pairs, lead, wraps=True), (*shape, *kept), order)


def _index_tensor(x: Tensor, indices: Sequence[Any]) -> Any:
    found = _select_indexed(x, indices)
    out = new(found.shape, x.dtype, sip_of(x))
    return found.back(gather_runs("index", out, x, found.selection))


def _index_put_(x: Tensor, indices: Sequence[Any], values: Tensor, accumulate: bool = False) -> Any:
    if not isinstance(values, AhbmTensor):
        values = from_host(values.to(x.dtype), sip_of(x))
    mask = indices[0] if len(indices) == 1 and isinstance(indices[0], AhbmTensor) else None
    if (
        mask is not None
        and mask.dtype is torch.bool
        and mask.shape == x.shape
        and values.numel() == 1
        and not accumulate
    ):
        return x.copy_(torch.where(mask, values.to(x.dtype), x))
    found = _select_indexed(x, indices)
    wanted = found.shape if found.order is None else tuple(found.shape[i] for i in found.order)
    source = found.forth(values.to(x.dtype).expand(wanted)).contiguous()
    return scatter_runs("index_put", x, source, found.selection, "add" if accumulate else "set")


def _index_put(x: Tensor, indices: Sequence[Any], values: Tensor, accumulate: bool = False) -> Any:
    return _index_put_(x.clone(), indices, values, accumulate)


def _masked_select(x: Tensor, mask: Tensor) -> Any:
    seen, marks = torch.broadcast_tensors(x, mask)
    return _index_tensor(seen.contiguous(), [marks.contiguous()])


def _masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Any:
    """Write elements of ``source``, in order, where the mask is true. A running sum of the mask gives their numbers."""
    seen, marks = torch.broadcast_tensors(x, mask)
    place = (marks.reshape(-1).cumsum(0) - 1).clamp_(min=0)
    if not source.numel() or not seen.numel():
        return seen.clone()
    return torch.where(marks, source.reshape(-1).index_select(0, place).reshape(seen.shape), seen)


def _nonzero(x: Tensor) -> Tensor:
    """Return the indices of elements that are not 0. The host waits for their number, which determines the shape."""
    given: Any = x
    flags = (given != 0).contiguous()
    count = int(flags.sum().item())
    out = new((count, x.dim()), torch.int64, sip_of(x))
    shape, total = tuple(x.shape), x.numel()
    known = _known(flags)

    def program(out_at: int, x_at: int, *, tl: Any) -> None:
        item = dtype_of(flags)
        marks = tl.load(x_at, (total,), item)
        tl.cumsum(tl.cast(marks, "i32"))
        numbers = tl.value(marks) if known is None else known(0, total, 2)
        places = np.stack(np.unravel_index(np.flatnonzero(numbers), shape), axis=1)
        tl.store(out_at, tl.constant(places.astype(np.int64), "i64"))

    if count and x.dim():
        launch("nonzero", program, (out,), (flags,), 1)
    return out


LOWERINGS: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        aten.index_select.default: _index_select,
        aten.embedding.default: _embedding,
        aten.embedding_dense_backward.default: _embedding_backward,
        aten.gather.default: _gather,
        aten.scatter.src: _scatter,
        aten.scatter.value: _scatter,
        aten.scatter_.src: _scatter_,
        aten.scatter_.value: _scatter_,
        aten.scatter_add.default: _scatter_add,
        aten.scatter_add_.default: _scatter_add_,
        aten.scatter_reduce.two: _scatter_reduce,
        aten.scatter_reduce_.two: _scatter_reduce_,
        aten.index_add.default: _index_add,
        aten.index_add_.default: _index_add_,
        aten.index_copy.default: _index_copy,
        aten.index_copy_.default: _index_copy_,
        aten.index.Tensor: _index_tensor,
        aten._unsafe_index.Tensor: _index_tensor,  # noqa: SLF001 - an operator's name
        aten.index_put.default: _index_put,
        aten.index_put_.default: _index_put_,
        aten._unsafe_index_put.default: _index_put,  # noqa: SLF001
        aten._index_put_impl_.default: lambda x, i, v, accumulate=False, unsafe=False: _index_put_(x, i, v, accumulate),  # noqa: ARG005
        aten.nonzero.default: _nonzero,
        aten.masked_select.default: _masked_select,
        aten.masked_scatter.default: _masked_scatter,
    }
)
