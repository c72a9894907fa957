"""Critical paths: they add up, in whole ps, and go where the time went."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_support import hbm, place
from ideal_memory import IDEAL
from kernbench.common.units import ns_to_ps
from kernbench.messages.requests import (
    HostMsg,
    KernelLaunchMsg,
    KernelRef,
    MemoryReadMsg,
    MemoryWriteMsg,
    PeDmaMsg,
)
from kernbench.observe.critical_path import PathFinder
from kernbench.observe.critical_path_model import PathPart
from kernbench.observe.roofline import Roofline, roofline
from kernbench.observe.slices import slice_times
from kernbench.triton_emu.tl_context import TLContext as Tl
from observed import log_of
from path_support import check, check_request, check_turns, path_of, roofline_of, run, watched

SIDE = 64


def load_and_store(p: int, *, tl: Tl) -> None:
    tl.store(p, tl.load(p, (SIDE, SIDE), "f16"))


def test_a_load_and_a_store_part_by_part() -> None:
    """The closed forms of page 02, one after the other."""
    engine = watched(*IDEAL)
    parts = check_request(engine, run(engine, load_and_store, place(engine, np.zeros((SIDE, SIDE), np.float16))))
    spec = engine.machine.spec
    issue, setup, access = (1000, 2000, 30_000)
    assert parts[PathPart.LAUNCH] == ns_to_ps(spec.pe.components.pe_cpu.attrs.launch_ns)
    assert parts[PathPart.ISSUE] == issue  # the store's is hidden behind the load
    assert parts[PathPart.DMA_SETUP] == 2 * setup
    assert parts[PathPart.ACCESS] == 2 * access
    assert parts[PathPart.SERVICE] == 2 * 40_000  # 8 KiB at 204.8
    assert PathPart.MEMORY_QUEUE not in parts
    assert PathPart.NETWORK_QUEUE not in parts
    assert PathPart.WAIT not in parts


def stages(p: int, *, tl: Tl) -> None:
    a = tl.load(p, (SIDE, SIDE), "f16")
    b = tl.load(p, (SIDE, SIDE), "f16")
    tl.store(p, tl.exp(tl.dot(a, b)))


def test_dots_and_math_wait_for_their_operands() -> None:
    engine = watched()
    parts = check_request(engine, run(engine, stages, place(engine, np.zeros((SIDE, SIDE), np.float16))))
    # Four tiles: a fetch each, then the last one's GEMM and store; MATH works on 8 KiB.
    assert parts[PathPart.FETCH] == 4 * 16_000
    assert parts[PathPart.GEMM] == 16_000
    assert parts[PathPart.STORE] == 4000
    assert parts[PathPart.MATH] == 2000 + 32_000
    assert parts[PathPart.TILE_ISSUE] == 1000
    assert PathPart.WAIT not in parts


def test_lines_of_the_kernel() -> None:
    engine = watched()
    path = path_of(engine, run(engine, stages, place(engine, np.zeros((SIDE, SIDE), np.float16))))
    first = stages.__code__.co_firstlineno
    lines = {each.line - first: each for each in path.lines}
    assert set(lines) == {1, 2, 3}
    # The second load found the memory busy with the first: before that time the path is in the first.
    ways = {PathPart.ISSUE, PathPart.DMA_SETUP, PathPart.REQUEST, PathPart.ACCESS}
    assert {part.part for part in lines[1].parts} == ways
    assert {part.part for part in lines[2].parts}.isdisjoint(ways)
    assert {part.part for part in lines[3].parts} >= {PathPart.FETCH, PathPart.GEMM, PathPart.MATH, PathPart.STORE}
    assert sum(part.ps for part in lines[3].parts) == lines[3].ps


def test_a_barrier_goes_on_with_the_pe_that_came_last() -> None:
    def meet(p: int, *, tl: Tl) -> None:
        if tl.program_id(0) == 1:
            tl.load(p, (SIDE, SIDE), "f16")
        tl.barrier()

    engine = watched(*IDEAL)
    x = place(engine, np.zeros((SIDE, SIDE), np.float16))
    handle = run(engine, meet, x, targets=((0, 0, 0), (0, 0, 1)))
    parts = check_request(engine, handle)
    assert parts[PathPart.SERVICE] == 40_000
    assert parts[PathPart.BARRIER] > 0
    assert {step.pe for step in path_of(engine, handle).steps if step.part is PathPart.SERVICE} == {(0, 0, 1)}


def test_waiting_for_scratch_is_waiting_for_what_gives_it_back() -> None:
    def reads_ahead(p: int, *, tl: Tl) -> None:
        for _ in range(8):
            tl.store(p, tl.load(p, (1024, 2048), "f16") + 1.0)

    engine = watched("pe.tcm.bytes=14MiB")  # room for two blocks and a half
    parts = check_request(engine, run(engine, reads_ahead, place(engine, np.zeros((1024, 2048), np.float16))))
    assert PathPart.WAIT not in parts
    assert parts[PathPart.SERVICE] + parts.get(PathPart.MEMORY_QUEUE, 0) > 8 * 20_000_000


def test_a_kernel_behind_another_waits_for_it() -> None:
    engine = watched()
    x = place(engine, np.zeros((SIDE, SIDE), np.float16))
    first, second = (
        engine.submit(
            KernelLaunchMsg(kernel=KernelRef(name="k", function=load_and_store), args=(x.arg,), targets=((0, 0, 0),))
        )
        for _ in range(2)
    )
    engine.wait(first)
    engine.wait(second)
    assert PathPart.EARLIER_KERNEL not in check_request(engine, first)
    assert check_request(engine, second)[PathPart.EARLIER_KERNEL] > 50_000


@pytest.mark.parametrize(
    ("msg", "parts"),
    [
        (MemoryWriteMsg(pa=hbm(0, 0, 0), nbytes=4096), {PathPart.HOST_TRANSFER, PathPart.ACCESS}),
        (
            MemoryReadMsg(pa=hbm(0, 0, 0), nbytes=4096),
            {PathPart.HOST_TRANSFER, PathPart.ACCESS, PathPart.ROWS, PathPart.SERVICE},
        ),
        (
            MemoryWriteMsg(pa=hbm(0, 0, 0), nbytes=4096, pattern=b"\0"),
            {PathPart.DOWN, PathPart.CONTROL_CPU, PathPart.FILL, PathPart.UP},
        ),
        (PeDmaMsg(pe=(0, 0, 0), pa=hbm(0, 0, 0), nbytes=4096), {PathPart.RAW}),
    ],
)
def test_other_requests(msg: HostMsg, parts: set[PathPart]) -> None:
    engine = watched()
    handle = engine.submit(msg)
    engine.wait(handle)
    assert set(check_request(engine, handle)) == parts


def test_all_pes_of_the_machine() -> None:
    everyone = tuple((sip, cube, pe) for sip in range(2) for cube in range(16) for pe in range(8))
    engine = watched(small=False)
    parts = check_request(engine, run(engine, lambda *, tl: None, targets=everyone))
    always = {PathPart.DOWN, PathPart.CONTROL_CPU, PathPart.LAUNCH, PathPart.UP}
    assert parts.keys() == always | (parts.keys() & {PathPart.COMMON_START, PathPart.NETWORK_QUEUE})


def test_a_run_goes_from_request_to_request() -> None:
    engine = watched()
    x = place(engine, np.zeros((SIDE, SIDE), np.float16))
    engine.run_until(engine.now + 100)  # the host program does something else
    launched = run(engine, stages, x)
    path = PathFinder(log_of(engine).seen, engine.handles).of_run(0, engine.machine.clock.time)
    check(path, 0, engine.machine.clock.time)
    parts = {each.part: each.ps for each in path.parts}
    assert parts[PathPart.HOST_WAIT] == 100_000
    assert parts[PathPart.HOST_TRANSFER] > 100_000
    assert path.steps[-1] == path_of(engine, launched).steps[-1]


# --- any program ------------------------------------------------------------------------------------------------------

OPS = ("load", "dot", "math", "store", "ref_ref", "load_ref", "load_load", "sum", "epilogue", "barrier", "elementwise")


def program(ops: tuple[str, ...], size: tuple[int, int], pe_skips: int) -> Callable[..., object]:
    """A kernel of the given calls on the results of those before; one PE leaves some out."""
    m, k = size

    def kernel(p: int, *, tl: Tl) -> None:
        live: list[Any] = [tl.load(p, (m, k), "f16")]
        for number, op in enumerate(ops):
            if op != "barrier" and tl.program_id(0) == 1 and number < pe_skips:
                continue
            last = live[-1]
            match op:
                case "load":
                    live.append(tl.load(p, (m, k), "f16"))
                case "dot":
                    tl.store(p, tl.dot(last, live[0], trans_b=True))
                case "math":
                    live.append(last * live[0])
                case "sum":
                    tl.store(p, tl.sum(last, 0))
                case "store":
                    tl.store(p, last)
                case "barrier":
                    tl.barrier()
                case "elementwise":
                    tl.composite("add", tl.ref(p, (m, k), "f16"), last, out_ptr=p)
                case _:
                    composite(op, p, (m, k), tl)
            live = live[-3:]

    return kernel


def composite(op: str, p: int, size: tuple[int, int], tl: Tl) -> None:
    m, k = size
    a, b = ((tl.load if staged else tl.ref) for staged in (op in ("load_ref", "load_load"), op == "load_load"))
    steps = (("relu",), ("add", tl.ref(p, (m, m), "f16"))) if op == "epilogue" else ()
    tl.composite("gemm", a(p, (m, k), "f16"), b(p, (k, m), "f16"), out_ptr=p, epilogue=steps)


@given(
    ops=st.lists(st.sampled_from(OPS), max_size=7).map(tuple),
    size=st.sampled_from([(32, 64), (64, 64), (48, 80), (1, 7), (96, 160)]),
    pes=st.integers(1, 3),
    pe_skips=st.integers(0, 3),
    overrides=st.lists(
        st.sampled_from(
            (
                "pe.components.pe_scheduler.attrs.tiles_in_flight=1",
                "pe.components.pe_scheduler.attrs.stage_slots=1",
                "pe.components.pe_scheduler.attrs.issue_ns=0",
                "pe.components.pe_cpu.attrs.issue_ns=0",
                "pe.dma.setup_ns=0",
                "pe.dma.setup_ns=20",
                "transport.express=false",
                "pe.components.pe_cpu.attrs.launch_ns=0",
            )
        ),
        max_size=3,
    ),
    memory=st.sampled_from([IDEAL, (), ("cube.hbm.timing=hbm2",)]),
)
def test_any_program_adds_up(
    ops: tuple[str, ...],
    size: tuple[int, int],
    pes: int,
    pe_skips: int,
    overrides: list[str],
    memory: tuple[str, ...],
) -> None:
    engine = watched(*overrides, *memory)
    x = place(engine, np.zeros((160, 160), np.float16))
    handle = run(engine, program(ops, size, pe_skips), x, targets=tuple((0, 0, pe) for pe in range(pes)))
    parts = check_request(engine, handle)
    assert parts.get(PathPart.WAIT, 0) == 0  # every wait has a cause
    whole = PathFinder(log_of(engine).seen, engine.handles).of_run(0, handle.ended_ps)
    check(whole, 0, handle.ended_ps)
    check_turns(engine)
    slices = slice_times(log_of(engine).seen, whole)
    for each in slices:
        assert 0 <= each.hits <= each.bursts
        assert min(each.data_ps, each.rows_ps, each.turnarounds_ps, each.refresh_ps, each.groups_ps) >= 0
        assert each.busy_ps <= handle.ended_ps
    found = roofline(log_of(engine).seen, whole, slices)
    assert all(bound.ps <= found.measured_ps for bound in found.bounds)


# --- what bounds it ---------------------------------------------------------------------------------------------------

# Enough to cover the round trip to the memory, so that nothing but a resource can bind.
DEEP = "pe.components.pe_scheduler.attrs.tiles_in_flight=16"
WIDER = tuple(f"cube.links.{name}.bw_gbs=512" for name in ("xbar_to_hbm", "pe_to_xbar"))


def gemm(variant: str, m: int, k: int, n: int, *overrides: str) -> tuple[int, Roofline]:
    """Time of a composite GEMM's launch and its roofline."""

    def kernel(a: int, b: int, c: int, *, tl: Tl) -> None:
        x = (tl.ref if variant == "ref_ref" else tl.load)(a, (m, k), "f16")
        y = (tl.load if variant == "load_load" else tl.ref)(b, (k, n), "f16")
        for _ in range(4 if variant == "load_load" else 1):
            tl.composite("gemm", x, y, out_ptr=c)

    engine = watched(*overrides)
    shapes = ((m, k), (k, n), (m, n))
    handle = run(engine, kernel, *(place(engine, np.zeros(shape, np.float16)) for shape in shapes))
    check_request(engine, handle)
    return handle.ended_ps - handle.submitted_ps, roofline_of(engine, handle)


