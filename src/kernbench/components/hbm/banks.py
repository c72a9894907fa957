"""The banks of a slice: its channels, the stretches of an access, and what a turn took of them.

Channels have nothing in common: what waits for room in the queue of one holds up no run of another, only the quanta
behind. Channels in the same state that are given the same runs are *in step*, and the first of them stands for all: a
stream over all channels is gone through once, not once a channel. What only some of them are given parts them. When a
long access begins, those that are in the same state again come together.

A long stretch of memory comes to the same places again, sweep after sweep, a row further each time. Two of them are
gone through; the others are as the second: by then the queues are full, and all open rows are the stretch's own.

A bus is *taken* from when it was free, or from the turn's begin, to when it is free again. That is bursts, refresh,
turns of direction, and what it waited for rows or for the pace of bank groups. Only who observes a slice asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from kernbench.common.units import PS_PER_NS
from kernbench.common.values import value
from kernbench.components.hbm.channel import FAR, ChannelBanks, Tally
from kernbench.components.hbm.layout import Layout, Parts, Planner
from kernbench.core.observed import BankTime
from kernbench.messages.fabric import Access
from kernbench.topology.hbm_spec import AddressMapping, HbmTiming


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


Like = tuple[int, ...]
"""Of each channel the first one that is in step with it."""


class Saved(NamedTuple):
    """The state of banks at some time: those channels that stand for others, and what each counted beyond."""

    channels: dict[int, ChannelBanks]
    like: Like
    apart: list[Tally]


class Banks:
    """What ``num_pcs`` pseudo-channels (PCs) are busy with; ``timing.pcs_per_channel`` of them are a channel."""

    __slots__ = ("_apart", "_channels", "_leads", "_like")

    def __init__(self, timing: HbmTiming, num_pcs: int, queue_entries: int) -> None:
        most = timing.pcs_per_channel
        sizes = [min(most, num_pcs - first) for first in range(0, num_pcs, most)]
        self._like: Like = tuple(map(sizes.index, sizes))
        # The first of those that are in step has the state of all.
        self._channels = {first: ChannelBanks(timing, sizes[first], queue_entries) for first in set(self._like)}
        # What each has counted beyond that one.
        self._apart = [self._channels[first].tally for first in self._like]
        self._leads: dict[tuple[Like, Like], Like] = {}

    def serve(self, now: int, base: int, parts: Parts, write: bool) -> tuple[int, int, int]:
        """Take the runs of a quantum at ``now``: when the last has entered its queue, first byte on a bus, last.

        Their rows count from ``base``. For who writes, a byte has been served when it has entered.
        """
        over, first, last = now, FAR, now
        for channels, runs in parts:
            leads = self._leads.get((self._like, channels))
            for channel in self._part(channels) if leads is None else leads:
                entered, begins, ends = self._channels[channel].serve(now, base, runs, write)
                over = entered if entered > over else over
                first = begins if begins < first else first
                last = ends if ends > last else last
        return over, first, last

    def _part(self, channels: Like) -> Like:
        """Have no channel in step with one that is not among ``channels``; those that stand for all of these."""
        like = list(self._like)
        for first in {like[channel] for channel in channels}:
            left = [channel for channel, its in enumerate(like) if its == first and channel not in channels]
            if left:
                taken = [channel for channel in channels if like[channel] == first]
                other = taken if first in left else left
                self._channels[other[0]] = self._channels[first].copy()
                for channel in other:
                    like[channel] = other[0]
        self._like = tuple(like)
        leads = tuple(dict.fromkeys(like[channel] for channel in channels))
        self._leads[self._like, channels] = leads
        return leads

    def meet(self, now: int) -> None:
        """Have those channels in step that make the same of whatever comes from ``now`` on."""
        if len(self._channels) == 1:
            return
        states = {first: channel.state(now) for first, channel in self._channels.items()}
        firsts = {state: first for first, state in sorted(states.items(), reverse=True)}
        tallies = self._tallies
        self._like = tuple(firsts[states[first]] for first in self._like)
        self._channels = {first: self._channels[first] for first in set(self._like)}
        self._apart = [
            tally.plus(self._channels[first].tally, -1) for tally, first in zip(tallies, self._like, strict=True)
        ]

    @property
    def _tallies(self) -> list[Tally]:
        return [channel.tally.plus(apart) for channel, apart in zip(self._each(), self._apart, strict=True)]

    def _each(self) -> Iterator[ChannelBanks]:
        return (self._channels[first] for first in self._like)

    @property
    def counts(self) -> Counts:
        """What has been done so far."""
        return _counts_of([tally.done for tally in self._tallies])

    def taken(self) -> Taken:
        """What has been promised so far, for who observes it."""
        tallies = self._tallies
        own = [[all_ - idle for all_, idle in zip(each.done, each.idle, strict=True)] for each in tallies]
        free = tuple(when for channel in self._each() for when in channel.free)
        return Taken(self.counts, _counts_of(own), sum(each.idle_ps for each in tallies), free)

    @property
    def pending_bursts(self) -> int:
        """Bursts of writes that are kept back."""
        return sum(channel.pending_bursts for channel in self._each())

    @property
    def end_ps(self) -> int:
        """When the last byte on a bus is over."""
        return max(channel.end_ps for channel in self._channels.values())

    # -- the state as a whole --

    def save(self) -> Saved:
        """The state, to ``restore``."""
        return Saved(_copies(self._channels), self._like, self._apart)

    def restore(self, saved: Saved) -> None:
        """Be as busy as when that was saved."""
        self._channels, self._like, self._apart = _copies(saved.channels), saved.like, saved.apart

    def repeat(self, since: Saved, times: int, ps: int) -> None:
        """Be as if the sweep since then, which took ``ps``, were done ``times`` more, each in the next row."""
        for first, channel in self._channels.items():
            channel.repeat(since.channels[since.like[first]], times, ps)


def _copies(channels: dict[int, ChannelBanks]) -> dict[int, ChannelBanks]:
    return {first: channel.copy() for first, channel in channels.items()}


def _counts_of(channels: Sequence[Sequence[int]]) -> Counts:
    """Of each channel: bursts, rows opened, and of its buses the time for turns and then that for rows."""
    bursts, opened = (sum(done[i] for done in channels) for i in (0, 1))
    halves = [(done[2 : len(done) // 2 + 1], done[len(done) // 2 + 1 :]) for done in channels]
    turns, rows = (tuple(ps for half in halves for ps in half[i]) for i in (0, 1))
    return Counts(bursts, bursts - opened, turns, rows)


LONG = 8
"""Quanta of an access before which it is worth a look whether channels are in step."""


@value
class Stretch:
    """Bytes of an access up to ``end`` had their turn until ``over_ps``; on a bus from ``first_ps`` to ``last_ps``."""

    end: int
    over_ps: int
    first_ps: int
    last_ps: int


class _Place(NamedTuple):
    """A stretch between two sweeps."""

    over_ps: int
    banks: Saved


class BankedMemory:
    """The banks of a slice and the plans of its accesses. ``quantum``: in bytes; ``quanta``: gone through so far.

    ``planner``: that of other slices with this layout, if there are any. ``took``: what the last stretch took of the
    banks, if that is ``observed``.
    """

    def __init__(
        self,
        timing: HbmTiming,
        num_pcs: int,
        mapping: AddressMapping,
        queue_entries: int,
        quantum: int,
        planner: Planner | None = None,
    ) -> None:
        self.quantum = quantum
        self._timing = timing
        self.banks = Banks(timing, num_pcs, queue_entries)
        self.sweep_bytes = num_pcs * timing.banks_per_pc * timing.row_bytes
        self.quanta = 0
        self.observed = False
        self.took: Took | None = None
        self._planner = planner or Planner(Layout(timing, num_pcs, mapping))

    @property
    def counts(self) -> Counts:
        """What has been done so far."""
        return self.banks.counts

    def save(self) -> Saved:
        """The state, to ``restore``."""
        return self.banks.save()

    def restore(self, saved: Saved) -> None:
        """Put the state back to one that was saved."""
        self.banks.restore(saved)

    def serve(
        self, access: Access, write: bool, begin: int, end: int, now: int, until: int = FAR, least: int = 0
    ) -> Stretch:
        """Serve bytes ``begin`` … ``end - 1`` of an access, in quanta.

        No further one begins after ``until``, unless it has bytes before ``least``.
        """
        banks, planner, quantum, sweep = self.banks, self._planner, self.quantum, self.sweep_bytes
        before = banks.taken() if self.observed else None
        if end - begin >= LONG * quantum:
            banks.meet(now)
        first, last, at, over = FAR, now, begin, now
        repeats = access.rows == 1 and end - begin >= 3 * sweep and not sweep % quantum
        mark_at = begin + sweep if repeats else FAR
        place: _Place | None = None
        while at < end and (over <= until or at < least):
            if at == mark_at:
                place = _Place(over, banks.save())
            elif place is not None and at == mark_at + sweep:
                took = over - place.over_ps
                times = min((end - at) // sweep, max(0, (until - over) // took))
                banks.repeat(place.banks, times, took)
                at, over, last = at + times * sweep, over + times * took, last + times * took
                place = None
                continue
            base, parts = planner.parts(access, at, min(quantum, end - at))
            over, begins, ends = banks.serve(over, base, parts, write)
            first, last = min(first, begins), max(last, ends)
            at += quantum
            self.quanta += 1
        if before is not None:
            self.took = TookOfBanks(before, banks.taken(), now, write, self._timing)
        return Stretch(min(at, end), over, first, last)
