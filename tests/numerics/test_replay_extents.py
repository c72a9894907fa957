"""Bytes of operands, and the indexes of ranges, against sets of single bytes."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from kernbench.common.dtypes import F16, F32, I8, row_major
from kernbench.core.op_log import Operand
from kernbench.numerics.intervals import ByteRuns, ExtentIndex, bounds
from kernbench.numerics.operands import window


@st.composite
def operands(draw: st.DrawFn, *, ragged: bool = True) -> Operand:
    """With strides (which may share bytes), segments and ragged edges, or without."""
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    dtype = draw(st.sampled_from((I8, F16, F32)))
    strides = tuple(draw(st.integers(0, 12)) for _ in shape) if draw(st.booleans()) else None
    steps = strides or row_major(shape, dtype.itemsize)
    span = dtype.itemsize + sum((n - 1) * s for n, s in zip(shape, steps, strict=True))
    segments: tuple[tuple[int, int], ...] = ()
    if draw(st.booleans()):
        cuts = sorted(draw(st.lists(st.integers(0, span), max_size=3)))
        sizes = [b - a for a, b in itertools.pairwise([0, *cuts, span])]
        segments = tuple((100 * draw(st.integers(0, 2)) + 400 * i, n) for i, n in enumerate(sizes))
    valid = tuple(draw(st.integers(0, n)) for n in shape) if ragged and draw(st.booleans()) else None
    address = segments[0][0] if segments else draw(st.integers(0, 60))
    nbytes = dtype.itemsize
    for n in shape:
        nbytes *= n
    return Operand("hbm", (0, 0), address, nbytes, shape, dtype, strides, segments, valid)


def touched(x: Operand, first: tuple[int, ...] = (), shape: tuple[int, ...] | None = None) -> set[int]:
    """Every byte of the part of ``shape`` from element ``first``."""
    steps = x.strides or row_major(x.shape, x.dtype.itemsize)
    flat = [a + i for a, n in x.segments for i in range(n)] or range(x.address, x.address + 1000)
    extents = shape if shape is not None else (x.shape if x.valid is None else x.valid)
    starts = first or (0,) * len(extents)
    return {
        flat[sum((f + i) * s for f, i, s in zip(starts, index, steps, strict=True)) + b]
        for index in itertools.product(*map(range, extents))
        for b in range(x.dtype.itemsize)
    }


def stretches(runs: ByteRuns) -> set[int]:
    pairs = zip(runs.starts.tolist(), runs.ends.tolist(), strict=True)
    return {i for low, high in pairs for i in range(low, high)}


@given(operands(), operands())
def test_bytes_of_operands(x: Operand, y: Operand) -> None:
    a, b = touched(x), touched(y)
    assert stretches(ByteRuns.of(x)) == a
    assert a <= {i for low, high in bounds(x) for i in range(low, high)}
    assert ByteRuns.of(x).common(ByteRuns.of(y)) == ((min(a & b), len(a & b)) if a & b else (0, 0))


@given(operands(ragged=False), st.data())
def test_a_window_is_a_part(x: Operand, data: st.DataObject) -> None:
    first = tuple(data.draw(st.integers(0, n - 1)) for n in x.shape)
    shape = tuple(data.draw(st.integers(1, n - f)) for n, f in zip(x.shape, first, strict=True))
    assert stretches(ByteRuns.of(window(x, first, shape))) == touched(x, first, shape)


RANGES = st.tuples(st.integers(0, 40), st.integers(0, 9)).map(lambda r: (r[0], r[0] + r[1]))


@given(st.lists(st.tuples(RANGES, st.booleans()), max_size=20), RANGES)
def test_the_index_finds_what_a_list_finds(changes, asked) -> None:
    """Each change adds a range or, when True, takes the oldest one away."""
    index: ExtentIndex[int] = ExtentIndex()
    there: list[tuple[int, int, int]] = []
    for number, ((low, high), take) in enumerate(changes):
        if take and there:
            index.discard(*there.pop(0))
        else:
            index.add(low, high, number)
            there.append((low, high, number))
        begin, end = asked
        expected = {n for a, b, n in there if a < b and a < end and begin < b}
        if begin < end:
            assert set(index.find(begin, end)) == expected
            assert not (index.misses(begin, end) and expected)
        assert index.is_empty == all(a >= b for a, b, _ in there)
