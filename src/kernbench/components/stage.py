"""Stages of the PE pipeline: units with bounded input queues, coupled by counters of free slots.

A stage that is free starts the first waiting token when that token's next stage has a slot. When the token is done,
the stage frees the token's slot and passes the token on. Each token costs one event per stage.

A token's begin has one cause, the last of its conditions. Stages that end at one instant do so in a fixed order, the
last stage first (``rank``). Among equal times, the cause is therefore the token's arrival from the stage before, else
the end of the unit's work, else a free slot. ``components/pipeline.py`` has the same rule.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import field
from functools import partial
from typing import Any

from kernbench.common.values import state
from kernbench.core.clock import RANK_STAGE, Clock
from kernbench.core.log import BY_OPERAND, COMMIT, END, NONE, READ, ROOT, START, By, Cause, Log, Row


@state(eq=False)
class Token:
    """A tile or a single command on its way through ``route``, which lists the first stage last.

    - ``to_pass``: the number of remaining stages.
    - ``times``: the time in ps in each timed stage, the first stage last; ``to_spend`` of them remain. Tokens may share
      ``route`` and ``times``.
    - ``retired(token)`` is called when the last stage has ended. ``begun(token, now)`` is called when the first timed
      stage starts, and returns the log row.
    - ``work``: any object of the owner.
    - ``cause``: the cause of the token's begin in the present stage. ``row``: the log row there, once begun.
    """

    work: Any
    route: Sequence[Stage]
    to_pass: int
    times: Sequence[int]
    to_spend: int
    retired: Callable[[Any], None]
    begun: Callable[[Any, int], Row] | None
    cause: Cause
    row: Row = field(default=NONE, init=False)
    ready: bool = field(default=False, init=False)


class Stage:
    """A stage of the pipeline with ``free`` slots. Tokens that wait for it or are in it occupy the other slots."""

    __slots__ = ("blocked", "free", "name", "waiting")

    def __init__(self, name: str, slots: int) -> None:
        self.name = name
        self.free = slots
        self.waiting: deque[Token] = deque()
        self.blocked: deque[Stage] = deque()  # stages that wait for a slot here

    def enter(self, token: Token) -> None:
        """Accept a token from outside the pipeline; the token occupies a slot, even beyond the bound."""
        self.free -= 1
        self.put(token)

    def put(self, token: Token) -> None:
        """Queue a token whose slot has been claimed."""
        waiting = self.waiting
        waiting.append(token)
        # A token behind others starts nothing. The first token waits for this stage or for a slot, whose release starts
        # that token.
        if len(waiting) == 1:
            self.try_start(token.cause)

    def try_start(self, cause: Cause) -> None:
        """Begin all tokens that can begin after ``cause``."""
        raise NotImplementedError

    def claim_next(self, token: Token) -> bool:
        """Claim a slot of the next stage. If none is free, return False, and call ``try_start`` when one is free."""
        if token.to_pass < 2:
            return True
        following = token.route[token.to_pass - 2]
        if following.free <= 0:
            if self not in following.blocked:
                self.wait_for_slot(following)
            return False
        following.free -= 1
        return True

    def wait_for_slot(self, following: Stage) -> None:
        """Call ``try_start`` when ``following`` has a free slot, after the stages that wait already."""
        following.blocked.append(self)

    def pass_on(self, token: Token, cause: Cause) -> None:
        """Pass on ``token``, which is done in this stage after ``cause``, and free its slot."""
        token.to_pass = left = token.to_pass - 1
        if left:
            token.cause = cause
            token.route[left - 1].put(token)
        else:
            token.retired(token)
        self.free += 1
        self.settle(cause[0])

    def settle(self, row: Row) -> None:
        """Let waiting tokens start: when ``row`` ended, a slot and this stage became free."""
        if self.waiting:
            self.try_start((row, By.ENGINE))
        if self.blocked and self.free > 0:
            self.blocked.popleft().try_start((row, By.SLOT))


class StageUnit(Stage):
    """A stage that works on one token at a time.

    ``open(token, start)`` makes the row of a token without ``begun``. ``rank`` orders ends of stages at one instant.
    """

    __slots__ = ("_clock", "_current", "_rows", "open", "rank")

    def __init__(self, clock: Clock, log: Log, name: str, slots: int) -> None:
        super().__init__(name, slots)
        self._clock = clock
        self._rows = log.rows
        self.rank = RANK_STAGE
        self.open: Callable[[Token, int], Row] = _open_no_row
        self._current: Token | None = None

    def try_start(self, cause: Cause) -> None:
        """Begin the first waiting token if the unit is idle and the next stage has a slot."""
        if self._current is None and self.waiting and self.claim_next(self.waiting[0]):
            self._begin(self.waiting.popleft(), cause)

    def _begin(self, token: Token, cause: Cause) -> None:
        clock = self._clock
        self._current = token
        token.cause = cause
        start = clock.time
        begun = token.begun
        if begun is not None:
            token.row = begun(token, start)
            token.begun = None
        else:
            token.row = self.open(token, start)
        token.to_spend = left = token.to_spend - 1
        clock.end_stage_at(start + token.times[left], self.rank, FINISH, self)

    def occupy(self, ends: Sequence[tuple[int, Any]], end: Callable[[Any], Row]) -> None:
        """Work on scheduled tiles, given as pairs (time of the end in ps, tile) in order.

        Each tile has claimed a slot. ``end(tile)`` is called at each end, and returns the tile's row.
        """
        self.free -= len(ends)
        for number, (when, tile) in enumerate(ends, 1):
            self._current = _SCHEDULED
            self._clock.end_stage_at(when, self.rank, self._end_scheduled, (tile, end, number == len(ends)))

    def _end_scheduled(self, due: tuple[Any, Callable[[Any], Row], bool]) -> None:
        tile, end, is_last = due
        if is_last:
            self._current = None
        row = end(tile)
        self.free += 1
        self.settle(row)

    def finish(self) -> None:
        """End the current token."""
        token = self._current
        assert token is not None
        self._current = None
        row = token.row
        rows = self._rows
        if row >= 0:
            rows[row + READ] = rows[row + START]
            rows[row + COMMIT] = rows[row + END] = self._clock.time
        self.pass_on(token, (row, BY_OPERAND))


class OverlappingStage(Stage):
    """A stage whose tokens overlap, such as transfers. Tokens start in order, as slots become free, and leave in order.

    ``start(token, done)`` starts a token, and calls ``done(row)`` when the token is over, at the end of ``row``.
    """

    __slots__ = ("_inside", "_start")

    def __init__(self, name: str, slots: int, start: Callable[[Token, Callable[[Row], None]], None]) -> None:
        super().__init__(name, slots)
        self._start = start
        self._inside: deque[Token] = deque()

    def try_start(self, cause: Cause) -> None:
        """Begin waiting tokens while the next stage has slots."""
        while self.waiting and self.claim_next(self.waiting[0]):
            token = self.waiting.popleft()
            token.cause = cause
            token.ready = False
            self._inside.append(token)
            self._start(token, partial(self._over, token))

    def _over(self, token: Token, row: Row) -> None:
        token.ready = True
        while self._inside and self._inside[0].ready:
            # Ready tokens behind this token have waited for it, because tokens leave in order.
            first = self._inside.popleft()
            first.row = row
            self.pass_on(first, (row, BY_OPERAND))


class Gate(Stage):
    """A stage without a duration: its tokens pass in order, each as soon as the next stage has a slot.

    ``passed(token, row)`` is called for each token, when ``row`` ends: the row of its preceding stage, or the row that
    freed the slot. The token begins in the next stage after the same row. Slots are claimed in the order of tiles: a
    token here precedes the tokens of the stage before, so the gate gets the next slot.
    """

    __slots__ = ("_passed",)

    def __init__(self, name: str, slots: int, passed: Callable[[Token, Row], None]) -> None:
        super().__init__(name, slots)
        self._passed = passed

    def try_start(self, cause: Cause) -> None:
        """Let waiting tokens pass while the next stage has slots."""
        while self.waiting and self.claim_next(self.waiting[0]):
            token = self.waiting.popleft()
            self._passed(token, cause[0])
            self.pass_on(token, cause)

    def wait_for_slot(self, following: Stage) -> None:
        """Call ``try_start`` when ``following`` has a free slot, before all other stages."""
        following.blocked.appendleft(self)


def _open_no_row(_: Token, __: int) -> Row:
    return NONE


FINISH = StageUnit.finish
_SCHEDULED = Token(None, (), 0, (), 0, lambda _: None, None, ROOT)
"""Stands for all scheduled tiles in a stage"""
