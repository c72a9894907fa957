"""The banks of a slice, channel by channel.

Channels have nothing in common: what waits for room in the queue of one holds up no run of another, only the quanta
behind. Channels in the same state that are given the same runs are *in step*, and the first of them stands for all: a
stream over all channels is gone through once, not once a channel. What only some of them are given parts them. When a
long access begins, those that are in the same state again come together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kernbench.components.hbm.channel_banks import ChannelBanks
from kernbench.components.hbm.channel_figures import FAR, Tally
from kernbench.components.hbm.plan import Parts
from kernbench.components.hbm.took import Counts, Taken
from kernbench.topology.hbm_spec import HbmTiming

Like = tuple[int, ...]
"""Of each channel the first one that is in step with it."""


class Saved(NamedTuple):
    """The state of banks at some time: those channels that stand for others, and what each counted beyond."""

    channels: dict[int, ChannelBanks]
    like: Like
    apart: list[Tally]


class Banks:
    """What ``num_pcs`` pseudo-channels (PCs) are busy with; two of them are a channel."""

    __slots__ = ("_apart", "_channels", "_leads", "_like")

    def __init__(self, timing: HbmTiming, num_pcs: int, queue_entries: int) -> None:
        sizes = [min(2, num_pcs - first) for first in range(0, num_pcs, 2)]
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
