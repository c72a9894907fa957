"""Run a prepared program to its end, or until the user stops it, and collect what its result is computed from."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from kernbench.ccl.diagnostics import trace_ccl
from kernbench.ccl.loading import check_ccl
from kernbench.common import errors
from kernbench.common.errors import (
    ExplanationError,
    InputError,
    KernbenchError,
    LimitReached,
    RunError,
    RunStopped,
    text_of,
)
from kernbench.common.late import late
from kernbench.common.program_line import is_program
from kernbench.common.threads import raise_in_thread, take_back_exception
from kernbench.common.units import whole_ps
from kernbench.common.values import state, value
from kernbench.engine.engine import GraphEngine, Observer
from kernbench.engine.keeping import DataReport
from kernbench.engine.records import PrintedLine
from kernbench.observe.energy import EnergyCounts, RunEnergy, measure_energy
from kernbench.observe.works import Works
from kernbench.runtime_api.bench_runner import BenchResult, run_bench
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.launch_report import RunReport, report_run
from kernbench.runtime_api.operators import OperatorTallies
from kernbench.runtime_api.prepared_run import PreparedRun
from kernbench.runtime_api.requests import RequestRecord
from kernbench.runtime_api.types import DeviceSelector, resolve_device
from kernbench.topology.area import measure_area

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from kernbench.observe.findings import Finding
    from kernbench.observe.sanitizer import Sanitizer
    from kernbench.observe.trace_log import TraceLog
    from kernbench.runtime_api.run_explanation import RunExplanation

TRACE_LOG = "kernbench.observe.trace_log"
ENERGY_EVENTS = "kernbench.observe.energy_events"
SANITIZER = "kernbench.observe.sanitizer"
EXPLAIN = "kernbench.runtime_api.run_explanation"
GUARD = "kernbench.observe.guard"
WRONG = ("unwritten", "copies", "race", "slot", "message")
"""Findings that fail a run; a wait for scratch memory only costs time"""
# While simulated time passes, the engine can stop between two events, which is cleaner. It gets this head start.
GRACE_S = 0.25
# A program that catches the first stop is stopped again after this time.
REPEAT_S = 1.0
# A limit beyond the range of timers counts as none.
FOREVER_S = 1e8


@value
class RunFailure:
    """The error that ended a run: its type, a short text, and a text with all details."""

    kind: str
    text: str
    full: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"

    def as_error(self) -> KernbenchError:
        """Return an error of the original type if the type takes a single text, else a RunError that names the type."""
        kind = vars(errors).get(self.kind)
        if isinstance(kind, type) and issubclass(kind, RunError | InputError) and kind.__init__ is Exception.__init__:
            return kind(self.text)
        return RunError(str(self))


def failure_of(error: Exception) -> RunFailure:
    """Return the type and the texts of an error, to store them."""
    text = text_of(error)
    full = error.full if isinstance(error, errors.SimulationDeadlock) else text
    return RunFailure(type(error).__name__, text, full)


class RunWatch(Protocol):
    """A context manager around a run, such as a display of its progress.

    ``engine`` and ``operators``, the tallies of a front end, are set when they exist.
    """

    engine: GraphEngine | None
    operators: OperatorTallies | None


@dataclass(eq=False)
class FinishedRun:
    """A run that has ended: the objects that its sections are computed from.

    - ``context``: None if the program did not begin; ``result``: None after an interrupt of the program
    - ``end_ns``: the end of the program; ``traces``: the requests that had ended
    - ``printed``: the lines that kernels printed; ``data``: the values that were stored and read
    - ``explanation``: None without observation; ``unexplained``: its failure
    - ``findings``: None without the sanitizer; ``unsanitized``: its failure
    - ``is_explanation_interrupted``: Ctrl-C came after the program
    """

    request: PreparedRun
    device: str
    engine: GraphEngine
    context: RuntimeContext[Any] | None
    result: BenchResult | None
    log: TraceLog | None
    sanitizer: Sanitizer | None
    end_ns: float
    traces: tuple[RequestRecord, ...]
    printed: tuple[PrintedLine, ...]
    data: DataReport
    explanation: RunExplanation | None = None
    unexplained: RunFailure | None = None
    findings: tuple[Finding, ...] | None = None
    unsanitized: RunFailure | None = None
    is_explanation_interrupted: bool = False

    @property
    def is_interrupted(self) -> bool:
        """True if Ctrl-C ended the program or its explanation."""
        return self.result is None or self.is_explanation_interrupted

    @property
    def zero_ns(self) -> float:
        """The time at which the reported time begins, in ns: the end of an initialisation that does not count."""
        load = None if self.context is None else self.context.operators.load
        return 0.0 if load is None else load.left_out_ns

    @property
    def sim_ns(self) -> float:
        """The simulated time of the program in ns."""
        return whole_ps(self.end_ns - self.zero_ns) if self.result is None else self.result.sim_ns

    @cached_property
    def report(self) -> RunReport:
        """The figures of launches, engines and traffic."""
        links = None if self.result is None else self.result.links
        return report_run(self.engine, links, None if self.log is None else self.works, self.zero_ns)

    @cached_property
    def works(self) -> Works:
        """The works of the log, all at once."""
        if self.log is not None:
            return self.log.seen.works
        log = self.engine.machine.log.condense()
        return Works(log, log.columns(), self.engine.machine.passed)

    @cached_property
    def energy(self) -> RunEnergy | None:
        """The energy of the run up to the engine's present time; None on a machine whose energy is null."""
        machine, topology = self.engine.machine, self.request.machine
        energy, area = topology.spec.energy, measure_area(topology)
        if area is None or energy is None:
            return None
        if self.log is None:
            counts, split = EnergyCounts(machine, energy, machine.log.condense().columns()), None
        else:
            view = self.log.seen
            counts = EnergyCounts(machine, energy, view.columns)
            split = late(ENERGY_EVENTS, "split_by_launch")(counts, view, self.engine.handles)
        return measure_energy(counts, area, self.sim_ns, split=split, leaves_out_load=self.zero_ns > 0)

    @property
    def error(self) -> Exception | None:
        """The error of the program, of a failed comparison, or of a finding that fails the run."""
        if self.result is None:
            return None
        wrong = [finding for finding in self.findings or () if finding.kind in WRONG]
        return self.result.completion.error or (RunError(f"the sanitizer found: {wrong[0]}") if wrong else None)


