"""What a finished sweep leaves in its folder: the table, how long points took, where it comes from, pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kernbench.evaluation.outputs import PROVENANCE_FILE, provenance_of, write_csv, write_provenance
from kernbench.evaluation.sweep_figures import KINDS, draw_plots
from kernbench.evaluation.sweep_journal import Journal
from kernbench.evaluation.sweep_plan import SweepPlan
from kernbench.evaluation.sweep_table import SweepTable, sweep_table, walls, write_sweep_table

TABLE_FILE = "sweep.parquet"
WALL_FILE = "wall_s.csv"


def write_results(folder: Path, plan: SweepPlan, journal: Journal) -> tuple[SweepTable, tuple[Path, ...]]:
    """Write everything; the table, and the names of the files."""
    table = sweep_table(plan, journal.finished)
    write_sweep_table(table, folder / TABLE_FILE)
    write_csv(folder / WALL_FILE, walls(journal.finished))
    # The machine in full is a file of its own.
    parameters = {key: value for key, value in plan.identity().items() if key != "configuration"}
    parameters["ccl file"] = plan.ccl.source
    provenance = provenance_of(plan.machine, f"kernbench sweep {plan.name}", parameters)
    write_provenance(folder, provenance, plan.machine)
    pictures = draw_plots(folder, plan, table)
    _remove_others(folder, pictures)
    return table, tuple(folder / name for name in (TABLE_FILE, WALL_FILE, PROVENANCE_FILE)) + pictures


def _remove_others(folder: Path, pictures: Sequence[Path]) -> None:
    """Remove the pictures of a sweep that was in ``folder`` before and had others."""
    for kind in KINDS:
        for path in set(folder.glob(f"[0-9]*_{kind}.png")) - set(pictures):
            path.unlink()
