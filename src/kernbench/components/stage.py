"""Stages of the PE pipeline: units with bounded input queues, coupled by counters instead of stores.

A unit starts a token when the unit is idle, a token is waiting, and the token's next stage has a slot; on finishing it
gives back its own slot and hands the token on. One event per stage and token.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from kernbench.sim_engine.clock import RANK_PROGRAM, Clock


class Token:
    """A tile on its way. ``route`` are the stages it still has to pass, the next one last; ``index`` is its tile."""

    __slots__ = ("index", "retired", "route", "times", "work")

    def __init__(
        self,
        work: object,
        index: tuple[int, ...],
        route: list[StageUnit],
        times: list[int],
        retired: Callable[[Token], None],
    ) -> None:
        self.work = work
        self.index = index
        self.route = route
        self.times = times  # ps in each stage, the next one last
        self.retired = retired


class StageUnit:
    """One unit. ``slots`` bound what waits for it or is in it; ``busy_ps`` is how long it has worked.

    ``ended(token, start, end)`` is called for each token it has finished, if anybody listens.
    """

    __slots__ = ("_clock", "_current", "_queue", "_start", "blocked", "busy_ps", "callbacks", "ended", "free", "name")
    _ok = True

    def __init__(self, clock: Clock, name: str, slots: int) -> None:
        self._clock = clock
        self.name = name
        self.free = slots
        self.busy_ps = 0
        self.ended: Callable[[Token, int, int], None] | None = None
        self.callbacks: Any = None
        self._queue: deque[Token] = deque()
        self.blocked: deque[StageUnit] = deque()  # units that wait for a slot here
        self._current: Token | None = None
        self._start = 0

    def put(self, token: Token) -> None:
        """A token comes in; its slot has been taken before."""
        self._queue.append(token)
        self.try_start()

    def try_start(self) -> None:
        """Begin the first waiting token if the unit is idle and the stage behind has a slot."""
        if self._current is not None or not self._queue:
            return
        token = self._queue[0]
        if len(token.route) > 1:
            following = token.route[-2]
            if not following.free:
                if self not in following.blocked:
                    following.blocked.append(self)
                return
            following.free -= 1
        self._queue.popleft()
        self._current = token
        self._start = self._clock.time
        self.callbacks = FINISH
        self._clock.at(self._start + token.times.pop(), RANK_PROGRAM, self)

    def release(self) -> None:
        """A slot of this unit has become free: whoever waits for one may go on."""
        self.free += 1
        if self.blocked:
            self.blocked.popleft().try_start()

    def finish(self) -> None:
        """The current token is done here."""
        token = self._current
        assert token is not None
        self._current = None
        now = self._clock.time
        self.busy_ps += now - self._start
        if self.ended is not None:
            self.ended(token, self._start, now)
        token.route.pop()
        if token.route:
            token.route[-1].put(token)
        else:
            token.retired(token)
        self.release()
        self.try_start()


FINISH = (StageUnit.finish,)
