"""``tl.atomic_*``: the memory updates its elements, and returns their old values if the kernel uses these."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, NamedTuple

from triton._C.libtriton import ir

from kernbench.frontends.triton.calls import result_is_dropped
from kernbench.frontends.triton.descriptors import Box
from kernbench.frontends.triton.memory import memory_type
from kernbench.frontends.triton.pointers import describe_pointers, shape_of
from kernbench.frontends.triton.running import running
from kernbench.frontends.triton.values import Symbolic, TensorHandle, Value, known, whole
from kernbench.triton_emu.handles import Handle
from kernbench.triton_emu.tl_context import TLContext

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
    semantics: Any


def change(operation: Any, atomic: Atomic) -> Value:
    """Issue a read-modify-write, such as ``tl.atomic_add``, and return the old elements."""
    return _issue(_OPERATIONS[operation], atomic, (whole(atomic.value),))


def compare_and_swap(compared: Value, atomic: Atomic) -> Value:
    """Issue ``tl.atomic_cas`` and return the old values."""
    return _issue(TLContext.atomic_cas, atomic, (whole(compared), whole(atomic.value)))


def _issue(operation: Any, atomic: Atomic, operands: tuple[Handle, ...]) -> Value:
    ty, shape = atomic.pointers.get_element_ty(), shape_of(atomic.pointers)
    item = memory_type(ty)
    mask = None if atomic.mask is None else known(atomic.mask)
    what = describe_pointers(atomic.pointers, mask, item.itemsize, writing=True)
    kernel = running().tl
    if what is None:
        return TensorHandle(Symbolic(kernel.zeros(shape, item), shape), ty)
    running().note_write(what, item.itemsize)
    how: dict[str, Any] = {"fetch": not result_is_dropped(), "release": atomic.semantics in _RELEASING}
    if isinstance(what, Box):
        old = operation(kernel, what.base, *operands, strides=what.strides, valid=what.valid, **how)
    else:
        old = operation(kernel, what.runs, *operands, **how)
    # The kernel drops the result unless it was fetched, so the operand may stand for it.
    return TensorHandle(Symbolic(operands[0] if old is None else old, shape), ty)


def _extreme(operation: Any, name: str) -> Any:
    """Return ``atomic_max`` or ``atomic_min`` for Triton's semantics. Triton's own versions compare floats as bits."""

    def call(semantic: Any, ptr: Any, val: Any, mask: Any, sem: str, scope: str) -> Any:
        ptr, val, mask = semantic.atom_red_typechecking_impl(ptr, val, mask, name)
        ordered = semantic._str_to_sem(sem), semantic._str_to_scope(scope)  # noqa: SLF001
        ask = semantic.builder.create_atomic_rmw
        return semantic.make_tensor(ask(operation, ptr.handle, val.handle, mask.handle, *ordered), val.type)

    return call


atomic_max = _extreme(ir.ATOMIC_OP.MAX, "max")
atomic_min = _extreme(ir.ATOMIC_OP.MIN, "min")
