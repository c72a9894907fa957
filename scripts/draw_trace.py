"""Draw docs/figures/trace_gemm64.png: the timeline of a 64 x 64 x 64 GEMM by tile plan, from its trace file.

With a trace file: draw that one.  python scripts/draw_trace.py [TRACE.json [PE [MEMORY]]] [--out FIGURE.png]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from kernbench.cli.main import main as kernbench
from kernbench.common.errors import KernbenchError
from kernbench.evaluation.timeline_figure import draw_timeline, read_bars

FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "trace_gemm64.png"
SIZES = [text for axis in "mkn" for text in ("--set", f"bench.{axis}=64")]
STREAMED = ("--set", "bench.variant=ref_ref")


def main() -> int:
    """Parse, trace, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?", type=Path)
    parser.add_argument("pe", nargs="?", default="SIP 0, cube 0, PE 0", help="a process of the trace")
    parser.add_argument("memory", nargs="?", default="sip0.cube0.hbm0", help="a row of its memories")
    parser.add_argument("--out", type=Path, default=FIGURE)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trace = asked.trace
        if trace is None:
            trace = Path(folder) / "trace.json"
            command = ["run", "--bench", "matmul-composite", "--topology", "default", *SIZES, *STREAMED, "--json"]
            if code := kernbench([*command, "--trace", str(trace), "--trace-filter", "pes,memory"]):
                return code
        try:
            draw_timeline(read_bars(trace), asked.pe, asked.memory, asked.out)
        except KernbenchError as error:
            print(f"error: {error}", file=sys.stderr)
            return error.exit_code
    print(f"wrote {asked.out}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
