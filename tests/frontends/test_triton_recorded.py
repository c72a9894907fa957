"""Calls of Triton's language that are replayed, beside Triton itself: the same types, numbers, and errors."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extras import need
from kernbench.common.errors import KernelError

need("triton")

import kernbench.triton  # noqa: E402, F401, I001 - before triton
import triton.language as tl  # noqa: E402
from triton.language.semantic import TritonSemantic  # noqa: E402
from triton.runtime import interpreter  # noqa: E402

from kernbench.frontends.triton.values import Symbolic, TensorHandle, numpy_type  # noqa: E402

BUILDER = interpreter.InterpreterBuilder()
BUILDER.options = replace(BUILDER.options, sanitize_overflow=False)
ITSELF = TritonSemantic(BUILDER)
TYPES = (tl.int1, tl.int8, tl.int32, tl.int64, tl.uint8, tl.uint32, tl.float16, tl.float32)
POINTER = tl.pointer_type(tl.float16)
SHAPES = ((), (4,), (4, 1), (1, 8), (4, 8))
NAMES = ("add", "sub", "mul", "truediv", "floordiv", "mod", "and", "or", "xor", "lt", "le", "gt", "ge", "eq", "ne")
NUMBERS = (0, 1, -1, 3, 127, 128, -128, -129, 2**31 - 1, 2**31, -(2**31) - 1, True, 0.0, -0.0, 2.5, -3.0, 1e-45)
NUMBERS += (float("nan"), float("inf"), -float("inf"))

CALLS: dict[str, Callable[..., Any]] = {
    "expand": lambda x, **by: x.__getitem__((slice(None), None), **by),
    "to f32": lambda x, **by: tl.cast(x, tl.float32, **by),
    "to i64": lambda x, **by: tl.cast(x, tl.int64, **by),
    "broadcast": lambda x, **by: tl.core.broadcast_to(x, (4, 8), **by),
    "where": lambda x, **by: tl.where(True, x, -0.0, **by),
    "minimum": lambda x, **by: tl.minimum(x, 3, **by),
    "minus": lambda x, **by: x.__neg__(**by),
    "shift": lambda x, **by: x.__rshift__(2, **by),
    "full": lambda x, **by: tl.core.full((8,), -0.0, x.dtype, **by),
    "range": lambda x, **by: tl.arange(4, 8, **by),
}


def tensor(ty: Any, shape: tuple[int, ...], seed: int) -> Any:
    """A tensor of the language with known values."""
    item = np.uint64 if ty.is_ptr() else numpy_type(ty)
    numbers = np.random.default_rng(seed).integers(-5, 100, shape or (1,)).astype(item)
    return tl.tensor(TensorHandle(numbers, ty), tl.block_type(ty, list(shape)) if shape else ty)


def outcome(call: Callable[[], Any]) -> tuple[object, ...]:
    """What there is to see of a result, or of the error."""
    with np.errstate(all="ignore"):
        try:
            made = call()
        except Exception as error:
            return type(error), str(error)
    data = made.handle.data
    shape = tuple(each.value for each in made.shape)
    return made.type, made.dtype, shape, made.numel.value, made.handle.dtype, data.dtype, data.shape, data.tobytes()


tensors = st.tuples(st.sampled_from((*TYPES, POINTER)), st.sampled_from(SHAPES))


@settings(deadline=None, max_examples=150)
@given(st.sampled_from(NAMES), st.sampled_from(("", "r")), tensors, st.one_of(tensors, st.sampled_from(NUMBERS)))
def test_an_operator(name: str, reflected: str, left: Any, right: Any) -> None:
    operator = getattr(tl.tensor, f"__{reflected}{name}__", None) or getattr(tl.tensor, f"__{name}__")
    # With the first numbers it is recorded, unless another example has done so; with the next it is replayed. Those
    # that come again may get what was kept.
    for seed in (0, 1, 2, 1, 0):
        x = tensor(*left, seed)
        y = tensor(*right, seed + 10) if isinstance(right, tuple) else right
        expected = outcome(lambda x=x, y=y: operator(x, y, _semantic=ITSELF))
        assert outcome(lambda x=x, y=y: operator(x, y)) == expected


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("ty", TYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_call(name: str, ty: Any, shape: tuple[int, ...]) -> None:
    call = CALLS[name]
    for seed in range(2):
        x = tensor(ty, shape, seed)
        assert outcome(lambda x=x: call(x)) == outcome(lambda x=x: call(x, _semantic=ITSELF))


def test_a_known_result_is_kept_and_one_of_data_is_not() -> None:
    x, y = (tensor(tl.int32, (8, 1, 2), seed) for seed in range(2))
    assert (y + x) is not (x + y)
    assert (x + y) is (x + y)
    of_data = tl.tensor(TensorHandle(Symbolic(None, (8, 1, 2)), tl.int32), x.type)  # type: ignore[arg-type]
    with pytest.raises(KernelError, match="outside a kernel"):  # is asked for again, of the machine
        Context().run(lambda: x + of_data)


def test_truth_values_of_two_kinds_are_not_taken_for_one_another() -> None:
    """The interpreter has them in bytes and in NumPy's bools, where the sum of two is another."""
    for made in (np.bool_, np.int8, np.bool_):
        x, y = (tl.tensor(TensorHandle(np.array([number], made), tl.int1), tl.int1) for number in (1, 1))
        assert outcome(lambda x=x, y=y: x + y) == outcome(lambda x=x, y=y: x.__add__(y, _semantic=ITSELF))


def test_another_number_of_one_signature() -> None:
    # 4 to 7 are signed alike, and replayed with what each is.
    x = tensor(tl.int32, (4,), 0)
    for number in (4, 5, 6, 7):
        assert ((x + number).handle.data == x.handle.data + number).all()


@pytest.mark.parametrize("first", [0.0, -0.0])
def test_a_call_of_0_is_not_taken_for_one_of_minus_0(first: float) -> None:
    """In shapes that no other test has: what comes first is what would be recorded."""
    shape = (2, 32) if np.signbit(first) else (32, 2)
    for number in (first, -first):
        filled = tl.core.full(shape, number, tl.float32).handle.data
        assert (np.signbit(filled) == np.signbit(number)).all()


def test_what_does_not_fit_a_type_is_refused_after_what_does() -> None:
    x = tensor(tl.int8, (4,), 0)
    for number in (127, -128):
        assert ((x * 0 + number).handle.data == number).all()
    for number in (128, -129):
        with pytest.raises(ValueError, match="out of range"):
            x + number


@pytest.mark.parametrize("call", [tl.tensor.__mul__, tl.maximum], ids=["operator", "function"])
def test_a_call_with_one_tensor_twice_says_nothing_of_two(call: Callable[..., Any]) -> None:
    """In a shape that no other test has: what comes first is what would be recorded."""
    x, y = (tensor(tl.float32, (2, 16), seed) for seed in range(2))
    for left, right in ((x, x), (x, y), (y, x), (y, y)):
        assert outcome(lambda a=left, b=right: call(a, b)) == outcome(
            lambda a=left, b=right: call(a, b, _semantic=ITSELF)
        )
