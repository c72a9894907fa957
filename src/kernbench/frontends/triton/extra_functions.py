"""Functions that MATH computes by one command: ``libdevice``, and some written in Triton. Calls that only a GPU has.

Symbols of CUDA's library identify the functions of ``libdevice``. Each call that makes sense only on a GPU, or only in
an older Triton, is ignored with a warning, or refused with its name.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from types import MappingProxyType, ModuleType
from typing import NoReturn, ParamSpec, TypeVar

import numpy as np
import triton.language as tl

from kernbench.common.dtypes import I64, Array, DType, Shape
from kernbench.common.operators import evaluate, operator
from kernbench.frontends.triton.descriptors import drop_repeats
from kernbench.frontends.triton.running import refused, running
from kernbench.frontends.triton.values import (
    MACHINE_TYPES,
    Symbolic,
    Type,
    Value,
    is_symbolic,
    materialize,
    numpy_type,
    transpose_pending,
    value_of,
)
from kernbench.triton_emu.handles import Handle
from kernbench.triton_emu.source import call_place

P = ParamSpec("P")
R = TypeVar("R")

# -- libdevice --------------------------------------------------------------------------------------------------------

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


def call_function(symbol: str, args: list[Value], returned: Type) -> Value:
    """Call the library function that ``symbol`` names. Raises Refused if the machine lacks it."""
    name, out = symbol.removeprefix(_PREFIX), returned.scalar
    shape = np.broadcast_shapes(*[arg.data.shape for arg in args])
    if name == "saturatef":
        return _elementwise("clamp", [*args, _number(0.0), _number(1.0)], out, shape)
    if name in _IN_64_BITS:
        return upper_product(args, out, shape, _IN_64_BITS[name])
    if name not in OPERATORS:
        raise refused(
            f"libdevice, {symbol}: the machine computes in f32 and rounds to nearest even, and has no such function; "
            f"docs/triton.md lists those that it has"
        )
    operator_name = OPERATORS[name]
    if operator_name is None:
        return _cast(args[0], out)
    return _elementwise(operator_name, args, out, shape)


def upper_product(
    args: list[Value], out: Type, shape: Shape, combine: Callable[[Handle, Handle], Handle] = _upper_of
) -> Value:
    """Combine 32-bit integers in 64 bits; by default, return the upper half of their product."""
    kernel = running().tl
    a, b = (kernel.cast(materialize(arg), I64) for arg in args)
    return value_of(Symbolic(kernel.cast(combine(a, b), MACHINE_TYPES[out]), shape), out)


def _number(x: float) -> Value:
    return value_of(np.array([x], np.float32), tl.float32)


def _elementwise(name: str, args: list[Value], out: Type, shape: Shape) -> Value:
    first = next((arg for arg in args if arg.dtype.scalar.is_floating()), args[0])
    item = MACHINE_TYPES[first.dtype.scalar]
    arrays = [arg.data for arg in args if not isinstance(arg.data, Symbolic)]
    if len(arrays) == len(args):
        return value_of(np.broadcast_to(evaluate_known(name, *arrays, item=item).astype(numpy_type(out)), shape), out)
    kernel = running().tl
    handle = kernel.elementwise(name, *[_operand(arg, item) for arg in args])
    return value_of(Symbolic(kernel.cast(handle, MACHINE_TYPES[out]), shape), out)


def evaluate_known(name: str, *arrays: Array, item: DType) -> Array:
    """Return the result of an operator for known numbers, converted to ``item`` first."""
    converted = [drop_repeats(array).astype(item.numpy) for array in arrays]
    return evaluate(operator(name), converted, operator(name).makes or item)


def _operand(x: Value, item: DType) -> Handle:
    return running().tl.cast(materialize(x), item)


def _cast(x: Value, out: Type) -> Value:
    if isinstance(x.data, Symbolic):
        return value_of(Symbolic(running().tl.cast(materialize(x), MACHINE_TYPES[out]), x.data.shape), out)
    return value_of(x.data.astype(numpy_type(out)), out)


def list_functions(library: ModuleType) -> dict[str, Callable[..., tl.tensor]]:
    """Return the functions of Triton's module by name. Each names the types in its refusal of unsupported ones."""
    functions = {
        name: _check_call(name, member) for name, member in vars(library).items() if tl.core.is_builtin(member)
    }
    return functions | {"fast_tanhf": functions["tanh"]}


