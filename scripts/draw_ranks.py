"""Draw docs/figures/ranks_*.png: the second step of the examples of many ranks.

Each rank has a row of kernels and a row of collectives or messages:

    python scripts/draw_ranks.py [ddp|tensor_parallel|fsdp|pipeline ...] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from kernbench.cli.main import main as kernbench
from kernbench.evaluation.timeline_figure import Bar, read_bars

ROOT = Path(__file__).parents[1]
EXAMPLES = {"ddp": 2, "tensor_parallel": 2, "fsdp": 4, "pipeline": 2}
"""The examples, with their ranks"""
COLOURS = {
    "forward": "#56B4E9",
    "forward and backward": "#56B4E9",
    "backward": "#E69F00",
    "optimizer": "#35B58A",
    "collective or message": "#6B4C9A",
}
_PE = re.compile(r"SIP (\d+), cube (\d+), PE \d+")


def phase_of(bar: Bar, cube: str, source: list[str]) -> str:
    """Return the phase of a kernel: its cube tells a collective, and its name and line tell the part of the step."""
    if cube != "0":  # tensors are stored on cube 0, and the PEs of collectives are those of another
        return "collective or message"
    line = re.search(r"\.py:(\d+)", bar.name)
    text = source[int(line[1]) - 1] if line else ""
    if "optimizer" in text or "clip_grad" in text:
        return "optimizer"
    if not any(".backward()" in line for line in source):  # a schedule of a pipeline runs both in a single line
        return "forward and backward"
    return "backward" if "backward" in text else "forward"


def find_second_step(optimizer: list[tuple[float, float]]) -> float:
    """Return the end of the first step: that of the optimizer's kernels (start, ns) before their longest pause."""
    ordered = sorted(optimizer)
    ends = [max(start + ns for start, ns in ordered[: index + 1]) for index in range(len(ordered) - 1)]
    pauses = [start - end for end, (start, _) in zip(ends, ordered[1:], strict=True)]
    return ends[pauses.index(max(pauses))]


def draw(bars: tuple[Bar, ...], name: str, path: Path) -> None:
    """Draw the kernels and collectives of the second step."""
    source = (ROOT / f"examples/pytorch/ranks_{name}.py").read_text().splitlines()
    spans = []
    for bar in bars:
        place = _PE.fullmatch(bar.process)
        if place and bar.row.partition(" #")[0] == "cpu":
            spans.append((int(place[1]), phase_of(bar, place[2], source), bar.start_ns, bar.ns))
    begin = find_second_step([(start, ns) for _, phase, start, ns in spans if phase == "optimizer"])
    ranks = EXAMPLES[name]
    figure = Figure(figsize=(9, 0.9 + 0.62 * ranks), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for phase, colour in COLOURS.items():
        is_labelled = False
        for rank in range(ranks):
            bits = {(s - begin, ns) for r, p, s, ns in spans if (r, p) == (rank, phase) and s >= begin}
            row = 2 * rank + (phase == "collective or message")
            if bits:
                label = None if is_labelled else phase
                times_us = [(start / 1000, ns / 1000) for start, ns in sorted(bits)]
                axes.broken_barh(times_us, (row - 0.4, 0.8), color=colour, linewidth=0, label=label)
                is_labelled = True
    labels = [
        text
        for rank in range(ranks)
        for text in (f"rank {rank}: kernels", "messages" if name == "pipeline" else "collectives")
    ]
    axes.set_yticks(range(2 * ranks), labels, fontsize=9)
    axes.set_ylim(2 * ranks - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_xlabel("µs of simulated time, second step")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=4, frameon=False, fontsize=9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, dpi=110)


def main() -> int:
    """Run the examples without data, each with a trace of its kernels, and draw them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*EXAMPLES, []], help="examples; by default all")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "figures", help="folder of the pictures")
    arguments = parser.parse_args()
    for name in arguments.names or EXAMPLES:
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder) / "trace.json"
            script, ranks = str(ROOT / f"examples/pytorch/ranks_{name}.py"), EXAMPLES[name]
            command = ["run", "--script", script, "--as-cuda", "--ranks", str(ranks), "--trace", str(trace), "--json"]
            if code := kernbench(
                [*command, "--no-data", "--zeros", "--trace-filter", "cpu", "--set", f"system.sips.count={ranks}"]
            ):
                return code
            draw(read_bars(trace), name, arguments.out / f"ranks_{name}.png")
        print(f"wrote {arguments.out}/ranks_{name}.png", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
