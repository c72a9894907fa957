"""The store against a plain byte array, and what it costs in extents."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.common.dtypes import ALL, F32, I8, DType, row_major
from kernbench.common.errors import RunError, UnknownNameError
from kernbench.numerics.memory import GRANULE_BYTES, MemoryStore

SIZE = 6 * GRANULE_BYTES
BASE = 3 * GRANULE_BYTES
# Near granule borders accesses cross extents; elsewhere they do not.
OFFSETS = st.one_of(
    st.integers(0, SIZE // 2),
    st.builds(lambda k, d: k * GRANULE_BYTES + d, st.integers(1, 3), st.integers(-70, 70)),
)


@st.composite
def accesses(draw: st.DrawFn) -> tuple[int, tuple[int, ...], DType, tuple[int, ...] | None]:
    dtype = draw(st.sampled_from(ALL))
    shape = tuple(draw(st.lists(st.integers(0, 9), max_size=3)))
    if draw(st.booleans()):
        shape = (*shape, draw(st.integers(1, 300)))
    strides = None
    if draw(st.booleans()):
        strides = disjoint(draw, shape, dtype.itemsize)
    return draw(OFFSETS), shape, dtype, strides


def disjoint(draw: st.DrawFn, shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Strides, in any order of axes, under which no two elements overlap and little is skipped."""
    steps = [0] * len(shape)
    reach = itemsize
    for axis in draw(st.permutations(range(len(shape)))):
        steps[axis] = reach + draw(st.integers(0, 40))
        reach = max(reach, (max(shape[axis], 1) - 1) * steps[axis] + reach)
    return tuple(steps)


def window(model: bytearray, offset: int, shape: tuple[int, ...], dtype: DType, strides: tuple[int, ...] | None):
    return np.ndarray(shape, dtype.numpy, model, offset, strides)


def fits(offset: int, shape: tuple[int, ...], dtype: DType, strides: tuple[int, ...] | None) -> bool:
    steps = row_major(shape, dtype.itemsize) if strides is None else strides
    return offset + dtype.itemsize + sum(max(n - 1, 0) * s for n, s in zip(shape, steps, strict=True)) <= SIZE


@given(st.lists(st.tuples(st.booleans(), accesses(), st.integers(0, 255)), max_size=14), st.booleans())
def test_agrees_with_a_byte_array(steps, tracked) -> None:
    model, written = bytearray(SIZE), bytearray(SIZE)
    reports: list[tuple[int, int]] = []
    store = MemoryStore((lambda _space, at, n: reports.append((at - BASE, n))) if tracked else None)
    for is_write, (offset, shape, dtype, strides), seed in steps:
        if not fits(offset, shape, dtype, strides):
            continue
        target = window(model, offset, shape, dtype, strides)
        if is_write:
            raw = np.arange(seed, seed + target.size * dtype.itemsize).astype(np.uint8)
            values = raw.view(dtype.numpy).reshape(shape)
            target[...] = values
            flag_geometry = (*(row_major(shape, dtype.itemsize) if strides is None else strides), 1)
            np.ndarray((*shape, dtype.itemsize), np.uint8, written, offset, flag_geometry)[...] = 1
            store.write("hbm", BASE + offset, values, strides)
            continue
        reports.clear()
        assert store.read("hbm", BASE + offset, shape, dtype, strides).tobytes() == target.tobytes()
        assert store.view("hbm", BASE + offset, shape, dtype, strides).tobytes() == target.tobytes()
        flag_geometry = (*(row_major(shape, dtype.itemsize) if strides is None else strides), 1)
        missing = np.ndarray((*shape, dtype.itemsize), np.uint8, written, offset, flag_geometry) == 0
        if tracked:
            assert [n for _, n in reports] == ([missing.sum()] * 2 if missing.any() else [])
            where = np.argwhere(missing) @ np.array(flag_geometry)
            assert all(at == offset + where.min() for at, _ in reports)
    assert store.read("hbm", BASE, (SIZE,), "i8").tobytes() == bytes(model)


def test_never_written_is_zero_and_spaces_are_apart() -> None:
    store = MemoryStore()
    store.write("tcm", 64, np.ones(4, np.float32))
    assert not store.read("hbm", 64, (4,), "f32").any()
    assert not store.read("tcm", 1 << 50, (4,), "f32").any()
    assert store.read("tcm", 60, (6,), "float32").tolist() == [0, 1, 1, 1, 1, 0]


def test_a_read_is_a_copy_and_a_view_is_not() -> None:
    store = MemoryStore()
    store.write("tcm", 0, np.ones(4, np.int8))
    copied, seen = store.read("tcm", 0, (4,), "i8"), store.view("tcm", 0, (4,), "i8")
    store.write("tcm", 1, np.full(1, 7, np.int8))
    assert copied.tolist() == [1, 1, 1, 1]
    assert seen.tolist() == [1, 7, 1, 1]


