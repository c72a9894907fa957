"""A spawned rank, what it may wait for, and who waits for what: a completion costs only those that it wakes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, KeysView
from types import TracebackType
from typing import TypeAlias

from kernbench.common.values import value
from kernbench.engine.engine import GraphEngine
from kernbench.engine.requests import RequestHandle
from kernbench.runtime_api.rank_runner import RankRunner
from kernbench.runtime_api.workers import Worker

What = Callable[[], str]
"""Says what is waited for; asked only when it has to be told."""


@value
class Sleep:
    """What a rank waits for: the end of one of ``handles``, or that its ``gate`` is opened.

    ``gives_way``: it could go on at once, and lets others go first.
    """

    what: What
    handles: tuple[RequestHandle, ...] = ()
    gate: Gate | None = None
    gives_way: bool = False


class Gate:
    """A place where ranks meet: those that come wait until it is opened."""

    __slots__ = ("_open", "_what")

    def __init__(self, what: What) -> None:
        self._open, self._what = False, what

    @property
    def is_open(self) -> bool:
        """Whether everybody may pass."""
        return self._open

    def open(self) -> None:
        """Let everybody pass."""
        self._open = True

    def sleep(self) -> Sleep:
        """The wait of one that has come."""
        return Sleep(self._what, gate=self)


class RankTask:
    """A spawned rank: its program ``function(rank, *args)``, and how far it is.

    ``sleep``: what it waits for, or waited for last; None before and after. ``error``: what it raised by itself.
    ``stopped``: whether it was ended from outside.
    """

    __slots__ = ("_runner", "ended", "error", "sleep", "stopped", "worker")

    def __init__(self, worker: Worker, function: Callable[..., object], args: tuple[object, ...]) -> None:
        self.worker = worker
        self._runner: RankRunner[Sleep] = RankRunner(function, (worker.rank, *args))
        self.sleep: Sleep | None = None
        self.ended = False
        self.stopped = False
        self.error: BaseException | None = None

    @property
    def standing(self) -> str:
        """For a reader: what it waits for, or that it has ended."""
        return f"{self.worker} {'has ended' if self.sleep is None else f'waits for {self.sleep.what()}'}"

    def run(self) -> None:
        """Run it until its next wait; what it raises becomes its ``error``. A KeyboardInterrupt comes out."""
        try:
            self.sleep = self._runner.resume()
            self.ended = self.sleep is None
        except KeyboardInterrupt:
            self.ended, self.stopped, self.sleep = True, True, None
            raise
        except BaseException as error:  # SystemExit too, and a test framework's own way to fail
            error.__traceback__ = _of_program(error.__traceback__)
            self.ended, self.sleep, self.error = True, None, error

    def stop(self) -> None:
        """End it where it waits."""
        self.ended, self.stopped, self.sleep = True, True, None
        self._runner.stop()

    def pause(self, sleep: Sleep) -> None:
        """From inside the rank: wait."""
        self._runner.pause(sleep)

    def check(self) -> None:
        """From inside the rank: leave it if it was stopped."""
        self._runner.check()


def _of_program(trace: TracebackType | None) -> TracebackType | None:
    """Without the frames that resumed the rank: ``RankTask.run`` and ``RankRunner.resume``."""
    for _ in range(2):
        trace = trace.tb_next if trace is not None else None
    return trace


Sleeper: TypeAlias = RankTask | None
"""A rank; None: the program."""
_Among: TypeAlias = dict[Sleeper, None]


class Sleepers:
    """The sleeps under way. The engine watches the requests that they wait for, each as long as anybody does."""

    __slots__ = ("_at_gates", "_by_request", "_engine", "_giving_way", "_sleeps")

    def __init__(self, engine: GraphEngine) -> None:
        self._engine = engine
        self._sleeps: dict[Sleeper, Sleep] = {}
        self._by_request: dict[int, _Among] = {}
        self._at_gates: dict[Gate, _Among] = {}
        self._giving_way: _Among = {}

    @property
    def any_rank(self) -> bool:
        """Whether a rank sleeps."""
        return len(self._sleeps) > (None in self._sleeps)

    @property
    def requests(self) -> KeysView[int]:
        """The numbers of the requests that are waited for."""
        return self._by_request.keys()

    @property
    def giving_way(self) -> list[Sleeper]:
        """Those that could go on at once."""
        return list(self._giving_way)

    @property
    def at_open_gates(self) -> list[Sleeper]:
        """Those whose gate was opened."""
        return [sleeper for gate, there in self._at_gates.items() if gate.is_open for sleeper in there]

    def waiting_for(self, handles: Iterable[RequestHandle]) -> list[Sleeper]:
        """Those who wait for one of these requests."""
        return [sleeper for handle in handles for sleeper in self._by_request.get(handle.request_id, ())]

    def add(self, sleeper: Sleeper, sleep: Sleep) -> None:
        """Somebody goes to sleep."""
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
        """Somebody sleeps no more, if it did."""
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
        """No rank sleeps any more."""
        for sleeper in [each for each in self._sleeps if each is not None]:
            self.remove(sleeper)

    def _leave(self, gate: Gate, sleeper: Sleeper) -> None:
        there = self._at_gates[gate]
        there.pop(sleeper, None)
        if not there:
            del self._at_gates[gate]
