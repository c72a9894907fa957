from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from kernbench.common.errors import AddressFaultError, AllocationError, InputError
from kernbench.policy.address.allocator import AddressConfig, PEMemAllocator
from kernbench.policy.address.pe_mmu import PeMMU
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.policy.address.va_allocator import VirtualAllocator
from kernbench.policy.placement.deploy import deploy_slab, deploy_tensor, release_deployment
from kernbench.policy.placement.dp import DPPolicy, resolve_dp_policy

SHAPE = (16, 8)


@pytest.fixture
def allocators(cfg: AddressConfig):
    return {(0, c, p): PEMemAllocator(0, 0, c, p, cfg) for c in range(cfg.cubes_per_sip) for p in range(8)}


def place(policy, shape=SHAPE, itemsize=2):
    return resolve_dp_policy(policy, shape=shape, itemsize=itemsize, num_pe=8, num_cubes=4, target_sip=0)


def untouched(allocators, virtual) -> bool:
    spaces = [space for a in allocators.values() for space in (a.hbm, a.tcm)]
    return not any(space.live for space in (*spaces, virtual.space))


@pytest.mark.parametrize("mem_kind", ["hbm", "tcm"])
def test_every_shard_lies_with_its_pe(allocators, cfg, mem_kind):
    virtual = VirtualAllocator()
    placement = place(DPPolicy("replicate", "row_wise"))
    done = deploy_tensor("w", SHAPE, "f16", placement[::-1], allocators, mem_kind, virtual)
    assert done.va_base == 0x1_0000_0000
    assert done.nbytes == 256
    where = [(s.sip, s.cube, s.pe, s.offset_bytes, s.nbytes) for s in done.shards]
    assert where == [(s.sip, s.cube, s.pe, s.offset_bytes, s.nbytes) for s in placement]
    for shard in done.shards:
        addr = PhysAddr.decode(shard.pa)
        assert (addr.component, addr.cube_id) == (mem_kind, shard.cube)
        pe = addr.pe_id if mem_kind == "tcm" else addr.component_offset // cfg.hbm_bytes_per_pe
        assert pe == shard.pe
    release_deployment(done, allocators, virtual)
    assert untouched(allocators, virtual)
    with pytest.raises(AllocationError):
        release_deployment(done, allocators, virtual)


def test_the_mapping_reads_back_the_placement(allocators):
    done = deploy_tensor("w", SHAPE, "f16", place(DPPolicy("row_wise")), allocators, va_allocator=VirtualAllocator())
    mmu = PeMMU(0, 2, 7)
    mmu.map(done.mapping())
    own = next(s for s in done.shards if (s.cube, s.pe) == (2, 7))
    assert mmu.translate(done.va_base + own.offset_bytes).encode() == own.pa
    assert mmu.translate(done.va_base).cube_id == 0


def test_without_virtual_addresses(allocators):
    done = deploy_tensor("w", SHAPE, "f16", place(DPPolicy()), allocators)
    assert done.va_base is None
    with pytest.raises(InputError, match="without virtual"):
        done.mapping()
    release_deployment(done, allocators)


def test_a_failure_gives_everything_back(allocators):
    virtual = VirtualAllocator()
    blocker = allocators[0, 3, 7].alloc_tcm(48 << 10)
    with pytest.raises(AllocationError, match=r"sip0.cube3.pe7.tcm"):
        deploy_tensor("w", SHAPE, "f16", place(DPPolicy()), allocators, "tcm", virtual)
    allocators[0, 3, 7].free_tcm(blocker, 48 << 10)
    assert untouched(allocators, virtual)


def test_bad_requests(allocators):
    placement = place(DPPolicy())
    with pytest.raises(InputError, match="hbm, tcm"):
        deploy_tensor("w", SHAPE, "f16", placement, allocators, "dram")
    with pytest.raises(InputError, match="18 bytes, its placement holds 256"):
        deploy_tensor("w", (3, 3), "f16", placement, allocators)
    with pytest.raises(InputError, match=r"sip0.cube0.pe0 has no allocator"):
        deploy_tensor("w", SHAPE, "f16", placement, {})


def test_tensors_of_a_slab_have_the_placement_of_one_and_pages_of_their_own(allocators):
    virtual, policy = VirtualAllocator(), DPPolicy("row_wise", "row_wise")
    placement = place(policy, (33, 5))  # shards that are no multiple of the alignment
    slab = deploy_slab("x", 3, 33 * 5 * 2, placement, allocators, virtual)
    tensors = [slab.tensor(number, f"x{number}") for number in range(3)]
    assert [tensor.va_base for tensor in tensors] == [slab.va_base + number * 4096 for number in range(3)]
    for tensor in tensors:
        assert [(s.cube, s.pe, s.offset_bytes, s.nbytes) for s in tensor.shards] == [
            (s.cube, s.pe, s.offset_bytes, s.nbytes) for s in placement
        ]
    places = [(shard.pa, shard.nbytes) for tensor in tensors for shard in tensor.shards]
    assert all(pa % 64 == 0 for pa, _ in places)
    ordered = sorted(places)
    assert all(pa + nbytes <= following for (pa, nbytes), (following, _) in pairwise(ordered))
    mmu = PeMMU(0, 1, 3)
    mmu.map(slab.mapping)
    for tensor in tensors:
        for shard in tensor.shards:
            assert mmu.physical(tensor.va_base + shard.offset_bytes, shard.nbytes) == ((shard.pa, shard.nbytes),)
    slab.release(allocators, virtual)
    assert untouched(allocators, virtual)


def test_slabs_of_a_size_do_not_begin_in_one_bank(cfg):
    gap = 2048
    owner = PEMemAllocator(0, 0, 0, 0, replace(cfg, bank_step_bytes=gap))
    virtual, placement = VirtualAllocator(), place(DPPolicy(num_cubes=1, num_pes=1))
    slabs = [deploy_slab(name, 4, 256, placement, {(0, 0, 0): owner}, virtual) for name in "xyz"]
    first = [slab.blocks[0].pa for slab in slabs]
    assert [pa - first[0] for pa in first] == [0, 4 * 256 + gap, 2 * (4 * 256 + gap)]
    for slab in slabs:
        slab.release({(0, 0, 0): owner}, virtual)
    assert untouched({(0, 0, 0): owner}, virtual)


def test_an_access_stays_in_its_tensor_of_a_slab(allocators):
    slab = deploy_slab("x", 2, 256, place(DPPolicy()), allocators, VirtualAllocator())
    mmu = PeMMU(0, 0, 0)
    mmu.map(slab.mapping)
    assert mmu.segments(slab.va_base, 256)
    for va, nbytes in ((slab.va_base + 200, 57), (slab.va_base + 256, 1), (slab.va_base + 4095, 2)):
        with pytest.raises(AddressFaultError):
            mmu.segments(va, nbytes)
    mmu.unmap(slab.va_base)
    assert not mmu.mappings


def test_a_slab_that_does_not_fit_leaves_nothing(allocators):
    virtual, placement = VirtualAllocator(), place(DPPolicy())
    with pytest.raises(AllocationError):
        deploy_slab("x", 1 << 40, 256, placement, allocators, virtual)
    assert untouched(allocators, virtual)
