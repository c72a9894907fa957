"""Comparisons of tensors whose elements lie in several places: every copy counts."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from fake_engine import FakeEngine, space_of
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from engine_support import two_cubes
from kernbench.engine.engine import GraphEngine
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.policy.placement.dp import DPPolicy
from kernbench.policy.placement.geometry import Window
from kernbench.runtime_api import testing
from kernbench.runtime_api.arrays import errors_of
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.tensor import Tensor
from kernbench.runtime_api.testing import compare
from kernbench.runtime_api.transfers import TensorCopy
from kernbench.topology.builder import resolve_topology

FOUR = DPPolicy(num_pes=4, num_cubes=1)


def put(engine: FakeEngine, tensor: Tensor, pe: tuple[int, int, int], values: Any, first: int = 0) -> int:
    """Write to the shard of one PE only, past the host; where."""
    shard = next(each for each in tensor.shards if (each.sip, each.cube, each.pe) == pe)
    pa = shard.pa + first * tensor.dtype.itemsize
    engine.memory_store.write(space_of(pa), pa, np.asarray(values).astype(tensor.dtype.numpy))
    return pa


def test_four_pes_that_store_four_numbers_fail():
    """Each PE stores its own number to its copy: this passed when only the first copy was looked at."""

    def number(x_ptr, *, tl):
        tl.store(x_ptr, tl.full((16,), tl.program_id(0) + 1.0, "f32"))

    engine = GraphEngine(two_cubes())
    with RuntimeContext(engine) as torch:
        x = torch.zeros(16, dp=FOUR, name="x")
        torch.launch("number", number, x)
        now, sent = engine.now, len(engine.handles)
        found = torch.testing.assert_close(x, np.ones(16))
        assert (engine.now, len(engine.handles)) == (now, sent)
        assert x.numpy().tolist() == [1] * 16
    assert not found.passed
    assert (found.elements, found.wrong, found.max_abs_error, found.max_rel_error) == (16, 16, 3, 3)
    assert (found.pes, found.wrong_pes) == (4, ((0, 0, 1), (0, 0, 2), (0, 0, 3)))
    assert (found.first_wrong.index, found.first_wrong.got, found.first_wrong.expected) == ((0,), 2, 1)
    assert found.first_wrong.place.startswith("sip0.cube0.pe1, ")
    assert "3 of 4 PEs are wrong: sip0.cube0.pe1, sip0.cube0.pe2, sip0.cube0.pe3" in str(found)


def test_an_element_of_a_tensor_that_is_split_and_copied(torch, engine):
    """Rows go to PEs, every cube has all: what is told is the tensor's index, and the PE that holds it."""
    x = torch.zeros(8, 3, dtype="f16", dp=DPPolicy("replicate", "row_wise"), name="x")
    pa = put(engine, x, (0, 1, 2), 5, first=4)  # of rows 4 and 5 the element [5, 1]
    found = torch.testing.assert_close(x, np.zeros((8, 3)))
    place = f"sip0.cube1.pe2, {PhysAddr.decode(pa)!r}"
    assert (found.first_wrong.index, found.first_wrong.got, found.first_wrong.place) == ((5, 1), 5, place)
    assert (found.wrong, found.pes, found.wrong_pes) == (1, 8, ((0, 1, 2),))


def test_under_another_shape(torch, engine):
    x = torch.zeros(8, 3, dp=DPPolicy("replicate", "row_wise"), name="x")
    put(engine, x, (0, 1, 2), 5, first=4)
    found = torch.testing.assert_close(x.reshape(4, 6), np.zeros((4, 6)))
    assert (found.first_wrong.index, found.wrong_pes) == ((2, 4), ((0, 1, 2),))


def test_without_axes(torch, engine):
    x = torch.zeros((), dp=DPPolicy(), name="x")
    assert torch.testing.assert_close(x, np.zeros(())).passed
    put(engine, x, (0, 1, 0), 2.0)
    found = torch.testing.assert_close(x, np.zeros(()))
    assert (found.first_wrong.index, found.wrong_pes) == ((), ((0, 1, 0),))


def test_the_first_copy_is_told_first_and_counts_among_the_wrong(torch, engine):
    x = torch.ones(4, dp=FOUR, name="x")
    put(engine, x, (0, 0, 3), [0, 0, 0, 0])
    found = torch.testing.assert_close(x, np.array([1, 1, 1, 0.0]))
    assert (found.wrong, found.wrong_pes) == (4, tuple((0, 0, pe) for pe in range(4)))
    assert (found.first_wrong.index, found.first_wrong.pe) == ((3,), None)
    assert "sip0.cube0.pe0" in found.first_wrong.place
    found = torch.testing.assert_close(x, np.zeros(4))
    assert found.wrong_pes == ((0, 0, 0), (0, 0, 1), (0, 0, 2))


def test_copies_within_the_tolerance_pass_with_the_greatest_error(torch, engine):
    x = torch.ones(4, dp=FOUR, name="x")
    put(engine, x, (0, 0, 2), 1 + 2**-20)
    found = torch.testing.assert_close(x, np.ones(4))
    assert found.passed
    assert found.max_abs_error == 2**-20
    assert not torch.testing.assert_close(x, np.ones(4), rtol=0, atol=0).passed


