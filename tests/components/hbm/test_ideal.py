"""A slice without banks: 8 channels of 25.6 GB/s that are usable, so 256 B of one take 10 ns, and 2 KiB of all too."""

from __future__ import annotations

from itertools import zip_longest

import pytest
from one_program import EVERY_STEP, SMALL, outcomes
from slice_support import MIB, QUANTUM, Asked, ideal, run

from compiled import compiled
from kernbench.ccl.loading import ccl_config_of, find_packaged_file
from kernbench.common.config import apply_overrides, load_document
from kernbench.engine.engine import GraphEngine
from kernbench.messages.requests import PeDmaMsg
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.topology.builder import compile_topology, topology_file

NS = 1000


def times(*asked: tuple[int, Asked]) -> list[list[tuple[int, int, int, int]]]:
    """The turns of some requests."""
    run(ideal(), *asked)
    return [request.turns for _, request in asked]


def test_reads_of_two_channels_overlap() -> None:
    # Burst 1 lies on channel 1.
    assert times((0, Asked(0, 0, 256)), (0, Asked(1, 256, 256))) == [[(0, 256, 0, 10 * NS)]] * 2


def test_reads_of_one_channel_do_not() -> None:
    # Burst 9 has the digits 1 and 1: channel 0.
    first, second = times((0, Asked(0, 0, 256)), (0, Asked(1, 9 * 256, 256)))
    assert first == [(0, 256, 0, 10 * NS)]
    assert second == [(0, 256, 10 * NS, 20 * NS)]


def test_reads_of_one_requester_overlap_too() -> None:
    assert times((0, Asked(0, 0, 256)), (0, Asked(0, 512, 256))) == [[(0, 256, 0, 10 * NS)]] * 2


def test_a_part_of_the_channels_is_free() -> None:
    # 1 KiB is on channels 0 … 3 until 10 ns; of the next 2 KiB, which begin there at once, half waits for those.
    _, second = times((0, Asked(0, 0, 1024)), (0, Asked(1, 16 * QUANTUM, 2048)))
    assert second == [(0, 2048, 0, 20 * NS)]


def test_work_is_conserved() -> None:
    """Together, two streams take as long as both alone, one after the other."""
    first, second = Asked(0, 0, MIB), Asked(1, MIB, MIB)
    run(ideal(), (0, first), (0, second))
    assert max(first.last_ps, second.last_ps) == 2 * MIB * 10 * NS // QUANTUM


@pytest.mark.parametrize("when", [0, 1, 99_999, 100_000, 2_345_678])
def test_a_small_access_waits_for_a_quantum_in_its_channel_and_one_more(when: int) -> None:
    """A channel is given a quantum ahead at most, 80 ns; one of the stream has 10 ns of each channel."""
    small = Asked(1, 16 * MIB, 64)
    run(ideal(), (0, Asked(0, 0, MIB)), (when, small))
    assert small.last_ps - when <= (80 + 10 + 2.5) * NS


def test_a_stretch_is_cut_where_its_turns_are() -> None:
    """At 100 ns quanta have begun until one is over after 180 ns: 19 of 10 ns. Then one each in turn."""
    big, small = times((0, Asked(0, 0, MIB)), (100 * NS, Asked(1, 16 * MIB, 4096)))
    assert big[:2] == [(0, 19 * QUANTUM, 0, 190 * NS), (19 * QUANTUM, 20 * QUANTUM, 200 * NS, 210 * NS)]
    assert small == [(0, 2048, 190 * NS, 200 * NS), (2048, 4096, 210 * NS, 220 * NS)]
    assert big[-1] == (20 * QUANTUM, MIB, 220 * NS, (MIB // QUANTUM + 2) * 10 * NS)


def test_data_of_a_write_count_while_they_come() -> None:
    """They have been coming since 0, and the slice was idle: at 25 ns, half of 10 KiB are written."""
    (write,) = times((25 * NS, Asked(0, 0, 10240, write=True, since=0)))
    assert write == [(0, 10240, 0, 50 * NS)]
    # One that came while the slice was busy begins after that.
    _, write = times((0, Asked(0, 0, 4096)), (25 * NS, Asked(1, 0, 256, write=True, since=15 * NS)))
    assert write == [(0, 256, 20 * NS, 30 * NS)]


def machine(*changes: str) -> GraphEngine:
    ideal_machine = ("cube.hbm.timing=ideal", "cube.components.hbm_ctrl.attrs={access_ns: 30.0}")
    return GraphEngine(compiled(*ideal_machine, *changes), enable_data=False)


def ends_ns(made: GraphEngine, *asked: tuple[int, int, int]) -> list[float]:
    """When reads of a slice are over, each of a PE of cube 0: (PE, offset, bytes)."""
    pa = PhysAddr.pe_hbm_addr(0, 0, 0, 0, 0, 6 << 30).encode()
    handles = [
        made.submit(PeDmaMsg(pe=(0, 0, pe), pa=pa + offset, nbytes=nbytes, op="read")) for pe, offset, nbytes in asked
    ]
    for handle in handles:
        made.wait(handle)
    return [handle.ended_ps / NS for handle in handles]


def test_a_read_of_a_machine_by_hand() -> None:
    # Set-up 2, header 0.125, access 30, and 10 of a channel, or of all of them.
    made = machine()
    there = made.machine.route("sip0.cube0.pe0.pe_dma", "sip0.cube0.hbm0")
    back = made.machine.route("sip0.cube0.hbm0", "sip0.cube0.pe0.pe_dma")
    ways = (there.total_overhead_ps + back.total_overhead_ps) / NS
    alone = pytest.approx(2 + ways + 0.125 + 30 + 10)
    assert ends_ns(made, (0, 0, 256)) == [alone]
    assert ends_ns(machine(), (0, 0, 2048)) == [alone]


def test_reads_of_two_pes_overlap_but_for_the_link() -> None:
    """Both come in 10 ns, the second behind the header and the data of the first on the links that they share."""
    alone = [*ends_ns(machine(), (0, 0, 256)), *ends_ns(machine(), (1, 256, 256))]
    together = ends_ns(machine(), (0, 0, 256), (1, 256, 256))
    assert [got - one for got, one in zip(together, alone, strict=True)] == pytest.approx([0, 0], abs=1 + 0.125)
    same = ends_ns(machine(), (0, 0, 256), (1, 9 * 256, 256))
    assert max(same) - max(alone) == pytest.approx(10, abs=1)


@pytest.mark.slow
def test_express_or_not_takes_the_same_time() -> None:
    document = apply_overrides(
        load_document(topology_file("default")),
        (*SMALL, "cube.hbm.timing=ideal", "cube.components.hbm_ctrl.attrs={access_ns: 30.0}"),
    )
    ccl = ccl_config_of(load_document(find_packaged_file()))
    found = [
        list(outcomes(compile_topology(apply_overrides(document, [f"transport.express={express}"])), ccl))
        for express in ("true", "false")
    ]
    for number, (with_it, without) in enumerate(zip_longest(*found)):
        assert with_it == without, f"step {number}: {EVERY_STEP[number]}"
