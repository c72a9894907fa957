"""Report of the GEMM evaluation: files, figures and summary."""

from __future__ import annotations

from functools import partial

from pydantic import TypeAdapter

from kernbench.evaluation.gemm_figures import draw_large, draw_stages, draw_theory, draw_utilisation
from kernbench.evaluation.gemm_results import GemmRun, GemmSweep
from kernbench.evaluation.gemm_shapes import LARGEST
from kernbench.evaluation.study_report import Drawing, StudyReport


def _find_gap(sweep: GemmSweep) -> str:
    if not sweep.runs:
        return "there are no runs"
    for run in sweep.runs:
        if run.shape.macs <= 0 or run.pe.ns <= 0 or run.ideal.ns <= 0 or not run.stages or not run.ideal.floors:
            return f"run {run.title} has no size, no time, no stages or no ideal"
    return ""


def _drawings(sweep: GemmSweep) -> dict[str, Drawing]:
    """Return the figures. The largest shape has a separate one."""
    drawings: dict[str, Drawing] = {
        "gemm_utilisation.png": partial(draw_utilisation, sweep),
        "gemm_theory.png": partial(draw_theory, sweep),
    }
    if set(sweep.shapes) != {LARGEST}:
        drawings["gemm_stages.png"] = partial(draw_stages, sweep)
    if LARGEST in sweep.shapes:
        drawings["gemm_512.png"] = partial(draw_large, sweep.of(LARGEST))
    return drawings


def _row(run: GemmRun) -> dict[str, str]:
    return {
        "shape M×K×N": f"{run.shape}{' *' if run.under_tile else ''}",
        "variant": run.variant,
        "blocks": run.blocks,
        "tiles": f"{run.tiles:,}",
        "measured ns": f"{run.pe.ns:,.3f}",
        "ideal ns": f"{run.ideal.ns:,.3f}",
        "beyond": f"{run.beyond_ideal:.1%}",
        "MACs busy": f"{run.mac_utilisation:.1%}",
        "useful": f"{run.useful_efficiency:.1%}",
        "ideal is bound by": run.ideal.longest if run.tiles > 1 else "latency: one tile",
        "numbers": "PASS" if run.passed else "FAIL",
    }


def _notes(sweep: GemmSweep) -> tuple[str, ...]:
    return (
        "* under-tile: M, K or N is below the tile, so every tile is partly empty",
        "blocks: M×K×N of the blocks of a product; without blocks, operands are streamed or staged",
        "beyond: the kernel time beyond the ideal",
        "MACs busy: the part of the kernel's time in which the matrix unit worked (MAC utilisation)",
        "useful: the MACs of the product over what the unit could have done in the kernel's time",
        f"{len(sweep.runs)} simulations, all numbers verified",
    )


GEMM_REPORT = StudyReport(
    title="GEMM by tile plan on one PE: the kernel as measured, and the ideal pipeline",
    data_file="gemm_sweep.json",
    form=TypeAdapter(GemmSweep),
    tables=lambda sweep: {"gemm_sweep.csv": sweep.runs},
    find_gap=_find_gap,
    drawings=_drawings,
    words=("shape M×K×N", "variant", "blocks", "ideal is bound by", "numbers"),
    rows=lambda sweep: [_row(run) for run in sweep.runs],
    notes=_notes,
)
