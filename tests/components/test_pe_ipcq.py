"""Queues between PEs on the machine: numbers, back-pressure, errors, deadlocks, events."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from queue_support import assert_settled, held, install, launch, line_of, pairs, ring_of, share

from compiled import SPREAD, compiled
from kernbench.common.errors import AllocationError, IpcqDeadlock, IpcqError, IpcqInvalidDirection, KernelError
from kernbench.core.clock import Clock
from kernbench.engine.engine import GraphEngine
from kernbench.engine.hooks import SlotReleased
from kernbench.engine.queues import QueuePair, queue_part
from kernbench.messages.requests import IpcqInitMsg, IpcqRemoveMsg, KernelLaunchMsg, KernelRef, QueuePeer, QueueSetup
from kernbench.topology.builder import Topology

A, B, C = (0, 0, 0), (0, 0, 1), (0, 0, 2)
SMALL = ("sip.cube_mesh.w=2", "sip.cube_mesh.h=1")


@pytest.fixture
def engine(topology: Topology) -> GraphEngine:
    return GraphEngine(topology)


def numbers(engine: GraphEngine, *pes: tuple[int, int, int], n: int = 16) -> Any:
    """PE i holds i+1, i+1, …"""
    return share(engine, {pe: np.full(n, i + 1, np.float32) for i, pe in enumerate(pes)})


def exchange(ptr: int, n: int, tl: Any) -> None:
    """Both ways at once: 10 x what came from the west + what came from the east."""
    mine = tl.load(ptr, (n,), "f32")
    tl.send("E", mine)
    tl.send("W", mine + 1.0)
    west = tl.recv("W", (n,), "f32")
    east = tl.recv("E", (n,), "f32")
    tl.store(ptr, west * 10.0 + east)


@pytest.mark.parametrize("kind", ["tcm", "hbm", "sram"])
@pytest.mark.parametrize("n_slots", [1, 2, 4])
def test_two_queues_between_the_same_pes_never_mix(engine: GraphEngine, kind: Any, n_slots: int) -> None:
    install(engine, ring_of(A, B), n_slots=n_slots, kind=kind)
    data = numbers(engine, A, B)
    for _ in range(2):
        launch(engine, exchange, data, 16, pes=(A, B))
    # First 10*2+3 and 10*1+2, then from those 10*12+13 and 10*23+24.
    assert held(engine, data, A)[0] == 10 * 12 + 13
    assert held(engine, data, B)[0] == 10 * 23 + 24
    assert_settled(engine, (A, B))


def pour(ptr: int, n: int, count: int, sender: int, tl: Any) -> None:
    """One PE sends ``count`` messages, the other adds them up."""
    mine = tl.load(ptr, (n,), "f32")
    if tl.program_id(0) == sender:
        for _ in range(count):
            tl.send("E", mine)
        return
    total = tl.zeros((n,), "f32")
    for _ in range(count):
        total = total + tl.recv("W", (n,), "f32")
    tl.store(ptr, total)


@pytest.mark.parametrize(("mode", "poll_ns"), [("sleep", 50.0), ("poll", 50.0), ("poll", 7.0)])
@pytest.mark.parametrize("n_slots", [1, 3])
def test_a_full_ring_holds_its_sender_up(engine: GraphEngine, mode: str, poll_ns: float, n_slots: int) -> None:
    install(engine, line_of(A, B), n_slots=n_slots, slot_size=64, backpressure=mode, poll_ns=poll_ns)
    data = numbers(engine, A, B)
    launch(engine, pour, data, 16, 20, 0, pes=(A, B))
    assert held(engine, data, B)[0] == 20
    assert_settled(engine, (A, B))
    assert [(p.my_head, p.my_tail) for p in pairs(engine, (A, B))] == [(20, 0), (0, 20)]


def test_more_slots_are_never_slower_and_polling_never_faster(topology: Topology) -> None:
    def time(**settings: Any) -> float:
        engine = GraphEngine(topology)
        install(engine, line_of(A, B), slot_size=4096, **settings)
        data = numbers(engine, A, B, n=1024)
        return launch(engine, pour, data, 1024, 12, 0, pes=(A, B))[0].pe_exec_ns[B]

    times = [time(n_slots=n) for n in (1, 2, 4, 8)]
    assert times == sorted(times, reverse=True)
    assert time(n_slots=1, backpressure="poll", poll_ns=50.0) >= times[0]


def test_a_memory_at_a_time_tcm_is_fastest_and_hbm_slowest() -> None:
    machine = compiled("sip.cube_mesh.w=2", "sip.cube_mesh.h=1", SPREAD)

    def time(kind: Any) -> float:
        engine = GraphEngine(machine)
        install(engine, line_of(A, B), kind=kind)
        data = numbers(engine, A, B, n=1024)
        return launch(engine, pour, data, 1024, 1, 0, pes=(A, B))[0].pe_exec_ns[B]

    tcm, sram, hbm = (time(kind) for kind in ("tcm", "sram", "hbm"))
    assert tcm < sram < hbm


def gather_any(ptr: int, n: int, tl: Any) -> None:
    """PE 1 takes three messages from whichever side has one."""
    mine = tl.load(ptr, (n,), "f32")
    if tl.program_id(0) == 0:
        tl.send("E", mine)
        tl.send("E", mine)
    elif tl.program_id(0) == 2:
        tl.send("W", mine)
    else:
        for _ in range(3):
            mine = mine + tl.recv(None, (n,), "f32")
        tl.store(ptr, mine)


def test_any_queue_is_served_in_turn(engine: GraphEngine) -> None:
    install(engine, line_of(A, B, C))
    data = numbers(engine, A, B, C)
    launch(engine, gather_any, data, 16, pes=(A, B, C))
    assert held(engine, data, B)[0] == 2 + 1 + 1 + 3
    assert_settled(engine, (A, B, C))


def overlap(ptr: int, n: int, tl: Any) -> None:
    """Receives are posted before anything is sent, and used out of order."""
    first = tl.recv_async("W", (n,), "f32")
    second = tl.recv_async("W", (n,), "f32")
    mine = tl.load(ptr, (n,), "f32")
    tl.send("E", mine)
    tl.send("E", mine * 2.0)
    tl.wait(second)
    tl.store(ptr, second * 10.0 + first)


def test_posted_receives(engine: GraphEngine) -> None:
    install(engine, ring_of(A, B))
    data = numbers(engine, A, B)
    launch(engine, overlap, data, 16, pes=(A, B))
    assert [held(engine, data, pe)[0] for pe in (A, B)] == [42, 21]
    assert_settled(engine, (A, B))


def copies(ptr: int, n: int, space: str, tl: Any) -> None:
    """Forward round a ring of one slot by copies; the last is received straight to memory."""
    mine = tl.load(ptr, (n,), "f32")
    for _ in range(2):
        tl.send("E", mine)
        mine = tl.recv("W", (n,), "f32", dst_space="tcm")
    tl.send("E", mine)
    arrived = tl.recv("W", (n,), "f32", dst_addr=ptr, dst_space=space)
    tl.store(ptr, arrived + 100.0)


@pytest.mark.parametrize("kind", ["tcm", "hbm", "sram"])
def test_received_copies_free_the_slot(engine: GraphEngine, kind: Any) -> None:
    install(engine, ring_of(A, B), n_slots=1, kind=kind)
    data = numbers(engine, A, B)
    launch(engine, copies, data, 16, "hbm", pes=(A, B))
    assert [held(engine, data, pe)[0] for pe in (A, B)] == [102, 101]
    assert_settled(engine, (A, B))


@pytest.mark.parametrize("kind", ["tcm", "hbm", "sram"])
def test_the_copy_of_a_message_frees_its_slot(engine: GraphEngine, kind: Any) -> None:
    """Without it the second message of a queue of one slot would never come."""

    def kernel(ptr: int, n: int, tl: Any) -> None:
        mine = tl.load(ptr, (n,), "f32")
        tl.send("E", mine)
        first = tl.copy(tl.recv("W", (n,), "f32"))
        tl.send("E", mine + 10.0)
        tl.store(ptr, first * 100.0 + tl.recv("W", (n,), "f32"))

    install(engine, ring_of(A, B), n_slots=1, kind=kind)
    data = numbers(engine, A, B)
    launch(engine, kernel, data, 16, pes=(A, B))
    assert [held(engine, data, pe)[0] for pe in (A, B)] == [212, 111]
    assert_settled(engine, (A, B))


def sources(ptr: int, n: int, tl: Any) -> None:
    """A ref, a virtual address, a TCM address, bytes."""
    if tl.program_id(0) == 0:
        mine = tl.load(ptr, (n,), "f32") * 5.0
        tl.send("E", tl.ref(ptr, (n,), "f32"))
        tl.send("E", src_addr=ptr + 4, shape=(n - 1,), dtype="f32")
        tl.wait(mine)
        tl.send("E", src_addr=mine.addr, nbytes=n * 4, space="tcm")
    else:
        total = tl.recv("W", (n,), "f32") + 0.0
        tl.store(ptr, tl.recv("W", (n - 1,), "f32"))
        tl.store(ptr + 4 * (n - 1), tl.recv("W", (n,), "f32") + total, valid=(1,))


def test_what_can_be_sent(engine: GraphEngine) -> None:
    install(engine, line_of(A, B))
    data = share(engine, {A: np.arange(16, dtype=np.float32), B: np.zeros(16, np.float32)})
    launch(engine, sources, data, 16, pes=(A, B))
    assert held(engine, data, B).tolist() == [*range(1, 16), 0]
    assert_settled(engine, (A, B))


def one_call(ptr: int, what: str, tl: Any) -> None:
    mine = tl.load(ptr, (16,), "f32")
    calls = {
        "unknown": lambda: tl.send("global_N", mine),
        "unknown recv": lambda: tl.recv("N", (16,), "f32"),
        "too large": lambda: tl.send("E", tl.zeros((32,), "f32")),
        "too large recv": lambda: tl.recv("E", (32,), "f32"),
        "no shape": lambda: tl.recv("E"),
        "no name": lambda: tl.send(3, mine),
        "two sources": lambda: tl.send("E", mine, src_addr=0),
        "no extent": lambda: tl.send("E", src_addr=0),
        "odd bytes": lambda: tl.send("E", src_addr=0, nbytes=6, dtype="f32"),
        "space": lambda: tl.send("E", src_addr=0, nbytes=4, space="l2"),
        "no address": lambda: tl.recv("E", (16,), "f32", dst_space="hbm"),
    }
    if tl.program_id(0) == 0:
        calls[what]()
    elif what == "no address":
        tl.send("W", mine)


@pytest.mark.parametrize(
    ("what", "error", "words"),
    [
        ("unknown", IpcqInvalidDirection, r"no queue 'global_N'; installed: E"),
        ("unknown recv", IpcqInvalidDirection, r"no queue 'N'; installed: E"),
        ("too large", KernelError, r"128 bytes does not fit a slot of queue E: slot_size is 64"),
        ("too large recv", KernelError, r"slot_size is 64"),
        ("no shape", KernelError, r"needs the shape and the dtype"),
        ("no name", KernelError, r"named by a direction"),
        ("two sources", KernelError, r"takes exactly one of"),
        ("no extent", KernelError, r"needs shape= and dtype="),
        ("odd bytes", KernelError, r"no whole number of f32"),
        ("space", KernelError, r"no space 'l2'"),
        ("no address", KernelError, r"needs dst_addr"),
    ],
)
def test_wrong_calls(engine: GraphEngine, what: str, error: type[Exception], words: str) -> None:
    install(engine, line_of(A, B), slot_size=64)
    data = numbers(engine, A, B)
    with pytest.raises(error, match=words):
        launch(engine, one_call, data, what, pes=(A, B))


def unequal(ptr: int, posted: bool, tl: Any) -> None:
    mine = tl.load(ptr, (16,), "f32")
    if tl.program_id(0) == 0:
        tl.send("E", mine)
    elif posted:
        tl.store(ptr, tl.recv_async("W", (8,), "f32"))
    else:
        tl.recv("W", (8,), "f32")


@pytest.mark.parametrize("posted", [False, True])
def test_both_ends_agree_on_the_size(engine: GraphEngine, posted: bool) -> None:
    install(engine, line_of(A, B))
    data = numbers(engine, A, B)
    with pytest.raises(KernelError, match=r"message 0 of queue W has 64 bytes, the kernel receives 32"):
        launch(engine, unequal, data, posted, pes=(A, B))


def only_receives(ptr: int, tl: Any) -> None:
    tl.recv("W", (16,), "f32")


def test_receivers_without_a_sender(engine: GraphEngine) -> None:
    install(engine, ring_of(A, B, C))
    data = numbers(engine, A, B, C)
    with pytest.raises(IpcqDeadlock) as caught:
        launch(engine, only_receives, data, pes=(A, B, C))
    text = str(caught.value)
    line = only_receives.__code__.co_firstlineno + 1
    waits = f"waits for a message of queue W, at line {line}; no message from queue E of sip0.cube0.pe0"
    assert f"sip0.cube0.pe1: kernel 'only_receives' {waits}" in text
    cycle = re.search(r"who waits for whom: (.*)", text)
    assert cycle is not None
    assert cycle[1] == " -> ".join(f"sip0.cube0.pe{p}" for p in (0, 2, 1, 0))
    pointers = "W <-> sip0.cube0.pe0 E: my_head=0 my_tail=0 peer_head_cache=0 peer_tail_cache=0; receives at TCM"
    assert pointers not in text
    assert pointers in caught.value.full


def ring_without_copies(ptr: int, steps: int, tl: Any) -> None:
    tile = tl.load(ptr, (16,), "f32")
    for _ in range(steps):
        tl.send("E", tile)
        tile = tl.recv("W", (16,), "f32")
    tl.store(ptr, tile)


def test_one_slot_cannot_be_forwarded(engine: GraphEngine) -> None:
    install(engine, ring_of(A, B, C), n_slots=1)
    data = numbers(engine, A, B, C)
    with pytest.raises(
        IpcqDeadlock, match=r"holds the only slot .* n_slots=1, slots that are forwarded without a copy"
    ):
        launch(engine, ring_without_copies, data, 3, pes=(A, B, C))


@pytest.mark.parametrize("n_slots", [2, 3, 16])
def test_two_slots_can(engine: GraphEngine, n_slots: int) -> None:
    install(engine, ring_of(A, B, C), n_slots=n_slots)
    data = numbers(engine, A, B, C)
    launch(engine, ring_without_copies, data, 3, pes=(A, B, C))
    assert [held(engine, data, pe)[0] for pe in (A, B, C)] == [1, 2, 3]
    assert_settled(engine, (A, B, C))


def hoard(ptr: int, n: int, tl: Any) -> None:
    mine = tl.load(ptr, (16,), "f32")
    if tl.program_id(0) == 0:
        for _ in range(n):
            tl.send("E", mine)
    else:
        kept = [tl.recv("W", (16,), "f32") for _ in range(n)]
        tl.store(ptr, kept[-1])


def test_held_handles_are_named_in_a_deadlock(engine: GraphEngine) -> None:
    install(engine, line_of(A, B), n_slots=2)
    data = numbers(engine, A, B)
    launch(engine, hoard, data, 2, pes=(A, B))
    with pytest.raises(IpcqDeadlock, match=r"its kernel holds all 2 slots of this queue"):
        launch(engine, hoard, data, 3, pes=(A, B))


def test_a_message_in_another_queue_is_named_in_a_deadlock(engine: GraphEngine) -> None:
    """B receives from C what A has sent, by a queue of its own."""

    def kernel(ptr: int, tl: Any) -> None:
        if tl.program_id(0) == 0:
            for _ in range(2):
                tl.send("E", tl.load(ptr, (16,), "f32"))
        elif tl.program_id(0) == 1:
            tl.recv("E", (16,), "f32")

    install(engine, line_of(A, B, C), n_slots=4)
    with pytest.raises(IpcqDeadlock) as caught:
        launch(engine, kernel, numbers(engine, A, B, C), pes=(A, B, C))
    lies = "2 messages are unread in its queue W, from sip0.cube0.pe0; its kernel waits for another, E"
    _, _, cause, _, b = str(caught.value).splitlines()
    assert cause.endswith(f"the waits end at PEs that wait for no queue: sip0.cube0.pe2. On sip0.cube0.pe1 {lies}")
    assert b.startswith("  sip0.cube0.pe1: kernel 'kernel' waits for a message of queue E, at line ")
    assert f"; {lies} [" in b


def test_messages_in_other_queues_of_a_cycle_are_named(engine: GraphEngine) -> None:
    """All have sent to the east, and receive from there."""

    def kernel(ptr: int, tl: Any) -> None:
        tl.send("E", tl.load(ptr, (16,), "f32"))
        tl.recv("E", (16,), "f32")

    install(engine, ring_of(A, B, C))
    with pytest.raises(IpcqDeadlock) as caught:
        launch(engine, kernel, numbers(engine, A, B, C), pes=(A, B, C))
    cause = str(caught.value).splitlines()[2]
    assert "let one of them send first, or receive from the queue that has messages" in cause
    assert "On sip0.cube0.pe0 1 message is unread in its queue W, from sip0.cube0.pe2" in cause
    assert cause.endswith("its kernel waits for another, E (and 2 more PEs alike)")


def test_what_is_received_is_not_unread(engine: GraphEngine) -> None:
    """B has got what A has sent, and waits for C."""

    def kernel(ptr: int, tl: Any) -> None:
        if tl.program_id(0) == 0:
            tl.send("E", tl.load(ptr, (16,), "f32"))
        elif tl.program_id(0) == 1:
            tl.recv("W", (16,), "f32")
            tl.recv("E", (16,), "f32")

    install(engine, line_of(A, B, C))
    with pytest.raises(IpcqDeadlock) as caught:
        launch(engine, kernel, numbers(engine, A, B, C), pes=(A, B, C))
    assert "unread" not in str(caught.value)


def test_an_engine_goes_on_after_what_was_abandoned(engine: GraphEngine) -> None:
    install(engine, ring_of(A, B), n_slots=1)
    data = numbers(engine, A, B)

    def start(kernel: Any, *args: Any) -> Any:
        return engine.submit(
            KernelLaunchMsg(kernel=KernelRef(name="k", function=kernel), args=(data.args[0], *args), targets=(A, B))
        )

    stuck = [start(only_receives), start(ring_without_copies, 5)]
    with pytest.raises(IpcqDeadlock):
        engine.wait(stuck[0])
    engine.abandon(stuck)
    assert all(handle.done for handle in stuck)
    assert_settled(engine, (A, B))
    launch(engine, exchange, data, 16, pes=(A, B))
    assert held(engine, data, A)[0] == 10 * 2 + 3


def test_queues_are_installed_once_and_can_be_removed(engine: GraphEngine) -> None:
    install(engine, line_of(A, B))
    with pytest.raises(IpcqError, match=r"sip0.cube0.pe0.pe_ipcq has queues already \(E\)"):
        install(engine, line_of(A, B))
    for pe in (A, B):
        engine.wait(engine.submit(IpcqRemoveMsg(pe=pe)))
    install(engine, ring_of(A, B))
    assert list(queue_part(engine.machine, A).queue_pairs) == ["E", "W"]


def setup(direction: str, base: int | None, peer: QueuePeer) -> QueueSetup:
    return QueueSetup(direction=direction, peer=peer, rx_base_pa=base, n_slots=2, slot_size=64)


def test_receive_ranges_are_disjoint(engine: GraphEngine) -> None:
    base = engine.allocators[A].reserve_ipcq_tcm(4096).encode()
    peer = QueuePeer(pe=B, direction="W", rx_base_pa=None)
    queues = (setup("E", base, peer), setup("W", base + 64, peer))
    with pytest.raises(IpcqError, match="receive ranges of E and W overlap"):
        engine.wait(engine.submit(IpcqInitMsg(pe=A, queues=queues)))


def test_a_message_that_matches_no_queue(engine: GraphEngine) -> None:
    base = engine.allocators[B].reserve_ipcq_tcm(4096).encode()
    there = QueuePeer(pe=B, direction="W", rx_base_pa=base)
    engine.wait(engine.submit(IpcqInitMsg(pe=A, queues=(setup("E", None, there),))))
    data = numbers(engine, A)
    with pytest.raises(IpcqError, match=r"pe1.pe_ipcq: a message of sip0.cube0.pe0.pe_ipcq arrived"):
        launch(engine, pour, data, 16, 1, 0, pes=(A,))


def one_way(ptr: int, what: str, tl: Any) -> None:
    tl.recv("E", (16,), "f32") if what == "recv" else tl.send("W", tl.load(ptr, (16,), "f32"))


@pytest.mark.parametrize(
    ("pe", "what", "words"),
    [(A, "recv", r"queue E only sends; those that receive: none"), (B, "send", r"queue W only receives")],
)
def test_one_way_queues(engine: GraphEngine, pe: Any, what: str, words: str) -> None:
    base = engine.allocators[B].reserve_ipcq_tcm(4096).encode()
    here = setup("E", None, QueuePeer(pe=B, direction="W", rx_base_pa=base))
    there = setup("W", base, QueuePeer(pe=A, direction="E", rx_base_pa=None))
    for owner, queue in ((A, here), (B, there)):
        engine.wait(engine.submit(IpcqInitMsg(pe=owner, queues=(queue,))))
    data = numbers(engine, A, B)
    with pytest.raises(IpcqInvalidDirection, match=words):
        launch(engine, one_way, data, what, pes=(pe,))


def test_rings_and_scratch_share_one_memory(engine: GraphEngine) -> None:
    with pytest.raises(AllocationError):
        install(engine, line_of(A, B), n_slots=4096, slot_size=1 << 20)


def test_a_global_queue_leaves_by_its_link(topology: Topology) -> None:
    """Two SIPs in a ring are joined by two links; E and W take different ones, and their credits come back by them."""
    engine = GraphEngine(topology, trace_hops=True)
    there = (1, 0, 0)
    install(engine, [((A, "global_E"), (there, "global_W")), ((A, "global_W"), (there, "global_E"))])
    data = numbers(engine, A, there)

    def kernel(ptr: int, direction: str, back: str, tl: Any) -> None:
        if tl.program_id(2) == 0:
            tl.send(direction, tl.load(ptr, (16,), "f32"))
        else:
            tl.recv(back, (16,), "f32")

    ports = {}
    for direction, back in (("global_E", "global_W"), ("global_W", "global_E")):
        before = {link: state.nbytes for link, state in engine.machine.network.links.items()}
        launch(engine, kernel, data, direction, back, pes=(A, there))
        ports[direction] = {
            link
            for link, state in engine.machine.network.links.items()
            if "sip_port" in link[0] and "sip_port" in link[1] and state.nbytes > before.get(link, 0)
        }
    assert ports["global_E"] == {("sip0.sip_port_0", "sip1.sip_port_1")}
    assert ports["global_W"] == {("sip0.sip_port_1", "sip1.sip_port_0")}


def test_a_message_costs_few_events(engine: GraphEngine) -> None:
    """Send and receive, without the kernel's own work: five events when the sender waits and the receiver does too."""
    install(engine, line_of(A, B))
    data = numbers(engine, A, B)

    def kernel(ptr: int, count: int, tl: Any) -> None:
        if tl.program_id(0) == 0:
            mine = tl.load(ptr, (16,), "f32")
            for _ in range(count):
                tl.send("E", mine)
        else:
            for _ in range(count):
                tl.recv("W", (16,), "f32")

    spent = []
    for count in (1, 101):
        before = engine.n_events
        launch(engine, kernel, data, count, pes=(A, B))
        engine.drain()
        spent.append(engine.n_events - before)
    assert (spent[1] - spent[0]) / 100 <= 5


