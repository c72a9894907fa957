"""Which memory an address lies in, and which node serves it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_support import SLICE, hbm, machine
from kernbench.common.errors import PhysAddrError
from kernbench.engine.address_map import AddressMap
from kernbench.policy.address.phyaddr import PhysAddr

ADDRESSES = AddressMap(machine().spec)
SPEC = machine().spec
COORDS = st.tuples(st.integers(0, 1), st.integers(0, 15), st.integers(0, 7))


def within(nbytes: int) -> st.SearchStrategy[int]:
    return st.integers(0, nbytes - 1) | st.sampled_from((0, nbytes - 1))


@given(COORDS, within(SLICE), within(SPEC.pe.tcm.bytes), within(SPEC.cube.sram.bytes))
def test_memories_and_their_nodes(coord: tuple[int, int, int], in_slice: int, in_tcm: int, in_sram: int) -> None:
    sip, cube, pe = coord
    for pa, space, owner, node in (
        (hbm(sip, cube, pe, in_slice), "hbm", (sip, cube), f"hbm{pe}"),
        (PhysAddr.pe_tcm_addr(0, sip, cube, pe, in_tcm).encode(), "tcm", coord, f"pe{pe}.pe_dma"),
        (PhysAddr.cube_sram_addr(0, sip, cube, in_sram).encode(), "sram", (sip, cube), "sram"),
    ):
        for addresses in (ADDRESSES, AddressMap(SPEC)):  # one that knows the surroundings, and one that does not
            place = addresses.place_of(pa)
            assert (place.space, place.owner) == (space, owner)
            assert place.base <= pa < place.base + place.nbytes
            assert addresses.node_of(pa) == addresses.memory_node(addresses.decode(pa)) == f"sip{sip}.cube{cube}.{node}"


def test_what_is_known_of_a_memory_does_not_reach_past_its_end() -> None:
    tcm = SPEC.pe.tcm.bytes
    last = PhysAddr.pe_tcm_addr(0, 0, 0, 0, tcm - 1).encode()
    assert ADDRESSES.place_of(last).space == "tcm"
    with pytest.raises(PhysAddrError, match="offset"):
        ADDRESSES.place_of(last + 1)
    with pytest.raises(PhysAddrError, match="not in ipcq"):
        ADDRESSES.place_of(PhysAddr.pe_ipcq_addr(0, 0, 0, 0, 0).encode())
    with pytest.raises(PhysAddrError, match="outside 0"):
        ADDRESSES.place_of(-1)


def test_a_range_is_cut_where_slices_end() -> None:
    first = hbm(0, 1, 0, SLICE - 10)
    assert ADDRESSES.by_node(((first, SLICE + 30), (hbm(0, 0, 3), 5), (hbm(0, 0, 4), 0))) == (
        ("sip0.cube1.hbm0", (first, 10)),
        ("sip0.cube1.hbm1", (hbm(0, 1, 1), SLICE)),
        ("sip0.cube1.hbm2", (hbm(0, 1, 2), 20)),
        ("sip0.cube0.hbm3", (hbm(0, 0, 3), 5)),
    )
