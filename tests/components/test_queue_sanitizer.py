"""The sanitizer on programs with queues: quiet on what is right, and exact about what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import test_pe_ipcq as programs
from queue_support import install, launch, line_of, ring_of, share

from compiled import compiled
from covering import covering
from kernbench.engine.engine import GraphEngine
from kernbench.engine.queues import queue_part
from kernbench.messages.requests import IpcqRemoveMsg, KernelLaunchMsg, KernelRef
from kernbench.messages.steps import Chunk, Step, load, send
from kernbench.topology.builder import Topology
from kernbench.triton_emu.schedules import ScheduledKernel
from observed import findings, sanitized

A, B, C = (0, 0, 0), (0, 0, 1), (0, 0, 2)

KINDS = ("tcm", "hbm", "sram")


@pytest.fixture
def engine(topology: Topology) -> GraphEngine:
    return sanitized(topology)


def lines(engine: GraphEngine, kernel: Callable[..., object]) -> list[tuple[str, int]]:
    """Kind and line, relative to the kernel's first, of all findings."""
    return [(each.kind, each.line - kernel.__code__.co_firstlineno) for each in findings(engine)]


def own(engine: GraphEngine, *pes: Any, n: int = 16) -> Any:
    return share(engine, {pe: np.full(n, i + 1, np.float32) for i, pe in enumerate(pes)})


# --- what is right ----------------------------------------------------------------------------------------------------

RIGHT: list[tuple[Any, tuple[Any, ...], str, tuple[Any, ...], int]] = [
    (programs.exchange, (16,), "ring", (A, B), 1),
    (programs.exchange, (16,), "ring", (A, B), 4),
    (programs.pour, (16, 20, 0), "line", (A, B), 1),
    (programs.pour, (16, 20, 0), "line", (A, B), 3),
    (programs.gather_any, (16,), "line", (A, B, C), 4),
    (programs.overlap, (16,), "ring", (A, B), 4),
    (programs.copies, (16, "hbm"), "ring", (A, B), 1),
    (programs.ring_without_copies, (3,), "ring", (A, B, C), 2),
    (programs.ring_without_copies, (9,), "ring", (A, B, C), 2),
    (programs.hoard, (2,), "line", (A, B), 2),
]


@pytest.mark.parametrize(("program", "kind"), covering(RIGHT, KINDS))
def test_right_programs_are_clean(
    engine: GraphEngine, program: tuple[Any, tuple[Any, ...], str, Any, int], kind: Any
) -> None:
    kernel, args, shape, pes, n_slots = program
    install(engine, (ring_of if shape == "ring" else line_of)(*pes), n_slots=n_slots, kind=kind)
    data = own(engine, *pes)
    for _ in range(2):
        launch(engine, kernel, data, *args, pes=pes)
    assert findings(engine) == ()


def test_every_source_is_clean(engine: GraphEngine) -> None:
    install(engine, line_of(A, B))
    data = share(engine, {A: np.arange(16, dtype=np.float32), B: np.zeros(16, np.float32)})
    launch(engine, programs.sources, data, 16, pes=(A, B))
    assert findings(engine) == ()


def composites(ptr: int, out: int, n: int, tl: Any) -> None:
    """A received matrix is an operand of a composite, and its slot is free once that is done."""
    for step in range(6):
        tl.send("E", tl.full((n, n), float(step), "f16"))
        tile = tl.recv("W", (n, n), "f16")
        tl.composite("gemm", tile, tl.ref(ptr, (n, n), "f16"), out_ptr=out)
        tl.barrier()
        del tile


@pytest.mark.parametrize("kind", KINDS)
def test_slots_as_operands_of_composites(engine: GraphEngine, kind: Any) -> None:
    install(engine, ring_of(A, B), n_slots=2, kind=kind, slot_size=8192)
    data, out = (share(engine, {pe: np.ones((64, 64), np.float16) for pe in (A, B)}) for _ in range(2))
    launch(engine, composites, data, out, 64, pes=(A, B))
    assert findings(engine) == ()


def test_scratch_is_given_back_before_a_message_has_arrived(engine: GraphEngine) -> None:
    """A send is done when its last byte is there: whoever has the scratch next does not race with it."""

    def kernel(ptr: int, n: int, tl: Any) -> None:
        for _ in range(40):
            tl.send("E", tl.load(ptr, (n,), "f32") + 1.0)
            tl.recv("W", (n,), "f32")

    install(engine, ring_of(A, B, C), kind="hbm")
    launch(engine, kernel, own(engine, A, B, C, n=1024), 1024, pes=(A, B, C))
    assert findings(engine) == ()


