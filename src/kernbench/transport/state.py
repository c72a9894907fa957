"""The state of a network: links and ports where packets wait, routes over links, transfers and their packets.

The classes refer to each other. ``packets.py`` and ``express.py`` have the rules that change the state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias

from kernbench.common.errors import TransportError
from kernbench.common.units import ps_to_ns
from kernbench.common.values import value
from kernbench.core.clock import NEVER, RANK_ARRIVE, RANK_DELIVER, Clock
from kernbench.transport.timing import AT_ONCE, LinkFigures, Pace, Profile, RouteTiming, Supply


class LinkUse(NamedTuple):
    """The use of a link: bytes carried, busy time in ps, and the largest number of bytes in its FIFO."""

    nbytes: int
    busy_ps: int
    peak: int


@value
class Hop:
    """A transfer on one link: its first byte entered at ``start_ps``, its last byte left at ``tail_ps``."""

    src: str
    dst: str
    start_ps: int
    tail_ps: int


class HopTimes:
    """The times of a traced transfer by link: the first packet's grant, and the last byte's departure."""

    __slots__ = ("starts", "tails")

    def __init__(self, n_links: int) -> None:
        self.starts = [-1] * n_links
        self.tails = [-1] * n_links

    def resize(self, n_links: int) -> None:
        """Set the number of links of a transfer to ``n_links``, after a detour that begins at its head."""
        self.starts = [*self.starts, *[-1] * n_links][:n_links]
        self.tails = [*self.tails, *[-1] * n_links][:n_links]


class Packet:
    """A packet in flight."""

    __slots__ = ("hop", "last", "links", "need", "size", "tail", "transfer")

    def __init__(self, transfer: Transfer, size: int, last: bool, hop: int, tail: int) -> None:
        self.transfer = transfer
        self.links = transfer.route.links
        self.size = size
        self.last = last
        self.hop = hop  # number of the next link
        self.need = size if hop + 1 < len(self.links) else 0  # FIFO space behind that link; a destination needs none
        self.tail = tail  # time at which the packet's last byte reaches the place of its head

    @property
    def nbytes(self) -> int:
        """The size of the packet in bytes."""
        return self.size

    @property
    def link(self) -> Link:
        """The next link of the packet."""
        return self.links[self.hop]

    def follow(self) -> None:
        """Set the packet to the current route of its transfer, whose head may have been sent another way."""
        self.links = self.transfer.route.links
        self.need = self.size if self.hop + 1 < len(self.links) else 0


class Waiting:
    """A place where packets wait for a link."""

    __slots__ = ("express_free_at", "fifo", "index", "last_sent", "ready_at")

    def __init__(self, index: int) -> None:
        self.index = index
        self.fifo: deque[Packet] = deque()
        self.ready_at = 0  # time at which the last byte of the latest packet has left
        self.express_free_at = 0  # time from which an express transfer may use this place; NEVER while packets use it
        self.last_sent = -1  # if transport is watched: number of the transfer that last left, or was sent from, here


class LinkWatch(Protocol):
    """The observer of grants (``watch.py``)."""

    on: bool
    keeps_links: bool

    def note_grant(self, link: Link, source: PacketInput, transfer: Transfer, now: int) -> None:
        """Record that a packet is granted the link."""

    def note_stall(self, link: Link, transfer: Transfer) -> None:
        """Record that the granted packet has waited for FIFO space behind the link."""

    def note_traffic(self, transfer: Transfer, link: Link, start: int, end: int, nbytes: int) -> None:
        """Record that the link was busy with one or more packets."""


class Link(Waiting):
    """A directed link and the FIFO at its far end."""

    __slots__ = (
        "armed_at",
        "arrive",
        "arrive_rank",
        "busy_ps",
        "bw_gbs",
        "capacity",
        "clock",
        "credits",
        "dst",
        "figures",
        "free_at",
        "granted_bytes",
        "hop_ps",
        "last_granted",
        "measure",
        "overhead_ps",
        "peak",
        "requests",
        "src",
        "times_ps",
        "used",
        "users",
        "watch",
    )

    def __init__(
        self,
        clock: Clock,
        index: int,
        ends: tuple[str, str],
        figures: LinkFigures,
        watch: LinkWatch,
        measure: Callable[[Link], LinkUse],
        arrive: Callable[[Packet], None],
    ) -> None:
        """Initialise an idle link.

        ``measure`` returns the link's use up to now: express traffic is added to the link's fields only later.
        ``arrive`` is called with each packet whose head reaches the far end, unless that is its destination.
        """
        super().__init__(index)
        self.clock = clock
        self.arrive_rank = RANK_ARRIVE + index
        self.src, self.dst = ends
        self.figures = figures
        self.bw_gbs, self.overhead_ps, self.capacity, _ = figures
        self.hop_ps = figures.hop_ps
        self.times_ps: dict[int, int] = {}  # serialisation time by packet size
        self.watch = watch
        self.measure = measure
        self.arrive = arrive
        self.free_at = 0
        self.requests: list[tuple[int, int, PacketInput]] = []  # (time from which valid, index of the input, input)
        self.armed_at = NEVER
        self.used = 0
        self.credits: deque[tuple[int, int]] = deque()
        self.users = 0  # number of transfers by packets that have not passed the link
        self.granted_bytes = 0
        self.last_granted = -1  # if transport is watched: the number of the transfer that was granted the link last
        self.busy_ps = 0
        self.peak = 0

    @property
    def nbytes(self) -> int:
        """The number of bytes that the link has carried up to now."""
        return self.measure(self).nbytes

    @property
    def busy_ns(self) -> float:
        """The time in ns for which the link has been serialising, including started packets."""
        return ps_to_ns(self.measure(self).busy_ps)

    @property
    def peak_fifo_bytes(self) -> int:
        """The largest number of bytes that were granted the link and had not left its FIFO."""
        return self.measure(self).peak

    @property
    def busy_until_ns(self) -> float:
        """The time in ns at which the link will have serialised all granted packets: now, if it is idle."""
        self.measure(self)
        return ps_to_ns(max(self.free_at, self.clock.time))

    @property
    def queued_bytes(self) -> int:
        """The number of bytes that wait at the near end for a grant."""
        waiting = (packet for _, _, source in self.requests for packet in source.fifo)
        return sum(packet.size for packet in waiting if packet.links[packet.hop] is self)

    def occupy_ps(self, nbytes: int) -> int:
        """Return the time in ps for which a packet of ``nbytes``, granted now, occupies the link."""
        return self.serialise_ps(nbytes)

    def serialise_ps(self, nbytes: int) -> int:
        """Return the time in ps for which a packet of ``nbytes`` occupies the link."""
        duration_ps = self.times_ps.get(nbytes)
        if duration_ps is None:
            duration_ps = self.times_ps[nbytes] = self.figures.serialise_ps(nbytes)
        return duration_ps


_ENDLESS = 1 << 29


class Port(Waiting):
    """A source: one DMA queue, virtual channel or memory output.

    The port cuts its transfers into packets one at a time. If ``looks`` is set, the port probes for a free way
    (``probe.py``) every ``interval`` packets; ``patience`` counts the packets left until the next probe. A network
    without express transfers never probes. The port calls ``resume`` with a successful ``probe``.
    """

    __slots__ = ("interval", "looks", "name", "patience", "probe", "queue", "resume", "undelivered")

    def __init__(self, index: int, name: str, resume: Callable[[Follower], None], *, looks: bool) -> None:
        super().__init__(index)
        self.name = name
        self.queue: deque[Transfer] = deque()  # transfers by packets
        self.undelivered = 0  # number of the port's transfers that are not delivered
        self.resume = resume
        self.looks = looks
        self.probe: Follower | None = None
        self.patience = self.interval = _ENDLESS

    def look_after(self, packets: int) -> None:
        """Probe for a free way after ``packets`` more packets; drop the current probe."""
        self.probe = None
        self.patience = self.interval = packets if self.looks else _ENDLESS


PacketInput: TypeAlias = Link | Port
"""The place where a packet waits for a link: the FIFO behind another link, or a port"""


class Route:
    """The links from a source to a destination, in order.

    ``timing``: the durations of transfers over such links. ``carried``: by profile, the number of delivered express
    transfers that the links' fields do not include yet.
    """

    __slots__ = ("carried", "deliver_rank", "links", "packet_bytes", "timing")

    def __init__(self, links: tuple[Link, ...], timing: RouteTiming) -> None:
        self.links = links
        self.timing = timing
        self.packet_bytes = links[0].figures.packet_bytes
        self.deliver_rank = RANK_DELIVER + links[-1].index
        self.carried: dict[Profile, int] = {}

    @property
    def bottleneck_gbs(self) -> float:
        """The smallest bandwidth on the route in GB/s (bytes per ns)."""
        return min(link.bw_gbs for link in self.links)

    @property
    def offsets(self) -> tuple[int, ...]:
        """The arrival times of an uncontended head at each link, in ps after its start."""
        return self.timing.offsets

    @property
    def total_overhead_ps(self) -> int:
        """The arrival time of an uncontended head at the destination, in ps after its start."""
        return self.timing.total_overhead_ps

    def latency_ps(self, nbytes: int, pace: Pace = AT_ONCE) -> int:
        """Return the uncontended latency of S bytes in ps: Σ overhead + max(supply, S / min(bw)).

        The closed form is that of ``timing.py``.
        """
        return self.timing.profile(nbytes, pace).latency_ps

    def add_express_traffic(self) -> None:
        """Add the traffic of the express transfers counted in ``carried`` to the fields of the links."""
        for profile, n in self.carried.items():
            for link, busy_ps in zip(self.links, profile.busy, strict=True):
                link.granted_bytes += n * profile.nbytes
                link.busy_ps += n * busy_ps
            for link, peak in zip(self.links, profile.peaks, strict=False):
                link.peak = max(link.peak, peak)
        self.carried.clear()


@value(eq=False)
class Way:
    """A way of a transfer from a node to its destination: ``links``, in order."""

    links: tuple[Link, ...]

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that the way enters; the last is the destination."""
        return tuple(link.dst for link in self.links)


