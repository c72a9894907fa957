from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.common.dtypes import F32
from kernbench.common.errors import InputError, PhysAddrError
from kernbench.policy.address.allocator import (
    AddressConfig,
    AllocationError,
    CubeMemAllocator,
    PEMemAllocator,
    address_config,
)
from kernbench.policy.address.free_list import AddressExtent, FreeList, ScratchAllocator
from kernbench.policy.address.layout import HBM_OFFSET, PE_ID, PE_PARTS, SUB_OFFSET, AddressOwner
from kernbench.policy.address.phyaddr import AddressFormat, PhysAddr
from kernbench.policy.address.va_allocator import VirtualAllocator, va_size
from kernbench.topology import rules

steps = st.lists(st.tuples(st.integers(-8, 700), st.booleans()), max_size=40)


@given(steps, st.sampled_from([1, 16, 64]), st.sampled_from([1, 64]), st.integers(0, 100))
def test_allocations_and_holes_always_tile_the_space(script, alignment, granule, base):
    space = FreeList("m", base, 2000, alignment=alignment, granule=granule)
    live: dict[int, int] = {}
    for size, from_end in script:
        if size <= 0 and live:
            start = sorted(live)[size % len(live)]
            space.free(start, live.pop(start))
        elif size > 0:
            try:
                start = space.alloc(size, from_end=from_end)
            except AllocationError:
                continue
            assert start % alignment == 0
            live[start] = size
        taken = [AddressExtent(s, -(-n // granule) * granule) for s, n in live.items()]
        tiling = sorted([*taken, *space.holes])
        assert sum(part.nbytes for part in tiling) == 2000
        assert all(a.end == b.start for a, b in pairwise(tiling))
        assert all(a.end < b.start for a, b in pairwise(space.holes))
    for start, size in live.items():
        space.free(start, size)
    assert space.holes == (AddressExtent(base, 2000),)


def test_first_fit_takes_the_lowest_hole():
    space = FreeList("m", 0, 300)
    a, b, _ = (space.alloc(100) for _ in range(3))
    space.free(a, 100)
    space.free(b, 100)
    assert space.alloc(150) == 0
    assert space.alloc(50) == 150


def test_exhaustion_says_what_there_is(cfg):
    pe = PEMemAllocator(0, 1, 2, 3, cfg)
    first = pe.alloc_tcm(16 << 10)
    pe.alloc_tcm(16 << 10)
    pe.free_tcm(first, 16 << 10)
    with pytest.raises(
        AllocationError, match=r"sip1.cube2.pe3.tcm: asked for 20000 .* 32768 of 49152 .* hole has 16384"
    ):
        pe.alloc_tcm(20000)
    with pytest.raises(AllocationError, match="0 bytes"):
        pe.alloc_hbm(0)


def test_pools_are_installed_memory_without_what_the_scheduler_keeps(cfg):
    pe = PEMemAllocator(0, 0, 0, 5, cfg)
    assert pe.alloc_hbm(1 << 20) == PhysAddr.pe_hbm_addr(0, 0, 0, 5, 0, 1 << 20)
    assert pe.alloc_tcm(48 << 10) == PhysAddr.pe_tcm_addr(0, 0, 0, 5, 0)
    for alloc in (pe.alloc_hbm, pe.alloc_tcm, pe.reserve_ipcq_hbm, pe.reserve_ipcq_tcm):
        with pytest.raises(AllocationError):
            alloc(1)


@pytest.mark.parametrize(("slices", "pes"), [(8, 8), (16, 8), (4, 8), (12, 8), (1, 1)])
def test_the_pools_of_a_cube_do_not_meet(cfg, slices, pes):
    machine = replace(cfg, hbm_slices_per_cube=slices, pes_per_cube=pes, hbm_bytes_per_cube=48 << 20)
    extents = [PEMemAllocator(0, 0, 0, p, machine).hbm.extent for p in range(pes)]
    assert all(a.end == b.start for a, b in pairwise(extents))
    assert extents[-1].end == 48 << 20
    if slices % pes == 0:
        assert all(extent.start % machine.hbm_bytes_per_slice == 0 for extent in extents)


def test_double_and_foreign_frees_are_errors(cfg):
    pe, other = PEMemAllocator(0, 0, 0, 0, cfg), PEMemAllocator(0, 0, 0, 1, cfg)
    sram = CubeMemAllocator(0, 0, 0, cfg)
    hbm, tcm = pe.alloc_hbm(100), pe.alloc_tcm(100)
    with pytest.raises(AllocationError, match="100 bytes, not 99"):
        pe.free_hbm(hbm, 99)
    for free, addr in ((other.free_hbm, hbm), (other.free_tcm, tcm), (pe.free_tcm, hbm), (sram.free_sram, tcm)):
        with pytest.raises(AllocationError, match=r"not allocated here|not from here"):
            free(addr, 100)
    with pytest.raises(AllocationError, match="not allocated here"):
        pe.free_hbm(PhysAddr.hbm_addr(0, 1, 0, 0), 100)
    pe.free_hbm(hbm, 100)
    with pytest.raises(AllocationError, match="freed twice"):
        pe.free_hbm(hbm, 100)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 9000)), max_size=30), st.sampled_from(["hbm", "tcm", "sram"]))
