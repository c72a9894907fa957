"""Run a program on a machine: the request, the observed simulation, and its result."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import wraps
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeAlias

import kernbench.benches
from kernbench.ccl.diagnostics import trace_ccl
from kernbench.common.complaints import one_of, show
from kernbench.common.errors import BenchError, ExplanationError, InputError, LimitReached, RunError, text_of
from kernbench.common.late import late
from kernbench.common.program_line import ErrorPlace
from kernbench.common.units import is_reported, whole_ps
from kernbench.common.values import state
from kernbench.engine.engine import GraphEngine, Observer
from kernbench.library.machines import MachineLike, load_machine
from kernbench.library.progress import OnProgress, ProgressDisplay, ProgressWatch
from kernbench.library.runs import INTERRUPTED, LiveRun, Run, RunFailure, RunStatus, StatedVerdict, failure_of
from kernbench.result.wall_limit import wall_limit
from kernbench.runtime_api.bench_registry import Bench, load_bench
from kernbench.runtime_api.bench_runner import BenchResult, BenchStatus, as_bench, run_bench, summarise
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.launch_report import RunReport, report_run
from kernbench.runtime_api.overrides import BENCH_PREFIX, FRONTEND_PREFIXES, part_of
from kernbench.runtime_api.run_options import RunRequest
from kernbench.runtime_api.run_request import PreparedRun, prepare_run
from kernbench.runtime_api.types import DeviceSelector

if TYPE_CHECKING:
    from kernbench.observe.sanitizer import Finding, Sanitizer
    from kernbench.observe.trace_log import TraceLog
    from kernbench.observe.verdict import RunVerdict
    from kernbench.runtime_api.run_explanation import RunExplanation

# Importing the package registers its benches.
BENCHES = kernbench.benches.__name__
TRACE_LOG = "kernbench.observe.trace_log"
SANITIZER = "kernbench.observe.sanitizer"
EXPLAIN = "kernbench.runtime_api.run_explanation"
EXPLANATION = "kernbench.library.explanations"
GUARD = "kernbench.observe.guard"
ADVICE = "kernbench.evaluation.advice"
UNSANITIZED = "sanitizer: interrupted, so there is no result"
WRONG = ("unwritten", "copies", "race", "slot", "message")
"""Findings that fail a run; a wait for scratch memory only costs time"""
FAILED = 1
Program: TypeAlias = "str | os.PathLike[str] | Bench | Callable[[Any], object]"
"""A bench name, ``file.py[:function]``, ``module:function``, a bench, or a function of one argument"""


def run(
    program: Program | None = None,
    machine: MachineLike = None,
    *,
    script: str | os.PathLike[str] | None = None,
    args: Sequence[object] = (),
    as_cuda: bool = False,
    points: int | None = None,
    params: Mapping[str, object] | None = None,
    verify: bool = False,
    data: bool | None = None,
    settings: Mapping[str, object] | None = None,
    device: str = "all",
    ccl: str | os.PathLike[str] | None = None,
    observe: bool = True,
    advise: bool = False,
    max_sim_ns: float | None = None,
    max_wall_s: float | None = None,
    on_progress: OnProgress | None = None,
    **keywords: object,
) -> Run:
    """Run a program on a machine.

    ``program``: a bench name, ``file.py[:function]``, ``module:function``, a function of one argument, or a bench.
    ``script``, in place of it: a file that runs as ``python FILE ARGS`` does, with the arguments ``args``. ``as_cuda``:
    the PyTorch device "cuda" of the script is the machine. ``points``: the number of x values of a Triton benchmark.
    ``params`` or keywords: parameters of the bench. ``machine``: as for ``load_machine``. ``verify``: compute values
    and check them. ``data``: record values, so that the program can read them; by default as the bench declares.
    ``settings``: settings of the PyTorch and Triton front ends, as for ``--set``: ``{"torch.cubes": 4}``. ``device``:
    ``all``, or one SIP as ``sip:0``. ``ccl``: the file that configures collectives. ``observe``: record the causes of
    the time. ``advise``: simulate the gain of machine changes on copies of the machine. ``max_sim_ns``, ``max_wall_s``:
    limits in simulated ns and in seconds of real time; none by default, also for a script. ``on_progress`` is called
    with a RunProgress twice a second, from a separate thread; ``kb.ProgressDisplay()`` shows a bar.

    An error of the program is not raised: it is in the result, whose ``raise_for_status`` raises it. Ctrl-C ends the
    run, and the result contains the finished work. Raises InputError for an invalid program, machine or parameter.
    """
    if advise and not observe:
        raise InputError("advise needs an observed run: remove observe=False")
    request = RunRequest.of(
        **script_choices(program, script, args, as_cuda=as_cuda),
        points=points,
        params=param_texts(params or {}, keywords),
        settings=setting_texts(settings or {}),
        device=device,
        ccl=ccl,
        data=data,
        verify=verify,
        max_sim_ns=max_sim_ns,
        max_wall_s=max_wall_s,
        observe=observe,
        advise=advise,
    )
    bench = None if program is None else find_program(program)
    return simulate(prepare_run(request, bench=bench, machine=load_machine(machine).topology), on_progress)


def script_choices(
    program: Program | None, script: str | os.PathLike[str] | None, args: Sequence[object], *, as_cuda: bool
) -> dict[str, Any]:
    """Return the choices of a script for a RunRequest. Raises InputError unless there is one program or script."""
    if program is None and script is None:
        raise InputError("there is no program: give a bench, a file or a function, or script=FILE")
    if program is not None and script is not None:
        raise InputError("program and script: give one of them")
    if script is None and (as_cuda or args):
        raise InputError(f"{'as_cuda' if as_cuda else 'args'}: only a script takes it; give script=FILE")
    if isinstance(args, str | bytes) or not isinstance(args, Sequence):
        raise InputError(f"args: found {show(args)}, must be a list of the script's arguments")
    file = None if script is None else os.fspath(script)
    return {"script": file, "args": tuple(map(str, args)), "as_cuda": as_cuda}


def find_program(program: Program) -> Bench:
    """Return the bench of a program. Raises UnknownNameError, with the available names, or BenchError."""
    if isinstance(program, str | os.PathLike):
        bench = load_bench(os.fspath(program))
    else:
        bench = as_bench(program)
        bench = replace(bench, name=program.__name__) if isinstance(program, FunctionType) else bench
    if bench.evaluation:
        raise BenchError(f"{bench.name!r} is an evaluation, which makes many runs: kernbench run --bench")
    return bench


def param_texts(params: Mapping[str, object], keywords: Mapping[str, object]) -> list[str]:
    """Return ``bench.NAME=VALUE`` texts. Raises InputError for a duplicate name or a value that YAML cannot store."""
    if not isinstance(params, Mapping):
        raise InputError(f"params: found {show(params)}, must be a mapping of names to values")
    twice = [name for name in keywords if name in params]
    if twice:
        raise InputError(f"{', '.join(twice)}: given as a keyword and in params; give it once")
    return [_text_of(name, content, BENCH_PREFIX) for name, content in {**params, **keywords}.items()]


def setting_texts(settings: Mapping[str, object]) -> list[str]:
    """Return frontend settings as texts for ``--set``. Raises InputError for unknown names."""
    if not isinstance(settings, Mapping):
        raise InputError(f"settings: found {show(settings)}, must be a mapping of names such as torch.cubes to values")
    for name in settings:
        if not isinstance(name, str) or part_of(name) != "frontends":
            raise InputError(
                f"settings: {show(name)} is no frontend setting, which begins with one of: "
                f"{one_of(FRONTEND_PREFIXES)}; put machine values into overrides and bench parameters into params"
            )
    return [_text_of(name, content) for name, content in settings.items()]


def _text_of(name: str, content: object, prefix: str = "") -> str:
    try:
        return f"{prefix}{name}={json.dumps(content)}"
    except TypeError as error:
        raise InputError(f"{name}: found {show(content)}, must be a number, a text, a list or a mapping") from error


def simulate(request: PreparedRun, on_progress: OnProgress | None = None) -> Run:
    """Run the program of a request until it ends or the user interrupts it. Raises InputError for invalid inputs."""
    return _Simulation(request, DeviceSelector(request.device), on_progress).run()


@state(eq=False)
class _Simulation:
    """A running simulation. It stores all that a result needs, even after an interrupt."""

    request: PreparedRun
    device: DeviceSelector
    on_progress: OnProgress | None = None
    watch: ProgressWatch | None = None
    log: TraceLog | None = None
    sanitizer: Sanitizer | None = None
    engine: GraphEngine | None = None
    context: RuntimeContext[Any] | None = None
    end_ns: float = 0.0

    def run(self) -> Run:
        """Run the program and collect its result."""
        request, result = self.request, None
        if request.observe:
            self.log = late(TRACE_LOG, "TraceLog")(links=request.links, watch_queues=request.queues)
        if request.sanitize:
            self.sanitizer = late(SANITIZER, "Sanitizer")()
        params = request.bench.make_params(request.params)
        try:
            with ExitStack() as around:
                if isinstance(self.on_progress, ProgressDisplay):
                    around.enter_context(self.on_progress)
                if self.on_progress is not None:
                    self.watch = around.enter_context(ProgressWatch(request.bench.name, self.on_progress))
                around.enter_context(_return_to_folder())
                around.enter_context(wall_limit(request.limits.wall_s, self._out_of_time))
                result = run_bench(
                    topology=request.machine,
                    bench_fn=replace(request.bench, function=self._note_context()),
                    device=self.device,
                    engine_factory=lambda *_: self._make_engine(),
                    params=params,
                    verify=request.verify,
                    ccl=request.ccl,
                    frontends=request.frontends,
                )
        except KeyboardInterrupt:
            if self.engine is None:
                raise
        assert self.engine is not None, "a run that has ended has an engine"
        try:
            found = self._collect(self.engine, result)
        except KeyboardInterrupt:
            found = self._collect(self.engine, result, explains=False).without_explanation()
            return found if self.sanitizer is None else replace(found, remarks=(*found.remarks, UNSANITIZED))
        return self._with_advice(found) if request.advise and result is not None and result.error is None else found

    def _with_advice(self, found: Run) -> Run:
        """Return the run with advice: run the program again with ``refresh: spread``, and on faster machines."""
        try:
            with late(GUARD, "guarded")("advice"):
                advice = late(ADVICE, "advise_program")(self.request)
        except KeyboardInterrupt:  # the result of the program itself is complete
            return replace(found, status="INTERRUPTED", exit_code=INTERRUPTED)
        except RunError as error:
            return replace(found, remarks=(*found.remarks, f"no advice: {text_of(error)}"))
        assert found.live is not None, "a run that has just ended has its engine"
        document = late(EXPLANATION, "advice_document")(advice)
        return replace(found, advised=document, live=replace(found.live, advice=advice))

    def _note_context(self) -> Callable[[RuntimeContext[Any]], object]:
        """Return the bench's function, wrapped so that it stores its context here."""
        bench = self.request.bench

        @wraps(bench.function)
        def run(torch: RuntimeContext[Any]) -> object:
            self.context = torch
            try:
                return bench(torch)
            finally:
                self.end_ns = torch.engine.now

        return run

    def _make_engine(self) -> GraphEngine:
        request = self.request
        observers: list[Observer] = [each for each in (self.sanitizer, self.log) if each is not None]
        machine = request.machine
        self.engine = GraphEngine(machine, request.data, observers=observers, limits=request.limits)
        if self.watch is not None:
            self.watch.engine = self.engine
        if request.trace_ccl:
            trace_ccl(self.engine)
        return self.engine

    def _out_of_time(self) -> LimitReached:
        return LimitReached("stopped by --max-wall-s") if self.engine is None else self.engine.out_of_time()

    def _collect(self, engine: GraphEngine, result: BenchResult | None, *, explains: bool = True) -> Run:
        """Return the result of the run. ``explains``: also compute the explanation and the findings, which are slow."""
        request, context, log = self.request, self.context, self.log
        load = None if context is None else context.operators.load
        zero_ns = 0.0 if load is None else load.left_out_ns
        end_ns = self.end_ns if result is None else result.completion.t_end
        explained = self._explain(engine, zero_ns, end_ns) if explains else None
        found_by_sanitizer = self._sanitize(engine) if explains else None
        links, works = None if result is None else result.links, None if log is None else log.seen.works
        report = report_run(engine, links, works, zero_ns)
        sim_ns = whole_ps(end_ns - zero_ns) if result is None else result.sim_ns
        machine = request.machine
        testing = None if context is None else context.testing
        params = request.bench.params() if context is None else context.params
        found = Run(
            bench=request.bench.name,
            status="INTERRUPTED",
            device=str(self.device),
            verdict=_say_verdict(explained, report, "not observed" if log is None else "not explained"),
            params=params.model_dump(mode="json"),
            source=machine.source,
            digest=machine.digest,
            configuration=machine.configuration,
            summary=summarise(() if context is None else context.traces, sim_ns, zero_ns),
            report=report,
            checks=() if testing is None else testing.comparisons,
            skipped=0 if testing is None else testing.skipped,
            verify=request.verify,
            data=engine.data_report(),
            exit_code=INTERRUPTED,
            load=load,
            frontends=request.frontends.model_dump(mode="json", exclude_defaults=True),
            printed=engine.printed(),
            remarks=(found_by_sanitizer.text,) if isinstance(found_by_sanitizer, RunFailure) else (),
            findings=None if isinstance(found_by_sanitizer, RunFailure) else found_by_sanitizer,
            unexplained=explained if isinstance(explained, RunFailure) else None,
            live=LiveRun(
                engine, machine, result, log, self.sanitizer, None if isinstance(explained, RunFailure) else explained
            ),
        )
        return found if result is None else _with_result(found, result)

    def _explain(self, engine: GraphEngine, begin_ns: float, end_ns: float) -> RunExplanation | RunFailure | None:
        """Return the explanation with its verdict, the failure of the explanation, or None without observation."""
        if self.log is None:
            return None
        try:
            with late(GUARD, "guarded")("explanation"):
                found: RunExplanation = late(EXPLAIN, "explain_run")(self.log, engine.handles, begin_ns, end_ns)
                return found if found.verdict is not None else None
        except ExplanationError as error:
            return failure_of(error)

    def _sanitize(self, engine: GraphEngine) -> tuple[Finding, ...] | RunFailure | None:
        """Return the findings of the sanitizer, its failure, or None if the sanitizer was off."""
        if self.sanitizer is None:
            return None
        try:
            with late(GUARD, "guarded")("sanitizer"):
                return self.sanitizer.findings(engine)
        except ExplanationError as error:
            return failure_of(error)


