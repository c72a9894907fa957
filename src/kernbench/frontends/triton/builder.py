"""The builder of Triton's interpreter: it computes known values itself, and issues PE commands for symbolic values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from math import prod
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np
import triton.language as tl
from triton._C.libtriton import ir
from triton.runtime import interpreter

from kernbench.common.dtypes import I8, Array, DType, Shape
from kernbench.frontends.triton.atomics import Atomic, change, compare_and_swap
from kernbench.frontends.triton.calls import result_is_added
from kernbench.frontends.triton.descriptors import broadcast, in_bytes, thin
from kernbench.frontends.triton.libdevice import call, upper_product
from kernbench.frontends.triton.memory import load, store
from kernbench.frontends.triton.pointers import PointerHandle, move_pointers
from kernbench.frontends.triton.reductions import count, take
from kernbench.frontends.triton.running import refused, running
from kernbench.frontends.triton.values import (
    MACHINE_TYPES,
    Product,
    Symbolic,
    TensorHandle,
    Type,
    Value,
    as_known,
    constant,
    factor,
    is_symbolic,
    known,
    machine_type,
    numpy_type,
    operand,
    smallest,
    straight,
    uniform,
    value_of,
    whole,
)
from kernbench.triton_emu.handles import Handle

OPERATORS: MappingProxyType[Any, str] = MappingProxyType(
    {
        np.add: "add",
        np.subtract: "sub",
        np.multiply: "mul",
        np.divide: "div",
        np.fmod: "rem",
        np.minimum: "minimum",
        np.fmin: "fmin",
        np.maximum: "maximum",
        np.fmax: "fmax",
        np.less: "lt",
        np.less_equal: "le",
        np.greater: "gt",
        np.greater_equal: "ge",
        np.equal: "eq",
        np.not_equal: "ne",
        np.bitwise_and: "and",
        np.bitwise_or: "or",
        np.bitwise_xor: "xor",
        np.left_shift: "shl",
        np.right_shift: "shr",
        np.negative: "neg",
        np.abs: "abs",
        np.exp: "exp",
        np.exp2: "exp2",
        np.log: "log",
        np.log2: "log2",
        np.sqrt: "sqrt",
        np.sin: "sin",
        np.cos: "cos",
        np.floor: "floor",
        np.ceil: "ceil",
    }
)
"""The MATH operator for each NumPy function that the interpreter applies to known values."""
_COMPARISONS = frozenset(("lt", "le", "gt", "ge", "eq", "ne"))


_MISSING = MappingProxyType(
    {
        "create_descriptor_reduce": "an atomic of a tensor descriptor: tl.atomic_add and the like take pointers",
        "new_block": "tl.map_elementwise: MATH computes whole tensors, by its own operators",
    }
)
"""Refusal of each method that the interpreter's builder lacks, keyed by the first method that a call looks up."""


