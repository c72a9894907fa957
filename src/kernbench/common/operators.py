"""The table of the machine's operators, for phase 2 and for the mock runtime of collectives.

On floats, operators compute in f32 and round once, to nearest even, to the output type. On integers, they compute
exactly in 64 bits and wrap to the output type. An operator without an integer form (``exp``) computes in f32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import pi, sqrt
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import numpy as np

from kernbench.common.dtypes import BF16, F8E4M3, F16, F32, I8, I32, Array, DType
from kernbench.common.errors import KernelError, UnknownNameError
from kernbench.common.special import BINARY, ENERGY_CLASSES, TESTS, UNARY, EnergyClass
from kernbench.common.values import value

PlainNumber: TypeAlias = int | float
OperatorKind: TypeAlias = Literal[
    "unary", "binary", "compare", "bits", "ternary", "where", "scan", "reduce", "move", "fill", "dot"
]
EpilogueStep: TypeAlias = tuple[str] | tuple[str, Array | PlainNumber]

ACCUMULATORS = (F32, F16, BF16)
"""The types of accumulators."""

_F32 = np.dtype(np.float32)
_F64 = np.dtype(np.float64)
_I64 = np.dtype(np.int64)
_U64 = np.dtype(np.uint64)
_INTEGERS = "iu"
"""NumPy's kinds of whole numbers."""
_MOST_SHIFTED = 63
_GELU_SCALE = 2 * sqrt(2 / pi)
_GELU_CUBE = 0.044715
_LARGEST_F8E4M3 = 448.0
# If accumulators are narrower than f32, sums are rounded after this many elements of K, which is the K of a tile.
_NARROW_ACC_K = 64


@value(kw_only=True)
class Attributes:
    """The arguments of an operator other than its operands.

    Reductions, softmax and cumsum have ``axis``, transpositions have the permutation ``perm``, and a dot has
    ``trans_a`` and ``trans_b``. ``pattern`` holds the bytes that a fill repeats, or the bytes of a constant.
    """

    axis: int | None = None
    perm: tuple[int, ...] | None = None
    trans_a: bool = False
    trans_b: bool = False
    pattern: bytes | None = None


PLAIN = Attributes()


@value
class Operator:
    """An operator: ``fn`` computes on f32 or f64 arrays, ``integer`` on 64-bit integers.

    With ``integer`` None, ``fn`` computes on integers too, converted to f32. ``makes`` is the type of the results for
    any operands; None: the type of the operands. ``energy_class``: the kind of work per element, which decides its
    energy.
    """

    name: str
    arity: int
    kind: OperatorKind
    energy_class: EnergyClass
    fn: Callable[..., Any]
    integer: Callable[..., Any] | None = None
    makes: DType | None = None

    def result_dtype(self, *operands: DType) -> DType:
        """Return the default type of the result; ``operands`` are the types of all operands, in order."""
        if self.makes is not None:
            return self.makes
        if self.kind == "dot" and operands[0] is I8:
            return I32
        return operands[1] if self.kind == "where" else operands[0]


def operator(name: str) -> Operator:
    """Return the operator called ``name``. Raises UnknownNameError, which lists the names."""
    op = OPERATORS.get(name)
    if op is None:
        raise UnknownNameError("operator", name, tuple(OPERATORS))
    return op


