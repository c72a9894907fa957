"""Roofline plot of a run: its launches under the roofs of the machine, one panel per engine."""

from __future__ import annotations

from collections.abc import Sequence
from math import log10, nan
from pathlib import Path
from textwrap import fill

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from kernbench.observe.roofline_chart import ChartPoint, RooflineChart
from kernbench.result.figure_style import (
    BLACK,
    BLUE,
    GREEN,
    MARKERS,
    MUTED,
    ORANGE,
    PURPLE,
    make_figure,
    save_figure,
    value_grid,
)
from kernbench.topology import resources as of

COLOURS = {of.HBM: BLUE, of.SRAM: GREEN, of.FETCH: ORANGE}
"""Colour of the markers for each memory"""
SIZES = (11.0, 5.5, 3.0)
"""Marker sizes in points. They differ, so coinciding markers of a launch for two memories are both visible."""
PANEL_IN = (6.4, 4.2)
LETTERS = 52
"""Number of characters of a title that fit the width of a panel"""
MOST_NAMES = 12
NAME_DECADES = 0.12
"""Distance in decades below which names of launches overlap"""


def draw_roofline(charts: Sequence[RooflineChart], title: str, path: Path) -> None:
    """Draw ``charts`` to the PNG ``path``. Raises InputError if the file cannot be written."""
    save_figure(roofline_figure(charts, title), path)


def roofline_figure(charts: Sequence[RooflineChart], title: str) -> Figure:
    """Draw ``charts`` side by side."""
    width, height = PANEL_IN
    words = _plain(fill(title, LETTERS * len(charts)))
    with make_figure(width * len(charts), height, words) as figure:
        for axes, chart in zip(figure.subplots(1, len(charts), squeeze=False)[0], charts, strict=True):
            _draw_chart(axes, chart)
    return figure


def _draw_chart(axes: Axes, chart: RooflineChart) -> None:
    left, right, low, high = chart.limits
    axes.set_title(f"{chart.engine}, busiest PE" if chart.points else "no launch did arithmetic")
    top = max(roof.rate for roof in chart.engine_roofs)
    for roof in chart.engine_roofs:
        begin = roof.rate / max(memory.rate for memory in chart.memory_roofs)
        axes.plot([max(begin, left), right], [roof.rate] * 2, color=BLACK)
        axes.annotate(
            f"{roof.name}: {roof.rate:g} {chart.unit}/ns",
            (right, roof.rate),
            (-2, 3),
            textcoords="offset points",
            ha="right",
            fontsize=8.5,
        )
    for roof in chart.memory_roofs:
        reach = top / roof.rate
        axes.plot(
            [left, min(reach, right)],
            [left * roof.rate, min(reach, right) * roof.rate],
            color=COLOURS.get(roof.resource, PURPLE),
            label=f"{roof.name}: {roof.rate:.4g} GB/s",
        )
    names = list(dict.fromkeys(point.launch for point in chart.points))
    for at, name in enumerate(names):
        launch_points = [point for point in chart.points if point.launch == name]
        _draw_launches(axes, launch_points, MARKERS[at % len(MARKERS)])
    _name_launches(axes, chart.points)
    _style(axes, chart, (left, right), (low, high))


def _draw_launches(axes: Axes, points: Sequence[ChartPoint], marker: str) -> None:
    """Draw the launches of a name: a marker per memory that a launch uses. A line joins a launch's markers."""
    across: list[float] = []
    up: list[float] = []
    for before, point in zip([None, *points], points, strict=False):
        if before is not None and before.request_id != point.request_id:
            across.append(nan)
            up.append(nan)
        across.append(point.intensity)
        up.append(point.rate)
    axes.plot(across, up, color=MUTED, linewidth=0.8)
    for at, memory in enumerate(dict.fromkeys(point.memory for point in points)):
        memory_points = [point for point in points if point.memory == memory]
        places = [point.intensity for point in memory_points], [point.rate for point in memory_points]
        size = SIZES[min(at, len(SIZES) - 1)]
        axes.plot(*places, marker, color=COLOURS.get(memory, PURPLE), markeredgecolor="white", markersize=size)


def _name_launches(axes: Axes, points: Sequence[ChartPoint]) -> None:
    """Write launch names beside their rightmost markers. Names that would overlap are written at one place."""
    rightmost: dict[str, ChartPoint] = {}
    for point in points:
        best = rightmost.get(point.launch)
        if best is None or (point.intensity, point.rate) > (best.intensity, best.rate):
            rightmost[point.launch] = point
    together: dict[tuple[float, float], list[ChartPoint]] = {}
    for point in list(rightmost.values())[:MOST_NAMES]:
        place = round(log10(point.intensity) / NAME_DECADES), round(log10(point.rate) / NAME_DECADES)
        together.setdefault(place, []).append(point)
    for neighbours in together.values():
        words = _plain(fill(", ".join(point.launch for point in neighbours), LETTERS // 2))
        at = neighbours[0].intensity, neighbours[0].rate
        axes.annotate(words, at, (6, -4), textcoords="offset points", va="top", fontsize=8.5)


def _plain(text: str) -> str:
    """Escape characters that Matplotlib reads as mathematics."""
    return text.replace("$", r"\$")


def _style(axes: Axes, chart: RooflineChart, across: tuple[float, float], up: tuple[float, float]) -> None:
    axes.set(xscale="log", yscale="log", xlim=across, ylim=up)
    for axis, (least, most) in ((axes.xaxis, across), (axes.yaxis, up)):
        close = most < least * 1000
        axis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0) if close else (1.0,)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:g}"))
    axes.set_xlabel(f"{chart.unit} for each byte of the memory's busiest instance")
    axes.set_ylabel(f"{chart.unit}/ns achieved")
    value_grid(axes, "both")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=len(chart.memory_roofs), fontsize=8.5)
