"""``torch.testing``: comparisons that a run evaluates when it is asked to verify: close, and if not, where."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np

from kernbench.common.dtypes import DType
from kernbench.common.program_line import ProgramLine, calling_line
from kernbench.policy.address.phyaddr import AddressFormat
from kernbench.runtime_api.arrays import Array, holds_floats, host_dtype, numeric
from kernbench.runtime_api.tensor import Tensor


@dataclass(frozen=True, slots=True)
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


def tolerance_for(dtype: DType, rtol: float | None, atol: float | None) -> Tolerance:
    """What was asked for, else what fits the dtype: integers have to be equal."""
    default = _DEFAULT.get(dtype.name, _EXACT)
    return Tolerance(default.rtol if rtol is None else rtol, default.atol if atol is None else atol)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """One element that is wrong; ``place`` says which PE and address hold it, empty when nobody knows."""

    index: tuple[int, ...]
    got: float
    expected: float
    place: str = ""

    def __str__(self) -> str:
        at = f" ({self.place})" if self.place else ""
        return f"at {list(self.index)}{at}: got {self.got:.9g}, expected {self.expected:.9g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What a comparison found. The maximum errors are over all elements: NaN when a NaN is among the wrong ones.

    ``reason`` is why nothing was compared (shapes, types), empty when it was; ``line`` asked for one that failed.
    """

    name: str
    tolerance: Tolerance
    elements: int = 0
    wrong: int = 0
    max_abs_error: float = 0.0
    max_rel_error: float = 0.0
    first_wrong: Mismatch | None = None
    reason: str = ""
    line: ProgramLine | None = None

    @property
    def passed(self) -> bool:
        """Whether all is close."""
        return not self.wrong and not self.reason

    def __str__(self) -> str:
        if self.reason:
            return f"FAIL {self.name}: {self.reason}"
        error = f"max error {self.max_abs_error:.3g} absolute, {self.max_rel_error:.3g} relative"
        allowed = f"(rtol={self.tolerance.rtol:g}, atol={self.tolerance.atol:g})"
        if self.passed:
            return f"PASS {self.name}: {self.elements} elements, {error} {allowed}"
        wrong = f"{self.wrong} of {self.elements} elements wrong"
        return f"FAIL {self.name}: {wrong}, {error} {allowed}; first {self.first_wrong}"


def verdict(comparisons: Sequence[Comparison]) -> str:
    """Return PASS or FAIL of what was compared; ``not verified`` when nothing was."""
    if not comparisons:
        return "not verified"
    return "PASS" if all(each.passed for each in comparisons) else "FAIL"


def compare(
    name: str, actual: Array, expected: Array, *, rtol: float | None, atol: float | None, equal_nan: bool = False
) -> Comparison:
    """Compare element by element in f64, with tolerances that fit the dtype of ``actual`` where none are given.

    A float of any width may be compared with any other; floats and integers may not. NaN equals NaN only if asked.
    """
    tolerance = tolerance_for(host_dtype(actual), rtol, atol)
    reason = _unlike(actual, expected)
    if reason:
        return Comparison(name=name, tolerance=tolerance, reason=reason)
    # Block by block: the errors of a large tensor in f64 would take many times its memory.
    got, wanted = actual.reshape(-1), expected.reshape(-1)
    starts = range(0, got.size, _ELEMENTS_AT_ONCE)
    parts = [slice(at, at + _ELEMENTS_AT_ONCE) for at in starts]
    blocks = [_compared(got[part], wanted[part], tolerance, equal_nan=equal_nan) for part in parts]
    first = next((at + block.first_wrong for at, block in zip(starts, blocks, strict=True) if block.wrong), None)
    return Comparison(
        name=name,
        tolerance=tolerance,
        elements=actual.size,
        wrong=sum(block.wrong for block in blocks),
        max_abs_error=_greatest(block.max_abs_error for block in blocks),
        max_rel_error=_greatest(block.max_rel_error for block in blocks),
        first_wrong=None if first is None else _mismatch(actual, expected, first),
    )


class _Block(NamedTuple):
    """What a comparison of some elements found; ``first_wrong`` counts from their first."""

    wrong: int
    max_abs_error: float
    max_rel_error: float
    first_wrong: int


