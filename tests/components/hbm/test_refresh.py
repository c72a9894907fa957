"""Refresh of all banks at once: the clock of the banks, and what an access that meets an outage takes. Time in ps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slice_support import counters_of

from kernbench.components.hbm.banks import BankedMemory, Histories
from kernbench.messages.fabric import Access
from kernbench.topology.hbm_refresh import NO_REFRESH, RefreshClock, SlicePace, refresh_clock
from kernbench.topology.hbm_spec import HBM3, PRESETS, Refresh, interleave

RCD, RP, BURST, IN_GROUP = 19_400, 16_300, 1_250, 2_500
PERIOD = 3_900_000
OUTAGE = 350_000 + RP + RCD + round(0.7 * 45_000)  # tRFC, tRP, tRCD, and drain of tRC
ROW_OF_ALL = 2 * 32 * 1024  # bytes of a row of all banks of two PCs


def memory(refresh: Refresh = "all-bank") -> BankedMemory:
    """A channel of two PCs, interleaved by 256 B."""
    return BankedMemory(Histories(HBM3, 2, interleave(8, xor=False), 64, refresh), 2048)


def read(made: BankedMemory, at: int, pa: int = 0, nbytes: int = 32) -> tuple[int, int]:
    grant = made.serve(Access(pa, nbytes), False, 0, nbytes, at)
    return grant.first_ps, grant.last_ps


# -- the clock --

CLOCKS = st.tuples(st.integers(2, 5_000_000), st.integers(0, 5_000_000)).filter(lambda both: both[1] < both[0])
TIMES = st.integers(0, 10**10)


def test_the_clock_of_a_timing():
    assert refresh_clock(HBM3) == RefreshClock(PERIOD, OUTAGE)
    assert refresh_clock(HBM3).used == pytest.approx(1 - HBM3.refresh_share)
    for preset in PRESETS.values():
        clock = refresh_clock(preset.timing)
        assert clock.outage_ps / clock.period_ps == pytest.approx(preset.timing.refresh_share, rel=1e-6)


def test_time_stands_still_from_every_period_on():
    clock = RefreshClock(100, 30)
    assert [clock.into(ps) for ps in (0, 1, 99, 100, 101, 129, 130, 131)] == [0, 1, 99, 100, 100, 100, 100, 101]
    assert [clock.into(ps) for ps in (199, 200, 215, 230, 231)] == [169, 170, 170, 170, 171]
    # What ends when the outage begins, and what begins when it is over.
    assert [clock.out(ps) for ps in (0, 99, 100, 101, 170, 171)] == [0, 99, 100, 131, 200, 231]
    assert [clock.out_after(ps) for ps in (0, 99, 100, 101, 170, 171)] == [0, 99, 130, 131, 230, 231]
    assert [clock.outages_around(ps)[0] for ps in (0, 99, 100, 169, 170, 240)] == [-1, -1, 100, 100, 170, 240]


@given(CLOCKS, TIMES)
def test_there_and_back(lengths, ps):
    clock = RefreshClock(*lengths)
    inside = clock.into(ps)
    assert clock.into(clock.out(inside)) == clock.into(clock.out_after(inside)) == inside
    assert clock.out(inside) <= ps <= clock.out_after(inside)
    assert clock.out_after(inside) - clock.out(inside) in (0, clock.outage_ps)


@given(CLOCKS, TIMES, TIMES)
def test_time_goes_forward(lengths, ps, more):
    clock = RefreshClock(*lengths)
    assert clock.into(ps) <= clock.into(ps + more) <= clock.into(ps) + more
    assert clock.out(ps) + more <= clock.out(ps + more)
    assert clock.out_after(ps) + more <= clock.out_after(ps + more)
    assert clock.out(ps + 1) > clock.out_after(ps)


@given(CLOCKS, st.integers(1, 1000))
def test_an_outage_is_as_long_as_it_is_said(lengths, number):
    clock = RefreshClock(*lengths)
    begin = number * clock.period_ps
    assert clock.into(begin) == clock.into(begin + clock.outage_ps) == clock.into(begin - 1) + 1
    assert clock.into(begin + clock.outage_ps + 1) == clock.into(begin) + 1
    assert clock.outages_around(clock.into(begin))[0] == clock.into(begin)
    before = clock.outages_around(clock.into(begin) - 1)[0]
    assert before == (clock.into(begin - clock.period_ps) if number > 1 else -1)


@given(TIMES)
def test_without_refresh_time_is_time(ps):
    assert NO_REFRESH.into(ps) == NO_REFRESH.out(ps) == NO_REFRESH.out_after(ps) == ps
    assert NO_REFRESH.outages_around(ps)[0] == -1


# -- an access that meets an outage --


def test_there_is_none_at_the_start():
    assert read(memory(), 0) == (RCD, RCD + BURST)
    assert read(memory(), OUTAGE // 2)[0] == OUTAGE // 2 + RCD


def test_an_access_that_is_over_before_meets_none():
    at = PERIOD - RCD - BURST
    assert read(memory(), at) == (at + RCD, PERIOD)


@pytest.mark.parametrize("number", [1, 2, 3, 1000])
@pytest.mark.parametrize("after", [0, 1, OUTAGE // 2, OUTAGE])
def test_an_access_in_an_outage_waits_for_its_end(number, after):
    begin = number * PERIOD
    assert read(memory(), begin + after)[0] == begin + OUTAGE + RCD


@pytest.mark.parametrize("number", [1, 2, 3, 1000])
def test_an_access_after_it_waits_for_nothing(number):
    at = number * PERIOD + OUTAGE + 5
    assert read(memory(), at)[0] == at + RCD


@pytest.mark.parametrize("number", [1, 7])
def test_an_access_shortly_before_goes_on_after_it(number):
    # Half of tRCD is over when the outage begins.
    at = number * PERIOD - RCD // 2
    assert read(memory(), at) == (at + RCD + OUTAGE, at + RCD + OUTAGE + BURST)


def test_data_are_interrupted():
    # Eight bursts of a group; the outage comes after the first two.
    at = PERIOD - RCD - IN_GROUP - BURST
    first, last = read(memory(), at, nbytes=256)
    assert (first, last) == (at + RCD, at + RCD + 7 * IN_GROUP + BURST + OUTAGE)


def test_refresh_closes_the_rows_of_an_idle_channel():
    made = memory()
    read(made, 0)
    assert read(made, PERIOD - 100_000)[0] == PERIOD - 100_000  # a hit still
    at = PERIOD + OUTAGE + 1000
    assert read(made, at)[0] == at + RCD
    assert counters_of(made).done[:2] == (3, 2)
    assert read(made, at + 500_000)[0] == at + 500_000


def test_another_row_after_refresh_has_none_to_close():
    made = memory()
    read(made, 0)
    at = PERIOD + OUTAGE + 1000
    assert read(made, at, ROW_OF_ALL)[0] == at + RCD


def test_each_channel_is_idle_by_itself():
    """Of two channels one has a read over an outage: its row is in use and stays open; that of the other is closed."""
    made = BankedMemory(Histories(HBM3, 4, interleave(8, xor=False), 64, "all-bank"), 2048)
    there, other = 0, 512  # PCs 0 and 2
    for pa in (there, other):
        read(made, 0, pa)
    at = PERIOD - 500
    read(made, at, there, 128)
    done = counters_of(made).done
    read(made, PERIOD + OUTAGE + 2000, there)
    read(made, PERIOD + OUTAGE + 2000, other)
    assert counters_of(made).done[0] - done[0] == 2
    assert counters_of(made).done[1] - done[1] == 1


def test_a_stream_loses_its_share():
    nbytes = 64 << 20
    ends = {mode: read(memory(mode), 0, nbytes=nbytes)[1] for mode in ("all-bank", "spread", "none")}
    assert ends["none"] / ends["all-bank"] == pytest.approx(1 - OUTAGE / PERIOD, abs=1e-3)
    assert ends["none"] / ends["spread"] == pytest.approx(1 - OUTAGE / PERIOD, abs=1.5e-2)


def test_a_stream_has_lost_all_outages_on_its_way():
    """With outages it takes what it takes without them, and each of those that began before its end."""
    nbytes = 8 << 20
    without, with_them = (read(memory(mode), 0, nbytes=nbytes)[1] for mode in ("none", "all-bank"))
    assert with_them == without + (with_them - 1) // PERIOD * OUTAGE


@pytest.mark.parametrize("refresh", ["spread", "none"])
def test_other_modes_have_no_outage(refresh):
    made = memory(refresh)
    read(made, 0)
    for at in (PERIOD, PERIOD + 10_000, PERIOD + OUTAGE, 2 * PERIOD + 1):
        assert read(made, at)[0] == at


def test_slices_stand_still_at_the_same_time():
    """Whatever each has done before."""
    busy, idle = memory(), memory()
    for at in range(0, PERIOD, 100_000):
        read(busy, at, at % 7 * ROW_OF_ALL, 512)
    bank = 8 * ROW_OF_ALL + 16 * 1024
    for made in (busy, idle):
        assert read(made, PERIOD + 5, bank)[0] - (PERIOD + OUTAGE) in (RCD, RP + RCD)


def test_spread_takes_all_work_longer():
    made = memory("spread")
    # Latencies are as they are.
    first, last = read(made, 0, nbytes=256)
    assert first == RCD
    assert last - first == pytest.approx((7 * IN_GROUP + BURST) / (1 - HBM3.refresh_share), abs=20)


def test_rows_do_not_depend_on_what_another_slice_has_done():
    """Slices with histories in common do the same after other idle times: each knows when its channels were asked."""
    histories = Histories(HBM3, 4, interleave(8, xor=False), 64, "all-bank")

    def third_access(pause: int) -> tuple[int, int]:
        made = BankedMemory(histories, 2048)
        read(made, PERIOD - RCD // 2)  # over the outage
        read(made, PERIOD + OUTAGE + pause, 512)  # the other channel
        at = PERIOD + OUTAGE + pause + 100_000
        return read(made, at)[0] - at, made.end_ps - at

    assert third_access(3_000_000) == third_access(300_000) == (RCD, RCD + BURST)


def test_work_that_ends_where_an_outage_begins_does_not_wait_for_its_end():
    pace = SlicePace(1.0, RefreshClock(4000, 400))  # a byte takes 1,000 ps, and the first outage begins at 4,000 ps
    assert [pace.least_ps(nbytes) for nbytes in (1, 4, 5, 7, 8)] == [1000, 4000, 5400, 7400, 8800]
    assert pace.most_gbs(4) == 1.0
    assert pace.most_gbs(8) == pytest.approx(8 / 8.8)
