"""Advise on a run: what each resource that it is held up by would give, were it 10 % faster, found by simulating that.

Both sides run with ``refresh: spread``, so that no outage is met or missed by chance. What the program could do
differently is not simulated: it is told with its evidence, and with the most that it can give.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from io import StringIO
from itertools import combinations
from typing import TypeAlias

from kernbench.common.data_policy import DataPolicy
from kernbench.common.errors import ConfigError, RunError, text_of
from kernbench.common.units import ns_to_ps, ps_to_ns
from kernbench.common.values import value
from kernbench.engine.engine import GraphEngine, Observer
from kernbench.evaluation.program_review import ProgramAdvice, review_program
from kernbench.observe.path_resources import PathShare, divide_ties, sum_resources
from kernbench.observe.roofline import Roofline
from kernbench.observe.trace_log import TraceLog
from kernbench.runtime_api.bench_registry import Bench
from kernbench.runtime_api.bench_runner import BenchResult, run_bench
from kernbench.runtime_api.frontends import FrontendSettings
from kernbench.runtime_api.launch_report import launches_of
from kernbench.runtime_api.run_explanation import LaunchExplanation, RunExplanation, explain_run
from kernbench.runtime_api.types import DeviceSelector
from kernbench.topology.builder import Topology, compile_variant
from kernbench.topology.resources import find_resources, settings_of, speed_up
from kernbench.topology.scaling import replace_entries

FASTER = 1.1
MOST_RESOURCES = 5
SMALLEST_SHARE = 0.02
"""Of the time: what gives less is not told"""


@value
class Timing:
    """The time of a run, and those of its launches by request, in ps."""

    run_ps: int
    launches_ps: Mapping[int, int]


Rerun: TypeAlias = Callable[[Topology], Timing]
"""Simulates the program again on another machine"""


@value(kw_only=True)
class MachineAdvice:
    """The gain of the run and of its main launch, measured, when ``resources`` are 10 % faster together.

    ``settings``: what to ``--set`` for that.
    """

    resources: tuple[str, ...]
    gained_ps: int
    run_share: float
    launch_gained_ps: int
    launch_share: float
    settings: tuple[str, ...]

    @property
    def gained_ns(self) -> float:
        """The gain of the run in ns."""
        return ps_to_ns(self.gained_ps)

    @property
    def share(self) -> float:
        """The larger of the shares that the run and the launch gain."""
        return max(self.run_share, self.launch_share)


@value(kw_only=True)
class Advice:
    """The gains of changes of the machine, and the most that changes of the program give, the largest first."""

    launch: str
    timing: Timing
    machine: tuple[MachineAdvice, ...]
    program: tuple[ProgramAdvice, ...]


def spread_refresh(machine: Topology) -> Topology:
    """Return the machine with ``refresh: spread``; itself where it has that, or no banks."""
    hbm = machine.configured.cube.hbm
    if hbm.banks is None or hbm.refresh_mode == "spread":
        return machine
    return compile_variant(machine, replace_entries(machine.configured, {("cube", "hbm", "refresh"): "spread"}))


@value(kw_only=True)
class RepeatedProgram:
    """A program that can be simulated again, on another machine; what it prints then is not shown."""

    bench: Bench
    device: DeviceSelector
    params: tuple[str, ...] = ()
    ccl: str | None = None
    frontends: FrontendSettings | None = None
    data: DataPolicy = DataPolicy(keep=False)

    def simulate(self, machine: Topology, *observers: Observer) -> BenchResult:
        """Run it on a machine. RunError if the program fails."""
        with redirect_stdout(StringIO()):
            result = run_bench(
                topology=machine,
                bench_fn=self.bench,
                device=self.device,
                engine_factory=lambda made, _: GraphEngine(made, self.data, observers=observers),
                params=self.params,
                verify=False,
                ccl=self.ccl,
                frontends=self.frontends,
            )
        failure = result.completion.error
        if failure is not None:
            raise RunError(f"the program fails when it runs again: {type(failure).__name__}: {text_of(failure)}")
        return result

    def time(self, machine: Topology) -> Timing:
        """Run it on a machine, and return what it takes there."""
        result = self.simulate(machine)
        ended = launches_of(result.engine.handles)
        return Timing(ns_to_ps(result.sim_ns), {each.request_id: each.ended_ps - each.submitted_ps for each in ended})


def advise_program(program: RepeatedProgram, machine: Topology, *, workers: int | None = None) -> Advice:
    """Return advice on a program, which is run again for it on ``machine`` with ``refresh: spread`` and on variants."""
    spread, log = spread_refresh(machine), TraceLog()
    result = program.simulate(spread, log)
    found = explain_run(log, result.engine.handles, result.completion.t_start, result.completion.t_end)
    return advise(result.engine.topology, log, found, program.time, workers=workers)


def advise(
    machine: Topology, log: TraceLog, found: RunExplanation, rerun: Rerun, *, workers: int | None = None
) -> Advice:
    """Return advice on a run that was observed in ``log`` and ``found``, on ``machine`` with ``refresh: spread``.

    Up to ``workers`` processes simulate at a time; by default one a core. Where processes cannot be forked, and with
    PyTorch, they run one after the other.
    """
    main = found.main_launch
    chosen = [each for each in _candidates(machine, found) if _variant(machine, each) is not None]
    timings = _measure(machine, chosen, rerun, workers or os.cpu_count() or 1)
    before = Timing(found.path.ps, {each.request_id: each.path.ps for each in found.launches})
    made = [_compare(machine, names, before, after, main) for names, after in zip(chosen, timings, strict=True)]
    shown = sorted((each for each in made if each.share >= SMALLEST_SHARE), key=lambda each: -each.share)
    return Advice(
        launch="" if main is None else main.name,
        timing=before,
        machine=tuple(shown),
        program=() if main is None else review_program(log, main),
    )


def _candidates(machine: Topology, found: RunExplanation) -> list[tuple[str, ...]]:
    """Return the resources to make faster: those with most of the run or of its main launch, and those that tie."""
    known = find_resources(machine.configured)
    main = found.main_launch
    most: dict[str, float] = {}
    for shares, roofline in [(found.shares, found.roofline), *([(main.shares, main.roofline)] if main else [])]:
        for name, share in _potentials(shares, roofline):
            most[name] = max(most.get(name, 0.0), share)
    ordered = sorted((name for name in most if name in known), key=lambda name: -most[name])[:MOST_RESOURCES]
    ties = [group for roofline in (found.roofline, *([main.roofline] if main else [])) for group in roofline.ties]
    ties += [each.resources for each in sum_resources(found.shares if main is None else main.shares)[:1]]
    groups = [pair for group in ties if len(group) > 1 for pair in (*combinations(group, 2), group)]
    return list(dict.fromkeys([*((name,) for name in ordered), *groups]))


def _potentials(shares: Iterable[PathShare], roofline: Roofline) -> Iterator[tuple[str, float]]:
    """Yield resources, with the share of their bounds, and with that of the path that they have, queues included."""
    for bound in roofline.bounds:
        yield bound.resource, bound.ps / roofline.measured_ps
    for each in divide_ties(sum_resources(shares)):
        yield each.resource, each.ps / roofline.measured_ps


def _variant(machine: Topology, names: Sequence[str]) -> Topology | None:
    """Return the machine with some resources faster; None where it would be none, or the same."""
    try:
        made = compile_variant(machine, speed_up(machine.configured, names, FASTER))
    except ConfigError:
        return None
    return made if settings_of(machine.configured, names, FASTER) else None


_AUTOGRAD = "torch"
"""The module whose threads a forked process lacks: in one, a second backward is an error"""
_task: tuple[Rerun, Sequence[Topology]] | None = None  # of a forked process


def _take_task(rerun: Rerun, machines: Sequence[Topology]) -> None:
    """Begin as a forked process: Ctrl-C ends it without a word, for the process it is of says what there is to say."""
    global _task  # noqa: PLW0603 - how a forked process knows its task
    _task = rerun, machines
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _simulate(number: int) -> Timing:
    assert _task is not None
    rerun, machines = _task
    return rerun(machines[number])


def _measure(machine: Topology, chosen: Sequence[Sequence[str]], rerun: Rerun, workers: int) -> list[Timing]:
    """Simulate all variants. Forked processes have the program as it is: nothing of it need be pickled."""
    machines = [made for made in (_variant(machine, names) for names in chosen) if made is not None]
    one_by_one = _AUTOGRAD in sys.modules or "fork" not in multiprocessing.get_all_start_methods()
    if workers < 2 or len(machines) < 2 or one_by_one:
        return [rerun(made) for made in machines]
    forked, task = multiprocessing.get_context("fork"), (rerun, machines)
    with ProcessPoolExecutor(min(workers, len(machines)), forked, _take_task, task) as pool:
        return list(pool.map(_simulate, range(len(machines))))


def _compare(
    machine: Topology, names: tuple[str, ...], before: Timing, after: Timing, main: LaunchExplanation | None
) -> MachineAdvice:
    gained = before.run_ps - after.run_ps
    launch_gained = 0
    if main is not None and main.request_id in after.launches_ps:
        launch_gained = main.path.ps - after.launches_ps[main.request_id]
    return MachineAdvice(
        resources=names,
        gained_ps=gained,
        run_share=gained / before.run_ps if before.run_ps else 0.0,
        launch_gained_ps=launch_gained,
        launch_share=launch_gained / main.path.ps if main is not None else 0.0,
        settings=settings_of(machine.configured, names, FASTER),
    )
