"""NaN in the extremes of Triton's language: left out, unless the program has it propagate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from extras import need
from kernbench.engine.engine import GraphEngine
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology.builder import resolve_topology

need("triton")

import kernbench.triton  # noqa: E402, F401

# isort: split
import triton  # noqa: E402
import triton.language as tl  # noqa: E402

MACHINE = resolve_topology("default", ["system.sips.count=1", "sip.cube_mesh.w=1", "sip.cube_mesh.h=1"])
ONE_PE = DPPolicy(num_pes=1, num_cubes=1)
NAN = np.nan
X = np.array([[NAN, 1, 3, NAN], [NAN, NAN, NAN, NAN], [2, NAN, -np.inf, 5], [4, 3, 2, 1]], np.float32)
Y = np.array([[0, NAN, 5, NAN], [1, 2, 3, 4], [NAN, 0, NAN, 9], [4, 5, 1, NAN]], np.float32)


@triton.jit
def larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def blocks(x_ptr, y_ptr, out_ptr, function: tl.constexpr):
    at = tl.arange(0, 4)[:, None] * 4 + tl.arange(0, 4)[None, :]
    result = function(tl.load(x_ptr + at), tl.load(y_ptr + at))
    tl.store(out_ptr + at, result + tl.zeros((4, 4), tl.float32))


ALL = tl.PropagateNan.ALL
CASES: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "max": (lambda x, _: tl.max(x, 1)[:, None], lambda x, _: np.fmax.reduce(x, 1)[:, None]),
    "min of all": (lambda x, _: tl.min(x), lambda x, _: np.fmin.reduce(x, None)),
    "argmax": (lambda x, _: tl.argmax(x, 1)[:, None], lambda *_: np.array([[2], [0], [3], [0]])),
    "argmin": (lambda x, _: tl.argmin(x, 1)[:, None], lambda *_: np.array([[1], [0], [2], [3]])),
    "by a function": (lambda x, _: tl.reduce(x, 1, larger)[:, None], lambda x, _: np.fmax.reduce(x, 1)[:, None]),
    "maximum": (tl.maximum, np.fmax),
    "minimum": (tl.minimum, np.fmin),
    "maximum of a number": (lambda x, _: tl.maximum(x, 0.0), lambda x, _: np.fmax(x, 0)),
    "clamp": (lambda x, _: tl.clamp(x, -1.0, 2.0), lambda x, _: np.fmin(np.fmax(x, -1), 2)),
    "maximum, propagating": (lambda x, y: tl.maximum(x, y, propagate_nan=ALL), np.maximum),
    "minimum, propagating": (lambda x, y: tl.minimum(x, y, propagate_nan=ALL), np.minimum),
    "clamp, propagating": (lambda x, _: tl.clamp(x, -1.0, 2.0, propagate_nan=ALL), lambda x, _: np.clip(x, -1, 2)),
}


@pytest.mark.parametrize("case", CASES)
def test_extremes_of_nan_are_tritons(case: str) -> None:
    function, wanted = CASES[case]
    with RuntimeContext(engine=GraphEngine(MACHINE)) as torch:
        x, y = (torch.empty(4, 4, dtype="f32", dp=ONE_PE).copy_(values) for values in (X, Y))
        out = torch.zeros(4, 4, dtype="f32", dp=ONE_PE)
        blocks[1,](x, y, out, function)
        result = out.numpy()
    np.testing.assert_array_equal(result, np.broadcast_to(wanted(X, Y), (4, 4)))
