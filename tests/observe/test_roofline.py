"""Rooflines: what belongs to an interval, and that nothing is ever used for more than all of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compiled import SPREAD
from engine_support import Placed, hbm, machine, place
from ideal_memory import IDEAL
from kernbench.common.errors import LimitReached
from kernbench.engine.engine import GraphEngine
from kernbench.engine.requests import Limits, RequestHandle
from kernbench.messages.requests import HostMsg, KernelLaunchMsg, KernelRef, MemoryReadMsg, MemoryWriteMsg, PeDmaMsg
from kernbench.observe.critical_path_model import CriticalPath
from kernbench.observe.roofline import Bound, Roofline
from kernbench.observe.slices import SliceTime
from kernbench.observe.trace_log import TraceLog
from kernbench.runtime_api.run_explanation import explain_run
from kernbench.triton_emu.tl_context import TLContext as Tl
from path_support import SMALL, roofline_of, run, watched

MIB = 1 << 20


# --- what belongs to an interval --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "end", "belongs"),
    [
        (99, 150, False),
        (100, 150, True),
        (100, 200, True),
        (199, 200, True),
        (150, 201, False),
        (150, -1, False),
        (200, 200, False),
        (200, 300, False),
    ],
)
def test_an_interval_is_half_open(start: int, end: int, belongs: bool) -> None:
    path = CriticalPath(100, 200, ())
    assert path.encloses(np.array([start]), np.array([end])).tolist() == [belongs]


def small(p: int, *, tl: Tl) -> None:
    tl.store(p, tl.load(p, 64, "f16"))


def bound_of(found: Roofline, resource: str) -> Bound:
    return next(each for each in found.bounds if each.resource == resource)


def launch_beside(engine: GraphEngine, *others: HostMsg) -> RequestHandle:
    """A launch, and what the host asks for beside it."""
    x = place(engine, np.zeros(64, np.float16))
    launched = engine.submit(launch_of(x))
    under_way = [engine.submit(each) for each in others]
    for handle in (launched, *under_way):
        engine.wait(handle)
    return launched


def launch_of(x: Placed) -> KernelLaunchMsg:
    return KernelLaunchMsg(kernel=KernelRef(name="small", function=small), args=(x.arg,), targets=((0, 0, 0),))


def test_a_write_right_after_a_launch_is_none_of_it() -> None:
    """It starts in the very ps in which the launch ends, and takes twenty times as long."""
    engine = watched()
    handle = run(engine, small, place(engine, np.zeros(64, np.float16)))
    before = roofline_of(engine, handle)
    write = engine.submit(MemoryWriteMsg(pa=hbm(0, 0, 1), nbytes=MIB))
    assert write.submitted_ps == handle.ended_ps
    engine.wait(write)
    assert roofline_of(engine, handle) == before
    assert bound_of(before, "host link").amount == engine.machine.header_bytes


def test_what_is_under_way_when_a_launch_ends_is_none_of_it() -> None:
    engine, beside = watched(), watched()
    alone = roofline_of(engine, launch_beside(engine))
    found = roofline_of(beside, launch_beside(beside, MemoryWriteMsg(pa=hbm(0, 0, 1), nbytes=MIB)))
    for resource in ("host link", "NoC"):
        assert bound_of(found, resource) == bound_of(alone, resource)


def test_what_others_moved_within_a_launch_counts() -> None:
    """Links serve everybody: what was wholly carried meanwhile is time that the launch could not have."""
    engine = watched()
    found = roofline_of(engine, launch_beside(engine, MemoryReadMsg(pa=hbm(0, 0, 1), nbytes=2048)))
    assert bound_of(found, "host link").amount >= 2048


def test_a_run_that_stopped_within_a_load() -> None:
    """Of a load that was under way when the limit came nobody knows how far it was."""
    log, limits = TraceLog(), Limits(sim_ns=2000)
    engine = GraphEngine(machine(*SMALL), enable_data=False, limits=limits, observers=[log])
    with pytest.raises(LimitReached):
        engine.wait(engine.submit(PeDmaMsg(pe=(0, 0, 0), pa=hbm(0, 0, 0), nbytes=MIB, op="read")))
    found = explain_run(log, engine.handles, 0, engine.now)
    assert not [each for each in found.roofline.bounds if each.where == "sip0.cube0.hbm0"]
    check_shares(found.roofline, found.slices)


# --- writes that slices keep back -------------------------------------------------------------------------------------


def stores(p: int, n: int, *, tl: Tl) -> None:
    tl.store(p, tl.full((n,), 1.0, "f16"))


def stored(n: int, *overrides: str) -> list[int]:
    """The bytes that a slice, not its port, is bound by in a launch that stores ``n`` elements of f16."""
    engine = watched(*overrides)
    handle = run(engine, stores, place(engine, np.zeros(n, np.float16)), n)
    return [each.amount for each in roofline_of(engine, handle).bounds if each.where == "sip0.cube0.hbm0"]


KEPT = 4 * 64 * 32
"""Bytes in the write queues of a slice: of four channels, 64 bursts of 32 B each."""


@pytest.mark.parametrize(
    ("nbytes", "bound"), [(KEPT - 256, []), (KEPT, []), (8 * KEPT, [7 * KEPT]), (5 * KEPT, [4 * KEPT])]
)
def test_writes_that_fit_the_queues_bind_nothing(nbytes: int, bound: list[int]) -> None:
    """A slice may keep them back beyond the launch: the least time that it needs for them there is none."""
    assert stored(nbytes // 2) == bound


def test_without_banks_nothing_is_kept_back() -> None:
    assert stored(KEPT // 4, *IDEAL) == [KEPT // 2]


def test_reads_are_never_kept_back() -> None:
    engine = watched()
    handle = run(engine, small, place(engine, np.zeros(64, np.float16)))
    assert bound_of(roofline_of(engine, handle), "HBM").amount == 128  # the store of as many bytes is not


# --- engines


def functions(p: int, count: int, *, tl: Tl) -> None:
    x = tl.load(p, 512, "f16")
    for _ in range(count):
        x = tl.exp(x)
    tl.store(p, x)


@pytest.mark.parametrize("count", [1, 5])
def test_each_math_command_has_a_start_up(count: int) -> None:
    engine = watched("pe.math.startup_ns=7")
    handle = run(engine, functions, place(engine, np.zeros(512, np.float16)), count)
    bound = bound_of(roofline_of(engine, handle), "MATH")
    assert (bound.amount, bound.rate) == (1024 * count, engine.machine.spec.pe.math.bytes_per_ns)
    assert bound.ps == round(bound.amount * 1000 / bound.rate) + 7000 * count


# --- a slice with outages ---------------------------------------------------------------------------------------------


def read_of(nbytes: int, *overrides: str) -> Roofline:
    log = TraceLog()
    engine = GraphEngine(machine(*SMALL, *overrides), enable_data=False, observers=[log])
    engine.wait(engine.submit(PeDmaMsg(pe=(0, 0, 0), pa=hbm(0, 0, 0), nbytes=nbytes, op="read")))
    return explain_run(log, engine.handles, 0, engine.now).roofline


def test_a_read_that_is_over_before_an_outage_may_be_faster_than_what_is_sustained() -> None:
    found = read_of(MIB // 2)
    bound = bound_of(found, "HBM")
    assert bound.rate == pytest.approx(204.8)
    assert bound.ps <= found.measured_ps < (MIB // 2) * 1000 / 182.9
    assert bound_of(read_of(MIB // 2, SPREAD), "HBM").rate == pytest.approx(182.892, abs=0.001)


def test_a_long_read_is_bound_by_the_outages_that_it_meets() -> None:
    """16 MiB at peak have 23 whole periods; it begins 100 ns late, so it meets no other ones."""
    found = read_of(16 * MIB)
    bound = bound_of(found, "HBM")
    assert bound.ns == pytest.approx(16 * MIB / 204.8 + 23 * 417.2, abs=0.002)
    assert bound.ps <= found.measured_ps <= 1.05 * bound.ps


# --- no share above all of it -----------------------------------------------------------------------------------------


def check_shares(found: Roofline, slices: tuple[SliceTime, ...]) -> None:
    for bound in found.bounds:
        assert bound.ps <= found.measured_ps, f"{bound.resource} at {bound.where}: {bound.ps} of {found.measured_ps} ps"
    for each in slices:
        assert each.busy_ps <= found.measured_ps, f"{each.where}: {each.busy_ps} of {found.measured_ps} ps"
    if found.largest is not None:
        assert found.largest.ps + sum(each.ps for each in found.differences) == found.measured_ps


def kernel_of(op: str, side: int) -> Any:
    def kernel(p: int, *, tl: Tl) -> None:
        shape = (side, side)
        if op == "gemm":
            tl.composite("gemm", tl.ref(p, shape, "f16"), tl.ref(p, shape, "f16"), out_ptr=p)
        elif op == "copy":
            tl.store(p, tl.load(p, shape, "f16"))
        else:
            x = tl.load(p, shape, "f16")
            tl.store(p, tl.exp(tl.dot(x, x)))

    return kernel


LAUNCHES = st.tuples(
    st.just("launch"), st.sampled_from(["gemm", "copy", "dot"]), st.sampled_from([16, 64, 160]), st.integers(1, 4)
)
MOVES = st.tuples(
    st.sampled_from(["host write", "host read", "read", "write"]),
    st.just(""),
    st.sampled_from([64, 3000, 1 << 16, MIB]),
    st.integers(0, 3),
)
Action = tuple[str, str, int, int]


def message(action: Action, x: Placed) -> HostMsg:
    what, op, size, pe = action
    if what == "launch":
        kernel = kernel_of(op, size)
        targets = tuple((0, 0, each) for each in range(pe))
        return KernelLaunchMsg(kernel=KernelRef(name=op, function=kernel), args=(x.arg,), targets=targets)
    pa = hbm(0, 0, pe, 2 * MIB)
    if what == "host write":
        return MemoryWriteMsg(pa=pa, nbytes=size)
    if what == "host read":
        return MemoryReadMsg(pa=pa, nbytes=size)
    return PeDmaMsg(pe=(0, 0, pe), pa=pa, nbytes=size, op="read" if what == "read" else "write")


@given(
    actions=st.lists(st.tuples(LAUNCHES | MOVES, st.booleans()), min_size=1, max_size=6),
    sim_ns=st.none() | st.integers(500, 20000),
    memory=st.sampled_from([IDEAL, (), ("cube.hbm.timing=hbm2",)]),
)
def test_nothing_is_used_for_more_than_all_of_the_time(
    actions: list[tuple[Action, bool]], sim_ns: int | None, memory: tuple[str, ...]
) -> None:
    """Of whatever the host asks, waited for or beside the next, in the run and in each launch, also where it stops."""
    log, limits = TraceLog(), Limits(sim_ns=sim_ns) if sim_ns else None
    engine = GraphEngine(machine(*SMALL, *memory), enable_data=False, limits=limits, observers=[log])
    try:
        x = place(engine, np.zeros((160, 160), np.float16))
        for action, waits in actions:
            handle = engine.submit(message(action, x))
            if waits:
                engine.wait(handle)
        for handle in list(engine.handles):
            engine.wait(handle)
    except LimitReached:
        pass
    found = explain_run(log, engine.handles, 0, engine.now)
    check_shares(found.roofline, found.slices)
    for each in found.launches:
        check_shares(each.roofline, each.slices)
