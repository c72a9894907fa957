"""Scheduled tiles: the log is as if each stage of each tile had been an event."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from engine_support import Placed, launch, place, two_cubes
from kernbench.components.pe_scheduler import PeScheduler
from kernbench.components.pipeline import TileLists
from kernbench.core.log import BY, CAUSE, END, KIND, LAST, LINE, PARENT, PART, START, TILE, WHAT, WIDTH, By, Kind
from kernbench.engine.engine import GraphEngine
from kernbench.engine.recorder import TileAmounts
from kernbench.messages.requests import KernelLaunchMsg, KernelRef

PES = ((0, 0, 0), (0, 0, 1))
M, K, N = 96, 256, 160
Kernel = Callable[..., object]
Op = tuple[str, int]


@contextmanager
def by_events() -> Iterator[None]:
    """Inside, every tile goes by events."""
    with patch.object(PeScheduler, "_tile_list", lambda *_: None):
        yield


def rows_of(engine: GraphEngine) -> list[tuple[Any, ...]]:
    """All rows, whatever their order, where rows refer to others by what these are."""
    log = engine.machine.log
    log.catch_up()
    rows = log.rows

    def name(row: int) -> tuple[Any, ...]:
        tile = rows[row + TILE]
        place = log.parts[rows[row + PART]], rows[row + KIND], rows[row + START], rows[row + LINE]
        return () if row < 0 else (*place, log.tiles[tile] if tile >= 0 else ())

    def about(row: int) -> str:
        what = log.whats[rows[row + WHAT]] if rows[row + WHAT] >= 0 else ""
        return repr(what) if isinstance(what, str | TileAmounts) else type(what).__name__

    return sorted(
        (
            *name(row),
            tuple(rows[row + START + 1 : row + CAUSE]),
            about(row),
            *(name(rows[row + column]) for column in (PARENT, CAUSE, LAST)),
            By(rows[row + BY]).name,
        )
        for row in range(0, len(rows), WIDTH)
    )


def engine_of(*overrides: str) -> tuple[GraphEngine, list[Placed]]:
    engine = GraphEngine(two_cubes(*overrides), enable_data=False)
    shapes = (M, K), (K, N), (M, N)
    return engine, [place(engine, np.zeros(shape, np.float16), name=f"t{n}") for n, shape in enumerate(shapes)]


def run(kernel: Kernel, *overrides: str) -> GraphEngine:
    engine, arrays = engine_of(*overrides)
    launch(engine, kernel, *arrays, targets=PES)
    return engine


# --- random programs --------------------------------------------------------------------------------------------------

OPS = ("dot", "add", "small", "wide", "math", "blocked", "blocked x", "streamed", "epilogue", "wait")


def program(ops: list[Op]) -> Kernel:
    def kernel(x_ptr: int, w_ptr: int, y_ptr: int, *, tl: Any) -> None:
        x, w = tl.load(x_ptr, (M, K), "f16"), tl.load(w_ptr, (K, N), "f16")
        x_ref, w_ref = tl.ref(x_ptr, (M, K), "f16"), tl.ref(w_ptr, (K, N), "f16")
        total = tl.dot(x, w)
        for op, k in ops:
            match op:
                case "dot":
                    total = tl.dot(x, w)
                case "add":
                    total = tl.dot(x, w, total)
                case "small":
                    tl.dot(tl.zeros((8 + 9 * k, 40 + 20 * k), "f16"), tl.zeros((40 + 20 * k, 30), "f16"))
                case "wide":
                    tl.dot(tl.zeros((1, 64 * (k + 1)), "f16"), tl.zeros((64 * (k + 1), 32 * (k + 2)), "f16"))
                case "math":
                    for _ in range(k + 1):
                        total = tl.exp(total)
                case "blocked":
                    tl.composite("gemm", x_ref, w_ref, y_ptr, block="auto", begin=(0, 16 * k, 0))
                case "blocked x":
                    tl.composite("gemm", x, w_ref, y_ptr, block=(32, 64 * (k // 2 + 1), 32 * (k % 2 + 1)))
                case "streamed":
                    tl.composite("gemm", x_ref, w, y_ptr)
                case "epilogue":
                    tl.composite("gemm", x, w_ref, y_ptr, epilogue=(("relu",),), block="auto")
                case _:
                    tl.fence()
        tl.store(y_ptr, total)

    return kernel


SCHEDULER = "pe.components.pe_scheduler.attrs"
MACHINES: dict[str, tuple[int, ...]] = {
    f"{SCHEDULER}.stage_slots": (1, 2, 3),
    f"{SCHEDULER}.tiles_in_flight": (1, 2, 3, 4, 5, 6),
    f"{SCHEDULER}.issue_ns": (0, 3, 16, 40),
    "pe.tcm.read_bw_gbs": (90, 256, 701),
    "pe.tcm.write_bw_gbs": (20, 128),
    "pe.gemm.acc_bytes": (0, 8192),
    "pe.tcm.scheduler_reserved_bytes": (40_000, 100_000),
}


def random_ops(rnd: Random) -> list[Op]:
    return [(rnd.choice(OPS), rnd.randint(0, 3)) for _ in range(rnd.randint(0, 7))]


def random_changes(rnd: Random) -> dict[str, int]:
    return {key: rnd.choice(values) for key, values in MACHINES.items() if rnd.random() < 0.5}


def check_program(ops: list[Op], changes: dict[str, int]) -> None:
    overrides = [f"{key}={number}" for key, number in changes.items()]
    found = run(program(ops), *overrides)
    with by_events():
        detailed = run(program(ops), *overrides)
    assert rows_of(found) == rows_of(detailed)
    assert list(found.op_log) == list(detailed.op_log)
    assert found.n_events <= detailed.n_events


PROGRAMS: list[tuple[list[Op], dict[str, int]]] = [
    ([("small", 0), ("add", 0), ("streamed", 0), ("dot", 0), ("epilogue", 0)], {}),
    ([("blocked", 0), ("blocked x", 1), ("dot", 0), ("math", 3)], {}),
    ([("blocked", 0)], {f"{SCHEDULER}.tiles_in_flight": 1}),
    (  # a list meets the last tiles of a list before, which are still to be stored
        [("dot", 0), ("dot", 0), ("epilogue", 0), ("epilogue", 0), ("blocked", 0)],
        {"pe.tcm.read_bw_gbs": 90, f"{SCHEDULER}.issue_ns": 0, "pe.tcm.write_bw_gbs": 20},
    ),
    (  # a tile completes a part of the result while the next list enters, and tiles by events follow
        [("dot", 0)] * 4 + [("wide", 0), ("blocked", 0), ("dot", 0)],
        {
            f"{SCHEDULER}.issue_ns": 3,
            "pe.tcm.read_bw_gbs": 256,
            "pe.tcm.write_bw_gbs": 20,
            "pe.gemm.acc_bytes": 8192,
            f"{SCHEDULER}.stage_slots": 1,
        },
    ),
    (  # the first tile of a list waits for the issue of a list before
        [("wide", 3), ("wait", 0), ("small", 3)],
        {f"{SCHEDULER}.stage_slots": 3, f"{SCHEDULER}.issue_ns": 40, "pe.gemm.acc_bytes": 0},
    ),
]


@pytest.mark.parametrize(("ops", "changes"), PROGRAMS)
def test_programs_are_logged_as_by_events(ops: list[Op], changes: dict[str, int]) -> None:
    check_program(ops, changes)


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 2000))])
def test_any_program_is_logged_as_by_events(seed: int) -> None:
    rnd = Random(seed)
    check_program(random_ops(rnd), random_changes(rnd))


@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 40))])
def test_who_stops_on_the_way_sees_what_has_begun(seed: int) -> None:
    rnd = Random(seed)
    ops = random_ops(rnd)
    check_stops(ops, [rnd.randint(1_500, 40_000) for _ in range(rnd.randint(1, 3))])


def test_who_stops_at_the_last_tile_sees_what_has_begun() -> None:
    check_stops([("small", 3), ("blocked", 0)], [4079])


def check_stops(ops: list[Op], stops: list[int]) -> None:
    def seen() -> Iterator[object]:
        engine, arrays = engine_of()
        begin = engine.now
        args = tuple(each.arg for each in arrays)
        engine.submit(KernelLaunchMsg(kernel=KernelRef(name="k", function=program(ops)), args=args, targets=PES))
        for stop in sorted(stops):
            engine.run_until(begin + stop)
            yield rows_of(engine)
            yield [replace(each) for each in engine.op_log]  # as it is now: who has a record sees it end
            columns = engine.machine.log.columns()
            assert len(columns.start) == len(rows_of(engine))

    found = list(seen())
    with by_events():
        assert found == list(seen())


# --- causes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [nullcontext, by_events])
@pytest.mark.parametrize("stage_slots", [1, 2])
def test_stages_and_panels_begin_as_their_causes_end(way: Callable[[], Any], stage_slots: int) -> None:
    """Few rows: a tile takes the matrix unit long, and the last one of a step waits for a slot of it."""
    engine = GraphEngine(two_cubes(f"pe.components.pe_scheduler.attrs.stage_slots={stage_slots}"), enable_data=False)
    shapes = (8, 256), (256, 160), (8, 160)
    arrays = [place(engine, np.zeros(shape, np.float32), name=f"t{n}") for n, shape in enumerate(shapes)]

    def kernel(x_ptr: int, w_ptr: int, y_ptr: int, *, tl: Any) -> None:
        tl.composite("gemm", tl.ref(x_ptr, shapes[0], "f32"), tl.ref(w_ptr, shapes[1], "f32"), y_ptr, block="auto")

    with way():
        launch(engine, kernel, *arrays, targets=PES[:1])
    log = engine.machine.log
    log.catch_up()
    rows, kinds = log.rows, []
    for row in range(0, len(rows), WIDTH):
        kind, by = Kind(rows[row + KIND]), By(rows[row + BY])
        if kind in (Kind.TILE_ISSUE, Kind.FETCH, Kind.GEMM, Kind.STORE) or (kind is Kind.DMA_READ and by is By.SLOT):
            assert rows[row + START] == rows[rows[row + CAUSE] + END], (kind, by)
            kinds.append(kind)
    assert {kind: kinds.count(kind) for kind in kinds} == {
        Kind.TILE_ISSUE: 20,
        Kind.FETCH: 20,
        Kind.GEMM: 1 + 20,  # the product itself is one
        Kind.STORE: 5,
        Kind.DMA_READ: 2,
    }


# --- what it costs ----------------------------------------------------------------------------------------------------


def test_a_dot_alone_costs_two_events() -> None:
    """One when the pipeline has room for more tiles, and one when the last tile is stored; and one in the CPU."""

    def kernel(x_ptr: int, w_ptr: int, y_ptr: int, *, tl: Any) -> None:
        x, w = tl.load(x_ptr, (M, K), "f16"), tl.load(w_ptr, (K, N), "f16")
        tl.fence()
        tl.dot(x, w)

    def idle(x_ptr: int, w_ptr: int, y_ptr: int, *, tl: Any) -> None:
        tl.load(x_ptr, (M, K), "f16")
        tl.load(w_ptr, (K, N), "f16")
        tl.fence()

    tiles, outputs, pes = 3 * 4 * 5, 3 * 5, len(PES)
    with by_events():
        assert run(kernel).n_events - run(idle).n_events == pes * (3 * tiles + outputs + 1)
    assert run(kernel).n_events - run(idle).n_events == pes * (1 + 1 + 1)


def test_equal_dots_have_one_schedule() -> None:
    def kernel(x_ptr: int, w_ptr: int, y_ptr: int, *, tl: Any) -> None:
        x, w = tl.load(x_ptr, (M, K), "f16"), tl.load(w_ptr, (K, N), "f16")
        for _ in range(3):
            tl.dot(x, w)
            tl.fence()

    engine = run(kernel)
    (schedules,) = engine.machine.shared(TileLists).schedules.values()
    assert len(schedules) == 2  # the first dot finds the pipeline idle, each further one the last tiles before it