def passes(name: str, n: int) -> int:
    """Return the number of passes of the MATH engine over an operator's bytes, along an axis of ``n`` elements.

    A sort needs a pass for each of the L (L + 1) / 2 steps of a sorting network, where L is log2(n), rounded up. Every
    other operator needs one pass.
    """
    if name not in SORTS:
        return 1
    levels = (n - 1).bit_length()
    return max(1, levels * (levels + 1) // 2)


def single(name: str, operands: int) -> Callable[..., Any] | None:
    """Return the function that computes operator ``name`` element by element on ``operands`` f32 arrays.

    The result of the function is f32. Return None if there is no such function.
    """
    op = OPERATORS.get(name)
    return op.fn if op is not None and op.arity == operands and op.kind in _SINGLE else None


def evaluate(
    op: Operator,
    args: Sequence[Array | PlainNumber],
    out: DType,
    shape: tuple[int, ...] | None = None,
    attrs: Attributes = PLAIN,
    acc: DType = F32,
) -> Array:
    """Compute ``op`` on ``args`` to an array of type ``out``, without warnings.

    Operands broadcast as in NumPy; a number is converted to the type of the first array. ``shape`` is the shape of the
    result of ``broadcast``, ``full``, ``iota``, ``zeros`` and ``constant``. ``acc`` (f32, f16, bf16) is the type of
    sums. The result of ``copy``, ``cast``, ``trans`` and ``broadcast`` may share memory with the operand. Raises
    KernelError for a wrong number of operands, and ValueError for shapes that do not fit.
    """
    with np.errstate(all="ignore"):
        return compute(op, args, out, shape, attrs, acc)


def compute(
    op: Operator,
    args: Sequence[Array | PlainNumber],
    out: DType,
    shape: tuple[int, ...] | None = None,
    attrs: Attributes = PLAIN,
    acc: DType = F32,
) -> Array:
    """Compute as ``evaluate`` does, for callers inside ``np.errstate(all="ignore")``."""
    if len(args) != op.arity and not (op.kind == "dot" and len(args) == 3):
        raise KernelError(f"{op.name} takes {op.arity} operands, not {len(args)}")
    kind = op.kind
    if kind in _ELEMENTWISE:
        fn, wide = op.fn, args
        for a in args:
            if not isinstance(a, np.ndarray) or a.dtype is not _F32:  # rare: usually all operands are f32
                wide, integer = _widen(args, out, op)
                fn = op.integer if integer and op.integer else op.fn
                break
        return narrow(fn(*wide), out)
    if kind == "dot":
        return narrow(accumulate(args, attrs, acc), out)
    if kind == "reduce":
        return narrow(_round_to(_along_axis(op, args, out, attrs.axis), acc), out)
    if kind == "scan":
        return narrow(_round_to(_along_axis(op, args, out, -1 if attrs.axis is None else attrs.axis), acc), out)
    if kind == "where":
        return narrow(_where(args, out), out)
    return narrow(op.fn(args, out, shape, attrs), out)


def gemm(
    args: Sequence[Array | PlainNumber],
    out: DType,
    epilogue: Sequence[EpilogueStep] = (),
    attrs: Attributes = PLAIN,
    acc: DType = F32,
) -> Array:
    """Compute a dot of ``args`` and an epilogue on its accumulators, rounded once to ``out``.

    Steps: ``("bias", x)``, ``("add", x)``, ``("scale", s)``, ``("scale_rows", x)``, ``("scale_columns", x)``,
    ``("relu",)``, ``("gelu",)``, ``("silu",)``. They compute in f32, and for integer operands in f64, which is exact.
    Call it inside ``np.errstate``. Raises UnknownNameError for
    another step, and KernelError for a missing operand.
    """
    value = accumulate(args, attrs, acc)
    if epilogue and value.dtype.kind in _INTEGERS:
        value = value.astype(_F64)
    for name, *operand in epilogue:
        op = EPILOGUE.get(name)
        if op is None:
            raise UnknownNameError("epilogue step", name, tuple(EPILOGUE))
        if len(operand) != op.arity - 1:
            raise KernelError(f"epilogue step {name!r} takes {op.arity - 1} operands, not {len(operand)}")
        value = op.fn(value, *(x.astype(value.dtype) if isinstance(x, np.ndarray) else x for x in operand))
    return narrow(value, out)


def accumulate(args: Sequence[Array | PlainNumber], attrs: Attributes = PLAIN, acc: DType = F32) -> Array:
    """Compute the accumulators of a dot of ``(a, b)`` or ``(a, b, acc)``: f32, or int64 for integers.

    Batch axes follow ``numpy.matmul``.
    """
    a, b = np.asarray(args[0]), np.asarray(args[1])
    a = np.swapaxes(a, -1, -2) if attrs.trans_a else a
    b = np.swapaxes(b, -1, -2) if attrs.trans_b else b
    value: Any = (
        _matmul_integer(a, b) if a.dtype.kind in _INTEGERS and b.dtype.kind in _INTEGERS else _matmul_float(a, b, acc)
    )
    if len(args) == 3:
        value = _round_to(value + np.asarray(args[2]).astype(value.dtype), acc)
    return np.asarray(value)


def narrow(value: Any, out: DType) -> Array:
    """Round ``value`` to ``out``.

    Floats round to nearest even. In f8e4m3, which has no infinity, numbers out of range saturate. From
    float to integer, values are truncated and saturated, and NaN becomes 0. Integers wrap to narrower integers.
    """
    target = out.numpy
    if value.dtype is target:
        return value if value.__class__ is np.ndarray else np.asarray(value)
    if target.kind in _INTEGERS and value.dtype.kind not in "iub":
        value = _saturate(value, target)
    elif out is F8E4M3:
        value = np.clip(value, -_LARGEST_F8E4M3, _LARGEST_F8E4M3)
    return np.asarray(value.astype(target, copy=False))


def _widen(args: Sequence[Array | PlainNumber], out: DType, op: Operator) -> tuple[list[Any], bool]:
    """Return the operands in the type in which the operator computes, and True if that is an integer type."""
    source = _source(args, out)
    integer = source.kind in _INTEGERS and op.integer is not None
    wide = (_U64 if source == _U64 else _I64) if integer else _F32
    return [_as(a, wide, source) for a in args], integer


def _source(args: Sequence[Array | PlainNumber], out: DType) -> Any:
    for a in args:
        if isinstance(a, np.ndarray):
            return a.dtype
    return out.numpy


def _as(value: Array | PlainNumber, wide: np.dtype[Any], source: np.dtype[Any]) -> Any:
    if isinstance(value, np.ndarray):
        return value if value.dtype is wide else value.astype(wide)
    if value.__class__ is float and source.kind == "f":  # equal to the last line, without temporary arrays
        return wide.type(source.type(value))
    return np.asarray(value).astype(source).astype(wide)


def _saturate(value: Any, target: np.dtype[Any]) -> Any:
    limits = np.iinfo(target)
    truncated = np.trunc(value.astype(_F64))
    # Values at the limits are replaced: f64 cannot represent the limits of 64-bit integers.
    high, low = truncated >= float(limits.max), truncated <= float(limits.min)
    inside = np.where(high | low | np.isnan(truncated), 0.0, truncated).astype(target)
    return np.where(high, limits.max, np.where(low, limits.min, inside)).astype(target, copy=False)


def _round_to(value: Any, acc: DType) -> Any:
    if acc is F32 or value.dtype.kind in _INTEGERS:
        return value
    return value.astype(acc.numpy).astype(_F32)


def _along_axis(op: Operator, args: Sequence[Array | PlainNumber], out: DType, axis: int | None) -> Any:
    (x,), integer = _widen(args, out, op)
    return (op.integer if integer and op.integer else op.fn)(x, axis)


def _where(args: Sequence[Array | PlainNumber], out: DType) -> Any:
    condition = np.asarray(args[0])
    if condition.dtype.kind == "V":
        condition = condition.astype(_F32)
    (a, b), _ = _widen(args[1:], out, OPERATORS["maximum"])
    return np.where(condition != 0, a, b)


def _matmul_integer(a: Array, b: Array) -> Any:
    if a.dtype == b.dtype == I8.numpy:
        # Products of two i8 are at most 2**14: sums of fewer than 2**39 are exact in f64, for which BLAS is fast.
        return np.matmul(a.astype(_F64), b.astype(_F64)).astype(_I64)
    return np.matmul(a.astype(_I64), b.astype(_I64))


def _matmul_float(a: Array, b: Array, acc: DType) -> Any:
    a = a if a.dtype is _F32 else a.astype(_F32)
    b = b if b.dtype is _F32 else b.astype(_F32)
    if acc is F32:
        return np.matmul(a, b)
    if acc not in ACCUMULATORS:
        raise UnknownNameError("accumulator dtype", acc.name, tuple(t.name for t in ACCUMULATORS))
    if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-2]:
        return _round_to(np.matmul(a, b), acc)
    total = np.float32(0)
    for k in range(0, max(a.shape[-1], 1), _NARROW_ACC_K):
        part = slice(k, k + _NARROW_ACC_K)
        total = _round_to(total + np.matmul(a[..., part], b[..., part, :]), acc)
    return total


