"""Atomics in memory: what many PEs make of the same elements, what they find, what they cost and wait for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine_support import fetch, launch, place, two_cubes
from kernbench.ccl.testing import run_kernel_in_mock
from kernbench.common.dtypes import dtype
from kernbench.common.errors import KernelError
from kernbench.core.op_log import OpRecord
from kernbench.engine.engine import GraphEngine
from kernbench.messages.commands import NOWHERE
from kernbench.triton_emu.tl_context import TLContext as Tl
from observed import findings, sanitized

Step: TypeAlias = tuple[str, list[int | None], int]
"""Which atomic, on which elements, and the first of the values that it brings."""
PES = tuple((0, cube, pe) for cube in range(2) for pe in range(2))
N = 6
BITS = ("and", "or", "xor")
INTEGERS = ("i32", "i64", "u32", "u64")

steps = st.tuples(
    st.sampled_from(("add", "max", "min", "xchg", "cas", *BITS)),
    st.lists(st.none() | st.integers(0, N - 1), min_size=1, max_size=4),
    st.integers(-5, 5),
)


def combined(name: str, old: Any, value: Any, compared: Any) -> Any:
    """What NumPy's numbers make of it."""
    return {
        "add": lambda: old + value,
        "max": lambda: max(old, value),
        "min": lambda: min(old, value),
        "and": lambda: old & value,
        "or": lambda: old | value,
        "xor": lambda: old ^ value,
        "xchg": lambda: value,
        "cas": lambda: value if old == compared else old,
    }[name]()


def values_of(step: Step, item: str) -> np.ndarray[Any, Any]:
    _, index, first = step
    return (np.arange(len(index)) + first).astype(dtype(item).numpy)


def issue(tl: Tl, x: int, step: Step, item: str) -> Any:
    name, index, _ = step
    size = dtype(item).itemsize
    runs = [(None if i is None else x + size * i, size) for i in index]
    value = tl.constant(values_of(step, item), item)
    if name == "cas":
        return tl.atomic_cas(runs, tl.full(len(index), 1, item), value, fetch=True)
    atomic: Callable[..., Any] = getattr(tl, f"atomic_{name}")
    return atomic(runs, value, fetch=True)


def addresses(record: OpRecord, size: int) -> set[int]:
    """Of the elements that an atomic changes."""
    there = record.output
    assert there is not None
    stride = there.strides[0] if there.strides else size
    runs = there.segments or [(there.address + i * stride, size) for i in range(there.shape[0])]
    return {pa + at for pa, nbytes in runs if pa != NOWHERE for at in range(0, nbytes, size)}


