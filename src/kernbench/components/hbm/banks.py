"""The banks of a slice: histories of its channels, grants of accesses, refresh, and the bank time of each grant.

The answers of a channel depend on its *history* only: the runs it has received, and the times between them. Histories
are therefore cached as a tree (``ChannelHistory``). The first channel that goes through a step computes it, later
channels look it up. ``SliceHistory`` does the same for a slice, with accesses as steps.

A computed channel object moves from node to node of that tree. If a node is needed that its channel object has left, a
new object is made from the last copy on the path to the node, and repeats the steps since that copy. A copy is stored
every ``STEPS_BETWEEN_COPIES`` steps.

A long access returns to the same banks and columns, sweep after sweep, one row further each time (``Sweeps``).

Refresh is an *outage* of all banks of all slices at once (``RefreshClock``). Bank time stands still during an outage.
Times in this module are bank time in ps, except the arguments and answers of ``BankedMemory``.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from operator import add, itemgetter, sub
from typing import NamedTuple

from kernbench.common.units import PS_PER_NS
from kernbench.common.values import value
from kernbench.components.hbm.channel import FAR, PER_PC, WRITTEN, Channel, ChannelState, ChannelTiming, Counters
from kernbench.components.hbm.layout import Layout, Planner, RowRun
from kernbench.core.observed import BankTime
from kernbench.messages.fabric import Access
from kernbench.topology.hbm_refresh import NO_REFRESH, refresh_clock
from kernbench.topology.hbm_spec import AddressMapping, HbmTiming, Refresh

STEPS_BETWEEN_COPIES = 64
MOST_STEPS, MOST_SWEEPS = 1 << 14, 1 << 10
"""Cache sizes: the number of steps, for channels and for slices each, and the number of sweeps. A full cache is cleared
"""


@value
class Grant:
    """A grant of an access up to byte ``end``, over at ``over_ps``.

    Its bytes are on a bus from ``first_ps`` to ``last_ps``.
    """

    end: int
    over_ps: int
    first_ps: int
    last_ps: int


TimeSpan = tuple[int, int]
ChannelStep = tuple[int, int, tuple[RowRun, ...], bool, bool]
"""The arguments of ``Channel.serve``"""
NO_STEP: ChannelStep = 0, 0, (), False, False


class ChannelHistory:
    """The past of a channel up to ``now_ps``: the history ``before``, the last ``step``, and the answer to that step.

    It provides the channel in that state: the ``live`` channel, a copy, or the channel of ``before`` after ``step``.
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
        self.depth: int = before.depth + 1 if before else 0  # number of steps since a copy
        self.now_ps, (self.entered_ps, self.first_ps, self.last_ps) = step[0], answer
        self.end_ps, self.settled_ps = channel.end_ps, channel.settled_ps
        self._counters: Counters | None = None

    @property
    def counters(self) -> Counters:
        """Return the counters of the channel in this state. The first call is cheap before the channel continues."""
        if self._counters is None:
            self._counters = self.channel().counters
        return self._counters

    def channel(self) -> Channel:
        """Return the channel in this state. The caller must not change it."""
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
        """Return the channel in this state, which the caller may change.

        This history first stores a copy if the last copy is ``STEPS_BETWEEN_COPIES`` or more steps back.
        """
        channel, self.live = self.live or self.channel(), None
        if self.depth >= STEPS_BETWEEN_COPIES:
            self._keep_copy(channel)
        return channel

    def _keep_copy(self, channel: Channel) -> None:
        """Store a copy of the channel, and drop ``before``, which the copy replaces."""
        if self.copy is None:
            self.copy, self.before, self.depth = channel.copy(), None, 0


class SliceChannel(NamedTuple):
    """A channel of a slice: its history, the offsets of time and row to add to the history, and ``more`` counters.

    ``more`` counts the work of skipped sweeps, in which the banks repeat their work some rows further.
    """

    history: ChannelHistory
    behind_ps: int
    behind_rows: int
    more: tuple[int, ...] = ()

    @property
    def done(self) -> tuple[int, ...]:
        """Return the counters of the channel, as ``Counters.done``."""
        done = self.history.counters.done
        return tuple(map(add, done, self.more)) if self.more else done


