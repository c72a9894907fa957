"""``kernbench compare``: print two results side by side, as tables or as a JSON document."""

from __future__ import annotations

from collections.abc import Sequence

import rich_click as click
from rich.console import Console
from rich.table import Table

from kernbench.cli.console import number, print_json, show_report, stdout, table, text
from kernbench.cli.options import output_options, verbose_option
from kernbench.evaluation.compare_inputs import ResultFile
from kernbench.evaluation.compare_machines import values_text
from kernbench.evaluation.compare_results import Change, Move, Pair, ResultComparison
from kernbench.library.comparisons import SideBySide, compare
from kernbench.result.table import bar_text as bar


@click.command(name="compare")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@verbose_option
@output_options
def command(a: str, b: str, as_json: bool) -> int:
    """Compare two results and explain the difference.

    A and B are each a sweep (its folder or sweep.parquet), one point of a sweep (sweep.parquet:7), or the output of
    run --json.
    """
    found = compare(a, b)
    if as_json:
        print_json(found.to_dict())
    else:
        print_compared(stdout(), found)
    return 0


MOST_ROWS = 20


def print_compared(console: Console, compared: SideBySide) -> None:
    """Print the differences and their causes, first as sentences, then as tables."""
    found, (first, *others) = compared.found, compared.sentences
    head = [(first, "bold"), *((line, "default") for line in others)]
    head += [(f"{name}: {_name(file)}", "default") for name, file in (("A", compared.a), ("B", compared.b))]
    tables = (_stages(found), _pairs(found.pairs), _verdicts(found.pairs), _differing(found), _figures(found.figures))
    show_report(console, head, tables)


def _name(file: ResultFile) -> str:
    return f"{file.name} ({len(file.results)} points)" if file.axes else file.name


def _pairs(pairs: Sequence[Pair]) -> Table:
    shown = sorted(pairs, key=lambda pair: -abs(pair.time.ns))[:MOST_ROWS]
    which = f", the {MOST_ROWS} of {len(pairs)} that changed most" if len(pairs) > MOST_ROWS else ""
    axes = [number(path.rpartition(".")[2]) for path, _ in pairs[0].where]
    launch = () if axes else ("launch A ns", "launch B ns")
    made = table(
        f"Points{which}" if axes else "Time",
        *axes,
        *(number(name) for name in ("A ns", "B ns", "change", *launch, "launch")),
        text("bound by"),
        text("stage"),
    )
    for pair in shown:
        cells = (*_cells(pair.launch)[:2], pair.launch.share_text if pair.same_launch else "another")
        bounds = " → ".join(dict.fromkeys(pair.bounds))
        stage = pair.moves[0].change.name if pair.moves else ""
        where = (str(value) for _, value in pair.where)
        made.add_row(*where, *_cells(pair.time), *(cells[2:] if axes else cells), bounds, stage)
    return made


def _cells(change: Change) -> tuple[str, str, str]:
    return f"{change.a_ns:,.3f}", f"{change.b_ns:,.3f}", change.share_text


def _stages(found: ResultComparison) -> Table:
    """Tabulate the stages whose time changed.

    Below the sum of stages whose changes cancel out, these stages follow. Below a single stage, its parts follow.
    """
    title, moves, every = "Where the time moved  (critical path of the run, all points)", found.moves, found.stages
    if not every:
        title, every = "Busy time  (overlaps; observed runs have a critical path)", found.busy
        moves = tuple(Move((each,)) for each in every if each.ns)
    columns = (number(name) for name in ("A ns", "B ns", "change ns", "change"))
    made = table(title, text("stage"), *columns, text(""))
    most = max((abs(move.change.ns) for move in moves), default=0.0)
    for move in moves:
        made.add_row(*_row(move.change), bar(abs(move.change.ns) / most if most else 0.0))
        for part in move.stages if len(move.stages) > 1 else move.stages[0].parts:
            if part.ns:
                made.add_row(*_row(part, "  "), "", style="dim")
    still = [each.a_ns for each in every if not each.ns]
    if still:
        made.add_row(f"{len(still)} others", f"{sum(still):,.3f}", f"{sum(still):,.3f}", "", "as before", "")
    if found.stages:
        made.add_row(*_row(found.time), "", style="bold")
    return made


def _figures(figures: Sequence[Change]) -> Table:
    """Tabulate the changed figures of other sections."""
    listing = table("Other figures  (averages over points)", text("figure"), *map(number, ("A", "B", "change")))
    for change in figures:
        listing.add_row(change.name, f"{change.a_ns:,.6g}", f"{change.b_ns:,.6g}", change.share_text)
    return listing


def _row(change: Change, indent: str = "") -> tuple[str, ...]:
    a, b, share = _cells(change)
    return f"{indent}{change.name}", a, b, f"{change.ns:+,.3f}", share


def _verdicts(pairs: Sequence[Pair]) -> Table | None:
    """Tabulate the verdicts on the run and on its main launch, for a single pair."""
    if len(pairs) > 1:
        return None
    made = table("Verdicts", text("of"), text("in"), text("what binds"))
    (pair,) = pairs
    for what, names, both in (("run", ("", ""), pair.run_verdicts), ("launch", pair.launches, pair.verdicts)):
        for side, name, said in zip("AB", names, both, strict=True):
            if said:
                made.add_row(f"{what} {name}".rstrip(), side, said)
    return made


def _differing(found: ResultComparison) -> Table:
    unused = [text("not used by this bench")] if found.unused else []
    made = table("Parameters that differ", text("parameter"), text("A"), text("B"), *unused)
    for each in found.differing:
        made.add_row(each.path, values_text(each.a), values_text(each.b), *([each.unused] if unused else []))
    return made
