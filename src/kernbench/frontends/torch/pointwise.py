"""Elementwise operators, with PyTorch's type promotion, broadcasting and strides: one launch each.

A rule defines the computation of an operator as a function of ``tl`` and the operator's arguments. Handles replace
tensors; other arguments are as the program passed them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from kernbench.common.dtypes import F32, I64, DType
from kernbench.common.values import value
from kernbench.frontends.torch.launches import dtype_of, launch, merged_views
from kernbench.frontends.torch.refusals import type_in_place
from kernbench.frontends.torch.storage import machine_type
from kernbench.frontends.torch.tensor import AhbmTensor, new, sip_of, without_elements
from kernbench.kernels.tiling import own_boxes
from kernbench.kernels.view import View

Body = Callable[..., Any]
ComputeIn = Literal["result", "f32", "operands"]


@value
class Rule:
    """The computation of an operator on an element.

    ``compute_in`` names the dtype to compute in. ``result``: the dtype of the result, for a single operation. ``f32``:
    for several operations, rounded once at the end. ``operands``: the common dtype of the operands, for comparisons.
    ``conditions`` are the positions of tensors that are not cast.
    """

    body: Body
    compute_in: ComputeIn = "f32"
    conditions: tuple[int, ...] = ()


@value
class Task:
    """An operator on tensors of any layout. Each program computes a share of the result."""

    views: tuple[View, ...]
    """The result and the inputs, of one shape"""
    body: Body
    compute: tuple[DType, ...]

    def run(self, addresses: Sequence[int], tl: Any) -> None:
        """Compute this program's share. ``addresses``: those of the result and the inputs."""
        out, *inputs = [view.on(address) for view, address in zip(self.views, addresses, strict=True)]
        # A view is transposed if another axis than the last, which does not repeat, is contiguous.
        transposed = any(view.strides[-1] > 1 and 1 in view.strides for view in self.views)
        for corner, box in own_boxes(out.extents, tl, transposed=transposed):
            loaded = [view.tile(corner, box).load(tl) for view in inputs]
            result = self.body(tl, *[tl.cast(x, to) for x, to in zip(loaded, self.compute, strict=True)])
            out.tile(corner, box).store(tl.broadcast(tl.cast(result, out.dtype), box), tl)


def task(body: Body, out: Tensor, inputs: Sequence[Tensor], compute: Sequence[DType]) -> Task:
    """Return the task of ``out = body(tl, *inputs)``; inputs are cast to their ``compute`` type and broadcast."""
    expanded: list[Any] = [x if x.shape == out.shape else x.expand(out.shape) for x in inputs]
    return Task(tuple(merged_views([out, *expanded])), body, tuple(compute))


def apply(name: str, body: Body, out: Tensor, inputs: Sequence[Tensor], compute: Sequence[DType] = ()) -> Tensor:
    """Launch ``out = body(tl, *inputs)`` as operator ``name``; without ``compute``, inputs keep their dtypes."""
    if out.numel():
        apply_all(name, [(body, out, inputs, compute)])
    return out


def apply_all(name: str, work: Sequence[tuple[Body, Tensor, Sequence[Tensor], Sequence[DType]]]) -> None:
    """Launch several operators as one, for a list of tensors; each PE computes them one after another."""
    tasks = [
        task(body, out, inputs, compute or [dtype_of(x) for x in inputs])
        for body, out, inputs, compute in work
        if out.numel()
    ]
    if not tasks:
        return
    outs = [out for _, out, _, _ in work if out.numel()]
    operands = [x for _, out, inputs, _ in work if out.numel() for x in inputs]

    def run_tasks(*addresses: int, tl: Any) -> None:
        operand_addresses = iter(addresses[len(outs) :])
        for work_item, out in zip(tasks, addresses, strict=False):
            work_item.run((out, *islice(operand_addresses, len(work_item.views) - 1)), tl)

    work_bytes = sum(each.numel() * each.element_size() for each in outs)
    largest = max((x.numel() * x.element_size() for x in (*outs, *operands)), default=0)
    launch(name, run_tasks, outs, operands, max(work_bytes, largest))


