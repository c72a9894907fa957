"""The oracle for composites: it carries out the records of tiles, and every other record, in the order of time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np
import pytest

from engine_support import Placed, fetch, launch, two_cubes
from engine_support import place as put_in_memory
from kernbench.common.dtypes import row_major
from kernbench.common.operators import EPILOGUE, evaluate, operator
from kernbench.core.op_log import Operand, OpLog, OpRecord
from kernbench.engine.engine import GraphEngine
from kernbench.engine.requests import RequestHandle
from kernbench.messages.requests import KernelLaunchMsg, KernelRef
from kernbench.triton_emu.tl_context import TLContext as Tl

Array = np.ndarray
PAGE = 4096
COPIED_IN: dict[int, Array] = {}
"""What the engine of the test was given, by physical address: the log lets go of it when it is replayed."""


def tiles_of(r: OpRecord) -> list[tuple[int, ...]]:
    """The tiles of a record; that of a panel has the first and how many along each axis."""
    first, counts = r.tile[:3], r.tile[3:] or (1, 1, 1)
    return list(product(*(range(at, at + n) for at, n in zip(first, counts, strict=True))))


@dataclass
class Memory:
    """Bytes by space and address, one by one."""

    pages: dict[tuple[str, int], Array] = field(default_factory=dict)

    def page(self, space: str, number: int) -> Array:
        return self.pages.setdefault((space, number), np.zeros(PAGE, np.uint8))

    def get(self, space: str, addresses: Array, dtype) -> Array:
        at = np.asarray(addresses)[..., None] + np.arange(dtype.itemsize)
        raw = np.zeros(at.shape, np.uint8)
        for number in np.unique(at // PAGE):
            here = at // PAGE == number
            raw[here] = self.page(space, int(number))[at[here] % PAGE]
        return raw.reshape(-1).view(dtype.numpy).reshape(at.shape[:-1])

    def put(self, space: str, addresses: Array, values: Array) -> None:
        raw = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        at = (addresses[..., None] + np.arange(raw.size // addresses.size)).reshape(-1)
        for number in np.unique(at // PAGE):
            here = at // PAGE == number
            self.page(space, int(number))[at[here] % PAGE] = raw[here]


def addresses(x: Operand) -> Array:
    """Where every element lies."""
    assert not x.segments
    steps = x.strides or row_major(x.shape, x.dtype.itemsize)
    offsets = sum(np.indices(x.shape)[i] * s for i, s in enumerate(steps))
    return x.address + np.asarray(offsets)


class Oracle:
    """Interprets a log up to ``until_ps``."""

    def __init__(self, log: OpLog, until_ps: int) -> None:
        self.log = log
        self.memory = Memory()
        self.values: dict[int, Array] = {}
        self.sums: dict[tuple[int, int, int], Array] = {}
        self.seen: dict[tuple[int, str, tuple[int, ...]], Array] = {}
        events: list[tuple[int, int, int]] = []
        for r in log:
            if r.params.tile_sizes is None and (r.has_data or r.parent >= 0):
                events += [(r.t_read_ps, 1, r.seq)] * (r.t_read_ps >= 0)
                events += [(r.t_commit_ps, 0, r.seq)] * (r.t_commit_ps >= 0)
        for t, phase, seq in sorted(events):
            if t <= until_ps:
                (self.read if phase else self.commit)(log[seq])

    def load(self, x: Operand, part: tuple[slice, ...] = ()) -> Array:
        return self.memory.get(x.space, addresses(x)[part], x.dtype)

    def read(self, r: OpRecord) -> None:
        if r.parent >= 0:
            if r.kind in ("dma_read", "fetch") and self.log[r.parent].params.tile_sizes:
                self.read_tile(r, self.log[r.parent])
        elif r.kind == "memory_write":
            raw = COPIED_IN[r.output.address] if r.data is None else r.data
            self.values[r.seq] = np.frombuffer(raw.tobytes(), np.uint8)
        elif r.kind == "math":
            args = [self.load(x) if isinstance(x, Operand) else x for x in r.inputs]
            self.values[r.seq] = evaluate(operator(r.name), args, r.output.dtype, r.output.shape, r.params)
        else:
            self.values[r.seq] = self.load(r.inputs[0])

    def commit(self, r: OpRecord) -> None:
        if r.parent < 0:
            self.memory.put(r.output.space, addresses(r.output), self.values[r.seq])
        elif r.kind == "dma_write":
            whole = self.log[r.parent]
            for tile in tiles_of(r):
                value = self.tile_value(tile, whole)
                at = addresses(whole.output)[self.cut(whole, tile, "mn")]
                self.memory.put(whole.output.space, at, value.astype(whole.output.dtype.numpy))

    def cut(self, whole: OpRecord, tile: tuple[int, ...], axes: str) -> tuple[slice, ...]:
        size = dict(zip("mkn", whole.params.tile_sizes, strict=True))
        index = dict(zip("mnk", tile, strict=True))
        return tuple(slice(index[a] * size[a], (index[a] + 1) * size[a]) for a in axes)

    def operands(self, whole: OpRecord) -> dict[str, tuple[Operand, str]]:
        if whole.kind == "gemm":
            found = {"a": (whole.inputs[0], "mk"), "b": (whole.inputs[1], "kn")}
        else:
            found = {f"x{n}": (x, "mn") for n, x in enumerate(whole.inputs) if isinstance(x, Operand)}
        for n, step in enumerate(whole.params.epilogue):
            if isinstance(step.operand, Operand):
                found[f"epilogue{n}"] = (step.operand, "n" if len(step.operand.shape) == 1 else "mn")
        return found

    def read_tile(self, r: OpRecord, whole: OpRecord) -> None:
        for name, (x, axes) in self.operands(whole).items():
            if r.name == name or (r.kind == "fetch" and x.space == "tcm"):
                for tile in tiles_of(r):
                    self.seen[whole.seq, name, tile] = self.load(x, self.cut(whole, tile, axes)).astype(np.float32)

    def tile_value(self, tile: tuple[int, ...], whole: OpRecord) -> Array:
        i, j, last = tile
        steps = -(-whole.inputs[0].shape[1] // whole.params.tile_sizes[1]) if whole.kind == "gemm" else 1
        got = {
            name: [self.seen.get((whole.seq, name, (i, j, s))) for s in range(steps)] for name in self.operands(whole)
        }
        if whole.kind == "gemm":
            value = sum((a @ b for a, b in zip(got["a"], got["b"], strict=True)), np.float32(0))
        else:
            args = [got[f"x{n}"][0] if isinstance(x, Operand) else np.float32(x) for n, x in enumerate(whole.inputs)]
            value = operator(whole.name).fn(*args)
        for n, step in enumerate(whole.params.epilogue):
            given = got[f"epilogue{n}"][last] if isinstance(step.operand, Operand) else step.operand
            value = EPILOGUE[step.name].fn(value, *(() if given is None else (given,)))
        return value


@pytest.fixture
def engine() -> GraphEngine:
    return GraphEngine(two_cubes())


def place(engine: GraphEngine, array: Array) -> Placed:
    placed = put_in_memory(engine, array)
    COPIED_IN[placed.pa] = array
    return placed


def small(*shape: int, seed: int = 0) -> Array:
    """Integers whose sums of products are exact, so that the order of sums does not matter."""
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float32)


def start(
    engine: GraphEngine, kernel: Callable[..., object], *args: Placed, pes: Sequence[int] = (0,)
) -> RequestHandle:
    ref = KernelRef(name="k", function=kernel)
    targets = tuple((0, 0, pe) for pe in pes)
    return engine.submit(KernelLaunchMsg(kernel=ref, args=tuple(a.arg for a in args), targets=targets))


def agrees(engine: GraphEngine, *placed: Placed) -> None:
    """Memory is what the oracle says that it is now."""
    oracle = Oracle(engine.op_log, round(engine.now * 1000))
    for x in placed:
        found = fetch(engine, x)
        nbytes = found.nbytes
        expected = oracle.memory.get("hbm", x.pa + np.arange(0, nbytes, x.arg.dtype.itemsize), x.arg.dtype)
        np.testing.assert_array_equal(found.reshape(-1), expected)


def tiled(engine: GraphEngine) -> int:
    return engine.phase2_stats.tiled


def composites(engine: GraphEngine) -> list[OpRecord]:
    return [r for r in engine.op_log if r.params.tile_sizes is not None]


# --- undisturbed: one operation --------------------------------------------------------------------------------------


@pytest.mark.parametrize("staged", [(), ("a",), ("a", "b")], ids=["ref_ref", "load_ref", "load_load"])
def test_an_undisturbed_gemm_is_one_operation(engine: GraphEngine, staged: tuple[str, ...]) -> None:
    m, k, n = 70, 130, 50
    a, b, bias, c = (
        place(engine, x) for x in (small(m, k), small(k, n, seed=1), small(n), np.zeros((m, n), np.float32))
    )

    def kernel(a: int, b: int, bias: int, c: int, *, tl: Tl) -> None:
        x = (tl.load if "a" in staged else tl.ref)(a, (m, k), "f32")
        y = (tl.load if "b" in staged else tl.ref)(b, (k, n), "f32")
        epilogue = (("bias", (tl.load if staged else tl.ref)(bias, (n,), "f32")), ("relu",), ("scale", 0.5))
        tl.composite("gemm", x, y, out_ptr=c, epilogue=epilogue)

    launch(engine, kernel, a, b, bias, c)
    agrees(engine, a, b, bias, c)
    assert tiled(engine) == 0
    expected = np.maximum(small(m, k) @ small(k, n, seed=1) + small(n), 0) / 2
    np.testing.assert_array_equal(fetch(engine, c), expected)


def test_an_elementwise_composite_with_an_epilogue(engine: GraphEngine) -> None:
    x, y, z, out = (place(engine, small(70, 50, seed=s)) for s in range(4))

    def kernel(x: int, y: int, z: int, out: int, *, tl: Tl) -> None:
        shape = (70, 50)
        epilogue = (("add", tl.ref(z, shape, "f32")), ("relu",))
        tl.composite("mul", tl.ref(x, shape, "f32"), tl.load(y, shape, "f32"), out_ptr=out, epilogue=epilogue)

    launch(engine, kernel, x, y, z, out)
    agrees(engine, out)
    assert tiled(engine) == 0
    np.testing.assert_array_equal(
        fetch(engine, out), np.maximum(small(70, 50) * small(70, 50, seed=1) + small(70, 50, seed=2), 0)
    )
