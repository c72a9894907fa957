"""Pointers of a kernel: one address, and how many elements each of them is from there."""

from __future__ import annotations

import numpy as np

from kernbench.common.dtypes import Array, Shape
from kernbench.frontends.triton.descriptors import ElementDescriptor, add_offsets, broadcast, describe, in_bytes, thin
from kernbench.frontends.triton.running import running
from kernbench.frontends.triton.values import TensorHandle, Type, Value, known, value_of

_HERE = np.zeros(1, np.int32)
_PLANS = 64
"""So many descriptors a kernel keeps: those of its loops, and of its next program, are found before there are more."""


class PointerHandle(TensorHandle):
    """``base`` and ``steps``, in elements of the type ``ty`` points to; who asks for ``data`` gets the addresses.

    What is added to all of them changes ``base`` only. So the blocks that a loop goes through have the same array of
    ``steps``, and a descriptor that was found for one of them is that of the others.
    """

    def __init__(self, base: int, ty: Type, steps: Array = _HERE) -> None:
        self.base, self.steps, self.dtype = base, steps, ty
        self.attr: dict[str, object] = {}

    @property
    def data(self) -> Array:
        """The addresses."""
        at = in_bytes(thin(self.steps), _width(self)).astype(np.uint64) + np.uint64(self.base % 2**64)
        return broadcast(at, self.steps.shape)

    def repeated(self, shape: Shape) -> PointerHandle:
        """The same, repeated to a shape that they broadcast to."""
        return PointerHandle(self.base, self.dtype, broadcast(self.steps, shape))


def move_pointers(pointers: Value, offset: Value) -> Value:
    """``pointers`` moved on by known elements."""
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
    """Return their number along each axis."""
    found: Shape = pointers.steps.shape if isinstance(pointers, PointerHandle) else pointers.data.shape
    return found


def describe_pointers(pointers: Value, mask: Array | None, itemsize: int, *, writing: bool) -> ElementDescriptor | None:
    """Describe pointers of a kernel, as `describe` does."""
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
        # With the array, whose number would be that of another one otherwise.
        found = plans[key] = steps, describe(at, mask, itemsize, writing=writing)
    plan = found[1]
    return None if plan is None else plan.moved(pointers.base)


def _width(pointers: Value) -> int:
    return max(1, int(pointers.get_element_ty().primitive_bitwidth) // 8)