def test_a_message_that_is_added_to_what_is_sent_next_costs_at_most_seven_events(engine: GraphEngine) -> None:
    """Send: issue, descriptor, last byte, arrival decoded; receive: none, as the kernel waits already; sum: issue, end.

    The send waits for the sum, which tells it: no event. One more when a message has come before its receive.
    """
    install(engine, ring_of(A, B))
    data = numbers(engine, A, B)

    def kernel(ptr: int, count: int, tl: Any) -> None:
        total = tl.load(ptr, (16,), "f32")
        for _ in range(count):
            tl.send("E", total)
            total = total + tl.recv("W", (16,), "f32")

    spent = []
    for count in (1, 101):
        before = engine.n_events
        launch(engine, kernel, data, count, pes=(A, B))
        engine.drain()
        spent.append(engine.n_events - before)
    assert 6 <= (spent[1] - spent[0]) / 200 <= 7


def test_a_credit_is_there_when_it_has_come_and_not_before(engine: GraphEngine) -> None:
    """Nobody waits for it: no event tells of it, and time goes on until it is there."""
    install(engine, line_of(A, B))
    released: list[SlotReleased] = []
    engine.machine.hooks.slot_released.subscribe(released.append)
    launch(engine, pour, numbers(engine, A, B), 16, 1, 0, pes=(A, B))
    engine.drain()
    credited_ps = released[0].credited_ps
    assert credited_ps is not None
    assert engine.machine.clock.time >= credited_ps
    assert queue_part(engine.machine, A).queue_pairs["E"].peer_tail_cache == 1


