"""A slice without banks (``timing: ideal``): each pseudo-channel (PC) moves its bytes at the bandwidth that it can use.

PCs are counters, free = max(free, now) + bytes / bandwidth, so accesses to different ones overlap. A turn ends when no
PC that it used has more than a quantum left to do: PCs do not idle when a few accesses meet in one of them, and a
small access waits for at most a quantum in its PC, and one of each competitor.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter

from kernbench.common.values import value
from kernbench.components.hbm.banked import Stretch
from kernbench.components.hbm.channel_figures import FAR
from kernbench.components.hbm.channels import Channels
from kernbench.components.hbm.took import Took
from kernbench.core.observed import BankTime
from kernbench.messages.fabric import Access


@value
class _Took:
    """A turn that began with the PC which was done last."""

    began: int

    def split(self, since: int, end: int) -> tuple[int, BankTime]:
        return min(max(since, self.began), end), BankTime()


class IdealMemory:
    """The PCs of one slice. ``quantum``: in bytes; ``ps_per_byte``: of a PC.

    ``took``: what the last stretch took, if that is ``observed``.
    """

    __slots__ = ("_ahead_ps", "_channels", "_free", "_ps_per_byte", "observed", "quantum", "took")

    def __init__(self, channels: Channels, quantum: int, ps_per_byte: float) -> None:
        self.quantum = quantum
        self.observed = False
        self.took: Took | None = None
        self._channels = channels
        self._ps_per_byte = ps_per_byte
        self._ahead_ps = round(quantum * ps_per_byte)
        self._free = [0] * channels.count  # when each PC is; never changed in place

    def save(self) -> list[int]:
        """The state, to ``restore``."""
        return self._free

    def restore(self, saved: list[int]) -> None:
        """Put the state back to one that was saved."""
        self._free = saved

    def serve(
        self, access: Access, write: bool, begin: int, end: int, now: int, until: int = FAR, least: int = 0
    ) -> Stretch:
        """Serve bytes ``begin`` … ``end - 1`` of an access.

        No further quantum begins after ``until``, unless it has bytes before ``least``.
        """
        if until < FAR:
            end = self._end_of_turns(access, begin, end, now, until, least)
        before, after = self._free, self._serve(access, begin, end, now)
        self._free = after
        first = last = now
        used = [(old, new) for old, new in zip(before, after, strict=True) if new != old]
        if used:
            before_last, last = max(used, key=itemgetter(1))
            first = max(now, min(used)[0])
            if self.observed:
                self.took = _Took(max(now, before_last))
        return Stretch(end, self._over_ps(after, now), first, last)

    def _over_ps(self, free: list[int], now: int) -> int:
        """When no PC has more than a quantum left to do."""
        return max(now, max(free) - self._ahead_ps)

    def _serve(self, access: Access, begin: int, end: int, now: int) -> list[int]:
        """When each PC is free if it serves its part of these bytes: of a piece that turns share, the first does."""
        loads = self._channels.loads(access, end)
        if begin:
            loads = [load - done for load, done in zip(loads, self._channels.loads(access, begin), strict=True)]
        per_byte = self._ps_per_byte
        return [
            (free if free > now else now) + round(load * per_byte) if load else free
            for free, load in zip(self._free, loads, strict=True)
        ]

    def _end_of_turns(self, access: Access, begin: int, end: int, now: int, until: int, least: int) -> int:
        """Where the first quantum ends whose turn is over after ``until``, no byte before ``least`` being left."""

        def over_ps(at: int) -> int:
            return self._over_ps(self._serve(access, begin, at, now), now)

        ends = range(begin + self.quantum, end, self.quantum)
        needed = min(max(0, -(-(least - begin) // self.quantum) - 1), len(ends))
        turns = bisect_right(ends, until, lo=needed, key=over_ps)
        return ends[turns] if turns < len(ends) else end
