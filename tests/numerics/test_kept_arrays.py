"""Arrays that memory keeps instead of copying them, against plain byte arrays; and that they take no memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.common.dtypes import I8
from kernbench.core.op_log import Operand
from kernbench.numerics.memory import GRANULE_BYTES, MemoryStore
from kernbench.numerics.operands import OperandMemory

SIZE = 5 * GRANULE_BYTES
SPACES = st.sampled_from(["hbm", "tcm"])
# Few, so that ranges meet, and near the borders of extents.
OFFSETS = st.builds(lambda k, d: k * GRANULE_BYTES // 4 + d, st.integers(0, 15), st.sampled_from([0, 0, 1, 300]))
LENGTHS = st.sampled_from([1, 300, GRANULE_BYTES // 4, GRANULE_BYTES // 2, GRANULE_BYTES])
COUNTS = st.sampled_from([1, 2, 100, 4000])
Step = tuple[str, int, str, int, int, int, int]


def constant(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["keep", "copy", "copy", "write", "strided", "read"]),
            st.tuples(SPACES, OFFSETS, SPACES, OFFSETS),
            LENGTHS,
            COUNTS,
            st.integers(0, 255),
        ),
        max_size=30,
    )
)
def test_who_keeps_an_array_sees_what_a_copy_would_show(steps) -> None:
    store, models = MemoryStore(), {space: np.zeros(2 * SIZE, np.uint8) for space in ("hbm", "tcm")}
    for what, (space, offset, source, source_offset), nbytes, count, seed in steps:
        model, here = models[space], slice(offset, offset + nbytes)
        if what == "keep":
            store.keep(space, offset, constant(np.full(nbytes, seed, np.uint8)))
            model[here] = seed
        elif what == "copy":  # of what is kept, or of bytes that may change
            store.keep(space, offset, store.view(source, source_offset, (nbytes,), I8))
            model[here] = models[source][source_offset : source_offset + nbytes].copy()
        elif what == "write":
            model[here] = seed
            store.write(space, offset, np.full(nbytes, seed, np.uint8))
        elif what == "strided":
            values = np.full((count, 3), seed, np.uint8)
            np.ndarray(values.shape, np.uint8, model, offset, (17, 2))[...] = values
            store.write(space, offset, values, (17, 2))
        else:
            assert np.array_equal(store.view(space, offset, (nbytes,), I8).view(np.uint8), model[here])
            rows = np.ndarray((count, 3), np.uint8, model, offset, (17, 2))
            assert np.array_equal(store.read(space, offset, (count, 3), I8, (17, 2)).view(np.uint8), rows)
    for space, model in models.items():
        assert np.array_equal(store.read(space, 0, model.shape, I8).view(np.uint8), model)


def array(space: str, address: int, nbytes: int) -> Operand:
    return Operand(space, (0, 0, 0), address, nbytes, (nbytes,), I8)


# The same arrays again and again, as a log has them: small ones are remembered by where they lie.
ARRAYS = [
    array(space, k * GRANULE_BYTES // 4, nbytes)
    for space in ("hbm", "tcm")
    for k in range(6)
    for nbytes in (64, GRANULE_BYTES // 4, GRANULE_BYTES)
]


@given(st.lists(st.tuples(st.sampled_from(ARRAYS), st.sampled_from(ARRAYS), st.integers(0, 4)), max_size=40))
def test_operands_of_any_size_see_each_others_writes(steps: Sequence[tuple[Operand, Operand, int]]) -> None:
    memory, models = OperandMemory(MemoryStore()), {space: np.zeros(SIZE, np.int8) for space in ("hbm", "tcm")}

    def held(x: Operand) -> np.ndarray:
        return models[x.space][x.address : x.address + x.nbytes]

    for n, (x, source, what) in enumerate(steps):
        if what < 2:
            memory.deposit(x, (constant if what else np.copy)(np.full(x.shape, n, np.int8)))
            held(x)[...] = n
        elif what < 4 and x.nbytes == source.nbytes:
            loaded = memory.load(source, private=what == 2)
            assert np.array_equal(loaded, held(source))
            copied = loaded.copy()
            memory.deposit(x, loaded)
            held(x)[...] = copied
        assert np.array_equal(memory.load(x, private=False), held(x))
        assert np.array_equal(memory.load(source, private=False), held(source))
    for x in ARRAYS:
        assert np.array_equal(memory.load(x, private=True), held(x))


def test_a_private_array_stays_whatever_becomes_of_memory() -> None:
    memory, x = OperandMemory(MemoryStore()), array("hbm", 0, GRANULE_BYTES)
    memory.deposit(x, constant(np.ones(x.shape, np.int8)))
    private = memory.load(x, private=True)
    memory.deposit(x, np.zeros(x.shape, np.int8))
    assert private.all()
    assert not memory.load(x, private=False).any()


def test_what_looks_constant_but_is_a_view_of_what_changes_is_copied() -> None:
    store, changing = MemoryStore(), np.ones(GRANULE_BYTES, np.int8)
    store.keep("hbm", 0, constant(changing[:]))
    changing[...] = 0
    assert store.read("hbm", 0, changing.shape, I8).all()


@pytest.mark.parametrize("strides", [None, (1,)], ids=["dense", "dense by its strides"])
def test_a_load_takes_no_memory_until_one_side_is_written(strides: tuple[int, ...] | None) -> None:
    """1 MiB to HBM and from there to TCM: nothing; the buffer of the side of which a byte changes: 1 MiB."""
    nbytes = 1 << 20
    source = Operand("hbm", (0, 0, 0), 0, nbytes, (nbytes,), I8, strides)
    loaded, memory = array("tcm", 0, nbytes), OperandMemory(MemoryStore())
    host = constant(np.ones(nbytes, np.int8))
    tracemalloc.start()
    try:
        memory.deposit(source, host)
        memory.deposit(loaded, memory.load(source, private=True))
        assert np.shares_memory(memory.load(loaded, private=False), host)
        assert tracemalloc.get_traced_memory()[0] < 20_000
        memory.deposit(array("hbm", 7, 1), np.zeros(1, np.int8))
        assert nbytes < tracemalloc.get_traced_memory()[0] < nbytes + 20_000
    finally:
        tracemalloc.stop()
    assert memory.load(loaded, private=False).all()
    assert np.flatnonzero(memory.load(source, private=False) == 0).tolist() == [7]
