"""Figures of GEMMs over shapes and variants: pipeline stages, utilisation of the matrix unit, and the ideal pipeline.

The largest shape has a separate figure, because its scale would hide the other shapes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from kernbench.common.values import value
from kernbench.evaluation.gemm_results import LOAD, STAGES, GemmRun, GemmSweep
from kernbench.evaluation.gemm_shapes import LARGEST
from kernbench.result import figure_style as style

STAGE_COLOURS = {
    "DMA in": style.BLUE,
    "fetch": style.SKY,
    "GEMM": style.VERMILLION,
    "MATH": style.PURPLE,
    "store": style.ORANGE,
    "DMA out": style.GREEN,
}
UNDER_TILE_PAPER = "#F3F0E8"
COLUMNS = 4
OPERANDS = "operands: A over B, streamed (ref) or staged (load); or panels of both for blocks"
CLUSTER = 0.84  # of the distance between two variants


@value
class StageBar:
    """A bar for a stage of a run, in ns. The load of staged operands comes before the stages of tiles.

    ``work``: busy time of the stage's unit in the ideal pipeline.
    """

    stage: str
    load: float
    tiles: float
    work: float


def draw_stages(sweep: GemmSweep, path: Path) -> None:
    """Draw a panel per shape except the largest, each with its own scale."""
    shapes = [shape for shape in sweep.shapes if shape != LARGEST]
    rows = -(-(len(shapes) + 1) // COLUMNS)
    with style.drawing(path, 10.4, 0.9 + 2.75 * rows, "Busy time of each stage of the tile pipeline") as figure:
        panels = list(figure.subplots(rows, COLUMNS, squeeze=False).flat)
        for axes, shape in zip(panels, shapes, strict=False):
            stage_panel(axes, sweep.of(shape))
        for axes in panels[len(shapes) :]:
            axes.set_axis_off()
        panels[len(shapes)].legend(handles=stage_legend(sweep.runs), loc="center left", borderaxespad=0)
        figure.supylabel("busy time (ns)", fontsize=10)
        figure.supxlabel(OPERANDS, fontsize=10)


def stage_panel(axes: Axes, runs: Sequence[GemmRun], unit_ns: float = 1) -> None:
    """Draw the stages of the runs of one shape in units of ``unit_ns``, with a line for the kernel time."""
    for at, run in enumerate(runs):
        bars = list(_bars(run))
        width = CLUSTER / len(bars)
        for number, bar in enumerate(bars):
            left = at - CLUSTER / 2 + number * width
            _draw_bar(axes, bar, left, width, unit_ns)
        axes.hlines(run.pe.ns / unit_ns, at - CLUSTER / 2, at + CLUSTER / 2, color=style.BLACK, linewidth=2)
    axes.set_title(f"{runs[0].shape}, under-tile" if runs[0].under_tile else str(runs[0].shape))
    axes.set_facecolor(UNDER_TILE_PAPER if runs[0].under_tile else "white")
    _variant_axis(axes, runs)
    style.value_grid(axes)
    axes.set_ylim(0, max(run.pe.ns for run in runs) / unit_ns * 1.08)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.locator_params(axis="y", nbins=5)


def stage_legend(runs: Sequence[GemmRun]) -> list[Artist]:
    """Return a legend of the colours and lines."""
    used = {use.name for run in runs for use in run.stages}
    stages: list[Artist] = [
        Patch(color=STAGE_COLOURS[stage], label=stage) for stage in STAGES if stage in used and stage != LOAD
    ]
    load = Patch(facecolor="white", edgecolor=STAGE_COLOURS["DMA in"], hatch="////", label="DMA in, staged operands")
    kernel = Line2D([], [], color=style.BLACK, linewidth=2, label="kernel, start to end")
    work = Line2D([], [], color=style.BLACK, linewidth=1, label="transfer alone, no latency")
    return [stages[0], load, *stages[1:], kernel, work]


def _bars(run: GemmRun) -> Iterator[StageBar]:
    busy = {use.name: use.busy_ns for use in run.stages}
    work = {floor.stage: floor.busy_ns for floor in run.ideal.floors}
    for stage in STAGES:
        if stage == LOAD or (stage not in busy and stage != "DMA in"):
            continue
        load = busy.get(LOAD, 0.0) if stage == "DMA in" else 0.0
        yield StageBar(stage, load, busy.get(stage, 0.0), work.get(stage, 0.0))


def _draw_bar(axes: Axes, bar: StageBar, left: float, width: float, unit_ns: float) -> None:
    colour = STAGE_COLOURS[bar.stage]
    inside = width * 0.88
    if bar.load:
        axes.bar(left, bar.load / unit_ns, inside, align="edge", color="white", edgecolor=colour, hatch="////")
    axes.bar(left, bar.tiles / unit_ns, inside, bottom=bar.load / unit_ns, align="edge", color=colour)
    if bar.stage in ("DMA in", "DMA out") and bar.work:
        level = (bar.load + bar.work) / unit_ns
        axes.hlines(level, left, left + inside, color=style.BLACK, linewidth=1, path_effects=style.halo())


COLOURS = (style.BLUE, style.ORANGE, style.GREEN, style.PURPLE)
"""Colours of the variants, in order"""
PALE = 0.32
LABEL_SIZE = 7.5
TOP = 1.13  # top of an axis of shares, with room for text above 100 %
LEAST_BEYOND = 0.05  # least range of the axis if all kernels match the ideal


@value
class BarPlace:
    """The place of a run's bar: middle, width and colour."""

    run: GemmRun
    x: float
    width: float
    colour: str


