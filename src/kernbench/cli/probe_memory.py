"""``kernbench probe --case memory``: its tables and its picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kernbench.cli.console import number, show, table, text
from kernbench.common.files import write_bytes
from kernbench.common.late import late
from kernbench.probe.memory_case import SliceReport
from kernbench.topology.builder import Topology

PICTURE = "kernbench.probe.memory_figure"
CLOSE = 10.0
"""Points of peak that count as close to the reference"""


def draw_memory(reports: Sequence[SliceReport], path: str) -> None:
    """Write the picture, as its name says. InputError when it cannot be written."""
    draw = late(PICTURE, "draw")
    write_bytes(path, draw(reports, Path(path).suffix.lstrip(".")))


def print_memory(console: Console, machine: Topology, reports: Sequence[SliceReport]) -> None:
    """Patterns, several requesters, latency over load; how close it is to the reference."""
    if machine.spec.cube.hbm.banks is None:
        console.print("This machine has timing: ideal, without banks. This is a channel of HBM3 with two mappings.\n")
    for report in reports:
        show(console, _patterns(report), _requesters(report), _latencies(report), _references(report))
    errors = [error for report in reports for error in report.errors]
    if errors:
        close = sum(error <= CLOSE for error in errors)
        mean = sum(errors) / len(errors)
        console.print(
            f"beside the reference: {close} of {len(errors)} within {CLOSE:g} points of peak, "
            f"mean {mean:.1f}, largest {max(errors):.1f}"
        )
    off = [abs(each.error_pct) for report in reports for each in report.compared if each.error_pct is not None]
    if off:
        console.print(f"mean latency: off by {sum(off) / len(off):.1f} % in the mean, {max(off):.1f} % at most")


def _title(report: SliceReport) -> str:
    return (
        f"{report.memory}, {report.mapping}, {report.num_pcs} pseudo-channels, refresh {report.refresh}, "
        f"peak {report.peak_gbs:.1f} GB/s"
    )


def _patterns(report: SliceReport) -> Table:
    columns = ("GB/s", "of peak %", "reference %", "points", "row hits %", "reference %")
    made = table(_title(report), text("pattern"), *(number(name) for name in columns))
    for row in report.rows:
        if row.requesters == 1:
            reference = row.reference
            known = ("", "", "")
            if reference is not None:
                known = (f"{reference.efficiency_pct:.1f}", f"{row.error:+.1f}", f"{reference.row_hit_pct:.1f}")
            found = row.found
            made.add_row(
                row.pattern,
                f"{row.gbs:.1f}",
                f"{found.efficiency_pct:.1f}",
                *known[:2],
                f"{found.row_hit_pct:.1f}",
                known[2],
            )
    return made


def _requesters(report: SliceReport) -> Table:
    counts = sorted({row.requesters for row in report.rows})
    made = table("Requesters at once: % of peak in all", text("pattern"), *(number(str(n)) for n in counts))
    for pattern in dict.fromkeys(row.pattern for row in report.rows if row.requesters > 1):
        found = {row.requesters: row.found.efficiency_pct for row in report.rows if row.pattern == pattern}
        made.add_row(pattern, *(f"{found[n]:.1f}" for n in counts))
    return made


def _latencies(report: SliceReport) -> Table:
    loads = sorted({each.load_pct for each in report.latencies})
    made = table(
        "Mean latency in ns to the last byte, by load (of what the pattern gets at most)",
        text("pattern"),
        *(number(f"{load:g} %") for load in loads),
    )
    for pattern in dict.fromkeys(each.pattern for each in report.latencies):
        found = {each.load_pct: each.found.mean_ns for each in report.latencies if each.pattern == pattern}
        made.add_row(pattern, *(f"{found[load]:.1f}" for load in loads))
    return made


def _references(report: SliceReport) -> Table:
    made = table(
        "Latency in ns beside the reference, at the loads that it has run",
        text("pattern"),
        *(number(name) for name in ("GB/s", "mean", "reference", "%", "p50", "reference", "p99", "reference")),
    )
    for each in report.compared:
        found, known = each.found, each.reference
        if known is not None:
            made.add_row(
                each.pattern,
                f"{each.gbs:g}",
                *(f"{ns:.1f}" for ns in (found.mean_ns, known.mean_ns)),
                f"{each.error_pct:+.1f}",
                *(f"{ns:.1f}" for ns in (found.p50_ns, known.p50_ns, found.p99_ns, known.p99_ns)),
            )
    return made
