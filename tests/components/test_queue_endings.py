"""Kernels with queues that fail, are stopped, or leave something behind: memory and slots go back all the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from queue_support import assert_settled, held, install, launch, ring_of, share

from kernbench.common.errors import AllocationError, IpcqDeadlock, KernelError
from kernbench.messages.requests import KernelLaunchMsg, KernelRef
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology.builder import Topology

A, B = (0, 0, 0), (0, 0, 1)


@pytest.fixture
def engine(topology: Topology) -> GraphEngine:
    return ringed(topology)


def ringed(topology: Topology, **more: Any) -> GraphEngine:
    engine = GraphEngine(topology, **more)
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
    engine = ringed(topology, sanitize=True)
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


def test_an_error_of_a_posted_receive_may_come_out_of_the_call_of_another(topology: Topology) -> None:
    """The message comes before, while, or after the second is posted."""
    out_of: set[str] = set()
    for delay in range(56):
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
    engine = ringed(topology, sanitize=True)
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
