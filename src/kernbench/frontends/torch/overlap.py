"""Tensors whose elements lie in one place, and what may be written to such: what PyTorch's CPU allows.

An expanded tensor has a stride of 0, and every element of that axis is the same one. Other strides, as those of
``unfold``, may let elements meet too; PyTorch does not look into these, and changes what they share one after another.
"""

from __future__ import annotations

from typing import Any

import torch

from kernbench.frontends.torch.hosted import written_by
from kernbench.frontends.torch.tensor import AhbmTensor

aten = torch.ops.aten
TorchOperator = Any

_SAME_EVERYWHERE = frozenset(("fill_", "zero_"))
"""Operators that write one number: it does not matter how often."""
_ONE_AFTER_ANOTHER = frozenset(("masked_fill_", "index_put_", "_index_put_impl_", "index_fill_"))
"""Others that PyTorch lets write to expanded tensors: the last of what is written stays."""
_REFUSAL = (
    "unsupported operation: more than one element of the written-to tensor refers to a single memory location. Please "
    "clone() the tensor before performing the operation."
)


def writes_in_order(operator: TorchOperator, args: Any, kwargs: Any) -> bool:
    """Tell whether an operator writes to elements that lie in one place, so that their order decides.

    RuntimeError, in PyTorch's words, where PyTorch refuses to.
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


def repeated_axes(x: AhbmTensor) -> list[int]:
    """Return the axes along which all elements are the same one."""
    return [axis for axis, (n, step) in enumerate(zip(x.shape, x.stride(), strict=True)) if n > 1 and step == 0]


def without_repeats(x: Any) -> Any:
    """Return ``x`` with one element along each axis whose elements are all the same one."""
    for axis in repeated_axes(x):
        x = x.narrow(axis, 0, 1)
    return x


def is_nested(x: AhbmTensor) -> bool:
    """Tell whether each axis steps over all that faster ones reach: then no two elements lie in one place."""
    if not x.numel():
        return True
    reach = 0
    for step, n in sorted((step, n) for n, step in zip(x.shape, x.stride(), strict=True) if n != 1):
        if step <= reach:
            return False
        reach += (n - 1) * step
    return True
