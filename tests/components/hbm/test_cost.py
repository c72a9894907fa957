"""What an access costs: quanta that are gone through, and steps of channels that are worked out. Counts, no clocks."""

from __future__ import annotations

import pytest
from slice_support import counters_of

from kernbench.components.hbm.banks import BankedMemory, Histories
from kernbench.components.hbm.layout import RUN_BURSTS, Planner
from kernbench.messages.fabric import Access
from kernbench.topology.hbm_spec import HBM3, MAPPINGS, AddressMapping, interleave

ALL = {**MAPPINGS, "interleave": interleave(8, xor=True), "hash": interleave(8, xor=True, fold_row=True)}
QUANTUM, BURST = 2048, 32
LATER = 1_000_000
PCS, CHANNELS = 8, 4
SWEEP = PCS * HBM3.banks_per_pc * HBM3.row_bytes


class Slices:
    """Slices of a machine: what is known of one is known of all."""

    def __init__(self, mapping: AddressMapping) -> None:
        self.histories = Histories(HBM3, PCS, mapping, 64, "all-bank")
        self.planner = self.histories.planner

    def one(self, base: int = 0) -> BankedMemory:
        return BankedMemory(self.histories, QUANTUM, base)


def read(made: BankedMemory, pa: int, nbytes: int, at: int) -> int:
    return made.serve(Access(pa, nbytes), False, 0, nbytes, at).over_ps


def programme(made: BankedMemory, base: int, begin: int) -> None:
    """Reads and writes of a slice, some of them after idle time."""
    at = begin
    for pa, nbytes, write, pause in (
        (0, 65_536, False, 0),
        (1 << 20, 4096, True, 0),
        (4096, 100, False, 700),
        (1 << 19, 20_000, True, 50_000),
        (0, 300_000, False, 0),
        (64, 64, False, 9_000_000),
    ):
        at = made.serve(Access(base + pa, nbytes), write, 0, nbytes, at + pause).over_ps


@pytest.mark.parametrize("mapping", ALL.values(), ids=ALL)
def test_a_second_slice_that_does_the_same_costs_nothing(mapping):
    slices = Slices(mapping)
    first, others = slices.one(), [slices.one(k << 33) for k in range(1, 4)]
    programme(first, 0, 0)
    served, quanta = slices.histories.served, first.quanta
    assert served > 0
    for k, other in enumerate(others, 1):
        programme(other, k << 33, 0)
        assert counters_of(other) == counters_of(first)
        assert other.quanta == 0
    assert slices.histories.served == served
    assert first.quanta == quanta


def test_the_same_at_another_time_costs_nothing():
    """Times count from what was before: a slice that begins later finds it all."""
    slices = Slices(ALL["interleave"])
    first, later = slices.one(), slices.one()
    read(first, 0, 65_536, LATER)
    served = slices.histories.served
    read(later, 0, 65_536, 2 * LATER + 12_345)
    assert slices.histories.served == served
    assert later.quanta == 0


def test_the_same_after_any_idle_time_costs_nothing():
    slices = Slices(ALL["interleave"])
    first, later = slices.one(), slices.one()
    for made, pause in ((first, LATER), (later, 2 * LATER + 12_345)):
        read(made, 0, 4096, 0)
        read(made, 8192, 4096, pause)
    assert slices.histories.served == 4  # a quantum of 2 KiB is a step


def test_only_what_differs_is_worked_out():
    """A second slice has one access more: its channel has a history of its own from then on, the others have not."""
    slices = Slices(ALL["interleave"])
    first, second = slices.one(), slices.one()
    for made in (first, second):
        read(made, 0, 2048, 0)
    read(second, 0, 64, LATER)
    served = slices.histories.served
    for made in (first, second):
        read(made, 65_536, 2048, 2 * LATER)
    # Channels that have the same runs are one step; then the one that has had one access more is a second.
    assert slices.histories.served - served == 2


def test_a_stream_over_all_channels_is_the_work_of_one():
    """64 KiB are 32 quanta, and each has runs in all four channels: they are alike, so it is a step a quantum."""
    slices = Slices(ALL["interleave"])
    read(slices.one(), 0, 65_536, 0)
    assert slices.histories.served == 32


def test_many_accesses_of_one_place_are_found_again():
    """Polling: an access that comes again when all is settled has one history, whatever it has been before."""
    slices = Slices(ALL["interleave"])
    one = slices.one()
    for k in range(50):
        read(one, 64, 64, k * LATER)
    other = slices.one()
    served = slices.histories.served
    for k in range(50):
        read(other, 64, 64, k * LATER)
    assert slices.histories.served == served <= 50


@pytest.mark.parametrize("mapping", [ALL["MOP4CLXOR"], ALL["interleave"]], ids=["MOP4CLXOR", "interleave"])
@pytest.mark.parametrize("sweeps", [3, 10, 1000])
@pytest.mark.parametrize("write", [False, True], ids=["read", "write"])
def test_a_long_access_goes_through_a_few_sweeps(mapping, sweeps, write):
    memory = Slices(mapping).one()
    memory.serve(Access(0, sweeps * SWEEP), write, 0, sweeps * SWEEP, 0)
    assert memory.quanta <= min(sweeps, 12) * SWEEP // QUANTUM
    assert counters_of(memory).done[0] + memory.pending_bursts >= sweeps * SWEEP // BURST


def runs_of(planner: Planner, access: Access) -> int:
    """Runs of an access, of all channels: rows of banks that each quantum touches, eight bursts at most."""
    found = 0
    for begin in range(0, access.nbytes, QUANTUM):
        *_, parts = planner.parts(access, begin, min(QUANTUM, access.nbytes - begin))
        found += sum(len(channels) * len(runs) for channels, runs in parts)
    return found


ACCESSES = {
    "contiguous": Access(4096, 20_000),
    "a tile": Access(3 * SWEEP + 512, 128, 32, 1024),
    "rows that quanta cut": Access(96, 1568, 5, 4096),
    "rows side by side": Access(64, 32, 300, 32),
    "from the last row on": Access(40_960, 256, 20, -1024),
}


@pytest.mark.parametrize("mapping", ALL.values(), ids=ALL)
@pytest.mark.parametrize("access", ACCESSES.values(), ids=ACCESSES)
def test_bursts_of_a_row_are_runs(mapping, access):
    """Rows of banks that an access touches, counted burst by burst, are as many runs, and steps of a channel."""
    slices = Slices(mapping)
    touched: dict[tuple[int, int, int], set[int]] = {}
    for at in range(access.nbytes):
        row, column = divmod(at, access.row_bytes)
        burst = (access.pa + row * access.stride + column) // BURST
        base, fold, ((((channel, label),), ((bank, above, _),)),) = slices.planner.parts(
            Access(burst * BURST, BURST), 0, BURST
        )
        place = (channel * slices.planner.layout.banks_per_channel + (bank ^ label)) ^ fold, base + above
        touched.setdefault((at // QUANTUM, *place), set()).add(burst)
    assert runs_of(slices.planner, access) == sum(-(-len(bursts) // RUN_BURSTS) for bursts in touched.values())
    memory = slices.one()
    memory.serve(access, False, 0, access.nbytes, 0)
    assert counters_of(memory).done[0] == sum(len(bursts) for bursts in touched.values())
    each = slices.planner.layout.banks_per_channel
    assert slices.histories.served <= len({(quantum, bank // each) for quantum, bank, _ in touched})
