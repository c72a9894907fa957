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
from kernbench.triton_emu.handles import Handle, HandleView, Number
from kernbench.triton_emu.issuer import Issuer
from kernbench.triton_emu.source import kernel_error


@lru_cache
def _along(axis: int | None) -> Params:
    """Return the parameters of all commands along ``axis``; one shared object saves memory in the log of commands."""
    return Params(axis=axis)


class UnaryCall(Protocol):
    """A ``tl`` call with one operand that returns a handle."""

    def __call__(self, x: Handle) -> Handle:
        """Issue the command and return its result."""


class BinaryCall(Protocol):
    """A ``tl`` call with two operands that returns a handle."""

    def __call__(self, a: Handle | Number, b: Handle | Number) -> Handle:
        """Issue the command and return its result."""


def _unary(name: str, text: str) -> UnaryCall:
    """Return the ``tl`` call of the elementwise operator ``name`` with one operand; ``text`` is its docstring."""

    def call(self: ElementwiseCalls, x: Handle) -> Handle:
        return self.elementwise(name, x)

    return cast("UnaryCall", _name(call, name, text))


def _binary(name: str, text: str) -> BinaryCall:
    """Return the ``tl`` call of the elementwise operator ``name`` with two operands; ``text`` is its docstring."""

    def call(self: ElementwiseCalls, a: Handle | Number, b: Handle | Number) -> Handle:
        return self.elementwise(name, a, b)

    return cast("BinaryCall", _name(call, name, text))


def _name(call: Any, name: str, text: str) -> object:
    call.__name__, call.__qualname__, call.__doc__ = name, f"ElementwiseCalls.{name}", text
    del call.__annotations__["self"]  # as for a method in the class body
    return call


