"""The bytes that an operand accesses, and an index of items by address range."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from math import prod
from typing import Generic, TypeAlias, TypeVar

import numpy as np

from kernbench.common.dtypes import Array
from kernbench.common.values import value
from kernbench.messages.commands import NOWHERE, Operand

Range: TypeAlias = tuple[int, int]
"""First address, and the first address after the range."""
T = TypeVar("T")


def bounds(operand: Operand) -> tuple[Range, ...]:
    """Return the ranges of an operand's bytes and the gaps between its rows: one range, or one for each segment."""
    if operand.strides is None and operand.valid is None and not operand.segments:
        return ((operand.address, operand.address + operand.nbytes),)
    span = _span(operand)
    if not span:
        return ()
    if not operand.segments:
        return ((operand.address, operand.address + span),)
    ranges: list[Range] = []
    for address, nbytes in operand.segments:
        if address != NOWHERE:
            ranges.append((address, address + min(nbytes, span)))
        span -= nbytes
        if span <= 0:
            break
    return tuple(dict.fromkeys(ranges))


@value(eq=False)
class ByteRuns:
    """The exact bytes of an operand, as disjoint runs in the order of addresses."""

    starts: Array
    ends: Array

    @staticmethod
    def of(operand: Operand) -> ByteRuns:
        """Return the bytes that ``operand`` accesses."""
        offsets, length = _offsets(operand)
        if not operand.segments:
            return _disjoint(offsets + operand.address, offsets + (operand.address + length))
        pieces: list[tuple[Array, Array]] = []
        base = 0
        for address, nbytes in operand.segments:
            low = np.maximum(offsets, base)
            high = np.minimum(offsets + length, base + nbytes)
            inside = low < high
            if address != NOWHERE:
                pieces.append((low[inside] + (address - base), high[inside] + (address - base)))
            base += nbytes
        return _disjoint(np.concatenate([p[0] for p in pieces]), np.concatenate([p[1] for p in pieces]))

    @staticmethod
    def of_boxes(boxes: Iterable[tuple[int, int, tuple[tuple[int, int], ...]]]) -> ByteRuns:
        """Return the bytes of boxes, each (first address, bytes of a run, (count, stride) of each repetition)."""
        starts: list[Array] = []
        ends: list[Array] = []
        for low, run, steps in boxes:
            begin = np.array([low], np.int64)
            for count, stride in steps:
                begin = (begin[:, None] + np.arange(count, dtype=np.int64) * stride).reshape(-1)
            starts.append(begin)
            ends.append(begin + run)
        return _disjoint(np.concatenate(starts), np.concatenate(ends))

    def common(self, other: ByteRuns) -> tuple[int, int]:
        """Return the first common address and the number of common bytes, or (0, 0) if there are none."""
        successor = np.searchsorted(other.ends, self.starts, "right")
        shared = successor < len(other.ends)
        shared[shared] = other.starts[successor[shared]] < self.ends[shared]
        if not shared.any():
            return 0, 0
        i = int(np.argmax(shared))
        first = max(int(self.starts[i]), int(other.starts[successor[i]]))
        return first, int((other.below(self.ends) - other.below(self.starts)).sum())

    def below(self, addresses: Array) -> Array:
        """Return the number of bytes below each address."""
        total = np.concatenate(([0], np.cumsum(self.ends - self.starts)))
        i = np.searchsorted(self.starts, addresses, "right")
        over = np.where(i > 0, np.maximum(self.ends[i - 1] - addresses, 0), 0)
        return np.asarray(total[i] - over)


def _span(operand: Operand) -> int:
    """Return the span of the accessed bytes, first to last inclusive; 0 if there are none."""
    shape = operand.shape if operand.valid is None else operand.valid
    if not prod(shape):
        return 0
    return operand.dtype.itemsize + sum((n - 1) * s for n, s in zip(shape, operand.byte_strides, strict=True))


def _offsets(operand: Operand) -> tuple[Array, int]:
    """Return the offsets of contiguous runs from the first element, and their common length, in bytes."""
    shape = operand.shape if operand.valid is None else operand.valid
    axes = list(zip(shape, operand.byte_strides, strict=True))
    length = operand.dtype.itemsize
    while axes and (axes[-1][1] == length or axes[-1][0] == 1):
        length *= axes.pop()[0]
    offsets = np.zeros(1, np.int64)
    for count, stride in axes:
        offsets = (offsets[:, None] + np.arange(count, dtype=np.int64) * stride).reshape(-1)
    return offsets, length


def _disjoint(starts: Array, ends: Array) -> ByteRuns:
    """Return sorted runs without the overlaps that occur if strides make elements share bytes."""
    filled = starts < ends
    order = np.argsort(starts[filled], kind="stable")
    starts, reach = starts[filled][order], np.maximum.accumulate(ends[filled][order])
    if not len(starts):
        return ByteRuns(starts, reach)
    fresh = np.concatenate(([True], starts[1:] > reach[:-1]))
    last = np.concatenate((fresh[1:], [True]))
    return ByteRuns(starts[fresh], reach[last])


class ExtentIndex(Generic[T]):
    """An index of items by address range, which finds the items that overlap a range. Items may overlap each other.

    Overlapping ranges form a cluster. Clusters are disjoint; the sorted list of edges alternates starts and ends.
    """

    __slots__ = ("_clusters", "_edges")

    def __init__(self) -> None:
        self._edges: list[int] = []
        self._clusters: list[dict[tuple[int, int, T], None]] = []

    @property
    def is_empty(self) -> bool:
        """True if the index has no items."""
        return not self._clusters

    def misses(self, low: int, high: int) -> bool:
        """Return True if no item has a byte of ``[low, high)``. This fast check answers most queries."""
        edges = self._edges
        i = bisect_right(edges, low)
        return not i & 1 and (i == len(edges) or edges[i] >= high)

    def add(self, low: int, high: int, item: T) -> None:
        """Add ``item`` with the range ``[low, high)``."""
        if low >= high:
            return
        first, last = self._meeting(low, high)
        items: dict[tuple[int, int, T], None] = {}
        for cluster in self._clusters[first:last]:
            # Merge the smaller into the larger, so many additions to one cluster stay cheap.
            small, large = sorted((items, cluster), key=len)
            large.update(small)
            items = large
        items[low, high, item] = None
        merged = self._edges[2 * first : 2 * last]
        self._edges[2 * first : 2 * last] = [min([low, *merged[:1]]), max([high, *merged[-1:]])]
        self._clusters[first:last] = [items]

    def discard(self, low: int, high: int, item: T) -> None:
        """Remove an item that ``add`` added."""
        if low >= high:
            return
        at = (bisect_right(self._edges, low) - 1) // 2
        del self._clusters[at][low, high, item]
        if not self._clusters[at]:
            del self._clusters[at], self._edges[2 * at : 2 * at + 2]

    def find(self, low: int, high: int) -> list[T]:
        """Return the items that have a byte of ``[low, high)``."""
        first, last = self._meeting(low, high)
        return [
            item for cluster in self._clusters[first:last] for start, end, item in cluster if start < high and low < end
        ]

    def _meeting(self, low: int, high: int) -> tuple[int, int]:
        """Return the bounds, as a half-open interval of indices, of the clusters that overlap ``[low, high)``."""
        return bisect_right(self._edges, low) // 2, (bisect_left(self._edges, high) + 1) // 2
