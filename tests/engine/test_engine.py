"""Requests through the engine: time, data, errors, determinism."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from engine_support import dma, fetch, hbm, launch, machine, place
from kernbench.common.errors import AddressFaultError, KernelError, PhysAddrError, SimulationDeadlock, UnsupportedError
from kernbench.engine.engine import GraphEngine
from kernbench.messages.requests import (
    KernelLaunchMsg,
    KernelRef,
    MappedShard,
    MemoryReadMsg,
    MemoryWriteMsg,
    MmuMapMsg,
    PeDmaMsg,
    TensorMapping,
)
from kernbench.triton_emu.tl_context import TLContext as Tl

ALL_PES = tuple((sip, cube, pe) for sip in range(2) for cube in range(16) for pe in range(8))


@pytest.fixture
def engine() -> GraphEngine:
    return GraphEngine(machine())


def gemm(a: int, b: int, c: int, m: int, k: int, n: int, *, tl: Tl) -> None:
    tl.store(c, tl.dot(tl.load(a, (m, k), "f16"), tl.load(b, (k, n), "f16")))


def test_host_write_then_read(engine: GraphEngine) -> None:
    data = np.arange(5000, dtype=np.uint8)
    engine.wait(engine.submit(MemoryWriteMsg(pa=hbm(1, 5, 3), nbytes=5000, data=data)))
    engine.wait(engine.submit(MemoryReadMsg(pa=hbm(1, 5, 3), nbytes=5000)))
    assert (engine.read_memory(hbm(1, 5, 3), 5000) == data).all()


def test_device_fill_costs_the_host_link_a_header(engine: GraphEngine) -> None:
    engine.wait(engine.submit(MemoryWriteMsg(pa=hbm(0, 7, 2), nbytes=1 << 16, pattern=b"\x01\x02\x03")))
    assert engine.read_memory(hbm(0, 7, 2), 7).tolist() == [1, 2, 3, 1, 2, 3, 1]
    assert engine.machine.network.links["host", "switch"].nbytes == 32


def test_a_gemm_is_right(engine: GraphEngine) -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((48, 48)).astype(np.float16) for _ in range(2))
    pa, pb, pc = (place(engine, x) for x in (a, b, np.zeros_like(a)))
    trace = launch(engine, gemm, pa, pb, pc, 48, 48, 48)
    expected = (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float16)
    np.testing.assert_allclose(fetch(engine, pc).astype(np.float32), expected.astype(np.float32), rtol=1e-3)
    assert trace.late_pes == ()


def test_kernels_start_together_on_a_sip(engine: GraphEngine) -> None:
    trace = launch(engine, lambda *, tl: None, targets=ALL_PES)
    assert trace.late_pes == ()
    assert set(trace.pe_exec_ns) == set(ALL_PES)
    assert set(trace.pe_exec_ns.values()) == {5.0}  # launch_ns and nothing else


def test_a_pe_runs_one_kernel_at_a_time(engine: GraphEngine) -> None:
    x = place(engine, np.ones((64, 64), np.float16))

    def slow(p: int, *, tl: Tl) -> None:
        for _ in range(4):
            tl.store(p, tl.load(p, (64, 64), "f16") + 1.0)
            tl.barrier()

    alone = launch(engine, slow, x).pe_exec_ns[0, 0, 0]
    start = engine.now
    traces = [launch(engine, slow, x), launch(engine, slow, x)]
    assert engine.now - start >= 2 * alone
    assert [t.pe_exec_ns[0, 0, 0] for t in traces] == [alone, alone]


def test_a_barrier_waits_for_the_slowest(engine: GraphEngine) -> None:
    x = place(engine, np.ones((256, 256), np.float16))
    ends: dict[int, float] = {}

    def meet(p: int, *, tl: Tl) -> None:
        if tl.program_id(0) == 0:
            tl.load(p, (256, 256), "f16")
        tl.barrier()
        ends[tl.program_id(0)] = engine.now

    launch(engine, meet, x, targets=((0, 0, 0), (0, 0, 1), (0, 0, 2)))
    assert min(ends.values()) > (256 * 256 * 2) / 204.8
    assert max(ends.values()) - min(ends.values()) < 5


def test_a_fault_ends_at_the_line_of_the_kernel(engine: GraphEngine) -> None:
    x = place(engine, np.ones((8, 8), np.float16))

    def wild(p: int, *, tl: Tl) -> None:
        tl.load(p + 1_000_000, (4,), "f32")

    with pytest.raises(AddressFaultError, match="'t'") as caught:
        launch(engine, wild, x)
    assert Path(caught.traceback[-1].path).name == "test_engine.py"
    assert caught.traceback[-1].frame.code.name == "wild"
    launch(engine, gemm, x, x, x, 8, 8, 8)  # the engine can be used again


@pytest.mark.parametrize("how", ["load", "store", "composite"])
def test_its_own_tcm_is_out_of_reach_of_a_kernels_dma(engine: GraphEngine, how: str) -> None:
    """It is the kernel's fault, at the line of the call; the PE runs the next kernel."""
    x = place(engine, np.ones((8, 8), np.float16))
    pa, va = engine.allocators[0, 0, 0].alloc_tcm(128).encode(), engine.va_allocator(0).alloc(128)
    shard = MappedShard(sip=0, cube=0, pe=0, offset_bytes=0, nbytes=128, pa=pa)
    engine.wait(
        engine.submit(MmuMapMsg(sip=0, mapping=TensorMapping(name="t", va_base=va, nbytes=128, shards=(shard,))))
    )

    def own(p: int, *, tl: Tl) -> None:
        if how == "load":
            tl.load(va, (8, 8), "f16")
        elif how == "store":
            tl.store(va, tl.load(p, (8, 8), "f16"))
        else:
            tl.composite("exp", tl.ref(p, (8, 8), "f16"), va)

    with pytest.raises(UnsupportedError, match="TCM of its own PE") as caught:
        launch(engine, own, x)
    assert caught.traceback[-1].name == "own"
    assert launch(engine, lambda p, *, tl: None, x).pe_exec_ns == {(0, 0, 0): 5.0}


