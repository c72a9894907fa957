"""Timetables of the tile pipeline: when tiles whose operands are in TCM begin and end in its stages.

Such tiles wait for nobody but each other. The stages work through a list of them once, on a clock of their own: the
*rehearsal*. Its rows are the timetable of every list of the same shapes that finds a pipeline in the same state.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kernbench.components.stage import Gate, Stage, StageUnit, Token
from kernbench.core.clock import Clock
from kernbench.core.log import (
    BY,
    CAUSE,
    END,
    KIND,
    LAUNCH,
    LINE,
    NONE,
    PARENT,
    PART,
    START,
    TILE,
    WHAT,
    WIDTH,
    By,
    Cause,
    Kind,
    Log,
    Row,
)

Integers: TypeAlias = NDArray[np.int64]
STAGE_KINDS = (Kind.TILE_ISSUE, Kind.FETCH, Kind.GEMM, Kind.STORE)
"""The timed stages; their places here are the parts of the rows of a rehearsal"""
_ISSUE, _FETCH, _GEMM, _STORE = range(len(STAGE_KINDS))
_GIVEN = NONE  # the part of the row that stands for what the first tiles are injected after


class TileShape(NamedTuple):
    """A tile as the stages see it: its times, ``store_ps`` NONE if nothing is stored, and what it ends."""

    fetch_ps: int
    gemm_ps: int
    store_ps: int
    ends_step: bool
    has_result: bool


class TileShapes:
    """The shapes of a list of tiles; equal ones are one object."""

    __slots__ = ("tiles",)

    def __init__(self, tiles: tuple[TileShape, ...]) -> None:
        self.tiles = tiles


class TileList:
    """Tiles in order: their shapes, the numbers of their indices in the log, and of what their issue is about."""

    __slots__ = ("numbers", "shapes", "whats")

    def __init__(self, shapes: TileShapes, numbers: Integers, whats: Integers) -> None:
        self.shapes = shapes
        self.numbers = numbers
        self.whats = whats


class PipelineSizes(NamedTuple):
    """The sizes of a pipeline, beside the times of tiles."""

    issue_ps: int
    tiles_in_flight: int
    stage_slots: int


class TokenState(NamedTuple):
    """A token under way: ``to_pass`` stages are left; in the first of them it waits, or works for ``left_ps`` more."""

    shape: TileShape
    to_pass: int
    left_ps: int


WAITS = -1


class PipelineState:
    """The tokens in a pipeline, in order, and which of them work, in the order in which they began.

    Equal ones are one object, which knows the timetables of what comes then.
    """

    __slots__ = ("timetables", "tokens", "working")

    def __init__(self, tokens: tuple[TokenState, ...], working: tuple[int, ...]) -> None:
        self.tokens = tokens
        self.working = working
        self.timetables: dict[TileShapes, Timetable] = {}


class TileStages:
    """The stages that tiles with operands in TCM pass."""

    def __init__(
        self, issue_ps: int, issue: StageUnit, fetch: StageUnit, panels_end: Stage, gemm: StageUnit, store: StageUnit
    ) -> None:
        self.issue_ps = issue_ps
        self.issue = issue
        self.fetch = fetch
        self.panels_end = panels_end
        self.gemm = gemm
        self.store = store

    def route(self, shape: TileShape) -> tuple[list[Stage], list[int]]:
        """Return the stages of a tile, and its time in each timed one; both are read from the end."""
        route: list[Stage] = [self.issue, self.fetch, self.gemm]
        times = [self.issue_ps, shape.fetch_ps, shape.gemm_ps]
        if shape.ends_step:
            route.insert(2, self.panels_end)
        if shape.store_ps >= 0:
            route.append(self.store)
            times.append(shape.store_ps)
        return route[::-1], times[::-1]

    def resume(self, tokens: Sequence[Token], found: PipelineState) -> None:
        """Put ``tokens``, which are at their first stage, where ``found`` says."""
        for token, (_, to_pass, left_ps) in zip(tokens, found.tokens, strict=True):
            passed = token.route[to_pass:]
            token.to_pass = to_pass
            token.to_spend -= len(passed) - (self.panels_end in passed)
            if left_ps < 0:
                token.route[to_pass - 1].wait(token)
        for at in found.working:
            token = tokens[at]
            unit = token.route[token.to_pass - 1]
            assert isinstance(unit, StageUnit)
            unit.go_on(token, found.tokens[at].left_ps)
        for stage in (self.store, self.gemm, self.panels_end, self.fetch):
            if stage.waiting:
                stage.try_start((NONE, By.NOTHING))  # it asks for a slot, which it has found missing


class What(IntEnum):
    """The kinds of events of a pipeline that others hear of, in the order in which they do."""

    BEGIN = 0  # the first tile is issued
    EXHAUSTED = 1  # there is room for tiles, and none is left
    RESULT = 2  # a tile has completed a part of the result
    RELEASE = 3  # the last tile has been fetched, and panels are free
    LAST = 4  # all tiles are over


class Mark(NamedTuple):
    """``what`` happens to ``tile`` as tile ``after`` ends in (BEGIN: begins after) ``stage``.

    A tile of before has a negative number.
    """

    what: What
    tile: int
    after: int
    stage: int


class Marks(NamedTuple):
    """The marks of one event, of which ``number`` is the place in the rehearsal: its stage worked from begin to end."""

    number: int
    begin_ps: int
    end_ps: int
    marks: list[Mark]


class External(NamedTuple):
    """Row ``at`` begins after a row of an earlier tile; if ``stage`` is NONE, after what is given."""

    at: int
    tile: int
    stage: int
    by: By


class TablePart(NamedTuple):
    """Of some rows on end: those that have not ended, those whose causes are before them, and causes elsewhere."""

    open: list[int]
    earlier: list[tuple[int, int]]
    externals: list[External]


class Seen(NamedTuple):
    """The token of a tile as it is before an event; it ends at ``end_ps``, or waits.

    ``row`` is what it has begun last, in ``stage``; NONE when it has not been issued.
    """

    tile: int
    to_pass: int
    end_ps: int
    row: Row
    stage: int


class _Rehearsal:
    """The stages on a clock of their own, which work through ``shapes``."""

    def __init__(self, sizes: PipelineSizes, found: PipelineState, shapes: TileShapes) -> None:
        self._clock = clock = Clock()
        self._log = log = Log()
        self._shapes = shapes.tiles
        self._next = self._over = 0
        self._free = sizes.tiles_in_flight - len(found.tokens)
        self._live: dict[int, Token] = {}
        self._ends: dict[int, tuple[int, Row]] = {}  # by stage: of the token that it works on
        self._exhausted = False
        self.events: list[int] = []
        self.rows_before: list[int] = []  # each event
        self.ended: list[Row] = []  # by each event
        self.marks: list[Marks] = []
        self.seen: dict[int, list[Seen]] = {}  # by the number of the event: when all tiles are under way
        units = [
            StageUnit(clock, log, kind.label, slots)
            for kind, slots in zip(
                STAGE_KINDS,
                (sizes.tiles_in_flight, sizes.tiles_in_flight, sizes.stage_slots, sizes.stage_slots),
                strict=True,
            )
        ]
        for number, unit in enumerate(units):
            unit.open = partial(self._open, number)
        issue, fetch, gemm, store = units
        panels_end = Gate("panels_end", sizes.tiles_in_flight, self._release)
        self._stages = TileStages(sizes.issue_ps, issue, fetch, panels_end, gemm, store)
        self._given = log.open(_GIVEN, Kind.RAW, NONE, (NONE, By.NOTHING))
        self._take_over(found)

    def _take_over(self, found: PipelineState) -> None:
        n = len(found.tokens)
        tokens = [self._token(number - n, each.shape) for number, each in enumerate(found.tokens)]
        self._stages.resume(tokens, found)
        waiting = [at for at, each in enumerate(found.tokens) if each.left_ps < 0]
        for at in (*waiting, *found.working):  # in the order of their beginnings, as rows are
            token, left_ps = tokens[at], found.tokens[at].left_ps
            stage = len(token.times) - token.to_spend - 1  # the last one that it has begun in
            if stage >= 0:
                token.row = self._log.open(stage, Kind.RAW, NONE, (NONE, By.NOTHING), tile=token.work)
            if left_ps >= 0:
                self._ends[stage] = left_ps, token.row

    def _token(self, tile: int, shape: TileShape, cause: Cause = (NONE, By.NOTHING)) -> Token:
        route, times = self._stages.route(shape)
        self._live[tile] = token = Token(tile, route, len(route), times, len(times), self._retire, None, cause)
        return token

    def run(self) -> None:
        """Work through all tiles."""
        rows = self._log.rows
        self._inject((self._given, By.NOTHING))
        while self._ends:
            end_ps, row = min(self._ends.values())
            if self._next == len(self._shapes):
                self.seen[len(self.events)] = self._look()
            self.rows_before.append(len(rows) // WIDTH)
            self.ended.append(row)
            self.events.append(end_ps)
            self._begin_ps = rows[row + START]
            del self._ends[rows[row + PART]]
            self._clock.step()

    def _look(self) -> list[Seen]:
        ends = {row: end_ps for end_ps, row in self._ends.values()}
        rows = self._log.rows
        return [
            Seen(tile, x.to_pass, ends.get(x.row, WAITS), x.row, NONE if x.row < 0 else rows[x.row + PART])
            for tile, x in self._live.items()
        ]

    def _open(self, stage: int, token: Token, start: int) -> Row:
        row = self._log.open(stage, STAGE_KINDS[stage], start, token.cause, tile=token.work)
        self._ends[stage] = start + token.times[token.to_spend - 1], row
        if not token.work and stage == _ISSUE:
            self._mark(What.BEGIN, row)
        return row

    def _inject(self, cause: Cause) -> None:
        while self._free:
            if self._next == len(self._shapes):
                if not self._exhausted:
                    self._exhausted = True
                    self._mark(What.EXHAUSTED, cause[0])
                return
            self._free -= 1
            token = self._token(self._next, self._shapes[self._next], cause)
            self._next += 1
            self._stages.issue.put(token)

    def _release(self, token: Token, row: Row) -> None:
        if token.work >= 0:
            self._mark(What.RELEASE, row, token.work)

    def _retire(self, token: Token) -> None:
        self._free += 1
        del self._live[token.work]
        is_new = token.work >= 0
        if is_new and self._shapes[token.work].has_result:
            self._mark(What.RESULT, token.row)
        self._inject((token.row, By.SLOT))
        self._over += is_new
        if is_new and self._over == len(self._shapes):
            self._mark(What.LAST, token.row)

    def _mark(self, what: What, row: Row, tile: int | None = None) -> None:
        rows, number = self._log.rows, len(self.events) - 1
        if not self.marks or self.marks[-1].number != number:
            span = (self._begin_ps, self.events[-1]) if self.events else (NONE, 0)
            self.marks.append(Marks(number, *span, []))
        after = rows[row + TILE]
        self.marks[-1].marks.append(Mark(what, after if tile is None else tile, after, rows[row + PART]))
        self.marks[-1].marks.sort()

    def table(self) -> Integers:
        """Return its rows."""
        return np.array(self._log.rows, np.int64).reshape(-1, WIDTH)


class Timetable:
    """The rows of a list of tiles in a pipeline, from the time on when they may come, and what others have to know.

    ``events``: when each event of the pipeline happens, and how many rows ``rows_before`` it. A row ends at ``ends``,
    by event ``ended_by``. The cause
    of a row is another one's place here, but for those of ``externals``.
    """

    def __init__(self, sizes: PipelineSizes, found: PipelineState, shapes: TileShapes) -> None:
        played = _Rehearsal(sizes, found, shapes)
        played.run()
        self.found = found
        self.shapes = shapes
        self.events = played.events
        self.marks = played.marks
        self.seen = played.seen
        self.states: dict[tuple[int, int], PipelineState] = {}
        table = played.table()
        own = np.flatnonzero((table[:, TILE] >= 0) & (table[:, KIND] != Kind.RAW))
        self.rows_before: list[int] = [*np.searchsorted(own, played.rows_before).tolist(), len(own)]
        number = np.full(len(table), NONE)
        number[own] = np.arange(len(own))
        self._rows = table[own]
        causes = self._rows[:, CAUSE] // WIDTH
        self.externals = [
            External(at, int(table[causes[at], TILE]), int(table[causes[at], PART]), By(self._rows[at, BY]))
            for at in np.flatnonzero(number[causes] < 0).tolist()
        ]
        self._rows[:, [LAUNCH, LINE, PARENT]] = 0  # these are added, like the time of the beginning
        self._causes: list[int] = number[causes].tolist()
        self._rows[:, CAUSE] = number[causes] * WIDTH
        self.ends: list[int] = self._rows[:, END].tolist()
        self.ended_by = [NONE] * len(own)
        for event, row in enumerate(played.ended):
            if number[row // WIDTH] >= 0:
                self.ended_by[number[row // WIDTH]] = event
        self._row_of: dict[tuple[int, int], int] = {}
        for at, tile, stage in zip(range(len(own)), *self._rows[:, (TILE, PART)].T.tolist(), strict=True):
            self._row_of[tile, stage] = at
        self._rows_of: dict[TileList, Integers] = {}
        self._parts: dict[tuple[int, int], TablePart] = {}

    def row_of(self, tile: int, stage: int) -> int:
        """Return the number of the row of a tile in a stage."""
        return self._row_of[tile, stage]

    def part(self, first: int, event: int) -> TablePart:
        """Return what is special about the rows from ``first`` to those that have begun before ``event``."""
        found = self._parts.get((first, event))
        if found is None:
            last = self.rows_before[event]
            found = self._parts[first, event] = TablePart(
                [at for at in range(first, last) if self.ended_by[at] >= event],
                [(at, self._causes[at]) for at in range(first, last) if 0 <= self._causes[at] < first],
                [each for each in self.externals if first <= each.at < last],
            )
        return found

    def rows_of(self, tiles: TileList, stage_what: int) -> Integers:
        """Return its rows for these tiles; the part of each is the place of its stage."""
        found = self._rows_of.get(tiles)
        if found is None:
            found = self._rows_of[tiles] = self._rows.copy()
            tile, issues = self._rows[:, TILE], self._rows[:, PART] == _ISSUE
            found[:, TILE] = tiles.numbers[tile]
            found[:, WHAT] = np.where(issues, tiles.whats[tile], stage_what)
        return found


class Timetables:
    """The timetables of a machine's pipelines, which are alike."""

    def __init__(self, sizes: PipelineSizes) -> None:
        self.sizes = sizes
        self.idle = PipelineState((), ())
        self._shapes: dict[tuple[TileShape, ...], TileShapes] = {}
        self._states: dict[tuple[tuple[TokenState, ...], tuple[int, ...]], PipelineState] = {}

    def shapes(self, tiles: Iterable[TileShape]) -> TileShapes:
        """Return the one object for such a list."""
        key = tuple(tiles)
        return self._shapes.setdefault(key, TileShapes(key))

    def find(self, found: PipelineState, shapes: TileShapes) -> Timetable:
        """Return the timetable of tiles that come to a pipeline in the state ``found``."""
        known = found.timetables.get(shapes)
        if known is None:
            known = found.timetables[shapes] = Timetable(self.sizes, found, shapes)
        return known

    def state(self, timetable: Timetable, number: int, at_ps: int) -> PipelineState:
        """Return the state before event ``number``, at ``at_ps``: all tiles are under way then."""
        seen = timetable.seen.get(number)
        if seen is None:
            return self.idle
        known = timetable.states.get((number, at_ps))
        if known is None:
            shapes, before = timetable.shapes.tiles, timetable.found.tokens
            tokens = tuple(
                TokenState(
                    shapes[each.tile] if each.tile >= 0 else before[each.tile].shape,
                    each.to_pass,
                    each.end_ps - at_ps if each.end_ps >= 0 else WAITS,
                )
                for each in seen
            )
            working = [(each.end_ps, each.row, at) for at, each in enumerate(seen) if each.end_ps >= 0]
            key = tokens, tuple([at for _, _, at in sorted(working)])
            known = timetable.states[number, at_ps] = self._states.setdefault(key, PipelineState(*key))
        return known
