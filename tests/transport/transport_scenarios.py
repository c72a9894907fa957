"""Random networks with random traffic, and what a run of one of them shows. Used by the transport's tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from random import Random

from kernbench.core.observed import Observed
from kernbench.transport import AT_ONCE, Hop, Network, Pace, Supply, Transfer
from observed import watched

PACKET_BYTES = (4, 16, 64, 256)
BANDWIDTHS = (1.0, 2.0, 3.7, 64.0, 128.0, 204.8, 256.0, 100_000.0)
OVERHEADS_NS = (0.0, 0.0, 0.5, 1.0, 2.0, 5.0, 8.003, 20.0)


@dataclass(frozen=True, slots=True)
class Wire:
    """A link of a scenario."""

    src: str
    dst: str
    bw_gbs: float
    overhead_ns: float
    fifo_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Feed:
    """At ``at_ps`` the source promises ``supply``, or takes back all but the first ``keep`` packets."""

    at_ps: int
    supply: Supply | None = None
    keep: int = 0


@dataclass(frozen=True, slots=True)
class Send:
    """A transfer of a scenario. Without ``feeds`` its bytes are there at once."""

    nodes: tuple[str, ...]
    nbytes: int
    at_ps: int
    channel: str = ""
    feeds: tuple[Feed, ...] = ()


@dataclass(frozen=True, slots=True)
class Scenario:
    """``stops_ns``: when the statistics of the links are looked at on the way."""

    packet_bytes: int
    wires: tuple[Wire, ...]
    sends: tuple[Send, ...]
    stops_ns: tuple[float, ...] = ()

    @property
    def packet_hops(self) -> int:
        """K·H summed over all transfers."""
        return sum(-(-s.nbytes // self.packet_bytes) * (len(s.nodes) - 1) for s in self.sends)


LinkFigures = tuple[tuple[str, str, int, float, int], ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What must not depend on the express path."""

    delivered_ps: tuple[int, ...]
    head_ps: tuple[int, ...]
    hops: tuple[tuple[Hop, ...], ...]
    links: LinkFigures
    links_at_stops: tuple[LinkFigures, ...]
    carried: dict[tuple[str, str, int], tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class Run:
    """``events``: those of the transport, without the calls that inject and feed."""

    outcome: Outcome
    events: int
    admitted: int
    revoked: int
    resumed: int


def carried(net: Network, tables: Observed) -> dict[tuple[str, str, int], tuple[int, int, int]]:
    """First start, last end and bytes per link and transfer."""
    serials = tables.transfers().of
    found: dict[tuple[str, str, int], tuple[int, int, int]] = {}
    links = {link.index: key for key, link in net.links.items()}
    for number, link, start, end, nbytes in zip(*(each.tolist() for each in tables.carried()), strict=True):
        key = (*links[link], int(serials[number]))
        first, last, total = found.get(key, (start, end, 0))
        found[key] = min(first, start), max(last, end), total + nbytes
    return dict(sorted(found.items()))


def build(packet_bytes: int, wires: tuple[Wire, ...], *, express: bool = True) -> Network:
    """A network with ``wires``; each transfer's hops are kept."""
    net = Network(packet_bytes, express=express)
    net.trace_hops = True
    for w in wires:
        net.link(w.src, w.dst, bw_gbs=w.bw_gbs, overhead_ns=w.overhead_ns, fifo_bytes=w.fifo_bytes)
    return net


def link_figures(net: Network) -> LinkFigures:
    return tuple((a, b, x.nbytes, x.busy_ns, x.peak_fifo_bytes) for (a, b), x in net.links.items())


def post(net: Network, send: Send) -> Transfer:
    """Schedule ``send`` and its feeds."""
    transfer = net.make(net.port(send.nodes[0], send.channel), net.route(send.nodes), send.nbytes)
    if not send.feeds:
        net.clock.call_at(send.at_ps, net.inject, transfer)
    else:
        head = send.feeds[0]
        net.clock.call_at(head.at_ps, lambda _: net.inject(transfer, head.supply, open_ended=True))
    for feed in send.feeds[1:]:
        net.clock.call_at(feed.at_ps, _fed(net, transfer), feed)
    return transfer


def _fed(net: Network, transfer: Transfer) -> Callable[[Feed], None]:
    def apply(feed: Feed) -> None:
        if feed.supply is None:
            net.curtail(transfer, feed.keep)
        else:
            net.supply(transfer, feed.supply)

    return apply


def run(scenario: Scenario, *, express: bool) -> Run:
    """Run ``scenario`` to the end."""
    net = build(scenario.packet_bytes, scenario.wires, express=express)
    tables = watched(net)
    transfers = [post(net, send) for send in scenario.sends]
    stops: list[LinkFigures] = []
    for stop in scenario.stops_ns:
        net.run(until_ns=stop)
        stops.append(link_figures(net))
    net.run()
    calls = sum(max(1, len(s.feeds)) for s in scenario.sends)
    outcome = Outcome(
        tuple(t.delivered_ps for t in transfers),
        tuple(t.head_ps for t in transfers),
        tuple(t.hops for t in transfers),
        link_figures(net),
        tuple(stops),
        carried(net, tables),
    )
    path = net.express
    return Run(outcome, net.clock.n_events - calls, path.n_admitted, path.n_revoked, path.n_resumed)


def random_scenario(rng: Random, *, cyclic: bool = False, fed: float = 0.0) -> Scenario:
    """A network of 3 to 9 nodes. ``cyclic``: links both ways and no bounded FIFO. ``fed``: share of paced transfers."""
    n = rng.randint(3, 9)
    packet_bytes = rng.choice(PACKET_BYTES)
    wires = _random_wires(rng, n, packet_bytes, cyclic)
    followers: dict[str, list[str]] = {f"n{i}": [] for i in range(n)}
    for wire in wires:
        followers[wire.src].append(wire.dst)
    scale_ns = rng.choice([0.1, 1, 10, 100, 1000])
    sends = _random_sends(rng, followers, packet_bytes, scale_ns, fed)
    end_ns = max(s.at_ps for s in sends) / 1000
    stops = tuple(sorted(round(rng.uniform(0, 2 * end_ns + 10), 3) for _ in range(4)))
    return Scenario(packet_bytes, wires, sends, stops)


def _random_wires(rng: Random, n: int, packet_bytes: int, cyclic: bool) -> tuple[Wire, ...]:
    bounded = (None, packet_bytes, packet_bytes * 2 + 3, packet_bytes * 4, packet_bytes * 8)
    wires: list[Wire] = []
    for i in range(n):
        for j in range(n) if cyclic else range(i + 1, n):
            if i != j and (j == (i + 1) % n or rng.random() < 0.4):
                fifo = None if cyclic else rng.choice(bounded)
                wires.append(Wire(f"n{i}", f"n{j}", rng.choice(BANDWIDTHS), rng.choice(OVERHEADS_NS), fifo))
    return tuple(wires)


def _random_sends(
    rng: Random, followers: dict[str, list[str]], packet_bytes: int, scale_ns: float, fed: float
) -> tuple[Send, ...]:
    sends: list[Send] = []
    at = 0
    for _ in range(rng.randint(1, 40)):
        gap_ns = rng.choice([0.0, 0.0, rng.random() * scale_ns, float(round(rng.random() * scale_ns))])
        at += round(gap_ns * 1000)
        nbytes = rng.choice([1, 3, packet_bytes, packet_bytes + 1, packet_bytes * 3, rng.randint(1, packet_bytes * 40)])
        nodes = _random_walk(rng, followers)
        feeds = random_feeds(rng, nbytes, packet_bytes, at, scale_ns) if rng.random() < fed else ()
        sends.append(Send(nodes, nbytes, at, rng.choice(["", "b"]), feeds))
    if rng.random() < 0.5:
        rng.shuffle(sends)  # transfers are then not numbered in the order they are injected
    return tuple(sends)


def random_messages(rng: Random, *, fed: float = 0.0) -> Scenario:
    """Up to 150 transfers, most of one packet, on a few ways of 3 to 7 nodes whose FIFOs hold one to three packets."""
    n = rng.randint(3, 7)
    packet_bytes = rng.choice(PACKET_BYTES)
    bounded = (None, packet_bytes, packet_bytes + 1, packet_bytes * 2 - 1, packet_bytes * 2, packet_bytes * 3)
    rates = rng.sample(BANDWIDTHS, rng.randint(1, 3))
    overheads_ns = rng.sample(OVERHEADS_NS, rng.randint(1, 3))
    wires = tuple(
        Wire(f"n{i}", f"n{j}", rng.choice(rates), rng.choice(overheads_ns), rng.choice(bounded))
        for i in range(n)
        for j in range(i + 1, n)
        if j == i + 1 or rng.random() < 0.2
    )
    followers: dict[str, list[str]] = {f"n{i}": [w.dst for w in wires if w.src == f"n{i}"] for i in range(n)}
    ways = [_random_walk(rng, followers) for _ in range(rng.choice([1, 1, 2, 6]))]
    gap_ps = round(rng.choice([0.1, 1.0, 3.0]) * (1000 * packet_bytes / max(rates) + 1000 * max(overheads_ns)))
    most = rng.choice([1.0, 0.95, 0.7])
    sends: list[Send] = []
    at = 0
    for _ in range(rng.randint(1, 150)):
        at += rng.choice([0, gap_ps, rng.randint(0, 2 * gap_ps)])
        small = rng.choice([1, packet_bytes - 1, packet_bytes, rng.randint(1, packet_bytes)])
        nbytes = small if rng.random() < most else rng.randint(1, packet_bytes * 20)
        feeds = random_feeds(rng, nbytes, packet_bytes, at, gap_ps / 100) if rng.random() < fed else ()
        sends.append(Send(rng.choice(ways), nbytes, at, rng.choice(["", "", "b"]), feeds))
    stops = tuple(sorted(round(rng.uniform(0, 1.2 * at / 1000 + 10), 3) for _ in range(rng.choice([0, 3]))))
    return Scenario(packet_bytes, wires, tuple(sends), stops)


def random_disturbances(rng: Random) -> Scenario:
    """Streams of 30 to 400 packets down a chain, in one transfer or in many, and small transfers that come in between.

    Those come to any part of the chain and leave it anywhere, alone or in groups. Most of the time the way is free.
    """
    n, packet_bytes = rng.randint(1, 7), rng.choice(PACKET_BYTES)
    rates = rng.sample(BANDWIDTHS, rng.randint(1, 3))
    overheads_ns = rng.sample(OVERHEADS_NS, rng.randint(1, 3))
    fifos = rng.choice([(None,), (None, 8 * packet_bytes, 30 * packet_bytes), (2 * packet_bytes, 4 * packet_bytes)])
    nodes = [f"n{i}" for i in range(n + 1)]
    chain = [Wire(a, b, rng.choice(rates), rng.choice(overheads_ns), rng.choice(fifos)) for a, b in pairwise(nodes)]
    sides = [
        Wire(f"in{i}", a, rng.choice(rates), rng.choice(overheads_ns), rng.choice(fifos)) for i, a in enumerate(nodes)
    ]
    sides += [Wire(a, f"out{i}", rng.choice(rates), rng.choice(overheads_ns)) for i, a in enumerate(nodes)]
    packet_ps = round(1000 * packet_bytes / min(rates))
    sends: list[Send] = []
    end_ps = 0
    for channel in ("", "b")[: rng.choice([1, 1, 2])]:
        begin, packets = rng.randint(0, 20 * packet_ps), rng.randint(30, 400)
        sends += _random_stream(rng, tuple(nodes), packets, packet_bytes, begin, packet_ps, channel)
        end_ps = max(end_ps, begin + packets * packet_ps)
    for _ in range(rng.randint(1, 12)):
        at, first, last = rng.randint(0, end_ps), rng.randint(0, n), rng.randint(0, n)
        first, last = min(first, last), max(first, last)
        way = (f"in{first}", *nodes[first : last + 1], f"out{last}")
        way = way[rng.choice([0, 0, 1]) :]
        for _ in range(rng.choice([1, 1, 4])):
            nbytes = rng.choice([1, packet_bytes, rng.randint(1, 8 * packet_bytes)])
            sends.append(Send(way, nbytes, at + rng.choice([0, rng.randint(0, 4 * packet_ps)]), rng.choice(["", "c"])))
    stops = tuple(round(rng.uniform(0, end_ps / 1000), 3) for _ in range(rng.choice([0, 4])))
    return Scenario(
        packet_bytes, (*chain, *sides), tuple(sorted(sends, key=lambda send: send.at_ps)), tuple(sorted(stops))
    )


def _random_stream(
    rng: Random, nodes: tuple[str, ...], packets: int, packet_bytes: int, at_ps: int, packet_ps: int, channel: str
) -> list[Send]:
    """Return ``packets`` in one transfer, or in many of 1 to 8; all there at once, or supplied one after another."""
    of = packets if rng.random() < 0.5 else rng.randint(1, 8)
    pace = Pace(round(packet_ps * rng.choice([0.3, 1.0, 1.4, 3.0])), 0) if rng.random() < 0.7 else AT_ONCE
    pace = Pace(pace.packet_ps, rng.choice([pace.packet_ps, pace.packet_ps // 3]))
    sends: list[Send] = []
    ready = at_ps
    while packets > 0:
        count = min(of, packets)
        nbytes = count * packet_bytes - rng.choice([0, 0, rng.randrange(packet_bytes)])
        called = at_ps if rng.random() < 0.5 else max(at_ps, ready - rng.randint(0, 8 * packet_ps))
        at_ps = called
        if pace == AT_ONCE:
            feeds: tuple[Feed, ...] = ()
        elif rng.random() < 0.1:
            feeds = random_feeds(rng, nbytes, packet_bytes, called, packet_ps / 100)
            ready = max(ready, *(each.supply.start_ps for each in feeds if each.supply))
        else:
            feeds = (Feed(called, Supply(0, -(-nbytes // packet_bytes), max(called, ready), pace)),)
            ready = max(called, ready) + (count - 1) * pace.packet_ps + pace.last_ps
        sends.append(Send(nodes, nbytes, called, channel, feeds))
        packets -= count
    return sends


def _random_walk(rng: Random, followers: dict[str, list[str]]) -> tuple[str, ...]:
    nodes = [rng.choice([name for name, to in followers.items() if to])]
    while len(nodes) < 2 or rng.random() < 0.8:
        onward = [name for name in followers[nodes[-1]] if name not in nodes]
        if not onward:
            break
        nodes.append(rng.choice(onward))
    return tuple(nodes)


def random_feeds(rng: Random, nbytes: int, packet_bytes: int, at_ps: int, scale_ns: float) -> tuple[Feed, ...]:
    """Stretches of random length and pace, some cut short in the middle, until all of ``nbytes`` is promised."""
    packets = -(-nbytes // packet_bytes)
    called = at_ps
    ready = at_ps
    first = 0
    feeds: list[Feed] = []
    while first < packets:
        left = packets - first
        count = left if rng.random() < 0.5 else rng.randint(1, left)
        pace = _random_pace(rng, packet_bytes)
        start = max(ready, called) + rng.choice([0, 0, round(rng.random() * scale_ns * 100)])
        feeds.append(Feed(called, Supply(first, count, start, pace)))
        if pace.packet_ps and rng.random() < 0.3:
            called += round(rng.random() * 2 * count * pace.packet_ps)
            begun = max(0, (called - start) // pace.packet_ps + 1)
            if begun < count:
                count = rng.randint(begun, count)
                feeds.append(Feed(called, keep=first + count))
        first += count
        ready = start + count * pace.packet_ps
        called = max(called, rng.choice([called, ready, start]))
    return tuple(feeds)


def _random_pace(rng: Random, packet_bytes: int) -> Pace:
    if rng.random() < 0.2:
        return AT_ONCE
    packet_ps = round(packet_bytes * 1000 / rng.choice(BANDWIDTHS))
    return Pace(packet_ps, rng.choice([packet_ps, max(1, packet_ps // 3)]))
