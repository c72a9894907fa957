"""An embedding whose table is split by vocabulary."""

from __future__ import annotations

import numpy as np
import pytest
from tp_ranks import LAYOUTS, in_parallel, numbers, same_bits

from covering import slow
from kernbench.common.errors import InputError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.tp import VocabParallelEmbedding

TABLE = numbers(1, 20, 12, dtype=np.float16)
IDS = np.array([0, 19, 7, 7, 10, 9, 3], np.int32)


def embedding(torch, **options):
    layer = VocabParallelEmbedding(20, 12, torch=torch, **options)
    layer.load(TABLE)
    return layer


@pytest.mark.parametrize(
    ("sips", "dp"),
    [(1, None), (2, None), slow(4, None), (2, DPPolicy()), slow(2, DPPolicy(num_cubes=1, num_pes=1))],
    ids=str,
)
def test_ids_of_the_host_and_of_the_machine(sips, dp):
    def program(torch, rank):
        layer = embedding(torch, dp=dp)
        assert layer.weight.shape == (20 // sips, 12)
        return layer(IDS).numpy(), layer.forward(torch.tensor(IDS)).numpy()

    found = [each for results in in_parallel(program, sips) for each in results]
    np.testing.assert_array_equal(found[0], TABLE[IDS])
    assert same_bits(found)


def test_ids_in_more_axes():
    ids = [[1, 2, 3], [17, 18, 19]]

    def program(torch, rank):
        layer = embedding(torch)
        return layer(ids).numpy(), layer(torch.tensor(ids, dp=LAYOUTS["copies"])).numpy(), layer(5).numpy()

    host, there, one = in_parallel(program)[1]
    np.testing.assert_array_equal(host, TABLE[ids])
    np.testing.assert_array_equal(there, TABLE[ids])
    np.testing.assert_array_equal(one, TABLE[[5]])


def test_ids_on_the_machine_outside_of_the_vocabulary_are_zeros():
    found = in_parallel(lambda torch, rank: embedding(torch)(torch.tensor([-1, 20, 4])).numpy())[0]
    np.testing.assert_array_equal(found, [*np.zeros((2, 12)), TABLE[4]])


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda torch: VocabParallelEmbedding(21, 12, torch=torch), "num_embeddings=21 cannot be split evenly over 2"),
        (lambda torch: VocabParallelEmbedding(20, 12, dp=LAYOUTS["columns"], torch=torch), "row_wise or replicate"),
        (
            lambda torch: VocabParallelEmbedding(20, 8, torch=torch).load(TABLE),
            r"shape \(20, 8\), got \(20, 12\)",
        ),
        (lambda torch: embedding(torch)([3, 20]), "id 20 is outside the vocabulary, 0..19"),
        (lambda torch: embedding(torch)([0.5]), "ids must be integers"),
        (lambda torch: embedding(torch)([]), "at least one"),
        (lambda torch: embedding(torch)(torch.zeros(4)), "ids on the machine must be i32"),
    ],
)
def test_errors(use, message):
    with pytest.raises(SpawnException, match=message) as raised:
        in_parallel(lambda torch, rank: use(torch))
    (error,) = raised.value.errors.values()
    assert isinstance(error, InputError)
