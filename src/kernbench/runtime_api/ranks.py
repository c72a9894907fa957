"""Ranks: their local state, the program that each runs as a greenlet or in a thread, and their waits.

This is the only module that uses greenlets and threads of ranks.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import copy_context
from dataclasses import field
from functools import partial
from threading import Lock, Thread, current_thread
from types import TracebackType
from typing import Generic, TypeAlias, TypeVar

from greenlet import GreenletExit, getcurrent, greenlet

from kernbench.common.errors import SecondThreadError
from kernbench.common.program_line import describe_call
from kernbench.common.threads import InterruptAtLines, raise_in_thread
from kernbench.common.values import state, value
from kernbench.engine.requests import RequestHandle
from kernbench.triton_emu.kernel_runner import check_host_calls

DEBUG_VARIABLE = "KERNBENCH_DEBUG"
T = TypeVar("T")


class HandedOn(ABC):
    """An object of the program that its spawned ranks inherit."""

    @abstractmethod
    def in_rank(self, rank: int, n_ranks: int) -> object | None:
        """Return the object that rank ``rank`` of ``n_ranks`` inherits; None if the rank inherits none."""


class RankLocal:
    """The objects that libraries store for a rank, at most one of each class, in place of globals of a process."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: dict[type[object], object] = {}

    def for_rank(self, rank: int, n_ranks: int) -> RankLocal:
        """Return the objects with which rank ``rank`` of ``n_ranks`` starts when the program spawns it."""
        local = RankLocal()
        for stored in self._kept.values():
            handed_on = stored.in_rank(rank, n_ranks) if isinstance(stored, HandedOn) else None
            if handed_on is not None:
                local.put(handed_on)
        return local

    def put(self, value: object) -> None:
        """Store ``value`` for the rank; it replaces a stored object of the same class."""
        self._kept[type(value)] = value

    def get(self, kind: type[T]) -> T | None:
        """Return the object of a class; None if there is none."""
        stored = self._kept.get(kind)
        return stored if isinstance(stored, kind) else None

    def drop(self, kind: type[object]) -> None:
        """Drop the object of a class, if there is one."""
        self._kept.pop(kind, None)

    def clear(self) -> None:
        """Drop all objects."""
        self._kept.clear()


@state(eq=False)
class Worker:
    """The state of a rank: its number, the number of ranks spawned with it, and its chosen SIP, if any.

    ``local``: the objects that libraries store for the rank. A program without ranks is an implicit rank 0.
    ``spawned``: ``spawn`` created this rank. ``has_process``: it has the parts of a process, as ranks of PyTorch.
    """

    rank: int = 0
    n_ranks: int = 1
    spawned: bool = False
    has_process: bool = False
    device: int | None = None
    local: RankLocal = field(default_factory=RankLocal)

    def __str__(self) -> str:
        return f"rank {self.rank}" if self.spawned else "the program"


class Workers:
    """The running worker of one context, and the thread that may call the machine.

    That thread is the first one that calls the machine, until it ends. While a rank runs in a thread of its own, the
    rank's thread has the baton: only it may call the machine.
    """

    __slots__ = ("_baton", "_claim", "_current", "_home", "_thread", "main")

    def __init__(self) -> None:
        self.main = Worker()
        self._current = self.main
        self._home = current_thread()
        self._thread: Thread | None = None
        self._baton: Thread | None = None
        self._claim = Lock()

    @property
    def current(self) -> Worker:
        """The running rank, or the worker of the program itself. Raises the errors of ``check``."""
        self.check()
        return self._current

    def check(self) -> None:
        """Raise KernelError if a kernel calls the host's side, and SecondThreadError if a second thread does."""
        check_host_calls()
        if current_thread() is not (self._baton or self._thread):  # a new thread may have the number of an ended one
            with self._claim:
                if self._baton is not None:
                    raise _make_thread_error(
                        f"{self._current} runs in thread {self._baton.name!r}: only that thread may"
                    )
                if self._thread is not None and self._thread.is_alive():
                    raise _make_thread_error(
                        f"thread {self._thread.name!r} has called the machine before: only one thread of a program may"
                    )
                self.take_over()

    def take_over(self) -> None:
        """Make this thread the only one that may call the machine."""
        self._thread = current_thread()

    def come_home(self) -> None:
        """Let the thread that created the context end the context, even if another thread has called the machine."""
        if current_thread() is self._home:
            self.take_over()

    @contextmanager
    def running(self, worker: Worker, thread: Thread | None = None) -> Iterator[None]:
        """Make ``worker`` the current one inside the ``with`` block, and pass the baton to its ``thread``, if any."""
        before = self._current, self._baton
        self._current, self._baton = worker, thread
        try:
            yield
        finally:
            self._current, self._baton = before


