"""What each operator computes, per type, against plain formulas."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.common.dtypes import ALL, BF16, F8E4M3, F8E5M2, F16, F32, I8, I32, I64, U16, U64, DType
from kernbench.common.errors import KernelError, UnknownNameError
from kernbench.common.operators import OPERATORS, Attributes, compute, evaluate, gemm, operator, passes

FLOATS = [t for t in ALL if t.is_float]
INTS = [t for t in ALL if not t.is_float]
SIGNED = [t for t in ALL if t.numpy.kind != "u"]

UNARY = {
    "exp": math.exp,
    "log": lambda x: math.log(abs(x)),
    "sqrt": lambda x: math.sqrt(abs(x)),
    "rsqrt": lambda x: 1 / math.sqrt(abs(x)),
    "abs": abs,
    "neg": lambda x: -x,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "tanh": math.tanh,
    "sin": math.sin,
    "cos": math.cos,
    "relu": lambda x: max(x, 0.0),
    "gelu": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "recip": lambda x: 1 / x,
    "exp2": lambda x: 2.0**x,
    "log2": lambda x: math.log2(abs(x)),
    "floor": math.floor,
    "ceil": math.ceil,
    "erf": math.erf,
}
BINARY = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "scale": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "maximum": max,
    "minimum": min,
    "rem": math.fmod,
}
COMPARE = {
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
}
BITS = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
}
VALUES = np.array([-3.5, -1.25, -0.5, 0.25, 1.0, 2.0, 6.0])


def run(name: str, *args, out: DType = F32, shape=None, acc: DType = F32, **attrs) -> np.ndarray:
    return evaluate(operator(name), args, out, shape, Attributes(**attrs), acc)


def array(values, dtype: DType) -> np.ndarray:
    return np.asarray(values).astype(dtype.numpy)


def test_powers_of_whole_numbers_are_exact_and_wrap() -> None:
    base, exponent = array([13, 99, -3, 2, 1, -1, 0, -2], I64), array([7, 7, 41, 64, -5, -5, 0, -1], I64)
    wanted = [(int(b) ** int(e) + 2**63) % 2**64 - 2**63 for b, e in zip(base[:4], exponent[:4], strict=True)]
    assert run("pow", base, exponent, out=I64).tolist() == [*wanted, 1, -1, 1, 0]
    assert run("pow", array([3, 255], U64), array([41, 9], U64), out=U64).tolist() == [3**41 % 2**64, 255**9 % 2**64]
    assert run("pow", array([13], I8), 7, out=I8).tolist() == [(13**7 + 128) % 256 - 128]


def test_a_shift_by_more_than_all_bits_leaves_the_sign_or_nothing() -> None:
    x, count = array([5, -5, 5, -5], I64), array([64, 64, -1, -1], I64)
    assert run("shl", x, count, out=I64).tolist() == [0, 0, 0, 0]
    assert run("shr", x, count, out=I64).tolist() == [0, -1, 0, -1]


def test_extremes_propagate_nan_or_leave_it_out() -> None:
    nan = np.nan
    x, y = array([[nan, 1, nan], [3, nan, nan]], F32), array([[0, nan, nan], [nan, 4, 2]], F32)
    assert np.isnan(run("maximum", x, y)).all()
    assert np.array_equal(run("fmax", x, y), [[0, 1, nan], [3, 4, 2]], equal_nan=True)
    assert np.array_equal(run("fmin", x, y), [[0, 1, nan], [3, 4, 2]], equal_nan=True)
    assert np.array_equal(run("fclamp", x, 2.0, 2.5), [[2, 2, 2], [2.5, 2, 2]])
    assert np.isnan(run("clamp", x, 2.0, 2.5)).sum() == 4
    assert np.isnan(run("max", x, axis=1)).all()
    assert run("nanmax", x, axis=1).tolist() == run("nanmin", x, axis=1).tolist() == [1, 3]
    assert run("nanargmax", x, out=I32, axis=1).tolist() == run("nanargmin", x, out=I32, axis=1).tolist() == [1, 0]
    assert np.isnan(run("nanmax", array([nan, nan], F32)))
    assert run("nanmax", array([3, 7, 5], I32), out=I32) == run("max", array([3, 7, 5], I32), out=I32)


def test_f8e4m3_saturates_and_f8e5m2_has_infinity() -> None:
    x = array([448, 449, 465, 1e9, -1e9, np.inf, -np.inf, np.nan], F32)
    wide = run("cast", x, out=F8E4M3).astype(np.float32)
    assert np.array_equal(wide, [448, 448, 448, 448, -448, 448, -448, np.nan], equal_nan=True)
    assert run("cast", x[3:6], out=F8E5M2).astype(np.float32).tolist() == [np.inf, -np.inf, np.inf]
    assert run("full", 500.0, out=F8E4M3, shape=(1,)).astype(np.float32).tolist() == [448]


def test_every_operator_is_listed_when_one_is_unknown() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown operator 'cubrt'; there are: exp, .* mean 'cbrt'"):
        operator("cubrt")
    assert all(operator(name).name == name for name in OPERATORS)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_unary_floats_round_once(name: str, dtype: DType) -> None:
    x = array(np.abs(VALUES) if name in ("log", "log2", "sqrt", "rsqrt") else VALUES, dtype)
    exact = np.array([UNARY[name](float(v)) for v in x])
    got = run(name, x, out=dtype)
    assert got.dtype == dtype.numpy
    near = (array(exact * (1 - 2e-6), dtype), array(exact * (1 + 2e-6), dtype))
    low, high = np.minimum(*(n.astype(float) for n in near)), np.maximum(*(n.astype(float) for n in near))
    assert ((low <= got.astype(float)) & (got.astype(float) <= high)).all()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", BINARY)
def test_binary_floats_round_once(name: str, dtype: DType) -> None:
    a, b = array(VALUES, dtype), array(VALUES[::-1], dtype)
    wide = [np.float32(BINARY[name](np.float32(x), np.float32(y))) for x, y in zip(a, b, strict=True)]
    assert run(name, a, b, out=dtype).tobytes() == np.array(wide, np.float32).astype(dtype.numpy).tobytes()


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("name", COMPARE)
def test_comparisons_give_bytes(name: str, dtype: DType) -> None:
    a, b = array([0, 1, 2, 3], dtype), array([0, 2, 1, 3], dtype)
    got = run(name, a, b, out=I8)
    assert got.dtype == np.int8
    assert got.tolist() == [int(COMPARE[name](x, y)) for x, y in zip(a, b, strict=True)]
    assert operator(name).result_dtype(dtype, dtype) is I8


@given(st.data())
def test_integers_are_exact_and_wrap(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(INTS))
    limits = np.iinfo(dtype.numpy)
    least, most = limits.min, limits.max
    edges = {0, 1, least, most, max(-1, least)}
    element = st.one_of(st.integers(least, most), st.sampled_from(sorted(edges)))
    pairs = data.draw(st.lists(st.tuples(element, element), min_size=1, max_size=6))
    a, b = (np.array([p[i] for p in pairs], dtype.numpy) for i in (0, 1))

    def wrapped(values) -> list[int]:
        return [(v - least) % (1 << limits.bits) + least for v in values]

    def divided(x: int, y: int) -> int:
        return 0 if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        remainder = {"rem": lambda x, y: 0 if y == 0 else x - y * divided(x, y)}
        for name, formula in (BINARY | {"div": divided} | remainder).items():
            assert run(name, a, b, out=dtype).tolist() == wrapped([formula(x, y) for x, y in pairs]), name
        assert run("neg", a, out=dtype).tolist() == wrapped([-x for x, _ in pairs])
        assert run("abs", a, out=dtype).tolist() == wrapped([abs(x) for x, _ in pairs])
        assert run("relu", a, out=dtype).tolist() == [max(x, 0) for x, _ in pairs]
        for name, formula in BITS.items():
            assert run(name, a, b, out=dtype).tolist() == [formula(x, y) for x, y in pairs], name
        assert run("not", a, out=dtype).tolist() == wrapped([~x for x, _ in pairs])
        for name in ("floor", "ceil"):
            assert run(name, a, out=dtype).tolist() == [x for x, _ in pairs]
        sums = [sum(x for x, _ in pairs[: i + 1]) for i in range(len(pairs))]
        assert run("cumsum", a, out=dtype).tolist() == wrapped(sums)
        first = [x for x, _ in pairs]
        assert run("argmax", a, out=I32).tolist() == first.index(max(first))
        assert run("argmin", a, out=I32).tolist() == first.index(min(first))
        assert run("fma", a, b, a, out=dtype).tolist() == wrapped([x * y + x for x, y in pairs])
        assert run("sum", a, out=dtype).tolist() == wrapped([sum(x for x, _ in pairs)])[0]
        if limits.bits < 64:  # a sum of 64 bits wraps
            assert run("mean", a, out=dtype).tolist() == divided(sum(x for x, _ in pairs), len(pairs))
        assert run("recip", a, out=dtype).tolist() == wrapped([divided(1, x) for x, _ in pairs])


def test_shifts_are_those_of_signed_numbers() -> None:
    x = array([1, -5, 1 << 30], I32)
    assert run("shl", x, 1, out=I32).tolist() == [2, -10, -(1 << 31)]
    assert run("shr", x, 1, out=I32).tolist() == [0, -3, 1 << 29]
    assert run("shr", x, array([40, 40, 40], I32), out=I32).tolist() == [0, -1, 0]
    assert run("shl", x, 100, out=I32).tolist() == [0, 0, 0]


@pytest.mark.parametrize("dtype", [t for t in INTS if t.numpy.kind == "u"], ids=str)
def test_shifts_of_unsigned_numbers_have_no_sign(dtype: DType) -> None:
    most = np.iinfo(dtype.numpy).max
    x = np.array([1, most], dtype.numpy)
    assert run("shl", x, 1, out=dtype).tolist() == [2, most - 1]
    assert run("shr", x, 1, out=dtype).tolist() == [0, most // 2]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_where_the_extremes_are(dtype: DType) -> None:
    x = array([[1, 3, 3], [2, -1, -4]], dtype)
    assert run("argmax", x, out=I32, axis=1).tolist() == [1, 0]
    assert run("argmin", x, out=I32, axis=1).tolist() == [0, 2]
    assert run("argmax", x, out=I32).tolist() == 1
    assert operator("argmax").result_dtype(dtype) is I32


@pytest.mark.parametrize("dtype", [F16, F32, I32, I8])
def test_of_equal_elements_the_first_stays_first_in_both_orders(dtype: DType) -> None:
    x = array([[2, 1, 2, 1], [0, 0, -1, 3]], dtype)
    assert run("argsort", x, out=I32, axis=1).tolist() == [[1, 3, 0, 2], [2, 0, 1, 3]]
    assert run("argsort_down", x, out=I32, axis=1).tolist() == [[0, 2, 1, 3], [3, 0, 1, 2]]
    assert run("take", x, array([[3, 3], [0, 1]], I32), out=dtype).tolist() == [[1, 1], [0, 0]]


def test_a_sorting_network_goes_over_its_bytes_several_times() -> None:
    assert [passes("argsort", n) for n in (1, 2, 3, 8, 1024, 1025)] == [1, 1, 3, 6, 55, 66]
    assert passes("cumsum", 1024) == 1


def test_cumsum_is_rounded_once() -> None:
    x = array([2048, 1, 1, 1], F16)
    assert run("cumsum", x, out=F16).tolist() == [2048, 2048, 2050, 2052]  # 2049 and 2051 lie between two f16


def test_a_constant_is_what_its_bytes_say() -> None:
    values = np.array([[1, -2], [3, 4]], BF16.numpy)
    made = evaluate(operator("constant"), (), BF16, (2, 2), Attributes(pattern=values.tobytes()))
    assert made.dtype == BF16.numpy
    assert made.tobytes() == values.tobytes()


def test_integers_without_an_integer_form_go_through_f32() -> None:
    assert run("sqrt", array([0, 10, 99], I8), out=I8).tolist() == [0, 3, 9]
    assert run("exp", array([1, 100, -100], I8), out=I8).tolist() == [2, 127, 0]
    assert run("log", array([-1], I32), out=I32).tolist() == [0]


@pytest.mark.parametrize("dtype", SIGNED, ids=str)
def test_ternary(dtype: DType) -> None:
    a, b, c = array([1, 2, 3], dtype), array([2, 2, 2], dtype), array([1, 0, -1], dtype)
    assert run("fma", a, b, c, out=dtype).tolist() == [3, 4, 5]
    assert run("clamp", a, 1, 2, out=dtype).tolist() == [1, 2, 2]
    condition = run("lt", a, b, out=I8)
    assert run("where", condition, a, c, out=dtype).tolist() == [1, 0, -1]
    assert run("where", condition, 5, c, out=dtype).tolist() == [5, 0, -1]
    assert operator("where").result_dtype(I8, dtype, dtype) is dtype


def test_a_number_takes_the_type_of_the_operand() -> None:
    x = array([1.0], F16)
    assert run("mul", x, 0.1, out=F32)[0] == np.float32(np.float16(0.1))
    assert run("sub", 1, array([3], I8), out=I8).tolist() == [-2]


@pytest.mark.parametrize("dtype", SIGNED, ids=str)
def test_reductions(dtype: DType) -> None:
    x = array([[1, 2, 3], [-1, 0, 4]], dtype)
    assert run("sum", x, out=dtype, axis=1).tolist() == [6, 3]
    assert run("max", x, out=dtype, axis=0).tolist() == [1, 2, 4]
    assert run("min", x, out=dtype, axis=-1).tolist() == [1, -1]
    assert run("mean", x, out=dtype, axis=1).tolist() == [2, 1]
    assert run("max", x, out=dtype).shape == ()


def test_sums_are_kept_in_f32() -> None:
    x = array(np.full(4096, 1.0), F16)
    x[0] = 2048
    assert run("sum", x, out=F32) == 2048 + 4095
    assert run("sum", x, out=F32, acc=BF16) == array(6143, BF16).astype(np.float32)


def test_softmax_of_large_values() -> None:
    x = array([[1000.0, 1000.0], [0.0, -1000.0]], F32)
    assert run("softmax", x).tolist() == [[0.5, 0.5], [1.0, 0.0]]
    assert run("softmax", x, axis=0).tolist() == [[1.0, 1.0], [0.0, 0.0]]


def test_casts() -> None:
    x = array([-1e9, -1.7, 1.7, 300.0, np.nan, np.inf], F32)
    assert run("cast", x, out=I8).tolist() == [-128, -1, 1, 127, 0, 127]
    assert run("cast", array([300, -129], I32), out=I8).tolist() == [44, 127]
    wide = array([-1e30, -1.7, 1.7, 2.0**63, 1e30, np.nan], F32)
    assert run("cast", wide, out=I64).tolist() == [-(2**63), -1, 1, 2**63 - 1, 2**63 - 1, 0]
    assert run("cast", wide, out=U64).tolist() == [0, 0, 1, 2**63, 2**64 - 1, 0]
    assert run("cast", array([2**53 + 1], I64), out=U64).tolist() == [2**53 + 1]
    assert run("cast", array([-1], I32), out=U16).tolist() == [2**16 - 1]
    assert run("cast", array([1e6], F32), out=F16).tolist() == [math.inf]
    assert run("cast", array([1.0625], F8E4M3), out=F8E5M2).tolist() == [1.0]
    for source in ALL:
        for target in ALL:
            assert run("cast", array([0, 1, 2], source), out=target).tolist() == [0, 1, 2]


def test_moves_and_fills() -> None:
    x = array([[1, 2, 3], [4, 5, 6]], BF16)
    assert run("trans", x, out=BF16).tolist() == [[1, 4], [2, 5], [3, 6]]
    assert run("trans", x[None], out=BF16, perm=(2, 0, 1)).shape == (3, 1, 2)
    assert run("broadcast", x[:1], out=BF16, shape=(2, 3)).tolist() == [[1, 2, 3]] * 2
    assert run("full", 2.5, out=F16, shape=(2,)).tolist() == [2.5, 2.5]
    assert run("zeros", out=I32, shape=(1, 2)).tolist() == [[0, 0]]


@pytest.mark.parametrize("dtype", [*FLOATS, I8, I32], ids=str)
@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
def test_dot(dtype: DType, trans_a: bool, trans_b: bool) -> None:
    rng = np.random.default_rng(1)
    a, b = array(rng.integers(-4, 5, (5, 7)), dtype), array(rng.integers(-4, 5, (7, 3)), dtype)
    acc = array(rng.integers(-4, 5, (5, 3)), operator("dot").result_dtype(dtype, dtype))
    expected = a.astype(np.int64) @ b.astype(np.int64)
    args = (a.T if trans_a else a, b.T if trans_b else b)
    out = F32 if dtype.is_float else I32
    assert run("dot", *args, out=out, trans_a=trans_a, trans_b=trans_b).tolist() == expected.tolist()
    with_acc = run("dot", *args, acc, out=out, trans_a=trans_a, trans_b=trans_b)
    assert with_acc.tolist() == (expected + acc.astype(np.int64)).tolist()


@pytest.mark.parametrize(("acc", "held"), [(F32, 2049.0), (F16, 2048.0), (BF16, 2048.0)], ids=str)
def test_what_is_added_to_a_dot_is_added_in_its_accumulators(acc: DType, held: float) -> None:
    """Above 2048 f16 has even numbers only, bf16 every sixteenth: the result is rounded though its own type is wide."""
    one, large = array([[1]], F32), array([[2048]], F32)
    assert run("dot", one, one, large, acc=acc).tolist() == [[held]]
    assert run("dot", large, one, one, acc=acc).tolist() == [[held]]
    assert run("dot", array([[2049]], F32), one, acc=acc).tolist() == [[held]]
    assert run("dot", array([2049], F32), array([1], F32), acc=acc).tolist() == held  # vectors
    assert gemm((one, one, large), F32, [("bias", array([0.5], F32))], acc=acc).tolist() == [[held + 0.5]]


def test_dot_of_bytes_accumulates_exactly() -> None:
    a = np.full((1, 200_000), -128, np.int8)
    assert operator("dot").result_dtype(I8, I8) is I32
    wrapped = (200_000 * 128 * 128 + (1 << 31)) % (1 << 32) - (1 << 31)
    assert run("dot", a, a, out=I32, trans_b=True).tolist() == [[wrapped]]
    b = np.full((1, 1000), 127, np.int8)
    assert run("dot", b, b, out=I32, trans_b=True).tolist() == [[1000 * 127 * 127]]


def test_gemm_epilogue() -> None:
    a, b = array([[1, -2]], F16), array([[3], [4]], F16)
    assert gemm((a, b), F16, [("add", array([[1]], F16)), ("scale", 0.5), ("relu",)]).tolist() == [[0]]
    assert gemm((a, b), F16, [("bias", array([1], F16)), ("scale", -0.5)]).tolist() == [[2]]
    i = np.full((1, 2048), 100, np.int8)
    attrs = Attributes(trans_b=True)
    assert gemm((i, i), I32, [("relu",), ("bias", array([1], I32))], attrs).tolist() == [[20_480_001]]
    with pytest.raises(UnknownNameError, match="unknown epilogue step 'tanh'"):
        gemm((a, b), F16, [("tanh",)])
    with pytest.raises(KernelError, match="'scale' takes 1 operands, not 0"):
        gemm((a, b), F16, [("scale",)])


def test_nothing_warns() -> None:
    x = array([0.0, -1.0, np.inf, np.nan, 3e38], F32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for op in OPERATORS.values():
            if op.kind in ("unary", "binary", "compare", "ternary", "where", "scan", "reduce"):
                for out in ALL:
                    evaluate(op, (x,) * op.arity, out)


def test_wrong_numbers_of_operands_and_shapes() -> None:
    x = array([1.0], F32)
    with pytest.raises(KernelError, match="add takes 2 operands, not 1"):
        run("add", x)
    with pytest.raises(ValueError, match="broadcast"):
        run("add", array([1, 2], F32), array([1, 2, 3], F32))
    with pytest.raises(ValueError, match="matmul"):
        run("dot", array([[1, 2]], F32), array([[1, 2]], F32))
    with pytest.raises(UnknownNameError, match="unknown accumulator dtype 'f8e4m3'; there are: f32, f16, bf16"):
        run("dot", array([[1]], F32), array([[1]], F32), acc=F8E4M3)


def test_f32_operands_are_not_copied() -> None:
    x = np.zeros(4, np.float32)
    seen = []
    spy = type(operator("abs"))("spy", 1, "unary", "add", lambda a: seen.append(a) or a + 1)
    assert compute(spy, (x,), F32).dtype == np.float32
    assert seen[0] is x


def test_iota_counts_along_an_axis() -> None:
    rows = evaluate(operator("iota"), (), I32, (3, 4), Attributes(axis=0))
    columns = evaluate(operator("iota"), (), F16, (3, 4), Attributes(axis=-1))
    assert (rows == np.arange(3)[:, None]).all()
    assert (columns == np.arange(4)[None, :]).all()
    assert columns.dtype == np.float16
