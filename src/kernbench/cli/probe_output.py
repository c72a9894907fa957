"""Tabulate probe reports: the traffic cases, and the case memory with its picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.table import Table

from kernbench.cli.console import facts, number, render, show, show_report, table, text
from kernbench.common.files import write_bytes
from kernbench.common.late import late
from kernbench.common.units import format_size, ps_to_ns
from kernbench.library.probes import Probe, hops_table, sizes_table
from kernbench.probe.memory_case import SliceReport
from kernbench.probe.report import LinkLoad, NotHere, ProbeReport
from kernbench.result.run_tables import links_table
from kernbench.topology.builder import Topology

EVENLY = "refresh: spread in these cases, so that closed forms are exact (the machine has all-bank)"
PICTURE = "kernbench.probe.memory_figure"
N = TypeVar("N", int, float)
CLOSE = 10.0
"""Largest distance to the reference that counts as close, in percentage points of peak"""


def print_reports(console: Console, probe: Probe) -> None:
    """Print one row per case, then details, then the cases that this machine cannot run.

    A single case prints its complete hop table first.
    """
    measurements = probe.measurements
    head = [(probe.verdict, "bold"), (f"machine: {probe.machine.name}", "default")]
    if probe.machine.spec.cube.hbm.refresh_mode == "all-bank":
        head.append((EVENLY, "dim"))
    alone = len(probe.reports) == 1
    first = [render(probe.table), *map(_hops, measurements)] if alone and measurements else []
    show_report(console, head, _tables(probe, measurements, alone=alone), first)


def _tables(probe: Probe, measurements: Sequence[ProbeReport], *, alone: bool) -> Iterator[Table | None]:
    if not alone:
        yield render(probe.table)
    for report in measurements:
        if report.trace:
            yield render(sizes_table(report.sweep, report.case))
            if not alone:
                yield _hops(report)
    yield from (_breakdown(probe.nbytes, measurements), _crowds(measurements))
    for report in measurements:
        if report.trace:
            yield from (_shares(report), _links(report))
    missing = (report for report in probe.reports if isinstance(report, NotHere))
    yield facts("Not on this machine", ((report.case, f"{report.why} ({report.description})") for report in missing))


def _hops(report: ProbeReport) -> Table:
    return render(hops_table(report.trace, report.case))


def _breakdown(nbytes: int, reports: Sequence[ProbeReport]) -> Table:
    # Latency outside the closed form gets a separate column, if there is any.
    hidden = set() if any(report.single.breakdown.difference_ps for report in reports) else {"difference_ns"}
    names = [name for name, _ in reports[0].single.breakdown.parts_ns if name not in hidden] if reports else []
    breakdown = table(
        f"Where the latency of {format_size(nbytes)} goes, in ns",
        text("case"),
        *(number(name.removesuffix("_ns")) for name in (*names, "= latency", "closed form")),
    )
    for report in reports:
        single = report.single
        parts = (f"{ns:.3f}" for name, ns in single.breakdown.parts_ns if name in names)
        breakdown.add_row(report.case, *parts, f"{single.latency_ns:.3f}", f"{single.closed_form_ns:,.3f}")
    return breakdown


def _crowds(reports: Sequence[ProbeReport]) -> Table:
    crowds = table(
        "Several PEs at once: latency of one transaction in ns, and shares of the streams in GB/s",
        text("case"),
        *(number(name) for name in ("PEs", "min", "mean", "max", "all streams", "least", "most", "fairness")),
    )
    for report in reports:
        crowd = report.crowd
        if crowd is not None:
            crowds.add_row(
                report.case,
                str(len(crowd.initiators)),
                *(f"{ns:.3f}" for ns in (crowd.min_ns, crowd.mean_ns, crowd.max_ns)),
                f"{report.sustained.effective_gbs:.1f}",
                *(f"{gbs:.1f}" for gbs in (min(crowd.rates_gbs), max(crowd.rates_gbs))),
                f"{crowd.fairness:.4f}",
            )
    return crowds


def _shares(report: ProbeReport) -> Table:
    shares = table(f"{report.case}: each PE", text("PE"), number("latency ns"), number("stream GB/s"))
    crowd = report.crowd
    if crowd is not None:
        rows = zip(crowd.initiators, crowd.latencies_ps, crowd.rates_gbs, strict=True)
        for initiator, latency, rate in rows:
            shares.add_row(initiator, f"{ps_to_ns(latency):.3f}", f"{rate:.2f}")
    return shares


def _links(report: ProbeReport) -> Table:
    stream = report.sustained
    many = f"{stream.transactions} × {format_size(stream.nbytes)}, {stream.outstanding} outstanding"
    title = f"{report.case}: busiest links of the stream ({many})"
    return render(links_table(stream.busiest, title, LinkLoad, None))


def draw_memory(reports: Sequence[SliceReport], path: str) -> None:
    """Write the picture in the format of its suffix. Raises InputError if the file cannot be written."""
    draw = late(PICTURE, "draw")
    write_bytes(path, draw(reports, Path(path).suffix.lstrip(".")))


def print_memory(console: Console, machine: Topology, reports: Sequence[SliceReport]) -> None:
    """Print access patterns, several requesters, latency over load, and the distance to the reference."""
    if machine.spec.cube.hbm.banks is None:
        console.print(
            "This machine has timing: ideal, without banks. These figures are of an HBM3 channel with two mappings.\n"
        )
    for report in reports:
        show(console, _patterns(report), _requesters(report), _latencies_by_load(report), _references(report))
        for absent in report.absent:
            requesters = f" from {absent.requesters} requesters" if absent.requesters > 1 else ""
            console.print(f"no {absent.pattern}{requesters}: {absent.why}")
    errors = [error for report in reports for error in report.errors]
    if errors:
        close = sum(error <= CLOSE for error in errors)
        mean = sum(errors) / len(errors)
        console.print(
            f"beside the reference: {close} of {len(errors)} within {CLOSE:g} points of peak, "
            f"mean {mean:.1f}, largest {max(errors):.1f}"
        )
    off = [abs(latency.error_pct) for report in reports for latency in report.compared if latency.error_pct is not None]
    if off:
        console.print(f"mean latency: off by {sum(off) / len(off):.1f} % in the mean, {max(off):.1f} % at most")


def _patterns(report: SliceReport) -> Table:
    columns = ("GB/s", "of peak %", "reference %", "points", "row hits %", "reference %")
    title = (
        f"{report.memory}, {report.mapping}, {report.num_pcs} pseudo-channels, refresh {report.refresh}, "
        f"peak {report.peak_gbs:.1f} GB/s"
    )
    patterns = table(title, text("pattern"), *(number(name) for name in columns))
    for row in report.rows:
        if row.requesters == 1:
            reference, figures = row.reference, row.figures
            percent, hits = f"{figures.efficiency_pct:.1f}", f"{figures.row_hit_pct:.1f}"
            cells = [row.pattern, f"{row.gbs:.1f}", percent, "", "", hits, ""]
            if reference is not None:
                cells[3:5] = f"{reference.efficiency_pct:.1f}", f"{row.error:+.1f}"
                cells[6] = f"{reference.row_hit_pct:.1f}"
            patterns.add_row(*cells)
    return patterns


def _requesters(report: SliceReport) -> Table:
    shares = {(row.pattern, row.requesters): row.figures.efficiency_pct for row in report.rows}
    shared = [row.pattern for row in report.rows if row.requesters > 1]
    return _by_pattern("Requesters at once: % of peak in all", shares, shared, "")


def _latencies_by_load(report: SliceReport) -> Table:
    means = {(latency.pattern, latency.load_pct): latency.figures.mean_ns for latency in report.latencies}
    title = "Mean latency in ns to the last byte, by load (share of the pattern's peak)"
    return _by_pattern(title, means, [pattern for pattern, _ in means], " %")


def _by_pattern(title: str, figures: Mapping[tuple[str, N], float], patterns: list[str], unit: str) -> Table:
    """Tabulate figures, indexed by pattern and load. The heading of a column is its load with ``unit``."""
    loads = sorted({load for _, load in figures})
    rows = table(title, text("pattern"), *(number(f"{load:g}{unit}") for load in loads))
    for pattern in dict.fromkeys(patterns):
        cells = (figures.get((pattern, load)) for load in loads)
        rows.add_row(pattern, *("" if figure is None else f"{figure:.1f}" for figure in cells))
    return rows


def _references(report: SliceReport) -> Table:
    comparison = table(
        "Latency in ns beside the reference, at the loads of the reference",
        text("pattern"),
        *(number(name) for name in ("GB/s", "mean", "reference", "%", "p50", "reference", "p99", "reference")),
    )
    for latency in report.compared:
        figures, reference = latency.figures, latency.reference
        if reference is not None:
            comparison.add_row(
                latency.pattern,
                f"{latency.gbs:g}",
                *(f"{ns:.1f}" for ns in (figures.mean_ns, reference.mean_ns)),
                f"{latency.error_pct:+.1f}",
                *(f"{ns:.1f}" for ns in (figures.p50_ns, reference.p50_ns, figures.p99_ns, reference.p99_ns)),
            )
    return comparison
