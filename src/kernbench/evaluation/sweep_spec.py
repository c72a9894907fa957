"""The typed form of a sweep file: a bench, a grid of machine and bench parameters, fixed values, and pictures.

bench: matmul-composite
set:  { bench.k: 256, bench.n: 256 }
grid:
  cube.components.hbm_ctrl.attrs.efficiency: [0.6, 0.7, 0.8, 0.9]
  bench.m: { start: 32, stop: 512, factor: 2 }

columns: { macs_per_ns: bench.m * bench.k * bench.n / sim_ns }

A draft contains the readable entries of a file, so that all errors of the file are reported at once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from math import prod
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from kernbench.common.complaints import Complaint, Rejected, explain, one_of, show
from kernbench.common.config import ConfigModel, Document, Path, path_of, read_model
from kernbench.common.errors import close_to
from kernbench.common.values import value

MOST_POINTS = 100_000
LARGEST = 2**63 - 1
DEFAULT_VALUE = "sim_ns"
AxisValue: TypeAlias = (
    "int | float | str | bool | list[AxisValue] | tuple[AxisValue, ...] | dict[str, AxisValue] | None"
)
GRID: Path = ("grid",)
PROGRAM_KEYS = ("bench", "script", "args", "as_cuda")
POINT = "point"
"""The column with the number of a point"""
MACHINE = "machine"
"""The axis that chooses the base machine. Without it, the column with the digest of a point's machine"""
DIGEST = "machine_digest"
"""The column with the digest of a point's machine, if ``MACHINE`` is an axis"""
PlotKind: TypeAlias = Literal["lines", "heat-map", "pareto"]
_PLOT_KEYS: dict[PlotKind, tuple[str, ...]] = {
    "lines": ("x", "by", "value"),
    "heat-map": ("x", "y", "value"),
    "pareto": ("cost", "value", "largest"),
}