@contextmanager
def _return_to_folder() -> Iterator[None]:
    """Restore the current folder at the end. A program may change it, but output paths are relative to the first."""
    here = os.curdir
    with suppress(OSError):  # the folder was deleted
        here = os.getcwd()
    try:
        yield
    finally:
        with suppress(OSError):  # as above, or the folder may not be entered by name
            os.chdir(here)


def _with_result(found: Run, result: BenchResult) -> Run:
    """Return ``found`` with the fields that the result of the program determines."""
    wrong = [each for each in found.findings or () if each.kind in WRONG]
    failure = result.completion.error or (RunError(f"the sanitizer found: {wrong[0]}") if wrong else None)
    assert found.live is not None, "a run that has just ended has its engine"
    return replace(
        found,
        bench=result.bench,
        status=_status(result, failure),
        error=None if failure is None else failure_of(failure),
        place=result.place or (ErrorPlace(line=result.program) if wrong else None),
        exit_code=result.exit_code or (FAILED if wrong else 0),
        said=result.value if isinstance(result.value, str) else "",
        # An aborted run could not free its memory.
        leaked=tuple(map(str, result.cleanup.leaked)) if result.error is None else (),
        left=result.cleanup.left,
        unmodelled=result.unmodelled,
        operators=result.operators,
        remarks=(*found.remarks, *result.remarks),
        live=replace(found.live, error=failure),
    )


def _status(result: BenchResult, failure: Exception | None) -> RunStatus:
    if failure is None:
        return "OK"
    return "NO_REQUESTS" if result.status is BenchStatus.NO_REQUESTS else "FAILED"


def _say_verdict(
    explained: RunExplanation | RunFailure | None, report: RunReport, why_not: str
) -> RunVerdict | StatedVerdict:
    """Return the verdict on a run. Without a critical path, it consists of ``why_not`` and the busiest resources."""
    if isinstance(explained, RunFailure):
        return StatedVerdict(explained.text)
    if explained is not None:
        return explained.verdict
    busiest = max(report.engines, key=lambda each: each.occupancy, default=None)
    used = [] if busiest is None else [(busiest.engine, busiest.occupancy)]
    used += [(f"link {each.src} → {each.dst}", each.utilisation) for each in report.traffic.busiest[:1]]
    told = ", ".join(f"{name} {share:.0%}" for name, share in used if is_reported(share))
    return StatedVerdict(f"{why_not}; busiest: {told or 'nothing'}")
