"""A queue of a PE at work: its pair, its ways through the machine, who waits at it; and what a PE's queues share."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import TypeAlias

from kernbench.common.errors import IpcqError, KernbenchError
from kernbench.common.ids import pe_part
from kernbench.common.values import value
from kernbench.components.pe_dma import PeDma
from kernbench.components.queue_waits import Awaited, Blocked, SlotPlace
from kernbench.components.scoreboard import Scoreboard
from kernbench.core.log import BY_CREDIT, BY_OPERAND, END, LAUNCH, LINE, NONE, ROOT, By, Cause, Kind, Row
from kernbench.engine.hooks import QueueEvent, QueueEventKind, SlotReleased
from kernbench.engine.machine import Machine
from kernbench.engine.queue_state import Carried, Credit, QueuePair, QueuePart, UnreceivedMessage
from kernbench.messages.commands import Command, Operand
from kernbench.messages.fabric import Access, QueueData
from kernbench.messages.requests import OPPOSITE_DIRECTION, PeCoord
from kernbench.topology.graph import Node
from kernbench.transport import Port, Route, Transfer
from kernbench.triton_emu.handles import ReceivedSlot

_CREDIT = int(Kind.CREDIT)  # found once, as the reasons of rows
Sent: TypeAlias = tuple[int, Row, int]
"""A message that was sent: its number, its row in the log, its bytes"""


@value(eq=False, guarded=False)
class Posting(QueueData):
    """A message on its way.

    ``done(command, sent)`` is called when its last byte is delivered.
    """

    lane: Lane
    command: Command
    done: Callable[[Command, Row], None]


class Lane:
    """Queue ``pair`` of ``ipcq``: the home of its own slots, and the way to those of its peer.

    A credit is no event, unless a sender waits for it.
    """

    __slots__ = (
        "_blocked",
        "_ipcq",
        "_mate",
        "_memory",
        "_places",
        "_posted_slots",
        "_put",
        "_queue",
        "_sent",
        "_slots",
        "_there",
        "_way",
        "_what_credit",
        "_woken_by",
        "_woken_in",
        "coord",
        "credit_ps",
        "deliver",
        "installation",
        "installed",
        "pair",
        "part",
        "peer",
        "peer_pe",
        "posted",
        "record_name",
        "requester",
        "rows",
        "sender",
        "slot_rows",
    )

    def __init__(self, ipcq: QueueSite, pair: QueuePair, installation: int) -> None:
        self.pair = pair
        self.installation = installation
        self.posted: list[Awaited] = []  # in order; mostly one
        self.slot_rows = [NONE] * pair.n_slots  # the records of what has come last to each of its own slots
        log = ipcq.machine.log
        self.rows, self.part = log.rows, log.part(ipcq.node.id)
        self.installed = True
        self._put = self.put
        self.coord = ipcq.coord
        self.peer_pe = pair.peer.pe
        self.sender = ipcq.node.id
        self.record_name = f"send {pair.direction}"
        self.requester = ipcq.dma.node.id
        self._there = log.named(pair.peer.direction)
        self.peer: QueueSite | None = None
        self.credit_ps = 0
        self.deliver: Callable[[QueueData, Transfer], None] = _nowhere  # to what the peer's ring lies in
        self._ipcq = ipcq
        self._queue = ipcq.dma.queue
        self._mate: Lane | None = None
        self._places: list[SlotPlace | None] = [None] * pair.n_slots
        self._slots: list[ReceivedSlot | None] = [None] * pair.n_slots
        self._posted_slots: list[ReceivedSlot | None] = [None] * pair.n_slots  # the last one of a posted receive
        self._sent: list[Sent | None] = [None] * pair.n_slots  # last, to each slot of the peer
        self._memory = ""
        self._way: tuple[Port, Route] | None = None
        self._blocked: Blocked | None = None
        self._woken_in = -1
        self._woken_by: Credit | None = None
        self._what_credit = NONE  # what its rows are about

    def connect(self) -> QueueSite:
        """The peer, found when it is first needed, with the memory of its ring and the way of a credit."""
        if self.peer is not None:
            return self.peer
        ipcq, peer = self._ipcq, self.pair.peer
        machine, base = ipcq.machine, peer.rx_base_pa
        self._memory = "" if base is None else machine.addresses.memory_node(machine.addresses.decode(base))
        found = self.peer = machine.part(pe_part(*peer.pe, "pe_ipcq"), type(ipcq))
        # A credit goes back the way that the message came.
        back = OPPOSITE_DIRECTION.get(peer.direction, "")
        via = back.removeprefix("global_") if back.startswith("global_") else None
        there = pe_part(*peer.pe, "pe_dma")
        self.credit_ps = machine.sideband_ps(ipcq.dma.node.id, there, ipcq.credit_bytes, via)
        return found

    def slot(self, sequence: int) -> ReceivedSlot:
        """The slot of message ``sequence`` of the own ring."""
        at = sequence % self.pair.n_slots
        found = self._slots[at]
        if found is None:
            found = self._slots[at] = self._make_slot(sequence, False)
            self._find_mate()  # an error there is to come out here, not when the slot goes back
        found.sequence = sequence
        return found

    def posted_slot(self, sequence: int) -> ReceivedSlot:
        """The same for a message that is yet to come: a slot of its own each time, as the receive may be given up."""
        at = sequence % self.pair.n_slots
        last = self._posted_slots[at]
        if last is None:
            found = self._make_slot(sequence, True)
        else:
            found = ReceivedSlot(last.direction, last.space, last.owner, last.address, self, sequence, True, last.array)
        self._posted_slots[at] = found
        return found

    def _make_slot(self, sequence: int, pending: bool) -> ReceivedSlot:
        self.connect()
        pa = self.pair.slot_pa(sequence)
        owner = self._ipcq.machine.addresses.place_of(pa).owner
        return ReceivedSlot(self.pair.direction, self._ipcq.buffer_kind, owner, pa, self, sequence, pending)

    def _place(self, sequence: int, array: Operand) -> SlotPlace:
        """The peer's slot for message ``sequence`` as ``array`` fills it, kept for the next ones that are alike."""
        pa = self.pair.peer_slot_pa(sequence)
        where = self._ipcq.machine.addresses.place_of(pa)
        slot = Operand(where.space, where.owner, pa, array.nbytes, array.shape, array.dtype)
        made = self._places[sequence % self.pair.n_slots] = SlotPlace(Access(pa, array.nbytes), slot)
        return made

    def send(
        self, command: Command, sequence: int, launch: int, cause: Cause, done: Callable[[Command, Row], None]
    ) -> None:
        """Write message ``sequence`` of ``command`` to its slot: ``done(command, sent)`` when its bytes have left.

        Its record ends when the message has arrived.
        """
        pair, ipcq, array = self.pair, self._ipcq, command.srcs[0]
        assert isinstance(array, Operand)
        machine, place = ipcq.machine, self._places[sequence % pair.n_slots]
        if place is None or place.slot.dtype is not array.dtype or place.slot.shape != array.shape:
            place = self._place(sequence, array)
        access, op = place.access, machine.next_op()
        row = machine.recorder.message(self.part, self.record_name, command, place.slot, ipcq.clock.time, launch, cause)
        ready_ps, sent = self._queue.post(row, ipcq.delay_ps, self._there, launch, command.line)
        posting = Posting(
            op, 0, self.requester, access, sequence, self.peer_pe, self.coord, row, sent, self, command, done
        )
        nbytes = access.row_bytes
        self._sent[sequence % pair.n_slots] = (sequence, row, nbytes)
        if machine.hooks.queue.listeners:
            ipcq.tell("send", pair, nbytes, sequence, row, access.pa)
        if not pair.sent:
            ipcq.note_first(pair.direction)
        pair.sent += 1
        pair.sent_bytes += nbytes
        ipcq.clock.call_at(ready_ps, self._put, posting)

    def put(self, posting: Posting) -> None:
        """The descriptor of a message is set up: it goes to the peer's slot."""
        way = self._way
        if way is None:
            self.connect()
            machine, port = self._ipcq.machine, self._queue.port
            way = self._way = (port, machine.route(port.name, self._memory, self.pair.via_port))
            target = machine.component(self._memory)
            self.deliver = target.write if isinstance(target, PeDma) else target.receive
        port, route = way
        machine, nbytes = self._ipcq.machine, posting.access.row_bytes
        machine.network.post(port, route, nbytes, _delivered, posting)

    def free(self, slot: ReceivedSlot, /) -> None:
        """The kernel has done with ``slot``: when the tail moves on, a credit goes back on the fast path.

        Nothing happens when the queue has been removed.
        """
        if not self.installed:
            return
        ipcq, pair, sequence = self._ipcq, self.pair, slot.sequence
        clock, board = ipcq.clock, ipcq.board
        credited: int | None = None
        if pair.release(sequence):
            mate = self._mate
            if mate is None or not mate.installed:
                mate = self._find_mate()
            credited = clock.time + self.credit_ps
            mate.credit(credited, pair.my_tail, NONE if board is None else board.now)
        hook = ipcq.machine.hooks.slot_released
        if hook.listeners:
            there = pair.peer
            hook.emit(
                SlotReleased(ipcq.coord, pair.direction, sequence, clock.time, there.pe, there.direction, credited)
            )

    def _find_mate(self) -> Lane:
        """The queue of the peer whose messages come here: a credit goes by the address of the ring."""
        peer = self.peer or self.connect()
        assert self.pair.my_rx_base_pa is not None
        mate = self._mate = peer.lane_into(self.pair.my_rx_base_pa)
        return mate

    @property
    def is_sending(self) -> bool:
        """Whether a message is on its way to the peer."""
        peer, base = self.peer, self.pair.peer.rx_base_pa
        there = None if peer is None or base is None else peer.lane_at(base)
        return there is not None and there.pair.arrived < self.pair.my_head

    @property
    def unreceived(self) -> list[UnreceivedMessage]:
        """What was sent here and no kernel has received, in order; it may be on its way yet."""
        base, peer = self.pair.my_rx_base_pa, self.pair.peer
        if base is None:
            return []
        sender = self._ipcq.machine.part(pe_part(*peer.pe, "pe_ipcq"), QueueSite).sender_into(base)
        return [] if sender is None else [self._described(each) for each in sender.sent_from(self.pair.taken)]

    def sent_from(self, sequence: int) -> list[Sent]:
        """The messages from number ``sequence`` on that it has sent: the ring holds all that are not received."""
        found = [(each, self._sent[each % self.pair.n_slots]) for each in range(sequence, self.pair.my_head)]
        return [sent for each, sent in found if sent is not None and sent[0] == each]

    def reset(self) -> None:
        """Begin anew: nothing was ever sent or received."""
        self.pair.reset()
        self._sent = [None] * self.pair.n_slots

    def _described(self, sent: Sent) -> UnreceivedMessage:
        log, peer, (_, row, nbytes) = self._ipcq.machine.log, self.pair.peer, sent
        launch = self.rows[row + LAUNCH]
        return UnreceivedMessage(
            pe=peer.pe,
            direction=peer.direction,
            peer=self.coord,
            there=self.pair.direction,
            nbytes=nbytes,
            launch=launch,
            kernel=log.kernels.get(launch, ""),
            place=log.place(launch, self.rows[row + LINE], peer.pe),
        )

    @property
    def last_credit(self) -> Credit | None:
        """The last credit that was given here, while it is on its way."""
        under_way = () if self._mate is None else self._mate.pair.credits
        return under_way[-1] if under_way else None

    def log_credit(self, credit: Credit) -> Row:
        """The row of a credit that somebody has waited for."""
        come_ps, _, _, row, given_ps = credit
        rows = self.rows
        launch, line = (rows[row + LAUNCH], rows[row + LINE]) if row >= 0 else (NONE, 0)
        after, by = (row, BY_OPERAND) if row >= 0 else ROOT
        what = self._what_credit
        if what < 0:
            what = self._what_credit = self._ipcq.machine.log.named(self.pair.direction)
        start, end, opened = given_ps, come_ps, len(rows)
        rows += (self.part, _CREDIT, what, launch, line, NONE, NONE, start, start, end, end, after, by, NONE)
        return opened

    def credit(self, when: int, tail: int, row: Row) -> None:
        """At ``when`` it will be known here that the peer released, as ``row`` ended, all messages before ``tail``."""
        clock = self._ipcq.clock
        self.pair.credits.append((when, clock.reserve(when), tail, row, clock.time))
        if self._blocked is not None:
            self._wake_with_next()

    def when_free(self, line: int, free: Callable[[Cause], None]) -> None:
        """Call ``free(cause)`` when a kernel that found no slot may send: woken by the credit, or looking again."""
        self._blocked = Blocked(line, self._ipcq.clock.time, free)
        self._wake_with_next()

    def _wake_with_next(self) -> None:
        due = self.pair.credits
        if due and due[0][1] != self._woken_in:
            self._woken_by = due[0]
            when, self._woken_in = due[0][:2]
            self._ipcq.clock.at_place(when, self._woken_in, WAKE, self)

    def wake(self) -> None:
        """A credit has come that the kernel may be waiting for."""
        blocked = self._blocked
        if blocked is None:
            return
        poll_ps, clock = self._ipcq.poll_ps, self._ipcq.clock
        assert self._woken_by is not None
        self._blocked, row = None, self.log_credit(self._woken_by)
        if not poll_ps:
            free = blocked.free
            free((row, BY_CREDIT))
            return
        waited = -(-(clock.time - blocked.since_ps) // poll_ps) * poll_ps
        clock.call_at(blocked.since_ps + waited, blocked.free, (row, By.POLL))

    @property
    def blocked_at(self) -> int | None:
        """The line where the kernel waits for a slot."""
        return None if self._blocked is None else self._blocked.line

    def forget_waits(self) -> None:
        """Nobody waits for a slot any more."""
        self._blocked = None


class QueueSite(QueuePart):
    """What the queues of a PE have in common, and how they find each other."""

    def __init__(self, node: Node, machine: Machine) -> None:
        super().__init__(node, machine)
        self.coord: PeCoord = node.pe_coord
        self.delay_ps = self.overhead_ps
        self.poll_ps = 0
        self.credit_bytes = 0
        self.board: Scoreboard | None = None  # of the kernel that uses them
        self._by_ring: list[tuple[int, Lane]] = []  # those that receive, by where their rings begin
        self._starts: list[int] = []
        self._by_peer_ring: dict[int, Lane] = {}
        self._carried: dict[str, Carried] = {}  # by queues as they were before they were removed or emptied
        self._dma: PeDma | None = None

    @property
    def now(self) -> Row:
        """The row after whose end the PE does what it does."""
        return NONE if self.board is None else self.board.now

    @property
    def dma(self) -> PeDma:
        """The DMA that its messages leave by."""
        if self._dma is None:
            self._dma = self.machine.part(pe_part(*self.coord, "pe_dma"), PeDma)
        return self._dma

    def note_first(self, direction: str) -> None:
        """Queue ``direction`` sends its first message."""
        self._carried.setdefault(direction, Carried())

    def tell(self, kind: QueueEventKind, pair: QueuePair, nbytes: int, sequence: int, row: Row, pa: int) -> None:
        """Tell who listens to queues."""
        where = (self.coord, kind, pair.direction, nbytes, sequence, self.clock.time, pair.peer.pe, row, pa)
        self.machine.hooks.queue.emit(QueueEvent(*where))

    def lane_at(self, pa: int) -> Lane | None:
        """The queue that receives at an address."""
        found = bisect_right(self._starts, pa) - 1
        if found < 0:
            return None
        base, lane = self._by_ring[found]
        return lane if pa < base + lane.pair.nbytes else None

    def lane_into(self, rx_base_pa: int) -> Lane:
        """The queue that sends into the ring at ``rx_base_pa`` of a peer. IpcqError when there is none."""
        lane = self.sender_into(rx_base_pa)
        if lane is None:
            raise IpcqError(f"{self.node.id}: a credit for the ring at {rx_base_pa:#x}, which no queue uses")
        return lane

    def sender_into(self, rx_base_pa: int) -> Lane | None:
        """The queue that sends, or sent until it was removed, into the ring at ``rx_base_pa`` of a peer."""
        return self._by_peer_ring.get(rx_base_pa)

    def index(self, lanes: list[Lane]) -> None:
        """From now on these are the queues."""
        receiving = [(lane.pair.my_rx_base_pa, lane) for lane in lanes if lane.pair.my_rx_base_pa is not None]
        self._by_ring = sorted(receiving, key=lambda ring: ring[0])
        self._starts = [start for start, _ in self._by_ring]
        self._by_peer_ring = {
            lane.pair.peer.rx_base_pa: lane for lane in reversed(lanes) if lane.pair.peer.rx_base_pa is not None
        }


def _nowhere(_: QueueData, transfer: Transfer) -> None:
    raise KernbenchError(f"transfer {transfer.serial} was delivered before it was sent")


def _delivered(transfer: Transfer) -> None:
    posting = transfer.arg
    assert isinstance(posting, Posting)
    lane, sent, done = posting.lane, posting.sent, posting.done
    lane.rows[sent + END] = transfer.delivered_ps
    deliver = lane.deliver
    deliver(posting, transfer)
    done(posting.command, sent)


WAKE = Lane.wake
