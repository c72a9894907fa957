"""What PyTorch says of operators that change a tensor: its CPU kernel, asked once for each kind of operands."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from kernbench.common.values import value
from kernbench.frontends.torch.storage import TorchType

TorchOperator = Any
_SIGNATURES = 4096
"""Signatures whose answers are kept: where a number is another each time, they must not fill the memory."""


@value
class TensorKind:
    """What decides whether PyTorch takes a tensor: the type of its elements and its number of axes."""

    dtype: TorchType
    axes: int

    @property
    def one_element(self) -> Any:
        """A tensor of this kind on the host."""
        return torch.ones((1,) * self.axes, dtype=self.dtype)


def type_in_place(operator: TorchOperator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TorchType:
    """Return the type in which an operator computes that then writes to its first operand.

    PyTorch's own error where it takes no such operands: kinds that it has no kernel for, a type that does not go into
    the first operand's, shapes that do not broadcast to its.
    """
    tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
    if any(x.shape != tensors[0].shape and x.dim() for x in tensors):
        _check_shapes(tensors)
    named = tuple((name, _kind_of(x)) for name, x in kwargs.items())
    dtype: TorchType = _ask_cpu(operator, tuple(map(_kind_of, args)), named)
    return dtype


def _check_shapes(tensors: Sequence[Any]) -> None:
    shape, target = torch.broadcast_tensors(*[torch.empty(()).expand(x.shape) for x in tensors])[0].shape, tensors[0]
    if shape != target.shape:
        raise RuntimeError(f"output with shape {list(target.shape)} doesn't match the broadcast shape {list(shape)}")


def _kind_of(x: Any) -> tuple[type, Hashable]:
    """Return what stands for an argument in a signature: 1 is not True, and not 1.0."""
    return (torch.Tensor, TensorKind(x.dtype, x.dim())) if isinstance(x, torch.Tensor) else (type(x), x)


@lru_cache(_SIGNATURES)
def _ask_cpu(
    operator: TorchOperator,
    args: tuple[tuple[type, Any], ...],
    kwargs: tuple[tuple[str, tuple[type, Any]], ...],
) -> TorchType:
    def operands() -> tuple[list[Any], dict[str, Any]]:
        return [_stand_in(x) for _, x in args], {name: _stand_in(x) for name, (_, x) in kwargs}

    positional, named = operands()
    operator(*positional, **named)
    makes_result = getattr(torch.ops.aten, operator.overloadpacket.__name__.rstrip("_"))
    positional, named = operands()
    return makes_result(*positional, **named).dtype


def _stand_in(x: Any) -> Any:
    return x.one_element if isinstance(x, TensorKind) else x
