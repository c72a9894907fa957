"""What runs take, by hand: HBM3 with 1 / (1 - 0.1070 of refresh) on work, so a burst takes 1.4 ns, in a group 2.799."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.components.hbm.banks import BankedMemory, Banks
from kernbench.components.hbm.channel import ChannelBanks
from kernbench.messages.fabric import Access
from kernbench.topology.hbm_spec import HBM2, HBM3, MAPPINGS, interleave

RCD, RP = 19_400, 16_300
BURST, IN_GROUP = 1400, 2799
LATER = 1_000_000
Run = tuple[int, int, int]


def banks() -> Banks:
    return Banks(HBM3, 2, 64)


def serve(made: Banks, now: int, base: int, runs: tuple[Run, ...], write: bool) -> tuple[int, int, int]:
    """Runs of the only channel."""
    return made.serve(now, base, (((0,), runs),), write)


def test_refresh_takes_a_tenth():
    assert HBM3.refresh_share == pytest.approx((350 + 16.3 + 19.4 + 0.7 * 45) / 3900)


def test_an_idle_bank_answers_after_trcd():
    assert serve(banks(), 0, 0, ((0, 0, 1),), False) == (0, RCD, RCD + BURST)


def test_an_open_row_answers_at_once():
    made = banks()
    serve(made, 0, 0, ((0, 3, 1),), False)
    assert serve(made, LATER, 0, ((0, 3, 4),), False) == (LATER, LATER, LATER + 3 * IN_GROUP + BURST)
    assert made.counts[:2] == (5, 4)


def test_another_row_is_closed_first():
    made = banks()
    serve(made, 0, 0, ((0, 3, 1),), False)
    assert serve(made, LATER, 0, ((0, 4, 1),), False)[1] == LATER + RP + RCD


def test_a_bank_is_activated_every_trc():
    # tRC of 45 ns with refresh is 50,390 ps; the row before was opened at 0.
    made = banks()
    serve(made, 0, 0, ((0, 3, 1),), False)
    serve(made, 0, 0, ((0, 4, 1),), False)
    assert serve(made, 0, 0, ((0, 5, 1),), False)[1] == 2 * 50_390 + RCD


@pytest.mark.parametrize("pcs", [1, 2, 3, 8])
def test_the_pcs_of_a_channel_open_rows_one_after_another(pcs):
    timing = HBM3.without_refresh.model_copy(update={"pcs_per_channel": pcs})
    memory = BankedMemory(timing, 8, interleave(8, xor=True), 64, 2048)
    # All PCs at once: a row of each, of which eight bursts are read in one group.
    assert memory.serve(Access(0, 2048), False, 0, 2048, 0).last_ps == (pcs - 1) * 1250 + RCD + 7 * 2500 + 1250


def test_a_row_that_was_just_open_is_still_served():
    made = banks()
    for row in (3, 4, 3):
        serve(made, 0, 0, ((0, row, 1),), False)
    assert made.counts.hits == 1


def test_banks_of_other_groups_share_the_bus():
    # The second row opens an activation's 4.199 ns later, and its bursts go between those of the first.
    made = banks()
    _, _, last = serve(made, 0, 0, ((0, 0, 8), (4, 0, 8)), False)
    assert last == RCD + 4199 + 7 * IN_GROUP + BURST


def test_a_bus_that_is_full_has_its_own_pace():
    # 4 groups of 8 bursts, the last row 3 activations later: 32 bursts on the bus take longer.
    _, _, last = serve(banks(), 0, 0, tuple((4 * i, 0, 8) for i in range(4)), False)
    assert last == RCD + 32 * BURST


def test_pseudo_channels_have_buses_of_their_own():
    # The second waits for the row bus of the channel, 1.4 ns.
    assert serve(banks(), 0, 0, ((0, 0, 8), (32, 0, 8)), False)[2] == RCD + 1400 + 7 * IN_GROUP + BURST


def test_a_late_row_does_not_block_those_that_are_open():
    made = banks()
    serve(made, 0, 0, ((0, 3, 1), (4, 3, 1)), False)
    serve(made, LATER, 0, ((0, 4, 8),), False)
    assert serve(made, LATER, 0, ((4, 3, 1),), False)[1] == LATER


def test_the_queue_takes_64_bursts():
    # 64 are in; the 65th enters when half of the first run's data are over.
    made = banks()
    serve(made, 0, 0, tuple((4 * i, 0, 8) for i in range(8)), False)
    over, _, _ = serve(made, 0, 0, ((0, 0, 1),), False)
    assert over == (2 * RCD + 7 * IN_GROUP + BURST) // 2


def test_writes_are_kept_back_until_the_high_mark():
    made = banks()
    serve(made, 0, 0, tuple((4 * i, 0, 8) for i in range(6)), True)
    assert (made.pending_bursts, made.counts.bursts) == (48, 0)
    # 56 are more than 51: the oldest go until no more than 13 are left.
    serve(made, 0, 0, ((24, 0, 8),), True)
    assert (made.pending_bursts, made.counts.bursts) == (8, 48)


def test_reads_wait_for_buses_that_turn():
    made = banks()
    serve(made, 0, 0, tuple((4 * i, 0, 8) for i in range(7)), True)
    end = made.end_ps
    assert serve(made, 0, 0, ((0, 0, 1),), False)[1] > end
    # There and back: 12.5 + 15 and 13.8 + 15 ns, with refresh; both buses of the channel turn.
    assert made.counts.turn_ps == (30_794 + 32_250,) * 2


def test_idle_time_is_filled_with_writes():
    made = banks()
    serve(made, 0, 0, ((0, 0, 8),), True)
    assert serve(made, LATER, 0, ((4, 0, 1),), False) == (LATER, LATER + RCD, LATER + RCD + BURST)
    assert made.pending_bursts == 0


def test_too_short_a_pause_is_left():
    made = banks()
    serve(made, 0, 0, ((0, 0, 8),), True)
    serve(made, 50_000, 0, ((4, 0, 1),), False)
    assert made.pending_bursts == 8


def test_restored_banks_serve_as_before():
    made = banks()
    serve(made, 0, 0, ((0, 3, 4), (7, 1, 8)), False)
    serve(made, 0, 0, ((9, 3, 4),), True)
    saved = made.save()
    runs = tuple((bank, 2, 8) for bank in range(16))
    first = serve(made, 10, 0, runs, False), made.counts
    made.restore(saved)
    assert (serve(made, 10, 0, runs, False), made.counts) == first


MAPPINGS_OF_SLICES = {**MAPPINGS, "interleave": interleave(8, xor=True)}


@pytest.mark.parametrize("timing", [HBM3, HBM2], ids=["hbm3", "hbm2"])
@pytest.mark.parametrize("mapping", MAPPINGS_OF_SLICES.values(), ids=MAPPINGS_OF_SLICES)
@pytest.mark.parametrize("write", [False, True], ids=["read", "write"])
def test_sweeps_are_repeated_not_gone_through(timing, mapping, write):
    memory, through = (BankedMemory(timing, 2, mapping, 64, 2048) for _ in range(2))
    nbytes = 9 * memory.sweep_bytes + 5000
    access = Access(4096, nbytes)
    stretch = memory.serve(access, write, 0, nbytes, 0)
    assert memory.quanta <= 2 * memory.sweep_bytes // 2048 + 3
    over = 0
    for begin in range(0, nbytes, 2048):
        over = through.serve(access, write, begin, min(begin + 2048, nbytes), over).over_ps
    assert stretch.over_ps == pytest.approx(over, rel=0.012)
    assert memory.counts.bursts + memory.banks.pending_bursts == nbytes // 32 + 1
    assert memory.counts.bursts == pytest.approx(through.counts.bursts, abs=64)


class Strangers(Banks):
    """Channels that never come together again."""

    __slots__ = ()

    def meet(self, now: int) -> None:
        pass


@pytest.mark.parametrize("mapping", MAPPINGS_OF_SLICES.values(), ids=MAPPINGS_OF_SLICES)
@given(
    accesses=st.lists(
        st.tuples(
            st.sampled_from([(32, 1), (1024, 1), (128, 64), (65_536, 1), (98_304, 1)]),
            st.integers(0, 1 << 10),
            st.sampled_from([0, 32, 256]),
            st.sampled_from([0, 100, 5_000, 200_000, 3_000_000]),
            st.booleans(),
        ),
        min_size=10,
        max_size=30,
    )
)
def test_channels_in_step_are_as_each_alone(mapping, accesses):
    together, apart = (BankedMemory(HBM3, 8, mapping, 64, 2048) for _ in range(2))
    apart.banks = Strangers(HBM3, 8, 64)
    now = 0
    for (nbytes, rows), place, offset, pause, write in accesses:
        access = Access(2048 * place + offset, nbytes, rows, 1024)
        now += pause
        found = together.serve(access, write, 0, access.nbytes, now)
        assert found == apart.serve(access, write, 0, access.nbytes, now)
        assert together.counts == apart.counts
        now = max(now, found.over_ps)


def test_a_stream_over_all_channels_is_gone_through_once(monkeypatch):
    # 64 KiB are 32 quanta, each with a run in both PCs of every channel.
    memory, runs_of, taken = BankedMemory(HBM3, 8, interleave(8, xor=True), 64, 2048), ChannelBanks.serve, []

    def serve(self, now, base, runs, write):
        taken.append(len(runs))
        return runs_of(self, now, base, runs, write)

    monkeypatch.setattr(ChannelBanks, "serve", serve)
    memory.serve(Access(0, 65_536), False, 0, 65_536, 0)
    assert sum(taken) == 64
    # One channel is asked for something of its own: two are gone through, until a stream finds them alike again.
    memory.serve(Access(0, 64), False, 0, 64, LATER)
    taken.clear()
    memory.serve(Access(0, 8192), False, 0, 8192, 2 * LATER)
    assert sum(taken) == 16
    memory.serve(Access(1 << 20, 1 << 19), False, 0, 1 << 19, 3 * LATER)
    taken.clear()
    memory.serve(Access(1 << 21, 65_536), False, 0, 65_536, 5 * LATER)
    assert sum(taken) == 64
