"""Queues between PEs: the plain ring all-reduce over all PEs of the default machine, numbers verified."""

from __future__ import annotations

import pytest

from bench_figures import note_rates
from kernbench.benches.ipcq_allreduce import run
from kernbench.engine.engine import GraphEngine
from kernbench.runtime_api.bench_runner import BenchResult, run_bench
from kernbench.runtime_api.types import DeviceSelector
from kernbench.topology.builder import Topology

PES = 256
MESSAGES = PES * (PES - 1)


@pytest.mark.parametrize("tile_bytes", [64, 4096])
def test_a_ring_of_256_pes(benchmark, tile_bytes: int) -> None:
    """255 steps, in each of which every PE sends a tile: 65,280 messages."""
    engines: list[GraphEngine] = []

    def made(topology: Topology, _: DeviceSelector) -> GraphEngine:
        engines.append(GraphEngine(topology))
        return engines[-1]

    def ring() -> BenchResult:
        params = [f"bench.world_size={PES}", f"bench.n_elem={tile_bytes // 4}"]
        return run_bench(topology=None, bench_fn=run, engine_factory=made, params=params, verify=True)

    found = benchmark.pedantic(ring, rounds=1)
    assert found.ok
    note_rates(benchmark, us_per_message=lambda seconds: round(seconds / MESSAGES * 1e6, 1))
    benchmark.extra_info["events_per_message"] = round(engines[-1].n_events / MESSAGES, 2)
