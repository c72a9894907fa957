"""A k x k mesh of routers on the transport, configured as the reference mesh: a cycle is 1 ns, a flit is 1 byte.

Node n is at column n mod k, row n div k, and has a source and a destination of its own. Where the cycles of the closed
form 7 + 5·H + (P - 1) sit: 5 for each router entered (H + 1 of them: the links into it carry them), 1 for ejection,
and P for the flits on the narrowest link, all of which are equally wide.

Traffic is synthetic: a pattern says where each node's messages go, a Bernoulli source when they come.
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
    """``packet_flits``: length of a message. ``unit_flits``: what a link grants at a time (default: a whole message).

    ``fifo_flits``: FIFO at each router input, its injection port included (None: unbounded).
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
        """Flits of one grant."""
        return self.packet_flits if self.unit_flits is None else self.unit_flits

    def hops(self, src: int, dst: int) -> int:
        """Links between routers from ``src`` to ``dst``."""
        return abs(src % self.k - dst % self.k) + abs(src // self.k - dst // self.k)

    def zero_load_cycles(self, src: int, dst: int) -> int:
        """Latency of a message that meets nobody: 7 + 5·H + (P - 1) with routers of 5 cycles."""
        routers = self.hops(src, dst) + 1
        return self.router_cycles * routers + EJECTION_CYCLES + self.packet_flits


def build_mesh(spec: MeshSpec, *, express: bool = True) -> Network:
    """The network of ``spec``: per node a source, a router and a destination; links between neighbouring routers."""
    net = Network(spec.granted_flits, express=express)
    for node in range(spec.nodes):
        for other in neighbours(spec.k, node):
            _router_link(net, spec, f"r{node}", f"r{other}")
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
    """Nodes next to ``node``: east, west, south, north as far as they exist."""
    x, y = node % k, node // k
    around = ((x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1))
    return [b * k + a for a, b in around if 0 <= a < k and 0 <= b < k]


def xy_routers(k: int, src: int, dst: int) -> list[int]:
    """The routers from ``src`` to ``dst``, both included: along the row first, then along the column."""
    x, y = src % k, src // k
    to_x, to_y = dst % k, dst // k
    way = [src]
    while x != to_x:
        x += 1 if to_x > x else -1
        way.append(y * k + x)
    while y != to_y:
        y += 1 if to_y > y else -1
        way.append(y * k + x)
    return way


def xy_route(k: int, src: int, dst: int) -> tuple[str, ...]:
    """The same as names of nodes of the network, from the source to the destination."""
    return (f"s{src}", *(f"r{n}" for n in xy_routers(k, src, dst)), f"d{dst}")


Matrix = NDArray[np.float64]
HOTSPOT_SHARE = 0.2


def uniform(k: int) -> Matrix:
    """Every node, the sender included, is as likely."""
    n = k * k
    return np.full((n, n), 1.0 / n)


def transpose(k: int) -> Matrix:
    """Column and row change places; the diagonal sends to itself."""
    return _to(k, lambda x, y: (y, x))


def bit_complement(k: int) -> Matrix:
    """To the node opposite the centre."""
    return _to(k, lambda x, y: (k - 1 - x, k - 1 - y))


def tornado(k: int) -> Matrix:
    """Almost half a row further, around the edge."""
    return _to(k, lambda x, y: ((x + (k + 1) // 2 - 1) % k, y))


def neighbour(k: int) -> Matrix:
    """To the next node of the row, around the edge."""
    return _to(k, lambda x, y: ((x + 1) % k, y))


def hotspot(k: int) -> Matrix:
    """A fifth of the messages to a node in the middle, the rest uniform."""
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
    """``rates[s]``: flits per cycle that node s offers; ``destinations[s, d]``: how likely a message of s goes to d."""

    rates: Matrix
    destinations: Matrix

    def zero_load_cycles(self, spec: MeshSpec) -> float:
        """Mean latency of its messages when none meets another."""
        shares = self.rates / self.rates.sum()
        nodes = range(spec.nodes)
        cycles = np.array([[spec.zero_load_cycles(s, d) for d in nodes] for s in nodes], dtype=float)
        return float((shares[:, None] * self.destinations * cycles).sum())

    def busiest_link(self, spec: MeshSpec) -> float:
        """Flits per cycle that the most loaded link between routers would have to carry."""
        load: dict[tuple[int, int], float] = {}
        for s, d in zip(*np.nonzero(self.destinations), strict=True):
            way = xy_routers(spec.k, int(s), int(d))
            for link in pairwise(way):
                load[link] = load.get(link, 0.0) + float(self.rates[s] * self.destinations[s, d])
        return max(load.values(), default=0.0)


def pattern_traffic(spec: MeshSpec, pattern: str, offered: float) -> MeshTraffic:
    """Every node offers ``offered`` flits per cycle by ``pattern``; UnknownNameError when there is no such."""
    if pattern not in PATTERNS:
        raise UnknownNameError("traffic pattern", pattern, tuple(PATTERNS))
    return MeshTraffic(np.full(spec.nodes, offered), PATTERNS[pattern](spec.k))


@value
class MeshFlow:
    """Node ``src`` offers ``offered`` flits per cycle to ``dst``."""

    src: int
    dst: int
    offered: float


def flow_traffic(spec: MeshSpec, flows: tuple[MeshFlow, ...]) -> MeshTraffic:
    """The flows of distinct sources, and nothing else."""
    rates, matrix = np.zeros(spec.nodes), np.zeros((spec.nodes, spec.nodes))
    for flow in flows:
        rates[flow.src], matrix[flow.src, flow.dst] = flow.offered, 1.0
    return MeshTraffic(rates, matrix)


def messages(
    spec: MeshSpec, traffic: MeshTraffic, seed: int, chunk_cycles: int = 1000
) -> Iterator[tuple[int, int, int]]:
    """(cycle, source, destination) of message after message, for ever: each node tosses a coin every cycle.

    There are none where no node offers anything.
    """
    rng = np.random.default_rng(seed)
    chance = traffic.rates / spec.packet_flits
    cumulated = traffic.destinations.cumsum(axis=1)
    first = 0
    while chance.any():
        cycles, sources = np.nonzero(rng.random((chunk_cycles, spec.nodes)) < chance)
        # The sum of a row may fall short of 1 by rounding, and a draw may exceed it.
        targets = (cumulated[sources] <= rng.random(len(sources))[:, None]).sum(axis=1).clip(max=spec.nodes - 1)
        yield from zip((cycles + first).tolist(), sources.tolist(), targets.tolist(), strict=True)
        first += chunk_cycles