class SliceHistory:
    """The channels of a slice at ``now_ps``, and the ``labels`` of bank 0 of each channel.

    From ``settled_ps`` on, only open rows and waiting writes have an effect. ``asked``: the time of the last step of
    each channel. ``turns``: the split of the last grant, by the begin and the end of the wait for that grant.
    """

    __slots__ = ("asked", "channels", "labels", "now_ps", "settled_ps", "turns")

    def __init__(self, channels: Sequence[SliceChannel], labels: Sequence[int], now_ps: int) -> None:
        self.turns: dict[TimeSpan, tuple[int, BankTime]] = {}
        self.channels, self.labels, self.now_ps = tuple(channels), tuple(labels), now_ps
        self.asked = tuple([channel.history.now_ps + channel.behind_ps for channel in channels])
        self.settled_ps = max([channel.history.settled_ps + channel.behind_ps for channel in channels])


class KnownSweep(NamedTuple):
    """A computed sweep: ``row`` began it, ``over`` ended it, its duration is ``took``, its counters are ``done``.

    Its first byte was on a bus ``first`` ps after the begin of the sweep, its last byte until ``last`` ps after it.
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
    """The trees of histories of one type of slice, with ``num_pcs`` pseudo-channels (PCs). ``planner`` has its layout.

    ``served``: the number of steps computed so far.
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
        self.grants: dict[Hashable, tuple[SliceHistory, Grant]] = {}  # by history and all other inputs of an answer
        self.sweeps: dict[Hashable, KnownSweep] = {}
        self.states: dict[ChannelState, object] = {}  # of channels at the begin of a sweep, with a unique mark for each

    def forget(self) -> None:
        """Drop all computed steps, grants and sweeps. Later accesses compute theirs anew, with the same results."""
        for computed in (self._steps, self.grants, self.sweeps, self.states):
            computed.clear()

    def step(
        self, history: ChannelHistory, now: int, base: int, runs: tuple[RowRun, ...], write: bool, refreshed: bool
    ) -> ChannelHistory:
        """Return the history with one more step, with the arguments of ``Channel.serve``."""
        idle = now - history.now_ps if now < history.settled_ps else -1
        # Runs are identified by object: a history keeps the runs of its step alive.
        key = history, idle, base, id(runs), write, refreshed
        following = self._steps.get(key)
        if following is None:
            self.served += 1
            channel, arguments = history.take_channel(), (now, base, runs, write, refreshed)
            following = ChannelHistory(channel, channel.serve(*arguments), history, arguments)
            if len(self._steps) == MOST_STEPS:
                self._steps.clear()
            self._steps[key] = following
        return following


class Position(NamedTuple):
    """The state of a slice: its history, the bank time at which the history begins, and each channel's last step.

    Slices share histories. For channels that were idle, the history has the times of the slice that computed it first.
    """

    history: SliceHistory
    began: int
    asked: tuple[int, ...]


