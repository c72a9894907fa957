"""The event-driven stages give exactly the times of the max-plus recurrence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from functools import partial
from itertools import accumulate
from typing import NamedTuple

from hypothesis import example, given
from hypothesis import strategies as st

from kernbench.common.values import state
from kernbench.components.stage import Gate, OverlappingStage, Stage, StageUnit, Token
from kernbench.core.clock import RANK_STAGE, Clock
from kernbench.core.log import BY, CAUSE, END, PART, ROOT, START, TILE, WIDTH, By, Kind, Log, Row


def recurrence(times: list[list[int]], slots: int) -> list[list[int]]:
    """end[i][s] = max(end[i-1][s], end[i][s-1], end[i-slots][s+1]) + t[i][s]."""
    n_stages = len(times[0])
    end: list[list[int]] = []
    for i, row in enumerate(times):
        end.append([])
        for s in range(n_stages):
            ready = max(
                end[i - 1][s] if i else 0,
                end[i][s - 1] if s else 0,
                end[i - slots][s + 1] if i >= slots and s + 1 < n_stages else 0,
            )
            end[i].append(ready + row[s])
    return end


def simulate(times: list[list[int]], slots: int) -> tuple[list[list[int]], int]:
    clock, log = Clock(), Log()
    units = [StageUnit(clock, log, str(s), slots) for s in range(len(times[0]))]
    for unit in units:
        unit.open = partial(opened, log, unit.name)
    for i, row in enumerate(times):
        units[0].put(Token(i, units[::-1], len(units), row[::-1], len(row), lambda token: None, None, ROOT))
    clock.advance()
    check(log)
    return ends_of(log, len(times)), clock.n_events


def ends_of(log: Log, n_tokens: int) -> list[list[int]]:
    """When each token was done in each stage."""
    rows = log.rows
    ends: list[list[int]] = [[] for _ in range(n_tokens)]
    for row in sorted(range(0, len(rows), WIDTH), key=lambda row: rows[row + PART]):
        ends[rows[row + TILE]].append(rows[row + END])
    return ends


def opened(log: Log, name: str, token: Token, start: int) -> Row:
    return log.open(log.part(name), Kind.FETCH, start, token.cause, tile=token.work)


def check(log: Log) -> None:
    """A token begins when its cause has ended: its stage before, the token before it in the stage, one behind."""
    rows = log.rows
    for row in range(0, len(rows), WIDTH):
        cause, by, start = rows[row + CAUSE], rows[row + BY], rows[row + START]
        if by == By.NOTHING:
            assert start == 0
            continue
        assert rows[cause + END] == start
        apart = (rows[row + PART] - rows[cause + PART], rows[row + TILE] - rows[cause + TILE])
        if by == By.OPERAND:
            assert apart == (1, 0)
        elif by == By.ENGINE:
            assert apart == (0, 1)
        else:
            assert by == By.SLOT
            assert apart[0] == -1
            assert apart[1] > 0


pipelines = st.integers(1, 5).flatmap(
    lambda stages: st.lists(st.lists(st.integers(0, 50), min_size=stages, max_size=stages), min_size=1, max_size=20)
)


@given(pipelines, st.integers(1, 4))
def test_stages_follow_the_recurrence(times: list[list[int]], slots: int) -> None:
    assert simulate(times, slots)[0] == recurrence(times, slots)


def test_one_event_per_stage_and_tile() -> None:
    assert simulate([[3, 7, 5]] * 40, slots=2)[1] == 3 * 40


def test_ideal_pipeline_of_equal_tiles() -> None:
    ends, _ = simulate([[16, 16, 4]] * 10, slots=2)
    assert ends[-1][-1] == 9 * 16 + 36


@given(st.lists(st.integers(0, 50), min_size=1, max_size=20))
def test_tokens_that_overlap_leave_in_order(times: list[int]) -> None:
    """They begin together; one that is ready before those ahead of it waits for them."""
    clock = Clock()
    left: list[tuple[int, int]] = []

    def start(token: Token, done: Callable[[Row], None]) -> None:
        clock.call_at(times[token.work], lambda _: done(token.work))

    stage = OverlappingStage("dma", len(times), start)
    for i in range(len(times)):
        stage.enter(Token(i, (stage,), 1, (), 0, lambda token: left.append((token.row, clock.time)), None, ROOT))
    clock.advance()
    assert [when for _, when in left] == list(accumulate(times, max))
    # Each leaves after the one whose end let it: itself, or one before it that was slower.
    assert [times[row] for row, _ in left] == list(accumulate(times, max))


class Tile(NamedTuple):
    """The times of a tile, None where it does not pass, and whether it passes the gate."""

    dma: int | None
    fetch: int
    gemm: int
    store: int | None
    gated: bool


@state(eq=False)
class Pipeline:
    """A DMA that overlaps, a fetch, ``gate``, a GEMM and a store, which have worked through ``tiles``.

    ``passed``: which tiles have passed a gate, when, and the row that let each.
    """

    tiles: list[Tile]
    slots: int
    clock: Clock = field(default_factory=Clock)
    log: Log = field(default_factory=Log)
    passed: list[tuple[int, int, Row]] = field(default_factory=list)

    def run(self, make_gate: Callable[[Pipeline], Stage]) -> None:
        """Let all tiles come at once."""
        slots = self.slots
        gate, dma = make_gate(self), OverlappingStage("dma", slots + 2, self.transfer)
        fetch, gemm, store = (StageUnit(self.clock, self.log, name, slots) for name in ("fetch", "gemm", "store"))
        for rank, unit in enumerate((store, gemm, fetch), RANK_STAGE):
            unit.open = partial(opened, self.log, unit.name)
            unit.rank = rank
        for number, tile in enumerate(self.tiles):
            timed = ((fetch, tile.fetch), (gemm, tile.gemm), (store, tile.store))
            route: list[Stage] = [dma] if tile.dma is not None else []
            route += [unit for unit, time in timed if time is not None]
            if tile.gated:
                route.insert(route.index(gemm), gate)
            times = [time for _, time in timed if time is not None][::-1]
            token = Token(number, route[::-1], len(route), times, len(times), lambda token: None, None, ROOT)
            route[0].put(token)
        self.clock.advance()

    def transfer(self, token: Token, done: Callable[[Row], None]) -> None:
        now, time = self.clock.time, self.tiles[token.work].dma
        assert time is not None
        row = opened(self.log, "dma", token, now)
        self.log.close(row, now + time)
        self.clock.call_at(now + time, lambda _: done(row))

    def gate(self) -> Gate:
        passed = self.passed
        return Gate("gate", self.slots, lambda token, row: passed.append((token.work, self.clock.time, row)))

    def instant_stage(self) -> OverlappingStage:
        return OverlappingStage("instant", self.slots, lambda token, done: done(token.row))


tile_times = st.sampled_from((0, 4, 5, 20, 64))
tiles_with_gates = st.lists(
    st.builds(Tile, st.none() | tile_times, tile_times, tile_times, st.none() | tile_times, st.booleans()),
    min_size=1,
    max_size=30,
)


FEW_ROWS = [Tile(None, 20, 64, None, gated=number % 4 == 3) for number in range(21)]
"""As a product of few rows by blocks gives them"""


@example(FEW_ROWS, 2)
@example([Tile(None, 20, 64, None, gated=True)] * 3, 1)
@given(tiles_with_gates, st.integers(1, 4))
def test_causes_of_tiles_end_as_they_begin(tiles: list[Tile], slots: int) -> None:
    pipeline = Pipeline(tiles, slots)
    pipeline.run(Pipeline.gate)
    rows = pipeline.log.rows
    for row in range(0, len(rows), WIDTH):
        cause = rows[row + CAUSE]
        assert rows[row + START] == (0 if cause < 0 else rows[cause + END])
    assert sorted(tile for tile, _, _ in pipeline.passed) == [number for number, tile in enumerate(tiles) if tile.gated]
    for _, when, row in pipeline.passed:
        assert rows[row + END] == when


@example(FEW_ROWS, 2)
@given(tiles_with_gates, st.integers(1, 4))
def test_no_tile_begins_because_of_the_fetch_of_another(tiles: list[Tile], slots: int) -> None:
    """A stage that takes no time passes a tile on while an earlier one waits for the GEMM, which has just come free."""
    pipeline = Pipeline(tiles, slots)
    pipeline.run(Pipeline.instant_stage)
    log = pipeline.log
    fetch, gemm = log.part("fetch"), log.part("gemm")
    for row in range(0, len(log.rows), WIDTH):
        cause = log.rows[row + CAUSE]
        if log.rows[row + PART] == gemm and log.rows[cause + PART] == fetch:
            assert log.rows[cause + TILE] == log.rows[row + TILE]


@example([Tile(None, 4, 64, None, gated=number in (2, 3)) for number in range(5)], 2)
@given(tiles_with_gates, st.integers(1, 4))
def test_tiles_with_operands_in_tcm_are_multiplied_in_order(tiles: list[Tile], slots: int) -> None:
    tiles = [tile._replace(dma=None) for tile in tiles]
    pipeline = Pipeline(tiles, slots)
    pipeline.run(Pipeline.gate)
    rows, gemm = pipeline.log.rows, pipeline.log.part("gemm")
    starts = {rows[row + TILE]: rows[row + START] for row in range(0, len(rows), WIDTH) if rows[row + PART] == gemm}
    ordered = [starts[number] for number in range(len(tiles))]
    assert ordered == sorted(ordered)


def test_tiles_pass_a_gate_as_slots_come_free() -> None:
    """They are fetched at 20, 40, 60 and multiplied for 64 each: one works, one waits, and the third passes at 84."""
    pipeline = Pipeline([Tile(None, 20, 64, None, gated=True)] * 3, slots=2)
    pipeline.run(Pipeline.gate)
    assert [(tile, when) for tile, when, _ in pipeline.passed] == [(0, 20), (1, 40), (2, 84)]
