"""Mathematical functions of the operators: they convert f32 arrays to f64, compute, and round once to f32.

Domains and limits are those of the C library: NaN outside the domain, infinity on overflow.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import numpy as np

from kernbench.common.dtypes import Array
from kernbench.common.late import late

Function = Callable[..., Any]
_F32, _F64, _I32 = np.float32, np.float64, np.int32


def _in_f64(fn: Function) -> Function:
    """Return a function of f32 arrays that computes ``fn`` in f64."""

    def compute(*args: Array) -> Any:
        return np.asarray(fn(*[np.asarray(x).astype(_F64) for x in args])).astype(_F32)

    return compute


@cache
def _load(name: str) -> Function:
    return _in_f64(late("scipy.special", name))


def _of_scipy(name: str) -> Function:
    """Return the function ``name`` of SciPy; SciPy is slow to import, so its import waits for the first call."""

    def compute(x: Array) -> Any:
        return _load(name)(x)

    return compute


def _round_half_away(x: Array) -> Any:
    truncated = np.trunc(x)
    return np.where(np.abs(x - truncated) >= 0.5, truncated + np.copysign(1.0, x), truncated)


def _sinpi(x: Array) -> Any:
    angle = np.fmod(x, 2.0)
    return np.where(angle == np.trunc(angle), np.copysign(0.0, x), np.sin(np.pi * angle))


def _cospi(x: Array) -> Any:
    angle = np.abs(np.fmod(x, 2.0))
    return np.where(np.abs(angle - 1) == 0.5, 0.0, np.cos(np.pi * angle))


def _lgamma(x: Array) -> Any:
    return np.where(np.isinf(x), np.float32(np.inf), _load("gammaln")(x))


def _ieee_remainder(a: Array, b: Array) -> Any:
    """Compute ``a - n b``, where ``n`` is a / b rounded to the nearest integer, ties to even (IEEE 754)."""
    remainder = np.fmod(np.abs(a), np.abs(b))
    half, odd = np.abs(b) / 2, np.fmod(np.floor(np.abs(a) / np.abs(b)), 2) == 1
    remainder = np.where((remainder > half) | ((remainder == half) & odd), remainder - np.abs(b), remainder)
    return np.where(a < 0, -remainder, remainder)


def _logb(x: Array) -> Any:
    _, exponent = np.frexp(x)
    result = np.where(np.isfinite(x), exponent - 1.0, np.abs(x))
    return np.where(x == 0, -np.inf, result)


def _scale_by_power(x: Array, n: Array) -> Any:
    return np.ldexp(x, np.clip(n, -2000, 2000).astype(_I32))


def _nextafter(a: Array, b: Array) -> Any:
    return np.nextafter(a.astype(_F32), b.astype(_F32))


UNARY: MappingProxyType[str, Function] = MappingProxyType(
    {
        "erf": _of_scipy("erf"),
        "exp10": _in_f64(lambda x: np.power(10.0, x)),
        "expm1": _in_f64(np.expm1),
        "log10": _in_f64(np.log10),
        "log1p": _in_f64(np.log1p),
        "tan": _in_f64(np.tan),
        "asin": _in_f64(np.arcsin),
        "acos": _in_f64(np.arccos),
        "atan": _in_f64(np.arctan),
        "sinh": _in_f64(np.sinh),
        "cosh": _in_f64(np.cosh),
        "asinh": _in_f64(np.arcsinh),
        "acosh": _in_f64(np.arccosh),
        "atanh": _in_f64(np.arctanh),
        "sinpi": _in_f64(_sinpi),
        "cospi": _in_f64(_cospi),
        "cbrt": _in_f64(np.cbrt),
        "rcbrt": _in_f64(lambda x: 1 / np.cbrt(x)),
        "erfc": _of_scipy("erfc"),
        "erfinv": _of_scipy("erfinv"),
        "erfcinv": _of_scipy("erfcinv"),
        "erfcx": _of_scipy("erfcx"),
        "normcdf": _of_scipy("ndtr"),
        "normcdfinv": _of_scipy("ndtri"),
        "lgamma": _lgamma,
        "tgamma": _of_scipy("gamma"),
        "trunc": np.trunc,
        "rint": np.rint,
        "round": _in_f64(_round_half_away),
        "logb": _in_f64(_logb),
    }
)
"""Functions of one operand. ``rint`` rounds halves to even, ``round`` away from 0."""
BINARY: MappingProxyType[str, Function] = MappingProxyType(
    {
        "pow": _in_f64(np.power),
        "atan2": _in_f64(np.arctan2),
        "hypot": _in_f64(np.hypot),
        "rhypot": _in_f64(lambda a, b: 1 / np.hypot(a, b)),
        "copysign": _in_f64(np.copysign),
        "nextafter": _nextafter,
        "fdim": _in_f64(lambda a, b: np.where(a > b, a - b, np.where(np.isnan(a) | np.isnan(b), np.nan, 0.0))),
        "remainder": _in_f64(_ieee_remainder),
        "ldexp": _in_f64(_scale_by_power),
    }
)
"""Functions of two operands. ``remainder`` is that of IEEE 754; ``ldexp(x, n)`` is x times 2 to the power n."""
TESTS: MappingProxyType[str, Function] = MappingProxyType(
    {"isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite, "signbit": np.signbit},
)
"""Functions of one operand whose result is 0 or 1."""

EnergyClass: TypeAlias = Literal["add", "mul", "special", "move"]
"""The kind of work per element: an addition or comparison, a multiplication, a series or division, or none"""
_BY_CLASS: dict[EnergyClass, str] = {
    "add": "trunc rint round logb copysign nextafter fdim ldexp isnan isinf isfinite signbit",
    "special": "exp10 expm1 log10 log1p tan asin acos atan sinh cosh asinh acosh atanh sinpi cospi cbrt rcbrt erf erfc "
    "erfinv erfcinv erfcx normcdf normcdfinv lgamma tgamma pow atan2 hypot rhypot remainder",
}
ENERGY_CLASSES = MappingProxyType({name: kind for kind, names in _BY_CLASS.items() for name in names.split()})
"""The energy class of each function of this module."""
