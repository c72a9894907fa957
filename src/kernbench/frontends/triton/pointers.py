"""Pointers of a kernel: a base address and the offset of each element."""

from __future__ import annotations

import numpy as np

from kernbench.common.dtypes import Array, Shape
from kernbench.frontends.triton.descriptors import ElementDescriptor, add_offsets, broadcast, describe, in_bytes, thin
from kernbench.frontends.triton.running import running
from kernbench.frontends.triton.values import TensorHandle, Type, Value, known, value_of

_HERE = np.zeros(1, np.int32)
_PLANS = 64
"""Maximum number of cached descriptors per kernel, enough for its loops and for its next program."""


class PointerHandle(TensorHandle):
    """Pointers: ``base`` is a byte address, and ``steps`` are offsets in elements of the type that ``ty`` points to.

    Adding one number to all pointers changes only ``base``. The blocks of a loop therefore share one array ``steps``,
    and the cached descriptor of one block serves the others.
    """

    def __init__(self, base: int, ty: Type, steps: Array = _HERE) -> None:
        self.base, self.steps, self.dtype = base, steps, ty
        self.attr: dict[str, object] = {}

    @property
    def data(self) -> Array:
        """Return the address of each pointer, in bytes."""
        at = in_bytes(thin(self.steps), _width(self)).astype(np.uint64) + np.uint64(self.base % 2**64)
        return broadcast(at, self.steps.shape)

    def repeated(self, shape: Shape) -> PointerHandle:
        """Return the pointers, broadcast to ``shape``."""
        return PointerHandle(self.base, self.dtype, broadcast(self.steps, shape))


def move_pointers(pointers: Value, offset: Value) -> Value:
    """Return ``pointers`` advanced by a known number of elements."""
    more = known(offset)
    if not isinstance(pointers, PointerHandle):
        at = thin(known(pointers)) + in_bytes(thin(more), _width(pointers)).astype(np.uint64)
        return value_of(broadcast(at, np.broadcast_shapes(pointers.data.shape, more.shape)), pointers.dtype)
    base, steps = pointers.base, pointers.steps
    shape = steps.shape if steps.shape == more.shape else np.broadcast_shapes(steps.shape, more.shape)
    if thin(more).size == 1:
        base += more.item(0) * _width(pointers)
    elif thin(steps).size == 1:
        base, steps = base + steps.item(0) * _width(pointers), more
    else:
        steps = add_offsets(thin(steps), thin(more))
    return PointerHandle(base, pointers.dtype, broadcast(steps, shape))


def shape_of(pointers: Value) -> Shape:
    """Return the shape of a block of pointers."""
    found: Shape = pointers.steps.shape if isinstance(pointers, PointerHandle) else pointers.data.shape
    return found


def describe_pointers(pointers: Value, mask: Array | None, itemsize: int, *, writing: bool) -> ElementDescriptor | None:
    """Return the descriptor of a kernel's pointers, as `describe` does, from the cache if possible."""
    if not isinstance(pointers, PointerHandle):
        return describe(known(pointers), mask, itemsize, writing=writing)
    plans, steps = running().plans, pointers.steps
    core = None if mask is None else thin(mask)
    key = id(steps), itemsize, writing, core if core is None else (core.shape, core.tobytes())
    found = plans.get(key)
    if found is None:
        if len(plans) == _PLANS:
            plans.clear()
        at = broadcast(in_bytes(thin(steps), itemsize), steps.shape)
        # Store the array, too: while it exists, no other array has its id.
        found = plans[key] = steps, describe(at, mask, itemsize, writing=writing)
    plan = found[1]
    return None if plan is None else plan.moved(pointers.base)


def _width(pointers: Value) -> int:
    return max(1, int(pointers.get_element_ty().primitive_bitwidth) // 8)
