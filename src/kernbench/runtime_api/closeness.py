"""When numbers are close to others: tolerances that fit their types, and which elements are not."""

from __future__ import annotations

import numpy as np

from kernbench.common.dtypes import Array, DType
from kernbench.common.values import value
from kernbench.policy.placement.geometry import Index


@value
class Tolerance:
    """``|actual - expected| <= atol + rtol * |expected|``."""

    rtol: float
    atol: float


# Those of torch.testing.assert_close; of the f8 types, which it does not list, one unit in the last place.
_DEFAULT = {
    "float64": Tolerance(1e-7, 1e-7),
    "f32": Tolerance(1.3e-6, 1e-5),
    "f16": Tolerance(1e-3, 1e-5),
    "bf16": Tolerance(1.6e-2, 1e-5),
    "f8e4m3": Tolerance(0.125, 2**-9),
    "f8e5m2": Tolerance(0.25, 2**-16),
}
_EXACT = Tolerance(0.0, 0.0)
_ELEMENTS_AT_ONCE = 1 << 16


def tolerance_for(dtype: DType, rtol: float | None = None, atol: float | None = None) -> Tolerance:
    """What was asked for, else what fits the dtype: integers have to be equal."""
    default = _DEFAULT.get(dtype.name, _EXACT)
    return Tolerance(default.rtol if rtol is None else rtol, default.atol if atol is None else atol)


@value
class Errors:
    """Which elements are ``wrong`` (bool, of the shape compared), and the maximum errors: NaN when one is NaN."""

    wrong: Array
    max_abs: float
    max_rel: float


def errors_of(actual: Array, expected: Array, tolerance: Tolerance, *, equal_nan: bool) -> Errors:
    """Compare two arrays of one shape in f64. NaN equals NaN only if asked."""
    # Block by block: the errors of a large tensor in f64 would take many times its memory.
    got, wanted = actual.reshape(-1), expected.reshape(-1)
    wrong = np.empty(got.size, np.bool_)
    max_abs = max_rel = 0.0
    for at in range(0, got.size, _ELEMENTS_AT_ONCE):
        part = slice(at, at + _ELEMENTS_AT_ONCE)
        block = _block_errors(got[part], wanted[part], tolerance, equal_nan=equal_nan)
        wrong[part] = block.wrong
        max_abs, max_rel = greater(max_abs, block.max_abs), greater(max_rel, block.max_rel)
    return Errors(wrong.reshape(actual.shape), max_abs, max_rel)


def first_true(mask: Array) -> Index:
    """The index of the first element that is true, of which there has to be one."""
    return tuple(int(at) for at in np.unravel_index(int(np.argmax(mask)), mask.shape))


def greater(a: float, b: float) -> float:
    """As ``max``, but NaN when one is."""
    return float(np.maximum(a, b))


def _block_errors(actual: Array, expected: Array, tolerance: Tolerance, *, equal_nan: bool) -> Errors:
    got, wanted = actual.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        error = np.where(got == wanted, 0.0, np.abs(got - wanted))
        near = error <= tolerance.atol + tolerance.rtol * np.abs(wanted)
    # Whatever the tolerances, only infinity itself is close to infinity.
    wrong = (got != wanted) & ~(near & np.isfinite(wanted))
    if equal_nan:
        both_nan = np.isnan(got) & np.isnan(wanted)
        wrong, error = wrong & ~both_nan, np.where(both_nan, 0.0, error)
    return Errors(wrong, float(error.max()), _max_relative(error, wanted))


def _max_relative(error: Array, wanted: Array) -> float:
    """The greatest relative error where something other than zero is expected."""
    magnitude = np.abs(wanted)
    some = magnitude > 0
    with np.errstate(invalid="ignore"):
        return float((error[some] / magnitude[some]).max(initial=0.0))
