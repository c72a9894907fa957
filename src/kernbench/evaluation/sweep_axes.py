"""Axes, labels and rows of sweep figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from textwrap import fill
from typing import Any, Literal, TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from kernbench.common.values import value
from kernbench.evaluation.sweep_measure import OK, PointRow
from kernbench.evaluation.sweep_names import Quantity, name_axis, name_column, name_derived
from kernbench.evaluation.sweep_spec import AxisValue, is_numeric
from kernbench.evaluation.sweep_table import SweepTable
from kernbench.result.figure_style import INK
from kernbench.result.run_columns import BOUNDS

ValueGrid: TypeAlias = "np.ndarray[tuple[int, int], np.dtype[np.float64]]"
# Beyond this ratio of largest to smallest value, a linear scale hides the small values.
WIDE = 8.0
MOST_NUMBERS = 120
PLAIN = FuncFormatter(lambda value, _: f"{value:,.6g}")
"""Format of unabridged numbers, with commas"""
MOST_TICKS = 12
MOST_NAMES = 24
LONGEST_TEXT = 26
LETTERS_PER_INCH = 10.5
"""Characters of a title or legend, per inch of a figure"""
LABEL_SIZE_IN = (0.075, 0.17)
"""Approximate width of a character and height of a line of a small label"""
LABEL_OFFSETS = ((5, 5), (5, -12), (-5, 5), (-5, -12))
"""Positions of a small label beside its point, in the order of preference"""


@value
class TableSlice:
    """The successful rows of a table with a fixed value on each axis that is not drawn. ``note`` lists these values."""

    rows: tuple[PointRow, ...]
    note: str


def slice_of(table: SweepTable, drawn: Sequence[str | None], value: str) -> TableSlice:
    """Return the rows with a cell in ``value`` that equal the first such row on all axes that are not ``drawn``."""
    filled = [row for row in table.rows if has_values(row, [value])]
    undrawn = [name for name, values in table.grid.items() if name not in drawn and len(values) > 1]
    first = {name: filled[0][name] for name in undrawn}
    rows = (row for row in filled if all(row[name] == first[name] for name in undrawn))
    note = ", ".join(f"{name_axis(name).name} = {short_text(cell)}" for name, cell in first.items())
    return TableSlice(tuple(rows), note)


def quantity_of(table: SweepTable, column: str, rows: Iterable[PointRow]) -> Quantity:
    """Return the name of a column or axis, and the unit that suits its numbers in ``rows``. Axes keep their unit."""
    if column in table.axes:
        return name_axis(column)
    quantity = name_derived(column) if column in table.derived else name_column(column)
    return quantity if column in BOUNDS else quantity.fit(number_of(row, column) for row in rows)


def numbers_in(rows: Iterable[PointRow], column: str, quantity: Quantity) -> list[float]:
    """Return the numbers of a column in the unit of its quantity."""
    return [number_of(row, column) * quantity.factor for row in rows]


def has_values(row: PointRow, columns: Iterable[str]) -> bool:
    """Return True if a row is successful and has numbers, or bottleneck texts, in ``columns``."""
    cells = ((row.get(name), str if name in BOUNDS else int | float) for name in columns)
    return row["status"] == OK and all(isinstance(cell, kind) for cell, kind in cells)


def number_of(row: PointRow, column: str) -> float:
    cell = row[column]
    assert isinstance(cell, int | float), "only rows with the number are drawn"
    return float(cell)


def places_along(table: SweepTable, x: str, rows: Sequence[PointRow]) -> list[float]:
    """Return the positions of rows along axis ``x``: its numbers, or consecutive positions for other values."""
    values = table.grid[x]
    if is_numeric(values):
        return [number_of(row, x) for row in rows]
    names = [axis_text(value) for value in values]
    return [float(names.index(axis_text(row[x]))) for row in rows]


def mark_x(panel: Axes, values: Sequence[AxisValue]) -> None:
    """Mark an axis with its values: at their numbers, or at consecutive positions."""
    if not is_numeric(values):
        panel.set_xticks(range(len(values)), [short_text(value) for value in values])
        tilt_crowded(panel, values)
        return
    numbers = {float(value): axis_text(value) for value in values if isinstance(value, int | float)}
    geometric = _is_geometric(list(numbers))
    if geometric:
        panel.set_xscale("log", base=2)
        panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_major_formatter(PLAIN)
    if _have_room([math.log(number) for number in numbers] if geometric else list(numbers)):
        panel.set_xticks(list(numbers), list(numbers.values()))


def _have_room(places: Sequence[float]) -> bool:
    """Return True if a label fits at each position."""
    along = sorted(places)
    least = (along[-1] - along[0]) / MOST_TICKS
    return all(after - before >= least for before, after in pairwise(along))


def _is_geometric(numbers: Sequence[float]) -> bool:
    """Return True if a logarithmic scale spreads the numbers better: constant ratios or a large range."""
    along = sorted(numbers)
    if len(along) < 3 or along[0] <= 0:
        return False
    ratios = [after / before for before, after in pairwise(along)]
    return min(ratios) > 1.3 and (max(ratios) / min(ratios) < 1.1 or along[-1] / along[0] > WIDE)


def scale_y(panel: Axes, values: Sequence[float]) -> None:
    if _is_wide(values):
        panel.set_yscale("log")
        panel.yaxis.set_major_locator(decades())
        panel.yaxis.set_minor_locator(NullLocator())
    else:
        panel.set_ylim(min(0.0, *values), 1.06 * max(0.0, *values) or 1.0)
    panel.yaxis.set_major_formatter(PLAIN)


def scale_x(panel: Axes, values: Sequence[float]) -> None:
    """Scale the axis of a column's numbers; an axis of the grid has ``mark_x``."""
    if _is_wide(values):
        panel.set_xscale("log")
        panel.xaxis.set_major_locator(decades())
        panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_major_formatter(PLAIN)


