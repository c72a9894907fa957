"""Functions and conditions that take one command of MATH, or none, where their source in Triton takes several."""

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
need("torch")

import kernbench.triton  # noqa: E402, F401, I001 - before triton
import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from torch._inductor.runtime import triton_helpers  # noqa: E402

MACHINE = resolve_topology("default", ["system.sips.count=1", "sip.cube_mesh.w=1", "sip.cube_mesh.h=1"])
ONE_PE = DPPolicy(num_pes=1, num_cubes=1)
SHAPE = (4, 8)
RNG = np.random.default_rng(3)
X, Y = (RNG.standard_normal(SHAPE).astype(np.float32) for _ in range(2))
X[1, 2] = X[3, :2] = np.nan
Y[2, 5] = np.nan
Kernel = Callable[..., Any]


@triton.jit
def total(first, second):
    later = second
    return later + first


@triton.jit
def larger(first, second):
    return tl.maximum(first, second)


@triton.jit
def smaller_or_nan(a, b):
    """Return NaN if there is one."""
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def product(a, b):
    return a * b


@triton.jit
def run(x_ptr, y_ptr, out_ptr, function: tl.constexpr):
    at = tl.arange(0, 4)[:, None] * 8 + tl.arange(0, 8)[None, :]
    tl.store(out_ptr + at, function(tl.load(x_ptr + at), tl.load(y_ptr + at)))


@triton.jit
def reduce(x_ptr, y_ptr, out_ptr, function: tl.constexpr):
    at = tl.arange(0, 4)[:, None] * 8 + tl.arange(0, 8)[None, :]
    tl.store(out_ptr + tl.arange(0, 8), function(tl.load(x_ptr + at), tl.load(y_ptr + at)))


def launch(kernel: Kernel, function: Kernel, out: tuple[int, ...]) -> tuple[np.ndarray[Any, Any], int]:
    """Return the result of a kernel on X and Y, and the number of its commands of MATH."""
    engine = GraphEngine(MACHINE)
    with RuntimeContext(engine=engine) as torch:
        x, y = (torch.empty(*SHAPE, dtype="f32", dp=ONE_PE).copy_(data) for data in (X, Y))
        result = torch.zeros(*out, dtype="f32", dp=ONE_PE)
        kernel[1,](x, y, result, function)
        return result.numpy(), sum(row.kind == "math" for row in engine.op_log)


def all_true() -> tl.tensor:
    return tl.full((4, 8), True, tl.int1)


def nan_before(y: np.ndarray[Any, Any], axis: int) -> np.ndarray[Any, Any]:
    return np.argmax(np.where(np.isnan(y), np.inf, y), axis)


@pytest.mark.parametrize(
    ("function", "expected", "n_commands"),
    [
        (lambda x, y: tl.sigmoid(y), 1 / (1 + np.exp(-Y)), 1),
        (lambda x, y: y.sigmoid(), 1 / (1 + np.exp(-Y)), 1),
        (triton_helpers.maximum, np.maximum(X, Y), 1),
        (triton_helpers.minimum, np.minimum(X, Y), 1),
        (lambda x, y: triton_helpers.maximum(tl.full([1], 0, tl.int32), x), np.maximum(X, 0), 1),
        (lambda x, y: tl.where(all_true(), x, y), X, 0),
        (lambda x, y: tl.where(tl.arange(0, 8)[None, :] < 8, x, 0.0), X, 0),
        (lambda x, y: tl.where(tl.arange(0, 4)[:, None] > 3, x, y), Y, 0),
        (lambda x, y: tl.where(tl.arange(0, 8)[None, :] < 5, x, y), np.where(np.arange(8) < 5, X, Y), 2),
    ],
)
def test_one_command(function: Kernel, expected: np.ndarray[Any, Any], n_commands: int) -> None:
    values, commands = launch(run, function, SHAPE)
    np.testing.assert_allclose(values, np.broadcast_to(expected, SHAPE), rtol=1e-6)
    assert commands == n_commands


@pytest.mark.parametrize(
    ("function", "expected", "n_commands"),
    [
        (lambda x, y: triton_helpers.max2(x, 0), X.max(0), 1),
        (lambda x, y: triton_helpers.min2(x, 0), X.min(0), 1),
        (lambda x, y: tl.reduce(y, 0, total), Y.sum(0), 1),
        (lambda x, y: tl.reduce(x, 0, larger), np.nanmax(X, 0), 1),
        (lambda x, y: tl.reduce(x, 0, smaller_or_nan), X.min(0), 1),
        (lambda x, y: tl.reduce(y, 0, product), Y.prod(0), 2),
    ],
)
def test_reductions_by_a_function_of_the_kernel(
    function: Kernel, expected: np.ndarray[Any, Any], n_commands: int
) -> None:
    values, commands = launch(reduce, function, (8,))
    np.testing.assert_allclose(values, expected, rtol=1e-6)
    assert commands == n_commands


def index_of_largest(first: int) -> Kernel:
    def function(x: Any, y: Any) -> Any:
        index = (first + tl.arange(0, 4)[:, None] + tl.zeros((4, 8), tl.int32)).to(tl.int64)
        return triton_helpers.max_with_index(y, index, 0)[1].to(tl.float32)

    return function


@pytest.mark.parametrize("first", [0, 5])
def test_the_index_of_the_largest_element_counts_from_the_first_index(first: int) -> None:
    values, commands = launch(reduce, index_of_largest(first), (8,))
    assert values.tolist() == (nan_before(Y, 0) + first).tolist()
    assert commands == (4 if not first else 5)


def test_indices_that_are_not_consecutive_are_compared_as_data() -> None:
    def function(x: Any, y: Any) -> Any:
        index = 3 * tl.arange(0, 4)[:, None] + tl.zeros((4, 8), tl.int32)
        return triton_helpers.max_with_index(y, index, 0)[1].to(tl.float32)

    assert launch(reduce, function, (8,))[0].tolist() == (3 * nan_before(Y, 0)).tolist()


@triton.jit
def selects(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.where(at < n, tl.load(x_ptr + at), -1.0))


@pytest.mark.parametrize(("n", "n_commands"), [(32, 0), (24, 1), (20, 3)])
def test_a_program_without_an_edge_selects_nothing(n: int, n_commands: int) -> None:
    """Later programs replay what the first one recorded.

    A program behind ``n`` fills a block with -1; at the edge, a program writes its mask and selects.
    """
    engine = GraphEngine(MACHINE)
    with RuntimeContext(engine=engine) as torch:
        x = torch.empty(32, dtype="f32", dp=ONE_PE).copy_(Y.reshape(-1))
        out = torch.zeros(32, dtype="f32", dp=ONE_PE)
        selects[4,](x, out, n, BLOCK=8)
        np.testing.assert_array_equal(out.numpy(), np.where(np.arange(32) < n, Y.reshape(-1), -1))
    assert sum(row.kind == "math" for row in engine.op_log) == n_commands
