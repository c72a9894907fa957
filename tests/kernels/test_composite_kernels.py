"""Kernels of composites against NumPy: every staging variant, type, epilogue and split."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fake_pe import random_array
from hypothesis import given
from hypothesis import strategies as st
from reference import Array, Machine, assert_near, normal, wide
from test_kernels import cube_and_pes, deploy, gathered

from kernbench.common.dtypes import BF16, F8E4M3, F8E5M2, F16, F32, I8, I32, DType
from kernbench.kernels.gemm import VARIANTS, gemm_composite, qkv_composite
from kernbench.kernels.linear import mlp
from kernbench.messages.commands import GEMM, LOAD, STORE, MemoryRef, Opcode, Operand

TYPES = (F32, F16, BF16, I8, F8E4M3, F8E5M2)
sizes = st.tuples(st.integers(1, 130), st.integers(1, 130), st.integers(1, 130))


def result_type(item: DType) -> DType:
    return I32 if item is I8 else item


def gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


STEPS: dict[str, Any] = {
    "bias": lambda x, bias, add: x + bias,
    "add": lambda x, bias, add: x + add,
    "scale": lambda x, bias, add: x * 0.125,
    "relu": lambda x, bias, add: np.maximum(x, 0),
    "gelu": lambda x, bias, add: gelu(x),
    "silu": lambda x, bias, add: x / (1 + np.exp(-x)),
}


def stage_bytes(size: tuple[int, int, int], item: DType, parts: int) -> int:
    """Enough for staged operands to be taken in about ``parts`` blocks each way; for one row or column at least."""
    m, k, n = size
    return -(-max(m, n) // parts) * k * item.itemsize


def check(
    item: DType,
    size: tuple[int, int, int],
    variant: str,
    steps: tuple[str, ...] = (),
    stage_bytes: int = 4 << 20,
    out: DType | None = None,
    order: int | None = None,
) -> Machine:
    m, k, n = size
    rng, machine, made = np.random.default_rng(m * n), Machine(), out or result_type(item)
    # Whole numbers: sums are exact in f32, so that only the rounding of the result, and the epilogue's, is left.
    a, b, bias, add = (random_array(rng, shape, item) for shape in ((m, k), (k, n), (n,), (m, n)))
    a_at, b_at, bias_at, add_at = map(machine.put, (a, b, bias, add))
    c_at = machine.room((m, n), made)
    how = {"epilogue_ops": ",".join(steps), "bias_ptr": bias_at, "add_ptr": add_at, "scale": 0.125}
    how |= {"out_dtype": None if out is None else out.name, "stage_bytes": stage_bytes}
    machine.run(gemm_composite, a_at, b_at, c_at, m, k, n, item.name, variant, order=order, **how)
    machine.assert_only_wrote((c_at, m * n * made.itemsize))
    wanted = wide(a) @ wide(b)
    for step in steps:
        wanted = STEPS[step](wanted, wide(bias), wide(add))
    found = machine.get(c_at, (m, n), made)
    if made.is_float and {"gelu", "silu"} & set(steps):
        # In f32 the activations are as good as what they are of; later steps may cancel some of it.
        assert_near(found, wanted, magnitude=float(np.max(np.abs(wanted))) / 8 + 1)
    else:
        expected = wanted.astype(np.float32).astype(made.numpy) if made.is_float else np.trunc(wanted)
        np.testing.assert_array_equal(found.astype(np.float64), expected.astype(np.float64))
    return machine


@pytest.mark.parametrize("item", TYPES, ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("size", [(1, 1, 1), (33, 70, 17), (64, 64, 64)], ids=str)
def test_gemm_is_numpys(item: DType, variant: str, size: tuple[int, int, int]) -> None:
    check(item, size, variant)


@given(
    size=sizes,
    item=st.sampled_from((F32, F16, BF16, I8)),
    variant=st.sampled_from(VARIANTS),
    steps=st.lists(st.sampled_from(tuple(STEPS)), max_size=3).map(tuple),
    parts=st.integers(1, 6),
    order=st.none() | st.integers(0, 9),
)
def test_any_size_epilogue_and_staging(parts: int, **case: Any) -> None:
    case["stage_bytes"] = stage_bytes(case["size"], case["item"], parts)
    if case["item"] is I8 and {"gelu", "silu"} & set(case["steps"]):
        case["out"] = F32
    check(**case)


@pytest.mark.parametrize(("item", "out"), [(F16, F32), (F8E4M3, F16), (I8, I8), (I8, F16), (I8, F32)])
def test_the_result_has_the_type_that_is_asked_for(item: DType, out: DType) -> None:
    check(item, (9, 3, 7), "load_ref", out=out, steps=("scale",))


@pytest.mark.parametrize(
    ("variant", "loads", "staged"), [("ref_ref", 0, ()), ("load_ref", 1, "a"), ("load_load", 2, "ab")]
)
def test_operands_that_fit_make_one_composite(variant: str, loads: int, staged: str) -> None:
    machine = check(F16, (100, 80, 90), variant)
    commands = machine.last.commands
    assert sum(c.op is LOAD for c in commands) == loads
    assert not any(c.op is STORE for c in commands)
    (composite,) = [c for c in commands if c.op is GEMM]
    for name, operand in (("a", composite.a), ("b", composite.b)):
        assert isinstance(operand, Operand if name in staged else MemoryRef)


def test_staged_operands_go_in_blocks() -> None:
    machine = check(F16, (64, 32, 48), "load_load", stage_bytes=16 * 32 * 2)
    kinds = [c.op for c in machine.last.commands]
    assert (kinds.count(Opcode.LOAD), kinds.count(Opcode.GEMM)) == (3 + 3 * 4, 3 * 4)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"variant": "ref_load"}, "'ref_load' is none of ref_ref, load_ref, load_load"),
        ({"epilogue_ops": "bias"}, "the epilogue has 'bias', but bias_ptr is None"),
        ({"epilogue_ops": ("relu", "add")}, "the epilogue has 'add', but add_ptr is None"),
    ],
)
def test_arguments_that_do_not_fit(how: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Machine().run(gemm_composite, 0, 0, 1024, 4, 4, 4, "f16", **how)


@pytest.mark.parametrize("item", [F16, I8], ids=str)
@pytest.mark.parametrize(("cubes", "pes", "n"), [(1, 1, 5), (2, 3, 24), (2, 4, 10)])
def test_projections_by_column_shards(item: DType, cubes: int, pes: int, n: int) -> None:
    m, k, made = 9, 40, result_type(item)
    rng, machine = np.random.default_rng(n), Machine()
    x, weights = random_array(rng, (m, k), item), [random_array(rng, (k, n), item) for _ in range(3)]
    x_at, at_w = machine.put(x), [machine.room((k, n), item) for _ in range(3)]
    at_y = [machine.room((m, n), made) for _ in range(3)]
    for weight, at in zip(weights, at_w, strict=True):
        deploy(machine.memory, at, weight, cubes, pes)
    machine.run(qkv_composite, x_at, *at_w, *at_y, m, k, n, item.name, None, 160, grid=(cubes, pes))
    assert len(cube_and_pes(cubes, pes)) == cubes * pes
    for weight, at in zip(weights, at_y, strict=True):
        found = gathered(machine.memory, at, (m, n), made, cubes, pes)
        expected = (wide(x) @ wide(weight)).astype(made.numpy)
        np.testing.assert_array_equal(wide(found), wide(expected))


def test_a_program_without_columns_projects_nothing() -> None:
    machine = Machine()
    machine.run(qkv_composite, *range(0, 448, 64), 4, 4, 1, "f16", grid=(1, 2))
    assert machine.last.commands == []


@given(
    size=st.tuples(*[st.integers(1, 100)] * 4),
    item=st.sampled_from((F32, F16, BF16)),
    variant=st.sampled_from(VARIANTS),
    grid=st.sampled_from(((1, 1), (1, 3), (2, 2))),
    parts=st.integers(1, 6),
)
def test_mlp_is_numpys(
    size: tuple[int, int, int, int], item: DType, variant: str, grid: tuple[int, int], parts: int
) -> None:
    m, k, h, n = size
    rng, machine = np.random.default_rng(m * k), Machine()
    arrays = x, w1, b1, w2, b2 = [
        normal(rng, shape, item, scale)
        for shape, scale in (((m, k), 1), ((k, h), k**-0.5), ((h,), 1), ((h, n), h**-0.5), ((n,), 1))
    ]
    places = [machine.put(array) for array in arrays]
    hidden_at, y_at = machine.room((m, h), item), machine.room((m, n), item)
    machine.run(
        mlp,
        *places,
        hidden_at,
        y_at,
        *size,
        item.name,
        variant,
        stage_bytes=stage_bytes(size[:3], item, parts),
        grid=grid,
        order=1,
    )
    machine.assert_only_wrote((hidden_at, m * h * item.itemsize), (y_at, m * n * item.itemsize))
    hidden = gelu(wide(x) @ wide(w1) + wide(b1))
    # The hidden part is rounded too, each element on its own.
    unsigned = np.abs(hidden) @ np.abs(wide(w2)) + np.abs(wide(b2))
    assert_near(machine.get(y_at, (m, n), item), hidden @ wide(w2) + wide(b2), roundings=2, magnitude=unsigned)
