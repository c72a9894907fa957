"""``torch.testing``: comparisons, evaluated in runs that verify, with the place of the first error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from kernbench.common.dtypes import Array
from kernbench.common.figures import derived_after, figure
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
    """One wrong element: in the first replica, or in the replica on ``pe``.

    ``place``: the PE and the address of the element as text; empty if unknown.
    """

    index: tuple[int, ...]
    got: float
    expected: float
    pe: PeCoord | None = figure(stored=False, default=None)
    place: str = ""

    def __str__(self) -> str:
        at = f" ({self.place})" if self.place else ""
        return f"at {list(self.index)}{at}: got {self.got:.9g}, expected {self.expected:.9g}"


@value(kw_only=True)
class Comparison:
    """The result of a comparison.

    The maximum errors are over all elements, and are NaN if a wrong element is NaN. An element of a replicated tensor
    is ``wrong`` if it is wrong in any replica. ``pes``: the number of PEs with a replica; 0 if the tensor is not
    replicated. ``wrong_pes``: the PEs whose replica is wrong. ``reason``: why nothing was compared (different shapes or
    types), else empty. ``line``: the program line of a failed comparison.
    """

    name: str = figure("as the program calls it")
    elements: int = figure("compared values", default=0)
    wrong: int = figure("wrong values", default=0)
    max_abs_error: float = figure("the largest difference", default=0.0)
    max_rel_error: float = figure("the largest difference, as a share of the expected value", default=0.0)
    tolerance: Tolerance = figure(inline=True)
    first_wrong: Mismatch | None = None
    pes: int = 0
    wrong_pes: tuple[PeCoord, ...] = ()
    reason: str = figure("the reason if nothing was compared", default="")
    line: ProgramLine | None = figure(stored=False, default=None)

    @derived_after("name", "whether all values are close")
    def passed(self) -> bool:
        """True when all elements are close."""
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
    """Return PASS or FAIL for the comparisons; ``not verified`` if there are none."""
    if not comparisons:
        return "not verified"
    return "PASS" if all(comparison.passed for comparison in comparisons) else "FAIL"


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
    """Compare element by element in f64. Default tolerances are those of the dtype of ``actual``.

    Floats of any width are comparable with each other, but not with integers. NaN equals NaN only with ``equal_nan``.
    ``copies``: the further replicas of a tensor, which have to be close too; ``actual`` is the first replica.
    """
    tolerance = tolerance_for(host_dtype(actual), rtol, atol)
    reason = _explain_unlike(actual, expected)
    if reason:
        return Comparison(name=name, tolerance=tolerance, reason=reason)
    errors_of_first = errors_of(actual, expected, tolerance, equal_nan=equal_nan)
    first = _find_mismatch(errors_of_first, actual, expected)
    wrong, max_abs, max_rel = errors_of_first.wrong.copy(), errors_of_first.max_abs, errors_of_first.max_rel
    pes, wrong_pes = 0, []
    for copy in copies:
        pes += 1
        here = copy.part.index
        wrong_here = errors_of_first.wrong[here]
        if copy.held is not None:
            wanted = np.asarray(expected[here])
            errors = errors_of(copy.held, wanted, tolerance, equal_nan=equal_nan)
            wrong_here = errors.wrong
            wrong[here] |= wrong_here
            max_abs, max_rel = greater(max_abs, errors.max_abs), greater(max_rel, errors.max_rel)
            first = first or _find_mismatch(errors, copy.held, wanted, copy)
        if wrong_here.any():
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
    """Return the first wrong element. With ``copy``, the arrays are the part of the tensor in this replica."""
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
    """The comparisons of one context.

    A comparison itself takes no simulated time. Like any read by the host it waits for launches in flight that use the
    tensor, even in a run that does not verify. Verification therefore does not change the duration of a run.
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
        """Compare ``actual`` with ``expected``, an array or a function that returns one, and record the result.

        A failed comparison does not stop the program. Every replica of the tensor ``actual`` has to be close to the
        first replica of ``expected``. Default tolerances are those of the dtype of ``actual``. Return None if the run
        does not verify.
        """
        settled = [side for side in (actual, expected) if isinstance(side, Tensor)]
        for tensor in settled:
            tensor.settle()
        wanted = expected() if self._verify and callable(expected) else expected
        for side in (actual, wanted):
            if isinstance(side, Tensor):
                side.check(tolerance_for(side.dtype, rtol, atol))
        if not self._verify:
            self._skipped += 1
            return None
        held = _look_at(actual)
        comparison = compare(
            self._choose_name(actual, name),
            held,
            _look_at(wanted),
            rtol=rtol,
            atol=atol,
            equal_nan=equal_nan,
            copies=actual.copies(held) if isinstance(actual, Tensor) else (),
        )
        if not comparison.passed:
            comparison = replace(_add_place(comparison, actual, self._fmt), line=calling_line())
        self._comparisons.append(comparison)
        return comparison

    def _choose_name(self, actual: object, name: str | None) -> str:
        if name is not None:
            return name
        return actual.name if isinstance(actual, Tensor) else f"comparison {len(self._comparisons)}"


def _look_at(subject: object) -> Array:
    return subject.peek() if isinstance(subject, Tensor) else np.asarray(numeric(subject, "assert_close"))


def _add_place(comparison: Comparison, actual: object, fmt: AddressFormat) -> Comparison:
    first = comparison.first_wrong
    if first is None or not isinstance(actual, Tensor):
        return comparison
    return replace(comparison, first_wrong=replace(first, place=actual.layout.place_of(first.index, fmt, first.pe)))
