"""Draw docs/figures/ccl_*.png and write ccl_sweep.json beside them: collectives on the packaged machine.

With --render-only: draw again from the ccl_sweep.json that is there.
"""

from __future__ import annotations

import sys
from pathlib import Path

from kernbench.ccl.loading import find_packaged_file
from kernbench.evaluation.ccl_report import check_numbers, draw_figures
from kernbench.evaluation.ccl_results import read_sweep, write_data
from kernbench.evaluation.ccl_study import CclStudy
from kernbench.evaluation.outputs import run_script
from kernbench.topology.builder import resolve_topology

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
JOBS = 2


def draw(render_only: bool) -> None:
    """Write the results, unless those that are there shall be drawn, and the figures."""
    if not render_only:
        sweep = CclStudy(topology=resolve_topology("default"), ccl=find_packaged_file(), jobs=JOBS).run()
        check_numbers(sweep)
        write_data(sweep, FIGURES)
    for name in draw_figures(read_sweep(FIGURES, f"python {Path(__file__).name}"), FIGURES):
        print(f"wrote {FIGURES / name}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(run_script(__doc__, draw))