class Transfer:
    """A number of bytes from a port along a route.

    - ``injected_ps``, ``head_ps``, ``delivered_ps``: the times in ps of injection, of the first and of the last byte at
      the destination; NEVER until the event.
    - ``express``: the transfer has no packets; it follows ``profile`` from ``start_ps`` on. The profile begins at
      packet ``resumed_at``.
    - ``admission``: the number of an express transfer in order of admission, which is the order of use of every link.
    - ``probe``: set while the transfer's packets are followed to detect a free way.
    - ``row``: the transfer's row in the log, if it has one, else -1.
    - ``number``, ``ahead``: if transport is watched, the number of this transfer and of the previous one of its port.
    """

    __slots__ = (
        "admission",
        "ahead",
        "arg",
        "delivered_ps",
        "done",
        "express",
        "head_ps",
        "hop_times",
        "injected_ps",
        "last_bytes",
        "n_full",
        "nbytes",
        "next_packet",
        "number",
        "port",
        "probe",
        "profile",
        "resumed_at",
        "route",
        "row",
        "serial",
        "start_ps",
        "supplied",
        "supplies",
        "supply_index",
    )

    profile: Profile
    """Set when the transfer is admitted to the express path"""
    number: int
    ahead: int

    def __init__(
        self,
        port: Port,
        route: Route,
        nbytes: int,
        serial: int,
        done: Callable[[Transfer], None] | None,
        arg: object,
    ) -> None:
        if nbytes < 1:
            raise TransportError(f"a transfer carries at least one byte, not {nbytes}")
        self.port = port
        self.route = route
        self.nbytes = nbytes
        self.serial = serial
        self.done = done
        self.arg = arg
        size = route.packet_bytes
        self.n_full = n_full = 0 if nbytes <= size else (nbytes - 1) // size
        self.last_bytes = nbytes - n_full * size
        self.next_packet = 0
        self.supplies: list[Supply] | None = None
        self.supply_index = 0
        self.supplied = n_full + 1
        self.injected_ps = self.delivered_ps = self.head_ps = NEVER
        self.start_ps = 0
        self.admission = -1
        self.express = False
        self.resumed_at = 0
        self.probe: Follower | None = None
        self.hop_times: HopTimes | None = None
        self.row = -1

    def deliver(self, now: int) -> None:
        """Deliver the transfer at ``now``, when its last byte arrives, and call ``done``."""
        self.delivered_ps = now
        self.port.undelivered -= 1
        done = self.done
        if done is not None:
            done(self)

    @property
    def source(self) -> str:
        """The node that sends the transfer."""
        return self.route.links[0].src

    @property
    def destination(self) -> str:
        """The node that receives the transfer."""
        return self.route.links[-1].dst

    @property
    def delivered_ns(self) -> float:
        """The time of delivery of the last byte in ns. Raises TransportError before the delivery."""
        if self.delivered_ps == NEVER:
            raise TransportError(f"transfer {self.serial} has not been delivered; run the network first")
        return ps_to_ns(self.delivered_ps)

    @property
    def latency_ns(self) -> float:
        """The time from injection to delivery of the last byte in ns. Raises TransportError before the delivery."""
        return self.delivered_ns - ps_to_ns(self.injected_ps)

    @property
    def packets(self) -> int:
        """The number of packets of the transfer."""
        return self.n_full + 1

    @property
    def hops(self) -> tuple[Hop, ...]:
        """The start and end on each link, in order. Raises TransportError if the network did not trace the transfer."""
        if self.hop_times is None:
            raise TransportError("hops are recorded only when the network traces them (Network.trace_hops)")
        return tuple(
            Hop(link.src, link.dst, start, tail)
            for link, start, tail in zip(self.route.links, self.hop_times.starts, self.hop_times.tails, strict=True)
        )

    def whole_supply(self, start_ps: int) -> Supply | None:
        """Return the supply if a single supply covers all packets and begins at ``start_ps`` or later; else None."""
        supply = self.supplies[0] if self.supplies is not None and len(self.supplies) == 1 else None
        if supply is None or supply.count != self.packets or supply.start_ps < start_ps:
            return None
        return supply

    def size_of(self, packet: int) -> int:
        """Return the bytes of packet number ``packet``."""
        return self.last_bytes if packet == self.n_full else self.route.packet_bytes

    def available(self, packet: int) -> tuple[int, int]:
        """Return the times of the first and last byte of ``packet`` at the source, in ps. Call it in packet order."""
        if self.supplies is None:
            return 0, 0
        supply = self.supplies[self.supply_index]
        while packet >= supply.first + supply.count:
            self.supply_index += 1
            supply = self.supplies[self.supply_index]
        head = supply.start_ps + (packet - supply.first) * supply.pace.packet_ps
        return head, head + (supply.pace.last_ps if packet == self.n_full else supply.pace.packet_ps)

    def extend_supplies(self, supply: Supply | None) -> None:
        """Append ``supply``. None: append nothing, but mark the transfer as supplied by later calls."""
        if self.supplies is None:
            self.supplies = []
            self.supplied = 0
        if supply is not None:
            self.supplies.append(supply)
            self.supplied = supply.first + supply.count

    def curtail_supplies(self, count: int) -> None:
        """Withdraw the supplies beyond the first ``count`` packets."""
        remaining: list[Supply] = []
        for supply in self.supplies or ():
            if supply.first < count:
                n = min(supply.count, count - supply.first)
                remaining.append(Supply(supply.first, n, supply.start_ps, supply.pace))
        self.supplies = remaining
        self.supplied = count


