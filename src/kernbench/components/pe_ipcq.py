"""The message queues of a PE: it sends to slots of its peers, takes in what arrives, and gives credits back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import TypeAlias

from kernbench.common.errors import AbandonedError, IpcqError, IpcqInvalidDirection, KernelError
from kernbench.common.ids import pe_part
from kernbench.common.units import ns_to_ps
from kernbench.components.pe_dma import PeDma
from kernbench.di.registry import register
from kernbench.messages.fabric import Access, QueueData
from kernbench.messages.queues import OPPOSITE_DIRECTION, Credit, IpcqInitMsg
from kernbench.messages.requests import PeCoord
from kernbench.sim_engine.hooks import OpEnded, QueueEvent, QueueEventKind
from kernbench.sim_engine.machine import Machine
from kernbench.sim_engine.queue_state import Carried, QueuePair, QueuePart, QueueWait, SlotReleased
from kernbench.sim_engine.transport import Port
from kernbench.topology.graph import Node
from kernbench.triton_emu.slots import Slot

Got: TypeAlias = Callable[[Slot | Exception], None]
"""Takes the slot of a message that has come, or what is wrong with it"""


@dataclass(slots=True)
class _Receive:
    """A receive at ``line`` whose message is not there: number ``sequence`` of its queue, to have ``nbytes``.

    ``posted``: the kernel has its slot already, and goes on.
    """

    sequence: int
    nbytes: int
    line: int
    got: Got
    posted: bool = False


@dataclass(slots=True, eq=False)
class _Ends:
    """What a pair needs to know of the machine: the memory of the peer's ring, the peer, the way of a credit."""

    memory: str
    peer: PeIpcq
    credit_ps: int
    ring: _Ring


@dataclass(slots=True, eq=False)
class _Ring:
    """The ring that slots go back to."""

    ipcq: PeIpcq
    pair: QueuePair

    def free(self, addr: int, /) -> None:
        """Give the slot at ``addr`` back."""
        self.ipcq.release(self.pair, addr)


