"""Everything that ``triton.language`` exports: it works on data, or is refused by name, at its line."""

from __future__ import annotations

import warnings
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

import kernbench.triton  # noqa: E402

# isort: split
import triton  # noqa: E402
import triton.language as tl  # noqa: E402

MACHINE = resolve_topology("default", ["system.sips.count=1", "sip.cube_mesh.w=1", "sip.cube_mesh.h=1"])
ONE_PE = DPPolicy(num_pes=1, num_cubes=1)
X = np.linspace(0.1, 1, 16, dtype=np.float32)


@triton.jit
def product(a, b):
    return a * b


@triton.jit
def calls(x_ptr, n_ptr, function: tl.constexpr):
    at = tl.arange(0, 16)
    function(tl.load(x_ptr + at), tl.load(n_ptr + at), x_ptr, n_ptr)


def square(x: Any) -> Any:
    return x.reshape(4, 4)


def block(p: Any) -> Any:
    return tl.make_tensor_descriptor(p, [4, 4], [4, 1], [4, 4])


def row(p: Any) -> Any:
    return tl.make_tensor_descriptor(p, [2, 8], [8, 1], [1, 8])


def bits(n: Any) -> Any:
    return n.to(tl.uint32)


# Of 16 floats, 16 whole numbers, and pointers to both.
CALLS: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "PropagateNan": lambda x, n, p, q: tl.maximum(x, x, propagate_nan=tl.PropagateNan.ALL),
    "load_tensor_descriptor": lambda x, n, p, q: tl.load_tensor_descriptor(block(p), [0, 0]),
    "store_tensor_descriptor": lambda x, n, p, q: tl.store_tensor_descriptor(block(p), [0, 0], square(x)),
    "make_tensor_descriptor": lambda x, n, p, q: block(p).load([0, 0]),
    "desc_reduce": lambda x, n, p, q: block(p).atomic_add([0, 0], square(x)),
    "desc_gather": lambda x, n, p, q: row(p).gather(n, 0),
    "desc_scatter": lambda x, n, p, q: row(p).scatter(tl.zeros((16, 8), tl.float32) + x[:, None], n, 0),
    "abs": lambda x, n, p, q: tl.abs(x) + tl.abs(n),
    "add": lambda x, n, p, q: tl.add(x, x),
    "argmax": lambda x, n, p, q: tl.argmax(x, 0),
    "argmin": lambda x, n, p, q: tl.argmin(x, 0),
    "associative_scan": lambda x, n, p, q: tl.associative_scan(x, 0, product),
    "assume": lambda x, n, p, q: tl.assume(x > -1e9),
    "atomic_add": lambda x, n, p, q: tl.atomic_add(p + tl.arange(0, 16), x),
    "atomic_and": lambda x, n, p, q: tl.atomic_and(q + tl.arange(0, 16), n),
    "atomic_cas": lambda x, n, p, q: tl.atomic_cas(q + tl.arange(0, 16), n, n),
    "atomic_load": lambda x, n, p, q: tl.atomic_load(p + tl.arange(0, 16)),
    "atomic_max": lambda x, n, p, q: tl.atomic_max(p + tl.arange(0, 16), x),
    "atomic_min": lambda x, n, p, q: tl.atomic_min(q + tl.arange(0, 16), n),
    "atomic_or": lambda x, n, p, q: tl.atomic_or(q + tl.arange(0, 16), n),
    "atomic_poll": lambda x, n, p, q: tl.atomic_poll(q + tl.arange(0, 16), n),
    "atomic_store": lambda x, n, p, q: tl.atomic_store(p + tl.arange(0, 16), x),
    "atomic_xchg": lambda x, n, p, q: tl.atomic_xchg(p + tl.arange(0, 16), x),
    "atomic_xor": lambda x, n, p, q: tl.atomic_xor(q + tl.arange(0, 16), n),
    "bitonic_merge": lambda x, n, p, q: tl.bitonic_merge(x),
    "broadcast": lambda x, n, p, q: tl.broadcast(x[:, None], x[None, :]),
    "broadcast_to": lambda x, n, p, q: tl.broadcast_to(x[:, None], (16, 4)),
    "cat": lambda x, n, p, q: tl.cat(x, x, can_reorder=True),
    "cast": lambda x, n, p, q: tl.cast(x, tl.float16),
    "cdiv": lambda x, n, p, q: tl.cdiv(n, 3),
    "ceil": lambda x, n, p, q: tl.ceil(x),
    "clamp": lambda x, n, p, q: tl.clamp(x, 0.0, 1.0),
    "cos": lambda x, n, p, q: tl.cos(x),
    "cumprod": lambda x, n, p, q: tl.cumprod(x, 0),
    "cumsum": lambda x, n, p, q: tl.cumsum(x, 0),
    "cumsum_rev": lambda x, n, p, q: tl.cumsum(x, 0, reverse=True),
    "debug_barrier": lambda x, n, p, q: tl.debug_barrier(),
    "device_assert": lambda x, n, p, q: tl.device_assert(x > 0, "no"),
    "device_print": lambda x, n, p, q: tl.device_print("x", x),
    "div_rn": lambda x, n, p, q: tl.div_rn(x, x),
    "dot": lambda x, n, p, q: tl.dot(square(x), square(x)),
    "dot3": lambda x, n, p, q: tl.dot(x.reshape(1, 4, 4), x.reshape(1, 4, 4)),
    "dot_scaled": lambda x, n, p, q: tl.dot_scaled(
        tl.zeros((16, 32), tl.float8e5), None, "e5m2", tl.zeros((32, 16), tl.float8e5), None, "e5m2"
    ),
    "erf": lambda x, n, p, q: tl.erf(x),
    "exp": lambda x, n, p, q: tl.exp(x),
    "exp2": lambda x, n, p, q: tl.exp2(x),
    "expand_dims": lambda x, n, p, q: tl.expand_dims(x, 0),
    "fdiv": lambda x, n, p, q: tl.fdiv(x, x),
    "flip": lambda x, n, p, q: tl.flip(x),
    "floor": lambda x, n, p, q: tl.floor(x),
    "fma": lambda x, n, p, q: tl.fma(x, x, x),
    "full": lambda x, n, p, q: tl.full((4,), 1, tl.float32),
    "gather": lambda x, n, p, q: tl.gather(x, n, 0),
    "gather_pointers": lambda x, n, p, q: tl.gather(p + n, n, 0),
    "histogram": lambda x, n, p, q: tl.histogram(n, 16),
    "inline_asm_elementwise": lambda x, n, p, q: tl.inline_asm_elementwise(
        "mov", "=r,r", [n], dtype=tl.int32, is_pure=True, pack=1
    ),
    "interleave": lambda x, n, p, q: tl.interleave(x, x),
    "join": lambda x, n, p, q: tl.join(x, x),
    "load": lambda x, n, p, q: tl.load(p),
    "log": lambda x, n, p, q: tl.log(x),
    "log2": lambda x, n, p, q: tl.log2(x),
    "map_elementwise": lambda x, n, p, q: tl.map_elementwise(product, x, x),
    "max": lambda x, n, p, q: tl.max(x, 0, return_indices=True),
    "min": lambda x, n, p, q: tl.min(x, 0),
    "max_constancy": lambda x, n, p, q: tl.max_constancy(n, 1),
    "max_contiguous": lambda x, n, p, q: tl.max_contiguous(n, 1),
    "multiple_of": lambda x, n, p, q: tl.multiple_of(n, 1),
    "maximum": lambda x, n, p, q: tl.maximum(x, x),
    "minimum": lambda x, n, p, q: tl.minimum(n, n),
    "mul": lambda x, n, p, q: tl.mul(x, x),
    "sub": lambda x, n, p, q: tl.sub(x, x),
    "num_programs": lambda x, n, p, q: tl.num_programs(0),
    "program_id": lambda x, n, p, q: tl.program_id(0),
    "pair_uniform_to_normal": lambda x, n, p, q: tl.pair_uniform_to_normal(x, x),
    "permute": lambda x, n, p, q: tl.permute(square(x), (1, 0)),
    "philox": lambda x, n, p, q: tl.philox(3, n, n, n, n),
    "philox_impl": lambda x, n, p, q: tl.philox_impl(bits(n), bits(n), bits(n), bits(n), bits(n), bits(n)),
    "rand": lambda x, n, p, q: tl.rand(3, n),
    "rand4x": lambda x, n, p, q: tl.rand4x(3, n),
    "randint": lambda x, n, p, q: tl.randint(3, n),
    "randint4x": lambda x, n, p, q: tl.randint4x(3, n),
    "randn": lambda x, n, p, q: tl.randn(3, n),
    "randn4x": lambda x, n, p, q: tl.randn4x(3, n),
    "range": lambda x, n, p, q: list(tl.range(0, 4)),
    "static_range": lambda x, n, p, q: list(tl.static_range(4)),
    "ravel": lambda x, n, p, q: tl.ravel(square(x)),
    "reduce": lambda x, n, p, q: tl.reduce(x, 0, product),
    "reduce_or": lambda x, n, p, q: tl.reduce_or(n, 0),
    "xor_sum": lambda x, n, p, q: tl.xor_sum(n, 0),
    "reshape": lambda x, n, p, q: tl.reshape(x, (4, 4)),
    "rsqrt": lambda x, n, p, q: tl.rsqrt(x),
    "sigmoid": lambda x, n, p, q: tl.sigmoid(x),
    "sin": lambda x, n, p, q: tl.sin(x),
    "softmax": lambda x, n, p, q: tl.softmax(x),
    "sort": lambda x, n, p, q: tl.sort(x),
    "topk": lambda x, n, p, q: tl.topk(x, 4),
    "split": lambda x, n, p, q: tl.split(x.reshape(8, 2)),
    "sqrt": lambda x, n, p, q: tl.sqrt(x),
    "sqrt_rn": lambda x, n, p, q: tl.sqrt_rn(x),
    "squeeze": lambda x, n, p, q: tl.squeeze(x.reshape(1, 16), 0),
    "unsqueeze": lambda x, n, p, q: tl.unsqueeze(x, 0),
    "static_assert": lambda x, n, p, q: tl.static_assert(True),
    "static_print": lambda x, n, p, q: tl.static_print("x"),
    "store": lambda x, n, p, q: tl.store(p + tl.arange(0, 16), x),
    "sum": lambda x, n, p, q: tl.sum(x, 0),
    "swizzle2d": lambda x, n, p, q: tl.swizzle2d(tl.program_id(0), tl.program_id(0), 4, 4, 2),
    "to_tensor": lambda x, n, p, q: tl.to_tensor(1),
    "trans": lambda x, n, p, q: tl.trans(square(x)),
    "uint_to_uniform_float": lambda x, n, p, q: tl.uint_to_uniform_float(n),
    "umulhi": lambda x, n, p, q: tl.umulhi(bits(n), bits(n)),
    "view": lambda x, n, p, q: tl.view(x, (4, 4)),
    "where": lambda x, n, p, q: tl.where(x > 0, x, n.to(tl.float32)),
    "zeros": lambda x, n, p, q: tl.zeros((4,), tl.float32),
    "zeros_like": lambda x, n, p, q: tl.zeros_like(x),
    "expect_zero": lambda x, n, p, q: tl.expect_zero(x, x > 0),
    "target_info": lambda x, n, p, q: (tl.target_info.is_cuda(), tl.target_info.current_target()),
    "arange": lambda x, n, p, q: tl.arange(0, 4),
    "tuple": lambda x, n, p, q: tl.tuple((x, n)),
    "constexpr": lambda x, n, p, q: tl.constexpr(1) + 1,
    "condition": lambda x, n, p, q: tl.condition(n > 0),
    "f64": lambda x, n, p, q: x.to(tl.float64),
    "fp8b15": lambda x, n, p, q: x.to(tl.float8e4b15),
    "bitcast": lambda x, n, p, q: x.to(tl.int32, bitcast=True),
    "gdc_wait": lambda x, n, p, q: tl.extra.cuda.gdc_wait(),
    "gdc_launch": lambda x, n, p, q: tl.extra.cuda.gdc_launch_dependents(),
    "smid": lambda x, n, p, q: tl.extra.cuda.smid(),
    "globaltimer": lambda x, n, p, q: tl.extra.cuda.globaltimer(),
    "num_warps": lambda x, n, p, q: tl.extra.cuda.num_warps(),
    "num_threads": lambda x, n, p, q: tl.extra.cuda.num_threads(),
    "make_block_ptr": lambda x, n, p, q: tl.make_block_ptr(p, (16,), (1,), (0,), (8,), (0,)),
    "logical": lambda x, n, p, q: (x > 0).logical_and(n > 0),
    "not": lambda x, n, p, q: ~(x > 0),
    "ptr_type": lambda x, n, p, q: p.dtype.element_ty,
    "to_dtype": lambda x, n, p, q: x.to(p.dtype.element_ty),
    "minus": lambda x, n, p, q: -x + 1 - (2 - x),
    "floordiv": lambda x, n, p, q: n // 3 + n % 3,
    "and_": lambda x, n, p, q: (x > 0) and (n > 0),
}
REFUSED = {
    "atomic_poll": "tl.atomic_poll: no engine of the PE waits",
    "gather_pointers": "tl.gather of pointers",
    "dot_scaled": "tl.dot_scaled: ",
    "desc_reduce": "an atomic of a tensor descriptor",
    "inline_asm_elementwise": "tl.inline_asm_elementwise: ",
    "map_elementwise": "tl.map_elementwise: ",
    "f64": "values of fp64",
    "fp8b15": "values of fp8e4b15",
    "smid": "tl.extra.cuda.smid: ",
    "globaltimer": "tl.extra.cuda.globaltimer: ",
    "num_warps": "tl.extra.cuda.num_warps: ",
    "num_threads": "tl.extra.cuda.num_threads: ",
    "make_block_ptr": "tl.make_block_ptr: Triton has no block pointers any more",
}
NO_CALLS = {"TRITON_MAX_TENSOR_NUMEL", "const", "extra", "math", "slice"}
"""Numbers and modules."""