def test_rings_and_tensors_never_overlap(script, memory):
    machine = AddressConfig(1, 1, 2, 96 << 10, 2, 64 << 10, 16 << 10, 48 << 10)
    pe, cube = PEMemAllocator(0, 0, 0, 1, machine), CubeMemAllocator(0, 0, 0, machine)
    tensor, ring = {
        "hbm": (pe.alloc_hbm, pe.reserve_ipcq_hbm),
        "tcm": (pe.alloc_tcm, pe.reserve_ipcq_tcm),
        "sram": (cube.alloc_sram, cube.reserve_ipcq_sram),
    }[memory]
    taken = []
    for is_ring, nbytes in script:
        try:
            addr = (ring if is_ring else tensor)(nbytes)
        except AllocationError:
            continue
        assert addr.encode() % 64 == 0
        taken.append(AddressExtent(addr.component_offset, nbytes))
    assert all(a.end <= b.start for a, b in pairwise(sorted(taken)))
    limit = {"hbm": 96 << 10, "tcm": 48 << 10, "sram": 48 << 10}[memory]
    assert all(part.end <= limit for part in taken)


def test_a_ring_lies_at_the_far_end(cfg):
    pe = PEMemAllocator(0, 0, 0, 0, cfg)
    pe.reserve_ipcq_tcm(4096)
    pe.alloc_tcm(4096)
    addr, nbytes = pe.largest_tcm_hole()
    assert (addr.component_offset, nbytes) == (4096, 40 << 10)


def test_a_pe_that_the_machine_lacks_is_named(cfg):
    with pytest.raises(PhysAddrError, match=r"pe_id=8 is outside 0..7"):
        PEMemAllocator(0, 0, 0, 8, cfg)
    with pytest.raises(PhysAddrError, match=r"cube_id=4 is outside 0..3"):
        CubeMemAllocator(0, 0, 4, cfg)


def test_wide_machines_have_wide_addresses(cfg):
    machine = replace(cfg, sip_count=64, address_format=AddressFormat.WIDE)
    addr = PEMemAllocator(0, 63, 0, 0, machine).alloc_hbm(64)
    assert PhysAddr.decode(addr.encode(), AddressFormat.WIDE).sip_id == 63


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"sip_count": 17}, "sip_id of the narrow address allows 1..16; address.format: wide"),
        ({"cubes_per_sip": 33}, "cube_id of the narrow address allows 1..32; address.format: wide"),
        ({"sip_count": 1025}, "sip_id of the narrow address allows 1..16$"),
        ({"pes_per_cube": 17}, "pe_id of the narrow address allows 1..16$"),
        ({"hbm_bytes_per_cube": (1 << 37) + 1}, "hbm_offset"),
        ({"tcm_bytes_per_pe": (256 << 20) + 1}, "tcm_offset"),
        ({"sram_bytes_per_cube": (1 << 29) + 1}, "sram_offset"),
    ],
)
def test_a_machine_too_large_for_its_format_is_refused(cfg, change, text):
    with pytest.raises(PhysAddrError, match=text):
        replace(cfg, **change)


def test_the_scheduler_cannot_keep_more_than_there_is(cfg):
    with pytest.raises(InputError, match="tcm_scheduler_reserved_bytes"):
        replace(cfg, tcm_scheduler_reserved_bytes=65 << 10)


