from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.common.errors import PhysAddrError, UnknownNameError
from kernbench.policy.address.phyaddr import AddressFormat, AddressKind, AddressOwner, PhysAddr, UnitType

FORMATS = tuple(AddressFormat)
MIB = 1 << 20
PE_FACTORIES = {
    "tcm": (PhysAddr.pe_tcm_addr, 256 * MIB),
    "ipcq": (PhysAddr.pe_ipcq_addr, 64 * MIB),
    "scratchpad": (PhysAddr.pe_scratchpad_addr, 64 * MIB),
    "regfile": (PhysAddr.pe_regfile_addr, 16 * MIB),
    "csr": (PhysAddr.pe_csr_addr, 16 * MIB),
}
CUBE_FACTORIES = {
    "hbm": (PhysAddr.hbm_addr, 1 << 37),
    "sram": (PhysAddr.cube_sram_addr, 1 << 29),
    "m_cpu": (PhysAddr.m_cpu_addr, 1 << 29),
}
LIMITS = {AddressFormat.NARROW: (16, 16, 32), AddressFormat.WIDE: (256, 1024, 256)}


@st.composite
def addresses(draw: st.DrawFn) -> tuple[PhysAddr, tuple[object, ...]]:
    fmt = draw(st.sampled_from(FORMATS))
    ids = tuple(draw(st.integers(0, limit - 1)) for limit in LIMITS[fmt])
    name = draw(st.sampled_from((*PE_FACTORIES, *CUBE_FACTORIES)))
    in_pe = name in PE_FACTORIES
    factory, size = PE_FACTORIES[name] if in_pe else CUBE_FACTORIES[name]
    pe = draw(st.integers(0, 15)) if in_pe else None
    offset = draw(st.integers(0, size - 1))
    args = (*ids, *(() if pe is None else (pe,)), offset)
    return factory(*args, fmt=fmt), (fmt, *ids, pe, name, offset)


@given(addresses())
def test_decode_gives_back_what_was_encoded(made):
    addr, fields = made
    fmt = fields[0]
    again = PhysAddr.decode(addr.encode(), fmt)
    assert again == addr
    assert hash(again) == hash(addr)
    read = (again.rack_id, again.sip_id, again.cube_id, again.pe_id, again.component, again.component_offset)
    assert (fmt, *read) == fields


@given(st.sampled_from(FORMATS), st.data())
def test_every_value_is_an_address_or_an_error(fmt, data):
    value = data.draw(st.integers(0, (1 << fmt.bits) - 1))
    try:
        addr = PhysAddr.decode(value, fmt)
    except PhysAddrError:
        return
    assert addr.encode() == value


def test_bits_lie_where_the_table_puts_them():
    assert PhysAddr.hbm_addr(1, 2, 3, 0x10).encode() == 1 << 47 | 2 << 43 | 3 << 38 | 1 << 37 | 0x10
    assert PhysAddr.pe_csr_addr(0, 0, 0, 5, 7).encode() == 5 << 30 | 0x1900_0000 | 7
    assert PhysAddr.cube_sram_addr(0, 0, 0, 9).encode() == 2 << 34 | 9
    assert PhysAddr.m_cpu_addr(0, 0, 0).encode() == 1 << 34
    wide = PhysAddr.pe_tcm_addr(1, 2, 3, 4, 5, AddressFormat.WIDE)
    assert wide.encode() == 1 << 56 | 2 << 46 | 3 << 38 | 4 << 30 | 5


def test_a_slice_of_hbm_starts_at_its_pe():
    addr = PhysAddr.pe_hbm_addr(
        rack_id=0, sip_id=1, cube_id=3, pe_id=2, pe_local_hbm_offset=16, slice_size_bytes=6 << 30
    )
    assert addr == PhysAddr.hbm_addr(0, 1, 3, 2 * (6 << 30) + 16)
    assert addr.pe_id is None
    assert addr.unit_type is None
    assert addr.kind is AddressKind.HBM


def test_kinds_and_units():
    tcm = PhysAddr.pe_tcm_addr(0, 0, 0, 0, 0)
    assert (tcm.kind, tcm.unit_type, tcm.component) == (AddressKind.RESOURCE, UnitType.PE, AddressOwner.TCM)
    assert PhysAddr.cube_sram_addr(0, 0, 0, 0).unit_type is UnitType.SRAM
    assert PhysAddr.m_cpu_addr(0, 0, 0).unit_type is UnitType.MCPU


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize(("at", "field"), [(0, "rack_id"), (1, "sip_id"), (2, "cube_id")])
def test_ids_end_where_their_field_does(fmt, at, field):
    limit = LIMITS[fmt][at]
    ids = [0, 0, 0]
    ids[at] = limit - 1
    PhysAddr.hbm_addr(*ids, 0, fmt)
    for bad in (limit, -1):
        ids[at] = bad
        with pytest.raises(PhysAddrError, match=rf"{field}={bad} is outside 0..{limit - 1}"):
            PhysAddr.hbm_addr(*ids, 0, fmt)