def overtaking(ptr: int, n: int, tl: Any) -> None:
    """The second message is on its way before the first: its receive ends when that has come."""
    if tl.program_id(0) == 0:
        slow = fast = tl.load(ptr, (n,), "f32")
        for _ in range(20):
            slow = tl.exp(slow)
        tl.send("E", slow)
        tl.send("E", fast)
    else:
        for _ in range(30):
            tl.wait(tl.full((n,), 1.0, "f32"))
        first, second = (tl.recv_async("W", (n,), "f32") for _ in range(2))
        tl.store(ptr, first + second)


@pytest.mark.parametrize("kind", KINDS)
def test_messages_that_overtake_each_other(engine: GraphEngine, kind: Any) -> None:
    install(engine, line_of(A, B), kind=kind)
    launch(engine, overtaking, own(engine, A, B), 16, pes=(A, B))
    assert findings(engine) == ()


# --- what is wrong ----------------------------------------------------------------------------------------------------


def one_too_many(ptr: int, tl: Any) -> None:
    mine = tl.load(ptr, (16,), "f32")
    if tl.program_id(0) == 0:
        for _ in range(3):
            tl.send("E", mine)  # line 4
    else:
        tl.store(ptr, tl.recv("W", (16,), "f32"))


@pytest.mark.parametrize("kind", KINDS)
def test_messages_that_nobody_receives(engine: GraphEngine, kind: Any) -> None:
    install(engine, line_of(A, B), kind=kind)
    launch(engine, one_too_many, own(engine, A, B), pes=(A, B))
    engine.drain()
    assert lines(engine, one_too_many) == [("message", 4)]
    (finding,) = findings(engine)
    assert (finding.count, finding.nbytes, finding.space, finding.pe) == (2, 64, kind, A)
    assert "message 1 of queue W of sip0.cube0.pe1 (64 B, send E at line" in str(finding)
    assert "was never received" in str(finding)


def test_the_next_kernel_may_still_receive(engine: GraphEngine) -> None:
    """What is left is told while no kernel runs there that could receive it."""

    def sends(ptr: int, tl: Any) -> None:
        tl.send("E", tl.load(ptr, (16,), "f32"))

    def receives(ptr: int, tl: Any) -> None:
        tl.store(ptr, tl.recv("W", (16,), "f32"))

    install(engine, line_of(A, B))
    data = own(engine, A, B)
    launch(engine, sends, data, pes=(A,))
    engine.drain()
    assert [each.kind for each in findings(engine)] == ["message"]
    ref = KernelRef(name="receives", function=receives)
    handle = engine.submit(KernelLaunchMsg(kernel=ref, args=(data.args[0],), targets=(B,)))
    assert findings(engine) == ()
    engine.wait(handle)
    assert findings(engine) == ()


def by_address(ptr: int, n: int, count: int, tl: Any) -> None:
    """Keeps the address of a slot and gives the slot back."""
    if tl.program_id(0) == 0:
        for i in range(count):
            tl.send("E", tl.full((n,), float(i), "f32"))
    else:
        first = tl.recv("W", (n,), "f32")
        where = first.addr
        del first
        for _ in range(40):
            tl.wait(tl.full((1024,), 1.0, "f32"))
        tl.send("W", src_addr=where, shape=(n,), dtype="f32", space="tcm")  # line 11
        for _ in range(count - 1):
            tl.recv("W", (n,), "f32")
    if tl.program_id(0) == 0:
        tl.recv("E", (n,), "f32")


@pytest.mark.parametrize("n_slots", [1, 4])
def test_a_slot_that_is_read_after_it_was_given_back(engine: GraphEngine, n_slots: int) -> None:
    """With one slot the next message has overwritten it by then; with more only chance keeps the numbers right."""
    install(engine, line_of(A, B), n_slots=n_slots)
    launch(engine, by_address, own(engine, A, B), 16, 3, pes=(A, B))
    finding = next(each for each in findings(engine) if each.kind == "slot")
    assert finding.line - by_address.__code__.co_firstlineno == 11
    assert {each.kind for each in findings(engine)} == ({"slot", "race"} if n_slots == 1 else {"slot"})
    assert (finding.space, finding.nbytes, finding.pe) == ("tcm", 64, B)
    assert "of a slot of queue W of sip0.cube0.pe1" in str(finding)
    assert "which was released at" in str(finding)
    assert ("had not been received yet" in str(finding)) == (n_slots == 1)


