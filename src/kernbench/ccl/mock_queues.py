"""The queues of the mock: the pairs of a PE, with the rules of the machine and without its time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kernbench.ccl.mock_memory import Array, MockTcm
from kernbench.common.errors import IpcqError, IpcqInvalidDirection, KernelError
from kernbench.common.ids import pe_part
from kernbench.engine.queue_state import QueuePair
from kernbench.messages.requests import PeCoord
from kernbench.triton_emu.places import ReceivedSlot


@dataclass(slots=True, eq=False)
class _Ring:
    """The ring that a slot goes back to."""

    pair: QueuePair
    credit: Callable[[QueuePair], None]

    def free(self, slot: ReceivedSlot, /) -> None:
        """Give ``slot`` back, and its sender a credit."""
        if self.pair.release(slot.sequence):
            self.credit(self.pair)


class MockQueues:
    """The queue pairs of PE ``pe``, whose rings lie in its ``tcm``; ``queues_of`` finds those of its peers."""

    def __init__(
        self,
        pe: PeCoord,
        pairs: Mapping[str, QueuePair],
        tcm: MockTcm,
        queues_of: Callable[[PeCoord], MockQueues],
    ) -> None:
        self.pe = pe
        self.pairs = pairs
        self._name = pe_part(*pe, "pe_ipcq")
        self._tcm = tcm
        self._queues_of = queues_of
        self._turn = 0

    def to_send(self, direction: str, nbytes: int) -> QueuePair:
        """The pair by which ``nbytes`` can be sent; raises as the machine does."""
        pair = self._pair(direction)
        if pair.peer.rx_base_pa is None:
            able = self._those(lambda p: p.peer.rx_base_pa)
            raise IpcqInvalidDirection(f"{self._name}: queue {direction} only receives; those that send: {able}")
        return self._fitting(pair, nbytes)

    def to_receive(self, direction: str, nbytes: int) -> QueuePair:
        """The pair by which a message of ``nbytes`` may come; raises as the machine does."""
        pair = self._pair(direction)
        if pair.my_rx_base_pa is None:
            able = self._those(lambda p: p.my_rx_base_pa)
            raise IpcqInvalidDirection(f"{self._name}: queue {direction} only sends; those that receive: {able}")
        return self._fitting(pair, nbytes)

    def whichever(self) -> QueuePair | None:
        """The next pair, in turn, that has a message to take."""
        receiving = [pair for pair in self.pairs.values() if pair.my_rx_base_pa is not None]
        if not receiving:
            raise IpcqInvalidDirection(f"{self._name} has no queue that receives")
        for step in range(len(receiving)):
            at = (self._turn + step) % len(receiving)
            if receiving[at].ready:
                self._turn = at + 1
                return receiving[at]
        return None

    def slot(self, pair: QueuePair, sequence: int, pending: bool = False) -> ReceivedSlot:
        """What the kernel gets for the message number ``sequence``."""
        return ReceivedSlot(
            pair.direction, "tcm", (), pair.slot_pa(sequence), _Ring(pair, self._credit), sequence, pending
        )

    def check_size(self, pair: QueuePair, sequence: int, nbytes: int) -> None:
        """KernelError when the message, which is there, has another size."""
        came = pair.sizes[sequence]
        if came != nbytes:
            raise KernelError(
                f"{self._name}: message {sequence} of queue {pair.direction} has {came} bytes, "
                f"the kernel receives {nbytes}: both ends name the same shape and dtype"
            )

    def deliver(self, pair: QueuePair, sequence: int, message: Array) -> None:
        """Write message number ``sequence`` to its slot of the peer."""
        pa = pair.peer_slot_pa(sequence)
        self._queues_of(pair.peer.pe).take_in(pair.peer.direction, pa, sequence, message)

    def take_in(self, direction: str, pa: int, sequence: int, message: Array) -> None:
        """A message has come."""
        self._tcm.window(pa, message.nbytes)[...] = message
        self.pairs[direction].arrive(sequence, pa, message.nbytes)

    def check_empty(self) -> None:
        """IpcqError when messages have come that the kernel never received."""
        left = [(pair.direction, pair.peer_head_cache - pair.taken, pair.peer.pe) for pair in self.pairs.values()]
        found = [f"{n} of queue {name} (from {pe_part(*pe, 'pe_ipcq')})" for name, n, pe in left if n]
        if found:
            raise IpcqError(f"{self._name}: the kernel has ended and left messages unreceived: {', '.join(found)}")

    def _credit(self, pair: QueuePair) -> None:
        self._queues_of(pair.peer.pe).pairs[pair.peer.direction].peer_tail_cache = pair.my_tail

    def _pair(self, direction: str) -> QueuePair:
        pair = self.pairs.get(direction)
        if pair is None:
            there = ", ".join(self.pairs) or "none: install queues first"
            raise IpcqInvalidDirection(f"{self._name} has no queue {direction!r}; installed: {there}")
        return pair

    def _those(self, base: Callable[[QueuePair], int | None]) -> str:
        return ", ".join(pair.direction for pair in self.pairs.values() if base(pair) is not None) or "none"

    def _fitting(self, pair: QueuePair, nbytes: int) -> QueuePair:
        if nbytes > pair.slot_size:
            raise KernelError(
                f"{self._name}: a message of {nbytes} bytes does not fit a slot of queue {pair.direction}: "
                f"slot_size is {pair.slot_size}; send it in pieces"
            )
        return pair
