"""Divide the row of a DMA or of a message on a critical path, from its last byte back to its departure.

The time of a transfer is its uncontended time plus its delay. Either a link delays the transfer, or the memory that
supplied it. Behind a memory's delay, the path continues in the memory and follows the causes of its grants (``turn``).
If the memory or the link was busy when an access arrived, the path continues with the access that arrived before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from kernbench.common.units import ns_to_ps, transfer_ps
from kernbench.core.log import END, KIND, LAUNCH, LINE, NONE, PART, By, Kind, Row
from kernbench.core.observed import Carries, TransferFields, TurnFields, link_of
from kernbench.messages.requests import PeCoord
from kernbench.observe.critical_path_model import (
    KernelPlace,
    PathChain,
    PathHop,
    PathPart,
    PathPlace,
    Via,
    WaitedFor,
)
from kernbench.observe.trace_log import LogView
from kernbench.topology.cube_spec import SramAttrs
from kernbench.topology.hbm_spec import HbmCtrlAttrs
from kernbench.transport import Route

HOST_COPIES = frozenset((Kind.MEMORY_WRITE, Kind.MEMORY_READ))
_ANSWERS = frozenset((Carries.REPLY, Carries.ACK, Carries.DOORBELL))
_NETWORKS: Mapping[int, PathPart] = MappingProxyType(
    {
        Carries.REQUEST: PathPart.REQUEST,
        Carries.WRITE: PathPart.REQUEST,
        Carries.MESSAGE: PathPart.MESSAGE,
        Carries.REPLY: PathPart.RESPONSE,
        Carries.ACK: PathPart.RESPONSE,
        Carries.DOORBELL: PathPart.DOORBELL,
    }
)
"""The part of a path for a transfer between a memory and a PE or the host"""


class InsideDma:
    """Walks ``chain`` backwards through the transfers and memory grants of a ``snapshot``."""

    def __init__(self, snapshot: LogView, chain: PathChain) -> None:
        self._snapshot = snapshot
        self._chain = chain
        self._tables = snapshot.tables
        self._row: Row = NONE
        self._pe: PeCoord | None = None
        self._line = 0
        self._host = False

    def walk(self, row: Row, *, accessed: bool = False) -> Row:
        """Walk from the end of ``row`` to its departure; return the row reached.

        With ``accessed`` the walk starts from the moment when memories had accessed all bytes of the row. Of several
        transfers, the walk follows the transfer that was answered, or accessed, last. Return another row if the walk
        continues with an access of that row, which had arrived earlier at a memory or a link.
        """
        self._enter(row)
        numbers = self._snapshot.asked_by.get(row, [])
        if accessed:
            numbers = [number for number in numbers if 0 <= self._done_ps(number) <= self._chain.at_ps]
        if numbers:
            self._follow(self._access(max(numbers, key=self._done_ps if accessed else self._answered_ps)))
        return self._row

    def _enter(self, row: Row) -> None:
        """Continue with a row; for a message, with its send.

        The networks that host copies pass count as a separate part of the path.
        """
        rows = self._snapshot.log.rows
        row = self._snapshot.send_of.get(row, row)
        self._row, self._host = row, rows[row + KIND] in HOST_COPIES
        self._pe = None if self._host else self._snapshot.pes[rows[row + PART]]
        self._line = 0 if self._host else rows[row + LINE]
        self._chain.launch_id = rows[row + LAUNCH]

    def walk_control(self, row: Row, part: PathPart, pe: PeCoord | None, line: int) -> Row:
        """Walk from the end of a CPU's work on a control message to the departure of the message; return NONE.

        If the CPU was busy with another message on arrival, walk only to the end of that work, and return the row of
        the other message.
        """
        number = self._snapshot.control_of.get(row)
        if number is None:
            return NONE
        self._pe, self._line, self._host = pe, line, False
        sent = self._tables.transfer(number)
        name = self._snapshot.columns.parts[sent.dst]
        cpu = self._snapshot.machine.component(name)
        if cpu.handles_serially:
            self._to(max(sent.end, self._chain.at_ps - cpu.overhead_ps), PathPart.CONTROL_CPU, name)
            before = self._snapshot.handled_before.get(row, NONE)
            if before >= 0:
                self._to(self._snapshot.log.rows[before + END], PathPart.CONTROL_QUEUE, name)
                return before
        self._to(sent.end, PathPart.CONTROL_QUEUE, name)
        self._split(sent, part)
        return NONE

    def _answered_ps(self, number: int) -> int:
        answer = self._snapshot.answer(number)
        return NONE if answer is None else answer.end

    def _done_ps(self, number: int) -> int:
        """Return the time when the memory had accessed all bytes of a transfer; NONE if it has not."""
        transfer = self._tables.transfer(number)
        if transfer.what == Carries.REQUEST:
            return transfer.end + self._access_ps(transfer)
        answer = self._snapshot.answer(number)
        return NONE if answer is None else answer.start

    def _access_ps(self, transfer: TransferFields[int]) -> int:
        """Return the latency of a transfer's memory: before the first byte of a read, or until a write is visible."""
        machine = self._snapshot.machine
        attrs = machine.graph.node(self._snapshot.columns.parts[transfer.dst]).attrs
        if isinstance(attrs, HbmCtrlAttrs):
            return ns_to_ps(machine.spec.cube.hbm.access_ns(attrs))
        return attrs.access_ps if isinstance(attrs, SramAttrs) else 0

    def _access(self, number: int) -> int:
        """Walk from the end of an access, or of its service in memory; return the next transfer."""
        answer = self._snapshot.answer(number)
        if answer is not None and answer.start < self._chain.at_ps:
            return int(self._snapshot.answers[number])
        return self._in_memory(number)

    def _follow(self, number: int) -> None:
        """Walk from the end of a transfer to the departure of the earliest transfer, or request, that delayed it."""
        while number >= 0 and self._chain.come_to(PathPlace(number, "transfer")):
            transfer = self._tables.transfer(number)
            if transfer.what == Carries.REPLY:
                ahead = self._reply(transfer)
            else:
                ahead = self._pass(transfer, _NETWORKS[transfer.what])
            if ahead < 0 and transfer.what in _ANSWERS:
                ahead = self._in_memory(transfer.cause)
            number = ahead

    def _in_memory(self, number: int) -> int:
        """Walk from the end of the service in a memory to the arrival of a transfer; return the next transfer."""
        transfer, turn = self._tables.transfer(number), self._tables.last_turn(number)
        access_ps, memory = self._access_ps(transfer), self._snapshot.columns.parts[transfer.dst]
        reads = transfer.what == Carries.REQUEST
        if not reads:
            self._to(max(transfer.end, self._chain.at_ps - access_ps), PathPart.ACCESS, memory)
        if reads or (turn >= 0 and self._chain.at_ps > transfer.end):  # the memory is slower than the route of a write
            since_ps = transfer.end + access_ps if reads else self._head_ps(number, transfer)
            number = self._follow_served(number, turn, since_ps)
            transfer = self._tables.transfer(number)
        if transfer.what == Carries.REQUEST:
            self._to(transfer.end, PathPart.ACCESS, memory)
        return number

    def _reply(self, reply: TransferFields[int]) -> int:
        """Walk to the begin of a reply, or to the end of the memory's supply if the memory was slower than the links.

        Return the transfer that delayed the reply, with which the walk continues; NONE without such a transfer.
        """
        ahead = self._go_ahead(reply, PathPart.RESPONSE)
        if ahead < 0:
            ahead = self._go_to_backlog(reply, PathPart.RESPONSE)
        if ahead >= 0:
            return ahead
        turn, route = self._tables.last_turn(reply.cause), self._route(reply)
        overhead_ps, alone_ps = route.total_overhead_ps, reply.start + reply.zero_load
        supplied_ps = self._tables.turn(turn).end if turn >= 0 else reply.start
        if reply.held_by < 0:  # delayed by a link or not at all: exclude the time that overhead and supply share
            self._to(self._chain.at_ps - overhead_ps, PathPart.RESPONSE, route)
            self._queue(reply, max(supplied_ps, alone_ps - overhead_ps))
        slower = reply.held_by >= 0 or supplied_ps + overhead_ps > alone_ps
        self._to(supplied_ps if slower else reply.start, PathPart.RESPONSE, route)
        return NONE

    def _follow_served(self, number: int, turn: int, since_ps: int) -> int:
        """Walk through the grants of a memory back to ``since_ps``, when access ``number`` arrived.

        Return the access to continue with. If the memory was busy on arrival, this is the access that found it idle.
        """
        tables, floor_ps, other, first = self._tables, self._chain.floor_ps, NONE, None
        memory = None if turn < 0 else self._snapshot.columns.parts[tables.turn(turn).memory]
        while turn >= 0 and (first is None or first.start > floor_ps):
            first = tables.turn(turn)
            if tables.row_of(first.of) == self._row:
                self._behind(other, first.end, memory)
                other = NONE
                for part, begin in _parts(first):
                    self._to(begin, part, memory)
            elif other < 0:
                other = turn
            turn = first.cause if first.by == By.BANK else NONE
        row = NONE if first is None else tables.row_of(first.of)
        if first is None or row < 0 or first.start >= since_ps:
            self._behind(other, since_ps, memory)
            return number
        self._behind(other, first.start, memory)
        self._enter(row)
        return first.of

    def _behind(self, turn: int, when: int, memory: str | None) -> None:
        """Walk to ``when`` over time in which the memory served other accesses, the last in grant ``turn``."""
        chain, snapshot = self._chain, self._snapshot
        when = max(when, chain.floor_ps)
        if turn >= 0 and when < chain.at_ps and snapshot.names_turns and memory is not None:
            self._note_hop(self._tables.row_of(self._tables.turn(turn).of), "memory", memory, when)
        self._to(when, PathPart.MEMORY_QUEUE, memory)

    def _note_hop(self, row: Row, waited_for: WaitedFor, where: str, since_ps: int) -> None:
        """Record that this PE waited from ``since_ps`` to the chain's present time, if ``row`` is of another PE."""
        rows, chain = self._snapshot.log.rows, self._chain
        pe = self._snapshot.pes[rows[row + PART]] if row >= 0 else None
        if pe is None or self._pe is None or pe == self._pe:
            return
        hop = PathHop(
            waiting=KernelPlace(pe=self._pe, launch_id=chain.launch_id, line=self._line),
            cause=KernelPlace(pe=pe, launch_id=rows[row + LAUNCH], line=rows[row + LINE]),
            waited_for=waited_for,
            direction=where,
            start_ps=since_ps,
            end_ps=chain.at_ps,
        )
        chain.hops.append(hop)

    def _head_ps(self, number: int, transfer: TransferFields[int]) -> int:
        """Return the arrival of a write's first byte; if the memory was busy then, the uncontended arrival."""
        first = self._tables.turn(int(self._snapshot.first_turn[number]))
        if first.by == By.LINK:
            return first.start
        return transfer.end - transfer.zero_load + self._route(transfer).total_overhead_ps

    def _route(self, transfer: TransferFields[int]) -> Route:
        return self._snapshot.routes[transfer.route]

    def _queue(self, transfer: TransferFields[int], since_ps: int) -> None:
        """Walk to ``since_ps`` over time in which a transfer waited for links behind other transfers.

        Each transfer ahead accounts for the time of its bytes at the rate of its route. If a memory delayed a transfer
        ahead, the remaining time was a wait for that memory. If no transfer is recorded ahead, or if interleaved
        transfers waited for each other, the remaining time was a wait for buffer space on the route.
        """
        tables, chain = self._tables, self._chain
        ahead, passed = transfer, set[int]()
        since_ps = max(since_ps, chain.floor_ps)
        while chain.at_ps > since_ps and link_of(ahead.held_by) >= 0 and ahead.behind >= 0:
            if ahead.behind in passed:
                break
            passed.add(ahead.behind)
            ahead = tables.transfer(ahead.behind)
            if ahead.held_by >= 0:
                memory = self._snapshot.columns.parts[tables.turn(ahead.held_by).memory]
                self._to(since_ps, PathPart.MEMORY_QUEUE, memory)
                return
            route = self._route(ahead)
            occupancy_ps = transfer_ps(ahead.nbytes, self._snapshot.divider.pace_of(route))
            self._to(max(since_ps, chain.at_ps - occupancy_ps), PathPart.NETWORK_QUEUE, route)
        self._to(since_ps, PathPart.NETWORK_QUEUE, self._route(ahead))

    def _pass(self, transfer: TransferFields[int], part: PathPart) -> int:
        """Walk to the begin of a transfer, or to the transfer that delayed it; return that transfer, or NONE."""
        ahead = self._go_ahead(transfer, part)
        if ahead < 0:
            ahead = self._go_to_backlog(transfer, part)
        if ahead < 0:
            self._split(transfer, part)
        return ahead

    def _split(self, transfer: TransferFields[int], part: PathPart) -> None:
        """Split a transfer, up to the chain's present time, into its uncontended time and waiting."""
        self._to(self._alone_since_ps(transfer), part, self._route(transfer))
        self._queue(transfer, transfer.start)

    def _alone_since_ps(self, transfer: TransferFields[int]) -> int:
        """Return the time at which an uncontended transfer would have departed to arrive when this transfer arrived."""
        walked_ps = transfer.end - self._chain.at_ps
        return max(transfer.start, self._chain.at_ps - max(0, transfer.zero_load - walked_ps))

    def _go_ahead(self, transfer: TransferFields[int], part: PathPart) -> int:
        """Walk to the time when the transfer ahead at a link had left the link; return that transfer, or NONE."""
        index, route, since_ps = link_of(transfer.held_by), self._route(transfer), self._alone_since_ps(transfer)
        if index < 0 or transfer.behind < 0 or since_ps <= transfer.start:
            return NONE
        ahead, row = self._tables.transfer(transfer.behind), self._tables.row_of(transfer.behind)
        link, way = self._snapshot.link(index), self._route(ahead)
        if ahead.what not in _NETWORKS or row < 0 or link not in route.links or link not in way.links:
            return NONE
        offset_ps = route.offsets[route.links.index(link)]
        if ahead.start + way.offsets[way.links.index(link)] >= transfer.start + offset_ps:
            return NONE
        free_ps = since_ps + offset_ps
        if not self._chain.floor_ps < free_ps < self._chain.at_ps:
            return NONE
        self._to(free_ps, part, route)
        self._note_hop(row, "link", f"{link.src} → {link.dst}", transfer.start + offset_ps)
        self._enter(row)
        return transfer.behind

    def _go_to_backlog(self, transfer: TransferFields[int], part: PathPart) -> int:
        """Walk over the backlog of a link to the first transfer that waited; return that transfer, or NONE.

        While transfers wait for a link, a later arrival of their bytes would cost nothing: the link is the bottleneck.
        """
        index, route, chain = link_of(transfer.held_by), self._route(transfer), self._chain
        link = self._snapshot.link(index) if index >= 0 else None
        if link is None or link not in route.links:
            return NONE
        hop = route.links.index(link)
        left_ps = min(chain.at_ps, transfer.end - (route.total_overhead_ps - route.offsets[hop]))
        first = self._snapshot.first_of_backlog(route, hop, left_ps)
        if first < 0:
            return NONE
        ahead, row = self._tables.transfer(first), self._tables.row_of(first)
        way = self._route(ahead)
        since_ps = ahead.end - (way.total_overhead_ps - way.offsets[way.links.index(link)])
        if ahead.what not in _NETWORKS or row < 0 or not chain.floor_ps < since_ps < left_ps:
            return NONE
        self._to(left_ps, part, route)
        self._note_hop(row, "link", f"{link.src} → {link.dst}", since_ps)
        self._to(since_ps, PathPart.NETWORK_QUEUE, self._snapshot.busiest_links(route, since_ps, left_ps))
        self._enter(row)
        return first

    def _to(self, when: int, part: PathPart, via: Via) -> None:
        if self._host and part in (PathPart.REQUEST, PathPart.RESPONSE):
            part = PathPart.HOST_TRANSFER
        self._chain.back_to(when, part, self._pe, self._line, via)


def _parts(turn: TurnFields[int]) -> Iterator[tuple[PathPart, int]]:
    """Yield the parts of a memory grant and the begin of each, the last first."""
    begin = turn.start + turn.turning + turn.rows
    yield PathPart.SERVICE, begin + turn.refresh
    yield PathPart.REFRESH, begin
    yield PathPart.ROWS, turn.start + turn.turning
    yield PathPart.TURNAROUND, turn.start
