"""The ideal pipeline on the skewed machine: one tile, term by term."""

from __future__ import annotations

import pytest

from kernbench.common.dtypes import F8E4M3, F16, F32, DType
from kernbench.engine.machine import Machine
from kernbench.evaluation.gemm_shapes import VARIANTS, GemmShape
from kernbench.evaluation.gemm_theory import IdealPipeline
from skewed import skewed, way

M, K, N = 24, 40, 56
HEADER, ACCESS_NS, SET_UP_NS = 24, 33.1, 2.7 + 0.8
SLICE_GBS = 281 * 0.83
MACS_PER_NS = {F32: 900, F16: 3700, F8E4M3: 8600}


@pytest.mark.parametrize("dtype", MACS_PER_NS, ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
def test_one_tile(variant: str, dtype: DType) -> None:
    dma, hbm = "sip0.cube0.pe0.pe_dma", "sip0.cube0.hbm0"
    there, back = way(skewed(), dma, hbm), way(skewed(), hbm, dma)

    def read(nbytes: int) -> float:
        moved = max(nbytes / SLICE_GBS, nbytes / back.narrowest_gbs)
        return SET_UP_NS + there.ns(HEADER) + ACCESS_NS + moved + back.head_ns if nbytes else 0.0

    a, b, c = (count * dtype.itemsize for count in (M * K, K * N, M * N))
    loaded = a * variant.startswith("load") + b * variant.endswith("load")
    write = SET_UP_NS + there.head_ns + c / SLICE_GBS + ACCESS_NS + back.ns(HEADER)
    tile = 1.9 + read(a + b - loaded) + (a + b) / 223 + M * K * N / MACS_PER_NS[dtype] + c / 149 + write
    found = IdealPipeline(Machine(skewed().topology_obj), dtype).ideal(GemmShape(M, K, N), variant)
    assert found.start_ns == pytest.approx(6.7 + 1.1, abs=0.001)
    assert found.load_ns == pytest.approx(read(loaded), abs=0.01)
    assert found.ns == pytest.approx(6.7 + 1.1 + read(loaded) + tile, abs=0.03)
