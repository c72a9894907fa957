"""``tl`` calls for the MATH engine."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any, Protocol, cast

from kernbench.common.dtypes import I8, DType, Shape
from kernbench.common.operators import OPERATORS
from kernbench.messages.commands import MATH, Command, Params
from kernbench.triton_emu.checks import (
    COMPARISONS,
    Ints,
    as_shape,
    axis_of,
    broadcast,
    check_counts,
    check_has_bits,
    constant_bytes,
    element_type,
    elementwise_operator,
    no_array,
    number_as,
    permutation,
    resolve_shape,
)
from kernbench.triton_emu.handles import Handle, Number, View
from kernbench.triton_emu.issuer import Issuer
from kernbench.triton_emu.source import kernel_error


@lru_cache
def _along(axis: int | None) -> Params:
    """Return the parameters of all commands along ``axis``: kept once, since the log keeps every command."""
    return Params(axis=axis)


class UnaryCall(Protocol):
    """A ``tl`` call that makes a handle of another."""

    def __call__(self, x: Handle) -> Handle:
        """Make it."""


class BinaryCall(Protocol):
    """A ``tl`` call that makes a handle of two operands."""

    def __call__(self, a: Handle | Number, b: Handle | Number) -> Handle:
        """Make it."""


def _unary(name: str, text: str) -> UnaryCall:
    """Return the ``tl`` call for the elementwise operator ``name`` of one operand; ``text``: its docstring."""

    def call(self: ElementwiseCalls, x: Handle) -> Handle:
        return self.elementwise(name, x)

    return cast("UnaryCall", _name(call, name, text))


def _binary(name: str, text: str) -> BinaryCall:
    """Return the same for two operands."""

    def call(self: ElementwiseCalls, a: Handle | Number, b: Handle | Number) -> Handle:
        return self.elementwise(name, a, b)

    return cast("BinaryCall", _name(call, name, text))


def _name(call: Any, name: str, text: str) -> object:
    call.__name__, call.__qualname__, call.__doc__ = name, f"ElementwiseCalls.{name}", text
    del call.__annotations__["self"]  # as of a method that is written out
    return call


class ElementwiseCalls(Issuer):
    """Operators that work element by element; operands broadcast as in NumPy and have one type."""

    __slots__ = ()

    def elementwise(self, name: str, *operands: Handle | Number) -> Handle:
        """Compute the elementwise operator ``name`` of the operator table on handles and numbers, one a handle."""
        return self._elementwise(self._line(), name, operands)

    def binary(self, name: str, a: Handle | Number, b: Handle | Number) -> Handle:
        """Compute the operator of ``a`` and ``b``, for the operators between handles, which kernels are full of."""
        line = self._line(3)
        if not isinstance(a, Handle) or not isinstance(b, Handle) or a.owner is not self or b.owner is not self:
            return self._elementwise(line, name, (a, b))
        x, y = a.array, b.array
        if x.dtype is not y.dtype or not x.space == y.space == "tcm" or (x.shape is not y.shape and x.shape != y.shape):
            return self._elementwise(line, name, (a, b))
        result = self._result(name, x.shape, I8 if name in COMPARISONS else x.dtype, line)
        serial, after = self._maker.order((a, b))
        command = Command(MATH, name, serial, line, after, (x, y), result.array)
        self._issue(command, (a, b), result)
        return result

    def _elementwise(self, line: int, name: str, operands: Sequence[Handle | Number]) -> Handle:
        op = elementwise_operator(name, operands)
        item, shape = self._common(name, operands)
        check_has_bits(op, item)
        inputs = tuple([x if isinstance(x, Handle) else number_as(x, item) for x in operands])
        return self._compute(line, name, inputs, shape, op.makes or item)

    maximum = _binary("maximum", "The larger of two, element by element.")
    minimum = _binary("minimum", "The smaller of two, element by element.")

    def fma(self, a: Handle | Number, b: Handle | Number, c: Handle | Number) -> Handle:
        """``a * b + c``, rounded once."""
        return self.elementwise("fma", a, b, c)

    def clamp(self, x: Handle | Number, low: Handle | Number, high: Handle | Number) -> Handle:
        """``x``, but not below ``low`` and not above ``high``."""
        return self.elementwise("clamp", x, low, high)

    def where(self, condition: Handle, a: Handle | Number, b: Handle | Number) -> Handle:
        """``a`` where ``condition`` (of any type) is not 0, else ``b``; the type is theirs: one of them is a handle."""
        item, shape = self._common("where", (a, b))
        shape = broadcast(self._own(condition).shape, shape)
        x, y = (value if isinstance(value, Handle) else number_as(value, item) for value in (a, b))
        return self._compute(self._line(), "where", (condition, x, y), shape, item)

    exp = _unary("exp", "e to the power ``x``.")
    exp2 = _unary("exp2", "2 to the power ``x``.")
    log = _unary("log", "The natural logarithm.")
    log2 = _unary("log2", "The logarithm to base 2.")
    floor = _unary("floor", "The largest whole number that is not above ``x``.")
    ceil = _unary("ceil", "The smallest whole number that is not below ``x``.")
    erf = _unary("erf", "The error function.")
    sqrt = _unary("sqrt", "The square root.")
    rsqrt = _unary("rsqrt", "1 over the square root.")
    abs = _unary("abs", "The absolute value.")
    sigmoid = _unary("sigmoid", "1 / (1 + exp(-x)).")
    tanh = _unary("tanh", "The hyperbolic tangent.")
    sin = _unary("sin", "The sine.")
    cos = _unary("cos", "The cosine.")
    relu = _unary("relu", "``x``, but not below 0.")
    gelu = _unary("gelu", "The Gaussian error linear unit, in its tanh form.")
    silu = _unary("silu", "``x * sigmoid(x)``.")

    def _common(self, name: str, operands: Sequence[Handle | Number]) -> tuple[DType, Shape]:
        """Return the one type of all handles among ``operands``, and the shape they broadcast to."""
        item: DType | None = None
        shape: Shape = ()
        for x in operands:
            if not isinstance(x, Handle):
                continue
            self._own(x)
            if item is None:
                item, shape = x.dtype, x.shape
            elif x.dtype is not item:
                raise kernel_error(f"{name} of {item} and {x.dtype}: one type is needed; use tl.cast")
            else:
                shape = broadcast(shape, x.shape)
        if item is None:
            raise no_array(name, operands)
        return item, shape


class MathCalls(ElementwiseCalls):
    """The rest: along an axis, of another shape or type, out of nothing."""

    __slots__ = ()

    def sum(self, x: Handle, axis: int | None = None, keepdims: bool = False) -> Handle:
        """Return the sum along ``axis``, or of all elements; the axis is dropped, or 1 with ``keepdims``."""
        return self._reduce("sum", x, axis, keepdims)

    def max(self, x: Handle, axis: int | None = None, keepdims: bool = False, skip_nan: bool = False) -> Handle:
        """Return the largest element along ``axis``, or of all; shapes as for ``sum``.

        NaN where any element is NaN; with ``skip_nan``, only where all are.
        """
        return self._reduce("nanmax" if skip_nan else "max", x, axis, keepdims)

    def min(self, x: Handle, axis: int | None = None, keepdims: bool = False, skip_nan: bool = False) -> Handle:
        """Return the smallest element along ``axis``, or of all; shapes and NaN as for ``max``."""
        return self._reduce("nanmin" if skip_nan else "min", x, axis, keepdims)

    def argmax(self, x: Handle, axis: int | None = None, keepdims: bool = False, skip_nan: bool = False) -> Handle:
        """Return where the first largest element is, along ``axis`` or of all, row by row: i32, shapes as ``sum``.

        The first NaN is the largest, unless ``skip_nan``.
        """
        return self._reduce("nanargmax" if skip_nan else "argmax", x, axis, keepdims)

    def argmin(self, x: Handle, axis: int | None = None, keepdims: bool = False, skip_nan: bool = False) -> Handle:
        """Return where the first smallest element is, as ``argmax``."""
        return self._reduce("nanargmin" if skip_nan else "argmin", x, axis, keepdims)

    def softmax(self, x: Handle, axis: int = -1) -> Handle:
        """exp(x - max) / sum(exp(x - max)) along ``axis``."""
        along = axis_of(axis, self._own(x).shape)
        return self._compute(self._line(), "softmax", (x,), x.shape, x.dtype, _along(along))

    def cumsum(self, x: Handle, axis: int = -1, reverse: bool = False) -> Handle:
        """Return the sum of all elements up to each, along ``axis``; ``reverse``: of those from each on."""
        along = axis_of(axis, self._own(x).shape)
        name = "cumsum_reverse" if reverse else "cumsum"
        return self._compute(self._line(), name, (x,), x.shape, x.dtype, _along(along))

    def argsort(self, x: Handle, descending: bool = False) -> Handle:
        """Return the places of the elements along the last axis in ascending or descending order, i32.

        Of equal elements the first stays first. The engine goes over the bytes once for each step of a sorting network.
        """
        shape = self._own(x).shape
        name = "argsort_down" if descending else "argsort"
        return self._compute(
            self._line(), name, (x,), shape, OPERATORS[name].makes or x.dtype, _along(axis_of(-1, shape))
        )

    def take(self, x: Handle, places: Handle) -> Handle:
        """Return the elements of ``x`` at ``places`` along the last axis; all other axes are alike."""
        shape, wanted = self._own(x).shape, self._own(places).shape
        if places.dtype.is_float or len(shape) != len(wanted) or shape[:-1] != wanted[:-1] or not shape:
            raise kernel_error(
                f"take from {shape} {x.dtype} at {wanted} {places.dtype}: whole numbers, other axes alike"
            )
        return self._compute(self._line(), "take", (x, places), wanted, x.dtype)

    def iota(self, shape: Ints, dtype: object, axis: int = -1) -> Handle:
        """Make an array of whole numbers: each is its index along ``axis``. KernelError if the type has too few."""
        extent, item = as_shape(shape), element_type(dtype)
        along = axis_of(axis, extent)
        check_counts(item, extent[along] - 1)
        return self._compute(self._line(), "iota", (), extent, item, _along(along))

    def zeros(self, shape: Ints, dtype: object) -> Handle:
        """Make an array of zeros."""
        return self._compute(self._line(), "zeros", (), as_shape(shape), element_type(dtype))

    def full(self, shape: Ints, value: Number, dtype: object) -> Handle:
        """Make an array filled with ``value``."""
        extent, item = as_shape(shape), element_type(dtype)
        return self._compute(self._line(), "full", (number_as(value, item),), extent, item)

    def constant(self, values: object, dtype: object) -> Handle:
        """Make an array of known numbers, NumPy's or nested sequences: the command carries them to TCM, by MATH.

        KernelError for what ``dtype`` does not hold; floats are rounded.
        """
        item = element_type(dtype)
        shape, pattern = constant_bytes(values, item)
        return self._compute(self._line(), "constant", (), shape, item, Params(pattern=pattern))

    def copy(self, x: Handle) -> Handle:
        """``x`` again, in scratch of its own: what frees the slot of a message that is still needed."""
        return self._compute(self._line(), "copy", (x,), self._own(x).shape, x.dtype)

    def cast(self, x: Handle, dtype: object) -> Handle:
        """``x`` as another type: rounded to nearest even; to integers truncated and saturated. The same type: ``x``."""
        item = element_type(dtype)
        return x if self._own(x).dtype is item else self._compute(self._line(), "cast", (x,), x.shape, item)

    def bitcast(self, x: Handle, dtype: object) -> Handle:
        """The bits of ``x`` as another type of the same size. The same type: ``x``."""
        item = element_type(dtype)
        own = self._own(x).dtype
        if item.itemsize != own.itemsize:
            raise kernel_error(f"bitcast of {own} to {item}: they have {own.itemsize} and {item.itemsize} bytes")
        return x if own is item else self._compute(self._line(), "bitcast", (x,), x.shape, item)

    def trans(self, x: Handle, perm: Sequence[int] | None = None) -> Handle:
        """``x`` with its axes in the order ``perm``, or its last two swapped. It copies."""
        order = permutation(perm, self._own(x).shape)
        axes = order or (*range(len(x.shape) - 2), len(x.shape) - 1, len(x.shape) - 2)
        return self._compute(self._line(), "trans", (x,), tuple(x.shape[i] for i in axes), x.dtype, Params(perm=order))

    def broadcast(self, x: Handle, shape: Ints) -> Handle:
        """``x`` repeated to ``shape``, by NumPy's rule, as operators do by themselves; ``x`` if it has that shape."""
        extent = as_shape(shape)
        if broadcast(self._own(x).shape, extent) != extent:
            raise kernel_error(f"shape {x.shape} does not broadcast to {extent}")
        return x if x.shape == extent else self._compute(self._line(), "broadcast", (x,), extent, x.dtype)

    def reshape(self, x: Handle, shape: Ints) -> Handle:
        """``x`` with its elements, row by row, in another shape; one axis may be -1. A view: no command, no time."""
        self._runner.check()
        extent = resolve_shape(shape, self._own(x).shape)
        return x if extent == x.shape else View(x, extent)

    def part(self, x: Handle, index: int) -> Handle:
        """``x[index]``, an element of its first axis, which is counted from 0: a view, no command, no time."""
        self._runner.check()
        shape = self._own(x).shape
        if not shape or not 0 <= index < shape[0]:
            raise kernel_error(f"part {index} of a tensor of shape {shape}: its first axis has so many parts")
        return View(x, shape[1:], index * prod(shape[1:]) * x.dtype.itemsize)

    def expand_dims(self, x: Handle, axis: int) -> Handle:
        """``x`` with another axis of 1 element, which is to be ``axis``: a view, which operators then broadcast."""
        shape = self._own(x).shape
        at = axis_of(axis, (*shape, 1))
        return self.reshape(x, (*shape[:at], 1, *shape[at:]))

    def _reduce(self, name: str, x: Handle, axis: int | None, keepdims: bool) -> Handle:
        shape = self._own(x).shape
        along = None if axis is None else axis_of(axis, shape)
        gone = range(len(shape)) if along is None else (along,)
        if keepdims:
            rest = tuple(1 if i in gone else n for i, n in enumerate(shape))
        else:
            rest = tuple(n for i, n in enumerate(shape) if i not in gone)
        item = OPERATORS[name].makes or x.dtype
        return self._compute(self._line(), name, (x,), rest, item, _along(along))
