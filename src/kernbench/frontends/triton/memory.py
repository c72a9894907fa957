"""``tl.load`` and ``tl.store``: pointers and masks become descriptors of the PE's DMA."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import triton.language as tl

from kernbench.common.dtypes import DType
from kernbench.frontends.triton.descriptors import Array, Box, describe, repeated, thin
from kernbench.frontends.triton.running import refused, running
from kernbench.frontends.triton.values import (
    MACHINE_TYPES,
    Symbolic,
    TensorHandle,
    Value,
    is_symbolic,
    known,
    numpy_type,
    plain_number,
    uniform,
    whole,
)
from kernbench.triton_emu.handles import Handle


class Selecting(Protocol):
    """What a load asks of the builder."""

    def create_select(self, cond: Value, lhs: Value, rhs: Value) -> Value:
        """``lhs`` where ``cond`` holds, else ``rhs``."""


def load(builder: Selecting, pointers: Value, mask: Array | None, other: Value | None) -> Value:
    """What lies at ``pointers`` where ``mask`` holds (None: everywhere), elsewhere ``other`` (None: zeros)."""
    ty = pointers.get_element_ty()
    item, at = memory_type(ty), known(pointers)
    what = describe(at, mask, item.itemsize, writing=False)
    if other is None:
        other = TensorHandle(repeated(np.zeros((1,) * at.ndim, numpy_type(ty)), at.shape), ty)
    if what is None:
        return other
    fill = None if is_symbolic(other) else uniform(other.data)
    kernel = running()
    kernel.admit_load()
    number = 0 if fill is None else plain_number(fill)
    if isinstance(what, Box):
        handle = kernel.tl.load(what.base, what.shape, item, what.strides, what.valid, number)
    else:
        handle = kernel.tl.load(what.runs, what.shape, item, other=number)
    kernel.note_load(handle)
    loaded = TensorHandle(Symbolic(handle, at.shape), ty)
    return (
        loaded
        if fill is not None or mask is None or thin(mask).all()
        else builder.create_select(TensorHandle(mask, tl.int1), loaded, other)
    )


def store(pointers: Value, value: Value, mask: Array | None) -> None:
    """Write ``value`` to ``pointers`` where ``mask`` holds (None: everywhere)."""
    item, at = memory_type(pointers.get_element_ty()), known(pointers)
    handle, at, mask = _source(value, at, mask)
    what = describe(at, mask, item.itemsize, writing=True)
    if isinstance(what, Box):
        running().tl.store(what.base, handle, what.strides, what.valid)
    elif what is not None:
        running().tl.store(what.runs, handle)


def _source(value: Value, at: Array, mask: Array | None) -> tuple[Handle, Array, Array | None]:
    """The handle to store, with the addresses of its elements; a transposed one goes to transposed addresses."""
    data: Any = value.data
    if is_symbolic(value) and data.swapped and data.handle.shape == data.shape[::-1]:
        flipped = None if mask is None else np.broadcast_to(mask, at.shape).T
        return data.handle, np.ascontiguousarray(at.T), flipped
    return running().tl.reshape(whole(value), at.shape), at, mask


def memory_type(ty: Any) -> DType:
    """The machine's type for what a pointer points to: exactly that."""
    item = MACHINE_TYPES.get(ty.scalar)
    if item is None:
        names = ", ".join(str(name) for name in MACHINE_TYPES)
        raise refused(f"a pointer to {ty.scalar}: the machine's memory holds {names}")
    return item