class ValueRange(ConfigModel):
    """The values from ``start`` to ``stop``, both included: with a constant ``step`` or a constant ``factor``."""

    start: int | float
    stop: int | float
    step: int | float | None = None
    factor: int | float | None = None

    @model_validator(mode="after")
    def _goes_up(self) -> ValueRange:
        errors = list(self._errors())
        if errors:
            raise Rejected(Complaint((key,) if key else (), message) for key, message in errors)
        return self

    def _errors(self) -> list[tuple[str, str]]:
        if (self.step is None) == (self.factor is None):
            return [("", "a range has either a step or a factor")]
        errors = [("stop", f"found {self.stop:g}, must be at least start, {self.start:g}")] * (self.stop < self.start)
        if self.step is not None and self.step <= 0:
            errors.append(("step", f"found {self.step:g}, must be greater than 0"))
        if self.factor is not None and self.factor <= 1:
            errors.append(("factor", f"found {self.factor:g}, must be greater than 1"))
        if self.factor is not None and self.start <= 0:
            errors.append(("start", f"found {self.start:g}, must be greater than 0 where each is a multiple"))
        return errors

    @property
    def count(self) -> int:
        """The number of values. It is computed without the values, which may exceed any memory."""
        start, stop = _decimal(self.start), _decimal(self.stop)
        if self.step is not None:
            return int((Fraction(stop) - Fraction(start)) // Fraction(_decimal(self.step))) + 1
        return int((stop / start).ln() / _decimal(self.factor or 2).ln()) + 1

    def values(self) -> tuple[AxisValue, ...]:
        """Return the values; none if there are more than a sweep may have points.

        The arithmetic is decimal, so steps of 0.1 reach ``stop`` exactly. Whole numbers stay whole.
        """
        if self.count > MOST_POINTS:
            return ()
        bounds = (self.start, self.stop, self.step, self.factor)
        are_integers = all(bound is None or isinstance(bound, int) for bound in bounds)
        values = self._by_step(self.step) if self.step is not None else self._by_factor(self.factor or 2)
        return tuple(int(value) if are_integers else float(value) for value in values)

    def _by_step(self, step: float) -> Iterator[Fraction]:
        start = Fraction(_decimal(self.start))
        return (start + number * Fraction(_decimal(step)) for number in range(self.count))

    def _by_factor(self, factor: float) -> Iterator[Decimal]:
        at, stop = _decimal(self.start), _decimal(self.stop)
        while at <= stop:  # a factor has fewer digits than the decimal precision, so each value exceeds the last
            yield at
            at *= _decimal(factor)


def _decimal(number: float) -> Decimal:
    return Decimal(repr(number))


def as_values(content: Any) -> Any:
    """Return the values of an axis from a list or a range."""
    if isinstance(content, dict):
        try:
            values = read_model(ValueRange, content).values()
        except ValidationError as error:
            raise Rejected(explain(ValueRange, content, error)) from error
        why = why_not_stored(values)
        if why:
            raise ValueError(why)
        return values
    if not isinstance(content, list):
        raise ValueError(f"found {show(content)}, must be a list of values or a range: {{start, stop, step or factor}}")
    if not content:
        raise ValueError("found an empty list, must have at least one value")
    texts = [json.dumps(entry, sort_keys=True, default=str) for entry in content]
    first = {text: at for at, text in reversed(list(enumerate(texts)))}
    twice = [at for at, text in enumerate(texts) if first[text] < at]
    if twice:
        raise Rejected(Complaint((at,), f"{show(content[at])} is in the list twice") for at in twice)
    complaints = [Complaint((at,), why) for at, value in enumerate(content) if (why := why_not_stored(value))]
    if complaints:
        raise Rejected(complaints)
    return tuple(content)


def _length(content: Any, values: tuple[AxisValue, ...]) -> int:
    """Return the number of values of an axis. ``values`` is empty if there are too many."""
    return len(values) or (read_model(ValueRange, content).count if isinstance(content, dict) else 0)


def why_not_stored(value: AxisValue) -> str:
    """Return the reason why the journal or Parquet cannot store ``value``; empty if they can."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"found {show(value)}, must be a finite number"
    if isinstance(value, int) and abs(value) > LARGEST:
        return f"found {show(value)}, must fit into 64 bits"
    entries = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return next(filter(None, map(why_not_stored, entries)), "")


AxisValues = Annotated[tuple[Any, ...], BeforeValidator(as_values)]


class Plot(ConfigModel):
    """A picture of the results.

    ``lines``: column ``value`` over axis ``x``, with one curve per value of axis ``by``. ``heat-map``: ``value`` over
    axes ``x`` and ``y``. ``pareto``: the points that no other point of equal work beats in both ``cost`` and ``value``.
    Less is better; with ``largest``, more of ``value`` is better.
    """

    kind: PlotKind
    x: str | None = None
    y: str | None = None
    by: str | None = None
    cost: str | None = None
    value: str = DEFAULT_VALUE
    largest: bool = False

    @model_validator(mode="after")
    def _keys_of_kind(self) -> Plot:
        allowed = _PLOT_KEYS[self.kind]
        wrong = sorted(self.model_fields_set - {"kind", *allowed})
        if wrong:
            message = f"{self.kind} does not use it; it takes {one_of(allowed)}"
            raise Rejected(Complaint((key,), message, at_key=True) for key in wrong)
        if self.kind == "pareto" and self.cost is None:
            raise ValueError("pareto needs cost: the axis or column that speed costs")
        drawn = [name for name in (self.x, self.y, self.by) if name is not None]
        if len(set(drawn)) < len(drawn):
            raise ValueError(f"{one_of(drawn)}: an axis can be drawn once")
        return self


class SweepSpec(ConfigModel):
    """A sweep. Paths of files are relative to the sweep file. ``topology`` and ``ccl`` default to the command line's.

    ``bench`` or ``script`` is the program: ``script`` is a whole file, run with ``args``, with PyTorch's device "cuda"
    as the machine if ``as_cuda``. ``explain``: record the critical path and the roofline of every point, which adds
    about a third to the run time. ``run``: ``reuse`` runs without data and lets the time of launches pass that are like
    earlier ones; ``ranks`` runs a script once for each SIP, as torchrun does. ``log_rows``: beyond
    so many rows of the log, such as 500K, the rows of launches that are over are folded. ``columns``: expressions of
    derived columns. ``work``: axes whose values are different work; only points of equal work are compared.
    ``draft_complaints`` has the rules between entries.
    """

    bench: str | None = None
    script: str | None = None
    args: tuple[str | int | float, ...] = ()
    as_cuda: bool = False
    topology: str | None = None
    ccl: str | None = None
    device: str = "all"
    verify: bool = False
    explain: bool = True
    run: Literal["complete", "reuse", "ranks"] = "complete"
    log_rows: int | str | None = None
    fixed: dict[str, Any] = Field(default_factory=dict, alias="set")
    grid: dict[str, AxisValues] = Field(min_length=1)
    columns: dict[str, str] = Field(default_factory=dict)
    work: tuple[str, ...] = ()
    plots: tuple[Plot, ...] | None = None


def is_numeric(values: Iterable[AxisValue]) -> bool:
    """Return True if all values of an axis are numbers."""
    return all(isinstance(number, int | float) and not isinstance(number, bool) for number in values)


def short_name(path: str) -> str:
    """Return a path without redundant levels, such as ``hbm_ctrl.efficiency``."""
    parts = [part for part in path.split(".") if part not in ("components", "attrs", "links")]
    return ".".join(parts[-2:])


Axes = Mapping[str, tuple[AxisValue, ...]]
DEFAULT_DEVICE = SweepSpec.model_fields["device"].default


@value
class SweepDraft:
    """The readable entries of a sweep file. An unreadable axis has no values; an unreadable plot is None.

    ``program``: the present entries of the program. ``n_points``: the number of points of the readable axes, including
    axes that are too long to have values.
    """

    program: Mapping[str, Any]
    topology: str | None
    ccl: str | None
    device: str
    fixed: Mapping[str, AxisValue]
    grid: Axes
    columns: Mapping[str, str]
    work: tuple[str, ...]
    plots: tuple[Plot | None, ...]
    n_points: int

    @property
    def axes(self) -> Axes:
        """The readable axes."""
        return {path: values for path, values in self.grid.items() if values}

    @property
    def changing_axes(self) -> Axes:
        """The readable axes except ``machine``: those that change a base machine, a bench or a front end."""
        return {path: values for path, values in self.axes.items() if path != MACHINE}

    def without(self, entries: Set[Path]) -> SweepDraft:
        """Return the draft without some entries of ``set``, and with some axes, or the complete grid, as unreadable."""
        return replace(
            self,
            fixed={path: value for path, value in self.fixed.items() if ("set", path) not in entries},
            grid={path: () if {("grid", path), GRID} & entries else values for path, values in self.grid.items()},
        )


def read_draft(document: Document, complaints: Iterable[Complaint]) -> SweepDraft:
    """Return the draft of a file. ``complaints``: errors of its check against ``SweepSpec``."""
    unreadable = {complaint.path[:2] for complaint in complaints}
    grid, fixed, plots, work = (document.get((key,)) for key in ("grid", "set", "plots", "work"))
    axes = {path: as_values(content) for path, content in _items(grid) if ("grid", path) not in unreadable}
    return SweepDraft(
        program={key: content for key in PROGRAM_KEYS if (content := document.get((key,))) is not None},
        topology=_text(document, "topology"),
        ccl=_text(document, "ccl"),
        device=_text(document, "device") or DEFAULT_DEVICE,
        fixed=fixed if isinstance(fixed, dict) else {},
        grid={path: axes.get(path, ()) for path, _ in _items(grid)},
        columns={name: text for name, text in _items(document.get(("columns",))) if isinstance(text, str)},
        work=tuple(work) if isinstance(work, list) and all(isinstance(name, str) for name in work) else (),
        plots=tuple(
            None if ("plots", at) in unreadable else read_model(Plot, content)
            for at, content in enumerate(plots if isinstance(plots, list) else ())
        ),
        n_points=prod(_length(document.get((*GRID, path)), values) for path, values in axes.items()),
    )


def _text(document: Document, key: str) -> str | None:
    content = document.get((key,))
    return content if isinstance(content, str) else None


def _items(content: Any) -> Iterable[tuple[str, Any]]:
    return content.items() if isinstance(content, dict) else ()


def draft_complaints(draft: SweepDraft) -> Iterator[Complaint]:
    """Yield errors that types do not express: between entries, of paths, and of fixed values."""
    yield from _program_complaints(draft.program)
    for section, path in [*(("set", path) for path in draft.fixed), *(("grid", path) for path in draft.grid)]:
        why = _no_path(path)
        if why:
            yield Complaint((section, path), why, at_key=True)
    for path, fixed in draft.fixed.items():
        why = why_not_stored(fixed)
        if why:
            yield Complaint(("set", path), why)
        if path in draft.grid:
            yield Complaint(("set", path), "the grid varies it; give it in one place", at_key=True)
    if draft.n_points > MOST_POINTS:
        points = f"{draft.n_points:,}" if draft.n_points < 10**15 else f"about {Decimal(draft.n_points):.1e}"
        advice = "give fewer values, or make several sweeps of it"
        yield Complaint(GRID, f"the grid has {points} points, must be at most {MOST_POINTS:,}: {advice}", at_key=True)
    if MACHINE in draft.fixed:
        yield Complaint(("set", MACHINE), "topology chooses the machine of all points", at_key=True)
    for at, name in enumerate(draft.work):
        if draft.grid and name not in draft.grid:
            yield Complaint(("work", at), _say_no_axis(name, tuple(draft.grid)))
        elif name in draft.work[:at]:
            yield Complaint(("work", at), f"{name!r} is in the list twice")
    for at, plot in enumerate(draft.plots):
        if plot is not None:
            yield from _plot_complaints(at, plot, tuple(draft.grid))


def _program_complaints(program: Mapping[str, Any]) -> Iterator[Complaint]:
    if "bench" in program and "script" in program:
        yield Complaint(("script",), "bench and script: give one of them", at_key=True)
    if "bench" not in program and "script" not in program:
        yield Complaint((), "missing key 'bench', or 'script' for a whole file", at_key=True)
    for key in ("args", "as_cuda"):
        if key in program and "script" not in program:
            yield Complaint((key,), "only a script takes it", at_key=True)


def _say_no_axis(name: str, axes: tuple[str, ...]) -> str:
    return f"{name!r} is no axis; {close_to(name, axes)}the grid has {one_of(axes)}"


def _plot_complaints(at: int, plot: Plot, axes: tuple[str, ...]) -> Iterator[Complaint]:
    for key, name in (("x", plot.x), ("y", plot.y), ("by", plot.by)):
        if name is not None and name not in axes:
            yield Complaint(("plots", at, key), _say_no_axis(name, axes))
    if plot.kind == "heat-map" and len(axes) < 2:
        yield Complaint(("plots", at), "a heat-map needs two axes, the grid has one")


def _no_path(text: str) -> str:
    """Return the reason why ``text`` is not a valid path; empty for a valid path."""
    try:
        path_of(text)
    except ValueError as error:
        return str(error)
    return ""