def test_one_failing_pe_releases_the_others_from_a_barrier(engine: GraphEngine) -> None:
    def meet(*, tl: Tl) -> None:
        if tl.program_id(0) == 1:
            raise ValueError("no")
        tl.barrier()

    with pytest.raises((KernelError, ValueError)):
        launch(engine, meet, targets=((0, 0, 0), (0, 0, 1)))


def test_a_deadlock_names_who_waits_for_what(engine: GraphEngine) -> None:
    def half(*, tl: Tl) -> None:
        if tl.program_id(0) == 0:
            tl.barrier()

    with pytest.raises(SimulationDeadlock) as caught:
        launch(engine, half, targets=((0, 0, 0), (0, 0, 1)))
    text = str(caught.value)
    assert re.search(r"^  sip0\.cube0\.pe0: kernel .* waits for barrier at line", text, re.MULTILINE)
    assert "barrier" in text


def test_addresses_outside_the_machine_are_refused(engine: GraphEngine) -> None:
    with pytest.raises(PhysAddrError, match="sip_id"):
        engine.submit(MemoryReadMsg(pa=hbm(9, 0, 0), nbytes=64))
    with pytest.raises(PhysAddrError, match="offset"):
        engine.submit(MemoryReadMsg(pa=hbm(0, 0, 0) + 8 * (6 << 30), nbytes=64))


def test_reads_and_writes_that_span_slices_reach_both(engine: GraphEngine) -> None:
    start = hbm(0, 0, 1) - 100
    data = np.arange(200, dtype=np.uint8)
    engine.wait(engine.submit(MemoryWriteMsg(pa=start, nbytes=200, data=data)))
    assert (engine.read_memory(start, 200) == data).all()
    assert engine.machine.network.links["sip0.cube0.xbar_NW", "sip0.cube0.hbm1"].nbytes == 100


