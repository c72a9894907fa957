"""Accesses of one PE to the same bytes keep the order of its program; others overlap freely."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import path_support
from engine_support import Array, Placed, fetch, launch, place, two_cubes
from ideal_memory import IDEAL
from kernbench.common.dtypes import dtype
from kernbench.core.op_log import OpRecord
from kernbench.engine.engine import GraphEngine
from kernbench.messages.requests import MappedShard, MemoryWriteMsg, MmuMapMsg, TensorArg, TensorMapping
from kernbench.observe.critical_path_model import CriticalPath, PathPart
from kernbench.triton_emu.tl_context import TLContext as Tl
from observed import findings, sanitized
from path_support import SMALL, check_request, watched

ROW = 4 * 64
"""Bytes of a row of the matrices here, of 64 f32."""
RELAXED = "pe.dma.ordering=relaxed"


def ones(*shape: int) -> np.ndarray[Any, Any]:
    return np.ones(shape, np.float32)


def run(kernel: Callable[..., object], *shapes: tuple[int, ...], overrides: Sequence[str] = ()) -> Run:
    return Run(kernel, shapes, GraphEngine(two_cubes(*overrides)))


class Run:
    """A kernel that has run on arrays of ones, and what it did line by line."""

    def __init__(self, kernel: Callable[..., object], shapes: Sequence[tuple[int, ...]], engine: GraphEngine) -> None:
        self.engine = engine
        self.first = kernel.__code__.co_firstlineno
        self.arrays = [place(engine, ones(*shape), name=f"x{i}") for i, shape in enumerate(shapes)]
        launch(engine, kernel, *self.arrays)

    def __getitem__(self, line: int) -> OpRecord:
        """The last command of a line, counted from that of ``def``."""
        return [r for r in self.engine.op_log if r.line == self.first + line and r.parent < 0][-1]

    def values(self, i: int) -> set[float]:
        return set(np.unique(fetch(self.engine, self.arrays[i])))


# --- who waits, and until when ----------------------------------------------------------------------------------------


def test_a_load_starts_when_the_store_is_in_memory() -> None:
    def kernel(x: int, y: int, *, tl: Tl) -> None:
        tl.store(x, tl.full((8, 64), 5.0, "f32"))
        tl.store(y, tl.load(x, (8, 64), "f32"))

    done = run(kernel, (8, 64), (8, 64))
    stored, loaded = done[1], next(r for r in done.engine.op_log if r.kind == "dma_read")
    assert stored.t_commit_ps < stored.t_end_ps  # not when the acknowledgement is back
    assert loaded.t_start_ps == stored.t_commit_ps
    assert loaded.order == "bytes"
    assert done.values(1) == {5.0}


def test_a_store_starts_when_the_load_has_read() -> None:
    def kernel(x: int, y: int, *, tl: Tl) -> None:
        five = tl.full((8, 64), 5.0, "f32")
        old = tl.load(x, (8, 64), "f32")
        tl.store(x, five)
        tl.store(y, old)

    done = run(kernel, (8, 64), (8, 64))
    assert done[2].t_read_ps < done[2].t_end_ps
    assert done[3].t_start_ps == done[2].t_read_ps
    assert (done.values(0), done.values(1)) == ({5.0}, {1.0})


def test_the_last_of_two_stores_stays() -> None:
    """The first waits for MATH, the second for nothing: alone it would be there long before."""

    def kernel(x: int, *, tl: Tl) -> None:
        slow = tl.exp(tl.full((64, 64), 0.0, "f32"))
        tl.store(x, slow)
        tl.store(x + 4, tl.full((1, 1), 7.0, "f32"))

    done = run(kernel, (64, 64))
    assert done[3].t_start_ps == done[2].t_commit_ps
    assert fetch(done.engine, done.arrays[0]).reshape(-1)[:3].tolist() == [1.0, 7.0, 1.0]
    relaxed = run(kernel, (64, 64), overrides=[RELAXED])
    assert fetch(relaxed.engine, relaxed.arrays[0]).reshape(-1)[:3].tolist() == [1.0, 1.0, 1.0]


def test_two_reads_never_wait() -> None:
    def kernel(x: int, *, tl: Tl) -> None:
        tl.load(x, (64, 64), "f32")
        tl.load(x, (64, 64), "f32")

    done = run(kernel, (64, 64))
    assert done[2].t_start_ps < done[1].t_read_ps
    assert done[2].order == ""


def test_tiles_of_one_matrix_do_not_wait_for_each_other() -> None:
    """Their rows interleave, their bytes do not; the times are those of a machine that compares nothing."""

    def kernel(x: int, *, tl: Tl) -> None:
        for column in range(4):
            tile = tl.load(x + 64 * column, (64, 16), "f32", strides=(ROW, 4))
            tl.store(x + 64 * column, tile + 1.0, strides=(ROW, 4))

    done = run(kernel, (64, 64))
    assert done.values(0) == {2.0}
    assert {r.order for r in done.engine.op_log} == {""}
    relaxed = run(kernel, (64, 64), overrides=[RELAXED])
    times = [[(r.kind, r.t_start_ps, r.t_end_ps) for r in each.engine.op_log] for each in (done, relaxed)]
    assert times[0] == times[1]


def test_only_what_is_valid_is_touched() -> None:
    def kernel(x: int, *, tl: Tl) -> None:
        tl.store(x, tl.full((8, 64), 5.0, "f32"), valid=(4, 64))
        tl.load(x + 4 * ROW, (4, 64), "f32")
        tl.load(x + 3 * ROW, (4, 64), "f32")

    done = run(kernel, (8, 64))
    assert (done[2].order, done[3].order) == ("", "bytes")


def test_composites_keep_the_order() -> None:
    def kernel(x: int, y: int, z: int, *, tl: Tl) -> None:
        tl.composite("add", tl.ref(x, (96, 64), "f32"), 1, out_ptr=y)
        tl.composite("add", tl.ref(y, (96, 64), "f32"), 1, out_ptr=z)
        tl.store(x, tl.full((96, 64), 9.0, "f32"))
        seen = tl.load(z + 95 * ROW, (1, 64), "f32")
        tl.store(z, seen * 2.0)

    done = run(kernel, (96, 64), (96, 64), (96, 64))
    assert done[2].t_start_ps >= done[1].t_end_ps
    assert done[3].t_start_ps >= done[1].t_end_ps
    assert done[3].t_start_ps < done[2].t_end_ps
    assert done[4].t_start_ps >= done[2].t_end_ps
    assert [done.values(i) for i in range(3)] == [{9.0}, {2.0}, {3.0, 6.0}]


def test_what_waits_is_waited_for() -> None:
    """Three commands in a row, of which the second has not begun when the third is issued."""

    def kernel(x: int, y: int, *, tl: Tl) -> None:
        tl.store(x, tl.exp(tl.full((8, 64), 0.0, "f32")))
        tl.composite("add", tl.ref(x, (8, 64), "f32"), 1, out_ptr=y)
        tl.store(y + ROW, tl.full((1, 64), 4.0, "f32"))

    done = run(kernel, (8, 64), (8, 64))
    assert done[3].t_start_ps == done[2].t_end_ps
    assert fetch(done.engine, done.arrays[1])[:, 0].tolist() == [2.0, 4.0, *[2.0] * 6]


def test_one_address_by_two_names_is_the_same_bytes() -> None:
    """Compared physically: two tensors that lie at one place."""

    def kernel(x: int, y: int, *, tl: Tl) -> None:
        tl.store(x, tl.full((8, 64), 5.0, "f32"))
        tl.load(y, (8, 64), "f32")

    engine = GraphEngine(two_cubes())
    x = place(engine, ones(8, 64), name="x")
    y = alias_of(engine, x)
    launch(engine, kernel, x, y)
    stored, loaded = (next(r for r in engine.op_log if r.kind == kind) for kind in ("dma_write", "dma_read"))
    assert loaded.t_start_ps == stored.t_commit_ps


def alias_of(engine: GraphEngine, x: Placed) -> Placed:
    """Another virtual address of the same bytes."""
    nbytes = 8 * ROW
    va = engine.va_allocator(0).alloc(nbytes)
    shard = MappedShard(sip=0, cube=0, pe=0, offset_bytes=0, nbytes=nbytes, pa=x.pa)
    mapping = TensorMapping(name="y", va_base=va, nbytes=nbytes, shards=(shard,))
    engine.wait(engine.submit(MmuMapMsg(sip=0, mapping=mapping)))
    return Placed(TensorArg(name="y", va=va, shape=(8, 64), dtype=x.arg.dtype, owners=((0, 0, 0),)), x.pa)


def test_rows_beyond_64_are_compared_by_ranges_and_the_log_says_so() -> None:
    def kernel(x: int, *, tl: Tl) -> None:
        tl.store(x, tl.full((128, 1), 5.0, "f32"), strides=(ROW, 4))
        tl.load(x + 4, (100, 1), "f32", strides=(ROW - 16, 4))
        tl.load(x + 4, (128, 1), "f32", strides=(ROW, 4))

    done = run(kernel, (128, 64))
    assert done[2].order == "range"
    assert done[3].order == ""


# --- any program ------------------------------------------------------------------------------------------------------

ROWS, COLUMNS = 24, 64
Box = tuple[int, int, int, int]
"""First row, rows, first column, columns"""


@st.composite
def boxes(draw: st.DrawFn) -> Box:
    row, column = draw(st.integers(0, ROWS - 1)), draw(st.integers(0, COLUMNS - 1))
    return row, draw(st.integers(1, ROWS - row)), column, draw(st.integers(1, COLUMNS - column))


Step = tuple[str, Box, Box]


def as_numpy(steps: list[Step], x: Array, y: Array) -> None:
    """What a program gives when one command is over before the next begins."""
    for i, (what, (r, h, c, w), (r2, _, c2, _)) in enumerate(steps):
        h2, w2 = min(h, ROWS - r2), min(w, COLUMNS - c2)
        if what == "store":
            x[r : r + h, c : c + w] = i + 2
        elif what == "load":
            y[i, :h, :w] = x[r : r + h, c : c + w]
        elif what == "move":
            x[r2 : r2 + h2, c2 : c2 + w2] = x[r : r + h2, c : c + w2].copy()
        else:
            y[i, :h, :w] = x[r : r + h, c : c + w] + 1


def as_kernel(steps: list[Step]) -> Callable[..., object]:
    def kernel(x: int, y: int, *, tl: Tl) -> None:
        rows = (ROW, 4)
        for i, (what, (r, h, c, w), (r2, _, c2, _)) in enumerate(steps):
            h2, w2 = min(h, ROWS - r2), min(w, COLUMNS - c2)
            here, there, mine = x + r * ROW + 4 * c, x + r2 * ROW + 4 * c2, y + i * ROWS * ROW
            if what == "store":
                tl.store(here, tl.full((h, w), i + 2, "f32"), strides=rows)
            elif what == "load":
                tl.store(mine, tl.load(here, (h, w), "f32", strides=rows), strides=rows)
            elif what == "move":
                tl.store(there, tl.load(here, (h2, w2), "f32", strides=rows), strides=rows)
            else:
                tl.composite(
                    "add",
                    tl.ref(here, (h, w), "f32", strides=rows),
                    1,
                    out_ptr=mine,
                    out_strides=rows,
                )

    return kernel


@given(st.lists(st.tuples(st.sampled_from(["store", "load", "move", "composite"]), boxes(), boxes()), max_size=10))
def test_any_program_is_as_if_its_commands_came_one_by_one(steps: list[Step]) -> None:
    engine = GraphEngine(two_cubes(*SMALL))
    x, y = np.zeros((ROWS, COLUMNS), np.float32), np.zeros((max(1, len(steps)), ROWS, COLUMNS), np.float32)
    placed = [place(engine, x.copy()), place(engine, y.copy())]
    launch(engine, as_kernel(steps), *placed)
    as_numpy(steps, x, y)
    np.testing.assert_array_equal(fetch(engine, placed[0]), x)
    np.testing.assert_array_equal(fetch(engine, placed[1]), y)


# --- what it costs, and where it shows --------------------------------------------------------------------------------


def many(x: int, y: int, *, tl: Tl) -> None:
    for _ in range(20):
        tl.store(x, tl.full((8, 64), 5.0, "f32"))
        tl.load(x, (8, 64), "f32")


def test_waiting_costs_no_event() -> None:
    """A burst each, so that no data meet others on the way: an access that waits costs what one alone does."""

    def events(stores: int, loads: int, pairs: int) -> int:
        def kernel(x: int, *, tl: Tl) -> None:
            fives = tl.full((8,), 5.0, "f32")
            for _ in range(stores):
                tl.store(x, fives)
            for _ in range(loads):
                tl.load(x, 8, "f32")
            for _ in range(pairs):
                tl.store(x, fives)
                tl.load(x, 8, "f32")

        return run(kernel, (8,)).engine.n_events

    none = events(0, 0, 0)
    store, load = events(1, 0, 0) - none, events(0, 1, 0) - none
    assert min(store, load) > 0
    assert events(0, 0, 20) == none + 20 * (store + load)


def path_of(kernel: Callable[..., object], *shapes: tuple[int, ...], memory: tuple[str, ...] = ()) -> CriticalPath:
    engine = watched(*memory)
    handle = path_support.run(engine, kernel, *(place(engine, ones(*shape)) for shape in shapes))
    check_request(engine, handle)
    return path_support.path_of(engine, handle)


def test_who_waits_is_a_cause_of_its_own() -> None:
    def kernel(x: int, *, tl: Tl) -> None:
        tl.store(x, tl.full((8, 64), 5.0, "f32"))
        tl.load(x, (8, 64), "f32")

    path = path_of(kernel, (8, 64), memory=IDEAL)
    first = kernel.__code__.co_firstlineno
    (hop,) = path.hops
    assert (hop.waiting.line - first, hop.cause.line - first, hop.waited_for) == (2, 1, "memory order")
    # The load is issued 1 ns behind the store, which waits for MATH: 2 ns and 2 KiB at 256 bytes a ns, from 1 ns before
    # its issue on. Then set-up 2, the way 2, 2 KiB at 204.8 GB/s, access 30.
    assert hop.ps / 1000 == pytest.approx(2 + 8 - 1 - 1 + 2 + 2 + 2048 / 204.8 + 30, abs=0.1)
    spent = {each.part: each.ps / 1000 for each in path.parts}
    assert spent[PathPart.ACCESS] == 2 * 30  # the path goes through the store, up to its commit
    assert spent[PathPart.SERVICE] == 2 * 10
    assert PathPart.WAIT not in spent


def test_every_wait_has_its_cause() -> None:
    """Each load waits for the store before it, and the data of each store for the memory, which works for the load."""
    path = path_of(many, (8, 64), (8, 64), memory=IDEAL)
    assert PathPart.WAIT not in {each.part for each in path.parts}
    assert [hop.waited_for for hop in path.hops] == ["memory order"] * 20
    first = many.__code__.co_firstlineno
    assert {(hop.waiting.line - first, hop.cause.line - first) for hop in path.hops} == {(3, 2)}


def test_a_composite_whose_tiles_leave_behind_those_of_another() -> None:
    """Its own bytes are near and there long before; what is waited for is the far one's."""

    def kernel(far: int, near: int, *, tl: Tl) -> None:
        tl.composite("add", tl.ref(far, (8, 32), "f32"), 1, out_ptr=far)
        tl.composite("add", tl.ref(near, (8, 32), "f32"), 1, out_ptr=near)
        tl.load(near, (8, 32), "f32")

    engine = watched(small=False)
    placed = [place(engine, ones(8, 32), pe=(0, 15, 7)), place(engine, ones(8, 32))]
    handle = path_support.run(engine, kernel, *placed)
    assert PathPart.WAIT not in check_request(engine, handle)
    (hop,) = path_support.path_of(engine, handle).hops
    assert hop.cause.line == kernel.__code__.co_firstlineno + 2


