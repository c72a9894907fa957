"""The element types of the machine, with their names in NumPy and PyTorch; types of arrays, shapes and strides."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from kernbench.common.errors import UnknownNameError
from kernbench.common.values import value

Array: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[Any]]
Shape: TypeAlias = tuple[int, ...]


@value
class DType:
    """An element type: its short name, its size in bytes, its NumPy type, and ``is_float``."""

    name: str
    itemsize: int
    numpy: np.dtype
    is_float: bool

    def __str__(self) -> str:
        return self.name


F32 = DType("f32", 4, np.dtype(np.float32), True)
F16 = DType("f16", 2, np.dtype(np.float16), True)
BF16 = DType("bf16", 2, np.dtype(ml_dtypes.bfloat16), True)
I32 = DType("i32", 4, np.dtype(np.int32), False)
I8 = DType("i8", 1, np.dtype(np.int8), False)
F8E4M3 = DType("f8e4m3", 1, np.dtype(ml_dtypes.float8_e4m3fn), True)
F8E5M2 = DType("f8e5m2", 1, np.dtype(ml_dtypes.float8_e5m2), True)
I64 = DType("i64", 8, np.dtype(np.int64), False)
I16 = DType("i16", 2, np.dtype(np.int16), False)
U8 = DType("u8", 1, np.dtype(np.uint8), False)
"""Also the element type of raw bytes in host transfers and fills."""
U16 = DType("u16", 2, np.dtype(np.uint16), False)
U32 = DType("u32", 4, np.dtype(np.uint32), False)
U64 = DType("u64", 8, np.dtype(np.uint64), False)
ALL = (F32, F16, BF16, I32, I8, F8E4M3, F8E5M2, I64, I16, U8, U16, U32, U64)

DTypeLike: TypeAlias = DType | str | type[float] | type[int] | np.dtype[Any] | type[np.generic]
"""An element type, or what `dtype` resolves to one: a name, a NumPy type, or Python's float or int"""

_NAMES: dict[str, DType] = {t.name: t for t in ALL} | {t.numpy.name: t for t in ALL}
_NAMES |= {
    "fp32": F32,
    "float": F32,
    "fp16": F16,
    "half": F16,
    "int": I32,
    "long": I64,
    "short": I16,
    "float8_e4m3": F8E4M3,
}
_NAMES |= {"fp8e4m3": F8E4M3, "fp8e5m2": F8E5M2}
# Python's types mean the same as the names "float" and "int".
_PYTHON: dict[object, DType] = {float: F32, int: I32}


def dtype(name: object) -> DType:
    """Return the element type for ``name``.

    ``name`` is a DType, a short, NumPy or PyTorch name, a NumPy dtype, or Python's float or int. Raises
    UnknownNameError, which lists the names.
    """
    if isinstance(name, DType):
        return name
    if isinstance(name, type) and name in _PYTHON:
        return _PYTHON[name]
    text = name if isinstance(name, str) else numpy_name(name)
    element = _NAMES.get(text.removeprefix("torch."))
    if element is None:
        raise UnknownNameError("dtype", text, tuple(t.name for t in ALL))
    return element


def numpy_name(name: object) -> str:
    """Return NumPy's name for ``name``, or ``str(name)`` if NumPy does not know the type (a torch dtype)."""
    try:
        return "None" if name is None else np.dtype(name).name  # type: ignore[call-overload]
    except TypeError:
        return str(name)


def is_type(value: object) -> bool:
    """Return True for an element type: a DType, a NumPy dtype, or a class of numbers of NumPy or Python."""
    numbers = isinstance(value, type) and issubclass(value, np.generic | float | int)
    return numbers or isinstance(value, DType | np.dtype)


def misfit(value: float, kind: DType) -> str:
    """Return the reason why ``kind`` cannot represent ``value``, or an empty text if it can.

    A float type represents any number.
    """
    if kind.is_float:
        return ""
    limits = np.iinfo(kind.numpy)
    if not math.isfinite(value) or value != int(value):
        return f"{value!r} is not a whole number"
    return "" if limits.min <= value <= limits.max else f"{value!r} does not fit {kind} ({limits.min} to {limits.max})"


def row_major(shape: Shape, itemsize: int) -> tuple[int, ...]:
    """Return the strides in bytes, per axis, of a contiguous array."""
    strides: list[int] = []
    for n in reversed(shape):
        strides.append(itemsize)
        itemsize *= n
    return tuple(reversed(strides))
