"""``kernbench list``: list all registered names, or the parameters of a bench."""

from __future__ import annotations

from typing import Any

import rich_click as click

from kernbench.cli.completion import complete_bench
from kernbench.cli.console import facts, key_table, print_json, render, say, show, show_report, stdout
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
    bench, parameters = description.bench, key_table("Parameters  (--set bench.NAME=VALUE)", description.params)
    show(stdout(), facts(bench.name, [("is", bench.description), ("in", bench.file)]), parameters)
    if not description.params.entries:
        say(f"{bench.name} has no parameters")


def print_all(catalogue: Catalogue) -> None:
    """Print one line per bench and machine; print other names in one table, or one line each with ``-v``."""
    further = (catalogue.probe_cases, catalogue.algorithms, catalogue.parts)
    session = current_session()
    if session is not None and session.verbose:
        tables = [render(listing) for listing in further]
    else:
        tables = [
            facts("Further  (-v prints a line for each)", [(listing.kind, _names(listing)) for listing in further])
        ]
    tables = [render(catalogue.benches), render(catalogue.machines), *tables]
    show_report(stdout(), [(catalogue.verdict, "bold")], tables)


def _names(listing: Listing[Any]) -> str:
    return ", ".join(dict.fromkeys(map(str, listing.column(next(iter(listing.columns))))))
