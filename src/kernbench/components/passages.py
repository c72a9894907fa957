"""Scheduled tiles of a PE's pipeline. A passage is a list of tiles that runs by a precomputed ``Timetable``.

A passage costs an event only where another component must be notified. Its rows are written to the log later: when a
component is notified, or when the log is read.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from kernbench.components.timetables import (
    External,
    Mark,
    Marks,
    PipelineState,
    Seen,
    TileList,
    TileShape,
    Timetable,
    Timetables,
    What,
)
from kernbench.core.clock import NEVER, Clock
from kernbench.core.log import (
    BY,
    CAUSE,
    COMMIT,
    END,
    LAUNCH,
    LINE,
    NONE,
    PART,
    READ,
    START,
    WIDTH,
    By,
    Cause,
    Log,
    Row,
)
from kernbench.engine.recorder import TileAmounts
from kernbench.messages.commands import Command
from kernbench.triton_emu.tile_plans import Tile

OnMark: TypeAlias = "Callable[[Passage, Mark], None]"


class TileLists:
    """The lists of tiles of a machine, cached in ``known`` by the values that determine a list.

    A list is None if its tiles may not be scheduled. Tiles may be scheduled if they only fetch, multiply and store,
    and if they are numerous enough to fill the pipeline.
    """

    def __init__(self, log: Log, timetables: Timetables, amounts_of: Callable[[Tile, Command], TileAmounts]) -> None:
        self.known: dict[Hashable, TileList | None] = {}
        self._amounts_of = amounts_of
        self._log = log
        self._timetables = timetables

    def make(
        self, command: Command, source: Iterable[Tile], times: tuple[Callable[[int], int], int, Callable[[int], int]]
    ) -> TileList | None:
        """Make the list of the tiles of ``source``.

        ``times`` in ps: fetch time by bytes, time of a tile in the matrix unit, store time by bytes.
        """
        log, tiles, (fetch_ps, gemm_ps, store_ps) = self._log, tuple(source), times
        simple = all(x.macs and not (x.reads or x.math_bytes or x.write) for x in tiles)
        if not simple or len(tiles) < self._timetables.sizes.tiles_in_flight:
            return None
        shapes = [
            TileShape(
                fetch_ps(x.fetch_bytes),
                gemm_ps,
                store_ps(x.store_bytes) if x.store_bytes else NONE,
                x.ends_step,
                x.result is not None,
            )
            for x in tiles
        ]
        return TileList(
            self._timetables.shapes(shapes),
            np.array([log.tile(x.index) for x in tiles], np.int64),
            np.array([log.intern(self._amounts_of(x, command)) for x in tiles], np.int64),
        )


class StageRows:
    """The common part of the rows of a PE's stages: the log, the numbers of their components, and their label."""

    __slots__ = ("clock", "log", "parts", "what")

    def __init__(self, clock: Clock, log: Log, components: Sequence[str]) -> None:
        self.clock = clock
        self.log = log
        self.parts = np.array([log.part(component) for component in components], np.int64)
        self.what = log.intern("stage")


