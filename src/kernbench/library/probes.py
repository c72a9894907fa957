"""Probe cases: predefined traffic on a machine, and its measured latency and bandwidth."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from kernbench.common.complaints import show
from kernbench.common.errors import InputError
from kernbench.common.files import plain_document
from kernbench.common.ids import pe_name
from kernbench.common.units import format_size, parse_size, ps_to_ns
from kernbench.common.values import value
from kernbench.library.machines import CompiledMachine, MachineLike, load_machine
from kernbench.library.progress import ProgressDisplay, StepProgress
from kernbench.probe.cases import ProbeCase, cases_of, find_case
from kernbench.probe.measure import probe_case as measure_case
from kernbench.probe.measure import spread_refresh
from kernbench.probe.memory_case import NAME as MEMORY
from kernbench.probe.memory_case import Latency, PatternRow, SliceReport, probe_slice, slices_of
from kernbench.probe.report import Crowd, NotHere, ProbeReport, Sustained, TraceRow, Transaction
from kernbench.result.table import LINE, Table, TableColumn, bars, fixed_text, number, percent_text, text_html, words

OnSteps: TypeAlias = Callable[[StepProgress], None]
DEFAULT_SIZE = "4KiB"


@value(repr=False, eq=False)
class Probe:
    """The results of a probe.

    ``memory``: reports of case ``memory``, if requested. ``complete``: False after Ctrl-C.
    """

    machine: CompiledMachine
    nbytes: int
    reports: tuple[ProbeReport | NotHere, ...]
    memory: tuple[SliceReport, ...] = ()
    complete: bool = True

    @property
    def measurements(self) -> tuple[ProbeReport, ...]:
        """The reports of the cases that the machine can run."""
        return tuple(report for report in self.reports if isinstance(report, ProbeReport))

    @property
    def table(self) -> Table[ProbeReport]:
        """One row per case that the machine can run."""
        return cases_table(self.measurements, self.nbytes)

    @property
    def hops(self) -> Table[TraceRow]:
        """The hops of one transaction, for each case requested by name."""
        return hops_table([row for report in self.measurements for row in report.trace])

    @property
    def sizes(self) -> Table[Transaction]:
        """The latency of one transaction by size, for each case requested by name."""
        return sizes_table([step for report in self.measurements for step in report.sweep])

    @property
    def verdict(self) -> str:
        """The shortest and the longest latency, in a sentence."""
        if not self.measurements:
            return "no case was measured"
        ordered = sorted(self.measurements, key=lambda report: report.single.latency_ps)
        short, long = ordered[0], ordered[-1]
        if short is long:
            stream = short.sustained
            return (
                f"{short.case}: {short.single.latency_ns:,.3f} ns for {format_size(self.nbytes)}; "
                f"a stream gets {stream.effective_gbs:.1f} of {stream.bottleneck_gbs:.1f} GB/s"
            )
        ends = (f"{report.case} {report.single.latency_ns:,.3f} ns" for report in (short, long))
        return f"{format_size(self.nbytes)} take from {' to '.join(ends)}"

    def to_dict(self) -> dict[str, Any]:
        """Return the document that ``kernbench probe --json`` prints."""
        hbm = self.machine.spec.cube.hbm
        mode = None if hbm.banks is None else hbm.refresh_mode
        document = {
            "complete": self.complete,
            "nbytes": self.nbytes,
            "refresh": {"machine": mode, "cases": "spread" if mode == "all-bank" else mode},
            "cases": [
                _report(report) if isinstance(report, ProbeReport) else _absent(report) for report in self.reports
            ],
        }
        memory = {"memory": memory_document(self.memory)} if self.memory else {}
        return plain_document({**document, **memory, "topology": self.machine.source, "digest": self.machine.digest})

    def __repr__(self) -> str:
        lines = [self.verdict, *repr(self.table).splitlines()[1:]] if self.measurements else [self.verdict]
        absent = [report for report in self.reports if isinstance(report, NotHere)]
        lines += [f"not on this machine: {', '.join(report.case for report in absent)}"] if absent else []
        return "\n".join(line[:LINE] for line in lines)

    def _repr_html_(self) -> str:
        tables = (table for table in (self.table, self.sizes, self.hops) if len(table))
        return text_html(self.verdict, *(table.to_html() for table in tables))


def cases_table(reports: Sequence[ProbeReport], nbytes: int) -> Table[ProbeReport]:
    """Return a row per case. ``nbytes``: the size of the single transaction.

    With several initiators, both the bottleneck and the bandwidth on the terminal are totals over the initiators.
    """
    columns: tuple[TableColumn[ProbeReport], ...] = (
        TableColumn[ProbeReport]("case", "its name").words("case"),
        TableColumn("operation", "read or write"),
        TableColumn("initiator", "who asks"),
        TableColumn("memory", "the access"),
        words("data from", lambda row: _ends(row)[0]),
        words("to", lambda row: _ends(row)[1]),
        TableColumn[ProbeReport]("latency_ns", "latency of one transaction", lambda row: row.single.latency_ns).number(
            "latency ns", "{:.3f}".format
        ),
        TableColumn("closed_form_ns", "what it takes alone, by the formula", lambda row: row.single.closed_form_ns),
        TableColumn("effective_gbs", "bandwidth of one transaction", lambda row: row.single.effective_gbs),
        TableColumn(
            "bottleneck_gbs", "bandwidth of the narrowest place on the route", lambda row: row.single.bottleneck_gbs
        ),
        number("bottleneck", lambda row: row.sustained.bottleneck_gbs, _GBS),
        number("one", lambda row: row.single.effective_gbs * row.sustained.flows, _GBS),
        number("", lambda row: row.single.utilisation, percent_text),
        TableColumn[ProbeReport](
            "stream_gbs", "bandwidth of a long stream", lambda row: row.sustained.effective_gbs
        ).number("stream", _GBS),
        TableColumn[ProbeReport](
            "stream_utilisation", "share of the bottleneck's bandwidth", lambda row: row.sustained.utilisation
        ).number("", percent_text),
    )
    title = f"Bandwidth in GB/s: one transaction of {format_size(nbytes)}, and a long stream of small ones"
    return Table("cases", tuple(reports), columns, title)


_GBS = "{:.1f}".format


def _ends(report: ProbeReport) -> tuple[str, str]:
    """Name the source and the destination of the data. For several flows, name those of the slowest."""
    initiator = report.initiator if report.pe is None else pe_name(report.pe)
    return (report.memory, initiator) if report.operation == "read" else (initiator, report.memory)


def hops_table(rows: Sequence[TraceRow], case: str = "") -> Table[TraceRow]:
    """Return the hops of a transaction. On the terminal, the name of a leg is in its first row."""
    before: dict[int, TraceRow | None] = {id(row): prior for row, prior in zip(rows, (None, *rows), strict=False)}

    def read_leg(row: TraceRow) -> str:
        prior = before[id(row)]
        return row.leg if prior is None or prior.leg != row.leg else ""

    def read_delay(row: TraceRow) -> float:
        prior = before[id(row)]
        return ps_to_ns(_head_ps(row) - (0 if prior is None else _head_ps(prior)))

    ns = "{:.3f}".format
    columns: tuple[TableColumn[TraceRow], ...] = (
        TableColumn("leg", "request, memory or response"),
        words("leg", read_leg),
        TableColumn[TraceRow]("node", "the node that is entered").words("node"),
        TableColumn("what", "the activity at the node"),
        TableColumn[TraceRow]("link_gbs", "bandwidth of the incoming link").number("link GB/s", "{:g}".format),
        TableColumn("first_byte_ns", "arrival of the first byte", lambda row: ps_to_ns(row.head_ps)),
        TableColumn("last_byte_ns", "arrival of the last byte", lambda row: ps_to_ns(row.tail_ps)),
        number("+ ns", read_delay, ns),
        number("first byte", lambda row: ps_to_ns(_head_ps(row)), ns),
        number("last byte", lambda row: None if row.link_gbs is None else ps_to_ns(row.tail_ps), ns),
        words("", lambda row: row.what),
    )
    title = f"{case}: hop by hop, alone on the machine, in ns since the request"
    return Table("hops", tuple(rows), columns, title, style=lambda row: "green" if row.leg == "memory" else "")


def _head_ps(row: TraceRow) -> int:
    return row.tail_ps if row.leg == "memory" else row.head_ps


def sizes_table(steps: Sequence[Transaction], case: str = "") -> Table[Transaction]:
    """Return the latency of one transaction by size."""
    differs = any(step.breakdown.difference_ps for step in steps)
    difference = number("difference ns", lambda step: ps_to_ns(step.breakdown.difference_ps), fixed_text)
    columns: tuple[TableColumn[Transaction], ...] = (
        TableColumn[Transaction]("nbytes", "its size").number("size", format_size),
        TableColumn[Transaction]("latency_ns", "from the request to its completion").number("latency ns", fixed_text),
        TableColumn[Transaction]("closed_form_ns", "what it takes alone, by the formula").number(
            "closed form", fixed_text
        ),
        number("queue ns", lambda step: ps_to_ns(step.breakdown.queue_ps), fixed_text),
        *([difference] if differs else []),
        TableColumn[Transaction]("effective_gbs", "bytes over latency").number("GB/s", _GBS),
        TableColumn[Transaction]("utilisation", "share of the bottleneck's bandwidth").number(
            "of bottleneck", percent_text
        ),
        bars(lambda step: step.utilisation),
    )
    return Table("transactions", tuple(steps), columns, f"{case}: one transaction by size")


def probe_case(
    case: str | Iterable[str] | None = None,
    machine: MachineLike = None,
    *,
    size: int | str = DEFAULT_SIZE,
    on_progress: OnSteps | None = None,
) -> Probe:
    """Probe a machine with one case or several cases. None: with all cases but ``memory``.

    For cases requested by name, the result includes hops, and latency by size. ``size``: bytes of the single
    transaction. After Ctrl-C, the result has the finished cases. Raises UnknownNameError, with the nearest name, for an
    unknown case, and InputError for an invalid size.
    """
    compiled = load_machine(machine)
    names = (case,) if isinstance(case, str) else None if case is None else tuple(case)
    return probe_machine(compiled, names, bytes_of(size), on_progress)


def bytes_of(size: int | str, name: str = "size") -> int:
    """Return a size in bytes. Raises InputError for an invalid size."""
    try:
        nbytes = parse_size(int(size) if isinstance(size, str) and size.isdigit() else size)
    except ValueError as error:
        raise InputError(f"{name}: {error}") from error
    if nbytes < 1:
        raise InputError(f"{name}: found {size}, must be at least 1 byte")
    return nbytes


def probe_machine(
    machine: CompiledMachine, names: Sequence[str] | None, nbytes: int, on_progress: OnSteps | None = None
) -> Probe:
    """Probe cases one after another. ``names`` None: all cases but ``memory``."""
    if names is not None and not all(isinstance(name, str) for name in names):
        raise InputError(f"case: found {show(list(names))}, must be names of cases")
    case_list = cases_of(machine.topology.topology_obj)
    traffic = [name for name in names or () if name != MEMORY]
    cases = tuple(dict.fromkeys(find_case(name, case_list) for name in traffic)) if names else case_list
    tell: OnSteps = on_progress or (lambda _: None)
    memory = tuple(_probe_memory(machine, tell)) if MEMORY in (names or ()) else ()
    reports: list[ProbeReport | NotHere] = []
    complete = True
    try:
        reports.extend(_probe(machine, cases, nbytes, tell, details=bool(names)))
    except KeyboardInterrupt:
        complete = False
    finally:
        if isinstance(on_progress, ProgressDisplay):
            on_progress.close()
    return Probe(machine, nbytes, tuple(reports), memory, complete)


def _probe(
    machine: CompiledMachine, cases: Sequence[ProbeCase], nbytes: int, tell: OnSteps, *, details: bool
) -> Iterator[ProbeReport | NotHere]:
    measured = spread_refresh(machine.topology) if cases else machine.topology
    for at, case in enumerate(cases):
        tell(StepProgress(case.name, at, len(cases)))
        yield measure_case(measured, case, nbytes, details=details)


def _probe_memory(machine: CompiledMachine, tell: OnSteps) -> Iterator[SliceReport]:
    slices = slices_of(machine.spec.cube.hbm)
    for at, memory_slice in enumerate(slices):
        tell(StepProgress(f"{MEMORY} {memory_slice.memory} {memory_slice.mapping}", at, len(slices)))
        yield probe_slice(memory_slice)


def _pick(item: object, names: str) -> dict[str, Any]:
    """Return the attributes ``names`` of an object, which blanks separate, as a mapping."""
    return {name: getattr(item, name) for name in names.split()}


def _absent(report: NotHere) -> dict[str, Any]:
    return {**_pick(report, "case description"), "on_this_machine": False, "why": report.why}


def _report(report: ProbeReport) -> dict[str, Any]:
    return {
        **_pick(report, "case description"),
        "on_this_machine": True,
        **_pick(report, "operation initiator memory"),
        "transaction": _transaction(report.single),
        "sustained": _stream(report.sustained),
        "crowd": None if report.crowd is None else _crowd(report.crowd),
        "sweep": [_transaction(step) for step in report.sweep],
        "hops": hops_table(report.trace).to_dicts(),
    }


def _transaction(single: Transaction) -> dict[str, Any]:
    return {
        **_pick(single, "nbytes latency_ns closed_form_ns"),
        "closed_form_is": "exact",
        "breakdown": dict(single.breakdown.parts_ns),
        **_pick(single, "bottleneck_gbs effective_gbs utilisation"),
    }


def _stream(stream: Sustained) -> dict[str, Any]:
    return {
        **_pick(stream, "nbytes transactions outstanding flows"),
        "duration_ns": ps_to_ns(stream.duration_ps),
        **_pick(stream, "bottleneck_gbs effective_gbs utilisation"),
        "busiest_links": [_pick(link, "src dst bw_gbs nbytes utilisation") for link in stream.busiest],
    }


def _crowd(crowd: Crowd) -> dict[str, Any]:
    rows = zip(crowd.initiators, crowd.latencies_ps, crowd.rates_gbs, strict=True)
    return {
        **_pick(crowd, "min_ns mean_ns max_ns fairness"),
        "initiators": [
            {"initiator": node, "latency_ns": ps_to_ns(latency), "stream_gbs": rate} for node, latency, rate in rows
        ],
    }


def memory_document(reports: Sequence[SliceReport]) -> list[dict[str, Any]]:
    """Return all reports as plain data: rows as in the reference, latencies over load and at the reference's loads."""
    return [
        {
            "memory": report.timing,
            **_pick(report, "assumed mapping num_pcs refresh peak_gbs"),
            "rows": [_row(report, row) for row in report.rows],
            "absent": [_pick(absent, "pattern requesters why") for absent in report.absent],
            "latency": [_latency(latency) for latency in report.latencies],
            "latency_compared": [_latency(latency) for latency in report.compared],
        }
        for report in reports
    ]


def _row(report: SliceReport, row: PatternRow) -> dict[str, Any]:
    shares = "efficiency_pct row_hit_pct"
    return {
        "memory": report.timing,
        "mapping": report.mapping,
        **_pick(row, "pattern requesters gbs"),
        **_pick(row.figures, shares),
        "reference": None if row.reference is None else _pick(row.reference, shares),
    }


def _latency(latency: Latency) -> dict[str, Any]:
    figures = "mean_ns p50_ns p99_ns"
    return {
        "pattern": latency.pattern,
        "load_gbs": latency.gbs,
        "load_pct": latency.load_pct,
        **_pick(latency.figures, figures),
        "reference": None if latency.reference is None else _pick(latency.reference, figures),
    }
