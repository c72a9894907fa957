"""Reductions, scans, ``tl.histogram`` and ``tl.gather`` of symbolic values, built from the operators of MATH."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import lru_cache, partial
from inspect import getsource
from operator import index
from textwrap import dedent
from types import FunctionType, MappingProxyType
from typing import TypeAlias

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

from kernbench.common.dtypes import I8, I16, I32, DType, Shape
from kernbench.frontends.triton.extra_functions import COMPILER
from kernbench.frontends.triton.running import running
from kernbench.frontends.triton.values import (
    Symbolic,
    Type,
    Value,
    drop_constant_axes,
    is_symbolic,
    machine_type,
    materialize,
    value_of,
)
from kernbench.triton_emu.handles import Handle
from kernbench.triton_emu.tl_context import TLContext

_STANDARD = tl.standard
_ReduceScan: TypeAlias = interpreter.ReduceScanOpInterface
_Tensors: TypeAlias = tuple[tl.tensor, ...]
_Reduction: TypeAlias = Callable[..., Handle]
# Triton's maximum and minimum skip NaN.
_MAX: _Reduction = partial(TLContext.max, skip_nan=True)
_MIN: _Reduction = partial(TLContext.min, skip_nan=True)
_ARGMAX: _Reduction = partial(TLContext.argmax, skip_nan=True)
_ARGMIN: _Reduction = partial(TLContext.argmin, skip_nan=True)
_STANDARD_REDUCTIONS: MappingProxyType[str, tuple[_Reduction, ...]] = MappingProxyType(
    {
        "_sum_combine": (TLContext.sum,),
        "_elementwise_max": (_MAX,),
        "_elementwise_min": (_MIN,),
        "_argmax_combine_tie_break_left": (_MAX, _ARGMAX),
        "_argmax_combine_tie_break_fast": (_MAX, _ARGMAX),
        "_argmin_combine_tie_break_left": (_MIN, _ARGMIN),
        "_argmin_combine_tie_break_fast": (_MIN, _ARGMIN),
    }
)
_COMPILER_REDUCTIONS: MappingProxyType[str, tuple[_Reduction, ...]] = MappingProxyType(
    {
        "maximum": (TLContext.max,),
        "minimum": (TLContext.min,),
        "maximum_with_index": (TLContext.max, TLContext.argmax),
        "minimum_with_index": (TLContext.min, TLContext.argmin),
    }
)
_NAMED: MappingProxyType[str, tuple[_Reduction, ...]] = MappingProxyType(
    {f"{_STANDARD.__name__}.{name}": reductions for name, reductions in _STANDARD_REDUCTIONS.items()}
    | {f"{COMPILER}.{name}": reductions for name, reductions in _COMPILER_REDUCTIONS.items()}
)
"""The reductions of MATH that stand for a function of a library, by the full name of the function."""
_EXPRESSIONS: MappingProxyType[str, _Reduction] = MappingProxyType(
    {
        "{} + {}": TLContext.sum,
        "tl.maximum({}, {})": _MAX,
        "tl.minimum({}, {})": _MIN,
        "tl.maximum({}, {}, propagate_nan=tl.PropagateNan.ALL)": TLContext.max,
        "tl.minimum({}, {}, propagate_nan=tl.PropagateNan.ALL)": TLContext.min,
    }
)
_WRITTEN: MappingProxyType[str, tuple[_Reduction, ...]] = MappingProxyType(
    {text.format(*names): (reduction,) for text, reduction in _EXPRESSIONS.items() for names in ("xy", "yx")}
)
"""The reductions of MATH that stand for a kernel's own function, by its expression."""
_BITS: MappingProxyType[int, DType] = MappingProxyType({1: I8, 2: I16, 4: I32})
"""The integer types for the bits of floats, by width in bytes."""
_apply_to_known = interpreter.ReduceScanOpInterface.apply


def apply(operation: _ReduceScan, inputs: tl.tensor | _Tensors) -> tl.tensor | _Tensors:
    """Reduce or scan a tensor or a tuple of tensors. Replaces ``ReduceScanOpInterface.apply``."""
    tensors = inputs if isinstance(inputs, tuple) else (inputs,)
    if not is_symbolic(*[tensor.handle for tensor in tensors]):
        return _apply_to_known(operation, inputs)
    operation.check_tensor(tensors)
    results = _scan(operation, tensors) if isinstance(operation, interpreter.ScanOps) else _reduce(operation, tensors)
    return results if tensors is inputs else results[0]


