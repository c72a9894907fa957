"""Kernels with queues that fail, are stopped, or leave something behind: memory and slots go back all the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from queue_support import assert_settled, held, install, launch, ring_of, share

from compiled import compiled
from covering import sample
from kernbench.common.errors import AllocationError, InputError, IpcqDeadlock, KernelError
from kernbench.engine.engine import GraphEngine, Observer
from kernbench.engine.queues import queue_part
from kernbench.messages.requests import IpcqRemoveMsg, KernelLaunchMsg, KernelRef, MmuMapMsg, TensorMapping
from kernbench.observe.sanitizer import Sanitizer
from kernbench.topology.builder import Topology

A, B, C, D = (0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 0, 3)


@pytest.fixture
def engine(topology: Topology) -> GraphEngine:
    return ringed(topology)


def ringed(topology: Topology, *observers: Observer) -> GraphEngine:
    engine = GraphEngine(topology, observers=observers)
    install(engine, ring_of(A, B))
    return engine


def numbers(engine: GraphEngine, n: int = 16) -> Any:
    return share(engine, {A: np.full(n, 1, np.float32), B: np.full(n, 2, np.float32)})


def start(engine: GraphEngine, kernel: Any, data: Any, *pes: Any) -> Any:
    return engine.submit(
        KernelLaunchMsg(kernel=KernelRef(name="k", function=kernel), args=(data.args[0],), targets=pes or (A, B))
    )


def swap(ptr: int, tl: Any) -> None:
    tl.send("E", tl.load(ptr, (16,), "f32"))
    tl.store(ptr, tl.recv("W", (16,), "f32"))


def assert_goes_on(engine: GraphEngine, data: Any) -> None:
    """The PEs exchange what they hold."""
    before = held(engine, data, A)[0], held(engine, data, B)[0]
    launch(engine, swap, data, pes=(A, B))
    assert (held(engine, data, B)[0], held(engine, data, A)[0]) == before
    assert_settled(engine, (A, B))


def test_what_waits_for_a_message_can_be_abandoned_while_somebody_listens(topology: Topology) -> None:
    engine = ringed(topology, Sanitizer())
    waited: list[Any] = []
    engine.machine.hooks.queue_waited.subscribe(waited.append)
    data = numbers(engine)
    stuck = start(engine, lambda ptr, tl: tl.recv("W", (16,), "f32"), data)
    with pytest.raises(IpcqDeadlock):
        engine.wait(stuck)
    engine.abandon([stuck])
    assert [(event.kind, event.direction) for event in waited] == [("recv", "W")] * 2
    assert_goes_on(engine, data)


@pytest.mark.parametrize("what", ["store", "send", "add", "receive"])
def test_a_kernel_that_is_stopped_and_makes_commands_all_the_same_ends(engine: GraphEngine, what: str) -> None:
    def stubborn(ptr: int, tl: Any) -> None:
        x = tl.load(ptr, (16,), "f32")
        try:
            tl.recv("W", (16,), "f32")
        finally:
            if what == "store":
                tl.store(ptr, x)
            elif what == "send":
                tl.send("E", x)
            elif what == "add":
                x += x
            else:
                tl.recv_async("W", (16,), "f32")

    data = numbers(engine)
    stuck = start(engine, stubborn, data)
    with pytest.raises(IpcqDeadlock):
        engine.wait(stuck)
    engine.abandon([stuck])
    assert stuck.done
    assert_goes_on(engine, data)


def posts_twice(ptr: int, delay: int, caught: list[tuple[str, str]], tl: Any) -> None:
    """PE 1 posts two receives, ``delay`` additions apart; the message of the first is too small."""
    x = tl.load(ptr, (16,), "f32")
    tl.wait(x)
    if tl.program_id(0) == 0:
        small = tl.load(ptr, (8,), "f32")
        tl.wait(small)
        tl.send("E", small)
        tl.send("E", x)
        return

    def attempt(what: str, call: Any) -> Any:
        try:
            return call()
        except KernelError as error:
            caught.append((what, str(error)))

    handles = [attempt("first", lambda: tl.recv_async("W", (16,), "f32"))]
    for _ in range(delay):
        attempt("add", lambda: x + x)
    handles.append(attempt("second", lambda: tl.recv_async("W", (16,), "f32")))
    for handle in handles:
        if handle is not None:
            attempt("wait", lambda handle=handle: tl.wait(handle))


def twice_posted(delay: int, caught: list[tuple[str, str]]) -> Any:
    def kernel(ptr: int, tl: Any) -> None:
        posts_twice(ptr, delay, caught, tl)

    return kernel


@pytest.mark.parametrize("delays", sample((range(56), range(26, 36)), range(26, 36)), ids=str)
def test_an_error_of_a_posted_receive_may_come_out_of_the_call_of_another(topology: Topology, delays: range) -> None:
    """The message comes before, while, or after the second is posted."""
    out_of: set[str] = set()
    for delay in delays:
        caught: list[tuple[str, str]] = []
        engine = ringed(topology)
        launch(engine, twice_posted(delay, caught), numbers(engine), pes=(A, B))
        assert len(caught) == 1, (delay, caught)
        assert "has 32 bytes, the kernel receives 64" in caught[0][1]
        out_of.add(caught[0][0])
    assert out_of == {"add", "second", "wait"}


def test_slots_that_a_kernel_leaves_held_go_back_however_many_it_had(engine: GraphEngine) -> None:
    kept: list[Any] = []

    def kernel(ptr: int, tl: Any) -> None:
        x = tl.load(ptr, (16,), "f32")
        if tl.program_id(0) == 0:
            for _ in range(1306):
                tl.send("E", x)
            return
        for _ in range(4):
            tl.recv("W", (16,), "f32")
        for _ in range(1300):
            tl.wait(tl.recv_async("W", (16,), "f32"))
        kept.extend(tl.recv("W", (16,), "f32") for _ in range(2))

    data = numbers(engine)
    launch(engine, kernel, data, pes=(A, B))
    assert_settled(engine, (A, B))
    assert_goes_on(engine, data)
    kept.clear()
    assert_goes_on(engine, data)


def test_a_shape_that_is_no_number_of_elements_is_refused_whatever_ran_before(engine: GraphEngine) -> None:
    def kernel(ptr: int, n: Any, tl: Any) -> None:
        tl.send("E", tl.load(ptr, (16,), "f32"))
        tl.store(ptr, tl.recv("W", (n,), "f32"))

    data = numbers(engine)
    launch(engine, kernel, data, 16, pes=(A, B))
    with pytest.raises(KernelError, match=r"not \(16\.0,\)"):
        launch(engine, kernel, data, 16.0, pes=(A, B))


def test_full_scratch_is_an_error_at_once_when_nothing_is_about_to_go_back(topology: Topology) -> None:
    """Commands that use scratch are under way, but the kernel has all their handles."""
    engine = ringed(topology, Sanitizer())
    waited: list[Any] = []
    engine.machine.hooks.scratch_waited.subscribe(waited.append)

    def hoard(ptr: int, tl: Any) -> None:
        posted = tl.recv_async("W", (16,), "f32")
        more = posted + 1.0
        handles: list[Any] = []
        try:
            while True:
                handles.append(tl.load(ptr, (65536,), "f32"))
        except AllocationError:
            assert not waited
            handles.clear()
        tl.send("E", tl.full((16,), 1.0, "f32"))
        tl.store(ptr, more)

    data = numbers(engine, 65536)
    launch(engine, hoard, data, pes=(A, B))
    assert held(engine, data, A)[0] == 2
    assert not waited


def test_full_scratch_waits_for_what_is_about_to_go_back(engine: GraphEngine) -> None:
    waited: list[Any] = []
    engine.machine.hooks.scratch_waited.subscribe(waited.append)

    def stream(ptr: int, tl: Any) -> None:
        total = tl.zeros((65536,), "f32")
        for _ in range(80):
            total = total + tl.load(ptr, (65536,), "f32")
        tl.store(ptr, total)

    data = numbers(engine, 65536)
    launch(engine, stream, data, pes=(A,))
    assert held(engine, data, A)[0] == 80
    assert waited


def send_east(ptr: int, tl: Any) -> None:
    tl.send("E", tl.load(ptr, (16,), "f32"))


def fails_beside_a_sender(ptr: int, tl: Any) -> None:
    if tl.program_id(0) == 1:
        raise ZeroDivisionError
    send_east(ptr, tl)


@pytest.mark.parametrize("overhead_ns", [2, 5000])
def test_what_a_failed_launch_has_sent_is_gone_when_it_is_given_up(overhead_ns: int) -> None:
    """Also what nobody has taken note of yet when the host is told."""
    few = ("sip.cube_mesh.w=1", "sip.cube_mesh.h=1", f"pe.components.pe_ipcq.attrs.overhead_ns={overhead_ns}")
    engine = ringed(compiled(*few))
    data = numbers(engine)
    failing = start(engine, fails_beside_a_sender, data)
    with pytest.raises(ZeroDivisionError):
        engine.wait(failing)
    engine.abandon([failing])
    assert_settled(engine, (A, B))
    assert_goes_on(engine, data)


def test_queues_that_others_use_are_left_alone(topology: Topology) -> None:
    """D has one of the two messages that it receives, and waits for the other when A and B fail."""

    def receive_both(ptr: int, tl: Any) -> None:
        first = tl.recv("W", (16,), "f32")
        tl.store(ptr, first + tl.recv("W", (16,), "f32"))

    engine = GraphEngine(topology)
    install(engine, [*ring_of(A, B), *ring_of(C, D)])
    data = share(engine, {pe: np.full(16, at + 1, np.float32) for at, pe in enumerate((A, B, C, D))})
    launch(engine, send_east, data, pes=(C,))
    waiting = start(engine, receive_both, data, D)
    failing = start(engine, fails_beside_a_sender, data)
    with pytest.raises(ZeroDivisionError):
        engine.wait(failing)
    engine.abandon([failing])
    assert not waiting.done
    launch(engine, send_east, data, pes=(C,))
    engine.wait(waiting)
    assert held(engine, data, D)[0] == 2 * 3
    assert_goes_on(engine, data)


def test_queues_are_removed_behind_the_kernels_that_use_them(engine: GraphEngine) -> None:
    data = numbers(engine)
    swapping = start(engine, swap, data)
    for handle in [engine.submit(IpcqRemoveMsg(pe=pe)) for pe in (A, B)]:
        engine.wait(handle)
    assert swapping.done
    assert held(engine, data, A)[0] == 2
    assert not queue_part(engine.machine, A).queue_pairs


def test_what_comes_to_a_queue_that_is_gone_is_lost(engine: GraphEngine) -> None:
    data = numbers(engine)
    sending = start(engine, send_east, data, A)
    engine.wait(engine.submit(IpcqRemoveMsg(pe=B)))
    assert not sending.done
    engine.wait(sending)
    engine.drain()
    [lost] = queue_part(engine.machine, B).pending_messages
    assert (lost.pe, lost.direction, lost.peer, lost.peer_direction) == (A, "E", B, "W")
    assert (lost.nbytes, lost.kernel) == (64, "k")
    engine.wait(engine.submit(IpcqRemoveMsg(pe=A)))
    install(engine, ring_of(A, B))
    assert not queue_part(engine.machine, B).pending_messages
    assert_goes_on(engine, data)


def test_a_mapping_that_overlaps_another_is_the_failure_of_its_request(engine: GraphEngine) -> None:
    data = numbers(engine)
    mapping = TensorMapping(name="twice", va_base=data.args[0].va, nbytes=64, shards=())
    with pytest.raises(InputError, match="overlaps"):
        engine.wait(engine.submit(MmuMapMsg(sip=0, mapping=mapping)))
    assert_goes_on(engine, data)


@pytest.mark.parametrize("after_ns", [0, 30, 60, 75, 90])
def test_a_launch_that_is_given_up_on_its_way_runs_no_more_of_its_kernel(engine: GraphEngine, after_ns: float) -> None:
    ran: list[float] = []

    def kernel(ptr: int, tl: Any) -> None:
        for _ in range(100):
            ran.append(engine.now)
            tl.wait(tl.load(ptr, (16,), "f32"))

    data = numbers(engine)
    handle = start(engine, kernel, data)
    engine.run_until(engine.now + after_ns)
    given_up = engine.now
    engine.abandon([handle])
    assert handle.done
    assert not [time for time in ran if time > given_up]
    assert_goes_on(engine, data)
