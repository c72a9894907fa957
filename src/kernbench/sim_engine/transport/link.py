"""Links, ports and the rules of a hop: round-robin per packet, finite FIFOs with credits, heads and tails analytic.

A packet of s bytes at the front of input FIFO L that wants link M:

* requests M when its head has arrived and the packet before it has left L (``L.ready_at``);
* is granted at ``start`` when M is idle, has space for s in the FIFO at its far end (unless it ends there: a
  destination takes all), and the request is the oldest (ties: the lower input); each input has one request
  outstanding, so inputs take turns;
* then M is busy until ``start + s/bw``; the last byte leaves at ``tail = max(start + s/bw, arrival of the last byte)``;
  the space in L returns at ``tail``; the head is at the far end at ``start + overhead``, the last byte at
  ``tail + overhead``.

A request may be entered before it becomes valid (its time is known as soon as the packet before it is granted), so a
packet costs one event per hop, plus one arbitration when it has to wait.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from typing import TYPE_CHECKING, Any

from kernbench.common.units import ps_to_ns, transfer_ps
from kernbench.sim_engine.clock import NEVER, RANK_ARBITRATE, RANK_ARRIVE, RANK_DELIVER, Clock
from kernbench.sim_engine.hooks import Hook, LinkBusy
from kernbench.sim_engine.transport.transfer import HopTimes, Packet, Supply, Transfer

if TYPE_CHECKING:
    from kernbench.sim_engine.transport.express import Claim


class Input:
    """Where packets wait for a link: the FIFO at a link's far end, or a source port."""

    __slots__ = ("claims", "fifo", "index", "ready_at")

    def __init__(self, index: int) -> None:
        self.index = index
        self.fifo: deque[Packet] = deque()
        self.ready_at = 0  # when the packet that left last has left wholly
        self.claims: list[Claim] = []  # express transfers that use it, in time order

    def offer(self, when: int) -> None:
        """The front packet asks for its next link, from ``when`` on."""
        packet = self.fifo[0]
        packet.links[packet.hop].request(self, when)

    def leave(self, packet: Packet, tail: int, now: int) -> None:
        """``packet`` has been granted its link; its last byte will be gone at ``tail``."""
        raise NotImplementedError


