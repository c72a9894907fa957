"""A k x k mesh of routers on the transport, configured as the reference mesh: a cycle is 1 ns, a flit is 1 byte.

Node n is at column n mod k, row n div k, with its own source and destination. The closed form is 7 + 5·H + (P - 1)
cycles. A message with H hops enters H + 1 routers. Each router costs 5 cycles, as overhead of its incoming link.
Ejection costs 1 cycle, and the P flits of the message cost P cycles on the narrowest link. All links have the same
width.

Traffic is synthetic: a pattern selects destinations, and Bernoulli sources create messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from kernbench.common.errors import UnknownNameError
from kernbench.common.values import value
from kernbench.transport import Network

CYCLE_NS = 1.0
CYCLE_PS = 1000
FLITS_PER_CYCLE_GBS = 1.0
EJECTION_CYCLES = 1


@value
class MeshSpec:
    """A mesh and its messages.

    ``packet_flits``: length of a message. ``unit_flits``: flits per grant of a link (default: a complete message).
    ``fifo_flits``: FIFO at each router input, including its injection port (None: unbounded).
    """

    k: int = 4
    packet_flits: int = 1
    unit_flits: int | None = None
    fifo_flits: int | None = 32
    router_cycles: int = 5

    @property
    def nodes(self) -> int:
        """The number of nodes of the mesh."""
        return self.k * self.k

    @property
    def granted_flits(self) -> int:
        """The flits of one grant."""
        return self.packet_flits if self.unit_flits is None else self.unit_flits

    def hops(self, src: int, dst: int) -> int:
        """Return the number of links between routers from ``src`` to ``dst``."""
        return abs(src % self.k - dst % self.k) + abs(src // self.k - dst // self.k)

    def zero_load_cycles(self, src: int, dst: int) -> int:
        """Return the uncontended latency of a message: 7 + 5·H + (P - 1) for routers of 5 cycles."""
        routers = self.hops(src, dst) + 1
        return self.router_cycles * routers + EJECTION_CYCLES + self.packet_flits


def build_mesh(spec: MeshSpec, *, express: bool = True) -> Network:
    """Build the network of ``spec``: a source, a router and a destination per node; links between neighbours."""
    net = Network(spec.granted_flits, express=express)
    for node in range(spec.nodes):
        for neighbour_node in neighbours(spec.k, node):
            _router_link(net, spec, f"r{node}", f"r{neighbour_node}")
        _router_link(net, spec, f"s{node}", f"r{node}")
        net.link(f"r{node}", f"d{node}", bw_gbs=FLITS_PER_CYCLE_GBS, overhead_ns=EJECTION_CYCLES * CYCLE_NS)
    return net


def _router_link(net: Network, spec: MeshSpec, src: str, dst: str) -> None:
    net.link(
        src,
        dst,
        bw_gbs=FLITS_PER_CYCLE_GBS,
        overhead_ns=spec.router_cycles * CYCLE_NS,
        fifo_bytes=spec.fifo_flits,
    )


def neighbours(k: int, node: int) -> list[int]:
    """Return the nodes next to ``node``: east, west, south, north. At an edge, some are missing."""
    x, y = node % k, node // k
    positions = ((x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1))
    return [b * k + a for a, b in positions if 0 <= a < k and 0 <= b < k]


def xy_routers(k: int, src: int, dst: int) -> list[int]:
    """Return the routers from ``src`` to ``dst``, both included: along the row first, then along the column."""
    x, y = src % k, src // k
    to_x, to_y = dst % k, dst // k
    routers = [src]
    while x != to_x:
        x += 1 if to_x > x else -1
        routers.append(y * k + x)
    while y != to_y:
        y += 1 if to_y > y else -1
        routers.append(y * k + x)
    return routers


def xy_route(k: int, src: int, dst: int) -> tuple[str, ...]:
    """Return the route from ``src`` to ``dst`` as node names of the network, source and destination included."""
    return (f"s{src}", *(f"r{n}" for n in xy_routers(k, src, dst)), f"d{dst}")


Matrix = NDArray[np.float64]
HOTSPOT_SHARE = 0.2


def uniform(k: int) -> Matrix:
    """Return a pattern in which a message goes to every node, the sender included, with equal probability."""
    n = k * k
    return np.full((n, n), 1.0 / n)


def transpose(k: int) -> Matrix:
    """Return a pattern that swaps column and row; nodes on the diagonal send to themselves."""
    return _to(k, lambda x, y: (y, x))


def bit_complement(k: int) -> Matrix:
    """Return a pattern that sends to the node opposite the centre."""
    return _to(k, lambda x, y: (k - 1 - x, k - 1 - y))


def tornado(k: int) -> Matrix:
    """Return a pattern that sends almost half a row further, with wrap-around."""
    return _to(k, lambda x, y: ((x + (k + 1) // 2 - 1) % k, y))


def neighbour(k: int) -> Matrix:
    """Return a pattern that sends to the next node of the row, with wrap-around."""
    return _to(k, lambda x, y: ((x + 1) % k, y))


def hotspot(k: int) -> Matrix:
    """Return a pattern that sends a fifth of the messages to a node in the middle, the others uniformly."""
    matrix = (1.0 - HOTSPOT_SHARE) * uniform(k)
    matrix[:, (k // 2) * k + k // 2] += HOTSPOT_SHARE
    return matrix


PATTERNS: dict[str, Callable[[int], Matrix]] = {
    "uniform": uniform,
    "transpose": transpose,
    "bit-complement": bit_complement,
    "tornado": tornado,
    "neighbour": neighbour,
    "hotspot": hotspot,
}


def _to(k: int, move: Callable[[int, int], tuple[int, int]]) -> Matrix:
    matrix = np.zeros((k * k, k * k))
    for node in range(k * k):
        x, y = move(node % k, node // k)
        matrix[node, y * k + x] = 1.0
    return matrix


@value
class MeshTraffic:
    """Offered traffic: ``rates[s]`` flits per cycle of node s; ``destinations[s, d]``: the probability of node d."""

    rates: Matrix
    destinations: Matrix

    def zero_load_cycles(self, spec: MeshSpec) -> float:
        """Return the mean uncontended latency of its messages."""
        shares = self.rates / self.rates.sum()
        nodes = range(spec.nodes)
        cycles = np.array([[spec.zero_load_cycles(s, d) for d in nodes] for s in nodes], dtype=float)
        return float((shares[:, None] * self.destinations * cycles).sum())

    def busiest_link(self, spec: MeshSpec) -> float:
        """Return the flits per cycle that the most loaded link between routers would have to carry."""
        load: dict[tuple[int, int], float] = {}
        for s, d in zip(*np.nonzero(self.destinations), strict=True):
            for link in pairwise(xy_routers(spec.k, int(s), int(d))):
                load[link] = load.get(link, 0.0) + float(self.rates[s] * self.destinations[s, d])
        return max(load.values(), default=0.0)


def pattern_traffic(spec: MeshSpec, pattern: str, offered: float) -> MeshTraffic:
    """Return traffic of ``offered`` flits per cycle and node. Raises UnknownNameError for an unknown pattern."""
    if pattern not in PATTERNS:
        raise UnknownNameError("traffic pattern", pattern, tuple(PATTERNS))
    return MeshTraffic(np.full(spec.nodes, offered), PATTERNS[pattern](spec.k))


@value
class MeshFlow:
    """A flow: node ``src`` offers ``offered`` flits per cycle to ``dst``."""

    src: int
    dst: int
    offered: float


def flow_traffic(spec: MeshSpec, flows: tuple[MeshFlow, ...]) -> MeshTraffic:
    """Return the traffic of these flows only. Their sources must be distinct."""
    rates, matrix = np.zeros(spec.nodes), np.zeros((spec.nodes, spec.nodes))
    for flow in flows:
        rates[flow.src], matrix[flow.src, flow.dst] = flow.offered, 1.0
    return MeshTraffic(rates, matrix)


def messages(
    spec: MeshSpec, traffic: MeshTraffic, seed: int, chunk_cycles: int = 1000
) -> Iterator[tuple[int, int, int]]:
    """Yield (cycle, source, destination) of each message, without end. Every node draws in every cycle.

    Nothing is yielded if no node offers traffic.
    """
    rng = np.random.default_rng(seed)
    chance = traffic.rates / spec.packet_flits
    cumulated = traffic.destinations.cumsum(axis=1)
    first = 0
    while chance.any():
        cycles, sources = np.nonzero(rng.random((chunk_cycles, spec.nodes)) < chance)
        # Rounding may leave the sum of a row below 1, and a draw may exceed the sum.
        targets = (cumulated[sources] <= rng.random(len(sources))[:, None]).sum(axis=1).clip(max=spec.nodes - 1)
        yield from zip((cycles + first).tolist(), sources.tolist(), targets.tolist(), strict=True)
        first += chunk_cycles