# --- relaxed ----------------------------------------------------------------------------------------------------------


def kinds(kernel: Callable[..., object], *overrides: str) -> list[tuple[str, int, int]]:
    """The findings of a run: kind, line, the other's line."""
    engine = sanitized(two_cubes(*overrides))
    done = Run(kernel, [(64, 64), (64, 64)], engine)
    return [(f.kind, f.line - done.first, f.other.line - done.first) for f in findings(engine) if f.other is not None]


def test_relaxed_machines_do_as_they_did_and_the_sanitizer_tells() -> None:
    """Each pair lies apart in time, so no race says it."""

    def read_after_write(x: int, y: int, *, tl: Tl) -> None:
        slow = tl.load(y, (64, 64), "f32")
        for _ in range(4):
            slow = tl.exp(slow)
        tl.store(x, slow)
        tl.load(x + 4, (1, 1), "f32")

    def write_after_read(x: int, y: int, *, tl: Tl) -> None:
        for _ in range(8):
            tl.load(y, (64, 64), "f32")
        tl.load(x + 63 * ROW, (1, 64), "f32")
        tl.store(x + 63 * ROW, tl.full((1, 1), 5.0, "f32"))

    def write_after_write(x: int, y: int, *, tl: Tl) -> None:
        slow = tl.load(y, (64, 64), "f32")
        for _ in range(4):
            slow = tl.exp(slow)
        tl.store(x, slow)
        tl.store(x, tl.full((1, 1), 5.0, "f32"))

    def of_a_composite(x: int, y: int, *, tl: Tl) -> None:
        slow = tl.load(y, (64, 64), "f32")
        for _ in range(4):
            slow = tl.exp(slow)
        tl.composite("add", slow, 1, out_ptr=x)
        tl.store(x, tl.full((1, 1), 5.0, "f32"))

    expected = {
        read_after_write: [("inversion", 5, 4)],
        write_after_write: [("inversion", 5, 4)],
        of_a_composite: [("inversion", 5, 4)],
    }
    for kernel, found in expected.items():
        assert kinds(kernel, RELAXED) == found
        assert kinds(kernel) == []
    assert kinds(write_after_read) == []


