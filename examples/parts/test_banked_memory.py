"""PEs of a corner access their slice, 1 KiB each. Wires take no time here, so that it can be summed."""

import pytest

from kernbench.messages.requests import PeDmaMsg
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology.builder import resolve_topology

OVERRIDES = ("ns_per_mm=0", "cube.components.hbm_ctrl.impl=banked_memory.BankedMemory")


def accesses_ns(op: str, *offsets: int) -> list[float]:
    """When PE 0, PE 1 ... have read or written 1 KiB each at these offsets of slice 0, all from time 0 on."""
    engine = GraphEngine(resolve_topology("default", OVERRIDES), enable_data=False)
    slice_bytes = engine.spec.cube.hbm.bytes_per_slice
    messages = [
        PeDmaMsg(pe=(0, 0, pe), pa=PhysAddr.pe_hbm_addr(0, 0, 0, 0, at, slice_bytes).encode(), nbytes=1024, op=op)
        for pe, at in enumerate(offsets)
    ]
    return [engine.wait(handle).t_end for handle in [engine.submit(each) for each in messages]]


@pytest.mark.parametrize("op", ["read", "write"])
def test_an_access_alone(op):
    # DMA set-up 2, xbar 2, a header of 32 bytes at 256 GB/s 0.125, the bank 50, xbar 2, 1 KiB at 256 GB/s 4.
    # A write has its data on the way there and the header on the way back.
    assert accesses_ns(op, 0) == [60.125]


def test_the_same_bank_takes_them_one_after_another():
    # The first is at the bank after 4.125 ns, 50 ns each.
    assert accesses_ns("read", 0, 16 * 1024) == [4.125 + 50 + 2 + 4, 4.125 + 50 + 50 + 2 + 4]


def test_different_banks_work_at_once():
    # The second request comes 0.125 ns later. Its answer is ready at 54.25 ns and leaves behind the first one's 4 ns.
    assert accesses_ns("read", 0, 1024) == [4.125 + 50 + 2 + 4, 4.125 + 50 + 4 + 2 + 4]