def _divide_integers(a: Any, b: Any) -> Any:
    """Divide with rounding towards zero; x / 0 is 0."""
    divisor = np.where(b == 0, 1, b)
    quotient = a // divisor
    inexact = (a - quotient * divisor != 0) & ((a < 0) != (b < 0))
    return np.where(b == 0, 0, quotient + inexact.astype(quotient.dtype))


def _power_of_integers(base: Any, exponent: Any) -> Any:
    """Raise to a power by repeated squaring, modulo 2**64.

    A negative power is the inverse, truncated: 0 except for 1 and -1.
    """
    power, square, remaining = np.ones_like(base), base, np.maximum(exponent, 0)
    while remaining.any():
        power = np.where(remaining & 1, power * square, power)
        square, remaining = square * square, remaining >> 1
    odd = np.where(exponent & 1, base, power.dtype.type(1))
    inverse = np.where((base == 1) | (base == -1), odd, power.dtype.type(0))
    return np.where(exponent < 0, inverse, power)


def _sigmoid(x: Array) -> Any:
    return 1 / (1 + np.exp(-x))


def _gelu(x: Array) -> Any:
    # x/2 (1 + tanh u), u = sqrt(2/pi) (x + 0.044715 x^3), as x sigmoid(2u): the same without cancellation at x << 0.
    return x * _sigmoid(_GELU_SCALE * (x + _GELU_CUBE * x * x * x))


