"""The sanitizer: exactly what is wrong with a run, at the lines where it is wrong, and nothing of a clean one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernbench.benches  # noqa: F401 - registers them
from engine_support import Placed, launch, place, two_cubes
from kernbench.common.dtypes import I8, dtype
from kernbench.common.errors import AddressFaultError, InputError
from kernbench.core.op_log import OpLog
from kernbench.engine.engine import GraphEngine
from kernbench.messages.commands import Operand, Params
from kernbench.messages.requests import (
    KernelLaunchMsg,
    KernelRef,
    MappedShard,
    MemoryReadMsg,
    MemoryWriteMsg,
    MmuMapMsg,
    TensorArg,
    TensorMapping,
)
from kernbench.numerics.intervals import ByteRuns
from kernbench.observe.findings import Finding
from kernbench.observe.sanitizer import Sanitizer
from kernbench.observe.sanitizer_races import find_races
from kernbench.runtime_api.bench_registry import lookup_bench
from kernbench.runtime_api.bench_runner import run_bench
from kernbench.triton_emu.tl_context import TLContext as Tl
from observed import findings, sanitized

TWO = ((0, 0, 0), (0, 0, 1))
SHAPE = (64, 64)


@pytest.fixture
def engine() -> GraphEngine:
    return sanitized(two_cubes())


def matrix(engine: GraphEngine, name: str) -> Placed:
    return place(engine, np.ones(SHAPE, np.float32), name=name)


def fresh(engine: GraphEngine, name: str, nbytes: int) -> Placed:
    """A tensor that nobody has written."""
    pa = engine.allocators[0, 0, 0].alloc_hbm(nbytes).encode()
    va = engine.va_allocator(0).alloc(nbytes)
    shard = MappedShard(sip=0, cube=0, pe=0, offset_bytes=0, nbytes=nbytes, pa=pa)
    engine.wait(
        engine.submit(MmuMapMsg(sip=0, mapping=TensorMapping(name=name, va_base=va, nbytes=nbytes, shards=(shard,))))
    )
    arg = TensorArg(name=name, va=va, shape=(nbytes // 4,), dtype=dtype("f32"), owners=((0, 0, 0),))
    return Placed(arg, pa)


def start_of(kernel: Callable[..., object]) -> int:
    return kernel.__code__.co_firstlineno


def lines(findings: tuple[Finding, ...], kernel: Callable[..., object]) -> list[tuple[object, ...]]:
    """Kind, tensor and lines relative to the kernel's first, the later access first."""
    first = start_of(kernel)
    return sorted(
        (f.kind, f.tensor, f.line - first, *([] if f.other is None else [f.other.line - first])) for f in findings
    )


# --- races ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ordering", ["program", "relaxed"])
def test_exactly_the_races_of_a_torture_kernel(ordering: str) -> None:
    engine = sanitized(two_cubes(f"pe.dma.ordering={ordering}"))
    x, y, z, w = (matrix(engine, name) for name in "xyzw")

    def torture(x: int, y: int, z: int, w: int, *, tl: Tl) -> None:
        half, row = (64, 32), (64 * 4, 4)
        ones = tl.full(SHAPE, 1.0, "f32")
        if tl.program_id(0) == 0:
            tl.store(x, ones)
            a = tl.load(x, SHAPE, "f32")  # line 5: while the store before is under way, on a relaxed machine
            tl.store(y, ones)  # line 6: as line 13 on the other PE
            tl.barrier()
            tl.store(z, tl.load(z, half, "f32", strides=row), strides=row)  # the left columns
            tl.barrier()
            tl.composite("add", tl.ref(x, SHAPE, "f32"), 1, out_ptr=w)  # line 10: as line 19
            tl.store(x, a)  # line 11: as line 10
        else:
            tl.store(y + 4 * 64 * 8, tl.full((8, 64), 2.0, "f32"))  # line 13
            tl.barrier()
            right = tl.load(z + 4 * 32, half, "f32", strides=row)
            tl.store(z + 4 * 32, right, strides=row)  # the right columns
            tl.barrier()
            for i in range(60):
                tl.load(w + 4 * 64 * i, (1, 64), "f32")  # line 19

    launch(engine, torture, x, y, z, w, targets=TWO)
    found = findings(engine)
    own = {("race", "x", 4, 5), ("inversion", "x", 4, 5), ("race", "x", 10, 11)}
    assert {(kind, tensor, *sorted(at)) for kind, tensor, *at in lines(found, torture)} == {
        ("race", "y", 6, 13),
        ("race", "w", 10, 19),
        *(own if ordering == "relaxed" else ()),
    }
    (of_y,) = [f for f in found if f.tensor == "y"]
    assert of_y.nbytes == 8 * 64 * 4
    assert of_y.address == y.pa + 4 * 64 * 8
    assert {of_y.pe, of_y.other.pe} == set(TWO)
    assert of_y.t_start_ns >= of_y.other.t_start_ns
    assert of_y.t_start_ns < of_y.other.t_end_ns
    assert "store at line" in str(of_y)
    assert "tensor 'y'" in str(of_y)


