"""Which context code runs in, what libraries keep for a rank, and an all-reduce that is one whatever ccl.yaml says."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from fake_engine import FakeEngine
from machines import context_on, run_ranks, working_machine

from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext, current_context
from kernbench.runtime_api.multiprocessing import SpawnException

pytestmark = pytest.mark.filterwarnings("ignore:all_reduce. the configured")


class Notes(list):
    """What a library keeps."""


def test_the_innermost_context_is_the_current_one(machine):
    with RuntimeContext(FakeEngine(machine)) as outer:
        with suppress(ValueError), RuntimeContext(FakeEngine(machine)) as inner:
            assert current_context() is inner
            raise ValueError("an error leaves it too")
        assert current_context() is outer
    assert current_context() is None


def test_a_rank_has_the_context_of_who_spawned_it(torch):
    seen = []

    def program(rank):
        torch.zeros(4)  # other ranks run meanwhile
        seen.append(current_context())

    torch.multiprocessing.spawn(program, nprocs=2)
    assert seen == [torch, torch]


def test_every_rank_keeps_its_own(torch):
    def program(rank):
        assert torch.rank_local.get(Notes) is None
        torch.rank_local.put(Notes([rank]))
        torch.zeros(4)
        assert torch.rank_local.get(Notes) == [rank]

    for _ in range(2):
        torch.multiprocessing.spawn(program, nprocs=2)
    assert torch.rank_local.get(Notes) is None


def test_what_is_kept_goes_with_the_context(torch):
    with torch:
        torch.rank_local.put(Notes("a"))
        torch.rank_local.put(Notes("b"))
        assert torch.rank_local.get(Notes) == ["b"]
        torch.rank_local.drop(Notes)
        assert torch.rank_local.get(Notes) is None
        torch.rank_local.put(Notes("c"))
    assert torch.rank_local.get(Notes) is None


def test_an_all_reduce_may_be_elementwise_whatever_is_configured(tmp_path):
    row_per_cube = DPPolicy(cube="row_wise", num_pes=1)

    def program(rank):
        tensor = torch.ones(2, 8, dp=row_per_cube)
        torch.distributed.all_reduce(tensor, elementwise=True)
        return tensor.numpy()

    with context_on(working_machine(), tmp_path) as torch:
        for result in run_ranks(torch, program):
            np.testing.assert_array_equal(result, np.full((2, 8), 2))


def test_all_ranks_have_to_ask_for_it(tmp_path):
    def program(rank):
        torch.distributed.all_reduce(torch.zeros(4), elementwise=rank == 0)

    both = r"all_reduce\(f32\[4\], op=sum\), rank . called all_reduce\(f32\[4\], op=sum, elementwise=True\)"
    with context_on(working_machine(), tmp_path) as torch, pytest.raises(SpawnException, match=both):
        run_ranks(torch, program)