def test_timing_only_takes_the_same_time_and_keeps_no_data() -> None:
    def run(enable_data: bool) -> tuple[float, int]:
        engine = GraphEngine(machine(), enable_data=enable_data)
        x = place(engine, np.ones((64, 64), np.float16))
        launch(engine, gemm, x, x, x, 64, 64, 64)
        return engine.now, sum(r.has_data for r in engine.op_log)

    with_data, without = run(True), run(False)
    assert with_data[0] == without[0]
    assert without[1] == 0


def test_incremental_replay_sees_the_machine_as_it_is_now(engine: GraphEngine) -> None:
    x = place(engine, np.full((8, 8), 1, np.float16))

    def add(p: int, *, tl: Tl) -> None:
        tl.store(p, tl.load(p, (8, 8), "f16") + 1.0)

    for expected in (2, 3, 4):
        launch(engine, add, x)
        assert (fetch(engine, x) == expected).all()


def test_a_host_may_look_while_a_store_is_set_up(engine: GraphEngine) -> None:
    x = place(engine, np.zeros(64, np.float16))

    def stores(p: int, *, tl: Tl) -> None:
        filled = [tl.full(64, value, "f16") for value in range(3)]
        tl.barrier()
        for handle in filled:  # faster than descriptors are set up: they queue
            tl.store(p, handle)

    ref = KernelRef(name="stores", function=stores)
    handle = engine.submit(KernelLaunchMsg(kernel=ref, args=(x.arg,), targets=((0, 0, 0),)))
    while not handle.done:
        engine.run_until(engine.now + 0.5)
        assert set(fetch(engine, x)) <= {0, 1, 2}
    assert (fetch(engine, x) == 2).all()


# --- events: how many a thing costs -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bound:
    """At most ``events`` for what ``name`` does."""

    name: str
    events: int


def events_of_dma(pa: int, nbytes: int, *, express: bool) -> int:
    engine = GraphEngine(machine(f"transport.express={str(express).lower()}"))
    dma(engine, pa, nbytes)
    return engine.n_events


def test_a_local_4_kib_read_takes_4_events() -> None:
    """Descriptor set-up, request, access, data."""
    assert events_of_dma(hbm(0, 0, 0), 4096, express=True) <= 4
    assert events_of_dma(hbm(0, 0, 0), 4096, express=False) <= 2 + 2 + 4 * 2 + 4


def test_a_far_1_mib_read_takes_4_events() -> None:
    assert events_of_dma(hbm(0, 15, 7), 1 << 20, express=True) <= 4
    engine = GraphEngine(machine())
    hops = len(engine.machine.route("sip0.cube15.hbm7", "sip0.cube0.pe0.pe_dma").links)
    assert events_of_dma(hbm(0, 15, 7), 1 << 20, express=False) <= 2 + (1024 + 2) * hops * 1.1


def test_a_launch_to_256_pes_takes_fewer_than_4200_events() -> None:
    engine = GraphEngine(machine())
    before = engine.n_events
    launch(engine, lambda *, tl: None, targets=ALL_PES)
    assert engine.n_events - before < 4200


# --- determinism ------------------------------------------------------------------------------------------------------


def signature() -> str:
    engine = GraphEngine(machine())
    x = place(engine, np.ones((64, 64), np.float16))
    launch(engine, gemm, x, x, x, 64, 64, 64)
    launch(engine, lambda *, tl: tl.barrier(), targets=ALL_PES)
    handles = [engine.submit(PeDmaMsg(pe=(0, 0, p), pa=hbm(0, 3, 3), nbytes=9000)) for p in range(8)]
    for handle in handles:
        engine.wait(handle)
    records = [
        (r.seq, r.component, r.kind, r.t_start_ps, r.t_read_ps, r.t_commit_ps, r.t_end_ps) for r in engine.op_log
    ]
    return repr(
        (records, engine.now, engine.n_events, [(k, v.nbytes) for k, v in engine.machine.network.links.items()])
    )


def test_two_runs_in_one_process_are_identical() -> None:
    assert signature() == signature()


