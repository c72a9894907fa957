"""The banks of a channel and its queues: what a run takes, in integer ps.

A channel has pseudo-channels (PCs), mostly two, with buses of their own for data; they share the bus for row commands,
the queues, and their turns of direction. Everything shared is a counter. Those of rows (row bus, activations, stacks)
conserve work: free = max(free, now) + work, and a run starts at max(ready, free before), so that one late row does not
hold up the others. Data buses and groups are *lanes*: they serve in order, and remember the last gaps that they left,
which a later run may fill. So nothing waits in line, which is what a scheduler comes to that serves first what is ready
first.

    miss   a = ACT(CMD(max(bank, t + tRP)));  bank = a + tRC;  ready = a + tRCD
    data   d = BUS(GROUP(max(t, ready)));     bank = max(bank, d + tRTP), of writes d + tCWL + tWR;  + tRP

A run hits if its row is open, or was open before the present one and was opened within the last ``queue_entries``
bursts: a scheduler would have served it before it closed the row. A turn of direction ends that.

Writes wait until ``high`` of the queue are pending, and are then served until ``low`` of it are; if more come before
the next read turns the buses back, they go along with all that are pending. Idle time is filled with pending writes
when the next access comes.
"""

from __future__ import annotations

from copy import copy
from heapq import heappop, heappush
from typing import NamedTuple

from kernbench.common.units import PS_PER_NS, ns_to_ps
from kernbench.components.hbm.layout import Run
from kernbench.topology.hbm_spec import HbmTiming

FAR = 1 << 62


class Tally(NamedTuple):
    """What a channel has done: bursts, rows opened, and of each bus, in ps, time for turns and then for rows.

    ``idle``: all that of what was done in idle time, which gave buses ``idle_ps`` of work.
    """

    done: tuple[int, ...]
    idle: tuple[int, ...]
    idle_ps: int

    def plus(self, other: Tally, times: int = 1) -> Tally:
        """Both together, the other so many times."""
        done, idle = (
            tuple([own + times * more for own, more in zip(mine, others, strict=True)])
            for mine, others in ((self.done, other.done), (self.idle, other.idle))
        )
        return Tally(done, idle, self.idle_ps + times * other.idle_ps)


