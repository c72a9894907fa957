"""Composites in phase 2 that something disturbs: always what the tiles' own reads and writes give."""

from __future__ import annotations

import numpy as np
import pytest
from test_replay_oracle import agrees, composites, place, small, start, tiled

from engine_support import fetch, launch, two_cubes
from kernbench.core.op_log import Operand
from kernbench.engine.engine import GraphEngine
from kernbench.messages.requests import MemoryWriteMsg
from kernbench.triton_emu.tl_context import TLContext as Tl


@pytest.fixture
def engine() -> GraphEngine:
    return GraphEngine(two_cubes())


def test_both_ways_agree_to_the_rounding_of_sums(engine: GraphEngine) -> None:
    rng = np.random.default_rng(3)
    xs = [rng.standard_normal(s).astype(np.float16) for s in ((100, 200), (200, 90), (100, 90))]
    a, b, c = (place(engine, x) for x in xs)

    def kernel(a: int, b: int, c: int, *, tl: Tl) -> None:
        tl.composite("gemm", tl.ref(a, (100, 200), "f16"), tl.ref(b, (200, 90), "f16"), out_ptr=c, out_dtype="f16")

    launch(engine, kernel, a, b, c)
    whole = fetch(engine, c)
    handle = start(engine, kernel, a, b, c)
    while not handle.done:
        engine.run_until(engine.now + 500)
        engine.replay()
    assert tiled(engine) == 1
    np.testing.assert_allclose(fetch(engine, c).astype(np.float32), whole.astype(np.float32), rtol=2e-3, atol=1e-4)


# --- disturbed: tile by tile ------------------------------------------------------------------------------------------


def test_an_output_that_is_an_input(engine: GraphEngine) -> None:
    """C = C B: later tiles read what earlier tiles have written, or not, as time has it."""
    c, b = place(engine, small(96, 192)), place(engine, small(192, 192, seed=1))

    def kernel(c: int, b: int, *, tl: Tl) -> None:
        tl.composite("gemm", tl.ref(c, (96, 192), "f32"), tl.ref(b, (192, 192), "f32"), out_ptr=c)

    launch(engine, kernel, c, b)
    agrees(engine, c, b)
    assert tiled(engine) == 1
    assert (fetch(engine, c) != small(96, 192) @ small(192, 192, seed=1)).any()


@pytest.mark.parametrize("begin", [(0, 0, 0), (50, 100, 150)])
@pytest.mark.parametrize("block", [(64, 64, 64), (32, 256, 64), (96, 64, 32)])
def test_panels_of_an_output_that_is_an_input(
    engine: GraphEngine, block: tuple[int, int, int], begin: tuple[int, int, int]
) -> None:
    """C = C B + C by blocks: later panels read what earlier blocks have written, or not, as time has it."""
    c, b = place(engine, small(96, 192)), place(engine, small(192, 192, seed=1))

    def kernel(c: int, b: int, *, tl: Tl) -> None:
        x = tl.ref(c, (96, 192), "f32")
        w, epilogue = tl.ref(b, (192, 192), "f32"), (("add", x),)
        tl.composite("gemm", x, w, out_ptr=c, epilogue=epilogue, block=block, begin=begin)

    launch(engine, kernel, c, b)
    agrees(engine, c, b)
    assert tiled(engine) == 1


