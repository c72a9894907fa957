"""Composites through the tile pipeline of a PE: times against the roofline, numbers, events."""

from __future__ import annotations

import numpy as np
import pytest

from engine_support import fetch, launch, place, two_cubes
from ideal_memory import IDEAL, SLICE_GBS
from kernbench.engine.engine import GraphEngine
from kernbench.triton_emu.tl_context import TLContext as Tl

TILE_NS = 16.0  # 32 · 64 · 32 / 4096


def kernel(variant: str, m: int, k: int, n: int):
    def run(a: int, b: int, c: int, *, tl: Tl) -> None:
        left = tl.load(a, (m, k), "f16") if variant.startswith("load") else tl.ref(a, (m, k), "f16")
        right = tl.load(b, (k, n), "f16") if variant.endswith("load") else tl.ref(b, (k, n), "f16")
        tl.composite("gemm", left, right, c)

    return run


class Run:
    """A composite GEMM on PE 0, in f16."""

    def __init__(self, variant: str, m: int, k: int, n: int, *overrides: str, data: bool = False) -> None:
        self.engine = GraphEngine(two_cubes(*IDEAL, *overrides), enable_data=data)
        rng = np.random.default_rng(0)
        self.a, self.b = rng.standard_normal((m, k)).astype(np.float16), rng.standard_normal((k, n)).astype(np.float16)
        self.c = place(self.engine, np.zeros((m, n), np.float16), name="c")
        operands = place(self.engine, self.a, name="a"), place(self.engine, self.b, name="b"), self.c
        before = self.engine.n_events
        trace = launch(self.engine, kernel(variant, m, k, n), *operands)
        self.events = self.engine.n_events - before
        self.exec_ns = trace.pe_exec_ns[0, 0, 0]
        self.tiles = -(-m // 32) * -(-k // 64) * -(-n // 32)

    def numbers(self) -> np.ndarray:
        return fetch(self.engine, self.c).astype(np.float32)


@pytest.mark.parametrize("variant", ["ref_ref", "load_ref", "load_load"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (32, 64, 32), (33, 65, 31), (100, 200, 50)])
def test_numbers(variant: str, shape: tuple[int, int, int]) -> None:
    done = Run(variant, *shape, data=True)
    expected = (done.a.astype(np.float32) @ done.b.astype(np.float32)).astype(np.float16)
    np.testing.assert_allclose(done.numbers(), expected.astype(np.float32), rtol=2e-3, atol=2e-3)


def test_streaming_both_operands_is_bound_by_the_slice() -> None:
    """256³: 256 tiles of 8 KiB in, 64 of 2 KiB out; the rest is filling and draining the pipeline."""
    done = Run("ref_ref", 256, 256, 256)
    bound = (256 * 8192 + 64 * 2048) / SLICE_GBS
    assert bound < done.exec_ns < 1.03 * bound


def test_staged_operands_are_bound_by_the_matrix_unit() -> None:
    """256³: both operands come first, then a tile every 16 ns."""
    done = Run("load_load", 256, 256, 256)
    bound = 2 * 256 * 256 * 2 / SLICE_GBS + 256 * TILE_NS
    assert bound < done.exec_ns < 1.06 * bound


FASTER = ("cube.links.xbar_to_hbm.bw_gbs=512", "cube.links.pe_to_xbar.bw_gbs=512")


def test_twice_the_memory_bandwidth_halves_what_memory_binds() -> None:
    """With tiles enough in flight to cover the latency of a read."""
    enough = "pe.components.pe_scheduler.attrs.tiles_in_flight=8"
    usual, faster = Run("ref_ref", 256, 256, 256, enough), Run("ref_ref", 256, 256, 256, enough, *FASTER)
    assert usual.exec_ns / faster.exec_ns == pytest.approx(2, rel=0.05)


def test_twice_the_memory_bandwidth_leaves_what_the_matrix_unit_binds() -> None:
    """A long K on one output tile, from TCM: faster by its loads alone."""
    shape = (32, 8192, 32)
    usual, faster = Run("load_load", *shape), Run("load_load", *shape, *FASTER)
    loads = 2 * 32 * 8192 * 2 / SLICE_GBS
    assert usual.exec_ns - faster.exec_ns == pytest.approx(loads / 2, rel=0.02)
    assert usual.exec_ns - loads == pytest.approx(128 * TILE_NS, rel=0.15)


def test_a_stream_of_loads_follows_the_bandwidth_of_memory() -> None:
    def exec_ns(*overrides: str) -> float:
        engine = GraphEngine(two_cubes(*IDEAL, *overrides), enable_data=False)
        x = place(engine, np.zeros(1 << 20, np.float16))

        def read(p: int, *, tl: Tl) -> None:
            for block in range(8):
                tl.load(p + block * (1 << 18), 1 << 17, "f16")

        return launch(engine, read, x).pe_exec_ns[0, 0, 0]

    assert exec_ns() / exec_ns(*FASTER) == pytest.approx(2, rel=0.02)


def test_partial_tiles_cost_the_matrix_unit_a_whole_one() -> None:
    whole, partial = Run("load_load", 64, 512, 64), Run("load_load", 33, 449, 33)
    assert whole.tiles == partial.tiles
    assert partial.exec_ns > 32 * TILE_NS
    assert partial.exec_ns < whole.exec_ns  # its operands are smaller


def test_row_major_tiles_reach_the_slice_with_xor_and_lose_it_with_mod() -> None:
    """Rows 16 KiB apart: a column of tiles falls on one channel of eight unless the hash spreads it."""
    shape = (64, 64, 8192)
    xor = Run("load_ref", *shape)
    mod = Run("load_ref", *shape, "cube.hbm.channel_hash=mod")
    assert mod.exec_ns > 3 * xor.exec_ns


def test_events_per_tile() -> None:
    """Issue, fetch, GEMM for each tile; store, write-back and its transport for every fourth."""
    small, large = Run("load_load", 128, 256, 128), Run("load_load", 256, 256, 256)
    assert (large.events - small.events) / (large.tiles - small.tiles) <= 6
    stages = sum(r.tile is not None and r.name == "stage" for r in large.engine.op_log)
    assert stages == 256 + 256 + 64


def test_an_epilogue_runs_on_math_per_output_tile() -> None:
    engine = GraphEngine(two_cubes())
    a = place(engine, np.ones((64, 64), np.float16), name="a")
    bias = place(engine, np.arange(64, dtype=np.float16), name="bias")
    c = place(engine, np.zeros((64, 64), np.float16), name="c")

    def run(x: int, y: int, z: int, *, tl: Tl) -> None:
        matrix = tl.ref(x, (64, 64), "f16")
        tl.composite("gemm", matrix, matrix, z, epilogue=(("bias", tl.ref(y, (64,), "f16")), ("scale", 0.5), ("relu",)))

    launch(engine, run, a, bias, c)
    assert (fetch(engine, c) == (64 + np.arange(64)) / 2).all()
    steps = [r for r in engine.op_log if r.kind == "math" and r.name == "stage"]
    assert len(steps) == 4
    assert {r.t_end - r.t_start for r in steps} == {3 * (2.0 + 32 * 32 * 2 / 256)}


def test_an_elementwise_composite() -> None:
    engine = GraphEngine(two_cubes())
    x = place(engine, np.full((50, 70), 3, np.float32), name="x")
    y = place(engine, np.arange(3500, dtype=np.float32).reshape(50, 70), name="y")

    def run(p: int, q: int, *, tl: Tl) -> None:
        tl.composite("mul", tl.ref(p, (50, 70), "f32"), tl.ref(q, (50, 70), "f32"), p)

    launch(engine, run, x, y)
    assert (fetch(engine, x) == 3 * np.arange(3500, dtype=np.float32).reshape(50, 70)).all()


def test_express_changes_no_time_of_a_composite() -> None:
    times = {Run("ref_ref", 96, 160, 64, f"transport.express={flag}").exec_ns for flag in ("true", "false")}
    assert len(times) == 1
