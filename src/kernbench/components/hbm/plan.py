"""From an access to its quanta, and from a quantum to the runs that its banks serve.

A *run* is what a quantum has in one row of one bank, side by side or not: ``(bank, row, bursts)``, with banks
counted in each channel. A *part* is the runs of a quantum that some channels have alike.
"""

from __future__ import annotations

from collections.abc import Iterator

from kernbench.components.hbm.layout import Layout
from kernbench.messages.fabric import Access

Run = tuple[int, int, int]
Parts = tuple[tuple[tuple[int, ...], tuple[Run, ...]], ...]
"""Channels, and the runs that each of them has"""
MOST_KEPT = 1 << 15
"""Quanta whose runs are kept: a sweep of small ones, with every fold of its rows."""


class Planner:
    """The runs of the quanta of one kind of slice. They are kept by place in the sweep, fold of the row, and shape."""

    __slots__ = ("_kept", "layout")

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._kept: dict[tuple[int, int, int, int, int], Parts] = {}

    def parts(self, access: Access, first: int, nbytes: int) -> tuple[int, Parts]:
        """The row that the runs of bytes ``first`` … ``first + nbytes - 1`` of an access count from, and the runs."""
        pa, rows, stride = access.pa + first, 1, 0
        if access.rows > 1:
            row, column = divmod(first, access.row_bytes)
            whole = not column and not nbytes % access.row_bytes
            if not whole:
                return 0, self._merged(_pieces(access, first, nbytes), 0)
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
            if len(self._kept) == MOST_KEPT:
                self._kept.clear()
            found = self._merged(((place + i * stride, nbytes) for i in range(rows)), base)
            self._kept[key] = found
        return base, found

    def _merged(self, pieces: Iterator[tuple[int, int]], base: int) -> Parts:
        """The runs of some pieces of memory; rows count from ``base``. A burst that pieces share is read once."""
        layout = self.layout
        block, burst, sweep, banks = layout.block_bytes, layout.burst_bytes, layout.sweep_bytes, layout.banks
        counts: dict[tuple[int, int], int] = {}
        previous = done = -1
        for start, nbytes in pieces:
            at = start - start % burst
            if start >= previous and at < done:
                at = done
            end = start + nbytes
            end += -end % burst
            previous, done = start, end
            while at < end:
                stop = min(at - at % block + block, end)
                row, place = divmod(at, sweep)
                key = (banks[place // block] ^ layout.fold_of(base + row), row)
                counts[key] = counts.get(key, 0) + (stop - at) // burst
                at = stop
        runs: dict[int, list[Run]] = {}
        for (bank, row), n in counts.items():
            channel, place = divmod(bank, layout.banks_per_channel)
            runs.setdefault(channel, []).append((place, row, n))
        channels: dict[tuple[Run, ...], list[int]] = {}
        for channel, own in runs.items():
            channels.setdefault(tuple(own), []).append(channel)
        return tuple((tuple(alike), own) for own, alike in channels.items())


def _pieces(access: Access, first: int, nbytes: int) -> Iterator[tuple[int, int]]:
    """The pieces of memory of some bytes of an access of many rows: where and how long."""
    end = first + nbytes
    while first < end:
        row, column = divmod(first, access.row_bytes)
        n = min(access.row_bytes - column, end - first)
        yield access.pa + row * access.stride + column, n
        first += n
