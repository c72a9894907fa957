"""Common style of figures, readable at half a page and in grey. Also: axes of sizes and times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patheffects import AbstractPathEffect, withStroke
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator, PercentFormatter

from kernbench.common.files import replacing

# Okabe-Ito palette: distinct for every type of colour blindness.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILLION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"
INK, MUTED, SLATE, GRID = "#222222", "#666666", "#5B6770", "#E4E4E4"
PALETTE = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, BLACK)
"""Colours of curves, in order of use"""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
"""One marker per colour, so curves are distinct without colour"""
CurveLook: TypeAlias = dict[str, Any]
"""Colour and marker of a curve, as keywords of a line"""

DPI = 200
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "axes.labelsize": 10,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "hatch.linewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "legend.handlelength": 1.4,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 9.5,
    "ytick.labelsize": 9.5,
}


THEORY: dict[str, Any] = {"linestyle": (0, (4, 2)), "linewidth": 1}
"""Style of a curve that is computed from theory, not simulated"""


def curve_look(at: int) -> CurveLook:
    """Return colour and marker of curve ``at``."""
    return {"color": PALETTE[at % len(PALETTE)], "marker": MARKERS[at % len(MARKERS)]}


def hollow(colour: str) -> dict[str, Any]:
    """Return the style of a computed bar, or of one of two parts: white, hatched in the colour."""
    return {"facecolor": "white", "edgecolor": colour, "hatch": "//////"}


def halo() -> list[AbstractPathEffect]:
    """Return a white outline for black lines and letters on colours."""
    return [withStroke(linewidth=3, foreground="white")]


@contextmanager
def make_figure(width_in: float, height_in: float, title: str = "") -> Iterator[Figure]:
    """Yield a figure in the common style, which the block fills."""
    with rc_context(STYLE):
        figure = Figure(figsize=(width_in, height_in), layout="constrained")
        FigureCanvasAgg(figure)
        if title:
            figure.suptitle(title, x=0.008, horizontalalignment="left", fontsize=12, fontweight="bold")
        yield figure


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure to the PNG ``path`` atomically. Raises InputError if the file cannot be written.

    Equal data give identical files.
    """
    with rc_context(STYLE), replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=DPI, metadata={"Software": None})


@contextmanager
def drawing(path: Path, width_in: float, height_in: float, title: str = "") -> Iterator[Figure]:
    """Yield a figure in the common style and write it to the PNG ``path`` at the end of the block."""
    with make_figure(width_in, height_in, title) as figure:
        yield figure
    save_figure(figure, path)


def value_grid(axes: Axes, along: str = "y") -> None:
    """Draw grid lines along one axis (``x``, ``y`` or ``both``)."""
    axes.grid(visible=True, axis=along)  # type: ignore[arg-type]


def category_axis(axes: Axes, at: Sequence[float], labels: Sequence[str], along: str = "x") -> None:
    """Label an axis with names, without tick marks."""
    axis = axes.xaxis if along == "x" else axes.yaxis
    axis.set_ticks(at, labels)
    axes.tick_params(axis=along, length=0)  # type: ignore[arg-type]


def legend_above(figure: Figure, handles: Sequence[Artist], columns: int) -> None:
    """Draw one legend for all panels, above them on the right. The title is on the left."""
    labels = [str(handle.get_label()) for handle in handles]
    figure.legend(handles, labels, loc="outside upper right", ncols=columns, columnspacing=1.4, handletextpad=0.5)


def percent_axis(axes: Axes, label: str, top: float) -> None:
    """Format an axis as percent, from 0 to ``top``."""
    axes.set_ylabel(label)
    axes.set_ylim(0, top)
    value_grid(axes)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=""))


def write_above(axes: Axes, x: float, y: float, text: str, size: float = 8) -> None:
    """Write a text above the end of a bar."""
    axes.annotate(text, (x, y), (0, 2), textcoords="offset points", ha="center", fontsize=size)


_UNITS = ((1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))
FEWEST_LABELS = 5


def size_title(nbytes: float) -> str:
    """Return a size as text, such as ``64 KiB``."""
    unit, name = next((unit, name) for unit, name in _UNITS if nbytes >= unit or unit == 1)
    return f"{nbytes / unit:g} {name}"


def size_axis(axes: Axes, sizes: Sequence[int], label: str) -> None:
    """Mark each size on the axis, with as many labels as fit."""
    ordered = sorted(set(sizes))
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(ordered))
    axes.xaxis.set_minor_locator(NullLocator())
    every = -(-len(ordered) // FEWEST_LABELS)
    labels = [size_title(nbytes).replace(" ", "\n") if at % every == 0 else "" for at, nbytes in enumerate(ordered)]
    axes.set_xticks(ordered, labels)
    axes.set_xlabel(label)


def time_axis(axes: Axes, label: str = "", unit_ns: float = 1000.0, *, close: bool = False) -> None:
    """Format a logarithmic axis of times in ns, in units of ``unit_ns``.

    ``close``: True if the values differ by a factor of at most about ten.
    """
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 1.5, 2.0, 3.0, 5.0, 7.0) if close else (1.0, 2.0, 5.0)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / unit_ns:g}"))
    axes.set_ylabel(label)
    value_grid(axes, "both")