def _make_thread_error(reason: str) -> SecondThreadError:
    called, where = describe_call()
    return SecondThreadError(
        f"{where}thread {current_thread().name!r} calls {called}, but {reason}. Other threads can pass it their "
        f"calls in a queue.Queue"
    )


def wants_debugging() -> bool:
    """Return True when the user has requested warnings about valid code that is probably a mistake."""
    return os.environ.get(DEBUG_VARIABLE, "") not in ("", "0")


W = TypeVar("W")

# A stopped program that swallows GreenletExit this often is left suspended.
ENDS_IN_VAIN = 100


class RankRunner(ABC, Generic[W]):
    """One run of ``function(*args)``, which passes each of its waits (a ``W``) to the caller of ``resume``.

    Only the scheduler resumes ranks and advances simulated time, so no kernel runs inside a rank.
    """

    __slots__ = ()

    @property
    def thread(self) -> Thread | None:
        """The thread of the program; None if it runs in that of the scheduler."""
        return None

    @abstractmethod
    def resume(self) -> W | None:
        """Run the program until its next wait, and return that wait; None if the program has returned.

        Raises the error of the program.
        """

    @abstractmethod
    def stop(self) -> None:
        """End an unfinished program where it waits.

        Its ``finally`` blocks run; only a KeyboardInterrupt is raised here.
        """

    @abstractmethod
    def pause(self, waits_for: W) -> None:
        """Suspend the program until it is resumed; called from inside it."""

    @abstractmethod
    def check(self) -> None:
        """Leave the program if it was stopped, also from its ``finally`` blocks; called from inside it."""


class GreenletRunner(RankRunner[W]):
    """A program in a greenlet of the scheduler's thread: the programs of kernbench itself, about 1 µs a switch."""

    __slots__ = ("_ends", "_greenlet", "_stopped")

    def __init__(self, function: Callable[..., object], args: tuple[object, ...]) -> None:
        self._greenlet = greenlet(partial(function, *args))
        # A greenlet begins without context variables; a rank inherits those of its spawner.
        self._greenlet.gr_context = copy_context()
        self._stopped = False
        self._ends = 0

    def resume(self) -> W | None:
        """Run the program until its next wait, and return that wait; None if the program has returned."""
        waits_for = self._greenlet.switch()
        # A dead greenlet passes on the return value of the program.
        return None if self._greenlet.dead else waits_for

    def stop(self) -> None:
        """End an unfinished program where it waits."""
        self._stopped = True
        if not self._greenlet.dead:
            try:
                self._greenlet.throw(GreenletExit)
            except KeyboardInterrupt:
                raise
            except BaseException:
                # An error that follows a stop is no cause of a failure.
                pass

    def pause(self, waits_for: W) -> None:
        """Suspend the program until it is resumed."""
        self.check()
        self._parent().switch(waits_for)

    def check(self) -> None:
        """Leave the program if it was stopped."""
        assert getcurrent() is self._greenlet, "a rank waits for itself only"
        if self._stopped:
            self._ends += 1
            if self._ends > ENDS_IN_VAIN:
                self._parent().switch()
            raise GreenletExit

    def _parent(self) -> greenlet:
        parent = self._greenlet.parent
        assert parent is not None, "a running program has a resumer"
        return parent


