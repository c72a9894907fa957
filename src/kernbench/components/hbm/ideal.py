"""A slice without banks (``timing: ideal``): each pseudo-channel (PC) moves its bytes at its usable bandwidth.

PCs are counters, free = max(free, now) + bytes / bandwidth, so accesses to different PCs overlap. A grant ends when no
PC of the grant has more than a quantum left. Therefore the other PCs do not idle while a few accesses queue in one PC.
A small access waits at most for a quantum in its PC, plus one quantum of each competitor.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

from kernbench.common.values import value
from kernbench.components.hbm.banks import Grant, SliceWork
from kernbench.components.hbm.channel import FAR
from kernbench.core.observed import BankTime
from kernbench.messages.fabric import Access
from kernbench.topology.hbm_spec import HbmSpec

MOST_KEPT = 1 << 15


class Channels:
    """The PCs of one type of slice. ``count``: their number."""

    def __init__(self, hbm: HbmSpec) -> None:
        self.count = hbm.num_pcs
        self._burst, self._piece = hbm.interleave_bytes, hbm.piece_bytes
        # With a single channel there are no address bits to fold.
        self._xor = hbm.folds_channels and hbm.num_pcs > 1
        # Cached, because equal tiles recur.
        self.loads = lru_cache(MOST_KEPT)(self._loads)

    def _loads(self, access: Access, end: int) -> list[int]:
        """Return the bytes per PC of the pieces that the first ``end`` bytes of an access touch, each piece once."""
        loads = [0] * self.count
        runs = [
            (access.pa + begin // access.row_bytes * access.stride, min(access.row_bytes, end - begin))
            for begin in range(0, end, access.row_bytes)
        ]
        if access.stride < 0:
            runs.reverse()
        done = 0
        for start, nbytes in runs:
            first = max(start - start % self._piece, done)
            stop = start + nbytes
            stop += -stop % self._piece
            if first < stop:
                self._add_run(loads, first, stop)
                done = stop
        return loads

    def _add_run(self, loads: list[int], first: int, end: int) -> None:
        """Add bytes ``first`` … ``end - 1`` of the slice to ``loads``, the bytes by PC."""
        burst, group = self._burst, self.count * self._burst
        while first < end:
            groups = 0 if first % group else (end - first) // group
            if groups:
                # A group has one burst of every PC.
                loads[:] = [load + groups * burst for load in loads]
                first += groups * group
            else:
                stop = min(first - first % burst + burst, end)
                loads[self.channel(first // burst)] += stop - first
                first = stop

    def channel(self, burst: int) -> int:
        """Return the PC of a burst."""
        digit = burst % self.count
        if self._xor:
            burst //= self.count
            while burst:
                digit ^= burst % self.count
                burst //= self.count
        return digit


@value
class _IdealTurnCost:
    """The cost of a grant. ``began``: when the PC that finishes last became free for it, in ps."""

    began: int

    def split(self, since: int, end: int) -> tuple[int, BankTime]:
        """Return the begin of a grant that was waited for from ``since`` to ``end``, and an empty bank time."""
        return min(max(since, self.began), end), BankTime()


class IdealState(NamedTuple):
    """The state of a slice: the time in ps from which each PC is free, and the bytes of pieces read and written."""

    free: list[int]
    read: int = 0
    written: int = 0


class IdealMemory:
    """The PCs of one slice. ``quantum`` is in bytes, ``ps_per_byte`` is the time of a byte in one PC.

    ``at``: the state. ``took``: the cost of the last grant, if ``observed``.
    """

    def __init__(self, channels: Channels, quantum: int, ps_per_byte: float) -> None:
        self.quantum = quantum
        self.observed = False
        self.took: _IdealTurnCost | None = None
        self._channels, self._ps_per_byte = channels, ps_per_byte
        self._ahead_ps = round(quantum * ps_per_byte)
        self.at = IdealState([0] * channels.count)

    @property
    def work(self) -> SliceWork:
        """Return the bytes so far: accesses count as complete pieces. There are no rows."""
        return SliceWork(self.at.read, self.at.written)

    def serve(
        self, access: Access, write: bool, begin: int, end: int, now: int, until: int = FAR, least: int = 0
    ) -> Grant:
        """Serve bytes ``begin`` … ``end - 1`` of an access.

        No further quantum begins after ``until``, unless that quantum has bytes before ``least``.
        """
        if until < FAR:
            end = self._end_of_turns(access, begin, end, now, until, least)
        (before, read, written), loads = self.at, self._loads(access, begin, end)
        after, moved = self._serve(loads, now), sum(loads)
        self.at = IdealState(after, read, written + moved) if write else IdealState(after, read + moved, written)
        first = last = now
        used = [(old, new) for old, new in zip(before, after, strict=True) if new != old]
        if used:
            before_last, last = max(used, key=itemgetter(1))
            first = max(now, min(used)[0])
            if self.observed:
                self.took = _IdealTurnCost(max(now, before_last))
        return Grant(end, self._over_ps(after, now), first, last)

    def _over_ps(self, free: list[int], now: int) -> int:
        """Return the time when no PC has more than a quantum left."""
        return max(now, max(free) - self._ahead_ps)

    def _loads(self, access: Access, begin: int, end: int) -> list[int]:
        """Return the bytes per PC of bytes ``begin`` … ``end - 1``, in complete pieces.

        A piece that two grants share counts in the first of them.
        """
        loads = self._channels.loads(access, end)
        if begin:
            loads = [load - done for load, done in zip(loads, self._channels.loads(access, begin), strict=True)]
        return loads

    def _serve(self, loads: list[int], now: int) -> list[int]:
        """Return the time from which each PC is free after its load."""
        return [
            (free if free > now else now) + round(load * self._ps_per_byte) if load else free
            for free, load in zip(self.at.free, loads, strict=True)
        ]

    def _end_of_turns(self, access: Access, begin: int, end: int, now: int, until: int, least: int) -> int:
        """Return the end of the first quantum that is over after ``until`` and leaves no byte before ``least``."""

        def over_ps(at: int) -> int:
            return self._over_ps(self._serve(self._loads(access, begin, at), now), now)

        ends = range(begin + self.quantum, end, self.quantum)
        needed = min(max(0, -(-(least - begin) // self.quantum) - 1), len(ends))
        turns = bisect_right(ends, until, lo=needed, key=over_ps)
        return ends[turns] if turns < len(ends) else end