class Passage:
    """A list of tiles of ``plan`` that entered the pipeline at ``start_ps`` after ``cause``, by a precomputed schedule.

    ``source`` yields the tiles again. ``before``: passage and tile number of each token that was in the pipeline.
    """

    __slots__ = (
        "_given",
        "_n_fired",
        "_open",
        "_places",
        "_stages",
        "before",
        "cause",
        "is_last",
        "plan",
        "source",
        "start_ps",
        "tiles",
        "timetable",
    )

    def __init__(
        self,
        stages: StageRows,
        plan: Any,
        source: Iterable[Tile],
        tiles: TileList,
        timetable: Timetable,
        cause: Cause,
        before: tuple[tuple[Passage, int], ...],
        is_last: bool,
    ) -> None:
        self.plan = plan
        self.source = source
        self.tiles = tiles
        self.timetable = timetable
        self.start_ps = stages.clock.time
        self.cause = cause
        self.before = before
        self.is_last = is_last
        self._stages = stages
        self._given: dict[int, int] = {}  # tiles that continue as separate tokens: their number of remaining stages
        self._n_fired = 0
        self._places: list[Row] = []  # the log rows written so far, by number in the schedule
        self._open: list[int] = []  # the written rows that have not ended

    def events_by_now(self) -> int:
        """Return the number of past events. An event due now is included only if it has certainly happened."""
        clock, events = self._stages.clock, self.timetable.events
        after = clock.time - self.start_ps
        count = bisect_right(events, after) if clock.has_come(clock.time, NEVER) else bisect_left(events, after)
        self._n_fired = max(self._n_fired, count)
        return self._n_fired

    def note_fired(self, number: int) -> None:
        """Record that all events before ``number`` have happened."""
        self._n_fired = max(self._n_fired, number)

    def origin(self, tile: int) -> tuple[Passage, int]:
        """Return the passage of a tile, and the number of the tile in that passage."""
        return (self, tile) if tile >= 0 else self.before[tile]

    def row(self, tile: int, stage: int) -> Row:
        """Return the log row of a tile in a stage that the tile has begun."""
        owner, number = self.origin(tile)
        return owner.row_at(owner.timetable.row_of(number, stage))

    def row_at(self, at: int) -> Row:
        """Return the log row for row number ``at`` of the schedule, which has begun."""
        if at >= len(self._places):
            self._n_fired = max(self._n_fired, bisect_right(self.timetable.rows_before, at))
            self.write()
        return self._places[at]

    def first_cause(self) -> Cause:
        """Return the cause of the first row."""
        return self._cause_of(self.timetable.externals[0])

    def write(self) -> None:
        """Write the rows that have begun."""
        plan, table, start_ps, rows = self.plan, self.timetable, self.start_ps, self._stages.log.rows
        places, event = self._places, self.events_by_now()
        if self._open:
            self._open = [at for at in self._open if not self._close(at, event)]
        first, last = len(places), table.rows_before[event]
        if first >= last or plan.row < 0:
            return
        place = len(rows)
        places.extend(range(place, place + (last - first) * WIDTH, WIDTH))
        launch, line = rows[plan.row + LAUNCH], rows[plan.row + LINE]
        same = (0, 0, 0, launch, line, 0, plan.row, start_ps, start_ps, start_ps, start_ps, place - first * WIDTH, 0, 0)
        fresh = table.rows_of(self.tiles, self._stages.what)[first:last] + np.array(same, np.int64)
        fresh[:, PART] = self._stages.parts[fresh[:, PART]]
        still_open, earlier, externals = table.part(first, event)
        for at in still_open:
            fresh[at - first, READ : END + 1] = NONE
        self._open += still_open
        rows.frombytes(fresh.tobytes())
        for at, before in earlier:
            rows[places[at] + CAUSE] = places[before]
        for external in externals:
            rows[places[external.at] + CAUSE], rows[places[external.at] + BY] = self._cause_of(external)

    @property
    def is_written(self) -> bool:
        """Return True when all rows of the passage are in the log."""
        return len(self._places) == len(self.timetable.ends) and not self._open

    def _cause_of(self, external: External) -> Cause:
        by = external.by
        if external.stage == NONE:
            return self.cause[0], self.cause[1] if by == By.NOTHING else by
        return self.row(external.tile, external.stage), by

    def _close(self, at: int, event: int) -> bool:
        """Close a row if it has ended before ``event``."""
        if self.timetable.ended_by[at] >= event:
            return False
        end, rows, row = self.timetable.ends[at] + self.start_ps, self._stages.log.rows, self._places[at]
        rows[row + READ] = rows[row + START]
        rows[row + COMMIT] = rows[row + END] = end
        return True

    def give_away(self, tile: int, to_pass: int) -> None:
        """Let a tile continue as a separate token, with ``to_pass`` remaining stages."""
        self._given[tile] = to_pass

    def has_given_away(self, mark: Mark) -> bool:
        """Return True when a separate token reports ``mark``."""
        to_pass = self._given.get(mark.tile)
        if to_pass is None:
            return False
        shape = self.tiles.shapes.tiles[mark.tile]
        return mark.what is not What.RELEASE or to_pass > 1 + (shape.store_ps >= 0)


class Moved(NamedTuple):
    """A token that continues separately: tile ``number`` of ``passage``, whose last log row is ``row``."""

    passage: Passage
    number: int
    row: Row


