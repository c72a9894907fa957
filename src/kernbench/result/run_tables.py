"""Tables of a run, each defined once for the terminal, notebooks and files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from kernbench.common.ids import pe_name
from kernbench.common.units import format_size
from kernbench.common.values import value
from kernbench.messages.commands import BY_BLOCKS
from kernbench.observe.energy import EnergyShare, EnergySplit, LaunchEnergy, RunEnergy
from kernbench.observe.findings import Finding, Party
from kernbench.observe.statistics import EngineUsage, LinkTraffic, MemoryTraffic, QueueTraffic, TimeShare
from kernbench.result.table import (
    Table,
    TableColumn,
    bars,
    count_text,
    fixed_text,
    number,
    percent_text,
    table_columns,
    table_of,
    words,
)
from kernbench.runtime_api.bench_runner import PhaseSummary
from kernbench.runtime_api.collective_report import CollectiveUse
from kernbench.runtime_api.launch_report import LaunchSplit
from kernbench.runtime_api.operators import OperatorUse
from kernbench.runtime_api.rank_report import ExchangeUse, PipelineUse
from kernbench.runtime_api.testing import Comparison

SMALLEST_SHARE = 0.005
MOST_LINKS, MOST_QUEUES, MOST_PLACES = 8, 8, 8
PHASES = {
    "launch": "launch: kernels",
    "h2d": "h2d: host to device",
    "d2h": "d2h: device to host",
    "init": "init: filled by the device",
    "map": "map: MMU entries",
    "unmap": "unmap: MMU entries",
    "dma": "dma: raw traffic",
}


def _share(ns: float, whole_ns: float) -> float:
    return ns / whole_ns if whole_ns else 0.0


def phases_table(phases: Sequence[PhaseSummary], sim_ns: float) -> Table[PhaseSummary]:
    """Return the requests by phase. ``sim_ns``: the time of the run."""
    of = table_columns(PhaseSummary)
    columns = (
        of["phase"].words("phase", lambda phase: PHASES.get(phase, phase)),
        of["requests"].number("requests", count_text),
        of["nbytes"].number("bytes", lambda nbytes: format_size(nbytes) if nbytes else ""),
        of["busy_ns"].number("under way ns", fixed_text),
        number("of the run", lambda phase: _share(phase.busy_ns, sim_ns), percent_text),
        of["longest_ns"].number("longest ns", fixed_text),
        bars(lambda phase: _share(phase.busy_ns, sim_ns)),
    )
    title = "Simulated latency by phase  (phases may overlap; remaining tensors are freed after the run)"
    return Table("phases", tuple(phases), columns, title)


def launches_table(launches: Sequence[LaunchSplit]) -> Table[LaunchSplit]:
    """Return the longest launch of each name. The terminal shows a table for each, see ``launch_table``."""
    of = table_columns(LaunchSplit)
    of["pes"] = replace(of["pe_count"], name="pes")
    names = ("name", "algorithm", "launches", "pes", "total_ns", "before_ns", "kernel_ns", "after_ns")
    columns = (of[name] for name in (*names, "slowest_pe", "slowest_ns", "late_pes"))
    return Table("launches", tuple(launches), tuple(columns))


@value
class LaunchPart:
    """A part of a launch: its time, its share of the launch or of the longest kernel, and its style on the terminal."""

    label: str
    ns: float | None = None
    share: float | None = None
    style: str = ""


def launch_table(launch: LaunchSplit) -> Table[LaunchPart]:
    """Return the parts of a launch: the control path, and the kernel that ran longest."""
    columns: tuple[TableColumn[Any], ...] = (
        TableColumn[Any]("label", "the part").words("part"),
        TableColumn[Any]("ns", "how long, in ns").number("ns", fixed_text),
        TableColumn[Any]("share", "of the launch, or of the longest kernel").number("share", percent_text),
        bars(lambda part: part.share),
    )
    longest = f", the longest of {launch.launches}" if launch.launches > 1 else ""
    title = f"Launch {launch.title!r} on {launch.pe_count} PE{'s' if launch.pe_count > 1 else ''}{longest}"
    return Table("parts of a launch", tuple(_list_parts(launch)), columns, title, style=lambda part: part.style)


def _list_parts(launch: LaunchSplit) -> Iterator[LaunchPart]:
    def part(label: str, ns: float) -> LaunchPart:
        return LaunchPart(label, ns, _share(ns, launch.total_ns))

    yield part("control path: host to PEs, until the common start", launch.before_ns)
    yield part("kernels: first start to last end", launch.kernel_ns)
    longest = "  the longest, " if launch.pe_count > 1 else "  "
    yield LaunchPart(f"{longest}{pe_name(launch.slowest)}", launch.slowest_ns, style="cyan")
    for share in _visible(launch):
        yield LaunchPart(f"    {share.what}", share.ns, _share(share.ns, launch.slowest_ns), "cyan")
    yield part("control path: PEs to host", launch.after_ns)
    yield LaunchPart("launch", launch.total_ns, style="bold")
    if launch.blocks:
        yield LaunchPart(f"products {BY_BLOCKS}{', '.join(launch.blocks)}")
    if launch.late_pes:
        yield LaunchPart(f"PEs that got the order after the common start: {launch.late_pes}")


def _visible(launch: LaunchSplit) -> Iterator[TimeShare]:
    """Yield the shares that are large enough to show, and the sum of the others."""
    least = SMALLEST_SHARE * launch.slowest_ns
    small = [share.ns for share in launch.shares if share.ns < least]
    yield from (share for share in launch.shares if share.ns >= least)
    if small:
        yield TimeShare("anything else", sum(small))


def engines_table(engines: Sequence[EngineUsage]) -> Table[EngineUsage]:
    """Return the use of engines, by kind."""
    of = table_columns(EngineUsage)
    columns = (
        of["engine"].words("engine"),
        of["pes"].number("PEs"),
        replace(of["records"], name="operations").number("operations", count_text),
        of["busy_ns"],
        number("busy ns a PE", lambda usage: usage.busy_ns / usage.pes, fixed_text),
        of["occupancy"].number("utilisation", percent_text),
        bars(lambda usage: usage.occupancy),
    )
    return Table(
        "engines", tuple(engines), columns, "Engines of the PEs, from the first start of a kernel to the last end"
    )


def links_table(
    links: Sequence[Any], title: str = "Busiest links", row_type: type = LinkTraffic, most: int | None = MOST_LINKS
) -> Table[Any]:
    """Return the loads of links. ``most``: the number of links that the terminal shows."""
    of = table_columns(row_type)
    columns = {
        "src": of["src"].words("from"),
        "dst": of["dst"].words("to"),
        "bw_gbs": of["bw_gbs"].number("GB/s", "{:g}".format),
        "nbytes": of["nbytes"].number("carried", format_size),
        "busy_ns": of.get("busy_ns"),
        "utilisation": of["utilisation"].number("busy", percent_text),
        "peak_fifo_bytes": of["peak_fifo_bytes"].number("peak FIFO", format_size) if "peak_fifo_bytes" in of else None,
    }
    described = (column for column in columns.values() if column is not None)
    return Table("links", tuple(links), (*described, bars(lambda link: link.utilisation)), title, tuple(links[:most]))


def memories_table(memories: Sequence[MemoryTraffic]) -> Table[MemoryTraffic]:
    """Return the memories with the most traffic."""
    return table_of("memories", memories, MemoryTraffic)


def queues_table(queues: Sequence[QueueTraffic]) -> Table[QueueTraffic]:
    """Return the messages that the queues of each PE sent. The terminal shows the PEs that sent most."""
    columns = (
        TableColumn[QueueTraffic]("pe", "the PE", lambda traffic: pe_name(traffic.pe)).words("PE"),
        TableColumn[QueueTraffic]("messages", "messages of all its queues").number("messages", count_text),
        TableColumn[QueueTraffic]("nbytes", "bytes of all its queues").number("bytes", format_size),
        TableColumn[QueueTraffic]("busy_ns", "ns with a message in flight").number("busy ns", fixed_text),
        words("by queue", _say_queues),
    )
    busiest = sorted(queues, key=lambda traffic: -traffic.nbytes)[:MOST_QUEUES]
    return Table("queues", tuple(queues), columns, "Queues of the PEs that sent most", tuple(busiest))


def _say_queues(traffic: QueueTraffic) -> str:
    return ", ".join(f"{use.direction} {use.messages:,} ({format_size(use.nbytes)})" for use in traffic.sent)


def operators_table(operators: Sequence[OperatorUse], most: int | None = None) -> Table[OperatorUse]:
    """Return the operators of a host library by time. On the terminal, those that the host computed are red.

    ``most``: the number that the terminal shows, with the least and the most time of a rank; None: all, with the time
    of each rank.
    """
    of, total_ns = table_columns(OperatorUse), sum(use.ns for use in operators)
    n_ranks = max((len(use.rank_ns) for use in operators), default=0)
    by_rank = words("by rank", lambda use: _say_ranks(use.rank_ns, every=most is None))
    columns = (
        of["name"],
        words("operator", lambda use: use.name if use.modelled else f"{use.name} (unmodelled)"),
        of["calls"].number("calls", count_text),
        of["launches"].number("launches", count_text),
        of["ns"].number("ns", "{:,.0f}".format),
        *([by_rank] if n_ranks else []),
        of["modelled"],
        number("share", lambda use: _share(use.ns, total_ns), percent_text),
        bars(lambda use: _share(use.ns, total_ns)),
    )
    ranks = f", over {n_ranks} ranks, with their waits for collectives" if n_ranks else ""
    longest = f"  (the longest of {len(operators)})" if most is not None and most < len(operators) else ""
    return Table(
        "operators",
        tuple(operators),
        columns,
        f"Operators: {total_ns:,.0f} ns in all{ranks}{longest}",
        tuple(operators[:most]),
        style=lambda use: "" if use.modelled else "bold red",
    )


def collectives_table(collectives: Sequence[CollectiveUse]) -> Table[CollectiveUse]:
    """Return the collectives of ranks by time."""
    of = table_columns(CollectiveUse)
    columns = (
        of["name"].words("collective"),
        of["algorithm"].words("algorithm"),
        of["calls"].number("calls", count_text),
        of["nbytes"].number("bytes", format_size),
        of["ns"].number("ns", "{:,.0f}".format),
        of["bus_gbs"].number("bus GB/s", "{:,.1f}".format),
        of["hidden"].number("beside kernels", percent_text),
    )
    return Table("collectives", tuple(collectives), columns, "Collectives, from the last rank's start")


def _say_ranks(of_ranks: Sequence[Any], *, every: bool, text: Callable[[Any], str] = "{:,.0f}".format) -> str:
    shown = of_ranks if every else (min(of_ranks), max(of_ranks))
    return (", " if every else " – ").join(map(text, shown))


def pipelines_table(pipelines: Sequence[PipelineUse], *, every_rank: bool = False) -> Table[PipelineUse]:
    """Return the pipelines. The terminal shows the least and the most bubbles of a rank, or those of every rank."""
    of = table_columns(PipelineUse)
    columns = (
        of["name"].words("schedule"),
        number("ranks", lambda use: len(use.ranks), count_text),
        of["microbatches"].number("microbatches", count_text),
        of["steps"].number("steps", count_text),
        of["ns"].number("ns", "{:,.0f}".format),
        words("bubbles by rank", lambda use: _say_ranks(use.bubble_ns, every=every_rank)),
        number("share", lambda use: use.bubble_share, percent_text),
        bars(lambda use: use.bubble_share),
    )
    title = "Pipelines: bubbles, in which a rank has no kernel and no message"
    return Table("pipelines", tuple(pipelines), columns, title)


def exchanges_table(exchanges: Sequence[ExchangeUse], *, every_rank: bool = False) -> Table[ExchangeUse]:
    """Return the uneven exchanges. The terminal shows the least and the most rows of a rank, or those of every rank."""
    of = table_columns(ExchangeUse)
    columns = (
        of["name"].words("all_to_all at"),
        of["calls"].number("calls", count_text),
        words("rows sent by rank", lambda use: _say_ranks(use.sent, every=every_rank)),
        words("received", lambda use: _say_ranks(use.received, every=every_rank)),
        words("bytes received", lambda use: _say_ranks(use.received_bytes, every=every_rank, text=format_size)),
        of["imbalance"].number("most / mean", "{:.2f}".format),
    )
    return Table("exchanges", tuple(exchanges), columns, "Uneven exchanges")


def comparisons_table(comparisons: Sequence[Comparison]) -> Table[Comparison]:
    """Return the comparisons of a program."""
    return table_of("comparisons", comparisons, Comparison)


def findings_table(findings: Sequence[Finding]) -> Table[Finding]:
    """Return the findings of the sanitizer."""
    columns = (
        TableColumn[Finding]("kind", "the kind of fault").words("finding"),
        TableColumn[Finding]("kernel", "the kernel of the first occurrence").words(
            "kernel", lambda name: name or "host"
        ),
        TableColumn[Finding]("lines", "the lines, and what they do", _say_lines).words("line"),
        TableColumn[Finding]("pes", "the PEs", _say_pes).words("PE"),
        TableColumn[Finding]("tensor", "the tensor or the memory", lambda fault: fault.tensor or fault.space).words(
            "tensor"
        ),
        TableColumn[Finding]("nbytes", "bytes of the first occurrence").number("bytes", format_size),
        TableColumn[Finding]("t_start_ns", "its begin, in ns").number("from ns", fixed_text),
        TableColumn[Finding]("t_end_ns", "its end, in ns").number("to ns", fixed_text),
        TableColumn[Finding]("count", "how often").number("times", count_text),
    )
    return Table("findings", tuple(findings), columns, "Sanitizer")


def _sides(finding: Finding) -> tuple[Party, ...]:
    return (finding.side, finding.other) if finding.other is not None else (finding.side,)


def _say_lines(finding: Finding) -> str:
    return " × ".join(f"{side.line} {side.action}" if side.line else side.action for side in _sides(finding))


def _say_pes(finding: Finding) -> str:
    return " × ".join(dict.fromkeys("host" if side.pe is None else pe_name(side.pe) for side in _sides(finding)))


def describe_energy(energy: RunEnergy) -> Iterator[tuple[str, str]]:
    """Yield the energy and power of a run, the area of its machine, and what they rest on, as (name, text)."""
    yield "dynamic", f"{_say_energy(energy.pj)}, {energy.dynamic_watts:,.3f} W on average"
    if energy.split is not None:
        yield "peak", f"{energy.split.peak_watts:,.3f} W of dynamic power in a window of {energy.split.window_ns:g} ns"
    yield "static", f"{_say_energy(energy.static_pj)} of used dies, {energy.static_watts:,.3f} W"
    yield "static of all dies", f"{_say_energy(energy.static_all_pj)}, {energy.static_all_watts:,.2f} W"
    yield "energy × delay", f"{energy.edp:.4g} J s, of {_say_energy(energy.total_pj)}"
    if energy.pj_per_mac is not None:
        useful = _share(energy.macs, energy.tile_macs)
        yield (
            "a useful MAC",
            f"{energy.pj_per_mac:.3f} pJ of all dynamic energy, {energy.macs:,} MACs, {useful:.0%} of their tiles",
        )
    if energy.pj_per_hbm_byte is not None:
        held = f", {format_size(energy.held_bytes)} of them held back, without rows" if energy.held_bytes else ""
        yield (
            "a byte of HBM",
            f"{energy.pj_per_hbm_byte:.2f} pJ of all dynamic energy, {format_size(energy.hbm_bytes)}{held}",
        )
    yield "largest", ", ".join(f"{entry.place} {entry.share:.0%}" for entry in energy.largest)
    yield "area", f"{energy.area_mm2:,.1f} mm² of parts on all dies"
    yield "estimates", ", ".join(energy.estimates)
    yield "not modelled", "; ".join(energy.not_modelled)


def _say_energy(pj: float) -> str:
    return f"{pj * 1e-6:,.3f} µJ"


def energy_table(energy: RunEnergy) -> Table[EnergyShare]:
    """Return the dynamic energy by kind of part and class of links, the largest first."""
    of, shares = table_columns(EnergyShare), (*energy.parts, *energy.links)
    columns = (
        of["place"].words("part or link"),
        of["pj"],
        number("µJ", lambda entry: entry.pj * 1e-6, "{:,.3f}".format),
        of["share"].number("share", percent_text),
        bars(lambda entry: entry.share),
    )
    largest = tuple(sorted(shares, key=lambda entry: -entry.pj))
    return Table("energy", largest, columns, f"Dynamic energy: {_say_energy(energy.pj)}", largest[:MOST_PLACES])


def launch_energy_table(split: EnergySplit) -> Table[LaunchEnergy]:
    """Return the dynamic energy of launches by name; the title has the other parts of the run."""
    of = table_columns(LaunchEnergy)
    columns = (
        of["name"].words("launches of"),
        of["launches"].number("launches", count_text),
        of["pj"],
        number("µJ", lambda entry: entry.pj * 1e-6, "{:,.3f}".format),
    )
    others = f"copies {_say_energy(split.copies_pj)}, the rest {_say_energy(split.rest_pj)}"
    return Table("energy of launches", split.launches, columns, f"Dynamic energy of launches  ({others})")
