"""``tl.atomic_*``: memories change their elements; the old ones come back if the kernel does anything with them."""

from __future__ import annotations

import dis
import sys
from functools import cache
from itertools import pairwise
from types import CodeType, FrameType, MappingProxyType
from typing import Any, NamedTuple

import triton
from triton._C.libtriton import ir

import kernbench
from kernbench.frontends.triton.descriptors import Box, describe
from kernbench.frontends.triton.memory import memory_type
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
_LIBRARIES = (*map(str, triton.__path__), *map(str, kernbench.__path__))


class Atomic(NamedTuple):
    """What an atomic of a kernel is given: operands, and how it is ordered."""

    pointers: Value
    value: Value
    mask: Value | None
    semantics: Any


def change(operation: Any, atomic: Atomic) -> Value:
    """``tl.atomic_add`` and the like."""
    return _issue(_OPERATIONS[operation], atomic, (whole(atomic.value),))


def compare_and_swap(compared: Value, atomic: Atomic) -> Value:
    """``tl.atomic_cas``."""
    return _issue(TLContext.atomic_cas, atomic, (whole(compared), whole(atomic.value)))


def _issue(operation: Any, atomic: Atomic, operands: tuple[Handle, ...]) -> Value:
    ty, at = atomic.pointers.get_element_ty(), known(atomic.pointers)
    item = memory_type(ty)
    mask = None if atomic.mask is None else known(atomic.mask)
    what = describe(at, mask, item.itemsize, writing=True)
    kernel = running().tl
    if what is None:
        return TensorHandle(Symbolic(kernel.zeros(at.shape, item), at.shape), ty)
    how: dict[str, Any] = {"fetch": not _is_dropped(), "release": atomic.semantics in _RELEASING}
    if isinstance(what, Box):
        old = operation(kernel, what.base, *operands, strides=what.strides, valid=what.valid, **how)
    else:
        old = operation(kernel, what.runs, *operands, **how)
    # Nobody looks at a result that is dropped: that it is the operand does not matter.
    return TensorHandle(Symbolic(operands[0] if old is None else old, at.shape), ty)


def _is_dropped() -> bool:
    """Whether the kernel's call is a statement by itself, so that nobody wants its result."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - documented, public in all but name
    while frame is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame = frame.f_back
    return frame is not None and frame.f_lasti in _statements(frame.f_code)


@cache
def _statements(code: CodeType) -> frozenset[int]:
    """Where in ``code`` the calls are whose results are dropped at once."""
    following = pairwise(dis.get_instructions(code))
    return frozenset(call.offset for call, then in following if then.opname == "POP_TOP")


def _extreme(operation: Any, name: str) -> Any:
    """``atomic_max`` or ``atomic_min`` of Triton's semantics, which makes of floats whole numbers by their bits."""

    def call(semantic: Any, ptr: Any, val: Any, mask: Any, sem: str, scope: str) -> Any:  # noqa: ARG001 - one machine
        ptr, val, mask = semantic.atom_red_typechecking_impl(ptr, val, mask, name)
        atomic = Atomic(ptr.handle, val.handle, mask.handle, semantic._str_to_sem(sem))  # noqa: SLF001
        return semantic.make_tensor(change(operation, atomic), val.type)

    return call


atomic_max = _extreme(ir.ATOMIC_OP.MAX, "max")
atomic_min = _extreme(ir.ATOMIC_OP.MIN, "min")