@lru_cache
def _reductions_of(combine: FunctionType) -> tuple[_Reduction, ...]:
    """Return the reductions of MATH, one for each result, that reduce as ``combine`` does; none if there are none."""
    named = _NAMED.get(f"{combine.__module__}.{combine.__qualname__}")
    return _WRITTEN.get(_expression_of(combine), ()) if named is None else named


def _expression_of(combine: FunctionType) -> str:
    """Return what a function of two parameters returns, as an expression of x, y and Triton's ``tl``.

    Names that the function assigns are replaced by their values. The result is empty for a function that contains
    anything but assignments of names and one ``return``.
    """
    (function,) = ast.parse(dedent(getsource(combine))).body
    if (
        combine.__globals__.get("tl", tl) is not tl
        or not isinstance(function, ast.FunctionDef)
        or len(function.args.args) != 2
    ):
        return ""
    names = _NameValues({argument.arg: ast.Name(name) for argument, name in zip(function.args.args, "xy", strict=True)})
    for statement in function.body:
        match statement:
            case ast.Assign(targets=[ast.Name(name)], value=expression):
                names.values[name] = names.visit(expression)
            case ast.Return(value=ast.expr() as expression):
                return ast.unparse(names.visit(expression))
            case ast.Expr(value=ast.Constant()):
                pass
            case _:
                break
    return ""


