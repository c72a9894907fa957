"""The state of a network: links and ports where packets wait, routes over links, transfers and their packets.

They refer to each other; what happens to them is in ``packets.py`` and ``express.py``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from kernbench.common.errors import TransportError
from kernbench.common.units import ps_to_ns
from kernbench.common.values import value
from kernbench.core.clock import NEVER, RANK_ARRIVE, RANK_DELIVER, Clock
from kernbench.transport.timing import AT_ONCE, LinkFigures, Pace, Profile, Supply, Timing

if TYPE_CHECKING:
    from kernbench.transport.probe import Probe


class LinkUse(NamedTuple):
    """The use of a link: bytes carried, the time that took, and the most bytes in its FIFO."""

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
    """Per link of a traced transfer: when its first packet was granted and when its last byte had left."""

    __slots__ = ("starts", "tails")

    def __init__(self, n_links: int) -> None:
        self.starts = [-1] * n_links
        self.tails = [-1] * n_links

    def resize(self, n_links: int) -> None:
        """Change the number of links of a transfer, which takes another way from where its head is, to ``n_links``."""
        self.starts = [*self.starts, *[-1] * n_links][:n_links]
        self.tails = [*self.tails, *[-1] * n_links][:n_links]


class Packet:
    """A packet on its way."""

    __slots__ = ("hop", "last", "links", "need", "size", "tail", "transfer")

    def __init__(self, transfer: Transfer, size: int, last: bool, hop: int, tail: int) -> None:
        self.transfer = transfer
        self.links = transfer.route.links
        self.size = size
        self.last = last
        self.hop = hop  # the link it wants next
        self.need = size if hop + 1 < len(self.links) else 0  # FIFO space it needs there: a destination takes all
        self.tail = tail  # when its last byte is where its head waits

    @property
    def nbytes(self) -> int:
        """Its bytes."""
        return self.size

    @property
    def link(self) -> Link:
        """The link that it takes next."""
        return self.links[self.hop]

    def follow(self) -> None:
        """Go on as its transfer does by now: its head may have been sent another way."""
        self.links = self.transfer.route.links
        self.need = self.size if self.hop + 1 < len(self.links) else 0


class Waiting:
    """A place where packets wait for a link."""

    __slots__ = ("express_free_at", "fifo", "index", "left", "ready_at")

    def __init__(self, index: int) -> None:
        self.index = index
        self.fifo: deque[Packet] = deque()
        self.ready_at = 0  # when the packet that left last has left wholly
        self.express_free_at = 0  # from then on an express transfer finds nobody here; NEVER while packets use it
        self.left = -1  # where transport is watched, the number of who left it last, or was sent from it last


class LinkWatch(Protocol):
    """The observer of grants, if there is one (``watch.py``)."""

    on: bool
    keeps_links: bool

    def note_grant(self, link: Link, source: Input, transfer: Transfer, now: int) -> None:
        """Take note: a packet gets the link."""

    def note_stall(self, link: Link, transfer: Transfer) -> None:
        """Take note: a packet gets the link that has waited for space behind it."""

    def note_traffic(self, transfer: Transfer, link: Link, start: int, end: int, nbytes: int) -> None:
        """Take note: the link was busy with one or more packets."""


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
        "had",
        "hop_ps",
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
        """``measure`` says what the link has done up to now: what it carries express is entered later.

        ``arrive`` is called with a packet whose head is at the far end, unless that is where it ends.
        """
        super().__init__(index)
        self.clock = clock
        self.arrive_rank = RANK_ARRIVE + index
        self.src, self.dst = ends
        self.figures = figures
        self.bw_gbs, self.overhead_ps, self.capacity, _ = figures
        self.hop_ps = figures.hop_ps
        self.times_ps: dict[int, int] = {}  # of the packet sizes it has seen
        self.watch = watch
        self.measure = measure
        self.arrive = arrive
        self.free_at = 0
        self.requests: list[tuple[int, int, Input]] = []  # when they are valid, by which input
        self.armed_at = NEVER
        self.used = 0
        self.credits: deque[tuple[int, int]] = deque()
        self.users = 0  # packet-level transfers that have not passed it
        self.granted_bytes = 0
        self.had = -1  # where transport is watched, the number of who was granted it last
        self.busy_ps = 0
        self.peak = 0

    @property
    def nbytes(self) -> int:
        """Bytes it has carried up to now."""
        return self.measure(self).nbytes

    @property
    def busy_ns(self) -> float:
        """The time for which the link has been serialising, up to the packets started."""
        return ps_to_ns(self.measure(self).busy_ps)

    @property
    def peak_fifo_bytes(self) -> int:
        """The most bytes that were granted onto it and had not left its FIFO."""
        return self.measure(self).peak

    @property
    def busy_until_ns(self) -> float:
        """The time at which the link will have serialised what it has granted: now, if it is idle."""
        self.measure(self)
        return ps_to_ns(max(self.free_at, self.clock.time))

    @property
    def queued_bytes(self) -> int:
        """Bytes that have come to its near end and wait to be granted it."""
        waiting = (packet for _, _, source in self.requests for packet in source.fifo)
        return sum(packet.size for packet in waiting if packet.links[packet.hop] is self)

    def occupy_ps(self, nbytes: int) -> int:
        """Time that a packet of ``nbytes``, which is granted the link now, occupies it, in ps."""
        return self.serialise_ps(nbytes)

    def serialise_ps(self, nbytes: int) -> int:
        """Time that a packet of ``nbytes`` occupies the link, in ps."""
        found = self.times_ps.get(nbytes)
        if found is None:
            found = self.times_ps[nbytes] = self.figures.serialise_ps(nbytes)
        return found


_ENDLESS = 1 << 29


class Port(Waiting):
    """A source: one DMA queue, virtual channel or memory output. It cuts its transfers into packets one at a time.

    It ``looks`` if its way is free (``probe.py``), unless nothing goes express: after ``patience`` more packets, of
    ``interval`` in all. ``resume`` is called with a ``probe`` that has come through.
    """

    __slots__ = ("interval", "looks", "name", "patience", "probe", "queue", "resume", "undelivered")

    def __init__(self, index: int, name: str, resume: Callable[[Probe], None], *, looks: bool) -> None:
        super().__init__(index)
        self.name = name
        self.queue: deque[Transfer] = deque()  # those that go by packets
        self.undelivered = 0  # of the transfers made for it
        self.resume = resume
        self.looks = looks
        self.probe: Probe | None = None
        self.patience = self.interval = _ENDLESS

    def look_after(self, packets: int) -> None:
        """Look whether the way is free when ``packets`` have been cut; what was followed is followed no more."""
        self.probe = None
        self.patience = self.interval = packets if self.looks else _ENDLESS


Input: TypeAlias = Link | Port
"""Where a packet waits for a link: the FIFO behind another one, or a port"""


class Route:
    """The links from a source to a destination, in order.

    ``timing``: what transfers take on such links. ``carried``: how many express transfers of each profile have passed
    which the figures of the links do not have yet.
    """

    __slots__ = ("carried", "deliver_rank", "links", "packet_bytes", "timing")

    def __init__(self, links: tuple[Link, ...], timing: Timing) -> None:
        self.links = links
        self.timing = timing
        self.packet_bytes = links[0].figures.packet_bytes
        self.deliver_rank = RANK_DELIVER + links[-1].index
        self.carried: dict[Profile, int] = {}

    @property
    def bottleneck_gbs(self) -> float:
        """The smallest bandwidth on the way, bytes per ns."""
        return min(link.bw_gbs for link in self.links)

    @property
    def offsets(self) -> tuple[int, ...]:
        """The times of an undisturbed head at each link, in ps after its start."""
        return self.timing.offsets

    @property
    def total_overhead_ps(self) -> int:
        """The time of an undisturbed head at the destination, in ps after its start."""
        return self.timing.total_overhead_ps

    def latency_ps(self, nbytes: int, pace: Pace = AT_ONCE) -> int:
        """Time from injection to delivery when nobody else is there: Σ overhead + max(supply, S / min(bw))."""
        return self.timing.profile(nbytes, pace).latency_ps

    def add_express_traffic(self) -> None:
        """Add to the links what express transfers have ``carried``."""
        for profile, n in self.carried.items():
            for link, busy_ps in zip(self.links, profile.busy, strict=True):
                link.granted_bytes += n * profile.nbytes
                link.busy_ps += n * busy_ps
            for link, peak in zip(self.links, profile.peaks, strict=False):
                link.peak = max(link.peak, peak)
        self.carried.clear()


@value(eq=False)
class Way:
    """A way of a transfer from a node on: the ``links`` to its destination, in order."""

    links: tuple[Link, ...]

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that it enters; the last is the destination."""
        return tuple(link.dst for link in self.links)


