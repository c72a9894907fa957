"""How long the engines of a PE take on the skewed machine, by its own figures."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from queue_support import Array, launch, share

from kernbench.common.dtypes import dtype
from kernbench.core.op_log import OpRecord
from kernbench.engine.engine import GraphEngine
from skewed import skewed

A = (0, 0, 0)
PS = 0.0011
"""A stage is rounded to a picosecond"""
LAUNCH_NS, ISSUE_NS = 6.7, 1.1
SCHEDULER_NS = 1.9
READ_GBS, WRITE_GBS = 223.0, 149.0
IN_FLIGHT, SLOTS = 5, 3
TILE = (24, 40, 56)


class Ran:
    """A kernel on one PE: how long it took, and its records."""

    def __init__(self, kernel: Callable[..., object], *arrays: Array, overrides: tuple[str, ...] = ()) -> None:
        engine = GraphEngine(skewed(*overrides), enable_data=False)
        shared = [share(engine, {A: array}, f"t{i}") for i, array in enumerate(arrays)]
        before = len(engine.op_log)
        (trace,) = launch(engine, kernel, *shared, pes=[A])
        self.exec_ns = trace.pe_exec_ns[A]
        self.records = engine.op_log.since(before)

    def of_part(self, part: str) -> list[OpRecord]:
        return [record for record in self.records if record.component == f"sip0.cube0.pe0.{part}"]

    def stages(self, part: str, kind: str) -> list[OpRecord]:
        return [record for record in self.of_part(part) if record.name == "stage" and record.kind == kind]


def lasted(record: OpRecord) -> float:
    return record.t_end - record.t_start


def test_a_kernel_without_commands_takes_its_launch() -> None:
    assert Ran(lambda tl: None).exec_ns == pytest.approx(LAUNCH_NS, abs=PS)


@pytest.mark.parametrize("commands", [1, 2, 7])
def test_each_command_takes_its_issue(commands: int) -> None:
    def kernel(*, tl: Any) -> None:
        for i in range(commands):
            tl.device_print(i)

    assert Ran(kernel).exec_ns == pytest.approx(LAUNCH_NS + commands * ISSUE_NS, abs=PS)


# MATH: 3.1 ns and the bytes of the widest of operands and result at 193 a ns. What it does, and those bytes.
MATH: dict[str, tuple[Callable[[Any], Any], int]] = {
    "full f32": (lambda tl: tl.full((100,), 2.0, "f32"), 400),
    "zeros i8": (lambda tl: tl.zeros((100,), "i8"), 100),
    "exp f16": (lambda tl: tl.exp(tl.zeros((300,), "f16")), 600),
    "add f32": (lambda tl: tl.zeros((30, 9), "f32") + tl.zeros((30, 9), "f32"), 1080),
    "sum of rows": (lambda tl: tl.sum(tl.zeros((64, 32), "f16"), 1), 4096),
    "sum of columns": (lambda tl: tl.sum(tl.zeros((64, 32), "f16"), 0), 4096),
    "max of all": (lambda tl: tl.max(tl.zeros((1000,), "f32"), 0), 4000),
    "widening cast": (lambda tl: tl.cast(tl.zeros((128,), "f16"), "f32"), 512),
    "narrowing cast": (lambda tl: tl.cast(tl.zeros((128,), "f32"), "f16"), 512),
    "narrowing to bytes": (lambda tl: tl.cast(tl.zeros((128,), "f32"), "i8"), 512),
    "compare": (lambda tl: tl.zeros((128,), "f32") < tl.zeros((128,), "f32"), 512),
    "broadcast": (lambda tl: tl.broadcast(tl.zeros((1, 40), "f16"), (50, 40)), 4000),
    "row and matrix": (lambda tl: tl.zeros((50, 40), "f16") + tl.zeros((1, 40), "f16"), 4000),
    "softmax": (lambda tl: tl.softmax(tl.zeros((16, 16), "f32"), 1), 1024),
    "copy": (lambda tl: tl.copy(tl.zeros((128,), "f16")), 256),
    "trans": (lambda tl: tl.trans(tl.zeros((16, 20), "f16")), 640),
}


@pytest.mark.parametrize(("operation", "nbytes"), MATH.values(), ids=MATH.keys())
def test_math_takes_its_start_and_its_widest_operand(operation: Callable[[Any], Any], nbytes: int) -> None:
    def kernel(*, tl: Any) -> None:
        tl.wait(operation(tl))

    *_, last = Ran(kernel).of_part("pe_math")
    assert lasted(last) == pytest.approx(3.1 + nbytes / 193, abs=PS)


def test_math_does_one_operation_at_a_time() -> None:
    def kernel(*, tl: Any) -> None:
        for _ in range(4):
            tl.zeros((2000,), "f32")

    ran = Ran(kernel)
    records = ran.of_part("pe_math")
    assert all(a.t_end == b.t_start for a, b in pairwise(records))
    each = 3.1 + 8000 / 193
    assert ran.exec_ns == pytest.approx(LAUNCH_NS + ISSUE_NS + 4 * each, abs=4 * PS)


def product(rows: int, steps: int, columns: int, name: str, *, acc: bool = False, out: str | None = None) -> Any:
    """A dot of two arrays that MATH has made."""

    def kernel(*, tl: Any) -> None:
        a, b = tl.zeros((rows, steps), name), tl.zeros((steps, columns), name)
        c = tl.zeros((rows, columns), out or name) if acc else None
        tl.dot(a, b, acc=c, out_dtype=out)

    return kernel


MACS_PER_NS = {"f32": 900, "f16": 3700, "bf16": 4300, "i8": 7900, "f8e4m3": 8600, "f8e5m2": 9700}


@pytest.mark.parametrize("name", MACS_PER_NS)
def test_a_dot_of_one_tile(name: str) -> None:
    """Issue, then fetch at the read bandwidth, multiply at the type's rate, store at the write bandwidth."""
    m, k, n = TILE
    size = dtype(name).itemsize
    fetch = (m * k + k * n) * size / READ_GBS
    multiply = m * k * n / MACS_PER_NS[name]
    store = m * n * (4 if name == "i8" else size) / WRITE_GBS
    ran = Ran(product(m, k, n, name))
    for part, kind, wanted in (
        ("pe_fetch_store", "fetch", fetch),
        ("pe_gemm", "gemm", multiply),
        ("pe_fetch_store", "store", store),
    ):
        (stage,) = ran.stages(part, kind)
        assert lasted(stage) == pytest.approx(wanted, abs=PS), kind
    (dot,) = [record for record in ran.of_part("pe_gemm") if record.name == "dot"]
    assert lasted(dot) == pytest.approx(SCHEDULER_NS + fetch + multiply + store, abs=3 * PS)


