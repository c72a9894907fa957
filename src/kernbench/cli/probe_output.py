"""Tabulate probe reports: the traffic cases, and the case memory with its picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

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
CLOSE = 10.0
"""Largest distance to the reference that counts as close, in percentage points of peak"""


def print_reports(console: Console, probe: Probe) -> None:
    """Print one row per case, then details, then the cases that this machine cannot run.

    A single case prints its complete hop table first.
    """
    found = probe.measurements
    head = [(probe.verdict, "bold"), (f"machine: {probe.machine.name}", "default")]
    if probe.machine.spec.cube.hbm.refresh_mode == "all-bank":
        head.append((EVENLY, "dim"))
    alone = len(probe.reports) == 1
    asked = [render(probe.table), *map(_hops, found)] if alone and found else []
    show_report(console, head, _tables(probe, found, alone=alone), asked)


def _tables(probe: Probe, found: Sequence[ProbeReport], *, alone: bool) -> Iterator[Table | None]:
    if not alone:
        yield render(probe.table)
    for report in found:
        if report.trace:
            yield render(sizes_table(report.sweep, report.case))
            if not alone:
                yield _hops(report)
    yield from (_breakdown(probe.nbytes, found), _crowds(found))
    for report in found:
        if report.trace:
            yield from (_shares(report), _links(report))
    missing = (each for each in probe.reports if isinstance(each, NotHere))
    yield facts("Not on this machine", ((each.case, f"{each.why} ({each.description})") for each in missing))


def _hops(report: ProbeReport) -> Table:
    return render(hops_table(report.trace, report.case))


def _breakdown(nbytes: int, reports: Sequence[ProbeReport]) -> Table:
    # Latency outside the closed form gets a separate column, if there is any.
    hidden = set() if any(each.single.breakdown.difference_ps for each in reports) else {"difference_ns"}
    names = [name for name, _ in reports[0].single.breakdown.parts_ns if name not in hidden] if reports else []
    made = table(
        f"Where the latency of {format_size(nbytes)} goes, in ns",
        text("case"),
        *(number(name.removesuffix("_ns")) for name in (*names, "= latency", "closed form")),
    )
    for report in reports:
        single = report.single
        parts = (f"{ns:.3f}" for name, ns in single.breakdown.parts_ns if name in names)
        made.add_row(report.case, *parts, f"{single.latency_ns:.3f}", f"{single.closed_form_ns:,.3f}")
    return made


def _crowds(reports: Sequence[ProbeReport]) -> Table:
    made = table(
        "Several PEs at once: latency of one transaction in ns, and shares of the streams in GB/s",
        text("case"),
        *(number(name) for name in ("PEs", "min", "mean", "max", "all streams", "least", "most", "fairness")),
    )
    for report in reports:
        crowd = report.crowd
        if crowd is not None:
            made.add_row(
                report.case,
                str(len(crowd.initiators)),
                *(f"{ns:.3f}" for ns in (crowd.min_ns, crowd.mean_ns, crowd.max_ns)),
                f"{report.sustained.effective_gbs:.1f}",
                *(f"{gbs:.1f}" for gbs in (min(crowd.rates_gbs), max(crowd.rates_gbs))),
                f"{crowd.fairness:.4f}",
            )
    return made


def _shares(report: ProbeReport) -> Table:
    made = table(f"{report.case}: each PE", text("PE"), number("latency ns"), number("stream GB/s"))
    crowd = report.crowd
    if crowd is not None:
        rows = zip(crowd.initiators, crowd.latencies_ps, crowd.rates_gbs, strict=True)
        for initiator, latency, rate in rows:
            made.add_row(initiator, f"{ps_to_ns(latency):.3f}", f"{rate:.2f}")
    return made


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
    off = [abs(each.error_pct) for report in reports for each in report.compared if each.error_pct is not None]
    if off:
        console.print(f"mean latency: off by {sum(off) / len(off):.1f} % in the mean, {max(off):.1f} % at most")


def _slice_title(report: SliceReport) -> str:
    return (
        f"{report.memory}, {report.mapping}, {report.num_pcs} pseudo-channels, refresh {report.refresh}, "
        f"peak {report.peak_gbs:.1f} GB/s"
    )


def _patterns(report: SliceReport) -> Table:
    columns = ("GB/s", "of peak %", "reference %", "points", "row hits %", "reference %")
    made = table(_slice_title(report), text("pattern"), *(number(name) for name in columns))
    for row in report.rows:
        if row.requesters == 1:
            reference = row.reference
            known = ("", "", "")
            if reference is not None:
                known = (f"{reference.efficiency_pct:.1f}", f"{row.error:+.1f}", f"{reference.row_hit_pct:.1f}")
            found = row.figures
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
        found = {row.requesters: row.figures.efficiency_pct for row in report.rows if row.pattern == pattern}
        made.add_row(pattern, *(f"{found[n]:.1f}" if n in found else "" for n in counts))
    return made


def _latencies_by_load(report: SliceReport) -> Table:
    loads = sorted({each.load_pct for each in report.latencies})
    made = table(
        "Mean latency in ns to the last byte, by load (share of the pattern's peak)",
        text("pattern"),
        *(number(f"{load:g} %") for load in loads),
    )
    for pattern in dict.fromkeys(each.pattern for each in report.latencies):
        found = {each.load_pct: each.figures.mean_ns for each in report.latencies if each.pattern == pattern}
        made.add_row(pattern, *(f"{found[load]:.1f}" for load in loads))
    return made


def _references(report: SliceReport) -> Table:
    made = table(
        "Latency in ns beside the reference, at the loads of the reference",
        text("pattern"),
        *(number(name) for name in ("GB/s", "mean", "reference", "%", "p50", "reference", "p99", "reference")),
    )
    for each in report.compared:
        found, known = each.figures, each.reference
        if known is not None:
            made.add_row(
                each.pattern,
                f"{each.gbs:g}",
                *(f"{ns:.1f}" for ns in (found.mean_ns, known.mean_ns)),
                f"{each.error_pct:+.1f}",
                *(f"{ns:.1f}" for ns in (found.p50_ns, known.p50_ns, found.p99_ns, known.p99_ns)),
            )
    return made
