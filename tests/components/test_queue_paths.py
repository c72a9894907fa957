"""Critical paths through queues: they add up, leave no wait without a cause, and name whose kernel was waited for."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from queue_support import Shared, install, line_of, ring_of, share
from rich.console import Console

from compiled import compiled
from covering import covering
from kernbench.cli.console import render_report
from kernbench.common.figures import to_plain
from kernbench.engine.engine import GraphEngine
from kernbench.engine.requests import RequestHandle
from kernbench.messages.requests import KernelLaunchMsg, KernelRef, PeCoord
from kernbench.observe.critical_path import PathFinder
from kernbench.observe.critical_path_model import CriticalPath, PathPart
from kernbench.result.explanation import describe_explanation
from kernbench.runtime_api.run_explanation import explain_run
from observed import log_of, logged

A, B, C = (0, 0, 0), (0, 0, 1), (0, 0, 2)
FAR = (1, 0, 0)
SMALL = ("sip.cube_mesh.w=1", "sip.cube_mesh.h=1")


def watched(*overrides: str) -> GraphEngine:
    """An engine whose critical paths are asked for."""
    return logged(compiled(*SMALL, *overrides))


def start(engine: GraphEngine, kernel: Any, *args: Any, pes: tuple[PeCoord, ...]) -> list[RequestHandle]:
    """One launch for each SIP, all at once, and to the end."""
    handles = []
    for sip in sorted({pe[0] for pe in pes}):
        given = tuple(a.args[sip] if isinstance(a, Shared) else a for a in args)
        ref = KernelRef(name=kernel.__name__, function=kernel)
        targets = tuple(pe for pe in pes if pe[0] == sip)
        message = KernelLaunchMsg(kernel=ref, args=given, targets=targets)
        handles.append(engine.submit(replace(message, name=f"{kernel.__name__} of rank {sip}")))
    for handle in handles:
        engine.wait(handle)
    engine.drain()
    return handles


def zeros(engine: GraphEngine, *pes: PeCoord, n: int = 64) -> Any:
    return share(engine, {pe: np.zeros(n, np.float32) for pe in pes})


def path_of(engine: GraphEngine, handle: RequestHandle) -> CriticalPath:
    """The path of a request, which is contiguous and has no wait without a cause."""
    path = PathFinder(log_of(engine).seen, engine.handles).of_request(handle)
    assert (path.steps[0].start_ps, path.steps[-1].end_ps) == (handle.submitted_ps, handle.ended_ps)
    assert all(before.end_ps == after.start_ps for before, after in pairwise(path.steps))
    assert all(step.ps > 0 for step in path.steps)
    assert sum(each.ps for each in path.parts) == handle.ended_ps - handle.submitted_ps
    assert [step for step in path.steps if step.part is PathPart.WAIT] == []
    assert all(handle.submitted_ps < hop.end_ps <= handle.ended_ps for hop in path.hops)
    return path


def parts_of(path: CriticalPath) -> dict[PathPart, int]:
    return {each.part: each.ps for each in path.parts}


def line(kernel: Any, offset: int) -> int:
    return kernel.__code__.co_firstlineno + offset


def late_sender(ptr: int, n: int, work: int, tl: Any) -> None:
    if tl.program_id(0) == 0:
        x = tl.full((n,), 1.0, "f32")
        for _ in range(work):
            x = tl.exp(x)
        tl.send("E", x)
    else:
        tl.store(ptr, tl.recv("W", (n,), "f32"))


@pytest.mark.parametrize("kind", ["tcm", "sram", "hbm"])
def test_a_receiver_waits_for_what_its_sender_does(kind: Any) -> None:
    engine = watched()
    install(engine, line_of(A, B), kind=kind)
    (handle,) = start(engine, late_sender, zeros(engine, A, B), 64, 20, pes=(A, B))
    path = path_of(engine, handle)
    parts = parts_of(path)
    assert parts[PathPart.MATH] == 21 * (2000 + 1000)  # 20 exp and the full before them, 256 B each
    # The slot's address, the arrival; a slice's buses still turn from the write when the message is read.
    assert parts[PathPart.QUEUES] == 2000 + (2000 if kind != "hbm" else 0)
    route = engine.machine.route("sip0.cube0.pe0.pe_dma", "sip0.cube0.pe1.pe_dma")
    if kind == "tcm":
        way = [step.ps for step in path.steps if step.pe == A and step.part in (PathPart.MESSAGE, PathPart.SERVICE)]
        assert sum(way) == route.latency_ps(256)
        assert PathPart.DOORBELL not in parts
    else:
        assert (PathPart.DOORBELL in parts) == (kind == "sram")
    (hop,) = path.hops
    assert (hop.waiting.pe, hop.waiting.line) == (B, line(late_sender, 7))
    assert (hop.cause.pe, hop.cause.line) == (A, line(late_sender, 5))
    if kind == "hbm":
        assert (hop.waited_for, hop.direction) == ("memory", "sip0.cube0.hbm1")
    else:
        assert (hop.waited_for, hop.direction) == ("message", "W")
        assert hop.ps > 60_000


@pytest.mark.parametrize(("setup_ns", "kind"), covering((2, 20), ("tcm", "sram", "hbm")))
def test_the_set_up_of_a_send_is_on_the_path(kind: Any, setup_ns: int) -> None:
    """A message leaves when its descriptor is set up: that time is the DMA's and the send's, nobody else's.

    Without it the path would give the time to what was before: to an operation that was over, or to the issue.
    """
    engine = watched(f"pe.dma.setup_ns={setup_ns}")
    install(engine, line_of(A, B), kind=kind)
    (handle,) = start(engine, late_sender, zeros(engine, A, B), 64, 20, pes=(A, B))
    steps = [step for step in path_of(engine, handle).steps if step.pe == A]
    (set_up,) = [step for step in steps if step.part is PathPart.DMA_SETUP]
    assert (set_up.ps, set_up.line) == (setup_ns * 1000, line(late_sender, 5))
    after = steps[steps.index(set_up) + 1]
    assert after.part is PathPart.MESSAGE


def slow_receiver(ptr: int, n: int, count: int, tl: Any) -> None:
    if tl.program_id(0) == 0:
        x = tl.full((n,), 1.0, "f32")
        for _ in range(count):
            tl.send("E", x)
        tl.store(ptr, x)
    else:
        for _ in range(count):
            x = tl.recv("W", (n,), "f32")
            for _ in range(10):
                x = tl.exp(x)
            tl.wait(x)
            del x


@pytest.mark.parametrize(("mode", "poll_ns"), [("sleep", 50.0), ("poll", 17.0)])
def test_a_sender_waits_for_what_its_receiver_does(mode: str, poll_ns: float) -> None:
    engine = watched()
    install(engine, line_of(A, FAR), n_slots=2, backpressure=mode, poll_ns=poll_ns)

    def kernel(ptr: int, n: int, count: int, tl: Any) -> None:
        if tl.program_id(2) == 0:
            x = tl.full((n,), 1.0, "f32")
            for _ in range(count):
                tl.send("E", x)
            tl.store(ptr, x)
        else:
            for _ in range(count):
                x = tl.recv("W", (n,), "f32")
                for _ in range(100):
                    x = tl.exp(x)
                tl.wait(x)
                del x

    first, _ = start(engine, kernel, zeros(engine, A, FAR), 64, 6, pes=(A, FAR))
    path = path_of(engine, first)
    parts = parts_of(path)
    assert parts[PathPart.CREDIT] > 0
    assert (PathPart.POLL in parts) == (mode == "poll")
    assert parts[PathPart.MATH] > 3 * 100 * 3000
    by_slots = [hop for hop in path.hops if hop.waited_for == "slot"]
    assert {(hop.waiting.pe, hop.cause.pe, hop.direction) for hop in by_slots} == {(A, FAR, "E")}
    assert all(hop.cause.launch_id != hop.waiting.launch_id for hop in by_slots)


def collective(ptr: int, n: int, works: int, tl: Any) -> None:
    """One rank has more to do before the exchange."""
    x = tl.full((n,), 1.0, "f32")
    if tl.program_id(2) == 1:
        for _ in range(works):
            x = tl.exp(x)
    tl.send("E", x)
    tl.store(ptr, x + tl.recv("W", (n,), "f32"))


def test_an_explanation_names_the_rank_that_came_late() -> None:
    engine = watched()
    install(engine, ring_of(A, FAR))
    early, late = start(engine, collective, zeros(engine, A, FAR), 64, 500, pes=(A, FAR))
    path = path_of(engine, early)
    assert parts_of(path)[PathPart.MATH] > 500 * 3000
    assert early.ended_ps - early.submitted_ps > 500 * 3000
    (hop,) = path.hops
    assert hop.waiting.launch_id == early.request_id
    assert (hop.cause.pe, hop.cause.launch_id) == (FAR, late.request_id)
    assert hop.ps > 0.9 * 500 * 3000
    found = explain_run(log_of(engine), engine.handles, 0.0, engine.now)
    launch = next(each for each in found.launches if each.request_id == early.request_id)
    (wait,) = launch.waits
    assert (wait.waiting.pe, wait.cause.pe, wait.count) == (A, FAR, 1)
    assert (wait.waiting.kernel, wait.cause.kernel) == ("collective of rank 0", "collective of rank 1")
    assert (wait.waiting.line, wait.cause.line) == (line(collective, 7), line(collective, 6))
    shares = {each.pe: each.ns for each in launch.pes}
    assert shares[FAR] > 0.8 * path.ps / 1000
    # Lines are of its own kernel: what the other rank did is not among them.
    assert sum(each.path_ns for each in launch.lines) < 0.2 * path.ps / 1000
    assert path_of(engine, late).hops == ()


def test_the_report_names_it_too(capsys: pytest.CaptureFixture[str]) -> None:
    engine = watched()
    install(engine, ring_of(A, FAR))
    early, late = start(engine, collective, zeros(engine, A, FAR), 64, 500, pes=(A, FAR))
    found = explain_run(log_of(engine), engine.handles, 0.0, engine.now)
    explanation = describe_explanation("ring", found)
    for part in render_report(explanation.report()):
        Console(width=200).print(part)
    text = capsys.readouterr().out
    waiting, sending = line(collective, 7), line(collective, 6)
    assert f"sip0.cube0.pe0 (collective of rank 0 line {waiting})" in text
    assert f"sip1.cube0.pe0 (collective of rank 1 line {sending})" in text
    assert "a message of queue W" in text
    document = json.loads(json.dumps(to_plain(explanation)))
    (launch,) = (each for each in document["launches"] if each["request_id"] == early.request_id)
    (wait,) = launch["waits"]
    assert (wait["for"], wait["direction"], wait["count"]) == ("message", "W", 1)
    assert wait["cause"] == {
        "pe": [1, 0, 0],
        "request_id": late.request_id,
        "kernel": "collective of rank 1",
        "line": sending,
    }
    assert launch["kernels"][0]["pe"] == [1, 0, 0]


def test_a_launch_that_was_submitted_late_is_the_hosts() -> None:
    engine = watched()
    install(engine, ring_of(A, FAR))
    data = zeros(engine, A, FAR)
    ref = KernelRef(name="collective", function=collective)
    one = KernelLaunchMsg(kernel=ref, args=(data.args[0], 64, 0), targets=(A,))
    other = KernelLaunchMsg(kernel=ref, args=(data.args[1], 64, 0), targets=(FAR,))
    early = engine.submit(one)
    engine.run_until(engine.now + 5000)
    late = engine.submit(other)
    engine.wait(early)
    engine.wait(late)
    assert parts_of(path_of(engine, early))[PathPart.HOST_WAIT] == 5_000_000
    assert PathPart.HOST_WAIT not in parts_of(path_of(engine, late))


def test_what_the_other_rank_did_before_it_came_is_the_reason() -> None:
    """It computes in a kernel of its own before the collective; the early rank's path goes through that."""
    engine = watched()
    install(engine, ring_of(A, FAR))
    data = zeros(engine, A, FAR)

    def compute(ptr: int, n: int, tl: Any) -> None:
        x = tl.full((n,), 1.0, "f32")
        for _ in range(400):
            x = tl.exp(x)

    def message(kernel: Any, pe: PeCoord, *args: Any) -> KernelLaunchMsg:
        ref = KernelRef(name=kernel.__name__, function=kernel)
        return KernelLaunchMsg(kernel=ref, args=(data.args[pe[0]], 64, *args), targets=(pe,))

    early = engine.submit(message(collective, A, 0))
    before = engine.submit(message(compute, FAR))
    engine.wait(before)
    late = engine.submit(message(collective, FAR, 0))
    engine.wait(early)
    engine.wait(late)
    path = path_of(engine, early)
    parts = parts_of(path)
    assert PathPart.HOST_WAIT not in parts
    assert parts[PathPart.MATH] > 400 * 3000
    assert {step.launch_id for step in path.steps if step.part is PathPart.MATH} >= {before.request_id}
    found = explain_run(log_of(engine), engine.handles, 0.0, engine.now)
    launch = next(each for each in found.launches if each.request_id == early.request_id)
    assert (launch.pes[0].pe, launch.pes[0].kernel) == (FAR, "compute")
    run = PathFinder(log_of(engine).seen, engine.handles).of_run(early.submitted_ps, early.ended_ps)
    assert run.ps == early.ended_ps - early.submitted_ps


