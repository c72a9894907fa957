"""Which bytes a descriptor touches, and whether two share any: against sets of bytes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.common.dtypes import dtype
from kernbench.components import memory_order
from kernbench.components.access_plan import extent
from kernbench.components.memory_order import (
    MOST_ROWS,
    AccessFootprint,
    Footprint,
    PendingAccesses,
    RangeIndex,
    footprints,
    overlap_kind,
)
from kernbench.core.op_log import Sharing
from kernbench.messages.commands import STORE, Command, MemoryRef, in_tcm

Array = tuple[tuple[int, ...], int, tuple[int, ...]]


def offsets(array: Array) -> set[int]:
    """Every byte of an array, relative to its first element."""
    shape, itemsize, strides = array
    return {
        sum(i * s for i, s in zip(index, strides, strict=True)) + b
        for index in itertools.product(*map(range, shape))
        for b in range(itemsize)
    }


@st.composite
def arrays(draw: st.DrawFn, most: int = 4) -> Array:
    """Any strides: also negative, broadcast and overlapping ones."""
    shape = tuple(draw(st.lists(st.integers(1, most), min_size=1, max_size=3)))
    strides = tuple(draw(st.integers(-40, 40)) for _ in shape)
    return shape, draw(st.sampled_from([1, 2, 4])), strides


def placed(array: Array, at: int, cuts: tuple[int, ...]) -> tuple[tuple[Footprint, ...], set[int]]:
    """An array whose extent is cut into segments that lie apart, and the addresses of its bytes."""
    shape, itemsize, strides = array
    low, span = extent(shape, itemsize, strides)
    edges = [0, *sorted({cut % span for cut in cuts} - {0}), span]
    # Segments lie 10 bytes apart, but for every other one, which follows its neighbour.
    segments = tuple(
        (at + start + 10 * (i // 2), end - start) for i, (start, end) in enumerate(itertools.pairwise(edges))
    )
    where = {x: at + x + 10 * (i // 2) for i, (s, e) in enumerate(itertools.pairwise(edges)) for x in range(s, e)}
    return footprints(segments, shape, itemsize, strides), {where[x - low] for x in offsets(array)}


@given(arrays(), arrays(), st.integers(0, 200), st.lists(st.integers(1, 300), max_size=3))
def test_sharing_is_exact(a: Array, b: Array, apart: int, cuts: list[int]) -> None:
    mine, bytes_of_a = placed(a, 1000, tuple(cuts))
    theirs, bytes_of_b = placed(b, 900 + apart, ())
    found = {overlap_kind(x, y) for x in mine for y in theirs} - {""}
    assert found == ({"bytes"} if bytes_of_a & bytes_of_b else set())
    assert {overlap_kind(y, x) for x in mine for y in theirs} - {""} == found


@given(st.integers(1, 500), st.integers(1, 500), st.integers(-600, 600), st.integers(-70, 70))
def test_tiles_of_one_matrix_are_exact_however_many_rows(rows: int, others: int, down: int, right: int) -> None:
    """64 bytes of a row of 1 KiB."""
    start = 1 << 20
    a = Footprint(start, start + (rows - 1) * 1024 + 64, 64, ((rows, 1024),) if rows > 1 else ())
    low = start + down * 1024 + right
    b = Footprint(low, low + (others - 1) * 1024 + 64, 64, ((others, 1024),) if others > 1 else ())
    shared = abs(right) < 64 and -others < down < rows
    assert overlap_kind(a, b) == ("bytes" if shared else "")


def test_beyond_64_rows_of_different_steps_the_ranges_decide() -> None:
    """Rows of 1,000 and of 1,024 bytes never meet here, but nobody compares hundreds of them."""

    def box(low: int, rows: int, stride: int) -> Footprint:
        return Footprint(low, low + (rows - 1) * stride + 1, 1, ((rows, stride),))

    few, many = box(1, MOST_ROWS // 2, 1000), box(0, 400, 1024)
    assert overlap_kind(few, many) == overlap_kind(many, few) == ""
    assert overlap_kind(box(1, 400, 1000), many) == "range"
    assert overlap_kind(box(1, 400, 1000), box(500_000, 400, 1024)) == ""


def test_many_rows_in_several_segments_are_their_ranges() -> None:
    rows = 2 * MOST_ROWS
    segments = ((0, rows * 64), (1 << 20, rows * 64))
    found = footprints(segments, (2 * rows, 4), 4, (64, 4))
    assert [(x.low, x.high, x.exact) for x in found] == [(0, rows * 64, False), (1 << 20, (1 << 20) + rows * 64, False)]
    assert {x.exact for x in footprints(segments[:1], (rows, 4), 4, (64, 4))} == {True}


def test_a_long_access_makes_no_other_look_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """A column of a matrix is under way, and a hundred small stores beside it: who comes looks at its neighbours."""
    compared: list[Footprint] = []

    def counted(a: Footprint, b: Footprint) -> Sharing:
        compared.append(a)
        return overlap_kind(a, b)

    monkeypatch.setattr(memory_order, "overlap_kind", counted)
    under_way = PendingAccesses()
    column = footprints(((0, 100 * 1024 + 4),), (101, 1), 4, (1024, 4))
    under_way.add(command(0), AccessFootprint(writes=column))
    for i in range(1, 100):
        at = i * 1024 + 64
        small = AccessFootprint(writes=(Footprint(at, at + 32, 32),))
        assert not under_way.conflicts(small)
        under_way.add(command(i), small)
    assert len(compared) <= 2 * 99
    (met,) = under_way.conflicts(AccessFootprint(reads=(Footprint(5 * 1024 + 80, 5 * 1024 + 84, 4),)))
    assert met.command.serial == 5
    for i in range(100):
        assert len(under_way.remove(i)) == 1
    assert not under_way.conflicts(AccessFootprint(reads=column))


RANGES = st.tuples(st.integers(0, 40), st.integers(1, 9)).map(lambda r: (r[0], r[0] + r[1]))


@given(st.lists(st.tuples(RANGES, st.booleans()), max_size=20), RANGES)
def test_the_index_of_many_ranges_finds_what_a_list_finds(changes, asked) -> None:
    """Each change adds a range or, when True, takes the oldest one away; items that are equal are one another's."""
    index: RangeIndex[str] = RangeIndex()
    there: list[tuple[int, int, str]] = []
    for number, ((low, high), take) in enumerate(changes):
        if take and there:
            index.discard(*there.pop(0))
        else:
            there.append((low, high, str(number // 2)))
            index.add(*there[-1])
        begin, end = asked
        if begin < end:
            assert sorted(index.find(begin, end)) == sorted(n for a, b, n in there if a < end and begin < b)
        assert index.is_empty == (not there)


def command(serial: int) -> Command:
    src = in_tcm((0, 0, 0), 0, (8,), dtype("f32"))
    return Command(STORE, "store", serial, 1, (), (src,), MemoryRef(0, src.shape, src.dtype))
