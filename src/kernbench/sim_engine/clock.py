"""Simulated time: integer picoseconds on SimPy's queue. The only module that knows how that queue is laid out.

SimPy orders its heap by (time, priority, serial). kernbench uses the priority as a *rank*, so that what happens at
one instant happens in an order fixed by the machine and not by the history of the heap: first packet heads arrive
(by input), then links arbitrate (by link), then deliveries (by link), then programs (in SimPy's own order).
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, NoReturn, Protocol

from simpy import Environment

NEVER = 1 << 62
RANK_ARRIVE = -3 << 32
RANK_ARBITRATE = -2 << 32
RANK_DELIVER = -1 << 32
RANK_PROGRAM = 1


class Occurrence(Protocol):
    """What the clock can fire, as SimPy sees an event: ``callbacks`` is spent when it fires and set again to reuse."""

    callbacks: Any


class Clock(Environment):
    """A SimPy environment in picoseconds whose events may be plain reusable objects.

    ``time`` is the current time in ps (SimPy's ``now``, without the property call); ``n_events`` counts what fired.

    What would happen at a time that is known, and that nobody may have to be woken for, need be no event: its place in
    the order of things is taken with ``reserve`` when it is caused, ``has_come`` says later whether it has happened,
    and ``at_place`` makes an event of it after all.
    """

    def __init__(self) -> None:
        super().__init__(initial_time=0)
        self.time = 0
        self.n_events = 0
        self._last = 0  # of the events that ``advance`` may fire
        self._place = NEVER  # of the event that fires; NEVER when all of this instant have
        self._lapse_ps = 0

    def at(self, when: int, rank: int, occurrence: Occurrence) -> None:
        """Fire ``occurrence`` at ``when`` ps among those of its instant by ``rank``."""
        heappush(self._queue, (when, rank, next(self._eid), occurrence))  # type: ignore[misc]

    def call_at(self, when: int, function: Callable[[Any], None], argument: object = None) -> None:
        """Call ``function(argument)`` at ``when`` ps, among the programs of that instant."""
        heappush(self._queue, (when, RANK_PROGRAM, next(self._eid), Call(function, argument)))  # type: ignore[misc]

    def reserve(self, when: int) -> int:
        """A place in the order of programs at ``when`` ps, behind all that have asked for one until now.

        Time goes on until then at least, even if nothing fires any more.
        """
        self._lapse_ps = when if when > self._lapse_ps else self._lapse_ps
        return next(self._eid)

    def at_place(self, when: int, place: int, occurrence: Occurrence) -> None:
        """Fire ``occurrence`` at ``when`` ps, in the ``place`` that was reserved: once at most."""
        heappush(self._queue, (when, RANK_PROGRAM, place, occurrence))  # type: ignore[misc]

    def has_come(self, when: int, place: int) -> bool:
        """Whether what was to happen at ``when`` ps in ``place`` has. To be asked by programs, or between events."""
        return when < self.time or (when == self.time and place < self._place)

    def next_time(self) -> int:
        """Time in ps of the next event, or up to which time goes on without; NEVER when nothing can happen."""
        if self._queue:
            return int(self._queue[0][0])
        return self._lapse_ps if self._lapse_ps > self.time else NEVER

    def step(self) -> None:
        """Fire the next event (SimPy's step, keeping ``time`` and the count)."""
        self.time, _, self._place, _ = self._queue[0]  # type: ignore[assignment]
        self.n_events += 1
        super().step()

    def advance(self, until: int = NEVER, max_events: int = NEVER) -> None:
        """Fire events up to and including ``until`` ps, at most ``max_events``, or until one of them calls ``halt``.

        The time is then ``until`` if one was given and nothing else ended it.
        """
        queue, fired = self._queue, self.n_events
        self._last = fired + max_events
        while queue and queue[0][0] <= until:
            when, _, self._place, event = heappop(queue)
            self._now = self.time = when  # type: ignore[assignment]
            fired += 1
            self.n_events = fired
            callbacks: Any = event.callbacks
            event.callbacks = None  # type: ignore[assignment]
            for callback in callbacks:
                callback(event)
            if not event._ok and not event.defused:  # noqa: SLF001 - SimPy's own failure protocol
                raise_failure(event.value)
            if fired >= self._last:
                return
        self._place = NEVER
        last_ps = until if until < NEVER else self._lapse_ps
        if last_ps > self.time:
            self._now = self.time = last_ps

    def halt(self) -> None:
        """Make ``advance`` return after the current event."""
        self._last = 0


def raise_failure(value: object) -> NoReturn:
    """Raise what a SimPy process failed with."""
    if isinstance(value, BaseException):
        raise value
    raise TypeError(f"a process failed with {value!r}, which is no exception")


class Call:
    """A function to be called once at a time."""

    __slots__ = ("argument", "callbacks", "function")
    _ok = True

    def __init__(self, function: Callable[[Any], None], argument: object) -> None:
        self.function = function
        self.argument = argument
        self.callbacks = CALL


def _call(call: Call) -> None:
    call.function(call.argument)


CALL = (_call,)
