"""The committed figures of the GEMM evaluation are of this version of the simulator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from compiled import compiled
from kernbench.evaluation import gemm_figures
from kernbench.evaluation.gemm_measure import GemmStudy
from kernbench.evaluation.gemm_report import GEMM_REPORT
from kernbench.evaluation.gemm_shapes import SHAPES, VARIANTS
from kernbench.result import figure_style

FIGURES = Path(__file__).parents[2] / "docs" / "figures"
COMMAND = "python scripts/evaluate_gemm.py"
# All but the largest, which takes longer than all of these.
QUICK = SHAPES[:-1]


def simulated(run):
    """A run without the error of its numbers, which depends on the arithmetic of the computer."""
    return replace(run, verified=replace(run.verified, max_abs_error=0.0))


def test_committed_results_are_what_a_fresh_run_gives():
    committed = GEMM_REPORT.read(FIGURES, COMMAND)
    fresh = GemmStudy(topology=compiled(), shapes=QUICK).run()
    assert committed.topology_hash == fresh.topology_hash
    by_title = {run.title: simulated(run) for run in committed.runs}
    for run in fresh.runs:
        assert by_title[run.title] == simulated(run), f"run {COMMAND}"


def test_all_runs_are_there_and_right():
    committed = GEMM_REPORT.read(FIGURES, COMMAND)
    assert [(run.shape, run.variant) for run in committed.runs] == [(s, v) for s in SHAPES for v in VARIANTS]
    assert all(run.verified.passed for run in committed.runs)
    assert all(run.ideal.ns <= run.pe.ns for run in committed.runs)
    assert all(run.mac_utilisation <= run.ideal.utilisation for run in committed.runs)


def test_where_all_are_ideal_the_axis_has_numbers_all_the_same(tmp_path, monkeypatch):
    def axis(axes, label, top):
        tops.append(top)
        percent_axis(axes, label, top)

    tops = []
    percent_axis = figure_style.percent_axis
    monkeypatch.setattr(figure_style, "percent_axis", axis)
    sweep = GEMM_REPORT.read(FIGURES, COMMAND)
    ideal = replace(sweep, runs=tuple(replace(run, ideal=replace(run.ideal, ns=run.pe.ns)) for run in sweep.runs))
    gemm_figures.draw_theory(ideal, tmp_path / "theory.png")
    assert min(tops) >= 0.05
