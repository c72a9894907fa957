"""The recurrence of the tile pipeline gives the times, causes and reports of the stages by events."""

from __future__ import annotations

import re
from collections import deque
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple, TypeAlias

import numpy as np
import pytest

from kernbench.components.pipeline import (
    FETCH,
    GEMM,
    ISSUE,
    STAGE_KINDS,
    STORE,
    Integers,
    PipelineReport,
    PipelineSizes,
    Schedule,
    TileList,
    TileLists,
    TilePipeline,
    TileRun,
    TileTimes,
)
from kernbench.components.stage import Gate, Stage, StageUnit, Token
from kernbench.core.clock import RANK_STAGE, Clock
from kernbench.core.log import BY, CAUSE, END, KIND, LINE, NONE, PART, START, TILE, WIDTH, By, Cause, Kind, Log, Row

RANKS = [RANK_STAGE + stage for stage in range(len(STAGE_KINDS))]
Event: TypeAlias = tuple[int, PipelineReport, int, int]
"""Time, type, list and tile"""
RowName: TypeAlias = tuple[int, int, int]
"""List, tile and kind of a row"""


class Offer(NamedTuple):
    """Tiles that come to the pipeline at ``time_ps``, after all earlier lists."""

    time_ps: int
    tiles: tuple[TileTimes, ...]


class Plan:
    """A list of tiles in work: its number and its log row."""

    def __init__(self, number: int, offer: Offer) -> None:
        self.number = number
        self.tiles = offer.tiles
        self.row = NONE


class Side:
    """A pipeline that works on offers, with its rows and reports."""

    def __init__(self, sizes: PipelineSizes, offers: list[Offer]) -> None:
        self.clock, self.log = Clock(), Log()
        self.sizes = sizes
        self.reports: list[Event] = []
        self.plans: deque[Plan] = deque()
        self.make_stages()
        for number, offer in enumerate(offers):
            self.clock.call_at(offer.time_ps, self.offer, Plan(number, offer))
        self.clock.advance()
        self.log.catch_up()

    def make_stages(self) -> None:
        raise NotImplementedError

    def inject(self, cause: Cause) -> None:
        raise NotImplementedError

    def offer(self, plan: Plan) -> None:
        self.plans.append(plan)
        self.inject((self.log.open(0, Kind.ISSUE, 0, (NONE, By.NOTHING), line=plan.number), By.ISSUE))

    def report(self, plan: Plan, report: PipelineReport, tile: int) -> None:
        if report is PipelineReport.BEGIN:
            plan.row = self.log.open(0, Kind.GEMM, self.clock.time, (NONE, By.NOTHING), line=plan.number)
        self.reports.append((self.clock.time, report, plan.number, tile))

    def rows(self) -> dict[RowName, tuple[int, int, RowName, By]]:
        """Return begin, end, cause and rule of each stage of each tile."""
        rows = self.log.rows

        def name(row: Row) -> RowName:
            return rows[row + LINE], rows[row + TILE], rows[row + KIND]

        return {
            name(row): (rows[row + START], rows[row + END], name(rows[row + CAUSE]), By(rows[row + BY]))
            for row in range(0, len(rows), WIDTH)
            if rows[row + TILE] >= 0
        }


class ByEvents(Side):
    """The stages by events."""

    def make_stages(self) -> None:
        in_flight, slots = self.sizes.tiles_in_flight, self.sizes.stage_slots
        self.free, self.next = in_flight, 0
        self.left: dict[Plan, int] = {}
        self.units = [StageUnit(self.clock, self.log, kind.label, slots) for kind in STAGE_KINDS]
        self.units[ISSUE].free = self.units[FETCH].free = in_flight
        self.gate = Gate("gate", in_flight, lambda token, _: self.released(token))
        for stage, unit in enumerate(self.units):
            unit.open = partial(self.open, stage)
            unit.rank = RANKS[stage]

    def released(self, token: Token) -> None:
        self.report(token.work[0], PipelineReport.RELEASE, token.work[1])

    def open(self, stage: int, token: Token, start: int) -> Row:
        plan, tile = token.work
        if stage == ISSUE and not tile:
            self.report(plan, PipelineReport.BEGIN, 0)
        return self.log.open(stage, STAGE_KINDS[stage], start, token.cause, tile=tile, line=plan.number)

    def inject(self, cause: Cause) -> None:
        while self.free and self.plans:
            plan = self.plans[0]
            if self.next == len(plan.tiles):
                self.report(plan, PipelineReport.EXHAUSTED, NONE)
                self.plans.popleft()
                self.next = 0
                continue
            self.free -= 1
            tile = plan.tiles[self.next]
            route: list[Stage] = [self.units[ISSUE], self.units[FETCH], self.units[GEMM]]
            times = [self.sizes.issue_ps, tile.fetch_ps, tile.gemm_ps]
            if tile.ends_step:
                route.insert(2, self.gate)
            if tile.store_ps >= 0:
                route.append(self.units[STORE])
                times.append(tile.store_ps)
            work = plan, self.next
            self.next += 1
            token = Token(work, route[::-1], len(route), times[::-1], len(times), self.retire, None, cause)
            self.units[ISSUE].put(token)

    def retire(self, token: Token) -> None:
        plan, tile = token.work
        self.free += 1
        if plan.tiles[tile].has_result:
            self.report(plan, PipelineReport.RESULT, tile)
        self.inject((token.row, By.SLOT))
        self.left[plan] = self.left.get(plan, len(plan.tiles)) - 1
        if not self.left[plan]:
            self.report(plan, PipelineReport.LAST, NONE)


