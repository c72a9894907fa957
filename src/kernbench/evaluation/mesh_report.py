"""The comparison with the reference mesh as Markdown tables and as a figure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from kernbench.evaluation.mesh_reference import CurveComparison, Gate, latency_tolerance

# Blue and vermilion of the Okabe-Ito palette: apart for every kind of colour blindness, and apart in grey.
REFERENCE_COLOUR = "#0072B2"
OURS_COLOUR = "#D55E00"
LATENCY_TICKS = (20, 30, 50, 100, 200, 400, 800)


def title(comparison: CurveComparison) -> str:
    """Such as ``uniform, 4-flit packets``."""
    curve = comparison.curve
    return f"{curve.traffic}, {curve.packet_flits}-flit packets"


def gate_table(gates: Iterable[Gate]) -> str:
    """A Markdown table; a line without a tolerance is there to be seen, not a gate."""
    lines = ["| figure | reference | kernbench | difference | gate |", "| --- | ---: | ---: | ---: | --- |"]
    return "\n".join(lines + [_row(gate) for gate in gates])


def _row(gate: Gate) -> str:
    digits = 2 if gate.unit == "cycles" else 4
    allowed = "" if gate.tolerance is None else f"±{gate.tolerance:.0%} {'holds' if gate.holds else 'FAILS'}"
    return (
        f"| {gate.what} | {gate.reference:.{digits}f} | {gate.measured:.{digits}f} "
        f"| {gate.difference:+.1%} | {allowed} |"
    )


def comparison_tables(comparisons: Iterable[CurveComparison]) -> str:
    """Per curve a heading and a table of all its figures."""
    return "\n\n".join(
        f"### {title(c).capitalize()}\n\n{gate_table([*c.saturation_gates(), *c.latency_gates()])}" for c in comparisons
    )


def draw_latency(comparisons: Sequence[CurveComparison], path: Path) -> None:
    """Latency over offered load, a panel per curve, to the image ``path``."""
    figure = Figure(figsize=(7.2, 5.4), layout="constrained")
    FigureCanvasAgg(figure)
    columns = 2
    panels = figure.subplots(-(-len(comparisons) // columns), columns, squeeze=False).flat
    for axes, comparison in zip(panels, comparisons, strict=False):
        _draw_curve(axes, comparison)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
    figure.supxlabel("offered load (flits per node and cycle)", fontsize=10)
    figure.supylabel("mean latency (cycles)", fontsize=10)
    figure.savefig(path, dpi=200)


def _draw_gates(axes: Axes, comparison: CurveComparison) -> None:
    gated = [
        (p, t) for p in comparison.curve.points if (t := latency_tolerance(comparison.curve, p.offered)) is not None
    ]
    axes.fill_between(
        [p.offered for p, _ in gated],
        [p.latency_cycles * (1 - tolerance) for p, tolerance in gated],
        [p.latency_cycles * (1 + tolerance) for p, tolerance in gated],
        color=REFERENCE_COLOUR,
        alpha=0.15,
        linewidth=0,
        label="gate",
    )


def _draw_curve(axes: Axes, comparison: CurveComparison) -> None:
    _draw_gates(axes, comparison)
    reference, ours = comparison.curve.points, comparison.points
    axes.plot(
        [p.offered for p in reference],
        [p.latency_cycles for p in reference],
        "o-",
        color=REFERENCE_COLOUR,
        markersize=5,
        linewidth=1.5,
        label="reference, cycle-accurate",
    )
    axes.plot(
        [p.offered for p in ours],
        [p.latency_cycles for p in ours],
        "s--",
        color=OURS_COLOUR,
        markerfacecolor="white",
        markersize=5,
        linewidth=1.5,
        label="kernbench",
    )
    axes.axvline(
        comparison.curve.saturation_load, color="0.6", linewidth=1.0, linestyle=":", label="reference saturates"
    )
    axes.set_title(title(comparison), fontsize=10)
    axes.set_xlim(left=0.0)
    axes.set_yscale("log")
    axes.set_ylim(16, 800)
    axes.yaxis.set_major_locator(FixedLocator(LATENCY_TICKS))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.grid(visible=True, color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
