"""Values of a kernel: known during the simulation (NumPy arrays), or symbolic (handles of the PE's ``tl``)."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from types import MappingProxyType
from typing import NoReturn, Protocol

import ml_dtypes
import numpy as np
import triton.language as tl
from triton.runtime import interpreter

from kernbench.common.dtypes import (
    BF16,
    F8E4M3,
    F8E5M2,
    F16,
    F32,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    Array,
    DType,
    Shape,
)
from kernbench.frontends.triton.descriptors import drop_repeats
from kernbench.frontends.triton.running import refused, running
from kernbench.triton_emu.handles import Handle, Number

TensorHandle = interpreter.TensorHandle


class Type(Protocol):
    """A type of Triton (``tl.dtype``): of elements, of pointers, or of blocks."""

    @property
    def name(self) -> str:
        """The type's name in a signature, such as ``fp32``."""

    @property
    def scalar(self) -> Type:
        """The type of one element."""

    @property
    def primitive_bitwidth(self) -> int:
        """The bits of one element."""

    def is_int(self) -> bool:
        """Return whether elements are integers."""

    def is_floating(self) -> bool:
        """Return whether elements are floats."""


class Value(Protocol):
    """A TensorHandle of the interpreter, with known or symbolic elements."""

    @property
    def data(self) -> Array | Symbolic:
        """The elements. Those of pointers are addresses."""

    @property
    def dtype(self) -> Type:
        """The type of one element."""

    @property
    def attr(self) -> dict[str, object]:
        """Attributes that Triton's compiler would use, such as ``tl.multiple_of``."""

    def get_element_ty(self) -> Type:
        """Return the type of an element behind a pointer."""


MACHINE_TYPES: MappingProxyType[Type, DType] = MappingProxyType(
    {
        tl.float32: F32,
        tl.float16: F16,
        tl.bfloat16: BF16,
        tl.float8e4nv: F8E4M3,
        tl.float8e5: F8E5M2,
        tl.int32: I32,
        tl.int8: I8,
        tl.int64: I64,
        tl.int16: I16,
        tl.uint8: U8,
        tl.uint16: U16,
        tl.uint32: U32,
        tl.uint64: U64,
        tl.int1: I8,
    }
)
POINTED_TO = MappingProxyType({item: name for name, item in MACHINE_TYPES.items() if name is not tl.int1})
"""Triton's element type of a pointer, for each machine type of a tensor."""

_numpy_of = interpreter._get_np_dtype  # noqa: SLF001 - the interpreter's own function
# The interpreter represents values of these types as bit patterns, with which it cannot compute.
_NARROW_FLOATS = MappingProxyType(
    {
        tl.bfloat16: np.dtype(ml_dtypes.bfloat16),
        tl.float8e4nv: np.dtype(ml_dtypes.float8_e4m3fn),
        tl.float8e5: np.dtype(ml_dtypes.float8_e5m2),
    }
)


def numpy_type(ty: Type) -> np.dtype:
    """Return the NumPy type of known values of a Triton type."""
    element = ty.element_ty if isinstance(ty, tl.block_type) else ty
    if isinstance(element, tl.pointer_type):
        return np.dtype(np.uint64)
    return _NARROW_FLOATS.get(element) or _numpy_of(ty)


def machine_type(ty: Type) -> DType:
    """Return the machine's type for values of a Triton type. Raises Refused if it has none."""
    item = MACHINE_TYPES.get(ty.scalar)
    if item is None:
        names = ", ".join(str(name) for name in MACHINE_TYPES)
        raise refused(f"values of {ty.scalar}: the machine computes with {names}")
    return item


def value_of(data: Array | Symbolic, ty: Type) -> Value:
    """Return a value of the scalar type ``ty``, without checks: ``data`` must have elements of that type."""
    handle = TensorHandle.__new__(TensorHandle)
    handle.data, handle.dtype, handle.attr = data, ty, {}
    return handle


