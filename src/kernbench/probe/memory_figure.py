"""Picture of the case ``memory``: share of peak bandwidth beside the reference simulator's, and latency over load."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kernbench.probe.memory_case import SliceReport

WIDTH, HEIGHT = 13.0, 4.6
FOUND = "#2f6f9f"
REFERENCE: dict[str, Any] = {"color": "#c9772b", "markersize": 14, "markeredgewidth": 2.5}


def draw(reports: Sequence[SliceReport], form: str) -> bytes:
    """Return the picture as a file of type ``form`` (png, svg, pdf); equal reports give equal bytes."""
    with rc_context({"svg.hashsalt": "kernbench", "font.size": 9}):
        figure = Figure(figsize=(WIDTH, HEIGHT * len(reports)), layout="constrained")
        for (left, right), report in zip(
            figure.subplots(len(reports), 2, width_ratios=(2, 1), squeeze=False), reports, strict=True
        ):
            _draw_patterns(left, report)
            _draw_latencies(right, report)
        buffer = io.BytesIO()
        undated = {"Date": None} if form == "svg" else {"CreationDate": None} if form == "pdf" else {}
        figure.savefig(buffer, format=form, metadata=undated)
    return buffer.getvalue()


def _draw_patterns(axes: Axes, report: SliceReport) -> None:
    rows = [row for row in report.rows if row.requesters == 1]
    places = range(len(rows))
    axes.bar(places, [row.figures.efficiency_pct for row in rows], 0.6, color=FOUND, label="model")
    references = [(at, row.reference.efficiency_pct) for at, row in enumerate(rows) if row.reference is not None]
    if references:
        at, values = zip(*references, strict=True)
        axes.plot(at, values, "_", **REFERENCE, label="cycle-accurate reference")
    axes.set_xticks(list(places), [row.pattern for row in rows], rotation=60, ha="right")
    axes.set_ylim(0, 100)
    axes.set_ylabel("% of peak")
    axes.set_title(f"{report.memory}, {report.mapping}: peak {report.peak_gbs:.1f} GB/s", loc="left")
    axes.legend(frameon=False)


def _draw_latencies(axes: Axes, report: SliceReport) -> None:
    latencies = (*report.latencies, *report.compared)
    for pattern in dict.fromkeys(latency.pattern for latency in latencies):
        points = sorted(
            (latency.load_pct, latency.figures.mean_ns) for latency in latencies if latency.pattern == pattern
        )
        (line,) = axes.plot(*zip(*points, strict=True), "o-", markersize=4, label=pattern)
        for latency in report.compared:
            if latency.pattern == pattern and latency.reference is not None:
                axes.plot(latency.load_pct, latency.figures.p99_ns, "^", markersize=5, color=line.get_color())
                axes.plot(
                    [latency.load_pct] * 2, [latency.reference.mean_ns, latency.reference.p99_ns], "_", **REFERENCE
                )
    if report.compared:
        axes.plot([], [], "^", color="0.4", label="99 of 100 are faster")
        axes.plot([], [], "_", **REFERENCE, label="cycle-accurate reference")
    axes.set_xlabel("load, % of what the pattern gets at most")
    axes.set_ylabel("latency, ns (mean, but where marked)")
    axes.set_xlim(0, 100)
    axes.set_ylim(bottom=0)
    if latencies:
        axes.legend(frameon=False, ncols=3, fontsize=8, loc="lower left", bbox_to_anchor=(0, 1))
