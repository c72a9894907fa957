"""Memory of kernels for intermediate values, and tensors that no launch has mapped."""

from __future__ import annotations

import numpy as np

from kernbench.common.dtypes import F32
from kernbench.engine.engine import GraphEngine
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.memory import SLAB_BYTES
from kernbench.topology.builder import resolve_topology
from kernbench.tp import ops

MACHINE = resolve_topology("default", ["system.sips.count=1", "sip.cube_mesh.w=2", "sip.cube_mesh.h=1"])


def test_tensors_that_no_launch_has_mapped_are_freed_and_copied() -> None:
    with RuntimeContext(engine=GraphEngine(MACHINE)) as torch:
        torch.empty(8, 16, dtype="f32", is_mapped=False).free()
        x = torch.empty(8, 16, dtype="f32", is_mapped=False)
        x.copy_(np.ones((8, 16), np.float32))
        assert x.clone().numpy().sum() == 128


def test_a_workspace_that_was_freed_is_allocated_again() -> None:
    with RuntimeContext(engine=GraphEngine(MACHINE)) as torch:
        torch.workspace(8, 16, dtype="f32").free()
        again = torch.workspace(8, 16, dtype="f32")
        again.fill_(2)
        assert torch.workspace(8, 16, dtype="f32").numpy().sum() == 256


def test_a_weight_on_an_incomplete_grid_is_multiplied_without_gemv() -> None:
    with RuntimeContext(engine=GraphEngine(MACHINE)) as torch:
        x = torch.tensor(np.ones((1, 13), np.float32))
        weight = torch.tensor(np.ones((13, 9), np.float32), dp=DPPolicy("column_wise", "column_wise"))
        assert ops.linear(x, weight, None, torch).numpy().tolist() == [[13.0] * 9]


def test_a_slab_has_as_few_tensors_as_fill_it() -> None:
    """A tensor takes complete pages of virtual memory."""
    with RuntimeContext(engine=GraphEngine(MACHINE)) as torch:
        page = torch.engine.va_allocator(0).page_size
        for pages in (1, 3, 7, 2 * SLAB_BYTES // page):
            elements = (pages * page - 8) // 4
            slab = torch.slab(elements, F32, DPPolicy("replicate", "row_wise"), 0, ((0, 0, 0),)).slab
            assert slab.unit_bytes == pages * page
            assert (slab.count - 1) * slab.unit_bytes < SLAB_BYTES <= slab.count * slab.unit_bytes
