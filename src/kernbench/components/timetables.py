"""Precomputed schedules (class ``Timetable``) of the tile pipeline, for tiles whose operands are in TCM.

Such tiles wait only for each other. In the *dry run* the stages process a list of tiles once, on a separate clock. The
rows of the dry run form the schedule. It applies to every list with the same shapes that enters a pipeline in the same
state.
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
"""The timed stages. Their indices are the component numbers of the rows of a dry run"""
_ISSUE, _FETCH, _GEMM, _STORE = range(len(STAGE_KINDS))
_GIVEN = NONE  # the component of the row that stands for the cause of the first tiles


class TileShape(NamedTuple):
    """A tile as seen by the stages: its times in ps, and whether it ends a step or completes a part of the result.

    ``store_ps`` is NONE without a store."""

    fetch_ps: int
    gemm_ps: int
    store_ps: int
    ends_step: bool
    has_result: bool


class TileShapes:
    """The shapes of a list of tiles. Equal lists share one object."""

    __slots__ = ("tiles",)

    def __init__(self, tiles: tuple[TileShape, ...]) -> None:
        self.tiles = tiles


class TileList:
    """Tiles in order: their shapes, and the log's numbers of their indices and of the labels of their issues."""

    __slots__ = ("numbers", "shapes", "whats")

    def __init__(self, shapes: TileShapes, numbers: Integers, whats: Integers) -> None:
        self.shapes = shapes
        self.numbers = numbers
        self.whats = whats


class PipelineSizes(NamedTuple):
    """The parameters of a pipeline that affect schedules, besides the times of tiles."""

    issue_ps: int
    tiles_in_flight: int
    stage_slots: int


class TokenState(NamedTuple):
    """A token in flight with ``to_pass`` remaining stages; the first of them ends in ``left_ps``, or has not begun."""

    shape: TileShape
    to_pass: int
    left_ps: int


WAITS = -1


class PipelineState:
    """The tokens in a pipeline, in order, and the indices of the working tokens, in the order in which they began.

    Equal states share one object, which stores the schedules that begin in this state.
    """

    __slots__ = ("timetables", "tokens", "working")

    def __init__(self, tokens: tuple[TokenState, ...], working: tuple[int, ...]) -> None:
        self.tokens = tokens
        self.working = working
        self.timetables: dict[TileShapes, Timetable] = {}


class TileStages:
    """The pipeline stages for tiles with operands in TCM."""

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
        """Return the stages of a tile, and its time in each timed stage, both with the last stage first."""
        route: list[Stage] = [self.issue, self.fetch, self.gemm]
        times = [self.issue_ps, shape.fetch_ps, shape.gemm_ps]
        if shape.ends_step:
            route.insert(2, self.panels_end)
        if shape.store_ps >= 0:
            route.append(self.store)
            times.append(shape.store_ps)
        return route[::-1], times[::-1]

    def resume(self, tokens: Sequence[Token], state: PipelineState) -> None:
        """Move ``tokens``, which are at their first stage, to the positions of ``state``."""
        for token, (_, to_pass, left_ps) in zip(tokens, state.tokens, strict=True):
            passed = token.route[to_pass:]
            token.to_pass = to_pass
            token.to_spend -= len(passed) - (self.panels_end in passed)
            if left_ps < 0:
                token.route[to_pass - 1].wait(token)
        for at in state.working:
            token = tokens[at]
            unit = token.route[token.to_pass - 1]
            assert isinstance(unit, StageUnit)
            unit.go_on(token, state.tokens[at].left_ps)
        for stage in (self.store, self.gemm, self.panels_end, self.fetch):
            if stage.waiting:
                stage.try_start((NONE, By.NOTHING))  # the stage requests a slot, as it did when it found none


class What(IntEnum):
    """The types of pipeline events that are reported to other components, in the order of their reports."""

    BEGIN = 0  # the first tile is issued
    EXHAUSTED = 1  # there is room for tiles, but none is left
    RESULT = 2  # a tile has completed a part of the result
    RELEASE = 3  # the last tile has been fetched, and panels are free
    LAST = 4  # all tiles are over


class Mark(NamedTuple):
    """A sync point: ``what`` happens to ``tile`` when tile ``after`` ends in ``stage`` (BEGIN: when it begins there).

    Tiles of earlier lists have negative numbers.
    """

    what: What
    tile: int
    after: int
    stage: int


