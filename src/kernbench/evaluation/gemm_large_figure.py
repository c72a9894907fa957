"""The figure of the largest GEMM, beside which the others would be invisible."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from kernbench.evaluation import figure_style as style
from kernbench.evaluation.gemm_ratio_figures import (
    Slot,
    percent_axis,
    theory_bars,
    theory_handles,
    write_above,
    write_share,
)
from kernbench.evaluation.gemm_results import GemmRun
from kernbench.evaluation.gemm_stage_figures import CLUSTER, stage_legend, stage_panel

NS_PER_US = 1000
LABEL_SIZE = 8.5
LEGEND: dict[str, Any] = {
    "frameon": True,
    "framealpha": 1.0,
    "edgecolor": "white",
    "borderaxespad": 0,
    "borderpad": 0.2,
}


def draw_large(runs: Sequence[GemmRun], path: Path) -> None:
    """Stages, time and utilisation of the runs of one shape; times in µs."""
    shape, tiles = runs[0].shape, runs[0].tiles
    with style.drawing(path, 10.4, 4.8, f"{shape}: {tiles:,} tiles on one PE") as figure:
        stages, times, shares = figure.subplots(1, 3, width_ratios=(2.1, 1.2, 1.2))
        stage_panel(stages, runs, NS_PER_US)
        stages.set_title("stages")
        stages.set_ylabel("busy time (µs)")
        stages.legend(handles=stage_legend(runs), loc="upper right", fontsize=8, **LEGEND)
        stages.set_ylim(top=1.18 * max(run.pe.ns for run in runs) / NS_PER_US)
        for slot in _slots(runs):
            _time_bars(times, slot)
            _share_bars(shares, slot)
        times.set_title("kernel, start to end")
        times.set_ylabel("time (µs)")
        times.margins(y=0.1)
        style.value_grid(times)
        shares.set_title("matrix unit")
        percent_axis(shares, "MAC utilisation (%)")
        for axes in (times, shares):
            _variant_axis(axes, runs)
        figure.supxlabel("operands: A over B, streamed (ref) or staged (load)", fontsize=10)
        style.legend_above(figure, theory_handles(style.SLATE), columns=2)


def _slots(runs: Sequence[GemmRun]) -> Iterator[Slot]:
    """One for each run, in no colour: in this figure colours are stages, and names stand below."""
    for at, run in enumerate(runs):
        yield Slot(run, at, CLUSTER, style.SLATE)


def _time_bars(axes: Axes, slot: Slot) -> None:
    ideal, measured = slot.run.ideal.ns / NS_PER_US, slot.run.pe.ns / NS_PER_US
    theory_bars(axes, slot, ideal, measured)
    for side, value in ((-1, ideal), (1, measured)):
        write_above(axes, slot.x + side * slot.width / 4, value, f"{value:.1f}", LABEL_SIZE)


def _share_bars(axes: Axes, slot: Slot) -> None:
    ideal, measured = slot.run.ideal.utilisation, slot.run.mac_utilisation
    theory_bars(axes, slot, ideal, measured)
    for side, value in ((-1, ideal), (1, measured)):
        write_share(axes, slot.x + side * slot.width / 4, value, LABEL_SIZE)


def _variant_axis(axes: Axes, runs: Sequence[GemmRun]) -> None:
    style.category_axis(axes, range(len(runs)), [run.variant.replace("_", "\n") for run in runs])
    axes.set_xlim(-0.5, len(runs) - 0.5)
