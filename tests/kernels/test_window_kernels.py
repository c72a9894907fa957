"""Kernels that work by tables, on the machine, in blocks smaller than what there is to do."""

from __future__ import annotations

import numpy as np
import pytest

from compiled import compiled
from kernbench.engine.engine import GraphEngine
from kernbench.kernels.elementwise import copy_windows, elementwise_shards
from kernbench.kernels.gemm import gemm_windows
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology.builder import Topology


def one_cube() -> Topology:
    return compiled("sip.cube_mesh.w=1", "sip.cube_mesh.h=1", "system.sips.count=1")


@pytest.fixture
def torch():
    with RuntimeContext(GraphEngine(one_cube())) as context:
        yield context


@pytest.mark.parametrize("block", [2, 5, 12, 1000])
def test_a_box_is_copied_in_blocks(torch, block):
    array = np.arange(4 * 5 * 6, dtype=np.float32).reshape(4, 5, 6)
    source, target = torch.tensor(array), torch.zeros(3, 4, 7)
    line = (0, 0, (1 * 30 + 1 * 6 + 2) * 4, 7 * 4 + 4, 2, 3, 4, 120, 24, 4, 112, 28, 4)
    torch.launch("copy", copy_windows, source, target, line, 3, torch.f32, block)
    expected = np.zeros((3, 4, 7), np.float32)
    expected[:2, 1:, 1:5] = array[1:3, 1:4, 2:6]
    np.testing.assert_array_equal(target.numpy(), expected)


def test_every_program_takes_its_own_lines(torch):
    x, y = (torch.tensor(np.arange(40.0) + first, dp=DPPolicy(pe="row_wise")) for first in (0, 100))
    out = torch.zeros(40, dp=x.dp)
    lines = tuple(n for pe in range(8) for n in (0, pe, pe * 20, 5))
    torch.launch("sub", elementwise_shards, "sub", x, y, out, lines, torch.f32, block=2)
    assert set(out.tolist()) == {-100}
    torch.launch("sub", elementwise_shards, "sub", x, None, out, lines[:8], torch.f32, 1, True)
    np.testing.assert_array_equal(out.numpy(), [1.0 - at if at < 10 else -100.0 for at in range(40)])


def test_windows_of_a_product(torch):
    a, b = (np.arange(size, dtype=np.float32).reshape(shape) % 5 for size, shape in ((21, (3, 7)), (77, (7, 11))))
    out = torch.full((3, 11), -1)
    line = (0, 0, 1, 2, 4, 6, (11 + 4) * 4, 44)
    given = torch.tensor(a), torch.tensor(b)
    torch.launch("gemm", gemm_windows, *given, out, line, 7, 11, torch.f32, stage_bytes=28)
    expected = np.full((3, 11), -1.0)
    expected[1:, 4:10] = (a @ b)[1:, 4:10]
    np.testing.assert_array_equal(out.numpy(), expected)