@example("i32", [[], [("add", [1], 0), ("add", [1], 0), ("add", [None, 0], 0)], [("add", [0], 0)]])
@given(
    st.sampled_from((*INTEGERS, "f32", "f16", "bf16")), st.lists(st.lists(steps, max_size=3), min_size=2, max_size=4)
)
def test_many_pes_are_as_good_as_one_after_another(item: str, programs: list[list[Step]]) -> None:
    """In the order in which the log has them, which is one of service, each found what the one before had left."""
    programs = [[s for s in each if item in INTEGERS or s[0] not in BITS] for each in programs]
    seen: dict[int, list[Any]] = {}
    pes = PES[: len(programs)]

    def kernel(x: int, *, tl: Tl) -> None:
        me = pes.index((tl.site.sip, tl.site.cube, tl.site.pe))
        handles = [issue(tl, x, step, item) for step in programs[me]]
        seen[me] = [tl.value(each) for each in handles]

    start = np.arange(N).astype(dtype(item).numpy)
    engine = sanitized(two_cubes())
    x = place(engine, start)
    launch(engine, kernel, x, targets=pes)
    records = [each for each in engine.op_log if each.kind == "atomic"]
    size = dtype(item).itemsize
    used = [i for each in programs for _, index, _ in each for i in index if i is not None]
    base = min((pa for each in records for pa in addresses(each, size)), default=0) - size * min(used, default=0)
    expected, left = start.copy(), [list(enumerate(each)) for each in programs]
    for record in records:
        me = next(i for i, (_, cube, pe) in enumerate(pes) if f"cube{cube}.pe{pe}." in record.component)
        touched = {(pa - base) // size for pa in addresses(record, size)}
        # Atomics of a PE on other elements may overtake each other.
        at, step = next(each for each in left[me] if {i for i in each[1][1] if i is not None} == touched)
        left[me].remove((at, step))
        for found, i, value in zip(seen[me][at], step[1], values_of(step, item), strict=True):
            if i is not None:
                assert found == expected[i]
                with np.errstate(over="ignore"):  # whole numbers wrap
                    expected[i] = combined(step[0], expected[i], value, 1)
    assert np.array_equal(fetch(engine, x), expected)
    assert findings(engine) == ()


def test_every_pe_gets_a_number_of_its_own() -> None:
    tickets: list[int] = []

    def kernel(x: int, *, tl: Tl) -> None:
        for _ in range(3):
            found = tl.atomic_add(x, tl.full((), 1, "i32"), fetch=True)
            assert found is not None
            tickets.append(int(tl.value(found)))

    engine = GraphEngine(two_cubes())
    x = place(engine, np.zeros((), np.int32))
    launch(engine, kernel, x, targets=PES)
    assert sorted(tickets) == list(range(3 * len(PES)))
    assert int(fetch(engine, x)) == 3 * len(PES)


def test_a_lock_keeps_others_out() -> None:
    """The example of the documentation: without the lock a load and a store would lose some."""
    text = (Path(__file__).parents[2] / "docs" / "kernels.md").read_text()
    names: dict[str, Any] = {}
    block = next(block for block in text.split("```python\n") if "def add_one(" in block)
    exec(block.split("```")[0], names)
    engine = GraphEngine(two_cubes())
    lock, x = place(engine, np.zeros((), np.int32), name="lock"), place(engine, np.zeros((), np.float32), name="x")
    launch(engine, names["add_one"], lock, x, targets=PES)
    assert (float(fetch(engine, x)), int(fetch(engine, lock))) == (len(PES), 0)


def run(kernel: Callable[..., object]) -> tuple[GraphEngine, list[OpRecord]]:
    engine = GraphEngine(two_cubes())
    launch(engine, kernel, place(engine, np.ones((64, 64), np.float32)))
    return engine, [each for each in engine.op_log if each.kind in ("atomic", "dma_read", "dma_write")]


def test_a_posted_atomic_costs_what_a_store_costs() -> None:
    def store(x: int, *, tl: Tl) -> None:
        tl.store(x, tl.full((64, 32), 2, "f32"), strides=(256, 4))

    def posted(x: int, *, tl: Tl) -> None:
        tl.atomic_add(x, tl.full((64, 32), 2, "f32"), strides=(256, 4))

    (first, (a,)), (second, (b,)) = run(store), run(posted)
    assert (a.t_start_ps, a.t_commit_ps, a.t_end_ps) == (b.t_start_ps, b.t_commit_ps, b.t_end_ps)
    assert first.n_events == second.n_events
    assert (b.t_read_ps, b.name) == (b.t_commit_ps, "atomic_add")


def test_old_values_and_what_is_compared_travel_too() -> None:
    def fetched(x: int, *, tl: Tl) -> None:
        old = tl.atomic_xchg(x, tl.full((64, 64), 2, "f32"), fetch=True)
        assert old is not None
        tl.store(x, old)

    def compared(x: int, *, tl: Tl) -> None:
        ones = tl.full((64, 64), 1, "f32")
        tl.atomic_cas(x, ones, ones)

    def posted(x: int, *, tl: Tl) -> None:
        tl.atomic_xchg(x, tl.full((64, 64), 2, "f32"))

    (engine, (a, _)), (_, (b,)), (_, (c,)) = run(fetched), run(compared), run(posted)
    assert a.t_commit_ps - a.t_start_ps == c.t_commit_ps - c.t_start_ps
    assert a.t_end_ps - a.t_commit_ps > c.t_end_ps - c.t_commit_ps
    assert b.t_commit_ps - b.t_start_ps > c.t_commit_ps - c.t_start_ps
    assert engine.read_memory(a.inputs[0].address, 4).view(np.float32)[0] == 1


def test_memory_is_in_the_order_of_the_program() -> None:
    def kernel(x: int, *, tl: Tl) -> None:
        tl.store(x, tl.full((4, 64), 5, "f32"))
        tl.atomic_add(x + 256, tl.full(64, 2, "f32"))
        tl.store(x + 1024, tl.load(x + 256, (1, 64), "f32"))

    engine, records = run(kernel)
    orders = {(each.line - kernel.__code__.co_firstlineno, each.kind): each.order for each in records}
    waits = {(2, "atomic"): "bytes", (3, "dma_read"): "bytes"}
    assert orders == waits | {(1, "dma_write"): "", (3, "dma_write"): ""}
    (atomic,) = [each for each in records if each.kind == "atomic"]
    assert engine.read_memory(atomic.output.address + 768, 4).view(np.float32)[0] == 7


def test_the_sanitizer_tells_atomics_from_stores() -> None:
    def atomics(x: int, *, tl: Tl) -> None:
        tl.atomic_add(x, tl.full(4, 1, "f32"))

    def one_stores(x: int, *, tl: Tl) -> None:
        if tl.program_id(0):
            tl.store(x, tl.full(4, 1, "f32"))
        else:
            tl.atomic_add(x, tl.full(4, 1, "f32"))

    def races(kernel: Callable[..., object]) -> list[str]:
        engine = sanitized(two_cubes())
        launch(engine, kernel, place(engine, np.ones(4, np.float32)), targets=((0, 0, 0), (0, 0, 1)))
        return [each.kind for each in findings(engine)]

    assert races(atomics) == []
    assert races(one_stores) == ["race"]


def test_without_an_order_the_sanitizer_tells_who_overtook() -> None:
    def kernel(x: int, *, tl: Tl) -> None:
        tl.store(x, tl.exp(tl.full((64, 64), 0.0, "f32")))
        tl.atomic_add(x, tl.constant([1], "f32"))

    engine = sanitized(two_cubes("pe.dma.ordering=relaxed"))
    launch(engine, kernel, place(engine, np.ones((64, 64), np.float32)))
    (found,) = findings(engine)
    assert (found.kind, found.side.action) == ("inversion", "atomic")


def test_what_is_masked_off_is_not_changed() -> None:
    seen: list[Any] = []

    def kernel(x: int, *, tl: Tl) -> None:
        for old in (
            tl.atomic_add(x, tl.full((2, 4), 5, "f32"), valid=(1, 3), fetch=True),
            tl.atomic_add([(None, 16)], tl.full(4, 5, "f32"), fetch=True),
            tl.atomic_add([(None, 16)], tl.full(4, 5, "f32")),
        ):
            seen.append(None if old is None else tl.value(old).tolist())

    engine = GraphEngine(two_cubes())
    x = place(engine, np.ones(8, np.float32))
    launch(engine, kernel, x)
    assert seen == [[[1, 1, 1, 0], [0, 0, 0, 0]], [0, 0, 0, 0], None]
    assert fetch(engine, x).tolist() == [6, 6, 6, 1, 1, 1, 1, 1]


def test_the_mock_does_the_same() -> None:
    def kernel(t: int, *, tl: Tl) -> None:
        old = tl.atomic_add([(t, 4), (t, 4), (None, 4), (t + 8, 4)], tl.full(4, 10, "f32"), fetch=True)
        tl.atomic_max(t, tl.full((2, 1), 4, "f32"), strides=(4, 4), valid=(2, 1))
        tl.atomic_cas(t + 12, tl.full((), 4, "f32"), tl.full((), -4, "f32"))
        assert old is not None
        assert tl.value(old).tolist() == [1, 11, 0, 3]

    (found,) = run_kernel_in_mock(kernel, 1, {}, [np.array([1, 2, 3, 4], np.float32)])
    assert found.tolist() == [21, 4, 13, -4]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (lambda tl, x: tl.atomic_add(x, tl.zeros(4, "i8")), r"atomic_add of i8: atomics take i32, f32, f16, bf16"),
        (lambda tl, x: tl.atomic_or(x, tl.zeros(4, "f32")), "or of f32: it works on the bits of whole numbers"),
        (lambda tl, x: tl.atomic_cas(x, tl.zeros(2, "f32"), tl.zeros(4, "f32")), "both must have one shape and type"),
        (lambda tl, x: tl.atomic_add(x, tl.zeros((4, 4), "f32"), strides=(0, 4)), "stride 0"),
        (lambda tl, x: tl.atomic_add(x, 1), "1 is not a handle"),
        (lambda tl, x: tl.atomic_add([(x, 8)], tl.zeros(4, "f32")), "runs of 8 bytes in all"),
    ],
)
def test_what_does_not_fit_is_refused_at_the_line(body: Callable[..., object], words: str) -> None:
    def kernel(x: int, *, tl: Tl) -> None:
        body(tl, x)

    with pytest.raises(KernelError, match=words) as caught:
        run(kernel)
    assert str(caught.value).startswith(f"{__file__}:")
