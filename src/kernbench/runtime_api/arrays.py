"""Check, convert and compare the arrays, shapes, numbers and element types that programs pass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import prod
from operator import index
from typing import ClassVar, TypeAlias

import numpy as np

from kernbench.common.dtypes import (
    ALL,
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
from kernbench.common.errors import InputError
from kernbench.common.figures import figure
from kernbench.common.values import value
from kernbench.policy.placement.geometry import Index


def whole_number(number: object) -> int | None:
    """Return ``number`` as an int; None unless it is a whole number.

    ``True`` and ``1.0`` are refused: a program that passes them is likely to mean something else.
    """
    if isinstance(number, bool | np.bool_):
        return None
    try:
        return index(number)  # type: ignore[arg-type]
    except TypeError:
        return None


SizeArg: TypeAlias = int | tuple[int, ...] | list[int]


class ShapeError(InputError, ValueError):
    """An error about shapes that do not fit each other."""


def shape_of(size: tuple[SizeArg, ...]) -> Shape:
    """Return the shape that ``zeros(2, 3)`` or ``zeros((2, 3))`` asks for."""
    extents = size[0] if len(size) == 1 and isinstance(size[0], tuple | list) else size
    try:
        return tuple(index(extent) for extent in extents)  # type: ignore[arg-type]
    except TypeError:
        raise InputError(f"{extents!r} is no shape; write (2, 3)") from None


def complete_shape(shape: Shape, size: int) -> Shape | None:
    """Return the shape with its only -1 computed; None unless the shape then has ``size`` elements."""
    rest = prod(extent for extent in shape if extent != -1)
    if shape.count(-1) == 1 and rest > 0 and size % rest == 0:
        shape = tuple(size // rest if extent == -1 else extent for extent in shape)
    return shape if min(shape, default=1) > 0 and prod(shape) == size else None


def broadcasts(shape: Shape, to: Shape) -> bool:
    """Return True when an array of ``shape`` can be repeated to have shape ``to``, by NumPy's rule."""
    try:
        return np.broadcast_shapes(shape, to) == to
    except ValueError:
        return False


class Shaped(ABC):
    """An object with a shape, which it reports through the methods of PyTorch's tensors."""

    __slots__ = ()

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The number of elements along each axis."""

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def dim(self) -> int:
        """Return the number of axes."""
        return len(self.shape)

    def size(self, dim: int | None = None) -> int | tuple[int, ...]:
        """Return the shape, or the number of elements along one axis."""
        return self.shape if dim is None else self.shape[dim]

    def numel(self) -> int:
        """Return the number of elements."""
        return prod(self.shape)


_MACHINE = {kind.numpy: kind for kind in ALL}
_NUMBERS = "biuf"


def numeric(source: object, label: str) -> Array:
    """Return ``source`` (an array, a number or nested lists) as an array.

    Raises InputError, which begins with ``label``, unless the elements are real numbers.
    """
    array = np.asarray(source)
    if array.dtype not in _MACHINE and array.dtype.kind not in _NUMBERS:
        raise InputError(f"{label}: {type(source).__name__} of {array.dtype} is no array of real numbers")
    return array


def convert(source: Array, dtype: DType) -> Array:
    """Return a row-major copy with elements of ``dtype``.

    Elements convert as in PyTorch: rounded to nearest even, infinite if too large.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return source.astype(dtype.numpy, order="C", copy=True)


def as_bytes(array: Array) -> Array:
    """Return the bytes of a row-major array, without a copy."""
    return array.reshape(-1).view(np.uint8)


def host_dtype(array: Array) -> DType:
    """Return the element type of an array: the machine's type, else a description of NumPy's type."""
    return _MACHINE.get(array.dtype) or DType(array.dtype.name, array.itemsize, array.dtype, array.dtype.kind == "f")


def holds_floats(array: Array) -> bool:
    """Return True when the elements are floating-point numbers of any width."""
    kind = _MACHINE.get(array.dtype)
    return array.dtype.kind == "f" if kind is None else kind.is_float


def machine_dtype(array: Array) -> DType:
    """Return the machine's element type for an array without a named type.

    f64 and i64, which are NumPy's defaults, become f32 and i32.
    """
    dtype = _MACHINE.get(array.dtype)
    return (F32 if holds_floats(array) else I32) if dtype is None or dtype is I64 else dtype


