"""Phase 2: the order of reads and commits, operands of every form, every dtype, against slow models."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.common.dtypes import ALL, BF16, F16, F32, I8, I32, DType, row_major
from kernbench.common.errors import RunError, UnknownNameError
from kernbench.common.operators import evaluate, operator
from kernbench.core.op_log import OpLog, OpRecord
from kernbench.messages.commands import Epilogue, Operand, Params
from kernbench.numerics.data_executor import DataExecutor
from kernbench.numerics.memory import MemoryStore


def place(addr, shape=(4,), dtype=F32, space="tcm", **layout) -> Operand:
    nbytes = int(np.prod(shape)) * dtype.itemsize
    return Operand(space, (0, 0, 0), addr, nbytes, tuple(shape), dtype, **layout)


class Machine:
    """A log, a store and an executor; operations are given their read and commit times."""

    def __init__(self, dtype_acc="f32", on_unwritten=None) -> None:
        self.log, self.store = OpLog(), MemoryStore(on_unwritten)
        self.phase2 = DataExecutor(self.log, self.store, dtype_acc)

    def op(self, kind, name, inputs, output, read, commit=None, **more) -> OpRecord:
        record = self.log.begin(
            component="pe", kind=kind, t_start_ps=0, t_read_ps=read, name=name, inputs=inputs, output=output, **more
        )
        if commit is not None:
            self.log.finish(record, commit)
        return record

    def put(self, addr, values, dtype=F32, space="tcm") -> None:
        self.store.write(space, addr, np.asarray(values).astype(dtype.numpy))

    def get(self, addr, n=4, dtype=F32, space="tcm") -> list[float]:
        return self.store.read(space, addr, (n,), dtype).tolist()


def test_load_compute_store() -> None:
    m = Machine()
    m.put(0x1000, [1, 2, 3, 4], space="hbm")
    m.op("dma_read", "", (place(0x1000, space="hbm"),), place(0), 10, 20)
    m.op("math", "mul", (place(0), 3.0), place(64), 20, 25)
    m.op("dma_write", "", (place(64),), place(0x2000, space="hbm"), 25, 40)
    m.phase2.replay()
    assert m.get(0x2000, space="hbm") == [3, 6, 9, 12]
    assert (m.phase2.stats.ops, m.phase2.stats.nbytes) == (3, 48)


def test_commit_comes_before_a_read_at_the_same_instant() -> None:
    m = Machine()
    m.put(0, [1, 1, 1, 1])
    m.op("math", "neg", (place(0),), place(64), 20, 30)
    m.op("math", "add", (place(0), 1.0), place(0), 10, 20)
    m.phase2.replay()
    assert m.get(64) == [-2] * 4


def test_scratch_reused_while_an_earlier_command_is_in_flight() -> None:
    m = Machine()
    m.put(0, [1] * 4)
    m.put(128, [9] * 4)
    m.op("dma_write", "", (place(0),), place(0, space="hbm"), 10, 100)
    m.op("math", "add", (place(128), 0.0), place(0), 20, 30)
    m.phase2.replay()
    assert m.get(0, space="hbm") == [1] * 4
    assert m.get(0) == [9] * 4


def test_output_aliases_an_input_in_part() -> None:
    m = Machine()
    m.put(0, [1, 2, 3, 4, 5])
    m.op("math", "add", (place(0), place(4)), place(4), 0, 5)
    m.op("dma_read", "", (place(0),), place(8), 6, 7)
    m.op("math", "trans", (place(0, (2, 2)),), place(4, (2, 2)), 8, 9)
    m.phase2.replay()
    assert m.get(0, 6) == [1, 1, 1, 3, 3, 7]


def test_slot_overwritten_by_the_next_message() -> None:
    m = Machine()
    m.put(0, [1] * 4)
    m.put(64, [2] * 4)
    m.op("ipcq_copy", "", (place(0),), place(256), 0, 10)
    m.op("math", "add", (place(256), place(256)), place(512), 15, 50)
    m.op("ipcq_copy", "", (place(64),), place(256), 5, 20)
    m.op("math", "neg", (place(256),), place(768), 20, 60)
    m.phase2.replay()
    assert m.get(512) == [2] * 4
    assert m.get(768) == [-2] * 4


def test_incremental_replay_does_each_thing_once() -> None:
    m = Machine()
    m.put(0, [1] * 4)
    record = m.op("math", "add", (place(0), 1.0), place(0), 10)
    m.phase2.replay(5)
    m.phase2.replay(15)
    assert m.get(0) == [1] * 4
    m.log.finish(record, 20)
    for until in (19, 20, 20, 30, None):
        m.phase2.replay(until)
        assert m.get(0) == ([1] * 4 if until == 19 else [2] * 4)
    assert m.phase2.stats.ops == 1


def test_commit_is_seen_before_the_acknowledgement() -> None:
    m = Machine()
    m.put(0, [1] * 4)
    record = m.op("dma_write", "", (place(0),), place(64), 10)
    m.log.commit(record, 20)
    m.phase2.replay(25)
    assert m.get(64) == [1] * 4
    m.log.finish(record, 40)
    m.phase2.replay(50)
    assert (record.t_commit_ps, record.t_end_ps, m.phase2.stats.ops) == (20, 40, 1)


def test_what_is_logged_for_a_time_already_replayed_is_an_error() -> None:
    m = Machine()
    record = m.op("math", "neg", (place(0),), place(0), 10)
    m.phase2.replay(100)
    m.log.finish(record, 50)
    with pytest.raises(RunError, match=r"record 0 .*logged for 50 ps after a replay up to 100 ps"):
        m.phase2.replay(200)


def test_host_writes_and_reads() -> None:
    m = Machine()
    m.op("memory_write", "", (), place(0, (6,), I8), 0, 5, data=np.arange(6, dtype=np.int8).reshape(2, 3))
    m.op("memory_write", "", (), place(64, (3,), F16), 0, 5, params=Params(pattern=np.float16(1.5).tobytes()))
    read = m.op("memory_read", "", (place(0, (6,), I8),), None, 7, 20)
    m.op("memory_write", "", (), place(0, (6,), I8), 8, 9, params=Params(pattern=b"\7"))
    m.phase2.replay()
    assert read.data is not None
    assert read.data.tolist() == [0, 1, 2, 3, 4, 5]
    assert m.get(0, 6, I8) == [7] * 6
    assert m.get(64, 3, F16) == [1.5] * 3


def test_timing_records_are_skipped() -> None:
    m = Machine()
    m.op("gemm", "", (), None, 0, 16, tile=(0, 0, 0))
    m.op("memory_read", "", (), None, 0, 16)
    m.phase2.replay()
    assert m.phase2.stats.ops == 0


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_every_dtype_moves_adds_and_multiplies(dtype: DType) -> None:
    m = Machine()
    m.put(0, np.arange(6), dtype, "hbm")
    m.op("dma_read", "", (place(0, (2, 3), dtype, "hbm"),), place(0, (2, 3), dtype), 0, 10)
    m.op("math", "add", (place(0, (2, 3), dtype), 1), place(64, (2, 3), dtype), 10, 20)
    m.op("math", "sum", (place(64, (2, 3), dtype),), place(128, (2, 1), dtype), 20, 30, params=Params(axis=1))
    out = I32 if dtype is I8 else dtype
    m.op(
        "gemm",
        "dot",
        (place(0, (2, 3), dtype), place(0, (2, 3), dtype)),
        place(192, (2, 2), out),
        30,
        40,
        params=Params(trans_b=True),
    )
    m.phase2.replay()
    assert m.get(64, 6, dtype) == [1, 2, 3, 4, 5, 6]
    assert m.get(128, 2, dtype) == [6, 15] if dtype.name != "f8e5m2" else [6, 16]
    expected = np.array([5, 14, 14, 50]).astype(out.numpy)
    assert m.get(192, 4, out) == expected.tolist()


def test_composite_with_an_epilogue_rounds_once() -> None:
    m = Machine()
    rng = np.random.default_rng(0)
    a, b, bias = (rng.standard_normal(s).astype(np.float16) for s in ((5, 70), (70, 3), (3,)))
    for addr, x in ((0, a), (1024, b), (2048, bias)):
        m.put(addr, x, F16, "hbm")
    steps = (Epilogue("bias", place(2048, (3,), F16, "hbm")), Epilogue("scale", 0.5), Epilogue("relu"))
    m.op(
        "gemm",
        "composite",
        (place(0, (5, 70), F16, "hbm"), place(1024, (70, 3), F16, "hbm")),
        place(4096, (5, 3), BF16, "hbm"),
        0,
        9,
        params=Params(epilogue=steps),
    )
    m.phase2.replay()
    exact = np.maximum((a.astype(np.float32) @ b.astype(np.float32) + bias.astype(np.float32)) * np.float32(0.5), 0)
    got = m.store.read("hbm", 4096, (5, 3), BF16)
    assert got.tobytes() == exact.astype(BF16.numpy).tobytes()


def test_narrow_accumulators_round_between_tiles() -> None:
    # Tiles of K = 64 add 65 each: 65 k needs more than the 8 bits of bf16 and, past 2048, than the 11 of f16.
    x = np.ones(4096)
    x[::64] = 2
    for acc, rounded in (("f32", lambda v: v), ("f16", np.float16), ("bf16", BF16.numpy.type)):
        total = 0.0
        for _ in range(64):
            total = float(rounded(total + 65))
        m = Machine(acc)
        m.put(0, x)
        m.put(1 << 19, np.ones(4096))
        m.op("gemm", "dot", (place(0, (1, 4096)), place(1 << 19, (4096, 1))), place(1 << 20, (1, 1)), 0, 1)
        m.phase2.replay()
        assert m.get(1 << 20, 1) == [total]


def test_sums_are_kept_in_floats_only() -> None:
    with pytest.raises(UnknownNameError, match="unknown accumulator dtype 'i8'; there are: f32, f16, bf16"):
        Machine("i8")


@pytest.mark.parametrize(
    ("kind", "name", "inputs", "output", "says"),
    [
        ("math", "add", (place(0), place(0, (3,))), place(64), "could not be broadcast"),
        ("math", "neg", (place(0),), place(64, (2, 2)), "shape .4,. does not fit"),
        ("math", "frobnicate", (place(0),), place(64), "unknown operator 'frobnicate'"),
        ("dma_read", "", (place(0),), place(64, (8,), F16), "does not convert"),
        ("dma_read", "", (place(0, valid=(5,)),), place(64), "not within the shape"),
        ("dma_read", "", (place(0, segments=((0, 12),)),), place(64), "segments with 12 bytes"),
        ("memory_write", "", (), place(0), "neither data nor a pattern"),
    ],
)
def test_a_failure_names_the_record(kind, name, inputs, output, says) -> None:
    m = Machine()
    m.op(kind, name, inputs, output, 0, 10, kernel="my_kernel", line=17)
    with pytest.raises(RunError, match=rf"record 0 .* on pe of kernel 'my_kernel', line 17: .*{says}"):
        m.phase2.replay()


def test_unwritten_reads_know_their_record() -> None:
    seen = []
    m = Machine(on_unwritten=lambda space, addr, n: seen.append((m.phase2.current.line, space, addr, n)))
    m.put(0, [1, 2])
    m.op("math", "neg", (place(0),), place(64), 0, 10, kernel="k", line=5)
    m.op("math", "neg", (place(64),), place(64), 20, 30, kernel="k", line=6)
    m.phase2.replay()
    assert seen == [(5, "tcm", 8, 8)]


# Operands of every form against element-by-element access.


@st.composite
def operands(draw: st.DrawFn, shape: tuple[int, ...], dtype: DType) -> Operand:
    strides = None
    span = int(np.prod(shape)) * dtype.itemsize
    if draw(st.booleans()):
        pitch = shape[1] * dtype.itemsize + draw(st.integers(0, 9))
        strides = (pitch, dtype.itemsize)
        if draw(st.booleans()):
            strides = (dtype.itemsize, shape[0] * dtype.itemsize + draw(st.integers(0, 5)))
        span = dtype.itemsize + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    segments: tuple[tuple[int, int], ...] = ()
    if draw(st.booleans()):
        cuts = sorted(draw(st.lists(st.integers(0, span), max_size=4)))
        sizes = [b - a for a, b in itertools.pairwise([0, *cuts, span])]
        places = draw(st.permutations(range(len(sizes))))
        segments = tuple((200 * at + draw(st.integers(0, 30)), n) for at, n in zip(places, sizes, strict=True))
    valid = tuple(draw(st.integers(0, n)) for n in shape) if draw(st.booleans()) else None
    addr = segments[0][0] if segments else draw(st.integers(0, 64))
    return place(addr, shape, dtype, "hbm", strides=strides, segments=segments, valid=valid, other=7)


def addresses(operand: Operand) -> dict[tuple[int, ...], list[int]]:
    """For every valid element, the addresses of its bytes."""
    steps = operand.strides or row_major(operand.shape, operand.dtype.itemsize)
    flat = [a + i for a, n in operand.segments for i in range(n)] or range(operand.address, operand.address + 4000)
    bounds = operand.valid if operand.valid is not None else operand.shape
    return {
        index: [flat[sum(i * s for i, s in zip(index, steps, strict=True)) + b] for b in range(operand.dtype.itemsize)]
        for index in np.ndindex(*bounds)
    }


@given(st.data())
def test_operands_against_single_elements(data: st.DataObject) -> None:
    shape = data.draw(st.tuples(st.integers(1, 6), st.integers(1, 6)))
    dtype = data.draw(st.sampled_from((F32, F16, I8)))
    source, target = data.draw(operands(shape, dtype)), data.draw(operands(shape, dtype))
    memory = np.arange(1200, dtype=np.int64).astype(np.uint8) % 101
    expected = memory.copy()
    m = Machine()
    m.store.write("hbm", 0, memory)
    read = {i: memory[at].tobytes() for i, at in addresses(source).items()}
    other = np.full((), 7, dtype.numpy).tobytes()
    for index, at in addresses(target).items():
        expected[at] = np.frombuffer(read.get(index, other), np.uint8)
    m.op("dma_read", "", (source,), place(0, shape, dtype), 0, data.draw(st.integers(0, 2)))
    m.op("dma_write", "", (place(0, shape, dtype),), target, 2, data.draw(st.integers(2, 4)))
    m.phase2.replay()
    assert m.store.read("hbm", 0, (1200,), "i8").tobytes() == expected.tobytes()
    direct = Machine()
    direct.store.write("hbm", 0, memory)
    direct.op("dma_write", "", (source,), target, 2, 3)
    direct.phase2.replay()
    assert direct.store.read("hbm", 0, (1200,), "i8").tobytes() == expected.tobytes()


# Order against an interpreter that walks through time.

N = 8
MEMORY = 24


@dataclass(frozen=True)
class Step:
    """An operation on bytes: ``write`` (a pattern), ``copy``, ``neg`` or ``add``."""

    what: str
    sources: tuple[int, int]
    target: int
    read: int
    commit: int

    def value(self, memory: np.ndarray) -> np.ndarray:
        a, b = (memory[s : s + N] for s in self.sources)
        if self.what == "write":
            return np.full(N, self.sources[0], np.int8)
        if self.what == "copy":
            return a.copy()
        return evaluate(operator(self.what), (a, b) if self.what == "add" else (a,), I8)

    def begin(self, log: OpLog) -> OpRecord:
        a, b = (place(s, (N,), I8) for s in self.sources)
        kind = {"write": "memory_write", "copy": "ipcq_copy"}.get(self.what, "math")
        inputs = {"write": (), "add": (a, b)}.get(self.what, (a,))
        return log.begin(
            component="pe",
            kind=kind,
            t_start_ps=self.read,
            t_read_ps=self.read,
            name=self.what,
            inputs=inputs,
            output=place(self.target, (N,), I8),
            params=Params(pattern=bytes((self.sources[0],))),
        )


def walk(steps: list[Step], until: int) -> bytes:
    """Memory at ``until``, by the definition of the order."""
    memory = np.arange(MEMORY, dtype=np.int8)
    results: dict[int, np.ndarray] = {}
    for now in range(until + 1):
        for seq, step in enumerate(steps):
            if step.commit == now and step.read < now:
                memory[step.target : step.target + N] = results[seq]
        for seq, step in enumerate(steps):
            if step.read == now:
                results[seq] = step.value(memory)
                if step.commit == now:
                    memory[step.target : step.target + N] = results[seq]
    return memory.tobytes()


STEPS = st.builds(
    lambda what, sources, target, read, length: Step(what, sources, target, read, read + length),
    st.sampled_from(("write", "copy", "neg", "add", "add")),
    st.tuples(st.integers(0, MEMORY - N), st.integers(0, MEMORY - N)),
    st.integers(0, MEMORY - N),
    st.integers(0, 9),
    st.integers(0, 5),
)
END = 15


def machine() -> Machine:
    m = Machine()
    m.store.write("tcm", 0, np.arange(MEMORY, dtype=np.int8))
    return m


def contents(m: Machine) -> bytes:
    return m.store.read("tcm", 0, (MEMORY,), "i8").tobytes()


@given(st.lists(STEPS, max_size=12), st.dictionaries(st.integers(0, END), st.booleans(), max_size=4), st.data())
def test_replay_in_parts_equals_the_walk_through_time(steps, cuts, data) -> None:
    """``cuts`` are the times of replays; with True, what commits at that very instant is logged after the replay."""
    cuts = dict(sorted((cuts | {END: False}).items()))
    instants = {s.read for s in steps if s.read == s.commit}
    # Reads at the instant of a replay may be logged after it as well; sequence numbers follow the logging.
    logged = [(sum(c < s.read + data.draw(st.integers(0, 1)) for c in list(cuts)[:-1]), s) for s in steps]
    logged.sort(key=lambda pair: pair[0])
    steps = [s for _, s in logged]
    m = machine()
    for k, (cut, hide) in enumerate(cuts.items()):
        for step in (s for g, s in logged if g == k):
            step.begin(m.log)
        hidden = hide and cut not in instants
        for record in m.log.open_records:
            commit = steps[record.seq].commit
            early = commit > cut and commit not in cuts and data.draw(st.booleans())
            if commit < cut or (commit == cut and not hidden) or early:
                m.log.finish(record, commit)
        m.phase2.replay(cut)
        if not hidden:
            assert contents(m) == walk(steps[: len(m.log)], cut)
    whole = machine()
    for step in steps:
        whole.log.finish(step.begin(whole.log), step.commit)
    whole.phase2.replay()
    assert contents(m) == contents(whole) == walk(steps, END)
    assert m.phase2.stats == whole.phase2.stats
