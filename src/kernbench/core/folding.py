"""Rows that are folded: their memory is released, and another row stands for them.

The machine's parts store indices of rows as causes, so an index never changes its meaning. A folded row leaves a gap in
the array, whose pages return to the operating system. Readers read condensed copies without gaps, in which the rows
have new numbers and refer to the rows that stand for folded ones.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]


class Gaps:
    """Numbers of rows that are folded, as runs in ascending order, and the row that stands for each run (or NONE).

    ``n_rows``: how many they are.
    """

    __slots__ = ("_ends", "_firsts", "_stand_ins", "n_rows")

    def __init__(self) -> None:
        self._firsts = self._ends = self._stand_ins = np.empty(0, np.int64)
        self.n_rows = 0

    def __bool__(self) -> bool:
        return self.n_rows > 0

    def add(self, numbers: Numbers, stand_ins: Numbers) -> Numbers:
        """Fold rows, in ascending order, with the row that stands for each; return first and end of each gap."""
        begins = np.ones(len(numbers), np.bool_)
        begins[1:] = (np.diff(numbers) != 1) | (np.diff(stand_ins) != 0)
        firsts = np.flatnonzero(begins)
        lasts = np.append(firsts[1:], len(numbers)) - 1
        first, end = numbers[firsts], numbers[lasts] + 1
        order = np.argsort(np.concatenate((self._firsts, first)), kind="stable")
        self._firsts = np.concatenate((self._firsts, first))[order]
        self._ends = np.concatenate((self._ends, end))[order]
        self._stand_ins = np.concatenate((self._stand_ins, stand_ins[firsts]))[order]
        self.n_rows += len(numbers)
        apart = np.flatnonzero(first[1:] != end[:-1])
        return np.stack((first[np.append([0], apart + 1)], end[np.append(apart, len(end) - 1)]))

    def contain(self, numbers: Numbers) -> NDArray[np.bool_]:
        """Return True for each number of a folded row."""
        at = np.searchsorted(self._firsts, numbers, "right") - 1
        inside: NDArray[np.bool_] = (at >= 0) & (numbers < self._ends[at]) if len(self._firsts) else at >= 0
        return inside

    def concern(self, numbers: Numbers) -> NDArray[np.bool_]:
        """Return True for each number of a folded row, or of a row that stands for folded ones."""
        concerned: NDArray[np.bool_] = self.contain(numbers) | np.isin(numbers, self._stand_ins)
        return concerned

    def list_rest(self, n_rows: int) -> Numbers:
        """Return the numbers of the rows that are not folded, of ``n_rows``."""
        change = np.zeros(n_rows + 1, np.int8)
        change[self._firsts] += 1
        change[self._ends] -= 1
        return np.flatnonzero(np.cumsum(change[:-1], dtype=np.int8) == 0)

    def renumber(self, n_rows: int) -> Callable[[Numbers], Numbers]:
        """Return a function from numbers of rows to their numbers in a condensed copy of ``n_rows`` rows.

        A folded row has the number of the row that stands for it, and NONE if there is no such row.
        """
        rest = self.list_rest(n_rows)

        def new_numbers(numbers: Numbers) -> Numbers:
            shown = numbers
            if len(self._firsts):
                at = np.searchsorted(self._firsts, numbers, "right") - 1
                shown = np.where(self.contain(numbers), self._stand_ins[at], numbers)
            return np.where(shown >= 0, np.searchsorted(rest, shown), shown)

        return new_numbers


def release(rows: array[int], width: int, gaps: Numbers) -> None:
    """Return the complete memory pages of gaps in an array to the operating system, where it takes them back.

    Their integers are 0 afterwards, or unchanged. ``gaps``: first and end of each gap, in rows of ``width`` integers.
    """
    if sys.platform != "linux":
        return
    address, _ = rows.buffer_info()
    page, nbytes = mmap.PAGESIZE, width * rows.itemsize
    first = -(-(address + gaps[0] * nbytes) // page) * page
    end = (address + gaps[1] * nbytes) // page * page
    advise: Any = ctypes.CDLL(None).madvise
    advise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    for begin, length in zip(first.tolist(), (end - first).tolist(), strict=True):
        if length > 0:
            advise(begin, length, mmap.MADV_DONTNEED)
