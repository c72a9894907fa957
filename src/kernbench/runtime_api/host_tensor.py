"""A tensor in the host's memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from kernbench.common.dtypes import Array, DType
from kernbench.common.dtypes import dtype as dtype_of
from kernbench.runtime_api.arrays import Shaped, Size, converted, host_dtype, shape_of


class HostTensor(Shaped, NDArrayOperatorsMixin):
    """A view of a NumPy array with the face of a tensor: no simulated time passes here.

    NumPy functions and operators take it and give arrays.
    """

    __slots__ = ("_array",)
    __hash__ = None  # type: ignore[assignment] # comparing gives an array, as NumPy's and PyTorch's do

    def __init__(self, array: Array) -> None:
        self._array = array

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis."""
        return self._array.shape

    @property
    def dtype(self) -> DType:
        """The element type; types that the machine does not have keep NumPy's name."""
        return host_dtype(self._array)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self._array.nbytes

    @property
    def device(self) -> str:
        """``"cpu"``: the host."""
        return "cpu"

    def numpy(self) -> Array:
        """The array itself, not a copy."""
        return self._array

    def to(self, dtype: object) -> HostTensor:
        """A copy with another element type."""
        return HostTensor(converted(self._array, dtype_of(dtype)))

    def clone(self) -> HostTensor:
        """A copy."""
        return HostTensor(self._array.copy())

    def reshape(self, *shape: Size) -> HostTensor:
        """The array under another shape; ValueError for another number of elements."""
        return HostTensor(self._array.reshape(shape_of(shape)))

    def item(self) -> Any:
        """The only element as a Python number; ValueError when there are more."""
        return self._array.item()

    def tolist(self) -> Any:
        """Nested lists of Python numbers."""
        return self._array.tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self._array, dtype=dtype, copy=bool(copy)) if copy else np.asarray(self._array, dtype=dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        plain = (each.numpy() if isinstance(each, HostTensor) else each for each in inputs)
        return getattr(ufunc, method)(*plain, **kwargs)

    def __getitem__(self, index: Any) -> HostTensor:
        return HostTensor(np.asarray(self._array[index]))

    def __setitem__(self, index: Any, value: Any) -> None:
        self._array[index] = np.asarray(value)

    def __len__(self) -> int:
        return len(self._array)

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        return bool(self._array)

    def __repr__(self) -> str:
        return f"HostTensor({self._array!r})"
