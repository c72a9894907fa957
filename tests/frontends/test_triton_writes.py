"""The parameters through which a Triton kernel may write."""

from __future__ import annotations

from typing import Any

import pytest

from extras import need

need("triton")

import kernbench.triton  # noqa: E402, F401

# isort: split
import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from kernbench.frontends.triton.writes import written_parameters  # noqa: E402


@triton.jit
def copies(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n), mask=at < n)


@triton.jit
def scatters(ids_ptr, x_ptr, out_ptr):
    at = tl.load(ids_ptr + tl.arange(0, 8))
    target = out_ptr
    target += at
    tl.atomic_add(target, tl.load(x_ptr + tl.arange(0, 8)))


@triton.jit
def puts(where, what):
    tl.store(where, what)


@triton.jit
def calls(x_ptr, y_ptr, z_ptr):
    row = y_ptr + 8
    puts(row, tl.load(x_ptr))
    puts(what=0, where=z_ptr)


@triton.jit
def describes(x_ptr, y_ptr):
    source = tl.make_tensor_descriptor(x_ptr, [8], [1], [8])
    target = tl.make_tensor_descriptor(y_ptr, [8], [1], [8])
    target.store([0], source.load([0]))


@triton.jit
def loops(a_ptr, b_ptr, c_ptr, n):
    for i in range(n):
        pointer, other = c_ptr + i, b_ptr + i
        if n > 3:
            tl.atomic_cas(pointer, tl.load(other), tl.load(a_ptr))


@triton.jit
def reads(x_ptr, n):
    tl.sum(tl.load(x_ptr + tl.arange(0, 8)), 0)


@pytest.mark.parametrize(
    ("kernel", "pointers", "written"),
    [
        (copies, {"x_ptr", "y_ptr"}, {"y_ptr"}),
        (scatters, {"ids_ptr", "x_ptr", "out_ptr"}, {"out_ptr"}),
        (calls, {"x_ptr", "y_ptr", "z_ptr"}, {"y_ptr", "z_ptr"}),
        (describes, {"x_ptr", "y_ptr"}, {"y_ptr"}),
        (
            loops,
            {"a_ptr", "b_ptr", "c_ptr"},
            {"b_ptr", "c_ptr"},
        ),  # both of a tuple flow into each
        (reads, {"x_ptr"}, set()),
    ],
)
def test_what_a_kernel_may_write(kernel: Any, pointers: set[str], written: set[str]) -> None:
    assert written_parameters(kernel.fn) & pointers == written


def test_a_kernel_without_source_may_write_everything() -> None:
    names: dict[str, Any] = {}
    exec("def hidden(x, y): pass", names)
    assert written_parameters(names["hidden"]) == {"x", "y"}
