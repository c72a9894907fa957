"""The tile pipeline as a recurrence, for tiles whose operands are in TCM.

Such tiles wait only for each other. Tile ``i`` begins in a stage as soon as all of these have ended:

- issue: ``issue(i - 1)``, and a tile has left the pipeline if ``tiles_in_flight`` are inside;
- fetch: ``issue(i)``, ``fetch(i - 1)``, and ``gemm(i - stage_slots)``, whose slot of the matrix unit ``i`` claims;
- GEMM: ``fetch(i)``, ``gemm(i - 1)``, and the store whose slot ``i`` claims, if ``i`` stores;
- store: ``gemm(i)`` and the store before.

The cause of a begin is the latest of these ends, and of equal ends the first in the list.

A tile that ends a step claims its slot of the matrix unit after fetch instead of before, and frees its panels then.

A later tile never delays an earlier tile. All times of a list of tiles (class ``Schedule``) are therefore fixed when
the list enters. They depend on the shapes of the tiles and on the ends that were still to come. A list costs an event
only where another component must be notified. Its rows are written to the log when a component is notified, or when the
log is read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import field
from enum import IntEnum
from heapq import heapify, heappop, heappush
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kernbench.common.values import state
from kernbench.core.clock import NEVER, Clock
from kernbench.core.log import (
    BY,
    CAUSE,
    COMMIT,
    END,
    KIND,
    LAST,
    LAUNCH,
    LINE,
    NONE,
    PART,
    READ,
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
from kernbench.engine.recorder import TileAmounts
from kernbench.messages.commands import Command
from kernbench.triton_emu.tile_plans import Tile

Integers: TypeAlias = NDArray[np.int64]
STORE, GEMM, FETCH, ISSUE = range(4)
"""The timed stages, last stage first: of ends at one instant, that of a later stage comes first"""
STAGE_KINDS = (Kind.STORE, Kind.GEMM, Kind.FETCH, Kind.TILE_ISSUE)
N_STAGES = len(STAGE_KINDS)


class PipelineReport(IntEnum):
    """The ends that are reported to other components, in the order of their reports."""

    BEGIN = 0  # the first tile is issued
    RESULT = 1  # a tile has completed a part of the result
    EXHAUSTED = 2  # there is room for tiles, but none is left
    RELEASE = 3  # the last tile of a step has its slot of the matrix unit, and panels are free
    LAST = 4  # all tiles are over


class PipelineSizes(NamedTuple):
    """The parameters of a pipeline, besides the times of tiles."""

    issue_ps: int
    tiles_in_flight: int
    stage_slots: int


class TileTimes(NamedTuple):
    """A tile as seen by the stages: its times in ps, and whether it ends a step or completes a part of the result.

    ``store_ps`` is NONE without a store.
    """

    fetch_ps: int
    gemm_ps: int
    store_ps: int
    ends_step: bool
    has_result: bool


class StageEnd(NamedTuple):
    """The end of tile ``number // 4`` in a stage, in ps after a list's entry. If it ``retires``, the tile leaves.

    Ends of earlier lists have the numbers -2, -3, … in the order of the state. Number -1 is the entry of the list.
    """

    end_ps: int
    stage: int
    number: int
    retires: bool


PipelineState: TypeAlias = tuple[StageEnd, ...]
"""The state of a pipeline: the ends to come of its last issue and fetch, and of all tiles in GEMM and in store"""
_ENTRY = StageEnd(0, ISSUE, -1, False)
_PAST = StageEnd(-1, ISSUE, NONE, False)  # an end before the entry, which delays no tile


class Schedule:
    """The recurrence of the tiles of a list that enters a pipeline in state ``before``.

    - ``begins``, ``ends``: begin and end of each row in ps after the entry, in order of begin.
    - ``numbers``: the number of the end of each row.
    - ``rows``: the log rows with these times and their causes, without the facts of the tiles and of the list.
    - ``marks``: the ends to report, in order, with the reports (type, tile) of each.
    """

    def __init__(self, sizes: PipelineSizes, before: PipelineState, tiles: Sequence[TileTimes]) -> None:
        self._sizes = sizes
        past = [_PAST] * sizes.stage_slots
        self._ends = [[*past, *(end for end in before if end.stage == stage)] for stage in range(N_STAGES)]
        self._in_flight = [end for end in before if end.retires]
        self._marks: dict[StageEnd, list[tuple[PipelineReport, int]]] = {}
        self._begins: list[tuple[int, int, int, int, By]] = []
        heapify(self._in_flight)
        for number, tile in enumerate(tiles):
            self._pass(number, tile)
        self._mark(PipelineReport.EXHAUSTED, NONE, self._in_flight[0])
        self._mark(PipelineReport.LAST, NONE, max(end for end in self._in_flight if end.number >= 0))
        self.marks = [(end, sorted(self._marks[end])) for end in sorted(self._marks)]
        self._make_rows()
        self._ends = [ends[-sizes.tiles_in_flight :] for ends in self._ends]  # earlier ends are never asked for again
        self._states: dict[int, tuple[PipelineState, list[int]]] = {}
        del self._in_flight, self._marks, self._begins

    def _pass(self, number: int, tile: TileTimes) -> None:
        """Let a tile pass through the stages. Of equal ends, the first one that a stage names is the cause."""
        store, gemm, fetch, issue = self._ends
        issue_ps, tiles_in_flight, slots = self._sizes
        room = heappop(self._in_flight) if len(self._in_flight) == tiles_in_flight else _ENTRY
        slot, stores = gemm[-slots], tile.store_ps >= 0
        early, late = (_PAST, slot) if tile.ends_step else (slot, _PAST)
        place = store[-slots] if stores else _PAST
        if not number:
            self._mark(PipelineReport.BEGIN, 0, max(issue[-1], room, key=_end_ps))
        last = self._work(number, ISSUE, issue_ps, (issue[-1], By.ENGINE), (room, By.SLOT))
        last = self._work(number, FETCH, tile.fetch_ps, (last, By.OPERAND), (fetch[-1], By.ENGINE), (early, By.SLOT))
        if tile.ends_step:
            self._mark(PipelineReport.RELEASE, number, max(last, slot))
        conditions = (last, By.OPERAND), (late, By.SLOT), (gemm[-1], By.ENGINE), (place, By.SLOT)
        last = self._work(number, GEMM, tile.gemm_ps, *conditions, retires=not stores)
        if stores:
            last = self._work(number, STORE, tile.store_ps, (last, By.OPERAND), (store[-1], By.ENGINE), retires=True)
        heappush(self._in_flight, last)
        if tile.has_result:
            self._mark(PipelineReport.RESULT, number, last)

    def _work(
        self, tile: int, stage: int, duration_ps: int, *conditions: tuple[StageEnd, By], retires: bool = False
    ) -> StageEnd:
        """Let a stage work on a tile once all ``conditions`` have ended; the first of the latest ends is the cause."""
        cause, by = max(conditions, key=_end_of_condition)
        end = StageEnd(cause.end_ps + duration_ps, stage, N_STAGES * tile + stage, retires)
        self._ends[stage].append(end)
        self._begins.append((cause.end_ps, end.number, end.end_ps, cause.number, by))
        return end

    def _mark(self, report: PipelineReport, tile: int, end: StageEnd) -> None:
        self._marks.setdefault(end, []).append((report, tile))

    def _make_rows(self) -> None:
        """Make the rows in order of begin."""
        self._begins.sort(key=itemgetter(0))
        begins, numbers, ends, causes, by = np.array(self._begins, np.int64).T
        self.begins: list[int] = begins.tolist()
        self.numbers: Integers = numbers
        self.ends: Integers = ends
        self.rows = rows = np.zeros((len(begins), WIDTH), np.int64)
        rows[:, START] = rows[:, READ] = begins
        rows[:, COMMIT] = rows[:, END] = ends
        rows[:, CAUSE], rows[:, BY], rows[:, LAST] = causes, by, NONE
        self.last_ps = int(ends.max())

    def state_at(self, ps: int) -> tuple[PipelineState, list[int]]:
        """Return the state at ``ps``, when no tile is left to enter, and the number here of each of its ends."""
        coming = self._states.get(ps)
        if coming is None:
            store, gemm, fetch, issue = self._ends
            last = (*store, *gemm, fetch[-1])
            # An issue that ends at this instant is the cause of the next issue.
            ends = [end for end in last if end.end_ps > ps] + [issue[-1]] * (issue[-1].end_ps >= ps)
            before = tuple(
                StageEnd(end.end_ps - ps, end.stage, _ENTRY.number - 1 - at, end.retires) for at, end in enumerate(ends)
            )
            coming = self._states[ps] = before, [end.number for end in ends]
        return coming


_end_ps = itemgetter(0)


def _end_of_condition(condition: tuple[StageEnd, By]) -> int:
    return condition[0].end_ps


@state(eq=False)
class TileList:
    """Tiles in order: their times, and the facts of their log rows by number of the end.

    ``schedules`` are the schedules of these times by state of the pipeline. Lists of equal times share them.
    """

    times: tuple[TileTimes, ...]
    schedules: dict[PipelineState, Schedule]
    rows: Integers


class TileLists:
    """The lists of tiles of a machine, cached in ``known`` by the values that determine a list.

    A list is None if its tiles may not be scheduled. Tiles may be scheduled if they only fetch, multiply and store,
    and if they are numerous enough to fill the pipeline.
    """

    def __init__(self, log: Log, sizes: PipelineSizes, amounts_of: Callable[[Tile, Command], TileAmounts]) -> None:
        self.known: dict[Hashable, TileList | None] = {}
        self.schedules: dict[tuple[TileTimes, ...], dict[PipelineState, Schedule]] = {}
        self.sizes = sizes
        self._amounts_of = amounts_of
        self._log = log

    def make(
        self, command: Command, source: Iterable[Tile], times: tuple[Callable[[int], int], int, Callable[[int], int]]
    ) -> TileList | None:
        """Make the list of the tiles of ``source``.

        ``times`` in ps: fetch time by bytes, time of a tile in the matrix unit, store time by bytes.
        """
        log, tiles, (fetch_ps, gemm_ps, store_ps) = self._log, tuple(source), times
        simple = all(x.macs and not (x.reads or x.math_bytes or x.write) for x in tiles)
        if not simple or len(tiles) < self.sizes.tiles_in_flight:
            return None
        shapes = tuple(
            TileTimes(
                fetch_ps(x.fetch_bytes),
                gemm_ps,
                store_ps(x.store_bytes) if x.store_bytes else NONE,
                x.ends_step,
                x.result is not None,
            )
            for x in tiles
        )
        rows = np.zeros((len(tiles), N_STAGES, WIDTH), np.int64)
        rows[:, :, PART], rows[:, :, KIND], rows[:, :, WHAT] = range(N_STAGES), STAGE_KINDS, log.intern("stage")
        rows[:, ISSUE, WHAT] = [log.intern(self._amounts_of(x, command)) for x in tiles]
        rows[:, :, TILE] = np.array([log.tile(x.index) for x in tiles], np.int64)[:, None]
        return TileList(shapes, self.schedules.setdefault(shapes, {}), rows.reshape(-1, WIDTH))

    def schedule(self, tiles: TileList, before: PipelineState) -> Schedule:
        """Return the schedule of ``tiles`` that enter a pipeline in state ``before``."""
        schedule = tiles.schedules.get(before)
        if schedule is None:
            schedule = tiles.schedules[before] = Schedule(self.sizes, before, tiles.times)
        return schedule


@state(eq=False)
class TileRun:
    """A list of tiles of ``plan`` that entered the pipeline at ``start_ps`` after ``cause``.

    ``source`` yields the tiles again. ``before`` has the run and the number of each end in the state that the list met.
    ``is_last``: the end of the last tile is reported. The log row of an end is found by its number.
    """

    plan: Any
    source: Any
    tiles: TileList
    schedule: Schedule
    start_ps: int
    cause: Cause
    before: Sequence[tuple[TileRun, int]]
    is_last: bool
    row_of: Integers
    n_written: int = 0
    unended: list[int] = field(default_factory=list)

    def origin(self, number: int) -> tuple[TileRun, int]:
        """Return the run that an end belongs to, and the number of the end in that run."""
        return (self, number) if number >= 0 else self.before[_ENTRY.number - 1 - number]

    def row(self, number: int) -> Row:
        """Return the log row of an end; the row has been written."""
        if number == _ENTRY.number:
            return self.cause[0]
        run, number = self.origin(number)
        return int(run.row_of[number])

    @property
    def first_cause(self) -> Cause:
        """The cause of the first tile's issue; its row has been written."""
        number, by = self.schedule.rows[0, [CAUSE, BY]].tolist()
        return self.cause if number == _ENTRY.number else (self.row(number), By(by))

    @property
    def is_written(self) -> bool:
        """Return True when all rows are in the log, with their ends."""
        return self.n_written == len(self.schedule.begins) and not self.unended

    def write(self, log: Log, parts: Integers, until_ps: int) -> None:
        """Write the rows that have begun by ``until_ps``, and the ends up to that time."""
        plan, schedule, rows, start_ps = self.plan, self.schedule, log.rows, self.start_ps
        for at in [at for at in self.unended if schedule.ends[at] <= until_ps - start_ps]:
            row = self.row_of[schedule.numbers[at]]
            rows[row + READ] = rows[row + START]
            rows[row + COMMIT] = rows[row + END] = start_ps + int(schedule.ends[at])
            self.unended.remove(at)
        first, last = self.n_written, bisect_right(schedule.begins, until_ps - start_ps)
        if first == last or plan.row < 0:
            return
        self.n_written, numbers = last, schedule.numbers[first:last]
        self.row_of[numbers] = np.arange(len(rows), len(rows) + (last - first) * WIDTH, WIDTH)
        launch, line = rows[plan.row + LAUNCH], rows[plan.row + LINE]
        same = (0, 0, 0, launch, line, 0, plan.row, start_ps, start_ps, start_ps, start_ps, 0, 0, 0)
        fresh = self.tiles.rows[numbers] + schedule.rows[first:last] + np.array(same, np.int64)
        fresh[:, PART] = parts[fresh[:, PART]]
        external = fresh[:, CAUSE] < 0
        fresh[~external, CAUSE] = self.row_of[fresh[~external, CAUSE]]
        fresh[external, CAUSE] = [self.row(number) for number in fresh[external, CAUSE].tolist()]
        if not first:
            fresh[0, CAUSE], fresh[0, BY] = self.first_cause
        unended = np.flatnonzero(schedule.ends[first:last] > until_ps - start_ps)
        fresh[unended, READ : END + 1] = NONE
        self.unended += (unended + first).tolist()
        rows.frombytes(fresh.tobytes())