def test_a_look_between_release_and_credit_finds_no_credit() -> None:
    clock = Clock()
    peer = QueuePeer(pe=B, direction="W", rx_base_pa=0)
    setup = QueueSetup(direction="E", peer=peer, rx_base_pa=None, n_slots=1, slot_size=64)
    pair = QueuePair(setup, clock)
    assert pair.claim() == 0
    pair.credits.append((5, clock.reserve(5), 1, -1, 0))
    clock.advance(4)
    assert pair.claim() is None
    clock.advance(5)
    assert pair.claim() == 1


def test_a_message_alone_takes_what_its_parts_take(engine: GraphEngine) -> None:
    """Zero-load, TCM to TCM in one corner: ipcq 2, set-up 2, xbar 2, 64 B over 256, ipcq 2."""
    install(engine, line_of(A, B))
    data = numbers(engine, A, B)
    times: dict[str, int] = {}
    engine.machine.hooks.queue.subscribe(lambda event: times.setdefault(event.kind, event.time_ps))
    launch(engine, pour, data, 16, 1, 0, pes=(A, B))
    route = engine.machine.route("sip0.cube0.pe0.pe_dma", "sip0.cube0.pe1.pe_dma")
    assert times["arrive"] - times["send"] == 2000 + 2000 + route.latency_ps(64) + 2000


