"""Print a run: errors, verdict, checks, then tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TypeAlias

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kernbench.cli.console import ReportLine, facts, printable, render, render_report, show_report
from kernbench.common.errors import ExplanationError
from kernbench.common.units import format_size
from kernbench.common.values import state
from kernbench.library.runs import Run
from kernbench.observe.energy import RunEnergy
from kernbench.observe.guard import guarded
from kernbench.result.explanation import Explanation
from kernbench.result.run_sections import ENERGY, EXPLANATION, find_explanation
from kernbench.result.run_tables import (
    collectives_table,
    describe_energy,
    energy_table,
    exchanges_table,
    findings_table,
    launch_energy_table,
    launch_table,
    operators_table,
    pipelines_table,
    queues_table,
)
from kernbench.result.sections import Absence, Unread, figures_table
from kernbench.result.simulation import WRONG, RunFailure

MOST_FINDINGS, MOST_PRINTED, MOST_COMPARED = 5, 8, 6
MOST_OPERATORS = 12
ReportPart: TypeAlias = "Table | ReportLine | None"


def print_run(console: Console, run: Run, *, explain: bool, energy: bool, verbose: bool) -> bool:
    """Print a run and return True if its explanation is complete.

    ``explain`` prints the explanation of the time before the other tables, ``energy`` the energy before that.
    ``verbose`` omits nothing. Ctrl-C during the explanation ends only the explanation.
    """
    explanation = _ExplanationTables(run)
    tables = _tables(run, explanation, explain=explain, energy=energy, verbose=verbose)
    show_report(console, _head(run, verbose=verbose), tables)
    scaling = None if run.ranks is None else run.ranks.scaling
    if scaling is not None and not scaling.is_empty:
        console.print(Text(printable(str(scaling))), soft_wrap=True)
    if run.launch_queue is not None:
        console.print(Text(printable(str(run.launch_queue))), soft_wrap=True)
    if run.reuse is not None:
        console.print(Text(printable(str(run.reuse))), soft_wrap=True)
    if run.folded is not None:
        console.print(Text(printable(str(run.folded))), soft_wrap=True)
    return not explanation.interrupted


def _head(run: Run, *, verbose: bool) -> Iterator[ReportLine]:
    """Yield the first lines: errors, verdict, comparisons."""
    most = None if verbose else MOST_COMPARED
    wrong = [(str(check), "bold red") for check in run.checks if not check.passed]
    wrong += [(str(fault), "bold red") for fault in run.findings or () if fault.kind in WRONG]
    yield from _some_of(wrong, most, "wrong")
    yield run.verdict.sentence, "bold"
    yield run.status_line, {"OK": "bold green", "INTERRUPTED": "bold yellow"}.get(run.status, "bold red")
    if run.load is not None and run.load.ns:
        yield str(run.load), "default"
    if run.said:
        yield run.said, "bold"
    yield from _some_of([(str(check), "green") for check in run.checks if check.passed], most, "PASS")
    if not run.checks:
        yield _describe_unverified(run), "yellow"
    yield str(run.data), "bold yellow" if run.data.stopped or run.data.zeros_read else "default"
    yield from _further(run, most)
    yield from _about(run)
    yield from _some_of([(str(line), "default") for line in run.printed], most and MOST_PRINTED, "lines of kernels")


def _some_of(lines: Sequence[ReportLine], most: int | None, label: str) -> Iterator[ReportLine]:
    """Yield the first lines, and the number of omitted ones."""
    yield from islice(lines, most)
    if most is not None and len(lines) > most:
        yield f"… {len(lines) - most:,} more {label} (-v shows all)", lines[0][1]


def _further(run: Run, most: int | None) -> Iterator[ReportLine]:
    if run.report.under_way:
        yield f"in flight when the run ended: {_some_names(run.report.under_way)}", "yellow"
    if run.unmodelled:
        counts = ", ".join(f"{name} {times}" for name, times in sorted(run.unmodelled.items(), key=lambda e: -e[1]))
        yield f"unmodelled, computed by the host at the price of copies: {counts}", "bold red"
    if run.compiled is not None:
        yield from ((line, "yellow" if at else "default") for at, line in enumerate(run.compiled.lines()))
    yield from ((remark, "yellow") for remark in run.remarks)
    left = [(f"leaked: {leak}", "yellow") for leak in run.leaked]
    left += [(f"left behind: {work}", "yellow") for work in run.left]
    left += [(str(fault), "yellow") for fault in run.findings or () if fault.kind not in WRONG]
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
    params = ", ".join(f"{name}={content}" for name, content in run.params.items())
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


def _tables(
    run: Run, explanation: _ExplanationTables, *, explain: bool, energy: bool, verbose: bool
) -> Iterator[ReportPart]:
    """Yield the tables, the most important first; yield none for a run without events."""
    if not run.report.events:
        return
    advice = run.advice
    if advice is not None:
        yield from render_report(advice.report())
    if energy:
        yield from _energy(run)
    if explain:
        yield from explanation.parts()
    launches = [render(launch_table(launch)) for launch in run.report.launches]
    yield render(operators_table(run.operators, None if verbose else MOST_OPERATORS))
    yield render(collectives_table(run.collectives))
    if run.ranks is not None:
        yield render(pipelines_table(run.ranks.pipelines, every_rank=verbose))
        yield render(exchanges_table(run.ranks.exchanges, every_rank=verbose))
    yield from launches[:1]
    yield render(run.phases)
    yield from launches[1:]
    yield from (render(run.engines), render(run.links), render(queues_table(run.report.queues)))
    yield facts("Traffic", _traffic(run))
    yield render(findings_table(run.findings or ()))
    if not explain:
        yield from explanation.parts()
    if verbose:
        yield render(figures_table(run.outcome.figures()))


@state
class _ExplanationTables:
    """The tables of an explanation. They are computed while they are printed, until the user interrupts."""

    run: Run
    interrupted: bool = False

    def parts(self) -> Iterator[ReportPart]:
        try:
            with guarded("explanation"):
                explanation = self._find()
                if isinstance(explanation, Explanation):
                    yield from render_report(explanation.report())
                elif isinstance(explanation, RunFailure) and explanation.text != self.run.verdict.sentence:
                    yield explanation.text, "bold red"
        except ExplanationError as error:
            yield str(error), "bold red"
        except KeyboardInterrupt:
            self.interrupted = True

    def _find(self) -> Explanation | Absence | Unread | RunFailure:
        """Return the explanation of the launches that a report shows."""
        if self.run.live is not None:
            return find_explanation(self.run.live, every_launch=False)
        return self.run.outcome.find(EXPLANATION)


def _energy(run: Run) -> Iterator[ReportPart]:
    """Yield the tables of the energy, or the reason why there are none."""
    content = run.outcome.find(ENERGY)
    if isinstance(content, RunFailure):
        yield content.text, "bold red"
    elif isinstance(content, RunEnergy):
        yield from ((fault, "bold red") for fault in content.faults)
        yield facts("Energy", describe_energy(content))
        yield render(energy_table(content))
        if content.split is not None:
            yield render(launch_energy_table(content.split))


def _traffic(run: Run) -> Iterator[tuple[str, str]]:
    report, traffic = run.report, run.report.traffic
    yield "HBM", f"{format_size(traffic.hbm_in)} in, {format_size(traffic.hbm_out)} out (headers included)"
    ways = f"{format_size(traffic.to_machine)} to the machine, {format_size(traffic.from_machine)} from it"
    yield "host link", f"{ways}, {traffic.host_utilisation:.1%} busy"
    if report.queues:
        messages, nbytes = (
            sum(counts) for counts in zip(*((q.messages, q.nbytes) for q in report.queues), strict=True)
        )
        yield "queues", f"{messages:,} messages, {format_size(nbytes)}, sent by {len(report.queues)} PEs"
    if report.translation is not None:
        yield "TLB", f"{report.translation.hits:,} hits, {report.translation.misses:,} misses"
    yield "events", f"{report.events:,} for {report.transfers:,} transfers; {report.records:,} records in the op-log"


def _some_names(names: tuple[str, ...], most: int = 5) -> str:
    """Return the first names, and the number of omitted ones."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