@value
class BanksTurnCost:
    """The cost of a grant of a read or ``write`` at ``now``: the positions of the slice ``before`` and ``after`` it."""

    before: Position
    after: Position
    now: int
    write: bool
    kind: Histories

    def split(self, since: int, end: int) -> tuple[int, BankTime]:
        """Return the begin and the bank time of a grant that its requester waited for from ``since`` to ``end``.

        A read begins when the bus that carries its last burst becomes free for it. A read that only fills gaps between
        other bursts waits for the rows that it opens. A write waits for room in the queues.

        A bus is *occupied* from the end of its earlier bursts, or from the begin of the grant if that is later, to the
        end of the grant's bursts. The occupancy comprises bursts, bus turnarounds, waits for rows or for the pace of
        bank groups, and spread refresh.
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
        """Split a grant in bank time, counted from the grant. Slices with the same histories have the same split."""
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
        bursts, opened, idle_bursts, idle_opened, idle_taken, idle_turned, idle_rows, _ = heads
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


class SliceWork(NamedTuple):
    """The work of a slice: bytes ``read`` and ``written``, bytes of writes ``held`` back so far, and opened ``rows``.

    ``held`` bytes count as written, but the banks have not begun to serve them. Their rows do not count yet.
    """

    read: int = 0
    written: int = 0
    held: int = 0
    rows: int = 0


class BankedMemory:
    """The banks of a slice whose bytes begin at address ``base``. ``quantum`` is in bytes.

    ``histories``: the histories shared by all slices of this type. ``at``: the state. ``took``: the cost of the last
    grant, if ``observed``. ``quanta``: the number of quanta computed so far.
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
        """Return the sum of the channels' counters: ``Counters.done`` without the counters per PC."""
        return tuple(map(sum, zip(*[channel.done[:PER_PC] for channel in self.at.history.channels], strict=True)))

    @property
    def moved_bursts(self) -> int:
        """Return the number of bursts with a time on a bus: the counted bursts that do not wait for a turnaround."""
        return self.done[0] - sum(channel.history.channel().returned_bursts for channel in self.at.history.channels)

    @property
    def pending_bursts(self) -> int:
        """Return the number of bursts of deferred writes."""
        return sum(channel.history.channel().pending_bursts for channel in self.at.history.channels)

    @property
    def work(self) -> SliceWork:
        """Return the bytes and rows so far. The bytes of a burst count when the banks take it, in its direction."""
        done, burst = self.done, self._histories.timing.burst_bytes
        channels = [channel.history.channel() for channel in self.at.history.channels]
        held = sum(channel.waiting_bursts - channel.returned_bursts for channel in channels)
        written, bursts = done[WRITTEN], done[0] + held
        return SliceWork((bursts - written) * burst, written * burst, held * burst, done[1])

    @property
    def end_ps(self) -> int:
        """Return the end of the last byte on any bus, in ps."""
        history, began, _ = self.at
        return self.clock.out(began + max([channel.history.end_ps + channel.behind_ps for channel in history.channels]))

    def serve(
        self, access: Access, write: bool, begin: int, end: int, now: int, until: int = FAR, least: int = 0
    ) -> Grant:
        """Serve bytes ``begin`` … ``end - 1`` of an access, in quanta.

        No further quantum begins after ``until``, unless that quantum has bytes before ``least``.
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
        cached = grants.get(key)
        if cached is None:
            local = Access(place, access.row_bytes, access.rows, stride)
            cached = self._serve(history, here, local, write, (begin, end), (until + here, least), list(refreshed))
            if len(grants) == MOST_STEPS:
                grants.clear()
            grants[key] = cached
        after, grant = cached
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
        # Queues are open in an outage: a write that enters then is done, and a read that begins then is data on a bus.
        out_first = clock.out if write else clock.out_after
        over, first, last = clock.out(grant.over_ps + began), out_first(grant.first_ps + began), grant.last_ps + began
        return Grant(grant.end, max(now, over), max(now, first), max(now, clock.out(last)))

    def _serve(
        self,
        history: SliceHistory,
        now: int,
        access: Access,
        write: bool,
        span: TimeSpan,
        limits: TimeSpan,
        shut: list[bool],
    ) -> tuple[SliceHistory, Grant]:
        """Compute the quanta of a grant, in times of the slice's history. The rows of ``shut`` channels were closed."""
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
                    # Equal channels whose labels differ in the same way share the step.
                    its = channels[number], labels[number] ^ label, shut[number]
                    if its != before:
                        (old, behind_ps, behind_rows, more), shift, closed = before = its
                        its_now = over - behind_ps
                        if shift and its_now >= old.settled_ps and (closed or old.channel().has_uniform_banks):
                            shift = 0
                        labelled = planner.relabelled(runs, shift) if shift else runs
                        new = step(old, its_now, base - behind_rows, labelled, write, closed)
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
        """Return the byte at which the first complete sweep begins; FAR if there is no such sweep, or it is unknown."""
        layout, quantum = self._histories.planner.layout, self.quantum
        # With folded rows a sweep has to begin at its first byte: from there on, all folded bits change at once.
        first = begin + (-(access.pa + begin) % layout.sweep_bytes if layout.folds_rows else 0)
        fits = access.rows == 1 and not layout.sweep_bytes % quantum and not (first - begin) % quantum
        return first if fits and end - first >= layout.sweep_bytes else FAR


