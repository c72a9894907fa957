"""How long messages and credits take on the skewed machine, step by step."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from queue_support import Array, End, install, launch, share

from kernbench.engine.engine import GraphEngine
from kernbench.engine.hooks import QueueEvent, SlotReleased
from kernbench.messages.requests import PeCoord
from skewed import set_up_ns, skewed, way

A, B, FAR = (0, 0, 0), (0, 0, 1), (1, 4, 2)
DECODE_NS = 3.7
"""What the queues of a PE take for the address of a slot, and for a message that has come"""
ISSUE_NS, HEADER, TCM_WRITE_GBS = 1.1, 24, 149


def dma_of(pe: PeCoord) -> str:
    return f"sip{pe[0]}.cube{pe[1]}.pe{pe[2]}.pe_dma"


class Ran:
    """Kernels on PEs with queues between them: when messages were sent, came, and slots were released, in ns."""

    def __init__(
        self,
        edges: list[tuple[End, End]],
        kernel: Callable[..., object],
        *,
        pes: tuple[PeCoord, ...],
        data: Array | None = None,
        **queues: Any,
    ) -> None:
        engine = GraphEngine(skewed(), enable_data=False)
        install(engine, edges, **queues)
        events: list[QueueEvent] = []
        released: list[SlotReleased] = []
        engine.machine.hooks.queue.subscribe(events.append)
        engine.machine.hooks.slot_released.subscribe(released.append)
        given = [] if data is None else [share(engine, {pes[0]: data})]
        self.traces = launch(engine, kernel, *given, pes=pes)
        self.sent = [e.time_ps / 1000 for e in events if e.kind == "send"]
        self.came = [e.time_ps / 1000 for e in events if e.kind == "arrive"]
        self.released = [e.time_ps / 1000 for e in released]


def one_way(shape: tuple[int, ...], count: int = 1, work: int = 0) -> Callable[..., None]:
    """PE A sends ``count`` arrays E, once they are made; the other takes each, and computes before it lets go of it."""

    def kernel(*, tl: Any) -> None:
        if (tl.program_id(2), tl.program_id(1), tl.program_id(0)) == A:
            x = tl.zeros(shape, "i8")
            tl.wait(x)
            for _ in range(count):
                tl.send("E", x)
            return
        for _ in range(count):
            y = tl.recv("W", shape, "i8")
            for _ in range(work):
                tl.wait(tl.exp(y))
            del y

    return kernel


@pytest.mark.parametrize("peer", [B, FAR])
@pytest.mark.parametrize("nbytes", [1, 640, 4000])
def test_a_message_into_a_tcm(peer: PeCoord, nbytes: int) -> None:
    """Address, set-up and look-up, the way, what the write port has not taken meanwhile, and the decoding."""
    ran = Ran([((A, "E"), (peer, "W"))], one_way((nbytes,)), pes=(A, peer))
    there = way(skewed(), dma_of(A), dma_of(peer))
    moved = there.head_ns + max(nbytes / there.narrowest_gbs, nbytes / TCM_WRITE_GBS)
    wanted = DECODE_NS + set_up_ns(skewed()) + moved + DECODE_NS
    assert ran.came[0] - ran.sent[0] == pytest.approx(wanted, abs=there.slack_ns + 0.01)


@pytest.mark.parametrize(("kind", "node", "access_ns"), [("sram", "sram", 4.6), ("hbm", "hbm5", 33.1)])
def test_a_message_into_another_memory_is_announced(kind: Any, node: str, access_ns: float) -> None:
    """It is written there (the last of the three slices of a PE), and a header tells the PE."""
    memory = f"sip0.cube0.{node}"
    ran = Ran([((A, "E"), (B, "W"))], one_way((8,)), pes=(A, B), kind=kind)
    there, on = way(skewed(), dma_of(A), memory), way(skewed(), memory, dma_of(B))
    own = 80 / (281 / 16 * 0.83) if kind == "hbm" else 8 / 197
    moved = there.head_ns + max(8 / there.narrowest_gbs, own) + access_ns + on.ns(HEADER)
    wanted = DECODE_NS + set_up_ns(skewed()) + moved + DECODE_NS
    assert ran.came[0] - ran.sent[0] == pytest.approx(wanted, abs=there.slack_ns + on.slack_ns + 0.01)


def test_messages_do_not_wait_for_the_set_up_of_loads() -> None:
    """They have a channel of their own; the loads' requests are before them on the links, a header each."""

    def kernel(p: int, *, tl: Any) -> None:
        if tl.program_id(0):
            tl.recv("W", (8,), "i8")
            return
        x = tl.zeros((8,), "i8")
        tl.wait(x)
        loads = [tl.load(p, (8,), "i8") for _ in range(6)]
        tl.send("E", x)
        tl.wait(loads[-1])

    edges = [((A, "E"), (B, "W"))]
    alone = Ran(edges, one_way((8,)), pes=(A, B))
    ran = Ran(edges, kernel, pes=(A, B), data=np.zeros(8, np.int8))
    assert ran.came[0] - ran.sent[0] == pytest.approx(alone.came[0] - alone.sent[0], abs=HEADER / 251)


