"""A run as tables and lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field

from rich.console import Console
from rich.table import Table

from kernbench.cli.console import bar, facts, number, show, table, text
from kernbench.cli.run_extras import Extras, print_extras
from kernbench.common.config import ConfigModel
from kernbench.common.errors import text_of
from kernbench.common.ids import cube_part, pe_name
from kernbench.common.program_line import ErrorPlace
from kernbench.common.units import format_ns, format_size
from kernbench.common.values import value
from kernbench.engine.keeping import DataReport
from kernbench.messages.commands import BY_BLOCKS
from kernbench.observe.statistics import TimeShare
from kernbench.runtime_api.bench_runner import BenchSummary
from kernbench.runtime_api.launch_report import LaunchSplit, RunReport
from kernbench.runtime_api.memory import CleanupReport, LeakedMemory
from kernbench.runtime_api.testing import Comparison
from kernbench.topology.builder import Topology

SMALLEST_SHARE = 0.005
MOST_QUEUES = 8
PHASES = {
    "launch": "launch: kernels",
    "h2d": "h2d: host to device",
    "d2h": "d2h: device to host",
    "init": "init: filled by the device",
    "map": "map: MMU entries",
    "unmap": "unmap: MMU entries",
    "dma": "dma: raw traffic",
}


@value(kw_only=True)
class RunHead:
    """A run as its program sees it; ``status`` is OK, FAILED, NO_REQUESTS or INTERRUPTED, ``said`` its own line.

    ``error``: what the program raised; ``failure``, which happened at ``place``: why the run did not go well. ``data``:
    what was kept and read; ``unmodelled``: operators that the host computed, and how often.
    """

    bench: str
    device: str
    status: str
    summary: BenchSummary
    params: ConfigModel
    verify: bool
    comparisons: tuple[Comparison, ...]
    skipped: int
    cleanup: CleanupReport = field(default_factory=CleanupReport)
    error: Exception | None = None
    failure: Exception | None = None
    place: ErrorPlace | None = None
    said: str = ""
    data: DataReport
    unmodelled: Mapping[str, int] = field(default_factory=dict)

    @property
    def leaks(self) -> tuple[LeakedMemory, ...]:
        """Memory that nobody gave back; a run that broke off could not, so that says nothing."""
        return self.cleanup.leaked if self.error is None else ()


def print_run(
    console: Console, machine: Topology, head: RunHead, report: RunReport, extras: Extras | None = None
) -> None:
    """Print everything about a run: why it failed, what binds it, then its tables."""
    if head.failure is not None:
        console.print(
            f"{head.status}  {head.bench}: {text_of(head.failure)}", style="bold red", soft_wrap=True, markup=False
        )
    if extras is not None and extras.explanation is not None:
        console.print(extras.explanation.verdict.sentence, style="bold", soft_wrap=True, markup=False)
        console.print()
    show(console, facts("Run", _about(machine, head)), _phases(head))
    for launch in report.launches:
        show(console, _launch(launch))
    show(console, _engines(report), _links(report), _queues(report), facts("Traffic", _traffic(report)))
    if extras is not None:
        print_extras(console, extras)
    if report.under_way:
        console.print(f"under way when it ended: {_some(report.under_way)}", style="yellow", soft_wrap=True)
    for line, style in _verdict(head):
        console.print(line, style=style, soft_wrap=True)
    if head.said:
        console.print(head.said, style="bold", soft_wrap=True, markup=False)
    simulated = f"{format_ns(head.summary.sim_ns)} simulated, {report.events:,} events"
    console.print(f"{head.status}  {head.bench}: {simulated}", style=_colour(head.status), soft_wrap=True)


def _about(machine: Topology, head: RunHead) -> Iterator[tuple[str, str]]:
    spec = machine.spec
    yield "bench", head.bench
    params = ", ".join(f"{name}={value}" for name, value in head.params.model_dump().items())
    if params:
        yield "parameters", params
    counts = f"{spec.num_sips} SIPs × {spec.cubes_per_sip} cubes × {spec.pes_per_cube} PEs"
    yield "machine", f"{machine.name} ({counts}, {machine.digest[:12]})"
    clocks = machine.configured.clocks
    if clocks.changed:
        yield "clocks", str(clocks)
    if spec.cube.hbm.is_assumed:
        yield "memory", spec.cube.hbm.timing_text
    yield "device", head.device
    yield "latency", f"{head.summary.sim_ns:,.3f} ns"


def _phases(head: RunHead) -> Table:
    made = table(
        "Simulated latency by phase  (phases may overlap; what is left is freed after the run)",
        text("phase"),
        *(number(name) for name in ("requests", "bytes", "under way ns", "of the run", "longest ns")),
        text(""),
    )
    whole = head.summary.sim_ns
    for phase in head.summary.phases:
        share = phase.busy_ns / whole if whole else 0.0
        made.add_row(
            PHASES.get(phase.phase, phase.phase),
            f"{phase.requests:,}",
            format_size(phase.nbytes) if phase.nbytes else "",
            f"{phase.busy_ns:,.3f}",
            f"{share:.1%}",
            f"{phase.longest_ns:,.3f}",
            bar(share),
        )
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
    slowest = cube_part(launch.slowest[0], launch.slowest[1], f"pe{launch.slowest[2]}")
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
    share = ns / whole if whole else 0.0
    return f"{ns:,.3f}", f"{share:.1%}", bar(share)


def _visible(launch: LaunchSplit) -> Iterator[TimeShare]:
    """The shares that can be seen; the others in one."""
    least = SMALLEST_SHARE * launch.slowest_ns
    small = [share.ns for share in launch.shares if share.ns < least]
    yield from (share for share in launch.shares if share.ns >= least)
    if small:
        yield TimeShare("anything else", sum(small))


def _engines(report: RunReport) -> Table:
    made = table(
        "Engines of the PEs, from the first start of a kernel to the last end",
        text("engine"),
        *(number(name) for name in ("PEs", "operations", "busy ns a PE", "utilisation")),
        text(""),
    )
    for usage in report.engines:
        made.add_row(
            usage.engine,
            str(usage.pes),
            f"{usage.records:,}",
            f"{usage.busy_ns / usage.pes:,.3f}",
            f"{usage.occupancy:.1%}",
            bar(usage.occupancy),
        )
    return made


def _links(report: RunReport) -> Table:
    made = table(
        "Busiest links",
        text("from"),
        text("to"),
        *(number(name) for name in ("GB/s", "carried", "busy", "peak FIFO")),
        text(""),
    )
    for link in report.traffic.busiest:
        made.add_row(
            link.src,
            link.dst,
            f"{link.bw_gbs:g}",
            format_size(link.nbytes),
            f"{link.utilisation:.1%}",
            format_size(link.peak_fifo_bytes),
            bar(link.utilisation),
        )
    return made


def _queues(report: RunReport) -> Table:
    made = table(
        "Queues of the PEs that sent most",
        text("PE"),
        *(number(name) for name in ("messages", "bytes", "busy ns")),
        text("by queue"),
    )
    for each in sorted(report.queues, key=lambda each: -each.nbytes)[:MOST_QUEUES]:
        by_queue = ", ".join(f"{use.direction} {use.messages:,} ({format_size(use.nbytes)})" for use in each.sent)
        made.add_row(pe_name(each.pe), f"{each.messages:,}", format_size(each.nbytes), f"{each.busy_ns:,.3f}", by_queue)
    return made


def _traffic(report: RunReport) -> Iterator[tuple[str, str]]:
    traffic = report.traffic
    yield "HBM", f"{format_size(traffic.hbm_in)} in, {format_size(traffic.hbm_out)} out (headers included)"
    ways = f"{format_size(traffic.to_machine)} to the machine, {format_size(traffic.from_machine)} from it"
    yield "host link", f"{ways}, {traffic.host_utilisation:.1%} busy"
    if report.queues:
        messages, nbytes = (sum(each) for each in zip(*((q.messages, q.nbytes) for q in report.queues), strict=True))
        yield "queues", f"{messages:,} messages, {format_size(nbytes)}, sent by {len(report.queues)} PEs"
    if report.translation is not None:
        yield "TLB", f"{report.translation.hits:,} hits, {report.translation.misses:,} misses"
    yield "events", f"{report.events:,} for {report.transfers:,} transfers; {report.records:,} records in the op-log"


def _some(names: tuple[str, ...], most: int = 5) -> str:
    """The first of some names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _verdict(head: RunHead) -> Iterator[tuple[str, str]]:
    """Lines about numbers and memory, with their style."""
    for each in head.comparisons:
        yield str(each), "green" if each.passed else "bold red"
    if not head.comparisons:
        yield _describe_unverified(head), "yellow"
    yield str(head.data), "bold yellow" if head.data.stopped or head.data.zeros_read else "default"
    if head.unmodelled:
        found = ", ".join(f"{name} {times}" for name, times in sorted(head.unmodelled.items(), key=lambda e: -e[1]))
        yield f"unmodelled, computed by the host at the price of copies: {found}", "bold red"
    for leak in head.leaks:
        yield f"leaked: {leak}", "yellow"
    for left in head.cleanup.left:
        yield f"left behind: {left}", "yellow"


def _describe_unverified(head: RunHead) -> str:
    if head.status == "NO_REQUESTS":
        return "the bench submitted no request, so nothing was simulated"
    if head.error is not None:
        return "nothing was verified: the run failed"
    if head.verify:
        return "nothing was verified: the bench compared nothing"
    checks = f"{head.skipped} comparison{'' if head.skipped == 1 else 's'} of the bench"
    return f"nothing was verified; --verify-data evaluates {checks if head.skipped else 'its comparisons'}"


def _colour(status: str) -> str:
    return {"OK": "bold green", "INTERRUPTED": "bold yellow"}.get(status, "bold red")
