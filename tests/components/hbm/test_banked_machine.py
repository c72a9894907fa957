"""A machine whose slices have banks: times by hand, events, the same times with and without the express path."""

from __future__ import annotations

from itertools import zip_longest

import pytest
from one_program import EVERY_STEP, SMALL, outcomes

from compiled import compiled
from engine_support import two_cubes
from kernbench.ccl.loading import ccl_config_of, find_packaged_file
from kernbench.common.config import apply_overrides, load_document
from kernbench.engine.engine import GraphEngine
from kernbench.messages.requests import PeDmaMsg
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.topology.builder import compile_topology, topology_file

BANKED = (
    "cube.hbm.timing=hbm3",
    "cube.hbm.access_bytes=null",
    "cube.hbm.refresh=all-bank",
    "cube.components.hbm_ctrl.attrs={access_ns: 2.5}",
)
ACCESS = "cube.components.hbm_ctrl.attrs.access_ns"
PES = ((0, 0, 0), (0, 0, 1))
SLICE_BYTES = 6 << 30
MIB = 1 << 20


def slice_pa(offset: int = 0) -> int:
    return PhysAddr.pe_hbm_addr(0, 0, 0, 0, offset, SLICE_BYTES).encode()


def engine(*changes: str) -> GraphEngine:
    return GraphEngine(two_cubes(*BANKED, *changes), enable_data=False)


def ends_ns(made: GraphEngine, *messages: PeDmaMsg) -> list[float]:
    """When each of some messages, all sent at once, was over."""
    handles = [made.submit(message) for message in messages]
    for handle in handles:
        made.wait(handle)
    return [handle.ended_ps / 1000 for handle in handles]


def read(pe: int, offset: int, nbytes: int) -> PeDmaMsg:
    return PeDmaMsg(pe=PES[pe], pa=slice_pa(offset), nbytes=nbytes, op="read")


def test_an_idle_bank_by_hand():
    # Set-up 2, header 0.125, controller and tCL 15, tRCD 19.4; two bursts of a group come in 2.5 + 1.25.
    made = engine()
    there = made.machine.route("sip0.cube0.pe0.pe_dma", "sip0.cube0.hbm0")
    back = made.machine.route("sip0.cube0.hbm0", "sip0.cube0.pe0.pe_dma")
    ways = (there.total_overhead_ps + back.total_overhead_ps) / 1000
    assert ends_ns(made, read(0, 0, 64)) == [pytest.approx(2 + ways + 0.125 + 15 + 19.4 + 3.75)]


@pytest.mark.parametrize(
    ("changes", "access_ns"),
    [
        (("cube.hbm.timing={cl_ns: 20}",), 22.5),
        (("cube.hbm.timing={cl_ns: 20}", f"{ACCESS}=null"), 20),
        ((f"{ACCESS}=null",), 15),
        ((f"{ACCESS}=40",), 52.5),
    ],
)
def test_an_access_takes_the_controller_and_cl(changes, access_ns):
    as_packaged = ends_ns(engine(), read(0, 0, 64))[0]
    assert ends_ns(engine(*changes), read(0, 0, 64)) == [pytest.approx(as_packaged - 15 + access_ns)]


def test_an_open_row_and_another_by_hand():
    made = engine()
    first = ends_ns(made, read(0, 0, 64))[0]
    begun = made.now
    hit = ends_ns(made, read(0, 64, 64))[0] - begun
    assert hit == pytest.approx(first - 19.4)
    begun = made.now
    # A row of all banks is 256 KiB. Nine of them further, burst 0o22000, the XOR of digits is the same channel.
    other = ends_ns(made, read(0, 9 << 18, 64))[0] - begun
    assert other == pytest.approx(first + 16.3)


@pytest.mark.parametrize("op", ["read", "write"])
@pytest.mark.parametrize("nbytes", [64, 4096, MIB])
def test_an_access_alone_takes_the_events_it_takes_without_banks(nbytes, op):
    alone = PeDmaMsg(pe=PES[0], pa=slice_pa(), nbytes=nbytes, op=op)
    events = []
    for made in (engine(), GraphEngine(compiled("cube.hbm.timing=ideal"), enable_data=False)):
        before = made.n_events
        ends_ns(made, alone)
        events.append(made.n_events - before)
    assert events[0] == events[1]


