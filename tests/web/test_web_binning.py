"""How amounts fall into bins, and intervals into spans."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.web.packing import SpanRows, TimeSpans, TimeWindow, merge_spans

INTERVALS = st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 300)), max_size=30)


def column(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@given(
    gaps=st.lists(st.tuples(st.integers(0, 500), st.integers(1, 900), st.integers(0, 9999))), bins=st.integers(1, 40)
)
def test_nothing_is_lost_between_bins(gaps: list[tuple[int, int, int]], bins: int) -> None:
    starts, ends, at = [], [], 0
    for gap, length, _ in gaps:
        starts.append(at + gap)
        ends.append(at + gap + length)
        at = ends[-1]
    spans = TimeSpans(column(*starts), column(*ends), column(*(amount for *_, amount in gaps)))
    found = spans.within(TimeWindow("all", 0, max(at, 1), bins).edges)
    assert found.sum() == spans.amounts.sum()
    assert (found >= 0).all()


def test_an_amount_is_spread_evenly() -> None:
    spans = TimeSpans(column(0), column(100), column(1000))
    assert spans.within(column(0, 10, 60, 100, 200)).tolist() == [100, 500, 400, 0]


def test_what_lies_outside_a_window_is_not_in_it() -> None:
    spans = TimeSpans(column(0, 50), column(10, 60), column(7, 9))
    assert spans.within(column(20, 40, 80)).tolist() == [0, 9]


@pytest.mark.parametrize("bins", [1, 7, 240])
def test_a_window_is_cut_from_end_to_end(bins: int) -> None:
    edges = TimeWindow("w", 17, 1017, bins).edges
    assert (edges[0], edges[-1], edges.size) == (17, 1017, bins + 1)


@given(start=st.integers(0, 10**9), bins=st.integers(1, 240), more=st.integers(0, 10**6))
def test_no_bin_is_empty_and_none_is_longer_than_others_by_more_than_a_ps(start: int, bins: int, more: int) -> None:
    lengths = np.diff(TimeWindow("w", start, start + bins + more, bins).edges)
    assert lengths.min() >= 1
    assert lengths.max() - lengths.min() <= 1


@given(st.lists(INTERVALS, max_size=6), st.integers(0, 4000), st.integers(1, 2000), st.integers(1, 9))
def test_rows_of_a_window_are_those_with_something_in_it(
    rows: list[list[tuple[int, int]]], start: int, length: int, bins: int
) -> None:
    spans = {
        3 * at: merge_spans(column(*(s for s, _ in row)), column(*(s + n for s, n in row)))
        for at, row in enumerate(rows)
    }
    window = TimeWindow("w", start, start + length, min(bins, length))
    found = SpanRows(spans).within(window)
    for number, each in spans.items():
        counts = found.get(number, np.zeros(window.bins, dtype=np.int64))
        assert counts.sum() == each.within(window.edges).sum()
        assert np.abs(counts - each.within(window.edges)).max() <= 1
        assert counts.any() == (number in found)


@given(INTERVALS)
def test_a_union_covers_what_its_intervals_do(given_: list[tuple[int, int]]) -> None:
    starts, ends = column(*(s for s, _ in given_)), column(*(s + n for s, n in given_))
    covered = {ps for start, length in given_ for ps in range(start, start + length)}
    found = merge_spans(starts, ends)
    assert found.amounts.sum() == len(covered)
    assert (found.starts[1:] > found.ends[:-1]).all()
