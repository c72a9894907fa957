"""Runs what is missing of a sweep on workers, and writes down what comes back.

As many points travel together as take about ``CHUNK_S``, so that handing them over costs next to nothing beside running
them. Those of one machine are next to each other: it is compiled once.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Protocol, TypeAlias

from kernbench.common.errors import KernbenchError, RunError
from kernbench.evaluation.sweep_journal import Journal
from kernbench.evaluation.sweep_measure import LOST, OK
from kernbench.evaluation.sweep_plan import SweepPlan
from kernbench.evaluation.sweep_point import Chunk, Job, Outcome, PointJob

CHUNK_S = 0.5
MOST_IN_CHUNK = 64
LOST_ERROR = "the worker died: out of memory, killed, or ended by the program itself"
Chunked: TypeAlias = "Future[list[Outcome]]"


class Workers(Protocol):
    """Who runs chunks. ``slots``: how many chunks keep all of them busy."""

    @property
    def slots(self) -> int:
        """How many chunks to have under way."""

    def submit(self, chunk: Chunk) -> Chunked:
        """Begin to run a chunk; works again after workers have died."""

    def is_loss(self, error: BaseException) -> bool:
        """Whether ``error``, of a chunk, means that its worker died."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a sweep is; ``found``: finished before it was begun, in a sweep that is resumed."""

    points: int
    finished: int
    failed: int
    found: int


def run_sweep(plan: SweepPlan, journal: Journal, workers: Workers, on_progress: Callable[[Progress], None]) -> None:
    """Run the points that ``journal`` lacks, until it has all of them."""
    _Driver(plan, journal, workers, on_progress).run()


@dataclass(slots=True)
class _Driver:
    """A sweep under way. ``waiting``: points to run, by machine; ``suspects``: those whose worker died, one by one."""

    plan: SweepPlan
    journal: Journal
    workers: Workers
    on_progress: Callable[[Progress], None]
    waiting: deque[PointJob] = field(default_factory=deque)
    suspects: deque[Chunk] = field(default_factory=deque)
    under_way: dict[Chunked, Chunk] = field(default_factory=dict)
    found: int = 0
    failed: int = 0
    cpu_s_per_point: float = math.inf

    def run(self) -> None:
        self.found = len(self.journal.finished)
        self.failed = _failures(self.journal.finished.values())
        job = self._job()
        self._gather()
        self._tell()
        while self.waiting or self.suspects or self.under_way:
            self._hand_out(job)
            done, _ = wait(self.under_way, return_when=FIRST_COMPLETED)
            self._take(done)
            self._tell()

    def _tell(self) -> None:
        self.on_progress(Progress(self.plan.n_points, len(self.journal.finished), self.failed, self.found))

    def _job(self) -> Job:
        plan = self.plan
        return Job(
            bench=plan.bench_name,
            device=plan.spec.device,
            verify=plan.spec.verify,
            explain=plan.spec.explain,
            base=plan.base,
            ccl=plan.ccl,
            configuration=plan.configuration(),
        )

    def _gather(self) -> None:
        plan = self.plan
        missing = [point for point in plan.points() if point.index not in self.journal.finished]
        jobs = [PointJob(point.index, plan.machine_texts(point), plan.bench_texts(point)) for point in missing]
        self.waiting.extend(sorted(jobs, key=attrgetter("machine")))

    def _hand_out(self, job: Job) -> None:
        """Keep the workers busy; a suspect has them to itself, so that it is known who died of what."""
        if self.suspects:
            if not self.under_way:
                self._submit(self.suspects.popleft())
            return
        while self.waiting and len(self.under_way) < self.workers.slots:
            self._submit(self._next_chunk(job))

    def _next_chunk(self, job: Job) -> Chunk:
        return Chunk(job, tuple(self.waiting.popleft() for _ in range(self._size())))

    def _size(self) -> int:
        """Points for a chunk: one while nobody knows how long they take, fewer when few are left for all workers."""
        worth = int(min(CHUNK_S / max(self.cpu_s_per_point, 1e-6), MOST_IN_CHUNK))
        return max(1, min(worth, len(self.waiting) // (2 * self.workers.slots)))

    def _submit(self, chunk: Chunk) -> None:
        self.under_way[self.workers.submit(chunk)] = chunk

    def _take(self, done: Sequence[Chunked] | set[Chunked]) -> None:
        alone = len(self.under_way) == 1
        for future in done:
            chunk = self.under_way.pop(future)
            outcomes = self._outcomes(future, chunk, alone=alone)
            self.journal.append(outcomes)
            self.failed += _failures(outcomes)

    def _outcomes(self, future: Chunked, chunk: Chunk, *, alone: bool) -> list[Outcome]:
        error = CancelledError() if future.cancelled() else future.exception()
        if error is None:
            outcomes = future.result()
            self.cpu_s_per_point = sum(outcome.cpu_s for outcome in outcomes) / len(outcomes)
            return outcomes
        if not self.workers.is_loss(error):
            raise self._stopped(error) from error
        if alone and len(chunk.points) == 1:
            return [Outcome(chunk.points[0].index, {"status": LOST, "error": LOST_ERROR}, 0.0)]
        self.suspects.extend(_singles(chunk))
        return []

    def _stopped(self, error: BaseException) -> KernbenchError:
        """Why the sweep cannot go on."""
        if isinstance(error, KernbenchError):
            return error
        finished = f"{len(self.journal.finished)} of {self.plan.n_points} points are finished; go on with --resume"
        return RunError(f"the workers are gone: {type(error).__name__} {error}; {finished}")


def _failures(outcomes: Iterable[Outcome]) -> int:
    return sum(outcome.row["status"] != OK for outcome in outcomes)


def _singles(chunk: Chunk) -> Iterator[Chunk]:
    return (Chunk(chunk.job, (point,)) for point in chunk.points)
