"""How much of something falls into each bin of a window of time."""

from __future__ import annotations

from collections.abc import Mapping
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
        """The bins' borders in ps, ``bins`` + 1 of them, rounded down to whole ps as the page does it."""
        span = self.end_ps - self.start_ps
        return self.start_ps + span * np.arange(self.bins + 1, dtype=np.int64) // self.bins


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


class SpanRows:
    """Many rows of spans by number, of which the few with something in a window are found at once."""

    def __init__(self, rows: Mapping[int, Spans]) -> None:
        self._rows = [(number, spans) for number, spans in rows.items() if spans.starts.size]
        # One axis on which row follows row, so that one search answers for all of them.
        length = max((int(spans.ends[-1]) for _, spans in self._rows), default=0) + 1
        self._begins = length * np.arange(len(self._rows), dtype=np.int64)
        self._starts = _joined(
            [begin + spans.starts for begin, (_, spans) in zip(self._begins, self._rows, strict=True)]
        )
        self._ends = _joined([begin + spans.ends for begin, (_, spans) in zip(self._begins, self._rows, strict=True)])
        self._first = np.cumsum([0, *(spans.starts.size for _, spans in self._rows)])

    def within(self, window: Window) -> dict[int, Ints]:
        """Row by row what falls into each bin of a window; without the rows of which nothing does."""
        edges = window.edges
        first = np.searchsorted(self._ends, self._begins + window.start_ps, "right") - self._first[:-1]
        last = np.searchsorted(self._starts, self._begins + window.end_ps, "left") - self._first[:-1]
        found: dict[int, Ints] = {}
        for at in np.flatnonzero(first < last):
            number, spans = self._rows[at]
            part = slice(first[at], last[at])
            counts = Spans(spans.starts[part], spans.ends[part], spans.amounts[part]).within(edges)
            if counts.any():
                found[number] = counts
        return found


def union(starts: Ints, ends: Ints) -> Spans:
    """Intervals in any order, which may overlap, as spans of the time that they cover."""
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order]) if order.size else ends
    opens = np.ones(order.size, dtype=bool)
    opens[1:] = starts[1:] > ends[:-1]
    closes = np.roll(opens, -1)
    begins, overs = starts[opens], ends[closes]
    return Spans(begins, overs, overs - begins)


def _joined(parts: list[Ints]) -> Ints:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
