"""Engines that are observed, and what their observers have seen."""

from __future__ import annotations

from typing import Any

from kernbench.common.data_policy import DataPolicy
from kernbench.core.log import NONE, WIDTH
from kernbench.core.observed import Carries, Observed
from kernbench.engine.engine import GraphEngine
from kernbench.observe.sanitizer import Finding, Sanitizer
from kernbench.observe.trace import make_trace
from kernbench.observe.trace_filter import EVERYTHING, TraceFilter
from kernbench.observe.trace_io import trace_events
from kernbench.observe.trace_log import TraceLog
from kernbench.topology.builder import Topology
from kernbench.transport import Network


def logged(topology: Topology, *, links: bool = False) -> GraphEngine:
    """An engine of timing whose critical paths and traces can be asked for."""
    return GraphEngine(topology, DataPolicy(keep=False, zeros=True), observers=[TraceLog(links=links)])


def log_of(engine: GraphEngine) -> TraceLog:
    """What has happened in an engine that is ``logged``."""
    return next(each for each in engine.observers if isinstance(each, TraceLog))


def events_of(engine: GraphEngine, keep: TraceFilter = EVERYTHING) -> list[dict[str, Any]]:
    """The trace of an engine that is ``logged``."""
    return list(trace_events(make_trace(log_of(engine), engine.handles, keep)))


def watched(net: Network) -> Observed:
    """What is observed of ``net`` from now on: transfers are parts of rows that have their serial numbers."""
    tables = Observed(links=True)
    net.watch.begin(tables, lambda _: NONE, lambda transfer: (Carries.OTHER, transfer.serial * WIDTH, NONE))
    return tables


def sanitized(topology: Topology) -> GraphEngine:
    """An engine that finds what is wrong with its run."""
    return GraphEngine(topology, observers=[Sanitizer()])


def findings(engine: GraphEngine) -> tuple[Finding, ...]:
    """What an engine that is ``sanitized`` has found by now."""
    return next(each for each in engine.observers if isinstance(each, Sanitizer)).findings(engine)
