"""Queues between PEs: the counters of both ends, the rules for the counters, and the interface of a part with queues.

A queue pair has a ring of slots at each end, for the messages that this end receives. Message k is stored in slot
k mod ``n_slots``::

    the end that sends                            the end that receives
    claim:  a slot is free?  my_head + 1
            ── message k, its bytes in slot k ──▶ arrive:  peer_head_cache, the first that is missing
                                                  take:    taken + 1, a receive of the kernel
    claim looks:  peer_tail_cache  ◀── credit ──  release: my_tail, the first that is not released

A sender waits while ``my_head - peer_tail_cache = n_slots``, a receiver while ``taken = peer_head_cache``. The
simulated machine and the mock of collectives both follow the rules of this module and raise its errors. The two differ
in the arrival times of messages and credits.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, TypeAlias, TypeVar

from kernbench.common.errors import IpcqError, IpcqInvalidDirection, KernelError
from kernbench.common.ids import pe_name, pe_part
from kernbench.common.values import state, value
from kernbench.core.clock import Clock
from kernbench.core.log import Row
from kernbench.engine.machine import Component, Machine
from kernbench.messages.fabric import QueueData
from kernbench.messages.requests import PeCoord, QueueSetup

Q = TypeVar("Q", bound="QueuePair")

WaitKind: TypeAlias = Literal["send", "recv"]
Credit: TypeAlias = tuple[int, int, int, Row, int]
"""A credit in flight: its time of arrival in ps, its place among the programs of that instant, the tail that it
reports, the row of the log after which it was sent, and the time at which it was sent"""


class QueuePair:
    """One end of a queue pair. Its counters only grow.

    - ``my_head``: messages sent. ``peer_tail_cache``: messages that the peer has released.
    - ``peer_head_cache``: messages that have arrived in order. ``taken``: receives of the kernel. ``my_tail``:
      messages released in order.
    - ``sizes``: by message number, the bytes of messages that have arrived and are not released.
    - ``credits``: the credits in flight, in order. No event announces their arrival: a read of ``peer_tail_cache``
      removes the credits that have arrived. A queue has at most as many credits as slots, so a list is fastest. Without
      a ``clock`` the queue has no credits, and ``peer_tail_cache`` is set instead.
    """

    __slots__ = (
        "_clock",
        "_credited",
        "credits",
        "direction",
        "my_head",
        "my_rx_base_pa",
        "my_tail",
        "n_slots",
        "peer",
        "peer_head_cache",
        "released",
        "sizes",
        "slot_size",
        "taken",
        "via_port",
    )

    def __init__(self, setup: QueueSetup, clock: Clock | None = None) -> None:
        self.direction = setup.direction
        self.peer = setup.peer
        self.my_rx_base_pa = setup.rx_base_pa
        self.n_slots = setup.n_slots
        self.slot_size = setup.slot_size
        self.via_port = setup.via_port
        self.my_head = self.my_tail = self.peer_head_cache = self.taken = 0
        self.sizes: dict[int, int] = {}
        self.released: set[int] = set()
        self.credits: list[Credit] = []
        self._clock = clock
        self._credited = 0

    @property
    def peer_tail_cache(self) -> int:
        """The number of messages that the peer has released, according to the credits that have arrived."""
        return self._take_credits()

    @peer_tail_cache.setter
    def peer_tail_cache(self, tail: int) -> None:
        self._credited = tail

    def _take_credits(self) -> int:
        clock, due = self._clock, self.credits
        while due and clock is not None:
            when, place, tail = due[0][:3]
            if when >= clock.time and not clock.has_come(when, place):
                break
            del due[0]
            self._credited = tail
        return self._credited

    @property
    def ready(self) -> bool:
        """True if a message has arrived that the kernel has not received."""
        return self.peer_head_cache > self.taken

    @property
    def unread(self) -> int:
        """The number of messages that have arrived and that the kernel has not received."""
        return max(0, self.peer_head_cache - self.taken)

    @property
    def held(self) -> int:
        """The number of messages that the kernel has received and not released."""
        return min(self.taken, self.peer_head_cache) - self.my_tail - len(self.released)

    @property
    def arrived(self) -> int:
        """The number of messages that have arrived, also out of order."""
        return self.peer_head_cache + sum(1 for sequence in self.sizes if sequence >= self.peer_head_cache)

    @property
    def settled(self) -> bool:
        """True if nothing is in flight or unreleased: each end has released every message that the other has sent."""
        return self.my_head == self.peer_tail_cache and self.peer_head_cache == self.my_tail == self.taken

    @property
    def counters(self) -> str:
        """The counters of this end as text, such as ``my_head=3 my_tail=2 …``."""
        return (
            f"my_head={self.my_head} my_tail={self.my_tail} "
            f"peer_head_cache={self.peer_head_cache} peer_tail_cache={self.peer_tail_cache}"
        )

    def slot_pa(self, sequence: int) -> int:
        """Return the address of message ``sequence`` in the ring of this end."""
        assert self.my_rx_base_pa is not None
        return self.my_rx_base_pa + sequence % self.n_slots * self.slot_size

    def peer_slot_pa(self, sequence: int) -> int:
        """Return the address of message ``sequence`` in the ring of the peer."""
        base = self.peer.rx_base_pa
        assert base is not None
        return base + sequence % self.n_slots * self.slot_size

    def claim(self) -> int | None:
        """Claim the next slot of the peer and return its message's number; None while no slot is free."""
        sequence = self.my_head
        last_in_slot = sequence - self.n_slots
        if self._credited <= last_in_slot and (not self.credits or self._take_credits() <= last_in_slot):
            return None
        self.my_head = sequence + 1
        return sequence

    def take(self) -> int:
        """Assign the next message, which may be in flight, to a receive of the kernel; return the message's number."""
        sequence = self.taken
        self.taken = sequence + 1
        return sequence

    def arrive(self, sequence: int, pa: int, nbytes: int) -> None:
        """Count message ``sequence``, which has arrived in the slot at ``pa``.

        Raises IpcqError if that slot is not the message's slot, or is not free.
        """
        n_slots, sizes, head = self.n_slots, self.sizes, self.peer_head_cache
        slot_pa = (self.my_rx_base_pa or 0) + sequence % n_slots * self.slot_size
        if slot_pa != pa or not head <= sequence < self.my_tail + n_slots:
            raise IpcqError(
                f"message {sequence} of {pe_part(*self.peer.pe, 'pe_ipcq')} arrived in a slot of queue "
                f"{self.direction} that is not free for it: {self.counters}"
            )
        sizes[sequence] = nbytes
        while head in sizes:
            head += 1
        self.peer_head_cache = head

    def release(self, sequence: int) -> bool:
        """Release the slot of a message. Return True if the tail advances, False if an earlier message is unreleased.

        The message may still be in flight, if its receive was abandoned.
        """
        tail, sizes, released = self.my_tail, self.sizes, self.released
        if sequence != tail:
            released.add(sequence)
            return False
        sizes.pop(sequence, None)
        tail += 1
        if released:
            while tail in released:
                released.remove(tail)
                sizes.pop(tail, None)
                tail += 1
        self.my_tail = tail
        return True

    def reset(self) -> None:
        """Reset all counters and drop all messages and credits."""
        self.my_head = self.my_tail = self.peer_head_cache = self.peer_tail_cache = self.taken = 0
        self.sizes.clear()
        self.released.clear()
        self.credits.clear()