def _check_call(name: str, function: Callable[P, R]) -> Callable[P, R]:
    @wraps(function)
    def check(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except KeyError as error:
            key = error.args[0]
            types = ", ".join(ty.name for ty in key) if isinstance(key, tuple | tl.tuple) else error
            raise refused(f"libdevice.{name} of {types}: there is none for these types; cast them") from None

    return check


# -- Functions written in Triton --------------------------------------------------------------------------------------


def _sigmoid(x: tl.tensor) -> tl.tensor:
    """Return 1 / (1 + exp(-x)); of symbolic f32 values by one command."""
    if not is_symbolic(x.handle) or x.dtype is not tl.float32:
        return 1 / (1 + tl.exp(-x))
    result = running().tl.elementwise("sigmoid", transpose_pending(x.handle.data))
    return tl.core.tensor(value_of(Symbolic(result, x.handle.data.shape), tl.float32), x.type)


def _maximum(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """Return the larger of two values, or NaN if either is NaN."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


def _minimum(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """Return the smaller of two values, or NaN if either is NaN."""
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


COMPILER = "torch._inductor.runtime.triton_helpers"
"""The module of the functions that PyTorch's compiler calls in the kernels that it writes."""
WRITTEN_IN_TRITON: MappingProxyType[str, Callable[..., tl.tensor]] = MappingProxyType(
    {
        f"{tl.standard.__name__}.sigmoid": _sigmoid,
        f"{COMPILER}.maximum": _maximum,
        f"{COMPILER}.minimum": _minimum,
    }
)
"""What the machine runs in place of functions written in Triton, by full name."""


# -- Calls that only a GPU has ----------------------------------------------------------------------------------------


def _make_ignore(name: str, reason: str) -> Callable[..., None]:
    def ignore(*_: object, **__: object) -> None:
        warnings.warn(f"{call_place()}: {name} does nothing: {reason}", RuntimeWarning, stacklevel=2)

    return ignore


def _make_refuse(name: str, reason: str) -> Callable[..., NoReturn]:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise refused(f"{name}: {reason}")

    return refuse


_IN_ORDER = "launches that touch the same PEs run one after another"
_NO_WARPS = "a program of a PE has no warps"
_GPU_ALONE = MappingProxyType(
    {
        "num_threads": _NO_WARPS,
        "num_warps": _NO_WARPS,
        "smid": "tl.program_id identifies the program",
        "globaltimer": "a kernel has no clock; --explain and --trace show when it does what",
    }
)
_NO_BLOCK_POINTERS = (
    "Triton has no block pointers any more; take tl.make_tensor_descriptor(base, shape, strides, block_shape), "
    "with the place of a block in its load and store, or pointers and a mask"
)
GPU_FUNCTIONS: MappingProxyType[str, Callable[..., None]] = MappingProxyType(
    {name: _make_ignore(name, _IN_ORDER) for name in ("gdc_wait", "gdc_launch_dependents")}
    | {name: _make_refuse(f"tl.extra.cuda.{name}", reason) for name, reason in _GPU_ALONE.items()}
    | {name: _make_refuse(f"tl.{name}", _NO_BLOCK_POINTERS) for name in ("make_block_ptr", "advance")}
)


def list_gpu_names(module: ModuleType) -> list[str]:
    """Return the names in a module of Triton that GPU_FUNCTIONS replaces."""
    return [name for name in GPU_FUNCTIONS if name in vars(module)]
