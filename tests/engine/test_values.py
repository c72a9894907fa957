"""A kernel that asks for numbers: what it gets, when, and what that costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engine_support import fetch, launch, place, two_cubes
from kernbench.common.errors import LimitReached, NoDataError
from kernbench.engine.engine import GraphEngine
from kernbench.engine.requests import Limits
from kernbench.triton_emu.tl_context import TLContext as Tl

VALUE_NS = "pe.components.pe_cpu.attrs.value_ns={}"


def gather(table: int, index: int, out: int, rows: int, *, tl: Tl) -> None:
    """Rows of a table by an index that is in memory, as far as the first negative one."""
    found = tl.value(tl.load(index, rows, "i32"))
    for i, row in enumerate(found.tolist()):
        if row < 0:
            break
        tl.store(out + 64 * i, tl.load(table + 64 * row, 16, "f32"))


def test_loaded_numbers_are_addresses_and_conditions() -> None:
    engine = GraphEngine(two_cubes())
    table = np.arange(8 * 16, dtype=np.float32).reshape(8, 16)
    index = np.array([6, 0, 3, -1, 5], np.int32)
    arrays = [place(engine, each, name=name) for name, each in (("t", table), ("i", index))]
    out = place(engine, np.zeros((5, 16), np.float32), name="o")
    launch(engine, gather, *arrays, out, 5)
    wanted = np.zeros((5, 16), np.float32)
    wanted[:3] = table[[6, 0, 3]]
    assert np.array_equal(fetch(engine, out), wanted)


def test_values_are_those_of_that_moment() -> None:
    """Also while what overwrites them is under way, and through a view."""
    seen: list[Any] = []

    def kernel(x: int, *, tl: Tl) -> None:
        a = tl.load(x, (2, 4), "f32")
        seen.append(tl.value(tl.reshape(a * 2, 8)))
        tl.store(x, a + 1)
        seen.append(tl.value(tl.load(x, (2, 4), "f32")))
        seen.append(tl.value(tl.cast(a, "bf16")))

    engine = GraphEngine(two_cubes())
    x = place(engine, np.arange(8, dtype=np.float32).reshape(2, 4))
    launch(engine, kernel, x)
    assert seen[0].tolist() == [0, 2, 4, 6, 8, 10, 12, 14]
    assert seen[1].tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert seen[2].astype(np.float32).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


def times(kernel: Callable[..., object], *overrides: str) -> tuple[int, int]:
    """Simulated ps, and events, of a kernel on one array."""
    engine = GraphEngine(two_cubes(*overrides))
    launch(engine, kernel, place(engine, np.ones((2, 4), np.float32)))
    return engine.machine.clock.time, engine.n_events


def test_a_value_takes_value_ns_and_one_event() -> None:
    def waits(x: int, *, tl: Tl) -> None:
        tl.wait(tl.load(x, (2, 4), "f32"))
        tl.store(x, tl.zeros((2, 4), "f32"))

    def reads(x: int, *, tl: Tl) -> None:
        a = tl.load(x, (2, 4), "f32")
        for _ in range(3):
            tl.value(a)
        tl.store(x, tl.zeros((2, 4), "f32"))

    (waited_ps, events), (free_ps, more) = times(waits), times(reads)
    assert free_ps == waited_ps
    assert more == events + 3
    assert times(reads, VALUE_NS.format(7.5)) == (waited_ps + 3 * 7500, more)


def test_a_spin_that_is_stopped_names_its_line() -> None:
    def kernel(x: int, *, tl: Tl) -> None:
        while tl.value(tl.load(x, (2, 4), "f32")).any():
            pass

    engine = GraphEngine(two_cubes(), limits=Limits(sim_ns=5000))
    x = place(engine, np.ones((2, 4), np.float32))
    line = kernel.__code__.co_firstlineno + 1
    with pytest.raises(LimitReached, match=rf"1 PE waits: kernel 'kernel' waits for .* line {line}"):
        launch(engine, kernel, x)


def test_many_values_in_a_row() -> None:
    def kernel(x: int, *, tl: Tl) -> None:
        a = tl.load(x, (2, 4), "f32")
        assert sum(int(tl.value(a)[0, 0]) for _ in range(1200)) == 1200

    assert times(kernel)


def test_a_run_without_data_refuses_at_the_line() -> None:
    def kernel(x: int, *, tl: Tl) -> None:
        a = tl.load(x, (2, 4), "f32")
        tl.value(a)

    engine = GraphEngine(two_cubes(), enable_data=False)
    x = place(engine, np.ones((2, 4), np.float32))
    with pytest.raises(
        NoDataError, match=r"tl\.value: this run keeps no data, so there is no value to read: run it with --data"
    ) as caught:
        launch(engine, kernel, x)
    assert str(caught.value).startswith(f"{__file__}:{kernel.__code__.co_firstlineno + 2}: ")
