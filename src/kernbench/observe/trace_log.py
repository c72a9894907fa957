"""Snapshot of a run: the log and the tables of observed transfers and memory grants at one time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernbench.common.ids import pe_part
from kernbench.common.values import state
from kernbench.core.log import LINE, NONE, WIDTH, Columns, Kind, Row
from kernbench.core.observed import Carries, Column, TransferColumns, TransferFields, TurnColumns, held_by_link
from kernbench.engine.engine import Observer
from kernbench.engine.machine import Machine
from kernbench.messages.control import PeOrder
from kernbench.messages.requests import PeCoord
from kernbench.observe.path_resources import PaceLimit, PathDivider
from kernbench.observe.trace_queues import QueueLog
from kernbench.observe.works import EngineWork, Works
from kernbench.transport import Link, Route

BUSY = 0.9
"""Links of a route that carry at least this share of the bytes of the route's busiest link count as equally busy"""
ASKS = (Carries.REQUEST, Carries.WRITE, Carries.MESSAGE)
"""Transfers that a memory serves; each is the cause of the transfer that answers it"""


@state
class TraceLog(Observer):
    """Makes a machine record its transfers and memory grants, and, with ``links``, the traffic on each link."""

    links: bool = False
    watch_queues: bool = True
    machine: Machine = field(init=False)
    queues: QueueLog = field(init=False)
    _snapshot: LogView | None = None

    def begin(self, machine: Machine) -> None:
        """Observe ``machine``."""
        self.machine = machine
        machine.observe(links=self.links)
        self.queues = QueueLog(machine)
        if self.watch_queues:
            self.queues.watch()

    @property
    def seen(self) -> LogView:
        """A snapshot of the run as of now."""
        state = len(self.machine.log.rows), self.machine.clock.n_events
        if self._snapshot is None or self._snapshot.state != state:
            self._snapshot = LogView(self.machine, state)
        return self._snapshot


class _Departures(NamedTuple):
    """The transfers over a link: their numbers, in the order in which they left the link, and their times.

    ``free`` has an entry for each count of departures: the number of departures up to the last that had not waited.
    """

    numbers: Column
    left_ps: Column
    free: Column


class SortedNumbers:
    """The numbers of entries of a table in order of ``keys``, to find those of a range without a scan of the table."""

    __slots__ = ("_keys", "_order")

    def __init__(self, keys: Column) -> None:
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]

    def within(self, least: int, end: int) -> Column:
        """Return the numbers of the entries with keys from ``least`` on and below ``end``, in ascending order."""
        first, last = np.searchsorted(self._keys, (least, end))
        numbers: Column = np.sort(self._order[first:last])
        return numbers


