"""The banks of a slice: histories of its channels, the grants of an access, refresh, and what a turn took of the banks.

What a channel answers depends on its *history* only: on the runs that it was given, and the times between them. So
histories are kept, as a tree (``ChannelHistory``): the first channel that goes through a step works it out, the others
find it. ``SliceHistory`` is the same of a slice, step by step of accesses.

A channel that has been worked out goes on from node to node. To go on from a node that it has left, one is made from
the last copy on the way there, and goes through the steps since then: a copy is kept every ``STEPS_BETWEEN_COPIES``.

A long stretch of memory comes to the same places again, sweep after sweep, a row further each time (``Sweeps``).

Refresh is an *outage* of all banks of all slices at once (``RefreshClock``). The time of the banks stands still then:
what is said here in ps is bank time, but for what ``BankedMemory`` takes and answers.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from operator import add, itemgetter, sub
from typing import NamedTuple

from kernbench.common.units import PS_PER_NS
from kernbench.common.values import value
from kernbench.components.hbm.channel import FAR, PER_PC, Channel, ChannelState, ChannelTiming, Counters
from kernbench.components.hbm.layout import Layout, Planner, RowRun
from kernbench.core.observed import BankTime
from kernbench.messages.fabric import Access
from kernbench.topology.hbm_refresh import NO_REFRESH, refresh_clock
from kernbench.topology.hbm_spec import AddressMapping, HbmTiming, Refresh

STEPS_BETWEEN_COPIES = 16
MOST_STEPS, MOST_SWEEPS = 1 << 14, 1 << 10
"""Steps that are kept of channels, and as many of slices; and sweeps. Beyond, all are forgotten and begin anew"""


@value
class Grant:
    """Bytes of an access up to ``end`` had their turn until ``over_ps``; on a bus from ``first_ps`` to ``last_ps``."""

    end: int
    over_ps: int
    first_ps: int
    last_ps: int


Span = tuple[int, int]
ChannelStep = tuple[int, int, tuple[RowRun, ...], bool, bool]
"""What ``Channel.serve`` is given"""
NO_STEP: ChannelStep = 0, 0, (), False, False


class ChannelHistory:
    """The past of a channel up to ``now_ps``: what was ``before``, the last ``step``, and what it answered to that.

    It has the channel as it is then (``live``), or a copy that stays, or goes on from what was before.
    """

    __slots__ = (
        *("_counters", "before", "copy", "depth", "end_ps", "entered_ps", "first_ps"),
        *("last_ps", "live", "now_ps", "settled_ps", "step"),
    )

    def __init__(
        self, channel: Channel, answer: tuple[int, int, int], before: ChannelHistory | None, step: ChannelStep
    ) -> None:
        self.live: Channel | None = channel
        self.before, self.step = before, step
        self.copy: Channel | None = None if before else channel.copy()
        self.depth: int = before.depth + 1 if before else 0  # steps since a copy
        self.now_ps, (self.entered_ps, self.first_ps, self.last_ps) = step[0], answer
        self.end_ps, self.settled_ps = channel.end_ps, channel.settled_ps
        self._counters: Counters | None = None

    @property
    def counters(self) -> Counters:
        """Return what the channel has done by then. Cheap if it was asked for before the channel went on."""
        if self._counters is None:
            self._counters = self.channel().counters
        return self._counters

    def channel(self) -> Channel:
        """Return the channel as it is then. It is not to be changed."""
        if self.live is None:
            steps, history = [], self
            while history.copy is None:
                assert history.before is not None, "the first history has a copy"
                steps.append(history.step)
                history = history.before
            self.live = history.copy.copy()
            for step in reversed(steps):
                self.live.serve(*step)
            self._keep_copy(self.live)
        return self.live

    def take_channel(self) -> Channel:
        """Return the channel, to go on with; this history keeps a copy if the last one is some steps ago."""
        channel, self.live = self.live or self.channel(), None
        if self.depth >= STEPS_BETWEEN_COPIES:
            self._keep_copy(channel)
        return channel

    def _keep_copy(self, channel: Channel) -> None:
        """Keep a copy of the channel; what was before is no longer needed."""
        if self.copy is None:
            self.copy, self.before, self.depth = channel.copy(), None, 0


class SliceChannel(NamedTuple):
    """A channel of a slice: its history, whose times and rows are so much behind, and what it did ``more``.

    In sweeps that were not gone through, banks do the same some rows further.
    """

    history: ChannelHistory
    behind_ps: int
    behind_rows: int
    more: tuple[int, ...] = ()

    @property
    def done(self) -> tuple[int, ...]:
        """Return what the channel has done, as ``Counters.done``."""
        done = self.history.counters.done
        return tuple(map(add, done, self.more)) if self.more else done


class SliceHistory:
    """The channels of a slice at ``now_ps``, and the ``labels`` of bank 0 of each; all is over at ``settled_ps``.

    ``asked``: when each was last asked. ``turns``: what the last grant took, by since and until when it was waited for.
    """

    __slots__ = ("asked", "channels", "labels", "now_ps", "settled_ps", "turns")

    def __init__(self, channels: Sequence[SliceChannel], labels: Sequence[int], now_ps: int) -> None:
        self.turns: dict[Span, tuple[int, BankTime]] = {}
        self.channels, self.labels, self.now_ps = tuple(channels), tuple(labels), now_ps
        self.asked = tuple([each.history.now_ps + each.behind_ps for each in channels])
        self.settled_ps = max([each.history.settled_ps + each.behind_ps for each in channels])


class KnownSweep(NamedTuple):
    """A sweep that was gone through: ``row`` began it, ``over`` ended it, it took so long and did so much.

    Its first byte was on a bus ``first`` after its begin, its last one had been ``last`` after that.
    """

    channels: tuple[SliceChannel, ...]
    labels: tuple[int, ...]
    row: int
    over: int
    took: int
    first: int
    last: int
    done: tuple[tuple[int, ...], ...]


class Histories:
    """The trees of histories of one kind of slice, with ``num_pcs`` pseudo-channels (PCs); ``planner`` has its layout.

    ``served``: steps worked out so far.
    """

    def __init__(
        self, timing: HbmTiming, num_pcs: int, mapping: AddressMapping, queue_entries: int, refresh: Refresh = "spread"
    ) -> None:
        most = timing.pcs_per_channel
        sizes = [min(most, num_pcs - first) for first in range(0, num_pcs, most)]
        self.timing, self.planner = timing, Planner(Layout(timing, num_pcs, mapping))
        self.clock = refresh_clock(timing) if refresh == "all-bank" else NO_REFRESH
        self.share = timing.refresh_share if refresh == "spread" else 0.0
        idle = {size: Channel(ChannelTiming(timing, size, queue_entries, self.share)) for size in set(sizes)}
        roots = {size: ChannelHistory(channel, (0, 0, 0), None, NO_STEP) for size, channel in idle.items()}
        self.root = SliceHistory([SliceChannel(roots[size], 0, 0) for size in sizes], [0] * len(sizes), 0)
        self.served = 0
        self._steps: dict[tuple[ChannelHistory, int, int, int, bool, bool], ChannelHistory] = {}
        self.grants: dict[Hashable, tuple[SliceHistory, Grant]] = {}  # by history, and all that an answer depends on
        self.sweeps: dict[Hashable, KnownSweep] = {}
        self.states: dict[ChannelState, object] = {}  # of channels when a sweep begins, with a mark for each

    def step(
        self, history: ChannelHistory, now: int, base: int, runs: tuple[RowRun, ...], write: bool, refreshed: bool
    ) -> ChannelHistory:
        """Return the history that has one step more, as of ``Channel.serve``."""
        idle = now - history.now_ps if now < history.settled_ps else -1
        # Runs are known by identity: a history keeps those of its step.
        key = history, idle, base, id(runs), write, refreshed
        found = self._steps.get(key)
        if found is None:
            self.served += 1
            channel, given = history.take_channel(), (now, base, runs, write, refreshed)
            found = ChannelHistory(channel, channel.serve(*given), history, given)
            if len(self._steps) == MOST_STEPS:
                self._steps.clear()
            self._steps[key] = found
        return found


class Position(NamedTuple):
    """The present of a slice: its history, the bank time at which that began, and when each channel was last asked.

    Of channels that were idle the history may have other times: those of the slice that went through it first.
    """

    history: SliceHistory
    began: int
    asked: tuple[int, ...]


@value
class BanksTurnCost:
    """A grant of a read or a ``write`` at ``now``: where the slice was ``before`` and ``after`` it."""

    before: Position
    after: Position
    now: int
    write: bool
    kind: Histories

    def split(self, since: int, end: int) -> tuple[int, BankTime]:
        """Return when a turn began that its requester waited for from ``since`` to ``end``, and what it took then.

        A read begins when the bus is free that it leaves last; if it only filled gaps that others had left, it has
        waited for the rows that it had to open. A write waits for room in the queues.

        A bus is *taken* from when it was free, or from the begin of the turn, to when it is free again: bursts, turns
        of direction, what it waited for rows or for the pace of bank groups, and refresh if that is spread.
        """
        clock, now, turns = self.kind.clock, self.now, self.after.history.turns
        begin, over = max(0, clock.into(since) - now), clock.into(end) - now
        if (begin, over) not in turns:
            turns[begin, over] = self._split(begin, over)
        began, took = turns[begin, over]
        start = min(max(since, clock.out(now + began)), end)
        outages = end - start - (over - began)
        return start, took._replace(refresh=took.refresh + outages) if outages else took

    def _split(self, begin: int, over: int) -> tuple[int, BankTime]:
        """Split a turn in bank time, which counts from the grant: the same for all slices with these histories."""
        share, since, until = self.kind.share, self.before.began - self.now, self.after.began - self.now
        heads, all_turned, all_rows = [0] * PER_PC, 0, 0
        turning, opening, used = 0, over, []
        for old, new in zip(self.before.history.channels, self.after.history.channels, strict=True):
            if old is new:
                continue
            before, after = old.history.counters.ends, new.history.counters.ends
            from_ps, to_ps, done = since + old.behind_ps, until + new.behind_ps, list(map(sub, new.done, old.done))
            for pc, (was, end) in enumerate(zip(before, after, strict=True), PER_PC):
                turned, rows, free_at, end_at = done[pc], done[pc + len(after)], was + from_ps, end + to_ps
                all_turned, all_rows = all_turned + turned, all_rows + rows
                if end_at > 0 and end_at > free_at:
                    used.append((end_at, free_at if free_at > 0 else 0, turned, rows))
            heads = list(map(add, heads, done))
        bursts, opened, idle_bursts, idle_opened, idle_taken, idle_turned, idle_rows = heads
        if used:
            _, free_at, turning, opening = max(used, key=itemgetter(0))
            if not self.write:
                begin = min(max(begin, free_at), over)
            turning = min(turning, over - begin)
        data = round((bursts - idle_bursts) * self.kind.timing.ccd_s_ns * PS_PER_NS / (1 - share)) // max(1, len(used))
        row_ps = max(0, min(opening, over - begin - turning - data)) if opened > idle_opened else 0
        return begin, BankTime(
            bursts=bursts,
            hits=bursts - opened,
            taken=sum([end_at - free_at for end_at, free_at, _, _ in used]) + idle_taken,
            opened=all_rows + idle_rows,
            turned=all_turned + idle_turned,
            rows=row_ps,
            turning=turning - round(turning * share),
            refresh=round((over - begin - row_ps) * share),
        )


class BankedMemory:
    """The banks of a slice whose bytes begin at address ``base``. ``quantum``: in bytes.

    ``histories``: those of all slices of its kind. ``at``: its state. ``took``: what the last grant took of the banks,
    if that is ``observed``. ``quanta``: gone through so far.
    """

    def __init__(self, histories: Histories, quantum: int, base: int = 0) -> None:
        self.quantum, self.quanta = quantum, 0
        self.observed = False
        self.took: BanksTurnCost | None = None
        self.clock = histories.clock
        self._histories, self._base = histories, base
        self.at = Position(histories.root, 0, histories.root.asked)
        self._not_refreshed = (False,) * len(histories.root.channels)

    @property
    def done(self) -> tuple[int, ...]:
        """Return what its channels have done together: ``Counters.done`` before what is of each PC."""
        return tuple(map(sum, zip(*[each.done[:PER_PC] for each in self.at.history.channels], strict=True)))

    @property
    def moved_bursts(self) -> int:
        """Return the bursts that have a time on a bus: those done, but for those that wait for another turn."""
        return self.done[0] - sum(each.history.channel().returned_bursts for each in self.at.history.channels)

    @property
    def pending_bursts(self) -> int:
        """Return the bursts of writes that are kept back."""
        return sum(each.history.channel().pending_bursts for each in self.at.history.channels)

    @property
    def end_ps(self) -> int:
        """Return when the last byte on a bus is over."""
        history, began, _ = self.at
        return self.clock.out(began + max([each.history.end_ps + each.behind_ps for each in history.channels]))

    def serve(
        self, access: Access, write: bool, begin: int, end: int, now: int, until: int = FAR, least: int = 0
    ) -> Grant:
        """Serve bytes ``begin`` … ``end - 1`` of an access, in quanta.

        No further one begins after ``until``, unless it has bytes before ``least``.
        """
        clock, before = self.clock, self.at
        history, began, asked = before
        bank_now = clock.into(now)
        here = bank_now - began
        until = clock.into(until) - bank_now if until < FAR else FAR
        outage, next_outage = clock.outages_around(bank_now)
        refreshed = tuple(map(outage.__ge__, asked)) if outage > 0 else self._not_refreshed
        idle = here - history.now_ps if here < history.settled_ps else -1
        place, stride = access.pa - self._base, access.stride if access.rows > 1 else 0
        key = history, idle, place, access.row_bytes, access.rows, stride, write, begin, end, until, least, refreshed
        grants = self._histories.grants
        known = grants.get(key)
        if known is None:
            local = Access(place, access.row_bytes, access.rows, stride)
            known = self._serve(history, here, local, write, (begin, end), (until + here, least), list(refreshed))
            if len(grants) == MOST_STEPS:
                grants.clear()
            grants[key] = known
        after, grant = known
        began = bank_now - after.now_ps
        asked = tuple(
            [its + began if its >= after.now_ps else was for was, its in zip(asked, after.asked, strict=True)]
        )
        self.at = Position(after, began, asked)
        if self.observed:
            self.took = BanksTurnCost(before, self.at, bank_now, write, self._histories)
        if outage < bank_now and max(grant.over_ps, grant.last_ps) + began < next_outage:
            began += now - bank_now
            return Grant(grant.end, grant.over_ps + began, grant.first_ps + began, grant.last_ps + began)
        # Queues are open in an outage: who writes then has written, and what begins then is data on a bus.
        out_first = clock.out if write else clock.out_after
        over, first, last = clock.out(grant.over_ps + began), out_first(grant.first_ps + began), grant.last_ps + began
        return Grant(grant.end, max(now, over), max(now, first), max(now, clock.out(last)))

    def _serve(
        self, history: SliceHistory, now: int, access: Access, write: bool, span: Span, limits: Span, shut: list[bool]
    ) -> tuple[SliceHistory, Grant]:
        """Go through the quanta of a grant, at times of the slice's history; banks of some channels were ``shut``."""
        planner, quantum, step = self._histories.planner, self.quantum, self._histories.step
        channels, labels = list(history.channels), list(history.labels)
        (at, end), (until, least) = span, limits
        first, last, over = FAR, now, now
        sweep_first, sweep_last = FAR, 0
        sweep = planner.layout.sweep_bytes
        mark_at = self._first_mark(access, at, end) if end - at >= 2 * sweep else FAR
        sweeps = None
        while at < end and (over <= until or at < least):
            if at == mark_at:
                sweeps = sweeps or Sweeps(self._histories, write, (access.pa + at) % sweep)
                most, row = (end - at) // sweep, (access.pa + at) // sweep
                skipped = sweeps.skip(channels, labels, Grant(at, over, sweep_first, sweep_last), row, most, until)
                first, last = min(first, sweep_first, skipped.first_ps), max(last, sweep_last, skipped.last_ps)
                at, over = at + skipped.end * sweep, skipped.over_ps
                sweep_first, sweep_last = FAR, 0
                mark_at = at + sweep if end - at >= sweep else FAR
                continue
            base, fold, parts = planner.parts(access, at, min(quantum, end - at))
            high, low = divmod(fold, planner.layout.banks_per_channel)
            entered = over
            for alike, runs in parts:
                before = None
                for place, relative in alike:
                    number, label = place ^ high, relative ^ low
                    # Channels alike, whose labels differ alike, have the step in common.
                    its = channels[number], labels[number] ^ label, shut[number]
                    if its != before:
                        (old, behind_ps, behind_rows, more), shift, closed = before = its
                        its_now = over - behind_ps
                        if shift and its_now >= old.settled_ps and (closed or old.channel().has_uniform_banks):
                            shift = 0
                        given = planner.relabelled(runs, shift) if shift else runs
                        new = step(old, its_now, base - behind_rows, given, write, closed)
                        by = over - new.now_ps
                        entered = new.entered_ps + by if new.entered_ps + by > entered else entered
                        sweep_first = new.first_ps + by if new.first_ps + by < sweep_first else sweep_first
                        sweep_last = new.last_ps + by if new.last_ps + by > sweep_last else sweep_last
                        after = SliceChannel(new, by, behind_rows, more)
                    channels[number], labels[number], shut[number] = after, label ^ shift, False
            over = entered
            at += quantum
            self.quanta += 1
        first, last = min(first, sweep_first), max(last, sweep_last)
        return SliceHistory(channels, labels, now), Grant(min(at, end), over, first, last)

    def _first_mark(self, access: Access, begin: int, end: int) -> int:
        """Return the byte with which the first whole sweep begins; FAR if there is none, or it cannot be known."""
        layout, quantum = self._histories.planner.layout, self.quantum
        # Rows that are folded begin with a sweep: from there on all that is folded changes at once.
        first = begin + (-(access.pa + begin) % layout.sweep_bytes if layout.folds_rows else 0)
        fits = access.rows == 1 and not layout.sweep_bytes % quantum and not (first - begin) % quantum
        return first if fits and end - first >= layout.sweep_bytes else FAR


