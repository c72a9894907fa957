"""Pointers as one address and steps: the same addresses as NumPy's, and the same descriptors as without."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extras import need

need("triton")

import kernbench.triton  # noqa: E402, F401, I001 - before triton
import triton.language as tl  # noqa: E402

from kernbench.frontends.triton.descriptors import describe  # noqa: E402
from kernbench.frontends.triton.memory import PointerHandle, describe_pointers, move_pointers, shape_of  # noqa: E402
from kernbench.frontends.triton.running import Running, begin, running  # noqa: E402
from kernbench.frontends.triton.values import TensorHandle  # noqa: E402

TO_F16 = tl.pointer_type(tl.float16)
WIDTH = 2
NO_TL: Any = None
Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def kernel() -> Running:
    begin(Running(NO_TL, (1, 1, 1)))
    return running()


def offset(numbers: Array) -> Any:
    return TensorHandle(numbers, tl.int64 if numbers.dtype == np.int64 else tl.int32)


def offsets(shape: tuple[int, ...]) -> st.SearchStrategy[Array]:
    """One number, an axis of them that is repeated along the others, or all that there are."""

    def made(seed: int, axis: int | None, item: str) -> Array:
        n = [1 if axis is not None and i != axis else extent for i, extent in enumerate(shape)]
        numbers = np.random.default_rng(seed).integers(-50, 50, n if axis != len(shape) else [1] * len(shape))
        return np.broadcast_to(numbers.astype(item), shape)

    axes = st.sampled_from([None, *range(len(shape) + 1)])
    return st.builds(made, st.integers(0, 9), axes, st.sampled_from(["int32", "int64"]))


@settings(deadline=None, max_examples=60)
@given(st.data(), st.sampled_from([(1,), (8,), (4, 8), (2, 3, 4)]))
def test_moves_add_up_as_in_numpy(data: st.DataObject, shape: tuple[int, ...]) -> None:
    pointers, expected = PointerHandle(4096, TO_F16).broadcast(shape), np.full(shape, 4096)
    for each in data.draw(st.lists(offsets(shape), max_size=4)):
        pointers, expected = move_pointers(pointers, offset(each)), expected + WIDTH * each.astype(np.int64)
        assert shape_of(pointers) == shape
    assert (pointers.data.astype(np.int64) == expected).all()
    mask = data.draw(st.none() | st.integers(0, 2 ** (shape[0] + 1)).map(lambda n: np.arange(np.prod(shape)) < n))
    mask = None if mask is None else mask.reshape(shape)
    for writing in (False, True):
        for again in (pointers, move_pointers(pointers, offset(np.full(shape, 7)))):
            wanted = describe(again.data, mask, WIDTH, writing=writing)
            assert describe_pointers(again, mask, WIDTH, writing=writing) == wanted


@pytest.mark.parametrize("item", ["int32", "int64"])
@pytest.mark.parametrize("shape", [(1,), (4,)])
def test_addresses_beyond_4_gib(item: str, shape: tuple[int, ...]) -> None:
    """Three offsets of 32 bits are 12 GiB of f16, whichever way they add up: each, and in a base that all have."""
    far = np.full(shape, 2**31 - 8) + np.arange(shape[0])
    places = [3 * at for at in far.tolist()]
    pointers = PointerHandle(4096, TO_F16).broadcast(shape)
    for _ in range(3):
        pointers = move_pointers(pointers, offset(far.astype(item)))
    addresses = [4096 + WIDTH * place for place in places]
    assert pointers.data.tolist() == addresses
    assert describe_pointers(pointers, None, WIDTH, writing=False) == describe(
        np.array(addresses), None, WIDTH, writing=False
    )


@pytest.mark.parametrize("step", [2**31, -(2**31) - 1, 3 * 2**31])
def test_moves_of_4_gib_at_once(step: int) -> None:
    """From addresses that a kernel has worked out itself, and from pointers that are steps away already."""
    columns, start = np.arange(4), 2**34
    expected = (start + WIDTH * (step + columns)).tolist()
    addresses = TensorHandle(np.full(4, start, np.uint64), TO_F16)
    assert move_pointers(addresses, offset(step + columns)).data.tolist() == expected
    assert move_pointers(PointerHandle(start, TO_F16, np.array([step])), offset(columns)).data.tolist() == expected


def test_blocks_that_a_loop_goes_through_have_one_plan(kernel: Running) -> None:
    block = move_pointers(PointerHandle(4096, TO_F16).broadcast((4, 8)), offset(np.arange(32).reshape(4, 8)))
    for _ in range(5):
        describe_pointers(block, None, WIDTH, writing=False)
        block = move_pointers(block, offset(np.broadcast_to(np.int32(64), (4, 8))))
    assert len(kernel.plans) == 1


def test_plans_of_arrays_that_are_gone_are_not_found(kernel: Running) -> None:
    """Python may give another array the number of one that is gone: a plan keeps its array."""
    for n in range(300):
        block = move_pointers(PointerHandle(0, TO_F16), offset(np.arange(8) * (n + 1)))
        assert describe_pointers(block, None, WIDTH, writing=True) == describe(block.data, None, WIDTH, writing=True)
    assert len(kernel.plans) <= 64