# Look-ups of queues, with the errors of kernels that name a wrong queue. ``name``: the part that has the queues.


def find_queue(name: str, queues: Mapping[str, Q], direction: str, nbytes: int, *, sends: bool) -> Q:
    """Return queue ``direction`` of ``queues`` for a message of ``nbytes``, which a kernel ``sends`` or else receives.

    Raises IpcqInvalidDirection if the queue is missing, or only transfers the opposite way. Raises KernelError for a
    message larger than a slot.
    """
    queue = queues.get(direction)
    if queue is None:
        installed = ", ".join(queues) or "none: install queues first"
        raise IpcqInvalidDirection(f"{name} has no queue {direction!r}; installed: {installed}")
    if (queue.peer.rx_base_pa if sends else queue.my_rx_base_pa) is None:
        if sends:
            able = ", ".join(q.direction for q in queues.values() if q.peer.rx_base_pa is not None) or "none"
            raise IpcqInvalidDirection(f"{name}: queue {direction} only receives; those that send: {able}")
        able = ", ".join(q.direction for q in queues.values() if q.my_rx_base_pa is not None) or "none"
        raise IpcqInvalidDirection(f"{name}: queue {direction} only sends; those that receive: {able}")
    if nbytes > queue.slot_size:
        raise KernelError(
            f"{name}: a message of {nbytes} bytes does not fit a slot of queue {direction}: "
            f"slot_size is {queue.slot_size}; send it in pieces"
        )
    return queue


