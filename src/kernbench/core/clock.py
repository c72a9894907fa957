"""Simulated time: integer picoseconds, and what is to happen at each. The only module that knows how that is kept.

The events of an instant have a *rank*, so that they happen in an order fixed by the machine and not by who asked first:
packet heads arrive (by input), then links arbitrate (by link), then deliveries (by link), then programs (in the order
they asked), then SimPy's events, by their priority: what thinks acts after what moves bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from operator import index
from typing import Any, NoReturn, TypeAlias

from simpy import Environment, Event
from simpy.core import EmptySchedule, StopSimulation
from simpy.events import NORMAL

from kernbench.common.errors import KernbenchError

NEVER = 1 << 62
RANK_ARRIVE = -3 << 32
RANK_ARBITRATE = -2 << 32
RANK_DELIVER = -1 << 32
RANK_PROGRAM = 1
RANK_THINK = 2  # and more, by SimPy's priority
_BEHIND_PROGRAMS = NEVER >> 1  # places of SimPy's events: what has a place of a program at their instant has come
_TIMES_OF_PARTS = "times that parts give are whole ps and not negative"

Entry: TypeAlias = tuple[int, int, int, Callable[[Any], None], object]
"""An event: when, its rank, its place among those of that rank, what is called, and with what"""


class Clock(Environment):
    """A SimPy environment in picoseconds whose events may be plain calls of a function with one argument.

    ``time`` is the current time in ps (SimPy's ``now``, without the property call).

    What would happen at a time that is known, and that nobody may have to be woken for, need be no event: its place in
    the order of things is taken with ``reserve`` when it is caused, ``has_come`` says later whether it has happened,
    and ``at_place`` makes an event of it after all.
    """

    def __init__(self) -> None:
        super().__init__(initial_time=0)
        self.time = 0
        self._halted = False
        self._place = NEVER  # of the event that fires; NEVER when all of this instant have
        self._lapse_ps = 0
        self._events: list[Entry] = []  # a heap of those to come
        self._fired = 0

    @property
    def n_events(self) -> int:
        """The number of events that have fired."""
        return self._fired

    def call_at(
        self, when: int, function: Callable[[Any], None], argument: object = None, rank: int = RANK_PROGRAM
    ) -> None:
        """Call ``function(argument)`` at ``when`` ps, among the events of that instant by ``rank``.

        KernbenchError when that is over.

        Who asks by the million gives the function of a class and the object: a bound method is made anew each time.
        """
        if when.__class__ is not int or when < self.time:
            when = self._check_time(when)
        heappush(self._events, (when, rank, next(self._eid), function, argument))

    def _check_time(self, when: object) -> int:
        """Return ``when`` as an int; KernbenchError for what is no whole number, or over."""
        try:
            found = index(when)  # type: ignore[arg-type]
        except TypeError:
            raise KernbenchError(f"an event at {when!r} ps: {_TIMES_OF_PARTS}") from None
        if found < self.time:
            raise KernbenchError(f"an event at {found} ps, at {self.time} ps, is too late: {_TIMES_OF_PARTS}")
        return found

    def schedule(self, event: Event, priority: int = NORMAL, delay: float = 0) -> None:
        """Fire an event of SimPy's after ``delay`` ps, rounded to whole ones; never, if that is ``NEVER`` or more."""
        if delay < NEVER:
            when = self.time + (delay if delay.__class__ is int else round(delay))
            self.at_place(when, _BEHIND_PROGRAMS + next(self._eid), _fire_simpy, event, RANK_THINK + priority)

    def reserve(self, when: int) -> int:
        """Reserve a place in the order of programs at ``when`` ps, behind all places asked for until now.

        Time goes on until then at least, even if nothing fires any more.
        """
        self._lapse_ps = when if when > self._lapse_ps else self._lapse_ps
        return next(self._eid)

    def at_place(
        self, when: int, place: int, function: Callable[[Any], None], argument: object, rank: int = RANK_PROGRAM
    ) -> None:
        """Call ``function(argument)`` at ``when`` ps, in the ``place`` that was reserved: once at most."""
        if when < self.time:
            when = self._check_time(when)
        heappush(self._events, (when, rank, place, function, argument))

    def has_come(self, when: int, place: int) -> bool:
        """Return True when ``place`` at ``when`` ps is over or is now. For calls from programs, or between events."""
        return when < self.time or (when == self.time and place <= self._place)

    def next_time(self) -> int:
        """Time in ps of the next event, or up to which time goes on without; NEVER when nothing can happen."""
        when = self._next_event_ps()
        if when < NEVER:
            return when
        return self._lapse_ps if self._lapse_ps > self.time else NEVER

    def _next_event_ps(self) -> int:
        """Time in ps of the next event; NEVER when there is none."""
        return self._events[0][0] if self._events else NEVER

    @property
    def now(self) -> int:
        """``time``, for SimPy."""
        return self.time

    def peek(self) -> float:
        """Return the time of the next event, for SimPy; infinity when there is none."""
        when = self._next_event_ps()
        return when if when < NEVER else inf

    def step(self) -> None:
        """Fire the next event. SimPy's EmptySchedule when there is none."""
        if not self._events:
            raise EmptySchedule
        self.time, _, self._place, function, argument = heappop(self._events)
        self._fired += 1
        function(argument)

    def advance(self, until: int = NEVER, enough: int | None = None) -> None:
        """Fire events up to and including ``until`` ps, or until one of them calls ``halt``, or ``enough`` have fired.

        If nothing else ended it, the time is then ``until``, if one was given.
        """
        self._halted = False
        limited = until < NEVER or enough is not None
        if not (self._fire_some(until, enough) if limited else self._fire_all()):
            return
        self._place = NEVER
        last_ps = until if until < NEVER else self._lapse_ps
        self.time = max(self.time, last_ps)

    def _fire_all(self) -> bool:
        """Fire all events; False when ``halt`` ended it."""
        events = self._events
        while events:
            self.time, _, self._place, function, argument = heappop(events)
            self._fired += 1
            function(argument)
            if self._halted:
                return False
        return True

    def _fire_some(self, until: int, enough: int | None) -> bool:
        """Fire the events up to ``until`` ps; False when ``halt`` ended it, or there were ``enough``, before."""
        last = NEVER if enough is None else self._fired + enough
        until = min(until, NEVER - 1)
        while self._next_event_ps() <= until:
            self.step()
            if self._halted:
                return False
            if self._fired >= last:
                return self._next_event_ps() > until
        return True

    def halt(self) -> None:
        """Make ``advance`` return after the current event."""
        self._halted = True


def raise_failure(value: object) -> NoReturn:
    """Raise what a SimPy process failed with."""
    if isinstance(value, BaseException):
        raise value
    raise TypeError(f"a process failed with {value!r}, which is no exception")


def _fire_simpy(event: Any) -> None:
    """Call the callbacks of a SimPy event that is due, as SimPy does."""
    callbacks, event.callbacks = event.callbacks, None
    for n, callback in enumerate(callbacks, 1):
        try:
            callback(event)
        except StopSimulation:  # a run that was to go on until this event: what else waits for it is for the next
            event.callbacks = callbacks[n:]
            event.env.schedule(event, -1)
            raise
    if not event.ok and not event.defused:
        raise_failure(event.value)