def draw_utilisation(sweep: GemmSweep, path: Path) -> None:
    """Draw the matrix unit's share of busy time, and its share of useful work."""
    with style.drawing(path, 10.4, 4.6, "Utilisation of the matrix unit, measured") as figure:
        axes = figure.subplots()
        for slot in slots(sweep):
            utilisation_bar(axes, slot)
            write_share(axes, slot.x, slot.run.mac_utilisation)
        _shape_axis(axes, sweep)
        style.percent_axis(axes, "share of the kernel's time (%)", TOP)
        style.legend_above(figure, [*variant_handles(sweep), *utilisation_handles()], columns=6)


def draw_theory(sweep: GemmSweep, path: Path) -> None:
    """Draw ideal and measured MAC utilisation, and the kernel time beyond the ideal."""
    with style.drawing(path, 10.4, 6.4, "The ideal pipeline and what was measured") as figure:
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        for slot in slots(sweep):
            theory_bars(upper, slot, slot.run.ideal.utilisation, slot.run.mac_utilisation)
            lower.bar(slot.x, slot.run.beyond_ideal, slot.width, color=slot.colour)
            write_share(lower, slot.x, slot.run.beyond_ideal)
        _shape_axis(upper, sweep)
        _shape_axis(lower, sweep, marked="")
        upper.set_xlabel("")
        style.percent_axis(upper, "MAC utilisation (%)", TOP)
        most = max(run.beyond_ideal for run in sweep.runs)
        style.percent_axis(lower, "kernel's time beyond\nthe ideal (%)", max(1.25 * most, LEAST_BEYOND))
        style.legend_above(figure, [*variant_handles(sweep), *theory_handles()], columns=6)


def utilisation_bar(axes: Axes, slot: BarPlace) -> None:
    """Draw bars of useful efficiency in front of bars of MAC utilisation."""
    axes.bar(slot.x, slot.run.mac_utilisation, slot.width, color=slot.colour, alpha=PALE)
    axes.bar(slot.x, slot.run.useful_efficiency, slot.width, color=slot.colour)


def theory_bars(axes: Axes, slot: BarPlace, ideal: float, measured: float) -> None:
    """Draw a bar for the ideal and a bar for the measured value, side by side."""
    half = slot.width / 2
    axes.bar(slot.x - half / 2, ideal, half, linewidth=1, **style.hollow(slot.colour))
    axes.bar(slot.x + half / 2, measured, half, color=slot.colour, edgecolor=slot.colour, linewidth=1)


def variant_handles(sweep: GemmSweep) -> list[Artist]:
    """Return legend entries for the variants."""
    variants = dict.fromkeys(run.variant for run in sweep.runs)
    return [Patch(color=colour, label=variant) for variant, colour in zip(variants, COLOURS, strict=False)]


def utilisation_handles() -> list[Artist]:
    """Return legend entries for pale and full bars."""
    return [
        Patch(color=style.MUTED, alpha=PALE, label="MAC utilisation"),
        Patch(color=style.MUTED, label="useful efficiency"),
    ]


