"""What a turn took of a slice with banks, from what its buses had been promised before and after.

A bus is *taken* from when it was free, or from the turn's begin, to when it is free again. That is bursts, refresh,
turns of direction, and what it waited for rows or for the pace of bank groups. Only who observes a slice asks for it.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from kernbench.common.units import PS_PER_NS
from kernbench.common.values import value
from kernbench.core.observed import BankTime
from kernbench.topology.hbm_spec import HbmTiming


class Counts(NamedTuple):
    """What the banks have done: bursts served, those whose row was open; and what that took of the time of each bus,
    in ps: to turn, and until rows were open, of which later runs may have used a part."""

    bursts: int
    hits: int
    turn_ps: tuple[int, ...]
    opening_ps: tuple[int, ...]


class Taken(NamedTuple):
    """What had been promised by some time: ``all`` that was done, what of it was the accesses' ``own`` (the rest are
    writes in idle time, which gave buses ``idle_ps`` of work), and when each bus is free."""

    all: Counts
    own: Counts
    idle_ps: int
    free: tuple[int, ...]


class Took(Protocol):
    """What a stretch took of a memory."""

    def split(self, since: int, end: int) -> tuple[int, BankTime]:
        """When a turn began that its requester waited for from ``since`` to ``end``, and what it took from then on."""


@value
class TookOfBanks:
    """A turn of a read or a ``write`` that was given at ``now``."""

    before: Taken
    after: Taken
    now: int
    write: bool
    timing: HbmTiming

    def split(self, since: int, end: int) -> tuple[int, BankTime]:
        """When a turn began that its requester waited for from ``since`` to ``end``, and what it took from then on.

        A read begins when the bus is free that it leaves last; if it only filled gaps that others had left, it has
        waited for the rows that it had to open. A write waits for room in the queues.
        """
        since = max(since, self.now)
        before, after = self.before, self.after
        taken = [free - max(was, self.now) for was, free in zip(before.free, after.free, strict=True)]
        used = [pc for pc, ps in enumerate(taken) if ps > 0]
        bursts = after.own.bursts - before.own.bursts
        data = round(bursts * self.timing.burst_work_ns * PS_PER_NS) // max(1, len(used))
        turning, opening = 0, end
        if used:
            last = max(used, key=after.free.__getitem__)
            if not self.write:
                since = min(max(since, before.free[last]), end)
            turning = min(after.own.turn_ps[last] - before.own.turn_ps[last], end - since)
            opening = after.own.opening_ps[last] - before.own.opening_ps[last]
        rows = 0
        if after.own.hits - before.own.hits < bursts:
            rows = max(0, min(opening, end - since - turning - data))
        share = self.timing.refresh_share
        return since, BankTime(
            bursts=after.all.bursts - before.all.bursts,
            hits=after.all.hits - before.all.hits,
            taken=sum(ps for ps in taken if ps > 0) + after.idle_ps - before.idle_ps,
            opened=sum(after.all.opening_ps) - sum(before.all.opening_ps),
            turned=sum(after.all.turn_ps) - sum(before.all.turn_ps),
            rows=rows,
            turning=turning - round(turning * share),
            refresh=round((end - since - rows) * share),
        )
