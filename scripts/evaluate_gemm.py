"""Draw docs/figures/gemm_*.png and write gemm_sweep.json beside them: the GEMM evaluation on the packaged machine.

With --render-only: draw again from the gemm_sweep.json that is there.
"""

from __future__ import annotations

import sys
from pathlib import Path

import kernbench.benches
from kernbench.evaluation.gemm_measure import GemmStudy
from kernbench.evaluation.gemm_report import GEMM_REPORT
from kernbench.evaluation.gemm_shapes import SHAPES
from kernbench.evaluation.study_report import update_figures
from kernbench.topology.builder import resolve_topology

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
assert kernbench.benches.__path__  # importing the package makes its benches known


def make_study() -> GemmStudy:
    """Return the simulations."""
    return GemmStudy(topology=resolve_topology("default"), shapes=SHAPES)


if __name__ == "__main__":
    sys.exit(update_figures(GEMM_REPORT, make_study, FIGURES, __doc__))
