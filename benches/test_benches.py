"""Every registered bench, with its defaults, timing only: wall time, simulated time, events."""

from __future__ import annotations

import pytest

from bench_figures import FigureBook, Figures, fastest_s
from kernbench import benches
from kernbench.engine.engine import GraphEngine
from kernbench.runtime_api.bench_registry import known_benches
from kernbench.runtime_api.bench_runner import run_bench
from kernbench.topology.builder import Topology

assert benches.__path__  # importing it registers them


@pytest.mark.parametrize("name", [bench.name for bench in known_benches()])
def test_bench(benchmark, topology: Topology, book: FigureBook, name: str) -> None:
    bench = next(each for each in known_benches() if each.name == name)
    done = benchmark.pedantic(
        lambda: run_bench(
            topology=topology,
            bench_fn=bench,
            engine_factory=lambda topology, _: GraphEngine(topology, enable_data=False),
        ),
        rounds=1,
    )
    assert done.error is None
    sim_ns, events = (None, None) if bench.evaluation else (done.sim_ns, done.engine.n_events)
    benchmark.extra_info |= {"sim_ns": sim_ns, "events": events}
    seconds = fastest_s(benchmark)
    if seconds is not None:
        book.taken[name] = Figures(seconds, sim_ns, events)
