"""Reductions, scans, ``tl.histogram`` and ``tl.gather`` of symbolic values, built from the operators of MATH."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import index
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

from kernbench.common.dtypes import I8, I16, I32, DType
from kernbench.frontends.triton.running import running
from kernbench.frontends.triton.values import Symbolic, Type, Value, is_symbolic, machine_type, value_of, whole
from kernbench.triton_emu.handles import Handle
from kernbench.triton_emu.tl_context import TLContext

_STANDARD = tl.standard
_Reduction: TypeAlias = Callable[..., Handle]
# Triton's maximum and minimum skip NaN.
_MAX: _Reduction = partial(TLContext.max, skip_nan=True)
_MIN: _Reduction = partial(TLContext.min, skip_nan=True)
_ARGMAX: _Reduction = partial(TLContext.argmax, skip_nan=True)
_ARGMIN: _Reduction = partial(TLContext.argmin, skip_nan=True)
_REDUCTIONS: MappingProxyType[Any, tuple[_Reduction, ...]] = MappingProxyType(
    {
        _STANDARD._sum_combine: (TLContext.sum,),  # noqa: SLF001 - the interpreter itself identifies them by these
        _STANDARD._elementwise_max: (_MAX,),  # noqa: SLF001
        _STANDARD._elementwise_min: (_MIN,),  # noqa: SLF001
        _STANDARD._argmax_combine_tie_break_left: (_MAX, _ARGMAX),  # noqa: SLF001
        _STANDARD._argmax_combine_tie_break_fast: (_MAX, _ARGMAX),  # noqa: SLF001
        _STANDARD._argmin_combine_tie_break_left: (_MIN, _ARGMIN),  # noqa: SLF001
        _STANDARD._argmin_combine_tie_break_fast: (_MIN, _ARGMIN),  # noqa: SLF001
    }
)
_BITS: MappingProxyType[int, DType] = MappingProxyType({1: I8, 2: I16, 4: I32})
"""The integer types for the bits of floats, by width in bytes."""
_known = interpreter.ReduceScanOpInterface.apply


def apply(operation: Any, inputs: Any) -> Any:
    """Reduce or scan a tensor or a tuple of tensors. Replaces ``ReduceScanOpInterface.apply``."""
    tensors = inputs if isinstance(inputs, tuple) else (inputs,)
    if not is_symbolic(*[each.handle for each in tensors]):
        return _known(operation, inputs)
    operation.check_tensor(tensors)
    found = (_scan if isinstance(operation, interpreter.ScanOps) else _reduce)(operation, tensors)
    return found if tensors is inputs else found[0]


def _scan(operation: Any, tensors: tuple[Any, ...]) -> tuple[Any, ...]:
    if operation.combine_fn is _STANDARD._sum_combine:  # noqa: SLF001
        made = running().tl.cumsum(whole(tensors[0].handle), index(operation.axis), bool(operation.reverse))
        return (_tensor(made, made.shape, tensors[0].dtype),)
    return _scan_by_doubling(operation, tensors)


def _reduce(operation: Any, tensors: tuple[Any, ...]) -> tuple[Any, ...]:
    reductions = _REDUCTIONS.get(operation.combine_fn)
    if reductions is None:
        return _reduce_by_halving(operation, tensors)
    kernel, source = running().tl, whole(tensors[0].handle)
    axis = _axis(operation, tensors)
    keep = bool(operation.keep_dims)
    made = [reduce(kernel, source, axis, keep) for reduce in reductions]
    types = (tensors[0].dtype, tl.int32)
    return tuple([_tensor(each, each.shape, ty) for each, ty in zip(made, types, strict=False)])


def _reduce_by_halving(operation: Any, tensors: tuple[Any, ...]) -> tuple[Any, ...]:
    """Reduce by the kernel's own function: combine the halves of the axis repeatedly, until one element is left."""
    kernel, shape = running().tl, tuple(map(int, tensors[0].shape))
    axis = _axis(operation, tensors)
    parts = [_with_first(whole(each.handle), axis) for each in tensors]
    rest = parts[0].shape[1:]
    while (n := parts[0].shape[0] // 2) > 0:
        halves = [kernel.reshape(each, (2, n, *rest)) for each in parts]
        parts = _combine(operation, tensors, [[kernel.part(each, i) for each in halves] for i in (0, 1)])
    if operation.keep_dims:
        rest = tuple([1 if axis in (i, None) else n for i, n in enumerate(shape)])
    made = [kernel.reshape(each, rest) for each in parts]
    return tuple([_tensor(each, rest, x.dtype) for each, x in zip(made, tensors, strict=True)])


def _scan_by_doubling(operation: Any, tensors: tuple[Any, ...]) -> tuple[Any, ...]:
    """Scan by the kernel's own function: scanned blocks of 1, 2, 4 ... elements are merged in pairs.

    All elements of the later block are combined with the last element of the earlier block. In a reverse scan, the
    earlier block is combined with the first element of the later block.
    """
    kernel, axis = running().tl, _axis(operation, tensors)
    parts = [_with_first(whole(each.handle), axis) for each in tensors]
    n, rest = parts[0].shape[0], parts[0].shape[1:]
    done, change = (1, 0) if operation.reverse else (0, 1)
    others = range(3, 3 + len(rest))
    for size in [1 << i for i in range(n.bit_length() - 1)]:
        blocks = n // size // 2
        pairs = [kernel.trans(kernel.reshape(each, (size, blocks, 2, *rest)), (2, 0, 1, *others)) for each in parts]
        edge = 0 if operation.reverse else size - 1
        edges = [kernel.expand_dims(kernel.part(kernel.part(each, done), edge), 0) for each in pairs]
        made = _combine(operation, tensors, [edges, [kernel.part(each, change) for each in pairs]])
        second = kernel.constant(np.arange(2).reshape(2, *[1] * (2 + len(rest))) == change, I8)
        parts = [
            kernel.reshape(kernel.where(second, kernel.expand_dims(new, 0), pair), (2 * size, blocks, *rest))
            for new, pair in zip(made, pairs, strict=True)
        ]
    made = [kernel.reshape(each, (n, *rest)) for each in parts]
    if axis:
        back = (*range(1, axis + 1), 0, *range(axis + 1, len(rest) + 1))
        made = [kernel.trans(each, back) for each in made]
    return tuple([_tensor(each, each.shape, x.dtype) for each, x in zip(made, tensors, strict=True)])


def count(data: Value, bins: int, mask: Value | None) -> Handle:
    """Count how often each number below ``bins`` occurs where ``mask`` is true: compare each with all elements."""
    kernel = running().tl
    found = kernel.elementwise(
        "eq", kernel.expand_dims(whole(data), 1), kernel.constant(np.arange(bins)[None, :], machine_type(data.dtype))
    )
    if mask is not None:
        found = kernel.elementwise("and", found, kernel.expand_dims(whole(mask), 1))
    return kernel.sum(kernel.cast(found, I32), 0)


def take(source: Value, places: Value, axis: int) -> Handle:
    """Return the elements of ``source`` at ``places`` along ``axis``, by comparing each place with all indices.

    Elements are selected as bits, so that NaN among the elements that are not selected has no effect.
    """
    kernel, item = running().tl, machine_type(source.dtype)
    bits = kernel.bitcast(whole(source), _BITS[item.itemsize] if item.is_float else item)
    there = np.arange(bits.shape[axis]).reshape(-1, *[1] * (len(bits.shape) - axis - 1))
    asked = kernel.expand_dims(whole(places), axis + 1)
    found = kernel.elementwise("eq", asked, kernel.constant(there, machine_type(places.dtype)))
    return kernel.bitcast(kernel.sum(kernel.where(found, kernel.expand_dims(bits, axis), 0), axis + 1), item)


def _axis(operation: Any, tensors: tuple[Any, ...]) -> int | None:
    """Return the axis of the operation as a non-negative number; None if it reduces all axes."""
    return None if operation.axis is None else index(operation.axis) % len(tensors[0].shape)


def _with_first(x: Handle, axis: int | None) -> Handle:
    """Return ``x`` with ``axis`` moved to the front; None: flattened."""
    if axis is None:
        return running().tl.reshape(x, (-1,))
    others = [i for i in range(len(x.shape)) if i != axis]
    return running().tl.trans(x, (axis, *others)) if axis else x


def _combine(operation: Any, tensors: tuple[Any, ...], operands: list[list[Handle]]) -> list[Handle]:
    """Apply the kernel's own function to accumulated and new handles, broadcast to the shape of the new ones."""
    shape = operands[1][0].shape
    given = [_tensor(each, shape, x.dtype) for side in operands for each, x in zip(side, tensors, strict=True)]
    made = operation.combine_fn(*given)
    results = made if isinstance(made, tuple | tl.tuple) else (made,)
    return [whole(each.to(x.dtype).handle) for each, x in zip(results, tensors, strict=True)]


def _tensor(handle: Handle, shape: tuple[int, ...], ty: Type) -> Any:
    """Return a Triton tensor. Without axes, it is a scalar, which the interpreter stores as one element."""
    data, scalar = Symbolic(handle, shape or (1,)), ty.scalar
    return tl.core.tensor(value_of(data, scalar), tl.block_type(scalar, list(shape)) if shape else scalar)