class Link(Input):
    """A directed link and the FIFO at its far end."""

    __slots__ = (
        "armed_at",
        "arrive_rank",
        "busy_hook",
        "busy_ps",
        "bw_gbs",
        "callbacks",
        "capacity",
        "claimed_bytes",
        "claims_over_at",
        "clock",
        "credits",
        "dst",
        "free_at",
        "granted_bytes",
        "hop_ps",
        "overhead_ps",
        "packet_bytes",
        "packet_ps",
        "peak",
        "pending",
        "requests",
        "src",
        "used",
        "users",
    )
    _ok = True

    def __init__(
        self,
        clock: Clock,
        index: int,
        ends: tuple[str, str],
        *,
        bw_gbs: float,
        overhead_ps: int,
        fifo_bytes: int | None,
        packet_bytes: int,
        busy_hook: Hook[LinkBusy],
    ) -> None:
        super().__init__(index)
        self.clock = clock
        self.arrive_rank = RANK_ARRIVE + index
        self.src, self.dst = ends
        self.bw_gbs = bw_gbs
        self.overhead_ps = overhead_ps
        # A head needs time to reach the next arbiter: without it the order within an instant would decide who wins.
        self.hop_ps = max(1, overhead_ps)
        self.packet_bytes = packet_bytes
        self.packet_ps = transfer_ps(packet_bytes, bw_gbs)
        self.capacity = NEVER if fifo_bytes is None else fifo_bytes
        self.busy_hook = busy_hook
        self.callbacks: Any = None
        self.free_at = 0
        self.requests: list[tuple[int, int, Input]] = []
        self.armed_at = NEVER
        self.pending = 0
        self.used = 0
        self.credits: deque[tuple[int, int]] = deque()
        self.users = 0  # packet-level transfers that have not passed it
        self.granted_bytes = 0
        self.busy_ps = 0
        self.peak = 0
        self.claimed_bytes = 0  # of express transfers that use it
        self.claims_over_at = 0  # when the last of them is over

    @property
    def nbytes(self) -> int:
        """Bytes it has carried up to now."""
        now = self.clock.time
        return self.granted_bytes - sum(c.unstarted_bytes(now) for c in self.claims)

    @property
    def busy_ns(self) -> float:
        """How long it has been serialising, up to the packets started."""
        now = self.clock.time
        return ps_to_ns(self.busy_ps - sum(c.unstarted_ps(now) for c in self.claims))

    @property
    def peak_fifo_bytes(self) -> int:
        """The most bytes that were granted onto it and had not left its FIFO."""
        now = self.clock.time
        return max([self.peak, *(c.peak_until(now) for c in self.claims)])

    def serialise_ps(self, nbytes: int) -> int:
        """Time that ``nbytes`` occupy the link, in ps."""
        return self.packet_ps if nbytes == self.packet_bytes else transfer_ps(nbytes, self.bw_gbs)

    @property
    def sure_bytes(self) -> int:
        """As many bytes in the FIFO fit and are no new peak."""
        return self.peak if self.peak < self.capacity else self.capacity

    def claim(self, claim: Claim, free_at: int, nbytes: int, busy_ps: int) -> None:
        """Reserve the link for an express transfer of ``nbytes`` that has left it at ``free_at``."""
        self.claims.append(claim)
        self.claimed_bytes += nbytes
        self.claims_over_at = max(self.claims_over_at, claim.over_at)
        self.free_at = free_at
        self.granted_bytes += nbytes
        self.busy_ps += busy_ps

    def settle(self, now: int) -> None:
        """Forget the express transfers whose use of this link is over.

        One that ends here may be over before one that still waits in the FIFO, so all are looked at.
        """
        if self.claims_over_at <= now:
            over = self.claims
            self.claims = []
        else:
            over = [c for c in self.claims if c.over_at <= now]
            if over:
                self.claims = [c for c in self.claims if c.over_at > now]
        for claim in over:
            if claim.earlier:
                claim.earlier = ()  # nobody asks any more; do not keep a chain of the past alive
            self.claimed_bytes -= claim.transfer.nbytes
            self.peak = max(self.peak, claim.peak)

    def request(self, source: Input, when: int) -> None:
        """``source`` asks for the link for its front packet, valid from ``when`` on."""
        now = self.clock.time
        if (
            when <= now
            and self.free_at <= now
            and not (self.requests and self.requests[0][0] <= now)
            and self._has_room(source.fifo[0].need, now)
        ):
            self.grant(source, now)
        else:
            insort(self.requests, (when, source.index, source))
            self.arm(now)

    def withdraw(self, source: Input) -> None:
        """Take back the request of ``source``."""
        self.requests = [r for r in self.requests if r[2] is not source]

    def arm(self, now: int) -> None:
        """See to it that an arbitration happens at the first moment when the front request can be granted, if known."""
        when, _, source = self.requests[0]
        when = max(when, self.free_at)
        when = max(when, now)
        need = source.fifo[0].need
        if self.used + need > self.capacity:
            when = max(when, self._room_at(need, now))
        if when < self.armed_at:
            self.armed_at = when
            self.pending += 1
            self.callbacks = ARBITRATE
            self.clock.at(when, RANK_ARBITRATE + self.index, self)

    def arbitrate(self) -> None:
        """Grant the front request if that is possible now, and arm for the next one."""
        self.pending -= 1
        if self.pending:
            self.callbacks = ARBITRATE
        now = self.clock.time
        if self.armed_at <= now:
            self.armed_at = NEVER
        requests = self.requests
        if not requests:
            return
        when, _, source = requests[0]
        if when <= now and self.free_at <= now and self._has_room(source.fifo[0].need, now):
            del requests[0]
            self.grant(source, now)
        if requests:
            self.arm(now)

    def grant(self, source: Input, now: int) -> None:
        """Send the front packet of ``source``."""
        packet = source.fifo.popleft()
        size = packet.size
        free = now + (self.packet_ps if size == self.packet_bytes else transfer_ps(size, self.bw_gbs))
        self.free_at = free
        self.granted_bytes += size
        self.busy_ps += free - now
        tail = packet.tail if packet.tail > free else free
        transfer = packet.transfer
        if transfer.hop_times is not None:
            note_hop(transfer.hop_times, packet, now, tail)
        if self.busy_hook.listeners:
            self.busy_hook.emit(LinkBusy(self.src, self.dst, transfer.serial, now, free, size))
        hop = packet.hop = packet.hop + 1
        if hop == len(packet.links):
            self._finish(packet, tail, now)
        else:
            if self.credits and self.credits[0][0] <= now:
                self._collect(now)
            used = self.used = self.used + size
            self.peak = max(self.peak, used)
            if hop + 1 == len(packet.links):
                packet.need = 0
            packet.tail = tail + self.hop_ps
            packet.callbacks = ARRIVE
            self.clock.at(now + self.hop_ps, self.arrive_rank, packet)
        source.leave(packet, tail, now)

    def _finish(self, packet: Packet, tail: int, now: int) -> None:
        if packet.transfer.head_ps == NEVER:
            packet.transfer.head_ps = now + self.overhead_ps
        if packet.last:
            self.users -= 1
            packet.callbacks = DELIVER
            self.clock.at(tail + self.overhead_ps, RANK_DELIVER + self.index, packet)

    def leave(self, packet: Packet, tail: int, now: int) -> None:
        """The FIFO gets its space back at ``tail``; the next packet may ask from then on."""
        self.ready_at = tail
        self.credits.append((tail, packet.size))
        if packet.last:
            self.users -= 1
        if self.requests:
            self.arm(now)
        if self.fifo:
            self.offer(tail)

    def hold(self, size: int, now: int) -> None:
        """Take ``size`` bytes of the FIFO."""
        self._collect(now)
        self.used += size
        self.peak = max(self.peak, self.used)

    def _collect(self, now: int) -> None:
        returning = self.credits
        while returning and returning[0][0] <= now:
            self.used -= returning.popleft()[1]

    def _has_room(self, size: int, now: int) -> bool:
        if self.used + size <= self.capacity:
            return True
        self._collect(now)
        return self.used + size <= self.capacity

    def _room_at(self, size: int, now: int) -> int:
        """When ``size`` bytes fit, as far as returned space is known: ``now``, later, or NEVER."""
        missing = self.used + size - self.capacity
        if missing <= 0:
            return now
        for when, nbytes in self.credits:
            missing -= nbytes
            if missing <= 0:
                return when
        return NEVER


