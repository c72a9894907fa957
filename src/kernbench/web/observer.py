"""A run under observation: its engine, and what hooks say of links and engines."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from kernbench.common.errors import BenchError
from kernbench.common.units import ns_to_ps
from kernbench.engine.engine import GraphEngine
from kernbench.engine.machine import Machine
from kernbench.engine.observer import Observer
from kernbench.observe.trace_log import TraceLog
from kernbench.runtime_api.bench_registry import Bench
from kernbench.runtime_api.bench_result import BenchResult
from kernbench.runtime_api.bench_runner import run_bench
from kernbench.runtime_api.types import DeviceSelector
from kernbench.topology.builder import Topology
from kernbench.transport import LinkBusy
from kernbench.web.packing import Spans


@dataclass(slots=True)
class LinkLog(Observer):
    """What links carried, as columns: an event takes 32 bytes, so that long runs can be kept."""

    index: dict[tuple[str, str], int] = field(default_factory=dict)
    links: array[int] = field(default_factory=lambda: array("q"))
    starts: array[int] = field(default_factory=lambda: array("q"))
    ends: array[int] = field(default_factory=lambda: array("q"))
    nbytes: array[int] = field(default_factory=lambda: array("q"))

    def begin(self, machine: Machine) -> None:
        """Listen to the links of ``machine``."""
        self.index = {(edge.src, edge.dst): at for at, edge in enumerate(machine.graph.edges)}
        machine.network.link_busy.subscribe(self._busy)

    def _busy(self, event: LinkBusy) -> None:
        self.links.append(self.index[event.src, event.dst])
        self.starts.append(event.start_ps)
        self.ends.append(event.end_ps)
        self.nbytes.append(event.nbytes)

    def by_link(self) -> dict[int, Spans]:
        """What each link that carried something did, by the link's place in the graph."""
        links, starts, ends, nbytes = (
            np.array(column, dtype=np.int64) for column in (self.links, self.starts, self.ends, self.nbytes)
        )
        order = np.lexsort((starts, links))
        used, first = np.unique(links[order], return_index=True)
        parts = np.split(order, first[1:])
        return {
            int(link): Spans(starts[part], ends[part], nbytes[part])
            for link, part in zip(used, parts, strict=bool(used.size))
        }


@dataclass(frozen=True, slots=True)
class ObservedRun:
    """A run that is over, of times only, and what was seen of it."""

    result: BenchResult
    engine: GraphEngine
    log: TraceLog
    traffic: LinkLog

    @property
    def end_ps(self) -> int:
        """When the program was over; what follows only cleans up."""
        return ns_to_ps(self.result.sim_ns)


def observe_run(
    machine: Topology, bench: Bench, device: DeviceSelector, params: Iterable[str], ccl: str | None = None
) -> ObservedRun:
    """Run ``bench`` on ``machine``; ``ccl``: the file that configures collectives.

    BenchError for a bench that builds engines of its own, which nobody observes.
    """
    if bench.evaluation:
        raise BenchError(
            f"bench {bench.name!r} builds machines of its own, so a page cannot show it; use kernbench run"
        )
    log, traffic = TraceLog(memories=True, watch_queues=False), LinkLog()
    engine = GraphEngine(machine, enable_data=False, observers=(log, traffic))
    result = run_bench(
        topology=machine, bench_fn=bench, device=device, engine_factory=lambda *_: engine, params=params, ccl=ccl
    )
    return ObservedRun(result, engine, log, traffic)