@pytest.mark.parametrize("staged", [False, True])
def test_writes_of_others_beside_a_product_by_blocks(engine: GraphEngine, staged: bool) -> None:
    """PE 1 writes an operand of PE 0's product while that reads its panels."""
    m, k, n = 128, 256, 128
    a, b, c = place(engine, small(m, k)), place(engine, small(k, n, seed=1)), place(engine, small(m, n, seed=2))

    def kernel(a: int, b: int, c: int, *, tl: Tl) -> None:
        if tl.program_id(0) == 0:
            left = tl.load(a, (m, k), "f32") if staged else tl.ref(a, (m, k), "f32")
            more = (("bias", tl.load(c, n, "f32")),)
            right = tl.ref(b, (k, n), "f32")
            tl.composite("gemm", left, right, out_ptr=c, epilogue=more, block=(64, 64, 64), begin=(64, 128, 100))
            return
        for at in range(12):
            tl.store(b + at * 16 * n * 4, tl.full((16, n), at, "f32"))
            tl.store(a + at * 8 * k * 4, tl.load(a + at * 8 * k * 4, (8, k), "f32") + 1)

    launch(engine, kernel, a, b, c, targets=((0, 0, 0), (0, 0, 1)))
    agrees(engine, a, b, c)
    assert tiled(engine) == 1


def test_an_output_shifted_along_an_input(engine: GraphEngine) -> None:
    x = place(engine, small(97, 64))

    def kernel(x: int, *, tl: Tl) -> None:
        tl.composite("add", tl.ref(x, (96, 64), "f32"), 1, out_ptr=x + 64 * 4)

    launch(engine, kernel, x)
    agrees(engine, x)
    assert tiled(engine) == 1


def test_columns_between_columns_do_not_disturb(engine: GraphEngine) -> None:
    """Ranges intersect, bytes do not: reads and writes interleaved columns of one matrix."""
    x = place(engine, small(64, 64))

    def kernel(x: int, *, tl: Tl) -> None:
        row = (64 * 4, 4)
        tl.composite("add", tl.ref(x, (64, 32), "f32", strides=row), 1, out_ptr=x + 32 * 4, out_strides=row)

    launch(engine, kernel, x)
    agrees(engine, x)
    assert tiled(engine) == 0


def test_one_pe_reads_what_another_writes(engine: GraphEngine) -> None:
    x, y, z = (place(engine, small(128, 128, seed=s)) for s in range(3))

    def kernel(x: int, y: int, z: int, *, tl: Tl) -> None:
        shape = (128, 128)
        if tl.program_id(0) == 0:
            tl.composite("add", tl.ref(x, shape, "f32"), 5, out_ptr=y)
        elif tl.program_id(0) == 1:
            tl.composite("mul", tl.ref(y, shape, "f32"), 2, out_ptr=z)
        else:
            tl.composite("mul", tl.ref(z, shape, "f32"), 3, out_ptr=x)

    launch(engine, kernel, x, y, z, targets=((0, 0, 0), (0, 0, 1), (0, 0, 2)))
    agrees(engine, x, y, z)
    assert tiled(engine) == 3


def test_loads_and_stores_beside_a_composite(engine: GraphEngine) -> None:
    """PE 1 writes operands of PE 0's composite, and reads and writes its output, all the time."""
    m, k, n = 96, 128, 64
    a, b, c, d = (place(engine, x) for x in (small(m, k), small(k, n, seed=1), small(m, n, seed=2), small(64, 64)))

    def kernel(a: int, b: int, c: int, d: int, *, tl: Tl) -> None:
        if tl.program_id(0) == 0:
            tl.composite("gemm", tl.ref(a, (m, k), "f32"), tl.ref(b, (k, n), "f32"), out_ptr=c)
            return
        for step in range(12):
            seen = tl.load(c + 4 * 61 * step, (16,), "f32")
            tl.store(d + 64 * step, seen)
            tl.store(a + 4 * k * 8 * step, tl.full((8, 8), step, "f32"), strides=(k * 4, 4))
            tl.store(c + 4 * (500 * step + 3), seen + 1.0)

    launch(engine, kernel, a, b, c, d, targets=((0, 0, 0), (0, 0, 1)))
    agrees(engine, a, b, c, d)
    assert tiled(engine) == 1


