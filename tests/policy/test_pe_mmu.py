from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.common.errors import AddressFaultError, InputError
from kernbench.messages.requests import MappedShard, TensorMapping
from kernbench.policy.address.pe_mmu import PeMMU
from kernbench.policy.address.phyaddr import AddressFormat, PhysAddr
from kernbench.policy.placement.dp import DPPolicy, resolve_dp_policy

BASE = 0x1_0000_0000
NAMES = ("replicate", "column_wise", "row_wise")


def shard(cube: int, pe: int, offset: int, nbytes: int, at: int = 0) -> MappedShard:
    pa = PhysAddr.pe_hbm_addr(0, 0, cube, pe, at, 1 << 20).encode()
    return MappedShard(sip=0, cube=cube, pe=pe, offset_bytes=offset, nbytes=nbytes, pa=pa)


def tensor(*shards: MappedShard, name: str = "x", base: int = BASE) -> TensorMapping:
    nbytes = max(s.offset_bytes + s.nbytes for s in shards)
    return TensorMapping(name=name, va_base=base, nbytes=nbytes, shards=shards)


@pytest.mark.parametrize(
    ("me", "held", "expected"),
    [
        ((1, 2), [(0, 0), (1, 0), (1, 2)], (1, 2)),
        ((1, 2), [(0, 0), (1, 5), (1, 3)], (1, 3)),
        ((3, 2), [(2, 2), (1, 5), (1, 3)], (1, 3)),
        ((0, 0), [(7, 1)], (7, 1)),
    ],
)
def test_the_nearest_copy_serves(me, held, expected):
    mmu = PeMMU(0, *me)
    mmu.map(tensor(*(shard(cube, pe, 0, 100) for cube, pe in held)))
    cube, pe = expected
    assert mmu.translate(BASE + 99) == PhysAddr.pe_hbm_addr(0, 0, cube, pe, 99, 1 << 20)


def test_a_copy_on_the_own_sip_is_nearer():
    here = MappedShard(sip=1, cube=5, pe=0, offset_bytes=0, nbytes=8, pa=PhysAddr.hbm_addr(0, 1, 5, 0).encode())
    mmu = PeMMU(1, 0, 0)
    mmu.map(tensor(shard(0, 0, 0, 8), here))
    assert mmu.translate(BASE).sip_id == 1


@given(
    st.sampled_from(NAMES),
    st.sampled_from(NAMES),
    st.tuples(st.integers(6, 13), st.integers(6, 13)),
    st.integers(0, 1),
    st.integers(0, 2),
    st.data(),
)
def test_every_byte_is_where_the_rule_says(cube_policy, pe_policy, shape, my_cube, my_pe, data):
    specs = resolve_dp_policy(
        DPPolicy(cube_policy, pe_policy), shape=shape, itemsize=2, num_pe=3, num_cubes=2, target_sip=0
    )
    mapping = tensor(*(shard(s.cube, s.pe, s.offset_bytes, s.nbytes) for s in specs))
    mmu = PeMMU(0, my_cube, my_pe)
    mmu.map(mapping)
    start = data.draw(st.integers(0, mapping.nbytes - 1))
    end = data.draw(st.integers(start + 1, mapping.nbytes))
    read = [part.offset_by(i) for part, n in mmu.segments(BASE + start, end - start) for i in range(n)]
    assert read == [mmu.translate(BASE + at) for at in range(start, end)]
    for at, addr in enumerate(read, start):
        holders = [s for s in specs if s.offset_bytes <= at < s.offset_bytes + s.nbytes]
        best = min(holders, key=lambda s: ((s.cube, s.pe) != (my_cube, my_pe), s.cube != my_cube, s.cube, s.pe))
        assert addr == PhysAddr.pe_hbm_addr(0, 0, best.cube, best.pe, at - best.offset_bytes, 1 << 20)


