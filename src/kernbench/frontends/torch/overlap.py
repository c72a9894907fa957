"""Tensors whose elements share memory, and the writes to them that PyTorch's CPU allows.

An expanded tensor has an axis with a stride of 0: all elements along that axis share memory. Elements of other strides,
such as those of ``unfold``, may overlap, too. PyTorch does not check such strides, and writes the shared elements one
after another.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernbench.frontends.torch.hosted import written_by
from kernbench.frontends.torch.storage import TorchOperator

aten = torch.ops.aten

_SAME_EVERYWHERE = frozenset(("fill_", "zero_"))
"""Operators that write one number everywhere, so the order of writes has no effect."""
_ONE_AFTER_ANOTHER = frozenset(("masked_fill_", "index_put_", "_index_put_impl_", "index_fill_"))
"""Other operators that PyTorch lets write to expanded tensors: the last write wins."""
_REFUSAL = (
    "unsupported operation: more than one element of the written-to tensor refers to a single memory location. Please "
    "clone() the tensor before performing the operation."
)


def writes_in_order(operator: TorchOperator, args: Any, kwargs: Any) -> bool:
    """Return whether an operator writes to elements that share memory. The order of writes then matters.

    Raises RuntimeError, with PyTorch's message, if PyTorch refuses the write.
    """
    written = written_by(operator, args, kwargs)
    if not written or torch.Tag.inplace_view in operator.tags:
        return False
    shared = [x for x in written if not is_nested(x)]
    if not shared:
        return False
    name = operator.overloadpacket.__name__
    if name in _SAME_EVERYWHERE:
        return False
    if name not in _ONE_AFTER_ANOTHER and any(repeated_axes(x) for x in shared):
        raise RuntimeError(_REFUSAL)
    return True


def repeated_axes(x: Tensor) -> list[int]:
    """Return the axes along which all elements share memory."""
    return [axis for axis, (n, step) in enumerate(zip(x.shape, x.stride(), strict=True)) if n > 1 and step == 0]


def without_repeats(x: Any) -> Any:
    """Return ``x`` with one element along each axis whose elements all share memory."""
    for axis in repeated_axes(x):
        x = x.narrow(axis, 0, 1)
    return x


def is_nested(x: Tensor) -> bool:
    """Return whether the stride of each axis exceeds the span of all faster axes, so no two elements share memory."""
    if not x.numel():
        return True
    reach = 0
    for step, n in sorted((step, n) for n, step in zip(x.shape, x.stride(), strict=True) if n != 1):
        if step <= reach:
            return False
        reach += (n - 1) * step
    return True
