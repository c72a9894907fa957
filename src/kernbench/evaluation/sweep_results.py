"""Write the results of a finished sweep to its folder: the table, run times of points, provenance, and pictures.

Pictures are lines over an axis, a heat map over two axes, and the Pareto front.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from kernbench.evaluation.figure_style import (
    BLUE,
    MARKERS,
    MUTED,
    PALETTE,
    VERMILLION,
    make_figure,
    save_figure,
    value_grid,
)
from kernbench.evaluation.outputs import PROVENANCE_FILE, provenance_of, write_csv, write_provenance
from kernbench.evaluation.sweep_axes import (
    PLAIN,
    axis_text,
    decades,
    has_values,
    label_axes,
    labels_of,
    mark_x,
    name_cells,
    norm_of,
    number_of,
    places_along,
    scale_y,
    slice_of,
    title_of,
    write_numbers,
)
from kernbench.evaluation.sweep_folder import WALL_FILE, picture_file, pictures_in
from kernbench.evaluation.sweep_journal import Journal
from kernbench.evaluation.sweep_measure import PointRow
from kernbench.evaluation.sweep_plan import SweepPlan
from kernbench.evaluation.sweep_spec import Plot, PlotKind, is_numeric, short_name
from kernbench.evaluation.sweep_table import TABLE_FILE, SweepTable, sweep_table, walls, write_sweep_table
from kernbench.result.run_columns import BOUNDS

MOST_CURVES = len(PALETTE)
MOST_NAMED = 12


def draw_plots(folder: Path, plan: SweepPlan, table: SweepTable) -> tuple[Path, ...]:
    """Draw the requested pictures, by default lines and a heat map if the axes allow; return the files.

    A picture is omitted if no point has the numbers that it needs.
    """
    drawn = []
    for at, plot in enumerate(plan.spec.plots if plan.spec.plots is not None else _usual(plan)):
        path = folder / picture_file(at + 1, plot.kind)
        if can_draw(table, plot):
            save_figure(draw_plot(table, plot), path)
            drawn.append(path)
    return tuple(drawn)


def can_draw(table: SweepTable, plot: Plot) -> bool:
    """Return True if at least one point has the numbers that a picture needs."""
    columns = [name for name in (plot.value, plot.cost) if name is not None]
    return any(has_values(row, columns) for row in table.rows)


def draw_plot(table: SweepTable, plot: Plot) -> Figure:
    """Draw a picture from a table that has the required numbers."""
    return _DRAW[plot.kind](table, plot)


def _usual(plan: SweepPlan) -> Iterator[Plot]:
    if any(is_numeric(values) and len(values) > 1 for values in plan.axes.values()):
        yield Plot(kind="lines")
    if sum(len(values) > 1 for values in plan.axes.values()) > 1:
        yield Plot(kind="heat-map")


def _draw_lines(table: SweepTable, plot: Plot) -> Figure:
    grid = table.grid
    axes = list(grid)
    x = plot.x or next((name for name in axes if is_numeric(grid[name]) and len(grid[name]) > 1), axes[0])
    others = [name for name in axes if name != x]
    by = plot.by or next((name for name in others if 1 < len(grid[name]) <= MOST_CURVES), None)
    chosen = slice_of(table, [x, by], plot.value)
    with make_figure(6.4, 4.2) as figure:
        panel = figure.add_subplot()
        for at, (label, rows) in enumerate(_curves(chosen.rows, by)):
            places, values = places_along(table, x, rows), [number_of(row, plot.value) for row in rows]
            colour, marker = PALETTE[at % MOST_CURVES], MARKERS[at % MOST_CURVES]
            # Curves often coincide: larger markers of lower curves stay visible.
            panel.plot(places, values, color=colour, marker=marker, markersize=max(3, 8 - at), label=label)
        mark_x(panel, grid[x])
        label_axes(panel, table, x, plot.value, chosen.note)
        scale_y(panel, [number_of(row, plot.value) for row in chosen.rows])
        value_grid(panel, "both")
        if by is not None:
            panel.legend(title=short_name(by), loc="best")
    return figure


def _curves(rows: Sequence[PointRow], by: str | None) -> Iterator[tuple[str, list[PointRow]]]:
    if by is None:
        yield "", list(rows)
        return
    for value in dict.fromkeys(row[by] for row in rows):
        yield axis_text(value), [row for row in rows if row[by] == value]


def _draw_heat_map(table: SweepTable, plot: Plot) -> Figure:
    axes = table.grid
    free = [name for name in axes if name not in (plot.x, plot.y)]
    free.sort(key=lambda name: len(axes[name]) < 2)
    x = plot.x or free.pop(0)
    y = plot.y or free.pop(0)
    chosen = slice_of(table, [x, y], plot.value)
    columns, lines = labels_of(table, x), labels_of(table, y)
    words = list(dict.fromkeys(row[plot.value] for row in chosen.rows)) if plot.value in BOUNDS else []
    grid = np.full((len(lines), len(columns)), np.nan)
    for row in chosen.rows:
        at = lines.index(axis_text(row[y])), columns.index(axis_text(row[x]))
        grid[at] = words.index(row[plot.value]) if words else number_of(row, plot.value)
    width = min(max(4.4, 2.4 + 0.72 * len(columns)), 12)
    with make_figure(width, min(max(2.6, 1.6 + 0.42 * len(lines)), 9) + 0.25 * len(words)) as figure:
        panel = figure.add_subplot()
        if words:
            colours = [*PALETTE[: len(words)], *[MUTED] * (len(words) - len(PALETTE))]
            panel.imshow(
                grid, origin="lower", aspect="auto", cmap=ListedColormap(colours), vmin=0, vmax=len(words) - 1 or 1
            )
            keys = [Patch(color=colour, label=str(word)) for colour, word in zip(colours, words, strict=True)]
            figure.legend(handles=keys, loc="outside lower left", title="bound by", alignment="left")
        else:
            norm = norm_of(grid)
            image = panel.imshow(grid, origin="lower", aspect="auto", cmap="cividis", norm=norm)
            write_numbers(panel, grid, norm)
            marks = decades() if isinstance(norm, LogNorm) else None
            figure.colorbar(image, label=plot.value, ticks=marks, format=PLAIN).ax.minorticks_off()
        name_cells(panel, columns, lines)
        panel.set_ylabel(short_name(y))
        panel.set_xlabel(short_name(x))
        panel.set_title(title_of(table, plot.value, chosen.note))
    return figure


def _draw_pareto(table: SweepTable, plot: Plot) -> Figure:
    assert plot.cost is not None, "a Pareto plot has a cost"
    grid = table.grid
    rows = [row for row in table.rows if has_values(row, [plot.cost, plot.value])]
    costs, values = ([number_of(row, name) for row in rows] for name in (plot.cost, plot.value))
    front = pareto_front(list(zip(costs, values, strict=True)))
    named = [name for name in grid if name != plot.cost and len(grid[name]) > 1]
    with make_figure(6.4, 4.2) as figure:
        panel = figure.add_subplot()
        panel.scatter(costs, values, s=18, color=MUTED, alpha=0.6, linewidths=0, label="points")
        best = [costs[at] for at in front], [values[at] for at in front]
        label = f"not beaten by any ({', '.join(short_name(name) for name in named)})" if named else "not beaten by any"
        panel.step(*best, where="post", color=VERMILLION, marker="o", label=label)
        if plot.cost in grid:
            mark_x(panel, grid[plot.cost])
        for at in front if len(front) <= MOST_NAMED else ():
            text = ", ".join(axis_text(rows[at][name]) for name in named)
            place = (costs[at], values[at])
            panel.annotate(text, place, xytext=(5, 5), textcoords="offset points", fontsize=8, color=BLUE)
        label_axes(panel, table, plot.cost, plot.value, "")
        scale_y(panel, values)
        value_grid(panel, "both")
        panel.legend(loc="best")
    return figure


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the numbers of the (cost, value) points that no other point dominates, by ascending cost.

    A point dominates another if it is nowhere greater, and less in at least one number. Of equal points, only the
    first is returned.
    """
    front: list[int] = []
    for at in sorted(range(len(points)), key=lambda at: (*points[at], at)):
        if not front or points[at][1] < points[front[-1]][1]:
            front.append(at)
    return front