def simulate(request: PreparedRun, watch: AbstractContextManager[RunWatch] | None = None) -> FinishedRun:
    """Run a program until it ends or the user interrupts it.

    An observed run is explained as far as its verdict needs. Raises InputError for invalid inputs, and
    KeyboardInterrupt if the interrupt came before the engine existed.
    """
    device = DeviceSelector(request.device)
    resolve_device(device, request.machine.spec)
    if request.advise and not request.observe:
        raise InputError("advise needs an observed run: remove observe=False")
    if isinstance(request.ccl, str | os.PathLike):
        check_ccl(os.fspath(request.ccl))
    return _Simulation(request, device, watch).run()


@state(eq=False)
class _Simulation:
    """A running simulation. It stores all that a result needs, even after an interrupt."""

    request: PreparedRun
    device: DeviceSelector
    watch: AbstractContextManager[RunWatch] | None = None
    watcher: RunWatch | None = None
    log: TraceLog | None = None
    sanitizer: Sanitizer | None = None
    engine: GraphEngine | None = None
    context: RuntimeContext[Any] | None = None
    end_ns: float = 0.0

    def run(self) -> FinishedRun:
        """Run the program, explain it and look for faults."""
        request, result = self.request, None
        if request.observe:
            self.log = late(TRACE_LOG, "TraceLog")(links=request.links, watch_queues=request.queues)
        if request.sanitize:
            self.sanitizer = late(SANITIZER, "Sanitizer")()
        params = request.bench.make_params(request.params)
        try:
            with ExitStack() as around:
                if self.watch is not None:
                    self.watcher = around.enter_context(self.watch)
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
                    reuse=request.reuse,
                    log_rows=request.log_rows,
                )
        except KeyboardInterrupt:
            if self.engine is None:
                raise
        assert self.engine is not None, "a run that has ended has an engine"
        self.engine.machine.forget()  # before the explanation, which needs memory of its own
        finished = FinishedRun(
            request=request,
            device=str(self.device),
            engine=self.engine,
            context=self.context,
            result=result,
            log=self.log,
            sanitizer=self.sanitizer,
            end_ns=self.end_ns if result is None else result.completion.t_end,
            traces=() if self.context is None else self.context.traces,
            printed=self.engine.printed(),
            data=self.engine.data_report(),
        )
        try:
            self._explain(finished)
            self._sanitize(finished)
            if finished.error is not None or result is None:
                # The engine may continue with what is in flight; the figures are those of now.
                with suppress(ExplanationError), late(GUARD, "guarded")("energy"):
                    _ = finished.energy
            _ = finished.report
        except KeyboardInterrupt:
            finished.explanation = finished.findings = finished.unexplained = None
            finished.is_explanation_interrupted = True
        return finished

    def _note_context(self) -> Callable[[RuntimeContext[Any]], object]:
        """Return the bench's function, wrapped so that it stores its context here."""
        bench = self.request.bench

        @wraps(bench.function)
        def run(torch: RuntimeContext[Any]) -> object:
            self.context = torch
            if self.watcher is not None:
                self.watcher.operators = torch.operators
            try:
                return bench(torch)
            finally:
                self.end_ns = torch.engine.now

        return run

    def _make_engine(self) -> GraphEngine:
        request = self.request
        observers: list[Observer] = [observer for observer in (self.sanitizer, self.log) if observer is not None]
        self.engine = GraphEngine(request.machine, request.data, observers=observers, limits=request.limits)
        if self.watcher is not None:
            self.watcher.engine = self.engine
        if request.trace_ccl:
            trace_ccl(self.engine)
        return self.engine

    def _out_of_time(self) -> LimitReached:
        return LimitReached("stopped by --max-wall-s") if self.engine is None else self.engine.out_of_time()

    def _explain(self, finished: FinishedRun) -> None:
        """Explain an observed run as far as its verdict needs, or store the failure of the explanation."""
        if self.log is None:
            return
        try:
            with late(GUARD, "guarded")("explanation"):
                explain_run = late(EXPLAIN, "explain_run")
                explanation: RunExplanation = explain_run(
                    self.log, finished.engine.handles, finished.zero_ns, finished.end_ns
                )
                _ = explanation.verdict
                finished.explanation = explanation
        except ExplanationError as error:
            finished.unexplained = failure_of(error)

    def _sanitize(self, finished: FinishedRun) -> None:
        """Store the findings of the sanitizer, or its failure."""
        if self.sanitizer is None:
            return
        try:
            with late(GUARD, "guarded")("sanitizer"):
                finished.findings = self.sanitizer.findings(finished.engine)
        except ExplanationError as error:
            finished.unsanitized = failure_of(error)


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


