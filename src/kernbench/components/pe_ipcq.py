"""The message queues of a PE: it sends to slots of its peers, takes in what arrives, and gives credits back."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import pairwise

from kernbench.common.errors import AbandonedError, IpcqError, IpcqInvalidDirection
from kernbench.common.ids import pe_part
from kernbench.common.units import ns_to_ps
from kernbench.components.queue_lane import Lane, Posting, QueueSite
from kernbench.components.queue_waits import Awaited, Got
from kernbench.core.log import END, NONE
from kernbench.di.registry import register
from kernbench.engine.machine import Machine
from kernbench.engine.queue_errors import no_queue, only_receives, only_sends, other_size, too_large
from kernbench.engine.queue_state import Carried, Credit, QueuePair, QueueWait, UnreceivedMessage
from kernbench.messages.fabric import QueueData
from kernbench.messages.requests import IpcqInitMsg, PeCoord
from kernbench.topology.graph import Node
from kernbench.triton_emu.handles import ReceivedSlot


@register("builtin.pe_ipcq", kind="pe_ipcq")
class PeIpcq(QueueSite):
    """Queue pairs by direction; a PE has none until some are installed."""

    def __init__(self, node: Node, machine: Machine) -> None:
        super().__init__(node, machine)
        self._lanes: dict[str, Lane] = {}
        self._removed: tuple[Lane, ...] = ()  # last; what was under way to them may still come
        self._lane_of_slot: dict[int, Lane] = {}  # as far as messages have come
        self._any: tuple[int, int, Got] | None = None
        self._turn = 0
        self._take_in = self.take_in
        self._installation = 0

    @property
    def last_credit(self) -> tuple[Lane, Credit] | None:
        """The last credit of all that are on their way to others, and the queue that gave it."""
        given = [(lane, lane.last_credit) for lane in self._lanes.values()]
        return max(
            ((lane, each) for lane, each in given if each is not None), key=lambda pair: pair[1][0], default=None
        )

    @property
    def queue_pairs(self) -> Mapping[str, QueuePair]:
        """The pairs by direction, in the order of installation."""
        return {direction: lane.pair for direction, lane in self._lanes.items()}

    @property
    def installation(self) -> int | None:
        """Which installation its queues are of; None when it has none."""
        return self._installation if self._lanes else None

    @property
    def unreceived(self) -> tuple[UnreceivedMessage, ...]:
        """What was sent here and no kernel has received; of queues that were removed, until there are new ones."""
        return tuple(message for lane in self._lanes.values() or self._removed for message in lane.unreceived)

    @property
    def carried(self) -> Mapping[str, Carried]:
        """What was sent, by direction; it outlives the queues."""
        return {direction: self._with_now(direction, before) for direction, before in self._carried.items()}

    def _with_now(self, direction: str, before: Carried) -> Carried:
        lane = self._lanes.get(direction)
        if lane is None:
            return before
        return Carried(before.messages + lane.pair.sent, before.nbytes + lane.pair.sent_bytes)

    @property
    def waiting(self) -> QueueWait | None:
        """What the kernel of this PE waits for here: where it stands, else the first receive it posted."""
        first: QueueWait | None = None
        for direction, lane in self._lanes.items():
            if lane.blocked_at is not None:
                return QueueWait(pe=self.coord, kind="send", direction=direction, line=lane.blocked_at)
            for receive in lane.posted:
                wait = QueueWait(pe=self.coord, kind="recv", direction=direction, line=receive.line)
                if not receive.posted:
                    return wait
                first = first or wait
        if self._any is not None:
            return QueueWait(pe=self.coord, kind="recv", direction=None, line=self._any[1])
        return first

    def install(self, msg: IpcqInitMsg) -> None:
        """Set the queues up. IpcqError when there are some already, or when receive ranges overlap."""
        if self._lanes:
            raise IpcqError(
                f"{self.node.id} has queues already ({', '.join(self._lanes)}): a PE is installed once; "
                "remove them first"
            )
        pairs = {setup.direction: QueuePair.installed(setup, self.clock) for setup in msg.queues}
        if len(pairs) < len(msg.queues):
            names = [setup.direction for setup in msg.queues]
            raise IpcqError(f"{self.node.id}: a direction is installed twice: {', '.join(names)}")
        self._check_disjoint(pairs)
        self._removed = ()
        lanes = self._lanes = {direction: Lane(self, pair, msg.installation) for direction, pair in pairs.items()}
        self._lane_of_slot = {}
        self.index(list(lanes.values()))
        self.buffer_kind = msg.buffer_kind
        self._installation = msg.installation
        self.poll_ps = ns_to_ps(msg.poll_ns) if msg.backpressure == "poll" else 0
        self.credit_bytes = msg.credit_bytes

    def _check_disjoint(self, pairs: Mapping[str, QueuePair]) -> None:
        rings = sorted((p.my_rx_base_pa, p.nbytes, p.direction) for p in pairs.values() if p.my_rx_base_pa is not None)
        for (low, nbytes, one), (start, _, other) in pairwise(rings):
            if start < low + nbytes:
                raise IpcqError(f"{self.node.id}: the receive ranges of {one} and {other} overlap at {start:#x}")

    def remove(self, installation: int | None = None) -> None:
        """Take all queues off, if those of ``installation`` (None: any) are there. No kernel may run here.

        What is on its way to them still comes there, as long as there are no others.
        """
        if not self._lanes or installation not in (None, self._installation):
            return
        self._carried = dict(self.carried)
        for lane in self._lanes.values():
            lane.installed = False
        self._removed, self._lanes = tuple(self._lanes.values()), {}

    def is_sending(self, busy: Collection[PeCoord]) -> bool:
        """Whether a message is on its way in a queue neither of whose ends is ``busy``."""
        return any(lane.is_sending for lane in self._unused(busy).values())

    def empty(self, busy: Collection[PeCoord]) -> None:
        """Begin all queues anew neither of whose ends is ``busy``: what lies in them is lost."""
        for direction, lane in self._unused(busy).items():
            before = self._carried.get(direction)
            if before is not None:
                self._carried[direction] = self._with_now(direction, before)
            lane.reset()

    def _unused(self, busy: Collection[PeCoord]) -> Mapping[str, Lane]:
        """The queues neither of whose ends is ``busy``."""
        if self.coord in busy:
            return {}
        return {direction: lane for direction, lane in self._lanes.items() if lane.peer_pe not in busy}

    def cancel(self) -> None:
        """Whoever waits for a message gets none, and nobody waits for a slot."""
        gone = AbandonedError("the kernel was stopped")
        for lane in self._lanes.values():
            while lane.posted:
                receive = lane.posted.pop(0)
                if receive.effective(self.clock):
                    receive.got(gone, self.now)
            lane.forget_waits()
        self._any = None

    def lane_to_send(self, direction: str, nbytes: int) -> Lane:
        """The queue by which ``nbytes`` can be sent. IpcqInvalidDirection, KernelError for what no slot can hold."""
        lane = self._lanes.get(direction)
        if lane is None:
            raise no_queue(self.node.id, direction, self._lanes)
        pair = lane.pair
        if pair.peer.rx_base_pa is None:
            raise only_receives(self.node.id, direction, self.queue_pairs.values())
        if nbytes > pair.slot_size:
            raise too_large(self.node.id, pair, nbytes)
        return lane

    def _lane_to_receive(self, direction: str, nbytes: int) -> Lane:
        lane = self._lanes.get(direction)
        if lane is None:
            raise no_queue(self.node.id, direction, self._lanes)
        pair = lane.pair
        if pair.my_rx_base_pa is None:
            raise only_sends(self.node.id, direction, self.queue_pairs.values())
        if nbytes > pair.slot_size:
            raise too_large(self.node.id, pair, nbytes)
        return lane

    def arrived(self, message: QueueData) -> None:
        """A message for this PE is in its slot: the pointers move when that is decoded."""
        assert isinstance(message, Posting)
        clock = self.clock
        clock.call_at(clock.time + self.delay_ps, self._take_in, message)

    def take_in(self, message: Posting) -> None:
        """A message is decoded: it may be received."""
        access, sequence, clock = message.access, message.sequence, self.clock
        now = clock.time
        lane = self._lane_of_slot.get(access.pa) or self._lane_of(message)
        if lane is None:
            message.lane.rows[message.row + END] = now
            return
        pair = lane.pair
        pair.arrive(sequence, access.pa, access.row_bytes)
        row = lane.slot_rows[sequence % pair.n_slots] = message.row
        lane.rows[row + END] = now
        if self.machine.hooks.queue.listeners:
            self.tell("arrive", pair, access.row_bytes, sequence, row, access.pa)
        posted = lane.posted
        while posted and posted[0].sequence < pair.peer_head_cache:
            receive = posted.pop(0)
            got = receive.got
            if receive.due_ps < now or clock.has_come(receive.due_ps, receive.place):
                got(self._slot(lane, receive.sequence, receive.nbytes, told=receive.posted), row)
            else:
                got(None, NONE)
        if self._any is not None and pair.ready:
            nbytes, _, take = self._any
            self._any = None
            self._turn = [each for each in self._lanes.values() if each.pair.my_rx_base_pa is not None].index(lane) + 1
            take(self._slot(lane, pair.take(), nbytes), row)

    def _lane_of(self, message: Posting) -> Lane | None:
        """Where a message belongs that is the first in its slot. IpcqError when it belongs nowhere.

        None: it was sent before the queues here were installed, by one that was removed; it is lost.
        """
        pa, sender = message.access.pa, message.lane
        lane = self.lane_at(pa)
        if lane is None:
            raise IpcqError(
                f"{self.node.id}: a message of {pe_part(*message.sender, 'pe_ipcq')} arrived at {pa:#x}, "
                f"which no queue receives at"
            )
        if not sender.installed and sender.installation != lane.installation:
            return None
        self._lane_of_slot[pa] = lane
        return lane

    def _slot(self, lane: Lane, sequence: int, nbytes: int, *, told: bool = False) -> ReceivedSlot | Exception:
        """The slot of a message that is there; an error when it has another size. ``told``: listeners know."""
        pair = lane.pair
        if pair.sizes[sequence] != nbytes:
            return other_size(self.node.id, pair, sequence, nbytes)
        if self.machine.hooks.queue.listeners and not told:
            self.tell("recv", pair, nbytes, sequence, lane.slot_rows[sequence % pair.n_slots], pair.slot_pa(sequence))
        return lane.slot(sequence)

    def taken(self, direction: str, sequence: int, nbytes: int) -> ReceivedSlot:
        """The slot of message ``sequence``, which is there and has been awaited. KernelError for another size."""
        found = self._slot(self._lanes[direction], sequence, nbytes)
        if isinstance(found, Exception):
            raise found
        return found

    def expect(self, direction: str, receive: Awaited, due_ps: int) -> bool:
        """Let ``receive``, which takes place at ``due_ps``, await its message; False when that is there, or a mistake.

        When the message comes before, ``got`` is told so, by None, and asks for it (``taken``) when it is due.
        """
        lane = self._lanes.get(direction)
        if lane is None:
            return False
        pair = lane.pair
        if pair.peer_head_cache > pair.taken or pair.my_rx_base_pa is None or receive.nbytes > pair.slot_size:
            return False
        receive.sequence = taken = pair.taken
        pair.taken = taken + 1
        receive.due_ps, receive.place = due_ps, self.clock.reserve(due_ps)
        lane.posted.append(receive)
        return True

    def receive_next(self, direction: str, receive: Awaited) -> ReceivedSlot | None:
        """The next message of a queue, when it is there; else None, and ``receive`` gets it once it is.

        IpcqInvalidDirection, KernelError for a size that no slot can hold or that differs from the message's.
        """
        lane = self._lane_to_receive(direction, receive.nbytes)
        pair = lane.pair
        ready = pair.ready
        receive.sequence = pair.take()
        if ready:
            return self.taken(direction, receive.sequence, receive.nbytes)
        receive.due_ps = -1
        lane.posted.append(receive)
        return None

    def post(self, direction: str, nbytes: int, line: int, got: Got) -> ReceivedSlot:
        """The slot of the next message of a queue; when it is ``pending``, ``got`` follows once it has come."""
        lane = self._lane_to_receive(direction, nbytes)
        pair = lane.pair
        sequence = pair.taken
        pair.taken = sequence + 1
        if sequence < pair.peer_head_cache:
            return self.taken(direction, sequence, nbytes)

        lane.posted.append(Awaited(got, sequence, nbytes, line, posted=True))
        if self.machine.hooks.queue.listeners:
            self.tell("recv", pair, 0, sequence, NONE, pair.slot_pa(sequence))
        return lane.posted_slot(sequence)

    def receive_any(self, nbytes: int, line: int, got: Got) -> ReceivedSlot | None:
        """The next message of whichever queue has one, in turn; else None, and ``got`` takes the first to come."""
        receiving = [lane.pair for lane in self._lanes.values() if lane.pair.my_rx_base_pa is not None]
        if not receiving:
            raise IpcqInvalidDirection(f"{self.node.id} has no queue that receives")
        for step in range(len(receiving)):
            at = (self._turn + step) % len(receiving)
            pair = receiving[at]
            if pair.ready:
                self._turn = at + 1
                return self.taken(pair.direction, pair.take(), nbytes)
        self._any = (nbytes, line, got)
        return None


def _come(given: tuple[Lane, Credit]) -> int:
    return given[1][0]