def run(function: Any) -> None:
    with RuntimeContext(engine=GraphEngine(MACHINE)) as torch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = torch.empty(16, dtype="f32", dp=ONE_PE).copy_(X)
        n = torch.empty(16, dtype="i32", dp=ONE_PE).copy_(np.arange(16) % 2)
        calls[1,](x, n, function)


@pytest.mark.parametrize("name", CALLS)
def test_it_works_or_is_refused(name: str) -> None:
    if name not in REFUSED:
        run(CALLS[name])
        return
    with pytest.raises(kernbench.triton.Refused, match=rf"test_triton_language.py:\d+: .*{REFUSED[name]}"):
        run(CALLS[name])


def test_nothing_is_left_out() -> None:
    types = {name for name in tl.__all__ if isinstance(vars(tl)[name], tl.dtype | type)}
    assert set(tl.__all__) - set(CALLS) == types - set(CALLS) | NO_CALLS
    assert set(REFUSED) <= set(CALLS)


@triton.jit
def pairs(x_ptr, out_ptr):
    at = tl.arange(0, 8)
    x = tl.load(x_ptr + tl.arange(0, 16))
    even, odd = tl.split(x.reshape(8, 2))
    tl.store(out_ptr + at, even)
    tl.store(out_ptr + 8 + at, odd)
    tl.store(out_ptr + 16 + tl.arange(0, 16), tl.join(odd, even).reshape(16))
    tl.store(out_ptr + 32 + tl.arange(0, 16), tl.cat(odd, even))
    tl.store(out_ptr + 48 + tl.arange(0, 16), tl.interleave(even * 2, at.to(tl.float32)))
    left, right = tl.split(x.reshape(4, 2, 2).permute(0, 2, 1))
    tl.store(out_ptr + 64 + at.reshape(4, 2), left - right)