class Figures:
    """The times of a channel in ps, and the places of its banks. All channels of a slice share them.

    Work is longer by what refresh takes, once for every counter; latencies are not.
    """

    def __init__(self, timing: HbmTiming, pcs: int, queue_entries: int) -> None:
        def work(ns: float) -> int:
            return round(ns * PS_PER_NS / (1 - timing.refresh_share))

        self.burst, self.same_group, self.same_stack = map(work, (timing.ccd_s_ns, timing.ccd_l_ns, timing.ccd_r_ns))
        self.act, self.command, self.cycle = map(work, (timing.act_ns, timing.row_bus_ns, timing.rc_ns))
        self.precharge = ns_to_ps(timing.rp_ns)
        self.column = ns_to_ps(timing.rcd_ns), ns_to_ps(timing.rcd_write_ns)
        self.closing = (
            ns_to_ps(timing.rtp_ns + timing.rp_ns),
            ns_to_ps(timing.cwl_ns + timing.wr_ns + timing.rp_ns),
        )
        self.turning = work(timing.wtr_ns + timing.turn_ns), work(timing.rtw_ns + timing.turn_ns)
        self.queue = queue_entries
        # Of reads, which wait in front of the queue; writes have waited before they were kept back.
        self.rooms = queue_entries, FAR
        self.high, self.low = int(timing.high * queue_entries), round(timing.low * queue_entries)
        self.pcs, self.stacks, self.groups = pcs, pcs * timing.stacks, pcs * timing.stacks * timing.groups
        self.stacked = timing.stacks > 1
        # Of banks: PC, stack, and group, which is a lane behind the buses.
        self.places = [
            (bank // timing.banks_per_pc, bank // timing.banks // timing.groups, pcs + bank // timing.banks)
            for bank in range(pcs * timing.banks_per_pc)
        ]
        # Of runs by their bursts: how long they keep their group, until their last byte if they wait for it, their bus.
        self.lengths = [
            (n * self.same_group, (n - 1) * self.same_group + self.burst, n * self.burst)
            for n in range(timing.columns + 1)
        ]


LONG_AGO = -(1 << 60)
GAPS = 2
"""Gaps that a lane remembers: more are not more exact against the reference."""

Span = tuple[int, int]
Spans = tuple[Span, ...]
Rows = tuple[int, int, int, int, int]
"""Of a bank: its open row and the one before, when the open one is ready, and the bursts that opened the two."""
NO_ROWS: Rows = (-1, -1, 0, LONG_AGO, LONG_AGO)
State = tuple[tuple[object, ...], ...]


class ChannelBanks:
    """What a channel of ``pcs`` pseudo-channels is busy with."""

    __slots__ = (
        "_acts",
        "_done",
        "_floor",
        "_free",
        "_gaps",
        "_held",
        "_idle",
        "_idle_ps",
        "_leaving",
        "_next",
        "_of",
        "_offered",
        "_other_at",
        "_pending",
        "_row_bus",
        "_rows",
        "_stack",
        "_turned",
        "_used",
        "_used_at",
        "_work",
        "_writing",
        "end_ps",
        "pending_bursts",
        "serial",
    )

    def __init__(self, timing: HbmTiming, pcs: int, queue_entries: int) -> None:
        self._of = of = Figures(timing, pcs, queue_entries)
        lanes, banks = of.pcs + of.groups, len(of.places)
        # Lanes: the buses, then the groups. When they are free; when they would be if they conserved work; gaps.
        self._free, self._work = [0] * lanes, [0] * lanes
        self._gaps: list[Spans] = [()] * lanes
        self._row_bus, self._acts, self._stack = 0, [0] * pcs, [0] * of.stacks
        # When a bank takes its next ACT; and its rows.
        self._next, self._rows = [0] * banks, [NO_ROWS] * banks
        # Of stacks: the group used last, up to which burst, and up to which one another was.
        self._used = [-1] * of.stacks
        self._used_at, self._other_at = [LONG_AGO] * of.stacks, [LONG_AGO] * of.stacks
        # Bursts so far; those before the last turn, and when it was; the direction; the end of all data.
        self.serial = self._turned = self._floor = self._writing = self.end_ps = 0
        # Bursts in the queues, for reads and for writes, and when they leave.
        self._held = [0, 0]
        self._leaving: tuple[list[Span], list[Span]] = [], []
        # Writes that are kept back: bank, row and bursts of each; bursts in all; when the last one came.
        self._pending: list[Run] = []
        self.pending_bursts = self._offered = 0
        # Rows opened, and of each bus: time for turns, and for rows. Bursts and all that of what was done in idle time.
        self._done = [0] * (1 + 2 * pcs)
        self._idle, self._idle_ps = [0] * (2 + 2 * pcs), 0

    @property
    def tally(self) -> Tally:
        """What it has done so far."""
        return Tally((self.serial, *self._done), tuple(self._idle), self._idle_ps)

    @property
    def free(self) -> tuple[int, ...]:
        """When each bus is."""
        return tuple(self._free[: self._of.pcs])

    def serve(self, now: int, base: int, runs: tuple[Run, ...], write: bool) -> tuple[int, int, int]:
        """Take runs, whose rows count from ``base``, at ``now``: when the last has entered its queue, first byte, last.

        For who writes, a byte has been served when it has entered.
        """
        if self._pending:
            self._fill_idle(now)
        if not write:
            if self._writing:
                self._turn(0, now)
            return self._move(now, base, runs, 0)
        first, queue = FAR, self._of.queue
        for bank, row, n in runs:
            now = self._enter(1, now, queue - n - self.pending_bursts)
            self._write(now, bank, base + row, n)
            first = now if now < first else first
        return now, first, now

    def _enter(self, write: int, now: int, room: int) -> int:
        """When no more than ``room`` bursts are in a queue. What has left is counted out when room is wanted."""
        leaving, held = self._leaving[write], self._held[write]
        while leaving and (held > room or leaving[0][0] <= now):
            when, bursts = heappop(leaving)
            held -= bursts
            now = when if when > now else now
        self._held[write] = held
        return now

    def _write(self, now: int, bank: int, row: int, n: int) -> None:
        """Keep a run back, or serve it if the buses are turned for writes."""
        self._pending.append((bank, row, n))
        self.pending_bursts += n
        self._offered = now
        least = 0
        if not self._writing:
            if self.pending_bursts < self._of.high:
                return
            least = self._of.low
            self._turn(1, now)
        self._drain(now, least)

    def _drain(self, now: int, least: int) -> None:
        """Serve the pending writes that came first, until no more than ``least`` bursts are left."""
        pending, left, runs = self._pending, self.pending_bursts, 0
        while left > least:
            left -= pending[runs][2]
            runs += 1
        self._move(now, 0, tuple(pending[:runs]), 1)
        del pending[:runs]
        self.pending_bursts = left

    def _fill_idle(self, now: int) -> None:
        """Serve pending writes in the idle time up to ``now``, as far as the buses can turn there and back in it."""
        start = max(self.end_ps, self._offered)
        back, there = self._of.turning
        if start + (0 if self._writing else there) + back >= now:
            return
        before, free = [self.serial, *self._done], self.free
        if not self._writing:
            self._turn(1, start)
        while self._pending and self.end_ps + back < now:
            self._drain(start, self.pending_bursts - 1)
        after = [self.serial, *self._done]
        self._idle = [idle + new - old for idle, new, old in zip(self._idle, after, before, strict=True)]
        self._idle_ps += sum(max(0, min(is_, now) - max(was, start)) for was, is_ in zip(free, self.free, strict=True))

    def _turn(self, writing: int, now: int) -> None:
        """The buses change direction, after what they have been given."""
        of, work = self._of, self._work
        self._writing = writing
        self._turned = self.serial
        opened = max(self._row_bus, *self._acts)
        self._floor = floor = max(opened, *work)
        over = max(floor, opened + of.column[0])
        until = over + of.turning[writing]
        for pc in range(of.pcs):
            work[pc] = until
            free = self._free[pc]
            self._done[1 + pc] += max(0, until - max(free, over, now))
            self._free[pc] = max(free, until)
            self._gaps[pc] = ()

    def _move(self, now: int, base: int, runs: tuple[Run, ...], write: int) -> tuple[int, int, int]:
        """Serve runs, those of reads when they have entered: when the last has, first byte on a bus, last.

        A simulation spends much of its time here, so what each run does is hardly in functions of its own.
        """
        of, first, last, turned, floor = self._of, FAR, now, self._turned, self._floor
        places, lengths, capacity, stacked = of.places, of.lengths, of.queue, of.stacked and not write
        rows, next_at, closing, room = self._rows, self._next, of.closing[write], of.rooms[write]
        leaving, held = self._leaving[write], self._held
        used, used_at, other_at, serial, end_ps = self._used, self._used_at, self._other_at, self.serial, self.end_ps
        for bank, above, n in runs:
            pc, stack, group = places[bank]
            if held[write] + n > room:
                now = self._enter(0, now, room - n)
            row = base + above
            at = now if now > floor else floor
            serial += n
            open_row, before, start, _, opened = rows[bank]
            if open_row != row and (before != row or opened < turned or opened < serial - n - capacity):
                start = self._open(pc, bank, row, at, write, serial)
            start = at if at > start else start
            if stacked:
                if used[stack] != group:
                    used[stack] = group
                    other_at[stack] = used_at[stack]
                used_at[stack] = serial
                if serial - other_at[stack] > capacity:
                    start = self._take_stack(stack, start, at, n)
            # Runs of several groups alternate on the bus: what waits for it keeps its group's pace meanwhile.
            in_group, in_turn, on_bus = lengths[n]
            start = self._reserve(group, start, at, in_group)
            end = start + in_turn
            start = self._reserve(pc, start, at, on_bus)
            end = start + on_bus if start + on_bus > end else end
            closes = end + closing
            next_at[bank] = closes if closes > next_at[bank] else next_at[bank]
            # Its bursts leave one after another: all at half of its time comes to the same for those that follow.
            heappush(leaving, ((start + end) // 2, n))
            held[write] += n
            first = start if start < first else first
            last = end if end > last else last
        self.serial, self.end_ps = serial, last if last > end_ps else end_ps
        return now, first, last

    def _reserve(self, lane: int, start: int, now: int, work: int) -> int:
        """Use a lane for ``work`` ps, in a gap that it left if that will do, else after what it has: from when."""
        done, free, gaps = self._work[lane], self._free[lane], self._gaps[lane]
        self._work[lane] = (done if done > now else now) + work
        if start < free and gaps and gaps[-1][1] >= start + work:
            return self._fill_gap(lane, start, work)
        if start < free:
            start = free
        elif start - free >= self._of.burst and start - now >= self._of.burst:
            self._gaps[lane] = _with_gap(gaps, (max(free, now), start), now)
        self._free[lane] = start + work
        return start

    def _open(self, pc: int, bank: int, row: int, now: int, write: int, serial: int) -> int:
        """Activate a row of a bank for the bursts up to number ``serial``: when it is ready."""
        of, bus, acts, next_at = self._of, self._row_bus, self._acts[pc], self._next[bank]
        before, _, _, opened, _ = self._rows[bank]
        at = now if before < 0 else now + of.precharge
        at = next_at if next_at > at else at
        at = bus if bus > at else at
        at = acts if acts > at else at
        self._row_bus = (bus if bus > now else now) + of.command
        self._acts[pc] = (acts if acts > now else now) + of.act
        done = self._done
        done[0] += 1
        self._next[bank] = at + of.cycle
        ready = at + of.column[write]
        free = self._free[pc]
        late = ready - (free if free > now else now)
        if late > 0:
            done[1 + of.pcs + pc] += late
        self._rows[bank] = row, before, ready, serial, opened
        return ready

    def _take_stack(self, stack: int, ready: int, now: int, n: int) -> int:
        """Reads of one group only, as far as the queue goes, keep the stack's pace: when ``n`` bursts begin."""
        free = self._stack[stack]
        self._stack[stack] = max(free, now) + n * self._of.same_stack
        return max(ready, free)

    def _fill_gap(self, lane: int, ready: int, work: int) -> int:
        """Use a gap that a lane left, else it after what it has: from when."""
        gaps, burst = self._gaps[lane], self._of.burst
        for i, (gap, gap_end) in enumerate(gaps):
            start = gap if gap > ready else ready
            end = start + work
            if end <= gap_end:
                left = ((end, gap_end),) if gap_end - end >= burst else ()
                if start - gap >= burst:
                    left = ((gap, start), *left)
                self._gaps[lane] = gaps[:i] + left + gaps[i + 1 :]
                return start
        start = self._free[lane]
        self._free[lane] = start + work
        return start

    # -- the state as a whole --

    def copy(self) -> ChannelBanks:
        """Another channel that is as busy."""
        made = copy(self)
        made.own_lists()
        return made

    def own_lists(self) -> None:
        """Share no list with the channel that this is a copy of."""
        self._free, self._work, self._gaps = self._free[:], self._work[:], self._gaps[:]
        self._acts, self._stack = self._acts[:], self._stack[:]
        self._next, self._rows = self._next[:], self._rows[:]
        self._used, self._used_at, self._other_at = self._used[:], self._used_at[:], self._other_at[:]
        self._held, self._leaving = self._held[:], (self._leaving[0][:], self._leaving[1][:])
        self._pending, self._done, self._idle = self._pending[:], self._done[:], self._idle[:]

    def state(self, now: int) -> State:
        """What it makes of whatever comes from ``now`` on. Bursts count back from the last."""
        serial, kept = self.serial, bool(self._pending)
        # Idle time is filled from its beginning on. A turn begins with the end of what was before it; what is over this
        # long is no matter even then.
        begin = min(now, max(self.end_ps, self._offered)) if kept else now
        since = begin - self._of.column[0] - max(self._of.turning)

        def ahead(times: list[int]) -> tuple[int, ...]:
            return tuple([time - since if time > since else 0 for time in times])

        def bursts(numbers: list[int]) -> tuple[int, ...]:
            return tuple([max(number - serial, -self._of.queue - 1) for number in numbers])

        return (
            *(ahead(self._free), ahead(self._work), ahead(self._acts), ahead(self._stack), ahead(self._next)),
            ahead([self._row_bus, self._floor]),
            (self.end_ps - now, self._offered - now) if kept else (),
            tuple([tuple([(gap - now, end - now) for gap, end in gaps if end > since]) for gaps in self._gaps]),
            tuple([(row, before, *ahead([ready])) for row, before, ready, _, _ in self._rows]),
            bursts([opened for *_, opened, _ in self._rows]),
            bursts([opened for *_, opened in self._rows]),
            *(tuple(self._used), bursts(self._used_at), bursts(self._other_at), bursts([self._turned])),
            *(tuple(sorted((when - now, n) for when, n in leaving if when > now)) for leaving in self._leaving),
            *((self._writing,), tuple(self._pending)),
        )

    def repeat(self, since: ChannelBanks, times: int, ps: int) -> None:
        """Be as if what was done since then, which took ``ps``, were done ``times`` more, each in the next row."""
        later, bursts = ps * times, (self.serial - since.serial) * times
        for array in (self._free, self._work, self._acts, self._stack, self._next):
            array[:] = [time + later for time in array]
        for array in (self._used_at, self._other_at):
            array[:] = [number + bursts for number in array]
        self._gaps = [tuple((gap + later, end + later) for gap, end in gaps) for gaps in self._gaps]
        reads, writes = ([(time + later, n) for time, n in leaving] for leaving in self._leaving)
        self._leaving = reads, writes
        self._pending = [(bank, row + times, n) for bank, row, n in self._pending]
        self._rows = [
            (
                row if row < 0 else row + times,
                before if before < 0 else before + times,
                ready + later,
                opened + bursts,
                opened_before + bursts,
            )
            for row, before, ready, opened, opened_before in self._rows
        ]
        self._row_bus, self._floor, self._offered = self._row_bus + later, self._floor + later, self._offered + later
        self.end_ps, self.serial, self._turned = self.end_ps + later, self.serial + bursts, self._turned + bursts
        self._done = [new + (new - old) * times for new, old in zip(self._done, since.tally.done[1:], strict=True)]


def _with_gap(gaps: Spans, left: Span, now: int) -> Spans:
    """The gaps of a lane that has ``left`` another, without what is over."""
    if not gaps:
        return (left,)
    if gaps[0][1] <= now:
        gaps = gaps[1:]
    return (*(gaps if len(gaps) < GAPS else gaps[1:]), left)
