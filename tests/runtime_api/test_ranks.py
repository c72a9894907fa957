"""Rank programs and simulated time: who runs when, what a wait costs, what comes of an error."""

from __future__ import annotations

import sys
import traceback

import pytest
from fake_engine import HOST_GBS, LAUNCH_NS, FakeEngine, no_kernel

from kernbench.common.errors import InputError, RunError, SimulationDeadlock, UnsupportedError
from kernbench.messages.requests import MmuUnmapMsg
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.runtime_api.rank_scheduler import TURNS_IN_VAIN

pytestmark = pytest.mark.usefixtures("runner")


@pytest.fixture
def spawn(torch):
    return torch.multiprocessing.spawn


def test_ranks_get_their_number_and_the_arguments(spawn):
    seen = []
    assert spawn(lambda rank, a, b: seen.append((rank, a, b)), args=("x", 2), nprocs=3) is None
    assert seen == [(0, "x", 2), (1, "x", 2), (2, "x", 2)]


def test_time_passes_for_all_ranks_together(torch, engine, spawn):
    tensors = [torch.zeros(2) for _ in range(3)]
    begin = engine.now
    spawn(lambda rank: torch.launch("k", no_kernel, tensors[rank]), nprocs=3)
    assert engine.now == begin + LAUNCH_NS


def test_a_rank_whose_wait_is_over_goes_on_while_others_wait(torch, engine, spawn):
    log = []

    def program(rank):
        for _ in range(1 if rank == 0 else 3):
            torch.wait(torch.submit(MmuUnmapMsg(sip=0, va_base=0, target_pe=())))
            log.append((engine.now, rank))
        if rank == 0:
            torch.launch("k", no_kernel, shared)
            log.append((engine.now, rank))

    shared = torch.zeros(1)
    begin = engine.now
    spawn(program, nprocs=2)
    assert [(at - begin, rank) for at, rank in log] == [
        (30.0, 0),
        (30.0, 1),
        (60.0, 1),
        (90.0, 1),
        (30.0 + LAUNCH_NS, 0),
    ]


def test_a_host_read_waits_for_the_requests_of_its_tensor_only(torch, engine, spawn):
    mine = [torch.zeros(2, name=f"t{rank}") for rank in range(2)]
    log = []

    def program(rank):
        torch.launch("never" if rank else "k", no_kernel, mine[rank], async_op=True)
        if rank == 0:
            mine[0].numpy()
            log.append(engine.now)

    begin = engine.now
    with pytest.raises(SimulationDeadlock):
        spawn(lambda rank: (program(rank), rank and mine[1].numpy()), nprocs=2)
    assert log == [pytest.approx(begin + LAUNCH_NS + 100 + 8 / HOST_GBS)]


def test_each_rank_has_a_device_of_its_own(torch, spawn):
    seen = []

    def program(rank):
        assert torch.ahbm.current_device() is None
        torch.ahbm.set_device(1 - rank)
        tensor = torch.zeros(2)
        seen.append((torch.ahbm.current_device(), tensor.sip))

    spawn(program, nprocs=2)
    assert seen == [(1, 1), (0, 0)]
    assert torch.ahbm.current_device() is None


def test_synchronize_waits_for_what_this_rank_submitted(torch, engine, spawn):
    tensors = [torch.zeros(2), torch.zeros(2)]

    def program(rank):
        torch.launch("never" if rank else "k", no_kernel, tensors[rank], async_op=True)
        if rank == 0:
            torch.accelerator.synchronize()
            seen.append(engine.now)

    seen = []
    begin = engine.now
    spawn(program, nprocs=2)
    assert seen == [begin + LAUNCH_NS]
    torch.requests.forget()


def test_giving_way_lets_others_run_and_costs_nothing_when_nothing_is_under_way(torch, engine, spawn):
    log = []

    def program(rank):
        for step in range(2):
            log.append((rank, step))
            torch.requests.give_way()

    spawn(program, nprocs=2)
    assert log == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert engine.now == 0


def test_giving_way_until_work_is_done(torch, engine, spawn):
    tensor, other = torch.zeros(2), torch.zeros(2)
    begin = engine.now
    seen = []

    def program(rank):
        if rank:
            torch.launch("k", no_kernel, other)
            torch.launch("k", no_kernel, other)
            return
        work = torch.launch("k", no_kernel, tensor, async_op=True)
        while not work.is_completed():
            torch.requests.give_way()
        seen.append(engine.now)

    spawn(program, nprocs=2)
    assert seen == [begin + LAUNCH_NS]


