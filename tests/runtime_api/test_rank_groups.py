"""Collectives among some of the ranks."""

from __future__ import annotations

import numpy as np
import pytest
from machines import RING, context_on, run_ranks, working_machine

from kernbench.common.errors import InputError, IpcqDeadlock
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.collective_calls import RankGroup, group_of
from kernbench.runtime_api.multiprocessing import SpawnException

pytestmark = [pytest.mark.usefixtures("runner"), pytest.mark.filterwarnings("ignore:all_reduce. the configured")]

ROWS = DPPolicy("row_wise", "row_wise")


@pytest.fixture
def torch(tmp_path):
    with context_on(working_machine(4), tmp_path, RING) as context:
        yield context


def test_groups_have_their_ranks_in_order():
    assert group_of([3, 1], 4) == RankGroup((1, 3))
    assert group_of(None, 2).ranks == (0, 1)
    assert [RankGroup((1, 3)).rank_of(rank) for rank in range(4)] == [-1, 0, -1, 1]
    for ranks in ([], [1, 1], [4], [-1]):
        with pytest.raises(InputError, match=r"some of the ranks 0\.\.3, each once"):
            group_of(ranks, 4)


@pytest.mark.parametrize("ranks", [(0, 2), (1, 3), (0, 1, 3), (2,)])
def test_every_collective_is_among_the_ranks_of_the_group(torch, ranks):
    size = len(ranks)

    def program(rank):
        dist = torch.distributed
        group = dist.new_group(ranks)
        if rank not in ranks:
            return None
        mine = torch.tensor(np.arange(size * 24).reshape(size * 8, 3) + 100 * rank, dtype="f32", dp=ROWS)
        part, whole = torch.zeros(8, 3, dp=ROWS), torch.zeros(size * 8, 3, dp=ROWS)
        dist.reduce_scatter_tensor(part, mine, group=group)
        scattered = part.numpy()
        dist.all_gather_into_tensor(whole, part, group=group)
        gathered = whole.numpy()
        dist.all_to_all_single(whole, mine, group=group)
        exchanged = whole.numpy()
        dist.broadcast(part, ranks[-1], group=group)
        sent = part.numpy()
        dist.all_reduce(mine, "max", group=group)
        dist.barrier(group=group)
        return scattered, gathered, exchanged, sent, mine.numpy(), dist.get_rank(group), dist.get_world_size(group)

    results = run_ranks(torch, program)
    given = [np.arange(size * 24).reshape(size * 8, 3) + 100 * rank for rank in ranks]
    total = sum(given)
    for at, rank in enumerate(ranks):
        block = slice(8 * at, 8 * at + 8)
        scattered, gathered, exchanged, sent, largest, number, count = results[rank]
        np.testing.assert_array_equal(scattered, total[block])
        np.testing.assert_array_equal(gathered, total)
        np.testing.assert_array_equal(exchanged, np.concatenate([each[block] for each in given]))
        np.testing.assert_array_equal(sent, total[-8:])
        np.testing.assert_array_equal(largest, given[-1])
        assert (number, count) == (at, size)


def test_groups_side_by_side_and_all_ranks_between(torch):
    def program(rank):
        dist, tensor = torch.distributed, torch.full((8,), 1 + rank)
        dist.all_reduce(tensor, group=dist.new_group([rank % 2, rank % 2 + 2]))
        dist.all_reduce(tensor)
        dist.all_reduce(tensor, group=dist.new_group([0, 1] if rank < 2 else [2, 3]))
        return tensor.tolist()

    assert run_ranks(torch, program) == [[40.0] * 8] * 4


def test_a_group_of_all_is_all_ranks(torch):
    def program(rank):
        dist, tensor = torch.distributed, torch.full((8,), 1 + rank)
        dist.all_reduce(tensor, group=dist.new_group() if rank % 2 else None)
        return tensor.tolist(), dist.get_process_group_ranks(dist.new_group())

    assert run_ranks(torch, program) == [([10.0] * 8, [0, 1, 2, 3])] * 4


def test_a_rank_of_the_group_that_never_joins(torch):
    def program(rank):
        group = torch.distributed.new_group([1, 3])
        if rank == 1:
            torch.distributed.all_reduce(torch.ones(8), group=group)

    with pytest.raises(IpcqDeadlock, match="which rank 3 never joined"):
        run_ranks(torch, program)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda dist, x: dist.all_reduce(x, group=dist.new_group([1, 2])), "rank 0 is not in the group of ranks 1, 2"),
        (lambda dist, x: dist.broadcast(x, 1, group=dist.new_group([0, 2])), "src=1: there are ranks 0, 2"),
        (lambda dist, x: dist.all_reduce(x, group=[0, 1]), "make one with torch.distributed.new_group"),
        (lambda dist, x: dist.all_gather([x] * 4, x, group=dist.new_group([0, 2])), "4 tensors for 2 ranks"),
    ],
)
def test_calls_that_cannot_be(torch, call, words):
    def program(rank):
        if rank == 0:
            call(torch.distributed, torch.ones(8))

    with pytest.raises(SpawnException, match=words):
        run_ranks(torch, program)
