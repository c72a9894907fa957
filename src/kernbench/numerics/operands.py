"""Operands of the op-log as arrays in the memory store, with strides, segments and ragged edges."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from itertools import accumulate
from math import prod

import numpy as np

from kernbench.common.dtypes import U8, Array, row_major
from kernbench.common.errors import RunError
from kernbench.messages.commands import NOWHERE, Operand
from kernbench.numerics.memory import MemoryStore, as_bytes, never_changes, split

# The largest number of cached places, more than 256 PEs use concurrently; a full cache is cleared.
_CACHED_PLACES = 1 << 17
# Unchanging arrays of at least this size are stored without a copy, and their places are not cached.
_LARGE_BYTES = 16 * 1024


class Segments:
    """Byte ranges joined end to end, which map offsets to addresses."""

    __slots__ = ("_addresses", "_ends")

    def __init__(self, segments: tuple[tuple[int, int], ...]) -> None:
        self._ends = list(accumulate(nbytes for _, nbytes in segments))
        # Stores address minus offset, so the conversion is one addition.
        self._addresses = [a - end + n for (a, n), end in zip(segments, self._ends, strict=True)]

    def end_at(self, offset: int) -> int:
        """Return the offset at the end of the segment that contains ``offset``. Raises RunError after the last one."""
        return self._ends[self._index(offset)]

    def address(self, offset: int) -> int:
        """Return the address of the byte at ``offset``. Raises RunError after the last segment."""
        return self._addresses[self._index(offset)] + offset

    def _index(self, offset: int) -> int:
        i = bisect_right(self._ends, offset)
        if i == len(self._ends):
            raise RunError(f"an operand reaches byte {offset} of segments with {self._ends[-1]} bytes")
        return i


class OperandMemory:
    """Reads and writes of operands in a memory store."""

    __slots__ = ("_operands", "_places", "_store")

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        # The key is the identity of the operand, which is fast: the log has one operand for all uses of an array.
        self._places: dict[int, Array] = {}
        self._operands: list[Operand] = []  # keeps the operands of all places alive, so identities stay unique

    def load(self, operand: Operand, *, private: bool) -> Array:
        """Return the operand's array. With ``private``, later writes to memory do not change the array.

        Without ``private``, the array may be a view of memory and must not be written.
        """
        place = self._places.get(id(operand))
        if place is None:
            place = self._find(operand)
        if place is not None:
            return place.copy() if private else place
        if _is_list(operand):
            return _gather(self._store, operand)
        if operand.segments or operand.valid is not None:
            return _pad(operand, _load_region(self._store, operand))
        array = self._store.view(operand.space, operand.address, operand.shape, operand.dtype, operand.strides)
        return array.copy() if private and not (array.base is None or never_changes(array)) else array

    def deposit(self, operand: Operand, array: Array) -> None:
        """Write ``array`` to the operand's bytes. Raises RunError if the shapes differ."""
        place = self._places.get(id(operand))
        if place is None:
            if operand.nbytes >= _LARGE_BYTES and array.shape == operand.shape and _is_dense(operand):
                if not array.flags.writeable:  # the store copies a writeable array into the same places
                    self._forget_places()
                self._store.keep(operand.space, operand.address, array)
                return
            place = self._find(operand)
        if place is not None and array.shape == operand.shape:
            place[...] = array
        else:
            _deposit(self._store, operand, array)

    def _find(self, operand: Operand) -> Array | None:
        """Return the array of ``operand`` in place, to read and write, or None if it is not cached or not contiguous.

        Only small arrays in TCM are cached: in HBM, most operands are used once.
        """
        if operand.space != "tcm" or operand.nbytes >= _LARGE_BYTES or operand.strides is not None:
            return None
        if operand.segments or operand.valid is not None:
            return None
        place = self._store.place("tcm", operand.address, operand.shape, operand.dtype)
        if place is not None:
            if len(self._places) == _CACHED_PLACES:
                self._forget_places()
            self._places[id(operand)] = place
            self._operands.append(operand)
        return place

    def _forget_places(self) -> None:
        self._places.clear()
        self._operands.clear()