def _softmax(x: Array, axis: int) -> Any:
    e = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return e / np.sum(e, axis=axis, keepdims=True)


def _cumsum_reverse(x: Array, axis: int) -> Any:
    return np.flip(np.cumsum(np.flip(x, axis), axis), axis)


def _mean_of_integers(x: Array, axis: int | None) -> Any:
    count = x.size if axis is None else x.shape[axis]
    return _divide_integers(np.sum(x, axis), x.dtype.type(count))


def _cast(args: Sequence[Any], out: DType, shape: tuple[int, ...] | None, attrs: Attributes) -> Any:  # noqa: ARG001
    x = np.asarray(args[0])
    return x.astype(_F32) if x.dtype.kind == "V" and x.dtype is not out.numpy else x


def _trans(args: Sequence[Any], out: DType, shape: tuple[int, ...] | None, attrs: Attributes) -> Any:
    x = _cast(args, out, shape, attrs)
    if attrs.perm is not None:
        return np.transpose(x, attrs.perm)
    return np.swapaxes(x, -1, -2)


def _bitcast(args: Sequence[Any], out: DType, shape: tuple[int, ...] | None, attrs: Attributes) -> Any:  # noqa: ARG001
    return np.asarray(args[0]).view(out.numpy)


def _order(x: Array, axis: int) -> Any:
    return np.argsort(x, axis=axis, kind="stable")


def _order_down(x: Array, axis: int) -> Any:
    """Return the indices from the largest to the smallest element; equal elements stay in order."""
    backwards = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
    return x.shape[axis] - 1 - np.flip(backwards, axis)


def _take(args: Sequence[Any], out: DType, shape: tuple[int, ...] | None, attrs: Attributes) -> Any:
    return np.take_along_axis(_cast(args[:1], out, shape, attrs), np.asarray(args[1]).astype(_I64), -1)


def _broadcast(args: Sequence[Any], out: DType, shape: tuple[int, ...] | None, attrs: Attributes) -> Any:
    x = _cast(args, out, shape, attrs)
    return x if shape is None else np.broadcast_to(x, shape)


def _full(args: Sequence[Any], out: DType, shape: tuple[int, ...] | None, attrs: Attributes) -> Any:  # noqa: ARG001
    value = np.asarray(args[0]) if args else np.zeros((), _F32)
    return np.full(() if shape is None else shape, narrow(value, out), out.numpy)


def _iota(args: Sequence[Any], out: DType, shape: tuple[int, ...] | None, attrs: Attributes) -> Any:  # noqa: ARG001
    extent = () if shape is None else shape
    axis = -1 if attrs.axis is None else attrs.axis
    along = [1] * len(extent)
    along[axis] = extent[axis]
    return np.broadcast_to(np.arange(extent[axis]).reshape(along), extent).astype(out.numpy)


def _constant(args: Sequence[Any], out: DType, shape: tuple[int, ...] | None, attrs: Attributes) -> Any:  # noqa: ARG001
    assert attrs.pattern is not None
    return np.frombuffer(attrs.pattern, out.numpy).reshape(() if shape is None else shape)


def _same(x: Array) -> Array:
    return x


def _shift_left(x: Array, count: Array) -> Any:
    return np.where((count < 0) | (count > _MOST_SHIFTED), 0, np.left_shift(x, np.clip(count, 0, _MOST_SHIFTED)))


def _shift_right(x: Array, count: Array) -> Any:
    return np.right_shift(x, np.where((count < 0) | (count > _MOST_SHIFTED), _MOST_SHIFTED, count))


