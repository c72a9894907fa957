"""What happened in a run, as far as hooks tell: the raw material of traces and of critical paths.

Nothing is observed unless a ``TraceLog`` is made, and links and memories only when they are asked for.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeAlias

from kernbench.core.clock import NEVER
from kernbench.engine.hooks import (
    Issued,
    MemoryServed,
    Moved,
    OpEnded,
    OpStarted,
    Ordered,
    Queued,
    QueueEvent,
    QueueWaited,
    Sent,
    StageEnded,
    Streamed,
    TileMoved,
)
from kernbench.engine.machine import Machine
from kernbench.messages.commands import (
    Command,
    DotCommand,
    GemmComposite,
    LoadCommand,
    MathCommand,
    MathComposite,
    SendCommand,
    StoreCommand,
)
from kernbench.messages.control import BarrierArrival, BarrierRelease, CubeOrder, PeOrder, Report, SipOrder
from kernbench.messages.fabric import Access, QueueArrival, ReadReply, ReadRequest, WriteAck, WriteData
from kernbench.messages.requests import PeCoord
from kernbench.observe.statistics import ENGINE_OF
from kernbench.observe.trace_queues import QueueLog, Took
from kernbench.transport import LinkBusy, Transfer

PLAN = "scheduler"
"""The engine of a dot or a composite as a whole: its tiles are works of their own."""
OTHER = "other"
"""The engine of a command that nobody here knows."""
Action: TypeAlias = Issued | Took | QueueWaited
"""What a program spends time on by itself: it issues a command or a receive, or waits for a queue."""
ControlMessage = SipOrder | CubeOrder | PeOrder | Report | BarrierArrival | BarrierRelease


@dataclass(slots=True, eq=False)
class Work:
    """What an engine of a PE did from ``start_ps`` to ``end_ps`` (NEVER while it is under way).

    A command of a kernel has its ``serial`` and the serials ``after`` which it could start; a stage or a transfer of a
    ``tile`` has the ``whole`` it is a part of.
    """

    op: int
    engine: str
    name: str
    node: str
    pe: PeCoord
    start_ps: int
    end_ps: int = NEVER
    kernel: str = ""
    launch_id: int = -1
    line: int = 0
    serial: int = -1
    after: tuple[int, ...] = ()
    tile: tuple[int, ...] | None = None
    whole: Work | None = None


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
class Turn:
    """A memory works on operation ``op`` from ``start_ps`` to ``end_ps``."""

    node: str
    op: int
    writing: bool
    start_ps: int
    end_ps: int


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
class TraceLog:
    """Subscribes to the hooks of ``machine`` when it is made; everything is in the order in which it was reported.

    ``works_of`` and ``issued_of`` go by launch, ``actions_of`` by PE; ``exchanges``, one for each part, and
    ``turns_of`` by operation; ``ordered``, what a command waited for last because of its bytes, by PE, launch and
    serial.
    ``turns_of`` and ``busy`` stay empty unless ``memories`` and ``links`` are observed.
    """

    machine: Machine
    links: bool = False
    memories: bool = False
    works_of: dict[int, list[Work]] = field(default_factory=dict)
    issued_of: dict[int, list[Issued]] = field(default_factory=dict)
    actions_of: dict[PeCoord, list[Action]] = field(default_factory=dict)
    ordered: dict[tuple[PeCoord, int, int], Ordered] = field(default_factory=dict)
    exchanges: dict[int, list[Exchange]] = field(default_factory=dict)
    turns_of: dict[int, list[Turn]] = field(default_factory=dict)
    busy: list[LinkBusy] = field(default_factory=list)
    sent: list[Transfer] = field(default_factory=list)
    queues: QueueLog = field(init=False)
    _control: list[tuple[ControlMessage, Transfer]] = field(default_factory=list)
    _by_injection: list[Transfer] = field(default_factory=list)
    _open: dict[int, Work] = field(default_factory=dict)
    _turn_of: dict[tuple[str, bool], Turn] = field(default_factory=dict)

    def __post_init__(self) -> None:
        hooks = self.machine.hooks
        self.queues = QueueLog(self.machine)
        hooks.queue.subscribe(self._took)
        hooks.queue_waited.subscribe(self._waited)
        hooks.op_started.subscribe(self._started)
        hooks.op_ended.subscribe(self._ended)
        hooks.stage_ended.subscribe(self._stage)
        hooks.issued.subscribe(self._issued)
        hooks.ordered.subscribe(self._ordered)
        hooks.sent.subscribe(self._sent)
        if self.memories:
            hooks.served.subscribe(self._served)
        if self.links:
            self.machine.network.link_busy.subscribe(self.busy.append)

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
            free_at[node] = handled
            found.append(Handled(message, transfer, begun, handled))
        return found

    @property
    def works(self) -> Iterator[Work]:
        """Those of all launches."""
        return chain.from_iterable(self.works_of.values())

    @property
    def issued(self) -> Iterator[Issued]:
        """The commands of all launches."""
        return chain.from_iterable(self.issued_of.values())

    @property
    def turns(self) -> Iterator[Turn]:
        """Those of all operations."""
        return chain.from_iterable(self.turns_of.values())

    def injected_between(self, start_ps: int, end_ps: int) -> list[Transfer]:
        """The transfers that were injected from one time up to another."""
        if len(self._by_injection) < len(self.sent):
            self._by_injection = sorted(self.sent, key=_injection)
        first = bisect_left(self._by_injection, start_ps, key=_injection)
        return self._by_injection[first : bisect_right(self._by_injection, end_ps, key=_injection)]

    def _note(self, work: Work) -> None:
        self.works_of.setdefault(work.launch_id, []).append(work)

    def _issued(self, event: Issued) -> None:
        self.issued_of.setdefault(event.launch_id, []).append(event)
        self.actions_of.setdefault(event.pe, []).append(event)

    def _took(self, event: QueueEvent) -> None:
        if event.kind == "recv":
            self.actions_of.setdefault(event.pe, []).append(Took(event.pe, event.time_ps))

    def _waited(self, event: QueueWaited) -> None:
        self.actions_of.setdefault(event.pe, []).append(event)

    def _ordered(self, event: Ordered) -> None:
        self.ordered[event.pe, event.launch_id, event.command.serial] = event

    def _started(self, event: OpStarted) -> None:
        if event.pe is None:  # the host's: its requests say it
            return
        what = event.what
        if isinstance(what, Queued):
            self.queues.begun(event, what)
        made = self._of_tile(event, what) if isinstance(what, TileMoved) else _of_command(event)
        self._note(made)
        self._open[event.op] = made

    def _of_tile(self, event: OpStarted, moved: TileMoved) -> Work:
        whole = self._open.get(moved.parent)
        assert event.pe is not None
        engine = ENGINE_OF["dma_read" if moved.reading else "dma_write"]
        made = Work(event.op, engine, moved.operand, event.component, event.pe, event.start_ps, tile=moved.tile)
        return _part_of(whole, made)

    def _ended(self, event: OpEnded) -> None:
        work = self._open.pop(event.op, None)
        if work is not None:
            work.end_ps = event.time_ps
        self.queues.ended(event.op)

    def _stage(self, event: StageEnded) -> None:
        whole = self._open.get(event.op)
        if whole is None:
            return
        made = Work(event.op, ENGINE_OF[event.stage], "tile", event.component, whole.pe, event.start_ps, event.end_ps)
        made.tile = event.tile
        self._note(_part_of(whole, made))

    def _served(self, event: MemoryServed) -> None:
        """A turn; it cuts the one before it, which was announced with the end it would have had."""
        # The ports of the TCM behind a DMA work side by side.
        server = event.node, event.writing and self.machine.graph.node(event.node).kind == "pe_dma"
        before = self._turn_of.get(server)
        if before is not None:
            before.end_ps = max(before.start_ps, min(before.end_ps, event.start_ps))
        turn = Turn(event.node, event.op, event.writing, event.start_ps, event.end_ps)
        self._turn_of[server] = turn
        self.turns_of.setdefault(event.op, []).append(turn)

    def _sent(self, event: Sent) -> None:
        message, transfer = event.message, event.transfer
        self.sent.append(transfer)
        match message:
            case ReadRequest() | WriteData():
                node = transfer.route.links[-1].dst
                exchange = Exchange(node, message.access, isinstance(message, WriteData), transfer)
                self.exchanges.setdefault(message.op, []).append(exchange)
            case ReadReply() | WriteAck():
                self.exchanges[message.op][message.part].answered = transfer
            case QueueArrival(data=data):
                self.exchanges[data.op][data.part].answered = transfer
            case SipOrder() | CubeOrder() | PeOrder() | Report() | BarrierArrival() | BarrierRelease():
                self._control.append((message, transfer))
            case _:  # messages of parts that nobody here knows are links' traffic only
                pass


def _injection(transfer: Transfer) -> int:
    return transfer.injected_ps


def _delivery(transfer: Transfer) -> tuple[int, int, int]:
    return transfer.delivered_ps, transfer.route.links[-1].index, transfer.serial


def _part_of(whole: Work | None, made: Work) -> Work:
    """``made`` with the kernel, launch and line of what it is a part of."""
    if whole is not None:
        made.whole, made.kernel, made.launch_id, made.line = whole, whole.kernel, whole.launch_id, whole.line
    return made


def _of_command(event: OpStarted) -> Work:
    assert event.pe is not None
    what = event.what.what if isinstance(event.what, Moved | Streamed | Queued) else event.what
    engine, name = _engine_and_name(what)
    made = Work(event.op, engine, name, event.component, event.pe, event.start_ps)
    made.kernel, made.launch_id = event.kernel, event.launch_id
    if isinstance(what, Command):
        made.line, made.serial, made.after = what.line, what.serial, what.after
    return made


def _engine_and_name(what: object) -> tuple[str, str]:
    match what:
        case LoadCommand():
            found = ENGINE_OF["dma_read"], "load"
        case StoreCommand():
            found = ENGINE_OF["dma_write"], "store"
        case MathCommand():
            found = ENGINE_OF["math"], what.operator
        case SendCommand():
            found = ENGINE_OF["ipcq_copy"], f"send {what.direction}"
        case DotCommand():
            found = PLAN, "dot"
        case GemmComposite():
            found = PLAN, "gemm composite"
        case MathComposite():
            found = PLAN, f"{what.operator} composite"
        case _:
            found = OTHER, type(what).__name__.removesuffix("Command").lower()
    return found
