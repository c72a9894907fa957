"""The kernels that ship with the package, on the simulated machine: through DMA, tile pipeline and phase 2."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import assert_near, normal, wide

from compiled import compiled
from covering import covering
from kernbench.common.dtypes import ALL, BF16, F16, F32, I8, DType, dtype
from kernbench.engine.engine import GraphEngine
from kernbench.kernels.attention import attention
from kernbench.kernels.elementwise import elementwise, elementwise_composite, silu_mul
from kernbench.kernels.gemm import gemm_composite, gemm_simple
from kernbench.kernels.linear import mlp
from kernbench.kernels.norms import layernorm, rmsnorm, softmax
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology.builder import Topology

Array = np.ndarray[Any, Any]
FLOATS = (F32, F16, BF16)
MATRIX_TYPES = tuple(item for item in ALL if item.is_float or item is I8)  # those that the matrix unit has rates for
VARIANTS = ("ref_ref", "load_ref", "load_load")
PES = 8


def one_cube() -> Topology:
    return compiled("sip.cube_mesh.w=1", "sip.cube_mesh.h=1", "system.sips.count=1")


class Device:
    """A fresh machine of one cube; arrays go on PE 0, or row by row on all PEs."""

    def __init__(self) -> None:
        self.torch = RuntimeContext[None](GraphEngine(one_cube()))
        self.rng = np.random.default_rng(5)

    def put(self, array: Array, by_rows: bool = False) -> Any:
        dp = DPPolicy(pe="row_wise", num_cubes=1) if by_rows else None
        return self.torch.empty(*array.shape, dtype=dtype(array.dtype), dp=dp).copy_(array)

    def normal(self, *shape: int, item: DType, scale: float = 1.0) -> Array:
        return normal(self.rng, shape, item, scale)


def whole(rng: np.random.Generator, shape: tuple[int, ...], item: DType) -> Array:
    """Small whole numbers, which every type holds exactly."""
    return rng.integers(-3, 4, shape).astype(np.float32).astype(item.numpy)


@given(
    size=st.tuples(st.integers(1, 90), st.integers(1, 150), st.integers(1, 90)),
    variant=st.sampled_from(VARIANTS),
    item=st.sampled_from(MATRIX_TYPES),
)
def test_gemm_of_any_size_type_and_variant(size: tuple[int, int, int], variant: str, item: DType) -> None:
    m, k, n = size
    device = Device()
    a, b = whole(device.rng, (m, k), item), whole(device.rng, (k, n), item)
    out = "i32" if item is I8 else "f32"
    c = device.torch.empty(m, n, dtype=out)
    device.torch.launch(
        "gemm", gemm_composite, device.put(a), device.put(b), c, m, k, n, item.name, variant, out_dtype=out
    )
    assert (c.numpy() == wide(a) @ wide(b)).all()  # sums of whole numbers are exact in f32


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("n", [192, pytest.param(512, marks=pytest.mark.slow)])
def test_gemm_of_a_large_cube(n: int, variant: str) -> None:
    device = Device()
    a, b = device.normal(n, n, item=F16), device.normal(n, n, item=F16, scale=n**-0.5)
    c = device.torch.empty(n, n, dtype="f16")
    device.torch.launch("gemm", gemm_composite, device.put(a), device.put(b), c, n, n, n, "f16", variant)
    assert_near(c.numpy(), wide(a) @ wide(b), magnitude=0.1)


@pytest.mark.parametrize("item", MATRIX_TYPES, ids=str)
def test_gemm_by_blocks(item: DType) -> None:
    device = Device()
    a, b = whole(device.rng, (33, 70), item), whole(device.rng, (70, 17), item)
    out = "i32" if item is I8 else "f32"
    c = device.torch.empty(33, 17, dtype=out)
    device.torch.launch("gemm", gemm_simple, device.put(a), device.put(b), c, 33, 70, 17, item.name, out_dtype=out)
    assert (c.numpy() == wide(a) @ wide(b)).all()


@pytest.mark.parametrize(("item", "rows"), covering(FLOATS, (PES, 13)), ids=str)
def test_rows(item: DType, rows: int) -> None:
    device = Device()
    x, weight, bias = (device.normal(*shape, item=item) for shape in ((rows, 100), (100,), (100,)))
    on_pes = device.put(x, by_rows=True)
    w, b = device.put(weight), device.put(bias)
    y = device.torch.empty(rows, 100, dtype=item, dp=on_pes.dp)
    exact = wide(x)

    device.torch.launch("softmax", softmax, on_pes, y, rows, 100, item.name)
    weights = np.exp(exact - exact.max(axis=1, keepdims=True))
    assert_near(y.numpy(), weights / weights.sum(axis=1, keepdims=True), roundings=2)

    device.torch.launch("layernorm", layernorm, on_pes, w, b, y, rows, 100, item.name)
    centred = exact - exact.mean(axis=1, keepdims=True)
    normed = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5)
    assert_near(y.numpy(), normed * wide(weight) + wide(bias), roundings=3, magnitude=1)

    device.torch.launch("rmsnorm", rmsnorm, on_pes, w, y, rows, 100, item.name)
    rms = np.sqrt((exact**2).mean(axis=1, keepdims=True) + 1e-6)
    assert_near(y.numpy(), exact / rms * wide(weight), roundings=3, magnitude=1)


@pytest.mark.parametrize("item", FLOATS, ids=str)
def test_elementwise(item: DType) -> None:
    device = Device()
    x, y = device.normal(24, 50, item=item), device.normal(24, 50, item=item)
    a, b = device.put(x, by_rows=True), device.put(y, by_rows=True)
    z = device.torch.empty(24, 50, dtype=item, dp=a.dp)
    device.torch.launch("mul", elementwise, "mul", a, b, None, z, 1200, item.name)
    assert_near(z.numpy(), wide(x) * wide(y))
    device.torch.launch("add", elementwise_composite, "add", a, b, None, z, 24, 50, item.name)
    assert_near(z.numpy(), wide(x) + wide(y), magnitude=1)
    device.torch.launch("silu_mul", silu_mul, a, b, z, 1200, item.name)
    assert_near(z.numpy(), wide(x) / (1 + np.exp(-wide(x))) * wide(y), roundings=2)


@pytest.mark.parametrize(("item", "variant"), covering(FLOATS, VARIANTS), ids=str)
def test_mlp(item: DType, variant: str) -> None:
    device = Device()
    m, k, hidden, n = 24, 40, 72, 40
    x, w1, b1 = (
        device.normal(m, k, item=item),
        device.normal(k, hidden, item=item, scale=k**-0.5),
        device.normal(hidden, item=item),
    )
    w2, b2 = device.normal(hidden, n, item=item, scale=hidden**-0.5), device.normal(n, item=item)
    on_pes = device.put(x, by_rows=True)
    between, y = (device.torch.empty(m, width, dtype=item, dp=on_pes.dp) for width in (hidden, n))
    given_ = [device.put(array) for array in (w1, b1, w2, b2)]
    device.torch.launch("mlp", mlp, on_pes, *given_, between, y, m, k, hidden, n, item.name, variant)
    inner = wide(x) @ wide(w1) + wide(b1)
    inner = 0.5 * inner * (1 + np.tanh(np.sqrt(2 / np.pi) * (inner + 0.044715 * inner**3)))
    assert_near(y.numpy(), inner @ wide(w2) + wide(b2), roundings=4, magnitude=2)


@pytest.mark.parametrize(
    ("item", "causal", "size"), covering(FLOATS, (True, False), ((20, 33, 24), (1, 1, 1))), ids=str
)
def test_attention(item: DType, causal: bool, size: tuple[int, int, int]) -> None:
    lq, lk, d = size
    device = Device()
    q, k, v = (device.normal(PES, length, d, item=item) for length in (lq, lk, lk))
    tensors = [device.put(x, by_rows=True) for x in (q, k, v)]
    o = device.torch.empty(PES, lq, d, dtype=item, dp=tensors[0].dp)
    device.torch.launch("attention", attention, *tensors, o, lq, lk, d, item.name, causal=causal)
    scores = wide(q) @ wide(k).swapaxes(1, 2) / np.sqrt(d)
    if causal:
        scores = np.where(np.arange(lk)[None, :] <= np.arange(lq)[:, None] + lk - lq, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    assert_near(o.numpy(), weights @ wide(v) / weights.sum(axis=2, keepdims=True), roundings=4, magnitude=1)
