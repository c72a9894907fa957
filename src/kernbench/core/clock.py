"""The simulation clock: integer picoseconds and a queue of events, whose layout only this module knows.

Events of one instant fire in order of their *rank*, whatever the order in which they were scheduled:

1. packet heads arrive (by input);
2. links arbitrate (by link);
3. packets are delivered (by link);
4. stages of tile pipelines end (by PE, the last stage first);
5. programs run (in order of their requests);
6. SimPy's events fire (by priority).

So a thinking part acts after everything that moves bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from itertools import repeat
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
RANK_STAGE = -1 << 31
RANK_PROGRAM = 1
RANK_THINK = 2  # and higher ranks, by SimPy's priority
_BEFORE_PROGRAMS = -NEVER  # places of stages: no reserved place of the same instant has come
_BEHIND_PROGRAMS = NEVER >> 1  # SimPy's events take places behind every program's place of the same instant
_TIMES_OF_PARTS = "times that parts give are whole ps and not negative"

Entry: TypeAlias = tuple[int, int, int, Callable[[Any], None], object]
"""An event: time, rank, place among the events of that rank, function, argument of the function"""


class Clock(Environment):
    """A SimPy environment in picoseconds whose events may be plain calls of a function with one argument.

    ``time`` is the current time in ps (SimPy's ``now``, without the property call).

    A future action needs no event if its time is fixed and no component waits for it. ``reserve`` then reserves a place
    for the action in the order of events. ``has_come`` returns True once that place has been reached. ``at_place``
    turns the reserved place into an event.
    """

    def __init__(self) -> None:
        super().__init__(initial_time=0)
        self.time = 0
        self._halted = False
        self._place = NEVER  # rank of the current event; NEVER when all events of this instant have fired
        self._lapse_ps = 0
        self._events: list[Entry] = []  # a heap of the pending events
        self._fired = 0

    @property
    def n_events(self) -> int:
        """The number of events that have fired."""
        return self._fired

    def call_at(
        self, when: int, function: Callable[[Any], None], argument: object = None, rank: int = RANK_PROGRAM
    ) -> None:
        """Call ``function(argument)`` at ``when`` ps, among the events of that instant by ``rank``.

        Raises KernbenchError if ``when`` is in the past.

        Frequent callers pass the class's function, with the object as ``argument``: a bound method would be allocated
        at each call.
        """
        if when.__class__ is not int or when < self.time:
            when = self._check_time(when)
        heappush(self._events, (when, rank, next(self._eid), function, argument))

    def end_stage_at(self, when: int, rank: int, function: Callable[[Any], None], argument: object) -> None:
        """Call ``function(argument)`` at ``when`` ps, as a stage ends, by ``rank`` among the stages of that instant.

        Raises KernbenchError if ``when`` is in the past.
        """
        if when.__class__ is not int or when < self.time:
            when = self._check_time(when)
        heappush(self._events, (when, rank, _BEFORE_PROGRAMS + next(self._eid), function, argument))

    def _check_time(self, when: object) -> int:
        """Return ``when`` as an int. Raises KernbenchError if it is no whole number, or in the past."""
        try:
            time_ps = index(when)  # type: ignore[arg-type]
        except TypeError:
            raise KernbenchError(f"an event at {when!r} ps: {_TIMES_OF_PARTS}") from None
        if time_ps < self.time:
            raise KernbenchError(f"an event at {time_ps} ps is in the past, it is {self.time} ps: {_TIMES_OF_PARTS}")
        return time_ps

    def schedule(self, event: Event, priority: int = NORMAL, delay: float = 0) -> None:
        """Fire a SimPy event after ``delay``, rounded to whole ps; a delay of ``NEVER`` or more drops the event."""
        if delay < NEVER:
            when = self.time + (delay if delay.__class__ is int else round(delay))
            self.at_place(when, _BEHIND_PROGRAMS + next(self._eid), _fire_simpy, event, RANK_THINK + priority)

    def reserve(self, when: int) -> int:
        """Reserve a place in the order of programs at ``when`` ps, behind all places reserved so far.

        Time advances at least to ``when``, even if no further event fires.
        """
        self._lapse_ps = when if when > self._lapse_ps else self._lapse_ps
        return next(self._eid)

    def at_place(
        self, when: int, place: int, function: Callable[[Any], None], argument: object, rank: int = RANK_PROGRAM
    ) -> None:
        """Call ``function(argument)`` at ``when`` ps, in the reserved ``place``; call this at most once a place."""
        if when < self.time:
            when = self._check_time(when)
        heappush(self._events, (when, rank, place, function, argument))

    def has_come(self, when: int, place: int) -> bool:
        """Return True if the clock is at or past ``place`` at ``when`` ps. Call it from programs or between events."""
        return when < self.time or (when == self.time and place <= self._place)

    def next_time(self) -> int:
        """Return the time in ps of the next event, else of the last reserved place; NEVER if nothing can happen."""
        when = self._next_event_ps()
        if when < NEVER:
            return when
        return self._lapse_ps if self._lapse_ps > self.time else NEVER

    def _next_event_ps(self) -> int:
        """Return the time in ps of the next event; NEVER without one."""
        return self._events[0][0] if self._events else NEVER

    @property
    def now(self) -> int:
        """``time``, for SimPy."""
        return self.time

    def peek(self) -> float:
        """Return the time of the next event, for SimPy; infinity without one."""
        when = self._next_event_ps()
        return when if when < NEVER else inf

    def step(self) -> None:
        """Fire the next event. Raises SimPy's EmptySchedule without one."""
        if not self._events:
            raise EmptySchedule
        self.time, _, self._place, function, argument = heappop(self._events)
        self._fired += 1
        function(argument)

    def advance(self, until: int = NEVER, enough: int | None = None) -> None:
        """Fire events up to and including ``until`` ps.

        Stops earlier if an event calls ``halt``, or if ``enough`` events have fired. Otherwise ``time`` is ``until``
        afterwards; without ``until``, it is at least the last reserved time.
        """
        self._halted = False
        shots = repeat(None) if enough is None else repeat(None, enough)
        if not (self._fire_all(shots) if until >= NEVER else self._fire_until(until, shots)):
            return
        self._place = NEVER
        last_ps = until if until < NEVER else self._lapse_ps
        self.time = max(self.time, last_ps)

    def _fire_all(self, shots: Iterable[None]) -> bool:
        """Fire an event for each of ``shots``; return False after ``halt``, and if events are left."""
        events = self._events
        for _ in shots:
            if not events:
                return True
            self.time, _, self._place, function, argument = heappop(events)
            self._fired += 1
            function(argument)
            if self._halted:
                return False
        return not events

    def _fire_until(self, until: int, shots: Iterable[None]) -> bool:
        """Fire an event up to ``until`` ps for each of ``shots``; return False after ``halt``, and if some are left."""
        events = self._events
        for _ in shots:
            if not events or events[0][0] > until:
                return True
            self.time, _, self._place, function, argument = heappop(events)
            self._fired += 1
            function(argument)
            if self._halted:
                return False
        return self._next_event_ps() > until

    def halt(self) -> None:
        """Make ``advance`` return after the current event."""
        self._halted = True


def raise_failure(value: object) -> NoReturn:
    """Raise the exception that a SimPy process failed with; TypeError if ``value`` is no exception."""
    if isinstance(value, BaseException):
        raise value
    raise TypeError(f"a process failed with {value!r}, which is no exception")


def _fire_simpy(event: Any) -> None:
    """Call the callbacks of a SimPy event that is due, as SimPy does."""
    callbacks, event.callbacks = event.callbacks, None
    for n, callback in enumerate(callbacks, 1):
        try:
            callback(event)
        except StopSimulation:  # ``run(until=event)`` ends here; the next run calls the other callbacks
            event.callbacks = callbacks[n:]
            event.env.schedule(event, -1)
            raise
    if not event.ok and not event.defused:
        raise_failure(event.value)
