"""The builder of Triton's interpreter: it computes known values itself, and issues PE commands for symbolic values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from math import prod
from types import MappingProxyType
from typing import NoReturn

import numpy as np
import triton.language as tl
from triton._C.libtriton import ir
from triton.runtime import interpreter

from kernbench.common.dtypes import I8, Array, DType, Shape
from kernbench.frontends.triton.descriptors import broadcast, drop_repeats, in_bytes
from kernbench.frontends.triton.extra_functions import call_function, evaluate_known, upper_product
from kernbench.frontends.triton.memory import (
    Atomic,
    PointerHandle,
    compare_and_swap,
    load,
    move_pointers,
    store,
    update_memory,
)
from kernbench.frontends.triton.reductions import count, take
from kernbench.frontends.triton.running import refused, result_is_added, running
from kernbench.frontends.triton.values import (
    Product,
    Symbolic,
    TensorHandle,
    Type,
    Value,
    drop_constant_axes,
    expecting,
    factor_of,
    find_uniform,
    is_symbolic,
    machine_type,
    materialize,
    numpy_type,
    operand_of,
    read_numbers,
    transpose_pending,
    value_of,
    with_numbers,
    write_constant,
)
from kernbench.triton_emu.handles import Handle

OPERATORS: MappingProxyType[np.ufunc, str] = MappingProxyType(
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
        return load(self, ptrs, read_numbers(mask), other)

    def create_store(self, ptr: Value, val: Value, cache_policy: object) -> None:
        """Store without a mask."""
        store(ptr, val, None)

    def create_masked_store(self, ptrs: Value, value: Value, mask: Value, cache_policy: object) -> None:
        """Store where ``mask`` holds."""
        store(ptrs, value, read_numbers(mask))

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
    ) -> interpreter.TensorDescHandle:
        """Return a tensor descriptor. The kernel waits for a loaded shape or for loaded strides."""
        known_shape, known_strides = ([with_numbers(size) for size in sizes] for sizes in (shape, strides))
        with _refusing_assertions():
            return super().create_make_tensor_descriptor(
                base, known_shape, known_strides, tensor_shape, is_signed, padding
            )

    def create_descriptor_load(
        self, desc: interpreter.TensorDescHandle, indices: list[Value], cache_policy: object
    ) -> Value:
        """Load a block through a tensor descriptor."""
        with _refusing_assertions():
            return super().create_descriptor_load(desc, [with_numbers(start) for start in indices], cache_policy)

    def create_descriptor_store(self, desc: interpreter.TensorDescHandle, value: Value, indices: list[Value]) -> Value:
        """Store a block through a tensor descriptor."""
        with _refusing_assertions():
            return super().create_descriptor_store(desc, value, [with_numbers(start) for start in indices])

    def create_descriptor_gather(
        self,
        desc: interpreter.TensorDescHandle,
        x_offsets: Value,
        y_offset: Value,
        type: object,  # noqa: A002
    ) -> Value:
        """Load rows through a tensor descriptor."""
        pointers, mask = _rows(desc, x_offsets, y_offset)
        return load(self, pointers, mask, None)

    def create_descriptor_scatter(
        self, desc: interpreter.TensorDescHandle, value: Value, x_offsets: Value, y_offset: Value
    ) -> None:
        """Store rows through a tensor descriptor."""
        pointers, mask = _rows(desc, x_offsets, y_offset)
        store(pointers, value, mask)

    def create_atomic_rmw(
        self, op: ir.ATOMIC_OP, ptr: Value, val: Value, mask: Value, sem: ir.MEM_SEMANTIC, scope: object
    ) -> Value:
        """Issue ``tl.atomic_add`` or another read-modify-write."""
        return update_memory(op, Atomic(ptr, val, mask, sem))

    def create_atomic_cas(self, ptr: Value, cmp: Value, val: Value, sem: ir.MEM_SEMANTIC, scope: object) -> Value:
        """Issue ``tl.atomic_cas``."""
        return compare_and_swap(cmp, Atomic(ptr, val, None, sem))

    # element by element

    def binary_op(self, lhs: Value, rhs: Value, op: np.ufunc) -> Value:
        """Apply a binary operator."""
        a, b = lhs.data, rhs.data
        if isinstance(a, Symbolic) or isinstance(b, Symbolic):
            if op is np.add and isinstance(b, Product) and _can_accumulate(a, b):
                acc = transpose_pending(a) if isinstance(a, Symbolic) else None
                return _symbolic(b.issue(acc), b.shape, rhs.dtype)
            return _elementwise(_operator(op), lhs, rhs)
        shape = _common(a.shape, b.shape)
        if not (a.flags.c_contiguous and a.shape == shape):
            a, b = drop_repeats(a), drop_repeats(b)
        result = None if a.dtype.kind == "b" else op(a, b)
        if result is None or (result.dtype != a.dtype and result.dtype.kind != "b"):
            return super().binary_op(lhs, rhs, op)
        return value_of(broadcast(result, shape), lhs.dtype.scalar)

    def unary_op(self, arg: Value, op: np.ufunc) -> Value:
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
        is_left = None if isinstance(cond.data, Symbolic) else find_uniform(cond.data)
        if is_left is not None:
            chosen = lhs if is_left else rhs
            return chosen if chosen.data.shape == shape else self.create_broadcast(chosen, shape)
        a, b = operand_of(lhs), operand_of(rhs)
        if not isinstance(a, Handle) and not isinstance(b, Handle):
            a = running().tl.full((1,) * len(shape), a, machine_type(rhs.dtype))
        chosen = _symbolic(running().tl.where(_condition(cond), a, b), shape, rhs.dtype)
        return expecting(chosen, np.where, cond, lhs, rhs)

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
        return call_function(symbol, args, ret_type)

    # types

    def cast_impl(self, src: Value, dst_type: Type) -> Value:
        """Convert a value to another type."""
        x, to = src.data, dst_type.scalar
        if not isinstance(x, Symbolic):
            return value_of(broadcast(drop_repeats(x).astype(numpy_type(to)), x.shape), to)
        cast = value_of(Symbolic(running().tl.cast(x.handle, machine_type(to)), x.shape, x.swapped), to)
        return expecting(cast, np.asarray, src)

    def create_fp_to_fp(self, src: Value, dst_type: Type, rounding_mode: object) -> Value:
        """Convert between float types, rounding to nearest even."""
        return self.cast_impl(src, dst_type)

    def create_bitcast(self, src: Value, dst_type: Type) -> Value:
        """Reinterpret the bits as another type."""
        x, to = src.data, dst_type.scalar
        if not isinstance(x, Symbolic):
            return super().create_bitcast(src, dst_type)
        if src.dtype.scalar.is_int() and to.is_int():  # the conversion wraps numbers, which keeps their bits
            return self.cast_impl(src, to)
        return TensorHandle(Symbolic(running().tl.bitcast(x.handle, machine_type(to)), x.shape, x.swapped), to)

    def create_int_to_ptr(self, src: Value, dst_type: Type) -> Value:
        """Convert an integer to a pointer. The kernel waits for a loaded integer."""
        numbers = read_numbers(src)
        if numbers.size == 1:
            return PointerHandle(int(numbers.item()), dst_type.scalar, np.zeros(numbers.shape, np.int32))
        return value_of(numbers.astype(np.uint64), dst_type.scalar)

    def create_ptr_to_int(self, src: Value, dst_type: Type) -> Value:
        """Return a pointer's address as an integer."""
        return value_of(read_numbers(src).astype(numpy_type(dst_type)), dst_type.scalar)

    # shapes: operations that only rename axes return views

    def create_reshape(self, arg: Value, shape: Sequence[int], allow_reorder: bool) -> Value:
        """Reshape the elements in row-major order."""
        if not is_symbolic(arg):
            return super().create_reshape(arg, shape, allow_reorder)
        extents = tuple(shape)
        reshaped = _symbolic(running().tl.reshape(materialize(arg), extents), extents, arg.dtype)
        return expecting(reshaped, partial(np.reshape, shape=extents), arg)

    def create_expand_dims(self, arg: Value, axis: int) -> Value:
        """Insert an axis of length 1."""
        x = arg.data
        if not isinstance(x, Symbolic):
            return super().create_expand_dims(arg, axis)
        shape = (*x.shape[:axis], 1, *x.shape[axis:])
        is_one = prod(x.handle.shape) == 1
        handle = x.handle if is_one else running().tl.expand_dims(transpose_pending(x), axis)
        return expecting(_symbolic(handle, shape, arg.dtype), partial(np.expand_dims, axis=axis), arg)

    def create_broadcast(self, arg: Value, shape: Sequence[int]) -> Value:
        """Broadcast to ``shape``. A command is issued only once an operation needs all elements."""
        if isinstance(arg, PointerHandle):
            return arg.broadcast(tuple(shape))
        x = arg.data
        if not isinstance(x, Symbolic):
            return value_of(broadcast(x, tuple(shape)), arg.dtype.scalar)
        return expecting(_symbolic(transpose_pending(x), tuple(shape), arg.dtype), np.asarray, arg)

    def create_splat(self, ret_ty: tl.block_type, arg: Value) -> Value:
        """Broadcast one element to a shape."""
        shape = tuple(map(int, ret_ty.shape))
        if isinstance(arg, PointerHandle):
            return arg.broadcast(shape)
        x = arg.data
        if not isinstance(x, Symbolic):
            return value_of(broadcast(x.reshape((1,) * len(shape)), shape), arg.dtype.scalar)
        return expecting(_symbolic(x.handle, shape, arg.dtype), np.ravel, arg)

    def create_unsplat(self, arg: Value) -> Value:
        """Return a tensor of one element as a scalar."""
        x = arg.data
        if not isinstance(x, Symbolic):
            return super().create_unsplat(arg)
        return _symbolic(running().tl.reshape(transpose_pending(x), (1,)), (1,), arg.dtype)

    def create_trans(self, arg: Value, perm: Sequence[int]) -> Value:
        """Permute the axes. A symbolic matrix is transposed lazily: a product accepts a transposed factor."""
        x = arg.data
        if not isinstance(x, Symbolic):
            return super().create_trans(arg, perm)
        order = tuple(int(axis) for axis in perm)
        if order == (1, 0):
            swapped = not x.swapped and len(x.handle.shape) == 2
            return TensorHandle(Symbolic(x.handle, x.shape[::-1], swapped), arg.dtype.scalar)
        transposed = running().tl.trans(materialize(arg), order)
        return _symbolic(transposed, transposed.shape, arg.dtype)

    def create_split(self, arg: Value) -> tuple[Value, Value]:
        """Split the last axis, of length 2, into two values. It is moved to the front first, so both are views."""
        if not is_symbolic(arg):
            return super().create_split(arg)
        axes = len(arg.data.shape)
        pair = running().tl.trans(materialize(arg), (axes - 1, *range(axes - 1)))
        first, second = (running().tl.part(pair, i) for i in (0, 1))
        shape = first.shape or (1,)
        return _symbolic(first, shape, arg.dtype), _symbolic(second, shape, arg.dtype)

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
        joined = self._alternate(self.create_expand_dims(lhs, 0), self.create_expand_dims(rhs, 0), 0)
        return self.create_reshape(joined, (joined.data.size,), False)

    def _alternate(self, lhs: Value, rhs: Value, axis: int) -> Value:
        """Concatenate ``lhs`` and ``rhs``, whose ``axis`` has length 1, along that axis."""
        shape = tuple([2 if i == axis else n for i, n in enumerate(lhs.data.shape)])
        is_left = np.array([True, False]).reshape([2 if i == axis else 1 for i in range(len(shape))])
        left, right = self.create_broadcast(lhs, shape), self.create_broadcast(rhs, shape)
        return self.create_select(TensorHandle(broadcast(is_left, shape), tl.int1), left, right)

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
            product = _symbolic(_multiply_batch(a, b, machine_type(d.dtype)), d.data.shape, d.dtype)
            return product if _is_zero(d) else self.binary_op(product, d, np.add)
        (x, trans_a), (y, trans_b) = factor_of(a), factor_of(b)
        language, item = running().tl, machine_type(d.dtype)

        def issue(acc: Handle | None) -> Handle:
            return language.dot(x, y, acc, item, trans_a, trans_b)

        if not _is_zero(d):
            return _symbolic(issue(materialize(d)), d.data.shape, d.dtype)
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

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse methods that only a compiler's builder has."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise refused(_MISSING.get(name, f"{name.removeprefix('create_')}: the machine has no such operation"))

    # output and hints

    def create_print(self, prefix: str, hex: bool, values: Sequence[Value], isSigned: object) -> None:  # noqa: A002, N803
        """Print a line that names the program. Symbolic values are printed once phase 2 has computed them."""
        shown = [materialize(value) if is_symbolic(value) else value.data for value in values]
        running().tl.device_print(running().program, prefix, *shown)

    def create_assume(self, condition: Value) -> None:
        """Ignore the condition, which only a compiler uses. Refuse a condition that is known to be false."""
        if not isinstance(condition.data, Symbolic) and not condition.data.all():
            raise refused("tl.assume of a condition that is false")

    def create_barrier(self) -> None:
        """Do nothing: a program is one stream of instructions, whose memory accesses are in order."""