class Course:
    """The times of a transfer from packet ``first`` on: those of ``profile``, started at ``start_ps``.

    ``granted[j]``: the number of these packets that were granted link j of the route.
    """

    __slots__ = ("first", "granted", "profile", "start_ps", "transfer")

    def __init__(self, transfer: Transfer, first: int, start_ps: int, profile: Profile) -> None:
        self.transfer = transfer
        self.first = first
        self.start_ps = start_ps
        self.profile = profile
        self.granted = [0] * len(profile.pace)

    def end_ps(self, hop: int) -> int:
        """Return the time in ps at which the last byte has left onto link number ``hop``."""
        return self.start_ps + self.profile.offsets[hop] + self.profile.ends[hop]

    def uses(self, hop: int) -> bool:
        """Return True while a packet of the course uses link number ``hop``, or the FIFO behind it."""
        return self.granted[min(hop + 1, len(self.granted) - 1)] <= self.profile.n_full

    def granted_bytes(self, hop: int) -> int:
        """Return the bytes of the packets that were granted link number ``hop``."""
        n, profile = self.granted[hop], self.profile
        return profile.nbytes if n > profile.n_full else n * profile.packet_bytes

    def granted_ps(self, hop: int) -> int:
        """Return the serialisation time in ps of the packets that were granted link number ``hop``."""
        n, profile, link = self.granted[hop], self.profile, self.transfer.route.links[hop]
        last_ps = link.serialise_ps(self.transfer.last_bytes) if n > profile.n_full else 0
        return min(n, profile.n_full) * link.serialise_ps(profile.packet_bytes) + last_ps


class Follower(Protocol):
    """Follows a packet of a port, and all packets behind it, until their future is certain: a ``Probe``."""

    port: Port
    starts: list[int]
    packets: list[Packet]

    def follow(self, packet: Packet) -> None:
        """Follow a packet that the port has just cut."""

    def note(self, packet: Packet, now: int) -> None:
        """Record that a packet is granted its next link."""

    def end(self) -> None:
        """Stop following packets."""

    def find_courses(self, now: int) -> list[Course]:
        """Return the courses of the port's transfers if all are certain; else an empty list."""
