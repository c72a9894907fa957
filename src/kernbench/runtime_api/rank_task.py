"""A spawned rank, and what it may wait for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from kernbench.engine.requests import RequestHandle
from kernbench.runtime_api.rank_runner import RankRunner
from kernbench.runtime_api.workers import Worker

What = Callable[[], str]
"""Says what is waited for; asked only when it has to be told."""


@dataclass(frozen=True, slots=True)
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