def test_a_message_is_set_up_behind_the_one_before() -> None:
    """Issued every 1.1 ns, they leave every 3.5."""
    ran = Ran([((A, "E"), (B, "W"))], one_way((1,), 6), pes=(A, B), n_slots=8)
    assert [b - a for a, b in pairwise(ran.sent)] == pytest.approx([ISSUE_NS] * 5, abs=0.001)
    assert [b - a for a, b in pairwise(ran.came)] == pytest.approx([2.7 + 0.8] * 5, abs=0.001)


def test_queues_of_a_pe_share_the_set_up() -> None:
    """To two peers as to one."""

    def kernel(*, tl: Any) -> None:
        if tl.program_id(0) == 0:
            x = tl.zeros((1,), "i8")
            tl.wait(x)
            tl.send("E", x)
            tl.send("S", x)
        else:
            tl.recv({1: "W", 2: "N"}[tl.program_id(0)], (1,), "i8")

    other = (0, 0, 2)
    alone = [way(skewed(), dma_of(A), dma_of(peer)).head_ns for peer in (B, other)]
    ran = Ran([((A, "E"), (B, "W")), ((A, "S"), (other, "N"))], kernel, pes=(A, B, other))
    wanted = sorted(DECODE_NS + 3.5 + DECODE_NS + each for each in (alone[0], 3.5 + alone[1]))
    assert [each - ran.sent[0] for each in sorted(ran.came)] == pytest.approx(wanted, abs=0.03)


@pytest.mark.parametrize("peer", [B, FAR])
@pytest.mark.parametrize("credit_bytes", [16, 3000])
def test_a_credit_takes_the_way_and_its_bytes(peer: PeCoord, credit_bytes: int) -> None:
    """With one slot: the second message goes when the credit of the first has come."""
    edges = [((A, "E"), (peer, "W"))]
    ran = Ran(edges, one_way((64,), 2, work=30), pes=(A, peer), n_slots=1, credit_bytes=credit_bytes)
    back = way(skewed(), dma_of(peer), dma_of(A))
    wanted = back.head_ns + credit_bytes / back.narrowest_gbs
    assert ran.sent[1] - ran.released[0] == pytest.approx(wanted, abs=back.slack_ns + 0.002)


def test_a_polling_sender_looks_every_so_often() -> None:
    """From when it found no slot: it goes on at the first look after the credit."""
    edges = [((A, "E"), (B, "W"))]
    ran = Ran(edges, one_way((64,), 2, work=30), pes=(A, B), n_slots=1, backpressure="poll", poll_ns=17.3)
    back = way(skewed(), dma_of(B), dma_of(A))
    credited = ran.released[0] + back.ns(16)
    since = ran.sent[0] + ISSUE_NS
    looks = -(-(credited - since) // 17.3)
    assert ran.sent[1] == pytest.approx(since + looks * 17.3, abs=0.002)


def test_a_kernel_goes_on_with_the_message_that_it_waited_for() -> None:
    """The sender's kernel ends when the last byte is delivered, the receiver's when the message is decoded."""
    ran = Ran([((A, "E"), (B, "W"))], one_way((64,)), pes=(A, B))
    (trace,) = ran.traces
    before = 6.7 + ISSUE_NS + 3.1 + 64 / 193 + ISSUE_NS  # launch, the zeros, the send
    assert trace.pe_exec_ns[B] == pytest.approx(before + ran.came[0] - ran.sent[0], abs=0.002)
    left_to_write = 64 / TCM_WRITE_GBS - 64 / way(skewed(), dma_of(A), dma_of(B)).narrowest_gbs
    assert trace.pe_exec_ns[A] == pytest.approx(trace.pe_exec_ns[B] - DECODE_NS - left_to_write, abs=0.002)


def test_a_receive_is_issued_whether_its_message_is_there_or_comes_meanwhile() -> None:
    """The kernel has the message when it has come and the receive is issued, whichever is later."""

    def ends(commands: int) -> float:
        def kernel(*, tl: Any) -> None:
            if tl.program_id(0) == 0:
                tl.send("E", tl.zeros((64,), "i8"))
                return
            for i in range(commands):
                tl.device_print(i)
            tl.recv("W", (64,), "i8")

        return Ran([((A, "E"), (B, "W"))], kernel, pes=(A, B)).traces[0].pe_exec_ns[B]

    came = ends(0)
    most = int((came - 6.7) / ISSUE_NS)
    for commands in range(most - 2, most + 3):
        assert ends(commands) == pytest.approx(max(came, 6.7 + (commands + 1) * ISSUE_NS), abs=0.001)
