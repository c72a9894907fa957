"""Products of few rows on the machine, without a front end."""

from __future__ import annotations

import numpy as np
import pytest

from compiled import compiled
from kernbench.common.dtypes import F32
from kernbench.engine.engine import GraphEngine
from kernbench.kernels.gemv import Gemv, GemvEpilogue
from kernbench.kernels.tiling import column_panels, panel_rows, piece_rows
from kernbench.kernels.view import View
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext

COLUMNS = DPPolicy("column_wise", "column_wise")
ROWS = DPPolicy("row_wise", "row_wise")


@pytest.fixture(params=[1, 2])
def torch(request):
    topology = compiled("system.sips.count=1", f"sip.cube_mesh.w={request.param}", "sip.cube_mesh.h=1")
    with RuntimeContext(GraphEngine(topology)) as context:
        yield context


# Panels of all rows, of several groups of rows, and of fewer columns than a program has.
@pytest.mark.parametrize(("k", "max_columns"), [(37, 64), (5000, 64), (300, 1)])
def test_shards_of_columns(torch, k, max_columns):
    m, n = 3, 67
    a, b = (
        np.arange(size, dtype=np.float32).reshape(shape) % 5 - 2 for size, shape in ((m * k, (m, k)), (k * n, (k, n)))
    )
    bias = np.arange(n, dtype=np.float32)
    cubes = torch.topology.cubes_per_sip
    out, buffer = (
        torch.zeros(m, n, dp=ROWS),
        torch.zeros(cubes * m * k, dp=ROWS),
    )
    epilogue = GemvEpilogue(View.row_major(0, (1, m, n), F32), View(0, (1, m, n), (0, 0, 1), F32), 0.5, "relu")
    product = Gemv(m, View.row_major(0, (1, k, n), F32), epilogue, 32, max_columns, is_sharded=True)
    tensors = torch.tensor(a, dp=ROWS), torch.tensor(b, dp=COLUMNS), torch.tensor(bias)
    torch.launch("gemv", product.run, out, buffer, *tensors)
    np.testing.assert_array_equal(out.numpy(), np.maximum(0.5 * (a @ b) + bias, 0))


@pytest.mark.parametrize("k", [64, 130, 1000, 2048, 4096, 4160, 14336])
@pytest.mark.parametrize("is_last", [False, True])
def test_panels_of_columns_cover_all_rows_by_pieces(k: int, is_last: bool) -> None:
    depth = panel_rows(k, 32, 2)
    piece = piece_rows(k, depth)
    panels = list(column_panels(k, depth, piece, is_last=is_last))
    assert [first for first, _ in panels] == [sum(rows for _, rows in panels[:i]) for i in range(len(panels))]
    assert sum(rows for _, rows in panels) == k
    assert all(rows <= depth and (rows % piece == 0 or rows == k % piece) for _, rows in panels)
