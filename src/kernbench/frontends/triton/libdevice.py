"""``libdevice``: elementwise functions of CUDA's library, computed by MATH commands. Symbols identify the functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import MappingProxyType, ModuleType
from typing import Any

import numpy as np
import triton.language as tl

from kernbench.common.dtypes import I64, DType
from kernbench.common.operators import evaluate, operator
from kernbench.frontends.triton.descriptors import thin
from kernbench.frontends.triton.running import refused, running
from kernbench.frontends.triton.values import (
    MACHINE_TYPES,
    Symbolic,
    Type,
    Value,
    is_symbolic,
    numpy_type,
    value_of,
    whole,
)
from kernbench.triton_emu.handles import Handle, Number

_PREFIX = "__nv_"
_SAME = (
    "abs acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh cospi erf erfc erfcinv erfcx erfinv exp "
    "exp10 exp2 expm1 fdim floor fma hypot ldexp lgamma log log10 log1p log2 logb nextafter normcdf normcdfinv pow "
    "rcbrt remainder rhypot rint round rsqrt sin sinh sinpi sqrt tan tanh tgamma trunc"
)
"""Symbols that consist of an operator's name and the suffix f."""
_OTHER = MappingProxyType(
    {
        "fabsf": "abs",
        "abs": "abs",
        "llabs": "abs",
        "fmodf": "rem",
        "nearbyintf": "rint",
        "scalbnf": "ldexp",
        "powif": "pow",
        "isnanf": "isnan",
        "isinff": "isinf",
        "finitef": "isfinite",
        "signbitf": "signbit",
        "ilogbf": "logb",
        "llrintf": "rint",
        "llroundf": "round",
        "fadd_rn": "add",
        "fsub_rn": "sub",
        "fmul_rn": "mul",
        "fdiv_rn": "div",
        "fast_fdividef": "div",
        "fmaf_rn": "fma",
        "frcp_rn": "recip",
        "fsqrt_rn": "sqrt",
        "frsqrt_rn": "rsqrt",
        "fast_tanf": "tan",
        "fast_tanhf": "tanh",
        "fast_exp10f": "exp10",
        "fast_log10f": "log10",
        "fast_powf": "pow",
        "fast_sinf": "sin",
        "fast_cosf": "cos",
        "fast_log2f": "log2",
        "fast_logf": "log",
        "fast_expf": "exp",
    }
)
_ROUNDED = MappingProxyType({"rn": "rint", "rz": "trunc", "rd": "floor", "ru": "ceil"})
_TO_FLOAT = ("int2float_rn", "uint2float_rn", "ll2float_rn", "ull2float_rn")
OPERATORS: MappingProxyType[str, str | None] = MappingProxyType(
    {f"{name}f": name for name in _SAME.split()}
    | dict(_OTHER)
    | {f"float2{ty}_{mode}": op for ty in ("int", "uint", "ll", "ull") for mode, op in _ROUNDED.items()}
    | dict.fromkeys(_TO_FLOAT)
)
"""The operator of each symbol. Its result is cast to the symbol's type. None: the argument is only cast."""


def _half_of(a: Handle, b: Handle, more: int) -> Handle:
    total = running().tl.elementwise("add", a, b)
    return running().tl.elementwise("shr", running().tl.elementwise("add", total, more) if more else total, 1)


def _upper_of(a: Handle, b: Handle) -> Handle:
    return running().tl.elementwise("shr", running().tl.elementwise("mul", a, b), 32)


_IN_64_BITS: MappingProxyType[str, Callable[[Handle, Handle], Handle]] = MappingProxyType(
    {
        "hadd": lambda a, b: _half_of(a, b, 0),
        "uhadd": lambda a, b: _half_of(a, b, 0),
        "rhadd": lambda a, b: _half_of(a, b, 1),
        "urhadd": lambda a, b: _half_of(a, b, 1),
        "mulhi": _upper_of,
        "umulhi": _upper_of,
    }
)
"""Functions of two 32-bit integers, computed in 64 bits."""


def call(symbol: str, args: list[Value], returned: Type) -> Value:
    """Call the library function that ``symbol`` names. Raises Refused if the machine lacks it."""
    name, out = symbol.removeprefix(_PREFIX), returned.scalar
    shape = np.broadcast_shapes(*[each.data.shape for each in args])
    if name == "saturatef":
        return _elementwise("clamp", [*args, _number(0.0), _number(1.0)], out, shape)
    if name in _IN_64_BITS:
        return upper_product(args, out, shape, _IN_64_BITS[name])
    if name not in OPERATORS:
        raise refused(
            f"libdevice, {symbol}: the machine computes in f32 and rounds to nearest even, and has no such function; "
            f"docs/triton.md lists those that it has"
        )
    found = OPERATORS[name]
    if found is None:
        return _cast(args[0], out)
    return _elementwise(found, args, out, shape)


def upper_product(
    args: list[Value], out: Type, shape: tuple[int, ...], combine: Callable[[Handle, Handle], Handle] = _upper_of
) -> Value:
    """Combine 32-bit integers in 64 bits; by default, return the upper half of their product."""
    kernel = running().tl
    a, b = (kernel.cast(whole(each), I64) for each in args)
    return value_of(Symbolic(kernel.cast(combine(a, b), MACHINE_TYPES[out]), shape), out)


def _number(x: float) -> Value:
    return value_of(np.array([x], np.float32), tl.float32)


def _elementwise(name: str, args: list[Value], out: Type, shape: tuple[int, ...]) -> Value:
    first = next((each for each in args if each.dtype.scalar.is_floating()), args[0])
    item = MACHINE_TYPES[first.dtype.scalar]
    if not is_symbolic(*args):
        made = evaluate(operator(name), [thin(each.data).astype(item.numpy) for each in args], _result(name, item))
        return value_of(np.broadcast_to(made.astype(numpy_type(out)), shape), out)
    kernel = running().tl
    handle = kernel.elementwise(name, *[_operand(each, item) for each in args])
    return value_of(Symbolic(kernel.cast(handle, MACHINE_TYPES[out]), shape), out)


def _result(name: str, item: DType) -> DType:
    return operator(name).makes or item


def _operand(x: Value, item: DType) -> Handle | Number:
    return running().tl.cast(whole(x), item)


def _cast(x: Value, out: Type) -> Value:
    if is_symbolic(x):
        return value_of(Symbolic(running().tl.cast(whole(x), MACHINE_TYPES[out]), x.data.shape), out)
    return value_of(x.data.astype(numpy_type(out)), out)


def functions_of(library: ModuleType) -> dict[str, Callable[..., Any]]:
    """Return the functions of Triton's module by name. Each names the types in its refusal of unsupported ones."""
    found = {name: _check_call(name, each) for name, each in vars(library).items() if tl.core.is_builtin(each)}
    return found | {"fast_tanhf": found["tanh"]}


def _check_call(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def check(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except KeyError as error:
            types = (
                ", ".join(each.name for each in error.args[0]) if isinstance(error.args[0], tuple | tl.tuple) else error
            )
            raise refused(f"libdevice.{name} of {types}: there is none for these types; cast them") from None

    return check
