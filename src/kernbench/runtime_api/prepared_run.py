"""The inputs of a run: a program, its machine, and the user's options, loaded and checked."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import field

from kernbench.ccl.loading import CclLike, check_ccl
from kernbench.common.complaints import show
from kernbench.common.data_policy import DataPolicy
from kernbench.common.errors import InputError
from kernbench.common.values import value
from kernbench.engine.engine import GraphEngine, Observer
from kernbench.engine.requests import Limits
from kernbench.runtime_api.bench_registry import Bench, load_bench, load_script
from kernbench.runtime_api.bench_runner import BenchResult, run_bench
from kernbench.runtime_api.frontends import FrontendSettings, frontend_settings
from kernbench.runtime_api.overrides import BENCH_PREFIX, split_overrides
from kernbench.runtime_api.run_request import ProgramOptions, ReuseRules, RunRequest
from kernbench.runtime_api.types import DeviceSelector, resolve_device
from kernbench.topology.builder import Topology, resolve_topology


@value(kw_only=True)
class PreparedRun:
    """A loaded program, its compiled machine, and the options of the run.

    ``params``: changes of bench parameters as texts, ``bench.m=512``. ``observe``: record the causes of the time.
    ``links``, ``queues``: record also the loads of links and queues, which pages and timelines show. ``sanitize``:
    report races and reads of unwritten bytes. ``trace_ccl``: print every message of queues. ``advise``: simulate the
    gain of machine changes. ``log_rows``: fold launches beyond so many rows of the log; None: never.
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
    reuse: ReuseRules | None = None
    log_rows: int | None = None
    observe: bool = True
    links: bool = True
    queues: bool = True
    sanitize: bool = False
    trace_ccl: bool = False
    advise: bool = False

    def run(self, *observers: Observer) -> BenchResult:
        """Run the program with these observers only. The result stores an error of the program."""
        return run_bench(
            topology=self.machine,
            bench_fn=self.bench,
            device=self.device,
            engine_factory=lambda machine, _: GraphEngine(machine, self.data, observers=observers, limits=self.limits),
            params=self.params,
            verify=self.verify,
            ccl=self.ccl,
            frontends=self.frontends,
            reuse=self.reuse,
            log_rows=self.log_rows,
        )


def load_program(program: ProgramOptions) -> Bench:
    """Return the bench or the script of a request. Raises BenchError or UnknownNameError if there is none."""
    if program.script is not None:
        return load_script(program.script, program.args, program.ranks)
    if program.bench is None:
        raise InputError("there is no program: name a bench or a script")
    return load_bench(program.bench)


def prepare_run(request: RunRequest, *, bench: Bench | None = None, machine: Topology | None = None) -> PreparedRun:
    """Load and check the inputs of a run.

    ``bench``, ``machine``: the program and the machine if they are loaded already, with the machine's changes. An
    evaluation receives the options for its files as parameters. Raises InputError for invalid inputs.
    """
    changes, observation = split_overrides(request.override_texts), request.observation
    bench = load_program(request.program) if bench is None else bench
    frontends = frontend_settings(changes.frontends)
    if machine is None:
        machine = resolve_topology(request.machine.topology, changes.machine)
    resolve_device(DeviceSelector(request.machine.device), machine.spec)
    if bench.evaluation:
        params = (*changes.bench, *_list_evaluation_params(request))
        no_data = DataPolicy(keep=False)
        return PreparedRun(bench=bench, machine=machine, params=params, device=request.machine.device, data=no_data)
    ccl = request.machine.ccl
    if isinstance(ccl, str | os.PathLike):
        check_ccl(os.fspath(ccl))
    limits = request.limits
    data = request.data.policy(sanitize=observation.sanitize, bench=bench.data)
    return PreparedRun(
        bench=bench,
        machine=machine,
        params=changes.bench,
        device=request.machine.device,
        verify=request.data.verify,
        data=data,
        reuse=request.reuse.rules(keeps_data=data.keep),
        log_rows=limits.most_rows,
        ccl=ccl,
        frontends=frontends,
        limits=Limits(_limit("max_sim_ns", limits.max_sim_ns), _limit("max_wall_s", limits.max_wall_s)),
        observe=observation.observe,
        sanitize=observation.sanitize,
        trace_ccl=observation.trace_ccl,
        advise=observation.advise,
    )


def _list_evaluation_params(request: RunRequest) -> list[str]:
    outputs, ccl = request.outputs, request.machine.ccl
    options = {"out": outputs.out, "reference": outputs.reference, "render_only": outputs.render_only or None}
    options["ccl"] = os.fspath(ccl) if isinstance(ccl, str | os.PathLike) else None
    return [f"{BENCH_PREFIX}{name}={json.dumps(choice)}" for name, choice in options.items() if choice is not None]


def _limit(name: str, limit: float | None) -> float | None:
    """Return a limit, or None for an infinite limit. Raises InputError for anything but a number from 0."""
    if limit is None or limit == math.inf:
        return None
    if isinstance(limit, bool) or not isinstance(limit, int | float) or math.isnan(limit) or limit < 0:
        raise InputError(f"{name}: found {show(limit)}, must be a number from 0, or infinity")
    return float(limit)
