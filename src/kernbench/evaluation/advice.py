"""Advice on a run: the simulated gain of making each limiting resource 10 % faster.

Both the run and its variants use ``refresh: spread``, so no refresh outage distorts the comparison. Program changes are
not simulated: each suggestion has evidence and an upper bound of its gain.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from io import StringIO
from itertools import combinations
from typing import Any, TypeAlias

from kernbench.common.errors import ConfigError, RunError, text_of
from kernbench.common.units import ns_to_ps, ps_to_ns
from kernbench.common.values import value
from kernbench.engine.engine import Observer
from kernbench.engine.requests import Limits
from kernbench.evaluation.program_review import ProgramAdvice, review_program
from kernbench.observe.path_resources import PathShare, divide_ties, join_words, sum_resources
from kernbench.observe.roofline import Roofline
from kernbench.observe.trace_log import TraceLog
from kernbench.result.sections import Absence, Section, register
from kernbench.result.table import Table, TableColumn, number, percent_text, words
from kernbench.runtime_api.bench_runner import BenchResult
from kernbench.runtime_api.launch_report import launches_of
from kernbench.runtime_api.prepared_run import PreparedRun
from kernbench.runtime_api.run_explanation import LaunchExplanation, RunExplanation, explain_run
from kernbench.topology.builder import Topology, compile_variant
from kernbench.topology.resources import find_resources, settings_of, speed_up
from kernbench.topology.scaling import replace_entries

FASTER = 1.1
MOST_RESOURCES = 5
SMALLEST_SHARE = 0.02
"""Smallest gain that is reported, as a share of the time of the run or of its main launch"""


@value
class Timing:
    """The time of a run, and of each launch by request id, in ps."""

    run_ps: int
    launches_ps: Mapping[int, int]


Rerun: TypeAlias = Callable[[Topology], Timing]
"""Function that simulates the program again on another machine"""


@value(kw_only=True)
class MachineAdvice:
    """The simulated gain of a run and of its main launch when all ``resources`` are 10 % faster.

    ``settings``: the ``--set`` texts that make the resources faster.
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
        """The gain as a share of the run or of the launch, whichever is larger."""
        return max(self.run_share, self.launch_share)


@value(kw_only=True)
class Advice:
    """The gains of machine changes and the upper bounds of program changes, the largest first.

    ``run_ns``: the time of the run with ``refresh: spread``.
    """

    launch: str
    run_ns: float
    machine: tuple[MachineAdvice, ...]
    program: tuple[ProgramAdvice, ...]

    def report(self) -> Iterator[str | Table[Any]]:
        """Yield the gains of faster resources, then the suggested changes of the program."""
        if not self.machine and not self.program:
            yield "No resource that is 10 % faster gives 2 % of the time."
        yield Table(
            "machine changes", self.machine, _MACHINE, "10 % faster, simulated  (both sides with refresh: spread)"
        )
        title = f"What the kernel {self.launch!r} could do differently  (not simulated)"
        yield Table("program changes", self.program, _PROGRAM, title)


_MACHINE: tuple[TableColumn[MachineAdvice], ...] = (
    words("resource", lambda advice: join_words(advice.resources)),
    number("run ns", lambda advice: advice.gained_ns, "−{:,.3f}".format),
    number("of the run", lambda advice: advice.run_share, percent_text),
    number("launch ns", lambda advice: ps_to_ns(advice.launch_gained_ps), "−{:,.3f}".format),
    number("of the launch", lambda advice: advice.launch_share, percent_text),
    words("--set", lambda advice: "\n".join(advice.settings)),
)
_PROGRAM: tuple[TableColumn[ProgramAdvice], ...] = (
    words("change", lambda advice: advice.what),
    words("evidence", lambda advice: advice.evidence),
    number("at most", lambda advice: advice.share, percent_text),
)


ADVICE: Section[Advice] = register(
    Section(
        name="advice", form=Advice, compute=lambda _: Absence("no advice was requested"), columns={}, row=lambda _: {}
    )
)


def spread_refresh(machine: Topology) -> Topology:
    """Return the machine with ``refresh: spread``. A machine that has it, or has no banks, stays unchanged."""
    hbm = machine.configured.cube.hbm
    if hbm.banks is None or hbm.refresh_mode == "spread":
        return machine
    return compile_variant(machine, replace_entries(machine.configured, {("cube", "hbm", "refresh"): "spread"}))


def _run_again(program: PreparedRun, machine: Topology, *observers: Observer) -> BenchResult:
    """Run the program on a machine without its prints. Raises RunError if the program fails."""
    with redirect_stdout(StringIO()):
        result = replace(program, machine=machine, verify=False, limits=Limits()).run(*observers)
    failure = result.completion.error
    if failure is not None:
        raise RunError(f"the program fails when it runs again: {type(failure).__name__}: {text_of(failure)}")
    return result