POLL_S = 0.2
"""Interval at which a thread that waits for a rank can be interrupted, and an interrupt is repeated in the rank"""
STOP_S = 10.0
"""Real time after which a thread that does not end, in a call of a library, is left alone without the baton"""


class ThreadRunner(RankRunner[W]):
    """A program in a thread of its own, for libraries with state by thread, such as PyTorch.

    The thread runs only between ``resume`` and the program's next wait, while the scheduler's thread waits for it.
    Exactly one of the two has the baton. ``around`` is entered in the thread. A hand-over takes about 100 µs.
    """

    __slots__ = (
        "_around",
        "_back",
        "_baton",
        "_ends",
        "_error",
        "_has_started",
        "_stopped",
        "_thread",
        "_waits",
        "_waits_for",
    )

    def __init__(
        self,
        function: Callable[..., object],
        args: tuple[object, ...],
        around: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        program, self._around = partial(function, *args), around
        target = partial(copy_context().run, self._run, program)
        self._thread = Thread(target=target, name=f"rank {args[0]}", daemon=True)
        self._baton, self._back = Lock(), Lock()  # locked: the other side has it
        for lock in (self._baton, self._back):
            lock.acquire()
        self._waits_for: W | None = None
        self._error: BaseException | None = None
        self._has_started = self._waits = self._stopped = False
        self._ends = 0

    @property
    def thread(self) -> Thread:
        """The thread of the program."""
        return self._thread

    def resume(self) -> W | None:
        """Run the program until its next wait, and return that wait; None if the program has returned.

        Ctrl-C and the limit of real time, which the waiting thread receives, end the program where it runs.
        """
        try:
            self._pass_baton()
        except BaseException as interrupt:
            place = self._interrupt()
            raise interrupt.with_traceback(place or interrupt.__traceback__) from None
        if self._thread.is_alive():
            return self._waits_for
        error, self._error = self._error, None
        if error is not None:
            raise error
        return None

    def stop(self) -> None:
        """End an unfinished program where it waits."""
        self._stopped = True
        if self._thread.is_alive():
            try:
                self._pass_baton()
            except BaseException:
                self._interrupt()
                raise
        error, self._error = self._error, None
        if isinstance(error, KeyboardInterrupt):  # other errors that follow a stop are no cause of a failure
            raise error

    def pause(self, waits_for: W) -> None:
        """Suspend the program until it is resumed."""
        self.check()
        self._waits_for = waits_for
        self._wait_for_baton()
        self.check()

    def check(self) -> None:
        """Leave the program if it was stopped."""
        assert current_thread() is self._thread, "a rank waits for itself only"
        if self._stopped:
            self._ends += 1
            if self._ends > ENDS_IN_VAIN:
                self._wait_for_baton()
            raise GreenletExit

    def _run(self, program: Callable[[], object]) -> None:
        """Run the program in its thread, and note its error."""
        try:
            with self._around():
                program()
        except GreenletExit:
            pass
        except BaseException as error:
            trace = error.__traceback__
            self._error = error.with_traceback(None if trace is None else trace.tb_next)
        finally:
            self._give_back()

    def _wait_for_baton(self) -> None:
        """Give the baton back, and wait for it; called from the program's thread."""
        self._waits = True
        self._give_back()
        self._baton.acquire()
        self._waits = False

    def _give_back(self) -> None:
        if self._back.locked():  # else an interrupt came between: the other side no longer waits for it
            self._back.release()

    def _pass_baton(self) -> None:
        """Let the program run until it gives the baton back."""
        if self._has_started:
            self._baton.release()
        else:
            self._has_started = True
            self._thread.start()
        while not self._back.acquire(timeout=POLL_S):
            pass
        if not self._waits:
            self._thread.join()

    def _interrupt(self) -> TracebackType | None:
        """Raise KeyboardInterrupt in the program until its thread ends; return the place where the program was."""
        self._stopped = True
        until_s = time.monotonic() + STOP_S
        kind: type[KeyboardInterrupt] = KeyboardInterrupt
        while self._thread.is_alive() and time.monotonic() < until_s:
            with suppress(KeyboardInterrupt):  # a second one changes nothing: the program is being ended
                if self._waits and self._baton.locked():
                    self._baton.release()
                raise_in_thread(self._thread, kind)
                self._thread.join(POLL_S)
                kind = InterruptAtLines  # the program may have caught the first one
        error, self._error = self._error, None
        return None if error is None else error.__traceback__


WaitText = Callable[[], str]
"""Returns the text of a wait; called only to report it"""


@value
class Sleep:
    """The wait of a rank: until one of the requests ``handles`` has ended, or until ``gate`` is open.

    ``label`` describes the wait. ``gives_way``: the rank could proceed at once, but lets other ranks run first.
    """

    label: WaitText
    handles: tuple[RequestHandle, ...] = ()
    gate: RankGate | None = None
    gives_way: bool = False


class RankGate:
    """A meeting point of ranks: a rank that arrives waits until the gate is open. ``label`` describes the wait."""

    __slots__ = ("_label", "_open")

    def __init__(self, label: WaitText) -> None:
        self._open, self._label = False, label

    @property
    def is_open(self) -> bool:
        """True when all ranks may pass."""
        return self._open

    def open(self) -> None:
        """Let all ranks pass."""
        self._open = True

    def sleep(self) -> Sleep:
        """Return the wait of a rank that has arrived."""
        return Sleep(self._label, gate=self)


MakeRunner: TypeAlias = Callable[[Callable[..., object], tuple[object, ...]], RankRunner[Sleep]]
"""Creates the runner of ``function(*args)``; the first argument is the rank"""


class RankTask:
    """A spawned rank: its program ``function(rank, *args)``, and its state.

    ``sleep``: the current or last wait; None before the first and after the end. ``error``: the error that the rank
    raised itself. ``stopped``: the rank was ended from outside.
    """

    __slots__ = ("_runner", "ended", "error", "sleep", "stopped", "worker")

    def __init__(
        self,
        worker: Worker,
        function: Callable[..., object],
        args: tuple[object, ...],
        make_runner: MakeRunner = GreenletRunner,
    ) -> None:
        self.worker = worker
        self._runner: RankRunner[Sleep] = make_runner(function, (worker.rank, *args))
        self.sleep: Sleep | None = None
        self.ended = False
        self.stopped = False
        self.error: BaseException | None = None

    @property
    def thread(self) -> Thread | None:
        """The thread of the rank; None if the rank runs in that of the scheduler."""
        return self._runner.thread

    @property
    def standing(self) -> str:
        """Text for a report: what the rank waits for, or that the rank has ended."""
        return f"{self.worker} {'has ended' if self.sleep is None else f'waits for {self.sleep.label()}'}"

    def run(self) -> None:
        """Run the rank until its next wait. Its exception becomes its ``error``; only a KeyboardInterrupt is raised."""
        try:
            self.sleep = self._runner.resume()
            self.ended = self.sleep is None
        except KeyboardInterrupt:
            self.ended, self.stopped, self.sleep = True, True, None
            raise
        except BaseException as error:  # including SystemExit and a test framework's failures
            error.__traceback__ = _drop_frames(error.__traceback__)
            self.ended, self.sleep, self.error = True, None, error

    def stop(self) -> None:
        """End the rank where it waits."""
        self.ended, self.stopped, self.sleep = True, True, None
        self._runner.stop()

    def pause(self, sleep: Sleep) -> None:
        """Wait; called from inside the rank."""
        self._runner.pause(sleep)

    def check(self) -> None:
        """Leave the rank if it was stopped; called from inside it."""
        self._runner.check()


def _drop_frames(trace: TracebackType | None) -> TracebackType | None:
    """Remove the frames that resumed the rank: ``RankTask.run`` and ``resume`` of its runner."""
    for _ in range(2):
        trace = trace.tb_next if trace is not None else None
    return trace
