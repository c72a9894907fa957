"""How much of something falls into each bin of a window of time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernbench.web.packing import Ints


@dataclass(frozen=True, slots=True)
class Window:
    """A part of a run, from ``start_ps`` to ``end_ps``, cut into ``bins`` bins of equal length."""

    name: str
    start_ps: int
    end_ps: int
    bins: int

    @property
    def edges(self) -> Ints:
        """The bins' borders in ps, ``bins`` + 1 of them, rounded to whole ps."""
        return np.rint(np.linspace(self.start_ps, self.end_ps, self.bins + 1)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Spans:
    """Intervals that do not overlap, in the order of time, and how much of something is spread evenly over each."""

    starts: Ints
    ends: Ints
    amounts: Ints

    def within(self, edges: Ints) -> Ints:
        """What falls between successive edges; whole numbers that add up to all of what lies within."""
        times = np.column_stack((self.starts, self.ends)).ravel()
        if times.size == 0:
            return np.zeros(edges.size - 1, dtype=np.int64)
        reached = np.cumsum(np.column_stack((np.zeros_like(self.amounts), self.amounts)).ravel())
        so_far = np.floor(np.interp(edges, times, reached)).astype(np.int64)
        return so_far[1:] - so_far[:-1]


def union(starts: Ints, ends: Ints) -> Spans:
    """Intervals in any order, which may overlap, as spans of the time that they cover."""
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order]) if order.size else ends
    opens = np.ones(order.size, dtype=bool)
    opens[1:] = starts[1:] > ends[:-1]
    closes = np.roll(opens, -1)
    begins, overs = starts[opens], ends[closes]
    return Spans(begins, overs, overs - begins)
