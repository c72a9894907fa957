"""Moves of PyTorch modules to the machine and back: parameters, also lazy ones, stay the same objects.

A lazy parameter has no shape before the first forward. Until then, it is a host tensor without elements, as in PyTorch,
and stores its target device. The first forward creates the elements there.
"""

from __future__ import annotations

import copyreg
from contextlib import suppress
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import Buffer, Parameter, is_lazy

from kernbench.common.errors import InputError
from kernbench.frontends.torch.tensor import AhbmTensor, replace

_LAZY: Any = torch.nn.parameter
"""The module with PyTorch's classes of lazy tensors."""


def _refuse_gradient(_: Any) -> None:
    raise InputError(
        "backward: a parameter has moved to another device or type since its forward; move a module before forward, "
        "or after backward"
    )


def _slots_of(kind: type) -> set[str]:
    """Return the names of a class's slots that ``copy`` and ``pickle`` save."""
    return set(copyreg._slotnames(kind))  # type: ignore[attr-defined]  # noqa: SLF001 - as torch.utils.swap_tensors


def _take_slots(x: Any) -> dict[str, Any]:
    """Empty the slots of a tensor, and return their values."""
    values = {}
    for name in _slots_of(type(x)):
        with suppress(AttributeError):  # the slot is empty
            values[name] = getattr(x, name)
            delattr(x, name)
    return values


def _swap(x: Any, y: Any) -> None:
    """Swap the contents of two tensors.

    A graph that still uses ``x`` keeps the old contents and computes no gradient for ``x``. Raises RuntimeError, as
    PyTorch does, if the classes of the tensors have different slots.
    """
    if _slots_of(type(x)) != _slots_of(type(y)):
        raise RuntimeError("Cannot swap t1 and t2 if they have different slots")
    if x._use_count() > 1 and x.is_leaf and x.requires_grad:  # noqa: SLF001 - as torch.utils.swap_tensors does
        get_gradient_edge(x).node.register_prehook(_refuse_gradient)
    slots_of_x, slots_of_y = _take_slots(x), _take_slots(y)
    x.__class__, y.__class__ = y.__class__, x.__class__
    for tensor, slots in ((x, slots_of_y), (y, slots_of_x)):
        for name, content in slots.items():
            setattr(tensor, name, content)
    x.__dict__, y.__dict__ = y.__dict__, x.__dict__
    torch._C._swap_tensor_impl(x, y)  # noqa: SLF001 - as torch.utils.swap_tensors does


def _make_lazily(make: Any, requires: bool) -> Any:
    """Return the ``__new__`` of a lazy tensor. ``make``: PyTorch's. ``requires``: the default of ``requires_grad``."""

    def new(cls: Any, requires_grad: bool = requires, device: Any = None, dtype: Any = None, **options: Any) -> Any:
        there = torch.empty(0, device=device, dtype=dtype)
        host = "cpu" if isinstance(there, AhbmTensor) else there.device
        made = make(cls, requires_grad, host, there.dtype, **options)
        made.place = there.device
        return made

    return new


def _copy_deeply(x: Any, memo: dict[int, Any]) -> Any:
    if id(x) not in memo:
        memo[id(x)] = type(x)(x.requires_grad, x.device, x.dtype)
    return memo[id(x)]


def _materialize(x: Any, shape: Any, device: Any = None, dtype: Any = None) -> None:
    """Turn a lazy tensor into an uninitialised tensor of ``shape``, on its target device."""
    made = torch.empty(shape, device=device or x.device, dtype=dtype or x.dtype)
    if isinstance(x, _LAZY.UninitializedParameter):
        made = Parameter(made, x.requires_grad)
    else:
        made = Buffer(made, persistent=x.persistent)
    _swap(x, made)


def _move(module: Any, fn: Any, recurse: bool = True) -> Any:
    """Convert a lazy module. Its lazy tensors get the device and dtype to which ``fn`` converts an empty tensor."""
    tables = (module._parameters, module._buffers)  # noqa: SLF001 - a method of the module, as PyTorch has it
    lazies = [(table, name, x) for table in tables for name, x in table.items() if is_lazy(x)]
    for table, name, _ in lazies:
        table[name] = None
    super(LazyModuleMixin, module)._apply(fn, recurse)
    for table, name, x in lazies:
        like = fn(torch.empty(0, device=x.device, dtype=x.dtype))
        kind: Any = type(x)
        table[name] = kind(x.requires_grad, like.device, like.dtype)
    return module


def install() -> None:
    """Make modules move by swapping the contents of their parameters. Make lazy tensors store their target device."""
    torch.__future__.set_swap_module_params_on_conversion(True)  # tied parameters stay tied
    torch.utils.swap_tensors = _swap
    for kind, requires in ((_LAZY.UninitializedParameter, True), (_LAZY.UninitializedBuffer, False)):
        kind.__new__ = _make_lazily(kind.__new__, requires)
        kind.__deepcopy__ = _copy_deeply
    _LAZY.UninitializedTensorMixin.device = property(lambda x: x.place)
    _LAZY.UninitializedTensorMixin.materialize = _materialize
    replace(LazyModuleMixin, "_apply", _move)  # the only way for all conversions