def test_a_host_write_under_a_composite(engine: GraphEngine) -> None:
    a, b, c = (place(engine, small(256, 128, seed=s)) for s in range(3))

    def kernel(a: int, b: int, c: int, *, tl: Tl) -> None:
        tl.composite("add", tl.ref(a, (256, 128), "f32"), tl.ref(b, (256, 128), "f32"), out_ptr=c)

    handle = start(engine, kernel, a, b, c)
    raw = np.full(2000, 7, np.float32).view(np.uint8)
    writes = [engine.submit(MemoryWriteMsg(pa=a.pa + 100_000, nbytes=raw.nbytes, data=raw)) for _ in range(2)]
    for each in (handle, *writes):
        engine.wait(each)
    agrees(engine, a, b, c)


def test_back_to_back_composites_that_depend_on_nothing() -> None:
    """Where nothing keeps the order, the second begins before the first has written all that the second reads."""
    engine = GraphEngine(two_cubes("pe.dma.ordering=relaxed"))
    x, y, z = (place(engine, small(96, 64, seed=s)) for s in range(3))

    def kernel(x: int, y: int, z: int, *, tl: Tl) -> None:
        tl.composite("add", tl.ref(x, (96, 64), "f32"), 5, out_ptr=y)
        tl.composite("add", tl.ref(y, (96, 64), "f32"), 5, out_ptr=z)

    launch(engine, kernel, x, y, z)
    agrees(engine, x, y, z)
    assert tiled(engine) == 2
    first, second = composites(engine)
    assert second.t_read_ps < first.t_commit_ps


def test_composites_behind_a_barrier_are_whole(engine: GraphEngine) -> None:
    x, y, z = (place(engine, small(96, 64, seed=s)) for s in range(3))

    def kernel(x: int, y: int, z: int, *, tl: Tl) -> None:
        tl.composite("add", tl.ref(x, (96, 64), "f32"), 5, out_ptr=y)
        tl.barrier()
        tl.composite("add", tl.ref(y, (96, 64), "f32"), 5, out_ptr=z)

    launch(engine, kernel, x, y, z)
    agrees(engine, x, y, z)
    assert tiled(engine) == 0
    np.testing.assert_array_equal(fetch(engine, z), small(96, 64) + 10)


def test_scratch_reused_by_back_to_back_kernels(engine: GraphEngine) -> None:
    """Both kernels stage their operand at the same addresses; the second is in the queue while the first runs."""
    x, y, out, out2 = (place(engine, small(96, 64, seed=s)) for s in range(4))

    def kernel(x: int, out: int, *, tl: Tl) -> None:
        tl.composite("add", tl.load(x, (96, 64), "f32"), 1, out_ptr=out)

    handles = [start(engine, kernel, x, out), start(engine, kernel, y, out2)]
    for handle in handles:
        engine.wait(handle)
    first, second = composites(engine)
    assert first.inputs[0].address == second.inputs[0].address
    agrees(engine, out, out2)
    assert tiled(engine) == 0


def test_a_host_sees_the_tiles_that_are_there(engine: GraphEngine) -> None:
    m, k, n = 96, 130, 70
    arrays = (small(m, k), small(k, n, seed=1), np.full((m, n), 1e6, np.float32), small(m, n, seed=3))
    a, b, c, d = (place(engine, x) for x in arrays)

    def kernel(a: int, b: int, c: int, d: int, *, tl: Tl) -> None:
        epilogue = (("add", tl.load(d, (m, n), "f32")),)
        tl.composite("gemm", tl.load(a, (m, k), "f32"), tl.ref(b, (k, n), "f32"), out_ptr=c, epilogue=epilogue)

    handle = start(engine, kernel, a, b, c, d)
    counts = []
    while not handle.done:
        engine.run_until(engine.now + 150)
        agrees(engine, c)
        counts.append(int((fetch(engine, c) != 1e6).sum()))
    assert counts == sorted(counts)
    assert len(set(counts)) > 4
    np.testing.assert_array_equal(fetch(engine, c), arrays[0] @ arrays[1] + arrays[3])


