"""The inputs of a run: a program, its machine, and the user's options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from kernbench.ccl.loading import CclLike
from kernbench.common.data_policy import DataPolicy
from kernbench.common.values import value
from kernbench.engine.requests import Limits
from kernbench.runtime_api.bench_registry import Bench
from kernbench.runtime_api.frontends import FrontendSettings
from kernbench.topology.builder import Topology


@value(kw_only=True)
class PreparedRun:
    """A loaded program, its compiled machine, and the options of the run.

    ``params``: changes of bench parameters as texts, ``bench.m=512``. ``observe``: record the causes of the time.
    ``links``, ``queues``: record also the loads of links and queues, which pages and timelines show. ``sanitize``:
    report races and reads of unwritten bytes. ``trace_ccl``: print every message of queues. ``advise``: simulate the
    gain of machine changes.
    """

    bench: Bench
    machine: Topology
    params: Sequence[str] = ()
    device: str = "all"
    verify: bool = False
    data: DataPolicy = field(default_factory=DataPolicy)
    ccl: CclLike = None
    frontends: FrontendSettings = field(default_factory=FrontendSettings)
    limits: Limits = field(default_factory=Limits)
    observe: bool = True
    links: bool = True
    queues: bool = True
    sanitize: bool = False
    trace_ccl: bool = False
    advise: bool = False
