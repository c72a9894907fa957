"""The contents of the machine's memories: byte-addressed, sparse, zero at addresses that were never written.

A space is a sorted list of disjoint extents. A write into a hole creates an extent, rounded to complete granules. A
tensor is therefore one buffer, and many small writes create few extents. ``keep`` stores an unchanging array without
copying it, at any number of addresses, so a tensor and all loads of the tensor share one array. A write to a part of
such an array first copies the array.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from math import prod
from operator import attrgetter
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from kernbench.common.dtypes import Array, DType, Shape, row_major
from kernbench.common.dtypes import dtype as dtype_named
from kernbench.common.errors import RunError, UnknownNameError

GRANULE_BYTES = 64 * 1024
_BLOCK_BYTES = 16 * GRANULE_BYTES
_START, _END = attrgetter("start"), attrgetter("end")


class Zeros:
    """A source of buffers of zeros. Small buffers share blocks, whose pages the system allocates at first access."""

    __slots__ = ("_block", "_used")

    def __init__(self) -> None:
        self._block: Array = np.zeros(0, np.uint8)
        self._used = 0

    def take(self, nbytes: int) -> Array:
        """Return a buffer of ``nbytes`` zeros."""
        if nbytes >= _BLOCK_BYTES:
            return np.zeros(nbytes, np.uint8)
        if self._used + nbytes > self._block.size:
            self._block, self._used = np.zeros(_BLOCK_BYTES, np.uint8), 0
        self._used += nbytes
        return self._block[self._used - nbytes : self._used]


class _UnchangingBytes:
    """Bytes of the addresses ``[start, end)`` that never change."""

    __slots__ = ("data", "end", "start")

    def __init__(self, start: int, data: Array) -> None:
        self.start = start
        self.end = start + data.size
        self.data = data


class Extent:
    """The bytes ``[start, end)`` of a memory; ``written`` has a flag per byte if written bytes are tracked.

    The buffer is allocated at the first use, and is stale at the addresses of unchanging arrays. These arrays are
    disjoint and in the order of addresses.
    """

    __slots__ = ("_data", "_unchanging", "_zeros", "end", "start", "written")

    def __init__(self, start: int, end: int, zeros: Zeros, *, tracked: bool) -> None:
        self.start = start
        self.end = end
        self._zeros = zeros
        self._data: Array | None = None
        self._unchanging: list[_UnchangingBytes] = []
        self.written: Array | None = np.zeros(end - start, np.bool_) if tracked else None

    def seen(self, addr: int, end: int, shape: Shape, dtype: np.dtype[Any], strides: Shape | None) -> Array:
        """Return a view of the elements from ``addr`` to ``end``, valid until the next write.

        The view is read-only if the elements never change.
        """
        if self._unchanging:
            overlapping = self._unchanging[self._overlapping(addr, end)]
            if len(overlapping) == 1 and overlapping[0].start <= addr and end <= overlapping[0].end:
                return np.ndarray(shape, dtype, overlapping[0].data, addr - overlapping[0].start, strides)
            self._copy_to_buffer(addr, end)
        data = self._buffer() if self._data is None else self._data
        return np.ndarray(shape, dtype, data, addr - self.start, strides)

    def place(self, addr: int, end: int, shape: Shape, dtype: np.dtype[Any], strides: Shape | None) -> Array | None:
        """Return the elements in the buffer, to read and write, or None if an unchanging array has some of them."""
        where = self._overlapping(addr, end)
        return None if where.start < where.stop else self.seen(addr, end, shape, dtype, strides)

    def put(self, addr: int, end: int, array: Array, strides: Shape | None) -> None:
        """Write ``array`` from ``addr``; its last byte is before ``end``."""
        if self._unchanging:
            self._copy_to_buffer(addr, end, overwritten=strides is None)
        data = self._buffer() if self._data is None else self._data
        np.ndarray(array.shape, array.dtype, data, addr - self.start, strides)[...] = array

    def keep(self, addr: int, data: Array) -> None:
        """Store bytes that never change, without a copy."""
        end = addr + data.size
        self._copy_to_buffer(addr, end, overwritten=True)
        self._unchanging.insert(self._overlapping(addr, end).start, _UnchangingBytes(addr, data))

    def _overlapping(self, addr: int, end: int) -> slice:
        """Return the slice of unchanging arrays that overlap ``[addr, end)``."""
        first = bisect_right(self._unchanging, addr, key=_END)
        return slice(first, bisect_left(self._unchanging, end, first, key=_START))

    def _copy_to_buffer(self, addr: int, end: int, *, overwritten: bool = False) -> None:
        """Copy unchanging arrays that overlap ``[addr, end)`` to the buffer and forget them.

        With ``overwritten``, arrays inside the range are not copied.
        """
        where = self._overlapping(addr, end)
        for unchanging in self._unchanging[where]:
            if not (overwritten and addr <= unchanging.start and unchanging.end <= end):
                self._buffer()[unchanging.start - self.start : unchanging.end - self.start] = unchanging.data
        del self._unchanging[where]

    def _buffer(self) -> Array:
        if self._data is None:
            self._data = self._zeros.take(self.end - self.start)
        return self._data


def never_changes(array: Array) -> bool:
    """Return True if ``array`` and every array that it is a view of are read-only."""
    owner: object = array
    while isinstance(owner, np.ndarray):
        if owner.flags.writeable:
            return False
        owner = owner.base
    return owner is None


Space: TypeAlias = Literal["hbm", "sram", "tcm"]
OnUnwritten: TypeAlias = Callable[[str, int, int], None]
SPACES: tuple[str, ...] = get_args(Space)
_NOWHERE = 1 << 80
_BYTE = np.dtype(np.uint8)


class MemoryStore:
    """The contents of every memory, by space and physical address.

    ``on_unwritten(space, address, nbytes)`` is called once for each read of bytes that were never written, with the
    first such address and their number. Only a store that is created with this function tracks written bytes.
    """

    __slots__ = ("_memories", "_on_unwritten")

    def __init__(self, on_unwritten: OnUnwritten | None = None) -> None:
        self._on_unwritten = on_unwritten
        zeros = Zeros()
        self._memories = {space: _SpaceExtents(zeros, tracked=on_unwritten is not None) for space in SPACES}

    def read(self, space: str, addr: int, shape: Shape, dtype: DType | str, strides: Shape | None = None) -> Array:
        """Return a copy of ``shape`` elements of ``dtype`` from ``addr``; ``strides`` in bytes (None: row-major).

        Raises UnknownNameError for an unknown space, and RunError for a negative stride.
        """
        window = self._window(space, addr, shape, dtype, strides)
        return self._gather(space, addr, shape, dtype, strides) if window is None else window.copy()

    def view(self, space: str, addr: int, shape: Shape, dtype: DType | str, strides: Shape | None = None) -> Array:
        """Return the elements as ``read`` does, without a copy if they are in one extent.

        The result is read-only and valid until the next write.
        """
        window = self._window(space, addr, shape, dtype, strides)
        return self._gather(space, addr, shape, dtype, strides) if window is None else window

    def place(self, space: str, addr: int, shape: Shape, dtype: DType, strides: Shape | None = None) -> Array | None:
        """Return the elements in place, to read and write until the next ``keep`` at their addresses.

        Return None if they are not in one extent, if an unchanging array has some of them, or if reads of unwritten
        bytes are reported.
        """
        memory = self._memories.get(space) or _unknown(space)
        end = addr + (prod(shape) * dtype.itemsize if strides is None else _span(shape, dtype.itemsize, strides))
        extent = memory.extents[bisect_right(memory.starts, addr) - 1]
        if self._on_unwritten is not None or end > extent.end:
            return None
        return extent.place(addr, end, shape, dtype.numpy, strides)

    def write(self, space: str, addr: int, array: Array, strides: Shape | None = None) -> None:
        """Write the elements of ``array`` from ``addr``; ``strides`` in bytes (None: row-major)."""
        memory = self._memories.get(space) or _unknown(space)
        end = addr + (array.nbytes if strides is None else _span(array.shape, array.itemsize, strides))
        if memory.tracked:
            memory.mark(addr, *_byte_geometry(array.shape, array.itemsize, strides))
        extent = memory.extents[bisect_right(memory.starts, addr) - 1]
        if end > extent.end:
            memory.write(addr, end, array, strides)
        else:
            extent.put(addr, end, array, strides)

    def keep(self, space: str, addr: int, array: Array) -> None:
        """Write an array in row-major order; an array that can never change is stored without a copy.

        All addresses at which the array is stored share it, until one of these addresses is written.
        """
        memory = self._memories.get(space) or _unknown(space)
        if memory.tracked or not array.flags.c_contiguous or not never_changes(array):
            self.write(space, addr, array)
            return
        for at, part, _ in split(addr, as_bytes(array).reshape(-1), (1,), memory.end_at):
            (memory.extent_at(at) or memory.grown(at, at + part.size)).keep(at, part)

    def fill(self, space: str, addr: int, nbytes: int, pattern: int | bytes) -> None:
        """Repeat ``pattern``, a byte value or bytes, over ``nbytes`` from ``addr``; the last repetition may be cut."""
        self.write(space, addr, repeat_pattern(bytes((pattern,)) if isinstance(pattern, int) else pattern, nbytes))

    @property
    def is_tracked(self) -> bool:
        """True if the store tracks written bytes."""
        return self._on_unwritten is not None

    def written(self, space: str, addr: int, nbytes: int) -> Array:
        """Return a bool for each of ``nbytes`` from ``addr``: True if written. Raises RunError unless tracked."""
        memory = self._memory_of(space)
        flags = np.zeros(nbytes, np.bool_)
        for at, part, _ in split(addr, flags, (1,), memory.end_at):
            extent = memory.extent_at(at)
            if extent is not None:
                part[...] = np.ndarray(part.shape, np.bool_, extent.written, at - extent.start)
        return flags

    def forget(self, space: str, addr: int, nbytes: int) -> None:
        """Mark these bytes as unwritten, without changing them. Raises RunError unless written bytes are tracked."""
        memory = self._memory_of(space)
        for at, part, _ in split(addr, _phantom((nbytes,)), (1,), memory.end_at):
            extent = memory.extent_at(at)
            if extent is not None:
                np.ndarray(part.shape, np.bool_, extent.written, at - extent.start)[...] = False

    def allocated_bytes(self, space: str) -> int:
        """Return the bytes of address space in extents: the written bytes, rounded to granules."""
        return sum(e.end - e.start for e in (self._memories.get(space) or _unknown(space)).extents)

    def _window(self, space: str, addr: int, shape: Shape, dtype: DType | str, strides: Shape | None) -> Array | None:
        """Return a view of the elements, or None if they are not in one extent."""
        memory = self._memories.get(space) or _unknown(space)
        kind = dtype if dtype.__class__ is DType else dtype_named(dtype)
        end = addr + (prod(shape) * kind.itemsize if strides is None else _span(shape, kind.itemsize, strides))
        if self._on_unwritten is not None:
            self._check_written(memory, space, addr, _byte_geometry(shape, kind.itemsize, strides))
        extent = memory.extents[bisect_right(memory.starts, addr) - 1]
        return None if end > extent.end else extent.seen(addr, end, shape, kind.numpy, strides)

    def _gather(self, space: str, addr: int, shape: Shape, dtype: DType | str, strides: Shape | None) -> Array:
        kind = dtype_named(dtype)
        result = np.zeros(shape, kind.numpy)
        _, steps = _byte_geometry(shape, kind.itemsize, strides)
        self._memories[space].gather(addr, as_bytes(result), steps)
        return result

    def _memory_of(self, space: str) -> _SpaceExtents:
        if not self.is_tracked:
            raise RunError("this memory does not track written bytes; create it with on_unwritten=…")
        return self._memories.get(space) or _unknown(space)

    def _check_written(self, memory: _SpaceExtents, space: str, addr: int, geometry: tuple[Shape, Shape]) -> None:
        first, count = memory.unwritten(addr, *geometry)
        if count and self._on_unwritten is not None:
            self._on_unwritten(space, first, count)


class _SpaceExtents:
    """The extents of a space, in the order of their starts; the first one is empty, which simplifies searches."""

    __slots__ = ("extents", "starts", "tracked", "zeros")

    def __init__(self, zeros: Zeros, *, tracked: bool) -> None:
        self.tracked = tracked
        self.zeros = zeros
        self.starts: list[int] = [-1]
        self.extents: list[Extent] = [Extent(-1, -1, zeros, tracked=tracked)]

    def extent_at(self, addr: int) -> Extent | None:
        extent = self.extents[bisect_right(self.starts, addr) - 1]
        return extent if addr < extent.end else None

    def end_at(self, addr: int) -> int:
        """Return the end of the extent or of the hole that contains ``addr``."""
        i = bisect_right(self.starts, addr)
        if addr < self.extents[i - 1].end:
            return self.extents[i - 1].end
        return self.starts[i] if i < len(self.starts) else _NOWHERE

    def write(self, addr: int, end: int, array: Array, strides: Shape | None) -> None:
        """Write an array that is not inside one extent: into a hole, or across extents."""
        if not array.size:
            return
        if self.extent_at(addr) is None and end <= self.end_at(addr):
            self.grown(addr, end).put(addr, end, array, strides)
            return
        # The array may be a view of this memory: writing one part must not change the source of the next part.
        source = array if array.base is None else array.copy()
        self.scatter(addr, as_bytes(source), _byte_geometry(array.shape, array.itemsize, strides)[1])

    def gather(self, addr: int, target: Array, strides: Shape) -> None:
        """Copy bytes into ``target``, which initially contains zeros."""
        for at, part, steps in split(addr, target, strides, self.end_at):
            extent = self.extent_at(at)
            if extent is not None:
                part[...] = extent.seen(at, at + reach(part.shape, steps), part.shape, _BYTE, steps)

    def scatter(self, addr: int, source: Array, strides: Shape) -> None:
        for at, part, steps in split(addr, source, strides, self.end_at):
            end = at + reach(part.shape, steps)
            (self.extent_at(at) or self.grown(at, end)).put(at, end, part, steps)

    def mark(self, addr: int, shape: Shape, strides: Shape) -> None:
        """Mark bytes as written; create missing extents."""
        for at, part, steps in split(addr, _phantom(shape), strides, self.end_at):
            extent = self.extent_at(at) or self.grown(at, at + reach(part.shape, steps))
            np.ndarray(part.shape, np.bool_, extent.written, at - extent.start, steps)[...] = True

    def unwritten(self, addr: int, shape: Shape, strides: Shape) -> tuple[int, int]:
        """Return the first unwritten address and the number of unwritten bytes; (addr, 0) if all were written."""
        first, count = _NOWHERE, 0
        for at, part, steps in split(addr, _phantom(shape), strides, self.end_at):
            extent = self.extent_at(at)
            flags = (
                np.zeros(part.shape, np.bool_)
                if extent is None
                else np.ndarray(part.shape, np.bool_, extent.written, at - extent.start, steps)
            )
            if not flags.all():
                missing = np.argwhere(~flags)
                first = min(first, at + int((missing @ np.array(steps, np.int64)).min()))
                count += len(missing)
        return (first, count) if count else (addr, 0)

    def grown(self, low: int, high: int) -> Extent:
        """Create an extent for ``[low, high)`` in a hole; its bounds are rounded to granules, as those of holes are."""
        start, end = low // GRANULE_BYTES * GRANULE_BYTES, -(-high // GRANULE_BYTES) * GRANULE_BYTES
        extent = Extent(start, end, self.zeros, tracked=self.tracked)
        i = bisect_right(self.starts, start)
        self.starts.insert(i, start)
        self.extents.insert(i, extent)
        return extent


def _unknown(space: str) -> _SpaceExtents:
    raise UnknownNameError("memory space", space, SPACES)


def split(addr: int, array: Array, strides: Shape, end_at: Callable[[int], int]) -> Iterator[tuple[int, Array, Shape]]:
    """Split an access of ``array``'s bytes from ``addr`` into parts that end at ``end_at(first byte)`` or before.

    Yield (address, part of ``array``, its strides in memory), in the order of the slowest axis.
    """
    while array.size:
        room = end_at(addr) - addr
        span = reach(array.shape, strides)
        if span <= room:
            yield addr, array, strides
            return
        axis = strides.index(max(s for s, n in zip(strides, array.shape, strict=True) if n > 1))
        stride = strides[axis]
        inner = span - (array.shape[axis] - 1) * stride
        n = max((room - inner) // stride + 1, 0)
        array = np.moveaxis(array, axis, 0)
        strides = (stride, *strides[:axis], *strides[axis + 1 :])
        if n:
            yield addr, array[:n], strides
        else:
            yield from split(addr, array[0], strides[1:], end_at)
            n = 1
        array, addr = array[n:], addr + n * stride


def reach(shape: Shape, strides: Shape) -> int:
    """Return the span in bytes, first to last inclusive, of a byte array of ``shape`` with ``strides``."""
    return 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


def repeat_pattern(pattern: bytes, nbytes: int) -> Array:
    """Return ``nbytes`` of repetitions of ``pattern``; the last one may be cut."""
    # NumPy creates a list of all repetitions, so the pattern is first lengthened.
    unit = pattern * (1 + min(nbytes, GRANULE_BYTES) // len(pattern))
    return np.resize(np.frombuffer(unit, np.uint8), nbytes)


def as_bytes(array: Array) -> Array:
    """Return an array as bytes, with an additional last axis; it is a copy if the array is not C-contiguous."""
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return flat.reshape(*array.shape, array.itemsize)


def _byte_geometry(shape: Shape, itemsize: int, strides: Shape | None) -> tuple[Shape, Shape]:
    """Return the shape and the strides of the bytes of an access, with an additional last axis of stride 1."""
    return (*shape, itemsize), (*(row_major(shape, itemsize) if strides is None else strides), 1)


def _span(shape: Shape, itemsize: int, strides: Shape | None) -> int:
    """Return the span of an access in bytes, first to last inclusive; 0 for an empty access."""
    if strides is None:
        return prod(shape) * itemsize
    if any(s < 0 for s in strides):
        raise RunError(f"strides {strides}: a descriptor's strides must not be negative")
    return itemsize + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if prod(shape) else 0


def _phantom(shape: Shape) -> Array:
    """Return an array of ``shape`` that needs no memory, for its geometry only."""
    return np.broadcast_to(np.zeros((), np.bool_), shape)
