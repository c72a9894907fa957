"""Durations foreseen from samples: the mean, corrected for refreshes, and its error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.runtime_api.launch_times import DEVIATIONS, ForeseenTime, LaunchTimes
from kernbench.topology.hbm_refresh import NO_REFRESH, RefreshClock

CLOCK = RefreshClock(4000, 400)


def test_without_refresh_a_launch_takes_the_mean():
    times = LaunchTimes(NO_REFRESH)
    kind = times.add_kind()
    times.add(kind, 0, 100)
    times.add(kind, 500, 604)
    assert times.foresee(kind)(7000) == 102
    assert times.spread(kind) == pytest.approx(4 / 102)


def test_a_launch_is_longer_by_the_refresh_that_it_meets():
    times = LaunchTimes(CLOCK)
    kind = times.add_kind()
    times.add(kind, 1000, 2000)  # meets none
    times.add(kind, 3500, 4900)  # meets a complete one
    foreseen = times.foresee(kind)
    assert (foreseen(5000), foreseen(7500)) == pytest.approx((1000, 1400), rel=0.03)
    assert times.spread(kind) < 0.03


def test_kinds_that_refreshes_do_not_stretch_learn_it_from_their_samples():
    times = LaunchTimes(CLOCK)
    kind = times.add_kind()
    for begin in (1000, 3500, 5000, 7500, 9000, 11500):
        times.add(kind, begin, begin + 1000)
    assert times.foresee(kind)(15500) - times.foresee(kind)(13000) < 100


@given(begin=st.integers(0, 10**6), mean=st.integers(1, 10**4), met=st.integers(0, 400), share=st.floats(0, 1))
def test_a_foreseen_time_differs_from_the_mean_by_the_refreshes_at_most(begin, mean, met, share):
    duration = ForeseenTime(mean, met, share, CLOCK)(begin)
    most = CLOCK.outage_ps * (2 + duration // (CLOCK.period_ps - CLOCK.outage_ps))
    assert duration >= 0
    assert mean - met - 1 <= duration <= mean + most


def test_the_error_grows_with_the_launches_that_pass_and_shrinks_with_samples():
    def error(durations, n_passed):
        times = LaunchTimes(NO_REFRESH)
        kind = times.add_kind()
        for duration in durations:
            times.add(kind, 0, duration)
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
        times.add(steady, 0, duration)
    for duration in (90, 110):
        times.add(varied, 0, duration)
    times.count_passed(steady)
    assert times.error_ps() == pytest.approx(DEVIATIONS * (200 / 3 * 1.5) ** 0.5)
