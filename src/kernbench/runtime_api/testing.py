"""``torch.testing``: comparisons that a run evaluates when it is asked to verify: close, and if not, where."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from kernbench.common.dtypes import Array
from kernbench.common.ids import pe_names
from kernbench.common.program_line import ProgramLine, calling_line
from kernbench.common.values import value
from kernbench.messages.requests import PeCoord
from kernbench.policy.address.phyaddr import AddressFormat
from kernbench.runtime_api.arrays import (
    Errors,
    Tolerance,
    errors_of,
    first_true,
    greater,
    holds_floats,
    host_dtype,
    numeric,
    tolerance_for,
)
from kernbench.runtime_api.tensor import Tensor
from kernbench.runtime_api.transfers import TensorCopy


@value(kw_only=True)
class Mismatch:
    """One element that is wrong: in the first copy, or in that of ``pe``.

    ``place`` says which PE and address hold it, empty when nobody knows.
    """

    index: tuple[int, ...]
    got: float
    expected: float
    pe: PeCoord | None = None
    place: str = ""

    def __str__(self) -> str:
        at = f" ({self.place})" if self.place else ""
        return f"at {list(self.index)}{at}: got {self.got:.9g}, expected {self.expected:.9g}"


@value(kw_only=True)
class Comparison:
    """The result of a comparison. The maximum errors are over all elements: NaN when a NaN is among the wrong ones.

    Of a tensor with copies an element is ``wrong`` when it is so in one of them: ``pes`` counts the PEs that hold it, 0
    without copies; ``wrong_pes`` are those whose copy is wrong. ``reason`` tells why nothing was compared (shapes,
    types), empty when it was; ``line`` asked for a comparison that failed.
    """

    name: str
    tolerance: Tolerance
    elements: int = 0
    wrong: int = 0
    max_abs_error: float = 0.0
    max_rel_error: float = 0.0
    first_wrong: Mismatch | None = None
    pes: int = 0
    wrong_pes: tuple[PeCoord, ...] = ()
    reason: str = ""
    line: ProgramLine | None = None

    @property
    def passed(self) -> bool:
        """True when all is close."""
        return not self.wrong and not self.reason

    def __str__(self) -> str:
        if self.reason:
            return f"FAIL {self.name}: {self.reason}"
        error = f"max error {self.max_abs_error:.3g} absolute, {self.max_rel_error:.3g} relative"
        allowed = f"(rtol={self.tolerance.rtol:g}, atol={self.tolerance.atol:g})"
        if self.passed:
            return f"PASS {self.name}: {self.elements} elements, {error} {allowed}"
        wrong = f"{self.wrong} of {self.elements} elements wrong"
        copies = ""
        if self.pes:
            names = pe_names(self.wrong_pes)
            copies = f"; the copies of {len(self.wrong_pes)} of {self.pes} PEs are wrong: {names}"
        return f"FAIL {self.name}: {wrong}, {error} {allowed}; first {self.first_wrong}{copies}"


def verdict(comparisons: Sequence[Comparison]) -> str:
    """Return PASS or FAIL of what was compared; ``not verified`` when nothing was."""
    if not comparisons:
        return "not verified"
    return "PASS" if all(each.passed for each in comparisons) else "FAIL"


def compare(
    name: str,
    actual: Array,
    expected: Array,
    *,
    rtol: float | None,
    atol: float | None,
    equal_nan: bool = False,
    copies: Iterable[TensorCopy] = (),
) -> Comparison:
    """Compare element by element in f64, with tolerances that fit the dtype of ``actual`` where none are given.

    A float of any width may be compared with any other; floats and integers may not. NaN equals NaN only if asked.
    ``copies``: of a tensor, each of which has to be close too; ``actual`` is the first.
    """
    tolerance = tolerance_for(host_dtype(actual), rtol, atol)
    reason = _explain_unlike(actual, expected)
    if reason:
        return Comparison(name=name, tolerance=tolerance, reason=reason)
    found = errors_of(actual, expected, tolerance, equal_nan=equal_nan)
    first = _find_mismatch(found, actual, expected)
    wrong, max_abs, max_rel = found.wrong.copy(), found.max_abs, found.max_rel
    pes, wrong_pes = 0, []
    for copy in copies:
        pes += 1
        here = copy.part.index
        there = found.wrong[here]
        if copy.held is not None:
            wanted = np.asarray(expected[here])
            errors = errors_of(copy.held, wanted, tolerance, equal_nan=equal_nan)
            there = errors.wrong
            wrong[here] |= there
            max_abs, max_rel = greater(max_abs, errors.max_abs), greater(max_rel, errors.max_rel)
            first = first or _find_mismatch(errors, copy.held, wanted, copy)
        if there.any():
            wrong_pes.append(copy.pe)
    return Comparison(
        name=name,
        tolerance=tolerance,
        elements=actual.size,
        wrong=int(np.count_nonzero(wrong)),
        max_abs_error=max_abs,
        max_rel_error=max_rel,
        first_wrong=first,
        pes=pes,
        wrong_pes=tuple(wrong_pes),
    )


def _explain_unlike(actual: Array, expected: Array) -> str:
    if actual.shape != expected.shape:
        return f"it has shape {actual.shape}, expected is {expected.shape}"
    if holds_floats(actual) != holds_floats(expected):
        return f"it is {host_dtype(actual)}, expected is {host_dtype(expected)}"
    return ""


def _find_mismatch(errors: Errors, actual: Array, expected: Array, copy: TensorCopy | None = None) -> Mismatch | None:
    """Return the first wrong element. ``copy``: the arrays are a part of the tensor, in this copy."""
    if not errors.wrong.any():
        return None
    at = first_true(errors.wrong)
    return Mismatch(
        index=at if copy is None else copy.part.outward(at),
        got=float(actual[at]),
        expected=float(expected[at]),
        pe=None if copy is None else copy.pe,
    )


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
        """True when comparisons are evaluated."""
        return self._verify

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """The comparisons, in order."""
        return tuple(self._comparisons)

    @property
    def skipped(self) -> int:
        """The number of comparisons that were not evaluated."""
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

        Of a tensor with copies every copy has to be close; of ``expected`` the first counts. Tolerances that are not
        given fit the dtype of ``actual``. None when the run does not verify.
        """
        settled = [each for each in (actual, expected) if isinstance(each, Tensor)]
        for tensor in settled:
            tensor.settle()
        wanted = expected() if self._verify and callable(expected) else expected
        for each in (actual, wanted):
            if isinstance(each, Tensor):
                each.check(tolerance_for(each.dtype, rtol, atol))
        if not self._verify:
            self._skipped += 1
            return None
        held = _look_at(actual)
        found = compare(
            self._choose_name(actual, name),
            held,
            _look_at(wanted),
            rtol=rtol,
            atol=atol,
            equal_nan=equal_nan,
            copies=actual.copies(held) if isinstance(actual, Tensor) else (),
        )
        if not found.passed:
            found = replace(_add_place(found, actual, self._fmt), line=calling_line())
        self._comparisons.append(found)
        return found

    def _choose_name(self, actual: object, name: str | None) -> str:
        if name is not None:
            return name
        return actual.name if isinstance(actual, Tensor) else f"comparison {len(self._comparisons)}"


def _look_at(what: object) -> Array:
    return what.peek() if isinstance(what, Tensor) else np.asarray(numeric(what, "assert_close"))


def _add_place(comparison: Comparison, actual: object, fmt: AddressFormat) -> Comparison:
    first = comparison.first_wrong
    if first is None or not isinstance(actual, Tensor):
        return comparison
    return replace(comparison, first_wrong=replace(first, place=actual.layout.place_of(first.index, fmt, first.pe)))