def test_an_inversion_is_told_in_full() -> None:
    def kernel(x: int, y: int, *, tl: Tl) -> None:
        tl.store(x, tl.exp(tl.load(y, (64, 64), "f32")), strides=(ROW, 4))
        tl.load(x + 4, (64, 1), "f32", strides=(ROW, 4))

    engine = sanitized(two_cubes(RELAXED))
    done = Run(kernel, [(64, 64), (64, 64)], engine)
    (found,) = [f for f in findings(engine) if f.kind == "inversion"]
    assert found.other is not None
    assert (found.side.action, found.other.action) == ("load", "store")
    assert (found.side.writes, found.other.writes) == (False, True)
    assert (found.tensor, found.space) == ("x0", "hbm")
    assert (found.address, found.nbytes) == (done.arrays[0].pa + 4, 64 * 4)
    assert found.t_end_ns == done[2].t_read_ps / 1000
    assert found.other.t_start_ns == done[1].t_commit_ps / 1000
    assert "tl.barrier()" in str(found)


def test_what_happened_in_order_is_no_inversion() -> None:
    def kernel(x: int, y: int, *, tl: Tl) -> None:
        tl.store(x, tl.full((1, 1), 5.0, "f32"))
        tl.barrier()
        tl.load(x, (64, 64), "f32")
        tl.barrier()
        tl.store(x, tl.full((1, 1), 6.0, "f32"))

    assert [f for f in kinds(kernel, RELAXED) if f[0] == "inversion"] == []


