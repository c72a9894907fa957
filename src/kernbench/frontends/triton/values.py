"""Values of a kernel: known while time is simulated (NumPy arrays), or symbolic (handles of the PE's ``tl``)."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from types import MappingProxyType
from typing import Any, NoReturn, TypeAlias

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
from kernbench.frontends.triton.descriptors import thin
from kernbench.frontends.triton.running import refused, running
from kernbench.triton_emu.handles import Handle, Number

TensorHandle = interpreter.TensorHandle
# Triton's types have no stubs.
Type: TypeAlias = Any
Value: TypeAlias = Any
"""A TensorHandle of the interpreter, whose ``data`` is a NumPy array or a Symbolic."""

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
"""What a pointer to a tensor of each type points to."""

_numpy_of = interpreter._get_np_dtype  # noqa: SLF001 - what the interpreter itself asks
# The interpreter keeps these as bit patterns, which it cannot compute with.
_NARROW_FLOATS = MappingProxyType(
    {
        tl.bfloat16: np.dtype(ml_dtypes.bfloat16),
        tl.float8e4nv: np.dtype(ml_dtypes.float8_e4m3fn),
        tl.float8e5: np.dtype(ml_dtypes.float8_e5m2),
    }
)


def numpy_type(ty: Type) -> np.dtype[Any]:
    """The NumPy type of known values of a Triton type."""
    element = _element(ty)
    if element.is_ptr():
        return np.dtype(np.uint64)
    found: np.dtype[Any] = _NARROW_FLOATS.get(element) or _numpy_of(ty)
    return found


def _element(ty: Type) -> Type:
    return ty.element_ty if isinstance(ty, tl.block_type) else ty


def machine_type(ty: Type) -> DType:
    """The machine's type for values of a Triton type; Refused if it has none."""
    found = MACHINE_TYPES.get(ty.scalar)
    if found is None:
        names = ", ".join(str(name) for name in MACHINE_TYPES)
        raise refused(f"values of {ty.scalar}: the machine computes with {names}")
    return found


def value_of(data: Any, ty: Type) -> Value:
    """A value of the scalar type ``ty``, whose elements ``data`` is known to have: nothing is checked again."""
    made = TensorHandle.__new__(TensorHandle)
    made.data, made.dtype, made.attr = data, ty, {}
    return made


class Symbolic:
    """Values that lie in TCM, whose numbers phase 2 knows: ``handle``, broadcast to ``shape``.

    A handle of one element may have fewer axes.
    ``swapped``: the handle holds the transpose (two axes). Beside that it has as much of NumPy's face as the
    interpreter looks at; what it asks for numbers waits for them.
    """

    __array_ufunc__ = None
    __slots__ = ("_numbers", "handle", "itemsize", "shape", "swapped")

    def __init__(self, handle: Handle, shape: Shape, swapped: bool = False) -> None:
        self.handle = handle
        self.shape = shape
        self.swapped = swapped
        self.itemsize = 1  # whatever the type, it is as wide as the interpreter says
        self._numbers: Array | None = None

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    def numbers(self) -> Array:
        """Its numbers: the kernel waits until they are there. For addresses, masks, bounds and conditions."""
        if self._numbers is None:
            found = running().tl.value(self.handle)
            self._numbers = np.broadcast_to(found.T if self.swapped else found, self.shape)
        return self._numbers

    def squeeze(self) -> Array:
        """Return an array that the interpreter can make an index of."""
        return self.numbers().squeeze()

    def all(self) -> bool:
        """Tell whether all are true."""
        return bool(self.numbers().all())

    def __bool__(self) -> bool:
        return bool(self.numbers().all())

    def __array__(self, *_: object, **__: object) -> NoReturn:
        raise refused("an operation on data that the machine does not have")

    def __iter__(self) -> NoReturn:
        raise refused("an operation that goes through data one by one, which the machine does not have")

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise refused(f"an operation on data that the machine does not have (the interpreter asks for its {name})")

    def __repr__(self) -> str:
        return f"<data {self.handle.dtype} {list(self.shape)}: numbers are in the machine>"


