"""Draw docs/figures/gemm_*.png and write gemm_sweep.json beside them: the GEMM evaluation on the packaged machine.

With --render-only: draw again from the gemm_sweep.json that is there.
"""

from __future__ import annotations

import sys
from pathlib import Path

import kernbench.benches
from kernbench.evaluation.gemm_measure import GemmStudy
from kernbench.evaluation.gemm_report import check_numbers, draw_figures
from kernbench.evaluation.gemm_results import DATA_FILE, read_sweep, sweep_document
from kernbench.evaluation.gemm_shapes import SHAPES
from kernbench.evaluation.outputs import run_script, write_json
from kernbench.topology.builder import resolve_topology

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
assert kernbench.benches.__all__  # importing the package makes its benches known


def draw(render_only: bool) -> None:
    """Write the results, unless those that are there shall be drawn, and the figures."""
    if not render_only:
        sweep = GemmStudy(topology=resolve_topology("default"), shapes=SHAPES).run()
        check_numbers(sweep)
        write_json(FIGURES / DATA_FILE, sweep_document(sweep))
    for name in draw_figures(read_sweep(FIGURES, f"python {Path(__file__).name}"), FIGURES):
        print(f"wrote {FIGURES / name}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(run_script(__doc__, draw))