def test_giving_way_for_ever_is_a_deadlock(torch, spawn):
    turns = []

    def program(rank):
        while True:
            turns.append(rank)
            torch.requests.give_way()

    with pytest.raises(SimulationDeadlock, match="rank 0 waits for its next turn"):
        spawn(program)
    assert len(turns) > TURNS_IN_VAIN


def test_who_waits_for_what_is_in_a_deadlock(torch, spawn):
    tensor = torch.zeros(2)

    def program(rank):
        if rank == 1:
            torch.launch("never", no_kernel, tensor)

    with pytest.raises(SimulationDeadlock) as caught:
        spawn(program, nprocs=2)
    text = str(caught.value)
    assert "rank 0 has ended" in text
    assert "rank 1 waits for launch 'never'" in text
    assert "the program waits for its ranks" in text
    assert "nothing can happen any more" in text


def raising(rank, which, error, log=None):
    try:
        if rank == which:
            raise error
    finally:
        if log is not None:
            log.append(rank)


def test_a_rank_that_raises_ends_the_others_where_they_wait(torch, engine, spawn):
    tensor = torch.zeros(2)
    log = []

    def program(rank):
        try:
            if rank == 1:
                raise ValueError("boom")
            torch.launch("never", no_kernel, tensor)
            log.append("went on")
        except Exception:
            log.append(f"caught in {rank}")
            raise
        finally:
            log.append(f"left {rank}")

    with pytest.raises(SpawnException) as caught:
        spawn(program, nprocs=3)
    assert log == ["caught in 1", "left 1", "left 0", "left 2"]
    errors = caught.value.errors
    assert list(errors) == [1]
    assert isinstance(errors[1], ValueError)
    frames = traceback.extract_tb(errors[1].__traceback__)
    assert [frame.name for frame in frames] == ["program"]
    assert f"rank 1 failed: ValueError: boom (at {__file__}:{frames[0].lineno})" in str(caught.value)
    assert isinstance(caught.value, RunError)
    assert caught.value.exit_code == 1
    assert len(engine.abandoned) == 2
    assert tensor.tolist() == [0, 0]  # the context is as good as new


def test_all_that_raise_by_themselves_are_root_causes(torch, spawn):
    def program(rank):
        try:
            if rank < 2:
                raise KeyError(rank)
            torch.zeros(1)
        finally:
            if rank == 2:
                raise ValueError("while it was stopped")

    with pytest.raises(SpawnException) as caught:
        spawn(program, nprocs=3)
    assert {rank: type(error) for rank, error in caught.value.errors.items()} == {0: KeyError, 1: KeyError}
    assert isinstance(caught.value.__cause__, BaseExceptionGroup)


def test_a_stopped_rank_asks_nothing_more_of_the_machine(torch, engine, spawn):
    sent = []

    def program(rank):
        tensor = torch.zeros(2, name="mine")
        try:
            if rank:
                raise ValueError
            torch.launch("never", no_kernel, tensor)
        finally:
            sent.append(len(engine.messages))
            tensor.free()

    with pytest.raises(SpawnException):
        spawn(program, nprocs=2)
    assert len(engine.messages) == sent[0] + 1  # the unmap of rank 1, which raised by itself


def broken(x, *, tl):
    raise ZeroDivisionError("in the kernel")


def test_an_error_in_a_kernel_is_its_ranks(machine):
    with RuntimeContext(FakeEngine(machine, run_kernels=True)) as torch:

        def program(rank):
            torch.launch("k", broken if rank else no_kernel, torch.zeros(2))
            torch.zeros(1)

        with pytest.raises(SpawnException, match="rank 1 failed: ZeroDivisionError: in the kernel") as caught:
            torch.multiprocessing.spawn(program, nprocs=2)
        names = [frame.name for frame in traceback.extract_tb(caught.value.errors[1].__traceback__)]
        assert names[0] == "program"
        assert names[-1] == "broken"


@pytest.mark.parametrize(
    ("code", "said"), [(None, r"sys.exit\(\)"), (0, r"sys.exit\(0\)"), (3, r"sys.exit\(3\)"), ("out", "sys.exit: out")]
)
def test_a_rank_that_leaves_has_failed_whatever_the_code(torch, spawn, code, said):
    ended = []

    def program(rank):
        if rank == 0:
            sys.exit(code)
        torch.zeros(1)
        ended.append(rank)

    with pytest.raises(
        SpawnException, match=f"rank 0 failed: SystemExit: left by {said} .at .*test_ranks.py"
    ) as caught:
        spawn(program, nprocs=2)
    assert [type(error) for error in caught.value.errors.values()] == [SystemExit]
    assert not ended


