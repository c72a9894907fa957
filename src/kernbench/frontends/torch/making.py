"""PyTorch operators that create, copy and join tensors: fills, ranges, casts, concatenation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from kernbench.common.dtypes import F32, I64
from kernbench.frontends.gpu import DEVICE
from kernbench.frontends.torch.hosted import without_repeats
from kernbench.frontends.torch.launches import dtype_of, launch
from kernbench.frontends.torch.pointwise import apply, apply_all, as_element, identity, plain, to_bool, to_whole
from kernbench.frontends.torch.tensor import (
    AhbmTensor,
    device_of,
    from_host,
    has_values,
    new,
    read,
    resize,
    sip_of,
    without_elements,
    write,
)
from kernbench.kernels.shares import blocks, share

aten = torch.ops.aten
_BLOCK = 16384


def _form(operator: Any, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """Return the result of an operator on the meta device: shape, strides and dtype without elements."""
    named = {key: without_elements(x) for key, x in options.items() if key not in ("pin_memory", "generator")}
    return operator(*[without_elements(x) for x in args], **{**named, "device": torch.device("meta")})


def made_like(operator: Any, args: Sequence[Any], options: Mapping[str, Any]) -> Tensor | None:
    """Return a new tensor with the operator's result shape and dtype; None if its device is the host."""
    like = next((x for x in args if isinstance(x, AhbmTensor)), None)
    device = torch.device(options.get("device") or (DEVICE if like is None else device_of(like)))
    if device.type != DEVICE:
        return None
    form = _form(operator, args, options)
    return new(tuple(form.shape), form.dtype, sip_of(device), form.stride())


def fill(x: Tensor, number: Any) -> Tensor:
    """Set every element to ``number``: MATH fills a block, and the DMA stores it."""
    element, target = plain(number), without_repeats(x)
    if isinstance(element, AhbmTensor):
        apply("fill", identity, target, (element,), (dtype_of(x),))
        return x
    if not x.dtype.is_floating_point:
        element = as_element(int(bool(element) if x.dtype is torch.bool else element), dtype_of(x))
    apply("fill", lambda tl: tl.full((1,), element, dtype_of(x)), target, ())
    return x


def _zero(x: Tensor) -> Tensor:
    return fill(x, 0)


def _filling(number_of: Callable[..., Any]) -> Callable[..., Any]:
    """Return the lowering of a factory. It fills the result with the number ``number_of(*arguments)``."""

    def lowering(operator: Any, *args: Any, **options: Any) -> Any:
        made = made_like(operator, args, options)
        if made is None:
            return operator(*[without_elements(x) for x in args], **options)
        return fill(made, number_of(*args, **options))

    return lowering


def _arange(operator: Any, *args: Any, **options: Any) -> Any:
    made = made_like(operator, args, options)
    if made is None:
        return operator(*args, **options)
    numbers = [plain(each) for each in args]
    start, step = (0 if len(numbers) == 1 else numbers[0]), (numbers[2] if len(numbers) > 2 else 1)
    return ramp("arange", made, start, step)


def _linspace(start: float, end: float, steps: int, *, out: Tensor) -> Any:
    """Fill ``out`` with numbers at equal distances. The host computes integers, because it rounds them in f64."""
    if not out.dtype.is_floating_point:
        return NotImplemented
    target, step = resize(out, (steps,)), (end - start) / max(steps - 1, 1)
    if target.is_contiguous():
        return ramp("linspace", target, start, step)
    return copy(target, ramp("linspace", new((steps,), out.dtype, sip_of(out)), start, step))


def _logspace(start: float, end: float, steps: int, base: float = 10.0, *, out: Tensor) -> Any:
    if not out.dtype.is_floating_point:
        return NotImplemented
    exponents = new((steps,), torch.float32, sip_of(out))
    return copy(resize(out, (steps,)), torch.pow(base, _linspace(start, end, steps, out=exponents)))


def _roll(x: Any, shifts: Sequence[int], dims: Sequence[int] = ()) -> Any:
    """Rotate elements along axes; without ``dims``, rotate the flattened tensor."""
    if not dims:
        return _roll(x.reshape(-1), shifts, [0]).reshape(x.shape)
    found = x
    for shift, dim in zip(shifts, dims, strict=True):
        n = x.shape[dim] if x.dim() else 1
        by = shift % max(n, 1)
        if by:
            found = torch.cat([found.narrow(dim, n - by, by), found.narrow(dim, 0, n - by)], dim)
    return found.clone() if found is x else found


