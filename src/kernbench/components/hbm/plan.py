"""From an access to its quanta, and from a quantum to the runs that its banks serve.

A *run* is what a quantum has in one row of one bank, adjacent or not: ``(bank, row, bursts)``.
"""

from __future__ import annotations

from collections.abc import Iterator

from kernbench.components.hbm.layout import Layout
from kernbench.messages.fabric import Access

Runs = tuple[tuple[int, int, int], ...]
MOST_KEPT = 1 << 18
"""Runs that are kept: a sweep of small quanta, with every fold of its rows."""


class Planner:
    """The runs of one kind of slice, ``quantum`` bytes after ``quantum`` bytes.

    They are kept by place in the sweep, fold of the row, and shape.
    """

    __slots__ = ("_kept", "_n_kept", "_quantum", "layout")

    def __init__(self, layout: Layout, quantum: int) -> None:
        self.layout = layout
        self._quantum = quantum
        self._kept: dict[tuple[int, int, int, int, int], Runs] = {}
        self._n_kept = 0

    def runs(self, access: Access, first: int, nbytes: int) -> tuple[int, Runs]:
        """The row that the runs of bytes ``first`` … ``first + nbytes - 1`` of an access count from, and the runs."""
        pa, rows, stride = access.pa + first, 1, 0
        if access.rows > 1:
            row, column = divmod(first, access.row_bytes)
            if column or nbytes % access.row_bytes:
                return 0, self._planned(access, first, nbytes, 0)
            pa, rows, stride = access.pa + row * access.stride, nbytes // access.row_bytes, access.stride
            nbytes = access.row_bytes
        sweep = self.layout.sweep_bytes
        base, place = divmod(pa, sweep)
        last = place + (rows - 1) * stride
        if self.layout.folds_rows and (min(place, last) < 0 or max(place, last) + nbytes > sweep):
            key = (pa, 0, nbytes, rows, stride)
            base, place = 0, pa
        else:
            key = (place, self.layout.fold_of(base), nbytes, rows, stride)
        found = self._kept.get(key)
        if found is None:
            found = self._planned(Access(place, nbytes, rows, stride), 0, rows * nbytes, base)
            self._n_kept += len(found)
            if self._n_kept > MOST_KEPT:
                self._kept.clear()
                self._n_kept = len(found)
            self._kept[key] = found
        return base, found

    def _planned(self, access: Access, first: int, nbytes: int, base: int) -> Runs:
        """The runs of some bytes of an access; rows count from ``base``."""
        end, quantum = first + nbytes, self._quantum
        quanta = (_pieces(access, at, min(quantum, end - at)) for at in range(first, end, quantum))
        return tuple(run for pieces in quanta for run in self._merged(pieces, base))

    def _merged(self, pieces: Iterator[tuple[int, int]], base: int) -> Iterator[tuple[int, int, int]]:
        """The runs of the pieces of a quantum. A burst that pieces share is read once."""
        layout = self.layout
        block, burst, sweep, banks = layout.block_bytes, layout.burst_bytes, layout.sweep_bytes, layout.banks
        counts: dict[tuple[int, int], int] = {}
        previous = done = folded = -1
        fold = 0
        for start, nbytes in pieces:
            at = start - start % burst
            if start >= previous and at < done:
                at = done
            end = start + nbytes
            end += -end % burst
            previous, done = start, end
            while at < end:
                stop = at - at % block + block
                stop = stop if stop < end else end
                row, place = divmod(at, sweep)
                if row != folded:
                    folded, fold = row, layout.fold_of(base + row)
                key = (banks[place // block] ^ fold, row)
                counts[key] = counts.get(key, 0) + (stop - at) // burst
                at = stop
        return ((bank, row, n) for (bank, row), n in counts.items())


def _pieces(access: Access, first: int, nbytes: int) -> Iterator[tuple[int, int]]:
    """The pieces of memory of some bytes of an access of many rows: where and how long."""
    end = first + nbytes
    while first < end:
        row, column = divmod(first, access.row_bytes)
        n = min(access.row_bytes - column, end - first)
        yield access.pa + row * access.stride + column, n
        first += n
