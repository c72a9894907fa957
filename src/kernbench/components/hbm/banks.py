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

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

from kernbench.common.units import PS_PER_NS, ns_to_ps
from kernbench.components.hbm.plan import Runs
from kernbench.topology.hbm_timing import HbmTiming

LONG_AGO = -(1 << 60)
FAR = 1 << 62
GAPS = 2
"""Gaps that a lane remembers: more are not more exact against the reference."""

Span = tuple[int, int]
Spans = tuple[Span, ...]


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


class Mark(NamedTuple):
    """The counts of banks at some time, and the bursts of each channel."""

    counts: tuple[int, ...]
    serial: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Saved:
    """The state of banks at some time."""

    flat: list[list[int]]
    gaps: list[Spans]
    leaving: list[list[Span]]
    pending: list[list[tuple[int, int, int]]]


class Banks:
    """What ``num_pcs`` pseudo-channels (PCs) are busy with; two of them are a channel.

    Work is longer by what refresh takes, once for every counter; latencies are not.
    """

    def __init__(self, timing: HbmTiming, num_pcs: int, queue_entries: int) -> None:
        def work(ns: float) -> int:
            return round(ns * PS_PER_NS / (1 - timing.refresh_share))

        self._burst, self._same_group, self._same_stack = map(work, (timing.ccd_s_ns, timing.ccd_l_ns, timing.ccd_r_ns))
        self._act, self._command, self._cycle = map(work, (timing.act_ns, timing.row_bus_ns, timing.rc_ns))
        self._precharge = ns_to_ps(timing.rp_ns)
        self._column = ns_to_ps(timing.rcd_ns), ns_to_ps(timing.rcd_write_ns)
        self._closing = (
            ns_to_ps(timing.rtp_ns + timing.rp_ns),
            ns_to_ps(timing.cwl_ns + timing.wr_ns + timing.rp_ns),
        )
        self._turning = work(timing.wtr_ns + timing.turn_ns), work(timing.rtw_ns + timing.turn_ns)
        self._queue = queue_entries
        self._high, self._low = int(timing.high * queue_entries), round(timing.low * queue_entries)
        self._pcs, self._stacks, self._groups, self._banks = num_pcs, timing.stacks, timing.groups, timing.banks
        self._banks_per_channel = 2 * timing.banks_per_pc
        # Of banks: channel, PC, stack and group, which is a lane behind the buses.
        self._places = [
            (bank // (2 * timing.banks_per_pc), bank // timing.banks_per_pc, group // timing.groups, num_pcs + group)
            for bank in range(num_pcs * timing.banks_per_pc)
            for group in (bank // timing.banks,)
        ]
        channels, stacks = -(-num_pcs // 2), num_pcs * timing.stacks
        lanes, banks = num_pcs + stacks * timing.groups, num_pcs * timing.banks_per_pc
        # Lanes: the buses, then the groups. When they are free; when they would be if they conserved work; gaps.
        self._free, self._work = [0] * lanes, [0] * lanes
        self._gaps: list[Spans] = [()] * lanes
        self._row_bus, self._acts, self._stack = [0] * channels, [0] * num_pcs, [0] * stacks
        # When a bank takes its next ACT, and when its open row is ready.
        self._next, self._ready = [0] * banks, [0] * banks
        # The open row and the one before, and the numbers of the bursts that opened them.
        self._row, self._before = [-1] * banks, [-1] * banks
        self._opened, self._opened_before = [LONG_AGO] * banks, [LONG_AGO] * banks
        # Of stacks: the group used last, up to which burst, and up to which one another was.
        self._used = [-1] * stacks
        self._used_at, self._other_at = [LONG_AGO] * stacks, [LONG_AGO] * stacks
        # Of channels: bursts so far; those before the last turn, and when it was; the end of all data; direction.
        self._serial, self._turned, self._floor, self._end = ([0] * channels for _ in range(4))
        self._writing = [0] * channels
        # Bursts in the queues, for reads and then for writes, and when they leave.
        self._held = [0] * (2 * channels)
        self._leaving: list[list[Span]] = [[] for _ in range(2 * channels)]
        # Writes that are kept back: bank, row and bursts of each; bursts in all; when the last one came.
        self._pending: list[list[tuple[int, int, int]]] = [[] for _ in range(channels)]
        self._pending_bursts, self._offered = [0] * channels, [0] * channels
        # Rows opened, and of each bus: time for turns, and for rows.
        self._counts = [0] * (1 + 2 * num_pcs)
        # Bursts and all that of what was done in idle time, and how long that took.
        self._idle_counts, self._idle_ps = [0] * (2 + 2 * num_pcs), [0]
        self._times = (
            *(self._free, self._work, self._row_bus, self._acts, self._stack, self._next, self._ready),
            *(self._floor, self._end, self._offered),
        )
        per_channel = 2 * timing.stacks
        self._serials = (
            (self._serial, 1),
            (self._turned, 1),
            (self._used_at, per_channel),
            (self._other_at, per_channel),
            (self._opened, self._banks_per_channel),
            (self._opened_before, self._banks_per_channel),
        )
        self._flat = (
            *(self._counts, self._idle_counts, self._idle_ps, *(array for array, _ in self._serials)),
            *(*self._times, self._row, self._before),
            *(self._used, self._writing, self._held, self._pending_bursts),
        )

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
            now = self._enter(2 * channel + 1, now, self._queue - n - self._pending_bursts[channel])
            self._write(channel, now, bank, base + row, n)
            first = now if now < first else first
        return now, first, now

    def _enter(self, queue: int, now: int, room: int) -> int:
        """When no more than ``room`` bursts are in a queue. What has left is counted out when room is wanted."""
        leaving, held = self._leaving[queue], self._held[queue]
        while leaving and held > room:
            when, bursts = heappop(leaving)
            held -= bursts
            now = when if when > now else now
        self._held[queue] = held
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
        while self._pending_bursts[channel] > least:
            self._serve_pending(channel, now)

    def _serve_pending(self, channel: int, now: int) -> None:
        bank, row, n = self._pending[channel].pop(0)
        self._pending_bursts[channel] -= n
        self._move(now, 0, ((bank, row, n),), 1)

    def _fill_idle(self, channel: int, now: int) -> None:
        """Serve pending writes in the idle time up to ``now``, as far as the buses can turn there and back in it."""
        start = max(self._end[channel], self._offered[channel])
        back, there = self._turning
        if start + (0 if self._writing[channel] else there) + back >= now:
            return
        counts, free = self._done(), self._free[: self._pcs]
        if not self._writing[channel]:
            self._turn(channel, 1, start)
        while self._pending[channel] and self._end[channel] + back < now:
            self._serve_pending(channel, start)
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
        over = max(floor, opened + self._column[0])
        until = over + self._turning[writing]
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
        first, last, capacity, back = FAR, now, self._queue, self._turning[0]
        stacked, closing = self._stacks > 1 and not write, self._closing[write]
        places, floors, serials, ends = self._places, self._floor, self._serial, self._end
        pending, writing, held, leaving = self._pending, self._writing, self._held, self._leaving
        rows, before, ready_at, next_at = self._row, self._before, self._ready, self._next
        used, used_at, other_at = self._used, self._used_at, self._other_at
        for bank, above, n in runs:
            channel, pc, stack, group = places[bank]
            queue = 2 * channel + write
            if not write:
                if pending[channel] and ends[channel] + back < now:
                    self._fill_idle(channel, now)
                if held[queue] + n > capacity:
                    now = self._enter(queue, now, capacity - n)
                if writing[channel]:
                    self._turn(channel, 0, now)
            row, at, serial = base + above, floors[channel], serials[channel]
            serials[channel] = serial + n
            at = at if at > now else now
            if rows[bank] != row and (before[bank] != row or not self._was_open(channel, bank, serial)):
                self._open(channel, pc, bank, row, at, write)
            start = ready_at[bank]
            start = at if at > start else start
            serial += n
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
            heappush(leaving[queue], ((start + end) // 2, n))
            held[queue] += n
            first = start if start < first else first
            last = end if end > last else last
        return now, first, last

    def _transfer(self, group: int, pc: int, start: int, now: int, n: int) -> tuple[int, int]:
        """Use the group and the bus, each in a gap it left if that will do, else after what it has: from when to when.

        Runs of several groups alternate on the bus: what waits for its share there keeps its group's pace meanwhile.
        """
        free_at, gaps_of, burst, on_bus = self._free, self._gaps, self._burst, n * self._burst
        in_group, end = n * self._same_group, 0
        for lane, work, length in (group, in_group, in_group - self._same_group + burst), (pc, on_bus, on_bus):
            done, gaps = self._work[lane], gaps_of[lane]
            self._work[lane] = (done if done > now else now) + work
            if gaps and gaps[0][1] <= now:
                gaps = gaps_of[lane] = gaps[1:]
            if gaps and gaps[-1][1] >= start + work and (found := self._fill_gap(lane, start, work)) >= 0:
                start = found
            else:
                free = free_at[lane]
                if start - free >= burst:
                    gaps_of[lane] = (*(gaps if len(gaps) < GAPS else gaps[1:]), (free, start))
                elif start < free:
                    start = free
                free_at[lane] = start + work
            end = start + length if start + length > end else end
        return start, end

    def _was_open(self, channel: int, bank: int, serial: int) -> bool:
        """Whether the row before the present one was open so lately that it would have been served then."""
        return self._opened_before[bank] >= max(self._turned[channel], serial - self._queue)

    def _open(self, channel: int, pc: int, bank: int, row: int, now: int, write: int) -> None:
        """Activate a row of a bank."""
        bus, acts = self._row_bus[channel], self._acts[pc]
        at = now if self._row[bank] < 0 else now + self._precharge
        at = max(at, self._next[bank], bus, acts)
        self._row_bus[channel] = (bus if bus > now else now) + self._command
        self._acts[pc] = (acts if acts > now else now) + self._act
        self._counts[0] += 1
        self._next[bank] = at + self._cycle
        ready = self._ready[bank] = at + self._column[write]
        free = self._free[pc]
        late = ready - (free if free > now else now)
        if late > 0:
            self._counts[1 + self._pcs + pc] += late
        self._before[bank], self._opened_before[bank] = self._row[bank], self._opened[bank]
        self._row[bank], self._opened[bank] = row, self._serial[channel]

    def _take_stack(self, stack: int, ready: int, now: int, n: int) -> int:
        """Reads of one group only, as far as the queue goes, keep the stack's pace: when ``n`` bursts begin."""
        free = self._stack[stack]
        self._stack[stack] = max(free, now) + n * self._same_stack
        return max(ready, free)

    def _fill_gap(self, lane: int, ready: int, work: int) -> int:
        """Use a gap that a lane left: from when; -1 if none is left that is long enough."""
        gaps = self._gaps[lane]
        for i, (gap, gap_end) in enumerate(gaps):
            start = max(gap, ready)
            if start + work <= gap_end:
                parts = (gap, start), (start + work, gap_end)
                left = tuple(part for part in parts if part[1] - part[0] >= self._burst)
                self._gaps[lane] = (*gaps[:i], *left, *gaps[i + 1 :])
                return start
        return -1

    # -- the state as a whole --

    def save(self) -> Saved:
        """The state, to ``restore``."""
        return Saved(
            [each[:] for each in self._flat],
            self._gaps[:],
            [each[:] for each in self._leaving],
            [each[:] for each in self._pending],
        )

    def restore(self, saved: Saved) -> None:
        """Be as then."""
        for now, then in zip(self._flat, saved.flat, strict=True):
            now[:] = then
        self._gaps = saved.gaps[:]
        self._leaving = [each[:] for each in saved.leaving]
        self._pending = [each[:] for each in saved.pending]

    def mark(self) -> Mark:
        """What has been done so far, for ``repeat``."""
        return Mark(tuple(self._counts), tuple(self._serial))

    def repeat(self, since: Mark, times: int, ps: int) -> None:
        """Be as if the sweep since then, which took ``ps``, were done ``times`` more, each in the next row."""
        later = ps * times
        for array in self._times:
            array[:] = [time + later for time in array]
        self._gaps = [tuple((gap + later, end + later) for gap, end in gaps) for gaps in self._gaps]
        self._leaving = [[(time + later, n) for time, n in leaving] for leaving in self._leaving]
        self._pending = [[(bank, row + times, n) for bank, row, n in pending] for pending in self._pending]
        for array in (self._row, self._before):
            array[:] = [row if row < 0 else row + times for row in array]
        bursts = [(new - old) * times for new, old in zip(self._serial, since.serial, strict=True)]
        for array, per_channel in self._serials:
            array[:] = [serial + bursts[i // per_channel] for i, serial in enumerate(array)]
        self._counts[:] = [new + (new - old) * times for new, old in zip(self._counts, since.counts, strict=True)]
