"""The typed form of a sweep file: a bench, a grid of parameters of machine and bench, what is fixed, and the pictures.

bench: matmul-composite
set:  { bench.k: 256, bench.n: 256 }
grid:
  cube.components.hbm_ctrl.attrs.efficiency: [0.6, 0.7, 0.8, 0.9]
  bench.m: { start: 32, stop: 512, factor: 2 }
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from decimal import Decimal
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from kernbench.common.complaints import Complaint, Rejected, explain, one_of, show
from kernbench.common.config import ConfigModel, read_model

MOST_POINTS = 100_000
LARGEST = 2**63 - 1
DEFAULT_VALUE = "sim_ns"
Value: TypeAlias = "int | float | str | bool | list[Value] | tuple[Value, ...] | dict[str, Value] | None"
PlotKind: TypeAlias = Literal["lines", "heat-map", "pareto"]
_PLOT_KEYS: dict[PlotKind, tuple[str, ...]] = {
    "lines": ("x", "by", "value"),
    "heat-map": ("x", "y", "value"),
    "pareto": ("cost", "value"),
}


class Range(ConfigModel):
    """From ``start`` to ``stop``, both included: by ``step``, or each ``factor`` times the one before."""

    start: int | float
    stop: int | float
    step: int | float | None = None
    factor: int | float | None = None

    @model_validator(mode="after")
    def _goes_up(self) -> Range:
        found = list(self._wrong())
        if found:
            raise Rejected(Complaint((key,) if key else (), message) for key, message in found)
        return self

    def _wrong(self) -> list[tuple[str, str]]:
        if (self.step is None) == (self.factor is None):
            return [("", "a range has either a step or a factor")]
        found = [("stop", f"found {self.stop:g}, must be at least start, {self.start:g}")] * (self.stop < self.start)
        if self.step is not None and self.step <= 0:
            found.append(("step", f"found {self.step:g}, must be greater than 0"))
        if self.factor is not None and self.factor <= 1:
            found.append(("factor", f"found {self.factor:g}, must be greater than 1"))
        if self.factor is not None and self.start <= 0:
            found.append(("start", f"found {self.start:g}, must be greater than 0 where each is a multiple"))
        return found

    def values(self) -> tuple[Value, ...]:
        """What it means; decimal, so that 0.1 steps end where one expects. Whole numbers stay whole."""
        whole = all(each is None or isinstance(each, int) for each in (self.start, self.stop, self.step, self.factor))
        at, stop = _decimal(self.start), _decimal(self.stop)
        found: list[Value] = []
        while at <= stop and len(found) <= MOST_POINTS:
            found.append(int(at) if whole else float(at))
            at = at + _decimal(self.step) if self.step is not None else at * _decimal(self.factor or 2)
        return tuple(found)


def _decimal(number: float) -> Decimal:
    return Decimal(repr(number))


def as_values(given: Any) -> Any:
    """The values of an axis: those listed, or those of a range."""
    if isinstance(given, dict):
        try:
            values = read_model(Range, given).values()
        except ValidationError as error:
            raise Rejected(explain(Range, given, error)) from error
        why = why_not_stored(values)
        if why:
            raise ValueError(why)
        return values
    if not isinstance(given, list):
        raise ValueError(f"found {show(given)}, must be a list of values or a range: {{start, stop, step or factor}}")
    if not given:
        raise ValueError("found an empty list, must have at least one value")
    texts = [json.dumps(each, sort_keys=True, default=str) for each in given]
    twice = [at for at, text in enumerate(texts) if text in texts[:at]]
    if twice:
        raise Rejected(Complaint((at,), f"{show(given[at])} is in the list twice") for at in twice)
    wrong = [Complaint((at,), why) for at, value in enumerate(given) if (why := why_not_stored(value))]
    if wrong:
        raise Rejected(wrong)
    return tuple(given)


def why_not_stored(value: Value) -> str:
    """Why neither the journal nor Parquet could hold ``value``; empty when they can."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"found {show(value)}, must be a finite number"
    if isinstance(value, int) and abs(value) > LARGEST:
        return f"found {show(value)}, must fit into 64 bits"
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return next(filter(None, map(why_not_stored, inside)), "")


Axis = Annotated[tuple[Any, ...], BeforeValidator(as_values)]


class Plot(ConfigModel):
    """A picture of the results.

    ``lines``: column ``value`` over axis ``x``, a curve for each value of axis ``by``; ``heat-map``: ``value`` over
    axes ``x`` and ``y``; ``pareto``: the points that no other beats in both ``cost`` and ``value``, less being better.
    """

    kind: PlotKind
    x: str | None = None
    y: str | None = None
    by: str | None = None
    cost: str | None = None
    value: str = DEFAULT_VALUE

    @model_validator(mode="after")
    def _keys_of_kind(self) -> Plot:
        allowed = _PLOT_KEYS[self.kind]
        wrong = sorted(self.model_fields_set - {"kind", *allowed})
        if wrong:
            message = f"{self.kind} does not use it; it takes {one_of(allowed)}"
            raise Rejected(Complaint((key,), message, at_key=True) for key in wrong)
        if self.kind == "pareto" and self.cost is None:
            raise ValueError("pareto needs cost: the axis or column that is paid for speed")
        drawn = [name for name in (self.x, self.y, self.by) if name is not None]
        if len(set(drawn)) < len(drawn):
            raise ValueError(f"{one_of(drawn)}: an axis can be drawn once")
        return self


class SweepSpec(ConfigModel):
    """A sweep. Files named in it are looked for beside it; without ``topology`` and ``ccl`` they are those of the
    command line. What entries must be beside each other is in ``sweep_draft``.

    ``explain``: keep the critical path and the roofline of every point, for about a third of the time more.
    """

    bench: str
    topology: str | None = None
    ccl: str | None = None
    device: str = "all"
    verify: bool = False
    explain: bool = True
    fixed: dict[str, Any] = Field(default_factory=dict, alias="set")
    grid: dict[str, Axis] = Field(min_length=1)
    plots: tuple[Plot, ...] | None = None


def is_numeric(values: Iterable[Value]) -> bool:
    """Whether all values of an axis are numbers."""
    return all(isinstance(each, int | float) and not isinstance(each, bool) for each in values)


def short_name(path: str) -> str:
    """A path without the levels that say nothing: ``hbm_ctrl.efficiency``."""
    parts = [part for part in path.split(".") if part not in ("components", "attrs", "links")]
    return ".".join(parts[-2:])
