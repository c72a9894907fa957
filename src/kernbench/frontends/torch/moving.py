"""Moves of PyTorch modules to the machine and back: parameters, also lazy ones, stay the same objects.

A lazy parameter has no shape before the first forward. Until then, it is a host tensor without elements, as in PyTorch,
and stores its target device. The first forward creates the elements there.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Sequence
from contextlib import suppress
from inspect import getattr_static
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.nn import Module
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import Buffer, Parameter, UninitializedBuffer, UninitializedParameter, is_lazy
from torch.types import Device

from kernbench.common.errors import InputError
from kernbench.frontends.torch.tensor import PLAIN_DATA, AhbmTensor, replace

_LazyTensor: TypeAlias = UninitializedParameter | UninitializedBuffer
# Names that the types of Python and PyTorch leave out.
_LazyMixin: type = vars(torch.nn.parameter)["UninitializedTensorMixin"]
_slot_names: Callable[[type], list[str]] = vars(copyreg)["_slotnames"]
_MACHINE_DATA = getattr_static(AhbmTensor, "data")
_use_count: Callable[[Tensor], int] = getattr_static(Tensor, "_use_count")


def _refuse_gradient(_: object) -> None:
    raise InputError(
        "backward: a parameter has moved to another device or type since its forward; move a module before forward, "
        "or after backward"
    )


def _slots_of(kind: type) -> set[str]:
    """Return the names of a class's slots that ``copy`` and ``pickle`` save."""
    return set(_slot_names(kind))


def _empty_slots(x: Tensor) -> dict[str, object]:
    """Empty the slots of a tensor, and return their values."""
    values = {}
    for name in _slots_of(type(x)):
        with suppress(AttributeError):  # the slot is empty
            values[name] = getattr(x, name)
            delattr(x, name)
    return values


def _swap(x: Tensor, y: Tensor) -> None:
    """Swap the contents of two tensors.

    A graph that still uses ``x`` keeps the old contents and computes no gradient for ``x``. Raises RuntimeError, as
    PyTorch does, if the classes of the tensors have different slots.
    """
    if _slots_of(type(x)) != _slots_of(type(y)):
        raise RuntimeError("Cannot swap t1 and t2 if they have different slots")
    if _use_count(x) > 1 and x.is_leaf and x.requires_grad:  # as torch.utils.swap_tensors does
        get_gradient_edge(x).node.register_prehook(_refuse_gradient)
    slots_of_x, slots_of_y = _empty_slots(x), _empty_slots(y)
    x.__class__, y.__class__ = y.__class__, x.__class__
    for tensor, slots in ((x, slots_of_y), (y, slots_of_x)):
        for name, content in slots.items():
            setattr(tensor, name, content)
    x.__dict__, y.__dict__ = y.__dict__, x.__dict__
    torch._C._swap_tensor_impl(x, y)  # noqa: SLF001 - as torch.utils.swap_tensors does


def _set_data(x: Tensor, other: Tensor) -> None:
    """Replace the contents of a tensor, also by those of a tensor on the host or on the machine, where ``x`` is not."""
    if isinstance(x, AhbmTensor) == isinstance(other, AhbmTensor):
        (_MACHINE_DATA if isinstance(x, AhbmTensor) else PLAIN_DATA).__set__(x, other)
        return
    contents = other.detach()
    moved = (
        Parameter(contents, x.requires_grad) if isinstance(x, Parameter) else contents.requires_grad_(x.requires_grad)
    )
    _swap(x, moved)


def _make_lazily(make: Callable[..., Tensor], requires: bool) -> Callable[..., Tensor]:
    """Return the ``__new__`` of a lazy tensor. ``make``: PyTorch's. ``requires``: the default of ``requires_grad``."""

    def new(
        cls: type[_LazyTensor],
        requires_grad: bool = requires,
        device: Device = None,
        dtype: torch.dtype | None = None,
        **options: object,
    ) -> Tensor:
        target = torch.empty(0, device=device, dtype=dtype)
        host = "cpu" if isinstance(target, AhbmTensor) else target.device
        lazy = make(cls, requires_grad, host, target.dtype, **options)
        vars(lazy)["place"] = target.device
        return lazy

    return new


def _copy_deeply(x: _LazyTensor, memo: dict[int, Tensor]) -> Tensor:
    if id(x) not in memo:
        make: Callable[..., Tensor] = type(x)
        memo[id(x)] = make(x.requires_grad, x.device, x.dtype)
    return memo[id(x)]


def _materialize(x: _LazyTensor, shape: Sequence[int], device: Device = None, dtype: torch.dtype | None = None) -> None:
    """Turn a lazy tensor into an uninitialised tensor of ``shape``, on its target device."""
    elements = torch.empty(shape, device=device or x.device, dtype=dtype or x.dtype)
    if isinstance(x, UninitializedParameter):
        _swap(x, Parameter(elements, x.requires_grad))
    else:
        _swap(x, Buffer(elements, persistent=x.persistent))


def _move(module: Any, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Module:
    """Convert a lazy module. Its lazy tensors get the device and dtype to which ``fn`` converts an empty tensor."""
    tables = (module._parameters, module._buffers)  # noqa: SLF001 - a method of the module, as PyTorch has it
    lazies = [(table, name, x) for table in tables for name, x in table.items() if is_lazy(x)]
    for table, name, _ in lazies:
        table[name] = None
    super(LazyModuleMixin, module)._apply(fn, recurse)
    for table, name, x in lazies:
        like = fn(torch.empty(0, device=x.device, dtype=x.dtype))
        make: Callable[..., Tensor] = type(x)
        table[name] = make(x.requires_grad, like.device, like.dtype)
    return module


def install() -> None:
    """Make modules move by swapping the contents of their parameters. Make lazy tensors store their target device."""
    torch.__future__.set_swap_module_params_on_conversion(True)  # tied parameters stay tied
    replace(torch.utils, "swap_tensors", _swap)
    for owner, plain in ((Tensor, PLAIN_DATA), (AhbmTensor, _MACHINE_DATA)):
        replace(owner, "data", property(plain.__get__, _set_data))
    for kind, requires in ((UninitializedParameter, True), (UninitializedBuffer, False)):
        replace(kind, "__new__", _make_lazily(kind.__new__, requires))
        replace(kind, "__deepcopy__", _copy_deeply)
    replace(_LazyMixin, "device", property(lambda x: x.place))
    replace(_LazyMixin, "materialize", _materialize)
    replace(LazyModuleMixin, "_apply", _move)  # the only way for all conversions
