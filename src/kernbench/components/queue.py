"""A queue of a PE: it writes messages into the ring of its peer, and owns the ring that receives the peer's messages.

The life of a message from queue E of PE a to queue W of PE b, in at most six events::

    event                        what happens                                          what continues
    1 the send takes effect      ``claim`` takes a slot of b, ``send`` its set-up      the kernel on a; without a slot
                                                                                       it waits (``sender``) for event 6
    2 set-up of the DMA ends     the bytes leave for b: ``_put``
    3 the last byte has arrived  the memory of the ring takes it: ``_deliver``         commands that wait for the send
    4 b has decoded it           ``PeIpcq.decode`` counts it                           the kernel on b, if it waits
    5 the receive is due         only if event 4 came before: it takes the message     the kernel on b
      the kernel drops it        no event: ``free`` counts it and notes a credit
    6 the credit arrives         only if a waits for it: ``wake``                      the kernel on a

A change that wakes no component is not an event. A receive and a credit are each due at some instant. Each reserves
in advance its place among the events of that instant (``Clock.reserve``). A later look at that instant finds the
state that an event would have left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from kernbench.common.errors import IpcqError, KernbenchError, KernelError
from kernbench.common.ids import pe_part
from kernbench.common.units import ns_to_ps
from kernbench.common.values import state, value
from kernbench.components.pe_dma import PeDma
from kernbench.components.scoreboard import Scoreboard
from kernbench.core.clock import Clock
from kernbench.core.log import BY_CREDIT, BY_OPERAND, END, LAUNCH, LINE, NONE, ROOT, By, Cause, Kind, Row, pack_row
from kernbench.engine.hooks import QueueEvent, QueueEventKind, SlotReleased
from kernbench.engine.machine import Machine
from kernbench.engine.queues import Credit, QueuePair, SendTotals, UnreceivedMessage, size_error
from kernbench.messages.commands import Command, Operand
from kernbench.messages.fabric import Access, QueueData
from kernbench.messages.requests import OPPOSITE_DIRECTION, IpcqInitMsg, PeCoord, QueueSetup
from kernbench.topology.graph import Node
from kernbench.transport import Port, Route, Transfer
from kernbench.triton_emu.handles import Slot

_CREDIT = int(Kind.CREDIT)  # looked up once, like the reasons of rows
OnReceive: TypeAlias = Callable[[Slot | Exception | None, Row], None]
"""Callback with a message's slot or error, and its row. None for a slot: the message came before the receive was due"""

Sent: TypeAlias = tuple[int, Row, int]
"""A message that was sent: its number, its row in the log, its bytes"""


@value(eq=False, guarded=False)
class Message(QueueData):
    """A message of ``queue`` in flight. ``done(command, sent)`` is called when its last byte is delivered."""

    queue: Queue
    command: Command
    done: Callable[[Command, Row], None]


@state(eq=False)
class PendingReceive:
    """A receive of ``nbytes`` at ``line``, whose message, number ``sequence`` of its queue, is still missing.

    The receive takes effect at ``due_ps``, in ``place`` among the programs of that instant. ``posted``: the kernel
    already has the slot, and continues.
    """

    on_receive: OnReceive
    sequence: int = -1
    nbytes: int = 0
    line: int = 0
    due_ps: int = -1
    place: int = -1
    posted: bool = False

    def is_due(self, clock: Clock) -> bool:
        """Return True if the receive has taken effect, so that the kernel waits for the message."""
        return self.due_ps < clock.time or clock.has_come(self.due_ps, self.place)


@state(eq=False)
class PendingSend:
    """The kernel ``board``, which waits at ``line`` since ``since_ps`` for a slot. ``resume(cause)`` continues it."""

    board: Scoreboard
    line: int
    since_ps: int
    resume: Callable[[Cause], None]


class QueueOwner(Protocol):
    """The part that owns a queue: its place, its times, its DMA, and the queues of other PEs."""

    node: Node
    machine: Machine
    clock: Clock
    coord: PeCoord
    delay_ps: int

    @property
    def dma(self) -> PeDma:
        """The DMA by which messages leave."""
        ...

    def find_peer(self, pe: PeCoord) -> QueueOwner:
        """Return the owner of the queues of another PE."""
        ...

    def find_queue_at(self, pa: int) -> Queue | None:
        """Return the queue that receives at an address, or None."""
        ...

    def find_queue_into(self, rx_base_pa: int) -> Queue | None:
        """Return the queue, also a removed one, that sends into the ring at ``rx_base_pa`` of a peer."""
        ...

    def count_first(self, direction: str) -> SendTotals:
        """Return the totals of queue ``direction``, entered when the queue sends its first message."""
        ...