def test_hash_seed_does_not_matter() -> None:
    """Another process, with another seed than this one, has the same log."""
    code = "from test_engine import signature; import hashlib; print(hashlib.sha256(signature().encode()).hexdigest())"
    here, seed = Path(__file__).parent, "1" if os.environ.get("PYTHONHASHSEED") == "0" else "0"
    paths = (str(here), str(here.parent), os.environ.get("PYTHONPATH", ""))
    env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == hashlib.sha256(signature().encode()).hexdigest()


def test_express_changes_no_time() -> None:
    def times(express: bool) -> list[float]:
        engine = GraphEngine(machine(f"transport.express={str(express).lower()}"))
        x = place(engine, np.ones((64, 64), np.float16))
        traces = [
            launch(engine, gemm, x, x, x, 64, 64, 64),
            launch(engine, lambda *, tl: tl.barrier(), targets=ALL_PES),
        ]
        handles = [
            engine.submit(PeDmaMsg(pe=(0, 0, p), pa=hbm(0, p % 3, 3), nbytes=9000, repeat=5, outstanding=3, op=op))
            for p, op in enumerate(("read", "write") * 4)
        ]
        ends = [engine.wait(handle).t_end for handle in handles]
        return [*(t.total_ns for t in traces), *ends, engine.now]

    assert times(True) == times(False)


def test_a_way_is_planned_once(engine: GraphEngine) -> None:
    machine, ends = engine.machine, ("sip0.io_cpu", "sip1.io_cpu")
    assert machine.route(*ends) is machine.route(*ends)
    assert machine.route(*ends, "W") is machine.route(*ends, "W")
    assert machine.route(*ends, "W") is not machine.route(*ends)


def test_a_sideband_credit_takes_the_time_of_the_way_and_occupies_nothing(engine: GraphEngine) -> None:
    src, dst = "sip0.cube0.pe0.pe_dma", "sip0.cube5.pe3.pe_dma"
    links = engine.machine.route(src, dst).links
    expected = sum(link.overhead_ps for link in links) + round(16 * 1000 / min(link.bw_gbs for link in links))
    assert abs(engine.machine.sideband_ps(src, dst, 16) - expected) <= 1
    assert engine.machine.clock.next_time() > 1 << 60
    assert all(link.nbytes == 0 for link in links)


def scale_and_print(p: int, *, tl: Tl) -> None:
    x = tl.load(p, (2, 3), "f32")
    tl.device_print("before", x, tl.program_id(0))
    x = x * 2.0
    tl.device_print("after", x)
    tl.store(p, x)


@pytest.mark.parametrize("enable_data", [True, False])
def test_what_kernels_print_shows_the_values_of_that_time(enable_data: bool) -> None:
    engine = GraphEngine(machine(), enable_data=enable_data)
    x = place(engine, np.arange(6, dtype=np.float32).reshape(2, 3))
    launch(engine, scale_and_print, x)
    before, after = engine.printed()
    assert before.pe == after.pe == (0, 0, 0)
    assert before.time_ns < after.time_ns
    if enable_data:
        assert before.text == "before [[0. 1. 2.]\n [3. 4. 5.]] 0"
        assert after.text == "after [[ 0.  2.  4.]\n [ 6.  8. 10.]]"
    else:
        assert before.text == "before f32[2, 3] 0"
    assert str(after).startswith(f"{after.time_ns:.3f} ns sip0.cube0.pe0: after")


def test_an_engine_takes_a_graph_as_well() -> None:
    engine = GraphEngine(machine().topology_obj)
    assert engine.spec is machine().spec
    assert dma(engine, hbm(0, 0, 0), 4096).ok


def test_parts_of_a_machine_share_one_object_of_a_class_and_machines_none(engine: GraphEngine) -> None:
    other = GraphEngine(machine())
    assert engine.machine.shared(dict) is engine.machine.shared(dict)
    assert engine.machine.shared(dict) is not engine.machine.shared(list)
    assert engine.machine.shared(dict) is not other.machine.shared(dict)