def test_a_streamed_product_is_bound_by_memory_and_speeds_up_with_it() -> None:
    took, found = gemm("ref_ref", 256, 256, 256, *IDEAL, DEEP)
    wide_took, wide = gemm("ref_ref", 256, 256, 256, *IDEAL, DEEP, *WIDER)
    assert found.largest is not None
    assert wide.largest is not None
    assert found.largest.resource == wide.largest.resource == "HBM"
    assert found.largest.ps == 2 * wide.largest.ps
    assert 0 < found.beyond < 0.03
    assert 0 < wide.beyond < 0.06
    assert took - wide_took == pytest.approx(found.largest.ps - wide.largest.ps, rel=0.01)


def test_too_few_tiles_in_flight_are_seen_as_idle_memory() -> None:
    """The bound is what it was; the memory waits for tiles to leave the pipeline."""
    took, found = gemm("ref_ref", 256, 256, 256, *IDEAL, *WIDER)
    assert found.largest is not None
    assert found.largest.resource == "HBM"
    assert found.beyond > 0.3
    idle = {each.what: each.ps for each in found.differences}
    inside = sum(
        idle.get(part, 0)
        for part in (PathPart.FETCH, PathPart.GEMM, PathPart.ACCESS, PathPart.REQUEST, PathPart.DMA_SETUP)
    )
    assert inside > 0.8 * (took - found.largest.ps)