def test_an_interruption_is_the_programs(torch, engine, spawn):
    left = []

    def program(rank):
        try:
            if rank == 1:
                raise KeyboardInterrupt
            torch.launch("never", no_kernel, torch.zeros(1))
        finally:
            left.append(rank)

    with pytest.raises(KeyboardInterrupt):
        spawn(program, nprocs=3)
    assert sorted(left) == [0, 1]  # the third had not begun
    assert torch.zeros(1).item() == 0  # the context is as good as new


def test_ranks_that_are_not_joined_run_while_the_program_waits(torch, engine, spawn):
    tensor, log = torch.zeros(2), []

    def program(rank):
        torch.launch("k", no_kernel, mine[rank])
        log.append(rank)

    mine = [torch.zeros(2) for _ in range(2)]
    context = spawn(program, nprocs=2, join=False)
    assert log == []
    for _ in range(2):
        torch.launch("k", no_kernel, tensor)
    assert log == [0, 1]
    assert context.join()
    assert context.join()


def test_errors_of_ranks_come_out_of_the_join(torch, spawn):
    context = spawn(raising, args=(0, ValueError("x")), join=False)
    torch.zeros(2)
    for _ in range(2):
        with pytest.raises(SpawnException, match="rank 0 failed: ValueError: x"):
            context.join()


def test_the_end_of_the_context_joins(engine):
    log = []
    with pytest.raises(SpawnException), RuntimeContext(engine) as torch:
        torch.multiprocessing.spawn(raising, args=(1, ValueError(), log), nprocs=2, join=False)
    assert log == [0, 1]


def test_the_end_of_the_context_ends_daemons(engine):
    log = []

    def program(rank):
        try:
            torch.launch("never", no_kernel, torch.zeros(1))
        finally:
            log.append("left")

    with RuntimeContext(engine) as torch:
        torch.multiprocessing.spawn(program, join=False, daemon=True)
        torch.zeros(1)
    assert log == ["left"]
    assert len(engine.abandoned) == 1


def test_an_error_of_the_program_ends_ranks_and_what_they_have_under_way(engine):
    log = []

    def program(rank):
        try:
            torch.launch("never", no_kernel, torch.zeros(1))
        finally:
            log.append("left")

    torch = RuntimeContext(engine)

    def run():
        with torch:
            torch.multiprocessing.spawn(program, join=False)
            torch.zeros(1)
            torch.zeros(1).copy_([1, 2])

    with pytest.raises(InputError):
        run()
    assert log == ["left"]
    assert [handle.msg.name for handle in engine.abandoned] == ["never"]


def test_what_ranks_leave_behind_is_reported(engine):
    with RuntimeContext(engine) as torch:
        torch.multiprocessing.spawn(
            lambda rank: torch.launch("late", no_kernel, torch.zeros(1), async_op=True), nprocs=2
        )
    assert torch.cleanup_report.left == ("rank 0: launch 'late'", "rank 1: launch 'late'")
    assert "left by ranks: rank 0: launch 'late'" in str(torch.cleanup_report)


def test_a_rank_cannot_spawn(torch, spawn):
    with pytest.raises(SpawnException, match="rank 0 cannot spawn ranks") as caught:
        spawn(lambda rank: spawn(no_kernel))
    assert isinstance(caught.value.errors[0], UnsupportedError)


def test_one_spawn_at_a_time(torch, spawn):
    context = spawn(lambda rank: None, join=False)
    with pytest.raises(UnsupportedError, match="join them first"):
        spawn(lambda rank: None)
    context.join()
    spawn(lambda rank: None)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"fn": 3}, "fn is a int"),
        ({"args": 3}, r"write a tuple, such as \(x,\)"),
        ({"nprocs": 0}, "nprocs=0"),
        ({"nprocs": 2.5}, "nprocs=2.5"),
        ({"start_method": "thread"}, "must be one of spawn, fork, forkserver"),
    ],
)
def test_what_cannot_be_spawned(spawn, given, words):
    with pytest.raises(InputError, match=words):
        spawn(**({"fn": no_kernel} | given))


def test_arguments_that_do_not_fit_are_the_ranks_error(spawn):
    with pytest.raises(SpawnException, match="rank 0 failed: TypeError"):
        spawn(lambda rank, x: None)


def test_many_requests_of_a_rank_cost_one_advance_each(torch, engine, spawn):
    """A wait is for one request at a time, whatever the number of them and of ranks."""
    everywhere = DPPolicy("row_wise", "row_wise")
    advances = []
    next_ended = engine.next_ended
    engine.next_ended = lambda: (advances.append(len(engine.watched)), next_ended())[1]
    spawn(lambda rank: torch.zeros(8, dp=everywhere).numpy(), nprocs=4)
    assert max(advances) == 4
    assert len(advances) < 4 * 30
