"""A run under observation: its engine, and what was seen of it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from kernbench.common.data_policy import DataPolicy
from kernbench.common.errors import BenchError
from kernbench.common.units import ns_to_ps
from kernbench.common.values import value
from kernbench.engine.engine import GraphEngine
from kernbench.observe.trace_log import TraceLog
from kernbench.runtime_api.bench_registry import Bench
from kernbench.runtime_api.bench_runner import BenchResult, run_bench
from kernbench.runtime_api.types import DeviceSelector
from kernbench.topology.builder import Topology
from kernbench.web.packing import TimeSpans


@value
class ObservedRun:
    """A run that is over, and what was seen of it."""

    result: BenchResult
    engine: GraphEngine
    log: TraceLog

    @property
    def end_ps(self) -> int:
        """The time when the program was over; what follows only cleans up."""
        return ns_to_ps(self.result.sim_ns)

    def traffic(self) -> dict[int, TimeSpans]:
        """The busy times of each link that carried something, by the link's place in the graph."""
        carried = self.log.seen.tables.carried()
        order = np.lexsort((carried.start, carried.link))
        used, first = np.unique(carried.link[order], return_index=True)
        parts = np.split(order, first[1:])
        return {
            int(link): TimeSpans(carried.start[part], carried.end[part], carried.nbytes[part])
            for link, part in zip(used, parts, strict=bool(used.size))
        }


def observe_run(
    machine: Topology,
    bench: Bench,
    device: DeviceSelector,
    params: Iterable[str],
    ccl: str | None = None,
    *,
    data: DataPolicy | None = None,
    verify: bool = False,
) -> ObservedRun:
    """Run ``bench`` on ``machine``; ``ccl``: the file that configures collectives; ``verify``: evaluate comparisons;
    ``data``: what it keeps, by default what the bench says.

    BenchError for a bench that builds engines of its own, which nobody observes.
    """
    if bench.evaluation:
        raise BenchError(
            f"bench {bench.name!r} builds machines of its own, so a page cannot show it; use kernbench run"
        )
    log = TraceLog(links=True, watch_queues=False)
    engine = GraphEngine(machine, data or DataPolicy(keep=bench.data), observers=(log,))
    result = run_bench(
        topology=machine,
        bench_fn=bench,
        device=device,
        engine_factory=lambda *_: engine,
        params=params,
        verify=verify,
        ccl=ccl,
    )
    return ObservedRun(result, engine, log)