class _NameValues(ast.NodeTransformer):
    """The values of names in an expression."""

    def __init__(self, values: dict[str, ast.expr]) -> None:
        self.values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Replace a name that has a value."""
        return self.values.get(node.id, node)


def _scan(operation: interpreter.ScanOps, tensors: _Tensors) -> _Tensors:
    if _reductions_of(operation.combine_fn.fn) == (TLContext.sum,):
        sums = running().tl.cumsum(materialize(tensors[0].handle), index(operation.axis), bool(operation.reverse))
        return (_tensor(sums, sums.shape, tensors[0].dtype),)
    return _scan_by_doubling(operation, tensors)


def _reduce(operation: interpreter.ReduceOps, tensors: _Tensors) -> _Tensors:
    reductions, axis = _reductions_of(operation.combine_fn.fn), _axis(operation, tensors)
    first_index = _first_index(tensors[1], axis) if len(reductions) > 1 else 0
    if len(reductions) != len(tensors) or first_index is None:
        return _reduce_by_halving(operation, tensors)
    kernel, source = running().tl, materialize(tensors[0].handle)
    keep = bool(operation.keep_dims)
    results = [reduce(kernel, source, axis, keep) for reduce in reductions]
    if first_index:
        results[1] = kernel.elementwise("add", results[1], first_index)
    if len(results) > 1:
        results[1] = kernel.cast(results[1], machine_type(tensors[1].dtype))
    return tuple([_tensor(result, result.shape, x.dtype) for result, x in zip(results, tensors, strict=True)])


def _first_index(indices: tl.tensor, axis: int | None) -> int | None:
    """Return the first of the known, consecutive indices along ``axis``; None if they are unknown or others."""
    data = indices.handle.data
    if axis is None or isinstance(data, Symbolic):
        return None
    core = drop_constant_axes(data)
    numbers = core.reshape(-1)
    is_along_axis = core.ndim == data.ndim and core.size == core.shape[axis] == data.shape[axis]
    return int(numbers[0]) if is_along_axis and bool((np.diff(numbers) == 1).all()) else None


def _reduce_by_halving(operation: interpreter.ReduceOps, tensors: _Tensors) -> _Tensors:
    """Reduce by the kernel's own function: combine the halves of the axis repeatedly, until one element is left."""
    kernel, shape = running().tl, tuple(map(int, tensors[0].shape))
    axis = _axis(operation, tensors)
    blocks = [_move_to_front(materialize(tensor.handle), axis) for tensor in tensors]
    reduced_shape = blocks[0].shape[1:]
    while (n := blocks[0].shape[0] // 2) > 0:
        halves = [kernel.reshape(block, (2, n, *reduced_shape)) for block in blocks]
        blocks = _combine(operation, tensors, [[kernel.part(half, i) for half in halves] for i in (0, 1)])
    if operation.keep_dims:
        reduced_shape = tuple([1 if axis in (i, None) else n for i, n in enumerate(shape)])
    results = [kernel.reshape(block, reduced_shape) for block in blocks]
    return tuple([_tensor(result, reduced_shape, x.dtype) for result, x in zip(results, tensors, strict=True)])


def _scan_by_doubling(operation: interpreter.ScanOps, tensors: _Tensors) -> _Tensors:
    """Scan by the kernel's own function: scanned blocks of 1, 2, 4 ... elements are merged in pairs.

    All elements of the later block are combined with the last element of the earlier block. In a reverse scan, the
    earlier block is combined with the first element of the later block.
    """
    kernel, axis = running().tl, _axis(operation, tensors)
    scanned = [_move_to_front(materialize(tensor.handle), axis) for tensor in tensors]
    n, other_extents = scanned[0].shape[0], scanned[0].shape[1:]
    source, target = (1, 0) if operation.reverse else (0, 1)
    other_axes = range(3, 3 + len(other_extents))
    for size in [1 << i for i in range(n.bit_length() - 1)]:
        shape = (size, n // size // 2, 2, *other_extents)
        pairs = [kernel.trans(kernel.reshape(block, shape), (2, 0, 1, *other_axes)) for block in scanned]
        edge = 0 if operation.reverse else size - 1
        edges = [kernel.expand_dims(kernel.part(kernel.part(pair, source), edge), 0) for pair in pairs]
        merged = _combine(operation, tensors, [edges, [kernel.part(pair, target) for pair in pairs]])
        is_target = kernel.constant(np.arange(2).reshape(2, *[1] * (2 + len(other_extents))) == target, I8)
        scanned = [
            kernel.reshape(
                kernel.where(is_target, kernel.expand_dims(new, 0), pair), (2 * size, shape[1], *other_extents)
            )
            for new, pair in zip(merged, pairs, strict=True)
        ]
    results = [kernel.reshape(block, (n, *other_extents)) for block in scanned]
    if axis:
        back = (*range(1, axis + 1), 0, *range(axis + 1, len(other_extents) + 1))
        results = [kernel.trans(result, back) for result in results]
    return tuple([_tensor(result, result.shape, x.dtype) for result, x in zip(results, tensors, strict=True)])


def count(data: Value, bins: int, mask: Value | None) -> Handle:
    """Count how often each number below ``bins`` occurs where ``mask`` is true: compare each with all elements."""
    kernel = running().tl
    numbers = kernel.expand_dims(materialize(data), 1)
    is_in_bin = kernel.elementwise("eq", numbers, kernel.constant(np.arange(bins)[None, :], machine_type(data.dtype)))
    if mask is not None:
        is_in_bin = kernel.elementwise("and", is_in_bin, kernel.expand_dims(materialize(mask), 1))
    return kernel.sum(kernel.cast(is_in_bin, I32), 0)


def take(source: Value, places: Value, axis: int) -> Handle:
    """Return the elements of ``source`` at ``places`` along ``axis``, by comparing each place with all indices.

    Elements are selected as bits, so that NaN among the elements that are not selected has no effect.
    """
    kernel, item = running().tl, machine_type(source.dtype)
    bits = kernel.bitcast(materialize(source), _BITS[item.itemsize] if item.is_float else item)
    indices = np.arange(bits.shape[axis]).reshape(-1, *[1] * (len(bits.shape) - axis - 1))
    requested = kernel.expand_dims(materialize(places), axis + 1)
    is_at_place = kernel.elementwise("eq", requested, kernel.constant(indices, machine_type(places.dtype)))
    return kernel.bitcast(kernel.sum(kernel.where(is_at_place, kernel.expand_dims(bits, axis), 0), axis + 1), item)


def _axis(operation: _ReduceScan, tensors: _Tensors) -> int | None:
    """Return the axis of the operation as a non-negative number; None if it reduces all axes."""
    return None if operation.axis is None else index(operation.axis) % len(tensors[0].shape)


def _move_to_front(x: Handle, axis: int | None) -> Handle:
    """Return ``x`` with ``axis`` moved to the front; None: flattened."""
    if axis is None:
        return running().tl.reshape(x, (-1,))
    other_axes = [i for i in range(len(x.shape)) if i != axis]
    return running().tl.trans(x, (axis, *other_axes)) if axis else x


def _combine(operation: _ReduceScan, tensors: _Tensors, operands: list[list[Handle]]) -> list[Handle]:
    """Apply the kernel's own function to accumulated and new handles, broadcast to the shape of the new ones."""
    shape = operands[1][0].shape
    arguments = [_tensor(handle, shape, x.dtype) for side in operands for handle, x in zip(side, tensors, strict=True)]
    combined = operation.combine_fn(*arguments)
    results = combined if isinstance(combined, tuple | tl.tuple) else (combined,)
    return [materialize(result.to(x.dtype).handle) for result, x in zip(results, tensors, strict=True)]


def _tensor(handle: Handle, shape: Shape, ty: Type) -> tl.tensor:
    """Return a Triton tensor. Without axes, it is a scalar, which the interpreter stores as one element."""
    data, scalar = Symbolic(handle, shape or (1,)), ty.scalar
    return tl.core.tensor(value_of(data, scalar), tl.block_type(scalar, list(shape)) if shape else scalar)