def fails_on_one(ptr: int, what: str, tl: Any) -> None:
    if tl.program_id(0) == 1:
        if what == "direction":
            tl.send("global_N", tl.load(ptr, (16,), "f32"))
        raise ValueError("a bug of the user")
    tl.recv("W", (16,), "f32")


@pytest.mark.parametrize(
    ("what", "error", "words"),
    [("bug", ValueError, "a bug of the user"), ("direction", IpcqInvalidDirection, "no queue 'global_N'")],
)
def test_a_kernel_that_failed_is_the_cause_of_a_deadlock(
    engine: GraphEngine, what: str, error: type[Exception], words: str
) -> None:
    install(engine, ring_of(A, B))
    data = numbers(engine, A, B)
    with pytest.raises(error, match=words) as caught:
        launch(engine, fails_on_one, data, what, pes=(A, B))
    deadlock = caught.value.__cause__
    assert isinstance(deadlock, IpcqDeadlock)
    assert f"the kernel on sip0.cube0.pe1 has failed: {caught.value}" in str(deadlock)


@pytest.mark.parametrize("kind", ["tcm", "hbm"])
def test_credits_are_back_when_a_launch_is_over(kind: Any) -> None:
    engine = GraphEngine(compiled(*SMALL))
    there = (1, 1, 7)
    install(engine, [((A, "E"), (there, "W")), ((A, "W"), (there, "E"))], kind=kind)
    data = numbers(engine, A, there)
    launch(engine, exchange, data, 16, pes=(A, there))
    assert all(pair.settled for pair in pairs(engine, (A, there)))


