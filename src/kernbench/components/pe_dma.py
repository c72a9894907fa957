"""The DMA of a PE: it runs the descriptors of the PE's kernel, and lets other components access its TCM.

The DMA has two virtual channels, ``compute`` and ``queue``: two ports on the fabric that interleave per packet. Each
channel sets up its descriptors one after another, for ``setup_ns`` each. The transfers of the descriptors overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from kernbench.common.errors import UnsupportedError
from kernbench.common.ids import pe_part
from kernbench.common.values import state
from kernbench.components.initiator import Initiator, Target
from kernbench.components.memory_server import Responder
from kernbench.components.pe_tcm import TCM_BYTES, PeTcm
from kernbench.core.log import BY_QUEUE, BY_SETUP, NONE, By, Cause, Kind, Row, pack_row
from kernbench.di.registry import register
from kernbench.engine.machine import Component, Done, Machine, Outcome
from kernbench.engine.queues import QueuePart
from kernbench.messages.fabric import Access, QueueArrival, QueueData, ReadReply, ReadRequest, WriteAck, WriteData
from kernbench.messages.requests import HostMsg, PeDmaMsg
from kernbench.topology.graph import Node
from kernbench.transport import Transfer

_SEND = int(Kind.SEND)
Begun: TypeAlias = Callable[[int, Cause], Row]
"""Callback with the start time of a descriptor's set-up and its cause; returns the row of the descriptor"""

StartMove: TypeAlias = Callable[[int, Sequence[Target], Callable[[], None]], None]
"""Function of an operation, its accesses, and a callback for the time when all of them are acknowledged"""

Ended: TypeAlias = Callable[[Row], None]
"""Callback with the row of a completed descriptor"""


@state
class _Begun:
    """A descriptor. ``row`` is set once its set-up has begun."""

    row: Row = NONE


class DmaChannel:
    """One virtual channel. It sets up descriptors one at a time, and then reads or writes."""

    __slots__ = ("_clock", "_last", "_part", "_ready_at", "_rows", "_setup_ps", "initiator", "port")

    def __init__(self, dma: PeDma, name: str, setup_ps: int) -> None:
        self._clock = dma.clock
        self._rows = dma.machine.log.rows
        self._part = dma.machine.log.part(dma.node.id)
        self._setup_ps = setup_ps
        self._ready_at = 0
        self._last = _Begun()  # the descriptor whose set-up is last in line
        self.initiator = Initiator(dma, name)
        self.port = dma.machine.network.port(dma.node.id, name)

    def start(
        self,
        op: int,
        reading: bool,
        targets: Sequence[Target],
        begun: Begun,
        done: Ended,
        cause: Cause,
        move: StartMove | None = None,
    ) -> None:
        """Queue a descriptor that is ready after ``cause``. Call ``done(row)`` when all its accesses are acknowledged.

        ``begun(start, cause)`` is called with the start and the cause of the set-up: when the set-up of a write begins,
        or when the set-up of a read ends. ``move`` makes accesses that are neither reads nor writes.
        """
        begin, before = self._clock.time, self._last
        waits = self._ready_at > begin
        begin = self._ready_at if waits else begin
        self._ready_at = begin + self._setup_ps
        move = move or (self.initiator.read if reading else self.initiator.write)
        descriptor = self._last = _Begun()

        def set_up(_: object) -> None:
            descriptor.row = begun(begin, (before.row, BY_SETUP) if waits else cause)

        def go(_: object) -> None:
            if reading:
                set_up(None)
            move(op, targets, lambda: done(descriptor.row))

        if not reading:  # a write reads its source when the set-up begins: only then may listeners look at the source
            if waits:
                self._clock.call_at(begin, set_up)
            else:
                set_up(None)
        self._clock.call_at(self._ready_at, go)

    def post(self, message: Row, after_ps: int, name: int, launch: int, line: int) -> tuple[int, Row]:
        """Queue the descriptor of a message that reaches the DMA in ``after_ps``.

        Return the time in ps when the message can leave by ``port``, and the row of the descriptor. ``name`` is the
        log's number for the direction of the peer's queue. ``launch`` and ``line`` are those of the send.
        """
        rows, begin, after, by = self._rows, self._clock.time + after_ps, message, BY_QUEUE
        if self._ready_at > begin:
            begin, after, by = self._ready_at, self._last.row, BY_SETUP
        self._ready_at = ready_at = begin + self._setup_ps
        row = self._last.row = len(rows)
        rows.frombytes(
            pack_row(self._part, _SEND, name, launch, line, NONE, message, begin, begin, NONE, NONE, after, by, NONE)
        )
        return ready_at, row


