"""A channel of a slice: the timing of its banks, buses and queues for runs of bursts, in integer ps.

A channel has pseudo-channels (PCs), mostly two, with separate data buses. The PCs share the bus for row commands, the
queues, and the direction: all read, or all write. Column commands may occupy the bus for row commands too.

Runs are served in arrival order, each at once, with times in the future. A later run may use gaps that an earlier run
left free. This order equals that of a scheduler that serves ready requests first. docs/memory.md has the rules.

The row bus and ACT are work-conserving counters: free = max(free, now) + work. A run starts at max(ready, free before),
so a late row delays no other row. Column commands occupy a grid of bits, one place per burst.
"""

from __future__ import annotations

from copy import copy
from heapq import heappop, heappush
from operator import add, itemgetter
from typing import NamedTuple, TypeVar

from kernbench.common.units import PS_PER_NS, ns_to_ps
from kernbench.components.hbm.layout import RUN_BURSTS, RowRun
from kernbench.topology.hbm_spec import HbmTiming

T = TypeVar("T")
FAR = 1 << 62
LONG_AGO = -(1 << 60)
GRID_KEPT = 256
"""Places of the grid that are retained although their time is over."""
WRITTEN = 7
"""Index of the counter of the bursts that writes have brought"""
PER_PC = 8
"""Number of counters before the counters of each PC"""


