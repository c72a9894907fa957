"""Stage breakdown of GEMMs: how long each stage of the pipeline was busy, beside the time of the kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from kernbench.evaluation import figure_style as style
from kernbench.evaluation.gemm_results import LOAD, STAGES, GemmRun, GemmSweep
from kernbench.evaluation.gemm_shapes import LARGEST

COLOURS = {
    "DMA in": style.BLUE,
    "fetch": style.SKY,
    "GEMM": style.VERMILLION,
    "MATH": style.PURPLE,
    "store": style.ORANGE,
    "DMA out": style.GREEN,
}
UNDER_TILE_PAPER = "#F3F0E8"
COLUMNS = 4
CLUSTER = 0.84  # of the distance between two variants


@dataclass(frozen=True, slots=True)
class Bar:
    """A stage of a run, in ns: the load of staged operands first, then tiles; ``work``: what the tiles keep the unit
    busy for in the ideal pipeline."""

    stage: str
    load: float
    tiles: float
    work: float


def draw_stages(sweep: GemmSweep, path: Path) -> None:
    """A panel for each shape but the largest, each with its own scale."""
    shapes = [shape for shape in sweep.shapes if shape != LARGEST]
    rows = -(-(len(shapes) + 1) // COLUMNS)
    with style.drawing(path, 10.4, 0.9 + 2.75 * rows, "How long each stage of the tile pipeline was busy") as figure:
        panels = list(figure.subplots(rows, COLUMNS, squeeze=False).flat)
        for axes, shape in zip(panels, shapes, strict=False):
            stage_panel(axes, sweep.of(shape))
        for axes in panels[len(shapes) :]:
            axes.set_axis_off()
        panels[len(shapes)].legend(handles=stage_legend(sweep.runs), loc="center left", borderaxespad=0)
        figure.supylabel("busy time (ns)", fontsize=10)
        figure.supxlabel("operands: A over B, streamed (ref) or staged (load)", fontsize=10)


def stage_panel(axes: Axes, runs: Sequence[GemmRun], unit_ns: float = 1) -> None:
    """The stages of the runs of one shape, in units of ``unit_ns``; a line says how long the kernel took."""
    for at, run in enumerate(runs):
        bars = list(_bars(run))
        width = CLUSTER / len(bars)
        for number, bar in enumerate(bars):
            left = at - CLUSTER / 2 + number * width
            _draw_bar(axes, bar, left, width, unit_ns)
        axes.hlines(run.pe.ns / unit_ns, at - CLUSTER / 2, at + CLUSTER / 2, color=style.BLACK, linewidth=2)
    axes.set_title(f"{runs[0].shape}, under-tile" if runs[0].under_tile else str(runs[0].shape))
    axes.set_facecolor(UNDER_TILE_PAPER if runs[0].under_tile else "white")
    style.category_axis(axes, range(len(runs)), [run.variant.replace("_", "\n") for run in runs])
    style.value_grid(axes)
    axes.set_ylim(0, max(run.pe.ns for run in runs) / unit_ns * 1.08)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.locator_params(axis="y", nbins=5)


def stage_legend(runs: Sequence[GemmRun]) -> list[Artist]:
    """What the colours and lines mean."""
    used = {use.name for run in runs for use in run.stages}
    stages: list[Artist] = [
        Patch(color=COLOURS[stage], label=stage) for stage in STAGES if stage in used and stage != LOAD
    ]
    load = Patch(facecolor="white", edgecolor=COLOURS["DMA in"], hatch="////", label="DMA in, staged operands")
    kernel = Line2D([], [], color=style.BLACK, linewidth=2, label="kernel, start to end")
    work = Line2D([], [], color=style.BLACK, linewidth=1, label="transfer alone, no latency")
    return [stages[0], load, *stages[1:], kernel, work]


def _bars(run: GemmRun) -> Iterator[Bar]:
    busy = {use.name: use.busy_ns for use in run.stages}
    work = {floor.stage: floor.busy_ns for floor in run.ideal.floors}
    for stage in STAGES:
        if stage == LOAD or (stage not in busy and stage != "DMA in"):
            continue
        load = busy.get(LOAD, 0.0) if stage == "DMA in" else 0.0
        yield Bar(stage, load, busy.get(stage, 0.0), work.get(stage, 0.0))


def _draw_bar(axes: Axes, bar: Bar, left: float, width: float, unit_ns: float) -> None:
    colour = COLOURS[bar.stage]
    inside = width * 0.88
    if bar.load:
        axes.bar(left, bar.load / unit_ns, inside, align="edge", color="white", edgecolor=colour, hatch="////")
    axes.bar(left, bar.tiles / unit_ns, inside, bottom=bar.load / unit_ns, align="edge", color=colour)
    if bar.stage in ("DMA in", "DMA out") and bar.work:
        level = (bar.load + bar.work) / unit_ns
        axes.hlines(level, left, left + inside, color=style.BLACK, linewidth=1, path_effects=style.halo())
