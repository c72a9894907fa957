"""The theory of evaluations at other clocks: as exact, and as much of a bound, as at those of the file."""

from __future__ import annotations

import pytest
from gemm_support import ideal, kernel_ns

from ideal_memory import IDEAL
from kernbench.evaluation.gemm_shapes import VARIANTS, GemmShape

ONE_TILE = GemmShape(32, 64, 32)
CLOCKS = ["{pe: 2}", "{noc: 0.5}", "{pe: 0.5, noc: 2, io: 3}"]


@pytest.mark.parametrize("clocks", CLOCKS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_one_tile_takes_exactly_that(variant: str, clocks: str) -> None:
    overrides = (*IDEAL, f"clocks={clocks}")
    found = ideal(ONE_TILE, variant, *overrides).ns
    assert found == pytest.approx(kernel_ns(ONE_TILE, variant, *overrides), abs=0.005)
    assert found != pytest.approx(ideal(ONE_TILE, variant, *IDEAL).ns, abs=1)


@pytest.mark.parametrize("clocks", CLOCKS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_no_kernel_is_faster(variant: str, clocks: str) -> None:
    shape = GemmShape(70, 130, 90)
    assert kernel_ns(shape, variant, f"clocks={clocks}") >= ideal(shape, variant, f"clocks={clocks}").ns - 0.3