def test_ordered_accesses_do_not_race(engine: GraphEngine) -> None:
    x, y, z = (matrix(engine, name) for name in "xyz")

    def ordered(x: int, y: int, z: int, *, tl: Tl) -> None:
        tl.store(x, tl.load(x, SHAPE, "f32") + 1.0)  # the store waits for the handle
        tl.barrier()
        tl.composite("gemm", tl.ref(x, SHAPE, "f32"), tl.ref(y, SHAPE, "f32"), out_ptr=z)
        tl.barrier()
        tl.composite("add", tl.ref(z, SHAPE, "f32"), 1, out_ptr=z)
        tl.barrier()
        tl.store(y, tl.load(z, SHAPE, "f32"))

    launch(engine, ordered, x, y, z)
    launch(engine, ordered, x, y, z)
    assert findings(engine) == ()


def test_readers_do_not_race(engine: GraphEngine) -> None:
    x = matrix(engine, "x")

    def read(x: int, *, tl: Tl) -> None:
        tl.load(x, SHAPE, "f32")
        tl.load(x, SHAPE, "f32")

    launch(engine, read, x, targets=TWO)
    assert findings(engine) == ()


def test_a_composite_does_not_race_with_itself(engine: GraphEngine) -> None:
    x = matrix(engine, "x")

    def shifted(x: int, *, tl: Tl) -> None:
        tl.composite("add", tl.ref(x, (63, 64), "f32"), 1, out_ptr=x + 64 * 4)

    launch(engine, shifted, x)
    assert findings(engine) == ()


def test_the_host_races_with_a_kernel_under_way(engine: GraphEngine) -> None:
    x, y = matrix(engine, "x"), matrix(engine, "y")

    def slow(x: int, y: int, *, tl: Tl) -> None:
        for _ in range(40):
            tl.store(x, tl.load(y, SHAPE, "f32"))
            tl.barrier()

    ref = KernelRef(name="slow", function=slow)
    handle = engine.submit(KernelLaunchMsg(kernel=ref, args=(x.arg, y.arg), targets=TWO[:1]))
    for placed in (x, y, x, x):
        engine.wait(engine.submit(MemoryReadMsg(pa=placed.pa, nbytes=1024)))
    engine.wait(engine.submit(MemoryWriteMsg(pa=y.pa, nbytes=16, data=np.zeros(16, np.uint8))))
    engine.wait(handle)
    found = {(f.tensor, f.kernel, f.other.kernel) for f in findings(engine)}
    assert {frozenset(pair) for pair in found} == {frozenset(("x", "slow", "")), frozenset(("y", "slow", ""))}


