"""Ranks: what each keeps of its own, the program that it runs as a greenlet, and what it may wait for.

The only module that knows greenlets of ranks.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import field
from functools import partial
from threading import Lock, Thread, current_thread
from types import TracebackType
from typing import Generic, TypeVar

from greenlet import GreenletExit, getcurrent, greenlet

from kernbench.common.errors import SecondThreadError
from kernbench.common.program_line import describe_call
from kernbench.common.values import state, value
from kernbench.engine.requests import RequestHandle
from kernbench.triton_emu.kernel_runner import check_host_calls

DEBUG_VARIABLE = "KERNBENCH_DEBUG"
T = TypeVar("T")


class HandedOn(ABC):
    """An object of the program that the ranks which it spawns begin with."""

    @abstractmethod
    def in_rank(self, rank: int, n_ranks: int) -> object | None:
        """Return the object of the same class that rank ``rank`` of ``n_ranks`` begins with; None for none."""


class RankLocal:
    """The objects that libraries keep for a rank, as a process keeps globals: one of each class."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: dict[type[object], object] = {}

    def for_rank(self, rank: int, n_ranks: int) -> RankLocal:
        """Return the objects that rank ``rank`` of ``n_ranks`` begins with when the program spawns it."""
        made = RankLocal()
        for kept in self._kept.values():
            handed_on = kept.in_rank(rank, n_ranks) if isinstance(kept, HandedOn) else None
            if handed_on is not None:
                made.put(handed_on)
        return made

    def put(self, value: object) -> None:
        """Keep ``value`` in place of the object of its class."""
        self._kept[type(value)] = value

    def get(self, kind: type[T]) -> T | None:
        """Return the object of a class; None when there is none."""
        found = self._kept.get(kind)
        return found if isinstance(found, kind) else None

    def drop(self, kind: type[object]) -> None:
        """Keep no object of a class any more."""
        self._kept.pop(kind, None)

    def clear(self) -> None:
        """Keep nothing any more."""
        self._kept.clear()


@state(eq=False)
class Worker:
    """The state of a rank: its number, the number of ranks spawned with it, and the SIP that it chose, if it chose one.

    ``local``: the objects that libraries keep for it. A program that is alone is one implicit rank 0; only ``spawned``
    ones were made by ``spawn``.
    """

    rank: int = 0
    n_ranks: int = 1
    spawned: bool = False
    device: int | None = None
    local: RankLocal = field(default_factory=RankLocal)

    def __str__(self) -> str:
        return f"rank {self.rank}" if self.spawned else "the program"


class Workers:
    """The worker that runs now, of one context, and the thread that may call the machine.

    That is the first one that does, until it has ended: the simulation is one thread, which has all ranks.
    """

    __slots__ = ("_claim", "_current", "_home", "_thread", "main")

    def __init__(self) -> None:
        self.main = Worker()
        self._current = self.main
        self._home = current_thread()
        self._thread: Thread | None = None
        self._claim = Lock()

    @property
    def current(self) -> Worker:
        """The rank whose code runs, or the program's own worker. As ``check`` for who may not ask."""
        self.check()
        return self._current

    def check(self) -> None:
        """KernelError when it is a kernel that calls the host's side, SecondThreadError when it is a second thread."""
        check_host_calls()
        if current_thread() is not self._thread:  # not by number: a new thread gets that of one that has ended
            with self._claim:
                if self._thread is not None and self._thread.is_alive():
                    raise _make_thread_error(self._thread)
                self.take_over()

    def take_over(self) -> None:
        """Let this thread call the machine from now on, and no other."""
        self._thread = current_thread()

    def come_home(self) -> None:
        """Let the thread that made the context end it, whichever has called the machine."""
        if current_thread() is self._home:
            self.take_over()

    @contextmanager
    def running(self, worker: Worker) -> Iterator[None]:
        """Make ``worker`` the current one inside the ``with`` block."""
        before, self._current = self._current, worker
        try:
            yield
        finally:
            self._current = before