def test_a_read_that_finds_nothing_done_leaves_it_whole(engine: GraphEngine) -> None:
    x, y = (place(engine, small(64, 64, seed=s)) for s in range(2))

    def kernel(x: int, y: int, *, tl: Tl) -> None:
        tl.composite("add", tl.ref(x, (64, 64), "f32"), 5, out_ptr=y)

    handle = start(engine, kernel, x, y)
    while not composites(engine):
        engine.machine.clock.step()
    engine.replay()
    engine.wait(handle)
    agrees(engine, y)
    assert tiled(engine) == 0


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3, 4))])
def test_whatever_pes_do_to_one_another(engine: GraphEngine, seed: int) -> None:
    """Random composites, loads and stores of four PEs on parts of two matrices, and a host that looks now and then."""
    rng = np.random.default_rng(seed)
    x, y = place(engine, small(128, 128, seed=seed)), place(engine, small(128, 128, seed=seed + 1))
    plan = [[[*rng.integers(0, 64, 6).tolist(), int(rng.integers(0, 5))] for _ in range(5)] for _ in range(4)]

    def kernel(x: int, y: int, *, tl: Tl) -> None:
        row = (128 * 4, 4)

        def part(base: int, i: int, j: int, shape: tuple[int, int] = (64, 60)) -> object:
            return tl.ref(base + 4 * (128 * i + j), shape, "f32", strides=row)

        for a, b, c, d, e, f, what in plan[tl.program_id(0)]:
            out = y + 4 * (128 * e + f)
            if what == 0:
                steps = (("scale", 0.0), ("add", part(x, e, f)))
                tl.composite(
                    "gemm", part(x, a, b), part(y, c, d, (60, 60)), out_ptr=out, out_strides=row, epilogue=steps
                )
            elif what == 1:
                tl.composite("sub", part(y, a, b), part(x, c, d), out_ptr=x + 4 * (128 * e + f), out_strides=row)
            elif what == 2:
                staged = tl.load(x + 4 * (128 * a + b), (64, 60), "f32", strides=row)
                tl.composite("maximum", staged, part(y, c, d), out_ptr=out, out_strides=row)
            elif what == 3:
                tl.store(out, tl.load(x + 4 * (128 * a + b), (8, 60), "f32", strides=row), strides=row)
            else:
                tl.barrier()

    barriers = [sum(step[-1] == 4 for step in steps) for steps in plan]
    for steps, count in zip(plan, barriers, strict=True):
        steps.extend([[0, 0, 0, 0, 0, 0, 4]] * (max(barriers) - count))
    handle = start(engine, kernel, x, y, pes=range(4))
    while not handle.done:
        engine.run_until(engine.now + float(rng.integers(200, 3000)))
        agrees(engine, x, y)
    assert tiled(engine) > 0


# --- a dot -----------------------------------------------------------------------------------------------------------


def test_nothing_touches_a_dot_while_it_runs(engine: GraphEngine) -> None:
    """A dot reads all at its start and commits all at its end: lifetimes of scratch keep everyone else away."""
    x = place(engine, small(64, 64).astype(np.float16))

    def kernel(x: int, *, tl: Tl) -> None:
        total = tl.zeros((64, 64), "f16")
        for _ in range(6):
            a, b = tl.load(x, (64, 64), "f16"), tl.load(x, (64, 64), "f16")
            total = total + tl.dot(a, b)
            del a, b
        tl.store(x, total)

    launch(engine, kernel, x)
    launch(engine, kernel, x)
    dots = [r for r in engine.op_log if r.name == "dot"]
    assert len(dots) == 12
    for dot in dots:
        near = [x for x in (*dot.inputs, dot.output) if isinstance(x, Operand)]
        for r in engine.op_log:
            if r is not dot and r.output is not None and dot.t_read_ps < r.t_commit_ps <= dot.t_commit_ps:
                assert not any(_overlap(r.output, x) for x in near)


def _overlap(a: Operand, b: Operand) -> bool:
    return a.space == b.space and a.address < b.address + b.nbytes and b.address < a.address + a.nbytes