_DRAW: Mapping[PlotKind, Callable[[SweepTable, Plot], Figure]] = {
    "lines": _draw_lines,
    "heat-map": _draw_heat_map,
    "pareto": _draw_pareto,
}


def write_results(folder: Path, plan: SweepPlan, journal: Journal) -> tuple[SweepTable, tuple[Path, ...]]:
    """Write all results; return the table and the names of the files."""
    table = sweep_table(plan, journal.finished)
    write_sweep_table(table, folder / TABLE_FILE)
    write_csv(folder / WALL_FILE, walls(journal.finished))
    # The complete machine is a separate file.
    parameters = {key: value for key, value in plan.identity().items() if key != "configuration"}
    parameters["ccl file"] = plan.ccl.source
    provenance = provenance_of(plan.machine, f"kernbench sweep {plan.name}", parameters)
    write_provenance(folder, provenance, plan.machine)
    pictures = draw_plots(folder, plan, table)
    _remove_others(folder, pictures)
    return table, tuple(folder / name for name in (TABLE_FILE, WALL_FILE, PROVENANCE_FILE)) + pictures


def _remove_others(folder: Path, pictures: Sequence[Path]) -> None:
    """Remove the pictures of an earlier sweep from ``folder``, except those that were just written."""
    for path in pictures_in(folder) - set(pictures):
        path.unlink()
