"""How long reads and writes take on the skewed machine: by its memories, and the ways to them, worked out by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from queue_support import launch, share

from kernbench.common.units import ps_to_ns
from kernbench.engine.engine import GraphEngine
from kernbench.messages.requests import HostMsg, MemoryReadMsg, MemoryWriteMsg, PeDmaMsg
from kernbench.policy.address.phyaddr import PhysAddr
from skewed import set_up_ns, skewed, way

HEADER = 24
SLICE_BYTES = 5 << 30
CHANNEL_GBS = 281.0 / 16 * 0.83
"""What one of the 16 channels of a slice sustains"""
GROUP = 16 * 320
"""Bytes that fall on all channels alike, if they begin at a multiple of as many"""
HBM_ACCESS_NS, SRAM_ACCESS_NS = 33.1, 4.6
DMA = "sip0.cube0.pe0.pe_dma"
A = (0, 0, 0)


@dataclass(frozen=True)
class Memory:
    """A place in a memory: its node, an address, and ns of its own for bytes read or written there."""

    node: str
    pa: int
    access_ns: float
    read_gbs: float
    write_gbs: float


def hbm(sip: int, cube: int, index: int) -> Memory:
    """Where a group of bursts begins, in a slice: all channels are loaded alike."""
    start = PhysAddr.pe_hbm_addr(0, sip, cube, index, 0, SLICE_BYTES).encode()
    return Memory(f"sip{sip}.cube{cube}.hbm{index}", start + -start % GROUP, HBM_ACCESS_NS, 281 * 0.83, 281 * 0.83)


def sram(sip: int, cube: int) -> Memory:
    pa = PhysAddr.cube_sram_addr(0, sip, cube, 64).encode()
    return Memory(f"sip{sip}.cube{cube}.sram", pa, SRAM_ACCESS_NS, 197, 197)


def tcm(sip: int, cube: int, pe: int) -> Memory:
    pa = PhysAddr.pe_tcm_addr(0, sip, cube, pe, 0).encode()
    return Memory(f"sip{sip}.cube{cube}.pe{pe}.pe_dma", pa, 0.0, 223, 149)


MEMORIES = [
    hbm(0, 0, 0),
    hbm(0, 0, 7),
    hbm(0, 1, 3),
    hbm(0, 5, 11),
    hbm(1, 2, 4),
    hbm(2, 0, 9),
    sram(0, 0),
    sram(0, 4),
    sram(2, 3),
    tcm(0, 0, 2),
    tcm(0, 3, 1),
    tcm(1, 1, 3),
]


def took_ns(message: HostMsg) -> float:
    engine = GraphEngine(skewed(), enable_data=False)
    handle = engine.submit(message)
    engine.wait(handle)
    return ps_to_ns(handle.ended_ps - handle.submitted_ps)


def read_ns(initiator: str, memory: Memory, nbytes: int, own_ns: float) -> tuple[float, float]:
    """A request there, the access, the bytes back; and what rounding may be."""
    there, back = way(skewed(), initiator, memory.node), way(skewed(), memory.node, initiator)
    time = there.ns(HEADER) + memory.access_ns + back.head_ns + max(own_ns, nbytes / back.narrowest_gbs)
    return time, there.slack_ns + back.slack_ns + 0.001 * (nbytes // 640 + 3)


def write_ns(initiator: str, memory: Memory, nbytes: int, own_ns: float) -> tuple[float, float]:
    """The bytes there, the access, an acknowledgement back; and what rounding may be."""
    there, back = way(skewed(), initiator, memory.node), way(skewed(), memory.node, initiator)
    time = there.head_ns + max(own_ns, nbytes / there.narrowest_gbs) + memory.access_ns + back.ns(HEADER)
    return time, there.slack_ns + back.slack_ns + 0.001 * (nbytes // 640 + 3)


@pytest.mark.parametrize("memory", MEMORIES, ids=lambda m: m.node)
def test_a_pe_reads_and_writes(memory: Memory) -> None:
    for nbytes in (GROUP, 4 * GROUP):
        wanted, slack = read_ns(DMA, memory, nbytes, nbytes / memory.read_gbs)
        read = PeDmaMsg(pe=A, pa=memory.pa, nbytes=nbytes, op="read")
        assert took_ns(read) == pytest.approx(set_up_ns(skewed()) + wanted, abs=slack)
        wanted, slack = write_ns(DMA, memory, nbytes, nbytes / memory.write_gbs)
        write = PeDmaMsg(pe=A, pa=memory.pa, nbytes=nbytes, op="write")
        assert took_ns(write) == pytest.approx(set_up_ns(skewed()) + wanted, abs=slack)


@pytest.mark.parametrize("memory", MEMORIES, ids=lambda m: m.node)
def test_the_host_reads_and_writes(memory: Memory) -> None:
    """Its DMA takes no set-up, and it has no MMU."""
    wanted, slack = read_ns("host", memory, GROUP, GROUP / memory.read_gbs)
    assert took_ns(MemoryReadMsg(pa=memory.pa, nbytes=GROUP)) == pytest.approx(wanted, abs=slack)
    wanted, slack = write_ns("host", memory, GROUP, GROUP / memory.write_gbs)
    assert took_ns(MemoryWriteMsg(pa=memory.pa, nbytes=GROUP)) == pytest.approx(wanted, abs=slack)


@pytest.mark.parametrize(
    ("offset", "nbytes", "busiest"),
    [(0, 1, 80), (0, 80, 80), (79, 2, 160), (0, 320, 320), (300, 40, 80), (0, GROUP + 1, 400), (160, 320, 160)],
)
def test_a_slice_takes_what_its_busiest_channel_takes(offset: int, nbytes: int, busiest: int) -> None:
    """Pieces of 80 bytes, in bursts of 320 a channel."""
    memory = hbm(0, 0, 0)
    wanted, slack = read_ns(DMA, memory, nbytes, busiest / CHANNEL_GBS)
    found = took_ns(PeDmaMsg(pe=A, pa=memory.pa + offset, nbytes=nbytes, op="read"))
    assert found == pytest.approx(set_up_ns(skewed()) + wanted, abs=slack)


def test_a_descriptor_is_set_up_behind_the_one_before() -> None:
    """Eight reads of a TCM at once: the last begins seven set-ups later, whatever they read."""
    memory = tcm(0, 0, 2)
    alone = took_ns(PeDmaMsg(pe=A, pa=memory.pa, nbytes=8, op="read"))
    eight = took_ns(PeDmaMsg(pe=A, pa=memory.pa, nbytes=8, op="read", repeat=8, stride_bytes=64, outstanding=8))
    assert eight - alone == pytest.approx(7 * (2.7 + 0.8), abs=0.002)


def test_a_tcm_is_read_and_written_at_once() -> None:
    """Its ports are two: what is written comes in beside what goes out, but for a packet or two of the other way."""
    memory, nbytes = tcm(0, 0, 2), 64 * 640
    read = PeDmaMsg(pe=A, pa=memory.pa, nbytes=nbytes, op="read")
    write = PeDmaMsg(pe=(0, 0, 1), pa=memory.pa + nbytes, nbytes=nbytes, op="write")
    alone = [took_ns(read), took_ns(write)]
    engine = GraphEngine(skewed(), enable_data=False)
    handles = [engine.submit(read), engine.submit(write)]
    for handle in handles:
        engine.wait(handle)
    together = [ps_to_ns(handle.ended_ps - handle.submitted_ps) for handle in handles]
    assert together == pytest.approx(alone, abs=2 * 640 / 223)


def test_a_tcm_takes_what_each_access_has() -> None:
    """Whatever came before."""
    memory = tcm(0, 0, 2)
    engine = GraphEngine(skewed(), enable_data=False)
    for nbytes in (64, 6400, 640):
        handle = engine.submit(PeDmaMsg(pe=A, pa=memory.pa, nbytes=nbytes, op="write"))
        engine.wait(handle)
        wanted, slack = write_ns(DMA, memory, nbytes, nbytes / 149)
        found = ps_to_ns(handle.ended_ps - handle.submitted_ps)
        assert found == pytest.approx(set_up_ns(skewed()) + wanted, abs=slack), nbytes


def test_a_memory_turns_to_another_access_after_three_packets() -> None:
    """1900 bytes are a quantum: 3 packets of 640. A channel has so much ahead, and a burst of the turn under way."""
    large = PeDmaMsg(pe=(0, 0, 1), pa=hbm(0, 0, 0).pa, nbytes=64 * GROUP, op="read")
    small = PeDmaMsg(pe=A, pa=hbm(0, 0, 0).pa + 64 * GROUP, nbytes=80, op="read")
    alone = took_ns(small)
    waits: list[float] = []
    for later in range(100, 120):
        engine = GraphEngine(skewed(), enable_data=False)
        first = engine.submit(large)
        engine.run_until(engine.now + later)
        second = engine.submit(small)
        engine.wait(second)
        waits.append(ps_to_ns(second.ended_ps - second.submitted_ps) - alone)
        engine.wait(first)
    quantum, burst = 3 * 640 / CHANNEL_GBS, 320 / CHANNEL_GBS
    assert quantum - 1.1 < max(waits) <= quantum + burst  # asked every ns
    assert min(waits) >= quantum - burst


@pytest.mark.parametrize("outstanding", [1, 2, 3])
def test_so_many_are_outstanding(outstanding: int) -> None:
    """A new one is set up when one is over, not before."""
    memory = tcm(1, 1, 3)
    alone = took_ns(PeDmaMsg(pe=A, pa=memory.pa, nbytes=8, op="read"))
    stream = PeDmaMsg(pe=A, pa=memory.pa, nbytes=8, op="read", repeat=6, stride_bytes=64, outstanding=outstanding)
    assert took_ns(stream) == pytest.approx(6 / outstanding * alone + (outstanding - 1) * 3.5, abs=0.01)


def test_a_load_and_a_store_of_a_kernel() -> None:
    """Each takes its issue, its set-up with the look-up of its address, and the transaction."""
    engine = GraphEngine(skewed(), enable_data=False)
    x = share(engine, {A: np.zeros(8192, np.uint8).view(np.int8)})
    offset = -x.pas[A] % GROUP

    def load(p: int, *, tl: Any) -> None:
        tl.load(p + offset, (320,), "i8")

    def load_and_store(p: int, *, tl: Any) -> None:
        tl.store(p + offset, tl.load(p + offset, (320,), "i8"))

    memory = Memory("sip0.cube0.hbm0", x.pas[A] + offset, HBM_ACCESS_NS, 0, 0)
    before = 6.7 + 1.1
    reading = set_up_ns(skewed()) + read_ns(DMA, memory, 320, 320 / CHANNEL_GBS)[0]
    writing = set_up_ns(skewed()) + write_ns(DMA, memory, 320, 320 / CHANNEL_GBS)[0]
    (loaded,) = launch(engine, load, x, pes=[A])
    assert loaded.pe_exec_ns[A] == pytest.approx(before + reading, abs=0.01)
    (stored,) = launch(engine, load_and_store, x, pes=[A])
    assert stored.pe_exec_ns[A] == pytest.approx(before + reading + writing, abs=0.02)
    # One way each: when the memory is read, and when it holds what was written.
    read, written = (r for r in engine.op_log.records[-2:])
    there = way(skewed(), DMA, memory.node)
    asked = set_up_ns(skewed()) + there.ns(HEADER) + HBM_ACCESS_NS
    assert (read.t_read_ps - read.t_start_ps) / 1000 == pytest.approx(asked, abs=0.01)
    committed = set_up_ns(skewed()) + there.head_ns + 320 / CHANNEL_GBS + HBM_ACCESS_NS
    assert (written.t_commit_ps - written.t_start_ps) / 1000 == pytest.approx(committed, abs=0.01)


def test_a_fence_ends_when_the_memory_holds_what_was_written() -> None:
    """Its own issue is over long before; the load behind it, of other bytes, is issued then."""
    engine = GraphEngine(skewed(), enable_data=False)
    x = share(engine, {A: np.zeros(2 * GROUP, np.uint8).view(np.int8)})
    offset = -x.pas[A] % GROUP

    def fenced(p: int, stored: int, *, tl: Any) -> None:
        if stored:
            tl.store(p + offset, tl.zeros((320,), "i8"))
        tl.fence()
        tl.load(p + offset + 320, (320,), "i8")

    memory = Memory("sip0.cube0.hbm0", x.pas[A] + offset, HBM_ACCESS_NS, 0, 0)
    there, issue = way(skewed(), DMA, memory.node), 1.1
    reading = issue + set_up_ns(skewed()) + read_ns(DMA, memory, 320, 320 / CHANNEL_GBS)[0]
    (idle,) = launch(engine, fenced, x, 0, pes=[A])
    assert idle.pe_exec_ns[A] == pytest.approx(6.7 + issue + reading, abs=0.01)
    (waited,) = launch(engine, fenced, x, 1, pes=[A])
    zeros = next(record for record in engine.op_log if record.kind == "math")
    committed = set_up_ns(skewed()) + there.head_ns + 320 / CHANNEL_GBS + HBM_ACCESS_NS
    written = 6.7 + issue + (zeros.t_end_ps - zeros.t_start_ps) / 1000 + committed
    assert waited.pe_exec_ns[A] == pytest.approx(written + reading, abs=0.02)


def test_a_composite_sets_up_a_descriptor_for_each_window() -> None:
    """One after another: the next begins when the set-up of the one before is over, look-up included."""
    engine = GraphEngine(skewed(), enable_data=False)
    x = share(engine, {A: np.zeros(10240, np.float16)})
    out = 8192 + -(x.pas[A] + 8192) % GROUP

    def kernel(p: int, *, tl: Any) -> None:
        tl.composite("gemm", tl.ref(p, (24, 40), "f16"), tl.ref(p, (40, 56), "f16"), p + out)

    before = len(engine.op_log)
    launch(engine, kernel, x, pes=[A])
    first, second, written = (r for r in engine.op_log.since(before) if r.component == DMA)
    assert second.t_start - first.t_start == pytest.approx(3.5, abs=0.001)
    # 24 rows of 112 bytes lie in one piece: eight bursts and a part of one, each on a channel of its own.
    wanted, slack = write_ns(DMA, hbm(0, 0, 0), 24 * 112, 320 / CHANNEL_GBS)
    assert written.t_end - written.t_start == pytest.approx(set_up_ns(skewed()) + wanted, abs=slack)
