"""PyTorch operators that create, copy and join tensors: fills, ranges, casts, concatenation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import prod
from typing import Any

import torch
from torch import Tensor

from kernbench.frontends.gpu import DEVICE
from kernbench.frontends.torch.hosted import without_repeats
from kernbench.frontends.torch.launches import dtype_of, launch
from kernbench.frontends.torch.modules import program_place
from kernbench.frontends.torch.pointwise import ElementwiseWork, apply, apply_all, as_element, plain
from kernbench.frontends.torch.storage import Missing, TorchOperator, current
from kernbench.frontends.torch.tensor import (
    AhbmTensor,
    deliver,
    device_of,
    from_host,
    has_values,
    new,
    read,
    resize,
    result_for,
    sip_of,
    storage_of,
    without_elements,
    write,
)
from kernbench.kernels import functions
from kernbench.kernels.elementwise import COPY, Expression, write_ramp
from kernbench.kernels.view import View
from kernbench.triton_emu.handles import Number
from kernbench.triton_emu.tl_context import TLContext

aten = torch.ops.aten


def _form(operator: TorchOperator, args: Sequence[Any], options: Mapping[str, Any]) -> Tensor:
    """Return the result of an operator on the meta device: shape, strides and dtype without elements."""
    named = {key: without_elements(x) for key, x in options.items() if key not in ("pin_memory", "generator")}
    form: Tensor = operator(*[without_elements(x) for x in args], **{**named, "device": torch.device("meta")})
    return form


def made_like(operator: TorchOperator, args: Sequence[Any], options: Mapping[str, Any]) -> Tensor | None:
    """Return a new tensor with the operator's result shape and dtype; None if its device is the host."""
    like = next((x for x in args if isinstance(x, AhbmTensor)), None)
    device = torch.device(options.get("device") or (DEVICE if like is None else device_of(like)))
    if device.type != DEVICE:
        return None
    form = _form(operator, args, options)
    return new(tuple(form.shape), form.dtype, sip_of(device), form.stride())


def fill(x: Tensor, number: Number | Tensor) -> Tensor:
    """Set every element to ``number``: MATH fills a block, and the DMA stores it."""
    element, target = plain(number), without_repeats(x)
    if isinstance(element, AhbmTensor):
        apply("fill", functions.identity, target, (element,), (dtype_of(x),))
        return x
    if not x.dtype.is_floating_point:
        element = as_element(int(bool(element) if x.dtype is torch.bool else element), dtype_of(x))
    apply("fill", Expression.of(functions.fill, element, dtype_of(x)), target, ())
    return x


def zero_(x: Tensor) -> Tensor:
    return fill(x, 0)


def filled_with(number_of: Callable[..., Number | Tensor]) -> Callable[..., Tensor]:
    """Return the lowering of a factory. It fills the result with the number ``number_of(*arguments)``."""

    def lowering(operator: TorchOperator, *args: Any, **options: Any) -> Tensor:
        tensor = made_like(operator, args, options)
        if tensor is None:
            on_host: Tensor = operator(*[without_elements(x) for x in args], **options)
            return on_host
        return fill(tensor, number_of(*args, **options))

    return lowering


def arange(operator: TorchOperator, *args: Number | Tensor, **options: Any) -> Tensor:
    """Create a tensor of numbers from a start, by default 0, to an end, at the distance of a step, by default 1."""
    tensor = made_like(operator, args, options)
    if tensor is None:
        on_host: Tensor = operator(*args, **options)
        return on_host
    numbers = [plain(x) for x in args]
    start, step = (0 if len(numbers) == 1 else numbers[0]), (numbers[2] if len(numbers) > 2 else 1)
    return ramp("arange", tensor, start, step)


