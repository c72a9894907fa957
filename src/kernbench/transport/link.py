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
packet costs one event per hop, plus one arbitration when it has to wait. On that path the larger of two is a condition:
a call of ``max`` for each would be a tenth of the time.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from kernbench.common.units import ps_to_ns, transfer_ps
from kernbench.core.clock import NEVER, RANK_ARBITRATE, RANK_ARRIVE, RANK_DELIVER, Clock
from kernbench.core.hook import Hook
from kernbench.transport.transfer import HopTimes, Packet

if TYPE_CHECKING:
    from kernbench.transport.claims import Claim


class LinkBusy(NamedTuple):
    """A link carried ``nbytes`` of transfer ``transfer_id`` from ``start_ps`` to ``end_ps`` (one or more packets)."""

    src: str
    dst: str
    transfer_id: int
    start_ps: int
    end_ps: int
    nbytes: int


class Input:
    """Where packets wait for a link: the FIFO at a link's far end, or a source port."""

    __slots__ = ("claims", "clear_at", "fifo", "index", "ready_at")

    def __init__(self, index: int) -> None:
        self.index = index
        self.fifo: deque[Packet] = deque()
        self.ready_at = 0  # when the packet that left last has left wholly
        self.clear_at = 0  # from then on an express transfer finds nobody here; NEVER while packets use it
        self.claims: deque[Claim] = deque()  # express transfers that use it, in time order

    def offer(self, when: int) -> None:
        """The front packet asks for its next link, from ``when`` on."""
        packet = self.fifo[0]
        packet.links[packet.hop].request(self, when)

    def leave(self, packet: Packet, tail: int, now: int) -> None:
        """``packet`` has been granted its link; its last byte will be gone at ``tail``."""
        raise NotImplementedError

    def settle(self, now: int) -> None:
        """Forget the express transfers whose use of this place is over by ``now``."""
        raise NotImplementedError

    def carries_express(self, now: int) -> bool:
        """Whether an express transfer may use this place now or later; False when certainly none does."""
        raise NotImplementedError


class Standing:
    """What express transfers hold in a FIFO when a newcomer is granted the link to it, which may be in the future.

    Each counts with the most it holds at once until it is gone: exact when all are of one packet, else too much.
    Transfers are added, and moments asked for, in the order of time.
    """

    __slots__ = ("entries", "nbytes", "streams")

    def __init__(self) -> None:
        self.entries: deque[tuple[int, int, bool]] = deque()
        self.nbytes = 0
        self.streams = 0  # how many of them have more than one packet

    def at(self, when: int) -> int:
        """Bytes there at ``when``."""
        entries = self.entries
        while entries and entries[0][0] <= when:
            _, nbytes, stream = entries.popleft()
            self.nbytes -= nbytes
            self.streams -= stream
        return self.nbytes

    def add(self, until: int, nbytes: int, stream: bool) -> None:
        """One more, gone at ``until``; ``stream``: it has more than one packet."""
        self.entries.append((until, nbytes, stream))
        self.nbytes += nbytes
        self.streams += stream

    def clear(self) -> None:
        """All are turned into packets."""
        self.entries.clear()
        self.nbytes = self.streams = 0