def two_senders(ptr: int, tl: Any) -> None:
    """PE 1 takes four messages from any queue, slowly: the order in which its sides are served goes to memory."""
    if tl.program_id(0) != 1:
        mine = tl.load(ptr, (16,), "f32")
        for _ in range(2):
            tl.send("E" if tl.program_id(0) == 0 else "W", mine)
        return
    order = tl.zeros((16,), "f32")
    for _ in range(4):
        order = order * 10.0 + tl.recv(None, (16,), "f32")
        for _ in range(8):
            order = tl.wait(order * 1.0)
    tl.store(ptr, order)


def test_a_queue_that_was_waited_for_goes_behind_the_others(engine: GraphEngine) -> None:
    install(engine, line_of(A, B, C))
    data = numbers(engine, A, B, C)
    launch(engine, two_senders, data, pes=(A, B, C))
    assert held(engine, data, B)[0] in (1313, 3131)


def foreign_tcm(ptr: int, tl: Any) -> None:
    tl.send("E", src_addr=1 << 40, nbytes=4, space="tcm")


def test_an_address_in_another_tcm_is_refused(engine: GraphEngine) -> None:
    install(engine, line_of(A, B))
    with pytest.raises(KernelError, match="is not in the TCM of this PE"):
        launch(engine, foreign_tcm, numbers(engine, A), pes=(A,))


