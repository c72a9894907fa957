"""Runs a rank's program as a greenlet that stops at each wait. The only module that knows greenlet for ranks."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Generic, TypeVar

from greenlet import GreenletExit, getcurrent, greenlet

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
        """From inside the program: stop until resumed."""
        self.check()
        self._parent().switch(waits_for)

    def check(self) -> None:
        """From inside the program: leave it if it was stopped, whatever its ``finally`` blocks still want."""
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
