"""Every registered bench, with its defaults, timing only: wall time, simulated time, events."""

from __future__ import annotations

import pytest

from bench_figures import FigureBook, Figures, fastest_s
from kernbench.engine.engine import GraphEngine
from kernbench.runtime_api.bench_registry import Bench, known_benches
from kernbench.runtime_api.bench_runner import run_bench
from kernbench.topology.builder import Topology


@pytest.mark.parametrize("bench", known_benches(), ids=lambda bench: bench.name)
def test_bench(benchmark, topology: Topology, book: FigureBook, bench: Bench) -> None:
    result = benchmark.pedantic(
        lambda: run_bench(
            topology=topology,
            bench_fn=bench,
            engine_factory=lambda topology, _: GraphEngine(topology, enable_data=False),
        ),
        rounds=1,
    )
    assert result.error is None
    sim_ns, events = (None, None) if bench.evaluation else (result.sim_ns, result.engine.n_events)
    benchmark.extra_info |= {"sim_ns": sim_ns, "events": events}
    seconds = fastest_s(benchmark)
    if seconds is not None:
        book.taken[bench.name] = Figures(seconds, sim_ns, events)