def test_the_message_of_an_abandoned_receive_may_come_after_all(engine: GraphEngine) -> None:
    """Its slot is given back before it comes, and the sender goes on; nothing is taken for a message that is none."""
    install(engine, line_of(A, B), n_slots=1)

    def receiver(tl):
        tl.wait(tl.recv_async("W", (16,), "f32"))

    def sender(tl):
        for number in (1.0, 2.0):
            tl.send("E", tl.full((16,), number, "f32"))

    def start(kernel, pe):
        return engine.submit(KernelLaunchMsg(kernel=KernelRef(name="k", function=kernel), args=(), targets=(pe,)))

    stuck = start(receiver, B)
    engine.run_until(engine.now + 600)
    start(sender, A)
    engine.abandon([stuck])
    assert all(pair.settled for pe in (A, B) for pair in queue_part(engine.machine, pe).queue_pairs.values())


@pytest.mark.parametrize("n_slots", [1, 2])
def test_a_slot_that_was_given_back_before_its_message_came_makes_no_second_message(n_slots: int) -> None:
    peer = QueuePeer(pe=A, direction="E", rx_base_pa=0)
    pair = QueuePair(QueueSetup(direction="W", peer=peer, rx_base_pa=0, n_slots=n_slots, slot_size=64))
    for _ in range(n_slots):
        pair.take()
    for slot in range(n_slots):
        assert pair.release(slot)
    for slot in range(n_slots):
        pair.arrive(slot, slot * 64, 16)
        assert pair.peer_head_cache == slot + 1
    assert not pair.ready


