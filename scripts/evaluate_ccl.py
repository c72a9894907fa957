"""Draw docs/figures/ccl_*.png and write ccl_sweep.json beside them: collectives on the packaged machine.

With --render-only: draw again from the ccl_sweep.json that is there.
"""

from __future__ import annotations

import sys
from pathlib import Path

from kernbench.ccl.loading import find_packaged_file
from kernbench.evaluation.ccl_report import report_ccl
from kernbench.evaluation.ccl_study import CclStudy
from kernbench.evaluation.study_report import update_figures
from kernbench.topology.builder import resolve_topology

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
JOBS = 2


def make_study() -> CclStudy:
    """Return the simulations."""
    return CclStudy(topology=resolve_topology("default"), ccl=find_packaged_file(), jobs=JOBS)


if __name__ == "__main__":
    sys.exit(update_figures(report_ccl(), make_study, FIGURES, __doc__))