class Port(Input):
    """A source: one DMA queue, virtual channel or memory output. It cuts its transfers into packets one at a time."""

    __slots__ = ("name", "queue")

    def __init__(self, index: int, name: str) -> None:
        super().__init__(index)
        self.name = name
        self.queue: deque[Transfer] = deque()

    def settle(self, now: int) -> None:
        """Forget the express transfers that have left."""
        while self.claims and self.claims[0].over_at <= now:
            del self.claims[0]

    def enqueue(self, transfer: Transfer, now: int) -> None:
        """Send ``transfer`` packet by packet after those before it."""
        for link in transfer.route.links:
            link.users += 1
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
        head, tail = transfer.available(number)
        transfer.next_packet += 1
        self.fifo.append(Packet(transfer, transfer.size_of(number), number == transfer.n_full, 0, tail))
        self.offer(max(now, self.ready_at, head))

    def leave(self, packet: Packet, tail: int, now: int) -> None:
        """The next packet may ask when this one has left."""
        self.ready_at = tail
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


def note_hop(times: HopTimes, packet: Packet, start: int, tail: int) -> None:
    """Remember a grant of a traced transfer: the first packet's start and the last one's tail."""
    if times.starts[packet.hop] < 0:
        times.starts[packet.hop] = start
    if packet.last:
        times.tails[packet.hop] = tail


def _arrive(packet: Packet) -> None:
    link = packet.links[packet.hop - 1]
    fifo = link.fifo
    fifo.append(packet)
    if len(fifo) == 1:
        now = link.clock.time
        packet.links[packet.hop].request(link, link.ready_at if link.ready_at > now else now)


def _deliver(packet: Packet) -> None:
    transfer = packet.transfer
    transfer.delivered_ps = packet.links[-1].clock.time
    if transfer.done is not None:
        transfer.done(transfer)


ARRIVE = (_arrive,)
DELIVER = (_deliver,)
ARBITRATE = (Link.arbitrate,)