def posted(ptr: int, n: int, tl: Any) -> None:
    if tl.program_id(0) == 0:
        x = tl.full((n,), 1.0, "f32")
        for _ in range(30):
            x = tl.exp(x)
        tl.send("E", x)
        tl.send("E", x)
    else:
        first = tl.recv_async("W", (n,), "f32")
        second = tl.recv_async("W", (n,), "f32")
        tl.store(ptr, first + 1.0)
        tl.wait(second)
        tl.store(ptr, second)


def test_receives_that_were_posted() -> None:
    engine = watched()
    install(engine, line_of(A, B))
    (handle,) = start(engine, posted, zeros(engine, A, B), 64, pes=(A, B))
    path = path_of(engine, handle)
    assert parts_of(path)[PathPart.MATH] >= 31 * 3000
    assert {(hop.waiting.pe, hop.cause.pe) for hop in path.hops if hop.direction} == {(B, A)}


def test_a_run_has_the_hops_of_its_launches() -> None:
    engine = watched()
    install(engine, ring_of(A, FAR))
    early, _ = start(engine, collective, zeros(engine, A, FAR), 64, 50, pes=(A, FAR))
    run = PathFinder(log_of(engine).seen, engine.handles).of_run(0, early.ended_ps)
    assert sum(each.ps for each in run.parts) == early.ended_ps
    assert {(hop.waiting.pe, hop.cause.pe) for hop in run.hops} == {(A, FAR)}