def theory_handles(colour: str = style.MUTED) -> list[Artist]:
    """Return legend entries for hatched and full bars."""
    return [
        Patch(label="ideal pipeline", **style.hollow(colour)),
        Patch(color=colour, label="measured"),
    ]


def slots(sweep: GemmSweep) -> Iterator[BarPlace]:
    """Yield the places of all runs: one cluster per shape."""
    for at, shape in enumerate(sweep.shapes):
        runs = sweep.of(shape)
        width = CLUSTER / len(runs)
        for number, (run, colour) in enumerate(zip(runs, COLOURS, strict=False)):
            yield BarPlace(run, at + (number - (len(runs) - 1) / 2) * width, width * 0.9, colour)


def _shape_axis(axes: Axes, sweep: GemmSweep, marked: str = "under-tile") -> None:
    """Label the shapes by name. Shapes below the tile size have a darker background with the text ``marked``."""
    style.category_axis(axes, range(len(sweep.shapes)), [str(shape) for shape in sweep.shapes])
    axes.set_xlabel("shape M×K×N")
    axes.set_xlim(-0.5, len(sweep.shapes) - 0.5)
    under = [at for at, shape in enumerate(sweep.shapes) if sweep.of(shape)[0].under_tile]
    for at in under:
        axes.axvspan(at - 0.5, at + 0.5, color=UNDER_TILE_PAPER, linewidth=0, zorder=0)
        place = axes.get_xaxis_transform()
        axes.text(at, 0.985, marked, transform=place, ha="center", va="top", fontsize=9, color=style.MUTED)


def write_share(axes: Axes, x: float, share: float, size: float = LABEL_SIZE) -> None:
    """Write a share in percent above its bar."""
    style.write_above(axes, x, share, f"{share * 100:.0f}" if share >= 0.0995 else f"{share * 100:.1f}", size)


NS_PER_US = 1000
LARGE_LABEL_SIZE = 7
LEGEND: dict[str, Any] = {
    "frameon": True,
    "framealpha": 1.0,
    "edgecolor": "white",
    "borderaxespad": 0,
    "borderpad": 0.2,
}


def draw_large(runs: Sequence[GemmRun], path: Path) -> None:
    """Draw stages, time and utilisation of the runs of one shape, with times in µs."""
    shape, tiles = runs[0].shape, runs[0].tiles
    with style.drawing(path, 10.4, 4.8, f"{shape}: {tiles:,} tiles on one PE") as figure:
        stages, times, shares = figure.subplots(1, 3, width_ratios=(2.1, 1.2, 1.2))
        stage_panel(stages, runs, NS_PER_US)
        stages.set_title("stages")
        stages.set_ylabel("busy time (µs)")
        stages.legend(handles=stage_legend(runs), loc="upper right", fontsize=8, **LEGEND)
        stages.set_ylim(top=1.18 * max(run.pe.ns for run in runs) / NS_PER_US)
        for at, run in enumerate(runs):
            # Without a colour for each variant: in this figure, colours stand for stages.
            slot = BarPlace(run, at, CLUSTER, style.SLATE)
            for axes, ideal, measured, write in (
                (times, run.ideal.ns / NS_PER_US, run.pe.ns / NS_PER_US, _write_time),
                (shares, run.ideal.utilisation, run.mac_utilisation, write_share),
            ):
                theory_bars(axes, slot, ideal, measured)
                write(axes, at - CLUSTER / 4, ideal, LARGE_LABEL_SIZE)
                write(axes, at + CLUSTER / 4, measured, LARGE_LABEL_SIZE)
        times.set_title("kernel, start to end")
        times.set_ylabel("time (µs)")
        times.margins(y=0.1)
        style.value_grid(times)
        shares.set_title("matrix unit")
        style.percent_axis(shares, "MAC utilisation (%)", TOP)
        for axes in (times, shares):
            _variant_axis(axes, runs)
            axes.set_xlim(-0.5, len(runs) - 0.5)
        figure.supxlabel(OPERANDS, fontsize=10)
        style.legend_above(figure, theory_handles(style.SLATE), columns=2)


def _write_time(axes: Axes, x: float, time_us: float, size: float) -> None:
    style.write_above(axes, x, time_us, f"{time_us:.1f}", size)


def _variant_axis(axes: Axes, runs: Sequence[GemmRun]) -> None:
    style.category_axis(axes, range(len(runs)), [run.variant.replace("_", "\n") for run in runs])