@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("trans_a", [False, True])
def test_a_transposed_operand_falls_into_the_same_tiles(trans_a: bool, trans_b: bool) -> None:
    m, k, n = 30, 100, 9

    def kernel(*, tl: Any) -> None:
        a = tl.zeros((k, m) if trans_a else (m, k), "f16")
        b = tl.zeros((n, k) if trans_b else (k, n), "f16")
        tl.dot(a, b, trans_a=trans_a, trans_b=trans_b)

    fetched = [(rows * steps + steps * n) * 2 / READ_GBS for rows in (24, 6) for steps in (40, 40, 20)]
    assert [lasted(stage) for stage in Ran(kernel).stages("pe_fetch_store", "fetch")] == pytest.approx(fetched, abs=PS)


def test_an_accumulator_is_fetched_with_the_operands() -> None:
    m, k, n = TILE
    ran = Ran(product(m, k, n, "f16", acc=True, out="f32"))
    (fetch,), (store,) = ran.stages("pe_fetch_store", "fetch"), ran.stages("pe_fetch_store", "store")
    assert lasted(fetch) == pytest.approx(((m * k + k * n) * 2 + m * n * 4) / READ_GBS, abs=PS)
    assert lasted(store) == pytest.approx(m * n * 4 / WRITE_GBS, abs=PS)


def test_a_part_of_a_tile_costs_the_matrix_unit_all_of_it() -> None:
    ran = Ran(product(3, 50, 7, "f16"))
    whole, edge = ran.stages("pe_fetch_store", "fetch")
    assert lasted(whole) == pytest.approx((3 * 40 + 40 * 7) * 2 / READ_GBS, abs=PS)
    assert lasted(edge) == pytest.approx((3 * 10 + 10 * 7) * 2 / READ_GBS, abs=PS)
    assert [lasted(stage) for stage in ran.stages("pe_gemm", "gemm")] == pytest.approx(
        [24 * 40 * 56 / 3700] * 2, abs=PS
    )
    (store,) = ran.stages("pe_fetch_store", "store")
    assert lasted(store) == pytest.approx(3 * 7 * 2 / WRITE_GBS, abs=PS)


