"""Scenarios in which everybody meets: many sources into one, and meshes with XY routing and bounded FIFOs."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from transport_scenarios import Scenario, Send, Wire

RATES_GBS = (32.0, 64.0, 100.0, 128.0, 204.8, 256.0)


def incast(rng: Random) -> Scenario:
    """2 to 12 chains of links into a hub, and from there one way out."""
    packet, depth, fifo = rng.choice([4, 64, 256]), rng.randint(1, 4), rng.choice([1, 2, 4, 8])
    rates = (rng.choice(RATES_GBS),) if rng.random() < 0.5 else RATES_GBS
    wires: list[Wire] = []
    sends: list[Send] = []
    for i in range(rng.randint(2, 12)):
        chain = (*(f"s{i}_{d}" for d in range(depth)), "hub", "x", "sink")
        for src, dst in pairwise(chain[: depth + 1]):
            wires.append(Wire(src, dst, rng.choice(rates), rng.choice([0.0, 1.0, 5.0]), fifo * packet))
        for _ in range(rng.randint(1, 3)):
            sends.append(Send(chain, rng.randint(1, 30 * packet), rng.choice([0, 0, rng.randint(0, 100_000)])))
    wires += [Wire(a, b, rng.choice(rates), 1.0, fifo * packet) for a, b in (("hub", "x"), ("x", "sink"))]
    return Scenario(packet, tuple(wires), tuple(sends))


def crowded_mesh(rng: Random) -> Scenario:
    """A mesh of 2x2 to 5x5; in some, everybody sends to one corner."""
    packet, k = rng.choice([4, 64, 256]), rng.randint(2, 5)
    rates = (64.0,) if rng.random() < 0.5 else RATES_GBS
    fifo = rng.choice([1, 2, 4])
    wires = mesh_wires(rng, k, rates, rng.choice([0.0, 0.5, 2.0, 5.0]), fifo * packet)
    corner = rng.random() < 0.3
    span_ps = rng.choice([1, 1000, 20_000])
    sends = tuple(
        Send(
            xy_nodes(k, rng.randrange(k * k), 0 if corner else rng.randrange(k * k)),
            rng.choice([1, packet, rng.randint(1, 20 * packet)]),
            rng.randint(0, span_ps),
            rng.choice(["", "b"]),
        )
        for _ in range(rng.randint(5, 80))
    )
    return Scenario(packet, wires, sends)


def mesh_wires(
    rng: Random, k: int, rates_gbs: tuple[float, ...], overhead_ns: float, fifo_bytes: int | None
) -> tuple[Wire, ...]:
    """Links of a k x k mesh whose nodes have a source and a destination each, with random ``rates_gbs``."""
    wires: list[Wire] = []
    for node in range(k * k):
        x, y = node % k, node // k
        for a, b in ((x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)):
            if 0 <= a < k and 0 <= b < k:
                wires.append(Wire(f"r{node}", f"r{b * k + a}", rng.choice(rates_gbs), overhead_ns, fifo_bytes))
        wires.append(Wire(f"s{node}", f"r{node}", rng.choice(rates_gbs), overhead_ns, fifo_bytes))
        wires.append(Wire(f"r{node}", f"d{node}", rng.choice(rates_gbs), overhead_ns))
    return tuple(wires)


def xy_nodes(k: int, src: int, dst: int) -> tuple[str, ...]:
    """Along the row, then along the column."""
    nodes, here = [f"s{src}", f"r{src}"], src
    while here % k != dst % k:
        here += 1 if dst % k > here % k else -1
        nodes.append(f"r{here}")
    while here != dst:
        here += k if dst > here else -k
        nodes.append(f"r{here}")
    return (*nodes, f"d{dst}")


def poisson_mesh(seed: int, packet: int, nbytes: int, load: float | None, messages: int = 500) -> Scenario:
    """A uniform 4x4 mesh of 128 GB/s links; sources offer ``load`` of them, or send all at once (None)."""
    rng = Random(seed)
    gap_ps = 0.0 if load is None else nbytes * 1000 / (load * 16 * 128)
    wires = mesh_wires(rng, 4, (128.0,), 3.0, 16 * 1024)
    at, sends = 0.0, []
    for _ in range(messages):
        at += rng.expovariate(1 / gap_ps) if gap_ps else 0.0
        sends.append(Send(xy_nodes(4, rng.randrange(16), rng.randrange(16)), nbytes, round(at)))
    return Scenario(packet, wires, tuple(sends))