def test_scratch_says_who_holds_it():
    scratch = ScratchAllocator(0x1000, 1024)
    a = scratch.alloc(512, ("a:", F32, "8x16"))
    scratch.alloc(100, ("b:", F32, 25))
    assert a.address == 0x1000
    assert scratch.live() == (("a: f32 8x16", 512), ("b: f32 25", 100))
    assert scratch.alloc(800, ("c",)) is None
    a.free()
    assert scratch.live() == (("b: f32 25", 100),)
    with pytest.raises(AllocationError, match="nothing is allocated"):
        a.free()
    assert scratch.alloc(512, ("d",)) is a


def test_small_scratch_leaves_no_holes_between():
    scratch = ScratchAllocator(0x1000, 1024)
    blocks = [scratch.alloc(32, ("x",)) for _ in range(4)]
    assert [block.address for block in blocks] == [0x1000, 0x1040, 0x1080, 0x10C0]
    assert scratch.free_bytes == 1024 - 4 * 64
    for block in blocks[:3]:
        block.free()
    assert scratch.free_bytes == 1024 - 64
    assert scratch.alloc(768, ("y",)).address == 0x1100
    assert scratch.alloc(192, ("what came back piece by piece",)).address == 0x1000
    assert scratch.live() == (("y", 768), ("what came back piece by piece", 192), ("x", 32))


def test_scratch_comes_back_to_the_next_of_its_size():
    scratch = ScratchAllocator(0x1000, 1024)
    blocks = [scratch.alloc(32, ("x",)) for _ in range(3)]
    blocks[1].free()
    assert scratch.alloc(64, ("another size",)).address == 0x10C0
    assert scratch.alloc(32, ("y",)) is blocks[1]


def test_virtual_ranges_have_their_pages_to_themselves():
    virtual = VirtualAllocator(va_size=16 << 10)
    a, b = virtual.alloc(1), virtual.alloc(4097)
    assert (a, b) == (0x1_0000_0000, 0x1_0000_1000)
    with pytest.raises(AllocationError, match=r"virtual memory: asked for 8192 .* hole has 4096"):
        virtual.alloc(8192)
    virtual.free(b, 4097)
    with pytest.raises(AllocationError, match="freed twice"):
        virtual.free(b, 4097)
    assert virtual.alloc(12 << 10) == b
    with pytest.raises(AllocationError, match="0 bytes"):
        virtual.alloc(0)


def test_virtual_space_must_be_whole_pages():
    for bad in ({"page_size": 0}, {"va_base": 1}, {"va_size": 100}):
        with pytest.raises(InputError, match="page_size"):
            VirtualAllocator(**bad)


def test_virtual_space_follows_from_the_machine(cfg):
    assert va_size(cfg) == 64 << 30
    large = replace(cfg, hbm_bytes_per_cube=48 << 30)
    assert VirtualAllocator.for_machine(large).va_size >= 2 * 4 * (48 << 30)


def test_the_configuration_follows_from_the_topology():
    spec = SimpleNamespace(
        cubes_per_sip=16,
        pes_per_cube=8,
        system=SimpleNamespace(sips=SimpleNamespace(count=2)),
        cube=SimpleNamespace(
            hbm=SimpleNamespace(slices=8, bytes_per_slice=6 << 30, banks=None),
            sram=SimpleNamespace(bytes=32 << 20),
        ),
        pe=SimpleNamespace(tcm=SimpleNamespace(bytes=16 << 20, scheduler_reserved_bytes=4 << 20)),
        address=SimpleNamespace(format="wide"),
    )
    found = address_config(spec)
    assert found == AddressConfig(2, 16, 8, 48 << 30, 8, 16 << 20, 4 << 20, 32 << 20, AddressFormat.WIDE)
    assert (found.hbm_bytes_per_pe, found.hbm_bytes_per_slice, found.tcm_bytes_for_kernels) == (
        6 << 30,
        6 << 30,
        12 << 20,
    )


def test_the_topology_is_checked_against_the_same_limits():
    # The topology room lies below the addresses and has its own words for what fits.
    for fmt in AddressFormat:
        assert (rules.SIP_BITS[fmt.value], rules.CUBE_BITS[fmt.value]) == (
            fmt.sip.width,
            fmt.cube.width,
        )
    assert PE_ID.limit == rules.MAX_PES_PER_CUBE
    assert HBM_OFFSET.limit == rules.MAX_HBM_PER_CUBE
    assert (SUB_OFFSET.limit, PE_PARTS[AddressOwner.TCM][1]) == (rules.MAX_SRAM, rules.MAX_TCM)
