"""Launches of several streams on a PE: what runs side by side, what waits for what, and what they share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from queue_support import assert_settled, install, ring_of

from causes import check_causes
from kernbench.common.errors import AbandonedError, AllocationError, IpcqDeadlock
from kernbench.core.log import KIND, LAUNCH, START, WIDTH, Kind
from kernbench.engine.engine import GraphEngine
from kernbench.engine.requests import RequestHandle
from kernbench.messages.requests import KernelLaunchMsg, KernelRef, LaunchStream, PeCoord
from kernbench.topology.builder import Topology

A, B = (0, 0, 0), (0, 0, 1)
N = 100


@pytest.fixture
def engine(topology: Topology) -> GraphEngine:
    engine = GraphEngine(topology)
    install(engine, ring_of(A, B))
    return engine


def submit(
    engine: GraphEngine, kernel: Callable[..., object], stream: str | None = None, *pes: PeCoord, count: int = 4
) -> RequestHandle:
    """Submit a launch of ``kernel`` on a stream of so many, by default on PE A."""
    return engine.submit(
        KernelLaunchMsg(
            name=kernel.__name__,
            kernel=KernelRef(name=kernel.__name__, function=kernel),
            args=(),
            targets=pes or (A,),
            stream=None if stream is None else LaunchStream(name=stream, count=count),
        )
    )


def spans(engine: GraphEngine, *handles: RequestHandle) -> list[tuple[float, float]]:
    """Wait for launches of one PE, and return when each kernel began and ended, in ns from the first begin."""
    for handle in handles:
        engine.wait(handle)
    rows = engine.machine.log.rows
    begins = {
        rows[row + LAUNCH]: rows[row + START] for row in range(0, len(rows), WIDTH) if rows[row + KIND] == Kind.LAUNCH
    }
    starts = [begins[handle.request_id] / 1000 for handle in handles]
    times = [engine.get_completion(handle)[1].pe_exec_ns[A] for handle in handles]
    return [(start - min(starts), start - min(starts) + time) for start, time in zip(starts, times, strict=True)]


def talk(tl: Any) -> None:
    """Issue commands that are done at once: the CPU alone takes time."""
    for _ in range(N):
        tl.device_print("here")


def receive(tl: Any) -> None:
    tl.recv("W", (4,), "f32")


def send_much(tl: Any) -> None:
    for _ in range(10):
        tl.send("E", tl.zeros((4,), "f32"))


def receive_much(tl: Any) -> None:
    for _ in range(10):
        receive(tl)


def test_kernels_of_one_stream_run_in_order(engine: GraphEngine) -> None:
    (_, first_end), (begin, end) = spans(engine, submit(engine, talk, "a"), submit(engine, talk, "a"))
    assert first_end <= begin
    assert end - begin == first_end


def test_kernels_of_two_streams_share_the_cpu(engine: GraphEngine) -> None:
    """Side by side they take what both issue, plus what the start takes: one command at a time."""
    ((_, alone),) = spans(engine, submit(engine, talk, "a"))
    issue = engine.spec.pe.components.pe_cpu.attrs.issue_ns * N
    (_, one), (begin, other) = spans(engine, submit(engine, talk, "a"), submit(engine, talk, "b"))
    assert begin < alone
    assert alone + issue - begin <= max(one, other) <= alone + issue + begin
    check_causes(engine.machine)


def test_the_default_stream_waits_and_is_waited_for(engine: GraphEngine) -> None:
    order = [submit(engine, talk, "a"), submit(engine, talk, "b"), submit(engine, talk), submit(engine, talk, "a")]
    (_, one), (_, other), (begin, end), (last, _) = spans(engine, *order)
    assert max(one, other) <= begin
    assert end <= last


@pytest.mark.parametrize("first", [send_much, receive_much])
def test_a_kernel_that_waits_for_a_queue_holds_up_no_other_stream(engine: GraphEngine, first: Any) -> None:
    second = receive_much if first is send_much else send_much
    for kernel in (first, second):
        submit(engine, kernel, kernel.__name__, A, B)
    assert_settled(engine, (A, B))
    check_causes(engine.machine)


def test_on_one_stream_the_same_kernels_wait_for_ever(engine: GraphEngine) -> None:
    handles = [submit(engine, kernel, "a", A, B) for kernel in (send_much, receive_much)]
    with pytest.raises(IpcqDeadlock, match=r"Full: queue W of sip0\.cube0\.pe1 \(4 slots of 4096 bytes\), queue W of"):
        engine.wait(handles[0])


def test_kernels_of_streams_meet_at_their_own_barriers(engine: GraphEngine) -> None:
    def meet(tl: Any) -> None:
        for _ in range(3 + tl.program_id(0)):
            tl.device_print("on the way")
        tl.barrier()

    for handle in [submit(engine, meet, stream, A, B) for stream in "abc"]:
        engine.wait(handle)


def test_each_kernel_has_its_part_of_the_scratch(engine: GraphEngine) -> None:
    free = engine.allocators[A].largest_tcm_hole()[1]

    def take(nbytes: int) -> Callable[..., object]:
        def kernel(tl: Any) -> None:
            kept = tl.zeros((nbytes,), "i8")
            tl.recv("W", (4,), "f32")
            del kept

        return kernel

    handles = [submit(engine, take(free // 3 - 128), stream, count=3) for stream in "abc"]
    with pytest.raises(IpcqDeadlock):  # all three are there, and none has a message
        engine.wait(handles[0])
    assert engine.allocators[A].largest_tcm_hole()[1] < 3 * 64
    engine.abandon(handles)
    assert engine.allocators[A].largest_tcm_hole()[1] == free
    with pytest.raises(AllocationError, match="scratch is full"):
        engine.wait(submit(engine, take(free // 3 + 128), "a", count=3))


def test_a_kernel_that_is_stopped_leaves_those_beside_it_alone(engine: GraphEngine) -> None:
    stuck, other = submit(engine, receive, "a"), submit(engine, send_much, "b")
    with pytest.raises(IpcqDeadlock, match="1 PE waits: kernel 'receive' waits for"):
        engine.wait(other)
    engine.abandon([stuck])
    with pytest.raises(AbandonedError):
        engine.wait(stuck)
    engine.wait(submit(engine, receive_much, None, B))
    assert engine.wait(other).ok