class LogView:
    """The rows of a machine's log and of the observed tables, at one time (``state``), without folded ones.

    - ``log``: the log with the rows
    - ``answers``: the answer of each transfer
    - ``first_turn``, ``last_turn``: the first and the last grant in which a memory served each transfer
    - ``asked_by``: the transfers to memories of each row of the log
    - ``send_of``: the row that sends each message
    - ``fences``: the rows of fences
    - ``names_turns``: True if the grants record the access that delayed another
    """

    def __init__(self, machine: Machine, state: tuple[int, int]) -> None:
        assert machine.observation is not None
        self.state = state
        self.machine = machine
        self.log = machine.log.condense()
        self.columns: Columns = self.log.columns()
        self.works = Works(self.log, self.columns, machine.passed)
        self.divider = PathDivider(machine.graph)
        self.names_turns = machine.spec.cube.hbm.banks is not None
        self.tables = machine.observation.tables.condense(machine.log)
        self.transfers: TransferColumns = self.tables.transfers()
        self.turns: TurnColumns = self.tables.turns()
        self.pes = [self._pe(name) for name in self.columns.parts]
        self._departures: dict[tuple[int, int, str], _Departures] = {}
        self._loads: dict[int, tuple[Column, Column]] = {}  # by link: when transfers left it, and the bytes so far
        self._index_transfers()
        self._index_rows()

    def _pe(self, part: str) -> PeCoord | None:
        node = self.machine.graph.node(part)
        return None if node.sip is None or node.cube is None or node.pe is None else (node.sip, node.cube, node.pe)

    def _index_transfers(self) -> None:
        transfers, turns = self.transfers, self.turns
        self.asks: Column = np.flatnonzero(np.isin(transfers.what, ASKS))
        self.answers = _last_of(transfers.cause, len(transfers.of))
        self.last_turn = _last_of(turns.of, len(transfers.of))
        self.first_turn = _last_of(turns.of[::-1], len(transfers.of))
        self.first_turn[self.first_turn >= 0] = len(turns.of) - 1 - self.first_turn[self.first_turn >= 0]
        self.asked_by: dict[Row, list[int]] = {}
        for number, of in zip(self.asks.tolist(), transfers.of[self.asks].tolist(), strict=True):
            self.asked_by.setdefault(of * WIDTH, []).append(number)

    def _index_rows(self) -> None:
        """Index the commands that CPUs issued, the arrivals of orders at the last PE of a SIP, and sends."""
        columns = self.columns
        fences = columns.kind == Kind.FENCE
        self.fences: list[Row] = (np.flatnonzero(fences) * WIDTH).tolist()
        issues = np.flatnonzero((columns.kind == Kind.ISSUE) | fences)
        self._issues = issues[np.argsort(columns.part[issues], kind="stable")]
        self._issuers = columns.part[self._issues]
        self._ordered: dict[Row, Row] = {}  # by the order to a SIP, the order to its last PE
        orders = (columns.what == self.log.intern(PeOrder.__name__)) & (columns.kind == Kind.CONTROL)
        for n in np.flatnonzero(orders).tolist():
            first = int(columns.cause[columns.cause[n]]) * WIDTH
            if columns.end[n] >= columns.end[self._ordered.get(first, n * WIDTH) // WIDTH]:
                self._ordered[first] = n * WIDTH
        sends = np.flatnonzero(columns.kind == Kind.SEND)
        self.send_of: dict[Row, Row] = dict(
            zip((columns.parent[sends] * WIDTH).tolist(), (sends * WIDTH).tolist(), strict=True)
        )

    def issue_before(self, pe: PeCoord, row: Row, line: int | None = None) -> Row:
        """Return the last issue of a PE's CPU before ``row`` was opened, NONE without one.

        ``line`` restricts the search to a line of the kernel.
        """
        log = self.log
        part = log.part(pe_part(*pe, "pe_cpu"))
        low, high = np.searchsorted(self._issuers, (part, part + 1))
        issues = self._issues[low:high]
        at = int(np.searchsorted(issues, row // WIDTH)) - 1
        while line is not None and at >= 0 and log.rows[int(issues[at]) * WIDTH + LINE] != line:
            at -= 1
        return int(issues[at]) * WIDTH if at >= 0 else NONE

    def last_order(self, row: Row) -> Row:
        """Return the last order to a PE that the order ``row`` to a SIP caused; ``row`` if it caused none."""
        return self._ordered.get(row, row)

    @property
    def routes(self) -> Sequence[Route]:
        """The routes of the transfers, by number."""
        return self.machine.network.watch.routes

    @cached_property
    def links_of_routes(self) -> tuple[Column, Column, NDArray[np.bool_]]:
        """The links of all routes in sequence: number of the route, index of the link, and True if the link is last."""
        links = [[link.index for link in route.links] for route in self.routes]
        numbers = np.repeat(np.arange(len(links)), [len(on_route) for on_route in links])
        return numbers, np.array([*chain(*links)], np.int64), np.diff(numbers, append=-1) != 0

    @cached_property
    def limits_of_links(self) -> tuple[tuple[str, ...], NDArray[np.int64], NDArray[np.float64]]:
        """The limits of links: the names of resources, and two arrays of shape (links, 2).

        The first array has indices of resources, the second rates in GB/s. The columns are the limits by the link and
        by the buffer space behind it. An index of -1 means no limit.
        """
        names: dict[str, int] = {}
        resources = np.full((len(self.machine.graph.edges), 2), NONE)
        paces = np.ones(resources.shape)
        for index in dict.fromkeys(self.links_of_routes[1].tolist()):
            link = self.link(index)
            link_limit = PaceLimit(self.divider.resource_of(link), link.bw_gbs)
            for at, limit in enumerate((link_limit, self.divider.pace_of_space(link))):
                if limit is not None:
                    resources[index, at] = names.setdefault(limit.resource, len(names))
                    paces[index, at] = limit.gbs
        return tuple(names), resources, paces

    def first_of_backlog(self, route: Route, hop: int, left_ps: int) -> int:
        """Return the transfer at which packets began to wait for a link, among those that left it by ``left_ps``.

        The link is number ``hop`` of ``route``; only transfers that arrived by the same previous link count. The
        transfer before the result left without a wait. Return NONE if the last transfer left without a wait, too.
        """
        entered = NONE if hop == 0 else route.links[hop - 1].index
        key = route.links[hop].index, entered, route.links[hop].src if hop == 0 else ""
        departures = self._departures.get(key)
        if departures is None:
            departures = self._departures[key] = self._find_departures(route.links[hop], entered)
        last = int(np.searchsorted(departures.left_ps, left_ps, "right"))
        free = int(departures.free[last])
        return int(departures.numbers[free]) if free < last else NONE

    def busiest_links(self, route: Route, since_ps: int, until_ps: int) -> Route | tuple[Link, ...]:
        """Return those slowest links of a route that carried the most bytes between two times.

        Return the route if no link sets the route's rate.
        """
        links = self.divider.slowest_links(route)
        carried = [self._carried_by(link, since_ps, until_ps) for link in links]
        return (
            tuple(link for link, nbytes in zip(links, carried, strict=True) if nbytes >= BUSY * max(carried)) or route
        )

    def _carried_by(self, link: Link, since_ps: int, until_ps: int) -> int:
        """Return the bytes of the transfers whose last byte left a link between two times."""
        loads = self._loads.get(link.index)
        if loads is None:
            ways, transfers = self._ways_by(link), self.transfers
            numbers = np.flatnonzero((ways[transfers.route, 0] >= 0) & (transfers.end >= 0))
            left_ps = transfers.end[numbers] - ways[transfers.route[numbers], 1]
            order = np.argsort(left_ps)
            loads = left_ps[order], np.concatenate(([0], np.cumsum(transfers.nbytes[numbers][order])))
            self._loads[link.index] = loads
        first, last = np.searchsorted(loads[0], (since_ps, until_ps), "right")
        return int(loads[1][last] - loads[1][first])

    def _ways_by(self, link: Link) -> Column:
        """Return three columns per route for a link: ps from the source to it, ps from it to the end, previous link.

        A route that does not use the link has NONE; so has the previous link of a first link.
        """
        ways: Column = np.full((len(self.routes), 3), NONE)
        for number, route in enumerate(self.routes):
            if link in route.links:
                hop = route.links.index(link)
                before = route.links[hop - 1].index if hop else NONE
                ways[number] = route.offsets[hop], route.total_overhead_ps - route.offsets[hop], before
        return ways

    def _find_departures(self, link: Link, entered: int) -> _Departures:
        """Return the transfers that reached a link by the link ``entered``, or started there, in order of departure."""
        ways, transfers = self._ways_by(link), self.transfers
        come_by_it = (ways[:, 0] >= 0) & (ways[:, 2] == entered)
        numbers = np.flatnonzero(come_by_it[transfers.route] & (transfers.end >= 0))
        numbers = numbers[np.argsort(transfers.end[numbers] - ways[transfers.route[numbers], 1], kind="stable")]
        left_ps = transfers.end[numbers] - ways[transfers.route[numbers], 1]
        waited = transfers.end[numbers] - self._find_earliest_ends(numbers) >= link.serialise_ps(
            link.figures.packet_bytes
        )
        waited &= transfers.held_by[numbers] == held_by_link(link.index)
        found_empty = transfers.start[numbers] + ways[transfers.route[numbers], 0] >= np.concatenate(
            ([NONE], left_ps[:-1])
        )
        places = np.arange(len(numbers))
        free = np.maximum.accumulate(np.where(waited, np.where(found_empty, places, 0), places + 1))
        return _Departures(numbers, left_ps, np.concatenate(([0], free)))

    def _find_earliest_ends(self, numbers: Column) -> Column:
        """Return when transfers would end without delays by links: uncontended, or as memories supplied them."""
        transfers, turns = self.transfers, self.turns
        alone: Column = transfers.start[numbers] + transfers.zero_load[numbers]
        replies = np.flatnonzero((transfers.what[numbers] == Carries.REPLY) & (transfers.cause[numbers] >= 0))
        served = self.last_turn[transfers.cause[numbers[replies]]]
        replies, served = replies[served >= 0], served[served >= 0]
        overheads = np.array([route.total_overhead_ps for route in self.routes])
        supplied = turns.end[served] + overheads[transfers.route[numbers[replies]]]
        alone[replies] = np.maximum(alone[replies], supplied)
        return alone

    def weights_of(self, rows: Column) -> NDArray[np.float64]:
        """Return how often each of ``rows`` (NONE: no row) counts, since launches passed in place of its launch."""
        return self.machine.passed.weights(self._launches_of(rows))

    def are_on_device(self, rows: Column) -> NDArray[np.bool_]:
        """Return which of ``rows`` (NONE: no row) are in the time of their launch on its device."""
        on_device: NDArray[np.bool_] = self._launches_of(rows) >= 0
        return on_device

    def _launches_of(self, rows: Column) -> Column:
        """Return the launches of rows; NONE for rows outside a launch's time on its device, which all launches have."""
        launches = np.where(rows >= 0, self.columns.launch[rows], NONE)
        begins, ends = self._times_on_device
        start = self.columns.start[rows]
        inside: Column = np.where((begins[launches] <= start) & (start < ends[launches]), launches, NONE)
        return inside

    @cached_property
    def _times_on_device(self) -> tuple[Column, Column]:
        """Begin and end on the device by launch; the last entry is for NONE. Without a record, the end is 0."""
        times = np.zeros((2, 2 + max(self.log.requests, default=0)), np.int64)
        for launch, begin_and_end in self.log.on_device.items():
            times[:, launch] = begin_and_end
        return times[0], times[1]

    def repeated(self, rows: Column, starts: Column, ends: Column) -> Iterator[tuple[int, int]]:
        """Yield the intervals of ``rows``, also at the times at which launches, or their rests, passed in place."""
        passed, launches = self.machine.passed, rows
        if not passed.is_empty:
            launches = self._launches_of(rows)
            rests = [self._stretch(starts, ends, launches, launch) for launch in self._rests]
            launches, starts, ends = (
                np.concatenate(parts) for parts in zip((launches, starts, ends), *rests, strict=True)
            )
        yield from zip(starts.tolist(), ends.tolist(), strict=True)
        for sample, shifts in passed.shifts(self.log.on_device):
            sampled = np.flatnonzero(launches == sample)
            for shift in shifts.tolist() if len(sampled) else ():
                yield from zip((starts[sampled] + shift).tolist(), (ends[sampled] + shift).tolist(), strict=True)

    def _stretch(self, starts: Column, ends: Column, launches: Column, launch: int) -> tuple[Column, Column, Column]:
        """Return a launch, begins and ends of its intervals in the time of its work that was left out.

        These intervals are those of the end of the simulated part, whose work was left out ``more`` times.
        """
        begin_ps, end_ps = self._rests[launch]
        more = self.machine.passed.extension(launch) - 1
        part_ps = begin_ps - (end_ps - begin_ps) / more
        chosen = np.flatnonzero((launches == launch) & (ends > part_ps))
        since, until = (
            np.rint(begin_ps + (np.maximum(times[chosen], part_ps) - part_ps) * more).astype(np.int64)
            for times in (starts, ends)
        )
        return launches[chosen], since, until

    @cached_property
    def _rests(self) -> Mapping[int, tuple[int, int]]:
        """Begin and end of the time of work that was left out, by launch, in ps."""
        columns = self.columns
        rows = np.flatnonzero(
            (columns.kind == Kind.PASSED) & np.isin(columns.launch, list(self.machine.passed.extended))
        )
        return {
            launch: (begin_ps, end_ps)
            for launch, begin_ps, end_ps in zip(
                columns.launch[rows].tolist(), columns.start[rows].tolist(), columns.end[rows].tolist(), strict=True
            )
        }

    def link(self, index: int) -> Link:
        """Return the link with an index."""
        edge = self.machine.graph.edges[index]
        return self.machine.network.links[edge.src, edge.dst]

    @cached_property
    def row_order(self) -> SortedNumbers:
        """The rows in order of their starts."""
        return SortedNumbers(self.columns.start)

    @cached_property
    def ask_order(self) -> SortedNumbers:
        """The requests of memory, by number in ``asks``, in order of their starts."""
        return SortedNumbers(self.transfers.start[self.asks])

    @cached_property
    def transfer_order(self) -> SortedNumbers:
        """The transfers in order of their starts."""
        return SortedNumbers(self.transfers.start)

    @cached_property
    def turn_order(self) -> SortedNumbers:
        """The turns in order of their starts."""
        return SortedNumbers(self.turns.start)

    @cached_property
    def turns_by_ask(self) -> SortedNumbers:
        """The turns in order of the transfers that asked for them."""
        return SortedNumbers(self.turns.of)

    @cached_property
    def control_order(self) -> SortedNumbers:
        """The messages of the control path, by number in ``control``, in order of the starts of their rows."""
        return SortedNumbers(self.columns.start[self.transfers.of[self.control]])

    @cached_property
    def control(self) -> Column:
        """The transfers of messages of the control path."""
        return np.flatnonzero(self.transfers.what == Carries.CONTROL)

    @cached_property
    def rows_of_launches(self) -> Mapping[int, int]:
        """The number of rows of each launch; NONE is the key of rows outside launches."""
        launches, counts = np.unique(self.columns.launch, return_counts=True)
        return dict(zip(launches.tolist(), counts.tolist(), strict=True))

    @cached_property
    def control_of(self) -> Mapping[Row, int]:
        """The transfer of each message of the control path, by its row."""
        numbers = self.control
        return dict(zip((self.transfers.of[numbers] * WIDTH).tolist(), numbers.tolist(), strict=True))

    @cached_property
    def handled_before(self) -> Mapping[Row, Row]:
        """For a message of the control path, the earlier message that delayed it at its CPU.

        When the later message arrived, the CPU was handling the earlier message, or had not begun to.
        """
        transfers = self.transfers
        sent = self.control
        rows, came, cpus = transfers.of[sent], transfers.end[sent], transfers.dst[sent]
        ends = self.columns.end[rows]
        order = np.lexsort((rows, ends, cpus))
        rows, came, cpus, ends = rows[order], came[order], cpus[order], ends[order]
        busy = (cpus[1:] == cpus[:-1]) & (ends[:-1] > came[1:]) & (ends[1:] >= 0)
        return dict(zip((rows[1:][busy] * WIDTH).tolist(), (rows[:-1][busy] * WIDTH).tolist(), strict=True))

    def row_in_run(self, row: Row) -> Row:
        """Return the index of a row in the log of the machine, which has folded rows too."""
        return row if self.log.originals is None else int(self.log.originals[row // WIDTH]) * WIDTH

    def find_row(self, row: Row) -> Row:
        """Return the index of a row of the machine's log; NONE if the row is folded."""
        if self.log.originals is None or row < 0:
            return row
        place = int(np.searchsorted(self.log.originals, row // WIDTH))
        is_there = place < len(self.log.originals) and self.log.originals[place] == row // WIDTH
        return place * WIDTH if is_there else NONE

    def row_of(self, transfer: int) -> Row:
        """Return the row that a transfer belongs to, NONE without one."""
        of = int(self.transfers.of[transfer])
        if of >= 0 and self.columns.kind[of] == Kind.SEND:
            of = int(self.columns.parent[of])
        return of * WIDTH if of >= 0 else NONE

    def answer(self, transfer: int) -> TransferFields[int] | None:
        """Return the answer to a transfer, None before it departs."""
        number = int(self.answers[transfer])
        return None if number < 0 else self.tables.transfer(number)

    def each_work(self) -> Iterator[EngineWork]:
        """Yield the works of engines."""
        return self.works.each(self.pes)


def _last_of(whose: Column, count: int) -> Column:
    """Return, for each of ``count`` rows, the last index at which ``whose`` has the row's number, else NONE."""
    last: Column = np.full(count + 1, NONE)
    last[whose] = np.arange(len(whose))  # the extra last entry collects NONE
    return last[:-1]
