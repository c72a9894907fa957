"""The event-driven stages give exactly the times of the max-plus recurrence."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.components.stage import OverlappingStage, StageUnit, Token
from kernbench.core.clock import Clock


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
    clock = Clock()
    units = [StageUnit(clock, str(s), slots) for s in range(len(times[0]))]
    ends: list[list[int]] = [[] for _ in times]

    def note(token: Token, start: int, end: int) -> None:
        ends[token.work].append(end)

    for unit in units:
        unit.ended = note
    for i, row in enumerate(times):
        units[0].put(Token(i, units[::-1], len(units), row[::-1], len(row), lambda token: None, None))
    clock.advance()
    return ends, clock.n_events


pipelines = st.integers(1, 5).flatmap(
    lambda stages: st.lists(st.lists(st.integers(0, 50), min_size=stages, max_size=stages), min_size=1, max_size=20)
)


@given(pipelines, st.integers(1, 4))
@settings(max_examples=200)
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

    def start(token: Token, done: Callable[[], None]) -> None:
        clock.call_at(times[token.work], lambda _: done())

    stage = OverlappingStage("dma", len(times), start)
    for i in range(len(times)):
        stage.enter(Token(i, (stage,), 1, (), 0, lambda token: left.append((token.work, clock.time)), None))
    clock.advance()
    assert left == list(enumerate(accumulate(times, max)))