def _eye(n: int, m: int | None = None, *, out: Tensor) -> Tensor:
    """Fill an identity matrix: 0 everywhere, 1 on the diagonal."""
    made = fill(resize(out, (n, n if m is None else m)), 0)
    if made.numel():
        fill(aten.diagonal.default(made), 1)
    return made


def ramp(name: str, out: Tensor, start: float, step: float) -> Tensor:
    """Set element i of contiguous ``out`` to ``start + i step``."""
    to = dtype_of(out)
    wide = F32 if to.is_float else I64

    def program(out_at: int, *, tl: Any) -> None:
        first, mine = share(out.numel(), tl)
        for at, count in blocks(mine, _BLOCK, first):
            x = tl.cast(tl.iota((count,), "i32"), wide)
            x = x if step == 1 else x * step
            found = x if start + at * step == 0 else x + (start + at * step)
            tl.store(out_at + at * to.itemsize, tl.cast(found, to))

    if out.numel():
        launch(name, program, (out,))
    return out


# copies


def copy(target: Any, source: Any, non_blocking: bool = False) -> Any:  # noqa: ARG001 - complete when it returns
    """Copy ``source`` to ``target``. On one SIP, PEs copy the elements. Otherwise, the host transfers them."""
    if not isinstance(target, AhbmTensor):
        target.copy_(read(source))
        return target
    if not isinstance(source, AhbmTensor):
        write(target, source)
        return target
    if sip_of(source) == sip_of(target):
        return apply("copy", *_cast_rule(target, source))
    is_known = has_values(source)
    write(target, read(source, "zeros"), is_known=is_known)
    return target


def _cast_rule(target: Tensor, source: Tensor) -> tuple[Any, ...]:
    if target.dtype is torch.bool and source.dtype is not torch.bool:
        return to_bool, target, (source,)
    if target.dtype is torch.uint8 and source.dtype.is_floating_point:
        return to_whole, target, (source,)
    return identity, target, (source,)


def _copy_from(source: Any, target: Any, non_blocking: bool = False) -> Any:
    return copy(target, source, non_blocking)


def _clone(operator: Any, x: Tensor, **options: Any) -> Any:
    form = operator(without_elements(x), **options)
    return copy(new(tuple(form.shape), x.dtype, sip_of(x), form.stride()), x)


def _to_copy(operator: Any, x: Tensor, *, device: Any = None, dtype: Any = None, **options: Any) -> Any:
    """Run ``x.to(...)``: convert to another dtype on the machine, or copy to the host or to another SIP."""
    there = device_of(x) if device is None else torch.device(device)
    wanted = dtype or x.dtype
    if there.type != DEVICE:
        return read(x).to(wanted, copy=True).to(there)
    sip = sip_of(there)
    if sip != sip_of(x):
        is_known = has_values(x)
        return from_host(read(x, "zeros").to(wanted, copy=True), sip, is_known=is_known)
    layout = {"memory_format": options["memory_format"]} if options.get("memory_format") is not None else {}
    form = operator(without_elements(x), dtype=wanted, **layout)
    return copy(new(tuple(form.shape), wanted, sip, form.stride()), x)