def tile_ends(times: tuple[float, ...], slots: tuple[int, ...], tiles: int, in_flight: int) -> list[list[float]]:
    """When each tile leaves each stage, if the first enters at 0: ``slots`` before and in each stage.

    end[i][s] = max(end[i-1][s], end[i][s-1], end[i-slots[s+1]][s+1]) + t[s], and a tile comes in when the one
    ``in_flight`` before it has left.
    """
    ends: list[list[float]] = []
    for i in range(tiles):
        row: list[float] = []
        for s, time in enumerate(times):
            ready = row[s - 1] if s else ends[i - in_flight][-1] if i >= in_flight else 0.0
            before = ends[i - 1][s] if i else 0.0
            room = ends[i - slots[s + 1]][s + 1] if s + 1 < len(times) and i >= slots[s + 1] else 0.0
            row.append(max(ready, before, room) + time)
        ends.append(row)
    return ends


@pytest.mark.parametrize("in_flight", [IN_FLIGHT, 1, 2, 13])
@pytest.mark.parametrize("slots", [SLOTS, 1, 2])
@pytest.mark.parametrize(
    ("name", "out"), [("f8e4m3", "f32"), ("f32", None), ("f8e5m2", None)], ids=["store", "gemm", "fetch"]
)
def test_tiles_follow_each_other_as_their_slots_allow(name: str, out: str | None, slots: int, in_flight: int) -> None:
    """Whatever stage is the slowest: a dot of 3 x 4 tiles, each of all stages."""
    m, k, n = TILE
    attrs = "pe.components.pe_scheduler.attrs"
    overrides = (f"{attrs}.tiles_in_flight={in_flight}", f"{attrs}.stage_slots={slots}")
    ran = Ran(product(3 * m, k, 4 * n, name, out=out), overrides=overrides)
    size = dtype(name).itemsize
    times = (
        SCHEDULER_NS,
        (m * k + k * n) * size / READ_GBS,
        m * k * n / MACS_PER_NS[name],
        m * n * dtype(out or name).itemsize / WRITE_GBS,
    )
    (dot,) = [record for record in ran.of_part("pe_gemm") if record.name == "dot"]
    wanted = tile_ends(times, (in_flight, in_flight, slots, slots), 12, in_flight)
    for stage, (part, kind) in enumerate(
        (("pe_fetch_store", "fetch"), ("pe_gemm", "gemm"), ("pe_fetch_store", "store"))
    ):
        found = [record.t_end - dot.t_start for record in ran.stages(part, kind)]
        assert found == pytest.approx([row[stage + 1] for row in wanted], abs=36 * PS), kind


@pytest.mark.parametrize(
    ("step", "shape"),
    [("bias", TILE[2:]), ("bias", (1, TILE[2])), ("add", (TILE[0], TILE[2]))],
    ids=["vector", "row", "matrix"],
)
def test_an_epilogue_is_an_operation_a_step(step: str, shape: tuple[int, ...]) -> None:
    """Each with its start, and the bytes of the wider of output and operand; of a row only the row is fetched."""
    m, k, n = TILE
    bias = np.zeros(shape, np.float32)

    def kernel(a: int, b: int, bias: int, c: int, *, tl: Any) -> None:
        steps = ((step, tl.ref(bias, shape, "f32")), ("scale", 0.5), ("relu",))
        tl.composite("gemm", tl.ref(a, (m, k), "f16"), tl.ref(b, (k, n), "f16"), c, epilogue=steps)

    half = [np.zeros(shape, np.float16) for shape in ((m, k), (k, n), (m, n))]
    ran = Ran(kernel, half[0], half[1], bias, half[2])
    (math,) = ran.stages("pe_math", "math")
    assert lasted(math) == pytest.approx(3 * 3.1 + m * n * (4 + 2 + 2) / 193, abs=3 * PS)
    (fetch,) = ran.stages("pe_fetch_store", "fetch")
    assert lasted(fetch) == pytest.approx(((m * k + k * n) * 2 + bias.nbytes) / READ_GBS, abs=PS)


