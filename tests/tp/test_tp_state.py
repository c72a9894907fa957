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
    with pytest.raises(InputError, match="no RuntimeContext is entered here: give torch="):
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
        assert "not supported. Give 2" in str(error)


@pytest.mark.parametrize("size", [0, -2, 1.5, "2"])
def test_a_size_that_is_none(torch, size):
    with pytest.raises(ValueError, match="a whole number of at least 1"):
        initialize_model_parallel(size)


def test_ranks_need_a_process_group(torch):
    with pytest.raises(SpawnException, match="init_process_group"):
        torch.multiprocessing.spawn(lambda rank: initialize_model_parallel(2), nprocs=2)


def test_only_once(torch):
    def program():
        initialize_model_parallel(1)

    program()
    with pytest.raises(InputError, match="did so before"):
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
