"""Advances rank programs and the simulation together. Every wait of a host program comes here.

1. Every runnable rank runs, in rank order, until it has to wait or ends.
2. The engine advances to the first completion that somebody waits for.
3. Exactly the ranks whose wait is over become runnable, in rank order.

A program that is alone, or has not joined its ranks yet, takes part like one more rank: the loop runs in its waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from kernbench.common.errors import SimulationDeadlock
from kernbench.runtime_api.engine_api import Engine, RequestHandle
from kernbench.runtime_api.rank_task import Gate, RankTask, Sleep
from kernbench.runtime_api.workers import Workers

Describe: TypeAlias = Callable[[RequestHandle], str]

# Ranks that only give way to each other, on a machine where nothing happens any more, will do so for ever.
TURNS_IN_VAIN = 10_000


class Spawned:
    """Ranks that were spawned together. ``finish`` is called once, when all have ended.

    One that raises ends them all; so does a deadlock, which is kept as the ``failure``.
    """

    __slots__ = ("_finish", "_finished", "failure", "tasks")

    def __init__(self, tasks: Sequence[RankTask], finish: Callable[[], None]) -> None:
        self.tasks, self._finish = tuple(tasks), finish
        self.failure: Exception | None = None
        self._finished = False

    @property
    def errors(self) -> dict[int, BaseException]:
        """What ranks raised by themselves, by rank."""
        return {task.worker.rank: task.error for task in self.tasks if task.error is not None}

    @property
    def ended_well(self) -> bool:
        """Whether all have come to their own end."""
        return not any(task.error is not None or task.stopped for task in self.tasks)

    def finish(self) -> None:
        """All have ended, and the machine can be asked to stop what they left."""
        if not self._finished:
            self._finished = True
            self._finish()


class RankScheduler:
    """The ranks of one context, and all waiting in it."""

    __slots__ = ("_asleep", "_current", "_dead_end", "_engine", "_ready", "_spawned", "_vain_turns", "_workers")

    def __init__(self, engine: Engine, workers: Workers) -> None:
        self._engine, self._workers = engine, workers
        self._spawned: Spawned | None = None
        self._ready: list[RankTask] = []
        self._asleep: dict[RankTask, Sleep] = {}
        self._current: RankTask | None = None
        self._vain_turns = 0
        self._dead_end: tuple[RequestHandle, ...] = ()

    @property
    def busy(self) -> bool:
        """Whether ranks were spawned that have not all ended."""
        return bool(self._ready or self._asleep)

    def start(self, spawned: Spawned) -> None:
        """Take ranks on; they run when the program waits."""
        self._spawned = spawned
        self._ready = list(spawned.tasks)

    def join(self) -> None:
        """From the program: wait until every rank has ended."""
        self._drive(Sleep(lambda: not self.busy, (), lambda: "its ranks"))

    def stop(self) -> None:
        """End the ranks that have not ended, in rank order."""
        if self._spawned is not None:
            for task in self._spawned.tasks:
                if not task.ended:
                    self._as_current(task, task.stop)
            self._ready.clear()
            self._asleep.clear()

    def wait(self, handles: Sequence[RequestHandle], describe: Describe) -> None:
        """Let time pass until all requests are over; raises the error of the first that failed."""
        for handle in handles:
            if not handle.done:
                self.sleep(_until_done(handle, describe))
            self._engine.wait(handle)

    def pass_through(self, gate: Gate) -> None:
        """Wait until a gate is open."""
        self.sleep(gate.sleep())

    def give_way(self, under_way: Iterable[RequestHandle]) -> None:
        """Let the others run, and time pass to the next completion of anything ``under_way``, if there is any."""
        turn = Sleep(lambda: True, tuple(under_way), lambda: "its next turn", gives_way=True)
        if self._current is not None:
            self._current.pause(turn)
        else:
            self._run_ranks()
            self._advance(turn)

    def check(self) -> None:
        """Leave the rank that runs if it was stopped: it may ask nothing more of the machine."""
        if self._current is not None:
            self._current.check()

    def sleep(self, sleep: Sleep) -> None:
        """Wait: a rank hands over to the program, which goes round until its own wait is over."""
        if self._current is not None:
            self._current.pause(sleep)
        else:
            self._drive(sleep)

    def _drive(self, own: Sleep) -> None:
        self._run_ranks()
        while not own.over():
            self._advance(own)
            self._run_ranks()

    def _run_ranks(self) -> None:
        if self._spawned is None:
            return
        turn, self._ready = self._ready, []
        for task in turn:
            self._as_current(task, task.run)
            if task.sleep is not None:
                self._asleep[task] = task.sleep
        if any(task.error is not None for task in turn):
            self.stop()
        if not self.busy:
            self._finish(self._spawned)

    def _as_current(self, task: RankTask, act: Callable[[], None]) -> None:
        self._current = task
        try:
            with self._workers.running(task.worker):
                act()
        finally:
            self._current = None

    def _advance(self, own: Sleep) -> None:
        sleeps = [*self._asleep.values(), own]
        # One rank may have ended the wait of another; then it is that one's turn, and no time passes.
        if not any(sleep.over() for sleep in sleeps if not sleep.handles and not sleep.gives_way):
            self._let_time_pass(sleeps)
        woken = [task for task, sleep in self._asleep.items() if sleep.over()]
        for task in woken:
            del self._asleep[task]
        self._ready = sorted(woken, key=lambda task: task.worker.rank)

    def _let_time_pass(self, sleeps: Sequence[Sleep]) -> None:
        """Advance to the first completion. When none comes any more, ranks that gave way may know what to do."""
        handles = tuple(handle for sleep in sleeps for handle in sleep.handles)
        patient = self._vain_turns < TURNS_IN_VAIN and any(sleep.gives_way for sleep in sleeps)
        if patient and (not handles or handles == self._dead_end):
            self._vain_turns += 1
            return
        try:
            self._next_completion(handles)
        except SimulationDeadlock as deadlock:
            if not patient:
                raise self._explained(deadlock, sleeps[-1]) from None
            self._dead_end = handles

    def _next_completion(self, handles: tuple[RequestHandle, ...]) -> None:
        if not handles:
            raise SimulationDeadlock(f"nothing can happen any more at {self._engine.now:g} ns")
        self._engine.wait_any(handles)
        self._vain_turns, self._dead_end = 0, ()

    def _explained(self, deadlock: SimulationDeadlock, own: Sleep) -> SimulationDeadlock:
        """The error with what every rank waits for; the ranks end with it. ``own``: what the program waits for."""
        if self._spawned is None or not self.busy:
            return deadlock
        lines = ["no rank can go on:", *(f"  {task.standing}" for task in self._spawned.tasks)]
        lines += [f"  the program waits for {own.what()}", str(deadlock)]
        failure = self._spawned.failure = type(deadlock)("\n".join(lines))
        self.stop()
        self._finish(self._spawned)
        return failure

    def _finish(self, spawned: Spawned) -> None:
        self._spawned = None
        spawned.finish()


def _until_done(handle: RequestHandle, describe: Describe) -> Sleep:
    return Sleep(lambda: handle.done, (handle,), lambda: describe(handle))