def _time(program: PreparedRun, machine: Topology) -> Timing:
    """Run the program on a machine and return its time."""
    result = _run_again(program, machine)
    launches = launches_of(result.engine.handles)
    return Timing(
        ns_to_ps(result.sim_ns), {launch.request_id: launch.ended_ps - launch.begun_ps for launch in launches}
    )


def advise_program(program: PreparedRun, *, workers: int | None = None) -> Advice:
    """Return advice on a program, which runs on its machine with ``refresh: spread`` and on faster variants."""
    log = TraceLog()
    result = _run_again(program, spread_refresh(program.machine), log)
    explained = explain_run(log, result.engine.handles, result.completion.t_start, result.completion.t_end)
    return advise(result.engine.topology, log, explained, partial(_time, program), workers=workers)


def advise(
    machine: Topology, log: TraceLog, explained: RunExplanation, rerun: Rerun, *, workers: int | None = None
) -> Advice:
    """Return advice on the run that ``log`` and ``explained`` describe. It ran on ``machine`` with ``refresh: spread``.

    Up to ``workers`` processes simulate at a time; the default is one per core. Without fork, or with PyTorch, the
    simulations run one after another.
    """
    main = explained.main_launch
    chosen = [names for names in _candidates(machine, explained) if _variant(machine, names) is not None]
    timings = _measure(machine, chosen, rerun, workers or os.cpu_count() or 1)
    before = Timing(explained.path.ps, {launch.request_id: launch.path.ps for launch in explained.launches})
    changes = [_compare(machine, names, before, after, main) for names, after in zip(chosen, timings, strict=True)]
    shown = sorted((change for change in changes if change.share >= SMALLEST_SHARE), key=lambda change: -change.share)
    return Advice(
        launch="" if main is None else main.name,
        run_ns=ps_to_ns(before.run_ps),
        machine=tuple(shown),
        program=() if main is None else review_program(log, main),
    )


def _candidates(machine: Topology, explained: RunExplanation) -> list[tuple[str, ...]]:
    """Return the groups of resources to make faster. They have the largest shares of the run or of its main launch."""
    resources = find_resources(machine.configured)
    main = explained.main_launch
    most: dict[str, float] = {}
    for shares, roofline in [(explained.shares, explained.roofline), *([(main.shares, main.roofline)] if main else [])]:
        for name, share in _potentials(shares, roofline):
            most[name] = max(most.get(name, 0.0), share)
    ordered = sorted((name for name in most if name in resources), key=lambda name: -most[name])[:MOST_RESOURCES]
    ties = [group for roofline in (explained.roofline, *([main.roofline] if main else [])) for group in roofline.ties]
    ties += [summed.resources for summed in sum_resources(explained.shares if main is None else main.shares)[:1]]
    groups = [pair for group in ties if len(group) > 1 for pair in (*combinations(group, 2), group)]
    return list(dict.fromkeys([*((name,) for name in ordered), *groups]))


def _potentials(shares: Iterable[PathShare], roofline: Roofline) -> Iterator[tuple[str, float]]:
    """Yield resources with the shares of their bounds, then with their shares of the critical path, queues included."""
    for bound in roofline.bounds:
        yield bound.resource, bound.ps / roofline.measured_ps
    for summed in divide_ties(sum_resources(shares)):
        yield summed.resource, summed.ps / roofline.measured_ps


def _variant(machine: Topology, names: Sequence[str]) -> Topology | None:
    """Return the machine with faster resources; None if this machine is invalid or equals the original."""
    try:
        variant = compile_variant(machine, speed_up(machine.configured, names, FASTER))
    except ConfigError:
        return None
    return variant if settings_of(machine.configured, names, FASTER) else None


_AUTOGRAD = "torch"
"""A program that imports this module cannot fork: in a forked process, a second backward fails"""
_task: tuple[Rerun, Sequence[Topology]] | None = None  # the inputs of a forked process


def _take_task(rerun: Rerun, machines: Sequence[Topology]) -> None:
    """Initialise a forked process: Ctrl-C ends it silently, because the parent process reports the interrupt."""
    global _task  # noqa: PLW0603 - how a forked process knows its task
    _task = rerun, machines
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _simulate(number: int) -> Timing:
    assert _task is not None
    rerun, machines = _task
    return rerun(machines[number])


def _measure(machine: Topology, chosen: Sequence[Sequence[str]], rerun: Rerun, workers: int) -> list[Timing]:
    """Simulate all variants. Forked processes inherit the program, so it is not pickled."""
    machines = [variant for variant in (_variant(machine, names) for names in chosen) if variant is not None]
    one_by_one = _AUTOGRAD in sys.modules or "fork" not in multiprocessing.get_all_start_methods()
    if workers < 2 or len(machines) < 2 or one_by_one:
        return [rerun(variant) for variant in machines]
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
