"""What can be read of a sweep file, whatever else is wrong with it; and what is wrong between its entries.

So that a reader learns of every mistake at once, and not of the next when the first is mended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from kernbench.common.complaints import Complaint, close_to, one_of
from kernbench.common.config import Document, Path, path_of, read_model
from kernbench.evaluation.sweep_spec import MOST_POINTS, Plot, SweepSpec, Value, as_values, why_not_stored

Axes = Mapping[str, tuple[Value, ...]]
DEFAULT_DEVICE = SweepSpec.model_fields["device"].default


@dataclass(frozen=True, slots=True)
class SweepDraft:
    """A sweep file as far as it can be read. An axis that cannot be read has no values, such a plot is None."""

    bench: str | None
    topology: str | None
    ccl: str | None
    device: str
    fixed: Mapping[str, Value]
    grid: Axes
    plots: tuple[Plot | None, ...]

    @property
    def axes(self) -> Axes:
        """The axes that can be read."""
        return {path: values for path, values in self.grid.items() if values}

    def without(self, wrong: Set[Path]) -> SweepDraft:
        """The same without these entries of ``set``, and with nothing known of these axes."""
        return replace(
            self,
            fixed={path: value for path, value in self.fixed.items() if ("set", path) not in wrong},
            grid={path: () if ("grid", path) in wrong else values for path, values in self.grid.items()},
        )


def read_draft(document: Document, complaints: Iterable[Complaint]) -> SweepDraft:
    """The draft of a file in which ``complaints`` were found, by checking it against ``SweepSpec``."""
    wrong = {complaint.path[:2] for complaint in complaints}
    grid, fixed, plots = document.get(("grid",)), document.get(("set",)), document.get(("plots",))
    return SweepDraft(
        bench=_text(document, "bench"),
        topology=_text(document, "topology"),
        ccl=_text(document, "ccl"),
        device=_text(document, "device") or DEFAULT_DEVICE,
        fixed=fixed if isinstance(fixed, dict) else {},
        grid={path: () if ("grid", path) in wrong else as_values(given) for path, given in _items(grid)},
        plots=tuple(
            None if ("plots", at) in wrong else read_model(Plot, given)
            for at, given in enumerate(plots if isinstance(plots, list) else ())
        ),
    )


def _text(document: Document, key: str) -> str | None:
    found = document.get((key,))
    return found if isinstance(found, str) else None


def _items(found: Any) -> Iterable[tuple[str, Any]]:
    return found.items() if isinstance(found, dict) else ()


def draft_complaints(draft: SweepDraft) -> Iterator[Complaint]:
    """What is wrong between entries, and with paths and fixed values, which no type describes."""
    for section, path in [*(("set", path) for path in draft.fixed), *(("grid", path) for path in draft.grid)]:
        why = _no_path(path)
        if why:
            yield Complaint((section, path), why, at_key=True)
    for path, value in draft.fixed.items():
        why = why_not_stored(value)
        if why:
            yield Complaint(("set", path), why)
        if path in draft.grid:
            yield Complaint(("set", path), "the grid varies it; give it in one place", at_key=True)
    points = prod(len(values) for values in draft.axes.values())
    if points > MOST_POINTS:
        message = f"the grid has {points:,} points or more, must be at most {MOST_POINTS:,}"
        yield Complaint(("grid",), message, at_key=True)
    for at, plot in enumerate(draft.plots):
        if plot is not None:
            yield from _plot_complaints(at, plot, tuple(draft.grid))


def _plot_complaints(at: int, plot: Plot, axes: tuple[str, ...]) -> Iterator[Complaint]:
    for key, name in (("x", plot.x), ("y", plot.y), ("by", plot.by)):
        if name is not None and name not in axes:
            message = f"{name!r} is no axis; {close_to(name, axes)}the grid has {one_of(axes)}"
            yield Complaint(("plots", at, key), message)
    if plot.kind == "heat-map" and len(axes) < 2:
        yield Complaint(("plots", at), "a heat-map needs two axes, the grid has one")


def _no_path(text: str) -> str:
    """Why ``text`` is no path; empty when it is one."""
    try:
        path_of(text)
    except ValueError as error:
        return str(error)
    return ""
