"""The transport alone: a 4 × 4 mesh of 256 GB/s links, transactions of three sizes at three loads."""

from __future__ import annotations

import random

import pytest

from bench_figures import note_rates
from kernbench.transport import Network

SIDE = 4
BW_GBS = 256.0
LOADS = {"low": 0.05, "knee": 0.6, "saturated": 1.5}
SIZES = {"64B": (64, 4000), "4KiB": (4096, 2000), "1MiB": (1 << 20, 60)}


def mesh(express: bool) -> Network:
    net = Network(packet_bytes=1024, express=express)
    for x in range(SIDE):
        for y in range(SIDE):
            net.link(f"s{x}{y}", f"r{x}{y}", bw_gbs=BW_GBS, overhead_ns=1.0, fifo_bytes=4096)
            net.link(f"r{x}{y}", f"d{x}{y}", bw_gbs=BW_GBS, overhead_ns=1.0)
            for a, b in ((x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)):
                if 0 <= a < SIDE and 0 <= b < SIDE:
                    net.link(f"r{x}{y}", f"r{a}{b}", bw_gbs=BW_GBS, overhead_ns=1.02, fifo_bytes=4096)
    return net


def way(src: tuple[int, int], dst: tuple[int, int]) -> list[str]:
    """X first, then Y."""
    x, y = src
    nodes = [f"s{x}{y}", f"r{x}{y}"]
    while x != dst[0]:
        x += 1 if dst[0] > x else -1
        nodes.append(f"r{x}{y}")
    while y != dst[1]:
        y += 1 if dst[1] > y else -1
        nodes.append(f"r{x}{y}")
    return [*nodes, f"d{x}{y}"]


def traffic(nbytes: int, count: int, load: float) -> list[tuple[list[str], float]]:
    """Uniform random traffic: ways and times in ns, at ``load`` of what the sources can send."""
    rng = random.Random(1)
    gap = nbytes / (BW_GBS * load * SIDE * SIDE)
    node = lambda: (rng.randrange(SIDE), rng.randrange(SIDE))  # noqa: E731
    return [(way(node(), node()), i * gap) for i in range(count)]


@pytest.mark.parametrize("express", [True, False], ids=["express", "packets"])
@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("size", SIZES)
def test_uniform_traffic(benchmark, size: str, load: str, express: bool) -> None:
    nbytes, count = SIZES[size]
    sends = traffic(nbytes, count, LOADS[load])

    def run() -> Network:
        net = mesh(express)
        for nodes, at in sends:
            net.send(nodes, nbytes, at_ns=at)
        net.run()
        return net

    net = benchmark.pedantic(run, rounds=3, warmup_rounds=1)
    events = net.clock.n_events
    benchmark.extra_info |= {
        "transactions": count,
        "events": events,
        "events_per_transaction": round(events / count, 2),
    }
    note_rates(
        benchmark,
        events_per_s=lambda seconds: round(events / seconds),
        us_per_transaction=lambda seconds: round(seconds / count * 1e6, 2),
    )
