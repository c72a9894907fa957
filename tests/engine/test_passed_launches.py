"""Launches without rows: how often samples count for them, and the counts that they add, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from compiled import SPREAD
from engine_support import place, two_cubes
from kernbench.engine.engine import GraphEngine
from kernbench.engine.launch_counts import count_launch, count_part, count_sip
from kernbench.engine.passed_launches import (
    LINK_BUSY_PS,
    LINK_BYTES,
    ExtendedLaunch,
    LaunchKind,
    PartCount,
    PassedLaunches,
    WorkSums,
)
from kernbench.messages.requests import KernelLaunchMsg, KernelRef
from kernbench.triton_emu.tl_context import TLContext as Tl

ROWS = PartCount("hbm_ctrl", "rows")
NO_WORKS = WorkSums(*(np.empty(0),) * 6)
CHEAP_SAMPLE = None
"""A sample that costs little to simulate, and whose counts are not taken"""


def counts(nbytes: int, rows: int) -> dict[str | PartCount, np.ndarray]:
    return {LINK_BYTES: np.array([nbytes, 2 * nbytes]), ROWS: np.array([rows])}


@pytest.fixture
def passed() -> PassedLaunches:
    """Launches 0 to 2 are samples of a kind. Launches 3 to 8 passed, and launch 9 is folded."""
    kind, launches = LaunchKind(), PassedLaunches()
    for launch, counted in enumerate((counts(10, 1), counts(14, 2), CHEAP_SAMPLE)):
        kind.add_sample(launch, 100 + launch, counted)
    for launch in range(3, 9):
        launches.add(launch, kind)
    launches.fold(9, kind, NO_WORKS)
    return launches


def test_each_passed_launch_adds_the_mean_of_the_counted_samples(passed):
    assert passed.counts(LINK_BYTES, 2).tolist() == [6 * 12, 6 * 24]
    assert passed.part_counts() == {ROWS: 9}


def test_samples_count_for_the_launches_that_they_stand_for(passed):
    launches = np.array([0, 1, 2, 10, -1])
    assert passed.weights(launches).tolist() == pytest.approx([1 + 7 / 3] * 3 + [1, 1])
    assert passed.weights(launches, for_folded=False).tolist() == [3, 3, 3, 1, 1]
    assert [passed.sample_of(launch) for launch in (3, 9, 10)] == [1, 1, 10]


def test_a_part_of_a_collective_counts_for_the_rest(passed):
    passed.extended[10] = ExtendedLaunch(2.5, counts(4, 2))
    assert passed.counts(LINK_BYTES, 2).tolist() == [6 * 12 + 10, 6 * 24 + 20]
    assert passed.part_counts() == {ROWS: 9 + 5}
    assert passed.weights(np.array([10, 11, -1])).tolist() == [3.5, 1, 1]


def copy(p: int, *, tl: Tl) -> None:
    tl.store(p, tl.load(p, 64, "f16"))


def test_a_launch_has_no_part_in_orders_of_the_host_and_in_answers():
    """Links between the IO_CPU and the switch carry only these, as those of launches that pass do."""
    engine = GraphEngine(two_cubes(SPREAD), enable_data=False)
    x, machine = place(engine, np.zeros(64, np.float16)), engine.machine
    before = count_sip(machine, 0)
    launch = KernelLaunchMsg(kernel=KernelRef(name="copy", function=copy), args=(x.arg,), targets=((0, 0, 0),))
    engine.wait(engine.submit(launch))
    of_time, of_launch = count_part(machine, 0, before), count_launch(machine, 0, before)
    links = machine.network.links.values()
    orders = [link.index for link in links if {link.src, link.dst} == {"sip0.pcie_ep", "sip0.io_noc"}]
    assert len(orders) == 2
    for name in (LINK_BYTES, LINK_BUSY_PS):
        assert of_time[name][orders].all()
        assert not of_launch[name][orders].any()
        assert of_launch[name].sum() > 0