class Sweeps:
    """The sweeps of a grant from its byte ``place`` on, looked up among the computed sweeps.

    The key of a sweep is the state of the channels at the begin of the sweep. Banks in that state count from the bank
    of the sweep's first block, rows from the sweep's row. Equal states yield equal sweeps of equal duration. A sweep
    that begins in the state of a computed sweep is therefore skipped.
    """

    def __init__(self, histories: Histories, write: bool, place: int) -> None:
        self._layout, self._known, self._marks = histories.planner.layout, histories.sweeps, histories.states
        self._kind = write, place
        self._begun: tuple[Hashable, int, list[tuple[int, ...]]] | None = None  # the last sweep: state, begin, counters
        self._states: dict[Hashable, object] = {}

    def skip(
        self, channels: list[SliceChannel], labels: list[int], grant: Grant, row: int, most: int, until: int
    ) -> Grant:
        """Advance the channels past all known sweeps from ``row`` on. Return their number and times as a grant.

        ``grant`` is the grant of the previous sweep. At most ``most`` sweeps are skipped, none ends after ``until``.
        """
        layout, over, times, last = self._layout, grant.over_ps, 0, None
        done = [channel.done for channel in channels]
        if self._begun is not None:
            state, when, before = self._begun
            increments = tuple([tuple(map(sub, *pair)) for pair in zip(done, before, strict=True)])
            if len(self._known) == MOST_SWEEPS:
                self._known.clear()
                self._marks.clear()
            took = over - when, grant.first_ps - when, grant.last_ps - when
            self._known[state] = KnownSweep(tuple(channels), tuple(labels), row - 1, over, *took, increments)
        first_ps, last_ps = FAR, 0
        state = self._state(channels, labels, over, row, layout.fold_of(row))
        while times < most and (sweep := self._known.get(state)) and over + sweep.took <= until:
            fold = layout.fold_of(row) ^ layout.fold_of(sweep.row)
            high = fold // layout.banks_per_channel
            done = [tuple(map(add, counters, sweep.done[i ^ high])) for i, counters in enumerate(done)]
            first_ps, last_ps = min(first_ps, over + sweep.first), max(last_ps, over + sweep.last)
            last, times, row, over = (sweep, fold), times + 1, row + 1, over + sweep.took
            state = self._state(sweep.channels, sweep.labels, sweep.over, sweep.row + 1, fold ^ layout.fold_of(row))
        if last is not None:
            sweep, fold = last
            high, low = divmod(fold, layout.banks_per_channel)
            ps, rows = over - sweep.over, row - sweep.row - 1
            for i, did in enumerate(done):
                its = sweep.channels[i ^ high]
                more = tuple(map(sub, did, its.history.counters.done))
                channels[i] = SliceChannel(its.history, its.behind_ps + ps, its.behind_rows + rows, more)
                labels[i] = sweep.labels[i ^ high] ^ low
        self._begun = state, over, done
        return Grant(times, over, first_ps, last_ps)

    def _state(
        self, channels: Sequence[SliceChannel], labels: Sequence[int], over: int, row: int, fold: int
    ) -> Hashable:
        """Return the state of channels at ``over``. Rows count from ``row``, banks are XORed with ``fold``."""
        high, low = divmod(fold, self._layout.banks_per_channel)
        entries = []
        for i in range(len(channels)):
            (history, behind_ps, behind_rows, _), label = channels[i ^ high], labels[i ^ high] ^ low
            key = history, over - behind_ps, row - behind_rows, label
            mark = self._states.get(key)
            if mark is None:
                state = history.channel().state(over - behind_ps, row - behind_rows, label)
                mark = self._states[key] = self._marks.setdefault(state, object())
            entries.append((label, mark))
        return *self._kind, *entries