class TilePipeline:
    """The scheduled tiles of a PE.

    ``on_report(run, report, tile, row)`` is called at each end to report; ``row`` is the log row that ends.
    ``is_full``: some tiles of the last list have not entered.
    """

    def __init__(
        self,
        clock: Clock,
        log: Log,
        components: Sequence[str],
        ranks: Sequence[int],
        lists: TileLists,
        on_report: Callable[[TileRun, PipelineReport, int, int], None],
    ) -> None:
        self.is_full = False
        self._current: TileRun | None = None
        self._clock = clock
        self._log = log
        self._parts = np.array([log.part(component) for component in components], np.int64)
        self._ranks = ranks
        self._lists = lists
        self._on_report = on_report
        self._under_way: list[TileRun] = []  # runs with rows to write
        log.writers.append(self._write_past)

    def begin(self, plan: Any, source: Any, tiles: TileList, cause: Cause, *, is_last: bool) -> None:
        """Let tiles enter the pipeline after ``cause``, as soon as the pipeline has room.

        ``is_last``: report the end of the last tile.
        """
        clock, (before, origins) = self._clock, self.coming()
        start_ps = clock.time
        schedule = self._lists.schedule(tiles, before)
        row_of = np.full(len(tiles.rows), NONE)
        run = TileRun(plan, source, tiles, schedule, start_ps, cause, origins, is_last, row_of)
        self._current, self.is_full = run, True
        self._under_way.append(run)
        clock.reserve(start_ps + schedule.last_ps)
        for end, reports in schedule.marks:
            (first, _), due = reports[0], (run, end, reports)
            if end.end_ps <= 0:
                self._fire(due)  # the first tile is issued
            elif len(reports) > 1 or (
                plan.row < 0 if first is PipelineReport.BEGIN else is_last or first is not PipelineReport.LAST
            ):
                clock.end_stage_at(start_ps + end.end_ps, self._ranks[end.stage], self._fire, due)

    def coming(self) -> tuple[PipelineState, list[tuple[TileRun, int]]]:
        """Return the state of the pipeline now, and the run and the number there of each of its ends."""
        run = self._current
        if run is None:
            return (), []
        ends, numbers = run.schedule.state_at(self._clock.time - run.start_ps)
        return ends, [run.origin(number) for number in numbers]

    def leave(self) -> list[tuple[StageEnd, TileRun, int]]:
        """Return the ends to come, and let no list enter that waits for them: other tiles follow."""
        ends, origins = self.coming()
        self._current = None
        return [(end, *origin) for end, origin in zip(ends, origins, strict=True)]

    def _fire(self, due: tuple[TileRun, StageEnd, list[tuple[PipelineReport, int]]]) -> None:
        run, end, reports = due
        row = self.row_of(run, end.number)
        for report, tile in reports:
            if report is PipelineReport.EXHAUSTED:
                self.is_full = False
            if report is not PipelineReport.LAST or run.is_last:
                self._on_report(run, report, tile, row)

    def row_of(self, run: TileRun, number: int) -> Row:
        """Return the log row of an end that has come."""
        self._write(self._clock.time)
        return run.row(number)

    def _write_past(self) -> None:
        """Write the rows that have certainly begun: those of this instant only if all its events have fired."""
        now = self._clock.time
        self._write(now if self._clock.has_come(now, NEVER) else now - 1)

    def _write(self, until_ps: int) -> None:
        under_way = self._under_way
        for run in under_way:
            run.write(self._log, self._parts, until_ps)
        while under_way and under_way[0].is_written:
            under_way.pop(0).before = ()