@pytest.mark.parametrize(
    ("dtype", "first", "other", "equal_nan", "passed"),
    [
        ("f32", math.nan, math.nan, True, True),
        ("f32", math.nan, math.nan, False, False),
        ("f32", 1.0, math.nan, True, False),
        ("f16", math.inf, math.inf, False, True),
        ("f16", math.inf, -math.inf, False, False),
        ("f32", 0.0, -0.0, False, True),
        ("i32", 7, 8, False, False),
        ("i8", -7, -7, False, True),
        ("bf16", 1.0, 1 + 2**-7, False, True),
        ("bf16", 1.0, 1 + 2**-5, False, False),
        ("f8e5m2", 1.0, 1.25, False, True),
        ("f8e5m2", 1.0, 1.5, False, False),
    ],
)
def test_numbers_of_all_kinds(torch, engine, dtype, first, other, equal_nan, passed):
    x = torch.full((4,), 3, dtype=dtype, dp=FOUR)
    for pe in range(4):
        put(engine, x, (0, 0, pe), first if pe != 2 else other, first=1)
    expected = np.array([3, first, 3, 3])
    found = torch.testing.assert_close(x, expected, equal_nan=equal_nan)
    assert found.passed == passed
    if not passed:
        assert found.first_wrong.index == (1,)


ARRAYS = hnp.arrays(np.float32, 12, elements=st.sampled_from([0.0, 1.0, 1.0000005, 2.0, math.inf, math.nan]))


@given(held=st.lists(ARRAYS, min_size=1, max_size=4), expected=ARRAYS, equal_nan=st.booleans())
def test_it_is_as_if_all_copies_were_compared_one_by_one(held, expected, equal_nan):
    parts = [slice(0, 8), slice(8, 12)]  # each in every copy, on PEs of its own
    first = held[0]
    given_copies = [
        TensorCopy((0, cube, at), Window(((part.start, part.stop),)), _unless_same(array[part], first[part]))
        for cube, array in enumerate(held)
        for at, part in enumerate(parts)
    ]
    found = compare("x", first, expected, rtol=None, atol=None, equal_nan=equal_nan, copies=given_copies)
    alone = [compare("x", array, expected, rtol=None, atol=None, equal_nan=equal_nan) for array in held]
    close = [np.isclose(a.astype(float), expected.astype(float), 1.3e-6, 1e-5, equal_nan=equal_nan) for a in held]
    assert found.passed == all(each.passed for each in alone)
    assert found.wrong == np.count_nonzero(~np.all(close, axis=0))
    assert found.wrong_pes == tuple(
        (0, cube, at) for cube, right in enumerate(close) for at, part in enumerate(parts) if not right[part].all()
    )
    errors = [each.max_abs_error for each in alone]
    assert found.max_abs_error == max(errors) or (math.isnan(found.max_abs_error) and any(map(math.isnan, errors)))


def _unless_same(array: Any, first: Any) -> Any:
    return None if array.tobytes() == first.tobytes() else array


def test_another_shape_is_told_and_nothing_compared(torch):
    x = torch.zeros(4, dp=FOUR, name="x")
    assert "expected is (5,)" in str(torch.testing.assert_close(x, np.zeros(5)))


def test_of_what_is_expected_the_first_copy_counts(torch, engine):
    x, y = torch.ones(4, dp=FOUR), torch.ones(4, dp=FOUR)
    put(engine, y, (0, 0, 1), 9)
    assert torch.testing.assert_close(x, y).passed
    assert torch.testing.assert_close(x, lambda: y).passed
    assert not torch.testing.assert_close(y, x).passed


def test_128_copies_are_in_memory_one_at_a_time():
    """All at once would take 128 times the tensor; most of what is taken are its errors in f64."""
    machine = resolve_topology("default", ["system.sips.count=1", "system.components.host.impl=fake_engine.FakeHost"])
    engine = FakeEngine(machine)
    with RuntimeContext(engine) as torch:
        values = np.arange(1 << 18, dtype=np.float32)
        x = torch.tensor(values, dp=DPPolicy(), name="x")
        assert len(x.shards) == 128
        for cube in range(16):
            put(engine, x, (0, cube, 7), values[0] + 1e-6)
        tracemalloc.start()
        found = torch.testing.assert_close(x, values)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert found.passed
    assert found.pes == 128
    assert found.max_abs_error == pytest.approx(1e-6)
    assert peak < 12 * values.nbytes


def test_bytes_that_are_no_native_type_are_compared_too(torch, engine):
    x = torch.full((4,), 1, dtype="f8e4m3", dp=FOUR)
    assert torch.testing.assert_close(x, np.ones(4, ml_dtypes.float8_e4m3fn)).passed
    put(engine, x, (0, 0, 1), 2, first=3)
    assert torch.testing.assert_close(x, np.ones(4)).wrong_pes == ((0, 0, 1),)


def test_copies_with_the_same_bytes_are_not_compared_again(torch, engine, monkeypatch):
    compared = []

    def counted(actual, *others, **options):
        compared.append(actual.size)
        return errors_of(actual, *others, **options)

    monkeypatch.setattr(testing, "errors_of", counted)
    x = torch.zeros(8, 3, dp=DPPolicy("replicate", "row_wise"))
    put(engine, x, (0, 1, 2), 1)
    torch.testing.assert_close(x, np.zeros((8, 3)))
    assert compared == [24, 6]
