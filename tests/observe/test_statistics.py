"""Figures of a run, read off the op-log and the links."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_support import dma, hbm, launch, machine, place
from kernbench.core.op_log import OpLog
from kernbench.engine.engine import GraphEngine
from kernbench.observe.statistics import NO_ENGINE, engine_shares, engine_usage, traffic, union_ps
from kernbench.triton_emu.tl_context import TLContext as Tl


def log_of(*works: tuple[str, int, int]) -> OpLog:
    log = OpLog()
    for kind, start, end in works:
        tile = (0, 0, 0) if kind == "gemm" else None
        record = log.begin(component="pe", kind=kind, t_start_ps=start, t_read_ps=start, tile=tile)  # type: ignore[arg-type]
        log.finish(record, end)
    return log


def test_shares_split_all_of_the_time() -> None:
    log = log_of(("dma_read", 10, 50), ("dma_read", 20, 40), ("gemm", 45, 70), ("math", 90, 130))
    log.finish(log.begin(component="pe", kind="gemm", t_start_ps=0, t_read_ps=0), 100)  # the whole of the tiles
    found = {share.what: round(share.ns * 1000) for share in engine_shares(log, 0, 100)}
    assert found == {"DMA in": 35, NO_ENGINE: 30, "GEMM": 20, "MATH": 10, "DMA in + GEMM": 5}


def test_a_record_with_parts_is_not_counted_beside_them() -> None:
    log = OpLog()
    whole = log.begin(component="scheduler", kind="math", t_start_ps=0, t_read_ps=0)
    for start in (20, 60):
        part = log.begin(component="pe_math", kind="math", t_start_ps=start, t_read_ps=start, tile=(0, 0, 0), parent=0)
        log.finish(part, start + 10)
    log.finish(whole, 100)
    (usage,) = engine_usage(log, 0.0, 0.1)
    assert (usage.engine, usage.pes, usage.records, usage.busy_ns) == ("MATH", 1, 2, 0.02)


def test_usage_is_within_the_window() -> None:
    (usage,) = engine_usage(log_of(("dma_read", 10, 50), ("dma_read", 45, 90), ("dma_read", 80, 130)), 0.0, 0.1)
    assert usage.busy_ns == 0.08
    assert usage.occupancy == pytest.approx(0.8)


def test_union() -> None:
    assert union_ps([(5, 9), (0, 3), (2, 4), (7, 8)]) == 8


def test_traffic_of_a_read() -> None:
    engine = GraphEngine(machine())
    dma(engine, hbm(0, 0, 0), 4096)
    found = traffic(engine.machine)
    assert (found.hbm_in, found.hbm_out, found.to_machine, found.from_machine) == (32, 4096, 0, 0)
    assert found.busiest[0].nbytes == 4096


def test_parts_of_a_command_say_what_it_says() -> None:
    """Stages and tiles' transfers have the kernel, the launch and the line of their command."""
    engine = GraphEngine(machine(), enable_data=False)
    x = place(engine, np.zeros((64, 64), np.float16))

    def both(p: int, *, tl: Tl) -> None:
        a = tl.load(p, (64, 64), "f16")
        tl.store(p, tl.dot(a, a))
        tl.composite("gemm", tl.ref(p, (64, 64), "f16"), a, out_ptr=p)

    launch(engine, both, x)
    parts = [record for record in engine.op_log if record.tile is not None]
    assert {record.kind for record in parts} == {"dma_read", "fetch", "gemm", "store", "dma_write"}
    for part in parts:
        whole = engine.op_log[part.parent]
        assert whole.name in ("dot", "composite")
        assert (part.kernel, part.launch_id, part.line) == (whole.kernel, whole.launch_id, whole.line)
        assert part.line > 0
        assert part.launch_id >= 0
        assert part.kernel == "both"
        assert whole.t_start_ps <= part.t_start_ps <= part.t_end_ps <= whole.t_end_ps


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=15))
def test_a_union_is_as_long_as_the_moments_it_covers(given: list[tuple[int, int]]) -> None:
    spans = [(start, start + length) for start, length in given]
    assert union_ps(spans) == len({moment for start, end in spans for moment in range(start, end)})
