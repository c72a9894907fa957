"""``kernbench compare``."""

from __future__ import annotations

import rich_click as click

from kernbench.cli.compare_tables import compared_document, print_compared
from kernbench.cli.console import print_json, stdout
from kernbench.cli.options import debug_option, json_option
from kernbench.evaluation.compare_inputs import read_results
from kernbench.evaluation.compare_results import compare_results


@click.command(name="compare")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@json_option
@debug_option
def command(a: str, b: str, as_json: bool) -> int:
    """Two results side by side: sweep.parquet, one point of it (sweep.parquet:7), or what run --json printed."""
    one, other = read_results(a), read_results(b)
    found = compare_results(one, other)
    if as_json:
        print_json(compared_document(one, other, found))
    else:
        print_compared(stdout(), one, other, found)
    return 0
