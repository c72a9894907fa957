"""What runs take in a channel, by hand: HBM3 without refresh, so a burst takes 1.25 ns, in a group 2.5. Time in ps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.components.hbm.channel import PER_PC, WRITTEN, Channel, ChannelTiming
from kernbench.topology.hbm_spec import HBM2, HBM3, PRESETS, HbmTiming

Run = tuple[int, int, int]
RCD, RCD_WRITE, RP, RC = 19_400, 9_400, 16_300, 45_000
ACT, ROW_BUS = 3_750, 1_250
BURST, IN_GROUP, IN_TURN = 1_250, 2_500, 1_875
PLACE = BURST  # of the grid
TO_WRITE, TO_READ = 12_500, 13_800
LATER = 1_000_000
GROUP = 4  # banks
OTHER_STACK = 16
OTHER_PC = 32


def channel(timing: HbmTiming = HBM3, queue: int = 64) -> Channel:
    return Channel(ChannelTiming(timing, 2, queue))


def read(made: Channel, now: int, *runs: Run) -> tuple[int, int, int]:
    return made.serve(now, 0, runs, False)


def write(made: Channel, now: int, *runs: Run) -> tuple[int, int, int]:
    return made.serve(now, 0, runs, True)


def flushed(made: Channel) -> tuple[int, int]:
    """Bursts and rows when all is done: a read, long after, has pending writes served before it."""
    read(made, made.settled_ps + LATER, (0, 1 << 20, 1))
    return made.counters.done[0] - 1, made.counters.done[1] - 1


# -- an access alone --


@pytest.mark.parametrize("name", PRESETS)
def test_an_idle_bank_answers_after_trcd(name):
    timing = PRESETS[name].timing
    made = channel(timing)
    over, first, last = read(made, 700, (0, 0, 1))
    assert (over, first) == (700, 700 + round(timing.rcd_ns * 1000))
    assert last - first == pytest.approx(timing.ccd_s_ns * 1000, abs=4)
    assert made.counters.done[:2] == (1, 1)


@pytest.mark.parametrize("n", [1, 2, 8])
def test_an_open_row_answers_at_once(n):
    made = channel()
    read(made, 0, (0, 3, 1))
    assert read(made, LATER, (0, 3, n)) == (LATER, LATER, LATER + (n - 1) * IN_GROUP + BURST)
    assert made.counters.done[:2] == (1 + n, 1)


def test_another_row_is_closed_first():
    made = channel()
    read(made, 0, (0, 3, 1))
    assert read(made, LATER, (0, 4, 1))[1] == LATER + RP + RCD


def test_a_row_that_refresh_has_closed_is_only_opened():
    made = channel()
    read(made, 0, (0, 3, 1))
    assert made.serve(LATER, 0, ((0, 3, 1),), False, True)[1] == LATER + RCD
    assert made.counters.done[:2] == (2, 2)


def test_rows_count_from_a_base():
    made = channel()
    made.serve(0, 7, ((0, 3, 1),), False)
    assert made.serve(LATER, 10, ((0, 0, 1),), False)[1] == LATER
    assert made.serve(2 * LATER, 7, ((0, 4, 1),), False)[1] == 2 * LATER + RP + RCD


# -- rows of banks --


def test_a_bank_is_activated_every_trc():
    # That is longer than RCD, the burst, tRTP and tRP.
    made = channel()
    firsts = [read(made, 0, (0, row, 1))[1] for row in (3, 4, 5)]
    assert firsts == [RCD, RC + RCD, 2 * RC + RCD]


def test_a_long_read_closes_its_row_when_it_is_over():
    # 16 bursts of one group: the last is over later than tRC allows.
    made = channel()
    _, _, last = read(made, 0, (0, 3, 8), (0, 3, 8))
    assert last == RCD + 15 * IN_GROUP + BURST
    ready = last + 5_600 + RP + RCD
    assert ready <= read(made, 0, (0, 4, 1))[1] < ready + PLACE


def test_writes_close_their_row_later():
    # tCWL, tWR and tRP after their last byte; the read comes when the buses have long turned.
    made = channel()
    write(made, 0, *((0, 3, 8) for _ in range(7)))
    last = RCD_WRITE + 55 * IN_GROUP + BURST
    over, first, _ = read(made, last, (0, 4, 1))
    assert over == last
    assert last + 6_250 + 20_600 + RP + RCD <= first < last + 6_250 + 20_600 + RP + RCD + PLACE


def test_rows_in_turn_are_each_opened_once():
    """Two rows of one bank, a burst of each in turn: all that the queue holds of a row are hits of it."""
    made = channel()
    firsts = [read(made, 0, (0, 3 + i % 2, 1))[1] for i in range(10)]
    assert made.counters.done[:2] == (10, 2)
    assert firsts[:2] == [RCD, RC + RCD]
    # The rest follow in the group's pace, those of the first row before the second is opened.
    assert firsts[::2] == [RCD + i * IN_GROUP for i in range(5)]
    assert firsts[1::2] == [RC + RCD + i * IN_GROUP for i in range(5)]


def test_three_streams_in_one_bank_open_their_rows_in_turn():
    """A burst of each in turn: rows open in the order they came, a tRC apart, and the bursts that follow are hits."""
    made = channel()
    firsts = [read(made, 0, (0, row, 1))[1] for row in (3, 4, 5) * 4]
    assert made.counters.done[:2] == (12, 3)
    for row in range(3):
        assert firsts[row::3] == [row * RC + RCD + i * IN_GROUP for i in range(4)]


def test_a_row_that_has_closed_is_opened_again():
    # The second row is open: the first has been closed for it by then, and is a miss.
    made = channel()
    read(made, 0, (0, 3, 1))
    read(made, 0, (0, 4, 1))
    opens = max(2 * RC, RC + RCD + BURST + 5_600 + RP)
    first = read(made, RC + RCD, (0, 3, 1))[1]
    assert opens + RCD <= first < opens + RCD + PLACE
    assert made.counters.done[:2] == (3, 3)


# -- buses --


def test_banks_of_other_groups_share_the_bus():
    # The second row opens an activation later, and its bursts go between those of the first.
    assert read(channel(), 0, (0, 0, 8), (GROUP, 0, 8))[2] == RCD + ACT + 7 * IN_GROUP + BURST


def test_writes_of_a_group_have_a_pace_of_their_own():
    """DDR5: 20 ns between writes of a group, six bursts of the bus; 5 ns between reads, on the grid two."""
    timing, apart, run = PRESETS["ddr5"].timing, 6, ((0, 0, 8),)
    burst = round(timing.ccd_s_ns * 1000)
    made = channel(timing)
    write(made, 0, *run * 7)
    assert made.end_ps == round(timing.rcd_write_ns * 1000) + (55 * apart + 1) * burst
    reads = channel(timing)
    assert read(reads, 0, *run)[2] == round(timing.rcd_ns * 1000) + (7 * 2 + 1) * burst
    # Writes of six groups fill the bus.
    full = channel(timing)
    write(full, 0, *((GROUP * i, 0, 8) for i in range(6)))
    write(full, 0, *((GROUP * i, 0, 1) for i in range(6)))
    assert full.end_ps <= round(timing.rcd_write_ns * 1000) + (54 + 2 * apart) * burst


def test_column_commands_hold_up_rows_where_they_share_a_bus():
    """LPDDR5: PRE and ACT are 3.75 ns of it, and a read 1.25; ACTs of a PC are 5 ns apart, and so are two bursts."""
    timing = PRESETS["lpddr5"].timing
    apart = timing.model_copy(update={"column_bus_ns": None})
    rows = [(GROUP * (i % 4) + i // 4 % 4, i, 2) for i in range(64)]
    last, sooner = (max(read(busy, 0, run)[2] for run in rows) for busy in (channel(timing), channel(apart)))
    assert 63 * 5_000 < sooner < 63 * 5_600
    assert 63 * 6_250 <= last < 63 * 6_250 + 40_000


def test_open_rows_are_read_at_the_pace_of_the_data_whatever_shares_the_bus():
    timing = PRESETS["lpddr5"].timing
    apart = timing.model_copy(update={"column_bus_ns": None})
    rows = [(GROUP * i, 3, 8) for i in range(4)]
    ends = []
    for busy in (channel(timing), channel(apart)):
        read(busy, 0, *rows)
        ends.append([read(busy, LATER, run) for run in rows * 4])
    assert ends[0] == ends[1]


def test_a_bus_that_is_full_has_its_own_pace():
    # Rows are ready 3.75 ns apart, 8 bursts take 10 in a bus of their own: 32 bursts of four groups follow each other.
    last = read(channel(), 0, *((GROUP * i, 0, 8) for i in range(4)))[2]
    assert RCD + 32 * BURST <= last <= RCD + 32 * BURST + 2 * ACT


def test_pseudo_channels_have_buses_of_their_own():
    # The second waits for the row bus of the channel, 1.25 ns.
    assert read(channel(), 0, (0, 0, 8), (OTHER_PC, 0, 8))[2] == RCD + ROW_BUS + 7 * IN_GROUP + BURST


def test_pseudo_channels_activate_apart():
    # An activation after 3.75 ns in each PC, and after 1.25 on the row bus of the channel.
    made = channel()
    firsts = [read(made, 0, (bank, 0, 1))[1] for bank in (0, GROUP, OTHER_PC, OTHER_PC + GROUP)]
    # The rows of the second and the fourth are ready at once, but there is one column command at a time.
    assert firsts == [RCD, RCD + ACT, RCD + 2 * ROW_BUS, RCD + ACT]


def test_a_late_row_does_not_block_those_that_are_open():
    made = channel()
    read(made, 0, (0, 3, 1), (GROUP, 3, 1))
    read(made, LATER, (0, 4, 8))
    # The grid of commands has a place when the late row is ready, so this is less than a place late.
    assert read(made, LATER, (GROUP, 3, 1))[1] < LATER + PLACE


def test_one_group_of_both_stacks_is_read_tccd_r_apart():
    """8 bursts of each stack in turn, all of one group, for longer than the queue: 1.875 ns a burst, not 1.25."""
    made, each = channel(), 8
    read(made, 0, (0, 0, 1), (OTHER_STACK, 0, 1))
    lasts = []
    now = LATER
    for _ in range(20):
        for bank in (0, OTHER_STACK):
            now, _, last = read(made, now, (bank, 0, each))
            lasts.append(last)
    apart = (lasts[-1] - lasts[-17]) / 16 / each
    assert apart == pytest.approx(IN_TURN, rel=0.01)


def test_several_groups_of_both_stacks_are_read_at_the_pace_of_the_bus():
    made = channel()
    banks = [stack + group for group in (0, GROUP) for stack in (0, OTHER_STACK)]
    read(made, 0, *((bank, 0, 1) for bank in banks))
    now, lasts = LATER, []
    for _ in range(20):
        for bank in banks:
            now, _, last = read(made, now, (bank, 0, 8))
            lasts.append(last)
    assert (lasts[-1] - lasts[-33]) / 32 / 8 == pytest.approx(BURST, rel=0.01)


def test_writes_of_one_group_do_not_take_turns():
    made = channel()
    write(made, 0, *((bank, 0, 8) for _ in range(40) for bank in (0, OTHER_STACK)))
    assert made.end_ps <= RCD_WRITE + 640 * BURST + ACT + 8 * IN_GROUP


# -- queues --


def test_the_queue_takes_64_bursts():
    """8 rows of 8 bursts: each that opens a row has left with its ACT, 3.75 ns apart; the others wait for data."""
    made = channel()
    assert read(made, 0, *((GROUP * i, 0, 8) for i in range(8)))[0] == 0
    # The first ACT was at 0, so there is a place; then the second one makes a place, and so on.
    assert [read(made, 0, (0, 0, 1))[0] for _ in range(3)] == [0, ACT, 2 * ACT]


def test_short_queues_hold_up_what_comes_later():
    made = channel(queue=8)
    assert read(made, 0, (0, 0, 8))[0] == 0
    over = read(made, 0, (0, 0, 8))[0]
    assert RCD < over < RCD + 8 * IN_GROUP


# -- writes --

HIGH, LOW = 51, 13  # of 64 bursts: 80 % and 20 %


def test_writes_are_kept_back_until_the_high_mark():
    made = channel()
    assert write(made, 0, *((GROUP * i, 0, 8) for i in range(6))) == (0, 0, 0)
    write(made, 0, (24, 0, 2))
    assert (made.pending_bursts, made.counters.done[0]) == (50, 0)
    write(made, 0, (24, 0, 1))
    assert (made.pending_bursts, made.counters.done[0]) == (0, HIGH)
    # Nothing had used the buses: they turn at once.
    assert made.counters.done[PER_PC : PER_PC + 2] == (0, 0)


def test_drained_writes_follow_each_other():
    made = channel()
    write(made, 0, *((0, 0, 8) for _ in range(7)))
    assert made.end_ps == RCD_WRITE + 55 * IN_GROUP + BURST


def on_grid(begin: int, at: int) -> int:
    """The first place at or after ``at`` of a grid with one at ``begin``."""
    return begin - (begin - at) // PLACE * PLACE


def test_reads_wait_for_writes_down_to_the_low_mark():
    """56 writes of one row: a run of 8 leaves the queue at half of its data. With six of them gone, 8 are left."""
    made = channel()
    write(made, 0, *((0, 0, 8) for _ in range(7)))
    gone = RCD_WRITE + 5 * 8 * IN_GROUP + (7 * IN_GROUP + BURST) // 2
    over, first, _ = read(made, 0, (GROUP, 0, 1))
    assert over == gone
    # The row is open later than the buses have turned (13.8 ns). The last 8 writes have been sent back.
    assert first == on_grid(RCD_WRITE, over + max(TO_READ, RCD))
    assert made.pending_bursts == 8
    assert made.counters.done[PER_PC : PER_PC + 2] == (TO_READ, TO_READ)
    assert flushed(made) == (57, 2)


def test_a_row_that_is_open_waits_for_the_turn_alone():
    made = channel()
    read(made, 0, (GROUP, 0, 1))
    write(made, LATER, *((0, 0, 8) for _ in range(7)))
    over, first, _ = read(made, LATER, (GROUP, 0, 1))
    assert over + TO_READ <= first < over + TO_READ + PLACE
    # The buses turned for the writes too, long after the read before.
    assert made.counters.done[PER_PC : PER_PC + 2] == (TO_READ,) * 2


def test_reads_that_have_not_begun_are_served_after_the_writes():
    """8 reads came first, and only the ACT of their row was given when writes had the buses: their data come later."""
    made = channel()
    promised = read(made, 0, (0, 0, 8))[2]
    write(made, 0, *((GROUP, 0, 8) for _ in range(7)))
    over, first, _ = read(made, 0, (0, 0, 1))
    assert over > promised
    # Of the row that is open, 7 that were sent back are the first; the new one follows them.
    assert over + TO_READ + 7 * IN_GROUP <= first < over + TO_READ + 7 * IN_GROUP + PLACE
    assert made.counters.done[0] - made.pending_bursts <= 8 + 56 + 1
    assert flushed(made) == (8 + 56 + 1, 2)


def test_bursts_that_have_left_the_queue_are_sent_before_the_buses_turn():
    """Two runs of 8 side by side: when their first halves are over, six commands of theirs are still to come.

    A turn of the buses takes a burst here, so nothing else has these bursts sent before the writes.
    """
    made = channel(HBM3.model_copy(update={"rtw_ns": 0.0}))
    read(made, 0, (0, 0, 1), (GROUP, 0, 1))
    read(made, LATER, (0, 0, 8), (GROUP, 0, 8))
    write(made, LATER + 10 * BURST - 1, *((0, 0, 8) for _ in range(7)))
    assert made.returned_bursts == 0
    assert made.counters.done[PER_PC] == (1 + 6) * BURST


def test_bursts_that_are_sent_back_are_yet_to_be_moved():
    made = channel()
    read(made, 0, (0, 0, 8))
    write(made, 0, *((GROUP, 0, 8) for _ in range(7)))
    assert made.counters.done[0] == 8 + 56
    assert made.returned_bursts == 7
    flushed(made)
    assert made.returned_bursts == 0


def test_at_a_turn_rows_that_can_open_are_the_first():
    """Three rows of one bank, each of which waits for the one before, hold up no row of another bank behind them."""
    made = channel()
    write(made, 0, *((0, row, 1) for row in range(3)), *((GROUP, 0, 8) for _ in range(6)))
    assert made.end_ps == on_grid(RCD_WRITE, ACT + RCD_WRITE) + 47 * IN_GROUP + BURST


def test_a_turn_counts_from_rows_that_are_being_opened():
    made = channel()
    read(made, 0, (8, 0, 1))
    ready = read(made, 30_000, (0, 0, 1))[1]
    write(made, 30_000, *((GROUP, 0, 8) for _ in range(7)))
    first = made.end_ps - BURST - 55 * IN_GROUP
    assert RCD + 30_000 + TO_WRITE <= first < ready + TO_WRITE + PLACE


def test_a_read_waits_for_the_drain_that_is_expected():
    made = channel()
    write(made, 0, *((GROUP, 0, 8) for _ in range(7)))
    began = read(made, 0, (0, 0, 1))[0]
    write(made, began, *((GROUP, 0, 8) for _ in range(6)))
    over = read(made, began, (0, 0, 1))[0]
    few, many = made.copy(), made.copy()
    assert few.pending_bursts <= LOW
    write(many, over, *((GROUP, 0, 1) for _ in range(HIGH - 1 - many.pending_bursts)))
    soon, late = read(few, over, (8, 0, 1)), read(many, over, (8, 0, 1))
    # One more write begins a drain, before the row of the read is open.
    assert [after - before for before, after in zip(soon, late, strict=True)] == [0, over - began, over - began]
    # What is promised is no state: reads behind it have none of it.
    assert few.end_ps == many.end_ps


@pytest.mark.parametrize("queue", [1, 2, 3])
def test_drains_of_short_queues_with_near_marks(queue):
    made = channel(HBM3.model_copy(update={"high": 0.9, "low": 0.89}), queue)
    for now in range(0, 4000, 1000):
        write(made, now, (0, now, 1))
        assert read(made, now, (GROUP, now, 1))[0] >= now
    assert flushed(made) == (8, 8)


def test_a_refresh_closes_the_rows_that_are_not_in_use():
    made = channel()
    read(made, 0, (0, 0, 1))
    read(made, LATER, (GROUP, 0, 8))
    soon = LATER + 1000
    made.serve(soon, 0, ((GROUP, 0, 1),), False, True)
    assert made.counters.done[1] == 2
    assert read(made, soon, (0, 1, 1))[1] < soon + RP + RCD


def test_idle_time_is_filled_with_writes():
    made = channel()
    write(made, 0, (0, 0, 8))
    assert read(made, LATER, (GROUP, 0, 1)) == (LATER, LATER + RCD, LATER + RCD + BURST)
    counters = made.counters
    assert made.pending_bursts == 0
    assert counters.done[:2] == (9, 2)
    assert counters.done[2:4] == (8, 1)
    # The bus was free before: it turned at once, and waited for the row of the writes, and later for that of the read.
    data = 7 * IN_GROUP + BURST
    assert counters.done[4:7] == (RCD_WRITE + data, 0, RCD_WRITE)
    assert counters.done[WRITTEN] == 8
    assert counters.done[PER_PC:] == (0, 0, RCD, 0)


def test_an_open_row_after_idle_time_waits_for_no_turn():
    """It counts from the last command of a write."""
    made = channel()
    write(made, 0, (0, 0, 8))
    assert read(made, LATER, (0, 0, 1))[1] == LATER


def test_a_short_pause_is_filled_as_far_as_it_goes():
    """The row is open for writes after 9.4 ns, and those that have begun when the read comes are done."""
    made = channel()
    write(made, 0, (0, 0, 8))
    read(made, RCD_WRITE // 2, (GROUP, 0, 1))
    assert made.pending_bursts == 7
    assert flushed(made) == (9, 2)


# -- properties --

PAUSES = [0, 0, 0, 700, 5_000, 40_000, 200_000, 3_000_000]
Steps = list[tuple[int, tuple[Run, ...], bool]]


@st.composite
def busy(draw: st.DrawFn, lists: int = 1) -> tuple[HbmTiming, ...]:
    """A timing, and lists of steps of it: how long after the one before, runs, and whether they write."""
    timing = draw(st.sampled_from([HBM3, HBM2, PRESETS["ddr5"].timing]))
    run = st.tuples(st.integers(0, 2 * timing.banks_per_pc - 1), st.integers(0, 3), st.integers(1, 8))
    runs = st.lists(run, min_size=1, max_size=6).map(tuple)
    step = st.tuples(st.sampled_from(PAUSES), runs, st.booleans())
    return timing, *(draw(st.lists(step, min_size=1, max_size=30)) for _ in range(lists))


def go(made: Channel, steps: Steps, now: int = 0) -> list[tuple[int, int, int]]:
    """Each step some time after the one before has entered; times count from ``now``."""
    found, at = [], now
    for pause, runs, writes in steps:
        over, first, last = made.serve(at + pause, 0, runs, writes)
        found.append((over - now, first - now, last - now))
        at = over
    return found


@given(busy())
def test_times_make_sense(drawn):
    timing, steps = drawn
    made, now, end = channel(timing), 0, 0
    before = made.counters
    for pause, runs, writes in steps:
        now += pause
        over, first, last = made.serve(now, 0, runs, writes)
        assert now <= over <= last
        assert now <= first <= last
        now, counters = over, made.counters
        assert all(new >= old for new, old in zip(counters.done, before.done, strict=True))
        assert all(idle <= done for idle, done in zip(counters.done[2:4], counters.done[:2], strict=True))
        assert 0 <= made.pending_bursts < 64
        before = counters
        end = max(end, made.end_ps)
        assert made.settled_ps > made.end_ps


@given(busy())
def test_every_burst_is_served_once(drawn):
    timing, steps = drawn
    made = channel(timing)
    go(made, steps)
    assert flushed(made)[0] == sum(n for _, runs, _ in steps for _, _, n in runs)


@given(busy(), st.booleans())
def test_no_faster_than_the_buses(drawn, writes):
    timing, steps = drawn
    made = channel(timing)
    only = [(0, runs, writes) for _, runs, _ in steps]
    go(made, only)
    bursts = [0, 0]
    for _, runs, _ in only:
        for bank, _, n in runs:
            bursts[bank // timing.banks_per_pc] += n
    served = max(bursts) - made.pending_bursts
    assert made.end_ps >= served * round(timing.ccd_s_ns * 1000)


@pytest.mark.parametrize("turns", [{}, {"rtw_ns": 0.0, "wtr_ns": 0.0}], ids=["as they are", "no turns"])
@given(drawn=busy())
def test_no_window_that_begins_and_ends_idle_moves_more_than_the_buses_can(turns, drawn):
    timing, steps = drawn
    made, now, begin, moved_before = channel(timing.model_copy(update=turns)), 0, 0, 0

    def moved() -> int:
        """Writes in idle time are moved before a window."""
        return made.counters.done[0] - made.counters.done[2] - made.returned_bursts

    for pause, runs, writes in [*steps, (LATER, ((0, 0, 1),), False)]:
        now += pause
        if now >= made.settled_ps:
            assert (moved() - moved_before) * round(timing.ccd_s_ns * 1000) <= 2 * (made.end_ps - begin)
            begin, moved_before = now, moved()
        now, _, _ = made.serve(now, 0, runs, writes)


@given(busy(2))
def test_a_copy_behaves_alike_and_apart(drawn):
    timing, steps, more = drawn
    made = channel(timing)
    go(made, steps)
    copied, state = made.copy(), made.state(made.end_ps, 0, 0)
    found = go(made, more, made.end_ps)
    assert copied.state(copied.end_ps, 0, 0) == state
    assert go(copied, more, copied.end_ps) == found
    assert copied.counters == made.counters


@given(busy(2), st.integers(1, 10**9))
def test_idle_time_is_forgotten(drawn, longer):
    """When all is settled it does not matter how long ago that was."""
    timing, steps, more = drawn
    made = channel(timing)
    go(made, steps)
    later, at = made.copy(), made.settled_ps
    assert go(made, more, at) == go(later, more, at + longer)
    assert made.counters.done == later.counters.done


@given(busy(2))
def test_equal_states_behave_alike(drawn):
    """A channel made of the state by shifting it in time is in the same one."""
    timing, steps, more = drawn
    made, later = channel(timing), channel(timing)
    go(made, steps)
    go(later, steps, LATER)
    at = made.end_ps
    assert made.state(at, 0, 0) == later.state(at + LATER, 0, 0)
    assert go(made, more, at) == go(later, more, at + LATER)