def test_a_small_access_beside_a_stream_waits_for_queues_and_a_quantum():
    """32 bursts of each pseudo-channel are queued, the quantum has 8; then its own row is opened."""
    alone = ends_ns(engine(), read(1, 16 * MIB, 64))[0]
    big = PeDmaMsg(pe=PES[0], pa=slice_pa(), nbytes=MIB, op="read")
    together = ends_ns(engine(), big, read(1, 16 * MIB, 64))[1]
    assert together - alone <= (32 + 8) * 1.25 + 16.3 + 45


@pytest.mark.parametrize("after_ns", [0, 100, 417.2])
def test_an_access_in_an_outage_waits_for_its_end(after_ns):
    """All slices are refreshed at the same instants: 3.9 us after the start, for tRFC, tRP, tRCD and 0.7 of tRC."""
    made = engine()
    alone = ends_ns(made, read(0, 0, 64))[0]
    there = made.machine.route("sip0.cube0.pe0.pe_dma", "sip0.cube0.hbm0").total_overhead_ps / 1000
    # It comes to the banks after set-up, the way, the header, and the controller's time with CL.
    made.run_until(3900 + after_ns - 2 - there - 0.125 - 15)
    begun = made.now
    assert ends_ns(made, read(0, 16 * MIB, 64))[0] - begun == pytest.approx(alone + 417.2 - after_ns)


def test_an_access_before_an_outage_and_one_after_it_meet_none():
    made = engine()
    alone = ends_ns(made, read(0, 0, 64))[0]
    for at in (3900 - alone, 3900 + 417.2, 7800 - 2 * alone):
        made.run_until(at)
        begun = made.now
        assert ends_ns(made, read(0, round(at / 8) * MIB, 64))[0] - begun <= alone + 16.301


def test_spread_and_no_refresh_have_no_outage():
    for mode in ("spread", "none"):
        made = engine(f"cube.hbm.refresh={mode}")
        alone = ends_ns(made, read(0, 0, 64))[0]
        made.run_until(3950)
        begun = made.now
        assert ends_ns(made, read(0, 0, 64))[0] - begun == pytest.approx(alone - 19.4)


def test_loads_of_a_pe_end_one_after_the_other():
    first, second = ends_ns(engine(), read(0, 0, MIB), read(0, MIB, MIB))
    alone = ends_ns(engine(), read(0, 0, MIB))[0]
    assert first == pytest.approx(alone)
    assert second == pytest.approx(2 * alone, rel=0.02)


def test_pes_share_a_slice():
    ends = ends_ns(engine(), read(0, 0, MIB), read(1, 1600 * 1024, MIB))
    assert max(ends) <= 1.05 * min(ends)


@pytest.mark.parametrize(
    "refresh",
    ["all-bank", pytest.param("spread", marks=pytest.mark.slow), pytest.param("none", marks=pytest.mark.slow)],
)
def test_express_or_not_takes_the_same_time(refresh):
    changes = (*SMALL, *BANKED, f"cube.hbm.refresh={refresh}")
    document = apply_overrides(load_document(topology_file("default")), changes)
    ccl = ccl_config_of(load_document(find_packaged_file()))
    found = [
        list(outcomes(compile_topology(apply_overrides(document, [f"transport.express={express}"])), ccl))
        for express in ("true", "false")
    ]
    for number, (with_it, without) in enumerate(zip_longest(*found)):
        assert with_it == without, f"step {number}: {EVERY_STEP[number]}"


def test_a_read_that_is_cut_keeps_what_is_on_its_way():
    """A write turns the buses first, so the quanta of a long read have their turns late, while its data leave evenly.

    When a third comes, packets are on the way that had no turn yet: they are not taken back.
    """
    made = engine("transport.express=false", "sip.cube_mesh={w: 1, h: 1}")
    asked = (
        (1, "write", 16 << 10, 1_287_104, 0),
        (0, "read", 256 << 10, 2_062_080, 795),
        (2, "write", 4096, 1_379_584, 793_046),
    )
    handles = []
    for pe, op, nbytes, offset, when in asked:
        message = PeDmaMsg(pe=(0, 0, pe), pa=slice_pa(offset), nbytes=nbytes, op=op)
        made.machine.clock.call_at(when, lambda message: handles.append(made.submit(message)), message)
    made.machine.clock.advance()
    assert all(handle.done for handle in handles)
    reply = next(link for link in made.machine.network.links.values() if link.dst == "sip0.cube0.pe0.pe_dma")
    assert reply.nbytes == (256 << 10)
