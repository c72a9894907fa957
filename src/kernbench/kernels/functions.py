"""Functions of elements, as operations of elementwise programs compute them.

A function takes ``tl``, then its operands. An operand is a handle, or a number of the program. Handles have one type,
in which the function computes; flags of 0 and 1 are the exception.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from kernbench.common.dtypes import F32, I64, DType
from kernbench.triton_emu.handles import Handle, Number
from kernbench.triton_emu.tl_context import TLContext

ElementFunction: TypeAlias = Callable[..., Handle]
"""``function(tl, *operands, **options)``"""
ElementOperand: TypeAlias = Handle | Number
"""An operand: the elements of an array, or a number"""

_ROOT_HALF = math.sqrt(0.5)
_TO_NORMAL = 1 / math.sqrt(2 * math.pi)


def call(name: str) -> ElementFunction:
    """Return the function that is the elementwise operator ``name`` of ``tl``."""
    return lambda tl, *operands: tl.elementwise(name, *operands)


def identity(tl: TLContext, x: Handle) -> Handle:  # noqa: ARG001 - a function of elements
    """Return ``x``."""
    return x


def cast(tl: TLContext, x: Handle, dtype: DType) -> Handle:
    """Convert ``x`` to ``dtype``."""
    return tl.cast(x, dtype)


def fill(tl: TLContext, number: Number, dtype: DType) -> Handle:
    """Return an element of the value ``number``."""
    return tl.full((1,), number, dtype)


def to_whole(tl: TLContext, x: Handle) -> Handle:
    """Truncate floats to 64-bit integers, as PyTorch does before it wraps them to unsigned bytes."""
    return tl.cast(x, I64)


def to_bool(tl: TLContext, x: Handle) -> Handle:
    """Return 1 for every element that is not 0."""
    return tl.elementwise("ne", x, 0)


def logical_not(tl: TLContext, x: Handle) -> Handle:
    """Return 1 for every element that is 0."""
    return tl.elementwise("eq", x, 0)


def logical(name: str) -> ElementFunction:
    """Return the bit operator ``name`` of truth values."""

    def combine(tl: TLContext, a: ElementOperand, b: ElementOperand) -> Handle:
        return tl.elementwise(name, _truth(tl, a), _truth(tl, b))

    return combine


def _truth(tl: TLContext, x: ElementOperand) -> ElementOperand:
    return to_bool(tl, x) if isinstance(x, Handle) else int(bool(x))


def alike_number(function: ElementFunction, number: object) -> object:
    """Return a value that is equal for floats with which ``function`` computes by the same operations.

    Functions compare floats with 0 and 1 only, except those in ``_BY_VALUE``.
    """
    if not isinstance(number, float) or not math.isfinite(number) or function in _BY_VALUE:
        return number
    return "a number", number > 0, number in (0, 1)


# arithmetic


def scaled(name: str) -> ElementFunction:
    """Return ``a + alpha b`` for the operator ``name`` add, and so on."""

    def combine(tl: TLContext, a: ElementOperand, b: ElementOperand, alpha: Number = 1) -> Handle:
        return tl.elementwise(name, a, b if alpha == 1 else b * alpha)

    return combine


def flipped_sub(tl: TLContext, a: ElementOperand, b: ElementOperand, alpha: Number = 1) -> Handle:
    """Compute ``b - alpha a``."""
    return tl.elementwise("sub", b, a if alpha == 1 else a * alpha)


def divide(tl: TLContext, a: ElementOperand, b: ElementOperand, rounding_mode: str | None = None) -> Handle:
    """Compute ``a / b``; ``rounding_mode`` is None, floor or trunc."""
    if rounding_mode == "floor":
        return floor_divide(tl, _in_f32(tl, a), _in_f32(tl, b))
    quotient = tl.elementwise("div", a, b)
    return tl.elementwise("trunc", quotient) if rounding_mode == "trunc" and quotient.dtype.is_float else quotient


def _in_f32(tl: TLContext, x: ElementOperand) -> ElementOperand:
    return tl.cast(x, F32) if isinstance(x, Handle) and x.dtype.is_float else x


def floor_divide(tl: TLContext, a: ElementOperand, b: ElementOperand) -> Handle:
    """Divide and round down, as PyTorch does; the quotient of a float by 0 is not rounded."""
    quotient = tl.elementwise("div", a, b)
    if quotient.dtype.is_float:
        return _floor_divide_floats(tl, a, b, quotient)
    rest = tl.elementwise("sub", a, quotient * b)
    return quotient - tl.cast(_is_against(tl, rest, b), quotient.dtype)


def _floor_divide_floats(tl: TLContext, a: ElementOperand, b: ElementOperand, quotient: Handle) -> Handle:
    if not isinstance(b, Handle) and b == 0:
        return quotient
    rest = tl.elementwise("rem", a, b)
    exact = tl.elementwise("sub", a, rest) / b
    exact = exact - tl.cast(_is_against(tl, rest, b), exact.dtype)
    floor = tl.floor(exact)
    floor = floor + tl.cast(exact - floor > 0.5, floor.dtype)
    return tl.where(tl.elementwise("eq", b, 0), quotient, floor) if isinstance(b, Handle) else floor


def _is_against(tl: TLContext, rest: Handle, b: ElementOperand) -> Handle:
    """Return a mask of the elements whose remainder is not 0 and differs in sign from the divisor."""
    below = tl.elementwise("lt", rest, 0)
    against = tl.elementwise("ne", below, tl.elementwise("lt", b, 0) if isinstance(b, Handle) else int(b < 0))
    return tl.elementwise("and", tl.elementwise("ne", rest, 0), against)


def remainder(tl: TLContext, a: ElementOperand, b: ElementOperand) -> Handle:
    """Return the remainder of ``a``, with the sign of ``b``."""
    rest = tl.elementwise("rem", a, b)
    if not rest.dtype.is_float:
        return tl.elementwise("sub", a, floor_divide(tl, a, b) * b)
    return tl.where(_is_against(tl, rest, b), rest + b, rest)


def power(tl: TLContext, x: ElementOperand, exponent: ElementOperand) -> Handle:
    """Compute ``x ** exponent``, for some exponents by quicker operators."""
    if isinstance(x, Handle) and not isinstance(exponent, Handle):
        powers: dict[float, Callable[[], Handle]] = {
            0: lambda: tl.full(x.shape, 1, x.dtype),
            1: lambda: x,
            2: lambda: x * x,
            3: lambda: x * x * x,
            0.5: lambda: tl.sqrt(x),
            -0.5: lambda: tl.rsqrt(x),
            -1: lambda: tl.elementwise("recip", x),
        }
        if exponent in powers:
            return powers[exponent]()
    return tl.elementwise("pow", x, exponent)


def square(tl: TLContext, x: Handle) -> Handle:  # noqa: ARG001 - a function of elements
    """Compute ``x * x``."""
    return x * x


def round_even(tl: TLContext, x: Handle, decimals: int = 0) -> Handle:
    """Round to ``decimals`` digits after the point, and halves to the even digit."""
    if decimals == 0:
        return tl.elementwise("rint", x)
    scale = float(10 ** abs(decimals))
    wide = tl.cast(x, F32)
    rounded = tl.elementwise("rint", wide * scale if decimals > 0 else wide / scale)
    return rounded / scale if decimals > 0 else rounded * scale


def sign(tl: TLContext, x: Handle) -> Handle:
    """Return 1, 0 or -1."""
    return tl.cast(x > 0, x.dtype) - tl.cast(x < 0, x.dtype)


def lerp(tl: TLContext, start: Handle, end: Handle, weight: ElementOperand) -> Handle:
    """Interpolate from ``start`` if the magnitude of the weight is below 0.5, else from ``end``."""
    span = end - start
    if not isinstance(weight, Handle):
        return start + span * weight if abs(weight) < 0.5 else end - span * (1 - weight)
    return tl.where(tl.abs(weight) < 0.5, start + span * weight, end - span * (1.0 - weight))


def addcmul(tl: TLContext, x: Handle, a: ElementOperand, b: ElementOperand, value: Number = 1) -> Handle:  # noqa: ARG001 - as above
    """Compute ``x + value a b``."""
    return x + (a * b if value == 1 else a * b * value)


def addcdiv(tl: TLContext, x: Handle, a: ElementOperand, b: ElementOperand, value: Number = 1) -> Handle:  # noqa: ARG001 - as above
    """Compute ``x + value a / b``."""
    return x + (a / b if value == 1 else a / b * value)


# limits and choices


def clamp(tl: TLContext, x: Handle, min: ElementOperand | None = None, max: ElementOperand | None = None) -> Handle:  # noqa: A002 - PyTorch's names
    """Limit ``x`` to at least ``min`` and at most ``max``."""
    x = x if min is None else tl.maximum(x, min)
    return x if max is None else tl.minimum(x, max)


def hardtanh(tl: TLContext, x: Handle, low: Number = -1, high: Number = 1) -> Handle:
    """Limit ``x`` to the range from ``low`` to ``high``."""
    return tl.clamp(x, low, high)


def where(tl: TLContext, condition: Handle, a: ElementOperand, b: ElementOperand) -> Handle:
    """Return ``a`` where ``condition`` is not 0, else ``b``."""
    if not isinstance(a, Handle) and not isinstance(b, Handle):
        if isinstance(a, int) and isinstance(b, int):
            a = tl.full((1,) * len(condition.shape), a, I64)
        else:
            a = tl.cast(condition, F32) * 0.0 + a
    return tl.where(condition, a, b)


def masked_fill(tl: TLContext, x: Handle, mask: Handle, number: ElementOperand) -> Handle:
    """Return ``number`` where ``mask`` is not 0, else ``x``."""
    return tl.where(mask, number, x)


def threshold_backward(tl: TLContext, grad: Handle, x: Handle, threshold: Number) -> Handle:
    """Return ``grad`` where ``x`` is above the threshold, else 0."""
    return tl.where(x <= threshold, 0, grad)


def hardshrink(tl: TLContext, x: Handle, lambd: Number = 0.5) -> Handle:
    """Return ``x``, or 0 where its magnitude is at most ``lambd``."""
    return tl.where(tl.abs(x) <= lambd, 0.0, x)


def shrink_backward(tl: TLContext, grad: Handle, x: Handle, lambd: Number) -> Handle:
    """Return ``grad``, or 0 where the magnitude of ``x`` is at most ``lambd``."""
    return tl.where(tl.abs(x) <= lambd, 0.0, grad)


# activations


def gelu(tl: TLContext, x: Handle, approximate: str = "none") -> Handle:
    """Compute GELU, exactly or in its ``tanh`` form."""
    if approximate == "tanh":
        return tl.gelu(x)
    return x * 0.5 * (tl.erf(x * _ROOT_HALF) + 1.0)


def gelu_backward(tl: TLContext, grad: Handle, x: Handle, approximate: str = "none") -> Handle:
    """Compute the gradient of GELU at ``x``."""
    if approximate == "tanh":
        root, cube = math.sqrt(2 / math.pi), 0.044715
        t = tl.tanh((x + x * x * x * cube) * root)
        slope = (1.0 - t * t) * ((x * x * (3 * cube) + 1.0) * root)
        return grad * ((t + 1.0) * 0.5 + x * slope * 0.5)
    cdf = (tl.erf(x * _ROOT_HALF) + 1.0) * 0.5
    return grad * (cdf + x * tl.exp(x * x * -0.5) * _TO_NORMAL)


def silu_backward(tl: TLContext, grad: Handle, x: Handle) -> Handle:
    """Compute the gradient of SiLU at ``x``."""
    s = tl.sigmoid(x)
    return grad * s * (x * (1.0 - s) + 1.0)


def sigmoid_backward(tl: TLContext, grad: Handle, y: Handle) -> Handle:  # noqa: ARG001 - a function of elements
    """Compute the gradient of the sigmoid, whose value is ``y``."""
    return grad * y * (1.0 - y)


def tanh_backward(tl: TLContext, grad: Handle, y: Handle) -> Handle:  # noqa: ARG001 - a function of elements
    """Compute the gradient of the hyperbolic tangent, whose value is ``y``."""
    return grad * (1.0 - y * y)


def hardsigmoid(tl: TLContext, x: Handle) -> Handle:
    """Compute the sigmoid by straight lines."""
    return tl.clamp(x + 3.0, 0.0, 6.0) / 6.0


def hardswish(tl: TLContext, x: Handle) -> Handle:
    """Compute ``x hardsigmoid(x)``."""
    return x * hardsigmoid(tl, x)


def leaky_relu(tl: TLContext, x: Handle, slope: Number = 0.01) -> Handle:
    """Return ``x``, times ``slope`` where it is negative."""
    return tl.where(x > 0, x, x * slope)


def leaky_relu_backward(tl: TLContext, grad: Handle, x: Handle, slope: Number, _: bool = False) -> Handle:
    """Compute the gradient of ``leaky_relu`` at ``x``."""
    return tl.where(x > 0, grad, grad * slope)


def elu(tl: TLContext, x: Handle, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Handle:
    """Compute the exponential linear unit."""
    return tl.where(x > 0, x * scale, tl.elementwise("expm1", x * input_scale) * (alpha * scale))


def softplus(tl: TLContext, x: Handle, beta: float = 1, threshold: float = 20) -> Handle:
    """Compute ``log(1 + exp(beta x)) / beta``; return ``x`` where ``beta x`` is above the threshold."""
    exponent = x * beta
    return tl.where(exponent > threshold, x, tl.elementwise("log1p", tl.exp(tl.minimum(exponent, threshold))) / beta)


def softplus_backward(tl: TLContext, grad: Handle, x: Handle, beta: float, threshold: float) -> Handle:
    """Compute the gradient of ``softplus`` at ``x``."""
    return tl.where(x * beta > threshold, grad, grad * tl.sigmoid(x * beta))


def mish(tl: TLContext, x: Handle) -> Handle:
    """Compute ``x tanh(softplus(x))``."""
    return x * tl.tanh(softplus(tl, x))


def scale_passed(tl: TLContext, x: Handle, is_passed: Handle, *, scale: float) -> Handle:
    """Multiply elements by ``scale`` where ``is_passed`` is not 0, and by 0 elsewhere."""
    return x * tl.where(is_passed, tl.full((1,) * len(is_passed.shape), scale, F32), 0.0)


_BY_VALUE = frozenset((power, lerp, round_even))
"""Functions whose operations depend on the value of a number"""