def test_a_slot_that_is_overwritten_while_it_is_read(engine: GraphEngine) -> None:
    def kernel(ptr: int, n: int, tl: Any) -> None:
        if tl.program_id(0) == 0:
            for i in range(2):
                tl.send("E", tl.full((n,), float(i), "f32"))  # line 3
            for _ in range(2):
                tl.recv("E", (n,), "f32")
        else:
            for _ in range(2):
                got = tl.recv("W", (n,), "f32")
                where = got.addr
                del got
                tl.send("W", src_addr=where, shape=(n,), dtype="f32", space="tcm")  # line 11

    install(engine, line_of(A, B), n_slots=1, slot_size=1 << 16)
    launch(engine, kernel, own(engine, A, B), 1 << 14, pes=(A, B))
    assert lines(engine, kernel) == [("slot", 11), ("race", 3)]
    race = findings(engine)[1]
    assert race.other is not None
    assert race.other.line - kernel.__code__.co_firstlineno == 11
    assert (race.space, race.pe, race.other.pe) == ("tcm", A, B)


@pytest.mark.parametrize("ordering", ["program", "relaxed"])
def test_a_message_that_is_copied_over_what_a_composite_reads(ordering: str) -> None:
    two = ("sip.cube_mesh.w=2", "sip.cube_mesh.h=1")
    engine = sanitized(compiled(*two, f"pe.dma.ordering={ordering}"))

    def kernel(ptr: int, out: int, n: int, tl: Any) -> None:
        tl.send("E", tl.full((n, n), 1.0, "f16"))
        tl.composite("gemm", tl.ref(ptr, (n, n), "f16"), tl.ref(ptr, (n, n), "f16"), out_ptr=out)  # line 2
        tl.recv("W", (n, n), "f16", dst_addr=ptr, dst_space="hbm")  # line 3

    install(engine, ring_of(A, B), slot_size=1 << 14)
    data, out = (share(engine, {pe: np.ones((64, 64), np.float16) for pe in (A, B)}) for _ in range(2))
    launch(engine, kernel, data, out, 64, pes=(A, B))
    first = kernel.__code__.co_firstlineno
    races = [each for each in findings(engine) if each.other is not None]
    found = {frozenset((each.line - first, each.other.line - first)) for each in races if each.other}
    assert found == ({frozenset((2, 3))} if ordering == "relaxed" else set())


def test_removed_queues_leave_ordinary_memory(engine: GraphEngine) -> None:
    install(engine, line_of(A, B), kind="tcm")
    data = own(engine, A, B)
    launch(engine, programs.pour, data, 16, 4, 0, pes=(A, B))
    engine.drain()
    for pe in (A, B):
        engine.wait(engine.submit(IpcqRemoveMsg(pe=pe)))
    install(engine, line_of(A, B), kind="tcm")
    launch(engine, programs.pour, data, 16, 4, 0, pes=(A, B))
    assert findings(engine) == ()


def test_of_a_schedule_steps_are_named_wherever_a_kernel_would_have_lines(engine: GraphEngine) -> None:
    """What rank 0 sends is never received."""

    def schedule(*, rank: int, world_size: int, n_elem: int) -> list[Step]:
        return [load(0, Chunk(0, n_elem)), send("E", 0)] if rank == 0 else []

    kernel = ScheduledKernel(schedule)
    install(engine, line_of(A, B))
    args = (own(engine, A, B).args[0], *kernel.args(n_elem=16, world_size=2))
    named = KernelRef(name=kernel.name, function=kernel)
    engine.wait(engine.submit(KernelLaunchMsg(kernel=named, args=args, targets=(A, B))))
    (finding,) = findings(engine)
    assert "send E at step 2 (send E, 16 f32) of kernel 'test_queue_sanitizer'" in finding.message
    (message,) = queue_part(engine.machine, B).pending_messages
    assert str(message).endswith("64 bytes of kernel 'test_queue_sanitizer', step 2 (send E, 16 f32)")
    log = engine.op_log
    told = [log.place_of(record) for record in log if record.kernel]
    assert told == ["step 1 (load, 16 f32)", "step 2 (send E, 16 f32)"]