class Symbolic:
    """Values in TCM whose numbers only phase 2 computes: ``handle``, broadcast to ``shape``.

    A handle of one element may have fewer axes. ``swapped``: the handle contains the transposed matrix. The class has
    the part of NumPy's interface that the interpreter uses. A method that needs numbers makes the kernel wait for them.
    ``expect`` returns the numbers in a run without data, if they are known.
    """

    __array_ufunc__ = None
    __slots__ = ("_numbers", "expect", "handle", "itemsize", "shape", "swapped")

    def __init__(self, handle: Handle, shape: Shape, swapped: bool = False) -> None:
        self.handle = handle
        self.shape = shape
        self.swapped = swapped
        self.itemsize = 1  # not used: the interpreter reads the width from the type
        self._numbers: Array | None = None
        self.expect: Callable[[], Array] | None = None

    @property
    def ndim(self) -> int:
        """Return the number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Return the number of elements."""
        return prod(self.shape)

    def numbers(self) -> Array:
        """Return the numbers, for addresses, masks, bounds and conditions. The kernel waits until they are computed."""
        if self._numbers is None:
            if self.expect is not None:
                self._numbers = self.expect()
                running().tl.value(self.handle, self._numbers)
                return self._numbers
            numbers = running().tl.value(self.handle)
            self._numbers = np.broadcast_to(numbers.T if self.swapped else numbers, self.shape)
        return self._numbers

    def squeeze(self) -> Array:
        """Return the numbers without axes of length 1, for the interpreter to use as an index."""
        return self.numbers().squeeze()

    def all(self) -> bool:
        """Return whether all elements are true."""
        return bool(self.numbers().all())

    def __bool__(self) -> bool:
        return bool(self.numbers().all())

    def __array__(self, *_: object, **__: object) -> NoReturn:
        raise refused("an operation on data that the machine does not have")

    def __iter__(self) -> NoReturn:
        raise refused("iteration over the elements of data, which the machine does not have")

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise refused(f"an operation on data that the machine does not have (the interpreter asks for its {name})")

    def __repr__(self) -> str:
        return f"<data {self.handle.dtype} {list(self.shape)}: numbers are in the machine>"


class Product(Symbolic):
    """A matrix product that the kernel adds to a value next. ``issue`` issues it once, with that value as accumulator.

    Reading ``handle`` first issues the product without an accumulator.
    """

    __slots__ = ("_issue", "_issued")

    def __init__(self, issue: Callable[[Handle | None], Handle], shape: Shape) -> None:
        self._issue = issue
        self._issued: Handle | None = None
        self.shape = shape
        self.swapped = False
        self.itemsize = 1
        self._numbers = None
        self.expect = None

    @property
    def is_issued(self) -> bool:
        """Return whether the product is already issued; it can then no longer get an accumulator."""
        return self._issued is not None

    def issue(self, acc: Handle | None) -> Handle:
        """Issue the product, accumulated on ``acc``, and return its handle."""
        self._issued = self._issue(acc)
        return self._issued

    @property
    def handle(self) -> Handle:
        """Return the product's handle; issue the product without an accumulator if it is not issued yet."""
        return self.issue(None) if self._issued is None else self._issued

    @handle.setter
    def handle(self, handle: Handle) -> None:
        self._issued = handle


def is_symbolic(*values: Value | None) -> bool:
    """Return whether any of ``values`` is symbolic."""
    for value in values:  # noqa: SIM110 - for each operation of a kernel, and much faster than any()
        if value is not None and isinstance(value.data, Symbolic):
            return True
    return False


def read_numbers(value: Value) -> Array:
    """Return the numbers of a value. The kernel waits for those of a symbolic value."""
    data = value.data
    return data.numbers().astype(numpy_type(value.dtype)) if isinstance(data, Symbolic) else data