@pytest.mark.parametrize("name", PE_FACTORIES)
def test_a_pe_part_ends_where_the_next_begins(name):
    factory, size = PE_FACTORIES[name]
    assert PhysAddr.decode(factory(0, 0, 0, 15, size - 1).encode()).component == name
    for bad in (size, -1):
        with pytest.raises(PhysAddrError, match=f"{name}_offset"):
            factory(0, 0, 0, 0, bad)
    with pytest.raises(PhysAddrError, match=r"pe_id=16 is outside 0..15"):
        factory(0, 0, 0, 16, 0)


@pytest.mark.parametrize("name", CUBE_FACTORIES)
def test_a_cube_part_ends_at_its_size(name):
    factory, size = CUBE_FACTORIES[name]
    factory(0, 0, 0, size - 1)
    with pytest.raises(PhysAddrError, match=f"{name}_offset"):
        factory(0, 0, 0, size)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (-1, "outside"),
        (1 << 51, "51 bits"),
        (3 << 34, "unit_type=3 is reserved"),
        (7 << 34, "unit_type=7 is reserved"),
        (2 << 34 | 1 << 30, "pe_id=1"),
        (0x1A00_0000, "sub_offset=0x1a000000 is reserved"),
        (0x1FFF_FFFF, "sub_offset=0x1fffffff is reserved"),
    ],
)
def test_decode_names_what_is_wrong(value, text):
    with pytest.raises(PhysAddrError, match=text):
        PhysAddr.decode(value)


def test_the_slice_bounds_the_offset_in_it():
    with pytest.raises(PhysAddrError, match="pe_local_hbm_offset"):
        PhysAddr.pe_hbm_addr(0, 0, 0, 0, 4096, 4096)
    with pytest.raises(PhysAddrError, match="pe_id"):
        PhysAddr.pe_hbm_addr(0, 0, 0, 16, 0, 4096)
    with pytest.raises(PhysAddrError, match="hbm_offset"):
        PhysAddr.pe_hbm_addr(0, 0, 0, 8, 0, 1 << 34)


def test_the_extension_bit_survives_decoding():
    value = PhysAddr.pe_tcm_addr(0, 0, 0, 3, 8).encode() | 1 << 29
    addr = PhysAddr.decode(value)
    assert (addr.ext, addr.pe_id, addr.component_offset, addr.encode()) == (1, 3, 8, value)


def test_repr_reads_like_a_place():
    assert repr(PhysAddr.hbm_addr(0, 1, 3, 0x1000)) == "HBM sip=1 cube=3 +0x1000"
    assert repr(PhysAddr.pe_tcm_addr(0, 0, 2, 5, 0x40)) == "TCM sip=0 cube=2 pe=5 +0x40"
    assert repr(PhysAddr.m_cpu_addr(2, 0, 0)) == "M_CPU rack=2 sip=0 cube=0 +0x0"


def test_it_is_a_value():
    a, b = PhysAddr.hbm_addr(0, 0, 0, 1), PhysAddr.hbm_addr(0, 0, 0, 2)
    assert sorted([b, a]) == [a, b]
    assert a < b
    assert b >= a
    assert len({a, b, PhysAddr.decode(a.encode())}) == 2
    assert a != a.encode()
    assert a != PhysAddr.hbm_addr(0, 0, 0, 1, AddressFormat.WIDE)
    assert pickle.loads(pickle.dumps(a)) == a
    with pytest.raises(FrozenInstanceError):
        a.sip_id = 1


def test_offset_by_stays_in_the_part():
    addr = PhysAddr.pe_tcm_addr(0, 0, 0, 1, 64)
    assert addr.offset_by(-64) == PhysAddr.pe_tcm_addr(0, 0, 0, 1, 0)
    with pytest.raises(PhysAddrError, match="tcm_offset"):
        addr.offset_by(256 * MIB)


def test_formats_are_chosen_by_name():
    assert AddressFormat("wide") is AddressFormat.WIDE
    with pytest.raises(UnknownNameError, match="narrow, wide"):
        AddressFormat("huge")
