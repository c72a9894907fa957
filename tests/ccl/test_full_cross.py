"""Every collective x kind of queue x element type x size x ranks, on the machine: the numbers of NumPy and the mock.

To the bit those of the mock. Those of NumPy exactly where nothing is computed, and for max and min; else up to the
rounding of so many sums in any order, and of one division (``assert_reduced``): with n contributions and the unit
roundoff u of the type, |error| <= n u (1 + n u) sum |x_i|. u is 2^-24 for f32, 2^-11 for f16, 2^-8 for bf16.

Each test is of all three kinds of queues. That no algorithm is left out is checked in test_algorithms_on_the_machine.
"""

from __future__ import annotations

import pytest
from cross_support import DTYPES, REDUCTIONS, SIZES, WORLDS, World, as_packaged, assert_on_machine, packaged

pytestmark = pytest.mark.slow

dtypes = pytest.mark.parametrize("dtype", DTYPES)
PACKAGED = packaged()
EVERY_PE = [name for name, config in PACKAGED.items() if config.mapper == "all_pes"]


@pytest.mark.parametrize(("world", "n"), [pytest.param(w, n, id=f"{w}-{n}") for w in WORLDS for n in w.sizes])
@dtypes
def test_sums_and_moves(world: World, dtype: str, n: int) -> None:
    assert_on_machine(world, n, dtype)


@pytest.mark.parametrize("world", [world for world in WORLDS if world.reductions == REDUCTIONS], ids=str)
@dtypes
@pytest.mark.parametrize("op", REDUCTIONS[1:])
@pytest.mark.parametrize("n", [1, 1000])
def test_the_other_reductions(world: World, dtype: str, op: str, n: int) -> None:
    assert_on_machine(world, n, dtype, op)


@pytest.mark.parametrize("name", list(PACKAGED))
@dtypes
@pytest.mark.parametrize("n", SIZES[:3])
@pytest.mark.parametrize("op", REDUCTIONS)
def test_as_the_packaged_file_has_it_on_the_packaged_machine(name: str, dtype: str, n: int, op: str) -> None:
    assert_on_machine(as_packaged(PACKAGED[name]), n, dtype, op, [PACKAGED[name].buffer_kind])


@pytest.mark.parametrize("name", [name for name in PACKAGED if name not in EVERY_PE])
@dtypes
def test_large_tensors_on_the_packaged_machine(name: str, dtype: str) -> None:
    assert_on_machine(as_packaged(PACKAGED[name]), SIZES[-1], dtype)


@pytest.mark.parametrize("name", EVERY_PE)
def test_a_large_tensor_of_every_pe_of_the_packaged_machine(name: str) -> None:
    assert_on_machine(as_packaged(PACKAGED[name]), SIZES[-1], "f16", kinds=["tcm"])