def _rows(desc: interpreter.TensorDescHandle, x_offsets: Value, y_offset: Value) -> tuple[Value, Array]:
    """Return pointers to the elements of rows, from column ``y_offset`` on, and a mask of those within bounds."""
    rows = read_numbers(x_offsets)[:, None]
    columns = read_numbers(y_offset).item() + np.arange(desc.block_shape[-1])[None, :]
    heights, widths = (extent.data.item() for extent in desc.shape)
    steps = [stride.data.item() for stride in desc.strides]
    at = in_bytes(rows * steps[0] + columns * steps[1], desc.base.dtype.element_ty.primitive_bitwidth // 8)
    inside = (rows >= 0) & (rows < heights) & (columns >= 0) & (columns < widths)
    return value_of((read_numbers(desc.base).item() + at).astype(np.uint64), desc.base.dtype.scalar), inside


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


def _operator(op: np.ufunc) -> str:
    name = OPERATORS.get(op)
    if name is None:
        raise refused(f"{op.__name__} of data: MATH has no such operator")
    return name


def _elementwise(name: str, *values: Value) -> Value:
    shape = reduce(_common, [value.data.shape for value in values])
    result = running().tl.elementwise(name, *map(operand_of, values))
    ty = next(value.dtype for value in values if is_symbolic(value))
    symbolic = _symbolic(result, shape, tl.int1 if name in _COMPARISONS else ty)
    return expecting(symbolic, partial(evaluate_known, name, item=machine_type(ty)), *values)


def _can_accumulate(data: Array | Symbolic, product: Product) -> bool:
    """Return whether the matrix unit can accumulate ``product`` on ``data``: symbolic of the same shape, or zeros."""
    if product.is_issued or data.shape != product.shape:
        return False
    if isinstance(data, Symbolic):
        return transpose_pending(data).shape == product.shape
    return bool(find_uniform(data) == 0)


def _is_zero(value: Value) -> bool:
    """Return whether all elements are known and zero."""
    return not isinstance(value.data, Symbolic) and bool(find_uniform(value.data) == 0)


def _multiply_batch(a: Value, b: Value, item: DType) -> Handle:
    """Multiply a batch of matrices, one by one, and join the products pairwise by MATH until one block is left."""
    kernel, x, y = running().tl, materialize(a), materialize(b)
    blocks = [
        kernel.expand_dims(kernel.dot(kernel.part(x, i), kernel.part(y, i), None, item), 0) for i in range(x.shape[0])
    ]
    if len(blocks) == 1:
        return blocks[0]
    is_first = write_constant(np.array([True, False]).reshape(2, 1, 1, 1), I8)
    while len(blocks) > 1:
        pairs = [
            kernel.where(is_first, kernel.expand_dims(first, 0), kernel.expand_dims(second, 0))
            for first, second in zip(blocks[::2], blocks[1::2], strict=True)
        ]
        blocks = [kernel.reshape(pair, (2 * pair.shape[1], *pair.shape[2:])) for pair in pairs]
    return blocks[0]


def _condition(cond: Value) -> Handle:
    """Return a condition as a handle; a known condition is a constant."""
    data = cond.data
    return transpose_pending(data) if isinstance(data, Symbolic) else write_constant(drop_constant_axes(data), I8)
