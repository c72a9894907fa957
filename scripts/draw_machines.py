"""Make docs/figures/machine_*.svg, and the tables and the comparison in docs/machines.md, from the packaged machines.

usage: python scripts/draw_machines.py [--drawings-only]
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path

from kernbench.cli.main import main as kernbench
from kernbench.common.errors import RunError
from kernbench.topology.builder import packaged_machines
from machines_page import fill_page, tabulate_machines, write_drawings

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "machines.md"
BENCH = "qkv-gemm"
COMPARED = ("one-cube", "edge")


def compare_machines() -> str:
    """Return what ``kernbench compare`` says first of a bench on two machines: the verdict."""
    with tempfile.TemporaryDirectory() as folder:
        results = [os.path.join(folder, f"{machine}.json") for machine in COMPARED]
        for machine, result in zip(COMPARED, results, strict=True):
            Path(result).write_text(_print("run", "--bench", BENCH, "--topology", machine, "--explain", "--json"))
        verdict = "\n".join(json.loads(_print("compare", *results, "--json"))["verdict"])
    return f"```text\n{verdict}\n```"


def time_idle_reads() -> str:
    """Return how long an idle local read takes on each machine, as a table in Markdown: of 64 B, and of 4 KiB."""
    rows = ["| machine | 64 B | 4 KiB |", "| --- | --- | --- |"]
    for machine in packaged_machines():
        cells = [f"{_idle_read_ns(machine, size):.1f} ns" for size in ("64", "4KiB")]
        rows.append(f"| `{machine}` | {' | '.join(cells)} |")
    return "\n".join(rows)


def _idle_read_ns(machine: str, size: str) -> float:
    printed = _print("probe", "--case", "pe-local-hbm", "--size", size, "--topology", machine, "--json")
    return float(json.loads(printed)["cases"][0]["transaction"]["latency_ns"])


def _print(*arguments: str) -> str:
    """Return what a command prints. RunError when it fails."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        code = kernbench(list(arguments))
    if code:
        raise RunError(f"kernbench {' '.join(arguments)} ended with {code}")
    return printed.getvalue()


def main() -> int:
    """Draw, and fill the page."""
    for path in write_drawings(DOCS / "figures"):
        print(f"wrote {path}", file=sys.stderr)
    if "--drawings-only" not in sys.argv[1:]:
        sections = {"table": tabulate_machines(), "idle reads": time_idle_reads(), "comparison": compare_machines()}
        PAGE.write_text(fill_page(PAGE.read_text(encoding="utf-8"), sections), encoding="utf-8")
        print(f"wrote {PAGE}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