def _compared(actual: Array, expected: Array, tolerance: Tolerance, *, equal_nan: bool) -> _Block:
    got, wanted = actual.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        error = np.where(got == wanted, 0.0, np.abs(got - wanted))
        near = error <= tolerance.atol + tolerance.rtol * np.abs(wanted)
    # Whatever the tolerances, only infinity itself is close to infinity.
    wrong = (got != wanted) & ~(near & np.isfinite(wanted))
    both_nan = np.isnan(got) & np.isnan(wanted)
    if equal_nan:
        wrong, error = wrong & ~both_nan, np.where(both_nan, 0.0, error)
    return _Block(int(np.count_nonzero(wrong)), float(error.max()), _max_relative(error, wanted), int(np.argmax(wrong)))


def _greatest(errors: Iterable[float]) -> float:
    """As ``max``, but NaN when there is one."""
    return float(np.max([0.0, *errors]))


def _unlike(actual: Array, expected: Array) -> str:
    if actual.shape != expected.shape:
        return f"it has shape {actual.shape}, expected is {expected.shape}"
    if holds_floats(actual) != holds_floats(expected):
        return f"it is {host_dtype(actual)}, expected is {host_dtype(expected)}"
    return ""


def _max_relative(error: Array, wanted: Array) -> float:
    """The greatest relative error where something other than zero is expected."""
    magnitude = np.abs(wanted)
    some = magnitude > 0
    with np.errstate(invalid="ignore"):
        return float((error[some] / magnitude[some]).max(initial=0.0))


def _mismatch(actual: Array, expected: Array, element: int) -> Mismatch:
    index = tuple(int(at) for at in np.unravel_index(element, actual.shape))
    return Mismatch(index=index, got=float(actual[index]), expected=float(expected[index]))


Expected: TypeAlias = object | Callable[[], object]


class Verifier:
    """Collects the comparisons of one context.

    A check costs no simulated time, so that a verified run takes as long as one that is not; like any host read it
    waits for launches under way on the tensor, verified or not.
    """

    __slots__ = ("_comparisons", "_fmt", "_skipped", "_verify")

    def __init__(self, *, verify: bool, fmt: AddressFormat) -> None:
        self._verify, self._fmt = verify, fmt
        self._comparisons: list[Comparison] = []
        self._skipped = 0

    @property
    def verify(self) -> bool:
        """Whether comparisons are evaluated."""
        return self._verify

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """What was compared, in order."""
        return tuple(self._comparisons)

    @property
    def skipped(self) -> int:
        """How many comparisons were not evaluated."""
        return self._skipped

    def assert_close(
        self,
        actual: object,
        expected: Expected,
        *,
        rtol: float | None = None,
        atol: float | None = None,
        equal_nan: bool = False,
        name: str | None = None,
    ) -> Comparison | None:
        """Note whether ``actual`` is close to ``expected``, an array or a function that makes it; goes on if not.

        Tolerances that are not given fit the dtype of ``actual``. None when the run does not verify.
        """
        settled = [each for each in (actual, expected) if isinstance(each, Tensor)]
        for tensor in settled:
            tensor.settle()
        if not self._verify:
            self._skipped += 1
            return None
        wanted = _seen(expected() if callable(expected) else expected)
        found = compare(self._name(actual, name), _seen(actual), wanted, rtol=rtol, atol=atol, equal_nan=equal_nan)
        if not found.passed:
            found = replace(_placed(found, actual, self._fmt), line=calling_line())
        self._comparisons.append(found)
        return found

    def _name(self, actual: object, name: str | None) -> str:
        if name is not None:
            return name
        return actual.name if isinstance(actual, Tensor) else f"comparison {len(self._comparisons)}"


def _seen(what: object) -> Array:
    return what.peek() if isinstance(what, Tensor) else np.asarray(numeric(what, "assert_close"))


def _placed(comparison: Comparison, actual: object, fmt: AddressFormat) -> Comparison:
    first = comparison.first_wrong
    if first is None or not isinstance(actual, Tensor):
        return comparison
    return replace(comparison, first_wrong=replace(first, place=actual.layout.place_of(first.index, fmt)))