class BySchedule(Side):
    """The recurrence."""

    def make_stages(self) -> None:
        self.lists = TileLists(self.log, self.sizes, lambda *_: None)  # type: ignore[arg-type,return-value]
        parts = [kind.label for kind in STAGE_KINDS]
        self.pipeline = TilePipeline(self.clock, self.log, parts, RANKS, self.lists, self.on_report)

    def inject(self, cause: Cause) -> None:
        while self.plans and not self.pipeline.is_full:
            plan = self.plans.popleft()
            tiles = TileList(plan.tiles, self.lists.schedules.setdefault(plan.tiles, {}), tile_rows(len(plan.tiles)))
            self.pipeline.begin(plan, None, tiles, cause, is_last=True)

    def on_report(self, run: TileRun, report: PipelineReport, tile: int, row: Row) -> None:
        self.report(run.plan, report, tile)
        if report is PipelineReport.EXHAUSTED and self.plans:
            self.inject((row, By.SLOT))


def tile_rows(n_tiles: int) -> Integers:
    """The facts of the rows of tiles 0, 1, …"""
    rows = np.zeros((n_tiles, len(STAGE_KINDS), WIDTH), np.int64)
    rows[:, :, PART], rows[:, :, KIND] = range(len(STAGE_KINDS)), STAGE_KINDS
    rows[:, :, TILE] = np.arange(n_tiles)[:, None]
    return rows.reshape(-1, WIDTH)


def random_tile(rnd: Random) -> TileTimes:
    fetch, gemm, store = (rnd.randint(1, 60) if rnd.random() < 0.7 else rnd.choice((16, 48)) for _ in range(3))
    return TileTimes(fetch, gemm, store if rnd.random() < 0.5 else NONE, rnd.random() < 0.5, rnd.random() < 0.5)


@pytest.mark.parametrize("seed", [*range(100), *(pytest.param(n, marks=pytest.mark.slow) for n in range(100, 1500))])
def test_lists_of_tiles_pass_as_by_events(seed: int) -> None:
    """Lists come while the pipeline is idle, busy or full, also at the very instant that a tile leaves."""
    rnd = Random(seed)
    sizes = PipelineSizes(rnd.choice((0, 3, 16, 40)), rnd.randint(1, 7), rnd.randint(1, 4))
    n_offers = rnd.randint(0, 5)
    times = sorted(rnd.randint(0, 4000) if rnd.random() < 0.7 else rnd.choice((0, 16, 100)) for _ in range(n_offers))
    lengths = [rnd.randint(sizes.tiles_in_flight, sizes.tiles_in_flight + 20) for _ in times]
    compare(
        sizes, [Offer(when, tuple(random_tile(rnd) for _ in range(n))) for when, n in zip(times, lengths, strict=True)]
    )


def compare(sizes: PipelineSizes, offers: list[Offer]) -> None:
    by_events, by_schedule = ByEvents(sizes, offers), BySchedule(sizes, offers)
    assert by_schedule.rows() == by_events.rows()
    assert sorted(by_schedule.reports) == sorted(by_events.reports)
    assert notices(by_schedule) == notices(by_events)


def notices(side: Side) -> list[Event]:
    """The reports that may start transfers or commands, in order."""
    return [
        event
        for event in side.reports
        if event[1] in (PipelineReport.RESULT, PipelineReport.RELEASE, PipelineReport.LAST)
    ]


def test_the_example_of_the_documentation() -> None:
    """Table and picture are those of the recurrence, which agrees with the stages by events."""
    page = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text(encoding="utf-8")
    tiles = tuple(TileTimes(fetch, 10, 3, False, False) for fetch in (4, 12, 4))
    sizes = PipelineSizes(2, 2, 2)
    compare(sizes, [Offer(0, tiles)])
    schedule, stages = Schedule(sizes, (), tiles), (ISSUE, FETCH, GEMM, STORE)
    spans = dict(zip(schedule.numbers.tolist(), zip(schedule.begins, schedule.ends.tolist(), strict=True), strict=True))
    for tile in range(len(tiles)):
        spans_of_tile = [spans[len(stages) * tile + stage] for stage in stages]
        cells = "".join(rf" .* = {end} \|" for _, end in spans_of_tile)
        assert re.search(rf"^\| {tile} \|{cells}$", page, re.MULTILINE)
        line = " " * spans_of_tile[0][0]
        for letter, (begin, end) in zip("ifGs", spans_of_tile, strict=True):
            line = line.ljust(begin, "." if line.strip() else " ") + letter * (end - begin)
        assert f"\ntile {tile}    {line}\n" in page


def test_a_tile_that_ends_a_step_claims_its_slot_after_fetch() -> None:
    """It is fetched although the only slot is taken, and frees its panels when the tile before it is multiplied."""
    times = [TileTimes(4, 10, NONE, ends_step, False) for ends_step in (False, True)]
    schedule = Schedule(PipelineSizes(2, 2, 1), (), times)
    ends = dict(zip(schedule.numbers.tolist(), schedule.ends.tolist(), strict=True))
    assert [ends[len(STAGE_KINDS) + stage] for stage in (ISSUE, FETCH, GEMM)] == [4, 10, 26]
    released = [end.end_ps for end, reports in schedule.marks if (PipelineReport.RELEASE, 1) in reports]
    assert released == [16]
