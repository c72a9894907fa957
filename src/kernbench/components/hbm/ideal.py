"""A slice without banks (``timing: ideal``): each pseudo-channel (PC) moves its bytes at the bandwidth that it can use.

PCs are counters, free = max(free, now) + bytes / bandwidth, so accesses to different ones overlap. A turn ends when no
PC that it used has more than a quantum left to do: PCs do not idle when a few accesses meet in one of them, and a
small access waits for at most a quantum in its PC, and one of each competitor.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache
from operator import itemgetter

from kernbench.common.values import value
from kernbench.components.hbm.banks import Grant
from kernbench.components.hbm.channel import FAR
from kernbench.core.observed import BankTime
from kernbench.messages.fabric import Access
from kernbench.topology.hbm_spec import HbmSpec

MOST_KEPT = 1 << 15


class Channels:
    """The PCs of one kind of slice. ``count``: how many they are."""

    def __init__(self, hbm: HbmSpec) -> None:
        self.count = hbm.num_pcs
        self._burst, self._piece = hbm.interleave_bytes, hbm.piece_bytes
        # One channel has no digits to fold.
        self._xor = hbm.folds_channels and hbm.num_pcs > 1
        # Tiles come again.
        self.loads = lru_cache(MOST_KEPT)(self._loads)

    def _loads(self, access: Access, end: int) -> list[int]:
        """Return the bytes of pieces that the first ``end`` bytes of an access touch, by PC; a piece counts once."""
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
        """Add the bytes ``first`` … ``end - 1`` to the loads."""
        burst, group = self._burst, self.count * self._burst
        while first < end:
            groups = 0 if first % group else (end - first) // group
            if groups:
                # A group has a burst of every PC.
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
    """The cost of a turn that began with the PC which was done last."""

    began: int

    def split(self, since: int, end: int) -> tuple[int, BankTime]:
        """Return when a turn began that was waited for from ``since`` to ``end``, and nothing that it took of banks."""
        return min(max(since, self.began), end), BankTime()


class IdealMemory:
    """The PCs of one slice. ``quantum``: in bytes; ``ps_per_byte``: of a PC. ``at``: when each PC is free.

    ``took``: what the last stretch took, if that is ``observed``.
    """

    def __init__(self, channels: Channels, quantum: int, ps_per_byte: float) -> None:
        self.quantum = quantum
        self.observed = False
        self.took: _IdealTurnCost | None = None
        self._channels, self._ps_per_byte = channels, ps_per_byte
        self._ahead_ps = round(quantum * ps_per_byte)
        self.at = [0] * channels.count

    def serve(
        self, access: Access, write: bool, begin: int, end: int, now: int, until: int = FAR, least: int = 0
    ) -> Grant:
        """Serve bytes ``begin`` … ``end - 1`` of an access.

        No further quantum begins after ``until``, unless it has bytes before ``least``.
        """
        if until < FAR:
            end = self._end_of_turns(access, begin, end, now, until, least)
        before, after = self.at, self._serve(access, begin, end, now)
        self.at = after
        first = last = now
        used = [(old, new) for old, new in zip(before, after, strict=True) if new != old]
        if used:
            before_last, last = max(used, key=itemgetter(1))
            first = max(now, min(used)[0])
            if self.observed:
                self.took = _IdealTurnCost(max(now, before_last))
        return Grant(end, self._over_ps(after, now), first, last)

    def _over_ps(self, free: list[int], now: int) -> int:
        """Return when no PC has more than a quantum left to do."""
        return max(now, max(free) - self._ahead_ps)

    def _serve(self, access: Access, begin: int, end: int, now: int) -> list[int]:
        """Return when each PC is free after its part of these bytes: of a piece that turns share, the first has it."""
        loads = self._channels.loads(access, end)
        if begin:
            loads = [load - done for load, done in zip(loads, self._channels.loads(access, begin), strict=True)]
        return [
            (free if free > now else now) + round(load * self._ps_per_byte) if load else free
            for free, load in zip(self.at, loads, strict=True)
        ]

    def _end_of_turns(self, access: Access, begin: int, end: int, now: int, until: int, least: int) -> int:
        """Return the end of the first quantum that is over after ``until``, no byte before ``least`` being left."""

        def over_ps(at: int) -> int:
            return self._over_ps(self._serve(access, begin, at, now), now)

        ends = range(begin + self.quantum, end, self.quantum)
        needed = min(max(0, -(-(least - begin) // self.quantum) - 1), len(ends))
        turns = bisect_right(ends, until, lo=needed, key=over_ps)
        return ends[turns] if turns < len(ends) else end