def _is_wide(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) / min(values) > WIDE


def decades() -> LogLocator:
    """Return the marks of a logarithmic scale: 1, 2, 5, 10, 20, …"""
    return LogLocator(subs=(1.0, 2.0, 5.0))


def norm_of(grid: ValueGrid) -> Normalize:
    low, high = float(np.nanmin(grid)), float(np.nanmax(grid))
    return LogNorm(low, high) if low > 0 and high / low > WIDE else Normalize(low, high)


def write_numbers(panel: Axes, grid: ValueGrid, norm: Normalize) -> None:
    if grid.size > MOST_NUMBERS:
        return
    for (line, column), number in np.ndenumerate(grid):
        is_number = bool(np.isfinite(number))
        dark = is_number and float(norm(number)) < 0.5
        label = f"{number:,.4g}" if is_number and number < 1e4 else f"{number:,.0f}" if is_number else "–"
        panel.text(column, line, label, ha="center", va="center", fontsize=8, color="white" if dark else INK)


def name_cells(panel: Axes, columns: Sequence[str], lines: Sequence[str]) -> None:
    for axis, labels in ((panel.xaxis, columns), (panel.yaxis, lines)):
        every = -(-len(labels) // MOST_NAMES)
        axis.set_ticks(range(0, len(labels), every), [short_text(label) for label in labels[::every]])
    tilt_crowded(panel, columns)
    panel.tick_params(length=0)
    panel.spines[:].set_visible(False)


def label_axes(panel: Axes, table: SweepTable, x: Quantity, y: Quantity, note: str) -> None:
    panel.set_xlabel(x.label)
    panel.set_ylabel(fit_label(panel, y))
    set_title(panel, table, y, note)


def fit_label(panel: Axes, quantity: Quantity) -> str:
    """Return the label of a vertical axis in lines that fit the height of the figure."""
    return fill(quantity.label, int(LETTERS_PER_INCH * (_size_in(panel)[1] - 0.8)))


def set_title(panel: Axes, table: SweepTable, quantity: Quantity, note: str) -> None:
    """Write the title in lines that fit: the bench and the quantity, then the values of the other axes."""
    letters = int(LETTERS_PER_INCH * (_size_in(panel)[0] - 1.0))
    lines = [f"{table.bench}: {quantity.name}", *([f"at {note}"] if note else [])]
    panel.set_title("\n".join(fill(line, letters) for line in lines))


def _size_in(panel: Axes) -> tuple[float, float]:
    """Return width and height of the figure of a panel in inches."""
    figure = panel.get_figure(root=True)
    assert figure is not None, "a panel belongs to a figure"
    width_in, height_in = map(float, figure.get_size_inches())
    return width_in, height_in


@value
class PointLabel:
    """A small label of a point, in the colour of its curve."""

    place: tuple[float, float]
    text: str
    colour: str


def write_labels(panel: Axes, labels: Iterable[PointLabel]) -> None:
    """Write labels beside their points, and omit those for which the others leave no room. The scales must be final."""
    panel.get_xlim(), panel.get_ylim()  # applies pending changes of the scales
    to_share = panel.transData - panel.transAxes
    width_in, height_in = (0.85 * side for side in _size_in(panel))
    boxes: list[tuple[float, float, float, float]] = []
    for label in labels:
        across, up = to_share.transform(label.place)
        wide, high = LABEL_SIZE_IN[0] * len(label.text), LABEL_SIZE_IN[1]
        for right, above in LABEL_OFFSETS:
            left = across * width_in + right / 72 - (wide if right < 0 else 0)
            low = up * height_in + above / 72
            box = (left, low, left + wide, low + high)
            if any(_overlap(box, other) for other in boxes):
                continue
            boxes.append(box)
            offset: dict[str, Any] = {"xytext": (right, above), "textcoords": "offset points"}
            side: Literal["left", "right"] = "left" if right > 0 else "right"
            panel.annotate(label.text, label.place, **offset, ha=side, fontsize=8, color=label.colour)
            break


def _overlap(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def labels_of(table: SweepTable, axis: str) -> list[str]:
    return list(dict.fromkeys(axis_text(row[axis]) for row in table.rows))


def tilt_crowded(panel: Axes, values: Sequence[object]) -> None:
    """Tilt the labels along x if they would overlap."""
    letters = max(len(short_text(value)) for value in values) + 2
    if letters * min(len(values), MOST_NAMES) > LETTERS_PER_INCH * (_size_in(panel)[0] - 1.0):
        for label in panel.get_xticklabels():
            label.set(rotation=30, ha="right", rotation_mode="anchor")


def short_text(value: object) -> str:
    """Return a value as a label: the file of a machine without folder and suffix, a long text without its start."""
    text = axis_text(value)
    text = Path(text).stem if text.endswith((".yaml", ".yml")) else text
    return text if len(text) <= LONGEST_TEXT else f"…{text[1 - LONGEST_TEXT :]}"


def axis_text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
