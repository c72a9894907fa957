"""What an access costs: steps of the banks of a channel, counted by wrapping the step."""

from __future__ import annotations

import pytest

from kernbench.components.hbm.banks import BankedMemory
from kernbench.components.hbm.channel import ChannelBanks
from kernbench.components.hbm.layout import Layout, Planner
from kernbench.messages.fabric import Access
from kernbench.topology.hbm_spec import HBM3, MAPPINGS, interleave

ALL = {**MAPPINGS, "interleave": interleave(8, xor=True)}
QUANTUM, BURST = 2048, 32
BURST_PS = 1400  # 1.25 ns and what refresh takes of it
SWEEP = 2 * HBM3.banks_per_pc * HBM3.row_bytes
ACCESSES = {
    "contiguous": Access(4096, 20_000),
    "a tile": Access(3 * SWEEP + 512, 128, 32, 1024),
    "rows that quanta cut": Access(96, 1568, 5, 4096),
    "rows side by side": Access(64, 32, 300, 32),
    "from the last row on": Access(40_960, 256, 20, -1024),
}


@pytest.fixture
def steps(monkeypatch):
    """The bursts of every run that was on a bus: lanes 0 and 1 are the buses."""
    found = []
    step = ChannelBanks._reserve  # noqa: SLF001 - what is counted

    def counted(self, lane, start, now, work):
        if lane < 2:
            found.append(work // BURST_PS)
        return step(self, lane, start, now, work)

    monkeypatch.setattr(ChannelBanks, "_reserve", counted)
    return found


def touched(mapping, access) -> int:
    """Rows of banks that an access touches, counted for each quantum, burst by burst."""
    planner, found = Planner(Layout(HBM3, 2, mapping)), set()
    for at in range(access.nbytes):
        row, column = divmod(at, access.row_bytes)
        burst = (access.pa + row * access.stride + column) // BURST
        base, ((_, ((bank, above, _),)),) = planner.parts(Access(burst * BURST, BURST), 0, BURST)
        found.add((at // QUANTUM, bank, base + above))
    return len(found)


@pytest.mark.parametrize("mapping", ALL.values(), ids=ALL)
@pytest.mark.parametrize("access", ACCESSES.values(), ids=ACCESSES)
def test_a_run_is_one_step(steps, mapping, access):
    memory = BankedMemory(HBM3, 2, mapping, 64, QUANTUM)
    memory.serve(access, False, 0, access.nbytes, 0)
    assert 0 < len(steps) <= touched(mapping, access)
    assert sum(steps) == memory.counts.bursts


def test_a_run_that_is_written_is_one_step(steps):
    access = ACCESSES["a tile"]
    memory = BankedMemory(HBM3, 2, ALL["interleave"], 64, QUANTUM)
    memory.serve(access, True, 0, access.nbytes, 0)
    # The pause before a read of 2 KiB is filled with what is pending. It has a run in each of 4 rows of a PC.
    memory.serve(Access(0, QUANTUM), False, 0, QUANTUM, 10**9)
    assert memory.banks.pending_bursts == 0
    assert len(steps) == touched(ALL["interleave"], access) + 8


@pytest.mark.parametrize("sweeps", [3, 10, 1000])
def test_a_long_access_goes_through_two_sweeps(steps, sweeps):
    memory = BankedMemory(HBM3, 2, ALL["interleave"], 64, QUANTUM)
    memory.serve(Access(0, sweeps * SWEEP), False, 0, sweeps * SWEEP, 0)
    # A run has 256 B here, which lie side by side.
    assert len(steps) <= 2 * SWEEP // 256
    assert memory.counts.bursts == sweeps * SWEEP // BURST
