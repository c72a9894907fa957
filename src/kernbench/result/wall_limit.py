"""A limit of the real time of Python code that cannot be stopped otherwise, such as an endless loop in a kernel."""

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

# While simulated time passes, the engine can stop between two events, which is cleaner. It gets this head start.
GRACE_S = 0.25
# A program that catches the first stop is stopped again after this time.
REPEAT_S = 1.0
# A limit beyond the range of timers counts as none.
FOREVER_S = 1e8


@contextmanager
def wall_limit(seconds: float | None, why: Callable[[], RunError]) -> Iterator[None]:
    """Raise RunStopped inside the block, at any point of the program, shortly after ``seconds``; None: never.

    The limit works in the main thread only, because only this thread receives signals.
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
