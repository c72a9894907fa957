"""Functions of mathematics among the operators: against Python's own, one number after another."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np
import pytest

from kernbench.common.dtypes import F32, I8, I32
from kernbench.common.operators import OPERATORS, evaluate, operator
from kernbench.common.special import BINARY, TESTS, UNARY

INF, NAN = math.inf, math.nan
ANY = [-3.5, -2.5, -1.0, -0.75, -0.25, 0.0, 0.3, 0.5, 1.0, 1.5, 2.5, 30.0]
UNIT = [-1.0, -0.9, -0.25, 0.0, 0.125, 0.75, 1.0]
POSITIVE = [1e-3, 0.25, 1.0, 2.0, 10.0, 1e5]
CASES: dict[str, tuple[Callable[[float], float], list[float]]] = {
    "erf": (math.erf, ANY),
    "exp10": (lambda x: 10.0**x, ANY),
    "expm1": (math.expm1, [*ANY, 1e-6]),
    "log10": (math.log10, POSITIVE),
    "log1p": (math.log1p, [1e-6, *POSITIVE]),
    "tan": (math.tan, ANY),
    "asin": (math.asin, UNIT),
    "acos": (math.acos, UNIT),
    "atan": (math.atan, ANY),
    "sinh": (math.sinh, ANY),
    "cosh": (math.cosh, ANY),
    "asinh": (math.asinh, ANY),
    "acosh": (math.acosh, [1.0, 1.5, 100.0]),
    "atanh": (math.atanh, UNIT[1:-1]),
    "sinpi": (lambda x: math.sin(math.pi * x), [-0.75, 0.25, 0.3]),
    "cospi": (lambda x: math.cos(math.pi * x), [-0.75, 0.25, 0.3]),
    "cbrt": (lambda x: math.copysign(abs(x) ** (1 / 3), x), [-8.0, 0.001, 27.0]),
    "rcbrt": (lambda x: math.copysign(abs(x) ** (-1 / 3), x), [-8.0, 0.001, 27.0]),
    "erfc": (math.erfc, [*ANY[:-1], 5.0]),
    "erfcx": (lambda x: math.exp(x * x) * math.erfc(x), [-2.0, 0.0, 1.0, 5.0, 19.0, 21.0, 26.0]),
    "normcdf": (NormalDist().cdf, [-3.0, 0.0, 1.0]),
    "lgamma": (math.lgamma, [-2.5, 0.5, *POSITIVE]),
    "tgamma": (math.gamma, [-2.5, 0.5, 1.0, 5.5, 30.0]),
    "trunc": (np.trunc, ANY),
    "rint": (np.rint, ANY),
    "round": (lambda x: math.copysign(math.floor(abs(x) + 0.5), x), [*ANY, 0.49999997]),
    "logb": (lambda x: math.floor(math.log2(abs(x))), [-3.5, 0.3, 1.0, 1e-40]),
}
LIMITS = {
    "erfinv": {0.0: 0.0, 1.0: INF, -1.0: -INF, 1.5: NAN},
    "erfcinv": {0.0: INF, 2.0: -INF, 1.0: 0.0, -1.0: NAN},
    "normcdfinv": {0.0: -INF, 1.0: INF, 0.5: 0.0, 2.0: NAN},
    "lgamma": {0.0: INF, -1.0: INF, -INF: INF},
    "tgamma": {0.0: INF, -1.0: NAN, 40.0: INF},
    "asin": {1.5: NAN},
    "sinpi": {1.0: 0.0, -2.0: -0.0, 0.5: 1.0, 1.5: -1.0, 1e9: 0.0, INF: NAN},
    "cospi": {0.5: 0.0, 1.0: -1.0, 2.0: 1.0, -1.5: 0.0},
    "logb": {0.0: -INF, INF: INF},
    "erfcx": {30.0: 0.018795888861416751, INF: 0.0},
    "round": {-0.4: -0.0},
}
PAIRS = {
    "pow": (math.pow, [(2.0, 0.5), (-2.0, 3.0), (0.5, -2.0)]),
    "atan2": (math.atan2, [(1.0, -2.0), (-1.0, -2.0), (0.0, -1.0)]),
    "hypot": (math.hypot, [(3.0, 4.0), (1e30, 1e30)]),
    "rhypot": (lambda a, b: 1 / math.hypot(a, b), [(3.0, 4.0)]),
    "copysign": (math.copysign, [(3.0, -0.0), (-3.0, 1.0)]),
    "fdim": (lambda a, b: max(a - b, 0.0), [(3.0, 1.0), (1.0, 3.0)]),
    "remainder": (math.remainder, [(5.0, 2.0), (7.0, 2.0), (-7.0, 4.0), (5.5, -3.0), (0.25, 1.0)]),
    "ldexp": (lambda a, b: math.ldexp(a, int(b)), [(0.75, 5.0), (-3.0, -2.0)]),
    "nextafter": (lambda a, b: float(np.nextafter(np.float32(a), np.float32(b))), [(1.0, 2.0), (1.0, 0.0)]),
}


def run(name: str, *args: list[float]) -> np.ndarray:
    return evaluate(operator(name), [np.array(x, np.float32) for x in args], operator(name).makes or F32)


def check(found: np.ndarray, wanted: list[float]) -> None:
    """Within a unit in the last place of f32, zeros with their signs."""
    assert found.dtype == np.float32
    np.testing.assert_array_max_ulp(found, np.array(wanted, np.float32), maxulp=1)
    assert np.array_equal(np.signbit(found), np.signbit(np.array(wanted, np.float32)))


@pytest.mark.parametrize("name", CASES)
def test_functions(name: str) -> None:
    formula, values = CASES[name]
    check(run(name, values), [formula(float(np.float32(x))) for x in values])


@pytest.mark.parametrize("name", LIMITS)
def test_limits_and_what_has_no_value(name: str) -> None:
    found = run(name, list(LIMITS[name]))
    np.testing.assert_allclose(found, list(LIMITS[name].values()), rtol=1e-7)


@pytest.mark.parametrize(("name", "back"), [("erfinv", "erf"), ("erfcinv", "erfc"), ("normcdfinv", "normcdf")])
def test_inverses(name: str, back: str) -> None:
    x = [1e-30, 1e-12, 1e-6, 0.1, 0.5, 0.9]
    np.testing.assert_allclose(run(back, run(name, x)), x, rtol=1e-5)
    if name == "erfinv":
        assert (run(name, [-each for each in x]) == -run(name, x)).all()


@pytest.mark.parametrize("name", PAIRS)
def test_functions_of_two(name: str) -> None:
    formula, pairs = PAIRS[name]
    check(run(name, *map(list, zip(*pairs, strict=True))), [formula(a, b) for a, b in pairs])


def test_what_numbers_are() -> None:
    x = [1.0, -0.0, NAN, INF, -INF]
    wanted = {
        "isnan": [0, 0, 1, 0, 0],
        "isinf": [0, 0, 0, 1, 1],
        "isfinite": [1, 1, 0, 0, 0],
        "signbit": [0, 1, 0, 0, 1],
    }
    assert {name: run(name, x).tolist() for name in TESTS} == wanted
    assert operator("isnan").result_dtype(F32) is I8


def test_roundings_leave_whole_numbers_alone() -> None:
    x = np.array([-(2**31), 2**31 - 1], np.int32)
    for name in ("trunc", "rint", "round"):
        assert evaluate(operator(name), [x], I32).tolist() == x.tolist()


def test_each_is_an_operator_and_tested() -> None:
    assert {*UNARY, *BINARY, *TESTS} <= set(OPERATORS)
    assert {*CASES, *LIMITS, "erfinv", "erfcinv", "normcdfinv"} == set(UNARY)
    assert set(PAIRS) == set(BINARY)
