"""``torch.testing``: comparisons that a run evaluates when it is asked to verify."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from kernbench.policy.address.phyaddr import AddressFormat
from kernbench.runtime_api.arrays import Array, numeric
from kernbench.runtime_api.comparison import Comparison, compare
from kernbench.runtime_api.program_line import calling_line
from kernbench.runtime_api.tensor import Tensor

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
