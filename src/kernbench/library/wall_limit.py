"""A limit in seconds for what runs in Python and lets nobody ask: a kernel or a host program that loops."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from kernbench.common.errors import RunError, RunStopped
from kernbench.common.program_line import is_program

# Where time passes, the engine stops between two events, which is tidier: it comes first.
GRACE_S = 0.25
# A program that catches the first stop gets another.
REPEAT_S = 1.0
# More than timers take is as good as never.
FOREVER_S = 1e8


@contextmanager
def wall_limit(seconds: float | None, why: Callable[[], RunError]) -> Iterator[None]:
    """Inside, RunStopped is raised wherever the program is, a little after ``seconds``; None: never.

    Only in the main thread, which is the one that gets signals.
    """
    if seconds is None or threading.current_thread() is not threading.main_thread():
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


class _Stopper:
    """Stops the program; one that has caught that and goes on is stopped again, in its ``except`` clauses too."""

    def __init__(self, why: Callable[[], RunError]) -> None:
        self._why = why
        self._stopped = False
        self.armed = True

    def stop(self, _: int, frame: FrameType | None) -> None:
        """The time is up, and ``frame`` runs."""
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
        """A line of a program that has caught the stop: it is beyond the ``try`` that did."""
        if event == "line":
            raise RunStopped(self._why())
        return self._stop_at_line
