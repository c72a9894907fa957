from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from fake_engine import FakeEngine
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kernbench.common.errors import InputError
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.testing import compare


def close(actual, expected, rtol=None, atol=None, **options):
    return compare("x", np.asarray(actual), np.asarray(expected), rtol=rtol, atol=atol, **options)


FLOATS = hnp.arrays(np.float32, 20, elements=st.floats(width=32))


@given(actual=FLOATS, expected=FLOATS, rtol=st.floats(0, 1), atol=st.floats(0, 1), equal_nan=st.booleans())
def test_it_agrees_with_numpy(actual, expected, rtol, atol, equal_nan):
    found = close(actual, expected, rtol, atol, equal_nan=equal_nan)
    with np.errstate(all="ignore"):
        wide = actual.astype(np.float64), expected.astype(np.float64)
        right = np.isclose(*wide, rtol=rtol, atol=atol, equal_nan=equal_nan)
    assert found.passed == right.all()
    assert found.wrong == np.count_nonzero(~right)
    if not found.passed:
        assert found.first_wrong.index == (int(np.argmin(right)),)


def test_the_first_wrong_element_and_the_greatest_errors():
    expected = np.arange(12.0).reshape(3, 4)
    actual = expected.copy()
    actual[1, 2] += 3
    actual[2, 3] += 4
    found = close(actual, expected)
    assert (found.elements, found.wrong, found.max_abs_error, found.max_rel_error) == (12, 2, 4, 0.5)
    assert (found.first_wrong.index, found.first_wrong.got, found.first_wrong.expected) == ((1, 2), 9, 6)
    assert str(found) == (
        "FAIL x: 2 of 12 elements wrong, max error 4 absolute, 0.5 relative (rtol=1e-07, atol=1e-07); "
        "first at [1, 2]: got 9, expected 6"
    )
    assert str(close(expected, expected)).startswith("PASS x: 12 elements, max error 0 absolute")


@pytest.mark.parametrize(
    ("actual", "expected", "passed"),
    [
        (math.nan, 1.0, False),
        (1.0, math.nan, False),
        (math.nan, math.nan, False),
        (math.inf, math.inf, True),
        (math.inf, -math.inf, False),
        (1.0, math.inf, False),
        (math.inf, 1.0, False),
    ],
)
def test_what_is_not_a_number_equals_nothing_and_infinity_itself(actual, expected, passed):
    assert close([actual], [expected]).passed == passed


def test_nan_equals_nan_when_asked():
    found = close([math.nan, 1.0], [math.nan, 1.0], equal_nan=True)
    assert found.passed
    assert found.max_abs_error == 0


def test_an_error_that_is_nan_is_shown_as_such():
    assert math.isnan(close([math.nan, 1.0], [1.0, 1.0]).max_abs_error)


@pytest.mark.parametrize(
    ("dtype", "error", "passed"),
    [
        (np.float16, 2**-10, True),
        (np.float16, 2**-9, False),
        (ml_dtypes.bfloat16, 2**-7, True),
        (ml_dtypes.bfloat16, 2**-5, False),
        (np.float32, 1e-6, True),
        (np.float32, 1e-4, False),
        (ml_dtypes.float8_e4m3fn, 0.125, True),
        (ml_dtypes.float8_e4m3fn, 0.25, False),
    ],
)
def test_tolerances_fit_the_type(dtype, error, passed):
    assert close(np.array([1 + error]).astype(dtype), np.array([1.0], np.float32)).passed == passed


def test_integers_have_to_be_equal():
    assert close(np.array([1, 2], np.int32), np.array([1, 2])).passed
    assert not close(np.array([1, 3], np.int32), np.array([1, 2])).passed


def test_another_shape_or_kind_fails_with_words():
    assert str(close(np.zeros((2, 3)), np.zeros(6))) == "FAIL x: it has shape (2, 3), expected is (6,)"
    assert str(close(np.zeros(2, np.float16), np.zeros(2, int))) == "FAIL x: it is f16, expected is i64"
    assert close(np.zeros(2, ml_dtypes.bfloat16), np.zeros(2)).passed


def test_a_wrong_element_is_found_in_the_machine(torch):
    tensor = torch.zeros(8, 8, dtype="f16", dp=DPPolicy("row_wise", "column_wise"), name="y")
    tensor[6, 5] = 1
    found = torch.testing.assert_close(tensor, np.zeros((8, 8)))
    shard = next(each for each in tensor.shards if (each.cube, each.pe) == (1, 2))
    # Row 6 is the third of cube 1, and column 5 the second of PE 2's two.
    place = f"sip0.cube1.pe2, {PhysAddr.decode(shard.pa + (2 * 2 + 1) * 2)!r}"
    assert (found.name, found.first_wrong.index, found.first_wrong.place) == ("y", (6, 5), place)
    assert f"at [6, 5] ({place}): got 1, expected 0" in str(found)
    assert torch.testing.comparisons == (found,)


def test_checks_cost_nothing_and_go_on(torch, engine):
    tensor, other = torch.ones(4), torch.ones(4, dtype="f16")
    now, sent = engine.now, len(engine.messages)
    assert not torch.testing.assert_close(tensor, np.zeros(4)).passed
    assert torch.testing.assert_close(tensor, lambda: other, name="later").name == "later"
    assert torch.testing.assert_close(torch.from_numpy(np.ones(2)), [1.0, 1.0]).name == "comparison 2"
    assert (engine.now, len(engine.messages)) == (now, sent)
    assert len(torch.testing.comparisons) == 3


def test_without_verifying_nothing_is_evaluated(machine):
    def never():
        raise AssertionError

    with RuntimeContext(FakeEngine(machine, enable_data=False)) as torch:
        assert torch.testing.assert_close(torch.zeros(2), never) is None
        assert (torch.testing.comparisons, torch.testing.skipped) == ((), 1)


def test_verifying_takes_data(machine):
    with pytest.raises(InputError, match="enable_data=True"):
        RuntimeContext(FakeEngine(machine, enable_data=False), verify=True)
