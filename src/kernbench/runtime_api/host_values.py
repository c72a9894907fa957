"""What the host hands to the machine, held until phase 2 writes it: one copy, or how to make it."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import ref

import numpy as np

from kernbench.common.dtypes import Array, DType
from kernbench.messages.requests import HostBytes
from kernbench.numerics.memory import never_changes
from kernbench.runtime_api.arrays import as_bytes, converted

if TYPE_CHECKING:
    from kernbench.runtime_api.tensor import Tensor


class LaterArray:
    """An array of ``shape`` that ``make`` makes when its elements are asked for: NumPy functions and ``copy_`` take it.

    They are kept as long as somebody uses them; who asks later has them made again, equal. A run that reads no value
    never makes them.
    """

    __slots__ = ("_made", "_make", "shape")

    def __init__(self, shape: tuple[int, ...], make: Callable[[], Array]) -> None:
        self.shape, self._make = shape, make
        self._made: Callable[[], Array | None] = _nothing

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Make the elements."""
        made = self._made()
        if made is None:
            made = self._make()
            assert made.shape == self.shape, f"an array of {self.shape} was made with shape {made.shape}"
            self._made = ref(made)
        return made if dtype is None else made.astype(dtype, copy=bool(copy))


def _nothing() -> None:
    """What is referred to before anything was made."""


Source: TypeAlias = "Array | LaterArray"


def snapshot(source: Array) -> Array:
    """Return a read-only array of the elements as they are now; a copy, unless nobody can change them.

    Elements that ``source`` repeats are copied once.
    """
    if never_changes(source):
        return source
    once = tuple(slice(0, 1) if step == 0 and extent else slice(None) for step, extent in _axes(source))
    kept = np.array(source[once])
    kept.flags.writeable = False
    return np.broadcast_to(kept, source.shape)


def _axes(array: Array) -> zip[tuple[int, int]]:
    return zip(array.strides, array.shape, strict=True)


class HeldValues:
    """``source`` as a transfer sends it, in ``shape`` and ``dtype``: windows of it, made when phase 2 writes them."""

    __slots__ = ("_dtype", "_elements", "_held_bytes", "_shape", "_source")

    def __init__(self, source: Source, shape: tuple[int, ...], dtype: DType) -> None:
        self._shape, self._dtype = shape, dtype
        self._source, self._held_bytes = source, 0
        if isinstance(source, np.ndarray):
            self._source = kept = snapshot(source)
            self._held_bytes = prod(extent for step, extent in _axes(kept) if step) * kept.itemsize
        self._elements: Array | None = None

    def window(self, index: tuple[slice, ...]) -> HostBytes:
        """Return the bytes of a part, which count as all of what is held the first time."""
        held, self._held_bytes = self._held_bytes, 0
        nbytes = prod(len(range(*part.indices(n))) for part, n in zip(index, self._shape, strict=True))
        return HostBytes(nbytes * self._dtype.itemsize, lambda: self._bytes(index), held)

    def _bytes(self, index: tuple[slice, ...]) -> Array:
        if self._elements is None:
            self._elements = np.broadcast_to(np.asarray(self._source), self._shape)
        whole = self._elements
        part = np.asarray(whole[index])
        if never_changes(whole) and part.dtype == self._dtype.numpy and part.flags.c_contiguous:
            return as_bytes(part)  # memory keeps it as it is
        made = converted(part, self._dtype)
        made.flags.writeable = False  # so that memory may keep it, for all copies of the part
        return as_bytes(made)


class KnownValues:
    """Elements of tensors that a run without data knows all the same: the host wrote them, and no kernel since."""

    __slots__ = ("_elements",)

    def __init__(self) -> None:
        self._elements: dict[Tensor, Array] = {}

    def of(self, tensor: Tensor) -> Array | None:
        """Return all elements of a tensor; None if they are not known."""
        return self._elements.get(tensor)

    def put(self, tensor: Tensor, first: int, elements: Array) -> None:
        """Take over what the host writes from element ``first`` on; of one that is not known it has to be all."""
        if len(elements) == tensor.numel():
            self._elements[tensor] = np.array(elements)
        elif tensor in self._elements:
            self._elements[tensor][first : first + len(elements)] = elements

    def forget(self, tensor: Tensor) -> None:
        """The elements are not known any more."""
        self._elements.pop(tensor, None)

    def forget_range(self, sip: int, first: int, end: int) -> None:
        """A kernel writes at virtual addresses of a SIP from ``first`` to before ``end``."""
        there = [each for each in self._elements if each.sip == sip and each.va < end and first < each.va + each.nbytes]
        for tensor in there:
            self.forget(tensor)
