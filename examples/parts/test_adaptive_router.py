"""Two PEs read 64 KiB each from the other SIP at the same time. Wires take no time here and
memory has no banks, so that it can be summed.

A read alone: 2 ns to set the DMA up, 84 ns of parts on the way (xbar 2, 3 routers of 1, UCIe 8 + 8, io_noc 1, port 20,
and the same in reverse on the other side), 0.25 ns for a header of 32 bytes at 128 GB/s, 30 ns until the memory has the
first byte, 84 ns back, and 512 ns for 64 KiB at 128 GB/s: 712.25 ns.
"""

import pytest

from kernbench.messages.requests import PeDmaMsg
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology.builder import resolve_topology

IDEAL = ("cube.hbm.timing=ideal", "cube.components.hbm_ctrl.attrs.access_ns=30")
ADAPTIVE = "sip.components.io_noc.impl=adaptive_router.AdaptiveRouter"


def reads_ns(cubes: tuple[int, ...], *overrides: str) -> list[float]:
    """When the first PE of each of some cubes has read from the same cube of the other SIP."""
    engine = GraphEngine(resolve_topology("default", ("ns_per_mm=0", *IDEAL, *overrides)), enable_data=False)
    slice_bytes = engine.spec.cube.hbm.bytes_per_slice
    reads = [
        PeDmaMsg(pe=(0, cube, 0), pa=PhysAddr.pe_hbm_addr(0, 1, cube, 0, 0, slice_bytes).encode(), nbytes=64 << 10)
        for cube in cubes
    ]
    return [engine.wait(handle).t_end for handle in [engine.submit(read) for read in reads]]


def test_a_read_alone_takes_the_usual_way():
    assert reads_ns((0,)) == reads_ns((0,), ADAPTIVE) == [712.25]


def test_the_second_of_two_goes_around_the_link_of_the_first():
    # They share the link from SIP to SIP: its packets take turns, and the last of 128 KiB is 512 ns later.
    assert max(reads_ns((0, 1))) == pytest.approx(712.25 + 512, abs=0.5)
    # By two links, neither meets the other.
    assert reads_ns((0, 1), ADAPTIVE) == [712.25, 712.25]
