import my_allreduce
import numpy as np
import pytest

from kernbench.ccl.testing import run_kernel_in_mock


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("n", [1, 1000])
def test_every_rank_ends_with_the_sum(ranks, n):
    inputs = [np.full(n, rank + 1, np.float32) for rank in range(ranks)]
    outputs = run_kernel_in_mock(
        my_allreduce.kernel, ranks, "ring_1d", inputs, algo_module=my_allreduce, pes_per_cube=8
    )
    for output in outputs:
        np.testing.assert_array_equal(output, sum(inputs))
