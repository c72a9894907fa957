"""Queue pairs: the state of both ends and the pure rules by which it changes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field
from typing import Literal, TypeAlias

from kernbench.common.errors import IpcqError
from kernbench.common.ids import pe_name, pe_part
from kernbench.common.values import state, value
from kernbench.core.clock import Clock
from kernbench.core.log import Row
from kernbench.engine.machine import Machine
from kernbench.engine.part import Component
from kernbench.messages.fabric import QueueData
from kernbench.messages.requests import BufferKind, PeCoord, QueuePeer, QueueSetup

WaitKind: TypeAlias = Literal["send", "recv"]
Credit: TypeAlias = tuple[int, int, int, Row, int]
"""A credit on its way: when it comes, in ps, and in which place among the programs of that instant; the tail that it
tells of; after which row of the log it was given, and when"""


@state(kw_only=True, eq=False)
class QueuePair:
    """One queue pair of a PE. Counters only grow; message k lies in slot k mod ``n_slots``.

    ``my_head``: messages sent; ``peer_tail_cache``: how many of them the peer has released; ``peer_head_cache``:
    messages that have arrived in order; ``taken``: receives of the kernel; ``my_tail``: messages released in order;
    ``sent``, ``sent_bytes``: messages that have begun, and what they hold.
    ``sizes`` are the bytes of the messages that have come and are not released, by number.
    ``credits`` are on their way, in order. Nobody is told when one has come: whoever looks finds it there. There are as
    many as slots at most, so a list serves them best.
    """

    direction: str
    peer: QueuePeer
    my_rx_base_pa: int | None
    n_slots: int
    slot_size: int
    via_port: str | None = None
    my_head: int = 0
    my_tail: int = 0
    peer_head_cache: int = 0
    taken: int = 0
    sent: int = 0
    sent_bytes: int = 0
    sizes: dict[int, int] = field(default_factory=dict)
    released: set[int] = field(default_factory=set)
    credits: list[Credit] = field(default_factory=list)
    _clock: Clock | None = None
    _credited: int = 0

    @classmethod
    def installed(cls, setup: QueueSetup, clock: Clock | None = None) -> QueuePair:
        """The pair that ``setup`` asks for, empty; with a ``clock`` it takes ``credits`` as they come."""
        return cls(
            _clock=clock,
            direction=setup.direction,
            peer=setup.peer,
            my_rx_base_pa=setup.rx_base_pa,
            n_slots=setup.n_slots,
            slot_size=setup.slot_size,
            via_port=setup.via_port,
        )

    @property
    def nbytes(self) -> int:
        """Bytes of a ring."""
        return self.n_slots * self.slot_size

    @property
    def peer_tail_cache(self) -> int:
        """How many messages the peer is known to have released."""
        return self._released()

    @peer_tail_cache.setter
    def peer_tail_cache(self, tail: int) -> None:
        self._credited = tail

    def _released(self) -> int:
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
        """Whether a message waits to be taken."""
        return self.peer_head_cache > self.taken

    @property
    def unread(self) -> int:
        """Messages that have come and the kernel has not received."""
        return max(0, self.peer_head_cache - self.taken)

    @property
    def held(self) -> int:
        """Messages that the kernel has got and not released."""
        return min(self.taken, self.peer_head_cache) - self.my_tail - len(self.released)

    @property
    def arrived(self) -> int:
        """Messages that have come, also those before which one is missing."""
        return self.peer_head_cache + sum(1 for sequence in self.sizes if sequence >= self.peer_head_cache)

    @property
    def settled(self) -> bool:
        """Whether nothing is under way: all that was sent has been released, all that came has been."""
        return self.my_head == self.peer_tail_cache and self.peer_head_cache == self.my_tail == self.taken

    def slot_pa(self, sequence: int) -> int:
        """Where the message number ``sequence`` lies in the own ring."""
        assert self.my_rx_base_pa is not None
        return self.my_rx_base_pa + sequence % self.n_slots * self.slot_size

    def claim(self) -> int | None:
        """Take the next slot of the peer, for the message of this number; None while all of them are taken."""
        sequence = self.my_head
        last_in_slot = sequence - self.n_slots
        if self._credited <= last_in_slot and self._released() <= last_in_slot:
            return None
        self.my_head = sequence + 1
        return sequence

    def peer_slot_pa(self, sequence: int) -> int:
        """Where the message number ``sequence`` lies in the ring of the peer."""
        base = self.peer.rx_base_pa
        assert base is not None
        return base + sequence % self.n_slots * self.slot_size

    def take(self) -> int:
        """The sequence number of the kernel's next receive, whether or not its message is there."""
        sequence = self.taken
        self.taken = sequence + 1
        return sequence

    def arrive(self, sequence: int, pa: int, nbytes: int) -> None:
        """Message ``sequence`` is in the slot at ``pa``. IpcqError when that slot is not free for it."""
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
        """The kernel has done with a message; False while an earlier one is held: else the tail has moved on.

        The message of an abandoned receive may not have come yet.
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
        """Forget everything that was ever sent or received."""
        self.my_head = self.my_tail = self.peer_head_cache = self.peer_tail_cache = self.taken = 0
        self.sent = self.sent_bytes = 0
        self.sizes.clear()
        self.released.clear()
        self.credits.clear()

    @property
    def counters(self) -> str:
        """The pointers in a line."""
        return (
            f"my_head={self.my_head} my_tail={self.my_tail} "
            f"peer_head_cache={self.peer_head_cache} peer_tail_cache={self.peer_tail_cache}"
        )


@value(kw_only=True)
class QueueWait:
    """The kernel on ``pe`` waits at ``line`` for queue ``direction`` (None: any): for a slot or for a message."""

    pe: PeCoord
    kind: WaitKind
    direction: str | None
    line: int


@value(kw_only=True)
class UnreceivedMessage:
    """A message from queue ``direction`` of ``pe`` to queue ``there`` of ``peer``, which no kernel has received.

    ``place``: the line or step of ``kernel``, run by request ``launch``, that sent it. ``source``: the file of that, or
    the line of the host program whose call it was; empty when nobody knows.
    """

    pe: PeCoord
    direction: str
    peer: PeCoord
    there: str
    nbytes: int
    launch: int
    kernel: str
    place: str
    source: str = ""

    def __str__(self) -> str:
        way = f"{pe_name(self.pe)} {self.direction} -> {pe_name(self.peer)} {self.there}"
        source = f" {self.source}" if self.source else ""
        return f"{way}: {self.nbytes} bytes of kernel {self.kernel!r}, {self.place}{source}"


@value
class Carried:
    """What a queue of a PE has sent since the machine was made."""

    messages: int = 0
    nbytes: int = 0


class QueuePart(Component):
    """A part that holds queue pairs: what the rest of the machine, reports and diagnostics know of it."""

    coord: PeCoord
    buffer_kind: BufferKind = "tcm"

    @property
    def queue_pairs(self) -> Mapping[str, QueuePair]:
        """The pairs by direction, in the order of installation."""
        raise NotImplementedError

    @property
    def carried(self) -> Mapping[str, Carried]:
        """What was sent, by direction; it outlives the queues."""
        raise NotImplementedError

    @property
    def waiting(self) -> QueueWait | None:
        """What the kernel of this PE waits for here."""
        raise NotImplementedError

    def arrived(self, message: QueueData) -> None:
        """A message for this PE is in its slot."""
        raise NotImplementedError

    @property
    def installation(self) -> int | None:
        """Which installation its queues are of; None when it has none."""
        raise NotImplementedError

    @property
    def unreceived(self) -> tuple[UnreceivedMessage, ...]:
        """What was sent here and no kernel has received, also what is on its way yet.

        Of queues that were removed, until there are new ones.
        """
        raise NotImplementedError

    def is_sending(self, busy: Collection[PeCoord]) -> bool:
        """Whether a message is on its way in a queue neither of whose ends is ``busy``."""
        raise NotImplementedError

    def empty(self, busy: Collection[PeCoord]) -> None:
        """Begin all queues anew neither of whose ends is ``busy``: what lies in them is lost."""
        raise NotImplementedError


def queue_part(machine: Machine, pe: PeCoord) -> QueuePart:
    """The queues of PE (sip, cube, pe)."""
    return machine.part(pe_part(*pe, "pe_ipcq"), QueuePart)


def queue_pairs_of(machine: Machine, pe: PeCoord) -> Mapping[str, QueuePair]:
    """The queue pairs of PE (sip, cube, pe) by direction; none before an installation."""
    return queue_part(machine, pe).queue_pairs
