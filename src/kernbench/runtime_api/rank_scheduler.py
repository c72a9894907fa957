"""Advance rank programs and the simulation together. Every wait of a host program passes through this file.

1. Every runnable rank runs, in rank order, until it has to wait or ends.
2. The engine advances to the first completion that any rank or the program waits for.
3. Exactly the ranks whose wait is over become runnable, in rank order.

The loop runs inside the waits of the program, which takes part like one more rank. This also holds for a program
without ranks, and for one that has not joined its ranks yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, KeysView, Sequence
from typing import TypeAlias

from kernbench.common.errors import RunError, SimulationDeadlock
from kernbench.engine.engine import GraphEngine
from kernbench.engine.requests import RequestHandle
from kernbench.runtime_api.rank_process import ProcessStates
from kernbench.runtime_api.ranks import RankGate, RankTask, Sleep, WaitText, Workers

Sleeper: TypeAlias = RankTask | None
"""A rank, or None for the program"""
_Among: TypeAlias = dict[Sleeper, None]


class Sleepers:
    """The current sleeps. The engine watches each request while any sleeper waits for it."""

    __slots__ = ("_at_gates", "_by_request", "_engine", "_giving_way", "_sleeps")

    def __init__(self, engine: GraphEngine) -> None:
        self._engine = engine
        self._sleeps: dict[Sleeper, Sleep] = {}
        self._by_request: dict[int, _Among] = {}
        self._at_gates: dict[RankGate, _Among] = {}
        self._giving_way: _Among = {}

    @property
    def any_rank(self) -> bool:
        """True when a rank sleeps."""
        return len(self._sleeps) > (None in self._sleeps)

    @property
    def requests(self) -> KeysView[int]:
        """The numbers of the requests that sleepers wait for."""
        return self._by_request.keys()

    @property
    def giving_way(self) -> list[Sleeper]:
        """The sleepers that yielded and could proceed at once."""
        return list(self._giving_way)

    @property
    def at_open_gates(self) -> list[Sleeper]:
        """The sleepers whose gate is open."""
        return [sleeper for gate, sleepers in self._at_gates.items() if gate.is_open for sleeper in sleepers]

    def waiting_for(self, handles: Iterable[RequestHandle]) -> list[Sleeper]:
        """Return the sleepers that wait for one of these requests."""
        return [sleeper for handle in handles for sleeper in self._by_request.get(handle.request_id, ())]

    def add(self, sleeper: Sleeper, sleep: Sleep) -> None:
        """Put a rank or the program to sleep."""
        self._sleeps[sleeper] = sleep
        for handle in sleep.handles:
            waiting = self._by_request.setdefault(handle.request_id, {})
            if not waiting:
                self._engine.watch(handle)
            waiting[sleeper] = None
        if sleep.gate is not None:
            self._at_gates.setdefault(sleep.gate, {})[sleeper] = None
        if sleep.gives_way:
            self._giving_way[sleeper] = None

    def remove(self, sleeper: Sleeper) -> None:
        """Remove a sleeper, if it sleeps."""
        sleep = self._sleeps.pop(sleeper, None)
        if sleep is None:
            return
        for handle in sleep.handles:
            waiting = self._by_request[handle.request_id]
            waiting.pop(sleeper, None)
            if not waiting:
                del self._by_request[handle.request_id]
                self._engine.unwatch(handle)
        if sleep.gate is not None:
            self._leave(sleep.gate, sleeper)
        self._giving_way.pop(sleeper, None)

    def remove_ranks(self) -> None:
        """Remove all ranks; the program, if it sleeps, remains."""
        for sleeper in [sleeper for sleeper in self._sleeps if sleeper is not None]:
            self.remove(sleeper)

    def _leave(self, gate: RankGate, sleeper: Sleeper) -> None:
        sleepers = self._at_gates[gate]
        sleepers.pop(sleeper, None)
        if not sleepers:
            del self._at_gates[gate]


Describe: TypeAlias = Callable[[RequestHandle], str]

# Ranks that only yield to each other on an idle machine would never end: after this many rounds, report a deadlock.
TURNS_IN_VAIN = 10_000


class Spawned:
    """Ranks that were spawned together. ``finish`` is called once, when all have ended.

    ``states``: the parts of a process of each rank; None if the ranks share those of the program.

    If one rank raises, all ranks end. A deadlock or an interrupt also ends all ranks and is stored as ``failure``.
    """

    __slots__ = ("_finish", "_finished", "_states", "failure", "interrupted", "tasks")

    def __init__(
        self, tasks: Sequence[RankTask], finish: Callable[[], None], states: ProcessStates | None = None
    ) -> None:
        self.tasks, self._finish, self._states = tuple(tasks), finish, states
        self.failure: Exception | None = None
        self.interrupted = False
        self._finished = False

    @property
    def errors(self) -> dict[int, BaseException]:
        """The errors that ranks raised themselves, by rank."""
        return {task.worker.rank: task.error for task in self.tasks if task.error is not None}

    @property
    def has_ended_well(self) -> bool:
        """True when all ranks returned without an error or a stop."""
        return not any(task.error is not None or task.stopped for task in self.tasks)

    def hand_over(self, rank: int | None) -> None:
        """Give the process to a rank, or, with None, back to the program."""
        if self._states is not None:
            self._states.hand_over(rank)

    def finish(self) -> None:
        """Call ``finish`` on the first call only, when all ranks have ended and the machine can stop their work."""
        if not self._finished:
            self._finished = True
            self._finish()


class RankScheduler:
    """The ranks of one context, and all waits in it."""

    __slots__ = (
        "_current",
        "_dead_end",
        "_engine",
        "_ready",
        "_sleepers",
        "_spawned",
        "_vain_turns",
        "_workers",
        "machine_answers",
    )

    def __init__(self, engine: GraphEngine, workers: Workers) -> None:
        self._engine, self._workers = engine, workers
        self._spawned: Spawned | None = None
        self._ready: list[RankTask] = []
        self._sleepers = Sleepers(engine)
        self._current: RankTask | None = None
        self._vain_turns = 0
        self._dead_end: frozenset[int] = frozenset()
        # False after an error of the engine itself, such as a limit of a run: time no longer advances.
        self.machine_answers = True

    @property
    def busy(self) -> bool:
        """True until all spawned ranks have ended."""
        return bool(self._ready or self._sleepers.any_rank)

    def start(self, spawned: Spawned) -> None:
        """Add spawned ranks; they run when the program waits."""
        self._spawned = spawned
        self._ready = list(spawned.tasks)

    def join(self) -> None:
        """Wait, in the program, until every rank has ended."""
        self._workers.check()
        self._drive(Sleep(lambda: "its ranks"), lambda: not self.busy)

    def stop(self) -> None:
        """End the unfinished ranks in rank order; then raise the KeyboardInterrupt of a rank, if any."""
        if self._spawned is None:
            return
        self._ready.clear()
        self._sleepers.remove_ranks()
        interrupts = [self._stop_rank(task) for task in self._spawned.tasks if not task.ended]
        self._return_to_program()
        for interrupt in filter(None, interrupts):
            raise interrupt

    def give_up(self, why: BaseException) -> None:
        """End the ranks that the program no longer waits for, and drop their requests in flight."""
        spawned = self._spawned
        if spawned is None:
            return
        spawned.interrupted = isinstance(why, KeyboardInterrupt)
        spawned.failure = RunError(f"a {type(why).__name__} ended the ranks before they had finished")
        try:
            self.stop()
        finally:
            self._finish(spawned)

    def wait(self, handles: Sequence[RequestHandle], describe: Describe) -> None:
        """Advance time until all requests have ended; raise the error of the first that failed."""
        self._workers.check()
        for handle in handles:
            if not handle.done:
                self._wait_until_done(handle, describe)
            self._engine.wait(handle)

    def pass_through(self, gate: RankGate) -> None:
        """Wait until a gate is open."""
        self._workers.check()
        if self._current is not None:
            self._current.pause(gate.sleep())
        else:
            self._drive(gate.sleep(), lambda: gate.is_open)

    def give_way(self, under_way: Iterable[RequestHandle], label: WaitText) -> None:
        """Let other ranks run, and advance time to the next completion among the requests ``under_way``, if any.

        ``label`` describes the wait in a deadlock report.
        """
        turn = Sleep(label, tuple(under_way), gives_way=True)
        if self._current is not None:
            self._current.pause(turn)
        else:
            self._run_ranks()
            self._advance(turn)
            self._return_to_program()

    def check(self) -> None:
        """Leave the running rank if it has been stopped: a stopped rank may no longer use the machine."""
        if self._current is not None:
            self._current.check()

    def _wait_until_done(self, handle: RequestHandle, describe: Describe) -> None:
        """Wait for a request: a rank switches to the program, which runs the loop until the program's wait is over."""
        sleep = Sleep(lambda: describe(handle), (handle,))
        if self._current is not None:
            self._current.pause(sleep)
        else:
            self._drive(sleep, lambda: handle.done)

    def _drive(self, sleep: Sleep, over: Callable[[], bool]) -> None:
        try:
            self._run_ranks()
            while not over():
                self._advance(sleep)
                self._run_ranks()
        finally:
            self._return_to_program()

    def _return_to_program(self) -> None:
        if self._spawned is not None:
            self._spawned.hand_over(None)

    def _run_ranks(self) -> None:
        if self._spawned is None:
            return
        try:
            self._turn()
            if not self.busy:
                self._finish(self._spawned)
        except BaseException as interrupt:
            self.give_up(interrupt)
            raise

    def _turn(self) -> None:
        turn, self._ready = self._ready, []
        for task in turn:
            self._as_current(task, task.run)
            if task.sleep is not None:
                self._sleepers.add(task, task.sleep)
        if any(task.error is not None for task in turn):
            self.stop()

    def _stop_rank(self, task: RankTask) -> KeyboardInterrupt | None:
        try:
            self._as_current(task, task.stop)
        except KeyboardInterrupt as interrupt:
            return interrupt
        return None

    def _as_current(self, task: RankTask, act: Callable[[], None]) -> None:
        assert self._spawned is not None, "only spawned ranks run"
        self._spawned.hand_over(task.worker.rank)
        self._current = task
        try:
            with self._workers.running(task.worker, task.thread):
                act()
        finally:
            self._current = None

    def _advance(self, sleep: Sleep) -> None:
        self._sleepers.add(None, sleep)
        try:
            # A rank may have opened the gate of another: that other rank then runs before time advances.
            woken = self._sleepers.at_open_gates or self._pass_time(sleep)
            woken += self._sleepers.giving_way
        finally:
            self._sleepers.remove(None)
        tasks = dict.fromkeys(task for task in woken if task is not None)
        for task in tasks:
            self._sleepers.remove(task)
        self._ready = sorted(tasks, key=lambda task: task.worker.rank)

    def _pass_time(self, sleep: Sleep) -> list[Sleeper]:
        """Advance time to the first completion, and return the sleepers that waited for the completed request.

        If no request can complete, the result is empty. The ranks that yielded then run again, since they may submit a
        request or stop waiting.
        """
        awaited = self._sleepers.requests
        patient = self._vain_turns < TURNS_IN_VAIN and bool(self._sleepers.giving_way)
        if patient and (not awaited or awaited == self._dead_end):
            self._vain_turns += 1
            return []
        try:
            return self._await_completion()
        except SimulationDeadlock as deadlock:
            if not patient:
                raise self._explain_deadlock(deadlock, sleep) from None
            self._dead_end = frozenset(awaited)
            return []

    def _await_completion(self) -> list[Sleeper]:
        if not self._sleepers.requests:
            raise self._make_deadlock()
        try:
            ended = self._engine.next_ended()
        except SimulationDeadlock:
            raise
        except (Exception, SystemExit):
            self.machine_answers = False
            raise
        self._vain_turns, self._dead_end = 0, frozenset()
        return self._sleepers.waiting_for(ended)

    def _make_deadlock(self) -> SimulationDeadlock:
        """Return the deadlock of ranks that wait for each other while the machine is idle."""
        tasks = () if self._spawned is None else self._spawned.tasks
        waiting = sum(not task.ended for task in tasks)
        return SimulationDeadlock(
            f"deadlock at {self._engine.now:g} ns: nothing can happen any more, and the machine has nothing to do\n"
            f"{waiting} of {len(tasks)} ranks wait, and so does the program\n"
            f"the ranks that could wake them wait too or have ended"
        )

    def _explain_deadlock(self, deadlock: SimulationDeadlock, sleep: Sleep) -> SimulationDeadlock:
        """End the ranks, and return the error with a line for the wait of each. ``sleep``: the wait of the program."""
        if self._spawned is None or not self.busy:
            return deadlock
        ranks = [f"  {task.standing}" for task in self._spawned.tasks]
        stuck = ("no rank can go on:", f"  the program waits for {sleep.label()}", *ranks)
        failure = type(deadlock)(deadlock.verdict, (stuck, *deadlock.groups), deadlock.details)
        self._spawned.failure = failure
        self.stop()
        self._finish(self._spawned)
        return failure

    def _finish(self, spawned: Spawned) -> None:
        self._spawned = None
        spawned.hand_over(None)
        spawned.finish()