def _cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Concatenate tensors along an axis, by one launch."""
    parts = [x for x in tensors if x.numel() or x.dim() > 1]
    form = aten.cat.default([without_elements(x) for x in tensors], dim)
    out = new(tuple(form.shape), form.dtype, sip_of(tensors[0]), form.stride())
    dim, at, work = dim % form.dim(), 0, []
    for x in parts:
        if x.numel():
            place = aten.slice.Tensor(out, dim, at, at + x.shape[dim])
            work.append((*_cast_rule(place, x), (dtype_of(x),)))
            at += x.shape[dim]
    apply_all("cat", work)
    return out


def _repeat(x: Tensor, repeats: Sequence[int]) -> Tensor:
    lead = len(repeats) - x.dim()
    shape = (*[1] * lead, *x.shape)
    out = new(tuple(r * n for r, n in zip(repeats, shape, strict=True)), x.dtype, sip_of(x))
    if not out.numel():
        return out
    interleaved = [each for r, n in zip(repeats, shape, strict=True) for each in (r, n)]
    seen = x.reshape(shape).reshape([each for n in shape for each in (1, n)]).expand(interleaved)
    copy(out.view(interleaved), seen)
    return out


def _flip(x: Any, dims: Sequence[int]) -> Any:
    if not dims or not x.dim():
        return x.clone()
    for dim in dims:
        n = x.shape[dim]
        backwards = ramp("arange", new((n,), torch.int64, sip_of(x)), n - 1, -1)
        x = x.index_select(dim, backwards)
    return x


def _pad(x: Tensor, pad: Sequence[int], number: float = 0) -> Tensor:
    """Pad ``x`` with ``number``. Negative pads remove elements."""
    shape = list(x.shape)
    inside, taken = [slice(None)] * x.dim(), [slice(None)] * x.dim()
    for i in range(len(pad) // 2):
        d, (before, behind) = x.dim() - 1 - i, pad[2 * i : 2 * i + 2]
        taken[d] = slice(max(0, -before), shape[d] - max(0, -behind))
        inside[d] = slice(
            max(0, before), shape[d] + before + min(behind, 0) if before > 0 else shape[d] + before + min(0, behind)
        )
        shape[d] += before + behind
    out = fill(new(tuple(shape), x.dtype, sip_of(x)), number)
    middle = x[tuple(taken)]
    for d, (at, part) in enumerate(zip(inside, middle.shape, strict=True)):
        inside[d] = slice(at.start or 0, (at.start or 0) + part)
    copy(out[tuple(inside)], middle)
    return out


def _slice_backward(grad: Tensor, sizes: Sequence[int], dim: int, start: int, end: int, step: int) -> Tensor:
    out = fill(new(tuple(sizes), grad.dtype, sip_of(grad)), 0)
    copy(aten.slice.Tensor(out, dim, start, end, step), grad)
    return out


def _select_backward(grad: Tensor, sizes: Sequence[int], dim: int, index: int) -> Tensor:
    out = fill(new(tuple(sizes), grad.dtype, sip_of(grad)), 0)
    copy(aten.select.int(out, dim, index), grad)
    return out


def _item(x: Tensor) -> Any:
    return read(x).item()


def _full(size: Sequence[int], number: Any, **_: object) -> Any:  # noqa: ARG001
    return number


LOWERINGS: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        aten.fill_.Scalar: fill,
        aten.fill_.Tensor: fill,
        aten.zero_.default: _zero,
        aten.copy_.default: copy,
        aten._copy_from.default: _copy_from,  # noqa: SLF001 - operators' names
        aten._local_scalar_dense.default: _item,  # noqa: SLF001
        aten.cat.default: _cat,
        aten.repeat.default: _repeat,
        aten.flip.default: _flip,
        aten.eye.out: _eye,
        aten.eye.m_out: _eye,
        aten.linspace.out: _linspace,
        aten.logspace.out: _logspace,
        aten.constant_pad_nd.default: _pad,
        aten.slice_backward.default: _slice_backward,
        aten.select_backward.default: _select_backward,
        aten.roll.default: _roll,
        aten._has_same_storage_numel.default: lambda x, y: x.backing.n == y.backing.n,  # noqa: SLF001
    }
)
_FILLED: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "zeros": lambda *_, **__: 0,
        "zeros_like": lambda *_, **__: 0,
        "_efficientzerotensor": lambda *_, **__: 0,
        "new_zeros": lambda *_, **__: 0,
        "ones": lambda *_, **__: 1,
        "ones_like": lambda *_, **__: 1,
        "new_ones": lambda *_, **__: 1,
        "full": _full,
        "full_like": lambda _, number, **__: number,
        "new_full": lambda _, __, number, **___: number,
        "scalar_tensor": lambda number, **_: number,
    }
)
BY_NAME: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {name: _filling(number) for name, number in _FILLED.items()}
    | {
        "arange": _arange,
        "clone": _clone,
        "lift_fresh_copy": _clone,
        "_to_copy": _to_copy,
    }
)
"""Lowerings by operator name, for all overloads. A lowering gets the operator as its first argument."""
MAKING = frozenset([*BY_NAME, *[operator.overloadpacket.__name__ for operator in LOWERINGS]]) | frozenset(
    ["stack", "_foreach_copy_", "_foreach_zero_"]
)
"""Names of operators that create tensors from nothing, or from copies of others."""