class Sweeps:
    """The sweeps of a grant, which begins them at ``place`` of each, among those that are known.

    A sweep is known by the state of the channels when it begins, which counts banks from where its first block lies,
    and rows from its own. The same state makes the same of a sweep, in as much time; so a sweep that begins as one that
    was gone through is not gone through again.
    """

    def __init__(self, histories: Histories, write: bool, place: int) -> None:
        self._layout, self._known, self._marks = histories.planner.layout, histories.sweeps, histories.states
        self._kind = write, place
        self._begun: tuple[Hashable, int, list[tuple[int, ...]]] | None = None  # the last: its state, when, counters
        self._states: dict[Hashable, object] = {}

    def skip(
        self, channels: list[SliceChannel], labels: list[int], grant: Grant, row: int, most: int, until: int
    ) -> Grant:
        """Put channels at the end of all sweeps from ``row`` on that are known. Return how many that are, and when.

        ``grant``: of the sweep before. No more than ``most``, and none that ends after ``until``.
        """
        layout, over, times, last = self._layout, grant.over_ps, 0, None
        done = [each.done for each in channels]
        if self._begun is not None:
            state, when, before = self._begun
            made = tuple([tuple(map(sub, *each)) for each in zip(done, before, strict=True)])
            if len(self._known) == MOST_SWEEPS:
                self._known.clear()
                self._marks.clear()
            took = over - when, grant.first_ps - when, grant.last_ps - when
            self._known[state] = KnownSweep(tuple(channels), tuple(labels), row - 1, over, *took, made)
        first_ps, last_ps = FAR, 0
        state = self._state(channels, labels, over, row, layout.fold_of(row))
        while times < most and (known := self._known.get(state)) and over + known.took <= until:
            fold = layout.fold_of(row) ^ layout.fold_of(known.row)
            high = fold // layout.banks_per_channel
            done = [tuple(map(add, each, known.done[i ^ high])) for i, each in enumerate(done)]
            first_ps, last_ps = min(first_ps, over + known.first), max(last_ps, over + known.last)
            last, times, row, over = (known, fold), times + 1, row + 1, over + known.took
            state = self._state(known.channels, known.labels, known.over, known.row + 1, fold ^ layout.fold_of(row))
        if last is not None:
            known, fold = last
            high, low = divmod(fold, layout.banks_per_channel)
            ps, rows = over - known.over, row - known.row - 1
            for i, did in enumerate(done):
                its = known.channels[i ^ high]
                more = tuple(map(sub, did, its.history.counters.done))
                channels[i] = SliceChannel(its.history, its.behind_ps + ps, its.behind_rows + rows, more)
                labels[i] = known.labels[i ^ high] ^ low
        self._begun = state, over, done
        return Grant(times, over, first_ps, last_ps)

    def _state(
        self, channels: Sequence[SliceChannel], labels: Sequence[int], over: int, row: int, fold: int
    ) -> Hashable:
        """Return the state of channels at ``over``; rows count from ``row``, banks as ``fold`` has them."""
        high, low = divmod(fold, self._layout.banks_per_channel)
        found = []
        for i in range(len(channels)):
            (history, behind_ps, behind_rows, _), label = channels[i ^ high], labels[i ^ high] ^ low
            key = history, over - behind_ps, row - behind_rows, label
            mark = self._states.get(key)
            if mark is None:
                state = history.channel().state(over - behind_ps, row - behind_rows, label)
                mark = self._states[key] = self._marks.setdefault(state, object())
            found.append((label, mark))
        return *self._kind, *found
