"""One free list for every memory and for virtual space: first fit, merged when freed."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from kernbench.common.errors import AllocationError


@dataclass(frozen=True, slots=True, order=True)
class Extent:
    """``nbytes`` bytes from ``start``."""

    start: int
    nbytes: int

    @property
    def end(self) -> int:
        """The first byte behind it."""
        return self.start + self.nbytes


class FreeList:
    """Hands out the bytes ``base .. base + nbytes`` of the space called ``label``.

    An allocation starts at a multiple of ``alignment`` and takes what was asked rounded up to ``granule`` bytes; what
    lies before an aligned start stays free. A free names the start and the size that were asked.
    """

    def __init__(self, label: str, base: int, nbytes: int, *, alignment: int = 1, granule: int = 1) -> None:
        self.label = label
        self.extent = Extent(base, nbytes)
        self._alignment = alignment
        self._granule = granule
        self._holes = [self.extent] if nbytes else []
        self._asked: dict[int, int] = {}

    @property
    def holes(self) -> tuple[Extent, ...]:
        """The free stretches, in address order; no two touch."""
        return tuple(self._holes)

    @property
    def live(self) -> tuple[Extent, ...]:
        """The allocations as they were asked for, in address order."""
        return tuple(Extent(start, asked) for start, asked in sorted(self._asked.items()))

    @property
    def free_bytes(self) -> int:
        """Bytes in all holes together."""
        return sum(hole.nbytes for hole in self._holes)

    @property
    def largest_hole(self) -> Extent:
        """The largest free stretch, the lowest of several; empty when everything is taken."""
        return max(self._holes, key=lambda hole: hole.nbytes, default=Extent(self.extent.start, 0))

    def alloc(self, nbytes: int, *, from_end: bool = False) -> int:
        """Start of ``nbytes`` free bytes in the first hole that fits, or at the end of the last one.

        Raises AllocationError for a size below one byte, and with what is free when no hole fits.
        """
        if nbytes <= 0:
            raise AllocationError(f"{self.label}: cannot allocate {nbytes} bytes; the least is 1")
        taken = self._rounded(nbytes)
        order = range(len(self._holes) - 1, -1, -1) if from_end else range(len(self._holes))
        for at in order:
            start = self._start_in(self._holes[at], taken, from_end)
            if start is not None:
                self._take(at, Extent(start, taken))
                self._asked[start] = nbytes
                return start
        raise AllocationError(f"{self.label}: asked for {nbytes} bytes; {self.summary()}")

    def free(self, start: int, nbytes: int) -> None:
        """Take back an allocation; AllocationError unless exactly it is live (a double or a foreign free)."""
        asked = self._asked.get(start)
        if asked is None:
            raise AllocationError(f"{self.label}: nothing is allocated at {start:#x} (freed twice, or not from here)")
        if asked != nbytes:
            raise AllocationError(f"{self.label}: {start:#x} was allocated with {asked} bytes, not {nbytes}")
        del self._asked[start]
        self._give_back(Extent(start, self._rounded(nbytes)))

    def summary(self) -> str:
        """What is free, for error messages."""
        size, hole = self.extent.nbytes, self.largest_hole.nbytes
        return f"{self.free_bytes} of {size} bytes are free, the largest hole has {hole}"

    def _rounded(self, nbytes: int) -> int:
        return -(-nbytes // self._granule) * self._granule

    def _start_in(self, hole: Extent, nbytes: int, from_end: bool) -> int | None:
        alignment = self._alignment
        if from_end:
            start = (hole.end - nbytes) // alignment * alignment
            return start if start >= hole.start else None
        start = -(-hole.start // alignment) * alignment
        return start if start + nbytes <= hole.end else None

    def _take(self, at: int, taken: Extent) -> None:
        hole = self._holes[at]
        rest = (Extent(hole.start, taken.start - hole.start), Extent(taken.end, hole.end - taken.end))
        self._holes[at : at + 1] = [part for part in rest if part.nbytes]

    def _give_back(self, freed: Extent) -> None:
        at = bisect_right(self._holes, freed)
        first, last = at, at
        if at and self._holes[at - 1].end == freed.start:
            first = at - 1
        if at < len(self._holes) and self._holes[at].start == freed.end:
            last = at + 1
        merged = [*self._holes[first:at], freed, *self._holes[at:last]]
        start, end = merged[0].start, merged[-1].end
        self._holes[first:last] = [Extent(start, end - start)]