def _make_thread_error(owner: Thread) -> SecondThreadError:
    called, where = describe_call()
    return SecondThreadError(
        f"{where}thread {current_thread().name!r} calls {called}, and thread {owner.name!r} has called the machine "
        f"before: one thread of a program can. Let it make the calls of the others, which it may get from a queue.Queue"
    )


def wants_debugging() -> bool:
    """Return True when the user asked for warnings of code that is allowed and probably a mistake."""
    return os.environ.get(DEBUG_VARIABLE, "") not in ("", "0")


W = TypeVar("W")

# A stopped program that swallows its end that often gets no other: it is left where it is.
ENDS_IN_VAIN = 100


class RankRunner(Generic[W]):
    """One run of ``function(*args)``, which hands what it waits for (a ``W``) to whoever resumed it.

    The scheduler alone resumes ranks and lets simulated time pass, so a kernel is never run from inside a rank.
    """

    __slots__ = ("_ends", "_greenlet", "_stopped")

    def __init__(self, function: Callable[..., object], args: tuple[object, ...]) -> None:
        self._greenlet = greenlet(partial(function, *args))
        # A greenlet begins without context variables; a rank has those of whoever spawned it.
        self._greenlet.gr_context = copy_context()
        self._stopped = False
        self._ends = 0

    def resume(self) -> W | None:
        """Run the program until its next wait; None: it has returned. What it raises comes out of here."""
        waits_for = self._greenlet.switch()
        # What a dead greenlet hands over is the program's return value.
        return None if self._greenlet.dead else waits_for

    def stop(self) -> None:
        """End an unfinished program where it waits: its ``finally`` blocks run, only a KeyboardInterrupt comes out."""
        self._stopped = True
        if not self._greenlet.dead:
            try:
                self._greenlet.throw(GreenletExit)
            except KeyboardInterrupt:
                raise
            except BaseException:
                # What a program raises because it was stopped is the cause of nothing.
                pass

    def pause(self, waits_for: W) -> None:
        """Stop until resumed; called from inside the program."""
        self.check()
        self._parent().switch(waits_for)

    def check(self) -> None:
        """Leave the program if it was stopped, whatever its ``finally`` blocks still want; called from inside it."""
        assert getcurrent() is self._greenlet, "a rank waits for itself only"
        if self._stopped:
            self._ends += 1
            if self._ends > ENDS_IN_VAIN:
                self._parent().switch()
            raise GreenletExit

    def _parent(self) -> greenlet:
        parent = self._greenlet.parent
        assert parent is not None, "a program that runs was resumed by somebody"
        return parent


WaitText = Callable[[], str]
"""Says what is waited for; asked only when it has to be told."""


@value
class Sleep:
    """The wait of a rank: for the end of one of ``handles``, or for its ``gate`` to open.

    ``gives_way``: it could go on at once, and lets others go first.
    """

    what: WaitText
    handles: tuple[RequestHandle, ...] = ()
    gate: Gate | None = None
    gives_way: bool = False


class Gate:
    """A place where ranks meet: those that come wait until it is opened."""

    __slots__ = ("_open", "_what")

    def __init__(self, what: WaitText) -> None:
        self._open, self._what = False, what

    @property
    def is_open(self) -> bool:
        """True when everybody may pass."""
        return self._open

    def open(self) -> None:
        """Let everybody pass."""
        self._open = True

    def sleep(self) -> Sleep:
        """Return the wait of a rank that has come to the gate."""
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
        """For a report: what it waits for, or that it has ended."""
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
            error.__traceback__ = _drop_frames(error.__traceback__)
            self.ended, self.sleep, self.error = True, None, error

    def stop(self) -> None:
        """End it where it waits."""
        self.ended, self.stopped, self.sleep = True, True, None
        self._runner.stop()

    def pause(self, sleep: Sleep) -> None:
        """Wait; called from inside the rank."""
        self._runner.pause(sleep)

    def check(self) -> None:
        """Leave the rank if it was stopped; called from inside it."""
        self._runner.check()


def _drop_frames(trace: TracebackType | None) -> TracebackType | None:
    """Cut off the frames that resumed the rank: ``RankTask.run`` and ``RankRunner.resume``."""
    for _ in range(2):
        trace = trace.tb_next if trace is not None else None
    return trace