class Builder(interpreter.InterpreterBuilder):
    """The builder of the interpreter, for kernels that run on a PE.

    Methods of the base class compute known values only, because a Symbolic refuses NumPy's operations.
    """

    # programs

    def create_get_program_id(self, axis: int) -> Value:
        """Return the program's index along ``axis`` of the grid."""
        return TensorHandle(np.array([running().program[axis]], np.int32), tl.int32)

    def create_get_num_programs(self, axis: int) -> Value:
        """Return the extent of the grid along ``axis``."""
        return TensorHandle(np.array([running().grid[axis]], np.int32), tl.int32)

    # memory

    def create_load(self, ptr: Value, cache_policy: object, is_volatile: bool) -> Value:
        """Load without a mask."""
        return load(self, ptr, None, None)

    def create_masked_load(
        self, ptrs: Value, mask: Value, other: Value | None, cache_policy: object, is_volatile: bool
    ) -> Value:
        """Load where ``mask`` holds, else return ``other``."""
        return load(self, ptrs, known(mask), other)

    def create_store(self, ptr: Value, val: Value, cache_policy: object) -> None:
        """Store without a mask."""
        store(ptr, val, None)

    def create_masked_store(self, ptrs: Value, value: Value, mask: Value, cache_policy: object) -> None:
        """Store where ``mask`` holds."""
        store(ptrs, value, known(mask))

    def create_addptr(self, ptr: Value, offset: Value) -> Value:
        """Return a pointer advanced by a known number of elements."""
        return move_pointers(ptr, offset)

    def create_make_tensor_descriptor(
        self,
        base: Value,
        shape: list[Value],
        strides: list[Value],
        tensor_shape: list[int],
        is_signed: bool,
        padding: object = "zero",
    ) -> Any:
        """Return a tensor descriptor. The kernel waits for a loaded shape or for loaded strides."""
        known_shape, known_strides = ([as_known(each) for each in sizes] for sizes in (shape, strides))
        with _refusing_assertions():
            return super().create_make_tensor_descriptor(
                base, known_shape, known_strides, tensor_shape, is_signed, padding
            )

    def create_descriptor_load(self, desc: Any, indices: list[Value], cache_policy: object) -> Value:
        """Load a block through a tensor descriptor."""
        with _refusing_assertions():
            return super().create_descriptor_load(desc, [as_known(each) for each in indices], cache_policy)

    def create_descriptor_store(self, desc: Any, value: Value, indices: list[Value]) -> Value:
        """Store a block through a tensor descriptor."""
        with _refusing_assertions():
            return super().create_descriptor_store(desc, value, [as_known(each) for each in indices])

    def create_descriptor_gather(self, desc: Any, x_offsets: Value, y_offset: Value, type: object) -> Value:  # noqa: A002
        """Load rows through a tensor descriptor."""
        pointers, mask = _rows(desc, x_offsets, y_offset)
        return load(self, pointers, mask, None)

    def create_descriptor_scatter(self, desc: Any, value: Value, x_offsets: Value, y_offset: Value) -> None:
        """Store rows through a tensor descriptor."""
        pointers, mask = _rows(desc, x_offsets, y_offset)
        store(pointers, value, mask)

    def create_atomic_rmw(self, op: object, ptr: Value, val: Value, mask: Value, sem: object, scope: object) -> Value:
        """Issue ``tl.atomic_add`` or another read-modify-write."""
        return change(op, Atomic(ptr, val, mask, sem))

    def create_atomic_cas(self, ptr: Value, cmp: Value, val: Value, sem: object, scope: object) -> Value:
        """Issue ``tl.atomic_cas``."""
        return compare_and_swap(cmp, Atomic(ptr, val, None, sem))

    # element by element

    def binary_op(self, lhs: Value, rhs: Value, op: Any) -> Value:
        """Apply a binary operator."""
        if is_symbolic(lhs, rhs):
            if op is np.add and _is_accumulator(lhs, rhs.data):
                acc = straight(lhs.data) if is_symbolic(lhs) else None
                return _symbolic(rhs.data.issue(acc), rhs.data.shape, rhs.dtype)
            return _elementwise(_operator(op), lhs, rhs)
        a, b = lhs.data, rhs.data
        shape = _common(a.shape, b.shape)
        if not (a.flags.c_contiguous and a.shape == shape):
            a, b = thin(a), thin(b)
        made = None if a.dtype.kind == "b" else op(a, b)
        if made is None or (made.dtype != a.dtype and made.dtype.kind != "b"):
            return super().binary_op(lhs, rhs, op)
        return value_of(broadcast(made, shape), lhs.dtype.scalar)

    def unary_op(self, arg: Value, op: Any) -> Value:
        """Apply a unary operator."""
        return _elementwise(_operator(op), arg) if is_symbolic(arg) else super().unary_op(arg, op)

    def create_idiv(self, lhs: Value, rhs: Value) -> Value:
        """Divide integers, truncating."""
        return _elementwise("div", lhs, rhs) if is_symbolic(lhs, rhs) else super().create_idiv(lhs, rhs)

    def create_ashr(self, lhs: Value, rhs: Value) -> Value:
        """Shift right arithmetically."""
        return _elementwise("shr", lhs, rhs) if is_symbolic(lhs, rhs) else super().create_ashr(lhs, rhs)

    def create_fabs(self, arg: Value) -> Value:
        """Return the absolute value, also for types whose sign bit the interpreter does not know."""
        return self.unary_op(arg, np.abs)

    def create_rsqrt(self, arg: Value) -> Value:
        """Return the reciprocal square root."""
        return _elementwise("rsqrt", arg) if is_symbolic(arg) else super().create_rsqrt(arg)

    def create_erf(self, arg: Value) -> Value:
        """Return the error function."""
        return _elementwise("erf", arg) if is_symbolic(arg) else super().create_erf(arg)

    def create_fma(self, x: Value, y: Value, z: Value) -> Value:
        """Return ``x * y + z``, rounded once."""
        return _elementwise("fma", x, y, z) if is_symbolic(x, y, z) else super().create_fma(x, y, z)

    def create_clampf(self, arg: Value, lo: Value, hi: Value, propagate_nans: object) -> Value:
        """Clamp ``arg`` to ``lo`` and ``hi``."""
        if not is_symbolic(arg, lo, hi):
            return super().create_clampf(arg, lo, hi, propagate_nans)
        return _elementwise("fclamp" if propagate_nans == ir.PROPAGATE_NAN.NONE else "clamp", arg, lo, hi)

    def create_select(self, cond: Value, lhs: Value, rhs: Value) -> Value:
        """Return ``lhs`` where ``cond`` holds, else ``rhs`` (``tl.where``)."""
        if not is_symbolic(cond, lhs, rhs):
            return super().ternary_op(cond, lhs, rhs, np.where)
        shape = np.broadcast_shapes(cond.data.shape, lhs.data.shape, rhs.data.shape)
        a, b = operand(lhs), operand(rhs)
        if not isinstance(a, Handle) and not isinstance(b, Handle):
            a = running().tl.full((1,) * len(shape), a, machine_type(rhs.dtype))
        return _symbolic(running().tl.where(_condition(cond), a, b), shape, rhs.dtype)

    def create_umulhi(self, lhs: Value, rhs: Value) -> Value:
        """Return the upper 32 bits of the product of 32-bit integers."""
        if not is_symbolic(lhs, rhs):
            return super().create_umulhi(lhs, rhs)
        out = lhs.dtype.scalar
        if out is not tl.uint32:
            raise refused(f"tl.umulhi of data of type {out}: MATH computes it of uint32 only, in 64 bits")
        return upper_product([lhs, rhs], out, _common(lhs.data.shape, rhs.data.shape))

    def create_extern_elementwise(
        self, lib_name: str, lib_path: str, symbol: str, args: list[Value], ret_type: Type, is_pure: bool
    ) -> Value:
        """Call a libdevice function."""
        return call(symbol, args, ret_type)

    # types

    def cast_impl(self, src: Value, dst_type: Type) -> Value:
        """Convert a value to another type."""
        to = dst_type.scalar
        if not is_symbolic(src):
            return value_of(broadcast(thin(src.data).astype(numpy_type(to)), src.data.shape), to)
        x = src.data
        return TensorHandle(Symbolic(running().tl.cast(x.handle, machine_type(to)), x.shape, x.swapped), to)

    def create_fp_to_fp(self, src: Value, dst_type: Type, rounding_mode: object) -> Value:
        """Convert between float types, rounding to nearest even."""
        return self.cast_impl(src, dst_type)

    def create_bitcast(self, src: Value, dst_type: Type) -> Value:
        """Reinterpret the bits as another type."""
        if not is_symbolic(src):
            return super().create_bitcast(src, dst_type)
        to = dst_type.scalar
        if src.dtype.scalar.is_int() and to.is_int():  # the conversion wraps numbers, which keeps their bits
            return self.cast_impl(src, to)
        x = src.data
        return TensorHandle(Symbolic(running().tl.bitcast(x.handle, machine_type(to)), x.shape, x.swapped), to)

    def create_int_to_ptr(self, src: Value, dst_type: Type) -> Value:
        """Convert an integer to a pointer. The kernel waits for a loaded integer."""
        numbers = known(src)
        if numbers.size == 1:
            return PointerHandle(int(numbers.item()), dst_type.scalar, np.zeros(numbers.shape, np.int32))
        return value_of(numbers.astype(np.uint64), dst_type.scalar)

    def create_ptr_to_int(self, src: Value, dst_type: Type) -> Value:
        """Return a pointer's address as an integer."""
        return value_of(known(src).astype(numpy_type(dst_type)), dst_type.scalar)

    # shapes: operations that only rename axes return views

    def create_reshape(self, arg: Value, shape: Sequence[int], allow_reorder: bool) -> Value:
        """Reshape the elements in row-major order."""
        if not is_symbolic(arg):
            return super().create_reshape(arg, shape, allow_reorder)
        extents = tuple(shape)
        return _symbolic(running().tl.reshape(whole(arg), extents), extents, arg.dtype)

    def create_expand_dims(self, arg: Value, axis: int) -> Value:
        """Insert an axis of length 1."""
        if not is_symbolic(arg):
            return super().create_expand_dims(arg, axis)
        x, shape = arg.data, (*arg.data.shape[:axis], 1, *arg.data.shape[axis:])
        if prod(x.handle.shape) == 1:
            return _symbolic(x.handle, shape, arg.dtype)
        return _symbolic(running().tl.expand_dims(straight(x), axis), shape, arg.dtype)

    def create_broadcast(self, arg: Value, shape: Sequence[int]) -> Value:
        """Broadcast to ``shape``. A command is issued only once an operation needs all elements."""
        if isinstance(arg, PointerHandle):
            return arg.repeated(tuple(shape))
        if not is_symbolic(arg):
            return value_of(broadcast(arg.data, tuple(shape)), arg.dtype.scalar)
        return _symbolic(straight(arg.data), tuple(shape), arg.dtype)

    def create_splat(self, ret_ty: Type, arg: Value) -> Value:
        """Broadcast one element to a shape."""
        shape = tuple(map(int, ret_ty.shape))
        if isinstance(arg, PointerHandle):
            return arg.repeated(shape)
        if not is_symbolic(arg):
            return value_of(broadcast(arg.data.reshape((1,) * len(shape)), shape), arg.dtype.scalar)
        return _symbolic(arg.data.handle, shape, arg.dtype)

    def create_unsplat(self, arg: Value) -> Value:
        """Return a tensor of one element as a scalar."""
        if not is_symbolic(arg):
            return super().create_unsplat(arg)
        return _symbolic(running().tl.reshape(straight(arg.data), (1,)), (1,), arg.dtype)

    def create_trans(self, arg: Value, perm: Sequence[int]) -> Value:
        """Permute the axes. A symbolic matrix is transposed lazily: a product accepts a transposed factor."""
        if not is_symbolic(arg):
            return super().create_trans(arg, perm)
        x, order = arg.data, tuple(int(axis) for axis in perm)
        if order == (1, 0):
            swapped = not x.swapped and len(x.handle.shape) == 2
            return TensorHandle(Symbolic(x.handle, x.shape[::-1], swapped), arg.dtype.scalar)
        made = running().tl.trans(whole(arg), order)
        return _symbolic(made, made.shape, arg.dtype)

    def create_split(self, arg: Value) -> tuple[Value, Value]:
        """Split the last axis, of length 2, into two values. It is moved to the front first, so both are views."""
        if not is_symbolic(arg):
            found: tuple[Value, Value] = super().create_split(arg)
            return found
        axes = len(arg.data.shape)
        halves = running().tl.trans(whole(arg), (axes - 1, *range(axes - 1)))
        one, two = (running().tl.part(halves, i) for i in (0, 1))
        return tuple(_symbolic(each, each.shape or (1,), arg.dtype) for each in (one, two))

    def create_join(self, lhs: Value, rhs: Value) -> Value:
        """Stack two values along a new last axis."""
        if not is_symbolic(lhs, rhs):
            return super().create_join(lhs, rhs)
        last = len(lhs.data.shape)
        return self._alternate(self.create_expand_dims(lhs, last), self.create_expand_dims(rhs, last), last)

    def create_cat(self, lhs: Value, rhs: Value) -> Value:
        """Concatenate two values."""
        if not is_symbolic(lhs, rhs):
            return super().create_cat(lhs, rhs)
        made = self._alternate(self.create_expand_dims(lhs, 0), self.create_expand_dims(rhs, 0), 0)
        return self.create_reshape(made, (made.data.size,), False)

    def _alternate(self, one: Value, two: Value, axis: int) -> Value:
        """Concatenate ``one`` and ``two``, whose ``axis`` has length 1, along that axis."""
        shape = tuple([2 if i == axis else n for i, n in enumerate(one.data.shape)])
        first = np.array([True, False]).reshape([2 if i == axis else 1 for i in range(len(shape))])
        both = [self.create_broadcast(each, shape) for each in (one, two)]
        return self.create_select(TensorHandle(broadcast(first, shape), tl.int1), *both)

    def create_gather(self, src: Value, indices: Value, axis: int) -> Value:
        """Gather elements along ``axis``."""
        if isinstance(src, PointerHandle):
            raise refused(
                "tl.gather of pointers: a pointer is no number here; gather offsets and add them to a pointer"
            )
        if not is_symbolic(src, indices):
            return super().create_gather(src, indices, axis)
        return _symbolic(take(src, indices, axis % src.data.ndim), indices.data.shape, src.dtype)

    def create_histogram(self, data: Value, bins: int, mask: Value | None) -> Value:
        """Count how often each integer below ``bins`` occurs."""
        if not is_symbolic(data, mask):
            return super().create_histogram(data, bins, mask)
        return _symbolic(count(data, bins, mask), (bins,), tl.int32)

    # the matrix engine

    def create_dot(self, a: Value, b: Value, d: Value, input_precision: object, max_num_imprecise_acc: object) -> Value:
        """Multiply matrices (``tl.dot``). ``d`` is the accumulator; it is zeros if the kernel passes none."""
        if not is_symbolic(a, b, d):
            return super().create_dot(a, b, d, input_precision, max_num_imprecise_acc)
        if a.data.ndim == 3:
            made = _symbolic(_products(a, b, machine_type(d.dtype)), d.data.shape, d.dtype)
            return made if not is_symbolic(d) and uniform(d.data) == 0 else self.binary_op(made, d, np.add)
        (x, trans_a), (y, trans_b) = factor(a), factor(b)
        language, item = running().tl, machine_type(d.dtype)

        def issue(acc: Handle | None) -> Handle:
            return language.dot(x, y, acc, item, trans_a, trans_b)

        if is_symbolic(d) or uniform(d.data) != 0:
            return _symbolic(issue(whole(d)), d.data.shape, d.dtype)
        if result_is_added():
            return value_of(Product(issue, d.data.shape), d.dtype.scalar)
        return _symbolic(issue(None), d.data.shape, d.dtype)

    # operations that no engine has

    def create_inline_asm(self, *_: object) -> NoReturn:
        """Refuse ``tl.inline_asm_elementwise``."""
        raise refused("tl.inline_asm_elementwise: a PE does not run the instructions of a GPU")

    def create_atomic_poll(self, *_: object) -> NoReturn:
        """Refuse ``tl.atomic_poll``."""
        raise refused("tl.atomic_poll: no engine of the PE waits at an address; use a loop over tl.atomic_cas")

    def create_dot_scaled(self, *_: object) -> NoReturn:
        """Refuse ``tl.dot_scaled``."""
        raise refused("tl.dot_scaled: the matrix unit does not scale blocks of its factors")

    def __getattr__(self, name: str) -> Any:
        """Refuse methods that only a compiler's builder has."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise refused(_MISSING.get(name, f"{name.removeprefix('create_')}: the machine has no such operation"))

    # output and hints

    def create_print(self, prefix: str, hex: bool, values: Sequence[Value], isSigned: object) -> None:  # noqa: A002, N803
        """Print a line that names the program. Symbolic values are printed once phase 2 has computed them."""
        shown = [whole(each) if is_symbolic(each) else each.data for each in values]
        running().tl.device_print(running().program, prefix, *shown)

    def create_assume(self, condition: Value) -> None:
        """Ignore the condition, which only a compiler uses. Refuse a condition that is known to be false."""
        if not is_symbolic(condition) and not condition.data.all():
            raise refused("tl.assume of a condition that is false")

    def create_barrier(self) -> None:
        """Do nothing: a program is one stream of instructions, whose memory accesses are in order."""


def _rows(desc: Any, x_offsets: Value, y_offset: Value) -> tuple[Value, Array]:
    """Return pointers to the elements of rows, from column ``y_offset`` on, and a mask of those within bounds."""
    rows, columns = known(x_offsets)[:, None], known(y_offset).item() + np.arange(desc.block_shape[-1])[None, :]
    heights, widths = (each.data.item() for each in desc.shape)
    steps = [each.data.item() for each in desc.strides]
    at = in_bytes(rows * steps[0] + columns * steps[1], desc.base.dtype.element_ty.primitive_bitwidth // 8)
    inside = (rows >= 0) & (rows < heights) & (columns >= 0) & (columns < widths)
    return value_of((known(desc.base).item() + at).astype(np.uint64), desc.base.dtype.scalar), inside


@contextmanager
def _refusing_assertions() -> Iterator[None]:
    """Turn the interpreter's assertion errors about a tensor descriptor into refusals at the kernel's line."""
    try:
        yield
    except AssertionError as error:
        raise refused(f"a tensor descriptor: {error}") from None


def _symbolic(handle: Handle, shape: Shape, ty: Type) -> Value:
    return value_of(Symbolic(handle, shape), ty.scalar)


def _common(a: Shape, b: Shape) -> Shape:
    return a if a == b else np.broadcast_shapes(a, b)


def _operator(op: Any) -> str:
    found = OPERATORS.get(op)
    if found is None:
        raise refused(f"{op.__name__} of data: MATH has no such operator")
    return found


def _elementwise(name: str, *values: Value) -> Value:
    shape = reduce(_common, [each.data.shape for each in values])
    made = running().tl.elementwise(name, *map(operand, values))
    ty = next(each.dtype for each in values if is_symbolic(each))
    return _symbolic(made, shape, tl.int1 if name in _COMPARISONS else ty)


def _is_accumulator(value: Value, product: Any) -> bool:
    """Return whether the matrix unit can accumulate ``product`` on ``value``: symbolic of the same shape, or zeros."""
    if not isinstance(product, Product) or product.is_issued or value.data.shape != product.shape:
        return False
    if is_symbolic(value):
        return bool(straight(value.data).shape == product.shape)
    return bool(uniform(value.data) == 0)


def _products(a: Value, b: Value, item: DType) -> Handle:
    """Multiply a batch of matrices, one by one, and join the products pairwise by MATH until one block is left."""
    kernel, x, y = running().tl, whole(a), whole(b)
    made = [
        kernel.expand_dims(kernel.dot(kernel.part(x, i), kernel.part(y, i), None, item), 0) for i in range(x.shape[0])
    ]
    if len(made) == 1:
        return made[0]
    first = constant(np.array([True, False]).reshape(2, 1, 1, 1), I8)
    while len(made) > 1:
        pairs = [
            kernel.where(first, kernel.expand_dims(one, 0), kernel.expand_dims(two, 0))
            for one, two in zip(made[::2], made[1::2], strict=True)
        ]
        made = [kernel.reshape(each, (2 * each.shape[1], *each.shape[2:])) for each in pairs]
    return made[0]


def _condition(cond: Value) -> Handle:
    """Return a condition as a handle; a known condition is a constant."""
    return straight(cond.data) if is_symbolic(cond) else constant(smallest(cond.data), I8)


__all__ = ["MACHINE_TYPES", "OPERATORS", "Builder"]
