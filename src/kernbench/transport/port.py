"""Source ports: they hold transfers in order and cut them into packets one at a time."""

from __future__ import annotations

from collections import deque

from kernbench.core.clock import NEVER
from kernbench.transport.link import Input
from kernbench.transport.transfer import Packet, Supply, Transfer


class Port(Input):
    """A source: one DMA queue, virtual channel or memory output. It cuts its transfers into packets one at a time."""

    __slots__ = ("name", "queue", "undelivered")

    def __init__(self, index: int, name: str) -> None:
        super().__init__(index)
        self.name = name
        self.queue: deque[Transfer] = deque()
        self.undelivered = 0  # of the transfers made for it

    def settle(self, now: int) -> None:
        """Forget the express transfers that have left."""
        while self.claims and self.claims[0].over_at <= now:
            self.claims.popleft()

    def carries_express(self, now: int) -> bool:
        """Whether something is leaving, and not by packets."""
        return self.clear_at > now and not self.queue

    def enqueue(self, transfer: Transfer, now: int) -> None:
        """Send ``transfer`` packet by packet after those before it."""
        for link in transfer.route.links:
            link.users += 1
            link.clear_at = NEVER
        self.queue.append(transfer)
        self.refill(now)

    def refill(self, now: int) -> None:
        """Cut the next packet if there is none waiting and its bytes have been promised."""
        if self.fifo or not self.queue:
            return
        transfer = self.queue[0]
        number = transfer.next_packet
        if number == transfer.supplied:
            return
        when, tail = (0, 0) if transfer.supplies is None else transfer.available(number)
        when = when if when > now else now
        when = when if when > self.ready_at else self.ready_at
        transfer.next_packet = number + 1
        last = number == transfer.n_full
        size = transfer.last_bytes if last else transfer.route.packet_bytes
        packet = Packet(transfer, size, last, 0, tail)
        self.fifo.append(packet)
        packet.links[0].request(self, when)

    def leave(self, packet: Packet, tail: int, now: int) -> None:
        """The next packet may ask when this one has left."""
        self.ready_at = self.clear_at = tail
        if packet.last:
            self.queue.popleft()
        self.refill(now)

    def supply(self, transfer: Transfer, supply: Supply, now: int) -> None:
        """More packets of ``transfer`` become available."""
        if transfer.supplies is None:
            transfer.supplies = []
        transfer.supplies.append(supply)
        transfer.supplied = supply.first + supply.count
        self.refill(now)

    def curtail(self, transfer: Transfer, count: int) -> None:
        """Only the first ``count`` packets of ``transfer`` are available after all; none beyond has been granted."""
        transfer.curtail_supplies(count)
        if transfer.next_packet > count:
            packet = self.fifo.popleft()
            packet.links[0].withdraw(self)
            transfer.next_packet -= 1
