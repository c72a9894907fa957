"""Experiments that a verdict is held to: make one resource 10 % faster, simulate again, and see what it gives."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from kernbench.common.data_policy import DataPolicy
from kernbench.common.errors import ConfigError
from kernbench.engine.engine import GraphEngine, Observer
from kernbench.observe.path_resources import PathShare, sum_resources
from kernbench.observe.trace_log import TraceLog
from kernbench.observe.verdict import VerdictKind
from kernbench.runtime_api.bench_registry import Bench, BenchFunction
from kernbench.runtime_api.bench_runner import BenchResult, run_bench
from kernbench.runtime_api.launch_report import launches_of
from kernbench.runtime_api.run_explanation import LaunchExplanation, RunExplanation, explain_run
from kernbench.topology import resources as of
from kernbench.topology.builder import Topology, compile_variant, resolve_topology
from kernbench.topology.resources import find_resources, speed_up

FASTER = 1.1
NOISE = 0.005
"""Of the time: less is no gain"""


@dataclass(frozen=True)
class Experiment:
    """A program on a machine, whose main launch is explained, and run again on machines that are faster."""

    program: Bench | BenchFunction
    machine: Topology
    params: tuple[str, ...] = ()

    @cached_property
    def explained(self) -> RunExplanation:
        """The run, explained; with the sums of what is said checked to the picosecond."""
        log = TraceLog()
        engine, result = self._run(self.machine, log)
        found = explain_run(log, engine.handles, result.completion.t_start, result.completion.t_end)
        for each in (found, *found.launches):
            path, roofline = each.path, each.roofline
            assert sum(step.ps for step in path.steps) == sum(share.ps for share in each.shares) == path.ps
            assert sum(part.ps for part in path.parts) == roofline.measured_ps == path.ps
            assert all(bound.ps <= roofline.measured_ps for bound in roofline.bounds)
            assert roofline.largest is None or roofline.largest.ps + sum(d.ps for d in roofline.differences) == path.ps
            assert all(times.busy_ps <= path.ps for times in each.slices)
        return found

    @cached_property
    def launch(self) -> LaunchExplanation:
        """The main launch."""
        found = self.explained.main_launch
        assert found is not None
        return found

    @property
    def time_ps(self) -> int:
        """Its time."""
        return self.launch.path.ps

    @cached_property
    def path_shares(self) -> Mapping[str, float]:
        """The share of each resource of its path, with queues."""
        return {name: ps / self.time_ps for name, ps in sum_most(self.launch.shares).items()}

    @cached_property
    def bounds(self) -> Mapping[str, float]:
        """The share of each resource's bound."""
        return {each.resource: each.ps / self.time_ps for each in self.launch.roofline.bounds}

    @property
    def concerned(self) -> list[str]:
        """The resources that its path goes through or that worked for it."""
        known = find_resources(self.machine.configured)
        return [name for name in known if name in self.path_shares or name in self.bounds]

    @property
    def foremost(self) -> list[str]:
        """Those of the verdict, and the five with most of the path or of a bound: a faster choice of ``concerned``."""
        most = {name: max(self.path_shares.get(name, 0.0), self.bounds.get(name, 0.0)) for name in self.concerned}
        said = [name for name in self.launch.verdict.resources if name in most]
        return list(dict.fromkeys([*said, *sorted(most, key=lambda name: -most[name])[:5]]))

    def gain(self, *names: str, factor: float = FASTER) -> int | None:
        """Return by how many ps the launch is shorter on a machine with these faster; None if there is none such."""
        spec = speed_up(self.machine.configured, names, factor)
        try:
            machine = compile_variant(self.machine, spec)
        except ConfigError:
            return None
        engine, _ = self._run(machine)
        (handle,) = (each for each in launches_of(engine.handles) if each.request_id == self.launch.request_id)
        return self.time_ps - (handle.ended_ps - handle.submitted_ps)

    def _run(self, machine: Topology, *observers: Observer) -> tuple[GraphEngine, BenchResult]:
        engines: list[GraphEngine] = []

        def make(made: Topology, _: object) -> GraphEngine:
            engines.append(GraphEngine(made, DataPolicy(keep=False), observers=observers))
            return engines[0]

        result = run_bench(topology=machine, bench_fn=self.program, engine_factory=make, params=self.params)
        result.raise_for_status()
        return engines[0], result


