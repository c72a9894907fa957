"""What failures of ranks leave behind: the errors themselves, and a machine that can be used again."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from fake_engine import FakeEngine, no_kernel
from machines import RING, context_on, run_ranks, working_machine

from kernbench.common.errors import AbandonedError, InputError, IpcqDeadlock, RunError
from kernbench.engine.engine import GraphEngine
from kernbench.engine.requests import RequestHandle
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.collective_calls import CollectiveMismatch
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.multiprocessing import SpawnException

pytestmark = [pytest.mark.usefixtures("runner"), pytest.mark.filterwarnings("ignore:all_reduce. the configured")]

ROWS = DPPolicy("row_wise", "row_wise")


@pytest.fixture
def torch(tmp_path):
    with context_on(working_machine(), tmp_path, RING) as context:
        yield context


def still_works(torch):
    def program(rank):
        tensor = torch.full((8,), rank + 1)
        torch.distributed.all_reduce(tensor)
        return tensor[7].item()

    return run_ranks(torch, program) == [3, 3]


def broken(x, *, tl):
    raise ZeroDivisionError("in the kernel")


class FrameworkFailure(BaseException):
    """As test frameworks have."""


@pytest.mark.parametrize("error", [FrameworkFailure("mine"), GeneratorExit(), SystemExit(2)], ids=repr)
def test_whatever_a_rank_raises_is_its_error(torch, error):
    def program(rank):
        if rank:
            raise error
        torch.distributed.barrier()

    with pytest.raises(SpawnException) as caught:
        run_ranks(torch, program)
    assert caught.value.errors == {1: error}
    assert still_works(torch)


@pytest.mark.parametrize("which", [0, 1])
def test_after_an_interrupt_in_a_rank_the_context_can_be_used(torch, which):
    def program(rank):
        if rank == which:
            raise KeyboardInterrupt
        torch.distributed.barrier()

    with pytest.raises(KeyboardInterrupt):
        run_ranks(torch, program)
    assert still_works(torch)


def test_an_interrupt_while_ranks_are_stopped_stops_the_others_too(torch):
    left = []

    def program(rank):
        torch.distributed.barrier()
        try:
            if rank:
                raise ValueError
            torch.distributed.barrier()
        finally:
            left.append(rank)
            if rank == 0:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_ranks(torch, program)
    assert left == [1, 0]
    assert still_works(torch)


def interrupted(rank):
    if rank == 0:
        raise KeyboardInterrupt


def test_ranks_that_were_interrupted_have_not_ended_well(torch):
    tensor = torch.zeros(4)
    context = torch.multiprocessing.spawn(interrupted, nprocs=2, join=False)
    with pytest.raises(KeyboardInterrupt):
        tensor.numpy()
    with pytest.raises(RunError, match="a KeyboardInterrupt ended the ranks"):
        context.join()
    assert still_works(torch)


@pytest.mark.parametrize("sips", [2, 4])
@pytest.mark.parametrize("collectives", [0, 1])
def test_groups_destroyed_in_a_finally_block(tmp_path, sips, collectives):
    with context_on(working_machine(sips), tmp_path, RING) as torch:
        for bad in range(sips):

            def program(rank, bad=bad):
                torch.ahbm.set_device(rank)
                torch.distributed.init_process_group("ahbm")
                try:
                    for _ in range(collectives):
                        torch.distributed.barrier()
                    if rank == bad:
                        raise ValueError(rank)
                    torch.distributed.barrier()
                finally:
                    torch.distributed.destroy_process_group()

            with pytest.raises(SpawnException) as caught:
                torch.multiprocessing.spawn(program, nprocs=sips)
            assert list(caught.value.errors) == [bad]
            assert run_ranks(torch, lambda rank: torch.distributed.barrier()) == [None] * sips


def test_a_rank_that_raises_while_another_takes_the_queues_off(torch):
    def program(rank):
        torch.ahbm.set_device(rank)
        torch.distributed.init_process_group("ahbm")
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
        raise ValueError

    with pytest.raises(SpawnException, match="ValueError"):
        torch.multiprocessing.spawn(program, nprocs=2)
    assert still_works(torch)


def divides_by_zero(rank):
    return 1 / 0


@pytest.mark.parametrize("daemon", [False, True])
def test_errors_that_nobody_joined_come_out_of_the_next_spawn(torch, daemon):
    torch.multiprocessing.spawn(divides_by_zero, nprocs=2, join=False, daemon=daemon)
    torch.zeros(2)
    with pytest.raises(SpawnException, match="rank 1 failed: ZeroDivisionError"):
        torch.multiprocessing.spawn(lambda rank: None)
    torch.multiprocessing.spawn(lambda rank: None)


def test_errors_of_daemons_come_out_of_the_end_of_the_context(engine):
    def run():
        with RuntimeContext(engine) as torch:
            torch.multiprocessing.spawn(divides_by_zero, join=False, daemon=True)
            torch.zeros(2)

    with pytest.raises(SpawnException, match="rank 0 failed: ZeroDivisionError"):
        run()


def test_errors_that_nobody_joined_are_told_with_the_programs_own(engine):
    def run():
        with RuntimeContext(engine) as torch:
            torch.multiprocessing.spawn(divides_by_zero, join=False)
            torch.zeros(2)
            raise KeyError

    with pytest.raises(KeyError) as caught:
        run()
    assert "rank 0 failed: ZeroDivisionError" in caught.value.__notes__[0]


def test_a_read_of_what_failed_ranks_had_under_way_tells_their_failure(torch):
    shared = {}

    def program(rank):
        torch.ahbm.set_device(rank)
        torch.distributed.init_process_group("ahbm")
        tensor = torch.ones(4)
        if rank == 0:
            shared["work"] = torch.distributed.all_reduce(tensor, async_op=True)
            shared["tensor"] = tensor
            shared["work"].wait()
        for _ in range(9):
            tensor.numpy()
        raise ValueError("mine")

    context = torch.multiprocessing.spawn(program, nprocs=2, join=False)
    other = torch.zeros(4)
    while not shared:
        other.numpy()
    with pytest.raises(AbandonedError, match="rank 1 failed: ValueError: mine"):
        shared["tensor"].numpy()
    with pytest.raises(SpawnException):
        context.join()


@pytest.mark.parametrize("joins", ["all", "one"])
def test_a_next_group_is_not_spoilt_by_collectives_that_were_left(torch, joins):
    def program(rank):
        torch.ahbm.set_device(rank)
        torch.distributed.init_process_group("ahbm")
        if joins == "all" or rank == 0:
            torch.distributed.all_reduce(torch.ones(4096), async_op=True)

    torch.multiprocessing.spawn(program, nprocs=2)
    assert any("all_reduce" in each for each in torch.multiprocessing.left)
    assert still_works(torch)


def test_a_kernel_that_failed_and_that_nobody_waited_for_is_its_ranks(machine):
    with RuntimeContext(FakeEngine(machine, run_kernels=True)) as torch:

        def program(rank):
            torch.launch("k", broken if rank else no_kernel, torch.zeros(2), async_op=True)
            torch.launch("k", no_kernel, torch.zeros(2))

        with pytest.raises(SpawnException, match="rank 1 failed: ZeroDivisionError: in the kernel"):
            torch.multiprocessing.spawn(program, nprocs=2)


def test_a_rank_that_polls_for_ever_names_its_collective(torch):
    def program(rank):
        if rank == 0:
            work = torch.distributed.all_reduce(torch.ones(8), async_op=True)
            while not work.is_completed():
                torch.distributed.cooperative_yield()

    with pytest.raises(IpcqDeadlock, match=r"rank 0 waits for its next turn, with all_reduce.* rank 1 never"):
        run_ranks(torch, program)


def raises_in_a_collective(torch, rank):
    tensor = torch.ones(4)
    if rank:
        raise ValueError
    torch.distributed.all_reduce(tensor)


def test_after_an_error_the_engine_serves_another_context():
    engine = GraphEngine(working_machine())
    with pytest.raises(SpawnException), RuntimeContext(engine) as torch:
        run_ranks(torch, lambda rank: raises_in_a_collective(torch, rank))
    with RuntimeContext(engine) as torch:
        assert run_ranks(torch, lambda rank: torch.ones(4).tolist()) == [[1] * 4] * 2
    assert torch.cleanup_report.leaked == ()


class LimitedEngine(FakeEngine):
    """Lets no more time pass once it is over its limit."""

    limit = 1

    def next_ended(self):
        self.limit -= 1
        if self.limit < 0:
            raise RunError("over the limit")
        return super().next_ended()


def test_an_engine_that_has_stopped_is_asked_nothing_more(machine):
    engine = LimitedEngine(machine)

    def run():
        with RuntimeContext(engine) as torch:
            torch.empty(4)
            torch.launch("never", no_kernel, torch.empty(4))

    with pytest.raises(RunError, match="over the limit"):
        run()
    assert not engine.abandoned
    assert not any(allocator.hbm.live for allocator in engine.allocators.values())


class CountingHandle(RequestHandle):
    """Counts how often anybody looks whether it is done."""

    looks = 0

    def __getattribute__(self, name):
        if name == "done":
            CountingHandle.looks += 1
        return super().__getattribute__(name)


@pytest.mark.parametrize("ranks", [4, 32])
def test_a_completion_costs_only_those_that_it_wakes(engine, monkeypatch, ranks):
    monkeypatch.setattr("kernbench.engine.engine.RequestHandle", CountingHandle)
    watched = []
    watch = engine.watch
    engine.watch = lambda handle: (watched.append(handle), watch(handle))
    # Its own look at what is watched is not the runtime's.
    next_ended = engine.next_ended

    def uncounted():
        before = CountingHandle.looks
        ended = next_ended()
        CountingHandle.looks = before
        return ended

    engine.next_ended = uncounted
    with RuntimeContext(engine) as torch:
        tensors = [torch.zeros(1 + rank) for rank in range(ranks)]
        CountingHandle.looks, watched[:] = 0, []
        torch.multiprocessing.spawn(lambda rank: [tensors[rank].numpy() for _ in range(5)], nprocs=ranks)
        assert len(watched) == 5 * ranks
        assert CountingHandle.looks <= 5 * ranks * 8


def test_a_mismatch_is_what_the_program_ends_with(torch):
    def program(rank):
        try:
            torch.distributed.all_reduce(torch.ones(8 + rank))
        finally:
            torch.distributed.barrier()

    with pytest.raises(SpawnException) as caught:
        run_ranks(torch, program)
    assert {type(error) for error in caught.value.errors.values()} == {CollectiveMismatch}
    assert still_works(torch)


def test_layouts_written_differently_are_no_mismatch(torch):
    def program(rank):
        layout = DPPolicy(num_pes=1, num_cubes=1) if rank else DPPolicy("row_wise", "row_wise", 1, 1)
        tensor = torch.full((6,), rank + 1, dp=layout)
        torch.distributed.all_reduce(tensor)
        return set(tensor.tolist())

    assert run_ranks(torch, program) == [{3}, {3}]


def test_pytorchs_forms_of_calls(torch):
    def program(rank):
        dist = torch.distributed
        dist.destroy_process_group()
        dist.init_process_group(backend=None, device_id=rank)
        whole, some = dist.group.WORLD, dist.new_group([0, 1])
        tensor, out = torch.full((2,), rank), torch.zeros(2)
        dist.barrier(device_ids=[rank])
        dist.all_to_all_single(out, tensor, None, None, some)
        dist.broadcast(tensor, np.int64(1), whole)
        assert dist.all_reduce(tensor, group=whole, async_op=True).wait(30.0)
        dist.destroy_process_group(some)
        return dist.get_backend(some), out.tolist(), tensor.tolist()

    assert run_ranks(torch, program) == [("ahbm", [0, 1], [2, 2])] * 2
    assert torch.multiprocessing.spawn(lambda rank: None, join=False).join(timeout=5)


@pytest.mark.parametrize("sip", [True, 1.0, "1", None])
def test_a_device_is_a_whole_number(torch, sip):
    with pytest.raises(InputError, match="this run has the SIPs 0, 1"):
        torch.ahbm.set_device(sip)
    torch.ahbm.set_device(np.int64(1))
    assert torch.ahbm.current_device() == 1


@pytest.mark.parametrize("nprocs", [True, 2.0, 0])
def test_the_number_of_ranks_is_a_whole_number(torch, nprocs):
    with pytest.raises(InputError, match="nprocs"):
        torch.multiprocessing.spawn(lambda rank: None, nprocs=nprocs)


class SpeechlessError(Exception):
    def __str__(self):
        raise RuntimeError


def test_an_error_without_a_text_is_told(torch):
    def program(rank):
        raise SpeechlessError

    with pytest.raises(SpawnException) as caught:
        torch.multiprocessing.spawn(program)
    assert "rank 0 failed: SpeechlessError: (its text is not available: RuntimeError)" in str(caught.value)


def test_a_stopped_rank_that_swallows_its_end_is_left(torch):
    def program(rank):
        if rank:
            raise ValueError("mine")
        while True:
            with suppress(BaseException):
                torch.distributed.cooperative_yield()

    with pytest.raises(SpawnException, match="rank 1 failed: ValueError: mine"):
        run_ranks(torch, program)
    assert still_works(torch)


@pytest.mark.parametrize(
    ("errors", "code"),
    [
        ({0: InputError("a device that is not there")}, 2),
        ({0: InputError("a device that is not there"), 1: ValueError("a bug")}, 1),
        ({1: ValueError("a bug")}, 1),
    ],
)
def test_bad_input_of_all_ranks_is_bad_input(errors, code):
    assert SpawnException(errors).exit_code == code