def test_moving_a_view_over_itself_moves_the_old_bytes() -> None:
    store = MemoryStore()
    n = GRANULE_BYTES
    values = np.arange(2 * n, dtype=np.uint32).astype(np.uint8)
    store.write("hbm", 0, values[:n])
    store.write("hbm", n, values[n:])
    store.write("hbm", 2 * n, np.zeros(1, np.uint8))
    source = store.view("hbm", 0, (n,), "i8")
    store.write("hbm", n // 2, source)
    assert store.read("hbm", n // 2, (n,), "i8").tobytes() == values[:n].tobytes()


def test_fill_repeats_a_pattern() -> None:
    store = MemoryStore()
    store.fill("sram", 10, 5, b"\x01\x02")
    store.fill("sram", 20, 3, 0xFF)
    assert store.read("sram", 9, (15,), "i8").tolist() == [0, 1, 2, 1, 2, 1, 0, 0, 0, 0, 0, -1, -1, -1, 0]


def test_one_large_write_is_one_extent_and_small_ones_share() -> None:
    store = MemoryStore()
    store.write("hbm", 100, np.ones(10 * GRANULE_BYTES, np.uint8))
    assert store.allocated_bytes("hbm") == 11 * GRANULE_BYTES
    for i in range(1000):
        store.write("tcm", i * 16, np.ones(16, np.uint8))
    assert store.allocated_bytes("tcm") == GRANULE_BYTES


def test_strided_write_touches_only_its_elements() -> None:
    store = MemoryStore()
    store.fill("hbm", 0, 64, 9)
    store.write("hbm", 0, np.zeros((4, 2), np.uint8), (16, 1))
    rows = store.read("hbm", 0, (4, 16), "i8")
    assert not rows[:, :2].any()
    assert (rows[:, 2:] == 9).all()


def test_unknown_space_and_backward_strides() -> None:
    store = MemoryStore()
    with pytest.raises(UnknownNameError, match="there are: hbm, sram, tcm"):
        store.read("dram", 0, (1,), "f32")
    with pytest.raises(RunError, match="must not be negative"):
        store.read("hbm", 64, (4,), "f32", (-4,))


def test_a_place_is_the_memory_itself_for_good() -> None:
    store = MemoryStore()
    assert store.place("hbm", BASE, (4,), F32) is None
    store.write("hbm", BASE, np.zeros(4, np.float32))
    place = store.place("hbm", BASE, (4,), F32)
    assert place is not None
    for k in range(-3, 4):  # extents on all sides
        store.write("hbm", BASE + k * GRANULE_BYTES + 64, np.ones(4, np.float32))
    place[...] = 7
    assert store.read("hbm", BASE, (4,), F32).tolist() == [7] * 4
    assert store.place("hbm", BASE + GRANULE_BYTES - 8, (4,), F32) is None
    assert MemoryStore(lambda *_: None).place("hbm", BASE, (4,), F32) is None


def test_extents_of_any_size_do_not_meet() -> None:
    store = MemoryStore()
    sizes = [1, GRANULE_BYTES, 5 * GRANULE_BYTES, 15 * GRANULE_BYTES, 16 * GRANULE_BYTES, 40 * GRANULE_BYTES, 3]
    starts = np.cumsum([0, *(n + 2 * GRANULE_BYTES for n in sizes)])
    for value, (start, size) in enumerate(zip(starts, sizes, strict=False), 1):
        store.fill("hbm", int(start) // GRANULE_BYTES * GRANULE_BYTES, size, value)
    for value, (start, size) in enumerate(zip(starts, sizes, strict=False), 1):
        found = store.read("hbm", int(start) // GRANULE_BYTES * GRANULE_BYTES, (size + 1,), I8)
        assert (found[:-1] == value).all()
        assert found[-1] == 0


def test_what_was_written_is_known_byte_by_byte() -> None:
    store = MemoryStore(on_unwritten=lambda *_: None)
    edge = GRANULE_BYTES
    store.write("hbm", edge - 4, np.ones(2, np.int16))
    store.write("hbm", edge + 2, np.ones(3, np.uint8))
    assert np.flatnonzero(store.written("hbm", edge - 8, 16)).tolist() == [4, 5, 6, 7, 10, 11, 12]
    assert not store.written("hbm", 9 * edge, 8).any()
    assert not store.written("sram", edge - 8, 16).any()
    store.forget("hbm", edge - 2, 5)
    assert np.flatnonzero(store.written("hbm", edge - 8, 16)).tolist() == [4, 5, 11, 12]
    assert store.read("hbm", edge - 4, (2,), "i8").tolist() == [1, 0]
    store.forget("hbm", 9 * edge, 8)
    assert store.allocated_bytes("hbm") == 2 * edge


def test_a_store_that_does_not_track_says_so() -> None:
    store = MemoryStore()
    assert not store.is_tracked
    for ask in (store.written, store.forget):
        with pytest.raises(RunError, match="on_unwritten"):
            ask("hbm", 0, 4)
