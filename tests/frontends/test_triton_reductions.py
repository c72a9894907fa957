"""Reductions and scans by functions of the kernel, what Triton makes of them (sort, flip, topk), and look-ups."""

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
RNG = np.random.default_rng(7)
X, Y = (RNG.uniform(0.5, 1.5, (4, 8)).astype(np.float32) for _ in range(2))


@triton.jit
def product(a, b):
    return a * b


@triton.jit
def moments(mean, squares, n, other_mean, other_squares, other_n):
    delta, total = other_mean - mean, n + other_n
    share = other_n / total
    return mean + delta * share, squares + other_squares + delta * delta * n * share, total


@triton.jit
def step(a, b, then_a, then_b):
    """Of x -> a x + b and what comes then."""
    return a * then_a, then_a * b + then_b


@triton.jit
def blocks(x_ptr, y_ptr, out_ptr, function: tl.constexpr):
    at = tl.arange(0, 4)[:, None] * 8 + tl.arange(0, 8)[None, :]
    made = function(tl.load(x_ptr + at), tl.load(y_ptr + at))
    tl.store(out_ptr + at, made + tl.zeros((4, 8), tl.float32))


def deviation(x: Any, y: Any) -> Any:
    """The sum of squares of what a row differs from its mean by, of a tuple of data and constants."""
    zeros = tl.zeros((4, 8), tl.float32)
    return tl.reduce((x, zeros, zeros + 1), -1, moments, keep_dims=True)[1]


def line_after_line(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What `step` makes along the last axis."""
    made, last = np.zeros_like(y), np.zeros_like(y[:, 0])
    for i in range(y.shape[1]):
        made[:, i] = last = x[:, i] * last + y[:, i]
    return made


def back(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return x[:, ::-1]


CASES: dict[str, tuple[Callable[[Any, Any], Any], Callable[..., Any]]] = {
    "product of columns": (lambda x, y: tl.reduce(x, 0, product)[None, :], lambda x, y: x.prod(0, keepdims=True)),
    "product of all": (lambda x, y: tl.reduce(x, None, product), lambda x, y: x.prod()),
    "moments": (deviation, lambda x, y: x.var(1, keepdims=True) * 8),
    "scan of a pair": (lambda x, y: tl.associative_scan((x, y), -1, step)[1], line_after_line),
    "scan of a pair, in reverse, by columns": (
        lambda x, y: tl.associative_scan((x, y), 0, step, reverse=True)[1],
        lambda x, y: back(line_after_line(back(x.T), back(y.T))).T,
    ),
    "running product": (lambda x, y: tl.cumprod(x, 0), lambda x, y: x.cumprod(0)),
    "sum in reverse": (lambda x, y: tl.cumsum(x, 1, reverse=True), lambda x, y: back(back(x).cumsum(1))),
    "bits": (
        lambda x, y: (x.to(tl.int32, bitcast=True) ^ 1).to(tl.float32, bitcast=True),
        lambda x, y: (x.view(np.int32) ^ 1).view(np.float32),
    ),
    "gather of rows": (
        lambda x, y: tl.gather(x, (y * 8).to(tl.int32) % 4, 0),
        lambda x, y: np.take_along_axis(x, (y * 8).astype(np.int32) % 4, 0),
    ),
    "gather in a row, narrow": (
        lambda x, y: tl.gather(x.to(tl.float16), (y * 8).to(tl.int64) % 8, -1),
        lambda x, y: np.take_along_axis(x.astype(np.float16), (y * 8).astype(np.int32) % 8, 1),
    ),
    "gather of what is known": (
        lambda x, y: tl.gather(tl.zeros((4, 8), tl.int32) + tl.arange(0, 8)[None, :], (y * 8).to(tl.int32) % 8, 1),
        lambda x, y: (y * 8).astype(np.int32) % 8,
    ),
    "histogram": (
        lambda x, y: tl.histogram((x * 8).to(tl.int32).reshape(32), 8)[None, :],
        lambda x, y: np.bincount((x * 8).astype(int).ravel(), minlength=8)[:8],
    ),
    "histogram under a mask": (
        lambda x, y: tl.histogram((x * 8).to(tl.int32).reshape(32), 8, mask=y.reshape(32) > 1)[None, :],
        lambda x, y: np.bincount((x * 8).astype(int)[y > 1], minlength=8)[:8],
    ),
    "flip": (lambda x, y: tl.flip(x, 1), lambda x, y: back(x)),
    "sort": (lambda x, y: tl.sort(x, descending=True), lambda x, y: back(np.sort(x))),
    "topk": (lambda x, y: tl.sum(tl.topk(x, 2), 1)[:, None], lambda x, y: np.sort(x)[:, 6:].sum(1, keepdims=True)),
}


@pytest.mark.parametrize("case", CASES)
def test_values_are_those_of_numpy(case: str) -> None:
    function, wanted = CASES[case]
    with RuntimeContext(engine=GraphEngine(MACHINE)) as torch:
        x, y = (torch.empty(4, 8, dtype="f32", dp=ONE_PE).copy_(each) for each in (X, Y))
        out = torch.zeros(4, 8, dtype="f32", dp=ONE_PE)
        blocks[1,](x, y, out, function)
        found = out.numpy()
    np.testing.assert_allclose(found, np.broadcast_to(wanted(X, Y), (4, 8)), rtol=1e-5)


@triton.jit
def looks_up(bits_ptr, places_ptr, out_ptr):
    at = tl.arange(0, 4)
    found = tl.gather(tl.load(bits_ptr + at).to(tl.float32, bitcast=True), tl.load(places_ptr + at), 0)
    tl.store(out_ptr + at, found.to(tl.int32, bitcast=True))


def test_what_is_looked_up_is_the_same_to_the_bit() -> None:
    bits = np.array([-0.0, np.nan, -np.inf, 1e-45], np.float32).view(np.int32)
    with RuntimeContext(engine=GraphEngine(MACHINE)) as torch:
        x = torch.empty(4, dtype="i32", dp=ONE_PE).copy_(bits)
        places = torch.empty(4, dtype="i32", dp=ONE_PE).copy_(np.array([3, 2, 0, 1], np.int32))
        looks_up[1,](x, places, x)
        assert x.numpy().tolist() == bits[[3, 2, 0, 1]].tolist()
