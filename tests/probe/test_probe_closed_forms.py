"""Every transaction alone on the machine takes what its closed form says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from probe_oracle import Oracle

from ideal_memory import IDEAL
from kernbench.common.ids import HOST, cube_part, pe_part
from kernbench.common.units import ps_to_ns
from kernbench.engine.engine import GraphEngine
from kernbench.messages.requests import HostMsg, MemoryReadMsg, MemoryWriteMsg, PeDmaMsg
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.topology.builder import Topology

MakeMachine = Callable[..., Topology]

SIZES = (64, 256, 1024, 1500, 4096, 65536, 1 << 20)
ODD = (
    *IDEAL,
    "transport.packet_bytes=256",
    "transport.fifo_bytes=2048",
    "cube.noc.link_bw_gbs=100",
    "sip.links.cube_to_cube.bw_gbs=77",
    "sip.links.cube_to_cube.overhead_ns=0.3",
    "cube.hbm.channel_hash=mod",
    "cube.hbm.num_pcs=6",
    "cube.components.hbm_ctrl.attrs.efficiency=0.77",
    "cube.components.sram.attrs.bw_gbs=50",
    "pe.tcm.write_bw_gbs=33",
    "pe.dma.setup_ns=3.7",
    "ns_per_mm=0.013",
)


@dataclass(frozen=True)
class Target:
    """A memory: its node and a physical address in it."""

    node: str
    pa: int


def hbm(topology: Topology, sip: int, cube: int, index: int, offset: int = 0) -> Target:
    size = topology.spec.cube.hbm.bytes_per_slice
    pa = PhysAddr.pe_hbm_addr(0, sip, cube, index, offset, size)
    return Target(cube_part(sip, cube, f"hbm{index}"), pa.encode())


def targets(topology: Topology) -> dict[str, Target]:
    """Memories near and far of PE 0 of cube 0."""
    return {
        "local": hbm(topology, 0, 0, 0),
        "unaligned": hbm(topology, 0, 0, 0, 12345),
        "same corner": hbm(topology, 0, 0, 1),
        "same cube": hbm(topology, 0, 0, 7),
        "next cube": hbm(topology, 0, 1, 0),
        "far cube": hbm(topology, 0, 15, 7),
        "cross-SIP": hbm(topology, 1, 13, 2),
        "SRAM": Target(cube_part(0, 0, "sram"), PhysAddr.cube_sram_addr(0, 0, 0, 0).encode()),
        "far SRAM": Target(cube_part(0, 10, "sram"), PhysAddr.cube_sram_addr(0, 0, 10, 64).encode()),
        "TCM": Target(pe_part(0, 0, 3, "pe_dma"), PhysAddr.pe_tcm_addr(0, 0, 0, 3, 0).encode()),
        "cross-SIP TCM": Target(pe_part(1, 2, 5, "pe_dma"), PhysAddr.pe_tcm_addr(0, 1, 2, 5, 0).encode()),
    }


def message(initiator: str, pa: int, nbytes: int, *, reading: bool) -> HostMsg:
    if initiator != HOST:
        return PeDmaMsg(pe=(0, 0, 0), pa=pa, nbytes=nbytes, op="read" if reading else "write")
    return MemoryReadMsg(pa=pa, nbytes=nbytes) if reading else MemoryWriteMsg(pa=pa, nbytes=nbytes)


def measured_ns(topology: Topology, msg: HostMsg) -> float:
    engine = GraphEngine(topology, enable_data=False)
    handle = engine.submit(msg)
    engine.wait(handle)
    return ps_to_ns(handle.ended_ps - handle.submitted_ps)


def check_all(topology: Topology, sizes: tuple[int, ...]) -> float:
    """Compare every initiator, memory, direction and size; returns the largest difference in ns."""
    oracle, worst = Oracle(topology), 0.0
    for initiator in (pe_part(0, 0, 0, "pe_dma"), HOST):
        for name, target in targets(topology).items():
            for nbytes in sizes:
                for reading in (True, False):
                    expected = oracle.latency(initiator, target.node, target.pa, nbytes, reading=reading)
                    found = measured_ns(topology, message(initiator, target.pa, nbytes, reading=reading))
                    difference = abs(found - float(expected.ns))
                    what = f"{initiator} {'reads' if reading else 'writes'} {nbytes} B, {name}"
                    assert difference <= expected.slack_ns, f"{what}: {found} ns, not {float(expected.ns)}"
                    worst = max(worst, difference)
    return worst


@pytest.mark.slow
def test_all_sizes_without_banks(make_machine: MakeMachine) -> None:
    # Half a picosecond here and there is all that is left, whatever the size and the number of hops.
    assert check_all(make_machine(*IDEAL), SIZES) < 0.002


@pytest.mark.parametrize("header", [16, 64, 96])
def test_header_sizes(make_machine: MakeMachine, header: int) -> None:
    check_all(make_machine(*IDEAL, f"transport.header_bytes={header}"), (4096,))


def test_a_machine_of_odd_figures(make_machine: MakeMachine) -> None:
    check_all(make_machine(*ODD), (64, 1500, 4096, 20000))


def test_express_makes_no_difference(make_machine: MakeMachine) -> None:
    check_all(make_machine(*IDEAL, "transport.express=false"), (1500, 16384))
