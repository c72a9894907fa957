"""Print a run: errors, verdict, checks, then tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

from rich.console import Console
from rich.table import Table

from kernbench.cli.console import (
    ReportLine,
    facts,
    link_table,
    number,
    render,
    render_report,
    show_report,
    table,
    text,
    time_cells,
)
from kernbench.common.errors import ExplanationError
from kernbench.common.ids import pe_name
from kernbench.common.units import format_size
from kernbench.common.values import state
from kernbench.library.runs import Run
from kernbench.messages.commands import BY_BLOCKS
from kernbench.observe.guard import guarded
from kernbench.observe.statistics import TimeShare
from kernbench.result.explanation import Explanation
from kernbench.result.run_sections import EXPLANATION
from kernbench.result.sections import figures_table
from kernbench.result.simulation import WRONG, RunFailure
from kernbench.result.table import bar_text as bar
from kernbench.runtime_api.launch_report import LaunchSplit
from kernbench.runtime_api.operators import OperatorUse

if TYPE_CHECKING:
    from kernbench.observe.findings import Finding

SMALLEST_SHARE = 0.005
MOST_QUEUES, MOST_LINKS, MOST_FINDINGS, MOST_PRINTED, MOST_COMPARED = 8, 8, 5, 8, 6
MOST_OPERATORS = 12
PHASES = {
    "launch": "launch: kernels",
    "h2d": "h2d: host to device",
    "d2h": "d2h: device to host",
    "init": "init: filled by the device",
    "map": "map: MMU entries",
    "unmap": "unmap: MMU entries",
    "dma": "dma: raw traffic",
}
ReportPart: TypeAlias = "Table | ReportLine | None"


def print_run(console: Console, run: Run, *, explain: bool, verbose: bool) -> bool:
    """Print a run and return True if its explanation is complete.

    ``explain`` prints the explanation of the time before the other tables. ``verbose`` omits nothing. Ctrl-C during the
    explanation ends only the explanation.
    """
    explanation = _Explanation(run)
    tables = _tables(run, explanation, explain=explain, verbose=verbose)
    show_report(console, _head(run, verbose=verbose), tables)
    return not explanation.interrupted


def _head(run: Run, *, verbose: bool) -> Iterator[ReportLine]:
    """Yield the first lines: errors, verdict, comparisons."""
    most = None if verbose else MOST_COMPARED
    wrong = [(str(each), "bold red") for each in run.checks if not each.passed]
    wrong += [(str(each), "bold red") for each in run.findings or () if each.kind in WRONG]
    yield from _some_of(wrong, most, "wrong")
    yield run.verdict.sentence, "bold"
    yield run.status_line, {"OK": "bold green", "INTERRUPTED": "bold yellow"}.get(run.status, "bold red")
    if run.load is not None and run.load.ns:
        yield str(run.load), "default"
    if run.said:
        yield run.said, "bold"
    yield from _some_of([(str(each), "green") for each in run.checks if each.passed], most, "PASS")
    if not run.checks:
        yield _describe_unverified(run), "yellow"
    yield str(run.data), "bold yellow" if run.data.stopped or run.data.zeros_read else "default"
    yield from _further(run, most)
    yield from _about(run)
    yield from _some_of([(str(line), "default") for line in run.printed], most and MOST_PRINTED, "lines of kernels")


def _some_of(lines: Sequence[ReportLine], most: int | None, what: str) -> Iterator[ReportLine]:
    """Yield the first lines, and the number of omitted ones."""
    yield from islice(lines, most)
    if most is not None and len(lines) > most:
        yield f"… {len(lines) - most:,} more {what} (-v shows all)", lines[0][1]


def _further(run: Run, most: int | None) -> Iterator[ReportLine]:
    if run.report.under_way:
        yield f"in flight when the run ended: {_some_names(run.report.under_way)}", "yellow"
    if run.unmodelled:
        found = ", ".join(f"{name} {times}" for name, times in sorted(run.unmodelled.items(), key=lambda e: -e[1]))
        yield f"unmodelled, computed by the host at the price of copies: {found}", "bold red"
    yield from ((each, "yellow") for each in run.remarks)
    left = [(f"leaked: {leak}", "yellow") for leak in run.leaked]
    left += [(f"left behind: {each}", "yellow") for each in run.left]
    left += [(str(each), "yellow") for each in run.findings or () if each.kind not in WRONG]
    yield from _some_of(left, most and MOST_FINDINGS, "lines")
    if run.findings == ():
        yield "sanitizer: nothing found", "green"


def _describe_unverified(run: Run) -> str:
    if run.status == "NO_REQUESTS":
        return "the bench submitted no request, so nothing was simulated"
    if run.error is not None:
        return "nothing was verified: the run failed"
    if run.verify:
        return "nothing was verified: the bench compared nothing"
    checks = f"{run.skipped} comparison{'' if run.skipped == 1 else 's'} of the bench"
    return f"nothing was verified; --verify-data evaluates {checks if run.skipped else 'its comparisons'}"


def _about(run: Run) -> Iterator[ReportLine]:
    params = ", ".join(f"{name}={given}" for name, given in run.params.items())
    if params:
        yield f"parameters: {params}", "default"
    yield f"machine: {run.machine_name} ({', '.join(_machine(run))}), device {run.device}", "default"


def _machine(run: Run) -> Iterator[str]:
    if run.live is not None:
        topology = run.live.request.machine
        spec, clocks = topology.spec, topology.configured.clocks
        yield f"{spec.num_sips} SIPs × {spec.cubes_per_sip} cubes × {spec.pes_per_cube} PEs"
        if clocks.changed:
            yield f"clocks {clocks}"
        if spec.cube.hbm.is_assumed:
            yield f"memory {spec.cube.hbm.timing_text}"
    yield run.digest[:12]


def _tables(run: Run, explanation: _Explanation, *, explain: bool, verbose: bool) -> Iterator[ReportPart]:
    """Yield the tables, the most important first; yield none for a run without events."""
    if not run.report.events:
        return
    advice = run.advice
    if run.live is not None and advice is not None and not isinstance(advice, Mapping):
        yield from render_report(advice.report())
    if explain:
        yield from explanation.parts()
    yield _operators(run.operators, None if verbose else MOST_OPERATORS)
    launches = [_launch(launch) for launch in run.report.launches]
    yield from launches[:1]
    yield _phases(run)
    yield from launches[1:]
    links = run.links[:MOST_LINKS]
    yield from (_engines(run), link_table("Busiest links", links, [each.peak_fifo_bytes for each in links]))
    yield from (_queues(run), facts("Traffic", _traffic(run)))
    if run.findings:
        yield _findings(run.findings)
    if not explain:
        yield from explanation.parts()
    if verbose:
        yield render(figures_table(run.outcome.figures()))


@state
class _Explanation:
    """The tables of an explanation. They are computed while they are printed, until the user interrupts."""

    run: Run
    interrupted: bool = False

    def parts(self) -> Iterator[ReportPart]:
        try:
            with guarded("explanation"):
                explanation = self.run.outcome.find(EXPLANATION)
                if isinstance(explanation, Explanation):
                    yield from render_report(explanation.report())
                elif isinstance(explanation, RunFailure) and explanation.text != self.run.verdict.sentence:
                    yield explanation.text, "bold red"
        except ExplanationError as error:
            yield str(error), "bold red"
        except KeyboardInterrupt:
            self.interrupted = True


def _operators(operators: Sequence[OperatorUse], most: int | None) -> Table | None:
    """Tabulate the operators of a host library by time; operators that the host computed are red."""
    if not operators:
        return None
    total, shown = sum(each.ns for each in operators), operators[:most]
    made = table(
        f"Operators: {total:,.0f} ns in all" + (f"  (the longest of {len(operators)})" if shown != operators else ""),
        text("operator"),
        *(number(name) for name in ("calls", "launches", "ns", "share")),
        text(""),
    )
    for each in shown:
        share = each.ns / total if total else 0.0
        row = (f"{each.calls:,}", f"{each.launches:,}", f"{each.ns:,.0f}", f"{share:.1%}", bar(share))
        name = each.name if each.modelled else f"{each.name} (unmodelled)"
        made.add_row(name, *row, style=None if each.modelled else "bold red")
    return made


def _phases(run: Run) -> Table:
    made = table(
        "Simulated latency by phase  (phases may overlap; remaining tensors are freed after the run)",
        text("phase"),
        *(number(name) for name in ("requests", "bytes", "under way ns", "of the run", "longest ns")),
        text(""),
    )
    for phase in run.phases:
        busy, share, drawn = _part(phase.busy_ns, run.latency_ns)
        nbytes = format_size(phase.nbytes) if phase.nbytes else ""
        name, longest = PHASES.get(phase.phase, phase.phase), f"{phase.longest_ns:,.3f}"
        made.add_row(name, f"{phase.requests:,}", nbytes, busy, share, longest, drawn)
    return made


def _launch(launch: LaunchSplit) -> Table:
    which = f", the longest of {launch.launches}" if launch.launches > 1 else ""
    made = table(
        f"Launch {launch.title!r} on {launch.pe_count} PE{'s' if launch.pe_count > 1 else ''}{which}",
        text("part"),
        number("ns"),
        number("share"),
        text(""),
    )
    whole = launch.total_ns
    made.add_row("control path: host to PEs, until the common start", *_part(launch.before_ns, whole))
    made.add_row("kernels: first start to last end", *_part(launch.kernel_ns, whole))
    slowest = pe_name(launch.slowest)
    longest = f"  the longest, {slowest}" if launch.pe_count > 1 else f"  {slowest}"
    made.add_row(longest, f"{launch.slowest_ns:,.3f}", "", "", style="cyan")
    for share in _visible(launch):
        made.add_row(f"    {share.what}", *_part(share.ns, launch.slowest_ns), style="cyan")
    made.add_row("control path: PEs to host", *_part(launch.after_ns, whole))
    made.add_row("launch", f"{whole:,.3f}", "", "", style="bold")
    if launch.blocks:
        made.add_row(f"products {BY_BLOCKS}{', '.join(launch.blocks)}", "", "", "")
    if launch.late_pes:
        made.add_row(f"PEs that got the order after the common start: {launch.late_pes}", "", "", "")
    return made


def _part(ns: float, whole: float) -> tuple[str, str, str]:
    return time_cells(ns, ns / whole if whole else 0.0)


def _visible(launch: LaunchSplit) -> Iterator[TimeShare]:
    """Yield the shares that are large enough to show, and the sum of the others."""
    least = SMALLEST_SHARE * launch.slowest_ns
    small = [share.ns for share in launch.shares if share.ns < least]
    yield from (share for share in launch.shares if share.ns >= least)
    if small:
        yield TimeShare("anything else", sum(small))


def _engines(run: Run) -> Table:
    made = table(
        "Engines of the PEs, from the first start of a kernel to the last end",
        text("engine"),
        *(number(name) for name in ("PEs", "operations", "busy ns a PE", "utilisation")),
        text(""),
    )
    for usage in run.engines:
        made.add_row(
            usage.engine,
            str(usage.pes),
            f"{usage.records:,}",
            f"{usage.busy_ns / usage.pes:,.3f}",
            f"{usage.occupancy:.1%}",
            bar(usage.occupancy),
        )
    return made


def _queues(run: Run) -> Table:
    made = table(
        "Queues of the PEs that sent most",
        text("PE"),
        *(number(name) for name in ("messages", "bytes", "busy ns")),
        text("by queue"),
    )
    for each in sorted(run.report.queues, key=lambda each: -each.nbytes)[:MOST_QUEUES]:
        by_queue = ", ".join(f"{use.direction} {use.messages:,} ({format_size(use.nbytes)})" for use in each.sent)
        made.add_row(pe_name(each.pe), f"{each.messages:,}", format_size(each.nbytes), f"{each.busy_ns:,.3f}", by_queue)
    return made


def _traffic(run: Run) -> Iterator[tuple[str, str]]:
    report, traffic = run.report, run.report.traffic
    yield "HBM", f"{format_size(traffic.hbm_in)} in, {format_size(traffic.hbm_out)} out (headers included)"
    ways = f"{format_size(traffic.to_machine)} to the machine, {format_size(traffic.from_machine)} from it"
    yield "host link", f"{ways}, {traffic.host_utilisation:.1%} busy"
    if report.queues:
        messages, nbytes = (sum(each) for each in zip(*((q.messages, q.nbytes) for q in report.queues), strict=True))
        yield "queues", f"{messages:,} messages, {format_size(nbytes)}, sent by {len(report.queues)} PEs"
    if report.translation is not None:
        yield "TLB", f"{report.translation.hits:,} hits, {report.translation.misses:,} misses"
    yield "events", f"{report.events:,} for {report.transfers:,} transfers; {report.records:,} records in the op-log"


def _some_names(names: tuple[str, ...], most: int = 5) -> str:
    """Return the first names, and the number of omitted ones."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _findings(findings: Sequence[Finding]) -> Table:
    made = table(
        "Sanitizer",
        text("finding"),
        text("kernel"),
        text("line"),
        text("PE"),
        text("tensor"),
        *(number(name) for name in ("bytes", "from ns", "to ns", "times")),
    )
    for each in findings:
        made.add_row(
            each.kind,
            each.kernel or "host",
            _finding_lines(each),
            _finding_pes(each),
            each.tensor or each.space,
            format_size(each.nbytes),
            f"{each.t_start_ns:,.3f}",
            f"{each.t_end_ns:,.3f}",
            f"{each.count:,}",
        )
    return made


def _finding_lines(finding: Finding) -> str:
    sides = (finding.side, finding.other) if finding.other is not None else (finding.side,)
    return " × ".join(f"{side.line} {side.action}" if side.line else side.action for side in sides)


def _finding_pes(finding: Finding) -> str:
    sides = (finding.side, finding.other) if finding.other is not None else (finding.side,)
    return " × ".join(dict.fromkeys("host" if side.pe is None else pe_name(side.pe) for side in sides))