def test_a_shape_that_a_kernel_changes_is_looked_at_again(engine: GraphEngine) -> None:
    def kernel(ptr: int, tl: Any) -> None:
        mine, shape = tl.load(ptr, (16,), "f32"), [16]
        tl.send("E", mine)
        tl.send("E", tl.load(ptr, (8,), "f32"))
        for n in (16, 8):
            shape[0] = n
            got = tl.recv("W", shape, "f32")
            assert got.shape == (n,)
            tl.store(ptr, got * 2.0)

    install(engine, ring_of(A, B))
    data = numbers(engine, A, B)
    launch(engine, kernel, data, pes=(A, B))
    assert held(engine, data, A).tolist() == [4.0] * 16
    assert_settled(engine, (A, B))


def test_a_queue_that_names_another_sender_is_an_error_when_its_message_is_received(engine: GraphEngine) -> None:
    """Not only when the slot goes back, of which nobody would hear."""
    base = engine.allocators[B].reserve_ipcq_tcm(4096).encode()
    here = setup("E", None, QueuePeer(pe=B, direction="W", rx_base_pa=base))
    there = setup("W", base, QueuePeer(pe=C, direction="E", rx_base_pa=None))
    for owner, queue in ((A, here), (B, there)):
        engine.wait(engine.submit(IpcqInitMsg(pe=owner, queues=(queue,))))

    def kernel(ptr: int, tl: Any) -> None:
        if tl.program_id(0) == 0:
            tl.send("E", tl.load(ptr, (16,), "f32"))
        else:
            tl.store(ptr, tl.recv("W", (16,), "f32"))

    with pytest.raises(IpcqError, match=r"pe2.pe_ipcq: a credit for the ring at .* which no queue uses"):
        launch(engine, kernel, numbers(engine, A, B), pes=(A, B))


