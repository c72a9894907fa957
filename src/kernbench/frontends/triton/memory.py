"""``tl.load`` and ``tl.store``: pointers and masks become descriptors of the PE's DMA."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import triton.language as tl

from kernbench.common.dtypes import Array, DType, Shape
from kernbench.frontends.triton.descriptors import Box, broadcast, describe, thin
from kernbench.frontends.triton.pointers import describe_pointers, shape_of
from kernbench.frontends.triton.running import refused, running
from kernbench.frontends.triton.values import (
    MACHINE_TYPES,
    Symbolic,
    TensorHandle,
    Type,
    Value,
    is_symbolic,
    known,
    numpy_type,
    plain_number,
    uniform,
    value_of,
    whole,
)
from kernbench.triton_emu.handles import Number


class Selecting(Protocol):
    """A builder with the select operation that a load needs."""

    def create_select(self, cond: Value, lhs: Value, rhs: Value) -> Value:
        """Return ``lhs`` where ``cond`` holds, else ``rhs``."""


def load(builder: Selecting, pointers: Value, mask: Array | None, other: Value | None) -> Value:
    """Load from ``pointers`` where ``mask`` is true (None: all). Elsewhere the result has ``other`` (None: zeros)."""
    ty, shape = pointers.get_element_ty(), shape_of(pointers)
    item = memory_type(ty)
    what = describe_pointers(pointers, mask, item.itemsize, writing=False)
    if what is None:
        return _zeros(ty, shape) if other is None else other
    fill = 0 if other is None else _one_number(other)
    kernel = running()
    kernel.admit_load()
    number = 0 if fill is None else fill
    if isinstance(what, Box):
        handle = kernel.tl.load(what.base, what.shape, item, what.strides, what.valid, number)
    else:
        handle = kernel.tl.load(what.runs, what.shape, item, other=number)
    kernel.note_load(handle)
    loaded = value_of(Symbolic(handle, shape), ty)
    if fill is not None or mask is None or thin(mask).all():
        return loaded
    return builder.create_select(TensorHandle(mask, tl.int1), loaded, other)


def _zeros(ty: Type, shape: Shape) -> Value:
    return value_of(broadcast(np.zeros((1,) * len(shape), numpy_type(ty)), shape), ty)


def _one_number(value: Value) -> Number | None:
    """Return the number that all elements equal; None if elements differ or are symbolic."""
    found = None if is_symbolic(value) else uniform(value.data)
    return None if found is None else plain_number(found)


def store(pointers: Value, value: Value, mask: Array | None) -> None:
    """Write the elements of ``value`` to ``pointers`` where ``mask`` is true (None: all)."""
    item, data = memory_type(pointers.get_element_ty()), value.data
    if isinstance(data, Symbolic) and data.swapped and data.handle.shape == data.shape[::-1]:
        # A transposed value is stored without transposing it, at transposed addresses.
        at, handle = known(pointers), data.handle
        flipped = None if mask is None else np.broadcast_to(mask, at.shape).T
        what = describe(np.ascontiguousarray(at.T), flipped, item.itemsize, writing=True)
    else:
        handle = running().tl.reshape(whole(value), shape_of(pointers))
        what = describe_pointers(pointers, mask, item.itemsize, writing=True)
    if what is not None:
        running().note_write(what, item.itemsize)
    if isinstance(what, Box):
        running().tl.store(what.base, handle, what.strides, what.valid)
    elif what is not None:
        running().tl.store(what.runs, handle)


def memory_type(ty: Any) -> DType:
    """Return the machine's type for elements behind a pointer of type ``ty``. Raises Refused if there is none."""
    item = MACHINE_TYPES.get(ty.scalar)
    if item is None:
        names = ", ".join(str(name) for name in MACHINE_TYPES)
        raise refused(f"a pointer to {ty.scalar}: the machine's memory holds {names}")
    return item
