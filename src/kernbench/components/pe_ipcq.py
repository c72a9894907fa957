"""The queues of a PE: their installation and removal, and the dispatch of external input to a queue.

There are three types of input. Each finds its queue by a key::

    a request of the kernel   by its direction: ``find_queue``; without a direction, any queue that has a message
    a message                 by the address it was written to, which is in the ring of one queue
    a credit                  by the base of its ring, into which one queue sends

So two queues between the same two PEs never mix. This component decodes a message, which then completes the receive
that waits for the message::

    the memory has its bytes ─▶ arrived ── overhead_ns ──▶ decode ─▶ counters ─▶ receives of its queue, in order
                                                                              ─▶ the receive without a direction

Removed queues still accept messages that were in flight, until other queues are installed. These messages are lost. A
message of a queue that was removed before the present queues were installed is also lost.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping
from functools import cached_property
from itertools import pairwise

from kernbench.common.errors import AbandonedError, IpcqError
from kernbench.common.ids import pe_part
from kernbench.common.values import value
from kernbench.components.pe_dma import PeDma
from kernbench.components.pe_tcm import TCM_BYTES
from kernbench.components.queue import Message, OnReceive, Queue
from kernbench.components.scoreboard import Scoreboard
from kernbench.core.log import END, NONE
from kernbench.di.registry import register
from kernbench.engine.machine import Machine
from kernbench.engine.queues import (
    Credit,
    QueuePair,
    QueuePart,
    QueueWait,
    SendTotals,
    UnreceivedMessage,
    find_ready,
    find_receivers,
)
from kernbench.messages.fabric import QueueData
from kernbench.messages.requests import IpcqInitMsg, PeCoord
from kernbench.topology.graph import Node
from kernbench.triton_emu.handles import Slot


@value(eq=False)
class AnyReceive:
    """A waiting receive of ``nbytes`` without a direction, which the kernel ``board`` called at ``line``."""

    board: Scoreboard
    nbytes: int
    line: int
    on_receive: OnReceive


@register("builtin.pe_ipcq", kind="pe_ipcq")
class PeIpcq(QueuePart):
    """The queues of a PE by direction, empty before an installation. A kernel is identified by its scoreboard.

    Several installations may have queues on a PE, with different names. ``delay_ps``: the overhead of a message at each
    end.
    """

    def __init__(self, node: Node, machine: Machine) -> None:
        super().__init__(node, machine)
        self.coord: PeCoord = node.pe_coord
        self.delay_ps = self.overhead_ps
        self.queues: dict[str, Queue] = {}
        self._removed: tuple[Queue, ...] = ()  # removed last; messages in flight to them may still arrive
        self._rings: list[tuple[int, Queue]] = []  # receiving queues, sorted by the start of their rings
        self._starts: list[int] = []
        self._by_peer_ring: dict[int, Queue] = {}
        self._by_slot: dict[int, Queue] = {}  # filled as messages arrive
        self.traffic: dict[str, SendTotals] = {}
        self._any: AnyReceive | None = None
        self._turn = 0
        self._decode = self.decode

    @cached_property
    def dma(self) -> PeDma:
        """The DMA by which messages leave this PE."""
        return self.machine.part(pe_part(*self.coord, "pe_dma"), PeDma)

    # Installation.

    def install(self, msg: IpcqInitMsg) -> None:
        """Add queues. Raises IpcqError for a name that a queue of the PE has, or if receive ranges overlap."""
        names = [setup.direction for setup in msg.queues]
        taken_names = [name for name in names if name in self.queues]
        if taken_names:
            raise IpcqError(
                f"{self.node.id} has queues already ({', '.join(taken_names)}): a name is installed once; "
                "remove them first"
            )
        if len(set(names)) < len(names):
            raise IpcqError(f"{self.node.id}: a direction is installed twice: {', '.join(names)}")
        added = {setup.direction: Queue(self, setup, msg) for setup in msg.queues}
        self._check_disjoint([*self.queues.values(), *added.values()])
        self.queues, self._removed = self.queues | added, ()
        self._index(self.queues.values())

    def _index(self, queues: Collection[Queue]) -> None:
        """Index queues by the address of their rings, and by that of their peers' rings."""
        receiving = [(queue.my_rx_base_pa, queue) for queue in queues if queue.my_rx_base_pa is not None]
        self._rings = sorted(receiving, key=lambda ring: ring[0])
        self._starts, self._by_slot = [start for start, _ in self._rings], {}
        self._by_peer_ring = {
            queue.peer.rx_base_pa: queue for queue in reversed(tuple(queues)) if queue.peer.rx_base_pa is not None
        }

    def _check_disjoint(self, queues: Collection[Queue]) -> None:
        rings = sorted(
            (queue.my_rx_base_pa, queue.n_slots * queue.slot_size, queue.direction)
            for queue in queues
            if queue.my_rx_base_pa is not None
        )
        for (low, nbytes, one), (start, _, other) in pairwise(rings):
            if start < low + nbytes:
                raise IpcqError(f"{self.node.id}: the receive ranges of {one} and {other} overlap at {start:#x}")

    def remove(self, installation: int | None = None) -> None:
        """Remove the queues of ``installation`` (None: all queues). No kernel may run on this PE.

        Messages in flight to the removed queues still arrive there until other queues are installed.
        """
        removed = [queue for queue in self.queues.values() if installation in (None, queue.installation)]
        for queue in removed:
            queue.attached = False
            del self.queues[queue.direction]
        if removed:
            self._removed = tuple(removed)

    def counts(self) -> Mapping[str, int]:
        """Return the bytes of TCM that the messages of this PE were read from."""
        return {**super().counts(), TCM_BYTES: sum(totals.nbytes for totals in self.traffic.values())}

    @property
    def installations(self) -> frozenset[int]:
        """The numbers of the installations that its queues belong to."""
        return frozenset(queue.installation for queue in self.queues.values())

    # Look-ups for other components.

    def find_peer(self, pe: PeCoord) -> PeIpcq:
        """Return the queues of another PE."""
        return self.machine.part(pe_part(*pe, "pe_ipcq"), PeIpcq)

    @property
    def queue_pairs(self) -> Mapping[str, QueuePair]:
        """The pairs by direction, in the order of installation."""
        return self.queues

    def find_queue_at(self, pa: int) -> Queue | None:
        """Return the queue that receives at an address, or None."""
        index = bisect_right(self._starts, pa) - 1
        if index < 0:
            return None
        base, queue = self._rings[index]
        return queue if pa < base + queue.n_slots * queue.slot_size else None

    def find_queue_into(self, rx_base_pa: int) -> Queue | None:
        """Return the queue, also a removed one, that sends into the ring at ``rx_base_pa`` of a peer."""
        return self._by_peer_ring.get(rx_base_pa)

    # Messages that arrive, and receives without a direction.

    def arrived(self, message: QueueData) -> None:
        """Start to decode a message for this PE, which is in its slot. The counters advance after the decoding."""
        assert isinstance(message, Message)
        clock = self.clock
        clock.call_at(clock.time + self.delay_ps, self._decode, message)

    def decode(self, message: Message) -> None:
        """Count a decoded message, and complete the receives that wait for it."""
        access, sequence, clock = message.access, message.sequence, self.clock
        now = clock.time
        queue = self._by_slot.get(access.pa) or self._find_receiver(message)
        if queue is None:
            message.queue.rows[message.row + END] = now
            return
        queue.arrive(sequence, access.pa, access.row_bytes)
        row = queue.slot_rows[sequence % queue.n_slots] = message.row
        queue.rows[row + END] = now
        if self.machine.hooks.queue.listeners:
            queue.notify("arrive", access.row_bytes, sequence, row, access.pa)
        receives = queue.receives
        while receives and receives[0].sequence < queue.peer_head_cache:
            receive = receives.pop(0)
            on_receive = receive.on_receive
            if receive.due_ps < now or clock.has_come(receive.due_ps, receive.place):
                on_receive(queue.find_slot(receive.sequence, receive.nbytes, notified=receive.posted), row)
            else:
                on_receive(None, NONE)
        if self._any is not None and queue.ready:
            waiting, self._any = self._any, None
            self._turn = find_receivers(self.node.id, self.queues).index(queue) + 1
            queue.receiver = waiting.board
            waiting.on_receive(queue.find_slot(queue.take(), waiting.nbytes), row)

    def _find_receiver(self, message: Message) -> Queue | None:
        """Return the queue of the first message in a slot. Raises IpcqError if no queue receives at its address.

        Return None if the sender used queues that have been removed since; the message is dropped.
        """
        pa, sender = message.access.pa, message.queue
        queue = self.find_queue_at(pa)
        if queue is None and not sender.attached:
            return None
        if queue is None:
            raise IpcqError(
                f"{self.node.id}: a message of {pe_part(*message.sender, 'pe_ipcq')} arrived at {pa:#x}, "
                f"which no queue receives at"
            )
        if not sender.attached and sender.installation != queue.installation:
            return None
        self._by_slot[pa] = queue
        return queue

    def receive_any(self, board: Scoreboard, nbytes: int, line: int, on_receive: OnReceive) -> Slot | None:
        """Return the slot of the next message of any queue, round-robin.

        Without a message, return None: the receive then gets the first message that arrives.
        """
        queues = find_receivers(self.node.id, self.queues)
        index = find_ready(queues, self._turn)
        if index is None:
            self._any = AnyReceive(board, nbytes, line, on_receive)
            return None
        self._turn = index + 1
        queues[index].receiver = board
        return queues[index].slot_of(queues[index].take(), nbytes)

    def cancel(self, board: Scoreboard) -> None:
        """Cancel the waits of a kernel, for messages and for slots."""
        gone = AbandonedError("the kernel was stopped")
        for queue in self.queues.values():
            while queue.receives and queue.receiver is board:
                receive = queue.receives.pop(0)
                if receive.is_due(self.clock):
                    receive.on_receive(gone, board.now)
            if queue.sender is not None and queue.sender.board is board:
                queue.sender = None
        if self._any is not None and self._any.board is board:
            self._any = None

    # Reports.

    @property
    def waits(self) -> tuple[QueueWait, ...]:
        """Return the wait of each kernel of this PE: the call at which it blocks, or its first posted receive."""
        calls: dict[Scoreboard | None, QueueWait] = {}
        posted: dict[Scoreboard | None, QueueWait] = {}
        for direction, queue in self.queues.items():
            if queue.sender is not None:
                wait = QueueWait(pe=self.coord, kind="send", direction=direction, line=queue.sender.line)
                calls.setdefault(queue.sender.board, wait)
            for receive in queue.receives:
                wait = QueueWait(pe=self.coord, kind="recv", direction=direction, line=receive.line)
                (posted if receive.posted else calls).setdefault(queue.receiver, wait)
        if self._any is not None:
            wait = QueueWait(pe=self.coord, kind="recv", direction=None, line=self._any.line)
            calls.setdefault(self._any.board, wait)
        return tuple((posted | calls).values())

    def find_last_credit(self, board: Scoreboard) -> tuple[Queue, Credit] | None:
        """Return the last credit in flight that a kernel has sent, and the queue that receives this credit."""
        received_by = [queue for queue in self.queues.values() if queue.receiver is board]
        under_way = [last for queue in received_by if (last := queue.last_credit) is not None]
        return max(under_way, key=lambda pair: pair[1][0], default=None)

    def count_first(self, direction: str) -> SendTotals:
        """Return the totals of queue ``direction``, entered when the queue sends its first message."""
        return self.traffic.setdefault(direction, SendTotals())

    @property
    def pending_messages(self) -> tuple[UnreceivedMessage, ...]:
        """Messages sent to this PE that no kernel has received, including messages in flight.

        Messages of removed queues are included until there are new queues.
        """
        queues = (*self.queues.values(), *self._removed)
        return tuple(message for queue in queues for message in queue.pending_messages)

    # After a failure.

    def has_in_flight(self, busy: Collection[PeCoord]) -> bool:
        """Return True if a message is in flight in a queue with no ``busy`` PE at either end."""
        return any(queue.has_in_flight for queue in self._idle_queues(busy))

    def empty(self, busy: Collection[PeCoord]) -> None:
        """Reset all queues with no ``busy`` PE at either end. The messages in them are lost."""
        for queue in self._idle_queues(busy):
            queue.reset()

    def _idle_queues(self, busy: Collection[PeCoord]) -> list[Queue]:
        if self.coord in busy:
            return []
        return [queue for queue in self.queues.values() if queue.peer.pe not in busy]