# --- any program ------------------------------------------------------------------------------------------------------

STEPS = ("exp", "load", "store", "send", "recv", "copy", "async", "forward", "barrier", "any")


def program(steps: tuple[str, ...], skew: int, n: int) -> Any:
    """Every PE of a ring does the same; PE 0 works longer before. Sends are never more than receives allow."""

    def kernel(ptr: int, tl: Any) -> None:
        x = tl.load(ptr, (n,), "f32")
        for _ in range(skew if tl.program_id(0) == 0 else 0):
            x = tl.exp(x)
        for step in steps:
            match step:
                case "exp":
                    x = tl.exp(x)
                case "load":
                    x = x + tl.load(ptr, (n,), "f32")
                case "store":
                    tl.store(ptr, x)
                case "send":
                    tl.send("E", x)
                    tl.recv("W", (n,), "f32")
                case "recv":
                    tl.send("E", x)
                    x = x + tl.recv("W", (n,), "f32")
                case "copy":
                    tl.send("E", x)
                    x = tl.recv("W", (n,), "f32", dst_space="tcm")
                case "async":
                    y = tl.recv_async("W", (n,), "f32")
                    tl.send("E", x)
                    x = x * y
                    del y
                case "forward":
                    tl.send("E", x)
                    y = tl.recv("W", (n,), "f32")
                    tl.send("E", y)
                    x = y + tl.recv("W", (n,), "f32")
                    del y
                case "any":
                    tl.send("E", x)
                    x = x + tl.recv(None, (n,), "f32")
                case "barrier":
                    tl.barrier()
        tl.store(ptr, x)

    return kernel