class ElementwiseCalls(Issuer):
    """Elementwise operators. Operands broadcast as in NumPy and have one type; numbers are converted to that type."""

    __slots__ = ()

    def elementwise(self, name: str, *operands: Handle | Number) -> Handle:
        """Apply elementwise operator ``name`` to handles and numbers, of which at least one is a handle."""
        return self._elementwise(self._line(), name, operands)

    def binary(self, name: str, a: Handle | Number, b: Handle | Number) -> Handle:
        """Apply operator ``name`` to ``a`` and ``b``: the fast path of the operators between handles."""
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

    maximum = _binary("maximum", "Return the elementwise maximum of two operands.")
    minimum = _binary("minimum", "Return the elementwise minimum of two operands.")

    def fma(self, a: Handle | Number, b: Handle | Number, c: Handle | Number) -> Handle:
        """Return ``a * b + c``, rounded once."""
        return self.elementwise("fma", a, b, c)

    def clamp(self, x: Handle | Number, low: Handle | Number, high: Handle | Number) -> Handle:
        """Return ``x`` limited to the range from ``low`` to ``high``."""
        return self.elementwise("clamp", x, low, high)

    def where(self, condition: Handle, a: Handle | Number, b: Handle | Number) -> Handle:
        """Return ``a`` where ``condition`` is not 0, else ``b``.

        ``condition`` is a handle of any type. At least one of ``a`` and ``b`` is a handle and gives the type of the
        result.
        """
        item, shape = self._common("where", (a, b))
        shape = broadcast(self._own(condition).shape, shape)
        x, y = (value if isinstance(value, Handle) else number_as(value, item) for value in (a, b))
        return self._compute(self._line(), "where", (condition, x, y), shape, item)

    exp = _unary("exp", "Return e to the power ``x``.")
    exp2 = _unary("exp2", "Return 2 to the power ``x``.")
    log = _unary("log", "Return the natural logarithm.")
    log2 = _unary("log2", "Return the logarithm to base 2.")
    floor = _unary("floor", "Return the largest integer that is not above ``x``, in the type of ``x``.")
    ceil = _unary("ceil", "Return the smallest integer that is not below ``x``, in the type of ``x``.")
    erf = _unary("erf", "Return the error function.")
    sqrt = _unary("sqrt", "Return the square root.")
    rsqrt = _unary("rsqrt", "Return 1 / sqrt(x).")
    abs = _unary("abs", "Return the absolute value.")
    sigmoid = _unary("sigmoid", "Return 1 / (1 + exp(-x)).")
    tanh = _unary("tanh", "Return the hyperbolic tangent.")
    sin = _unary("sin", "Return the sine of an angle in radians.")
    cos = _unary("cos", "Return the cosine of an angle in radians.")
    relu = _unary("relu", "Return max(x, 0).")
    gelu = _unary("gelu", "Return the Gaussian error linear unit, in its tanh form.")
    silu = _unary("silu", "Return x * sigmoid(x).")

    def _common(self, name: str, operands: Sequence[Handle | Number]) -> tuple[DType, Shape]:
        """Return the common type of all handles among ``operands``, and their broadcast shape."""
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
    """Calls along an axis, calls that change shape or type, and calls that create arrays."""

    __slots__ = ()

    def sum(self, x: Handle, axis: int | None = None, keepdims: bool = False) -> Handle:
        """Return the sum along ``axis``, or of all elements.

        The result drops the axis, or has extent 1 there with ``keepdims``; its type is that of ``x``.
        """
        return self._reduce("sum", x, axis, keepdims)

    def max(self, x: Handle, axis: int | None = None, keepdims: bool = False, skip_nan: bool = False) -> Handle:
        """Return the largest element along ``axis``, or of all; shapes are as for ``sum``.

        The result is NaN where any element is NaN; with ``skip_nan``, only where all elements are NaN.
        """
        return self._reduce("nanmax" if skip_nan else "max", x, axis, keepdims)

    def min(self, x: Handle, axis: int | None = None, keepdims: bool = False, skip_nan: bool = False) -> Handle:
        """Return the smallest element along ``axis``, or of all; shapes and NaN are as for ``max``."""
        return self._reduce("nanmin" if skip_nan else "min", x, axis, keepdims)

    def argmax(self, x: Handle, axis: int | None = None, keepdims: bool = False, skip_nan: bool = False) -> Handle:
        """Return the index, as i32, of the first largest element along ``axis``; by default, of all in row-major order.

        Shapes are as for ``sum``. The first NaN counts as the largest element, unless ``skip_nan``.
        """
        return self._reduce("nanargmax" if skip_nan else "argmax", x, axis, keepdims)

    def argmin(self, x: Handle, axis: int | None = None, keepdims: bool = False, skip_nan: bool = False) -> Handle:
        """Return the index of the first smallest element, as ``argmax``."""
        return self._reduce("nanargmin" if skip_nan else "argmin", x, axis, keepdims)

    def softmax(self, x: Handle, axis: int = -1) -> Handle:
        """Return exp(x - max) / sum(exp(x - max)) along ``axis``, in the shape and type of ``x``."""
        along = axis_of(axis, self._own(x).shape)
        return self._compute(self._line(), "softmax", (x,), x.shape, x.dtype, _along(along))

    def cumsum(self, x: Handle, axis: int = -1, reverse: bool = False) -> Handle:
        """Return the running sum along ``axis``, each element included; ``reverse`` sums from the end."""
        along = axis_of(axis, self._own(x).shape)
        name = "cumsum_reverse" if reverse else "cumsum"
        return self._compute(self._line(), name, (x,), x.shape, x.dtype, _along(along))

    def argsort(self, x: Handle, descending: bool = False) -> Handle:
        """Return the indices that sort the elements along the last axis, ascending or ``descending``, as i32.

        The sort is stable. The duration is that of one pass over the bytes for each step of a sorting network.
        """
        shape = self._own(x).shape
        name = "argsort_down" if descending else "argsort"
        return self._compute(
            self._line(), name, (x,), shape, OPERATORS[name].makes or x.dtype, _along(axis_of(-1, shape))
        )

    def take(self, x: Handle, places: Handle) -> Handle:
        """Return the elements of ``x`` at the indices ``places`` along the last axis.

        ``places`` has an integer type and as many axes as ``x``. All axes but the last broadcast; KernelError is raised
        for others. The result has the last axis of ``places`` and the type of ``x``.
        """
        shape, wanted = self._own(x).shape, self._own(places).shape
        if places.dtype.is_float or len(shape) != len(wanted) or not shape:
            raise kernel_error(f"take from {shape} {x.dtype} at {wanted} {places.dtype}: integer places, as many axes")
        extents = (*broadcast(shape[:-1], wanted[:-1]), wanted[-1])
        return self._compute(self._line(), "take", (x, places), extents, x.dtype)

    def iota(self, shape: Ints, dtype: object, axis: int = -1) -> Handle:
        """Return an array in which each element is its index along ``axis``.

        Raises KernelError if ``dtype`` cannot represent every index.
        """
        extent, item = as_shape(shape), element_type(dtype)
        along = axis_of(axis, extent)
        check_counts(item, extent[along] - 1)
        return self._compute(self._line(), "iota", (), extent, item, _along(along))

    def zeros(self, shape: Ints, dtype: object) -> Handle:
        """Return an array of zeros."""
        return self._compute(self._line(), "zeros", (), as_shape(shape), element_type(dtype))

    def full(self, shape: Ints, value: Number, dtype: object) -> Handle:
        """Return an array filled with ``value``; raises KernelError if ``dtype`` cannot represent it."""
        extent, item = as_shape(shape), element_type(dtype)
        return self._compute(self._line(), "full", (number_as(value, item),), extent, item)

    def constant(self, values: object, dtype: object) -> Handle:
        """Return an array of fixed numbers, given as a NumPy array or nested sequences.

        The command of the MATH engine carries the numbers to TCM. Floats are rounded to ``dtype``. Raises KernelError
        for numbers that an integer ``dtype`` cannot represent.
        """
        item = element_type(dtype)
        shape, pattern = constant_bytes(values, item)
        return self._compute(self._line(), "constant", (), shape, item, Params(pattern=pattern))

    def copy(self, x: Handle) -> Handle:
        """Return a copy of ``x`` in scratch. After the copy of a message, its slot is freed once ``x`` is dropped."""
        return self._compute(self._line(), "copy", (x,), self._own(x).shape, x.dtype)

    def cast(self, x: Handle, dtype: object) -> Handle:
        """Return ``x`` converted to ``dtype``, or ``x`` itself if it has that type.

        Floats are rounded to nearest even; a conversion to an integer type truncates and saturates.
        """
        item = element_type(dtype)
        return x if self._own(x).dtype is item else self._compute(self._line(), "cast", (x,), x.shape, item)

    def bitcast(self, x: Handle, dtype: object) -> Handle:
        """Return the bits of ``x`` as another type of the same size, or ``x`` itself if it has that type."""
        item = element_type(dtype)
        source_dtype = self._own(x).dtype
        if item.itemsize != source_dtype.itemsize:
            raise kernel_error(
                f"bitcast of {source_dtype} to {item}: they have {source_dtype.itemsize} and {item.itemsize} bytes"
            )
        return x if source_dtype is item else self._compute(self._line(), "bitcast", (x,), x.shape, item)

    def trans(self, x: Handle, perm: Sequence[int] | None = None) -> Handle:
        """Return a copy of ``x`` with its axes in the order ``perm``, or with its last two axes swapped."""
        order = permutation(perm, self._own(x).shape)
        axes = order or (*range(len(x.shape) - 2), len(x.shape) - 1, len(x.shape) - 2)
        return self._compute(self._line(), "trans", (x,), tuple(x.shape[i] for i in axes), x.dtype, Params(perm=order))

    def broadcast(self, x: Handle, shape: Ints) -> Handle:
        """Return ``x`` repeated to ``shape`` by NumPy's rule, or ``x`` itself if it has that shape.

        Operators broadcast their operands without this call.
        """
        extent = as_shape(shape)
        if broadcast(self._own(x).shape, extent) != extent:
            raise kernel_error(f"shape {x.shape} does not broadcast to {extent}")
        return x if x.shape == extent else self._compute(self._line(), "broadcast", (x,), extent, x.dtype)

    def reshape(self, x: Handle, shape: Ints) -> Handle:
        """Return a view of ``x`` in another shape, in row-major order; one axis may be -1.

        A view needs no command and no time.
        """
        self._runner.check()
        extent = resolve_shape(shape, self._own(x).shape)
        return x if extent == x.shape else HandleView(x, extent)

    def part(self, x: Handle, index: int, count: int | None = None) -> Handle:
        """Return ``x[index]``, the part of ``x`` at one index of its first axis, as a view.

        With ``count``, the view is ``x[index : index + count]``. ``index`` counts from 0. A view needs no command and
        no time.
        """
        self._runner.check()
        shape = self._own(x).shape
        end = index + (1 if count is None else count)
        if not shape or not 0 <= index < end <= shape[0]:
            raise kernel_error(f"part {index}:{end} of a tensor of shape {shape}: it must be inside the first axis")
        extents = shape[1:] if count is None else (count, *shape[1:])
        return HandleView(x, extents, index * prod(shape[1:]) * x.dtype.itemsize)

    def expand_dims(self, x: Handle, axis: int) -> Handle:
        """Return a view of ``x`` with a new axis of extent 1 at position ``axis``, which operators then broadcast."""
        shape = self._own(x).shape
        at = axis_of(axis, (*shape, 1))
        return self.reshape(x, (*shape[:at], 1, *shape[at:]))

    def _reduce(self, name: str, x: Handle, axis: int | None, keepdims: bool) -> Handle:
        shape = self._own(x).shape
        along = None if axis is None else axis_of(axis, shape)
        reduced = range(len(shape)) if along is None else (along,)
        if keepdims:
            extents = tuple(1 if i in reduced else n for i, n in enumerate(shape))
        else:
            extents = tuple(n for i, n in enumerate(shape) if i not in reduced)
        item = OPERATORS[name].makes or x.dtype
        return self._compute(self._line(), name, (x,), extents, item, _along(along))