def sum_most(shares: Iterable[PathShare]) -> dict[str, int]:
    """Return the most of a path's time that each resource can have: that in its queues included.

    In the queue of a slice with banks others wait for their data, rows, turns of direction and refreshes alike.
    """
    found = sum_resources(shares)
    most: dict[str, int] = {}
    for each in found:
        for name in each.resources:
            most[name] = most.get(name, 0) + each.ps
    queued = sum(each.queued_ps for each in found if each.resources == (of.HBM,))
    of_banks = of.HBM_ROWS, of.HBM_TURNS, of.HBM_REFRESH
    return most | {name: most.get(name, 0) + queued for name in of_banks if queued or name in most}


def spread(topology: str = "default", *overrides: str) -> Topology:
    """A machine whose refresh is spread, so that no outage is met or missed by chance."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return resolve_topology(topology, ["cube.hbm.refresh=spread", *overrides])


def broken_promises(experiment: Experiment, names: Iterable[str] | None = None) -> Iterator[str]:
    """Yield what the experiments contradict of what is said about the main launch."""
    gains = {name: experiment.gain(name) for name in names or experiment.concerned}
    known = {name: gain for name, gain in gains.items() if gain is not None}
    time_ps, verdict = experiment.time_ps, experiment.launch.verdict
    for name, gain in known.items():
        share, bound = experiment.path_shares.get(name, 0.0), experiment.bounds.get(name, 0.0)
        if not share and abs(gain) > NOISE * time_ps:
            yield f"{name} is not on the path, and gives {gain:,} ps"
        if gain > time_ps * (max(share, bound) / 11 + NOISE):
            yield f"{name} has {share:.1%} of the path and a bound of {bound:.1%}, and gives {gain / time_ps:.2%}"
    yield from _CHECKS[verdict.kind](experiment, known)


def _check_bound(experiment: Experiment, gains: Mapping[str, int]) -> Iterator[str]:
    (name,) = experiment.launch.verdict.resources
    own = experiment.bounds[name]
    following = max((share for other, share in experiment.bounds.items() if other != name), default=0.0)
    promised = experiment.time_ps * min(own / 11, own - following)
    if own >= 0.8 and name in gains and abs(gains[name] - promised) > max(0.2 * promised, NOISE * experiment.time_ps):
        yield f"bound by {name}: promises {promised:,.0f} ps, gives {gains[name]:,}"


def _check_latency(experiment: Experiment, gains: Mapping[str, int]) -> Iterator[str]:
    (name,) = experiment.launch.verdict.resources
    most = max(gains, key=lambda each: gains[each])
    if name in gains and max(gains[name], NOISE * experiment.time_ps) < gains[most] / 2:
        yield f"bound by latency, {name}: gives {gains[name]:,} ps, {most} gives {gains[most]:,}"


def _check_tie(experiment: Experiment, gains: Mapping[str, int]) -> Iterator[str]:
    names = experiment.launch.verdict.resources
    together = experiment.gain(*names)
    for name in names:
        if together is not None and name in gains and gains[name] > max(together / 3, NOISE * experiment.time_ps):
            yield f"a tie of {', '.join(names)}: {name} alone gives {gains[name]:,} ps, together {together:,}"


_CHECKS: Mapping[VerdictKind, Callable[[Experiment, Mapping[str, int]], Iterator[str]]] = {
    VerdictKind.BOUND: _check_bound,
    VerdictKind.LATENCY: _check_latency,
    VerdictKind.SPREAD: lambda *_: iter(()),  # no kind is named, so what holds of all is all
    VerdictKind.TIE: _check_tie,
    VerdictKind.NOTHING: lambda *_: iter(()),
}
