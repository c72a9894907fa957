"""Whether a run went well, as ``run_bench`` says it."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiled import compiled
from kernbench.ccl.install import install_ipcq
from kernbench.common.errors import (
    InputError,
    IpcqDeadlock,
    IpcqError,
    KernelError,
    ProgramExitError,
    RunError,
    RunStopped,
    VerificationError,
)
from kernbench.engine.engine import GraphEngine
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.bench_registry import load_bench
from kernbench.runtime_api.bench_runner import BenchResult, run_bench
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.runtime_api.types import DeviceSelector, resolve_device
from kernbench.topology.builder import Topology

SMALL = ["sip.cube_mesh.w=1", "sip.cube_mesh.h=1", "system.sips.count=2"]


@pytest.fixture(scope="module")
def small() -> Topology:
    return compiled(*SMALL)


def double(x: int, *, tl: Any) -> None:
    tl.store(x, tl.load(x, (4,), "f32") * 2)


def ordinary(torch: Any) -> None:
    x = torch.ones(4, name="x")
    torch.launch("double", double, x)
    assert list(x.numpy()) == [2.0] * 4


def asserts(torch: Any) -> None:
    x = torch.ones(4)
    assert list(x.numpy()) == [3.0] * 4, "not three"


def raises(torch: Any) -> None:
    torch.ones(4)
    raise LookupError("mine")


def raises_before_anything(torch: Any) -> None:
    raise LookupError("mine")


def compares(torch: Any) -> None:
    torch.testing.assert_close(torch.ones(4, name="x"), np.ones(4))
    torch.testing.assert_close(torch.ones(4, name="y"), np.zeros(4))


def only_receives(x: int, *, tl: Any) -> None:
    tl.store(x, tl.recv("W", (4,), "f32"))


def deadlocks(torch: Any) -> None:
    torch.install_ipcq(algorithm="ring_allreduce_tcm", world_size_override=8)
    torch.launch("stuck", only_receives, torch.zeros(8, 4, dp=DPPolicy(pe="row_wise")))


def deadlocks_in_work_that_nobody_waits_for(torch: Any) -> None:
    torch.install_ipcq(algorithm="ring_allreduce_tcm", world_size_override=8)
    torch.launch("stuck", only_receives, torch.zeros(8, 4, dp=DPPolicy(pe="row_wise")), async_op=True)


def bad_kernel(x: int, *, tl: Any) -> None:
    tl.load(x, (4,), "no such type")


def kernel_fails(torch: Any) -> None:
    torch.launch("bad", bad_kernel, torch.zeros(4), async_op=True)


def rank_fails(torch: Any) -> None:
    torch.multiprocessing.spawn(lambda rank: torch.zeros(4) and 1 // rank, nprocs=2)


def leaves(torch: Any) -> None:
    torch.zeros(4)
    sys.exit(0)


def leaves_with_words(torch: Any) -> None:
    torch.zeros(4)
    raise SystemExit("no more")


def leaving_kernel(x: int, *, tl: Any) -> None:
    tl.load(x, (4,), "f32")
    raise SystemExit


def kernel_leaves(torch: Any) -> None:
    torch.launch("leaving", leaving_kernel, torch.zeros(4))


class Odd(BaseException):
    """What no ``except Exception`` catches."""


class Mute(Exception):  # noqa: N818
    def __str__(self) -> str:
        raise RuntimeError("no text")


def raises_what_is_no_error(torch: Any) -> None:
    torch.zeros(4)
    raise Odd("odd")


def cancelled(torch: Any) -> None:
    torch.zeros(4)
    raise asyncio.CancelledError


def odd_kernel(x: int, *, tl: Any) -> None:
    tl.load(x, (4,), "f32")
    raise GeneratorExit


def kernel_raises_what_is_no_error(torch: Any) -> None:
    torch.launch("odd", odd_kernel, torch.zeros(4))


def rank_raises_without_text(torch: Any) -> None:
    def program(rank: int) -> None:
        raise Mute

    torch.multiprocessing.spawn(program)


def leaves_with_what_cannot_be_shown(torch: Any) -> None:
    class Code:
        def __repr__(self) -> str:
            raise RuntimeError

    torch.zeros(4)
    sys.exit(Code())  # type: ignore[arg-type]


def nothing(torch: Any) -> None:
    pass


def limited(torch: Any) -> None:
    torch.zeros(4)
    raise RunStopped(RunError("long enough"))


def send_east(x: int, *, tl: Any) -> None:
    if tl.program_id(0) == 0:
        tl.send("E", tl.load(x, (4,), "f32"))


def leaves_a_message(torch: Any) -> None:
    torch.install_ipcq(algorithm="ring_allreduce_tcm", world_size_override=8)
    torch.launch("east", send_east, torch.zeros(8, 4, dp=DPPolicy(pe="row_wise")))


def leaves_a_message_in_queues_of_its_own(torch: Any) -> None:
    install_ipcq(torch.engine, "ring_allreduce_tcm", world_size=8)
    torch.launch("east", send_east, torch.zeros(8, 4, dp=DPPolicy(pe="row_wise")))


def takes_queues_off(torch: Any) -> None:
    plan = torch.install_ipcq(algorithm="ring_allreduce_tcm", world_size_override=8)
    torch.launch("east", send_east, torch.zeros(8, 4, dp=DPPolicy(pe="row_wise")))
    torch.uninstall_ipcq(plan)


def sends_to_nobody(torch: Any) -> None:
    def program(rank: int) -> None:
        torch.ahbm.set_device(rank)
        torch.distributed.init_process_group("ahbm")
        if rank == 0:
            torch.distributed.send(torch.ones(4), 1)
        torch.distributed.destroy_process_group()

    torch.multiprocessing.spawn(program, nprocs=2)


LINE = send_east.__code__.co_firstlineno + 2
EAST = (
    rf"sip0\.cube0\.pe0 E -> sip0\.cube0\.pe1 W: 16 bytes of kernel 'send_east', line {LINE} of .*test_run_outcome\.py"
)
SENT = sends_to_nobody.__code__.co_firstlineno + 5
TO_RANK_1 = (
    rf"sip0\.cube0\.pe0 sip1 -> sip1\.cube0\.pe0 sip0: 16 bytes of kernel 'send_recv', step 2 \(send sip1, 4 f32\) "
    rf"\(called at .*test_run_outcome\.py:{SENT}\)"
)

FAILURES: list[tuple[Any, type[Exception], str]] = [
    (asserts, AssertionError, "not three"),
    (raises, LookupError, "mine"),
    (raises_before_anything, LookupError, "mine"),
    (compares, VerificationError, "FAIL y: 4 of 4 elements wrong"),
    (deadlocks, IpcqDeadlock, "who waits for whom"),
    (deadlocks_in_work_that_nobody_waits_for, IpcqDeadlock, "who waits for whom"),
    (kernel_fails, KernelError, "no such type"),
    (rank_fails, SpawnException, "rank 0 failed: ZeroDivisionError"),
    (leaves, ProgramExitError, r"left by sys.exit\(0\)"),
    (leaves_with_words, ProgramExitError, "left by sys.exit: no more"),
    (kernel_leaves, ProgramExitError, r"left by sys.exit\(\)"),
    (raises_what_is_no_error, RunError, "left by Odd: odd"),
    (cancelled, RunError, "left by CancelledError$"),
    (kernel_raises_what_is_no_error, RunError, "left by GeneratorExit"),
    (rank_raises_without_text, SpawnException, r"Mute: \(its text is not available: RuntimeError\)"),
    (leaves_with_what_cannot_be_shown, ProgramExitError, r"left by sys.exit\(a Code\)"),
    (nothing, RunError, "submitted no request"),
    (limited, RunError, "long enough"),
    (leaves_a_message, IpcqError, EAST),
    (leaves_a_message_in_queues_of_its_own, IpcqError, EAST),
    (takes_queues_off, IpcqError, EAST),
    (sends_to_nobody, IpcqError, TO_RANK_1),
]


def run(small: Topology, program: Any, **options: Any) -> BenchResult:
    return run_bench(topology=small, bench_fn=program, **options)


def test_a_run_that_went_well(small: Topology) -> None:
    found = run(small, ordinary)
    found.raise_for_status()
    assert found.ok
    assert found.completion.ok
    assert found.completion.error is None
    assert found.place is None
    assert not found.verified
    assert found.completion.t_end - found.completion.t_start == found.sim_ns


@pytest.mark.parametrize(("program", "kind", "words"), FAILURES, ids=[each[0].__name__ for each in FAILURES])
def test_a_run_that_failed_is_not_ok_and_raises_its_cause(
    small: Topology, program: Any, kind: type[Exception], words: str
) -> None:
    found = run(small, program)
    assert not found.ok
    assert not found.completion.ok
    assert found.status != "ok"
    assert found.exit_code == 1
    with pytest.raises(kind, match=words) as caught:
        found.raise_for_status()
    assert caught.value is found.completion.error


def fails_too(how: Any, leaves: Any) -> Any:
    """A program that leaves a message, and fails."""

    def program(torch: Any) -> None:
        leaves(torch)
        how(torch)

    return program


@pytest.mark.parametrize("leaves", [leaves_a_message, leaves_a_message_in_queues_of_its_own])
@pytest.mark.parametrize(
    ("how", "kind"),
    [
        (raises, LookupError),
        (compares, VerificationError),
        (leaves_with_words, ProgramExitError),
        (kernel_fails, KernelError),
    ],
)
def test_a_run_that_failed_otherwise_lists_messages_that_it_left(
    small: Topology, how: Any, kind: type[Exception], leaves: Any
) -> None:
    found = run(small, fails_too(how, leaves))
    assert isinstance(found.completion.error, kind)
    assert (found.status, found.exit_code) == ("FAILED", 1)
    [listed] = [each for each in found.cleanup.left if each.startswith("not received: ")]
    assert re.search(EAST, listed)


def test_a_message_that_is_left_is_listed_once(small: Topology) -> None:
    for program in (leaves_a_message, leaves_a_message_in_queues_of_its_own, takes_queues_off):
        found = run(small, program)
        assert isinstance(found.error, IpcqError)
        assert len(found.cleanup.left) == 1


def test_messages_of_earlier_runs_on_an_engine_are_none_of_this_one(small: Topology) -> None:
    engine = GraphEngine(small)
    first = run(small, leaves_a_message_in_queues_of_its_own, engine_factory=lambda machine, _: engine)
    second = run(small, ordinary, engine_factory=lambda machine, _: engine)
    assert (first.ok, second.ok) == (False, True)


@pytest.mark.parametrize(
    ("program", "function", "pe", "rank"),
    [
        (asserts, "asserts", None, None),
        (compares, "compares", None, None),
        (kernel_fails, "bad_kernel", (0, 0, 0), None),
        (kernel_leaves, "leaving_kernel", (0, 0, 0), None),
        (kernel_raises_what_is_no_error, "odd_kernel", (0, 0, 0), None),
        (raises_what_is_no_error, "raises_what_is_no_error", None, None),
        (rank_fails, "<lambda>", None, 0),
        (nothing, "bench", None, None),
    ],
)
def test_the_place_of_a_failure(small: Topology, program: Any, function: str, pe: Any, rank: int | None) -> None:
    place = run(small, program).place
    assert place is not None
    assert place.line is not None
    assert (Path(place.line.file), place.line.function) == (Path(__file__), function)
    assert (place.pe, place.rank) == (pe, rank)


def test_an_error_that_the_program_dealt_with_is_none_of_the_run(small: Topology) -> None:
    def program(torch: Any) -> None:
        with pytest.raises(KernelError):
            torch.launch("bad", bad_kernel, torch.zeros(4))
        torch.launch("double", double, torch.zeros(4))

    run(small, program).raise_for_status()


def test_everything_has_a_default() -> None:
    found = run_bench(bench_fn=compares)
    assert isinstance(found.engine, GraphEngine)
    assert (found.device, found.engine.enable_data, found.verified) == ("all", True, True)
    assert [each.passed for each in found.comparisons] == [True, False]


def test_verification_follows_the_data_unless_it_is_said(small: Topology) -> None:
    timed = run(small, compares, engine_factory=lambda machine, _: GraphEngine(machine, enable_data=False))
    assert (timed.ok, timed.verified, timed.skipped_comparisons) == (True, False, 2)
    unasked = run(small, compares, verify=False)
    assert (unasked.ok, unasked.engine.enable_data, unasked.skipped_comparisons) == (True, True, 2)
    assert run(small, compares, verify=True).exit_code == 1


def test_a_device_needs_no_machine(small: Topology) -> None:
    assert resolve_device("all") == DeviceSelector("all")
    assert resolve_device("sip:7").sip == 7
    assert resolve_device("all", small) == resolve_device("all", small.spec) == (0, 1)
    with pytest.raises(InputError, match="there are: all, sip:0, sip:1"):
        resolve_device("sip:7", small)
    with pytest.raises(InputError, match="'gpu' is no device"):
        resolve_device("gpu")
    assert run(small, ordinary, device=resolve_device("sip:1")).device == "sip:1"


def test_ranks_that_wait_for_each_other_get_a_verdict_too(small: Topology) -> None:
    def never_calls_init(torch: Any) -> None:
        torch.multiprocessing.spawn(lambda rank: rank and torch.distributed.init_process_group("ahbm"), nprocs=2)

    what, who, why, heading, _, *ranks = str(run(small, never_calls_init).error).splitlines()
    assert what == "deadlock at 0 ns: nothing can happen any more, and the machine has nothing to do"
    assert who == "1 of 2 ranks wait, and so does the program"
    assert why == "the ranks that could wake them wait too or have ended"
    assert heading == "no rank can go on:"
    assert ranks == ["  rank 0 has ended", "  rank 1 waits for init_process_group, which rank 0 never called"]


def test_a_kernel_that_leaves_on_one_pe_does_not_leave_the_others(small: Topology) -> None:
    ended: list[int] = []

    def kernel(x: int, *, tl: Any) -> None:
        tl.load(x, (4,), "f32")
        if tl.program_id(0) == 3:
            sys.exit(1)
        tl.load(x, (4,), "f32")
        ended.append(tl.program_id(0))

    found = run(small, lambda torch: torch.launch("k", kernel, torch.zeros(8, 4, dp=DPPolicy(pe="row_wise"))))
    assert isinstance(found.error, ProgramExitError)
    assert sorted(ended) == [0, 1, 2, 4, 5, 6, 7]
    assert found.place is not None
    assert found.place.pe == (0, 0, 3)


@pytest.mark.parametrize("text", ["import sys; sys.exit(0)", "raise SystemExit", "exit('not today')"])
def test_a_file_that_leaves_while_it_is_imported(tmp_path: Path, text: str) -> None:
    path = tmp_path / "leaving.py"
    path.write_text(f"\n{text}\n")
    with pytest.raises(ProgramExitError, match=r"left by sys\.exit") as caught:
        load_bench(str(path))
    assert caught.value.exit_code == 1
