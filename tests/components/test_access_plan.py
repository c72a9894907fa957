"""Descriptors become accesses that cover exactly the bytes asked for."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from kernbench.components.access_plan import extent, plan, runs
from kernbench.engine.address_map import AddressMap
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.topology.builder import resolve_topology

SPEC = resolve_topology("default").spec
ADDRESSES = AddressMap(SPEC)
SLICE = SPEC.cube.hbm.bytes_per_slice
BASE = PhysAddr.hbm_addr(0, 0, 0, 0).encode()


def bytes_of(shape: tuple[int, ...], itemsize: int, strides: tuple[int, ...]) -> set[int]:
    """Offsets of every byte of an array."""
    return {
        sum(i * s for i, s in zip(index, strides, strict=True)) + b
        for index in itertools.product(*map(range, shape))
        for b in range(itemsize)
    }


@st.composite
def strided(draw: st.DrawFn) -> tuple[tuple[int, ...], int, tuple[int, ...]]:
    """A non-overlapping array: each axis steps over all of the axes inside it, with a gap or none. In any order."""
    itemsize = draw(st.sampled_from([1, 2, 4]))
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    strides: list[int] = []
    span = itemsize
    for count in reversed(shape):
        step = span + itemsize * draw(st.sampled_from([0, 0, 1, 7]))
        strides.append(step)
        span = step * (count - 1) + span
    strides.reverse()
    order = draw(st.permutations(range(len(shape))))
    return tuple(shape[i] for i in order), itemsize, tuple(strides[i] for i in order)


@given(strided(), st.integers(0, 200))
def test_accesses_cover_each_byte_once(array: tuple[tuple[int, ...], int, tuple[int, ...]], before_end: int) -> None:
    shape, itemsize, strides = array
    low, span = extent(shape, itemsize, strides)
    assert low == 0
    start = BASE + SLICE - min(before_end, span)  # may run over the end of slice 0 into slice 1
    targets = plan(ADDRESSES, ((start, span),), shape, itemsize, strides)
    covered = [
        access.pa + row * access.stride + byte - start
        for _, access in targets
        for row in range(access.rows)
        for byte in range(access.row_bytes)
    ]
    assert len(covered) == len(set(covered))
    assert set(covered) == bytes_of(shape, itemsize, strides)
    for node, access in targets:
        assert node == f"sip0.cube0.hbm{0 if access.pa < BASE + SLICE else 1}"


def test_contiguous_axes_are_one_run() -> None:
    assert runs((4, 8, 16), 2, None) == (1024, ())
    assert runs((4, 8, 16), 2, (256, 32, 2)) == (1024, ())
    assert runs((4, 8, 16), 2, (512, 32, 2)) == (256, ((4, 512),))


def test_a_row_major_tile_is_one_two_dimensional_access() -> None:
    ((node, access),) = plan(ADDRESSES, ((BASE, 31 * 1024 + 128),), (32, 64), 2, (1024, 2))
    assert node == "sip0.cube0.hbm0"
    assert (access.rows, access.row_bytes, access.stride) == (32, 128, 1024)


def test_a_transposed_tile_is_read_by_its_rows() -> None:
    ((_, access),) = plan(ADDRESSES, ((BASE, 31 * 1024 + 128),), (64, 32), 2, (2, 1024))
    assert (access.rows, access.row_bytes, access.stride) == (32, 128, 1024)
    assert runs((32, 64), 2, (2, 64)) == (4096, ())
    assert runs((64, 32), 2, (2, 0)) == runs((32, 64), 2, (0, 2)) == (128, ((32, 0),))


def test_shards_of_a_virtual_range_are_joined_in_order() -> None:
    second = PhysAddr.pe_hbm_addr(0, 0, 3, 4, 0, SLICE).encode()
    targets = plan(ADDRESSES, ((BASE, 100), (second, 60)), (80,), 2, None)
    assert [(node, a.pa, a.nbytes) for node, a in targets] == [
        ("sip0.cube0.hbm0", BASE, 100),
        ("sip0.cube3.hbm4", second, 60),
    ]


def test_rows_across_the_end_of_a_slice_stay_together_and_in_order() -> None:
    """Four rows of 8 bytes, 16 apart, of which the second is cut: equal neighbours of one place are rows of one access.

    The slice ends 20 bytes after the first: rows at 0 and 16 … 20, then 20 … 24, and those at 32 and 48.
    """
    start = BASE + SLICE - 20
    targets = plan(ADDRESSES, ((start, 56),), (4, 8), 1, (16, 1))
    assert [(node[-1], a.pa - start, a.row_bytes, a.rows, a.stride) for node, a in targets] == [
        ("0", 0, 8, 1, 0),
        ("0", 16, 4, 1, 0),
        ("1", 20, 4, 1, 0),
        ("1", 32, 8, 2, 16),
    ]


def test_rows_that_run_over_the_end_of_a_slice_are_cut_there_and_the_others_stay_whole() -> None:
    start = BASE + SLICE - 250  # rows begin 250, 150 and 50 bytes before the end, and 50 behind it
    targets = plan(ADDRESSES, ((start, 364),), (4, 64), 1, (100, 1))
    found = [(node[-1], access.pa - start, access.row_bytes, access.rows, access.stride) for node, access in targets]
    assert found == [("0", 0, 64, 2, 100), ("0", 200, 50, 1, 0), ("1", 250, 14, 1, 0), ("1", 300, 64, 1, 0)]