@pytest.mark.parametrize("slots", [SLOTS, 1, 2])
def test_tiles_wait_for_math_as_its_slots_allow(slots: int) -> None:
    """A composite of 3 x 4 tiles, loaded before, whose epilogue is the slowest stage; all its tiles are in flight.

    Commands of the kernel, before it, have had slots of MATH too, and have given them back.
    """
    m, k, n = TILE
    steps = (("gelu",), ("scale", 0.5), ("relu",))

    def kernel(a: int, b: int, c: int, *, tl: Any) -> None:
        left, right = tl.load(a, (3 * m, k), "f16"), tl.load(b, (k, 4 * n), "f16")
        tl.wait(left)
        tl.wait(right)
        for _ in range(4):
            tl.wait(tl.zeros((8,), "f16"))
        tl.composite("gemm", left, right, c, epilogue=steps)

    attrs = "pe.components.pe_scheduler.attrs"
    arrays = [np.zeros(shape, np.float16) for shape in ((3 * m, k), (k, 4 * n), (3 * m, 4 * n))]
    ran = Ran(kernel, *arrays, overrides=(f"{attrs}.tiles_in_flight=13", f"{attrs}.stage_slots={slots}"))
    times = (
        SCHEDULER_NS,
        (m * k + k * n) * 2 / READ_GBS,
        m * k * n / MACS_PER_NS["f16"],
        3 * (3.1 + m * n * 2 / 193),
        m * n * 2 / WRITE_GBS,
    )
    (composite,) = [record for record in ran.of_part("pe_scheduler") if record.name != "stage"]
    wanted = tile_ends(times, (13, 13, slots, slots, slots), 12, 13)
    parts = (("pe_fetch_store", "fetch"), ("pe_gemm", "gemm"), ("pe_math", "math"), ("pe_fetch_store", "store"))
    for stage, (part, kind) in enumerate(parts):
        found = [record.t_end - composite.t_start for record in ran.stages(part, kind)]
        assert found == pytest.approx([row[stage + 1] for row in wanted], abs=60 * PS), kind
    # Each tile is written as soon as it is stored: the writes overlap.
    stored = [record.t_end for record in ran.stages("pe_fetch_store", "store")]
    written = [record for record in ran.of_part("pe_dma") if record.kind == "dma_write"]
    assert [record.t_start for record in written] == pytest.approx(stored, abs=PS)
    assert lasted(written[0]) > written[1].t_start - written[0].t_start


def test_as_many_tiles_are_read_ahead_as_may_be_in_flight() -> None:
    """Two descriptors a tile, set up one after another; the sixth tile comes in when the first has retired."""
    m, k, n = TILE

    def kernel(a: int, b: int, c: int, *, tl: Any) -> None:
        tl.composite("gemm", tl.ref(a, (m, k), "f16"), tl.ref(b, (k, 9 * n), "f16"), c)

    ran = Ran(kernel, *[np.zeros(shape, np.float16) for shape in ((m, k), (k, 9 * n), (m, 9 * n))])
    began = [record.t_start for record in ran.of_part("pe_dma") if record.kind == "dma_read"]
    assert [b - a for a, b in pairwise(began[: 2 * IN_FLIGHT])] == pytest.approx([2.7 + 0.8] * 9, abs=PS)
    retired = next(record.t_end for record in ran.of_part("pe_dma") if record.kind == "dma_write")
    # Issued then, it is set up behind the write of another tile at most.
    assert retired + SCHEDULER_NS <= began[2 * IN_FLIGHT] + PS <= retired + SCHEDULER_NS + 3.5 + 2 * PS


def test_an_elementwise_composite_takes_its_widest_array() -> None:
    m, _, n = TILE

    def kernel(x: int, y: int, *, tl: Any) -> None:
        wide = tl.ref(x, (m, n), "f32")
        tl.composite("mul", wide, wide, y, out_dtype="f16")

    ran = Ran(kernel, np.zeros((m, n), np.float32), np.zeros((m, n), np.float16))
    (math,), (fetch,) = ran.stages("pe_math", "math"), ran.stages("pe_fetch_store", "fetch")
    (store,) = ran.stages("pe_fetch_store", "store")
    assert lasted(math) == pytest.approx(3.1 + m * n * 4 / 193, abs=PS)
    assert lasted(fetch) == pytest.approx(2 * m * n * 4 / READ_GBS, abs=PS)
    assert lasted(store) == pytest.approx(m * n * 2 / WRITE_GBS, abs=PS)


def test_an_epilogue_of_an_elementwise_composite_is_fetched_too() -> None:
    m, _, n = TILE

    def kernel(x: int, y: int, *, tl: Any) -> None:
        half = tl.ref(x, (m, n), "f16")
        tl.composite("add", half, half, y, epilogue=(("add", tl.ref(y, (m, n), "f32")), ("relu",)), out_dtype="f16")

    ran = Ran(kernel, np.zeros((m, n), np.float16), np.zeros((m, n), np.float32))
    (math,), (fetch,) = ran.stages("pe_math", "math"), ran.stages("pe_fetch_store", "fetch")
    assert lasted(math) == pytest.approx(3 * 3.1 + m * n * (2 + 4 + 2) / 193, abs=3 * PS)
    assert lasted(fetch) == pytest.approx(m * n * (2 + 2 + 4) / READ_GBS, abs=PS)
