"""Figure of the bounds of a run: the least time of each resource beside the measured time."""

from __future__ import annotations

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from kernbench.result.explanation import Explanation
from kernbench.result.figure_style import BLUE, INK, STYLE, VERMILLION, value_grid

MOST_LAUNCHES = 4


def draw_bounds(explanation: Explanation) -> Figure:
    """Draw the bounds of a run and of its longest launches as bars, each as a share of the measured time."""
    parts = [explanation, *sorted(explanation.longest_launches(), key=lambda launch: -launch.total_ns)[:MOST_LAUNCHES]]
    with rc_context(STYLE):
        figure = Figure(figsize=(6.4, 0.9 + sum(0.32 + 0.2 * len(time.bounds) for time in parts)), layout="constrained")
        FigureCanvasAgg(figure)
        heights = [max(1, len(each.bounds)) for each in parts]
        panels = figure.subplots(len(parts), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
        for panel, time in zip(panels, parts, strict=True):
            rows = time.bounds.rows
            colours = [VERMILLION if at == 0 else BLUE for at in range(len(rows))]
            panel.barh([row.resource for row in rows], [100 * row.ns / time.total_ns for row in rows], color=colours)
            panel.invert_yaxis()
            panel.axvline(100, color=INK, linewidth=0.8)
            panel.set_title(f"{time.name}: {time.total_ns:,.3f} ns", fontsize=9)
            value_grid(panel, "x")
        panels[-1].set_xlim(0, 105)
        panels[-1].set_xlabel("least time that a resource needs, % of the measured time")
    return figure
