"""A run under observation: an engine that keeps its requests, and what hooks say of links and engines."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from kernbench.common.errors import BenchError
from kernbench.common.units import ns_to_ps
from kernbench.engine.engine import GraphEngine, RequestHandle
from kernbench.engine.machine import Machine
from kernbench.messages.requests import HostMsg
from kernbench.observe.trace_log import TraceLog
from kernbench.runtime_api.bench_registry import Bench
from kernbench.runtime_api.bench_result import BenchResult
from kernbench.runtime_api.bench_runner import run_bench
from kernbench.runtime_api.types import DeviceSelector
from kernbench.topology.builder import Topology
from kernbench.transport import LinkBusy
from kernbench.web.binning import Spans


@dataclass(slots=True)
class LinkLog:
    """What links carried, as columns: an event takes 32 bytes, so that long runs can be kept."""

    machine: Machine
    index: dict[tuple[str, str], int] = field(default_factory=dict)
    links: array[int] = field(default_factory=lambda: array("q"))
    starts: array[int] = field(default_factory=lambda: array("q"))
    ends: array[int] = field(default_factory=lambda: array("q"))
    nbytes: array[int] = field(default_factory=lambda: array("q"))

    def __post_init__(self) -> None:
        self.index = {(edge.src, edge.dst): at for at, edge in enumerate(self.machine.graph.edges)}
        self.machine.network.link_busy.subscribe(self._busy)

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


class ObservedEngine(GraphEngine):
    """A timing-only engine that keeps the handles of its requests and observes links, memories and engines."""

    def __init__(self, topology: Topology) -> None:
        super().__init__(topology, enable_data=False)
        self.handles: list[RequestHandle] = []
        self.log = TraceLog(self.machine, memories=True)
        self.traffic = LinkLog(self.machine)

    def submit(self, msg: HostMsg) -> RequestHandle:
        """Start a request now and return at once."""
        handle = super().submit(msg)
        self.handles.append(handle)
        return handle


@dataclass(frozen=True, slots=True)
class ObservedRun:
    """A run that is over, and the engine that saw it."""

    result: BenchResult
    engine: ObservedEngine

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
    made: list[ObservedEngine] = []

    def make(topology: Topology, _: DeviceSelector) -> ObservedEngine:
        made.append(ObservedEngine(topology))
        return made[-1]

    result = run_bench(topology=machine, bench_fn=bench, device=device, engine_factory=make, params=params, ccl=ccl)
    return ObservedRun(result, made[-1])
