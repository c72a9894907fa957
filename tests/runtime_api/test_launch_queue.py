"""Launches in a stream: the queue of an IO_CPU, the host that goes on, graphs of launches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kernbench.common.errors import InputError, LimitReached
from kernbench.engine.engine import GraphEngine
from kernbench.engine.requests import Limits
from kernbench.messages.requests import KernelRef, PeCoord
from kernbench.observe.trace_log import TraceLog
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.frontends import frontend_settings
from kernbench.runtime_api.requests import Work
from kernbench.runtime_api.run_explanation import explain_run
from kernbench.topology.builder import resolve_topology

ONE_PE: tuple[PeCoord, ...] = ((0, 0, 0),)
EIGHT_PES: tuple[PeCoord, ...] = tuple((0, 0, pe) for pe in range(8))


def nothing(*_: int, tl: Any) -> None:
    """No command."""


def long(*_: int, tl: Any) -> None:
    for _ in range(40):
        tl.barrier()


def fails(*_: int, tl: Any) -> None:
    raise ValueError("a fault of the kernel")


@contextmanager
def context(depth: int | None = None, *overrides: str, data: bool = False) -> Iterator[RuntimeContext[Any]]:
    engine = GraphEngine(resolve_topology("default", overrides), enable_data=data)
    settings = [] if depth is None else [f"torch.queue={depth}"]
    with RuntimeContext[Any](engine, frontends=frontend_settings(settings)) as torch:
        yield torch


def start(
    torch: RuntimeContext[Any], kernel: Callable[..., None] = nothing, *tensors: Any, pes: Any = ONE_PE, **options: Any
) -> Work:
    ref = KernelRef(name=kernel.__name__, function=kernel)
    return torch.launch_on(kernel.__name__, pes, ref, *tensors, in_order=True, **options)


def times_of(torch: RuntimeContext[Any], work: Work) -> tuple[int, int, int]:
    """Return the begin and the end of a launch on its SIP, and its end for the host, in ps."""
    handle = work.handles[-1]
    return (*torch.engine.machine.log.on_device[handle.request_id], handle.ended_ps)


# By hand, see docs/host-programs.md: headers of 32 B on idle links, 10 ns of the IO_CPU, 5 ns of the M_CPU a message.
DOWN, ANSWER = 30_641 + 10_000, 30_641
TO_M_CPU, TO_PE0, LAUNCH = 20_531, 5_197, 5_000
BEHIND_AN_ORDER = 62  # 32 B at 512 GB/s


def test_three_empty_launches_on_a_pe_by_hand() -> None:
    launch = (TO_M_CPU + 5_000 + TO_PE0) + LAUNCH + (TO_PE0 + 5_000 + TO_M_CPU + 10_000)
    with context() as torch:
        works = [start(torch) for _ in range(3)]
        assert torch.engine.now == 0
        torch.drain()
        begins = [DOWN + at * launch for at in range(3)]
        answers = [BEHIND_AN_ORDER + ANSWER, BEHIND_AN_ORDER + ANSWER, ANSWER]
        assert [times_of(torch, work) for work in works] == [
            (begin, begin + launch, begin + launch + answer) for begin, answer in zip(begins, answers, strict=True)
        ]


def test_three_empty_launches_on_eight_pes_by_hand() -> None:
    """The order to PE 7 is the last of eight on a link of 256 GB/s; the M_CPU handles eight reports in turn."""
    to_last = 7_227 + 7 * 125
    launch = (TO_M_CPU + 5_000 + to_last) + LAUNCH + (TO_PE0 + 8 * 5_000 + TO_M_CPU + 10_000)
    with context() as torch:
        works = [start(torch, pes=EIGHT_PES) for _ in range(3)]
        torch.drain()
        assert [times_of(torch, work)[:2] for work in works] == [
            (DOWN + at * launch, DOWN + (at + 1) * launch) for at in range(3)
        ]
        assert all(not report.late for work in works for report in work.handles[-1].outcome.reports)


@pytest.mark.parametrize("pes", [ONE_PE, EIGHT_PES], ids=["1 PE", "8 PEs"])
def test_without_a_queue_the_host_waits_for_each_launch(pes: Any) -> None:
    with context(0) as torch:
        begins = []
        for _ in range(3):
            begins.append(torch.engine.now)
            work = start(torch, pes=pes)
            assert work.is_completed()
        total = begins[1] - begins[0]
        assert begins == pytest.approx([0, total, 2 * total])
        assert torch.queue.report(0) is None


def test_launches_on_other_pes_wait_too_and_another_sip_does_not() -> None:
    with context() as torch:
        first, second, other = start(torch, long), start(torch, pes=((0, 5, 3),)), start(torch, pes=((1, 0, 0),))
        torch.drain()
        assert times_of(torch, second)[0] == times_of(torch, first)[1]
        assert times_of(torch, other)[0] == DOWN + 2 * 500  # behind two headers of 32 B on the link of 64 GB/s


def test_a_full_queue_makes_the_host_wait() -> None:
    with context(2) as torch:
        works = [start(torch) for _ in range(3)]
        assert torch.engine.now == 0
        works.append(start(torch))
        assert torch.engine.now * 1000 == pytest.approx(works[0].handles[-1].ended_ps)
        torch.drain()
        report = torch.queue.report(0)
        assert report is not None
        assert (report.launches, report.behind, report.deepest, report.full) == (4, 3, 2, 1)
        assert report.full_ns == pytest.approx(works[0].handles[-1].ended_ps / 1000)


def test_the_depth_is_at_most_that_of_the_io_cpu() -> None:
    with (
        pytest.raises(InputError, match=r"torch\.queue: found 9, .* a queue of 8 launches"),
        context(9, "sip.components.io_cpu.attrs.queue=8"),
    ):
        pass
    with context(None, "sip.components.io_cpu.attrs.queue=8") as torch:
        assert torch.queue.depth == 8


def test_the_key_is_left_out_of_the_digest_at_its_default() -> None:
    default, same, other = (
        resolve_topology("default", overrides).digest
        for overrides in ((), ("sip.components.io_cpu.attrs.queue=64",), ("sip.components.io_cpu.attrs.queue=32",))
    )
    assert default == same != other


def test_a_launch_begins_after_a_request_that_uses_its_tensors() -> None:
    with context() as torch:
        x = torch.zeros(64, dtype="f16")
        before = torch.launch("long", long, x, async_op=True)
        free = start(torch, pes=((0, 3, 0),))
        after = start(torch, nothing, x, pes=((0, 2, 0),))
        torch.drain()
        assert times_of(torch, free)[0] < times_of(torch, before)[1] <= times_of(torch, after)[0]


def test_the_host_waits_where_it_reads() -> None:
    def store(address: int, *, tl: Any) -> None:
        tl.store(address, tl.full(64, 3.0, "f16"))

    with context(data=True) as torch:
        x = torch.zeros(64, dtype="f16", dp=DPPolicy(num_cubes=1))
        works = [start(torch, long, x), start(torch, store, x)]
        assert not works[1].is_completed()
        assert x.numpy().sum() == 192.0
        assert works[1].is_completed()


def test_a_launch_of_the_program_itself_comes_after_the_queue() -> None:
    with context() as torch:
        x = torch.zeros(64, dtype="f16")
        queued = start(torch, long)
        torch.launch("nothing", nothing, x)
        assert queued.is_completed()


def test_an_error_of_a_queued_launch_comes_out_later_with_its_launch() -> None:
    with context() as torch:
        start(torch, fails, called_at="model.py:7")
        start(torch)
        with pytest.raises(ValueError, match="a fault of the kernel") as caught:
            torch.drain()
    assert any("kernel 'fails', launched at model.py:7" in note for note in caught.value.__notes__)


def test_abandoned_launches_leave_the_queue() -> None:
    with context() as torch:
        engine = torch.engine
        works = [start(torch, long) for _ in range(3)]
        torch.requests.abandon()
        assert all(work.is_completed() for work in works)
        last = start(torch)
        torch.drain()
        assert last.is_completed()
        assert engine.machine.clock.time > 0


def test_a_graph_is_replayed_by_one_order() -> None:
    with context() as torch:
        torch.queue.begin_capture()
        for _ in range(3):
            start(torch)
        graph = torch.queue.end_capture()
        assert torch.engine.now == 0
        assert not torch.engine.handles
        works = [torch.replay(graph) for _ in range(2)]
        torch.drain()
        launch = (TO_M_CPU + 5_000 + TO_PE0) + LAUNCH + (TO_PE0 + 5_000 + TO_M_CPU + 10_000)
        begins = [torch.engine.machine.log.on_device[handle.request_id][0] for w in works for handle in w.handles]
        assert begins == [DOWN + at * launch for at in range(6)]
        down = torch.engine.machine.network.links["host", "switch"].nbytes
        assert down == 2 * 32


def test_a_capture_cannot_begin_twice_or_end_without_a_begin() -> None:
    with context() as torch:
        with pytest.raises(InputError, match="call capture_begin first"):
            torch.queue.end_capture()
        torch.queue.begin_capture()
        with pytest.raises(InputError, match="one capture can run at a time"):
            torch.queue.begin_capture()
        torch.queue.end_capture()


def test_the_path_of_a_queued_launch_begins_when_it_leaves_the_queue() -> None:
    def multiply(*_: int, tl: Any) -> None:
        x = tl.zeros((64, 64), "f16")
        tl.wait(tl.dot(x, x))

    engine = GraphEngine(resolve_topology("default"), enable_data=False, observers=[log := TraceLog()])
    with RuntimeContext[Any](engine) as torch:
        works = [start(torch, multiply) for _ in range(3)]
        torch.drain()
        explained = explain_run(log, engine.handles, 0.0, engine.now)
    launches = [handle for work in works for handle in work.handles]
    paths = [launch.path for launch in explained.launches]
    assert [path.start_ps for path in paths] == [handle.begun_ps for handle in launches]
    assert [path.end_ps for path in paths] == [handle.ended_ps for handle in launches]
    assert paths[0].start_ps < paths[1].start_ps < paths[2].start_ps
    gains = [launch.gains_ps["GEMM"] for launch in explained.launches]
    assert gains[0] == pytest.approx(gains[1]) == pytest.approx(gains[2])
    assert explained.path.ps == launches[-1].ended_ps


def test_launches_of_the_program_itself_are_refused_in_a_capture() -> None:
    with context() as torch:
        x = torch.zeros(64, dtype="f16")
        torch.queue.begin_capture()
        with pytest.raises(InputError, match=r"uses a collective, its queues or torch\.launch"):
            torch.launch("nothing", nothing, x)
        torch.queue.end_capture()


def test_a_stopped_run_explains_the_launch_that_ran_not_those_in_the_queue() -> None:
    def forever(*_: int, tl: Any) -> None:
        while True:
            tl.barrier()

    engine = GraphEngine(
        resolve_topology("default"), enable_data=False, observers=[log := TraceLog()], limits=Limits(sim_ns=3000.0)
    )
    with RuntimeContext[Any](engine) as torch:
        first, second, third = start(torch), start(torch, forever), start(torch)
        with pytest.raises(LimitReached):
            third.wait()
        torch.requests.forget()
    explained = explain_run(log, engine.handles, 0.0, 3000.0)
    ended, stopped = explained.launches
    assert (ended.request_id, stopped.request_id) == (first.handles[0].request_id, second.handles[0].request_id)
    assert stopped.path.start_ps == engine.machine.log.queued[stopped.request_id]
    assert stopped.ps == stopped.path.ps