class Marks(NamedTuple):
    """The marks of event ``number`` of the dry run. The stage of the event worked from ``begin_ps`` to ``end_ps``."""

    number: int
    begin_ps: int
    end_ps: int
    marks: list[Mark]


class External(NamedTuple):
    """The cause of row ``at``: a row of an earlier tile, or the cause of the complete list if ``stage`` is NONE."""

    at: int
    tile: int
    stage: int
    by: By


class TablePart(NamedTuple):
    """A range of rows: the rows that have not ended, the rows caused by rows before the range, and external causes."""

    open: list[int]
    earlier: list[tuple[int, int]]
    externals: list[External]


class Seen(NamedTuple):
    """The token of a tile before an event: its present stage ends at ``end_ps``, or it waits.

    ``row`` is the last row that the token has begun, in ``stage``. Both are NONE if the tile has not been issued.
    """

    tile: int
    to_pass: int
    end_ps: int
    row: Row
    stage: int


class _Rehearsal:
    """The dry run: the stages work through ``shapes`` on a separate clock."""

    def __init__(self, sizes: PipelineSizes, state: PipelineState, shapes: TileShapes) -> None:
        self._clock = clock = Clock()
        self._log = log = Log()
        self._shapes = shapes.tiles
        self._next = self._over = 0
        self._free = sizes.tiles_in_flight - len(state.tokens)
        self._live: dict[int, Token] = {}
        self._ends: dict[int, tuple[int, Row]] = {}  # by stage: end and row of the token in work
        self._exhausted = False
        self.events: list[int] = []
        self.rows_before: list[int] = []  # the number of rows before each event
        self.ended: list[Row] = []  # the row that each event ends
        self.marks: list[Marks] = []
        self.seen: dict[int, list[Seen]] = {}  # by the number of the event, once all tiles are in flight
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
        self._take_over(state)

    def _take_over(self, state: PipelineState) -> None:
        n = len(state.tokens)
        tokens = [self._token(number - n, token_state.shape) for number, token_state in enumerate(state.tokens)]
        self._stages.resume(tokens, state)
        waiting = [at for at, token_state in enumerate(state.tokens) if token_state.left_ps < 0]
        for at in (*waiting, *state.working):  # in the order in which they began, like rows
            token, left_ps = tokens[at], state.tokens[at].left_ps
            stage = len(token.times) - token.to_spend - 1  # the last stage that the token has begun
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

    def _mark(self, kind: What, row: Row, tile: int | None = None) -> None:
        rows, number = self._log.rows, len(self.events) - 1
        if not self.marks or self.marks[-1].number != number:
            span = (self._begin_ps, self.events[-1]) if self.events else (NONE, 0)
            self.marks.append(Marks(number, *span, []))
        after = rows[row + TILE]
        self.marks[-1].marks.append(Mark(kind, after if tile is None else tile, after, rows[row + PART]))
        self.marks[-1].marks.sort()

    def table(self) -> Integers:
        """Return the rows of the dry run."""
        return np.array(self._log.rows, np.int64).reshape(-1, WIDTH)


