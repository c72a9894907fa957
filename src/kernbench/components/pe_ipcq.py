"""The message queues of a PE: it sends to slots of its peers, takes in what arrives, and gives credits back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise

import simpy

from kernbench.common.errors import IpcqError, IpcqInvalidDirection, KernelError
from kernbench.common.ids import pe_part
from kernbench.common.units import ns_to_ps
from kernbench.components.pe_dma import PeDma
from kernbench.di.registry import register
from kernbench.messages.fabric import Access, WriteData
from kernbench.messages.queues import OPPOSITE_DIRECTION, Arrival, Credit, IpcqInitMsg
from kernbench.messages.requests import PeCoord
from kernbench.sim_engine.hooks import OpEnded, QueueEvent, QueueEventKind
from kernbench.sim_engine.machine import Machine
from kernbench.sim_engine.queue_state import QueuePair, QueuePart, QueueWait
from kernbench.topology.graph import Node
from kernbench.triton_emu.slots import Slot


@dataclass(slots=True)
class _Receive:
    """A receive at ``line`` whose message is not there: number ``sequence`` of its queue, to have ``nbytes``."""

    sequence: int
    nbytes: int
    line: int
    done: Callable[[Exception | None], object]


@register("builtin.pe_ipcq", kind="pe_ipcq")
class PeIpcq(QueuePart):
    """Queue pairs by direction; a PE has none until some are installed."""

    def __init__(self, node: Node, machine: Machine) -> None:
        super().__init__(node, machine)
        assert node.sip is not None
        assert node.cube is not None
        assert node.pe is not None
        self.coord: PeCoord = (node.sip, node.cube, node.pe)
        self._pairs: dict[str, QueuePair] = {}
        self._posted: dict[str, deque[_Receive]] = {}
        self._any: tuple[int, simpy.Event] | None = None
        self._turn = 0
        self._blocked_sends: dict[str, tuple[simpy.Event, int]] = {}
        self._credit_ps: dict[str, int] = {}
        self._poll_ps = 0
        self._credit_bytes = 0
        self.waiting_for: QueueWait | None = None

    @cached_property
    def _dma(self) -> PeDma:
        return self.machine.part(pe_part(*self.coord, "pe_dma"), PeDma)

    @property
    def queue_pairs(self) -> Mapping[str, QueuePair]:
        """The pairs by direction, in the order of installation."""
        return self._pairs

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
        self._posted = {}
        self._credit_ps.clear()

    def reset(self) -> None:
        """Empty all queues; nothing may be under way."""
        for pair in self._pairs.values():
            pair.reset()
        for posted in self._posted.values():
            posted.clear()
        self._any = None
        self._blocked_sends.clear()
        self.waiting_for = None

    def cancel_receives(self) -> None:
        """Whoever waits for a message gets none."""
        gone = KernelError("the kernel was stopped")
        for posted in self._posted.values():
            while posted:
                posted.popleft().done(gone)

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
            raise IpcqInvalidDirection(f"{self.node.id}: queue {direction} only receives; {self._those('send')}")
        self._check_size(pair, nbytes)
        return pair

    def _check_size(self, pair: QueuePair, nbytes: int) -> None:
        if nbytes > pair.slot_size:
            raise KernelError(
                f"{self.node.id}: a message of {nbytes} bytes does not fit a slot of queue {pair.direction}: "
                f"slot_size is {pair.slot_size}; send it in pieces"
            )

    def _those(self, what: str) -> str:
        able = [
            p.direction
            for p in self._pairs.values()
            if (p.peer.rx_base_pa if what == "send" else p.my_rx_base_pa) is not None
        ]
        return f"those that {what}: {', '.join(able) or 'none'}"

    def slot_free(self, pair: QueuePair) -> simpy.Event:
        """Fires when a kernel that found ``pair`` full may send; it looks again when polling, else it is woken."""
        event = self.clock.event()
        self._blocked_sends[pair.direction] = (event, self.clock.time)
        return event

    def send(self, op: int, pair: QueuePair, claim: tuple[int, int], nbytes: int, done: Callable[[], None]) -> None:
        """Write a message to the slot that ``claim`` says; ``done`` when its last byte is delivered."""
        sequence, pa = claim
        machine, peer = self.machine, pair.peer
        node = machine.addresses.memory_node(machine.addresses.decode(pa))
        arrival = Arrival(op=op, pe=peer.pe, pa=pa, nbytes=nbytes, sequence=sequence, sender=self.coord)
        data = WriteData(op=op, part=0, requester=self._dma.node.id, access=Access(pa, nbytes), arrival=arrival)
        self._tell("send", pair, nbytes, sequence)
        self._dma.post(self.overhead_ps, node, data, pair.via_port, done)

    def _tell(self, kind: QueueEventKind, pair: QueuePair, nbytes: int, sequence: int) -> None:
        hook = self.machine.hooks.queue
        if hook.listeners:
            where = (self.coord, kind, pair.direction, nbytes, sequence, self.clock.time, pair.peer.pe)
            hook.emit(QueueEvent(*where))

    def arrived(self, arrival: Arrival) -> None:
        """A message for this PE is in its slot: the pointers move when that is decoded."""
        if self.overhead_ps:
            self.clock.call_at(self.clock.time + self.overhead_ps, self._take_in, arrival)
        else:
            self._take_in(arrival)

    def _take_in(self, arrival: Arrival) -> None:
        pair = self._pair_at(arrival)
        pair.arrive(arrival)
        if self.machine.hooks.op_ended.listeners:
            self.machine.hooks.op_ended.emit(OpEnded(arrival.op, self.clock.time))
        self._tell("arrive", pair, arrival.nbytes, arrival.sequence)
        posted = self._posted[pair.direction]
        while posted and posted[0].sequence < pair.peer_head_cache:
            receive = posted.popleft()
            receive.done(self._wrong_size(pair, receive.sequence, receive.nbytes))
        if self._any is not None and pair.ready:
            nbytes, event = self._any
            self._any = None
            event.succeed(self._taken(pair, nbytes))

    def _pair_at(self, arrival: Arrival) -> QueuePair:
        for pair in self._pairs.values():
            base = pair.my_rx_base_pa
            if base is not None and base <= arrival.pa < base + pair.nbytes:
                return pair
        raise IpcqError(
            f"{self.node.id}: a message of {pe_part(*arrival.sender, 'pe_ipcq')} arrived at {arrival.pa:#x}, "
            f"which no queue receives at"
        )

    def _wrong_size(self, pair: QueuePair, sequence: int, nbytes: int) -> Exception | None:
        came = pair.sizes[sequence]
        if came == nbytes:
            return None
        return KernelError(
            f"{self.node.id}: message {sequence} of queue {pair.direction} has {came} bytes, "
            f"the kernel receives {nbytes}: both ends name the same shape and dtype"
        )

    def _taken(self, pair: QueuePair, nbytes: int) -> Slot | Exception:
        """The next message of ``pair``, which is there."""
        sequence = pair.take()
        return self._wrong_size(pair, sequence, nbytes) or self._slot(pair, sequence)

    def _slot(self, pair: QueuePair, sequence: int, pending: bool = False) -> Slot:
        self._tell("recv", pair, pair.sizes.get(sequence, 0), sequence)
        return Slot(pair.direction, self.buffer_kind, pair.slot_pa(sequence), _Ring(self, pair), pending)

    def receive_next(self, direction: str, nbytes: int, line: int, done: Callable[[Exception | None], object]) -> Slot:
        """The slot of the next message of a queue; when it is ``pending``, ``done`` is called once it is there.

        IpcqInvalidDirection, KernelError for a size that no slot can hold or that differs from the message's.
        """
        pair = self._pair(direction)
        if pair.my_rx_base_pa is None:
            raise IpcqInvalidDirection(f"{self.node.id}: queue {direction} only sends; {self._those('receive')}")
        self._check_size(pair, nbytes)
        if pair.ready:
            found = self._taken(pair, nbytes)
            if isinstance(found, Exception):
                raise found
            return found
        sequence = pair.take()
        self._posted[direction].append(_Receive(sequence, nbytes, line, done))
        return self._slot(pair, sequence, pending=True)

    def receive_any(self, nbytes: int) -> Slot | simpy.Event:
        """The next message of whichever queue has one, in turn; or an event whose value is that slot, or an error."""
        receiving = [p for p in self._pairs.values() if p.my_rx_base_pa is not None]
        if not receiving:
            raise IpcqInvalidDirection(f"{self.node.id} has no queue that receives")
        for step in range(len(receiving)):
            at = (self._turn + step) % len(receiving)
            if receiving[at].ready:
                self._turn = at + 1
                found = self._taken(receiving[at], nbytes)
                if isinstance(found, Exception):
                    raise found
                return found
        event = self.clock.event()
        self._any = (nbytes, event)
        return event

    def release(self, pair: QueuePair, pa: int) -> None:
        """The kernel has done with a slot: when the tail moves on, a credit goes back on the fast path."""
        if self._pairs.get(pair.direction) is not pair or not pair.release(pa):
            return
        delay = self._credit_ps.get(pair.direction)
        if delay is None:
            delay = self._credit_ps[pair.direction] = self._credit_delay(pair)
        assert pair.my_rx_base_pa is not None
        credit = Credit(dst_rx_base_pa=pair.my_rx_base_pa, tail=pair.my_tail)
        sender = self.machine.part(pe_part(*pair.peer.pe, "pe_ipcq"), PeIpcq)
        self.clock.call_at(self.clock.time + delay, sender.credited, credit)

    def _credit_delay(self, pair: QueuePair) -> int:
        """A credit goes back the way that the message came."""
        back = OPPOSITE_DIRECTION.get(pair.peer.direction, "")
        via = back.removeprefix("global_") if back.startswith("global_") else None
        me, there = self._dma.node.id, pe_part(*pair.peer.pe, "pe_dma")
        return self.machine.sideband_ps(me, there, self._credit_bytes, via)

    def credited(self, credit: Credit) -> None:
        """The peer whose ring begins at ``dst_rx_base_pa`` has released messages. IpcqError when no queue has it."""
        pair = next((p for p in self._pairs.values() if p.peer.rx_base_pa == credit.dst_rx_base_pa), None)
        if pair is None:
            raise IpcqError(f"{self.node.id}: a credit for the ring at {credit.dst_rx_base_pa:#x}, which no queue uses")
        pair.peer_tail_cache = credit.tail
        blocked = self._blocked_sends.pop(pair.direction, None)
        if blocked is not None:
            event, since = blocked
            if not self._poll_ps:
                event.succeed()
                return
            waited = -(-(self.clock.time - since) // self._poll_ps) * self._poll_ps
            self.clock.call_at(since + waited, partial(_look_again, event))


def _look_again(event: simpy.Event, _: object) -> None:
    event.succeed()


@dataclass(slots=True, eq=False)
class _Ring:
    """The ring that a slot goes back to."""

    ipcq: PeIpcq
    pair: QueuePair

    def free(self, addr: int, /) -> None:
        """Give the slot at ``addr`` back."""
        self.ipcq.release(self.pair, addr)
