"""What is wrong with a sweep file although every entry is well-formed.

What would make every point fail is reported with its place. What only some points trip over, such as a number of
slices that the others allow and one does not, becomes the result of those points.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kernbench.common.complaints import Complaint, close_to, one_of
from kernbench.common.config import apply_overrides, check, report
from kernbench.common.errors import ConfigError, InputError
from kernbench.di.registry import REGISTRY
from kernbench.evaluation.sweep_measure import COLUMNS
from kernbench.evaluation.sweep_plan import BENCH_PREFIX, Point, SweepPlan, as_override
from kernbench.evaluation.sweep_spec import SweepSpec, Value, is_numeric
from kernbench.runtime_api.types import DeviceSelector
from kernbench.topology.spec import TopologySpec


def plan_complaints(plan: SweepPlan) -> Iterator[Complaint]:
    """Everything that is wrong."""
    yield from _device_complaints(plan.spec)
    yield from _plot_complaints(plan.spec)
    yield from _Checker(plan).complaints()


def _device_complaints(spec: SweepSpec) -> Iterator[Complaint]:
    try:
        DeviceSelector(spec.device)
    except InputError as error:
        yield Complaint(("device",), str(error))


def _plot_complaints(spec: SweepSpec) -> Iterator[Complaint]:
    numeric = [name for name, kind in COLUMNS.items() if kind is not str]
    for at, plot in enumerate(spec.plots or ()):
        for key, name in (("value", plot.value), ("cost", plot.cost)):
            if name is not None and name not in numeric and name not in spec.grid:
                hint = close_to(name, [*numeric, *spec.grid])
                message = (
                    f"{name!r} is no column with numbers; {hint}there are the axes, and {one_of(_families(numeric))}"
                )
                yield Complaint(("plots", at, key), message)
            elif name in spec.grid and not is_numeric(spec.grid[name]):
                yield Complaint(("plots", at, key), f"the values of {name} are no numbers")


def _families(columns: Iterable[str]) -> list[str]:
    """Columns as a reader can take them in: ``phase.*`` for all that begin so."""
    return list(dict.fromkeys(f"{name.partition('.')[0]}.*" if "." in name else name for name in columns))


@dataclass(frozen=True, slots=True)
class _Checker:
    """Looks for values that no point can use: those of an axis by themselves, the others being as at either end."""

    plan: SweepPlan

    def complaints(self) -> Iterator[Complaint]:
        """One for each fixed value and each axis that is wrong."""
        ends = [dict(point.values) for point in self._ends()]
        for path, value in self.plan.spec.fixed.items():
            message = self._trouble(path, (value,), ends)
            if message:
                yield Complaint(("set", path), message)
        for path, values in self.plan.axes.items():
            message = self._trouble(path, values, ends)
            if message:
                yield Complaint(("grid", path), message)

    def _ends(self) -> Iterator[Point]:
        axes = self.plan.axes
        for at in (0, -1):
            yield Point(0, tuple((path, values[at]) for path, values in axes.items()))

    def _trouble(self, path: str, values: Iterable[Value], ends: Sequence[Mapping[str, Value]]) -> str:
        """What is wrong with ``path`` at every value; empty when some value is good."""
        first = ""
        for value in values:
            for end in ends:
                found = self._problem_at(path, {**self.plan.spec.fixed, **end, path: value})
                if not found:
                    return ""
                first = first or found
        return first

    def _problem_at(self, path: str, choices: Mapping[str, Value]) -> str:
        bench = path.startswith(BENCH_PREFIX)
        texts = [as_override(each) for each in choices.items() if each[0].startswith(BENCH_PREFIX) == bench]
        try:
            if bench:
                self.plan.bench.make_params(texts)
            else:
                document = apply_overrides(self.plan.base, texts)
                report(document, check(document, TopologySpec, context=REGISTRY).complaints)
        except ConfigError as error:
            source = f"--set {as_override((path, choices[path]))}"
            return next((each.message for each in error.problems if each.source == source), "")
        return ""