class Passages:
    """The passages of a PE.

    ``current`` is the last passage until that passage is over. ``is_full``: some of its tiles have not been injected.
    """

    def __init__(self, stages: StageRows, timetables: Timetables, on_mark: OnMark) -> None:
        self.is_full = False
        self.current: Passage | None = None
        self._stages = stages
        self._timetables = timetables
        self._on_mark = on_mark
        self._under_way: list[Passage] = []
        self._firing = NONE  # the event of the current passage at which no tile is left
        stages.log.writers.append(self.write)

    def begin(self, plan: Any, source: Iterable[Tile], tiles: TileList, cause: Cause, *, is_last: bool) -> None:
        """Let tiles enter the pipeline after ``cause``, as soon as the pipeline has room.

        ``is_last``: report the end of the last tile.
        """
        state, due = self._timetables.idle, 0
        before: tuple[tuple[Passage, int], ...] = ()
        if self.current is not None:
            state, tokens = self._look(self.current)
            before = tuple([self.current.origin(token.tile) for token in tokens])
            due = int(self.current.events_by_now() == self._firing)  # the present event is the first of the new passage
        timetable = self._timetables.find(state, tiles.shapes)
        passage = Passage(self._stages, plan, source, tiles, timetable, cause, before, is_last)
        self.current, self.is_full = passage, True
        self._under_way.append(passage)
        clock, start_ps = self._stages.clock, passage.start_ps
        clock.reserve(start_ps + timetable.events[-1])
        for event in timetable.marks:
            last = event.marks[-1].what
            if event.number < due:
                self._on_mark(passage, event.marks[0])  # the first tile is issued
            elif (last is What.BEGIN and plan.row >= 0) or (
                last is What.LAST and not is_last and len(event.marks) == 1
            ):
                continue  # no component has to be notified
            elif event.begin_ps < 0 or last is What.EXHAUSTED:
                clock.call_at(start_ps + event.end_ps, self._fire, (passage, event))
            else:
                clock.call_at(start_ps + event.begin_ps, self._await, (passage, event))

    def _look(self, passage: Passage) -> tuple[PipelineState, Sequence[Seen]]:
        """Return the state of the pipeline, and the tokens in it."""
        number = passage.events_by_now()
        tokens = passage.timetable.seen.get(number, ())
        after = self._stages.clock.time - passage.start_ps
        return self._timetables.state(passage.timetable, number, after), tokens

    def _await(self, due: tuple[Passage, Marks]) -> None:
        """Reserve the place of an event in the order of its instant, now that its stage begins."""
        passage, marks = due
        self._stages.clock.call_at(passage.start_ps + marks.end_ps, self._fire, due)

    def _fire(self, due: tuple[Passage, Marks]) -> None:
        """Report the marks of an event."""
        passage, (number, _, __, marks) = due
        for mark in marks:
            passage.note_fired(number)
            if mark.what is What.EXHAUSTED:
                if self.current is passage:
                    self.is_full, self._firing = False, number
                    self._on_mark(passage, mark)
                    self._firing = NONE
            elif not passage.has_given_away(mark) and (passage.is_last or mark.what is not What.LAST):
                passage.note_fired(number + 1)
                if mark.what is What.LAST and self.current is passage:
                    self.current = None
                self._on_mark(passage, mark)
        passage.note_fired(number + 1)

    def row_of(self, passage: Passage, mark: Mark) -> Row:
        """Return the log row that ends when ``mark`` happens."""
        self.write()
        return passage.row(mark.after, mark.stage)

    def write(self) -> None:
        """Write the rows that have begun."""
        under_way = self._under_way
        for passage in under_way:
            passage.write()
        while under_way and under_way[0].is_written:
            under_way.pop(0).before = ()

    def give_away(self) -> tuple[PipelineState, list[Moved]]:
        """Return the state of the pipeline, and its tokens, which continue as separate tokens."""
        passage = self.current
        if passage is None:
            return self._timetables.idle, []
        state, tokens = self._look(passage)
        self.write()
        moved = []
        for token in tokens:
            owner, number = passage.origin(token.tile)
            moved.append(Moved(owner, number, NONE if token.stage == NONE else owner.row(number, token.stage)))
            owner.give_away(number, token.to_pass)
        self.current = None
        self._under_way.clear()
        return state, moved
