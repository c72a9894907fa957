"""What a run tells beside its log, when somebody asks: transfers, turns of memories, links; and both read together.

Nothing is observed unless a ``TraceLog`` is among an engine's observers, and links, memories and queues only
when they are asked for.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeAlias

import numpy as np

from kernbench.common.ids import pe_part
from kernbench.core.clock import NEVER
from kernbench.core.log import END, KIND, LAUNCH, LINE, NONE, WIDTH, Columns, Kind, Row
from kernbench.engine.hooks import MemoryServed
from kernbench.engine.machine import Machine
from kernbench.engine.observer import Observer
from kernbench.messages.control import BarrierArrival, BarrierRelease, CubeOrder, PartOrder, PeOrder, Report, SipOrder
from kernbench.messages.fabric import Access, QueueArrival, QueueData, ReadReply, ReadRequest, WriteAck, WriteData
from kernbench.messages.requests import PeCoord
from kernbench.observe.trace_queues import QueueLog
from kernbench.observe.works import Work, Works
from kernbench.transport import LinkBusy, Transfer

ControlMessage: TypeAlias = PartOrder | SipOrder | CubeOrder | PeOrder | Report | BarrierArrival | BarrierRelease


@dataclass(slots=True, eq=False)
class Exchange:
    """A request to a memory and its answer: one access of an operation. ``asked`` carries a write's data.

    A message of a queue to the TCM of a PE has no answer; from another memory it is the doorbell of that PE.
    """

    node: str
    access: Access
    writing: bool
    asked: Transfer
    answered: Transfer | None = None


@dataclass(slots=True, eq=False)
class Handled:
    """A message of the control path; a CPU works on it from ``begun_ps`` to ``handled_ps``."""

    message: ControlMessage
    transfer: Transfer
    begun_ps: int
    handled_ps: int

    @property
    def src(self) -> str:
        """Who sent it."""
        return self.transfer.port.name

    @property
    def dst(self) -> str:
        """Who got it."""
        return self.transfer.route.links[-1].dst


@dataclass(slots=True)
class TraceLog(Observer):
    """Listens to the hooks of a machine, and keeps what they tell as it comes."""

    links: bool = False
    memories: bool = False
    watch_queues: bool = True
    machine: Machine = field(init=False)
    busy: list[LinkBusy] = field(default_factory=list)
    sent: list[Transfer] = field(default_factory=list)
    served: list[MemoryServed] = field(default_factory=list)
    queues: QueueLog = field(init=False)
    row_of: dict[int, Row] = field(default_factory=dict)  # of an operation
    _seen: Seen | None = None

    def begin(self, machine: Machine) -> None:
        """Listen to ``machine``."""
        self.machine = machine
        hooks = machine.hooks
        hooks.sent.subscribe(self._sent)
        self.queues = QueueLog(machine)
        if self.watch_queues:
            self.queues.watch()
        if self.memories:
            hooks.served.subscribe(self.served.append)
        if self.links:
            machine.network.link_busy.subscribe(self.busy.append)

    def _sent(self, transfer: Transfer) -> None:
        message = transfer.arg
        self.sent.append(transfer)
        if isinstance(message, QueueData):
            self.row_of[message.op] = message.row
        elif isinstance(message, ReadRequest | WriteData) and message.op not in self.row_of:
            self.row_of[message.op] = self.machine.recorder.row_of(message.op)

    @property
    def seen(self) -> Seen:
        """What all of it says by now."""
        state = len(self.machine.log.rows), self.machine.clock.n_events
        if self._seen is None or self._seen.state != state:
            self._seen = Seen(self, state)
        return self._seen


class Seen:
    """The log of a machine and what was observed beside it, as they are at one time (``state``).

    ``exchanges``, one for each part, and ``turns_of`` go by operation. Operations are those of DMAs: ``op_of`` has the
    one that a row is about, ``send_of`` the row of a message on its way.
    """

    def __init__(self, log: TraceLog, state: tuple[int, int]) -> None:
        self.state = state
        self.machine = log.machine
        self.columns: Columns = log.machine.log.columns()
        self.works = Works(log.machine.log, self.columns)
        self.exchanges: dict[int, list[Exchange]] = {}
        self.turns_of: dict[int, list[MemoryServed]] = {}
        self.send_of: dict[Row, Row] = {}
        self.op_of = {row: op for op, row in log.row_of.items() if row >= 0}
        self._ops_of: dict[int, list[int]] = {}
        self._control: list[tuple[ControlMessage, Transfer]] = []
        self._ordered: dict[Row, int] = {}
        self._by_injection = sorted(log.sent, key=_injection)
        self.pes = [self._pe(name) for name in self.columns.parts]
        self._take_transfers(log.sent)
        self._take_turns(log.served)
        self._take_rows()

    def _pe(self, part: str) -> PeCoord | None:
        node = self.machine.graph.node(part)
        return None if node.sip is None or node.cube is None or node.pe is None else (node.sip, node.cube, node.pe)

    def _take_transfers(self, sent: Iterable[Transfer]) -> None:
        exchanges = self.exchanges
        for transfer in sent:
            message = transfer.arg
            match message:
                case ReadRequest() | WriteData():
                    node = transfer.route.links[-1].dst
                    exchange = Exchange(node, message.access, isinstance(message, WriteData), transfer)
                    exchanges.setdefault(message.op, []).append(exchange)
                    if isinstance(message, QueueData):
                        self.op_of[message.sent] = message.op
                        self.send_of[message.row] = message.sent
                case ReadReply() | WriteAck():
                    exchanges[message.op][message.part].answered = transfer
                case QueueArrival(data=data):
                    exchanges[data.op][data.part].answered = transfer
                case (
                    PartOrder() | SipOrder() | CubeOrder() | PeOrder() | Report() | BarrierArrival() | BarrierRelease()
                ):
                    self._control.append((message, transfer))
                case _:  # messages of parts that nobody here knows are links' traffic only
                    pass

    def _take_turns(self, served: Iterable[MemoryServed]) -> None:
        """A turn cuts the one before it, which was announced with the end it would have had."""
        last: dict[tuple[str, bool], int] = {}
        dmas = {name for name in self.columns.parts if self.machine.graph.node(name).kind == "pe_dma"}
        turns = list(served)
        for at, turn in enumerate(turns):
            # The ports of the TCM behind a DMA work side by side.
            server = turn.node, turn.writing and turn.node in dmas
            before = last.get(server, -1)
            last[server] = at
            if before >= 0 and turns[before].end_ps > turn.start_ps:
                cut = turns[before]
                turns[before] = cut._replace(end_ps=max(cut.start_ps, turn.start_ps))
        for turn in turns:
            self.turns_of.setdefault(turn.op, []).append(turn)

    def _take_rows(self) -> None:
        """What CPUs issued, and when orders were at the last PE of a SIP."""
        columns, rows = self.columns, self.machine.log.rows
        issues = np.flatnonzero(columns.kind == Kind.ISSUE)
        self._issues = issues[np.argsort(columns.part[issues], kind="stable")]
        self._issuers = columns.part[self._issues]
        orders = (columns.what == self.machine.log.named(PeOrder.__name__)) & (columns.kind == Kind.CONTROL)
        for n in np.flatnonzero(orders).tolist():
            first = int(columns.cause[columns.cause[n]]) * WIDTH
            self._ordered[first] = max(self._ordered.get(first, 0), int(columns.end[n]))
        for row, op in self.op_of.items():
            if op in self.exchanges and rows[row + KIND] != Kind.SEND:
                self._ops_of.setdefault(rows[row + LAUNCH], []).append(op)

    def ops_of(self, launch_id: int) -> Iterable[int]:
        """The operations of a launch that accessed memory."""
        return self._ops_of.get(launch_id, ())

    def issue_before(self, pe: PeCoord, row: Row, line: int | None = None) -> Row:
        """What the CPU of a PE issued last before ``row`` was opened, for ``line`` if one is given; NONE: nothing."""
        log = self.machine.log
        part = log.part(pe_part(*pe, "pe_cpu"))
        low, high = np.searchsorted(self._issuers, (part, part + 1))
        given = self._issues[low:high]
        at = int(np.searchsorted(given, row // WIDTH)) - 1
        while line is not None and at >= 0 and log.rows[int(given[at]) * WIDTH + LINE] != line:
            at -= 1
        return int(given[at]) * WIDTH if at >= 0 else NONE

    def ordered_by(self, row: Row) -> int:
        """When the last PE of a SIP had the order that ``row`` brought there."""
        return self._ordered.get(row, self.machine.log.rows[row + END])

    def each_work(self) -> Iterator[Work]:
        """What engines did, one after another."""
        return self.works.each(self.pes)

    @property
    def turns(self) -> Iterator[MemoryServed]:
        """Those of all operations."""
        return chain.from_iterable(self.turns_of.values())

    def injected_between(self, start_ps: int, end_ps: int) -> list[Transfer]:
        """The transfers that were injected from one time up to another."""
        first = bisect_left(self._by_injection, start_ps, key=_injection)
        return self._by_injection[first : bisect_right(self._by_injection, end_ps, key=_injection)]

    def control(self) -> list[Handled]:
        """The messages of the control path that have been handled, in that order."""
        free_at: dict[str, int] = {}
        found: list[Handled] = []
        delivered = [each for each in self._control if each[1].delivered_ps < NEVER]
        # CPUs take messages in the order of delivery, which at one instant is that of the last links.
        for message, transfer in sorted(delivered, key=lambda each: _delivery(each[1])):
            node = transfer.route.links[-1].dst
            part = self.machine.component(node)
            begun = max(free_at.get(node, 0), transfer.delivered_ps) if part.handles_serially else transfer.delivered_ps
            handled = begun + (part.overhead_ps if part.handles_serially else 0)
            if part.node.is_extra:  # it takes its time
                handled = self.machine.log.rows[transfer.row + END]
                if handled < 0:
                    continue
            free_at[node] = handled
            found.append(Handled(message, transfer, begun, handled))
        return found


def _injection(transfer: Transfer) -> int:
    return transfer.injected_ps


def _delivery(transfer: Transfer) -> tuple[int, int, int]:
    return transfer.delivered_ps, transfer.route.links[-1].index, transfer.serial