def test_a_composite_that_waits_for_the_scheduler_has_not_begun() -> None:
    """The load reads what the second composite, which is still behind the first, is to write."""

    def kernel(x: int, y: int, *, tl: Tl) -> None:
        tl.composite("gemm", tl.ref(y, (64, 64), "f32"), tl.ref(y, (64, 64), "f32"), out_ptr=y + 64 * ROW)
        tl.composite("add", tl.ref(x, (64, 64), "f32"), 1, out_ptr=x)
        tl.load(x, (1, 1), "f32")

    def tried(*overrides: str) -> list[tuple[str, int, int]]:
        engine = sanitized(two_cubes(*overrides))
        done = Run(kernel, [(64, 64), (128, 64)], engine)
        return [(f.kind, f.line - done.first, f.other.line - done.first) for f in findings(engine) if f.other]

    few = "pe.components.pe_scheduler.attrs.tiles_in_flight=1"
    assert tried(RELAXED, few) == [("inversion", 3, 2)]
    assert tried(few) == []


@pytest.mark.parametrize(("column", "found"), [(1, 0), (0, 100)])
def test_an_inversion_is_of_bytes_where_rows_are_many_and_in_two_places(column: int, found: int) -> None:
    """Ranges that enclose them meet in both cases."""

    def kernel(x: int, y: int, *, tl: Tl) -> None:
        tl.store(x, tl.exp(tl.load(y, (100, 1), "f32", strides=(ROW, 4))), strides=(ROW, 4))
        tl.load(x + 4 * column, (100, 1), "f32", strides=(ROW, 4))

    engine = sanitized(two_cubes(RELAXED))
    x, y = in_two_places(engine, (100, 64)), place(engine, ones(100, 64))
    launch(engine, kernel, x, y)
    inversions = [f.nbytes for f in findings(engine) if f.kind == "inversion"]
    assert inversions == ([4 * found] if found else [])


def in_two_places(engine: GraphEngine, shape: tuple[int, int]) -> Placed:
    """An array of which one PE's slice has half, and that of another the rest."""
    half = shape[0] * shape[1] * 2
    pas = [engine.allocators[pe].alloc_hbm(half).encode() for pe in ((0, 0, 0), (0, 0, 1))]
    va = engine.va_allocator(0).alloc(2 * half)
    shards = tuple(
        MappedShard(sip=0, cube=0, pe=i, offset_bytes=i * half, nbytes=half, pa=pa) for i, pa in enumerate(pas)
    )
    for pa in pas:
        engine.wait(engine.submit(MemoryWriteMsg(pa=pa, nbytes=half, pattern=b"\0")))
    mapping = TensorMapping(name="x", va_base=va, nbytes=2 * half, shards=shards)
    engine.wait(engine.submit(MmuMapMsg(sip=0, mapping=mapping)))
    return Placed(TensorArg(name="x", va=va, shape=shape, dtype=dtype("f32"), owners=((0, 0, 0),)), pas[0])