class Queue(QueuePair):
    """A queue of ``ipcq`` that belongs to an ``installation``; it is ``attached`` until the installation is removed.

    ``receives`` wait for messages, in order; mostly there is only one. These receives and the messages in the ring
    belong to the kernel with the scoreboard ``receiver``. ``sender`` is the kernel that waits for a slot.
    ``poll_ps``: the interval at which a waiting sender looks for a slot; 0: the arrival of a credit wakes the sender.
    ``slot_rows``: the rows of the last messages that arrived in the local slots. Looked up on first use: the peer, the
    reverse queue, which is the peer's queue whose messages arrive in this ring, and the routes to both.
    """

    __slots__ = (
        "_buffer_kind",
        "_channel",
        "_credit_bytes",
        "_credit_name",
        "_credit_ps",
        "_hook",
        "_memory",
        "_part",
        "_peer_direction_id",
        "_peer_ipcq",
        "_peer_slots",
        "_posted_slots",
        "_record_name",
        "_requester",
        "_reverse_queue",
        "_sent",
        "_slots",
        "_totals",
        "_wake_credit",
        "attached",
        "deliver",
        "installation",
        "ipcq",
        "poll_ps",
        "receiver",
        "receives",
        "rows",
        "send_route",
        "sender",
        "slot_rows",
    )

    def __init__(self, ipcq: QueueOwner, setup: QueueSetup, message: IpcqInitMsg) -> None:
        super().__init__(setup, ipcq.clock)
        n, log = setup.n_slots, ipcq.machine.log
        self.ipcq = ipcq
        self.installation = message.installation
        self.poll_ps = ns_to_ps(message.poll_ns) if message.backpressure == "poll" else 0
        self._buffer_kind, self._credit_bytes = message.buffer_kind, message.credit_bytes
        self.attached = True
        self.rows, self._part = log.rows, log.part(ipcq.node.id)
        self._peer_ipcq: QueueOwner | None = None
        self._reverse_queue: Queue | None = None
        self._credit_ps = 0
        # Messages that arrive.
        self.receiver: Scoreboard | None = None
        self.receives: list[PendingReceive] = []
        self._slots: list[Slot | None] = [None] * n
        self._posted_slots: list[Slot | None] = [None] * n
        self.slot_rows = [NONE] * n
        # Messages that leave.
        self.sender: PendingSend | None = None
        self.send_route: tuple[Port, Route] | None = None
        self.deliver: Callable[[QueueData, Transfer], None] = _refuse  # to the memory of the peer's ring
        self._wake_credit: Credit | None = None  # the credit that has an event
        self._memory = ""
        self._channel = ipcq.dma.queue
        self._requester = ipcq.dma.node.id
        self._peer_direction_id = log.intern(setup.peer.direction)
        self._record_name = f"send {setup.direction}"
        self._credit_name = NONE  # in the log
        self._peer_slots: list[tuple[Access, Operand] | None] = [None] * n  # as filled by the last messages
        self._sent: list[Sent | None] = [None] * n  # the last message to each slot of the peer
        self._totals: SendTotals | None = None
        self._hook = ipcq.machine.hooks.queue

    def connect(self) -> QueueOwner:
        """Return the queues of the peer. The first call looks up the peer and the credit time."""
        if self._peer_ipcq is not None:
            return self._peer_ipcq
        ipcq, peer = self.ipcq, self.peer
        machine, base = ipcq.machine, peer.rx_base_pa
        self._memory = "" if base is None else machine.addresses.memory_node(machine.addresses.decode(base))
        peer_ipcq = self._peer_ipcq = ipcq.find_peer(peer.pe)
        # A credit travels back along the route of the message.
        back = OPPOSITE_DIRECTION.get(peer.direction, "")
        via = back.removeprefix("global_") if back.startswith("global_") else None
        self._credit_ps = machine.sideband_ps(self._requester, pe_part(*peer.pe, "pe_dma"), self._credit_bytes, via)
        return peer_ipcq

    def notify(self, kind: QueueEventKind, nbytes: int, sequence: int, row: Row, pa: int) -> None:
        """Notify the listeners of queue events."""
        where = (self.ipcq.coord, kind, self.direction, nbytes, sequence, self.ipcq.clock.time, self.peer.pe, row, pa)
        self._hook.emit(QueueEvent(*where))

    # Events 1 to 3: a message leaves.

    def send(
        self, command: Command, sequence: int, launch: int, cause: Cause, done: Callable[[Command, Row], None]
    ) -> None:
        """Write message ``sequence`` of ``command`` to its slot; call ``done(command, sent)`` when it is delivered.

        The record of the message ends when the message has arrived.
        """
        ipcq, array, at = self.ipcq, command.srcs[0], sequence % self.n_slots
        assert isinstance(array, Operand)
        machine, clock, slot = ipcq.machine, ipcq.clock, self._peer_slots[at]
        if slot is None or slot[1].dtype is not array.dtype or slot[1].shape != array.shape:
            slot = self._peer_slots[at] = self._fill_peer_slot(sequence, array)
        access, filled = slot
        op, nbytes = machine.next_op(), access.row_bytes
        row = machine.recorder.message(self._part, self._record_name, command, filled, clock.time, launch, cause)
        ready_ps, sent = self._channel.post(row, ipcq.delay_ps, self._peer_direction_id, launch, command.line)
        requester, pe, coord = self._requester, self.peer.pe, ipcq.coord
        message = Message(op, 0, requester, access, sequence, pe, coord, row, sent, self, command, done)
        self._sent[at] = (sequence, row, nbytes)
        if self._hook.listeners:
            self.notify("send", nbytes, sequence, row, access.pa)
        totals = self._totals
        if totals is None:
            totals = self._totals = ipcq.count_first(self.direction)
        totals.messages += 1
        totals.nbytes += nbytes
        clock.call_at(ready_ps, _put, message)

    def _fill_peer_slot(self, sequence: int, array: Operand) -> tuple[Access, Operand]:
        """Return the peer's slot for message ``sequence``, filled by ``array``, as an access and as an operand."""
        pa = self.peer_slot_pa(sequence)
        where = self.ipcq.machine.addresses.place_of(pa)
        return Access(pa, array.nbytes), Operand(where.space, where.owner, pa, array.nbytes, array.shape, array.dtype)

    def find_route(self) -> tuple[Port, Route]:
        """Look up and store the port by which messages leave, and the route to the memory of the peer's ring."""
        self.connect()
        machine, port = self.ipcq.machine, self._channel.port
        route = self.send_route = (port, machine.route(port.name, self._memory, self.via_port))
        target = machine.component(self._memory)
        self.deliver = target.write if isinstance(target, PeDma) else target.receive
        return route

    @property
    def has_in_flight(self) -> bool:
        """Return True when a message is in flight to the peer."""
        peer, base = self._peer_ipcq, self.peer.rx_base_pa
        peer_queue = None if peer is None or base is None else peer.find_queue_at(base)
        return peer_queue is not None and peer_queue.arrived < self.my_head

    # Events 4 and 5: a message arrives, and a kernel receives it.

    def post_receive(self, receive: PendingReceive, due_ps: int) -> bool:
        """Let ``receive``, due at ``due_ps``, wait for its message. Return False if the message has already arrived.

        Return False also for an error of the kernel, which is reported when the receive takes effect. A message that
        arrives before ``due_ps`` is announced by None; the receive, once due, takes the message (``slot_of``).
        """
        sequence = self.taken
        if self.peer_head_cache > sequence or self.my_rx_base_pa is None or receive.nbytes > self.slot_size:
            return False
        self.taken = sequence + 1
        receive.sequence = sequence
        receive.due_ps, receive.place = due_ps, self.ipcq.clock.reserve(due_ps)
        self.receives.append(receive)
        return True

    def receive_next(self, receive: PendingReceive) -> Slot | None:
        """Return the slot of the next message. Without a message, return None; ``receive`` gets the slot on arrival.

        Raises KernelError if the message has another size.
        """
        sequence = receive.sequence = self.taken
        self.taken = sequence + 1
        if sequence < self.peer_head_cache:
            return self.slot_of(sequence, receive.nbytes)
        receive.due_ps = -1
        self.receives.append(receive)
        return None

    def receive_ahead(self, nbytes: int, line: int, on_receive: OnReceive) -> Slot:
        """Return the slot of the next message; if that slot is ``pending``, ``on_receive`` reports the arrival."""
        sequence = self.taken
        self.taken = sequence + 1
        if sequence < self.peer_head_cache:
            return self.slot_of(sequence, nbytes)
        self.receives.append(PendingReceive(on_receive, sequence, nbytes, line, posted=True))
        if self._hook.listeners:
            self.notify("recv", 0, sequence, NONE, self.slot_pa(sequence))
        return self._make_posted_slot(sequence)

    def slot_of(self, sequence: int, nbytes: int) -> Slot:
        """Return the slot of message ``sequence``, which has arrived. Raises KernelError if it has another size."""
        slot = self.find_slot(sequence, nbytes)
        if isinstance(slot, Exception):
            raise slot
        return slot

    def find_slot(self, sequence: int, nbytes: int, *, notified: bool = False) -> Slot | KernelError:
        """Return the slot of message ``sequence``, which has arrived, or the error if it has another size.

        ``notified``: listeners have been notified of the receive.
        """
        if self.sizes[sequence] != nbytes:
            return size_error(self.ipcq.node.id, self, sequence, nbytes)
        at = sequence % self.n_slots
        if self._hook.listeners and not notified:
            self.notify("recv", nbytes, sequence, self.slot_rows[at], self.slot_pa(sequence))
        slot = self._slots[at]
        if slot is None:
            slot = self._slots[at] = self._make_slot(sequence, False)
            self.find_reverse()  # raises an error here, not when the slot is freed
        slot.sequence = sequence
        return slot

    def _make_slot(self, sequence: int, pending: bool) -> Slot:
        self.connect()
        pa = self.slot_pa(sequence)
        owner = self.ipcq.machine.addresses.place_of(pa).owner
        return Slot(self.direction, self._buffer_kind, owner, pa, self, sequence, pending)

    def _make_posted_slot(self, sequence: int) -> Slot:
        """Return a slot for a future message. It is a new object each time, as the receive may be cancelled."""
        at = sequence % self.n_slots
        last = self._posted_slots[at]
        if last is None:
            slot = self._make_slot(sequence, True)
        else:
            slot = Slot(last.direction, last.space, last.owner, last.address, self, sequence, True, last.array)
        self._posted_slots[at] = slot
        return slot

    # The kernel drops a message, and event 6: the credit arrives.

    def free(self, slot: Slot, /) -> None:
        """Free ``slot``, which the kernel has dropped, and send a credit to the sender if the tail advances.

        Do nothing if the queue has been removed.
        """
        if not self.attached:
            return
        ipcq, sequence = self.ipcq, slot.sequence
        clock, board = ipcq.clock, self.receiver
        credited: int | None = None
        if self.release(sequence):
            reverse = self._reverse_queue
            if reverse is None or not reverse.attached:
                reverse = self.find_reverse()
            credited = clock.time + self._credit_ps
            reverse.take_credit(credited, self.my_tail, NONE if board is None else board.now)
        hook = ipcq.machine.hooks.slot_released
        if hook.listeners:
            peer = self.peer
            hook.emit(SlotReleased(ipcq.coord, self.direction, sequence, clock.time, peer.pe, peer.direction, credited))

    def find_reverse(self) -> Queue:
        """Return the peer's queue whose messages arrive here, looked up by the address of the ring.

        Raises IpcqError if the peer has no such queue.
        """
        peer = self._peer_ipcq or self.connect()
        assert self.my_rx_base_pa is not None
        reverse = peer.find_queue_into(self.my_rx_base_pa)
        if reverse is None:
            raise IpcqError(f"{peer.node.id}: a credit for the ring at {self.my_rx_base_pa:#x}, which no queue uses")
        self._reverse_queue = reverse
        return reverse

    def take_credit(self, when: int, tail: int, row: Row) -> None:
        """Receive a credit: at ``when`` the peer has freed all slots before ``tail``. ``row`` is the credit's cause."""
        clock = self.ipcq.clock
        self.credits.append((when, clock.reserve(when), tail, row, clock.time))
        if self.sender is not None:
            self._wake_with_next()

    def wait_for_slot(self, board: Scoreboard, line: int, resume: Callable[[Cause], None]) -> None:
        """Call ``resume(cause)`` when the kernel ``board`` at ``line``, which found no slot, may retry."""
        self.sender = PendingSend(board, line, self.ipcq.clock.time, resume)
        self._wake_with_next()

    def _wake_with_next(self) -> None:
        due = self.credits
        if due and due[0] is not self._wake_credit:
            credit = self._wake_credit = due[0]
            self.ipcq.clock.at_place(credit[0], credit[1], WAKE, self)

    def wake(self) -> None:
        """Resume the sender after a credit has arrived: at once, or at the sender's next poll."""
        sender = self.sender
        if sender is None:
            return
        poll_ps, clock = self.poll_ps, self.ipcq.clock
        assert self._wake_credit is not None
        self.sender, row = None, self.log_credit(self._wake_credit)
        if not poll_ps:
            resume = sender.resume
            resume((row, BY_CREDIT))
            return
        waited = -(-(clock.time - sender.since_ps) // poll_ps) * poll_ps
        clock.call_at(sender.since_ps + waited, sender.resume, (row, By.POLL))

    def log_credit(self, credit: Credit) -> Row:
        """Open and close the row of a credit that a kernel has waited for. Return the row."""
        come_ps, _, _, row, given_ps = credit
        rows = self.rows
        launch, line = (rows[row + LAUNCH], rows[row + LINE]) if row >= 0 else (NONE, 0)
        after, by = (row, BY_OPERAND) if row >= 0 else ROOT
        name = self._credit_name
        if name < 0:
            name = self._credit_name = self.ipcq.machine.log.intern(self.direction)
        start, end, opened = given_ps, come_ps, len(rows)
        rows.frombytes(
            pack_row(self._part, _CREDIT, name, launch, line, NONE, NONE, start, start, end, end, after, by, NONE)
        )
        return opened

    @property
    def last_credit(self) -> tuple[Queue, Credit] | None:
        """The last credit of this queue and the queue that receives the credit; None if no credit is in flight."""
        reverse = self._reverse_queue
        return None if reverse is None or not reverse.credits else (reverse, reverse.credits[-1])

    # Messages left in a queue.

    @property
    def pending_messages(self) -> list[UnreceivedMessage]:
        """Messages sent to this queue that no kernel has received, in order, also messages in flight."""
        base = self.my_rx_base_pa
        sender = None if base is None else self.ipcq.find_peer(self.peer.pe).find_queue_into(base)
        return [] if sender is None else [self._describe(sent) for sent in sender.list_sent(self.taken)]

    def list_sent(self, sequence: int) -> list[Sent]:
        """Return the messages sent from number ``sequence`` on. The ring stores all unreceived messages."""
        numbered = [(number, self._sent[number % self.n_slots]) for number in range(sequence, self.my_head)]
        return [sent for number, sent in numbered if sent is not None and sent[0] == number]

    def _describe(self, sent: Sent) -> UnreceivedMessage:
        log, peer, (_, row, nbytes) = self.ipcq.machine.log, self.peer, sent
        launch = self.rows[row + LAUNCH]
        return UnreceivedMessage(
            pe=peer.pe,
            direction=peer.direction,
            peer=self.ipcq.coord,
            peer_direction=self.direction,
            nbytes=nbytes,
            launch=launch,
            kernel=log.kernels.get(launch, ""),
            place=log.place(launch, self.rows[row + LINE], peer.pe),
        )

    def reset(self) -> None:
        """Reset the queue to the state before its first message."""
        super().reset()
        self._sent = [None] * self.n_slots


def _put(message: Message) -> None:
    """Pass a message, whose descriptor is set up, to the transport."""
    queue = message.queue
    port, route = queue.send_route or queue.find_route()
    queue.ipcq.machine.network.post(port, route, message.access.row_bytes, _deliver, message)


def _deliver(transfer: Transfer) -> None:
    """Pass a message, whose last byte has arrived, to the memory of its ring."""
    message = transfer.arg
    assert isinstance(message, Message)
    queue, sent, done = message.queue, message.sent, message.done
    queue.rows[sent + END] = transfer.delivered_ps
    deliver = queue.deliver
    deliver(message, transfer)
    done(message.command, sent)


def _refuse(_: QueueData, transfer: Transfer) -> None:
    raise KernbenchError(f"transfer {transfer.serial} was delivered before it was sent")


WAKE = Queue.wake
