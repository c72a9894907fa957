"""Synthetic traffic on a mesh: a pattern says where each node's messages go, a Bernoulli source when they come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from kernbench.common.errors import UnknownNameError
from kernbench.evaluation.mesh_network import MeshSpec, xy_routers

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


@dataclass(frozen=True, slots=True)
class Traffic:
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


def pattern_traffic(spec: MeshSpec, pattern: str, offered: float) -> Traffic:
    """Every node offers ``offered`` flits per cycle by ``pattern``; UnknownNameError when there is no such."""
    if pattern not in PATTERNS:
        raise UnknownNameError("traffic pattern", pattern, tuple(PATTERNS))
    return Traffic(np.full(spec.nodes, offered), PATTERNS[pattern](spec.k))


@dataclass(frozen=True, slots=True)
class Flow:
    """Node ``src`` offers ``offered`` flits per cycle to ``dst``."""

    src: int
    dst: int
    offered: float


def flow_traffic(spec: MeshSpec, flows: tuple[Flow, ...]) -> Traffic:
    """The flows of distinct sources, and nothing else."""
    rates, matrix = np.zeros(spec.nodes), np.zeros((spec.nodes, spec.nodes))
    for flow in flows:
        rates[flow.src], matrix[flow.src, flow.dst] = flow.offered, 1.0
    return Traffic(rates, matrix)


def messages(spec: MeshSpec, traffic: Traffic, seed: int, chunk_cycles: int = 1000) -> Iterator[tuple[int, int, int]]:
    """(cycle, source, destination) of message after message, for ever: each node tosses a coin every cycle."""
    rng = np.random.default_rng(seed)
    chance = traffic.rates / spec.packet_flits
    cumulated = traffic.destinations.cumsum(axis=1)
    first = 0
    while True:
        cycles, sources = np.nonzero(rng.random((chunk_cycles, spec.nodes)) < chance)
        # The sum of a row may fall short of 1 by rounding, and a draw may exceed it.
        targets = (cumulated[sources] <= rng.random(len(sources))[:, None]).sum(axis=1).clip(max=spec.nodes - 1)
        yield from zip((cycles + first).tolist(), sources.tolist(), targets.tolist(), strict=True)
        first += chunk_cycles
