"""``kernbench list``: list all registered names, or the parameters of a bench."""

from __future__ import annotations

from typing import Any

import rich_click as click
from rich.table import Table

from kernbench.cli.completion import complete_bench
from kernbench.cli.console import facts, key_table, print_json, say, show, show_report, stdout, table, text
from kernbench.cli.options import current_session, output_options, verbose_option
from kernbench.common.errors import InputError
from kernbench.library.lists import BenchDescription, Catalogue, describe_bench, list_all
from kernbench.result.table import Table as Listing


@click.command(name="list")
@click.argument("bench", required=False, metavar="[BENCH]", shell_complete=complete_bench)
@click.option(
    "--ccl", metavar="FILE", help="List the algorithms of FILE.  [default: ./ccl.yaml, else the packaged file]"
)
@verbose_option
@output_options
def command(bench: str | None, ccl: str | None, as_json: bool) -> int:
    """List benches, machines, algorithms, parts and probe cases; with -v, one line per item.

    With the name of a bench or a file, list its parameters, which --set bench.NAME=VALUE changes.
    """
    if bench is not None and ccl is not None:
        raise InputError(
            "--ccl selects the file whose algorithms are listed; it has no effect on the parameters of a bench"
        )
    listing = list_all(ccl) if bench is None else describe_bench(bench)
    if as_json:
        print_json(listing.to_dict())
    elif isinstance(listing, Catalogue):
        print_all(listing)
    else:
        print_bench(listing)
    return 0


def print_bench(description: BenchDescription) -> None:
    """Print a bench and its parameters."""
    bench, params = description.bench, key_table("Parameters  (--set bench.NAME=VALUE)", description.params)
    show(stdout(), facts(bench.name, [("is", bench.description), ("in", bench.file)]), params)
    if not description.params.entries:
        say(f"{bench.name} has no parameters")


def print_all(catalogue: Catalogue) -> None:
    """Print one line per bench and machine; print other names in one table, or one line each with ``-v``."""
    benches = _tabulate("Benches  (kernbench run --bench NAME)", catalogue.benches, "bench")
    machines = _tabulate("Machines  (--topology NAME)", catalogue.machines, "machine")
    further = (
        ("Probe cases  (kernbench probe --case NAME)", catalogue.probe_cases, "case"),
        ("Collective algorithms  (ccl.yaml: defaults.algorithm)", catalogue.algorithms, "algorithm"),
        ("Parts of a machine  (topology.yaml: kind, impl)", catalogue.parts, "kind"),
    )
    session = current_session()
    if session is not None and session.verbose:
        rest = [_tabulate(*entry) for entry in further]
    else:
        names = [(listing.kind, _names(listing)) for _, listing, _ in further]
        rest = [facts("Further  (-v prints a line for each)", names)]
    show_report(stdout(), [(catalogue.verdict, "bold")], (benches, machines, *rest))


def _tabulate(title: str, listing: Listing[Any], name: str) -> Table:
    heads = {"name": name, "impl": "implementation", "description": "what it is"}
    rows = table(title, *(text(heads.get(column, column)) for column in listing.columns))
    for row in listing.to_dicts():
        rows.add_row(*map(str, row.values()))
    return rows


def _names(listing: Listing[Any]) -> str:
    return ", ".join(dict.fromkeys(map(str, listing.column(next(iter(listing.columns))))))
