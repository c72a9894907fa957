"""What the calls of ``tl`` compute, by NumPy, on a PE without time."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_pe import FakePe, Memory, random_array, site_of
from hypothesis import given
from hypothesis import strategies as st

from kernbench.common.dtypes import ALL, BF16, F16, F32, I8, I32, DType
from kernbench.common.errors import KernelError
from kernbench.messages.commands import MATH
from kernbench.triton_emu.checks import broadcast

Array = np.ndarray[Any, Any]
OUT = 8192
X = np.array([[0.5, -1.0, 2.0], [4.0, -0.25, 3.0]], np.float32)
Y = np.array([[1.0, 2.0, -2.0], [0.5, 0.25, 3.0]], np.float32)


def result(body: Callable[..., Any], out: DType = F32, order: int | None = None, **arrays: Array) -> Array:
    """What ``body(tl, **handles)`` makes of ``arrays``."""
    memory = Memory(1 << 14)
    shapes: list[tuple[int, ...]] = []
    for at, array in enumerate(arrays.values()):
        memory.put(1024 * at, array)

    def kernel(tl: Any) -> None:
        handles = {
            name: tl.load(1024 * at, array.shape, array.dtype) for at, (name, array) in enumerate(arrays.items())
        }
        y = body(tl, **handles)
        assert y.dtype is out
        assert y.nbytes == int(np.prod(y.shape)) * out.itemsize
        shapes.append(y.shape)
        tl.store(OUT, y)

    FakePe(memory, order=order).run(kernel)
    return memory.view(OUT, shapes[0], out)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


ELEMENTWISE: list[tuple[Callable[..., Any], Callable[..., Any]]] = [
    (lambda tl, x, y: x + y, lambda x, y: x + y),
    (lambda tl, x, y: x - y, lambda x, y: x - y),
    (lambda tl, x, y: x * y, lambda x, y: x * y),
    (lambda tl, x, y: x / y, lambda x, y: x / y),
    (lambda tl, x, y: 1 + x, lambda x, y: 1 + x),
    (lambda tl, x, y: 1 - x, lambda x, y: 1 - x),
    (lambda tl, x, y: np.float32(3) * x, lambda x, y: 3 * x),
    (lambda tl, x, y: np.float64(2) / x, lambda x, y: 2 / x),
    (lambda tl, x, y: -x, lambda x, y: -x),
    (lambda tl, x, y: tl.maximum(x, y), np.maximum),
    (lambda tl, x, y: tl.minimum(0, y), lambda x, y: np.minimum(0, y)),
    (lambda tl, x, y: tl.fma(x, 2.0, y), lambda x, y: x * 2 + y),
    (lambda tl, x, y: tl.clamp(x, -0.5, y), lambda x, y: np.minimum(np.maximum(x, -0.5), y)),
    (lambda tl, x, y: tl.exp(x), lambda x, y: np.exp(x)),
    (lambda tl, x, y: tl.log(tl.abs(x)), lambda x, y: np.log(np.abs(x))),
    (lambda tl, x, y: tl.sqrt(tl.abs(x)), lambda x, y: np.sqrt(np.abs(x))),
    (lambda tl, x, y: tl.rsqrt(tl.abs(x)), lambda x, y: 1 / np.sqrt(np.abs(x))),
    (lambda tl, x, y: tl.sigmoid(x), lambda x, y: sigmoid(x)),
    (lambda tl, x, y: tl.tanh(x), lambda x, y: np.tanh(x)),
    (lambda tl, x, y: tl.sin(x), lambda x, y: np.sin(x)),
    (lambda tl, x, y: tl.cos(x), lambda x, y: np.cos(x)),
    (lambda tl, x, y: tl.relu(x), lambda x, y: np.maximum(x, 0)),
    (lambda tl, x, y: tl.silu(x), lambda x, y: x * sigmoid(x)),
    (
        lambda tl, x, y: tl.gelu(x),
        lambda x, y: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    ),
    (lambda tl, x, y: tl.exp2(x), lambda x, y: np.exp2(x)),
    (lambda tl, x, y: tl.log2(tl.abs(x)), lambda x, y: np.log2(np.abs(x))),
    (lambda tl, x, y: tl.floor(x), lambda x, y: np.floor(x)),
    (lambda tl, x, y: tl.ceil(x), lambda x, y: np.ceil(x)),
    (lambda tl, x, y: tl.erf(x), lambda x, y: np.vectorize(math.erf)(x)),
    (lambda tl, x, y: x % y, np.fmod),
    (lambda tl, x, y: 3 % y, lambda x, y: np.fmod(3, y)),
    (lambda tl, x, y: tl.cumsum(x), lambda x, y: x.cumsum(-1)),
    (lambda tl, x, y: tl.cumsum(x, 0), lambda x, y: x.cumsum(0)),
    (lambda tl, x, y: tl.cumsum(x, reverse=True), lambda x, y: x[:, ::-1].cumsum(-1)[:, ::-1]),
    (lambda tl, x, y: tl.cast(tl.argsort(x), "f32"), lambda x, y: x.argsort(-1)),
    (lambda tl, x, y: tl.take(x, tl.argsort(x, descending=True)), lambda x, y: -np.sort(-x, -1)),
    (lambda tl, x, y: tl.take(x, tl.constant([[2, 0]], "i32")), lambda x, y: x[:, [2, 0]]),
    (lambda tl, x, y: tl.part(tl.reshape(x, 6), 1, 4) + 0, lambda x, y: x.ravel()[1:5]),
    (lambda tl, x, y: tl.bitcast(tl.bitcast(x, "i32") + 1, "f32"), lambda x, y: (x.view("i4") + 1).view("f4")),
    (lambda tl, x, y: tl.constant(Y, "f32") - x, lambda x, y: y - x),
    (lambda tl, x, y: tl.constant([[1], [2]], "f32") * x, lambda x, y: x * [[1], [2]]),
    (lambda tl, x, y: tl.reshape(x, (3, 2)) + 1, lambda x, y: x.reshape(3, 2) + 1),
    (lambda tl, x, y: tl.reshape(tl.reshape(x, 6) + 1, (-1, 3)) + y, lambda x, y: x + 1 + y),
    (lambda tl, x, y: y - tl.expand_dims(tl.sum(x, 1), 1), lambda x, y: y - x.sum(1)[:, None]),
    (lambda tl, x, y: tl.expand_dims(tl.max(x), -1) + 0, lambda x, y: x.max()[None]),
    (lambda tl, x, y: tl.dot(tl.reshape(x, (3, 2)), y), lambda x, y: x.reshape(3, 2) @ y),
    (lambda tl, x, y: tl.where(x < y, x, 7), lambda x, y: np.where(x < y, x, 7)),
    (lambda tl, x, y: tl.where(x > 0, 0, y), lambda x, y: np.where(x > 0, 0, y)),
    (lambda tl, x, y: tl.sum(x, 0), lambda x, y: x.sum(0)),
    (lambda tl, x, y: tl.sum(x), lambda x, y: x.sum()),
    (lambda tl, x, y: tl.max(x, axis=-1), lambda x, y: x.max(-1)),
    (lambda tl, x, y: tl.min(x, 1, keepdims=True), lambda x, y: x.min(1, keepdims=True)),
    (lambda tl, x, y: x - tl.max(x, keepdims=True), lambda x, y: x - x.max()),
    (lambda tl, x, y: tl.softmax(x), lambda x, y: np.exp(x) / np.exp(x).sum(-1, keepdims=True)),
    (lambda tl, x, y: tl.softmax(x, 0), lambda x, y: np.exp(x) / np.exp(x).sum(0)),
    (lambda tl, x, y: tl.trans(x), lambda x, y: x.T),
    (lambda tl, x, y: x.T, lambda x, y: x.T),
    (lambda tl, x, y: tl.broadcast(tl.sum(x, 0), (4, 3)), lambda x, y: np.broadcast_to(x.sum(0), (4, 3))),
    (lambda tl, x, y: tl.zeros((2, 2), "f32"), lambda x, y: np.zeros((2, 2))),
    (lambda tl, x, y: tl.full(5, 1.5, "float32"), lambda x, y: np.full(5, 1.5)),
    (lambda tl, x, y: tl.dot(x, y, trans_b=True), lambda x, y: x @ y.T),
    (lambda tl, x, y: tl.dot(x, y, trans_a=True), lambda x, y: x.T @ y),
    (lambda tl, x, y: tl.dot(x, y.T, acc=tl.full((2, 2), 9, "f32")), lambda x, y: x @ y.T + 9),
]


@pytest.mark.parametrize("case", range(len(ELEMENTWISE)))
@pytest.mark.parametrize("order", [None, 0])
def test_values_are_numpys(case: int, order: int | None) -> None:
    body, expected = ELEMENTWISE[case]
    wanted = np.asarray(expected(X, Y), np.float32)
    found = result(body, order=order, x=X, y=Y)
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("compare", "wanted"),
    [
        (lambda x, y: x < y, X < Y),
        (lambda x, y: x <= y, X <= Y),
        (lambda x, y: x > 0, X > 0),
        (lambda x, y: 0.5 >= x, X <= 0.5),  # noqa: SIM300 - the reflected form is what is tested
        (lambda x, y: x == y, X == Y),
        (lambda x, y: x != 3, X != 3),
    ],
)
def test_comparisons_make_masks(compare: Callable[..., Any], wanted: Array) -> None:
    assert np.array_equal(result(lambda tl, x, y: compare(x, y), I8, x=X, y=Y), wanted.astype(np.int8))


BITS: list[tuple[Callable[..., Any], Callable[..., Any]]] = [
    (lambda tl, x, y: x & y, lambda x, y: x & y),
    (lambda tl, x, y: x | 3, lambda x, y: x | 3),
    (lambda tl, x, y: 5 ^ y, lambda x, y: 5 ^ y),
    (lambda tl, x, y: ~x, lambda x, y: ~x),
    (lambda tl, x, y: 1 << (y & 7), lambda x, y: 1 << (y & 7)),
    (lambda tl, x, y: x >> 2, lambda x, y: x >> 2),
    (lambda tl, x, y: 7 & x | y, lambda x, y: 7 & x | y),
    (lambda tl, x, y: tl.argmax(x, 1), lambda x, y: x.argmax(1)),
    (lambda tl, x, y: tl.argmin(x), lambda x, y: x.argmin()),
    (lambda tl, x, y: tl.argmin(tl.cast(x, "f16"), 0, keepdims=True), lambda x, y: x.argmin(0)[None]),
    (lambda tl, x, y: tl.constant(np.array([[True, False, True]]), "i32") + x, lambda x, y: x + np.array([1, 0, 1])),
]


@pytest.mark.parametrize("case", range(len(BITS)))
def test_whole_numbers_are_numpys(case: int) -> None:
    body, expected = BITS[case]
    x, y = np.array([[5, -6, 7], [100, 7, -9]], np.int32), np.array([[3, 2, -1], [90, 0, 77]], np.int32)
    found = result(body, I32, x=x, y=y)
    assert np.array_equal(found, expected(x, y))


@pytest.mark.parametrize("item", ALL, ids=str)
def test_all_types_add_and_cast(item: DType) -> None:
    x = random_array(np.random.default_rng(0), (3, 5), item)
    doubled = (x.astype(np.float32) * 2).astype(item.numpy)
    assert np.array_equal(result(lambda tl, x: x + x, item, x=x), doubled)
    assert np.array_equal(result(lambda tl, x: tl.cast(x, "f32"), x=x), x.astype(np.float32))
    assert np.array_equal(result(lambda tl, x: tl.cast(tl.cast(x, "f32"), item), item, x=x), x)


@pytest.mark.parametrize("item", ALL, ids=str)
def test_a_copy_has_the_same_bits(item: DType) -> None:
    """Also those of numbers that are none, which no arithmetic keeps."""
    bits = np.random.default_rng(0).integers(0, 256, 3 * 64 * item.itemsize, np.uint8)
    x = bits.view(item.numpy).reshape(3, 64)
    assert result(lambda tl, x: tl.copy(x), item, x=x).tobytes() == bits.tobytes()
    turned = result(lambda tl, x: tl.copy(x.T), item, x=x)
    assert turned.tobytes() == np.ascontiguousarray(x.T).tobytes()


def test_a_copy_is_a_handle_of_its_own() -> None:
    def kernel(tl: Any) -> None:
        x = tl.zeros((2, 2), "f16")
        y = tl.copy(x)
        assert (y.shape, y.dtype) == (x.shape, x.dtype)
        assert y.addr != x.addr

    pe = FakePe(Memory(64))
    pe.run(kernel)
    assert [each.name for each in pe.commands if each.op is MATH] == ["zeros", "copy"]


def test_a_view_is_no_command() -> None:
    def kernel(tl: Any) -> None:
        x = tl.load(0, (2, 6), "f32")
        y = tl.reshape(x, (3, -1))
        assert (y.shape, y.addr, y.nbytes) == ((3, 4), x.addr, x.nbytes)
        assert tl.reshape(x, (2, 6)) is x
        assert tl.expand_dims(y, 1).shape == (3, 1, 4)
        tl.store(64, y)

    pe = FakePe(Memory(256), lazy=True)
    pe.run(kernel)
    assert [each.after for each in pe.commands] == [(), (0,)]  # it waits for what makes the handle


def test_a_number_takes_the_handles_type() -> None:
    x = np.ones(2, BF16.numpy)
    assert (result(lambda tl, x: x * 1.01, BF16, x=x) == np.asarray(1.01, BF16.numpy)).all()
    assert (result(lambda tl, x: x / 2, I32, x=np.array([7, -7], np.int32)) == [3, -3]).all()


@pytest.mark.parametrize(
    ("body", "out"),
    [
        (lambda tl, a, b: tl.dot(a, b), F16),
        (lambda tl, a, b: tl.dot(a, b, out_dtype="f32"), F32),
        (lambda tl, a, b: tl.dot(a, b, tl.zeros((2, 2), "f32")), F32),
        (lambda tl, a, b: tl.dot(a, b, tl.zeros((2, 2), "f16")), F16),
        (lambda tl, a, b: tl.dot(tl.cast(a, "i8"), tl.cast(b, "i8")), I32),
        (lambda tl, a, b: tl.dot(tl.cast(a, "i8"), tl.cast(b, "i8"), tl.zeros((2, 2), "i32")), I32),
        (lambda tl, a, b: tl.dot(tl.cast(a, "i8"), tl.cast(b, "i8"), out_dtype="i8"), I8),
    ],
)
def test_types_of_a_dot(body: Callable[..., Any], out: DType) -> None:
    a, b = np.full((2, 4), 2, np.float16), np.full((4, 2), 3, np.float16)
    assert (result(body, out, a=a, b=b) == 24).all()


def test_strides_and_ragged_edges() -> None:
    memory = Memory(4096)
    matrix = np.arange(8 * 10, dtype=np.float16).reshape(8, 10)
    memory.put(0, matrix)

    def kernel(tl: Any) -> None:
        inner = tl.load(0 + (2 * 10 + 3) * 2, (2, 4), "f16", strides=(20, 2))
        tl.store(2048, inner)
        edge = tl.load(np.int64((6 * 10 + 8) * 2), (4, 4), "f16", strides=(20, 2), valid=(2, 2), other=-1)
        tl.store(2048 + 16, edge)
        tl.store((0 * 10 + 8) * 2, edge, strides=(20, 2), valid=(1, 2))
        tl.store(3000, tl.load(40, 3, "f16", strides=4, valid=2, other=9))

    FakePe(memory).run(kernel)
    assert np.array_equal(memory.view(2048, (2, 4), F16), matrix[2:4, 3:7])
    edge = np.full((4, 4), -1, np.float16)
    edge[:2, :2] = matrix[6:, 8:]
    assert np.array_equal(memory.view(2064, (4, 4), F16), edge)
    wanted = matrix.copy()
    wanted[0, 8:] = matrix[6, 8:]
    assert np.array_equal(memory.view(0, (8, 10), F16), wanted)
    assert memory.view(3000, (3,), F16).tolist() == [20, 22, 9]


def test_scatter_gather_lists() -> None:
    memory = Memory(4096)
    memory.put(0, np.arange(32, dtype=np.float16))

    def kernel(tl: Any) -> None:
        x = tl.load([(40, 4), (None, 4), (2, 2), [np.int64(40), 6]], (2, 4), "f16", other=-1)
        tl.store(2048, x)
        tl.store(((1024, 6), (None, 4), (1026, 6)), x)

    FakePe(memory).run(kernel)
    assert memory.view(2048, (8,), F16).tolist() == [20, 21, -1, -1, 1, 20, 21, 22]
    assert memory.view(1024, (5,), F16).tolist() == [20, 20, 21, 22, 0]


def test_descriptors_that_say_nothing_are_left_out() -> None:
    def kernel(tl: Any) -> None:
        x = tl.load(0, (2, 4), "f16", strides=(8, 2), valid=(2, 4))
        tl.store(0, x, strides=[8, 2], valid=[2, 4])

    pe = FakePe(Memory(64))
    pe.run(kernel)
    assert all(c.ref.strides is None and c.ref.valid is None for c in pe.commands)


@given(
    a=st.lists(st.integers(1, 3), max_size=4).map(tuple),
    b=st.lists(st.integers(1, 3), max_size=4).map(tuple),
)
def test_shapes_broadcast_as_numpys(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    try:
        wanted = np.broadcast_shapes(a, b)
    except ValueError:
        with pytest.raises(KernelError, match="do not broadcast") as caught:
            broadcast(a, b)
        assert str(a) in str(caught.value)
        assert str(b) in str(caught.value)
    else:
        assert broadcast(a, b) == wanted


@given(st.data())
def test_results_of_broadcasting_are_numpys(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple))
    thin = tuple(data.draw(st.sampled_from((1, n))) for n in shape)[data.draw(st.integers(0, len(shape) - 1)) :]
    x, y = np.arange(np.prod(shape), dtype=np.float32).reshape(shape), np.ones(thin, np.float32)
    if data.draw(st.booleans()):
        x, y = y, x
    assert np.array_equal(result(lambda tl, x, y: x - y, x=x, y=y), x - y)


def test_commands_wait_for_what_is_under_way_only() -> None:
    def kernel(tl: Any) -> None:
        a = tl.load(0, (4, 4), "f32")
        b = tl.load(64, (4, 4), "f32")
        c = tl.dot(a, b, tl.zeros((4, 4), "f32"))
        tl.barrier()
        tl.store(128, c + a)

    pe = FakePe(Memory(256), lazy=True)
    pe.run(kernel)
    assert [c.after for c in pe.commands] == [(), (), (), (0, 1, 2), (), (4,)]


def test_print_takes_anything() -> None:
    def kernel(tl: Any) -> None:
        x = tl.zeros((2,), "f32")
        tl.device_print("x =", x, 3)

    pe = FakePe(Memory(64))
    pe.run(kernel)
    zeros, line = pe.commands
    assert zeros.op is MATH
    assert line.parts == ("x =", zeros.dst, "3")


def test_the_example_of_the_documentation_runs() -> None:
    text = (Path(__file__).parents[2] / "docs" / "kernels.md").read_text()
    names: dict[str, Any] = {}
    exec(text.split("```python\n")[1].split("```")[0], names)
    memory = Memory(4096)
    x = random_array(np.random.default_rng(1), (7, 5), F16)
    memory.put(0, x)
    for pe in range(3):
        site = site_of(names["scaled_rows"], (pe, 0, 0), (3, 1, 1))
        FakePe(memory).run(names["scaled_rows"], 0, 1024, 7, 5, 0.5, site=site)
    wanted = np.exp(x.astype(np.float32) / 2)
    wanted /= wanted.sum(-1, keepdims=True)
    np.testing.assert_allclose(memory.view(1024, (7, 5), F16), wanted, rtol=1e-3)


def test_casts_that_change_nothing_are_free() -> None:
    def kernel(tl: Any) -> None:
        x = tl.zeros((2, 2), "f32")
        assert tl.cast(x, "float32") is x
        assert tl.broadcast(x, (2, 2)) is x

    pe = FakePe(Memory(64))
    pe.run(kernel)
    assert len(pe.commands) == 1