def test_a_race_of_many_pes_is_one_finding(engine: GraphEngine) -> None:
    x = matrix(engine, "x")

    def all_store(x: int, *, tl: Tl) -> None:
        tl.store(x, tl.full((4,), 1.0, "f32"))

    launch(engine, all_store, x, targets=tuple((0, 0, pe) for pe in range(8)))
    (finding,) = findings(engine)
    assert finding.count > 1
    assert str(finding).endswith(f"({finding.count} times)")


# --- races against a slow model ---------------------------------------------------------------------------------------


@st.composite
def operands(draw: st.DrawFn) -> Operand:
    shape = (draw(st.integers(1, 3)), draw(st.integers(1, 4)))
    strides = draw(st.sampled_from([None, (8, 1), (3, 2), (5, 1)]))
    space = draw(st.sampled_from(["hbm", "hbm", "tcm"]))
    owner = (0, 0) if space == "hbm" else (0, 0, draw(st.integers(0, 1)))
    return Operand(space, owner, draw(st.integers(0, 24)), shape[0] * shape[1], shape, I8, strides)


def touched(x: Operand) -> set[int]:
    steps = x.strides or (x.shape[1], 1)
    return {x.address + i * steps[0] + j * steps[1] for i in range(x.shape[0]) for j in range(x.shape[1])}


@given(
    st.lists(st.tuples(operands(), operands(), st.integers(0, 12), st.integers(1, 6), st.integers(0, 1)), max_size=10)
)
def test_races_against_all_pairs(commands) -> None:
    log = OpLog()
    for source, target, begin, length, pe in commands:
        record = log.begin(
            component=f"pe{pe}", kind="dma_read", t_start_ps=begin, t_read_ps=begin, inputs=(source,), output=target
        )
        log.finish(record, begin + length)
    pes = {"pe0": (0, 0, 0), "pe1": (0, 0, 1)}
    accesses = [(r, x, x is r.output) for r in log for x in (r.inputs[0], r.output)]
    foreign = {x.owner for r, x, _ in accesses if x.space == "tcm" and x.owner != pes[r.component]}
    expected = {
        (frozenset((r.seq, s.seq)), min(touched(x) & touched(y)), len(touched(x) & touched(y)))
        for r, x, w in accesses
        for s, y, v in accesses
        if r is not s and x.space == y.space and (w or v) and touched(x) & touched(y)
        if r.t_start_ps < s.t_end_ps and s.t_start_ps < r.t_end_ps
        if x.space != "tcm" or (x.owner in foreign and y.owner in foreign)
    }
    races = list(find_races(log, (), pes.get))
    found = {(frozenset((r.earlier.record.seq, r.later.record.seq)), r.address, r.nbytes) for r in races}
    assert found == expected


def test_a_composite_races_by_its_tiles_only() -> None:
    """Its command overlaps with the other in time and bytes; the tile that has the bytes does not."""
    log = OpLog()
    x, y, one = (Operand("hbm", (0, 0), at, 64 * n, (64, n), I8) for at, n in ((0, 1), (4096, 1), (4096, 1)))
    whole = log.begin(
        component="pe0",
        kind="math",
        t_start_ps=0,
        t_read_ps=0,
        name="neg",
        inputs=(x,),
        output=y,
        params=Params(tile_sizes=(32, 64, 32)),
    )
    for i in range(2):
        for kind, name, begin in (("dma_read", "x0", 10 + 100 * i), ("dma_write", "out", 50 + 100 * i)):
            tile = log.begin(
                component="pe0", kind=kind, t_start_ps=begin, t_read_ps=begin, name=name, tile=(i, 0, 0), parent=0
            )
            log.finish(tile, begin + 20)
    log.finish(whole, 200)
    beside = log.begin(component="pe1", kind="dma_read", t_start_ps=80, t_read_ps=80, inputs=(one,))
    log.finish(beside, 140)
    assert list(find_races(log, (), lambda _: None)) == []
    late = log.begin(component="pe1", kind="dma_read", t_start_ps=140, t_read_ps=80, inputs=(one,))
    log.finish(late, 160)
    (race,) = find_races(log, (), lambda _: None)
    assert (race.earlier.record, race.later.record.tile) == (late, (1, 0, 0))
    assert (race.address, race.nbytes) == (4096 + 32, 32)


