"""The network: links, routes, ports and deciding nodes, and the two paths of a transfer (express, or by packets).

The network calls a deciding node once for each transfer, when the transfer's head arrives; the packets follow the head.
The node may hold the head: the head, and everything behind it on the same link, then wait before they enter the FIFO. A
node may also hold packets, one after another.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from itertools import pairwise

from kernbench.common.errors import TransportError
from kernbench.common.units import ns_to_ps, ps_to_ns
from kernbench.common.values import state
from kernbench.core.clock import NEVER, Clock
from kernbench.transport import packets
from kernbench.transport.express import Express
from kernbench.transport.pacing import PacedLink, VaryingRate
from kernbench.transport.state import HopTimes, Link, Packet, Port, Route, Transfer
from kernbench.transport.timing import LinkFigures, RouteTiming, Supply
from kernbench.transport.watch import Watch


class Junction:
    """A deciding node at the far end of links (``Network.link``).

    ``decide(transfer, hop)`` returns the time in ps for which the node holds the head of a transfer. If the node
    ``divides`` traffic, ``decide`` may also send the transfer another way from link number ``hop`` of its route on
    (``Network.redirect``). ``hold_packet(packet)`` returns the time in ps for which the node holds a packet. It is
    called when the packet's head has arrived and all earlier packets of the same link have proceeded.
    """

    __slots__ = ("_arriving", "_decide", "_entered_at", "_hold_packet", "_waiting", "divides")

    def __init__(
        self,
        decide: Callable[[Transfer, int], int],
        *,
        divides: bool,
        hold_packet: Callable[[Packet], int] | None = None,
    ) -> None:
        self.divides = divides
        self._decide = decide
        self._hold_packet = hold_packet
        self._arriving: set[Transfer] = set()  # their heads have arrived, their last packets have not
        self._entered_at: dict[Link, int] = {}  # time at which the last packet enters the FIFO behind a link
        # By link, the arrived packets that are held, or wait behind a held packet.
        self._waiting: defaultdict[Link, deque[_WaitingPacket]] = defaultdict(deque)

    def arrive(self, packet: Packet) -> None:
        """Receive the head of ``packet`` at the node."""
        transfer, link = packet.transfer, packet.links[packet.hop - 1]
        held_ps = 0
        try:
            if transfer not in self._arriving:
                self._arriving.add(transfer)
                held_ps = self._decide(transfer, packet.hop)
        finally:  # after a failed decision the packet proceeds all the same, so that it blocks no other
            if packet.last:
                self._arriving.remove(transfer)
            packet.follow()
            if self._hold_packet is None:
                self._enter(packet, link, held_ps)
            else:
                waiting = self._waiting[link]
                waiting.append(_WaitingPacket(packet, link.clock.time + held_ps))
                if len(waiting) == 1:
                    self._admit(link)

    def _enter(self, packet: Packet, link: Link, held_ps: int) -> None:
        """Put ``packet`` into the FIFO, ``held_ps`` from now."""
        now = link.clock.time
        when = now + held_ps
        # The packet enters after the earlier packets of this link, which may enter at this instant, or later.
        before = self._entered_at.get(link, -1)
        self._entered_at[link] = when = max(when, before)
        if before < when == now:
            packets.arrive(packet)
        else:
            link.clock.call_at(when, packets.arrive, packet, link.arrive_rank)

    def _admit(self, link: Link) -> None:
        """Put the arrived packets of ``link`` into the FIFO behind it, each after its hold."""
        waiting, now = self._waiting[link], link.clock.time
        while waiting:
            first = waiting[0]
            if first.ready_ps > now:
                link.clock.call_at(first.ready_ps, self._admit, link, link.arrive_rank)
                return
            if not first.is_held:
                first.is_held = True
                first.ready_ps = now + self._hold(first.packet, link)
            else:
                packets.arrive(waiting.popleft().packet)

    def _hold(self, packet: Packet, link: Link) -> int:
        """Return the time in ps for which ``packet`` is held; after an error, still admit the next packet."""
        assert self._hold_packet is not None
        try:
            return self._hold_packet(packet)
        except Exception:
            link.clock.call_at(link.clock.time, self._admit, link, link.arrive_rank)
            raise


@state
class _WaitingPacket:
    """A packet at a node that holds packets; ``ready_ps`` is the earliest begin of its hold.

    ``is_held``: the hold has begun, and ``ready_ps`` is the end of the hold.
    """

    packet: Packet
    ready_ps: int
    is_held: bool = False


PORT_INDEX_BASE = 1 << 24


class Network:
    """Links, ports and transfers on one clock.

    ``packet_bytes`` is the unit of arbitration, the same on every link. ``express`` enables the exact fast path for
    uncontended transfers. While ``trace_hops`` is set, ``traced`` collects every new transfer with per-link times.
    """

    def __init__(self, packet_bytes: int = 1024, *, clock: Clock | None = None, express: bool = True) -> None:
        if packet_bytes < 1:
            raise TransportError(f"packet_bytes must be at least 1, not {packet_bytes}")
        self.packet_bytes = packet_bytes
        self.clock = clock if clock is not None else Clock()
        self.links: dict[tuple[str, str], Link] = {}
        self.watch = Watch()
        self.express = Express(self.clock, self.watch)
        self.express_enabled = express
        self.trace_hops = False
        self.traced: list[Transfer] = []
        self.n_transfers = 0
        self._link_indices: set[int] = set()
        self._ports: dict[tuple[str, str], Port] = {}
        self._routes: dict[tuple[str, ...], Route] = {}  # routes that ``route`` has returned, by nodes
        self._timings: dict[tuple[LinkFigures, ...], RouteTiming] = {}

    @property
    def now_ns(self) -> float:
        """The current time in ns."""
        return ps_to_ns(self.clock.time)

    @property
    def undelivered(self) -> int:
        """The number of transfers that have not been delivered."""
        return sum(port.undelivered for port in self._ports.values())

    def link(
        self,
        src: str,
        dst: str,
        *,
        bw_gbs: float,
        overhead_ns: float = 0.0,
        fifo_bytes: int | None = None,
        index: int | None = None,
        junction: Junction | None = None,
        rate: VaryingRate | None = None,
    ) -> Link:
        """Add a directed link. ``fifo_bytes`` bounds the FIFO at its far end (None: unbounded).

        ``index`` orders links, and the inputs they feed, at equal times; by default links have the order of the calls.
        ``junction`` decides at the far end. ``rate`` is the rate at the near end, bounded by ``bw_gbs``. Transfers over
        a link with a junction or a rate use packets. Raises TransportError for a link that exists, an index in use, or
        figures out of range.
        """
        if (src, dst) in self.links:
            raise TransportError(f"link {src} -> {dst} exists already")
        if bw_gbs <= 0 or overhead_ns < 0:
            raise TransportError(f"link {src} -> {dst}: bandwidth must be positive and overhead not negative")
        if fifo_bytes is not None and fifo_bytes < self.packet_bytes:
            raise TransportError(
                f"link {src} -> {dst}: a FIFO of {fifo_bytes} bytes holds no packet of {self.packet_bytes} bytes"
            )
        index = len(self.links) if index is None else index
        if index in self._link_indices:
            raise TransportError(
                f"link {src} -> {dst}: index {index} is in use; it orders links, so each link needs another"
            )
        self._link_indices.add(index)
        capacity = NEVER if fifo_bytes is None else fifo_bytes
        figures = LinkFigures(bw_gbs, ns_to_ps(overhead_ns), capacity, self.packet_bytes)
        arrive = packets.arrive if junction is None else junction.arrive
        link = (Link if rate is None else PacedLink)(
            self.clock, index, (src, dst), figures, self.watch, self.express.measure, arrive
        )
        if isinstance(link, PacedLink) and rate is not None:
            link.rate = rate
        if junction is not None or rate is not None:  # counts as a permanent user, so that no transfer goes express
            link.users, link.express_free_at = 1, NEVER
        self.links[src, dst] = link
        return link

    def port(self, node: str, channel: str = "") -> Port:
        """Return the port of ``node`` for ``channel``, such as a DMA queue; the first call makes the port."""
        port = self._ports.get((node, channel))
        if port is None:
            index, resume = PORT_INDEX_BASE + len(self._ports), self.express.resume
            port = self._ports[node, channel] = Port(index, node, resume, looks=self.express_enabled)
        return port

    def route(self, nodes: Sequence[str]) -> Route:
        """Return the cached route through ``nodes``. Raises TransportError as ``make_route`` does."""
        key = tuple(nodes)
        route = self._routes.get(key)
        if route is None:
            route = self._routes[key] = self.make_route(key)
        return route

    def make_route(self, nodes: tuple[str, ...]) -> Route:
        """Return a new route, which is not cached.

        Raises TransportError for fewer than two nodes, a missing link, or a link that occurs twice.
        """
        if len(nodes) < 2:
            raise TransportError(f"a route needs a source and a destination, not {list(nodes)}")
        if len(set(pairwise(nodes))) < len(nodes) - 1:
            raise TransportError(f"a route passes each link once: {' -> '.join(nodes)}")
        links = tuple(map(self._link_between, nodes, nodes[1:]))
        figures = tuple([link.figures for link in links])
        timing = self._timings.get(figures)
        if timing is None:
            timing = self._timings[figures] = RouteTiming(figures)
        return Route(links, timing)

    def _link_between(self, src: str, dst: str) -> Link:
        link = self.links.get((src, dst))
        if link is None:
            raise TransportError(f"there is no link {src} -> {dst}")
        return link

    def send(
        self,
        nodes: Sequence[str],
        nbytes: int,
        at_ns: float | None = None,
        *,
        channel: str = "",
        done: Callable[[Transfer], None] | None = None,
    ) -> Transfer:
        """Send ``nbytes`` along ``nodes`` at ``at_ns`` (default: now) from the source's port for ``channel``.

        Raises TransportError if ``at_ns`` is in the past.
        """
        transfer = self.make(self.port(nodes[0], channel), self.route(nodes), nbytes, done)
        when = self.clock.time if at_ns is None else ns_to_ps(at_ns)
        if when < self.clock.time:
            raise TransportError(f"at_ns={at_ns} is in the past; it is {self.now_ns} ns")
        self.clock.call_at(when, self.inject, transfer)
        return transfer

    def make(
        self,
        port: Port,
        route: Route,
        nbytes: int,
        done: Callable[[Transfer], None] | None = None,
        arg: object = None,
    ) -> Transfer:
        """Return a new transfer, not injected yet. Transfers are numbered in the order of these calls."""
        transfer = Transfer(port, route, nbytes, self.n_transfers, done, arg)
        self.n_transfers += 1
        port.undelivered += 1
        if self.trace_hops:
            transfer.hop_times = HopTimes(len(route.links))
            self.traced.append(transfer)
        return transfer

    def inject(self, transfer: Transfer, supply: Supply | None = None, *, open_ended: bool = False) -> None:
        """Put ``transfer`` on its port now.

        ``supply`` gives the times at which the transfer's bytes become available (default: at once). ``open_ended``:
        calls of the method ``supply`` add more packets later.
        """
        transfer.injected_ps = self.clock.time
        if self.watch.on:
            self.watch.open_transfer(transfer)
        if supply is not None or open_ended:
            transfer.extend_supplies(supply)
        if self.express_enabled and self.express.admit(transfer):
            return
        self._by_packets(transfer)

    def _by_packets(self, transfer: Transfer) -> None:
        self.express.revoke((transfer.port, *transfer.route.links))
        packets.enqueue(transfer, self.clock.time)

    def post(self, port: Port, route: Route, nbytes: int, done: Callable[[Transfer], None], arg: object) -> Transfer:
        """Make a transfer whose bytes are all available, put it on its port now, and return it."""
        if self.trace_hops or not self.express_enabled:
            transfer = self.make(port, route, nbytes, done, arg)
            self.inject(transfer)
            return transfer
        transfer = Transfer(port, route, nbytes, self.n_transfers, done, arg)
        self.n_transfers += 1
        port.undelivered += 1
        transfer.injected_ps = self.clock.time
        if self.watch.on:
            self.watch.open_transfer(transfer)
        if not self.express.admit(transfer):
            self._by_packets(transfer)
        return transfer

    def supply(self, transfer: Transfer, supply: Supply) -> None:
        """Make more packets of an injected transfer available."""
        packets.supply(transfer, supply, self.clock.time)

    def curtail(self, transfer: Transfer, count: int) -> None:
        """Withdraw the supply beyond the first ``count`` packets of ``transfer``; the caller resupplies the rest."""
        if transfer.express:
            self.express.revoke((transfer.port,))
        packets.curtail(transfer, count)

    def redirect(self, transfer: Transfer, at: int, way: tuple[Link, ...]) -> None:
        """Send ``transfer``, which uses packets, along the links ``way`` from link number ``at`` of its route on."""
        links = transfer.route.links
        planned, new_links = set(links[at:]), set(way)
        joined = [link for link in way if link not in planned]
        self.express.revoke(joined)
        for link in joined:
            link.users += 1
            link.express_free_at = NEVER
        for link in links[at:]:
            if link not in new_links:
                packets.release_link(link)
        links = (*links[:at], *way)
        transfer.route = Route(links, RouteTiming(tuple(link.figures for link in links)))
        if transfer.hop_times is not None:
            transfer.hop_times.resize(len(links))
        if self.watch.on:
            self.watch.note_detour(transfer)

    def run(self, until_ns: float | None = None) -> None:
        """Run until no event is left, or until ``until_ns``. Raises TransportError if packets are stuck for ever."""
        if until_ns is not None:
            self.clock.advance(ns_to_ps(until_ns))
            return
        self.clock.advance()
        self.check_quiescent()

    def check_quiescent(self) -> None:
        """Raise TransportError unless every transfer was delivered."""
        undelivered = self.undelivered
        if undelivered:
            stuck = [f"{a} -> {b}" for (a, b), link in self.links.items() if link.fifo or link.requests]
            raise TransportError(
                f"{undelivered} transfers were not delivered; "
                f"packets wait at: {', '.join(stuck) or 'their sources'}. "
                "A cycle of full FIFOs cannot drain: give one of the links an unbounded FIFO"
            )
