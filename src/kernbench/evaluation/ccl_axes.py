"""Axes of figures about collectives: sizes and times on log scales, in the units people say them in."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from kernbench.evaluation import figure_style as style

_UNITS = ((1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))
FEWEST_LABELS = 5


def size_title(nbytes: float) -> str:
    """Such as ``64 KiB``."""
    unit, name = next((unit, name) for unit, name in _UNITS if nbytes >= unit or unit == 1)
    return f"{nbytes / unit:g} {name}"


def size_axis(axes: Axes, sizes: Sequence[int], label: str) -> None:
    """Sizes, each with its tick; as many labels as there is room for."""
    ordered = sorted(set(sizes))
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(ordered))
    axes.xaxis.set_minor_locator(NullLocator())
    every = -(-len(ordered) // FEWEST_LABELS)
    labels = [size_title(nbytes).replace(" ", "\n") if at % every == 0 else "" for at, nbytes in enumerate(ordered)]
    axes.set_xticks(ordered, labels)
    axes.set_xlabel(label)


def time_axis(axes: Axes, label: str = "", unit_ns: float = 1000.0, *, close: bool = False) -> None:
    """Times in ns, shown in units of ``unit_ns`` on a log scale; ``close``: they differ by about ten times at most."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 1.5, 2.0, 3.0, 5.0, 7.0) if close else (1.0, 2.0, 5.0)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / unit_ns:g}"))
    axes.set_ylabel(label)
    style.value_grid(axes, "both")
