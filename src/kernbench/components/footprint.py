"""The bytes that a DMA descriptor touches, as boxes of physical addresses, and whether two of them share any."""

from __future__ import annotations

from math import inf, prod

from kernbench.common.values import state
from kernbench.components.access_plan import Dims, runs
from kernbench.core.op_log import Sharing
from kernbench.engine.address_map import Segment
from kernbench.messages.fabric import Access

MOST_ROWS = 64
"""Beyond so many rows two boxes are compared by the ranges that enclose them."""
ALL_ROWS = inf
"""For ``footprints``: as many rows as there are."""


@state(eq=False)
class Footprint:
    """Runs of ``run`` bytes within ``[low, high)``, the first at ``low``.

    ``steps``: how often runs repeat and how many bytes apart, the longest first. ``exact``: False for a range that
    only encloses what is touched.
    """

    low: int
    high: int
    run: int
    steps: Dims = ()
    exact: bool = True


def footprints(
    segments: tuple[Segment, ...],
    shape: tuple[int, ...],
    itemsize: int,
    strides: tuple[int, ...] | None,
    most_rows: float = MOST_ROWS,
) -> tuple[Footprint, ...]:
    """The bytes of an array whose extent lies in the physical ``segments``, in this order.

    Where segments cut it, row by row, but for more than ``most_rows`` the ranges that enclose them.
    """
    run, dims = (0, ()) if strides is None else runs(shape, itemsize, strides)
    steps = tuple((n, abs(s)) for n, s in dims if s) if dims else ()
    if not steps:
        return tuple([Footprint(pa, pa + nbytes, nbytes) for pa, nbytes in segments])
    pieces = _joined(segments)
    if len(pieces) == 1:
        pa, nbytes = pieces[0]
        return (Footprint(pa, pa + nbytes, run, steps),)
    if prod(n for n, _ in steps) > most_rows:
        return tuple(Footprint(pa, pa + nbytes, nbytes, exact=False) for pa, nbytes in pieces)
    return tuple(
        Footprint(low, high, high - low)
        for first in _row_starts(steps)
        for low, high in _placed(pieces, first, first + run)
    )


def footprint_of(access: Access) -> Footprint:
    """The bytes of one access."""
    reach = (access.rows - 1) * access.stride
    low, high = access.pa + min(reach, 0), access.pa + max(reach, 0) + access.row_bytes
    return Footprint(low, high, access.row_bytes, ((access.rows, abs(access.stride)),) if reach else ())


def overlap_kind(a: Footprint, b: Footprint) -> Sharing:
    """What two footprints have in common."""
    if a.low >= b.high or b.low >= a.high:
        return ""
    if not (a.exact and b.exact):
        return "range"
    if not (a.steps or b.steps):
        return "bytes"
    # Rows meet when that of ``a`` begins less than ``b.run`` behind, or ``a.run`` before, that of ``b``. With the
    # steps of ``b`` counted from its last row, the distance is a sum of whole steps, each from 0 up to its count.
    counts: dict[int, int] = {}
    for n, stride in (*a.steps, *b.steps):
        counts[stride] = counts.get(stride, 0) + n - 1
    low = b.low - a.low - a.run + 1 + (b.high - b.low - b.run)
    high = low + a.run + b.run - 2
    if len(counts) == 1:  # what nearly all have that meet at all
        ((stride, count),) = counts.items()
        first, last = -(-low // stride), high // stride
        return "bytes" if first <= last and first <= count and last >= 0 else ""
    search = _Search(sorted(counts.items(), reverse=True))
    found = search.hits(0, low, high)
    return "range" if search.given_up else "bytes" if found else ""


class _Search:
    """Is there a sum of k * stride, with k from 0 to the count of each stride, within a range?"""

    def __init__(self, counts: list[tuple[int, int]]) -> None:
        self._counts = counts
        self._spans = [0] * (len(counts) + 1)  # what the strides from one on add up to at most
        for i in reversed(range(len(counts))):
            self._spans[i] = self._spans[i + 1] + counts[i][0] * counts[i][1]
        self._tries = 0

    @property
    def given_up(self) -> bool:
        """Whether too many rows would have to be compared."""
        return self._tries > MOST_ROWS

    def hits(self, i: int, low: int, high: int) -> bool:
        """Whether a sum of the strides from ``i`` on lies in ``[low, high]``."""
        span = self._spans[i]
        if high < 0 or low > span:
            return False
        if low <= 0 or high >= span:
            return True
        stride, count = self._counts[i]
        rest = self._spans[i + 1]
        first, last = max(0, -((rest - low) // stride)), min(count, high // stride)
        if i + 1 == len(self._counts):
            return first <= last
        for k in range(first, last + 1):
            self._tries += 1
            if self.given_up or self.hits(i + 1, low - k * stride, high - k * stride):
                return True
        return False


def _joined(segments: tuple[Segment, ...]) -> list[Segment]:
    """Segments that follow each other in memory as one."""
    found = [segments[0]]
    for pa, nbytes in segments[1:]:
        start, length = found[-1]
        if start + length == pa:
            found[-1] = start, length + nbytes
        else:
            found.append((pa, nbytes))
    return found


def _row_starts(steps: Dims) -> list[int]:
    starts = [0]
    for n, stride in steps:
        starts = [start + k * stride for start in starts for k in range(n)]
    return starts


def _placed(segments: list[Segment], low: int, high: int) -> list[tuple[int, int]]:
    """Where bytes ``low`` to ``high`` of all segments put together lie."""
    found: list[tuple[int, int]] = []
    base = 0
    for pa, nbytes in segments:
        end = base + nbytes
        if low < end:
            start = low if low > base else base
            found.append((pa + start - base, pa + (high if high < end else end) - base))
            if high <= end:
                break
        base = end
    return found
