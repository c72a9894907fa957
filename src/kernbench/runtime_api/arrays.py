"""NumPy arrays as the runtime uses them: what a program may hand over, and how it becomes a machine type."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from kernbench.common.dtypes import ALL, F32, I32, DType
from kernbench.common.errors import InputError

Array: TypeAlias = npt.NDArray[Any]

_MACHINE = {kind.numpy: kind for kind in ALL}
_NUMBERS = "biuf"


def numeric(source: object, what: str) -> Array:
    """``source`` (an array, a number, nested lists) as an array; InputError unless it holds real numbers."""
    array = np.asarray(source)
    if array.dtype not in _MACHINE and array.dtype.kind not in _NUMBERS:
        raise InputError(f"{what}: {type(source).__name__} of {array.dtype} is no array of real numbers")
    return array


def converted(source: Array, dtype: DType) -> Array:
    """A row-major copy with elements of ``dtype``, as PyTorch converts: rounded to nearest even, too large is inf."""
    with np.errstate(over="ignore", invalid="ignore"):
        return source.astype(dtype.numpy, order="C", copy=True)


def as_bytes(array: Array) -> Array:
    """The bytes of a row-major array, without a copy."""
    return array.reshape(-1).view(np.uint8)


def host_dtype(array: Array) -> DType:
    """The element type of an array: one of the machine, else a description of NumPy's own."""
    return _MACHINE.get(array.dtype) or DType(array.dtype.name, array.itemsize, array.dtype)


def holds_floats(array: Array) -> bool:
    """Whether the elements are floating-point numbers of any width."""
    kind = _MACHINE.get(array.dtype)
    return array.dtype.kind == "f" if kind is None else kind.is_float


def machine_dtype(array: Array) -> DType:
    """The machine's type for the elements of an array, where nobody names one: wide numbers become f32 and i32."""
    return _MACHINE.get(array.dtype) or (F32 if holds_floats(array) else I32)
