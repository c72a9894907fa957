"""Whole numbers of every type of PyTorch in kernels: as memory holds them, as addresses, and as pointers to tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from extras import need
from kernbench.engine.engine import GraphEngine
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology.builder import resolve_topology

need("triton")
need("torch")

import kernbench.torch  # noqa: E402
import kernbench.triton  # noqa: E402

# isort: split
import torch  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402

MACHINE = resolve_topology("default", ["system.sips.count=1", "sip.cube_mesh.w=1", "sip.cube_mesh.h=1"])
AHBM = torch.device("ahbm")
TYPES = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64]


@pytest.fixture(autouse=True)
def context() -> Iterator[RuntimeContext[Any]]:
    with RuntimeContext(engine=GraphEngine(MACHINE)) as made:
        yield made


def numbers(ty: torch.dtype) -> torch.Tensor:
    """The least and the greatest, and some between."""
    limits = torch.iinfo(ty)
    return torch.tensor([limits.min, limits.max, 0, 1, 2, 3, 100, limits.max - 1], dtype=ty)


@triton.jit
def computes(x_ptr, y_ptr, out_ptr, more_ptr):
    at = tl.arange(0, 8)
    x, y = tl.load(x_ptr + at), tl.load(y_ptr + at)
    tl.store(out_ptr + at, x)
    tl.store(more_ptr + at, tl.where(x > y, x * y + x, x >> 1))


@pytest.mark.parametrize("ty", TYPES, ids=str)
def test_types_wrap_compare_and_shift_as_pytorch_s(ty: torch.dtype) -> None:
    x = numbers(ty)
    y = torch.tensor(x.tolist()[::-1], dtype=ty)
    out, more = torch.zeros(8, dtype=ty, device=AHBM), torch.zeros(8, dtype=ty, device=AHBM)
    computes[1,](x.to(AHBM), y.to(AHBM), out, more)
    assert out.tolist() == x.tolist()
    limits = torch.iinfo(ty)
    wanted = [a * b + a if a > b else a >> 1 for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    assert more.tolist() == [(v - limits.min) % 2**limits.bits + limits.min for v in wanted]
    tensor, _ = out.place()
    assert tensor.dtype.itemsize == ty.itemsize


@triton.jit
def masks(x_ptr, flag_ptr, out_ptr, n):
    at = tl.arange(0, 8)
    flag = tl.load(flag_ptr + at, mask=at < n, other=False)
    tl.store(flag_ptr + at, ~flag)
    tl.store(out_ptr + at, tl.where(flag, tl.load(x_ptr + at), -1))


def test_bool_is_a_byte() -> None:
    flag = torch.tensor([True, False, True, True, False, False, True, False])
    there, out = flag.to(AHBM), torch.zeros(8, dtype=torch.int64, device=AHBM)
    masks[1,](torch.arange(8, device=AHBM), there, out, 6)
    assert out.tolist() == [0, -1, 2, 3, -1, -1, -1, -1]
    assert there.tolist() == [False, True, False, False, True, True, True, True]


@triton.jit
def counts(x_ptr, sum_ptr, most_ptr, least_ptr):
    x = tl.load(x_ptr + tl.program_id(0))
    tl.atomic_add(sum_ptr, x)
    tl.atomic_max(most_ptr, x)
    tl.atomic_min(least_ptr, x)


@pytest.mark.parametrize("ty", [torch.int64, torch.int32, torch.uint32], ids=str)
def test_atomics(ty: torch.dtype) -> None:
    x = numbers(ty)
    total, most, least = (x[3:4].to(AHBM, copy=True) for _ in range(3))
    counts[8,](x.to(AHBM), total, most, least)
    limits = torch.iinfo(ty)
    wanted = sum(x.tolist()) + 1
    assert total.item() == (wanted - limits.min) % 2**limits.bits + limits.min
    assert (most.item(), least.item()) == (limits.max, limits.min)


@triton.jit
def picks(index_ptr, x_ptr, out_ptr, STRIDE: tl.constexpr):
    row = tl.program_id(0)
    index = tl.load(index_ptr + row)
    first = tl.load(index_ptr + row + 1).to(tl.int64)
    lane = tl.arange(0, 4)
    tl.store(out_ptr + row * 4 + lane, tl.load(x_ptr + index * STRIDE + lane, mask=lane < first - index))


@pytest.mark.parametrize("ty", [torch.int64, torch.int32, torch.uint16], ids=str)
def test_loaded_numbers_are_addresses_and_bounds(ty: torch.dtype) -> None:
    """As in ``cu_seqlens``: where a row begins, and how long it is."""
    index = torch.tensor([0, 3, 4, 8], dtype=ty)
    x = torch.arange(40, dtype=torch.float32)
    out = torch.zeros(3, 4, device=AHBM)
    picks[3,](index.to(AHBM), x.to(AHBM), out, STRIDE=4)
    assert out.tolist() == [[0, 1, 2, 0], [12, 0, 0, 0], [16, 17, 18, 19]]


@triton.jit
def adds_all(pointers_ptr, sizes_ptr, out_ptr, GROUPS: tl.constexpr):
    at = tl.arange(0, 16)
    total = tl.zeros((16,), tl.float32)
    for group in range(GROUPS):
        x_ptr = tl.load(pointers_ptr + group).to(tl.pointer_type(tl.float16))
        total += tl.load(x_ptr + at, mask=at < tl.load(sizes_ptr + group), other=0.0)
    tl.store(out_ptr + tl.program_id(0) * 16 + at, total)


def test_addresses_in_a_tensor_are_good_on_every_pe() -> None:
    """Also those of tensors that few PEs own, and that are no argument of the launch."""
    groups = [torch.full((n,), float(n), dtype=torch.float16, device=AHBM) for n in (1, 3, 16)]
    pointers = torch.tensor([x.data_ptr() for x in groups], device=AHBM)
    out = torch.zeros(8, 16, device=AHBM)
    adds_all[8,](pointers, torch.tensor([1, 3, 16], device=AHBM), out, GROUPS=3)
    assert out.tolist() == [[20.0] + [19.0] * 2 + [16.0] * 13] * 8


@triton.jit
def loads_blocks(pointers_ptr, sizes_ptr, out_ptr):
    x = tl.make_tensor_descriptor(
        tl.load(pointers_ptr).to(tl.pointer_type(tl.float32)),
        shape=[tl.load(sizes_ptr), tl.load(sizes_ptr + 1)],
        strides=[tl.load(sizes_ptr + 1), 1],
        block_shape=[4, 8],
    )
    rows, columns = tl.arange(0, 4)[:, None], tl.arange(0, 8)[None, :]
    tl.store(out_ptr + rows * 8 + columns, x.load([2, 0]))


def test_sizes_of_a_descriptor_may_be_loaded() -> None:
    x = torch.arange(40, dtype=torch.float32).reshape(5, 8)
    there, out = x.to(AHBM), torch.zeros(4, 8, device=AHBM)
    loads_blocks[1,](torch.tensor([there.data_ptr()], device=AHBM), torch.tensor([5, 8], device=AHBM), out)
    assert torch.equal(out.cpu(), torch.cat([x[2:], torch.zeros(1, 8)]))
    loads_blocks[1,](torch.tensor([there[0, 1:].data_ptr()], device=AHBM), torch.tensor([5, 8], device=AHBM), out)
    with pytest.raises(kernbench.triton.Refused, match=r"test_triton_integers.py:\d+: a tensor descriptor: base must"):
        torch.accelerator.synchronize()
