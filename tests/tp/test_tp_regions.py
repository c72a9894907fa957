"""From one rank's part to all ranks and back."""

from __future__ import annotations

import numpy as np
import pytest
from tp_ranks import LAYOUTS, SOME_LAYOUTS, in_parallel, numbers

from covering import sample
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.tp import (
    copy_to_tp_region,
    gather_from_tp_region,
    reduce_from_tp_region,
    scatter_to_tp_region,
)

X = numbers(1, 8, 16)


@pytest.mark.parametrize("layout", SOME_LAYOUTS)
@pytest.mark.parametrize("sips", sample((2, 4), 2))
def test_there_and_back(layout, sips):
    each = 16 // sips

    def program(torch, rank):
        x = torch.tensor(X, dp=LAYOUTS[layout])
        assert copy_to_tp_region(x) is x
        part = scatter_to_tp_region(x)
        np.testing.assert_array_equal(part.numpy(), X[:, each * rank : each * (rank + 1)])
        return gather_from_tp_region(part).numpy()

    for whole in in_parallel(program, sips):
        np.testing.assert_array_equal(whole, X)


@pytest.mark.parametrize("layout", SOME_LAYOUTS)
def test_gather_and_reduce_of_any_layout(layout):
    def program(torch, rank):
        x = torch.tensor(X + 100 * rank, dp=LAYOUTS[layout])
        whole = gather_from_tp_region(x).numpy()
        assert reduce_from_tp_region(x) is x
        return whole, x.numpy()

    for whole, total in in_parallel(program):
        np.testing.assert_array_equal(whole, np.concatenate([X, X + 100], axis=1))
        np.testing.assert_array_equal(total, X + (X + 100))


def test_one_rank_has_everything():
    def program(torch, rank):
        x = torch.tensor(X)
        regions = (copy_to_tp_region, reduce_from_tp_region, scatter_to_tp_region, gather_from_tp_region)
        return [region(x, torch=torch) is x for region in regions]

    assert in_parallel(program, sips=1) == [[True] * 4]


def test_what_cannot_be_split():
    with pytest.raises(SpawnException, match="last axis of odd=7 cannot be split evenly over 2 ranks: 1 would be left"):
        in_parallel(lambda torch, rank: scatter_to_tp_region(torch.zeros(2, 7, name="odd")))
