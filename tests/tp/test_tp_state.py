"""Whose rank of how many: kept by each rank, in its context."""

from __future__ import annotations

import pytest
from tp_ranks import in_parallel, machine, spawn_ranks

from kernbench.common.errors import InputError, RunError
from kernbench.engine.engine import GraphEngine
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.tp import (
    ColumnParallelLinear,
    VocabParallelEmbedding,
    copy_to_tp_region,
    destroy_model_parallel,
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
    initialize_model_parallel,
    model_parallel_is_initialized,
)


@pytest.fixture
def torch():
    with RuntimeContext(GraphEngine(machine(2))) as context:
        yield context


def test_every_rank_knows_its_number(torch):
    def program(rank):
        initialize_model_parallel(2, torch=torch)
        # Other ranks run in between, and time passes.
        torch.distributed.barrier()
        given = get_tensor_model_parallel_rank(torch=torch), get_tensor_model_parallel_world_size(torch=torch)
        found = get_tensor_model_parallel_rank(), get_tensor_model_parallel_world_size()
        return given, found

    assert spawn_ranks(torch, program) == [((0, 2), (0, 2)), ((1, 2), (1, 2))]


@pytest.mark.parametrize(
    "use",
    [
        get_tensor_model_parallel_rank,
        get_tensor_model_parallel_world_size,
        lambda torch=None: ColumnParallelLinear(8, 8, torch=torch),
        lambda torch=None: VocabParallelEmbedding(8, 8, torch=torch),
        lambda torch=None: copy_to_tp_region(None, torch=torch),
    ],
)
def test_nothing_works_before_it_is_initialised(torch, use):
    with pytest.raises(RuntimeError, match="call initialize_model_parallel"):
        use()
    with pytest.raises(InputError, match="not initialised on this rank"):
        use(torch=torch)


def test_outside_of_any_context():
    with pytest.raises(RuntimeError, match="call initialize_model_parallel"):
        get_tensor_model_parallel_rank()
    with pytest.raises(InputError, match="no RuntimeContext is active: pass torch="):
        initialize_model_parallel(1)
    assert not model_parallel_is_initialized()


def test_a_group_is_all_ranks(torch):
    def program(rank):
        initialize_model_parallel(1)

    with pytest.raises(SpawnException) as raised:
        spawn_ranks(torch, program)
    for error in raised.value.errors.values():
        assert isinstance(error, NotImplementedError)
        assert isinstance(error, RunError)
        assert "initialize_model_parallel(1): there are 2 ranks" in str(error)
        assert "not supported. Pass 2" in str(error)


@pytest.mark.parametrize("size", [0, -2, 1.5, "2"])
def test_a_size_that_is_none(torch, size):
    with pytest.raises(ValueError, match="the size must be an integer of at least 1"):
        initialize_model_parallel(size)


def test_ranks_need_a_process_group(torch):
    with pytest.raises(SpawnException, match="init_process_group"):
        torch.multiprocessing.spawn(lambda rank: initialize_model_parallel(2), nprocs=2)


def test_only_once(torch):
    def program():
        initialize_model_parallel(1)

    program()
    with pytest.raises(InputError, match="already called on this rank"):
        program()
    destroy_model_parallel()
    assert not model_parallel_is_initialized()
    program()


def test_new_ranks_begin_anew(torch):
    torch.multiprocessing.spawn(lambda rank: initialize_model_parallel(1), nprocs=1)
    seen = []
    torch.multiprocessing.spawn(lambda rank: seen.append(model_parallel_is_initialized()), nprocs=1)
    assert (seen, model_parallel_is_initialized()) == ([False], False)


def test_two_contexts_know_nothing_of_each_other(torch):
    initialize_model_parallel(1)
    with RuntimeContext(GraphEngine(machine(2))) as other:
        assert not model_parallel_is_initialized()
        assert in_parallel(lambda torch, rank: get_tensor_model_parallel_rank()) == [0, 1]
        initialize_model_parallel(1)
        destroy_model_parallel(torch=torch)
        assert model_parallel_is_initialized()
    assert not model_parallel_is_initialized(torch=other)
    assert not model_parallel_is_initialized()


def test_what_the_program_has_said_holds_in_its_ranks(torch):
    def program(rank):
        torch.ahbm.set_device(rank)
        assert model_parallel_is_initialized()
        layer = ColumnParallelLinear(8, 8, torch=torch)
        seen[rank] = get_tensor_model_parallel_rank(), get_tensor_model_parallel_world_size(), layer.weight.shape

    torch.distributed.init_process_group("ahbm")
    initialize_model_parallel(2)
    for _ in range(2):  # all that it spawns
        seen = {}
        torch.multiprocessing.spawn(program, nprocs=2)
        assert seen == {0: (0, 2, (8, 4)), 1: (1, 2, (8, 4))}
    destroy_model_parallel()
    torch.multiprocessing.spawn(lambda rank: seen.update({rank: model_parallel_is_initialized()}), nprocs=2)
    assert seen == {0: False, 1: False}


def test_ranks_may_say_again_what_the_program_has_said(torch):
    def program(rank):
        initialize_model_parallel(2)
        seen.append(get_tensor_model_parallel_rank())
        with pytest.raises(InputError, match="already called on this rank"):
            initialize_model_parallel(2)

    torch.distributed.init_process_group("ahbm")
    initialize_model_parallel(2)
    seen = []
    torch.multiprocessing.spawn(program, nprocs=2)
    assert seen == [0, 1]


def test_a_rank_leaves_for_itself_alone(torch):
    def program(rank):
        if rank == 0:
            destroy_model_parallel()
        torch.distributed.barrier()
        seen.append((rank, model_parallel_is_initialized()))

    torch.distributed.init_process_group("ahbm")
    initialize_model_parallel(2)
    seen = []
    torch.multiprocessing.spawn(program, nprocs=2)
    assert sorted(seen) == [(0, False), (1, True)]
    assert model_parallel_is_initialized()


def test_sizes_that_do_not_fit_are_told_in_the_program(torch):
    with pytest.raises(InputError, match=r"init_process_group\('ahbm'\) first"):
        initialize_model_parallel(2)
    torch.distributed.init_process_group("ahbm")
    for size in (1, 4):
        with pytest.raises(NotImplementedError, match="there are 2 ranks"):
            initialize_model_parallel(size)


def test_a_group_of_the_program_alone_is_none_of_its_ranks(torch):
    """As many ranks as it is for begin with it."""
    initialize_model_parallel(1)
    seen = []
    for nprocs in (1, 2):
        torch.multiprocessing.spawn(lambda rank: seen.append(model_parallel_is_initialized()), nprocs=nprocs)
    assert seen == [True, False, False]