def linspace(start: float, end: float, steps: int, *, out: Tensor) -> Any:
    """Fill ``out`` with numbers at equal distances. The host computes integers, because it rounds them in f64."""
    if not out.dtype.is_floating_point:
        return NotImplemented
    target, step = resize(out, (steps,)), (end - start) / max(steps - 1, 1)
    if target.is_contiguous():
        return ramp("linspace", target, start, step)
    return copy(target, ramp("linspace", new((steps,), out.dtype, sip_of(out)), start, step))


def logspace(start: float, end: float, steps: int, base: float = 10.0, *, out: Tensor) -> Any:
    """Fill ``out`` with powers of ``base``, with exponents at equal distances."""
    if not out.dtype.is_floating_point:
        return NotImplemented
    exponents = new((steps,), torch.float32, sip_of(out))
    return copy(resize(out, (steps,)), torch.pow(base, linspace(start, end, steps, out=exponents)))


def roll(x: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    """Rotate elements along axes; without ``dims``, rotate the flattened tensor."""
    if not dims:
        return roll(x.reshape(-1), shifts, [0]).reshape(x.shape)
    rolled = x
    for shift, dim in zip(shifts, dims, strict=True):
        n = x.shape[dim] if x.dim() else 1
        by = shift % max(n, 1)
        if by:
            rolled = torch.cat([rolled.narrow(dim, n - by, by), rolled.narrow(dim, 0, n - by)], dim)
    return rolled.clone() if rolled is x else rolled


def eye(n: int, m: int | None = None, *, out: Tensor) -> Tensor:
    """Fill an identity matrix: 0 everywhere, 1 on the diagonal."""
    matrix = fill(resize(out, (n, n if m is None else m)), 0)
    if matrix.numel():
        fill(aten.diagonal.default(matrix), 1)
    return matrix


def ramp(name: str, out: Tensor, start: float, step: float) -> Tensor:
    """Set element i of contiguous ``out`` to ``start + i step``."""
    view = View.row_major(0, (out.numel(),), dtype_of(out))

    def program(address: int, *, tl: TLContext) -> None:
        write_ramp(view.on(address), start, step, tl)

    if out.numel():
        launch(name, program, (out,))
    return out


# copies


def copy(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:  # noqa: ARG001 - complete when it returns
    """Copy ``source`` to ``target``. On one SIP, PEs copy the elements. Otherwise, the host transfers them."""
    if not isinstance(target, AhbmTensor):
        target.copy_(read(source))
        return target
    if not isinstance(source, AhbmTensor):
        write(target, source)
        return target
    if sip_of(source) == sip_of(target):
        apply_all("copy", [_copy_work(target, source)])
        return target
    is_known = has_values(source)
    write(target, read(source, "zeros"), is_known=is_known)
    return target


def _copy_work(target: Tensor, source: Tensor) -> ElementwiseWork:
    if target.dtype is torch.bool and source.dtype is not torch.bool:
        return functions.to_bool, target, (source,), ()
    if target.dtype is torch.uint8 and source.dtype.is_floating_point:
        return functions.to_whole, target, (source,), ()
    return COPY, target, (source,), ()


def copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    """Copy ``source`` to ``target``; one of both may be on the host."""
    return copy(target, source, non_blocking)


def clone(operator: TorchOperator, x: Tensor, **options: Any) -> Tensor:
    """Return a copy with the layout that PyTorch gives it."""
    form = operator(without_elements(x), **options)
    return copy(new(tuple(form.shape), x.dtype, sip_of(x), form.stride()), x)


def to_copy(
    operator: TorchOperator,
    x: Tensor,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    **options: Any,
) -> Tensor:
    """Run ``x.to(...)``: convert to another dtype on the machine, or copy to the host or to another SIP."""
    target = device_of(x) if device is None else torch.device(device)
    wanted = dtype or x.dtype
    if target.type != DEVICE:
        return read(x).to(wanted, copy=True).to(target)
    sip = sip_of(target)
    if sip != sip_of(x):
        is_known = has_values(x)
        return from_host(read(x, "zeros").to(wanted, copy=True), sip, is_known=is_known)
    layout = {"memory_format": options["memory_format"]} if options.get("memory_format") is not None else {}
    form = operator(without_elements(x), dtype=wanted, **layout)
    return copy(new(tuple(form.shape), wanted, sip, form.stride()), x)


_APPENDED_PART = 8
"""A remark names a concatenation if its first tensor has at least this many times the elements of the others."""


def _note_copied_cache(tensors: Sequence[Tensor]) -> None:
    """Add a remark if a concatenation copies a long tensor to append few elements, as caches of keys do."""
    appended = sum(x.numel() for x in tensors[1:])
    context, place = current(), program_place()
    if context.operators.is_loading or not 0 < appended * _APPENDED_PART <= tensors[0].numel():
        return
    where = "" if place is None else f"{place}: "
    remark = f"{where}torch.cat copies a tensor to append few elements; index_copy_ into a longer one writes only these"
    if remark not in context.remarks:
        context.remarks.append(remark)


def cat(tensors: Sequence[Tensor], dim: int = 0, *, out: Tensor | None = None) -> Tensor:
    """Concatenate tensors along an axis, by one launch. ``out`` gets the result."""
    _note_copied_cache(tensors)
    parts = [x for x in tensors if x.numel() or x.dim() > 1]
    form = aten.cat.default([without_elements(x) for x in tensors], dim)
    if out is None:
        result: Tensor = new(tuple(form.shape), form.dtype, sip_of(tensors[0]), form.stride())
    else:
        result = result_for(out, tuple(form.shape), form.dtype, tensors)
    dim, at = dim % form.dim(), 0
    work: list[ElementwiseWork] = []
    for x in parts:
        if x.numel():
            work.append(_copy_work(aten.slice.Tensor(result, dim, at, at + x.shape[dim]), x))
            at += x.shape[dim]
    apply_all("cat", work)
    return deliver(result, out)


def split_into(x: Tensor, sizes: Sequence[int], dim: int = 0, *, out: Sequence[Tensor]) -> None:
    """Copy the pieces of ``x`` along an axis to the tensors of a list, by one launch."""
    pieces = x.split(list(sizes), dim)
    apply_all(
        "split_with_sizes_copy",
        [_copy_work(resize(y, tuple(piece.shape)), piece) for y, piece in zip(out, pieces, strict=True)],
    )


def chunk_cat(tensors: Sequence[Tensor], dim: int, num_chunks: int, *, out: Tensor | None = None) -> Tensor:
    """Divide tensors along an axis, flatten the chunks, and concatenate chunk i of all tensors in row i.

    Zeros follow a tensor whose axis is no multiple of the number of chunks. One launch copies, fills and casts.
    """
    form = aten._chunk_cat.default([without_elements(x) for x in tensors], dim, num_chunks)  # noqa: SLF001
    result = result_for(out, tuple(form.shape), form.dtype if out is None else out.dtype, tensors)
    axis, begin = dim % tensors[0].dim(), 0
    lead = tensors[0].shape[:axis]
    work: list[ElementwiseWork] = []
    for x in tensors:
        rows = -(-x.shape[axis] // num_chunks)
        shape = (*lead, num_chunks, rows, *x.shape[axis + 1 :])
        width = prod(shape[axis + 1 :])
        target = result.narrow(axis + 1, begin, width).unflatten(axis + 1, shape[axis + 1 :])
        work += _copy_to_chunks(target, x, axis)
        begin += width
    apply_all("chunk_cat", work)
    return deliver(result, out)


def _copy_to_chunks(target: Tensor, x: Tensor, axis: int) -> Iterator[ElementwiseWork]:
    """Yield the copies of ``x`` to its chunks: complete ones, then one that ``x`` fills in part, then zeros."""
    n_chunks, rows = target.shape[axis : axis + 2]
    n_full, rest = divmod(x.shape[axis], rows)
    if n_full:
        yield _copy_work(
            target.narrow(axis, 0, n_full), x.narrow(axis, 0, n_full * rows).unflatten(axis, (n_full, rows))
        )
    zero = Expression.of(functions.fill, as_element(0, dtype_of(target)), dtype_of(target))
    if rest:
        part = target.select(axis, n_full)
        yield _copy_work(part.narrow(axis, 0, rest), x.narrow(axis, n_full * rows, rest))
        yield zero, part.narrow(axis, rest, rows - rest), (), ()
    if n_full + bool(rest) < n_chunks:
        yield zero, target.narrow(axis, n_full + bool(rest), n_chunks - n_full - bool(rest)), (), ()


def repeat(x: Tensor, repeats: Sequence[int]) -> Tensor:
    """Return ``x`` repeated along each axis; more repeats than axes add axes in front."""
    lead = len(repeats) - x.dim()
    shape = (*[1] * lead, *x.shape)
    out = new(tuple(r * n for r, n in zip(repeats, shape, strict=True)), x.dtype, sip_of(x))
    if not out.numel():
        return out
    interleaved = [extent for r, n in zip(repeats, shape, strict=True) for extent in (r, n)]
    expanded = x.reshape(shape).reshape([extent for n in shape for extent in (1, n)]).expand(interleaved)
    copy(out.view(interleaved), expanded)
    return out


def flip(x: Tensor, dims: Sequence[int]) -> Tensor:
    """Return ``x`` with the order of elements reversed along ``dims``."""
    if not dims or not x.dim():
        return x.clone()
    for dim in dims:
        n = x.shape[dim]
        backwards = ramp("arange", new((n,), torch.int64, sip_of(x)), n - 1, -1)
        x = x.index_select(dim, backwards)
    return x


def constant_pad(x: Tensor, pad: Sequence[int], number: float = 0) -> Tensor:
    """Pad ``x`` with ``number``. Negative pads remove elements."""
    shape, starts, remaining = list(x.shape), [0] * x.dim(), [slice(None)] * x.dim()
    for i in range(len(pad) // 2):
        d, (before, behind) = x.dim() - 1 - i, pad[2 * i : 2 * i + 2]
        remaining[d] = slice(max(0, -before), shape[d] - max(0, -behind))
        starts[d] = max(0, before)
        shape[d] += before + behind
    out = fill(new(tuple(shape), x.dtype, sip_of(x)), number)
    middle = x[tuple(remaining)]
    copy(out[tuple([slice(start, start + n) for start, n in zip(starts, middle.shape, strict=True)])], middle)
    return out


def slice_backward(grad: Tensor, sizes: Sequence[int], dim: int, start: int, end: int, step: int) -> Tensor:
    """Return zeros with the gradient in the slice that the forward read."""
    out = fill(new(tuple(sizes), grad.dtype, sip_of(grad)), 0)
    copy(aten.slice.Tensor(out, dim, start, end, step), grad)
    return out


def select_backward(grad: Tensor, sizes: Sequence[int], dim: int, index: int) -> Tensor:
    """Return zeros with the gradient at the index that the forward read."""
    out = fill(new(tuple(sizes), grad.dtype, sip_of(grad)), 0)
    copy(aten.select.int(out, dim, index), grad)
    return out


_MISSING: ContextVar[Missing] = ContextVar("missing", default="raise")
"""The number that a program reads where a run without data lacks it"""


@contextmanager
def assume_zeros() -> Iterator[None]:
    """Let the program read zeros inside the ``with`` block for numbers that a run without data lacks."""
    token = _MISSING.set("zeros")
    try:
        yield
    finally:
        _MISSING.reset(token)


def local_scalar_dense(x: Tensor) -> Number:
    """Return the number of a tensor of one element."""
    return read(x, _MISSING.get()).item()


def has_same_storage_numel(x: Tensor, y: Tensor) -> bool:
    return storage_of(x).n == storage_of(y).n