def _deposit(store: MemoryStore, operand: Operand, array: Array) -> None:
    if array.shape != operand.shape:
        raise RunError(f"a result of shape {array.shape} does not fit an output of shape {operand.shape}")
    if _is_list(operand):
        _scatter(store, operand, array)
        return
    if operand.valid is not None:
        array = array[_bounds(operand)]
    if not operand.segments:
        store.write(operand.space, operand.address, array, _strides(operand))
        return
    segments = Segments(operand.segments)
    # The array may be a view of this memory: writing one part must not change the source of the next part.
    source = array if array.base is None else array.copy()
    for offset, part, steps in split(0, as_bytes(source), (*operand.byte_strides, 1), segments.end_at):
        store.write(operand.space, segments.address(offset), part, steps)


def _is_dense(operand: Operand) -> bool:
    """Return True if the elements are one contiguous range of bytes, in order."""
    if operand.segments or operand.valid is not None:
        return False
    return operand.strides is None or operand.strides == row_major(operand.shape, operand.dtype.itemsize)


def _is_list(operand: Operand) -> bool:
    """Return True if the segments contain only the elements, in order, without gaps between or after rows."""
    if not operand.segments or operand.strides is not None or operand.valid is not None:
        return False
    return sum(nbytes for _, nbytes in operand.segments) == operand.nbytes


def _gather(store: MemoryStore, operand: Operand) -> Array:
    array = np.full(operand.shape, operand.other, operand.dtype.numpy)
    raw, at = as_bytes(array).reshape(-1), 0
    for address, nbytes in operand.segments:
        if address != NOWHERE:
            raw[at : at + nbytes] = store.view(operand.space, address, (nbytes,), U8)
        at += nbytes
    return array


def _scatter(store: MemoryStore, operand: Operand, array: Array) -> None:
    # The array may be a view of this memory: writing one part must not change the source of the next part.
    source = array if array.base is None else array.copy()
    raw, at = as_bytes(source).reshape(-1), 0
    for address, nbytes in operand.segments:
        if address != NOWHERE:
            store.write(operand.space, address, raw[at : at + nbytes])
        at += nbytes


def _load_region(store: MemoryStore, operand: Operand) -> Array:
    shape = operand.shape if operand.valid is None else operand.valid
    if not operand.segments:
        return store.read(operand.space, operand.address, shape, operand.dtype, _strides(operand))
    region = np.empty(shape, operand.dtype.numpy)
    segments = Segments(operand.segments)
    for offset, part, steps in split(0, as_bytes(region).view(np.int8), (*operand.byte_strides, 1), segments.end_at):
        part[...] = store.view(operand.space, segments.address(offset), part.shape, "i8", steps)
    return region


def _pad(operand: Operand, region: Array) -> Array:
    if operand.valid is None:
        return region
    padded = np.full(operand.shape, operand.other, operand.dtype.numpy)
    padded[_bounds(operand)] = region
    return padded


def _bounds(operand: Operand) -> tuple[slice, ...]:
    valid = operand.valid or ()
    if len(valid) != len(operand.shape) or any(not 0 <= v <= n for v, n in zip(valid, operand.shape, strict=True)):
        raise RunError(f"valid={valid} is not within the shape {operand.shape}")
    return tuple(slice(0, n) for n in valid)


def _strides(operand: Operand) -> tuple[int, ...] | None:
    """Return the strides for the valid region: with bounds, rows have the pitch of the full shape."""
    return operand.strides if operand.valid is None else operand.byte_strides


def window(operand: Operand, first: tuple[int, ...], shape: tuple[int, ...]) -> Operand:
    """Return the window of ``shape`` from element ``first`` of an operand without ragged edges."""
    steps = operand.byte_strides
    offset = sum(i * s for i, s in zip(first, steps, strict=True))
    segments = _skip_bytes(operand.segments, offset)
    address = segments[0][0] if segments else operand.address + offset
    nbytes = prod(shape) * operand.dtype.itemsize
    return replace(operand, address=address, nbytes=nbytes, shape=shape, strides=steps, segments=segments)


def _skip_bytes(segments: tuple[tuple[int, int], ...], offset: int) -> tuple[tuple[int, int], ...]:
    """Return the segments without their first ``offset`` bytes."""
    remaining: list[tuple[int, int]] = []
    for address, nbytes in segments:
        skipped = min(offset, nbytes)
        offset -= skipped
        if skipped < nbytes:
            remaining.append((address + skipped, nbytes - skipped))
    return tuple(remaining)