@register("builtin.pe_ipcq", kind="pe_ipcq")
class PeIpcq(QueuePart):
    """Queue pairs by direction; a PE has none until some are installed."""

    def __init__(self, node: Node, machine: Machine) -> None:
        super().__init__(node, machine)
        assert node.sip is not None
        assert node.cube is not None
        assert node.pe is not None
        self.coord: PeCoord = (node.sip, node.cube, node.pe)
        self.waiting_for: QueueWait | None = None
        self._pairs: dict[str, QueuePair] = {}
        self._carried: dict[str, Carried] = {}
        self._ends: dict[str, _Ends] = {}
        self._posted: dict[str, deque[_Receive]] = {}
        self._any: tuple[int, Got] | None = None
        self._turn = 0
        self._blocked_sends: dict[str, tuple[Callable[[], None], int]] = {}
        self._poll_ps = 0
        self._credit_bytes = 0
        self._overhead_ps = self.overhead_ps

    @cached_property
    def _dma(self) -> PeDma:
        return self.machine.part(pe_part(*self.coord, "pe_dma"), PeDma)

    @property
    def queue_pairs(self) -> Mapping[str, QueuePair]:
        """The pairs by direction, in the order of installation."""
        return self._pairs

    @property
    def carried(self) -> Mapping[str, Carried]:
        """What was sent, by direction; it outlives the queues."""
        return self._carried

    @property
    def waiting(self) -> QueueWait | None:
        """What the kernel of this PE waits for here: where it stands, else the first receive it posted."""
        if self.waiting_for is not None:
            return self.waiting_for
        for direction, posted in self._posted.items():
            if posted:
                return QueueWait(pe=self.coord, kind="recv", direction=direction, line=posted[0].line)
        return None

    def install(self, msg: IpcqInitMsg) -> None:
        """Set the queues up. IpcqError when there are some already, or when receive ranges overlap."""
        if self._pairs:
            raise IpcqError(
                f"{self.node.id} has queues already ({', '.join(self._pairs)}): a PE is installed once; "
                "remove them first"
            )
        pairs = {setup.direction: QueuePair.installed(setup) for setup in msg.queues}
        if len(pairs) < len(msg.queues):
            names = [setup.direction for setup in msg.queues]
            raise IpcqError(f"{self.node.id}: a direction is installed twice: {', '.join(names)}")
        self._check_disjoint(pairs)
        self._pairs = pairs
        self._posted = {direction: deque() for direction in pairs}
        self.buffer_kind = msg.buffer_kind
        self._poll_ps = ns_to_ps(msg.poll_ns) if msg.backpressure == "poll" else 0
        self._credit_bytes = msg.credit_bytes

    def _check_disjoint(self, pairs: Mapping[str, QueuePair]) -> None:
        rings = sorted((p.my_rx_base_pa, p.nbytes, p.direction) for p in pairs.values() if p.my_rx_base_pa is not None)
        for (low, nbytes, one), (start, _, other) in pairwise(rings):
            if start < low + nbytes:
                raise IpcqError(f"{self.node.id}: the receive ranges of {one} and {other} overlap at {start:#x}")

    def remove(self) -> None:
        """Take all queues off. IpcqError while a message is under way."""
        busy = [f"{p.direction} ({p.counters})" for p in self._pairs.values() if not p.settled]
        if busy:
            raise IpcqError(f"{self.node.id}: messages are under way or were never received: {', '.join(busy)}")
        self._pairs = {}
        self._ends = {}
        self._posted = {}

    def reset(self) -> None:
        """Empty all queues; nothing may be under way."""
        for pair in self._pairs.values():
            pair.reset()
        for posted in self._posted.values():
            posted.clear()
        self.cancel()
        self.waiting_for = None

    def cancel(self) -> None:
        """Whoever waits for a message gets none, and nobody waits for a slot."""
        gone = AbandonedError("the kernel was stopped")
        for posted in self._posted.values():
            while posted:
                posted.popleft().got(gone)
        self._any = None
        self._blocked_sends.clear()

    def _pair(self, direction: str) -> QueuePair:
        pair = self._pairs.get(direction)
        if pair is None:
            there = ", ".join(self._pairs) or "none: install queues first"
            raise IpcqInvalidDirection(f"{self.node.id} has no queue {direction!r}; installed: {there}")
        return pair

    def pair_to_send(self, direction: str, nbytes: int) -> QueuePair:
        """The pair by which ``nbytes`` can be sent. IpcqInvalidDirection, KernelError for what no slot can hold."""
        pair = self._pair(direction)
        if pair.peer.rx_base_pa is None:
            able = [p.direction for p in self._pairs.values() if p.peer.rx_base_pa is not None]
            raise IpcqInvalidDirection(
                f"{self.node.id}: queue {direction} only receives; those that send: {', '.join(able) or 'none'}"
            )
        if nbytes > pair.slot_size:
            raise self._too_large(pair, nbytes)
        return pair

    def _pair_to_receive(self, direction: str, nbytes: int) -> QueuePair:
        pair = self._pair(direction)
        if pair.my_rx_base_pa is None:
            able = [p.direction for p in self._pairs.values() if p.my_rx_base_pa is not None]
            raise IpcqInvalidDirection(
                f"{self.node.id}: queue {direction} only sends; those that receive: {', '.join(able) or 'none'}"
            )
        if nbytes > pair.slot_size:
            raise self._too_large(pair, nbytes)
        return pair

    def _too_large(self, pair: QueuePair, nbytes: int) -> KernelError:
        return KernelError(
            f"{self.node.id}: a message of {nbytes} bytes does not fit a slot of queue {pair.direction}: "
            f"slot_size is {pair.slot_size}; send it in pieces"
        )

    def _ends_of(self, pair: QueuePair) -> _Ends:
        ends = self._ends.get(pair.direction)
        if ends is None:
            ends = self._ends[pair.direction] = self._find_ends(pair)
        return ends

    def _find_ends(self, pair: QueuePair) -> _Ends:
        machine, peer = self.machine, pair.peer
        base = peer.rx_base_pa
        memory = "" if base is None else machine.addresses.memory_node(machine.addresses.decode(base))
        other = machine.part(pe_part(*peer.pe, "pe_ipcq"), PeIpcq)
        # A credit goes back the way that the message came.
        back = OPPOSITE_DIRECTION.get(peer.direction, "")
        via = back.removeprefix("global_") if back.startswith("global_") else None
        there = pe_part(*peer.pe, "pe_dma")
        credit_ps = machine.sideband_ps(self._dma.node.id, there, self._credit_bytes, via)
        return _Ends(memory, other, credit_ps, _Ring(self, pair))

    def when_free(self, pair: QueuePair, free: Callable[[], None]) -> None:
        """Call ``free`` when a kernel that found ``pair`` full may send: woken by the credit, or looking again."""
        self._blocked_sends[pair.direction] = (free, self.clock.time)

    def send(self, op: int, pair: QueuePair, sequence: int, pa: int, nbytes: int, done: Callable[[], None]) -> None:
        """Write message ``sequence`` to the peer's slot at ``pa``; ``done`` when its last byte is delivered."""
        dma = self._dma
        message = QueueData(
            op=op,
            part=0,
            requester=dma.node.id,
            access=Access(pa=pa, row_bytes=nbytes),
            sequence=sequence,
            pe=pair.peer.pe,
            sender=self.coord,
        )
        if self.machine.hooks.queue.listeners:
            self._tell("send", pair, nbytes, sequence)
        carried = self._carried.get(pair.direction) or self._carried.setdefault(pair.direction, Carried())
        carried.messages += 1
        carried.nbytes += nbytes
        dma.queue.post(self._overhead_ps, partial(self._put, pair, message, done))

    def _put(self, pair: QueuePair, message: QueueData, done: Callable[[], None], port: Port) -> None:
        self.machine.post(port, self._ends_of(pair).memory, message, pair.via_port, done)

    def _tell(self, kind: QueueEventKind, pair: QueuePair, nbytes: int, sequence: int) -> None:
        where = (self.coord, kind, pair.direction, nbytes, sequence, self.clock.time, pair.peer.pe)
        self.machine.hooks.queue.emit(QueueEvent(*where))

    def arrived(self, message: QueueData) -> None:
        """A message for this PE is in its slot: the pointers move when that is decoded."""
        self.clock.call_at(self.clock.time + self._overhead_ps, self._take_in, message)

    def _take_in(self, message: QueueData) -> None:
        pair = self._pair_at(message)
        pair.arrive(message.sequence, message.access.pa, message.access.nbytes)
        hooks = self.machine.hooks
        if hooks.op_ended.listeners:
            hooks.op_ended.emit(OpEnded(message.op, self.clock.time))
        if hooks.queue.listeners:
            self._tell("arrive", pair, message.access.nbytes, message.sequence)
        posted = self._posted[pair.direction]
        while posted and posted[0].sequence < pair.peer_head_cache:
            receive = posted.popleft()
            receive.got(self._slot(pair, receive.sequence, receive.nbytes, told=receive.posted))
        if self._any is not None and pair.ready:
            nbytes, got = self._any
            self._any = None
            got(self._slot(pair, pair.take(), nbytes))

    def _pair_at(self, message: QueueData) -> QueuePair:
        pa = message.access.pa
        for pair in self._pairs.values():
            base = pair.my_rx_base_pa
            if base is not None and base <= pa < base + pair.nbytes:
                return pair
        raise IpcqError(
            f"{self.node.id}: a message of {pe_part(*message.sender, 'pe_ipcq')} arrived at {pa:#x}, "
            f"which no queue receives at"
        )

    def _slot(
        self, pair: QueuePair, sequence: int, nbytes: int, *, pending: bool = False, told: bool = False
    ) -> Slot | Exception:
        """The slot of a message; an error when it is there and has another size. ``told``: listeners know."""
        if not pending and pair.sizes[sequence] != nbytes:
            return KernelError(
                f"{self.node.id}: message {sequence} of queue {pair.direction} has {pair.sizes[sequence]} bytes, "
                f"the kernel receives {nbytes}: both ends name the same shape and dtype"
            )
        if self.machine.hooks.queue.listeners and not told:
            self._tell("recv", pair, 0 if pending else nbytes, sequence)
        return Slot(pair.direction, self.buffer_kind, pair.slot_pa(sequence), self._ends_of(pair).ring, pending)

    def _taken(self, pair: QueuePair, nbytes: int) -> Slot:
        """The next message of ``pair``, which is there."""
        found = self._slot(pair, pair.take(), nbytes)
        if isinstance(found, Exception):
            raise found
        return found

    def receive_next(self, direction: str, nbytes: int, line: int, got: Got) -> Slot | None:
        """The next message of a queue, when it is there; else None, and ``got`` takes it once it is.

        IpcqInvalidDirection, KernelError for a size that no slot can hold or that differs from the message's.
        """
        pair = self._pair_to_receive(direction, nbytes)
        if pair.ready:
            return self._taken(pair, nbytes)
        self._posted[direction].append(_Receive(pair.take(), nbytes, line, got))
        return None

    def post(self, direction: str, nbytes: int, line: int, there: Callable[[Exception | None], None]) -> Slot:
        """The slot of the next message of a queue; when it is ``pending``, ``there`` is called once it has come."""
        pair = self._pair_to_receive(direction, nbytes)
        if pair.ready:
            return self._taken(pair, nbytes)
        sequence = pair.take()

        def got(found: Slot | Exception) -> None:
            there(found if isinstance(found, Exception) else None)

        self._posted[direction].append(_Receive(sequence, nbytes, line, got, posted=True))
        slot = self._slot(pair, sequence, nbytes, pending=True)
        assert isinstance(slot, Slot)
        return slot

    def receive_any(self, nbytes: int, got: Got) -> Slot | None:
        """The next message of whichever queue has one, in turn; else None, and ``got`` takes the first to come."""
        receiving = [p for p in self._pairs.values() if p.my_rx_base_pa is not None]
        if not receiving:
            raise IpcqInvalidDirection(f"{self.node.id} has no queue that receives")
        for step in range(len(receiving)):
            at = (self._turn + step) % len(receiving)
            if receiving[at].ready:
                self._turn = at + 1
                return self._taken(receiving[at], nbytes)
        self._any = (nbytes, got)
        return None

    def release(self, pair: QueuePair, pa: int) -> None:
        """The kernel has done with a slot: when the tail moves on, a credit goes back on the fast path."""
        if self._pairs.get(pair.direction) is not pair:
            return
        sequence, now = pair.held_at(pa), self.clock.time
        credited: int | None = None
        if pair.release(sequence):
            ends = self._ends_of(pair)
            assert pair.my_rx_base_pa is not None
            credited = now + ends.credit_ps
            credit = Credit(dst_rx_base_pa=pair.my_rx_base_pa, tail=pair.my_tail)
            self.clock.call_at(credited, ends.peer.credited, credit)
        hook = self.machine.slot_released
        if hook.listeners:
            peer = pair.peer
            hook.emit(SlotReleased(self.coord, pair.direction, sequence, now, peer.pe, peer.direction, credited))

    def credited(self, credit: Credit) -> None:
        """The peer whose ring begins at ``dst_rx_base_pa`` has released messages. IpcqError when no queue has it."""
        pair = self._pair_of_ring(credit.dst_rx_base_pa)
        pair.peer_tail_cache = credit.tail
        blocked = self._blocked_sends.pop(pair.direction, None)
        if blocked is not None:
            free, since = blocked
            if not self._poll_ps:
                free()
                return
            waited = -(-(self.clock.time - since) // self._poll_ps) * self._poll_ps
            self.clock.call_at(since + waited, lambda _: free())

    def _pair_of_ring(self, rx_base_pa: int) -> QueuePair:
        for pair in self._pairs.values():
            if pair.peer.rx_base_pa == rx_base_pa:
                return pair
        raise IpcqError(f"{self.node.id}: a credit for the ring at {rx_base_pa:#x}, which no queue uses")