def expecting(result: Value, compute: Callable[..., Array], *operands: Value) -> Value:
    """Let a run without data know the numbers of ``result`` if it knows those of all operands: ``compute`` of these."""
    data = result.data
    if running().expect is None or not isinstance(data, Symbolic):
        return result
    if all(not isinstance(x.data, Symbolic) or x.data.expect is not None for x in operands):
        ty = numpy_type(result.dtype)
        data.expect = lambda: np.broadcast_to(compute(*map(_expected, operands)), data.shape).astype(ty)
    return result


def _expected(value: Value) -> Array:
    data = value.data
    if not isinstance(data, Symbolic):
        return data
    assert data.expect is not None, "an operand whose numbers are known"
    return data.expect()


def with_numbers(value: Value) -> Value:
    """Return the same value with known numbers. The kernel waits for those of a symbolic value."""
    return TensorHandle(read_numbers(value), value.dtype, value.attr) if is_symbolic(value) else value


def find_uniform(data: Array) -> np.generic | None:
    """Return the number that all elements of ``data`` equal; None if they differ."""
    core = drop_constant_axes(data)
    return core.reshape(-1)[0] if core.size == 1 else None


def drop_constant_axes(data: Array) -> Array:
    """Return the smallest array that broadcasts to ``data``: an axis along which nothing varies gets length 1."""
    core = drop_repeats(data)
    if core.size == 1:
        return core
    for axis, n in enumerate(core.shape):
        head = core[tuple([slice(1) if i == axis else slice(None) for i in range(core.ndim)])]
        if n > 1 and _same(core, head):
            core = head
    return core


def _same(a: Array, b: Array) -> bool:
    """Return whether two arrays have the same bits. NaN equals NaN, and 0.0 differs from -0.0."""
    if a.dtype.kind in "fV":
        a, b = a.view(f"u{a.itemsize}"), b.view(f"u{b.itemsize}")
    return bool((a == b).all())


def operand_of(value: Value) -> Handle | Number:
    """Return a value as an operand of an elementwise operator: a number, or a handle that broadcasts to its shape."""
    data = value.data
    if isinstance(data, Symbolic):
        return transpose_pending(data)
    core = drop_constant_axes(data)
    if core.size == 1:
        return plain_number(core.reshape(-1)[0])
    return write_constant(core, _item_of(data, value.dtype))


def _item_of(data: Array, ty: Type) -> DType:
    """Return the machine's type of known numbers: i8 for truth values, which the interpreter types differently."""
    return I8 if data.dtype == np.bool_ else machine_type(ty)


def plain_number(number: np.generic) -> Number:
    """Return a NumPy number as a Python number; a bool becomes 0 or 1."""
    plain = number.item()
    return int(plain) if isinstance(plain, bool | int) else float(plain)


def write_constant(data: Array, item: DType) -> Handle:
    """Write known numbers to TCM by one command, and return their handle."""
    return running().tl.constant(np.ascontiguousarray(data), item)


def transpose_pending(x: Symbolic) -> Handle:
    """Return a handle that broadcasts to the shape of ``x``, after carrying out a pending transposition."""
    if x.swapped:
        x.handle, x.swapped = running().tl.trans(x.handle), False
    return x.handle


def materialize(value: Value) -> Handle:
    """Return a handle of all elements of a value in TCM. Repeated elements are written out there."""
    language, data = running().tl, value.data
    if isinstance(data, Symbolic):
        handle = transpose_pending(data)
        if handle.shape != data.shape:
            enlarge = language.reshape if data.size == 1 else language.broadcast
            handle = data.handle = enlarge(handle, data.shape)
        return handle
    item, core = _item_of(data, value.dtype), drop_constant_axes(data)
    if core.size == 1:
        return language.full(data.shape, plain_number(core.reshape(-1)[0]), item)
    return language.broadcast(write_constant(core, item), data.shape)


def factor_of(value: Value) -> tuple[Handle, bool]:
    """Return the handle of a factor of a matrix product, and whether the product must transpose the factor."""
    data = value.data
    if isinstance(data, Symbolic) and data.swapped and data.handle.shape == data.shape[::-1]:
        return data.handle, True
    return materialize(value), False
