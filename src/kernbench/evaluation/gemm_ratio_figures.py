"""Utilisation of the matrix unit over shapes and staging variants: as measured, and beside the ideal pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from kernbench.evaluation import figure_style as style
from kernbench.evaluation.gemm_results import GemmRun, GemmSweep
from kernbench.evaluation.gemm_stage_figures import CLUSTER, UNDER_TILE_PAPER

COLOURS = (style.BLUE, style.ORANGE, style.GREEN)
"""Of the staging variants, in order."""
PALE = 0.32
LABEL_SIZE = 7.5
HATCH = "//////"
TOP = 1.13  # of an axis of shares: room for words above 100 %
LEAST_BEYOND = 0.05  # where all kernels are as fast as the ideal, an axis with numbers all the same


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a run is drawn: the middle of its place, its width, its colour."""

    run: GemmRun
    x: float
    width: float
    colour: str


def draw_utilisation(sweep: GemmSweep, path: Path) -> None:
    """How much of the kernel's time the matrix unit was busy, and how much of its rate went into the product."""
    with style.drawing(path, 10.4, 4.6, "Utilisation of the matrix unit, measured") as figure:
        axes = figure.subplots()
        for slot in slots(sweep):
            utilisation_bar(axes, slot)
            write_share(axes, slot.x, slot.run.mac_utilisation)
        _shape_axis(axes, sweep)
        percent_axis(axes, "share of the kernel's time (%)")
        style.legend_above(figure, [*variant_handles(sweep), *utilisation_handles()], columns=5)


def draw_theory(sweep: GemmSweep, path: Path) -> None:
    """MAC utilisation of the ideal pipeline beside the measured one, and how much longer the kernel took."""
    with style.drawing(path, 10.4, 6.4, "The ideal pipeline and what was measured") as figure:
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        for slot in slots(sweep):
            theory_bars(upper, slot, slot.run.ideal.utilisation, slot.run.mac_utilisation)
            lower.bar(slot.x, slot.run.beyond_ideal, slot.width, color=slot.colour)
            write_share(lower, slot.x, slot.run.beyond_ideal)
        _shape_axis(upper, sweep)
        _shape_axis(lower, sweep, marked="")
        upper.set_xlabel("")
        percent_axis(upper, "MAC utilisation (%)")
        most = max(run.beyond_ideal for run in sweep.runs)
        percent_axis(lower, "kernel's time beyond\nthe ideal (%)", max(1.25 * most, LEAST_BEYOND))
        style.legend_above(figure, [*variant_handles(sweep), *theory_handles()], columns=5)


def utilisation_bar(axes: Axes, slot: Slot) -> None:
    """Useful efficiency in front of MAC utilisation."""
    axes.bar(slot.x, slot.run.mac_utilisation, slot.width, color=slot.colour, alpha=PALE)
    axes.bar(slot.x, slot.run.useful_efficiency, slot.width, color=slot.colour)


def theory_bars(axes: Axes, slot: Slot, ideal: float, measured: float) -> None:
    """What the ideal pipeline has and what was measured, side by side."""
    half = slot.width / 2
    axes.bar(slot.x - half / 2, ideal, half, facecolor="white", edgecolor=slot.colour, hatch=HATCH, linewidth=1)
    axes.bar(slot.x + half / 2, measured, half, color=slot.colour, edgecolor=slot.colour, linewidth=1)


def variant_handles(sweep: GemmSweep) -> list[Artist]:
    """The colours of the variants."""
    variants = dict.fromkeys(run.variant for run in sweep.runs)
    return [Patch(color=colour, label=variant) for variant, colour in zip(variants, COLOURS, strict=False)]


def utilisation_handles() -> list[Artist]:
    """What pale and full bars are."""
    return [
        Patch(color=style.MUTED, alpha=PALE, label="MAC utilisation"),
        Patch(color=style.MUTED, label="useful efficiency"),
    ]


def theory_handles(colour: str = style.MUTED) -> list[Artist]:
    """What hatched and full bars are."""
    return [
        Patch(facecolor="white", edgecolor=colour, hatch=HATCH, label="ideal pipeline"),
        Patch(color=colour, label="measured"),
    ]


def slots(sweep: GemmSweep) -> Iterator[Slot]:
    """The places of all runs: a cluster for each shape."""
    for at, shape in enumerate(sweep.shapes):
        runs = sweep.of(shape)
        width = CLUSTER / len(runs)
        for number, (run, colour) in enumerate(zip(runs, COLOURS, strict=False)):
            yield Slot(run, at + (number - (len(runs) - 1) / 2) * width, width * 0.9, colour)


def _shape_axis(axes: Axes, sweep: GemmSweep, marked: str = "under-tile") -> None:
    """The shapes by name; those under the tile are ``marked``, and stand on a darker ground."""
    style.category_axis(axes, range(len(sweep.shapes)), [str(shape) for shape in sweep.shapes])
    axes.set_xlabel("shape M×K×N")
    axes.set_xlim(-0.5, len(sweep.shapes) - 0.5)
    under = [at for at, shape in enumerate(sweep.shapes) if sweep.of(shape)[0].under_tile]
    for at in under:
        axes.axvspan(at - 0.5, at + 0.5, color=UNDER_TILE_PAPER, linewidth=0, zorder=0)
        place = axes.get_xaxis_transform()
        axes.text(at, 0.985, marked, transform=place, ha="center", va="top", fontsize=9, color=style.MUTED)


def percent_axis(axes: Axes, label: str, top: float = TOP) -> None:
    """An axis of shares in percent."""
    axes.set_ylabel(label)
    axes.set_ylim(0, top)
    style.value_grid(axes)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=""))


def write_share(axes: Axes, x: float, share: float, size: float = LABEL_SIZE) -> None:
    """A share in percent above its bar."""
    write_above(axes, x, share, f"{share * 100:.0f}" if share >= 0.0995 else f"{share * 100:.1f}", size)


def write_above(axes: Axes, x: float, y: float, text: str, size: float) -> None:
    """A text above the end of a bar."""
    axes.annotate(text, (x, y), (0, 2), textcoords="offset points", ha="center", fontsize=size)
