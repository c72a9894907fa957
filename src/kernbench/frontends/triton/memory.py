"""Memory accesses of a kernel: pointers, ``tl.load``, ``tl.store`` and ``tl.atomic_*``.

Pointers are a base address and the offset of each element. Pointers and a mask become one descriptor of the PE's DMA.
Atomics update their elements in memory, and return the old values if the kernel uses these.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np
import triton.language as tl
from triton._C.libtriton import ir
from triton.language.semantic import TritonSemantic

from kernbench.common.dtypes import Array, DType, Shape
from kernbench.frontends.triton.descriptors import (
    ElementDescriptor,
    StridedBox,
    add_offsets,
    broadcast,
    describe,
    drop_repeats,
    in_bytes,
)
from kernbench.frontends.triton.running import refused, result_is_dropped, running
from kernbench.frontends.triton.values import (
    MACHINE_TYPES,
    Symbolic,
    TensorHandle,
    Type,
    Value,
    find_uniform,
    materialize,
    numpy_type,
    plain_number,
    read_numbers,
    value_of,
)
from kernbench.triton_emu.handles import Handle, Number
from kernbench.triton_emu.tl_context import How, TLContext

_HERE = np.zeros(1, np.int32)
_PLANS = 64
"""Maximum number of cached descriptors per kernel, enough for its loops and for its next program."""

# -- Pointers ---------------------------------------------------------------------------------------------------------


class PointerHandle(TensorHandle):
    """Pointers: ``base`` is a byte address, and ``steps`` are offsets in elements of the type that ``ty`` points to.

    Adding one number to all pointers changes only ``base``. The blocks of a loop therefore share one array ``steps``,
    and the cached descriptor of one block serves the others.
    """

    dtype: Type

    def __init__(self, base: int, ty: Type, steps: Array = _HERE) -> None:
        self.base, self.steps, self.dtype = base, steps, ty
        self.attr: dict[str, object] = {}

    @property
    def data(self) -> Array:
        """Return the address of each pointer, in bytes."""
        at = in_bytes(drop_repeats(self.steps), _width(self)).astype(np.uint64) + np.uint64(self.base % 2**64)
        return broadcast(at, self.steps.shape)

    def broadcast(self, shape: Shape) -> PointerHandle:
        """Return the pointers, broadcast to ``shape``."""
        return PointerHandle(self.base, self.dtype, broadcast(self.steps, shape))


def move_pointers(pointers: Value, offset: Value) -> Value:
    """Return ``pointers`` advanced by a known number of elements."""
    more = read_numbers(offset)
    if not isinstance(pointers, PointerHandle):
        at = drop_repeats(read_numbers(pointers)) + in_bytes(drop_repeats(more), _width(pointers)).astype(np.uint64)
        return value_of(broadcast(at, np.broadcast_shapes(pointers.data.shape, more.shape)), pointers.dtype)
    base, steps = pointers.base, pointers.steps
    shape = steps.shape if steps.shape == more.shape else np.broadcast_shapes(steps.shape, more.shape)
    if drop_repeats(more).size == 1:
        base += more.item(0) * _width(pointers)
    elif drop_repeats(steps).size == 1:
        base, steps = base + steps.item(0) * _width(pointers), more
    else:
        steps = add_offsets(drop_repeats(steps), drop_repeats(more))
    return PointerHandle(base, pointers.dtype, broadcast(steps, shape))


def shape_of(pointers: Value) -> Shape:
    """Return the shape of a block of pointers."""
    return pointers.steps.shape if isinstance(pointers, PointerHandle) else pointers.data.shape


def describe_pointers(pointers: Value, mask: Array | None, itemsize: int, *, writing: bool) -> ElementDescriptor | None:
    """Return the descriptor of a kernel's pointers, as `describe` does, from the cache if possible."""
    if not isinstance(pointers, PointerHandle):
        return describe(read_numbers(pointers), mask, itemsize, writing=writing)
    plans, steps = running().plans, pointers.steps
    core = None if mask is None else drop_repeats(mask)
    key = id(steps), itemsize, writing, core if core is None else (core.shape, core.tobytes())
    cached = plans.get(key)
    if cached is None:
        if len(plans) == _PLANS:
            plans.clear()
        at = broadcast(in_bytes(drop_repeats(steps), itemsize), steps.shape)
        # Store the array, too: while it exists, no other array has its id.
        cached = plans[key] = steps, describe(at, mask, itemsize, writing=writing)
    plan = cached[1]
    return None if plan is None else plan.shift(pointers.base)