def _largest_number(x: Array, axis: int | None) -> Any:
    return np.fmax.reduce(x, axis)


def _smallest_number(x: Array, axis: int | None) -> Any:
    return np.fmin.reduce(x, axis)


def _place_of_largest_number(x: Array, axis: int | None) -> Any:
    return np.argmax(np.where(np.isnan(x), -np.inf, x), axis)


def _place_of_smallest_number(x: Array, axis: int | None) -> Any:
    return np.argmin(np.where(np.isnan(x), np.inf, x), axis)


_OF_INTEGERS: MappingProxyType[str, Callable[..., Any]] = MappingProxyType({"pow": _power_of_integers})
"""The integer forms of mathematical functions."""
_ROUNDINGS = frozenset(("trunc", "rint", "round"))
SORTS = frozenset(("argsort", "argsort_down"))
"""Operators that need several passes over their bytes: see ``passes``."""
_SINGLE = frozenset(("unary", "binary", "ternary"))
_ELEMENTWISE = _SINGLE | {"compare", "bits"}


def _of_arrays() -> tuple[Operator, ...]:
    """Return the operators along axes, and those that move, fill or multiply arrays."""
    return (
        Operator("where", 3, "where", "move", np.where),
        Operator("softmax", 1, "scan", "special", _softmax),
        Operator("cumsum", 1, "scan", "add", np.cumsum, np.cumsum),
        Operator("cumsum_reverse", 1, "scan", "add", _cumsum_reverse, _cumsum_reverse),
        Operator("sum", 1, "reduce", "add", np.sum, np.sum),
        Operator("max", 1, "reduce", "add", np.max, np.max),
        Operator("min", 1, "reduce", "add", np.min, np.min),
        Operator("argmax", 1, "reduce", "add", np.argmax, np.argmax, I32),
        Operator("argmin", 1, "reduce", "add", np.argmin, np.argmin, I32),
        Operator("nanmax", 1, "reduce", "add", _largest_number, np.max),
        Operator("nanmin", 1, "reduce", "add", _smallest_number, np.min),
        Operator("nanargmax", 1, "reduce", "add", _place_of_largest_number, np.argmax, I32),
        Operator("nanargmin", 1, "reduce", "add", _place_of_smallest_number, np.argmin, I32),
        Operator("mean", 1, "reduce", "add", np.mean, _mean_of_integers),
        Operator("argsort", 1, "scan", "add", _order, _order, I32),
        Operator("argsort_down", 1, "scan", "add", _order_down, _order_down, I32),
        Operator("take", 2, "move", "move", _take),
        Operator("copy", 1, "move", "move", _cast),
        Operator("cast", 1, "move", "move", _cast),
        Operator("bitcast", 1, "move", "move", _bitcast),
        Operator("trans", 1, "move", "move", _trans),
        Operator("broadcast", 1, "move", "move", _broadcast),
        Operator("full", 1, "fill", "move", _full),
        Operator("zeros", 0, "fill", "move", _full),
        Operator("iota", 0, "fill", "move", _iota),
        Operator("constant", 0, "fill", "move", _constant),
        Operator("dot", 2, "dot", "mul", np.matmul),
    )


