"""What turns took of banks, by hand: HBM3, two pseudo-channels; and that it adds up. Time in ps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slice_support import counters_of

from engine_support import hbm, machine, place
from kernbench.components.hbm.banks import BankedMemory, Histories
from kernbench.components.hbm.channel import PER_PC
from kernbench.core.log import By
from kernbench.core.observed import BankTime
from kernbench.engine.engine import GraphEngine
from kernbench.messages.fabric import Access
from kernbench.messages.requests import PeDmaMsg
from kernbench.observe.critical_path_model import PathPart
from kernbench.observe.slices import slice_times
from kernbench.topology.hbm_spec import HBM3, Refresh, interleave
from kernbench.triton_emu.tl_context import TLContext as Tl
from observed import log_of, logged
from path_support import BANKS, SMALL, check_request, path_of, run

RCD, RP, RC = 19_400, 16_300, 45_000
BURST, IN_GROUP = 1250, 2500
TO_WRITE, TO_READ = 12_500, 13_800
PLACE = BURST  # of the grid of column commands
ROW_OF_ALL = 2 * 32 * 1024  # bytes of a row of all banks of two PCs
LATER = 1_000_000
KIB = 1024
PERIOD, OUTAGE = 3_900_000, 417_200


def memory(refresh: Refresh = "none") -> BankedMemory:
    made = BankedMemory(Histories(HBM3, 2, interleave(8, xor=False), 64, refresh), 2048)
    made.observed = True
    return made


def turn(made: BankedMemory, at: int, pa: int, nbytes: int, *, write: bool = False) -> tuple[int, int, BankTime]:
    """Serve an access at a time: when its turn began, when it was over, and what it took."""
    served = made.serve(Access(pa, nbytes), write, 0, nbytes, at)
    end = served.over_ps if write else served.last_ps
    assert made.took is not None
    start, took = made.took.split(at, end)
    return start, end, took


def test_a_row_of_an_idle_bank_takes_trcd():
    start, end, took = turn(memory(), 100, 0, 64)
    data = IN_GROUP + BURST
    assert (start, end) == (100, 100 + RCD + data)
    assert (took.rows, took.turning, took.refresh) == (RCD, 0, 0)
    assert (took.bursts, took.hits) == (2, 1)
    assert (took.taken, took.opened, took.turned) == (RCD + data, RCD, 0)


def test_an_open_row_is_all_data():
    made = memory()
    turn(made, 0, 0, 64)
    start, end, took = turn(made, LATER, 64, 64)
    assert (start, end) == (LATER, LATER + IN_GROUP + BURST)
    assert (took.rows, took.turning, took.hits, took.taken) == (0, 0, 2, IN_GROUP + BURST)


def test_another_row_takes_trp_and_trcd():
    made = memory()
    turn(made, 0, 0, 64)
    start, end, took = turn(made, LATER, ROW_OF_ALL, 64)
    assert took.rows == RP + RCD
    assert end - start == RP + RCD + IN_GROUP + BURST


def test_spread_refresh_is_a_share_of_all_but_rows():
    share = HBM3.refresh_share
    start, end, took = turn(memory("spread"), 100, 0, 64)
    data = end - start - RCD
    assert data == pytest.approx((IN_GROUP + BURST) / (1 - share), abs=4)
    assert took.refresh == pytest.approx(data * share, abs=1)


def test_a_refresh_that_is_met_is_its_outage():
    # It comes to the banks in the middle of the outage.
    at = PERIOD + OUTAGE // 2
    start, end, took = turn(memory("all-bank"), at, 0, 64)
    assert (start, end) == (at, PERIOD + OUTAGE + RCD + IN_GROUP + BURST)
    assert (took.refresh, took.rows, took.turning) == (OUTAGE // 2, RCD, 0)


def test_a_refresh_in_the_middle_of_a_turn_is_its_outage():
    at = PERIOD - RCD - IN_GROUP
    start, end, took = turn(memory("all-bank"), at, 0, 256)
    assert (start, end) == (at, at + RCD + 7 * IN_GROUP + BURST + OUTAGE)
    assert (took.refresh, took.rows) == (OUTAGE, RCD)


def test_a_turn_without_refresh_has_none():
    for at in (0, PERIOD // 2, PERIOD + OUTAGE, 3 * PERIOD - 100_000):
        assert turn(memory("all-bank"), at, 0, 64)[2].refresh == 0


def test_a_read_behind_another_begins_when_the_bus_is_free():
    # The second is in another group. Its row opens while the first has the bus, and its bursts go between those.
    made = memory()
    turn(made, 0, 0, 256)
    start, end, took = turn(made, 0, 512, 256)
    assert start == RCD + 7 * IN_GROUP + BURST
    assert end > start
    assert took.rows == 0


def test_a_read_after_a_drain_waits_for_the_buses_to_turn():
    # 56 bursts are more than the high mark. The buses, which nothing has used, turn at once, and back in 13.8 ns.
    made = memory()
    _, over, took = turn(made, 0, 0, 56 * 32, write=True)
    assert over == 0
    assert (took.rows, took.turning, took.refresh, took.turned) == (0, 0, 0, 0)  # it has not waited for that
    assert took.bursts == 56
    start, end, took = turn(made, 0, 4 * ROW_OF_ALL, 32)
    assert took.turning == TO_READ
    assert took.turned == 2 * TO_READ  # of each bus
    assert took.rows + took.turning + took.refresh < end - start


def test_writes_in_idle_time_are_no_time_of_the_access_that_finds_it():
    made = memory()
    turn(made, 0, 0, 64, write=True)
    start, end, took = turn(made, LATER, 64, 64)
    # The row is open now, and the last write long over.
    assert (start, end) == (LATER, LATER + IN_GROUP + BURST)
    assert (took.rows, took.turning) == (0, 0)
    assert (took.bursts, took.hits) == (4, 3)
    assert took.turned == 0


@pytest.mark.parametrize("refresh", ["all-bank", "spread", "none"])
@given(
    accesses=st.lists(
        st.tuples(st.integers(0, 200_000), st.integers(0, 1 << 16), st.integers(1, 96), st.booleans()),
        min_size=1,
        max_size=40,
    )
)
def test_turns_add_up_to_what_was_done(refresh, accesses):
    made, now, turns = memory(refresh), PERIOD - 400_000, []
    for after, block, n, write in accesses:
        now += after
        access = Access(32 * block, 32 * n)
        served = made.serve(access, write, 0, access.nbytes, now)
        end = served.over_ps if write else served.last_ps
        assert made.took is not None
        start, took = made.took.split(now, end)
        assert now <= start <= end
        assert min(took.rows, took.turning, took.refresh) >= 0
        assert took.rows + took.turning + took.refresh <= end - start
        turns.append(took)
        now = served.over_ps
    done = counters_of(made).done
    found = BankTime(*[sum(column) for column in zip(*turns, strict=True)])
    assert found.bursts == done[0]
    assert found.hits == done[0] - done[1]
    turned, opened = done[5] + sum(done[PER_PC : PER_PC + 2]), done[6] + sum(done[PER_PC + 2 :])
    assert (found.turned, found.opened) == (turned, opened)


def two_streams(*, cut: bool) -> GraphEngine:
    """Two PEs read a slice: both at once, or one in the middle of the other's."""
    engine = logged(machine(*SMALL, *BANKS))
    handles = [engine.submit(PeDmaMsg(pe=(0, 0, 0), pa=hbm(0, 0, 0), nbytes=1024 * KIB))]
    if cut:
        engine.run_until(engine.now + 2000)
    handles.append(engine.submit(PeDmaMsg(pe=(0, 0, 1), pa=hbm(0, 0, 0, 4 << 20), nbytes=64 * KIB)))
    for handle in handles:
        engine.wait(handle)
    return engine


