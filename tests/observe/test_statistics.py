"""Figures of a run, read off the log and the links."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_support import dma, hbm, launch, place, two_cubes
from kernbench.core.log import NONE, ROOT, Kind, Log
from kernbench.engine.engine import GraphEngine
from kernbench.engine.passed_launches import PassedLaunches
from kernbench.observe.statistics import (
    NO_ENGINE,
    engine_shares,
    engine_usage,
    link_traffic,
    sum_works,
    traffic,
    union_ps,
    unions_ps,
)
from kernbench.observe.works import Works
from kernbench.triton_emu.tl_context import TLContext as Tl


def works_of(*given: tuple[Kind, int, int, bool]) -> Works:
    """Kind, start and end; those that are parts are parts of the first."""
    log = Log()
    for kind, start, end, is_part in given:
        tile, parent = (log.tile((0, 0, 0)), 0) if is_part else (NONE, NONE)
        if is_part:
            log.open(log.part("issue"), Kind.TILE_ISSUE, start, ROOT, tile=tile, parent=parent, read=start, end=start)
        log.open(log.part(kind.name), kind, start, ROOT, tile=tile, parent=parent, read=start, end=end)
    return Works(log, log.columns(), PassedLaunches())


def test_shares_split_all_of_the_time() -> None:
    works = works_of(
        (Kind.GEMM, 0, 100, False),
        (Kind.DMA_READ, 10, 50, False),
        (Kind.DMA_READ, 20, 40, False),
        (Kind.GEMM, 45, 70, True),
        (Kind.MATH, 90, 130, False),
    )
    found = {share.what: round(share.ns * 1000) for share in engine_shares(works, {"GEMM", "DMA_READ", "MATH"}, 0, 100)}
    assert found == {"DMA in": 35, NO_ENGINE: 30, "GEMM": 20, "MATH": 10, "DMA in + GEMM": 5}


def test_shares_are_of_the_parts_that_are_asked_for() -> None:
    works = works_of((Kind.DMA_READ, 10, 50, False), (Kind.MATH, 20, 60, False))
    assert [share.what for share in engine_shares(works, {"MATH"}, 0, 100)] == [NO_ENGINE, "MATH"]


def test_a_work_with_parts_is_not_counted_beside_them() -> None:
    works = works_of((Kind.MATH, 0, 100, False), (Kind.MATH, 20, 30, True), (Kind.MATH, 60, 70, True))
    (usage,) = engine_usage(sum_works(works, 0, 100), 0.0, 0.1)
    assert (usage.engine, usage.pes, usage.records, usage.busy_ns) == ("MATH", 1, 2, 0.02)


def test_usage_is_within_the_window() -> None:
    reads = ((Kind.DMA_READ, start, end, False) for start, end in ((10, 50), (45, 90), (80, 130)))
    (usage,) = engine_usage(sum_works(works_of(*reads), 0, 100), 0.0, 0.1)
    assert usage.busy_ns == 0.08
    assert usage.occupancy == pytest.approx(0.8)


def test_an_engine_of_two_kinds_of_work_is_told_once() -> None:
    works = works_of((Kind.DMA_WRITE, 0, 10, False), (Kind.ATOMIC, 20, 50, False))
    (usage,) = engine_usage(sum_works(works, 0, 100), 0.0, 0.1)
    assert (usage.engine, usage.records, usage.busy_ns) == ("DMA out", 2, 0.04)


def test_union() -> None:
    assert union_ps([(5, 9), (0, 3), (2, 4), (7, 8)]) == 8


def test_traffic_of_a_read() -> None:
    engine = GraphEngine(two_cubes())
    dma(engine, hbm(0, 0, 0), 4096)
    found = traffic(engine.machine, link_traffic(engine.machine))
    assert (found.hbm_in, found.hbm_out, found.to_machine, found.from_machine) == (32, 4096, 0, 0)
    assert found.busiest[0].nbytes == 4096


def test_parts_of_a_command_say_what_it_says() -> None:
    """Stages and tiles' transfers have the kernel, the launch and the line of their command."""
    engine = GraphEngine(two_cubes(), enable_data=False)
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


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), st.integers(0, 12)), max_size=15))
def test_unions_are_those_of_the_groups(given: list[tuple[int, int, int]]) -> None:
    groups, starts, lengths = (np.array([each[at] for each in given], np.int64) for at in range(3))
    expected = {
        group: union_ps((start, start + length) for each, start, length in given if each == group)
        for group in {each[0] for each in given}
    }
    assert unions_ps(groups, starts, starts + lengths) == expected