class ChannelTiming:
    """The times of a channel in ps and the places of its banks, shared by all channels of a slice.

    A ``share`` of the time may be lost to refresh: it lengthens all work, but no latency.
    """

    def __init__(self, timing: HbmTiming, pcs: int, queue_entries: int, share: float = 0.0) -> None:
        def work(ns: float) -> int:
            return round(ns * PS_PER_NS / (1 - share))

        self.act, self.command, self.cycle = map(work, (timing.act_ns, timing.row_bus_ns, timing.rc_ns))
        self.column_command = 0 if timing.column_bus_ns is None else work(timing.column_bus_ns)
        self.precharge = ns_to_ps(timing.rp_ns)
        self.column = ns_to_ps(timing.rcd_ns), ns_to_ps(timing.rcd_write_ns)
        self.closing = (
            ns_to_ps(timing.rtp_ns + timing.rp_ns),
            ns_to_ps(timing.cwl_ns + timing.wr_ns + timing.rp_ns),
        )
        self.burst = max(1, work(timing.ccd_s_ns))
        # At least a burst, as both directions share one bus.
        self.turning = max(self.burst, work(timing.wtr_ns)), max(self.burst, work(timing.rtw_ns))
        self.queue = queue_entries
        self.high, self.low = int(timing.high * queue_entries), round(timing.low * queue_entries)
        self.pcs = pcs
        self.stacks, self.groups = pcs * timing.stacks, pcs * timing.stacks * timing.groups
        self.stacked = timing.stacks > 1
        # The lanes of the grid: PCs, then groups. Per bank: PC, stack, and the lane of the group.
        self.places = [
            (bank // timing.banks_per_pc, bank // timing.banks // timing.groups, pcs + bank // timing.banks)
            for bank in range(pcs * timing.banks_per_pc)
        ]
        # A place of the grid is a burst, so the tCCD_L of reads and that of writes are rounded to complete bursts.
        apart = [max(1, round(ns / timing.ccd_s_ns)) for ns in (timing.ccd_l_ns, timing.write_ccd_l_ns)]
        self.margin, self.pace = max(apart), [places * self.burst for places in apart]
        turn = max(1.0, timing.ccd_r_ns / timing.ccd_s_ns)
        self.turns = [(1 << round(n * turn)) - 1 for n in range(RUN_BURSTS + 1)]
        self.kept_ps = (GRID_KEPT + self.margin) * self.burst
        self.shapes = [[self._shape(n, places) for n in range(RUN_BURSTS + 1)] for places in apart]
        # The time after the last byte until the past has no effect: without waiting writes, and with waiting writes,
        # which are served first.
        settling = max(self.cycle, *self.closing) + self.precharge
        self.settling = settling, settling + sum(self.turning) + queue_entries * (self.cycle + self.closing[1])

    def _shape(self, bursts: int, apart: int) -> tuple[int, int, int, list[int]]:
        """Return the shape of a run of ``bursts`` on the grid, whose commands are ``apart`` places apart.

        The shape has four items. The first two are the places that the run blocks for its PC and for its group, as bits
        from ``margin`` places before the run. The third is the time to the end of the last byte. The fourth is a list
        of shifts: applied one after another to the taken places, they yield the places at which no complete run fits.
        """
        in_pc, in_group = sum(1 << self.margin + i * apart for i in range(bursts)), 0
        for by in range(apart):
            in_group |= in_pc << by | in_pc >> by
        shifts = [min(n, bursts - n) * apart for n in (1 << i for i in range(RUN_BURSTS)) if n < bursts]
        return in_pc, in_group, ((bursts - 1) * apart + 1) * self.burst, shifts


class Counters(NamedTuple):
    """The counters of a channel.

    - ``done[0:2]``: the numbers of bursts and of opened rows. ``done[2:4]``: those of idle time only.
    - ``done[4:7]``: the bus time in idle time in ps: in total, for turnarounds, for rows.
    - ``done[WRITTEN]``: the number of bursts that writes have brought, served or waiting.
    - ``done[PER_PC:]``: the bus time for turnarounds of each PC, then the bus time for rows of each PC.
    - ``ends``: the end of the last byte of each PC.
    """

    done: tuple[int, ...]
    ends: tuple[int, ...]


Rows = tuple[tuple[int, int, int, int], ...]
"""The rows that a bank is going to open or has open, last first. Each has its number, and its times in ps: ACT, ready,
and close (or FAR)
"""
InQueue = tuple[int, int, int, int, int, int]
"""Bursts in a queue: the time at which they leave it, the number of their run's last burst, the count of bursts, the
bank, the row, and the time of the first command
"""
NO_DRAIN = LONG_AGO, 0, 0
"""The begin of the last drain of writes, the time until few writes were left, and the time between writes before the
drain
"""
ChannelState = tuple[object, ...]


class Channel:
    """The state of a channel: the occupancy of its banks, buses and queues."""

    __slots__ = (
        *("_acts", "_bus_from", "_counted", "_done", "_ends", "_first", "_grid", "_grid_end", "_held", "_leaving"),
        *("_next", "_of", "_offered", "_origin", "_other_at", "_row_bus", "_rows", "_serial", "_used", "_used_at"),
        *("_drain", "_waiting", "_writing", "end_ps"),
    )

    def __init__(self, timing: ChannelTiming) -> None:
        self._of = of = timing
        banks = len(of.places)
        # The grid of column commands: its begin and end; the taken places of each lane. Behind the lanes are the places
        # that PCs have given to stacks round-robin, in reverse order of PCs.
        self._origin = self._grid_end = 0
        self._grid = [0] * (of.pcs + of.groups + of.pcs)
        self._ends = [0] * of.pcs
        # The row counters: the row bus; the next ACT of each PC; per bank the next ACT and the rows.
        self._row_bus, self._acts = 0, [0] * of.pcs
        self._next = [0] * banks
        self._rows: list[Rows] = [()] * banks
        # By stack: the group used last, its last burst, and the last burst of another group.
        self._used = [-1] * of.stacks
        self._used_at, self._other_at = [LONG_AGO] * of.stacks, [LONG_AGO] * of.stacks
        # Bursts so far; the direction, the time when it may use the buses, its first command; the end of all data.
        self._serial = self._writing = self._bus_from = self.end_ps = 0
        self._first = FAR
        # For reads and for writes: bursts in the queue that have a time to leave it, and their number; runs that wait
        # for their direction, and their bursts and rows that have already been counted.
        self._leaving: list[list[InQueue]] = [[], []]
        self._held = [0, 0]
        self._waiting: list[tuple[RowRun, ...]] = [(), ()]
        self._counted = [(0, 0), (0, 0)]
        self._drain = NO_DRAIN
        self._offered = 0  # when the last waiting write arrived
        self._done = [0] * (PER_PC + 2 * of.pcs)

    @property
    def counters(self) -> Counters:
        """Return the counters so far."""
        return Counters(tuple(self._done), tuple(self._ends))

    @property
    def pending_bursts(self) -> int:
        """Return the number of bursts of writes that wait for the write direction."""
        return sum([n for _, _, n in self._waiting[1]])

    @property
    def waiting_bursts(self) -> int:
        """Return the number of bursts that wait for their direction: deferred writes, and reads that were sent back."""
        return sum([n for waits in self._waiting for _, _, n in waits])

    @property
    def returned_bursts(self) -> int:
        """Return the number of bursts that a turnaround sent back: the counters include them, but they wait again."""
        return sum([bursts for bursts, _ in self._counted])

    @property
    def has_uniform_banks(self) -> bool:
        """Return True if all banks have the same row open, or none has an open row, and no access waits."""
        return not any(self._waiting) and len({rows[0][0] if rows else None for rows in self._rows}) == 1

    @property
    def settled_ps(self) -> int:
        """Return the time from which only open rows and waiting writes of the past have an effect."""
        if self._waiting[1]:
            return max(self.end_ps, self._offered) + self._of.settling[1]
        return self.end_ps + self._of.settling[0]

    def serve(
        self, now: int, base: int, runs: tuple[RowRun, ...], write: bool, refreshed: bool = False
    ) -> tuple[int, int, int]:
        """Serve runs at ``now``; their rows count from ``base``.

        Return the times in ps of the last entry into the queue, of the first byte and of the last byte. A byte of a
        write counts as served when it has entered the queue. ``refreshed``: the banks were refreshed since the last
        call.
        """
        of = self._of
        if now >= self.end_ps + of.settling[0]:
            # The queues are empty: their past content has no effect.
            self._used_at, self._other_at = [LONG_AGO] * len(self._used), [LONG_AGO] * len(self._used)
            self._drain = NO_DRAIN
        if self._waiting[1] and not self._writing:
            self._use_idle_time(now)
        if refreshed:
            # Rows in use have been reopened in the outage.
            over = now + of.closing[self._writing]
            self._rows = [rows if free > over else () for rows, free in zip(self._rows, self._next, strict=True)]
        if not write:
            if self._writing:
                now = self._enter(1, now, of.low)
                self._turn(0, now)
            entered, first, last = self._serve(now, base, runs, 0, of.queue)
            began, took, pace = self._drain
            if self._waiting[1] and entered < began + of.settling[1]:
                # The next drain is expected at the pace of the last drain, and delays the reads that are in the queue.
                waits = took if last - entered > (of.high - self.pending_bursts) * pace else 0
                first, last = first + waits, last + waits
            return entered, first, last
        self._done[WRITTEN] += sum([n for _, _, n in runs])
        first, remaining = FAR, iter(runs)
        for bank, row, n in remaining:
            if self._writing:
                entered = self._enter(1, now, of.queue - n)
                now, _, _ = self._serve(entered, base, ((bank, row, n), *remaining), 1, of.queue)
                return now, min(first, entered), now
            self._waiting[1] += ((bank, base + row, n),)
            self._offered = first = now
            if self.pending_bursts >= of.high:
                pace = min(now - self._drain[0], of.settling[1]) // max(1, of.high - of.low)
                self._turn(1, now)
                written = [when for when, _, n, *_ in sorted(self._leaving[1]) for _ in range(n)]
                self._drain = now, written[max(0, self._held[1] - of.low - 1)] - now, pace
        return now, first, now

    def _use_idle_time(self, now: int) -> None:
        """Serve waiting writes in the idle time of the buses, where turnarounds and rows delay no request."""
        start = max(self.end_ps, self._offered)
        if start >= now:
            return
        before, ends, pcs = self._done, self._ends[:], self._of.pcs
        self._done = [0] * len(before)
        self._turn(1, start)
        used = sum([max(0, min(end, now) - max(old, start)) for old, end in zip(ends, self._ends, strict=True)])
        served, per_pc = self._done[:2], self._done[PER_PC:]
        idle = *served, *served, used, sum(per_pc[:pcs]), sum(per_pc[pcs:])
        self._done = [*map(add, before, idle), *before[len(idle) :]]

    def _enter(self, write: int, now: int, room: int) -> int:
        """Return the time when at most ``room`` bursts are in a queue."""
        leaving, held = self._leaving[write], self._held[write]
        while leaving and held > room:
            when, _, n, *_ = heappop(leaving)
            now, held = when if when > now else now, held - n
        self._held[write] = held
        return now

    def _turn(self, writing: int, now: int) -> None:
        """Turn the buses around, and serve the waiting runs of the new direction.

        Commands of the old direction that have not begun have to wait.
        """
        self._writing = writing
        # Counted from the last command of the old direction, including commands of rows that are being opened.
        begun = self._first < now
        last, over = self._send_back(1 - writing, now)
        last = max(last, min(now, self.end_ps - self._of.burst))
        until = max(over, last + self._of.turning[writing]) if begun else over
        for pc in range(self._of.pcs):
            self._done[PER_PC + pc] += until - now
        self._bus_from, self._first = until, FAR
        again, self._waiting[writing] = self._waiting[writing], ()
        (bursts, rows), opened = self._counted[writing], self._done[1]
        self._counted[writing] = 0, 0
        if again:
            # Reads wait in front of the queue. Writes have waited before they are served.
            room = FAR if writing else self._of.queue
            self._serve(now, 0, self._by_readiness(again, now), writing, room)
            self._done[0] -= bursts
            self._done[1] = max(opened, self._done[1] - rows)

    def _by_readiness(self, runs: tuple[RowRun, ...], now: int) -> tuple[RowRun, ...]:
        """Return runs in the order in which their banks can open rows."""
        cycle, order = self._of.cycle, []
        due = now - cycle, now + self._of.precharge - cycle
        free = [max(free - cycle, due[bool(rows)]) for free, rows in zip(self._next, self._rows, strict=True)]
        last = [rows[0][0] if rows else None for rows in self._rows]
        for bank, row, _ in runs:
            if row != last[bank]:
                last[bank], free[bank] = row, free[bank] + cycle
            order.append(free[bank])
        return tuple([run for _, run in sorted(zip(order, runs, strict=True), key=itemgetter(0))])

    def _send_back(self, write: int, now: int) -> tuple[int, int]:
        """Move to the waiting runs all bursts of a direction that are in its queue at ``now``.

        Bursts that have left the queue are on the buses, or next to use them. Such bursts are the first burst of a row
        that is opening, and the bursts of a run whose first half is over. Return the time when the last row of these
        bursts is ready, and the time when the buses have carried them.
        """
        of, opened, last = self._of, 0, LONG_AGO
        place = max(0, (now - self._origin) // of.burst + 1)
        ahead = [(lane >> place).bit_count() for lane in self._grid[: of.pcs]]  # commands that come after now
        queued = sorted([entry for entry in self._leaving[write] if entry[0] > now], key=itemgetter(1))
        self._leaving[write].clear()
        self._held[write], before = 0, -1
        runs: list[RowRun] = []
        for _, number, n, bank, row, first in queued:
            # A run may have one separate entry for a single burst: the burst that opens the row.
            preceding = runs.pop()[2] if number == before else 0
            runs.append((bank, row, preceding + n))
            before = number
            begun = (now - first) // of.pace[write] + 1 if first <= now else 0
            ahead[of.places[bank][0]] -= max(0, n - begun)
        self._waiting[write] = tuple(runs)
        busy = enumerate(self._rows) if self.end_ps > now else ()
        for bank, rows in busy:
            begun_rows = rows
            while begun_rows and begun_rows[0][1] > now:
                begun_rows = begun_rows[1:]
                opened += 1
            free = self._next[bank]
            if begun_rows:
                row, opens, ready, _ = begun_rows[0]
                last = max(last, ready)
                if len(rows) > 1:
                    self._rows[bank] = ((row, opens, ready, FAR),)
                self._next[bank] = max(min(free, now + of.closing[write]), opens + of.cycle)
            elif rows:
                self._rows[bank], self._next[bank] = (), min(free, now + of.precharge)
        self._counted[write] = sum([run[2] for run in runs]), opened
        if busy:
            self._row_bus = min(self._row_bus, now)
            self._acts = [min(free, now + of.act) for free in self._acts]
            kept = (1 << place) - 1
            self._grid = [lane & kept for lane in self._grid]
            self._grid_end = min(self._grid_end, now + of.burst)
            self._ends = [min(end, now + (1 + n) * of.burst) for end, n in zip(self._ends, ahead, strict=True)]
            self.end_ps = now + (1 + max(ahead)) * of.burst
        return last, self.end_ps if any(ahead) else now

    def _serve(  # noqa: PLR0912, PLR0915 - inlined for speed, as a simulation spends much of its time here
        self, now: int, base: int, runs: tuple[RowRun, ...], write: int, room: int
    ) -> tuple[int, int, int]:
        """Serve runs in the present direction; return the same times as ``serve``.

        At most ``room`` bursts are in the queue. A run of writes is served when all of its bursts have entered.
        """
        of, first, last, serial = self._of, FAR, now, self._serial
        leaving, held, places = self._leaving[write], self._held[write], of.places
        shapes, pace, column_command = of.shapes[write], of.pace[write], of.column_command
        all_rows, next_at, ends, bus_from = self._rows, self._next, self._ends, self._bus_from
        closing, burst, stacked = of.closing[write], of.burst, of.stacked and not write
        used, used_at, other_at = self._used, self._used_at, self._other_at
        grid, origin, grid_end, unit, margin = self._grid, self._origin, self._grid_end, of.burst, of.margin
        if now - origin > of.kept_ps:
            origin = self._forget_grid(now)
        for bank, above, n in runs:
            pc, stack, group = places[bank]
            near_in_pc, near_in_group, length, fits = shapes[n]
            row, at = base + above, now
            serial += n
            # The first burst enters at ``at``, the last at ``now``.
            while leaving and held + n > room:
                when, _, gone, _, _, _ = heappop(leaving)
                now = when if when > now else now
                at = now if held >= room else at
                held -= gone
            held += n
            at = now if write else at
            waits, newest, opens = n, True, 0
            for open_row in all_rows[bank]:
                if open_row[0] == row and at < open_row[3]:
                    newest, ready = open_row[3] == FAR, open_row[2]
                    break
            else:
                opens, ready = self._open(pc, bank, row, at, write)
                waits -= 1
            if column_command:
                row_bus = self._row_bus
                self._row_bus = (row_bus if row_bus > at else at) + n * column_command
            start = ready if ready > at else at
            start = bus_from if bus_from > start else start
            if grid_end <= at:
                origin = self._begin_grid(at, start)
            place = (start - origin + unit - 1) // unit
            if stacked:
                if used[stack] != group:
                    used[stack], other_at[stack] = group, used_at[stack]
                used_at[stack] = serial
                if serial - other_at[stack] > room:
                    place = self._take_turn(pc, place, n)
            # The first place from ``start`` on at which all places of the run are free.
            occupied = (grid[pc] | grid[group]) >> place
            if occupied:
                for by in fits:
                    occupied |= occupied >> by
                place += (~occupied & (occupied + 1)).bit_length() - 1
            before = place - margin
            grid[pc] |= near_in_pc << before
            grid[group] |= near_in_group << before
            start = origin + place * unit
            end = start + length
            grid_end = end if end > grid_end else grid_end
            # The last burst leaves after it has entered the queue.
            end = now + burst if end < now + burst else end
            if newest and end + closing > next_at[bank]:
                next_at[bank] = end + closing
            if waits < n:
                heappush(leaving, (opens, serial, 1, bank, row, start))
            if waits:
                # These bursts leave one after another. One departure at half of the time affects later runs alike.
                from_ps = start + (n - waits) * pace
                heappush(leaving, ((start + end) // 2, serial, waits, bank, row, from_ps))
            ends[pc] = end if end > ends[pc] else ends[pc]
            first = start if start < first else first
            last = end if end > last else last
        self._done[0] += serial - self._serial
        self._serial, self._held[write], self._grid_end = serial, held, grid_end
        self._first, self.end_ps = min(first, self._first), max(last, self.end_ps)
        return now, first, last

    def _open(self, pc: int, bank: int, row: int, now: int, write: int) -> tuple[int, int]:
        """Open a row of a bank, after the rows that the bank has still to open.

        Return the time of ACT, and the time from which the row is ready.
        """
        of, bus, acts, opens = self._of, self._row_bus, self._acts[pc], self._next[bank]
        rows = self._rows[bank]
        at = now + of.precharge if rows else now
        opens = at if at > opens else opens
        opens = bus if bus > opens else opens
        opens = acts if acts > opens else opens
        self._row_bus = (bus if bus > now else now) + of.command
        self._acts[pc] = (acts if acts > now else now) + of.act
        self._next[bank] = opens + of.cycle
        ready = opens + of.column[write]
        opened: Rows = ((row, opens, ready, FAR),)
        if rows:
            # The preceding row closes for the new row. Earlier rows have closed before.
            while rows[-1][3] <= now:
                rows = rows[:-1]
            closes = opens - of.precharge
            if closes > now:
                opened = (*opened, (*rows[0][:3], closes), *rows[1:])
        self._rows[bank] = opened
        done, free = self._done, self._ends[pc]
        done[1] += 1
        late = ready - (free if free > now else now)
        if late > 0:
            done[PER_PC + of.pcs + pc] += late
        return opens, ready

    def _begin_grid(self, now: int, start: int) -> int:
        """Restart the grid, all places of which are past at ``now``, with a place at ``start``; return its begin."""
        unit = self._of.burst
        self._origin = start - (start - now) // unit * unit - self._of.margin * unit
        self._grid[:] = [0] * len(self._grid)
        return self._origin

    def _forget_grid(self, now: int) -> int:
        """Drop most places of the grid whose time is past at ``now``; return the new begin of the grid."""
        over = (now - self._origin) // self._of.burst - self._of.margin
        self._origin += over * self._of.burst
        self._grid[:] = [lane >> over for lane in self._grid]
        return self._origin

    def _take_turn(self, pc: int, place: int, n: int) -> int:
        """Occupy the first places from ``place`` on with room for ``n`` bursts, tCCD_R apart; return the first place.

        The bursts of the two stacks may alternate.
        """
        room = self._of.turns[n]
        while occupied := self._grid[~pc] >> place & room:
            place += occupied.bit_length()
        self._grid[~pc] |= room << place
        return place

    # -- the complete state --

    def copy(self) -> Channel:
        """Return a copy of the channel in the same state."""
        channel = copy(self)
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, list):
                setattr(channel, name, [item[:] if isinstance(item, list) else item for item in value])
        return channel

    def state(self, now: int, base: int, label: int) -> ChannelState:
        """Return the state that decides future runs: two equal states behave alike from ``now`` on.

        Times and bursts count from now, rows from ``base``, banks from the bank with ``label``.
        """
        of = self._of
        since = min(now, max(self.end_ps, self._offered)) if self._waiting[1] else now
        pc_label, stack_label, group_label = of.places[label]
        group_label -= of.pcs

        def relabelled(array: list[T], label: int) -> list[T]:
            return [array[i ^ label] for i in range(len(array))]

        def ahead(time: int) -> int:
            return 0 if time <= since else FAR if time >= FAR else time - since

        times = [*relabelled(self._ends, pc_label), *relabelled(self._acts, pc_label), *relabelled(self._next, label)]
        times += self._row_bus, self._bus_from, self._first, self._offered, self._grid_end, self.end_ps
        rows = [
            tuple([(row - base, *map(ahead, its)) for row, *its in bank_rows if its[-1] > since])
            for bank_rows in relabelled(self._rows, label)
        ]
        grid: list[int] = []
        if self._grid_end > since:
            over = max(0, (since - self._origin) // of.burst - of.margin)
            in_pcs, in_groups, in_turn = self._grid[: of.pcs], self._grid[of.pcs : -of.pcs], self._grid[-of.pcs :]
            lanes = *relabelled(in_pcs, pc_label), *relabelled(in_groups, group_label), *relabelled(in_turn, pc_label)
            grid = [self._origin + over * of.burst - since, *[lane >> over for lane in lanes]]
        used = [group if group < 0 else (group - of.pcs) ^ group_label for group in relabelled(self._used, stack_label)]
        used_at = relabelled(self._used_at, stack_label) + relabelled(self._other_at, stack_label)
        used += [max(mark - self._serial, -of.queue - 1) for mark in used_at]
        left = [[entry for entry in these if entry[0] > now] for these in self._leaving]
        leaving = [
            sorted(
                [
                    (when - now, last - self._serial, n, bank ^ label, row - base, first - now)
                    for when, last, n, bank, row, first in entries
                ]
            )
            for entries in left
        ]
        waiting = [[(bank ^ label, row - base, n) for bank, row, n in waits] for waits in self._waiting]
        drain = (now - self._drain[0], *self._drain[1:]) if now - self._drain[0] < of.settling[1] else NO_DRAIN
        return self._writing, drain, *map(tuple, (map(ahead, times), rows, grid, used, *leaving, *waiting))
