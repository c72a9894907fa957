"""Extents: the buffers of a memory, and what they keep instead of copying it.

An array that can no longer change may be kept as it is where it is written; others may keep the same, so that a tensor
and all that was loaded of it are there once. Whoever writes to a part of one takes it in first.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import attrgetter
from typing import Any

import numpy as np

from kernbench.common.dtypes import Array, Shape

GRANULE_BYTES = 64 * 1024
_BLOCK_BYTES = 16 * GRANULE_BYTES
_START, _END = attrgetter("start"), attrgetter("end")


class Zeros:
    """Buffers of zeros. Small ones are parts of blocks, whose pages the system makes when they are touched."""

    __slots__ = ("_block", "_used")

    def __init__(self) -> None:
        self._block: Array = np.zeros(0, np.uint8)
        self._used = 0

    def take(self, nbytes: int) -> Array:
        """``nbytes`` zeros."""
        if nbytes >= _BLOCK_BYTES:
            return np.zeros(nbytes, np.uint8)
        if self._used + nbytes > self._block.size:
            self._block, self._used = np.zeros(_BLOCK_BYTES, np.uint8), 0
        self._used += nbytes
        return self._block[self._used - nbytes : self._used]


class _Kept:
    """What the addresses ``[start, end)`` hold: bytes that never change."""

    __slots__ = ("data", "end", "start")

    def __init__(self, start: int, data: Array) -> None:
        self.start = start
        self.end = start + data.size
        self.data = data


class Extent:
    """Bytes ``[start, end)`` of a memory; ``written`` has a flag per byte when somebody wants to know.

    Its buffer is made when it is needed, and is stale where arrays are kept, which are in the order of their addresses
    and do not overlap.
    """

    __slots__ = ("_data", "_kept", "_zeros", "end", "start", "written")

    def __init__(self, start: int, end: int, zeros: Zeros, *, tracked: bool) -> None:
        self.start = start
        self.end = end
        self._zeros = zeros
        self._data: Array | None = None
        self._kept: list[_Kept] = []
        self.written: Array | None = np.zeros(end - start, np.bool_) if tracked else None

    def seen(self, addr: int, end: int, shape: Shape, dtype: np.dtype[Any], strides: Shape | None) -> Array:
        """The elements from ``addr``, which end before ``end``, to be looked at until the next write; read-only if they
        never change."""
        if self._kept:
            kept = self._kept[self._overlapping(addr, end)]
            if len(kept) == 1 and kept[0].start <= addr and end <= kept[0].end:
                return np.ndarray(shape, dtype, kept[0].data, addr - kept[0].start, strides)
            self._take_in(addr, end)
        data = self._buffer() if self._data is None else self._data
        return np.ndarray(shape, dtype, data, addr - self.start, strides)

    def place(self, addr: int, end: int, shape: Shape, dtype: np.dtype[Any], strides: Shape | None) -> Array | None:
        """The elements in the buffer, to be written to as well; None if some are kept."""
        where = self._overlapping(addr, end)
        return None if where.start < where.stop else self.seen(addr, end, shape, dtype, strides)

    def put(self, addr: int, end: int, array: Array, strides: Shape | None) -> None:
        """Write ``array`` from ``addr``; it ends before ``end``."""
        if self._kept:
            self._take_in(addr, end, overwritten=strides is None)
        data = self._buffer() if self._data is None else self._data
        np.ndarray(array.shape, array.dtype, data, addr - self.start, strides)[...] = array

    def keep(self, addr: int, data: Array) -> None:
        """As ``put`` of bytes that never change."""
        end = addr + data.size
        self._take_in(addr, end, overwritten=True)
        self._kept.insert(self._overlapping(addr, end).start, _Kept(addr, data))

    def _overlapping(self, addr: int, end: int) -> slice:
        """Where the kept arrays that overlap ``[addr, end)`` are, or would be."""
        first = bisect_right(self._kept, addr, key=_END)
        return slice(first, bisect_left(self._kept, end, first, key=_START))

    def _take_in(self, addr: int, end: int, *, overwritten: bool = False) -> None:
        """Copy what is kept in ``[addr, end)`` to the buffer, but for what is ``overwritten`` as a whole."""
        where = self._overlapping(addr, end)
        for kept in self._kept[where]:
            if not (overwritten and addr <= kept.start and kept.end <= end):
                self._buffer()[kept.start - self.start : kept.end - self.start] = kept.data
        del self._kept[where]

    def _buffer(self) -> Array:
        if self._data is None:
            self._data = self._zeros.take(self.end - self.start)
        return self._data


def never_changes(array: Array) -> bool:
    """Whether nobody can write to the bytes of ``array``: it is read-only, and so is all that it is a view of."""
    whole: object = array
    while isinstance(whole, np.ndarray):
        if whole.flags.writeable:
            return False
        whole = whole.base
    return whole is None
