"""Programs that read no values take the same simulated time with and without data, whatever their types."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from extras import need
from kernbench.common.errors import RunStopped
from kernbench.engine.engine import GraphEngine
from kernbench.engine.requests import Limits
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology.builder import resolve_topology

need("triton")
need("torch")

import kernbench.torch  # noqa: E402
import kernbench.triton  # noqa: E402, F401

# isort: split
import torch  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from kernbench.frontends.triton.launch import LaunchPace  # noqa: E402

MACHINE = resolve_topology("default", ["system.sips.count=1", "sip.cube_mesh.w=1", "sip.cube_mesh.h=1"])
AHBM = torch.device("ahbm")
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64]
ATOMIC = (torch.int64, torch.int32, torch.uint32, torch.uint64)
N = 60


@triton.jit
def computes(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n and at >= 0
    x, y = tl.load(x_ptr + at, mask=inside), tl.load(y_ptr + at * 2 % n, mask=inside, other=0)
    tl.store(out_ptr + at, tl.where(x > y, x + y, x * y), mask=inside)
    tl.store(out_ptr + at, tl.sum(tl.load(out_ptr + at, mask=inside, other=0), 0), mask=at % 3 == 1 and inside)


@triton.jit
def counts(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out_ptr + at % 7, tl.load(x_ptr + at, mask=at < n, other=0), mask=at < n)


def of_type(ty: torch.dtype) -> None:
    """Kernels, copies, views, and operators that the host computes."""
    x, y = (torch.arange(first, N + first).to(ty).to(AHBM) for first in (0, 5))
    out = torch.zeros(N, dtype=ty, device=AHBM)
    computes[(triton.cdiv(N, 16),)](x, y, out, N, BLOCK=16)
    if ty in ATOMIC:
        counts[(triton.cdiv(N, 16),)](x, out, N, BLOCK=16)
    out[10:20] = x[:10]
    (out == x).to(torch.int64).to(ty)
    out.clone().fill_(1)


def of_bools() -> None:
    """The same of truth values."""
    x = (torch.arange(N) % 3 == 0).to(AHBM)
    out = torch.zeros(N, dtype=torch.bool, device=AHBM)
    computes[(triton.cdiv(N, 16),)](x.to(torch.int8), ~x, out, N, BLOCK=16)
    torch.logical_and(x, out)


PROGRAMS: dict[str, Callable[[], None]] = {
    **{str(ty): lambda ty=ty: of_type(ty) for ty in (*INTEGERS, torch.float32, torch.float16, torch.bfloat16)},
    "torch.bool": of_bools,
}


def times(has_data: bool) -> dict[str, float]:
    """When each program is over, one after another."""
    with RuntimeContext(engine=GraphEngine(MACHINE, enable_data=has_data)) as context:
        found = {}
        for name, program in PROGRAMS.items():
            program()
            found[name] = context.engine.now
    return found


def test_times_are_equal() -> None:
    assert times(True) == times(False)


def test_the_pace_of_a_launch_does_not_count_its_wait_in_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    clock_s = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock_s[0])
    engine = GraphEngine(MACHINE, enable_data=False, limits=Limits(wall_s=20))
    pace = LaunchPace("late", (4, 1, 1), engine)
    for clock_s[0] in (1000.0, 1001.0):
        pace.begin()
    pace.count_program()
    clock_s[0] = 1010.0
    with pytest.raises(RunStopped, match="has run 2 of the 4 programs"):
        pace.count_program()