def test_tensors_are_split_and_put_together() -> None:
    with RuntimeContext(engine=GraphEngine(MACHINE)) as torch:
        x, out = torch.empty(16, dtype="f32", dp=ONE_PE).copy_(X), torch.zeros(72, dtype="f32", dp=ONE_PE)
        pairs[1,](x, out)
        found = out.numpy()
    even, odd, four = X[::2], X[1::2], X.reshape(4, 2, 2)
    wanted = [even, odd, np.stack([odd, even], -1), odd, even, np.stack([even * 2, np.arange(8)], -1)]
    assert found.tolist() == [*np.concatenate([each.ravel() for each in wanted]), *(four[:, 0] - four[:, 1]).ravel()]


@triton.jit
def rows(x_ptr, n_ptr, out_ptr):
    x = tl.make_tensor_descriptor(x_ptr, [3, 8], [8, 1], [1, 8])
    out = tl.make_tensor_descriptor(out_ptr, [8, 8], [8, 1], [1, 8])
    n = tl.load(n_ptr + tl.arange(0, 8))
    out.scatter(x.gather(n, 0), tl.arange(0, 8), 0)


def test_rows_of_a_descriptor_are_gathered() -> None:
    """What lies outside of it is zero."""
    values, index = np.arange(24, dtype=np.float32).reshape(3, 8), np.array([2, 0, 1, 3, 2, -1, 0, 0])
    with RuntimeContext(engine=GraphEngine(MACHINE)) as torch:
        x, out = torch.empty(3, 8, dtype="f32", dp=ONE_PE).copy_(values), torch.ones(8, 8, dtype="f32", dp=ONE_PE)
        rows[1,](x, torch.empty(8, dtype="i32", dp=ONE_PE).copy_(index), out)
        inside = (index >= 0) & (index < 3)
        assert out.numpy().tolist() == np.where(inside[:, None], values[index % 3], 0).tolist()


def test_launches_that_depend_on_each_other_say_that_they_need_not() -> None:
    with RuntimeContext(engine=GraphEngine(MACHINE)) as torch:
        x, n = torch.zeros(16, dtype="f32", dp=ONE_PE), torch.zeros(16, dtype="i32", dp=ONE_PE)
        calls[1,](x, n, CALLS["gdc_wait"])
        with pytest.warns(RuntimeWarning, match=r"test_triton_language.py:\d+: gdc_wait does nothing"):
            torch.drain()