def find_receivers(name: str, queues: Mapping[str, Q]) -> list[Q]:
    """Return the queues that receive, in the order of installation. Raises IpcqInvalidDirection without any."""
    receivers = [queue for queue in queues.values() if queue.my_rx_base_pa is not None]
    if not receivers:
        raise IpcqInvalidDirection(f"{name} has no queue that receives")
    return receivers


def find_ready(queues: Sequence[QueuePair], first: int) -> int | None:
    """Return the index of the first ready queue, round-robin from index ``first`` on; None if no queue is ready."""
    n = len(queues)
    return next((position % n for position in range(first, first + n) if queues[position % n].ready), None)


def size_error(name: str, pair: QueuePair, sequence: int, nbytes: int) -> KernelError:
    """Return the error of a kernel that expects ``nbytes`` from message ``sequence``, which has another size."""
    return KernelError(
        f"{name}: message {sequence} of queue {pair.direction} has {pair.sizes[sequence]} bytes, "
        f"the kernel receives {nbytes}: both ends name the same shape and dtype"
    )


@value(kw_only=True)
class QueueWait:
    """A wait of the kernel on ``pe`` at ``line`` for a slot or a message of queue ``direction`` (None: any queue)."""

    pe: PeCoord
    kind: WaitKind
    direction: str | None
    line: int


@value(kw_only=True)
class UnreceivedMessage:
    """A message from queue ``direction`` of ``pe`` to queue ``peer_direction`` of ``peer``, not received by a kernel.

    ``place``: the line or step of ``kernel``, run by request ``launch``, that sent the message. ``source``: the file of
    that kernel, or the line of the host program that called it; empty if unknown.
    """

    pe: PeCoord
    direction: str
    peer: PeCoord
    peer_direction: str
    nbytes: int
    launch: int
    kernel: str
    place: str
    source: str = ""

    def __str__(self) -> str:
        way = f"{pe_name(self.pe)} {self.direction} -> {pe_name(self.peer)} {self.peer_direction}"
        source = f" {self.source}" if self.source else ""
        return f"{way}: {self.nbytes} bytes of kernel {self.kernel!r}, {self.place}{source}"


@state
class SendTotals:
    """The number of messages, and their bytes, that a PE has sent in one direction since the machine was made."""

    messages: int = 0
    nbytes: int = 0


class QueuePart(Component):
    """A part with queue pairs: its interface to the machine, reports and diagnostics."""

    coord: PeCoord
    traffic: Mapping[str, SendTotals]
    """Totals by direction, in the order of first use; the removal of queues does not reset them"""

    @property
    def queue_pairs(self) -> Mapping[str, QueuePair]:
        """The pairs by direction, in the order of installation."""
        raise NotImplementedError

    @property
    def waits(self) -> tuple[QueueWait, ...]:
        """The waits of this PE's kernels for its queues, one for each waiting kernel."""
        raise NotImplementedError

    def arrived(self, message: QueueData) -> None:
        """Count a message for this PE that has arrived in its slot."""
        raise NotImplementedError

    @property
    def installations(self) -> frozenset[int]:
        """The numbers of the installations of the part's queues."""
        raise NotImplementedError

    @property
    def pending_messages(self) -> tuple[UnreceivedMessage, ...]:
        """The messages to this PE that no kernel has received, also messages in flight.

        Messages of removed queues are included until new queues are installed.
        """
        raise NotImplementedError

    def has_in_flight(self, busy: Collection[PeCoord]) -> bool:
        """Return True if a message is in flight in a queue with neither end in ``busy``."""
        raise NotImplementedError

    def empty(self, busy: Collection[PeCoord]) -> None:
        """Reset all queues with neither end in ``busy``: their messages are lost."""
        raise NotImplementedError


def queue_part(machine: Machine, pe: PeCoord) -> QueuePart:
    """Return the part with the queues of PE (sip, cube, pe)."""
    return machine.part(pe_part(*pe, "pe_ipcq"), QueuePart)


def queue_pairs_of(machine: Machine, pe: PeCoord) -> Mapping[str, QueuePair]:
    """Return the queue pairs of PE (sip, cube, pe) by direction; empty before an installation."""
    return queue_part(machine, pe).queue_pairs
