"""Numbers for the page: binned over a time window, and packed as compressed text.

A pack has a JSON head and sections of variable-length integers.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from kernbench.common.values import value

PageJson: TypeAlias = "Mapping[str, PageJson] | Sequence[PageJson] | str | int | float | bool | None"
IntArray: TypeAlias = npt.NDArray[np.int64]

_LENGTH_BYTES = 4
_PAYLOAD_BITS = 7
_MORE = 0x80
_ZEROS = np.zeros(1, dtype=np.int64)


def encode_varints(values: npt.ArrayLike) -> bytes:
    """Encode non-negative whole numbers as LEB128: seven bits per byte, lowest first; the top bit means more."""
    rest = np.asarray(values, dtype=np.int64)
    if rest.size == 0:
        return b""
    if int(rest.min()) < 0:
        raise ValueError(f"LEB128 has no sign, and one value is {int(rest.min())}")
    n_bytes = np.ones(rest.size, dtype=np.int64)
    for bits in range(_PAYLOAD_BITS, 63, _PAYLOAD_BITS):
        n_bytes += rest >= 1 << bits
    first = np.concatenate(([0], np.cumsum(n_bytes)))
    out = np.zeros(first[-1], dtype=np.uint8)
    for place in range(int(n_bytes.max())):
        here = n_bytes > place
        more = np.where(n_bytes[here] > place + 1, _MORE, 0)
        out[first[:-1][here] + place] = (rest[here] >> _PAYLOAD_BITS * place) & (_MORE - 1) | more
    return out.tobytes()


def encode_rows(rows: Iterable[IntArray | None]) -> bytes:
    """Encode consecutive rows of counts with ``encode_row``; None stands for a row of zeros."""
    encoded = [_ZEROS if row is None else encode_row(row) for row in rows]
    return encode_varints(np.concatenate(encoded)) if encoded else b""


def encode_row(row: IntArray) -> IntArray:
    """Encode a row of counts, mostly zeros: the number of pairs, then pairs (skipped zeros, value)."""
    at = np.flatnonzero(row)
    skipped = np.diff(at, prepend=-1) - 1
    return np.concatenate(([at.size], np.column_stack((skipped, row[at])).ravel()))


class Pack:
    """Named sections, joined into one text at the end."""

    def __init__(self) -> None:
        self._blobs: list[bytes] = []
        self._places: dict[str, list[int]] = {}
        self._length = 0

    def add(self, name: str, content: bytes) -> None:
        """Add a section. Raises ValueError for a duplicate name."""
        if name in self._places:
            raise ValueError(f"section {name!r} exists already")
        self._places[name] = [self._length, len(content)]
        self._blobs.append(content)
        self._length += len(content)

    def text(self, head: Mapping[str, PageJson]) -> str:
        """Return base64 of zlib of: length of the head (4 bytes, little-endian), the head as JSON, the sections.

        The head gets ``sections``: name to [offset behind the head, length].
        """
        document = {**head, "sections": self._places}
        words = json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
        content = len(words).to_bytes(_LENGTH_BYTES, "little") + words + b"".join(self._blobs)
        return base64.b64encode(zlib.compress(content, 9)).decode("ascii")


@value
class TimeWindow:
    """A part of a run, from ``start_ps`` to ``end_ps``, cut into ``bins`` bins of equal length."""

    name: str
    start_ps: int
    end_ps: int
    bins: int

    @property
    def edges(self) -> IntArray:
        """The ``bins`` + 1 edges of the bins in ps, rounded down to whole ps as on the page."""
        span = self.end_ps - self.start_ps
        return self.start_ps + span * np.arange(self.bins + 1, dtype=np.int64) // self.bins


@value
class TimeSpans:
    """Disjoint intervals in time order, each with an amount that is spread evenly over it."""

    starts: IntArray
    ends: IntArray
    amounts: IntArray

    def within(self, edges: IntArray) -> IntArray:
        """Return the amounts between successive edges, in whole numbers whose sum is the total within the edges."""
        times = np.column_stack((self.starts, self.ends)).ravel()
        if times.size == 0:
            return np.zeros(edges.size - 1, dtype=np.int64)
        reached = np.cumsum(np.column_stack((np.zeros_like(self.amounts), self.amounts)).ravel())
        so_far = np.floor(np.interp(edges, times, reached)).astype(np.int64)
        return so_far[1:] - so_far[:-1]


class SpanRows:
    """Many rows of spans by number, with a fast search for the few rows that overlap a window."""

    def __init__(self, rows: Mapping[int, TimeSpans]) -> None:
        self._rows = [(number, spans) for number, spans in rows.items() if spans.starts.size]
        # One axis with consecutive rows, so that one search covers all of them.
        length = max((int(spans.ends[-1]) for _, spans in self._rows), default=0) + 1
        self._begins = length * np.arange(len(self._rows), dtype=np.int64)
        self._starts = _join([begin + spans.starts for begin, (_, spans) in zip(self._begins, self._rows, strict=True)])
        self._ends = _join([begin + spans.ends for begin, (_, spans) in zip(self._begins, self._rows, strict=True)])
        self._first = np.cumsum([0, *(spans.starts.size for _, spans in self._rows)])

    def within(self, window: TimeWindow) -> dict[int, IntArray]:
        """Return the amounts in each bin of a window by row, without empty rows."""
        edges = window.edges
        first = np.searchsorted(self._ends, self._begins + window.start_ps, "right") - self._first[:-1]
        last = np.searchsorted(self._starts, self._begins + window.end_ps, "left") - self._first[:-1]
        counts_by_row: dict[int, IntArray] = {}
        for at in np.flatnonzero(first < last):
            number, spans = self._rows[at]
            part = slice(first[at], last[at])
            counts = TimeSpans(spans.starts[part], spans.ends[part], spans.amounts[part]).within(edges)
            if counts.any():
                counts_by_row[number] = counts
        return counts_by_row


def merge_spans(starts: IntArray, ends: IntArray) -> TimeSpans:
    """Merge intervals, in any order, into disjoint spans."""
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order]) if order.size else ends
    opens = np.ones(order.size, dtype=bool)
    opens[1:] = starts[1:] > ends[:-1]
    closes = np.roll(opens, -1)
    begins, overs = starts[opens], ends[closes]
    return TimeSpans(begins, overs, overs - begins)


def _join(parts: list[IntArray]) -> IntArray:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