@contextmanager
def wall_limit(seconds: float | None, why: Callable[[], RunError]) -> Iterator[None]:
    """Raise RunStopped inside the block, at any point of the program, shortly after ``seconds``; None: never.

    Only the main thread receives signals. In another thread, a timer raises the error.
    """
    if seconds is None:
        yield
        return
    if threading.current_thread() is not threading.main_thread():
        with _limit_thread(seconds, why):
            yield
        return
    stopper, traced = _Stopper(why), sys.gettrace()
    before = signal.signal(signal.SIGALRM, stopper.stop)
    signal.setitimer(signal.ITIMER_REAL, (seconds if seconds < FOREVER_S else FOREVER_S) + GRACE_S, REPEAT_S)
    try:
        yield
    finally:
        stopper.armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        sys.settrace(traced)


@contextmanager
def _limit_thread(seconds: float, why: Callable[[], RunError]) -> Iterator[None]:
    """Raise RunStopped in this thread after ``seconds``, and again after each further ``REPEAT_S``."""
    thread, over, is_armed = threading.current_thread(), threading.Event(), threading.Lock()

    class Stop(RunStopped):
        """RunStopped without arguments, as another thread can raise it."""

        def __init__(self) -> None:
            super().__init__(why())

    def watch() -> None:
        wait_s = min(seconds, FOREVER_S) + GRACE_S
        while not over.wait(wait_s):
            wait_s = REPEAT_S
            with is_armed:
                if not over.is_set():
                    raise_in_thread(thread, Stop)

    watcher = threading.Thread(target=watch, name="limit of a run", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        with is_armed:
            over.set()
            take_back_exception(thread)
        watcher.join()


class _Stopper:
    """Stops a program. If the program catches the stop and goes on, it is stopped again, also in ``except`` clauses."""

    def __init__(self, why: Callable[[], RunError]) -> None:
        self._why = why
        self._stopped = False
        self.armed = True

    def stop(self, _: int, frame: FrameType | None) -> None:
        """Stop the program that runs in ``frame``."""
        if not self.armed:
            return
        if self._stopped:
            sys.settrace(self._stop_at_line)
            while frame is not None:
                if is_program(Path(frame.f_code.co_filename)):
                    frame.f_trace = self._stop_at_line
                frame = frame.f_back
        self._stopped = True
        raise RunStopped(self._why())

    def _stop_at_line(self, _: FrameType, event: str, __: object) -> Any:
        """Stop a program that caught the first stop. Its next line, where it stops, is outside of the ``try``."""
        if event == "line":
            raise RunStopped(self._why())
        return self._stop_at_line
