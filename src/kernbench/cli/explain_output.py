"""Tabulate the time of a run by cause, and the changes that would shorten the run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.table import Column, Table

from kernbench.cli.console import ReportLine, bar, number, table, text, time_cells
from kernbench.common.ids import pe_name
from kernbench.common.units import format_size
from kernbench.messages.commands import BY_BLOCKS
from kernbench.messages.requests import PeCoord
from kernbench.observe.critical_path_model import KernelPlace
from kernbench.observe.path_resources import PathShare, join_words, sum_resources
from kernbench.observe.roofline import BUSY, Bound, Roofline
from kernbench.runtime_api.run_explanation import LaunchExplanation, LineUse, RunExplanation, TimeExplanation

if TYPE_CHECKING:
    from kernbench.evaluation.advice import Advice

SMALLEST_SHARE = 0.002
SMALLEST_SPLIT = 0.02
MOST_LINES = 16
MOST_WAITS = 8
MOST_SLICES = 8


def explanation_parts(explained: RunExplanation) -> Iterator[Table | ReportLine | None]:
    """Yield tables for the longest launch of each name, then for the run. A verdict precedes each group."""
    for launch in explained.longest_of_each_name():
        what = f"Launch {launch.name!r}{'' if launch.ended else ', as far as it got'}"
        yield f"{what}: {launch.verdict.sentence}", "bold"
        yield from (_path(what, launch), _resources(what, launch))
        yield from (_lines(launch), _waits(launch), _kernels(launch))
        yield from (_bounds(what, launch.roofline), _differences(launch.roofline), _slices(what, launch))
    yield f"Run: {explained.verdict.sentence}", "bold"
    yield from (_path("Run", explained), _resources("Run", explained))
    yield from (_bounds("Run", explained.roofline), _differences(explained.roofline), _slices("Run", explained))


def _path(what: str, found: TimeExplanation) -> Table:
    made, whole_ps = table(f"{what}: critical path", text("spent on"), *_time_columns("share")), found.path.ps
    for says, ps in _merge_small(found.shares, SMALLEST_SPLIT * whole_ps).items():
        made.add_row(says, *time_cells(ps / 1000, ps / whole_ps))
    made.add_row("all", f"{whole_ps / 1000:,.3f}", "", "", style="bold")
    return made


def _time_columns(share: str) -> tuple[Column, Column, Column]:
    return number("ns"), number(share), text("")


def _merge_small(shares: Sequence[PathShare], least_ps: float) -> dict[str, int]:
    """Return the time by part and resource. In a part with several resources, the small ones are merged."""
    found: dict[str, int] = {}
    for each in shares:
        says = each.says if each.ps >= least_ps or each.says == each.part else f"{each.part}: other"
        found[says] = found.get(says, 0) + each.ps
    return found


def _resources(what: str, found: TimeExplanation) -> Table:
    """Tabulate the resources on a path with their queues. A faster resource saves at most its share."""
    name = f"{what}: resources on the path"
    made = table(name, text("resource"), number("ns"), number("share"), number("of it in queues"), text(""))
    for each in sum_resources(found.shares):
        ns, share, drawn = time_cells(each.ps / 1000, each.ps / found.path.ps)
        made.add_row(each.resource, ns, share, f"{each.queued_ps / 1000:,.3f}" if each.queued_ps else "", drawn)
    return made


def _lines(launch: LaunchExplanation) -> Table:
    count = f"  (busy: added up over {launch.pe_count} PEs)" if launch.pe_count > 1 else ""
    unit = launch.program.unit
    made = table(
        f"{unit.title()}s of {launch.program.name}{count}",
        number(unit),
        text("source" if unit == "line" else "does"),
        number("on the path ns"),
        number("share"),
        text("engines busy, ns"),
    )
    shown = sorted(launch.lines, key=lambda each: -each.path_ns)[:MOST_LINES]
    for each in sorted(shown, key=lambda each: each.line):
        share = each.path_ns * 1000 / launch.path.ps
        made.add_row(str(each.line), each.says, f"{each.path_ns:,.3f}", f"{share:.1%}", _busy(each))
    return made


def _busy(line: LineUse) -> str:
    engines = ", ".join(f"{each.engine} {each.ns:,.0f}" for each in line.busy)
    return f"{engines}; {BY_BLOCKS}{', '.join(line.blocks)}" if line.blocks else engines


def _waits(launch: LaunchExplanation) -> Table | None:
    """Tabulate pairs of lines of which one waited for the other.

    A wait is not part of the path. The path contains the work that ended the wait.
    """
    if not launch.waits:
        return None
    left = len(launch.waits) - MOST_WAITS
    units = f"{launch.program.unit.title()}s"
    made = table(
        f"{units} on the path that waited for others{f', the longest {MOST_WAITS}' if left > 0 else ''}",
        text("waiting"),
        text("for"),
        text("of"),
        number("times"),
        number("waited ns"),
        number("of the time"),
    )
    for each in launch.waits[:MOST_WAITS]:
        waiting = _place(launch, each.waiting, each.waiting_kernel)
        cause = _place(launch, each.cause, each.kernel)
        ns, share, _ = time_cells(each.ns, each.ns * 1000 / launch.path.ps)
        made.add_row(waiting, each.what, cause, f"{each.count:,}", ns, share)
    if left > 0:
        rest = launch.waits[MOST_WAITS:]
        waited_ns = sum(each.ns for each in rest)
        ns, share, _ = time_cells(waited_ns, waited_ns * 1000 / launch.path.ps)
        made.add_row("anywhere else", "", "", f"{sum(each.count for each in rest):,}", ns, share)
    return made


def _place(launch: LaunchExplanation, place: KernelPlace, kernel: str) -> str:
    """Describe a line of a kernel, or a step of a schedule and its action."""
    program = launch.programs.get(place.launch_id)
    if program is None or not place.line:
        return _kernel(place.pe, kernel)
    says = f": {program.says(place.line, (place.pe,))}" if program.schedule else ""
    return _kernel(place.pe, f"{kernel} {program.unit} {place.line}{says}")


def _kernel(pe: PeCoord, kernel: str) -> str:
    return f"{pe_name(pe)} ({kernel or 'a running kernel'})"


def _kernels(launch: LaunchExplanation) -> Table | None:
    """Tabulate the kernels on the path if the path crosses more than the kernel where it ends."""
    if len(launch.pes) < 2:
        return None
    made = table("Kernels that the path goes through", text("kernel"), *_time_columns("share"))
    rest = launch.pes[MOST_WAITS:]
    for each in launch.pes[:MOST_WAITS]:
        made.add_row(_kernel(each.pe, each.kernel), *time_cells(each.ns, each.ns * 1000 / launch.path.ps))
    if rest:
        ns = sum(each.ns for each in rest)
        made.add_row(f"{len(rest)} others", *time_cells(ns, ns * 1000 / launch.path.ps))
    return made


def _bounds(what: str, found: Roofline) -> Table:
    made = table(
        f"{what}: bounds",
        text("resource"),
        text("busiest"),
        number("work"),
        number("rate"),
        number("at least ns"),
        number("of the time"),
        text(""),
    )
    for each in found.bounds:
        share = each.ps / found.measured_ps if found.measured_ps else 0.0
        work, rate = _work(each)
        made.add_row(each.resource, each.where, work, rate, f"{each.ps / 1000:,.3f}", f"{share:.1%}", bar(share, 12))
    return made


def _work(bound: Bound) -> tuple[str, str]:
    if bound.unit == "bytes":
        return format_size(bound.amount), f"{bound.rate:g} GB/s"
    if bound.unit == BUSY:
        return "", "measured"
    return f"{bound.amount:,} {bound.unit}", f"{bound.rate:g}/ns"


def _differences(found: Roofline) -> Table | None:
    binding = found.binding
    if binding is None:
        return None
    made = table(
        f"What the time beyond the {binding.resource} bound was spent on",
        text("it had nothing to do during"),
        *_time_columns("of the time"),
    )
    made.add_row(f"{binding.resource} bound", *_row(binding.ps, found), style="cyan")
    for name, ps in _visible(found):
        made.add_row(name, *_row(ps, found))
    made.add_row("measured", f"{found.measured_ps / 1000:,.3f}", "", "", style="bold")
    return made


def _visible(found: Roofline) -> Iterator[tuple[str, int]]:
    """Yield the differences that are large enough to show, the largest first, then the sum of the others."""
    least = SMALLEST_SHARE * found.measured_ps
    ordered = sorted(found.differences, key=lambda each: -abs(each.ps))
    yield from ((each.what, each.ps) for each in ordered if abs(each.ps) >= least)
    small = [each.ps for each in ordered if abs(each.ps) < least]
    if small:
        yield "anything else", sum(small)


def _row(ps: int, found: Roofline) -> tuple[str, str, str]:
    return time_cells(ps / 1000, ps / found.measured_ps)


def _slices(what: str, explained: TimeExplanation) -> Table | None:
    """Tabulate the bus time of banked slices as shares of the total. The buses are idle in the remaining time."""
    found, total_ps = explained.slices, explained.path.ps
    if not found:
        return None
    left = len(found) - MOST_SLICES
    names = ("data", "row misses", "turnarounds", "refresh", "bank groups", "idle", "row hits")
    made = table(
        f"{what}: time of HBM slices{f', the busiest {MOST_SLICES} of {len(found)}' if left > 0 else ''}",
        text("slice"),
        *(number(name) for name in names),
    )
    for each in found[:MOST_SLICES]:
        spent = (each.data_ps, each.rows_ps, each.turnarounds_ps, each.refresh_ps, each.groups_ps)
        shares = (*(ps / total_ps for ps in spent), max(0.0, 1 - each.busy_ps / total_ps), each.hit_share)
        made.add_row(each.where, *(f"{share:.1%}" for share in shares))
    return made


def advice_parts(advice: Advice) -> Iterator[Table | ReportLine | None]:
    """Yield the gains of faster resources, then the suggested changes of the program."""
    if not advice.machine and not advice.program:
        yield "No resource that is 10 % faster gives 2 % of the time.", "bold"
    yield from (_faster(advice), _program(advice))


def _faster(found: Advice) -> Table | None:
    if not found.machine:
        return None
    made = table(
        "10 % faster, simulated  (both sides with refresh: spread)",
        text("resource"),
        *(number(name) for name in ("run ns", "of the run", "launch ns", "of the launch")),
        text("--set"),
    )
    for each in found.machine:
        made.add_row(
            join_words(each.resources),
            f"−{each.gained_ns:,.3f}",
            f"{each.run_share:.1%}",
            f"−{each.launch_gained_ps / 1000:,.3f}",
            f"{each.launch_share:.1%}",
            "\n".join(each.settings),
        )
    return made


def _program(found: Advice) -> Table | None:
    if not found.program:
        return None
    made = table(
        f"What the kernel {found.launch!r} could do differently  (not simulated)",
        text("change"),
        text("evidence"),
        number("at most"),
    )
    for each in found.program:
        made.add_row(each.what, each.evidence, f"{each.share:.1%}")
    return made
