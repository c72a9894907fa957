"""The memories of the mock: arrays behind virtual addresses, and the TCM of a PE."""

from __future__ import annotations

from bisect import bisect_right
from mmap import mmap
from typing import Any, TypeAlias

import numpy as np

from kernbench.common.dtypes import DType, row_major
from kernbench.common.errors import AddressFaultError
from kernbench.messages.commands import MemoryRef
from kernbench.messages.operands import Operand

Array: TypeAlias = np.ndarray[Any, Any]
Shape: TypeAlias = tuple[int, ...]

_FIRST_VA = 1 << 20
_GUARD_BYTES = 4096
TCM_BASE = 1 << 16


class MockMemory:
    """The memory of a SIP: arrays that were placed, with gaps between them that no access may touch."""

    def __init__(self) -> None:
        self._bases: list[int] = []
        self._regions: list[Array] = []
        self._next = _FIRST_VA

    def place(self, array: Array) -> int:
        """Copy ``array`` into memory; returns its virtual address."""
        va = self._next
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8).copy()
        self._bases.append(va)
        self._regions.append(raw)
        self._next = va + -(-(raw.nbytes + _GUARD_BYTES) // _GUARD_BYTES) * _GUARD_BYTES
        return va

    def read(self, va: int, shape: Shape, dtype: np.dtype[Any]) -> Array:
        """A copy of the array at ``va``."""
        return self._view(va, shape, dtype, None).copy()

    def view(self, ref: MemoryRef, valid: Shape | None = None) -> Array:
        """The part of an array in memory that is within ``valid``, to be read or written."""
        strides = ref.strides
        if strides is None and valid is not None:
            strides = row_major(ref.shape, ref.dtype.itemsize)
        return self._view(ref.va, ref.shape if valid is None else valid, ref.dtype.numpy, strides)

    def _view(self, va: int, shape: Shape, dtype: np.dtype[Any], strides: Shape | None) -> Array:
        if 0 in shape:
            return np.zeros(shape, dtype)
        steps = row_major(shape, dtype.itemsize) if strides is None else strides
        span = sum((n - 1) * step for n, step in zip(shape, steps, strict=True)) + dtype.itemsize
        at = bisect_right(self._bases, va) - 1
        region = self._regions[at] if at >= 0 else np.zeros(0, np.uint8)
        offset = va - self._bases[at] if at >= 0 else va
        if offset + span > region.nbytes:
            raise AddressFaultError(f"{span} bytes at virtual address {va:#x}: {self._nearest(at, offset)}")
        return np.ndarray(shape, dtype, region.data, offset, steps)

    def _nearest(self, at: int, offset: int) -> str:
        if at < 0:
            return "no tensor is there"
        return f"the tensor before it ends {offset - self._regions[at].nbytes:+d} bytes from there"


class MockTcm:
    """The TCM of a PE: scratch, and behind it the rings of its queues."""

    def __init__(self, scratch_bytes: int, ring_bytes: int) -> None:
        self.scratch_bytes = scratch_bytes
        # Most of it is never touched: pages of its own cost nothing until they are, a NumPy array may be filled.
        self._raw: Array = np.frombuffer(mmap(-1, scratch_bytes + ring_bytes), np.uint8)

    @property
    def rings(self) -> int:
        """Where the rings begin."""
        return TCM_BASE + self.scratch_bytes

    def view(self, array: Operand) -> Array:
        """An array, to be read or written."""
        return self._view(array.address, array.shape, array.dtype)

    def window(self, address: int, nbytes: int) -> Array:
        """Bytes, to be read or written."""
        return self._raw[address - TCM_BASE : address - TCM_BASE + nbytes]

    def _view(self, address: int, shape: Shape, dtype: DType) -> Array:
        return np.ndarray(shape, dtype.numpy, self._raw.data, address - TCM_BASE)
