"""The banks of a slice and the queues of its channels: what a run takes, in integer ps over flat arrays.

Everything shared is a counter. Those of rows (row bus, activations, stacks) conserve work: free = max(free, now) +
work, and a run starts at max(ready, free before), so that one late row does not hold up the others. Data buses and
groups are *lanes*: they serve in order, and remember the last gaps that they left, which a later run may fill. So
nothing waits in line, which is what a scheduler comes to that serves first what is ready first.

    miss   a = ACT(CMD(max(bank, t + tRP)));  bank = a + tRC;  ready = a + tRCD
    data   d = BUS(GROUP(max(t, ready)));     bank = max(bank, d + tRTP), of writes d + tCWL + tWR;  + tRP

A run hits if its row is open, or was open before the present one and was opened within the last ``queue_entries``
bursts: a scheduler would have served it before it closed the row. A turn of direction ends that.

Writes wait until ``high`` of the queue are pending, and are then served until ``low`` of it are; if more come before
the next read turns the buses back, they go along with all that are pending. Idle time is filled with pending writes
when the next access comes.
"""

from __future__ import annotations

from bisect import insort
from typing import Any, NamedTuple

from kernbench.components.hbm.bank_times import FAR, bank_times, places_of_banks
from kernbench.components.hbm.plan import Runs
from kernbench.components.hbm.took import Counts, Taken
from kernbench.topology.hbm_timing import HbmTiming

LONG_AGO = -(1 << 60)
GAPS = 2
"""Gaps that a lane remembers: more are not more exact against the reference."""

Span = tuple[int, int]
Spans = tuple[Span, ...]
Saved = list[list[Any]]

Rows = tuple[int, int, int, int, int]
"""Of a bank: the open row and the one before, when the open one is ready, and the bursts that opened the two."""

NO_ROWS: Rows = (-1, -1, 0, LONG_AGO, LONG_AGO)


class Mark(NamedTuple):
    """The counts of banks at some time, and the bursts of each channel."""

    counts: tuple[int, ...]
    serial: tuple[int, ...]