def test_segments_split_where_shards_do():
    mmu = PeMMU(0, 0, 0)
    mmu.map(tensor(shard(0, 0, 0, 10), shard(0, 1, 10, 3), shard(0, 2, 13, 10)))
    parts = mmu.segments(BASE + 8, 8)
    assert [(p.component_offset >> 20, p.component_offset & 0xFF, n) for p, n in parts] == [
        (0, 8, 2),
        (1, 0, 3),
        (2, 0, 3),
    ]
    assert len(mmu.segments(BASE + 10, 3)) == 1


@pytest.mark.parametrize(
    ("va", "nbytes", "text"),
    [
        (BASE - 3, 1, "starts 3 bytes before tensor 'x'"),
        (BASE + 100 + 16, 1, "starts 16 and ends 17 bytes past the end of tensor 'x'"),
        (BASE + 90, 64, "runs 54 bytes past the end of tensor 'x'"),
        (BASE + 0x1000 - 2, 1, "starts 2 bytes before tensor 'y'"),
        (BASE + 40, 20, "without a shard of tensor 'x'"),
        (BASE, 0, "at least 1"),
    ],
)
def test_a_fault_says_where_it_is_and_what_is_near(va, nbytes, text):
    mmu = PeMMU(0, 1, 2)
    mmu.map(tensor(shard(0, 0, 0, 50), shard(0, 0, 60, 40)))
    mmu.map(tensor(shard(0, 0, 0, 8), name="y", base=BASE + 0x1000))
    with pytest.raises(AddressFaultError, match=rf"sip0\.cube1\.pe2.*VA 0x.*{text}"):
        mmu.segments(va, nbytes)


def test_an_access_does_not_run_into_the_next_tensor():
    mmu = PeMMU(0, 0, 0)
    mmu.map(tensor(shard(0, 0, 0, 64)))
    mmu.map(tensor(shard(0, 0, 0, 64, at=64), name="y", base=BASE + 64))
    with pytest.raises(AddressFaultError, match="runs 8 bytes past the end of tensor 'x'"):
        mmu.segments(BASE + 56, 16)


def test_nothing_mapped():
    with pytest.raises(AddressFaultError, match="no tensor is"):
        PeMMU(0, 0, 0).translate(BASE)


def test_unmap_forgets_one_tensor():
    mmu = PeMMU(0, 0, 0)
    x, y = tensor(shard(0, 0, 0, 8), shard(0, 1, 8, 8)), tensor(shard(0, 0, 0, 8), name="y", base=BASE + 4096)
    mmu.map(y)
    mmu.map(x)
    assert mmu.mappings == (x, y)
    mmu.unmap(BASE)
    mmu.translate(BASE + 4096)
    with pytest.raises(AddressFaultError, match="tensor 'y'"):
        mmu.translate(BASE)
    with pytest.raises(AddressFaultError, match="no tensor is mapped at"):
        mmu.unmap(BASE)
    mmu.map(x)
    mmu.translate(BASE + 15)


@pytest.mark.parametrize(
    "shards",
    [
        (shard(0, 0, 0, 8), shard(0, 1, 4, 8)),
        (shard(0, 0, 0, 8), shard(0, 1, 0, 12)),
    ],
)
def test_shards_that_overlap_without_being_copies_are_refused(shards):
    with pytest.raises(InputError, match="tensor 'x'"):
        PeMMU(0, 0, 0).map(tensor(*shards))


def test_tensors_may_not_overlap():
    mmu = PeMMU(0, 0, 0)
    mmu.map(tensor(shard(0, 0, 0, 100)))
    for base in (BASE - 50, BASE, BASE + 99):
        with pytest.raises(InputError, match="overlaps"):
            mmu.map(tensor(shard(0, 0, 0, 100), name="y", base=base))
    assert len(mmu.mappings) == 1


def test_wide_addresses():
    pa = PhysAddr.hbm_addr(0, 500, 0, 0, AddressFormat.WIDE).encode()
    mmu = PeMMU(500, 0, 0, fmt=AddressFormat.WIDE)
    mmu.map(tensor(MappedShard(sip=500, cube=0, pe=0, offset_bytes=0, nbytes=8, pa=pa)))
    assert mmu.translate(BASE + 1).sip_id == 500