def test_a_staged_product_is_bound_by_compute_and_does_not() -> None:
    took, found = gemm("load_load", 256, 256, 256, *IDEAL)
    wide_took, wide = gemm("load_load", 256, 256, 256, *IDEAL, *WIDER)
    assert found.largest is not None
    assert wide.largest is not None
    assert found.largest.resource == wide.largest.resource == "GEMM"
    assert found.largest.ps == wide.largest.ps == 4 * 256 * 16_000
    assert wide_took == pytest.approx(took, rel=0.1)
    loading = sum(each.ps for each in found.differences if each.what in (PathPart.SERVICE, PathPart.MEMORY_QUEUE))
    faster = sum(each.ps for each in wide.differences if each.what in (PathPart.SERVICE, PathPart.MEMORY_QUEUE))
    assert took - wide_took == pytest.approx(loading - faster, rel=0.1)  # only the loads before it are faster


def test_edges_of_tiles_are_told() -> None:
    _, found = gemm("ref_ref", 33, 64, 32)
    assert found.useful_macs == pytest.approx(33 / 64)


def test_a_sum_of_a_vector_is_bound_by_nothing_big() -> None:
    engine = watched()
    handle = run(engine, lambda *, tl: None)
    on_the_way = {"host link", "IO chiplet links", "UCIe links", "NoC", "control path CPUs"}
    assert {each.resource for each in roofline_of(engine, handle).bounds} <= on_the_way