class Banks:
    """What ``num_pcs`` pseudo-channels (PCs) are busy with; two of them are a channel.

    Work is longer by what refresh takes, once for every counter; latencies are not.
    """

    def __init__(self, timing: HbmTiming, num_pcs: int, queue_entries: int) -> None:
        times = self._ps = bank_times(timing)
        self._burst, self._works = times.burst, times.works
        self._queue = queue_entries
        self._high, self._low = int(timing.high * queue_entries), round(timing.low * queue_entries)
        self._pcs, self._stacks, self._groups = num_pcs, timing.stacks, timing.groups
        self._banks_per_channel = 2 * timing.banks_per_pc
        self._places = places_of_banks(timing, num_pcs)
        channels, stacks = -(-num_pcs // 2), num_pcs * timing.stacks
        lanes, banks = num_pcs + stacks * timing.groups, num_pcs * timing.banks_per_pc
        # Lanes: the buses, then the groups. When they are free; when they would be if they conserved work; gaps.
        self._free, self._work = [0] * lanes, [0] * lanes
        self._gaps: list[Spans] = [()] * lanes
        self._row_bus, self._acts, self._stack = [0] * channels, [0] * num_pcs, [0] * stacks
        # When a bank takes its next ACT; and its rows.
        self._next, self._rows = [0] * banks, [NO_ROWS] * banks
        # Of stacks: the group used last, up to which burst, and up to which one another was.
        self._used = [-1] * stacks
        self._used_at, self._other_at = [LONG_AGO] * stacks, [LONG_AGO] * stacks
        # Of channels: bursts so far; those before the last turn, and when it was; the end of all data; direction.
        self._serial, self._turned, self._floor, self._end = ([0] * channels for _ in range(4))
        self._writing = [0] * channels
        # Queues of channels, for reads and for writes: bursts in them, and when which number of them leaves, sorted.
        self._held = [0] * channels, [0] * channels
        self._leaving: tuple[list[list[Span]], list[list[Span]]] = _lists(channels), _lists(channels)
        # Writes that are kept back: bank, row and bursts of each; bursts in all; when the last one came.
        self._pending: list[list[tuple[int, int, int]]] = _lists(channels)
        self._pending_bursts, self._offered = [0] * channels, [0] * channels
        # Rows opened, and of each bus: time for turns, and for rows.
        self._counts = [0] * (1 + 2 * num_pcs)
        # Bursts and all that of what was done in idle time, and how long that took.
        self._idle_counts, self._idle_ps = [0] * (2 + 2 * num_pcs), [0]
        self._times: tuple[list[int], ...] = (
            *(self._free, self._work, self._row_bus, self._acts, self._stack, self._next),
            *(self._floor, self._end, self._offered),
        )
        per_channel = 2 * timing.stacks
        self._serials = (
            *((self._serial, 1), (self._turned, 1)),
            *((self._used_at, per_channel), (self._other_at, per_channel)),
        )
        queues: list[list[Any]] = [*self._leaving[0], *self._leaving[1], *self._pending]
        self._state: list[list[Any]] = [
            *(self._counts, self._idle_counts, self._idle_ps, *(array for array, _ in self._serials)),
            *(*self._times, self._gaps, self._rows, self._used, self._writing),
            *(*self._held, *queues, self._pending_bursts),
        ]

    @property
    def counts(self) -> Counts:
        """What has been done so far."""
        return self._counted(self._done())

    def _done(self) -> list[int]:
        return [sum(self._serial), *self._counts]

    def _counted(self, done: list[int]) -> Counts:
        bursts, opened, *times = done
        return Counts(bursts, bursts - opened, tuple(times[: self._pcs]), tuple(times[self._pcs :]))

    def taken(self) -> Taken:
        """What has been promised so far, for who observes it."""
        own = [done - idle for done, idle in zip(self._done(), self._idle_counts, strict=True)]
        return Taken(self.counts, self._counted(own), self._idle_ps[0], tuple(self._free[: self._pcs]))

    @property
    def pending_bursts(self) -> int:
        """Bursts of writes that are kept back."""
        return sum(self._pending_bursts)

    @property
    def end_ps(self) -> int:
        """When the last byte on a bus is over."""
        return max(self._end)

    def serve(self, now: int, base: int, runs: Runs, write: bool) -> tuple[int, int, int]:
        """Take runs, whose rows count from ``base``, at ``now``: when the last has entered its queue, first byte, last.

        For who writes, a byte has been served when it has entered.
        """
        if not write:
            return self._move(now, base, runs, 0)
        first = FAR
        for bank, row, n in runs:
            channel = self._places[bank][0]
            if self._pending[channel]:
                self._fill_idle(channel, now)
            now = self._enter(channel, 1, now, self._queue - n - self._pending_bursts[channel])
            self._write(channel, now, bank, base + row, n)
            first = now if now < first else first
        return now, first, now

    def _enter(self, channel: int, write: int, now: int, room: int) -> int:
        """When no more than ``room`` bursts are in a queue. What has left is counted out when room is wanted."""
        leaving, held = self._leaving[write][channel], self._held[write][channel]
        left = 0
        for when, bursts in leaving:
            if when > now:
                if held <= room:
                    break
                now = when
            held -= bursts
            left += 1
        del leaving[:left]
        self._held[write][channel] = held
        return now

    def _write(self, channel: int, now: int, bank: int, row: int, n: int) -> None:
        """Keep a run back, or serve it if the buses are turned for writes."""
        self._pending[channel].append((bank, row, n))
        self._pending_bursts[channel] += n
        self._offered[channel] = now
        least = 0
        if not self._writing[channel]:
            if self._pending_bursts[channel] < self._high:
                return
            least = self._low
            self._turn(channel, 1, now)
        self._drain(channel, now, least)

    def _drain(self, channel: int, now: int, least: int) -> None:
        """Serve the pending writes that came first, until no more than ``least`` bursts are left."""
        pending, left, runs = self._pending[channel], self._pending_bursts[channel], 0
        while left > least:
            left -= pending[runs][2]
            runs += 1
        self._move(now, 0, tuple(pending[:runs]), 1)
        del pending[:runs]
        self._pending_bursts[channel] = left

    def _fill_idle(self, channel: int, now: int) -> None:
        """Serve pending writes in the idle time up to ``now``, as far as the buses can turn there and back in it."""
        start = max(self._end[channel], self._offered[channel])
        back, there = self._ps.turning
        if start + (0 if self._writing[channel] else there) + back >= now:
            return
        counts, free = self._done(), self._free[: self._pcs]
        if not self._writing[channel]:
            self._turn(channel, 1, start)
        while self._pending[channel] and self._end[channel] + back < now:
            self._drain(channel, start, self._pending_bursts[channel] - 1)
        self._idle_counts[:] = [
            idle + new - old for idle, new, old in zip(self._idle_counts, self._done(), counts, strict=True)
        ]
        self._idle_ps[0] += sum(max(0, min(self._free[pc], now) - max(was, start)) for pc, was in enumerate(free))

    def _turn(self, channel: int, writing: int, now: int) -> None:
        """The buses of a channel change direction, after what they have been given."""
        self._writing[channel] = writing
        self._turned[channel] = self._serial[channel]
        pcs = range(2 * channel, min(2 * channel + 2, self._pcs))
        groups, work = self._stacks * self._groups, self._work
        lanes = self._pcs + pcs[0] * groups
        opened = max(self._row_bus[channel], *(self._acts[pc] for pc in pcs))
        floor = max(opened, *(work[pc] for pc in pcs), *work[lanes : lanes + len(pcs) * groups])
        self._floor[channel] = floor
        over = max(floor, opened + self._ps.column[0])
        until = over + self._ps.turning[writing]
        for pc in pcs:
            work[pc] = until
            free = self._free[pc]
            self._counts[1 + pc] += max(0, until - max(free, over, now))
            self._free[pc] = max(free, until)
            self._gaps[pc] = ()

    def _move(self, now: int, base: int, runs: Runs, write: int) -> tuple[int, int, int]:
        """Serve runs, those of reads when they have entered: when the last has, first byte on a bus, last.

        A simulation spends much of its time here, so what each run does is not in functions of its own.
        """
        first, last, capacity, back = FAR, now, self._queue, self._ps.turning[0]
        places, floors, serials, ends, closing = (
            self._places,
            self._floor,
            self._serial,
            self._end,
            self._ps.closing[write],
        )
        pending, writing, held, leaving = self._pending, self._writing, self._held[write], self._leaving[write]
        rows, turned, next_at, stacked = self._rows, self._turned, self._next, self._stacks > 1 and not write
        used, used_at, other_at = self._used, self._used_at, self._other_at
        for bank, above, n in runs:
            channel, pc, stack, group = places[bank]
            if not write:
                if pending[channel] and ends[channel] + back < now:
                    self._fill_idle(channel, now)
                if held[channel] + n > capacity:
                    now = self._enter(channel, 0, now, capacity - n)
                if writing[channel]:
                    self._turn(channel, 0, now)
            row = base + above
            floor = floors[channel]
            at = floor if floor > now else now
            serial = serials[channel] + n
            serials[channel] = serial
            open_row, before, start, _, opened = rows[bank]
            if open_row != row and (before != row or opened < turned[channel] or opened < serial - n - capacity):
                start = self._open(channel, pc, bank, row, at, write)
            start = start if start > at else at
            if stacked:
                if used[stack] != group:
                    used[stack] = group
                    other_at[stack] = used_at[stack]
                used_at[stack] = serial
                if serial - other_at[stack] > capacity:
                    start = self._take_stack(stack, start, at, n)
            start, end = self._transfer(group, pc, start, at, n)
            closes = end + closing
            next_at[bank] = closes if closes > next_at[bank] else next_at[bank]
            ends[channel] = end if end > ends[channel] else ends[channel]
            # Its bursts leave one after another: all at half of its time comes to the same for those that follow.
            insort(leaving[channel], ((start + end) // 2, n))
            held[channel] += n
            first = start if start < first else first
            last = end if end > last else last
        return now, first, last

    def _transfer(self, group: int, pc: int, start: int, now: int, n: int) -> tuple[int, int]:
        """Use the group and the bus, each in a gap it left if that will do, else after what it has: from when to when.

        Runs of several groups alternate on the bus: what waits for its share there keeps its group's pace meanwhile.
        """
        free_at, work, gaps_of, burst = self._free, self._work, self._gaps, self._burst
        in_group, group_time, on_bus = self._works[n]
        done, free, gaps = work[group], free_at[group], gaps_of[group]
        work[group] = (done if done > now else now) + in_group
        if gaps and gaps[0][1] <= now:
            gaps = gaps_of[group] = gaps[1:]
        if start < free and gaps and gaps[-1][1] >= start + in_group:
            start = self._fill_gap(group, start, in_group)
        else:
            if start - free >= burst:
                gaps_of[group] = (*gaps[len(gaps) >= GAPS :], (free, start)) if gaps else ((free, start),)
            elif start < free:
                start = free
            free_at[group] = start + in_group
        end = start + group_time
        done, free, gaps = work[pc], free_at[pc], gaps_of[pc]
        work[pc] = (done if done > now else now) + on_bus
        if gaps and gaps[0][1] <= now:
            gaps = gaps_of[pc] = gaps[1:]
        if start < free and gaps and gaps[-1][1] >= start + on_bus:
            start = self._fill_gap(pc, start, on_bus)
        else:
            if start - free >= burst:
                gaps_of[pc] = (*gaps[len(gaps) >= GAPS :], (free, start)) if gaps else ((free, start),)
            elif start < free:
                start = free
            free_at[pc] = start + on_bus
        return start, end if end > start + on_bus else start + on_bus

    def _open(self, channel: int, pc: int, bank: int, row: int, now: int, write: int) -> int:
        """Activate a row of a bank: when it is ready."""
        ps, bus, acts = self._ps, self._row_bus[channel], self._acts[pc]
        before, _, _, opened, _ = self._rows[bank]
        at = now if before < 0 else now + ps.precharge
        at = bus if bus > at else at
        at = acts if acts > at else at
        closed = self._next[bank]
        at = closed if closed > at else at
        self._row_bus[channel] = (bus if bus > now else now) + ps.command
        self._acts[pc] = (acts if acts > now else now) + ps.act
        self._counts[0] += 1
        self._next[bank] = at + ps.cycle
        ready = at + ps.column[write]
        free = self._free[pc]
        late = ready - (free if free > now else now)
        if late > 0:
            self._counts[1 + self._pcs + pc] += late
        self._rows[bank] = row, before, ready, self._serial[channel], opened
        return ready

    def _take_stack(self, stack: int, ready: int, now: int, n: int) -> int:
        """Reads of one group only, as far as the queue goes, keep the stack's pace: when ``n`` bursts begin."""
        free = self._stack[stack]
        self._stack[stack] = max(free, now) + n * self._ps.same_stack
        return max(ready, free)

    def _fill_gap(self, lane: int, ready: int, work: int) -> int:
        """Use a gap that a lane left, else it after what it has: from when."""
        gaps = self._gaps[lane]
        for i, (gap, gap_end) in enumerate(gaps):
            start = gap if gap > ready else ready
            end = start + work
            if end <= gap_end:
                left = ((end, gap_end),) if gap_end - end >= self._ps.burst else ()
                if start - gap >= self._ps.burst:
                    left = ((gap, start), *left)
                self._gaps[lane] = gaps[:i] + left + gaps[i + 1 :]
                return start
        start = self._free[lane]
        self._free[lane] = start + work
        return start

    # -- the state as a whole --

    def save(self) -> Saved:
        """The state, to ``restore``."""
        return list(map(list.copy, self._state))

    def restore(self, saved: Saved) -> None:
        """Put the state back to one that was saved."""
        for each, then in zip(self._state, saved, strict=True):
            each[:] = then

    def mark(self) -> Mark:
        """What has been done so far, for ``repeat``."""
        return Mark(tuple(self._counts), tuple(self._serial))

    def repeat(self, since: Mark, times: int, ps: int) -> None:
        """Advance the state by ``times`` sweeps like the one since then, which took ``ps``; each is a row further."""
        later = ps * times
        bursts = [(new - old) * times for new, old in zip(self._serial, since.serial, strict=True)]
        for array in self._times:
            array[:] = [time + later for time in array]
        self._gaps[:] = [tuple((gap + later, end + later) for gap, end in gaps) for gaps in self._gaps]
        for leaving in (*self._leaving[0], *self._leaving[1]):
            leaving[:] = [(time + later, n) for time, n in leaving]
        for pending in self._pending:
            pending[:] = [(bank, row + times, n) for bank, row, n in pending]
        for bank, (row, before, ready, opened, opened_before) in enumerate(self._rows):
            more = bursts[bank // self._banks_per_channel]
            self._rows[bank] = (
                row if row < 0 else row + times,
                before if before < 0 else before + times,
                ready + later,
                opened + more,
                opened_before + more,
            )
        for array, per_channel in self._serials:
            array[:] = [serial + bursts[i // per_channel] for i, serial in enumerate(array)]
        self._counts[:] = [new + (new - old) * times for new, old in zip(self._counts, since.counts, strict=True)]


def _lists(n: int) -> list[list[Any]]:
    return [[] for _ in range(n)]
