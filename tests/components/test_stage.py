"""The event-driven stages give exactly the times of the max-plus recurrence."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from kernbench.components.stage import OverlappingStage, StageUnit, Token
from kernbench.core.clock import Clock
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
