"""Checks of the arguments of ``tl`` calls: pure functions that return a normal form or raise KernelError."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from operator import index
from types import MappingProxyType
from typing import TypeAlias

import ml_dtypes
import numpy as np

from kernbench.common.dtypes import ALL, DType, Shape, dtype, misfit, row_major
from kernbench.common.errors import KernelError, UnknownNameError, there_are
from kernbench.common.operators import OPERATORS, Operator
from kernbench.messages.commands import NOWHERE, ByteRun
from kernbench.triton_emu.handles import Handle, Number, Ref, load_first
from kernbench.triton_emu.source import kernel_error

Ints: TypeAlias = int | Sequence[int]

ELEMENTWISE = MappingProxyType(
    {op.name: op for op in OPERATORS.values() if op.kind in ("unary", "binary", "compare", "bits", "ternary")}
)
"""The elementwise operators on operands of one type."""
COMPARISONS = frozenset(op.name for op in ELEMENTWISE.values() if op.kind == "compare")

# Tuples instead of unions: a union would be created anew at each check, and every command has several checks.
_SEQUENCES = (tuple, list)
_WHOLE = (int, np.integer)
_NUMBERS = (int, float, np.integer, np.floating)
_BY_NAME = MappingProxyType({item.name: item for item in ALL})


def element_type(name: object) -> DType:
    """Return the type called ``name``."""
    item = _BY_NAME.get(name) if isinstance(name, str) else None
    if item is not None:
        return item
    try:
        return dtype(name)
    except UnknownNameError as error:
        raise kernel_error(str(error)) from None


def ints(label: str, value: Ints) -> Shape:
    """Return a sequence of integers as a tuple; a single integer means one axis."""
    try:
        return tuple(map(index, value)) if isinstance(value, _SEQUENCES) else (index(value),)  # type: ignore[arg-type]
    except TypeError:
        raise kernel_error(f"{label} is a whole number or a tuple of them, not {value!r}") from None


def as_shape(value: Ints) -> Shape:
    """Return the elements per axis, each at least 1."""
    if type(value) is tuple:
        for n in value:
            if type(n) is not int or n < 1:
                break
        else:
            return value
    shape = ints("a shape", value)
    if shape and min(shape) < 1:
        raise kernel_error(f"shape {shape}: every axis has at least 1 element")
    return shape


def pointer(value: object) -> int:
    """Return a virtual address, which has to be a Python or NumPy integer."""
    if isinstance(value, bool) or not isinstance(value, _WHOLE):
        raise kernel_error(f"a pointer is a whole number of bytes, not {_describe(value)}")
    if value < 0:
        raise kernel_error(f"a pointer is not negative: {value}")
    return int(value)


def run_list(value: Sequence[Sequence[int | None]], shape: Shape, item: DType) -> tuple[ByteRun, ...]:
    """Return a checked scatter-gather list: (address, bytes) of each run; address None marks masked elements."""
    runs: list[ByteRun] = []
    for run in value:
        if not isinstance(run, _SEQUENCES) or len(run) != 2:
            raise kernel_error(f"a run is (address, bytes), not {run!r}")
        at, (nbytes,) = run[0], ints("the bytes of a run", run[1])  # type: ignore[arg-type]
        if nbytes < 1 or nbytes % item.itemsize:
            raise kernel_error(f"a run of {nbytes} bytes: it must hold a whole number of {item} elements, at least 1")
        runs.append((NOWHERE if at is None else pointer(at), nbytes))
    total, wanted = sum(nbytes for _, nbytes in runs), prod(shape) * item.itemsize
    if total != wanted:
        raise kernel_error(f"runs of {total} bytes in all, for shape {shape} of {item}, which has {wanted}")
    return tuple(runs)


def check_no_box(strides: object, valid: object) -> None:
    """Check that a call with a scatter-gather list has no strides and no valid part."""
    if strides is not None or valid is not None:
        raise kernel_error("a list of runs gives the address of every element: it excludes strides and valid")


def _describe(value: object) -> str:
    if isinstance(value, Handle):
        return "a handle: what is in TCM needs no load"
    return "a ref: pass its va" if isinstance(value, Ref) else f"{value!r} ({type(value).__name__})"


def strides_of(value: Ints | None, shape: Shape, item: DType) -> Shape | None:
    """Return the bytes from one element to the next along each axis; None for a row-major array."""
    if value is None:
        return None
    strides = ints("strides", value)
    if len(strides) != len(shape):
        raise kernel_error(f"strides {strides} do not fit the shape {shape}: one number of bytes an axis")
    if strides and min(strides) < 0:
        raise kernel_error(f"strides {strides}: a stride is not negative")
    if any(n > 1 and 0 < step < item.itemsize for n, step in zip(shape, strides, strict=True)):
        in_bytes = tuple([step * item.itemsize for step in strides])
        raise kernel_error(
            f"strides {strides} with shape {shape}: elements of {item.itemsize} bytes ({item.name}) overlap; a stride "
            f"is a number of bytes (strides in elements: pass {in_bytes})"
        )
    return None if strides == row_major(shape, item.itemsize) else strides


def check_no_overlap(strides: Shape | None, shape: Shape) -> None:
    """Check that a store writes no address twice: the surviving element would be undefined."""
    if strides and any(n > 1 and step == 0 for n, step in zip(shape, strides, strict=True)):
        raise kernel_error(f"strides {strides} with shape {shape}: a store with stride 0 writes one place many times")


def valid_part(value: Ints | None, shape: Shape) -> Shape | None:
    """Return the number of elements along each axis that exist in memory; None if all elements do."""
    if value is None:
        return None
    valid = ints("valid", value)
    if len(valid) != len(shape):
        raise kernel_error(f"valid {valid} does not fit the shape {shape}: one number an axis")
    if any(not 0 <= v <= n for v, n in zip(valid, shape, strict=True)):
        raise kernel_error(f"valid {valid} is not within the shape {shape}: each from 0 to the axis's size")
    return None if valid == shape else valid


def elementwise_operator(name: str, operands: Sequence[object]) -> Operator:
    """Return the elementwise operator ``name`` after a check of the number of operands."""
    op = ELEMENTWISE.get(name)
    if op is None:
        raise kernel_error(f"unknown elementwise operator {name!r}; {there_are(name, tuple(ELEMENTWISE))}")
    if len(operands) != op.arity:
        raise kernel_error(f"{name} takes {op.arity} operands, not {len(operands)}")
    return op


def check_has_bits(op: Operator, item: DType) -> None:
    """Check that operands of a bit operator are integers."""
    if op.kind == "bits" and item.is_float:
        raise kernel_error(f"{op.name} of {item}: it works on the bits of whole numbers; use tl.cast")


def number_as(value: object, item: DType) -> Number:
    """Return ``value`` as an element of type ``item``; raises KernelError if an integer type cannot hold it."""
    if not isinstance(value, _NUMBERS):
        raise no_operand(value)
    if item.is_float:
        return float(value) if value.__class__ is not int or value else 0.0  # one object for the default of all loads
    wrong = misfit(value, item)  # type: ignore[arg-type] # NumPy's numbers behave as Python's
    if wrong:
        raise kernel_error(f"{wrong} and the handle is {item}; cast the handle to a type that holds it")
    return int(value)


def no_operand(value: object) -> KernelError:
    """Return the error for ``value`` in place of a handle or a number."""
    return load_first(value) if isinstance(value, Ref) else kernel_error(f"{value!r} is neither a handle nor a number")


def no_array(name: str, operands: Sequence[object]) -> KernelError:
    """Return the error for ``operands`` without a handle."""
    for x in operands:
        if isinstance(x, Ref):
            return load_first(x)
    texts = ", ".join(map(repr, operands))
    return kernel_error(f"{name} of {texts}: one operand at least is a handle (tl.full makes one of a number)")


def check_counts(item: DType, last: int) -> None:
    """Check that ``item`` represents every integer from 0 to ``last``."""
    most = np.iinfo(item.numpy).max if not item.is_float else _float_count(item)
    if last > most:
        raise kernel_error(f"{item} does not hold every index up to {last}, only to {most}; use i32")


def _float_count(item: DType) -> int:
    # The leading bit is not stored in the mantissa.
    return int(2 ** (ml_dtypes.finfo(item.numpy).nmant + 1))  # type: ignore[no-untyped-call]


def axis_of(axis: int, shape: Shape) -> int:
    """Return ``axis`` as a non-negative number."""
    (number,) = ints("an axis", axis)
    if not -len(shape) <= number < len(shape):
        raise kernel_error(f"axis {axis} of a tensor of shape {shape}: axes are {-len(shape)} to {len(shape) - 1}")
    return number % len(shape)


def resolve_shape(value: Ints, shape: Shape) -> Shape:
    """Return the shape ``value``, with an axis of -1 computed so that there are as many elements as in ``shape``."""
    extents = ints("a shape", value)
    product = prod(n for n in extents if n != -1)
    if extents.count(-1) == 1 and product > 0 and prod(shape) % product == 0:
        extents = tuple(prod(shape) // product if n == -1 else n for n in extents)
    if (extents and min(extents) < 1) or prod(extents) != prod(shape):
        raise kernel_error(f"{prod(shape)} elements of shape {shape} have no shape {value}")
    return extents


def constant_bytes(values: object, item: DType) -> tuple[Shape, bytes]:
    """Return the shape of an array of fixed numbers, and its elements as bytes."""
    try:
        array = np.asarray(values)
        if not item.is_float and array.dtype.kind not in "biu":
            raise kernel_error(f"a constant of {array.dtype} as {item}: whole numbers are needed")
        if not item.is_float and array.size:
            for value in (array.min(), array.max()):
                number_as(int(value), item)
        typed = array.astype(item.numpy)
    except (TypeError, ValueError):
        raise kernel_error(f"{values!r} is no array of numbers") from None
    return as_shape(typed.shape), typed.tobytes()


def permutation(perm: Sequence[int] | None, shape: Shape) -> Shape | None:
    """Return the order of axes of a transposition; None swaps the last two axes."""
    if perm is None:
        if len(shape) < 2:
            raise kernel_error(f"shape {shape} has fewer than two axes to swap")
        return None
    order = ints("perm", perm)
    if sorted(order) != list(range(len(shape))):
        raise kernel_error(f"perm {order} is not an order of the {len(shape)} axes of shape {shape}")
    return order


def broadcast(a: Shape, b: Shape) -> Shape:
    """Return the shape of an elementwise result, by NumPy's rule."""
    if a == b:
        return a
    longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
    padded = (1,) * (len(longer) - len(shorter)) + shorter
    if any(m != n and 1 not in (m, n) for m, n in zip(longer, padded, strict=True)):
        raise kernel_error(f"shapes {a} and {b} do not broadcast: axes, from the last, are equal or 1")
    return tuple(max(m, n) for m, n in zip(longer, padded, strict=True))


def factor_type(op: str, a: DType, b: DType, supported: tuple[DType, ...]) -> DType:
    """Return the common type of the factors of a product, one of the machine's ``supported`` types."""
    if a is not b:
        raise kernel_error(f"{op} of {a} and {b}: one type is needed; use tl.cast")
    if a not in supported:
        names = ", ".join(item.name for item in supported)
        raise kernel_error(f"this machine does not multiply {a} matrices; it does {names}; use tl.cast")
    return a


@lru_cache
def product_shape(op: str, a: Shape, b: Shape, trans_a: bool = False, trans_b: bool = False) -> Shape:
    """Return (m, n) of (m, k) by (k, n), with each factor optionally transposed; equal calls share one object."""
    if len(a) != 2 or len(b) != 2:
        raise kernel_error(f"{op} takes matrices (two axes), not shapes {a} and {b}")
    m, k = reversed(a) if trans_a else a
    inner, n = reversed(b) if trans_b else b
    if k != inner:
        flags = f" (trans_a={trans_a}, trans_b={trans_b})" if trans_a or trans_b else ""
        raise kernel_error(f"{op} of shapes {a} and {b}{flags}: inner sizes {k} and {inner} differ")
    return m, n
