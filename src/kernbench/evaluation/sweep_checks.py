"""What is wrong with a sweep file although every entry is well-formed.

What would make every point fail is reported with its place. What only some points trip over, such as a number of
slices that the others allow and one does not, becomes the result of those points.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kernbench.common.complaints import Complaint, close_to, one_of
from kernbench.common.config import Document, apply_overrides, check, report
from kernbench.common.errors import ConfigError, InputError
from kernbench.di.registry import REGISTRY
from kernbench.evaluation.sweep_draft import SweepDraft
from kernbench.evaluation.sweep_measure import COLUMNS
from kernbench.evaluation.sweep_plan import BENCH_PREFIX, as_override
from kernbench.evaluation.sweep_spec import Plot, Value, is_numeric
from kernbench.runtime_api.bench_registry import Bench
from kernbench.runtime_api.types import DeviceSelector
from kernbench.topology.spec import TopologySpec


def plan_complaints(draft: SweepDraft, bench: Bench | None, base: Document | None) -> Iterator[Complaint]:
    """Everything that is wrong with entries that can be read; ``bench``, ``base``: None when there is none."""
    yield from _device_complaints(draft)
    for at, plot in enumerate(draft.plots):
        if plot is not None:
            yield from _column_complaints(at, plot, draft)
    yield from _Checker(draft, bench, base).complaints()


def _device_complaints(draft: SweepDraft) -> Iterator[Complaint]:
    try:
        DeviceSelector(draft.device)
    except InputError as error:
        yield Complaint(("device",), str(error))


def _column_complaints(at: int, plot: Plot, draft: SweepDraft) -> Iterator[Complaint]:
    numeric = [name for name, kind in COLUMNS.items() if kind is not str]
    for key, name in (("value", plot.value), ("cost", plot.cost)):
        if name is None:
            continue
        if name not in numeric and name not in draft.grid:
            hint = close_to(name, [*numeric, *draft.grid])
            there = f"there are the axes, and {one_of(_families(numeric))}"
            yield Complaint(("plots", at, key), f"{name!r} is no column with numbers; {hint}{there}")
        elif not is_numeric(draft.grid.get(name, ())):
            yield Complaint(("plots", at, key), f"the values of {name} are no numbers")


def _families(columns: Iterable[str]) -> list[str]:
    """Columns as a reader can take them in: ``phase.*`` for all that begin so."""
    return list(dict.fromkeys(f"{name.partition('.')[0]}.*" if "." in name else name for name in columns))


@dataclass(frozen=True, slots=True)
class _Checker:
    """Looks for values that no point can use: those of an axis by themselves, the others being as at either end."""

    draft: SweepDraft
    bench: Bench | None
    base: Document | None

    def complaints(self) -> Iterator[Complaint]:
        """One for each fixed value and each axis that is wrong."""
        for path, value in self.draft.fixed.items():
            message = self._trouble(path, (value,))
            if message:
                yield Complaint(("set", path), message)
        for path, values in self.draft.axes.items():
            message = self._trouble(path, values)
            if message:
                yield Complaint(("grid", path), message)

    def _trouble(self, path: str, values: Iterable[Value]) -> str:
        """What is wrong with ``path`` at every value; empty when some value is good."""
        ends = [{other: values[at] for other, values in self.draft.axes.items()} for at in (0, -1)]
        first = ""
        for value in values:
            for end in ends:
                found = self._problem_at(path, {**self.draft.fixed, **end, path: value})
                if not found:
                    return ""
                first = first or found
        return first

    def _problem_at(self, path: str, choices: Mapping[str, Value]) -> str:
        of_bench = path.startswith(BENCH_PREFIX)
        texts = [as_override(each) for each in choices.items() if each[0].startswith(BENCH_PREFIX) == of_bench]
        try:
            self._apply(texts, of_bench=of_bench)
        except ConfigError as error:
            source = f"--set {as_override((path, choices[path]))}"
            return next((each.message for each in error.problems if each.source == source), "")
        return ""

    def _apply(self, texts: Sequence[str], *, of_bench: bool) -> None:
        """ConfigError for what the bench or the machine refuses."""
        if of_bench and self.bench is not None:
            self.bench.make_params(texts)
        elif not of_bench and self.base is not None:
            document = apply_overrides(self.base, texts)
            report(document, check(document, TopologySpec, context=REGISTRY).complaints)
