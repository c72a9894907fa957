"""Stages of the PE pipeline: units with bounded input queues, coupled by counters instead of stores.

A stage starts a token when it can take one, a token is waiting, and the token's next stage has a slot; when the token
is done here, the stage gives back its own slot and hands the token on. One event per stage and token.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kernbench.core.clock import Clock


@dataclass(slots=True, eq=False)
class Token:
    """A tile (or a single command) on its way through ``route``, the first stage last: ``to_pass`` are left of them.

    ``times`` are ps in each timed stage, the first one last, ``to_spend`` of them left; tokens may share both.
    ``retired(token)`` is called when the last stage has ended, ``begun(token, now)`` when the first timed one starts.
    ``work`` is whatever the owner wants to find again.
    """

    work: Any
    route: Sequence[Stage]
    to_pass: int
    times: Sequence[int]
    to_spend: int
    retired: Callable[[Any], None]
    begun: Callable[[Any, int], None] | None
    ready: bool = field(default=False, init=False)


class Stage:
    """A place in the pipeline with ``free`` slots for tokens that wait for it or are in it."""

    __slots__ = ("blocked", "free", "name", "waiting")

    def __init__(self, name: str, slots: int) -> None:
        self.name = name
        self.free = slots
        self.waiting: deque[Token] = deque()
        self.blocked: deque[Stage] = deque()  # stages that wait for a slot here

    def enter(self, token: Token) -> None:
        """A token comes from outside the pipeline: it takes a slot, if need be beyond the bound."""
        self.free -= 1
        self.put(token)

    def put(self, token: Token) -> None:
        """A token comes in; its slot has been taken before."""
        self.waiting.append(token)
        self.try_start()

    def try_start(self) -> None:
        """Begin what can begin."""
        raise NotImplementedError

    def claim_next(self, token: Token) -> bool:
        """Take a slot of the stage behind; False, and a call of ``try_start`` later, when there is none."""
        if token.to_pass < 2:
            return True
        following = token.route[token.to_pass - 2]
        if following.free <= 0:
            if self not in following.blocked:
                following.blocked.append(self)
            return False
        following.free -= 1
        return True

    def pass_on(self, token: Token) -> None:
        """``token`` is done here."""
        token.to_pass = left = token.to_pass - 1
        if left:
            token.route[left - 1].put(token)
        else:
            token.retired(token)
        self.free += 1
        self.settle()

    def settle(self) -> None:
        """A slot has come free, and this stage with it."""
        if self.blocked and self.free > 0:
            self.blocked.popleft().try_start()
        if self.waiting:
            self.try_start()


class StageUnit(Stage):
    """A stage that works on one token at a time; ``ended(token, start, end)``, if set, is called for each."""

    __slots__ = ("_clock", "_current", "_start", "ended")

    def __init__(self, clock: Clock, name: str, slots: int) -> None:
        super().__init__(name, slots)
        self._clock = clock
        self.ended: Callable[[Token, int, int], None] | None = None
        self._current: Token | None = None
        self._start = 0

    @property
    def idle(self) -> bool:
        """Whether a token that enters begins at once, if it goes nowhere else."""
        return self._current is None and not self.waiting

    def try_start(self) -> None:
        """Begin the first waiting token if the unit is idle and the stage behind has a slot."""
        if self._current is None and self.waiting and self.claim_next(self.waiting[0]):
            self._begin(self.waiting.popleft())

    def enter(self, token: Token) -> None:
        """A token comes from outside the pipeline; a command that finds the unit idle begins."""
        self.free -= 1
        if self._current is None and not self.waiting and token.to_pass == 1:
            self._begin(token)
        else:
            self.put(token)

    def _begin(self, token: Token) -> None:
        clock = self._clock
        self._current = token
        self._start = start = clock.time
        begun = token.begun
        if begun is not None:
            begun(token, start)
            token.begun = None
        token.to_spend = left = token.to_spend - 1
        clock.call_at(start + token.times[left], FINISH, self)

    def finish(self) -> None:
        """The current token is done."""
        token = self._current
        assert token is not None
        self._current = None
        ended = self.ended
        if ended is not None:
            ended(token, self._start, self._clock.time)
        if token.to_pass > 1 or self.blocked or self.waiting:
            self.pass_on(token)
            return
        token.to_pass = 0
        retired = token.retired
        retired(token)
        self.free += 1
        if self.blocked or self.waiting:
            self.settle()


class OverlappingStage(Stage):
    """A stage whose tokens overlap, such as transfers: they start in order, as slots allow, and leave in order.

    ``start(token, done)`` sets a token going and calls ``done`` when it is over.
    """

    __slots__ = ("_inside", "_start")

    def __init__(self, name: str, slots: int, start: Callable[[Token, Callable[[], None]], None]) -> None:
        super().__init__(name, slots)
        self._start = start
        self._inside: deque[Token] = deque()

    def try_start(self) -> None:
        """Begin waiting tokens while the stage behind has slots."""
        while self.waiting and self.claim_next(self.waiting[0]):
            token = self.waiting.popleft()
            token.ready = False
            self._inside.append(token)
            self._start(token, partial(self._over, token))

    def _over(self, token: Token) -> None:
        token.ready = True
        while self._inside and self._inside[0].ready:
            self.pass_on(self._inside.popleft())


FINISH = StageUnit.finish
