"""Run the missing points of a sweep on workers and write their outcomes to the journal.

A chunk contains points for a run time of about ``CHUNK_S``, so its transfer costs almost nothing in comparison. Points
of one machine are adjacent, so the machine is compiled once.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import field
from multiprocessing.process import BaseProcess
from operator import attrgetter
from types import TracebackType
from typing import Protocol, Self, TypeAlias

from kernbench.common.errors import KernbenchError, RunError
from kernbench.common.values import state, value
from kernbench.evaluation.sweep_journal import Journal
from kernbench.evaluation.sweep_measure import LOST, OK
from kernbench.evaluation.sweep_plan import BaseMachine, SweepPlan
from kernbench.evaluation.sweep_point import PointChunk, PointJob, PointOutcome, SweepJob, run_chunk
from kernbench.evaluation.sweep_processes import hidden_main, worker_context
from kernbench.result.sections import MAIN, list_modules

CHUNK_S = 0.5
MOST_IN_CHUNK = 64
LOST_ERROR = "the worker died: out of memory, killed, or ended by the program itself"
Chunked: TypeAlias = "Future[list[PointOutcome]]"


class ChunkWorkers(Protocol):
    """Workers that run chunks. ``slots``: the number of chunks that keeps all workers busy."""

    @property
    def slots(self) -> int:
        """The number of chunks that should be in flight."""

    def submit(self, chunk: PointChunk) -> Chunked:
        """Start a chunk, also after workers have died."""

    def is_loss(self, error: BaseException) -> bool:
        """Return True if ``error`` of a chunk means that its worker died."""


@value
class SweepProgress:
    """The progress of a sweep. ``resumed``: number of points that earlier runs of a resumed sweep finished."""

    points: int
    finished: int
    failed: int
    resumed: int
    elapsed_s: float = 0.0

    @property
    def share(self) -> float:
        """The share of finished points."""
        return self.finished / self.points

    def __str__(self) -> str:
        width, done = len(str(self.points)), self.finished - self.resumed
        parts = [f"{self.failed} failed"] if self.failed else []
        parts.append(f"{self.elapsed_s:.0f} s")
        if done and self.finished < self.points:
            parts.append(f"about {self.elapsed_s / done * (self.points - self.finished):.0f} s left")
        elif self.resumed and not done:
            parts.append(f"{self.resumed} were finished before")
        return f"[{self.finished:>{width}}/{self.points}] {', '.join(parts)}"


def run_sweep(
    plan: SweepPlan, journal: Journal, workers: ChunkWorkers, on_progress: Callable[[SweepProgress], None]
) -> None:
    """Run the points that ``journal`` lacks, until the journal is complete."""
    _SweepRun(plan, journal, workers, on_progress).run()


@state
class _SweepRun:
    """A running sweep. ``waiting``: points to run, by machine. ``suspects``: points of dead workers, run alone.

    ``resumed``: the number of points that earlier runs finished.
    """

    plan: SweepPlan
    journal: Journal
    workers: ChunkWorkers
    on_progress: Callable[[SweepProgress], None]
    waiting: deque[tuple[SweepJob, PointJob]] = field(default_factory=deque)
    suspects: deque[PointChunk] = field(default_factory=deque)
    under_way: dict[Chunked, PointChunk] = field(default_factory=dict)
    resumed: int = 0
    failed: int = 0
    began: float = field(default_factory=time.monotonic)
    cpu_s_per_point: float = math.inf

    def run(self) -> None:
        self.resumed = len(self.journal.finished)
        self.failed = _failures(self.journal.finished.values())
        self._gather()
        self._report()
        while self.waiting or self.suspects or self.under_way:
            self._hand_out()
            done, _ = wait(self.under_way, return_when=FIRST_COMPLETED)
            self._take(done)
            self._report()

    def _report(self) -> None:
        elapsed_s = time.monotonic() - self.began
        finished = len(self.journal.finished)
        self.on_progress(SweepProgress(self.plan.n_points, finished, self.failed, self.resumed, elapsed_s))

    def _job(self, machine: BaseMachine) -> SweepJob:
        plan = self.plan
        program = plan.request.program
        return SweepJob(
            request=plan.request,
            base=machine.document,
            configuration=machine.configuration,
            bench=plan.bench if program.bench is None and program.script is None else None,
            modules=tuple(module for module in list_modules() if module != MAIN),
        )

    def _gather(self) -> None:
        plan = self.plan
        by_base: dict[str, list[PointJob]] = {name: [] for name in plan.machines}
        for point in plan.points():
            if point.index not in self.journal.finished:
                by_base[plan.base_name(point)].append(PointJob(point.index, plan.changes(point)))
        for name, points in by_base.items():
            job = self._job(plan.machines[name])
            self.waiting.extend((job, point) for point in sorted(points, key=attrgetter("changes.machine")))

    def _hand_out(self) -> None:
        """Submit work to idle workers. A suspect runs alone, to identify the point that kills its worker."""
        if self.suspects:
            if not self.under_way:
                self._submit(self.suspects.popleft())
            return
        while self.waiting and len(self.under_way) < self.workers.slots:
            self._submit(self._next_chunk())

    def _next_chunk(self) -> PointChunk:
        """Return the next points of one base machine."""
        size, (job, first) = self._size(), self.waiting.popleft()
        points = [first]
        while len(points) < size and self.waiting[0][0] is job:
            points.append(self.waiting.popleft()[1])
        return PointChunk(job, tuple(points))

    def _size(self) -> int:
        """Return the number of points of the next chunk: one before the first timing, few near the end of the sweep."""
        worth = int(min(CHUNK_S / max(self.cpu_s_per_point, 1e-6), MOST_IN_CHUNK))
        return max(1, min(worth, len(self.waiting) // (2 * self.workers.slots)))

    def _submit(self, chunk: PointChunk) -> None:
        self.under_way[self.workers.submit(chunk)] = chunk

    def _take(self, done: Sequence[Chunked] | set[Chunked]) -> None:
        alone = len(self.under_way) == 1
        for future in done:
            chunk = self.under_way.pop(future)
            outcomes = self._outcomes(future, chunk, alone=alone)
            self.journal.append(outcomes)
            self.failed += _failures(outcomes)

    def _outcomes(self, future: Chunked, chunk: PointChunk, *, alone: bool) -> list[PointOutcome]:
        error = CancelledError() if future.cancelled() else future.exception()
        if error is None:
            outcomes = future.result()
            self.cpu_s_per_point = sum(outcome.cpu_s for outcome in outcomes) / len(outcomes)
            return outcomes
        if not self.workers.is_loss(error):
            raise self._describe_stop(error) from error
        if alone and len(chunk.points) == 1:
            return [PointOutcome(chunk.points[0].index, {"status": LOST, "error": LOST_ERROR}, 0.0)]
        self.suspects.extend(_singles(chunk))
        return []

    def _describe_stop(self, error: BaseException) -> KernbenchError:
        """Return the reason why the sweep cannot continue."""
        if isinstance(error, KernbenchError):
            return error
        finished = f"{len(self.journal.finished)} of {self.plan.n_points} points are finished; continue with --resume"
        return RunError(f"the workers are gone: {type(error).__name__} {error}; {finished}")


def _failures(outcomes: Iterable[PointOutcome]) -> int:
    return sum(outcome.row["status"] != OK for outcome in outcomes)


def _singles(chunk: PointChunk) -> Iterator[PointChunk]:
    return (PointChunk(chunk.job, (point,)) for point in chunk.points)


# One chunk runs and one is queued per worker, so a worker never waits.
CHUNKS_PER_WORKER = 2


class LocalWorkers:
    """``jobs`` processes that end with this process. A context manager that does not wait for them after an error."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._strangers = set(multiprocessing.active_children())
        self._pool = make_pool(jobs)

    @property
    def slots(self) -> int:
        """The number of chunks that keeps all workers busy."""
        return CHUNKS_PER_WORKER * self._jobs

    def submit(self, chunk: PointChunk) -> Chunked:
        """Start a chunk, on new processes if the old ones died."""
        with hidden_main():
            try:
                return self._pool.submit(run_chunk, chunk)
            except BrokenExecutor:
                self._pool.shutdown()
                self._pool = make_pool(self._jobs)
                return self._pool.submit(run_chunk, chunk)

    def is_loss(self, error: BaseException) -> bool:
        """Return True if ``error`` means that a process died."""
        return isinstance(error, BrokenExecutor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _end(self._pool, self._strangers, at_once=error is not None)


class InlineWorker:
    """Runs chunks in this process, one after another. A context manager, like other workers."""

    slots = 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing: no worker has to be stopped."""

    def submit(self, chunk: PointChunk) -> Chunked:
        """Run a chunk in this process, and return when it is finished."""
        future: Chunked = Future()
        future.set_result(run_chunk(chunk))
        return future

    def is_loss(self, error: BaseException) -> bool:
        """Return False: this worker is the process itself, so its death ends the sweep."""
        return False


@contextmanager
def worker_pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of ``jobs`` processes that end with this process. After an error or Ctrl-C, do not wait for them.

    Raises RunError if a process dies.
    """
    strangers = set(multiprocessing.active_children())
    pool = make_pool(jobs)
    well = False
    try:
        yield pool
        well = True
    except BrokenExecutor as error:
        raise RunError("a worker process died: out of memory, or killed; fewer at once need less memory") from error
    finally:
        _end(pool, strangers, at_once=not well)


def make_pool(jobs: int) -> ProcessPoolExecutor:
    """Return a pool whose processes end with this process and ignore Ctrl-C."""
    return ProcessPoolExecutor(jobs, worker_context(), _begin, (os.getcwd(),))


def _end(pool: ProcessPoolExecutor, strangers: Set[BaseProcess], *, at_once: bool) -> None:
    """End a pool. ``strangers``: processes that existed before the pool."""
    pool.shutdown(wait=not at_once, cancel_futures=True)
    if at_once:
        for process in set(multiprocessing.active_children()) - strangers:
            process.kill()


def _begin(folder: str) -> None:
    """Initialise a worker: it ignores Ctrl-C and ends when its parent process ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.chdir(folder)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