def _width(pointers: Value) -> int:
    return max(1, int(pointers.get_element_ty().primitive_bitwidth) // 8)


# -- Loads and stores -------------------------------------------------------------------------------------------------


class Selecting(Protocol):
    """A builder with the select operation that a load needs."""

    def create_select(self, cond: Value, lhs: Value, rhs: Value) -> Value:
        """Return ``lhs`` where ``cond`` holds, else ``rhs``."""


def load(builder: Selecting, pointers: Value, mask: Array | None, other: Value | None) -> Value:
    """Load from ``pointers`` where ``mask`` is true (None: all). Elsewhere the result has ``other`` (None: zeros)."""
    ty, shape = pointers.get_element_ty(), shape_of(pointers)
    item = memory_type(ty)
    plan = describe_pointers(pointers, mask, item.itemsize, writing=False)
    if plan is None:
        return _zeros(ty, shape) if other is None else other
    fill = 0 if other is None else _uniform_number(other)
    kernel = running()
    kernel.admit_load()
    number = 0 if fill is None else fill
    if isinstance(plan, StridedBox):
        handle = kernel.tl.load(plan.base, plan.shape, item, plan.strides, plan.valid, number)
    else:
        handle = kernel.tl.load(plan.runs, plan.shape, item, other=number)
    kernel.note_load(handle)
    loaded = value_of(Symbolic(handle, shape), ty)
    if kernel.expect is not None and ty.is_int():
        _expect_loaded(loaded, pointers, mask, item)
    if other is None or fill is not None or mask is None or drop_repeats(mask).all():
        return loaded
    return builder.create_select(TensorHandle(mask, tl.int1), loaded, other)


def _expect_loaded(loaded: Value, pointers: Value, mask: Array | None, item: DType) -> None:
    """Let a run without data know loaded integers; zeros replace those outside of the mask."""
    expect, at = running().expect, read_numbers(pointers)
    inside = np.ones(at.shape, np.bool_) if mask is None else np.broadcast_to(mask, at.shape)
    known = None if expect is None else expect(at[inside], item)
    if known is None or not isinstance(loaded.data, Symbolic):
        return
    numbers = np.zeros(at.shape, numpy_type(loaded.dtype))
    numbers[inside] = known
    loaded.data.expect = lambda: numbers


def _zeros(ty: Type, shape: Shape) -> Value:
    return value_of(broadcast(np.zeros((1,) * len(shape), numpy_type(ty)), shape), ty)


def _uniform_number(value: Value) -> Number | None:
    """Return the number that all elements equal; None if elements differ or are symbolic."""
    number = None if isinstance(value.data, Symbolic) else find_uniform(value.data)
    return None if number is None else plain_number(number)


def store(pointers: Value, value: Value, mask: Array | None) -> None:
    """Write the elements of ``value`` to ``pointers`` where ``mask`` is true (None: all)."""
    item, data = memory_type(pointers.get_element_ty()), value.data
    if isinstance(data, Symbolic) and data.swapped and data.handle.shape == data.shape[::-1]:
        # A transposed value is stored without transposing it, at transposed addresses.
        at, handle = read_numbers(pointers), data.handle
        flipped = None if mask is None else np.broadcast_to(mask, at.shape).T
        plan = describe(np.ascontiguousarray(at.T), flipped, item.itemsize, writing=True)
    else:
        handle = running().tl.reshape(materialize(value), shape_of(pointers))
        plan = describe_pointers(pointers, mask, item.itemsize, writing=True)
    if plan is not None:
        running().note_write(plan, item.itemsize)
    if isinstance(plan, StridedBox):
        running().tl.store(plan.base, handle, plan.strides, plan.valid)
    elif plan is not None:
        running().tl.store(plan.runs, handle)


def memory_type(ty: Type) -> DType:
    """Return the machine's type for elements behind a pointer of type ``ty``. Raises Refused if there is none."""
    item = MACHINE_TYPES.get(ty.scalar)
    if item is None:
        names = ", ".join(str(name) for name in MACHINE_TYPES)
        raise refused(f"a pointer to {ty.scalar}: the machine's memory holds {names}")
    return item


# -- Atomics ----------------------------------------------------------------------------------------------------------

_OPERATIONS = MappingProxyType(
    {
        ir.ATOMIC_OP.ADD: TLContext.atomic_add,
        ir.ATOMIC_OP.FADD: TLContext.atomic_add,
        ir.ATOMIC_OP.MAX: TLContext.atomic_max,
        ir.ATOMIC_OP.MIN: TLContext.atomic_min,
        ir.ATOMIC_OP.AND: TLContext.atomic_and,
        ir.ATOMIC_OP.OR: TLContext.atomic_or,
        ir.ATOMIC_OP.XOR: TLContext.atomic_xor,
        ir.ATOMIC_OP.XCHG: TLContext.atomic_xchg,
    }
)
_RELEASING = (ir.MEM_SEMANTIC.RELEASE, ir.MEM_SEMANTIC.ACQUIRE_RELEASE)


class Atomic(NamedTuple):
    """The operands and the memory order of a kernel's atomic operation."""

    pointers: Value
    value: Value
    mask: Value | None
    semantics: ir.MEM_SEMANTIC


def update_memory(operation: ir.ATOMIC_OP, atomic: Atomic) -> Value:
    """Issue a read-modify-write, such as ``tl.atomic_add``, and return the old elements."""
    return _issue(_OPERATIONS[operation], atomic, (materialize(atomic.value),))


def compare_and_swap(compared: Value, atomic: Atomic) -> Value:
    """Issue ``tl.atomic_cas`` and return the old values."""
    return _issue(TLContext.atomic_cas, atomic, (materialize(compared), materialize(atomic.value)))


def _issue(operation: Callable[..., Handle | None], atomic: Atomic, operands: tuple[Handle, ...]) -> Value:
    ty, shape = atomic.pointers.get_element_ty(), shape_of(atomic.pointers)
    item = memory_type(ty)
    mask = None if atomic.mask is None else read_numbers(atomic.mask)
    plan = describe_pointers(atomic.pointers, mask, item.itemsize, writing=True)
    kernel = running().tl
    if plan is None:
        return TensorHandle(Symbolic(kernel.zeros(shape, item), shape), ty)
    running().note_write(plan, item.itemsize)
    options: How = {"fetch": not result_is_dropped(), "release": atomic.semantics in _RELEASING}
    if isinstance(plan, StridedBox):
        old = operation(kernel, plan.base, *operands, strides=plan.strides, valid=plan.valid, **options)
    else:
        old = operation(kernel, plan.runs, *operands, **options)
    # The kernel drops the result unless it was fetched, so the operand may stand for it.
    return TensorHandle(Symbolic(operands[0] if old is None else old, shape), ty)


def _extreme(operation: ir.ATOMIC_OP, name: str) -> Callable[..., tl.tensor]:
    """Return ``atomic_max`` or ``atomic_min`` for Triton's semantics. Triton's own versions compare floats as bits."""

    def call(
        semantic: TritonSemantic, ptr: tl.tensor, val: tl.tensor, mask: tl.tensor | None, sem: str, scope: str
    ) -> tl.tensor:
        ptr, val, mask = semantic.atom_red_typechecking_impl(ptr, val, mask, name)
        ordered = semantic._str_to_sem(sem), semantic._str_to_scope(scope)  # noqa: SLF001
        update = semantic.builder.create_atomic_rmw
        return semantic.make_tensor(update(operation, ptr.handle, val.handle, mask.handle, *ordered), val.type)

    return call


atomic_max = _extreme(ir.ATOMIC_OP.MAX, "max")
atomic_min = _extreme(ir.ATOMIC_OP.MIN, "min")