class Link(Input):
    """A directed link and the FIFO at its far end."""

    __slots__ = (
        "armed_at",
        "arrive_rank",
        "busy_hook",
        "busy_ps",
        "bw_gbs",
        "capacity",
        "catch_up",
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
        "requests",
        "src",
        "standing",
        "times_ps",
        "used",
        "users",
    )

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
        catch_up: Callable[[], None],
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
        self.times_ps: dict[int, int] = {}  # of the packet sizes it has seen
        self.capacity = NEVER if fifo_bytes is None else fifo_bytes
        self.busy_hook = busy_hook
        self.catch_up = catch_up  # enters what express transfers have not entered yet: call it before reading figures
        self.free_at = 0
        self.requests: list[tuple[int, int, Input]] = []
        self.armed_at = NEVER
        self.used = 0
        self.credits: deque[tuple[int, int]] = deque()
        self.users = 0  # packet-level transfers that have not passed it
        self.granted_bytes = 0
        self.busy_ps = 0
        self.peak = 0
        self.standing = Standing()

    @property
    def nbytes(self) -> int:
        """Bytes it has carried up to now."""
        self.catch_up()
        now = self.clock.time
        return self.granted_bytes - sum(c.unstarted_bytes(now) for c in self.claims)

    @property
    def busy_ns(self) -> float:
        """How long it has been serialising, up to the packets started."""
        self.catch_up()
        now = self.clock.time
        return ps_to_ns(self.busy_ps - sum(c.unstarted_ps(now) for c in self.claims))

    @property
    def peak_fifo_bytes(self) -> int:
        """The most bytes that were granted onto it and had not left its FIFO."""
        self.catch_up()
        now = self.clock.time
        return max([self.peak, *(c.peak_until(now) for c in self.claims)])

    def serialise_ps(self, nbytes: int) -> int:
        """Time that ``nbytes`` occupy the link, in ps."""
        return self.packet_ps if nbytes == self.packet_bytes else transfer_ps(nbytes, self.bw_gbs)

    def settle(self, now: int) -> None:
        """Forget the express transfers whose use of this link is over.

        One that ends here may be over before one that still waits in the FIFO; it goes together with that.
        """
        claims = self.claims
        while claims and claims[0].over_at <= now:
            claim = claims.popleft()
            claim.earlier = ()  # nobody asks any more; do not keep a chain of the past alive
            self.peak = max(self.peak, claim.peak)

    def carries_express(self, now: int) -> bool:
        """Whether it is in use, and not by packets."""
        return self.clear_at > now and not self.users

    def resume(self) -> None:
        """Packets use it, or have, where express transfers did: set ``clear_at`` to what holds then."""
        self.clear_at = NEVER if self.users else max(self.free_at, self.ready_at)

    def passed(self) -> None:
        """A packet-level transfer has passed; express transfers may follow the last one."""
        self.users -= 1
        if not self.users:
            self.resume()

    def request(self, source: Input, when: int) -> None:
        """``source`` asks for the link for its front packet, valid from ``when`` on."""
        now = self.clock.time
        if when <= now and self.free_at <= now and not (self.requests and self.requests[0][0] <= now):
            need = source.fifo[0].need
            free = self.used + need <= self.capacity or self._has_room(need, now)
        else:
            free = False
        if free:
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
        when = when if when > self.free_at else self.free_at
        when = when if when > now else now
        need = source.fifo[0].need
        if self.used + need > self.capacity:
            room_at = self._room_at(need, now)
            when = when if when > room_at else room_at
        if when < self.armed_at:
            self.armed_at = when
            self.clock.call_at(when, ARBITRATE, self, RANK_ARBITRATE + self.index)

    def arbitrate(self) -> None:
        """Grant the front request if that is possible now, and arm for the next one."""
        now = self.clock.time
        if self.armed_at <= now:
            self.armed_at = NEVER
        requests = self.requests
        if not requests:
            return
        when, _, source = requests[0]
        need = source.fifo[0].need
        room = self.used + need <= self.capacity or self._has_room(need, now)
        if room and when <= now and self.free_at <= now:
            del requests[0]
            self.grant(source, now)
        if requests:
            self.arm(now)

    def grant(self, source: Input, now: int) -> None:
        """Send the front packet of ``source``."""
        packet = source.fifo.popleft()
        size = packet.size
        free = now + (self.times_ps.get(size) or self.learn_time(size))
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
            self.peak = used if used > self.peak else self.peak
            if hop + 1 == len(packet.links):
                packet.need = 0
            packet.tail = tail + self.hop_ps
            self.clock.call_at(now + self.hop_ps, arrive, packet, self.arrive_rank)
        source.leave(packet, tail, now)

    def learn_time(self, size: int) -> int:
        """Time that a packet of ``size`` bytes occupies the link, in ps, from now on in ``times_ps``."""
        time_ps = self.times_ps[size] = self.serialise_ps(size)
        return time_ps

    def _finish(self, packet: Packet, tail: int, now: int) -> None:
        if packet.transfer.head_ps == NEVER:
            packet.transfer.head_ps = now + self.overhead_ps
        if packet.last:
            self.passed()
            self.clock.call_at(tail + self.overhead_ps, deliver, packet, RANK_DELIVER + self.index)

    def leave(self, packet: Packet, tail: int, now: int) -> None:
        """The FIFO gets its space back at ``tail``; the next packet may ask from then on."""
        self.ready_at = tail
        self.credits.append((tail, packet.size))
        if packet.last:
            self.passed()
        if self.requests:
            self.arm(now)
        if self.fifo:
            following = self.fifo[0]
            following.links[following.hop].request(self, tail)

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


def note_hop(times: HopTimes, packet: Packet, start: int, tail: int) -> None:
    """Remember a grant of a traced transfer: the first packet's start and the last one's tail."""
    if times.starts[packet.hop] < 0:
        times.starts[packet.hop] = start
    if packet.last:
        times.tails[packet.hop] = tail


def arrive(packet: Packet) -> None:
    """The head of ``packet`` is at the FIFO behind its last link."""
    link = packet.links[packet.hop - 1]
    fifo = link.fifo
    fifo.append(packet)
    if len(fifo) == 1:
        now = link.clock.time
        packet.links[packet.hop].request(link, link.ready_at if link.ready_at > now else now)


def deliver(packet: Packet) -> None:
    """The last byte of a transfer is there."""
    transfer = packet.transfer
    transfer.delivered(packet.links[-1].clock.time)


ARBITRATE = Link.arbitrate