class Timetable:
    """The rows of a list of tiles in a pipeline, and the events that are reported to other components.

    Times are in ps after the list's entry. ``events``: the time of each pipeline event. ``rows_before``: the number of
    rows before each event. ``ends``: the end of each row. ``ended_by``: the event that ends each row. The cause of a
    row is another row of this table, except for the rows of ``externals``.
    """

    def __init__(self, sizes: PipelineSizes, state: PipelineState, shapes: TileShapes) -> None:
        played = _Rehearsal(sizes, state, shapes)
        played.run()
        self.found = state
        self.shapes = shapes
        self.events = played.events
        self.marks = played.marks
        self.seen = played.seen
        self.states: dict[tuple[int, int], PipelineState] = {}
        table = played.table()
        own_rows = np.flatnonzero((table[:, TILE] >= 0) & (table[:, KIND] != Kind.RAW))
        self.rows_before: list[int] = [*np.searchsorted(own_rows, played.rows_before).tolist(), len(own_rows)]
        number = np.full(len(table), NONE)
        number[own_rows] = np.arange(len(own_rows))
        self._rows = table[own_rows]
        causes = self._rows[:, CAUSE] // WIDTH
        self.externals = [
            External(at, int(table[causes[at], TILE]), int(table[causes[at], PART]), By(self._rows[at, BY]))
            for at in np.flatnonzero(number[causes] < 0).tolist()
        ]
        self._rows[:, [LAUNCH, LINE, PARENT]] = 0  # these values are added later, like the start time
        self._causes: list[int] = number[causes].tolist()
        self._rows[:, CAUSE] = number[causes] * WIDTH
        self.ends: list[int] = self._rows[:, END].tolist()
        self.ended_by = [NONE] * len(own_rows)
        for event, row in enumerate(played.ended):
            if number[row // WIDTH] >= 0:
                self.ended_by[number[row // WIDTH]] = event
        self._row_of: dict[tuple[int, int], int] = {}
        for at, tile, stage in zip(range(len(own_rows)), *self._rows[:, (TILE, PART)].T.tolist(), strict=True):
            self._row_of[tile, stage] = at
        self._rows_of: dict[TileList, Integers] = {}
        self._parts: dict[tuple[int, int], TablePart] = {}

    def row_of(self, tile: int, stage: int) -> int:
        """Return the number of the row of a tile in a stage."""
        return self._row_of[tile, stage]

    def part(self, first: int, event: int) -> TablePart:
        """Return the exceptional rows among the rows from ``first`` on that have begun before ``event``."""
        part = self._parts.get((first, event))
        if part is None:
            last = self.rows_before[event]
            part = self._parts[first, event] = TablePart(
                [at for at in range(first, last) if self.ended_by[at] >= event],
                [(at, self._causes[at]) for at in range(first, last) if 0 <= self._causes[at] < first],
                [external for external in self.externals if first <= external.at < last],
            )
        return part

    def rows_of(self, tiles: TileList, stage_what: int) -> Integers:
        """Return the rows of the schedule for ``tiles``; the component of each row is the index of its stage."""
        rows = self._rows_of.get(tiles)
        if rows is None:
            rows = self._rows_of[tiles] = self._rows.copy()
            tile, issues = self._rows[:, TILE], self._rows[:, PART] == _ISSUE
            rows[:, TILE] = tiles.numbers[tile]
            rows[:, WHAT] = np.where(issues, tiles.whats[tile], stage_what)
        return rows


class Timetables:
    """The precomputed schedules of a machine's pipelines, all of which are equal."""

    def __init__(self, sizes: PipelineSizes) -> None:
        self.sizes = sizes
        self.idle = PipelineState((), ())
        self._shapes: dict[tuple[TileShape, ...], TileShapes] = {}
        self._states: dict[tuple[tuple[TokenState, ...], tuple[int, ...]], PipelineState] = {}

    def shapes(self, tiles: Iterable[TileShape]) -> TileShapes:
        """Return the shared object for a list of tiles with these shapes."""
        key = tuple(tiles)
        return self._shapes.setdefault(key, TileShapes(key))

    def find(self, state: PipelineState, shapes: TileShapes) -> Timetable:
        """Return the schedule of tiles that enter a pipeline in ``state``."""
        timetable = state.timetables.get(shapes)
        if timetable is None:
            timetable = state.timetables[shapes] = Timetable(self.sizes, state, shapes)
        return timetable

    def state(self, timetable: Timetable, number: int, at_ps: int) -> PipelineState:
        """Return the state before event ``number``, at ``at_ps``, when all tiles are in flight."""
        entries = timetable.seen.get(number)
        if entries is None:
            return self.idle
        cached = timetable.states.get((number, at_ps))
        if cached is None:
            shapes, before = timetable.shapes.tiles, timetable.found.tokens
            tokens = tuple(
                TokenState(
                    shapes[entry.tile] if entry.tile >= 0 else before[entry.tile].shape,
                    entry.to_pass,
                    entry.end_ps - at_ps if entry.end_ps >= 0 else WAITS,
                )
                for entry in entries
            )
            working = [(entry.end_ps, entry.row, at) for at, entry in enumerate(entries) if entry.end_ps >= 0]
            key = tokens, tuple([at for _, _, at in sorted(working)])
            cached = timetable.states[number, at_ps] = self._states.setdefault(key, PipelineState(*key))
        return cached
