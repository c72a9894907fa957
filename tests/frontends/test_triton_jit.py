"""What programs ask of compiled kernels, and operators of their own that launch them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from extras import need
from kernbench.common.errors import InputError
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


@pytest.fixture(autouse=True)
def context() -> Iterator[RuntimeContext[Any]]:
    with RuntimeContext(engine=GraphEngine(MACHINE)) as made:
        yield made


@tl.constexpr
def largest(dtype: tl.constexpr) -> tl.constexpr:
    """As programs have it that are compiled: its argument is a constexpr."""
    return tl.constexpr(100.0 if dtype.value.is_fp32() else 7.0)


@triton.constexpr_function
def is_float(dtype: Any) -> bool:
    return dtype.is_floating()


@triton.jit
def scale(x_ptr, n, BLOCK: tl.constexpr, FACTOR: tl.constexpr = 2):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    if is_float(x.dtype):
        x = tl.minimum(x * FACTOR, largest(x.dtype))
    tl.store(x_ptr + at, x, mask=at < n)


def test_a_kernel_answers_as_a_compiled_one() -> None:
    assert isinstance(scale, triton.JITFunction)
    assert isinstance(scale, triton.runtime.JITFunction)
    assert scale.fn.__name__ == scale.__name__ == "scale"
    assert scale.arg_names == ["x_ptr", "n", "BLOCK", "FACTOR"]
    assert [(each.name, each.is_constexpr) for each in scale.params][1:3] == [("n", False), ("BLOCK", True)]
    assert scale.params[3].default == 2
    assert (scale.constexprs, list(scale.signature.parameters)) == ([2, 3], scale.arg_names)
    assert scale.src.startswith("def scale(")
    assert scale.cache_key != fills.cache_key
    assert len(scale.cache_key) == 64
    assert isinstance(hash(scale), int)


def test_hooks_and_the_ways_to_run_it() -> None:
    seen: list[int] = []
    x = torch.tensor([1.0, 2.0, 60.0], device=AHBM)
    scale.add_pre_run_hook(lambda *args, **_: seen.append(args[1]))
    scale.run(x, 3, 4, grid=(1,), warmup=False)
    scale.warmup(x, 3, 4, grid=(1,))[1, 1, 1](x, 3, 4)
    scale.pre_run_hooks.clear()
    assert x.tolist() == [4.0, 8.0, 100.0]
    assert seen == [3, 3]


def test_a_launch_gives_the_compiled_kernel() -> None:
    compiled = scale[1,](torch.tensor([1.0], device=AHBM), 1, BLOCK=4, num_warps=8)
    assert (compiled.name, compiled.n_regs, compiled.n_spills) == ("scale", 256, 0)
    assert (compiled.metadata.shared, compiled.metadata.num_warps) == (MACHINE.spec.pe.tcm.bytes, 8)
    with pytest.raises(InputError, match="the code of kernel 'scale': there is none"):
        compiled.asm["ptx"]


@triton.jit
def fills(out_ptr, N, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.int64)
    for i in range(N):
        for j in tl.range(i, N, num_stages=2):
            total += i.to(tl.int64) * 2 + j.to(tl.int64)
    for k in tl.static_range(2):
        total += (1, 10)[k]
    tl.store(out_ptr + at, total)


def test_steps_of_a_loop_are_tensors() -> None:
    out = torch.zeros(4, dtype=torch.int64, device=AHBM)
    fills[1,](out, 3, BLOCK=4)
    assert out.tolist() == [sum(2 * i + j for i in range(3) for j in range(i, 3)) + 11] * 4


@triton.jit
def masked(x_ptr, out_ptr, n, LIMIT: tl.constexpr):
    at = tl.arange(0, 8)
    x = tl.load(x_ptr + at)
    tl.store(out_ptr + at, x, mask=at > 1 and at < 6)
    tl.store(out_ptr + 8 + at, x, mask=x > 0 and at < 6 and n > 3)
    tl.store(out_ptr + 16 + at, x, mask=n > 7 or x > 2 or at < 2)
    tl.store(out_ptr + 24 + at, x, mask=not (x > 0) and LIMIT)
    tl.store(out_ptr + 32 + at, x, mask=at < 4 and tl.load(x_ptr) > 0)
    if LIMIT is not None and LIMIT > 3:
        tl.store(out_ptr + 40 + at, x)
    if tl.load(x_ptr) < 0 and not tl.load(x_ptr + 1) < 0:
        tl.store(out_ptr + 48 + at, x)


@pytest.mark.parametrize("limit", [None, 4])
def test_logic_of_blocks_is_element_by_element(limit: int | None) -> None:
    """Also where a plain number or one without axes is among them; those decide as in Python."""
    x = torch.tensor([-2.0, 1, 3, -1, 0, 5, 2, 7])
    out = torch.zeros(56, device=AHBM)
    masked[1,](x.to(AHBM), out, 5, limit)
    every = torch.ones(8, dtype=torch.bool)
    at = torch.arange(8)
    chosen = [(at > 1) & (at < 6), (x > 0) & (at < 6), (x > 2) | (at < 2), every if limit is None else ~(x > 0)]
    chosen += [~every, ~every if limit is None else every, every]
    assert out.reshape(7, 8).tolist() == torch.stack([torch.where(mask, x, 0) for mask in chosen]).tolist()


@triton.jit
def tail_first(x_ptr, out_ptr, n):
    """In a shape that no other test has: its first program records the load of all."""
    at = (1 - tl.program_id(0)) * 32 + tl.arange(0, 32)[None, :, None]
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n, other=0.5))


def test_a_load_of_nothing_says_nothing_of_others() -> None:
    x, out = (torch.arange(1.0, 1 + n).half().to(AHBM) for n in (20, 64))
    tail_first[2,](x, out, 20)
    assert out.tolist() == [*range(1, 21), *[0.5] * 44]


class Buffer:
    """As programs have it for strides that PyTorch does not know."""

    def __init__(self, base: torch.Tensor, offset: int) -> None:
        self.dtype, self.device, self.base, self.offset = base.dtype, base.device, base, offset

    def data_ptr(self) -> int:
        return self.base.data_ptr() + self.offset * self.base.element_size()


def test_what_stands_for_a_tensor_is_an_argument() -> None:
    x = torch.tensor([1.0, 2.0, 3.0], device=AHBM)
    scale[1,](Buffer(x, 1), 2, BLOCK=4)
    bits = torch.tensor([1, 0], dtype=torch.int32, device=AHBM)
    scale[1,](triton.reinterpret(bits, tl.uint32), 1, BLOCK=4)
    assert (x.tolist(), bits.tolist()) == ([1, 4, 6], [1, 0])
    with pytest.raises(InputError, match=r"x_ptr is a tensor on cpu; .*: x_ptr.to\('ahbm'\) is one"):
        scale[1,](torch.zeros(3), 2, BLOCK=4)


@triton.jit
def scale_into(x_ptr, unused_ptr, BLOCK: tl.constexpr, FACTOR: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(x_ptr + at) * FACTOR)


tuned = triton.autotune(
    [triton.Config({"FACTOR": 2}), triton.Config({"FACTOR": 3})],
    key=[],
    prune_configs_by={"early_config_prune": lambda configs, *_, **__: (each for each in configs[1:])},
)(scale_into)


def test_an_empty_tensor_of_the_host_is_the_null_pointer() -> None:
    x = torch.ones(4, device=AHBM)
    scale_into[1,](x, torch.empty([0]), BLOCK=4, FACTOR=2)
    assert x.tolist() == [2] * 4


def test_configurations_that_are_left_may_come_one_by_one() -> None:
    x = torch.ones(4, device=AHBM)
    tuned[1,](x, x, BLOCK=4)
    assert x.tolist() == [3] * 4


@torch.library.triton_op("kernbench_tests::scaled", mutates_args={})
def scaled(x: torch.Tensor, n: int) -> torch.Tensor:
    y = x.clone(memory_format=torch.contiguous_format)
    torch.library.wrap_triton(scale)[1,](y, n, BLOCK=4)
    return y


@torch.library.custom_op("kernbench_tests::scale_in_place", mutates_args={"x"})
def scale_in_place(x: torch.Tensor, n: int) -> None:
    scale[1,](x, n, BLOCK=4, FACTOR=3)


def test_operators_of_a_program_get_tensors_of_the_machine(context: RuntimeContext[Any]) -> None:
    x = torch.tensor([1.0, 2.0, 3.0], device=AHBM)
    one = torch.ones((), device=AHBM)
    assert scaled(one.expand(3), 3).tolist() == [2, 2, 2]
    assert one.item() == 1
    y = scaled(x, 3)
    assert isinstance(y, kernbench.torch.AhbmTensor)
    scale_in_place(x, 2)
    assert (y.tolist(), x.tolist()) == ([2, 4, 6], [3, 6, 3])
    torch.library.wrap_triton(scale)[1,](x, 3, BLOCK=4)  # outside of an operator
    assert x.tolist() == [6, 12, 6]
    assert not context.unmodelled


@triton.jit
def greets(x_ptr, TIMES: tl.constexpr):
    for _ in range(TIMES):
        tl.device_print("here")


def test_a_print_without_values_is_one_each_time(context: RuntimeContext[Any]) -> None:
    greets[(2,)](torch.zeros(4, device=AHBM), TIMES=3)
    context.drain()
    printed = [line.text for line in context.engine.printed()]
    assert len(printed) == 6
    assert {text.split()[-1] for text in printed} == {"here"}
