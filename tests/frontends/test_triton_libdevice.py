"""``libdevice`` in kernels: functions of one, two and three operands, their types, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec, module_from_spec
from typing import Any

import numpy as np
import pytest

from extras import need
from kernbench.common.operators import evaluate, operator
from kernbench.engine.engine import GraphEngine
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology.builder import resolve_topology

need("triton")

import kernbench.triton  # noqa: E402

# isort: split
import triton  # noqa: E402
import triton.language as tl  # noqa: E402
import triton.language.extra.cuda.libdevice as of_cuda  # noqa: E402
from triton.language.extra import libdevice  # noqa: E402

MACHINE = resolve_topology("default", ["system.sips.count=1", "sip.cube_mesh.w=1", "sip.cube_mesh.h=1"])
ONE_PE = DPPolicy(num_pes=1, num_cubes=1)
Array = np.ndarray[Any, Any]
X = np.array([-2.75, -0.5, -0.0, 0.3, 0.5, 1.0, 2.5, 1e9], np.float32)
Y = np.array([1.0, -2.0, 3.0, 0.5, 0.25, 7.0, -1.5, 2.0], np.float32)


@pytest.fixture
def torch() -> Iterator[RuntimeContext[Any]]:
    with RuntimeContext(engine=GraphEngine(MACHINE)) as made:
        yield made


def send(torch: RuntimeContext[Any], x: Array, dtype: str | None = None) -> Any:
    return torch.empty(*x.shape, dtype=dtype or x.dtype.name, dp=ONE_PE).copy_(x)


_spec = find_spec("triton.language.extra.libdevice")
assert _spec is not None
assert _spec.loader is not None
_another = module_from_spec(_spec)  # as programs take it that look for it in several places
_spec.loader.exec_module(_another)
another_rsqrt = _another.rsqrt


@triton.jit
def of_another_copy(x_ptr, out_ptr):
    at = tl.arange(0, 8)
    tl.store(out_ptr + at, another_rsqrt(tl.load(x_ptr + at)))


def test_a_copy_of_the_module_is_the_module(torch: RuntimeContext[Any]) -> None:
    x, out = np.arange(1, 9, dtype=np.float32), send(torch, np.zeros(8, np.float32))
    of_another_copy[1,](send(torch, x), out)
    np.testing.assert_allclose(out.numpy(), x**-0.5, rtol=1e-6)


@triton.jit
def of_one(x_ptr, out_ptr, function: tl.constexpr, KNOWN: tl.constexpr):
    at = tl.arange(0, 8)
    x = (at.to(tl.float32) - 4) * 0.25 if KNOWN else tl.load(x_ptr + at)
    tl.store(out_ptr + at, function(x))


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(
    ("name", "op"),
    [
        *[(name, name) for name in ("asin", "tanh", "erfinv", "round", "rint", "trunc", "cbrt", "lgamma", "log1p")],
        *[("fast_expf", "exp"), ("rcp_rn", "recip"), ("rsqrt_rn", "rsqrt"), ("fast_tanhf", "tanh"), ("logb", "logb")],
    ],
)
def test_functions_of_one(torch: RuntimeContext[Any], name: str, op: str, known: bool) -> None:
    x = (np.arange(8, dtype=np.float32) - 4) * np.float32(0.25) if known else X
    out = send(torch, np.zeros(8, np.float32))
    of_one[1,](send(torch, x), out, vars(libdevice)[name], known)
    np.testing.assert_array_equal(out.numpy(), evaluate(operator(op), [x], out.dtype))


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("float2int_rn", [-3, 0, 0, 0, 0, 1, 2, 10**9]),
        ("float2int_rz", [-2, 0, 0, 0, 0, 1, 2, 10**9]),
        ("float2int_rd", [-3, -1, 0, 0, 0, 1, 2, 10**9]),
        ("float2int_ru", [-2, 0, 0, 1, 1, 1, 3, 10**9]),
        ("llrint", [-3, 0, 0, 0, 0, 1, 2, 10**9]),
        ("ilogb", [1, -1, -(2**31), -2, -1, 0, 1, 29]),
        ("signbit", [1, 1, 1, 0, 0, 0, 0, 0]),
        ("isnan", [0] * 8),
        ("finitef", [1] * 8),
    ],
)
def test_functions_that_give_whole_numbers(torch: RuntimeContext[Any], name: str, wanted: list[int]) -> None:
    out = send(torch, np.zeros(8, np.int32))
    of_one[1,](send(torch, X), out, vars(of_cuda)[name], False)
    assert out.numpy().tolist() == wanted


@triton.jit
def of_more(x_ptr, y_ptr, out_ptr):
    at = tl.arange(0, 8)
    x, y = tl.load(x_ptr + at), tl.load(y_ptr + at)
    tl.store(out_ptr + at, libdevice.atan2(x, y))
    tl.store(out_ptr + 8 + at, libdevice.pow(y, 2))
    tl.store(out_ptr + 16 + at, libdevice.fma(x, y, 1.0))
    tl.store(out_ptr + 24 + at, libdevice.saturatef(x))
    tl.store(out_ptr + 32 + at, libdevice.ldexp(x, at))
    tl.store(out_ptr + 40 + at, libdevice.copysign(1.5, x))


def test_functions_of_more(torch: RuntimeContext[Any]) -> None:
    out = send(torch, np.zeros((6, 8), np.float32))
    of_more[1,](send(torch, X), send(torch, Y), out)
    wanted = [
        np.arctan2(X.astype(float), Y),
        Y * Y,
        X * Y + 1,
        np.clip(X, 0, 1),
        np.ldexp(X, np.arange(8)),
        np.copysign(1.5, X),
    ]
    np.testing.assert_allclose(out.numpy(), np.array(wanted), rtol=1e-6)


@triton.jit
def of_integers(x_ptr, y_ptr, out_ptr):
    at = tl.arange(0, 4)
    x, y = tl.load(x_ptr + at), tl.load(y_ptr + at)
    tl.store(out_ptr + at, libdevice.mulhi(x, y))
    tl.store(out_ptr + 4 + at, libdevice.hadd(x, y))
    tl.store(out_ptr + 8 + at, libdevice.rhadd(x, y))
    tl.store(out_ptr + 12 + at, tl.umulhi(x.to(tl.uint32), y.to(tl.uint32)).to(tl.int32))


def test_functions_of_whole_numbers(torch: RuntimeContext[Any]) -> None:
    x, y = np.array([2**31 - 1, -(2**31), 7, -7], np.int32), np.array([2**31 - 1, 2**31 - 1, 2**30, 4], np.int32)
    out = send(torch, np.zeros((4, 4), np.int32))
    of_integers[1,](send(torch, x), send(torch, y), out)
    pairs = list(zip(x.tolist(), y.tolist(), strict=True))
    unsigned = [((a % 2**32) * (b % 2**32)) >> 32 for a, b in pairs]
    assert out.numpy().tolist() == [
        [a * b >> 32 for a, b in pairs],
        [a + b >> 1 for a, b in pairs],
        [a + b + 1 >> 1 for a, b in pairs],
        [v - 2**32 * (v >= 2**31) for v in unsigned],
    ]


@triton.jit
def refused(x_ptr, WHICH: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, 8))
    if WHICH == "rounds down":
        tl.store(x_ptr + tl.arange(0, 8), libdevice.add_rd(x, x))
    elif WHICH == "f16":
        tl.store(x_ptr + tl.arange(0, 8), libdevice.tanh(x.to(tl.float16)))
    else:
        tl.store(x_ptr + tl.arange(0, 8), libdevice.j0(x))


@pytest.mark.parametrize(
    ("which", "message"),
    [
        ("rounds down", "__nv_fadd_rd: the machine computes in f32 and rounds to nearest even"),
        ("f16", "libdevice.tanh of fp16: there is none for these types; cast them"),
        ("bessel", "__nv_j0f: the machine"),
    ],
)
def test_what_is_refused_at_its_line(torch: RuntimeContext[Any], which: str, message: str) -> None:
    refused[1,](send(torch, X), which)
    with pytest.raises(kernbench.triton.Refused, match=rf"test_triton_libdevice.py:\d+: .*{message}"):
        torch.drain()
