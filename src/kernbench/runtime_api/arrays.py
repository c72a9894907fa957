"""Arrays, shapes, numbers and element types as programs give them: check, convert and compare them."""

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
from kernbench.common.values import value
from kernbench.policy.placement.geometry import Index


def whole_number(given: object) -> int | None:
    """Return ``given`` as an int; None unless it is a whole number.

    ``True`` and ``1.0`` are not: a program that gives them meant something else.
    """
    if isinstance(given, bool | np.bool_):
        return None
    try:
        return index(given)  # type: ignore[arg-type]
    except TypeError:
        return None


SizeArg: TypeAlias = int | tuple[int, ...] | list[int]


class ShapeError(InputError, ValueError):
    """Shapes that do not fit each other."""


def shape_of(size: tuple[SizeArg, ...]) -> Shape:
    """Return the shape that ``zeros(2, 3)`` or ``zeros((2, 3))`` asks for."""
    extents = size[0] if len(size) == 1 and isinstance(size[0], tuple | list) else size
    try:
        return tuple(index(extent) for extent in extents)  # type: ignore[arg-type]
    except TypeError:
        raise InputError(f"{extents!r} is no shape; write (2, 3)") from None


def complete_shape(shape: Shape, size: int) -> Shape | None:
    """Return the shape with its one -1 worked out; None unless it then has ``size`` elements."""
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
    """Something with a shape, which is asked for it as PyTorch's tensors are."""

    __slots__ = ()

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis."""

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


def numeric(source: object, what: str) -> Array:
    """Return ``source`` (an array, a number, nested lists) as an array; InputError unless it holds real numbers."""
    array = np.asarray(source)
    if array.dtype not in _MACHINE and array.dtype.kind not in _NUMBERS:
        raise InputError(f"{what}: {type(source).__name__} of {array.dtype} is no array of real numbers")
    return array


def convert(source: Array, dtype: DType) -> Array:
    """Return a row-major copy with elements of ``dtype``.

    They convert as in PyTorch: rounded to nearest even, infinite where too large.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return source.astype(dtype.numpy, order="C", copy=True)


def as_bytes(array: Array) -> Array:
    """Return the bytes of a row-major array, without a copy."""
    return array.reshape(-1).view(np.uint8)


def host_dtype(array: Array) -> DType:
    """Return the element type of an array: one of the machine's, else a description of NumPy's own."""
    return _MACHINE.get(array.dtype) or DType(array.dtype.name, array.itemsize, array.dtype, array.dtype.kind == "f")


def holds_floats(array: Array) -> bool:
    """Return True when the elements are floating-point numbers of any width."""
    kind = _MACHINE.get(array.dtype)
    return array.dtype.kind == "f" if kind is None else kind.is_float


def machine_dtype(array: Array) -> DType:
    """Return the machine's type for the elements of an array without a named type.

    f64 and i64, which NumPy has where nothing else is said, become f32 and i32.
    """
    found = _MACHINE.get(array.dtype)
    return (F32 if holds_floats(array) else I32) if found is None or found is I64 else found


class DTypeNames:
    """The element types under PyTorch's names and under the machine's own."""

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
    """``|actual - expected| <= atol + rtol * |expected|``."""

    rtol: float
    atol: float


# Those of torch.testing.assert_close; of the f8 types, which it does not list, one unit in the last place.
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
    """Return the tolerances asked for, else those that fit the dtype: integers have to be equal."""
    default = _TOLERANCES.get(dtype.name, _EXACT)
    return Tolerance(default.rtol if rtol is None else rtol, default.atol if atol is None else atol)


@value
class Errors:
    """The ``wrong`` elements (a bool each, in the shape compared) and the maximum errors: NaN when one is NaN."""

    wrong: Array
    max_abs: float
    max_rel: float


def errors_of(actual: Array, expected: Array, tolerance: Tolerance, *, equal_nan: bool) -> Errors:
    """Compare two arrays of one shape in f64. NaN equals NaN only if asked."""
    # Block by block: the errors of a large tensor in f64 would take many times its memory.
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
    """Return the index of the first element that is true; there has to be one."""
    return tuple(int(at) for at in np.unravel_index(int(np.argmax(mask)), mask.shape))


def greater(a: float, b: float) -> float:
    """Return the greater number as ``max`` does, but NaN when one is NaN."""
    return float(np.maximum(a, b))


def _block_errors(actual: Array, expected: Array, tolerance: Tolerance, *, equal_nan: bool) -> Errors:
    got, wanted = actual.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        error = np.where(got == wanted, 0.0, np.abs(got - wanted))
        near = error <= tolerance.atol + tolerance.rtol * np.abs(wanted)
    # Whatever the tolerances, only infinity itself is close to infinity.
    wrong = (got != wanted) & ~(near & np.isfinite(wanted))
    if equal_nan:
        both_nan = np.isnan(got) & np.isnan(wanted)
        wrong, error = wrong & ~both_nan, np.where(both_nan, 0.0, error)
    return Errors(wrong, float(error.max()), _max_relative(error, wanted))


def _max_relative(error: Array, wanted: Array) -> float:
    """Return the greatest relative error among the elements whose expected value is not zero."""
    magnitude = np.abs(wanted)
    some = magnitude > 0
    with np.errstate(invalid="ignore"):
        return float((error[some] / magnitude[some]).max(initial=0.0))