class Transfer:
    """S bytes from a port along a route.

    Times in ps: ``injected_ps``, ``delivered_ps`` (NEVER until then), ``head_ps`` (first byte at the destination).
    While it is ``express`` it has no packets and follows its ``profile`` from ``start_ps`` on; it counts from packet
    ``resumed_at``; ``admission`` numbers express transfers in the order they were admitted, which is the order they use
    a link in. It has a ``probe`` while its packets are followed to see if the way is free. ``row``: of the log, if it
    is one. Where transport is watched it has a ``number``, and that of the one sent ``ahead`` of it.
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
    """Once it was admitted to the express path"""
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
        self.probe: Probe | None = None
        self.hop_times: HopTimes | None = None
        self.row = -1

    def deliver(self, now: int) -> None:
        """Deliver the transfer: its last byte is there."""
        self.delivered_ps = now
        self.port.undelivered -= 1
        done = self.done
        if done is not None:
            done(self)

    @property
    def source(self) -> str:
        """The node that it comes from."""
        return self.route.links[0].src

    @property
    def destination(self) -> str:
        """The node that it goes to."""
        return self.route.links[-1].dst

    @property
    def delivered_ns(self) -> float:
        """The time of delivery of the last byte; TransportError before that."""
        if self.delivered_ps == NEVER:
            raise TransportError(f"transfer {self.serial} has not been delivered; run the network first")
        return ps_to_ns(self.delivered_ps)

    @property
    def latency_ns(self) -> float:
        """From injection to delivery of the last byte."""
        return self.delivered_ns - ps_to_ns(self.injected_ps)

    @property
    def packets(self) -> int:
        """The number of packets of the transfer."""
        return self.n_full + 1

    @property
    def hops(self) -> tuple[Hop, ...]:
        """Return its start and end on each link, in order; TransportError when the network did not trace it."""
        if self.hop_times is None:
            raise TransportError("hops are kept only when the network traces them (Network.trace_hops)")
        return tuple(
            Hop(link.src, link.dst, start, tail)
            for link, start, tail in zip(self.route.links, self.hop_times.starts, self.hop_times.tails, strict=True)
        )

    def whole_supply(self, start_ps: int) -> Supply | None:
        """Return the one supply of all its packets that begins at ``start_ps`` or later; None without one."""
        only = self.supplies[0] if self.supplies is not None and len(self.supplies) == 1 else None
        if only is None or only.count != self.packets or only.start_ps < start_ps:
            return None
        return only

    def size_of(self, packet: int) -> int:
        """Return the bytes of packet number ``packet``."""
        return self.last_bytes if packet == self.n_full else self.route.packet_bytes

    def available(self, packet: int) -> tuple[int, int]:
        """Return the times of the first and last byte of ``packet`` at the source, in ps. Ask for packets in order."""
        if self.supplies is None:
            return 0, 0
        supply = self.supplies[self.supply_index]
        while packet >= supply.first + supply.count:
            self.supply_index += 1
            supply = self.supplies[self.supply_index]
        head = supply.start_ps + (packet - supply.first) * supply.pace.packet_ps
        return head, head + (supply.pace.last_ps if packet == self.n_full else supply.pace.packet_ps)

    def extend_supplies(self, supply: Supply | None) -> None:
        """Make the bytes available in stretches, of which ``supply`` is the next, if one is known."""
        if self.supplies is None:
            self.supplies = []
            self.supplied = 0
        if supply is not None:
            self.supplies.append(supply)
            self.supplied = supply.first + supply.count

    def curtail_supplies(self, count: int) -> None:
        """Forget what was promised beyond the first ``count`` packets."""
        kept: list[Supply] = []
        for supply in self.supplies or ():
            if supply.first < count:
                n = min(supply.count, count - supply.first)
                kept.append(Supply(supply.first, n, supply.start_ps, supply.pace))
        self.supplies = kept
        self.supplied = count
