"""``tl.reduce`` and ``tl.associative_scan`` of data: the reductions and scans that MATH has."""

from __future__ import annotations

from operator import index
from types import MappingProxyType
from typing import Any

import triton.language as tl
from triton.runtime import interpreter

from kernbench.frontends.triton.running import refused, running
from kernbench.frontends.triton.values import Symbolic, Type, is_symbolic, value_of, whole
from kernbench.triton_emu.handles import Handle
from kernbench.triton_emu.tl_context import TLContext

_STANDARD = tl.standard
_REDUCTIONS = MappingProxyType(
    {
        _STANDARD._sum_combine: (TLContext.sum,),  # noqa: SLF001 - by these the interpreter itself knows them
        _STANDARD._elementwise_max: (TLContext.max,),  # noqa: SLF001
        _STANDARD._elementwise_min: (TLContext.min,),  # noqa: SLF001
        _STANDARD._argmax_combine_tie_break_left: (TLContext.max, TLContext.argmax),  # noqa: SLF001
        _STANDARD._argmax_combine_tie_break_fast: (TLContext.max, TLContext.argmax),  # noqa: SLF001
        _STANDARD._argmin_combine_tie_break_left: (TLContext.min, TLContext.argmin),  # noqa: SLF001
        _STANDARD._argmin_combine_tie_break_fast: (TLContext.min, TLContext.argmin),  # noqa: SLF001
    }
)
_known = interpreter.ReduceScanOpInterface.apply


def apply(operation: Any, inputs: Any) -> Any:
    """In place of ``ReduceScanOpInterface.apply``: a reduction or a scan of one tensor or a tuple of them."""
    tensors = inputs if isinstance(inputs, tuple) else (inputs,)
    if not is_symbolic(*[each.handle for each in tensors]):
        return _known(operation, inputs)
    operation.check_tensor(tensors)
    found = (_scanned if isinstance(operation, interpreter.ScanOps) else _reduced)(operation, tensors[0])
    return found if tensors is inputs else found[0]


def _scanned(operation: Any, x: Any) -> tuple[Any, ...]:
    if operation.combine_fn is not _STANDARD._sum_combine or operation.reverse:  # noqa: SLF001
        raise refused(f"a scan by {_name(operation.combine_fn)}{' in reverse' * operation.reverse}: MATH has cumsum")
    made = running().tl.cumsum(whole(x.handle), index(operation.axis))
    return (_tensor(made, made.shape, x.dtype),)


def _reduced(operation: Any, x: Any) -> tuple[Any, ...]:
    reductions = _REDUCTIONS.get(operation.combine_fn)
    if reductions is None:
        raise refused(f"tl.reduce by {_name(operation.combine_fn)}: MATH reduces by sum, max, min, argmax, argmin")
    kernel, source = running().tl, whole(x.handle)
    axis = None if operation.axis is None else index(operation.axis)
    keep = bool(operation.keep_dims)
    made = [reduce(kernel, source, axis, keep) for reduce in reductions]
    return tuple([_tensor(each, each.shape, ty) for each, ty in zip(made, (x.dtype, tl.int32), strict=False)])


def _tensor(handle: Handle, shape: tuple[int, ...], ty: Type) -> Any:
    """A tensor of the language; one without axes is a scalar, which the interpreter has as one element."""
    data, scalar = Symbolic(handle, shape or (1,)), ty.scalar
    return tl.core.tensor(value_of(data, scalar), tl.block_type(scalar, list(shape)) if shape else scalar)


def _name(function: Any) -> str:
    return str(function.__name__)
