"""``kernbench compare``: two results side by side, as tables or as a JSON document."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import rich_click as click
from rich.console import Console
from rich.table import Table

from kernbench.cli.console import bar, number, print_json, show_report, stdout, table, text
from kernbench.cli.options import output_options, verbose_option
from kernbench.evaluation.compare_inputs import ResultFile
from kernbench.evaluation.compare_results import (
    Change,
    Differing,
    Pair,
    ResultComparison,
    values_text,
)
from kernbench.library.comparisons import SideBySide, compare


@click.command(name="compare")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@verbose_option
@output_options
def command(a: str, b: str, as_json: bool) -> int:
    """Two results side by side: sweep.parquet, one point of it (sweep.parquet:7), or what run --json printed."""
    found = compare(a, b)
    if as_json:
        print_json(found.to_dict())
    else:
        print_compared(stdout(), found)
    return 0


MOST_ROWS = 20
SMALLEST_SHARE = 0.001


def print_compared(console: Console, compared: SideBySide) -> None:
    """Print what explains the difference of two results, then the tables."""
    found = compared.found
    head = [(line, "bold") for line in compared.sentences]
    head += [(f"{name}: {said}", "default") for name, said in (("A", _name(compared.a)), ("B", _name(compared.b)))]
    head += [(f"{name}: {said}", "default") for name, said in _say_left_out(found)]
    breakdown = _breakdown("Where the change is  (critical path of the run, all points)", found.stages, found.time.ns)
    if not found.stages:
        breakdown = _breakdown("Busy time  (overlaps; runs that are observed have a critical path)", found.busy, 0.0)
    show_report(console, head, (_pairs(found.pairs), breakdown, _bounds(found), _differing(found.differing)))


def _name(file: ResultFile) -> str:
    return f"{file.name} ({len(file.results)} points)" if file.axes else file.name


def _say_left_out(found: ResultComparison) -> list[tuple[str, str]]:
    left, right = found.unmatched
    return [("left out", f"{left} of A, {right} of B: failed, or not in the other")] if left or right else []


def _pairs(pairs: Sequence[Pair]) -> Table:
    shown = sorted(pairs, key=lambda pair: -abs(pair.time.ns))[:MOST_ROWS]
    which = f", the {MOST_ROWS} of {len(pairs)} that changed most" if len(pairs) > MOST_ROWS else ""
    axes = [number(path.rpartition(".")[2]) for path, _ in pairs[0].where]
    made = table(
        f"Points{which}" if axes else "Time",
        *axes,
        *(number(name) for name in ("A ns", "B ns", "change", "launch A ns", "launch B ns", "change")),
        text("bound by"),
        text("stage"),
    )
    for pair in shown:
        bounds = " → ".join(dict.fromkeys(pair.bounds))
        stage = pair.stages[0].name if pair.stages and pair.time.ns else ""
        where = (str(value) for _, value in pair.where)
        made.add_row(*where, *_cells(pair.time), *_cells(pair.launch), bounds, stage)
    return made


def _cells(change: Change) -> tuple[str, str, str]:
    return f"{change.a_ns:,.3f}", f"{change.b_ns:,.3f}", f"{change.share:+.1%}"


def _breakdown(title: str, changes: Iterable[Change], whole: float) -> Table:
    made = table(title, text("stage"), *(number(name) for name in ("A ns", "B ns", "change ns", "change")), text(""))
    given = tuple(changes)
    most = max((abs(each.ns) for each in given), default=0.0)
    for each in given:
        made.add_row(*_row(each), bar(abs(each.ns) / most if most else 0.0))
        for part in each.parts if len(each.parts) > 1 else ():
            if abs(part.ns) > SMALLEST_SHARE * most:
                made.add_row(*_row(part, "  "), "", style="dim")
    if whole:
        made.add_row("all", "", "", f"{whole:+,.3f}", "", "", style="bold")
    return made


def _row(change: Change, indent: str = "") -> tuple[str, ...]:
    a, b, share = _cells(change)
    return f"{indent}{change.name}", a, b, f"{change.ns:+,.3f}", share


def _bounds(found: ResultComparison) -> Table | None:
    groups = [group for group in found.groups if group.bound.a_ns]
    if not groups:
        return None
    made = table(
        "The roofline of the main launch",
        text("bound by"),
        *(number(name) for name in ("points", "bound A ns", "bound B ns", "bound", "launch")),
    )
    for group in groups:
        a, b, share = _cells(group.bound)
        bounds = " → ".join(dict.fromkeys(group.bounds))
        made.add_row(bounds, str(group.pairs), a, b, share, f"{group.launch.share:+.1%}")
    return made


def _differing(differing: Sequence[Differing]) -> Table:
    made = table("Parameters that differ", text("parameter"), text("A"), text("B"))
    for each in differing:
        made.add_row(each.path, values_text(each.a), values_text(each.b))
    return made