_SHIFTS = {"__lshift__": torch.ops.aten.bitwise_left_shift, "__rshift__": torch.ops.aten.bitwise_right_shift}
"""Operators that stand in to infer a shift's result: the meta kernels of ``<<`` and ``>>`` refuse bool."""


def carry_out(operator: Any, rule: Rule, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run an operator that has a rule; in-place operators such as ``x.add_(y)`` write to their first operand."""
    name = operator.overloadpacket.__name__
    options = {key: plain(x) for key, x in kwargs.items()}
    values = [plain(x) for x in args]
    if name.endswith("_") and not name.endswith("__"):
        out, computed = args[0], type_in_place(operator, args, kwargs)
    else:
        inferred_by = _SHIFTS.get(name, operator)
        form = inferred_by(*[_form_of(x) for x in args], **{key: _form_of(x) for key, x in kwargs.items()})
        computed = form.dtype
        like = next(x for x in (*values, *options.values()) if isinstance(x, AhbmTensor))
        out = new(tuple(form.shape), form.dtype, sip_of(like), form.stride())
    single = name if name.endswith("__") else name.rstrip("_")
    if out.numel():
        apply_all(single, [work_of(single, rule, values, options, out, computed)])
    return out


def work_of(
    name: str, rule: Rule, args: Sequence[Any], options: Mapping[str, Any], out: Tensor, computed: torch.dtype
) -> tuple[Body, Tensor, Sequence[Tensor], Sequence[DType]]:
    """Return an item of ``apply_all`` for a rule. Tensors of the machine stay inputs, and numbers become constants.

    ``computed`` is PyTorch's dtype of the result, before it is cast to that of ``out``.
    """
    values = [plain(x) for x in args]
    if name in _ROUNDING:
        values = [_nearest(x, machine_type(computed)) for x in values]
    inputs = [x for x in (*values, *options.values()) if isinstance(x, AhbmTensor)]
    chosen = _OF_BOOLS.get(name, rule.body) if computed is torch.bool else rule.body
    common = _common_type(values) if rule.compute_in == "operands" else None
    wide = _compute_type(rule, machine_type(computed), common, (*values, *options.values()))
    types = tuple([dtype_of(x) if i in rule.conditions else wide for i, x in enumerate(inputs)])
    convert = as_element if name in _CHECKED else wrapped
    if computed is torch.bool and name in _CHECKED:
        values = [bool(x) if isinstance(x, int | float) else x for x in values]
    numbers = [convert(x, wide) for x in values]
    return _with_numbers(chosen, numbers, {key: convert(x, wide) for key, x in options.items()}), out, inputs, types


def _form_of(x: Any) -> Any:
    """Return an argument with each tensor replaced by one without elements, host tensors included."""
    return x.to("meta") if isinstance(x, torch.Tensor) and not isinstance(x, AhbmTensor) else without_elements(x)


def plain(x: Any) -> Any:
    """Return the number of a host tensor without axes. Return other values unchanged."""
    return x.item() if isinstance(x, torch.Tensor) and not isinstance(x, AhbmTensor) and x.dim() == 0 else x


def _with_numbers(body: Body, args: Sequence[Any], options: Mapping[str, Any]) -> Body:
    """Return ``body`` with its numbers bound: a function of ``tl`` and of the tensors among its arguments."""

    def call(tl: Any, *tensors: Any) -> Any:
        handles = iter(tensors)
        filled = [next(handles) if isinstance(x, AhbmTensor) else x for x in args]
        named = {key: next(handles) if isinstance(x, AhbmTensor) else x for key, x in options.items()}
        return body(tl, *filled, **named)

    return call


def _holds(item: DType, x: Any) -> bool:
    """Return whether a dtype represents a number exactly; True for values other than numbers."""
    if not isinstance(x, int | float) or isinstance(x, bool):
        return True
    with np.errstate(all="ignore"):
        return bool(np.asarray(x, np.float64).astype(item.numpy).astype(np.float64) == x) or math.isnan(x)


def _common_type(operands: Sequence[Any]) -> Any:
    forms = [without_elements(x) for x in operands if isinstance(x, Tensor | int | float)]
    return torch.result_type(forms[0], forms[1]) if len(forms) == 2 else forms[0].dtype


def _compute_type(rule: Rule, out: DType, common: Any, arguments: Sequence[Any]) -> DType:
    """Return the dtype that operands are cast to; ``common`` is PyTorch's common dtype of all operands.

    Narrow floats are also computed in f32 if they cannot represent a number of the program exactly.
    """
    if rule.compute_in == "operands" and common is not None:
        return machine_type(common)
    return F32 if out.is_float and (rule.compute_in == "f32" or not all(_holds(out, x) for x in arguments)) else out


def _nearest(x: Any, item: DType) -> Any:
    """Round a float to the nearest number of a float dtype. Return other values unchanged."""
    return float(np.float32(x).astype(item.numpy)) if isinstance(x, float) and item.is_float else x


def wrapped(x: Any, item: DType) -> Any:
    """Wrap an integer to the range of an integer dtype, as PyTorch's arithmetic does. Return other values unchanged."""
    if item.is_float or not isinstance(x, int) or isinstance(x, bool):
        return x
    limits, numbers = np.iinfo(item.numpy), 1 << 8 * item.itemsize
    return (x - int(limits.min)) % numbers + int(limits.min)


def as_element(x: Any, item: DType) -> Any:
    """Convert a number to an integer dtype, for operators that require a number to fit.

    Floats are truncated. Unsigned dtypes wrap negative numbers.
    """
    if item.is_float or not isinstance(x, int | float):
        return x
    x, limits = int(x), np.iinfo(item.numpy)
    return wrapped(x, item) if limits.min == 0 and abs(x) <= limits.max else x


# computations of the operators


def _call(name: str) -> Body:
    return lambda tl, *operands: tl.elementwise(name, *operands)


def _one(name: str) -> Rule:
    return Rule(_call(name), "result")


def _scaled(name: str) -> Body:
    def body(tl: Any, a: Any, b: Any, alpha: Any = 1) -> Any:
        return tl.elementwise(name, a, b if alpha == 1 else b * alpha)

    return body


def _flipped_sub(tl: Any, a: Any, b: Any, alpha: Any = 1) -> Any:
    return tl.elementwise("sub", b, a if alpha == 1 else a * alpha)


def _divide(tl: Any, a: Any, b: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode == "floor":
        return _floor_divide(tl, _in_f32(tl, a), _in_f32(tl, b))
    quotient = tl.elementwise("div", a, b)
    return tl.elementwise("trunc", quotient) if rounding_mode == "trunc" and quotient.dtype.is_float else quotient


def _in_f32(tl: Any, x: Any) -> Any:
    return x if isinstance(x, int | float) or not x.dtype.is_float else tl.cast(x, F32)


def _floor_divide(tl: Any, a: Any, b: Any) -> Any:
    """Divide and round down, as PyTorch does; the quotient of a float by 0 is not rounded."""
    quotient = tl.elementwise("div", a, b)
    if quotient.dtype.is_float:
        return _floor_divide_floats(tl, a, b, quotient)
    rest = tl.elementwise("sub", a, quotient * b)
    return quotient - tl.cast(_is_against(tl, rest, b), quotient.dtype)


def _floor_divide_floats(tl: Any, a: Any, b: Any, quotient: Any) -> Any:
    if isinstance(b, int | float) and b == 0:
        return quotient
    rest = tl.elementwise("rem", a, b)
    exact = tl.elementwise("sub", a, rest) / b
    exact = exact - tl.cast(_is_against(tl, rest, b), exact.dtype)
    whole = tl.floor(exact)
    whole = whole + tl.cast(exact - whole > 0.5, whole.dtype)
    return whole if isinstance(b, int | float) else tl.where(tl.elementwise("eq", b, 0), quotient, whole)


def _is_against(tl: Any, rest: Any, b: Any) -> Any:
    """Return a mask of the elements whose remainder is not 0 and differs in sign from the divisor."""
    against = tl.elementwise("ne", tl.elementwise("lt", rest, 0), _negative(tl, b))
    return tl.elementwise("and", tl.elementwise("ne", rest, 0), against)


def _negative(tl: Any, b: Any) -> Any:
    return int(b < 0) if isinstance(b, int | float) else tl.elementwise("lt", b, 0)


def _remainder(tl: Any, a: Any, b: Any) -> Any:
    """Return the remainder of ``a``, with the sign of ``b``."""
    rest = tl.elementwise("rem", a, b)
    if not rest.dtype.is_float:
        return tl.elementwise("sub", a, _floor_divide(tl, a, b) * b)
    return tl.where(_is_against(tl, rest, b), rest + b, rest)


def _power(tl: Any, x: Any, exponent: Any) -> Any:
    powers = {
        0: lambda: tl.full(x.shape, 1, x.dtype),
        1: lambda: x,
        2: lambda: x * x,
        3: lambda: x * x * x,
        0.5: lambda: tl.sqrt(x),
        -0.5: lambda: tl.rsqrt(x),
        -1: lambda: tl.elementwise("recip", x),
    }
    quick = powers.get(exponent) if isinstance(exponent, int | float) else None
    return quick() if quick else tl.elementwise("pow", x, exponent)


_ROOT_HALF = math.sqrt(0.5)
_TO_NORMAL = 1 / math.sqrt(2 * math.pi)


def _gelu(tl: Any, x: Any, approximate: str = "none") -> Any:
    if approximate == "tanh":
        return tl.gelu(x)
    return x * 0.5 * (tl.erf(x * _ROOT_HALF) + 1.0)


def _gelu_backward(tl: Any, grad: Any, x: Any, approximate: str = "none") -> Any:
    if approximate == "tanh":
        root, cube = math.sqrt(2 / math.pi), 0.044715
        t = tl.tanh((x + x * x * x * cube) * root)
        slope = (1.0 - t * t) * ((x * x * (3 * cube) + 1.0) * root)
        return grad * ((t + 1.0) * 0.5 + x * slope * 0.5)
    cdf = (tl.erf(x * _ROOT_HALF) + 1.0) * 0.5
    return grad * (cdf + x * tl.exp(x * x * -0.5) * _TO_NORMAL)


def _silu_backward(tl: Any, grad: Any, x: Any) -> Any:
    s = tl.sigmoid(x)
    return grad * s * (x * (1.0 - s) + 1.0)


def _softplus(tl: Any, x: Any, beta: float = 1, threshold: float = 20) -> Any:
    scaled = x * beta
    return tl.where(scaled > threshold, x, tl.elementwise("log1p", tl.exp(tl.minimum(scaled, threshold))) / beta)


def _softplus_backward(tl: Any, grad: Any, x: Any, beta: float, threshold: float) -> Any:
    return tl.where(x * beta > threshold, grad, grad * tl.sigmoid(x * beta))


def _clamp(tl: Any, x: Any, min: Any = None, max: Any = None) -> Any:  # noqa: A002 - PyTorch's names
    x = x if min is None else tl.maximum(x, min)
    return x if max is None else tl.minimum(x, max)


def _elu(tl: Any, x: Any, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Any:
    return tl.where(x > 0, x * scale, tl.elementwise("expm1", x * input_scale) * (alpha * scale))


def _hardsigmoid(tl: Any, x: Any) -> Any:
    return tl.clamp(x + 3.0, 0.0, 6.0) / 6.0


def _round(tl: Any, x: Any, decimals: int = 0) -> Any:
    if decimals == 0:
        return tl.elementwise("rint", x)
    scale = float(10 ** abs(decimals))
    wide = tl.cast(x, F32)
    found = tl.elementwise("rint", wide * scale if decimals > 0 else wide / scale)
    return found / scale if decimals > 0 else found * scale


def _sign(tl: Any, x: Any) -> Any:
    return tl.cast(x > 0, x.dtype) - tl.cast(x < 0, x.dtype)


def _lerp(tl: Any, start: Any, end: Any, weight: Any) -> Any:
    """Interpolate from ``start`` if the magnitude of the weight is below 0.5, else from ``end``."""
    if isinstance(weight, int | float):
        span = end - start
        return start + span * weight if abs(weight) < 0.5 else end - span * (1 - weight)
    span = end - start
    return tl.where(tl.abs(weight) < 0.5, start + span * weight, end - span * (1.0 - weight))


def _addcmul(tl: Any, x: Any, a: Any, b: Any, value: Any = 1) -> Any:  # noqa: ARG001 - as all rules
    return x + (a * b if value == 1 else a * b * value)


def _addcdiv(tl: Any, x: Any, a: Any, b: Any, value: Any = 1) -> Any:  # noqa: ARG001 - as all rules
    return x + (a / b if value == 1 else a / b * value)


def _where(tl: Any, condition: Any, a: Any, b: Any) -> Any:
    if isinstance(a, int | float) and isinstance(b, int | float):
        is_whole = isinstance(a, int) and isinstance(b, int)
        a = tl.full((1,) * len(condition.shape), a, I64) if is_whole else tl.cast(condition, F32) * 0.0 + a
    return tl.where(condition, a, b)


def _masked_fill(tl: Any, x: Any, mask: Any, number: Any) -> Any:
    return tl.where(mask, number, x)


def _threshold_backward(tl: Any, grad: Any, x: Any, threshold: Any) -> Any:
    return tl.where(x <= threshold, 0, grad)


def _shrink(tl: Any, x: Any, lambd: float = 0.5) -> Any:
    return tl.where(tl.abs(x) <= lambd, 0.0, x)


def _shrink_backward(tl: Any, grad: Any, x: Any, lambd: float) -> Any:
    return tl.where(tl.abs(x) <= lambd, 0.0, grad)


def _not(tl: Any, x: Any) -> Any:
    return tl.elementwise("eq", x, 0)


def _logical(name: str) -> Body:
    def body(tl: Any, a: Any, b: Any) -> Any:
        return tl.elementwise(name, _truth(tl, a), _truth(tl, b))

    return body


def _truth(tl: Any, x: Any) -> Any:
    return int(bool(x)) if isinstance(x, int | float) else tl.elementwise("ne", x, 0)


def identity(tl: Any, x: Any) -> Any:  # noqa: ARG001 - a rule's body
    """Return ``x``."""
    return x


def to_whole(tl: Any, x: Any) -> Any:
    """Truncate floats to 64-bit integers, as PyTorch does before it wraps them to unsigned bytes."""
    return tl.cast(x, I64)


def to_bool(tl: Any, x: Any) -> Any:
    """Return 1 for every element that is not 0."""
    return tl.elementwise("ne", x, 0)


_SINGLE_F32 = [
    "exp",
    "exp2",
    "log",
    "log2",
    "log10",
    "log1p",
    "expm1",
    "sqrt",
    "rsqrt",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "asinh",
    "acosh",
    "atanh",
    "tanh",
    "sigmoid",
    "silu",
    "erf",
    "erfc",
    "erfinv",
    "lgamma",
]

RULES: MappingProxyType[str, Rule] = MappingProxyType(
    {name: _one(name) for name in (*_SINGLE_F32, "neg", "abs", "relu", "floor", "ceil", "trunc")}
    | {
        "add": Rule(_scaled("add"), "result"),
        "sub": Rule(_scaled("sub"), "result"),
        "rsub": Rule(_flipped_sub, "result"),
        "mul": _one("mul"),
        "div": Rule(_divide, "result"),
        "floor_divide": Rule(_floor_divide),
        "remainder": Rule(_remainder),
        "fmod": _one("rem"),
        "pow": Rule(_power),
        "square": Rule(lambda tl, x: x * x, "result"),  # noqa: ARG005  # noqa: ARG005
        "reciprocal": _one("recip"),
        "round": Rule(_round, "result"),
        "sign": Rule(_sign),
        "maximum": _one("maximum"),
        "minimum": _one("minimum"),
        "fmax": _one("fmax"),
        "fmin": _one("fmin"),
        "atan2": _one("atan2"),
        "hypot": _one("hypot"),
        "copysign": _one("copysign"),
        "clamp": Rule(_clamp, "result"),
        "clamp_min": Rule(lambda tl, x, low: tl.maximum(x, low), "result"),
        "clamp_max": Rule(lambda tl, x, high: tl.minimum(x, high), "result"),
        "hardtanh": Rule(lambda tl, x, low=-1, high=1: tl.clamp(x, low, high), "result"),
        "gelu": Rule(_gelu),
        "gelu_backward": Rule(_gelu_backward),
        "silu_backward": Rule(_silu_backward),
        "sigmoid_backward": Rule(lambda tl, grad, y: grad * y * (1.0 - y)),  # noqa: ARG005  # noqa: ARG005
        "tanh_backward": Rule(lambda tl, grad, y: grad * (1.0 - y * y)),  # noqa: ARG005  # noqa: ARG005
        "threshold_backward": Rule(_threshold_backward),
        "hardsigmoid": Rule(_hardsigmoid),
        "hardswish": Rule(lambda tl, x: x * _hardsigmoid(tl, x)),
        "leaky_relu": Rule(lambda tl, x, slope=0.01: tl.where(x > 0, x, x * slope)),
        "leaky_relu_backward": Rule(lambda tl, grad, x, slope, _=False: tl.where(x > 0, grad, grad * slope)),
        "elu": Rule(_elu),
        "softplus": Rule(_softplus),
        "softplus_backward": Rule(_softplus_backward),
        "mish": Rule(lambda tl, x: x * tl.tanh(_softplus(tl, x))),
        "lerp": Rule(_lerp),
        "addcmul": Rule(_addcmul),
        "addcdiv": Rule(_addcdiv),
        "where": Rule(_where, "result", (0,)),
        "masked_fill": Rule(_masked_fill, "result", (1,)),
        "hardshrink": Rule(_shrink),
        "hardshrink_backward": Rule(_shrink_backward),
        "softshrink_backward": Rule(_shrink_backward),
        "signbit": Rule(_call("signbit"), "operands"),
        "isnan": Rule(_call("isnan"), "operands"),
        "isinf": Rule(_call("isinf"), "operands"),
        "isfinite": Rule(_call("isfinite"), "operands"),
        "logical_not": Rule(_not, "operands"),
        "logical_and": Rule(_logical("and"), "operands"),
        "logical_or": Rule(_logical("or"), "operands"),
        "logical_xor": Rule(_logical("xor"), "operands"),
        "bitwise_and": _one("and"),
        "bitwise_or": _one("or"),
        "bitwise_xor": _one("xor"),
        "bitwise_left_shift": _one("shl"),
        "bitwise_right_shift": _one("shr"),
        "__lshift__": _one("shl"),
        "__rshift__": _one("shr"),
        "__and__": _one("and"),
        "__or__": _one("or"),
        "__xor__": _one("xor"),
        "bitwise_not": Rule(_call("not"), "result"),
    }
    | {name: Rule(_call(name), "operands") for name in ("eq", "ne", "lt", "le", "gt", "ge")}
)
"""Rules by operator name. In-place and ``out`` variants have the same rule."""

_OF_BOOLS: Mapping[str, Body] = MappingProxyType(
    {"add": _call("or"), "mul": _call("and"), "bitwise_not": _not, "sub": _call("xor")}
)
"""Computations that differ for truth values, which are stored as bytes of 0 and 1."""
_CHECKED = frozenset(("clamp", "clamp_min", "clamp_max", "hardtanh", "masked_fill", "pow", "where"))
"""Operators whose numbers must fit the dtype of their tensors; numbers of other operators wrap."""
_ROUNDING = frozenset(("fmod", "remainder"))
"""Operators whose numbers are first rounded to the dtype of their tensors; other operators use them exactly."""
_OTHER_MEANINGS = frozenset(["where.default"])


def rule_of(name: str, overload: str) -> Rule | None:
    """Return the rule of an operator, named without its trailing underscore, or None."""
    return None if f"{name}.{overload}" in _OTHER_MEANINGS else RULES.get(name)