class Product(Symbolic):
    """A matrix product that the kernel is about to add to something: ``issue`` it with the accumulator, once.

    Whoever asks for its handle first gets it without one.
    """

    __slots__ = ("_issue", "_issued")

    def __init__(self, issue: Callable[[Handle | None], Handle], shape: Shape) -> None:
        self._issue = issue
        self._issued: Handle | None = None
        self.shape = shape
        self.swapped = False
        self.itemsize = 1
        self._numbers = None

    @property
    def is_issued(self) -> bool:
        """True if it is too late for an accumulator."""
        return self._issued is not None

    def issue(self, acc: Handle | None) -> Handle:
        """The product, added to ``acc``."""
        self._issued = self._issue(acc)
        return self._issued

    @property
    def handle(self) -> Handle:
        """The product by itself."""
        return self.issue(None) if self._issued is None else self._issued

    @handle.setter
    def handle(self, handle: Handle) -> None:
        self._issued = handle


def is_symbolic(*values: Value | None) -> bool:
    """Tell whether any of ``values`` is symbolic."""
    for value in values:  # noqa: SIM110 - for each operation of a kernel, and much faster than any()
        if value is not None and isinstance(value.data, Symbolic):
            return True
    return False


def known(value: Value) -> Array:
    """The numbers of a value; the kernel waits for those of data."""
    data = value.data
    if isinstance(data, Symbolic):
        return data.numbers().astype(numpy_type(value.dtype))
    found: Array = data
    return found


def as_known(value: Value) -> Value:
    """The same value, known."""
    return TensorHandle(known(value), value.dtype, value.attr) if is_symbolic(value) else value


def uniform(data: Array) -> Any:
    """The number that all elements of ``data`` are; None when they differ."""
    core = smallest(data)
    return core.reshape(-1)[0] if core.size == 1 else None


def smallest(data: Array) -> Array:
    """The smallest array that broadcasts to ``data``: an axis along which nothing changes has length 1."""
    core = thin(data)
    if core.size == 1:
        return core
    for axis, n in enumerate(core.shape):
        head = core[tuple([slice(1) if i == axis else slice(None) for i in range(core.ndim)])]
        if n > 1 and _same(core, head):
            core = head
    return core


def _same(a: Array, b: Array) -> bool:
    """Tell whether the numbers are the same, to the bit: NaN is as NaN, 0.0 is not -0.0."""
    if a.dtype.kind in "fV":
        a, b = a.view(f"u{a.itemsize}"), b.view(f"u{b.itemsize}")
    return bool((a == b).all())


def operand(value: Value) -> Handle | Number:
    """A value as an operand of an elementwise operator: a handle that broadcasts to its shape, or a number."""
    data = value.data
    if isinstance(data, Symbolic):
        return straight(data)
    core = smallest(data)
    if core.size == 1:
        return plain_number(core.reshape(-1)[0])
    return constant(core, _item(value))


def _item(value: Value) -> DType:
    """The machine's type for a known value; the interpreter gives truth values the type of what it compared."""
    return I8 if value.data.dtype == np.bool_ else machine_type(value.dtype)


def plain_number(number: Any) -> Number:
    """A NumPy number as Python's, a bool as 0 or 1."""
    found = number.item()
    return int(found) if isinstance(found, bool | int) else float(found)


def constant(data: Array, item: DType) -> Handle:
    """Known numbers in TCM, by one command."""
    return running().tl.constant(np.ascontiguousarray(data), item)


def straight(x: Symbolic) -> Handle:
    """The handle of ``x``, which broadcasts to its shape; a transpose is made now."""
    if x.swapped:
        x.handle, x.swapped = running().tl.trans(x.handle), False
    return x.handle


def whole(value: Value) -> Handle:
    """All elements of a value in TCM."""
    language, data = running().tl, value.data
    if isinstance(data, Symbolic):
        handle = straight(data)
        if handle.shape != data.shape:
            enlarge = language.reshape if data.size == 1 else language.broadcast
            handle = data.handle = enlarge(handle, data.shape)
        return handle
    item, core = _item(value), smallest(data)
    if core.size == 1:
        return language.full(data.shape, plain_number(core.reshape(-1)[0]), item)
    return language.broadcast(constant(core, item), data.shape)


def factor(value: Value) -> tuple[Handle, bool]:
    """A value as a factor of a matrix product, and whether it has to be transposed there."""
    data = value.data
    if isinstance(data, Symbolic) and data.swapped and data.handle.shape == data.shape[::-1]:
        return data.handle, True
    return whole(value), False
