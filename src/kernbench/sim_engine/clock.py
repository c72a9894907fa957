"""Simulated time: integer picoseconds, and what is to happen at each. The only module that knows how that is kept.

The events of an instant have a *rank*, so that they happen in an order fixed by the machine and not by who asked first:
packet heads arrive (by input), then links arbitrate (by link), then deliveries (by link), then programs (in the order
they asked). SimPy's events take part, with their priority as the rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from math import inf
from operator import length_hint
from typing import Any, NoReturn, TypeAlias

from simpy import Environment, Event
from simpy.core import EmptySchedule, StopSimulation

from kernbench.common.errors import KernbenchError

NEVER = 1 << 62
RANK_ARRIVE = -3 << 32
RANK_ARBITRATE = -2 << 32
RANK_DELIVER = -1 << 32
RANK_PROGRAM = 1

Entry: TypeAlias = tuple[int, int, Callable[[Any], None], object]
"""An event of an instant: its rank, its place among those of that rank, what is called, and with what"""


class Clock(Environment):
    """A SimPy environment in picoseconds whose events may be plain calls of a function with one argument.

    ``time`` is the current time in ps (SimPy's ``now``, without the property call); ``n_events`` counts what fired.

    What would happen at a time that is known, and that nobody may have to be woken for, need be no event: its place in
    the order of things is taken with ``reserve`` when it is caused, ``has_come`` says later whether it has happened,
    and ``at_place`` makes an event of it after all.
    """

    def __init__(self) -> None:
        super().__init__(initial_time=0)
        self.time = 0
        self.n_events = 0
        self._halted = False
        self._interrupted = False  # by ``halt``, or by what was asked for at the instant that goes on
        self._rest: Iterator[Entry] = iter(())  # of the instant that goes on
        self._place = NEVER  # of the event that fires; NEVER when all of this instant have
        self._lapse_ps = 0
        # What is to happen at each instant, as it is asked for: put in order when its time has come.
        # The instants are a heap.
        self._instants: dict[int, list[Entry]] = {}
        self._times: list[int] = []

    def call_at(
        self, when: int, function: Callable[[Any], None], argument: object = None, rank: int = RANK_PROGRAM
    ) -> None:
        """Call ``function(argument)`` at ``when`` ps, among the events of that instant by ``rank``.

        KernbenchError when that is over.

        Who asks by the million gives the function of a class and the object: a bound method is made anew each time.
        """
        instant = self._instants.get(when)
        if instant is None:
            if when <= self.time:
                self._interrupt(when, function)
            self._instants[when] = [(rank, next(self._eid), function, argument)]
            heappush(self._times, when)
        else:
            instant.append((rank, next(self._eid), function, argument))

    def _interrupt(self, when: int, function: Callable[[Any], None]) -> None:
        """Something is asked for at the instant that goes on, whose rest has to be put in order again."""
        if when < self.time:
            raise KernbenchError(f"at {self.time} ps, {function!r} was to be called at {when} ps: that is over")
        self._interrupted = True

    def schedule(self, event: Event, priority: int = RANK_PROGRAM, delay: float = 0) -> None:
        """Fire an event of SimPy's after ``delay`` ps, rounded to whole ones; never, if that is ``NEVER`` or more."""
        if delay < NEVER:
            self.call_at(self.time + round(delay), _fire, event, priority)

    def reserve(self, when: int) -> int:
        """A place in the order of programs at ``when`` ps, behind all that have asked for one until now.

        Time goes on until then at least, even if nothing fires any more.
        """
        self._lapse_ps = when if when > self._lapse_ps else self._lapse_ps
        return next(self._eid)

    def at_place(self, when: int, place: int, function: Callable[[Any], None], argument: object) -> None:
        """Call ``function(argument)`` at ``when`` ps, in the ``place`` that was reserved: once at most."""
        instant = self._instants.get(when)
        if instant is None:
            if when <= self.time:
                self._interrupt(when, function)
            instant = self._instants[when] = []
            heappush(self._times, when)
        instant.append((RANK_PROGRAM, place, function, argument))

    def has_come(self, when: int, place: int) -> bool:
        """Whether what was to happen at ``when`` ps in ``place`` has. To be asked by programs, or between events."""
        return when < self.time or (when == self.time and place < self._place)

    def next_time(self) -> int:
        """Time in ps of the next event, or up to which time goes on without; NEVER when nothing can happen."""
        if length_hint(self._rest):
            return self.time
        if self._times:
            return self._times[0]
        return self._lapse_ps if self._lapse_ps > self.time else NEVER

    @property
    def now(self) -> int:
        """``time``, for SimPy."""
        return self.time

    def peek(self) -> float:
        """The time of the next event, for SimPy; infinity when there is none."""
        if length_hint(self._rest):
            return self.time
        return self._times[0] if self._times else inf

    def step(self) -> None:
        """Fire the next event. SimPy's EmptySchedule when there is none."""
        if self.peek() == inf:
            raise EmptySchedule
        self._fire(NEVER, None, once=True)

    def advance(self, until: int = NEVER, enough: int | None = None) -> None:
        """Fire events up to and including ``until`` ps, or until one of them calls ``halt``.

        It also ends with an instant after which ``enough`` have been fired. If nothing else ended it, the time is then
        ``until``, if one was given.
        """
        self._fire(until, enough, once=False)
        if self._halted:
            return
        self._place = NEVER
        last_ps = until if until < NEVER else self._lapse_ps
        self.time = max(self.time, last_ps)

    def _fire(self, until: int, enough: int | None, *, once: bool) -> None:
        """Fire an event, if ``once``, or as ``advance``."""
        self._put_back()  # what an event that runs the clock has still behind it
        times, instants = self._times, self._instants
        self._halted = self._interrupted = once
        bounded, fired = until < NEVER, self.n_events
        last = None if enough is None else fired + enough
        while times:
            when = times[0]
            if bounded and when > until:
                break
            instant = instants.pop(heappop(times))
            self.time = when
            if len(instant) > 1:
                instant.sort()
            self._rest = rest = iter(instant)
            try:
                for _, self._place, function, argument in rest:
                    self.n_events = fired = fired + 1
                    function(argument)
                    if self._interrupted:
                        break
            except BaseException:
                self._put_back()
                raise
            if self._interrupted:
                self._put_back()
                if self._halted:
                    return
                self._interrupted = False
            if last is not None and fired >= last:
                self._halted = True
                return

    def _put_back(self) -> None:
        """The rest of the instant that goes on is yet to come."""
        rest = list(self._rest)
        if not rest:
            return
        there = self._instants.get(self.time)
        if there is None:
            self._instants[self.time] = rest
            heappush(self._times, self.time)
        else:
            there += rest

    def halt(self) -> None:
        """Make ``advance`` return after the current event."""
        self._halted = self._interrupted = True


def raise_failure(value: object) -> NoReturn:
    """Raise what a SimPy process failed with."""
    if isinstance(value, BaseException):
        raise value
    raise TypeError(f"a process failed with {value!r}, which is no exception")


def _fire(event: Any) -> None:
    """What SimPy does with an event that is due."""
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