@given(
    steps=st.lists(st.sampled_from(STEPS), max_size=9).map(tuple),
    skew=st.integers(0, 12),
    n=st.sampled_from([16, 200, 1024]),
    n_slots=st.integers(3, 5),
    kind=st.sampled_from(["tcm", "hbm", "sram"]),
    mode=st.sampled_from([("sleep", 50.0), ("poll", 13.0)]),
    count=st.integers(2, 4),
    overrides=st.lists(
        st.sampled_from(
            (
                "pe.components.pe_cpu.attrs.issue_ns=0",
                "pe.dma.setup_ns=0",
                "pe.dma.setup_ns=20",
                "transport.express=false",
                "pe.components.pe_cpu.attrs.launch_ns=0",
            )
        ),
        max_size=2,
    ),
)
def test_any_program_adds_up(
    steps: tuple[str, ...],
    skew: int,
    n: int,
    n_slots: int,
    kind: Any,
    mode: tuple[str, float],
    count: int,
    overrides: list[str],
) -> None:
    engine = watched(*overrides)
    pes = tuple((0, 0, pe) for pe in range(count))
    install(engine, ring_of(*pes), n_slots=n_slots, kind=kind, backpressure=mode[0], poll_ns=mode[1])
    data = zeros(engine, *pes, n=n)
    for _ in range(2):
        (handle,) = start(engine, program(steps, skew, n), data, pes=pes)
        path_of(engine, handle)