def _table() -> tuple[Operator, ...]:
    return (
        Operator("exp", 1, "unary", "special", np.exp),
        Operator("log", 1, "unary", "special", np.log),
        Operator("sqrt", 1, "unary", "special", np.sqrt),
        Operator("rsqrt", 1, "unary", "special", lambda x: 1 / np.sqrt(x)),
        Operator("abs", 1, "unary", "add", np.abs, np.abs),
        Operator("neg", 1, "unary", "add", np.negative, np.negative),
        Operator("sigmoid", 1, "unary", "special", _sigmoid),
        Operator("tanh", 1, "unary", "special", np.tanh),
        Operator("sin", 1, "unary", "special", np.sin),
        Operator("cos", 1, "unary", "special", np.cos),
        Operator("relu", 1, "unary", "add", lambda x: np.maximum(x, 0), lambda x: np.maximum(x, 0)),
        Operator("gelu", 1, "unary", "special", _gelu),
        Operator("silu", 1, "unary", "special", lambda x: x * _sigmoid(x)),
        Operator("recip", 1, "unary", "special", lambda x: 1 / x, lambda x: _divide_integers(x.dtype.type(1), x)),
        Operator("exp2", 1, "unary", "special", np.exp2),
        Operator("log2", 1, "unary", "special", np.log2),
        Operator("floor", 1, "unary", "add", np.floor, _same),
        Operator("ceil", 1, "unary", "add", np.ceil, _same),
        *(
            Operator(name, 1, "unary", ENERGY_CLASSES[name], fn, _same if name in _ROUNDINGS else None)
            for name, fn in UNARY.items()
        ),
        *(Operator(name, 2, "binary", ENERGY_CLASSES[name], fn, _OF_INTEGERS.get(name)) for name, fn in BINARY.items()),
        *(Operator(name, 1, "compare", ENERGY_CLASSES[name], fn, None, I8) for name, fn in TESTS.items()),
        Operator("add", 2, "binary", "add", np.add, np.add),
        Operator("sub", 2, "binary", "add", np.subtract, np.subtract),
        Operator("mul", 2, "binary", "mul", np.multiply, np.multiply),
        Operator("scale", 2, "binary", "mul", np.multiply, np.multiply),
        Operator("div", 2, "binary", "special", np.divide, _divide_integers),
        Operator("rem", 2, "binary", "special", np.fmod, np.fmod),
        Operator("maximum", 2, "binary", "add", np.maximum, np.maximum),
        Operator("minimum", 2, "binary", "add", np.minimum, np.minimum),
        Operator("fmax", 2, "binary", "add", np.fmax, np.maximum),
        Operator("fmin", 2, "binary", "add", np.fmin, np.minimum),
        Operator("lt", 2, "compare", "add", np.less, np.less, I8),
        Operator("le", 2, "compare", "add", np.less_equal, np.less_equal, I8),
        Operator("gt", 2, "compare", "add", np.greater, np.greater, I8),
        Operator("ge", 2, "compare", "add", np.greater_equal, np.greater_equal, I8),
        Operator("eq", 2, "compare", "add", np.equal, np.equal, I8),
        Operator("ne", 2, "compare", "add", np.not_equal, np.not_equal, I8),
        Operator("and", 2, "bits", "add", np.bitwise_and, np.bitwise_and),
        Operator("or", 2, "bits", "add", np.bitwise_or, np.bitwise_or),
        Operator("xor", 2, "bits", "add", np.bitwise_xor, np.bitwise_xor),
        Operator("not", 1, "bits", "add", np.invert, np.invert),
        Operator("shl", 2, "bits", "add", _shift_left, _shift_left),
        Operator("shr", 2, "bits", "add", _shift_right, _shift_right),
        Operator("fma", 3, "ternary", "mul", lambda a, b, c: a * b + c, lambda a, b, c: a * b + c),
        Operator("clamp", 3, "ternary", "add", _clamp, _clamp),
        Operator("fclamp", 3, "ternary", "add", _clamp_number, _clamp),
        *_of_arrays(),
    )


def _clamp(x: Any, low: Any, high: Any) -> Any:
    return np.minimum(np.maximum(x, low), high)


def _clamp_number(x: Any, low: Any, high: Any) -> Any:
    return np.fmin(np.fmax(x, low), high)


def _new(old: Any, new: Any) -> Any:  # noqa: ARG001
    return new


def _new_where_equal(old: Any, compared: Any, new: Any) -> Any:
    return np.where(old == compared, new, old)


OPERATORS = MappingProxyType({op.name: op for op in _table()})
COUNTED_BY_INPUT = frozenset(op.name for op in OPERATORS.values() if op.kind in ("reduce", "scan"))
"""Operators whose work is counted by the elements of their input, not of their result."""
ATOMICS = MappingProxyType(
    {f"atomic_{name}": OPERATORS[name] for name in ("add", "and", "or", "xor")}
    | {"atomic_max": OPERATORS["maximum"], "atomic_min": OPERATORS["minimum"]}
    | {
        "atomic_xchg": Operator("xchg", 2, "binary", "move", _new, _new),
        "atomic_cas": Operator("cas", 3, "ternary", "move", _new_where_equal, _new_where_equal),
    }
)
"""Operators from (old element, operand of the atomic) to the new element; ``cas`` has (old, compared, new)."""
EPILOGUE = MappingProxyType(
    {"bias": OPERATORS["add"], "add": OPERATORS["add"]}
    | dict.fromkeys(("scale", "scale_rows", "scale_columns"), OPERATORS["mul"])
    | {name: OPERATORS[name] for name in ("relu", "gelu", "silu")}
)