# --- unwritten bytes, scratch, names ----------------------------------------------------------------------------------


def test_reads_of_bytes_never_written(engine: GraphEngine) -> None:
    x, y, out = fresh(engine, "x", 4096), fresh(engine, "y", 64 * 64 * 4), fresh(engine, "out", 64 * 64 * 4)

    def careless(x: int, y: int, out: int, *, tl: Tl) -> None:
        tl.store(x, tl.full((16,), 1.0, "f32"))
        tl.barrier()
        for _ in range(3):
            tl.load(x + 32, (16,), "f32")  # line 4: the last 32 bytes
        tl.composite("neg", tl.ref(y, SHAPE, "f32"), out_ptr=out)  # line 5
        tl.barrier()
        tl.load(out, SHAPE, "f32")

    launch(engine, careless, x, y, out)
    found = findings(engine)
    assert lines(found, careless) == [("unwritten", "x", 4), ("unwritten", "y", 5)]
    of_x = next(f for f in found if f.tensor == "x")
    assert (of_x.address, of_x.nbytes, of_x.count, of_x.pe) == (x.pa + 64, 32, 3, (0, 0, 0))
    assert of_x.kernel == "careless"
    assert findings(engine) == found


def test_the_host_may_look_at_what_nobody_wrote(engine: GraphEngine) -> None:
    x = fresh(engine, "x", 4096)
    engine.read_memory(x.pa, 4096)
    assert findings(engine) == ()


def test_a_wait_for_scratch_names_its_line(engine: GraphEngine) -> None:
    big = place(engine, np.ones((1024, 1024), np.float32), name="big")

    def greedy(big: int, *, tl: Tl) -> None:
        for _ in range(12):
            tl.load(big, (1024, 1024), "f32")  # line 2

    launch(engine, greedy, big)
    (finding,) = findings(engine)
    assert (finding.kind, finding.line - start_of(greedy), finding.nbytes) == ("scratch", 2, 4 << 20)
    assert finding.count > 1
    assert finding.t_end_ns > finding.t_start_ns


def test_an_access_across_tensors_is_a_fault_already(engine: GraphEngine) -> None:
    x, _ = matrix(engine, "x"), matrix(engine, "y")

    def beyond(x: int, *, tl: Tl) -> None:
        tl.load(x + 4, SHAPE, "f32")

    with pytest.raises(AddressFaultError):
        launch(engine, beyond, x)


# --- on and off -------------------------------------------------------------------------------------------------------


def test_without_it_nobody_listens() -> None:
    plain, watched = GraphEngine(two_cubes()), sanitized(two_cubes())
    assert not plain.machine.hooks.scratch_waited.listeners
    assert [len(e.machine.hooks.inverted.listeners) for e in (plain, watched)] == [0, 1]
    with pytest.raises(InputError, match="enable_data=True"):
        GraphEngine(two_cubes(), enable_data=False, observers=[Sanitizer()])


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("gemm-single-pe", ("bench.m=128", "bench.k=128", "bench.n=128")),
        ("qkv-gemm", ("bench.m=64", "bench.width=128")),
        ("va-offset-verify", ()),
        ("matmul-composite", ()),
        ("attention", ()),
    ],
)
def test_benches_are_clean(name: str, params: tuple[str, ...]) -> None:
    bench = lookup_bench(name)
    engine = sanitized(two_cubes())
    result = run_bench(bench_fn=bench, engine_factory=lambda *_: engine, params=params or None, verify=True)
    assert result.error is None
    assert findings(engine) == ()


def test_exact_bytes_are_counted_once() -> None:
    broadcast = Operand("hbm", (0, 0), 8, 16, (4, 4), I8, (0, 1))
    runs = ByteRuns.of(broadcast)
    assert (runs.starts.tolist(), runs.ends.tolist()) == ([8], [12])