def test_what_a_queue_has_sent_is_counted_when_it_begins_in_the_order_of_first_use(engine: GraphEngine) -> None:
    def kernel(ptr: int, tl: Any) -> None:
        x = tl.load(ptr, (16,), "f32")
        for direction in ("W", "E"):
            tl.send(direction, x)
        for direction in ("E", "W"):
            tl.recv(direction, (16,), "f32")

    install(engine, ring_of(A, B))
    part = queue_part(engine.machine, A)
    seen: list[tuple[int, int]] = []
    engine.machine.hooks.queue.subscribe(
        lambda _: seen.append(
            (sum(c.messages for c in part.traffic.values()), sum(c.nbytes for c in part.traffic.values()))
        )
    )
    data = numbers(engine, A, B)
    for times in (1, 2):
        launch(engine, kernel, data, pes=(A, B))
        assert [(name, c.messages, c.nbytes) for name, c in part.traffic.items()] == [
            ("W", times, 64 * times),
            ("E", times, 64 * times),
        ]
    assert all(nbytes == 64 * messages for messages, nbytes in seen)
    for pe in (A, B):
        engine.wait(engine.submit(IpcqRemoveMsg(pe=pe)))
    assert [(name, c.messages) for name, c in part.traffic.items()] == [("W", 2), ("E", 2)]
    install(engine, ring_of(A, B))
    launch(engine, kernel, data, pes=(A, B))
    assert [(name, c.messages) for name, c in part.traffic.items()] == [("W", 3), ("E", 3)]
