"""Write the results of a finished sweep to its folder: the table, run times of points, provenance, and pictures.

Pictures are lines over an axis, a heat map over two axes, and the Pareto front.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import fill

import numpy as np
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from kernbench.evaluation.outputs import PROVENANCE_FILE, provenance_of, write_csv, write_provenance, write_text
from kernbench.evaluation.sweep_axes import (
    PLAIN,
    PointLabel,
    axis_text,
    decades,
    fit_label,
    has_values,
    label_axes,
    labels_of,
    mark_x,
    name_cells,
    norm_of,
    number_of,
    numbers_in,
    places_along,
    quantity_of,
    scale_x,
    scale_y,
    set_title,
    short_text,
    slice_of,
    write_labels,
    write_numbers,
)
from kernbench.evaluation.sweep_folder import WALL_FILE, machine_file, machine_files_in, picture_file, pictures_in
from kernbench.evaluation.sweep_journal import Journal
from kernbench.evaluation.sweep_measure import PointRow
from kernbench.evaluation.sweep_names import name_axis
from kernbench.evaluation.sweep_plan import MACHINES, SweepPlan
from kernbench.evaluation.sweep_spec import MACHINE, Plot, PlotKind, is_numeric
from kernbench.evaluation.sweep_table import (
    TABLE_FILE,
    SweepTable,
    WorkValues,
    group_by_work,
    sweep_table,
    walls,
    write_sweep_table,
)
from kernbench.result.figure_style import (
    BLUE,
    MARKERS,
    MUTED,
    PALETTE,
    VERMILLION,
    make_figure,
    save_figure,
    value_grid,
)
from kernbench.result.run_columns import BOUNDS

MOST_CURVES = len(PALETTE)
MOST_NAMED = 12
LEGEND_LETTERS = 36
LETTER_IN = 0.05
"""Additional width of a heat map for a character of the labels of its lines"""


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
    free = [name for name in axes if name != x]
    by = plot.by or next((name for name in free if 1 < len(grid[name]) <= MOST_CURVES), None)
    chosen = slice_of(table, [x, by], plot.value)
    quantity = quantity_of(table, plot.value, chosen.rows)
    with make_figure(6.4, 4.2) as figure:
        panel = figure.add_subplot()
        for at, (label, rows) in enumerate(_curves(chosen.rows, by)):
            places, values = places_along(table, x, rows), numbers_in(rows, plot.value, quantity)
            colour, marker = PALETTE[at % MOST_CURVES], MARKERS[at % MOST_CURVES]
            # Curves often coincide: larger markers of lower curves stay visible.
            panel.plot(places, values, color=colour, marker=marker, markersize=max(3, 8 - at), label=label)
        mark_x(panel, grid[x])
        label_axes(panel, table, name_axis(x), quantity, chosen.note)
        scale_y(panel, numbers_in(chosen.rows, plot.value, quantity))
        value_grid(panel, "both")
        if by is not None:
            panel.legend(title=name_axis(by).label, loc="best")
    return figure


def _curves(rows: Sequence[PointRow], by: str | None) -> Iterator[tuple[str, list[PointRow]]]:
    if by is None:
        yield "", list(rows)
        return
    for value in dict.fromkeys(row[by] for row in rows):
        yield short_text(value), [row for row in rows if row[by] == value]


def _draw_heat_map(table: SweepTable, plot: Plot) -> Figure:
    axes = table.grid
    free = [name for name in axes if name not in (plot.x, plot.y)]
    free.sort(key=lambda name: len(axes[name]) < 2)
    x = plot.x or free.pop(0)
    y = plot.y or free.pop(0)
    chosen = slice_of(table, [x, y], plot.value)
    quantity = quantity_of(table, plot.value, chosen.rows)
    columns, lines = labels_of(table, x), labels_of(table, y)
    words = list(dict.fromkeys(row[plot.value] for row in chosen.rows)) if plot.value in BOUNDS else []
    grid = np.full((len(lines), len(columns)), np.nan)
    for row in chosen.rows:
        at = lines.index(axis_text(row[y])), columns.index(axis_text(row[x]))
        grid[at] = words.index(row[plot.value]) if words else number_of(row, plot.value) * quantity.factor
    width = min(max(4.4, 2.4 + 0.72 * len(columns)) + LETTER_IN * max(len(short_text(line)) for line in lines), 12)
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
            label = fit_label(panel, quantity)
            label = quantity.unit if "\n" in label else label  # the title has the name
            figure.colorbar(image, label=label, ticks=marks, format=PLAIN).ax.minorticks_off()
        name_cells(panel, columns, lines)
        panel.set_ylabel(fit_label(panel, name_axis(y)))
        panel.set_xlabel(name_axis(x).label)
        set_title(panel, table, quantity, chosen.note)
    return figure


def _draw_pareto(table: SweepTable, plot: Plot) -> Figure:
    assert plot.cost is not None, "a Pareto plot has a cost"
    rows = [row for row in table.rows if has_values(row, [plot.cost, plot.value])]
    cost, result = (quantity_of(table, name, rows) for name in (plot.cost, plot.value))
    groups = group_by_work(rows, table.work)
    varied = [name for name in table.grid if len(table.grid[name]) > 1 and name not in (plot.cost, *table.work)]
    labels = []
    with make_figure(6.4, 4.2) as figure:
        panel = figure.add_subplot()
        for at, (work, members) in enumerate(groups.items()):
            costs, values = numbers_in(members, plot.cost, cost), numbers_in(members, plot.value, result)
            front = pareto_front(list(zip(costs, values, strict=True)), largest=plot.largest)
            cloud, line, name = (MUTED, VERMILLION, BLUE) if len(groups) == 1 else (PALETTE[at % MOST_CURVES],) * 3
            panel.scatter(
                costs, values, s=18, color=cloud, alpha=0.6, linewidths=0, label="points" if len(groups) == 1 else None
            )
            best = [costs[number] for number in front], [values[number] for number in front]
            marker, label = MARKERS[at % MOST_CURVES], _label_front(table, work if len(groups) > 1 else ())
            panel.step(*best, where="post", color=line, marker=marker, label=label)
            for number in front if len(front) <= MOST_NAMED else ():
                text = ", ".join(short_text(members[number][axis]) for axis in varied)
                labels.append(PointLabel((costs[number], values[number]), text, name))
        if plot.cost in table.grid:
            mark_x(panel, table.grid[plot.cost])
        else:
            scale_x(panel, numbers_in(rows, plot.cost, cost))
        label_axes(panel, table, cost, result, "")
        scale_y(panel, numbers_in(rows, plot.value, result))
        write_labels(panel, labels)
        value_grid(panel, "both")
        names = fill(", ".join(name_axis(axis).name for axis in varied), LEGEND_LETTERS)
        panel.legend(loc="best", title=f"labels: {names}" if varied else None)
    return figure


def _label_front(table: SweepTable, work: WorkValues) -> str:
    """Return the label of a front, with its work if there are several works."""
    values = (f"{name_axis(axis).name} {short_text(cell)}" for axis, cell in zip(table.work, work, strict=bool(work)))
    return f"not beaten at {', '.join(values)}" if work else "not beaten by any"


def pareto_front(points: Sequence[tuple[float, float]], *, largest: bool = False) -> list[int]:
    """Return the numbers of the (cost, value) points that no other point dominates, by ascending cost.

    A point dominates another if it is nowhere worse, and better in at least one number. A smaller cost is better, and a
    smaller value, or a larger one with ``largest``. Of equal points, only the first is returned.
    """
    losses = [(cost, -value if largest else value) for cost, value in points]
    front: list[int] = []
    for at in sorted(range(len(losses)), key=lambda at: (*losses[at], at)):
        if not front or losses[at][1] < losses[front[-1]][1]:
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
    # The complete machines are separate files.
    parameters = {key: content for key, content in plan.about().items() if key not in ("configuration", MACHINES)}
    parameters["ccl file"] = plan.ccl.source
    machines = _write_machines(folder, plan)
    if machines:
        parameters[MACHINES] = machines
    provenance = provenance_of(plan.machine, f"kernbench sweep {plan.name}", parameters)
    write_provenance(folder, provenance, plan.machine)
    pictures = draw_plots(folder, plan, table)
    _remove_others(folder, pictures)
    return table, tuple(folder / name for name in (TABLE_FILE, WALL_FILE, PROVENANCE_FILE)) + pictures


def _write_machines(folder: Path, plan: SweepPlan) -> dict[str, dict[str, str]]:
    """Write each machine of the axis ``machine`` to a file, and return its digest and the name of its file by name."""
    for path in machine_files_in(folder):
        path.unlink()
    if MACHINE not in plan.axes:
        return {}
    machines = {}
    for number, (name, machine) in enumerate(plan.machines.items(), start=1):
        file = machine_file(number)
        write_text(folder / file, machine.topology.resolved_yaml())
        machines[name] = {"digest": machine.topology.digest, "file": file}
    return machines


def _remove_others(folder: Path, pictures: Sequence[Path]) -> None:
    """Remove the pictures of an earlier sweep from ``folder``, except those that were just written."""
    for path in pictures_in(folder) - set(pictures):
        path.unlink()