class DTypeNames:
    """The element types, under PyTorch's names and under the machine's names."""

    __slots__ = ()

    float32: ClassVar[DType] = F32
    float16: ClassVar[DType] = F16
    bfloat16: ClassVar[DType] = BF16
    int32: ClassVar[DType] = I32
    int8: ClassVar[DType] = I8
    int64: ClassVar[DType] = I64
    int16: ClassVar[DType] = I16
    uint8: ClassVar[DType] = U8
    uint16: ClassVar[DType] = U16
    uint32: ClassVar[DType] = U32
    uint64: ClassVar[DType] = U64
    float8_e4m3fn: ClassVar[DType] = F8E4M3
    float8_e5m2: ClassVar[DType] = F8E5M2
    float: ClassVar[DType] = F32
    half: ClassVar[DType] = F16
    int: ClassVar[DType] = I32
    long: ClassVar[DType] = I64
    short: ClassVar[DType] = I16
    f32: ClassVar[DType] = F32
    f16: ClassVar[DType] = F16
    bf16: ClassVar[DType] = BF16
    i32: ClassVar[DType] = I32
    i8: ClassVar[DType] = I8
    i64: ClassVar[DType] = I64
    i16: ClassVar[DType] = I16
    u8: ClassVar[DType] = U8
    u16: ClassVar[DType] = U16
    u32: ClassVar[DType] = U32
    u64: ClassVar[DType] = U64
    f8e4m3: ClassVar[DType] = F8E4M3
    f8e5m2: ClassVar[DType] = F8E5M2


@value
class Tolerance:
    """The tolerances of a comparison: ``|actual - expected| <= atol + rtol * |expected|``."""

    rtol: float = figure("relative tolerance")
    atol: float = figure("absolute tolerance")


# The defaults of torch.testing.assert_close. It lists no f8 types: theirs is one unit in the last place.
_TOLERANCES = {
    "float64": Tolerance(1e-7, 1e-7),
    "f32": Tolerance(1.3e-6, 1e-5),
    "f16": Tolerance(1e-3, 1e-5),
    "bf16": Tolerance(1.6e-2, 1e-5),
    "f8e4m3": Tolerance(0.125, 2**-9),
    "f8e5m2": Tolerance(0.25, 2**-16),
}
_EXACT = Tolerance(0.0, 0.0)
_ELEMENTS_AT_ONCE = 1 << 16


def tolerance_for(dtype: DType, rtol: float | None = None, atol: float | None = None) -> Tolerance:
    """Return the requested tolerances, else the defaults of the dtype; integers have to be equal by default."""
    default = _TOLERANCES.get(dtype.name, _EXACT)
    return Tolerance(default.rtol if rtol is None else rtol, default.atol if atol is None else atol)


@value
class Errors:
    """The ``wrong`` elements, as a mask of bools, and the maximum errors, which are NaN if any error is NaN."""

    wrong: Array
    max_abs: float
    max_rel: float


def errors_of(actual: Array, expected: Array, tolerance: Tolerance, *, equal_nan: bool) -> Errors:
    """Compare two arrays of the same shape in f64. NaN equals NaN only with ``equal_nan``."""
    # Compare block by block: the f64 errors of a large tensor need many times the memory of the tensor.
    got, wanted = actual.reshape(-1), expected.reshape(-1)
    wrong = np.empty(got.size, np.bool_)
    max_abs = max_rel = 0.0
    for at in range(0, got.size, _ELEMENTS_AT_ONCE):
        part = slice(at, at + _ELEMENTS_AT_ONCE)
        block = _block_errors(got[part], wanted[part], tolerance, equal_nan=equal_nan)
        wrong[part] = block.wrong
        max_abs, max_rel = greater(max_abs, block.max_abs), greater(max_rel, block.max_rel)
    return Errors(wrong.reshape(actual.shape), max_abs, max_rel)


def first_true(mask: Array) -> Index:
    """Return the index of the first true element; ``mask`` has at least one."""
    return tuple(int(at) for at in np.unravel_index(int(np.argmax(mask)), mask.shape))


def greater(a: float, b: float) -> float:
    """Return the greater number, as ``max`` does, but NaN if either is NaN."""
    return float(np.maximum(a, b))


def _block_errors(actual: Array, expected: Array, tolerance: Tolerance, *, equal_nan: bool) -> Errors:
    got, wanted = actual.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        error = np.where(got == wanted, 0.0, np.abs(got - wanted))
        near = error <= tolerance.atol + tolerance.rtol * np.abs(wanted)
    # Only infinity is close to infinity, for any tolerance.
    wrong = (got != wanted) & ~(near & np.isfinite(wanted))
    if equal_nan:
        both_nan = np.isnan(got) & np.isnan(wanted)
        wrong, error = wrong & ~both_nan, np.where(both_nan, 0.0, error)
    return Errors(wrong, float(error.max()), _max_relative(error, wanted))


def _max_relative(error: Array, wanted: Array) -> float:
    """Return the largest relative error among the elements whose expected value is not zero."""
    magnitude = np.abs(wanted)
    nonzero = magnitude > 0
    with np.errstate(invalid="ignore"):
        return float((error[nonzero] / magnitude[nonzero]).max(initial=0.0))