def test_a_stretch_that_is_cut_counts_once():
    for cut in (False, True):
        engine = two_streams(cut=cut)
        turns = log_of(engine).seen.turns
        assert turns.bursts.sum() == 1088 * KIB // 32
        assert set(turns.by[1:].tolist()) == {By.BANK}
        own = np.flatnonzero(turns.of == turns.of[0])
        assert (turns.start[own[1:]] >= turns.end[own[:-1]]).all()


def test_the_time_of_a_slice():
    # A stream of 1 MiB: 4096 bursts of 1.25 ns on each of 8 buses, and what refresh makes of that; rows hide behind.
    engine = logged(machine(*SMALL, *BANKS, "cube.hbm.refresh=spread"))
    handle = engine.submit(PeDmaMsg(pe=(0, 0, 0), pa=hbm(0, 0, 0), nbytes=1024 * KIB))
    engine.wait(handle)
    (found,) = slice_times(log_of(engine).seen, path_of(engine, handle))
    assert (found.where, found.bursts) == ("sip0.cube0.hbm0", 32_768)
    assert found.data_ps == 4096 * 1250
    assert found.refresh_ps == round(4096 * 1250 * HBM3.refresh_share / (1 - HBM3.refresh_share))
    assert found.turnarounds_ps == 0
    assert 32_768 - found.hits == 1024  # rows of 1 KiB
    assert found.busy_ps <= handle.ended_ps - handle.submitted_ps


def reads_all(p: int, *, tl: Tl) -> None:
    tl.load(p, (64, 256), "f16")


def test_a_path_names_who_had_the_slice():
    engine = logged(machine(*SMALL, *BANKS))
    x = place(engine, np.zeros((64, 256), np.float16))
    handle = run(engine, reads_all, x, targets=((0, 0, 0), (0, 0, 1)))
    parts, hops = check_request(engine, handle), path_of(engine, handle).hops
    assert parts[PathPart.MEMORY_QUEUE] == sum(hop.ps for hop in hops)
    for hop in hops:
        assert (hop.waited_for, hop.direction) == ("memory", "sip0.cube0.hbm0")
        assert hop.waiting.pe != hop.cause.pe
        assert hop.waiting.line == hop.cause.line > 0
