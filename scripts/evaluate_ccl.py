"""Draw docs/figures/ccl_*.png and write ccl_sweep.json beside them: collectives on the packaged machine.

With --render-only: draw again from the ccl_sweep.json that is there.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from kernbench.ccl.config import packaged_file
from kernbench.common.errors import KernbenchError
from kernbench.evaluation.ccl_report import check_numbers, draw_figures
from kernbench.evaluation.ccl_results import read_sweep, write_data
from kernbench.evaluation.ccl_study import CclStudy
from kernbench.topology.builder import resolve_topology

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
JOBS = 2


def main() -> int:
    """Simulate unless told not to, then draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--render-only", action="store_true")
    try:
        draw(render_only=parser.parse_args().render_only)
    except KernbenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def draw(*, render_only: bool) -> None:
    """Write the results, unless those that are there shall be drawn, and the figures."""
    if not render_only:
        sweep = CclStudy(topology=resolve_topology("default"), ccl=packaged_file(), jobs=JOBS).run()
        check_numbers(sweep)
        write_data(sweep, FIGURES)
    for name in draw_figures(read_sweep(FIGURES, f"python {Path(__file__).name}"), FIGURES):
        print(f"wrote {FIGURES / name}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
