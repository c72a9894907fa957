"""Whole requests on the default machine."""

from __future__ import annotations

import pytest

from bench_figures import note_rates
from kernbench.engine.engine import GraphEngine
from kernbench.messages.requests import KernelLaunchMsg, KernelRef, PeDmaMsg
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.topology.builder import Topology


def slice_of(sip: int, cube: int, pe: int, offset: int = 0) -> int:
    return PhysAddr.pe_hbm_addr(0, sip, cube, pe, offset, 6 << 30).encode()


def nothing(*, tl: object) -> None:
    """A kernel that only starts and ends."""


def test_launch_to_256_pes(benchmark, topology: Topology) -> None:
    engine = GraphEngine(topology, enable_data=False)
    pes = tuple((sip, cube, pe) for sip in range(2) for cube in range(16) for pe in range(8))
    msg = KernelLaunchMsg(kernel=KernelRef(name="nothing", function=nothing), args=(), targets=pes)
    engine.wait(engine.submit(msg))
    before = engine.n_events
    rounds = 5
    benchmark.pedantic(lambda: engine.wait(engine.submit(msg)), rounds=rounds)
    benchmark.extra_info["events"] = (engine.n_events - before) // rounds


@pytest.mark.parametrize("size", [64, 4096, 1 << 20])
@pytest.mark.parametrize("where", ["local", "far"])
def test_reads_one_after_another(benchmark, topology: Topology, size: int, where: str) -> None:
    pa = slice_of(0, 0, 0) if where == "local" else slice_of(0, 15, 7)
    engine = GraphEngine(topology, enable_data=False)
    count = 500
    msg = PeDmaMsg(pe=(0, 0, 0), pa=pa, nbytes=size, repeat=count)
    benchmark.pedantic(lambda: engine.wait(engine.submit(msg)), rounds=3)
    note_rates(benchmark, us_per_read=lambda seconds: round(seconds / count * 1e6, 2))


@pytest.mark.parametrize("pattern", ["own slice", "one slice"])
def test_all_pes_of_a_cube(benchmark, topology: Topology, pattern: str) -> None:
    """Eight PEs read 64 × 16 KiB each, four at once, from their own slices or all from one."""

    def run() -> GraphEngine:
        engine = GraphEngine(topology, enable_data=False)
        handles = [
            engine.submit(
                PeDmaMsg(
                    pe=(0, 0, pe),
                    pa=slice_of(0, 0, pe if pattern == "own slice" else 0, pe << 24),
                    nbytes=16384,
                    repeat=64,
                    outstanding=4,
                    stride_bytes=16384,
                )
            )
            for pe in range(8)
        ]
        for handle in handles:
            engine.wait(handle)
        return engine

    engine = benchmark.pedantic(run, rounds=3)
    benchmark.extra_info["events"] = engine.n_events
    benchmark.extra_info["gb_per_s"] = round(8 * 64 * 16384 / engine.now, 1)
    note_rates(benchmark, events_per_s=lambda seconds: round(engine.n_events / seconds))