@register("builtin.pe_dma", kind="pe_dma")
class PeDma(Component):
    """The DMA of a PE. It moves data between the PE's TCM and any memory, and serves accesses to the TCM."""

    def __init__(self, node: Node, machine: Machine) -> None:
        super().__init__(node, machine)
        setup_ps = machine.spec.pe.dma.setup_ps
        self.compute = DmaChannel(self, "compute", setup_ps)
        self.queue = DmaChannel(self, "queue", setup_ps)
        tcm = machine.part(pe_part(*node.pe_coord, "pe_tcm"), PeTcm)
        self._responder = Responder(
            self,
            reads=tcm.read_port,
            writes=tcm.write_port,
            access_ps=0,
            read_ps=tcm.read_ps,
            write_ps=tcm.write_ps,
            arrived=self._on_message,
        )
        self._ipcq_id = pe_part(*node.pe_coord, "pe_ipcq")

    def start(
        self,
        op: int,
        reading: bool,
        targets: Sequence[Target],
        begun: Begun,
        done: Ended,
        cause: Cause,
        move: StartMove | None = None,
    ) -> None:
        """Queue a descriptor on the channel ``compute``; see ``DmaChannel.start``."""
        self.compute.start(op, reading, targets, begun, done, cause, move)

    def _on_message(self, message: QueueData) -> None:
        # Looked up for the first message; later messages go directly to the queues.
        arrived = self._responder.arrived = self.machine.part(self._ipcq_id, QueuePart).arrived
        arrived(message)

    def counts(self) -> Mapping[str, int]:
        """Return the bytes that accesses of other components and the local descriptors moved in the TCM."""
        served, local = self._responder, self.compute.initiator
        nbytes = served.bytes_read + served.bytes_written + local.bytes_sent + local.bytes_received
        return {**super().counts(), TCM_BYTES: nbytes}

    def check_reach(self, nodes: Iterable[str]) -> None:
        """Raise UnsupportedError if one of the memories at ``nodes`` is the TCM that this DMA serves."""
        if self.node.id in nodes:
            raise UnsupportedError(f"{self.node.id}: a DMA cannot access the TCM of its own PE; use the data in place")

    def receive(self, message: object, transfer: Transfer) -> None:
        """Handle a reply to this DMA, or serve the request of another component for the TCM."""
        match message:
            case ReadReply() | WriteAck():
                self.compute.initiator.on_answer(message)
            case ReadRequest() | WriteData():
                self._responder.take(message, transfer)
            case QueueArrival(data=data):
                self._on_message(data)
            case _:
                super().receive(message, transfer)

    def write(self, message: WriteData, transfer: Transfer) -> None:
        """Write a queue's message, whose ring is in the TCM."""
        self._responder.write(message, transfer)

    def accept(self, msg: HostMsg, done: Done) -> None:
        """Generate the traffic of a PeDmaMsg. Raises UnsupportedError for any other message."""
        if not isinstance(msg, PeDmaMsg):
            super().accept(msg, done)
            return
        traffic = _RawTraffic(self, msg, done)
        for _ in range(min(msg.outstanding, msg.repeat)):
            traffic.start_next(self.machine.log.cause_of(msg.request_id))


@state
class _RawTraffic:
    """The descriptors of one PeDmaMsg: ``issued`` have begun, ``ended`` are complete."""

    dma: PeDma
    msg: PeDmaMsg
    done: Done
    issued: int = 0
    ended: int = 0

    def start_next(self, cause: Cause) -> None:
        """Queue the next descriptor."""
        msg, machine = self.msg, self.dma.machine
        pa = msg.pa + self.issued * msg.stride_bytes
        self.issued += 1
        places = machine.addresses.by_node(((pa, msg.nbytes),))
        self.dma.check_reach([node for node, _ in places])
        targets = [(node, Access(start, nbytes)) for node, (start, nbytes) in places]
        self.dma.start(machine.next_op(), msg.op == "read", targets, self._open_row, self._on_end, cause)

    def _open_row(self, start: int, cause: Cause) -> Row:
        log = self.dma.machine.log
        return log.open(log.part(self.dma.node.id), Kind.RAW, start, cause)

    def _on_end(self, row: Row) -> None:
        self.dma.machine.log.close(row, self.dma.clock.time)
        self.ended += 1
        if self.issued < self.msg.repeat:
            self.start_next((row, By.SLOT))
        elif self.ended == self.msg.repeat:
            self.done(Outcome(last=row))
