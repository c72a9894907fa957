"""Durations foreseen from samples: the mean, corrected for refreshes, and its error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.runtime_api.launch_times import (
    DEVIATIONS,
    REFRESH_VARIANCE,
    SHARE_DEVIATION,
    ForeseenTime,
    LaunchTimes,
    Reads,
    SampledTimes,
    met_ps,
)
from kernbench.topology.hbm_refresh import NO_REFRESH, RefreshClock

CLOCK = RefreshClock(4000, 400)


def add(times: LaunchTimes, kind: SampledTimes, begin: int, end: int) -> None:
    """Add a sample that reads all the time."""
    times.add(kind, begin, end, [(begin, end)])


def test_without_refresh_a_launch_takes_the_mean():
    times = LaunchTimes(NO_REFRESH)
    kind = times.add_kind()
    add(times, kind, 0, 100)
    add(times, kind, 500, 604)
    assert times.foresee(kind)(7000) == 102
    assert times.spread(kind) == pytest.approx(4 / 102)


def test_a_launch_is_longer_by_the_refresh_that_it_meets():
    times = LaunchTimes(CLOCK)
    kind = times.add_kind()
    add(times, kind, 1000, 2000)  # meets none
    add(times, kind, 3500, 4900)  # meets a complete one
    foreseen = times.foresee(kind)
    assert (foreseen(5000), foreseen(7500)) == pytest.approx((1000, 1400), rel=0.03)
    assert times.spread(kind) < 0.03


def test_kinds_that_refreshes_do_not_stretch_learn_it_from_their_samples():
    times = LaunchTimes(CLOCK)
    kind = times.add_kind()
    for begin in (1000, 3500, 5000, 7500, 9000, 11500):
        add(times, kind, begin, begin + 1000)
    assert times.foresee(kind)(15500) - times.foresee(kind)(13000) < 100


@given(begin=st.integers(0, 10**6), mean=st.integers(1, 10**4), met=st.integers(0, 400), share=st.floats(0, 1))
def test_a_foreseen_time_differs_from_the_mean_by_the_refreshes_at_most(begin, mean, met, share):
    duration = ForeseenTime(mean, met, Reads(((0, mean),)), share, CLOCK)(begin)
    most = CLOCK.outage_ps * (2 + mean // (CLOCK.period_ps - CLOCK.outage_ps))
    assert duration >= 0
    assert mean - met - 1 <= duration <= mean + most


def test_the_error_grows_with_the_launches_that_pass_and_shrinks_with_samples():
    def error(durations, n_passed):
        times = LaunchTimes(NO_REFRESH)
        kind = times.add_kind()
        for duration in durations:
            add(times, kind, 0, duration)
        for _ in range(n_passed):
            times.count_passed(kind)
        return times.error_ps()

    assert error([100, 100], 50) == error([90, 110], 0) == 0.0
    assert error([90, 110], 10) < error([90, 110], 20)
    assert error([90, 110] * 4, 20) < error([90, 110], 20)


def test_kinds_without_differences_share_the_error_of_others():
    times = LaunchTimes(NO_REFRESH)
    steady, varied = times.add_kind(), times.add_kind()
    for duration in (100, 100):
        add(times, steady, 0, duration)
    for duration in (90, 110):
        add(times, varied, 0, duration)
    times.count_passed(steady)
    assert times.error_ps() == pytest.approx(DEVIATIONS * (200 / 3 * 1.5) ** 0.5)


def test_a_refresh_stretches_a_launch_while_it_reads():
    times = LaunchTimes(CLOCK)
    kind = times.add_kind()
    for begin in (1000, 5000):
        times.add(kind, begin, begin + 1000, [(begin + 100, begin + 300), (begin + 700, begin + 800)])
    foreseen = times.foresee(kind)
    assert foreseen(13000) == 1000
    assert foreseen(11700) == 1000  # the refresh from 12,000 to 12,400 is between the reads
    assert foreseen(11800) == foreseen(11250) > 1300  # it is during the first, or the second ones


@given(
    begin=st.integers(0, 10**5),
    lengths=st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 9000)), max_size=5),
)
def test_reads_meet_the_refreshes_that_their_sample_met(begin, lengths):
    now, spans = begin, []
    for before, length in lengths:
        start = now + before
        now = CLOCK.out(CLOCK.into(start) + length)
        spans.append((start, now))
    reads = Reads.of(CLOCK, begin, spans)
    assert reads.spans == tuple(lengths)
    assert reads.met_ps(CLOCK, begin) == met_ps(CLOCK, spans)


@pytest.mark.parametrize("n_passed", [1, 10, 100])
@pytest.mark.parametrize(
    ("samples", "of_kind", "of_mean", "of_launch"),
    [
        # A tenth of the time is refresh. The sample met none, the mean launch meets 100 ps.
        ([(1000, 2000)], 0, (SHARE_DEVIATION * 100) ** 2, REFRESH_VARIANCE * 100 * 400),
        # The sample met a refresh, the mean launch meets 100 ps: 300 fewer.
        ([(3500, 4900)], 0, (SHARE_DEVIATION * 300) ** 2 + REFRESH_VARIANCE * 400**2, REFRESH_VARIANCE * 100 * 400),
        # Samples with and without a refresh decide half of the share, 0.975. They differ from it by 5 ps.
        (
            [(1000, 2000), (3500, 4900)],
            100,
            (SHARE_DEVIATION * 100) ** 2 / 2 + REFRESH_VARIANCE * 400**2 / 4,
            REFRESH_VARIANCE * 100 * 400 / 2,
        ),
    ],
)
def test_the_error_by_refreshes_that_samples_do_not_show(n_passed, samples, of_kind, of_mean, of_launch):
    """The share of all launches is unknown alike, so its error grows as their number; others grow as its root."""
    times = LaunchTimes(CLOCK)
    kind = times.add_kind()
    for begin, end in samples:
        add(times, kind, begin, end)
    for _ in range(n_passed):
        times.count_passed(kind)
    n = n_passed
    variance = of_kind * (n**2 / len(samples) + n) + of_mean * n**2 + of_launch * n
    assert times.error_ps() == pytest.approx(DEVIATIONS * variance**0.5)


def test_each_kind_has_its_part_of_the_variance():
    times = LaunchTimes(NO_REFRESH)
    kinds = [times.add_kind() for _ in range(2)]
    for kind in kinds:
        for duration in (90, 110):
            add(times, kind, 0, duration)
    for kind, n_passed in zip(kinds, (1, 3), strict=True):
        for _ in range(n_passed):
            times.count_passed(kind)
    # Of n launches it is n² / 2 for the mean of two samples, and n for the launches.
    assert [times.error_share(kind) for kind in kinds] == pytest.approx([1.5 / 9, 7.5 / 9])
