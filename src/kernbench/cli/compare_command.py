"""``kernbench compare``: print two results side by side, as tables or as a JSON document."""

from __future__ import annotations

import rich_click as click
from rich.console import Console

from kernbench.cli.console import print_json, render, show_report, stdout
from kernbench.cli.options import output_options, verbose_option
from kernbench.evaluation.compare_inputs import ResultFile
from kernbench.library.comparisons import SideBySide, compare


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
    comparison = compare(a, b)
    if as_json:
        print_json(comparison.to_dict())
    else:
        print_compared(stdout(), comparison)
    return 0


def print_compared(console: Console, compared: SideBySide) -> None:
    """Print the differences and their causes, first as sentences, then as tables."""
    first, *further = compared.sentences
    head = [(first, "bold"), *((line, "default") for line in further)]
    head += [(f"{name}: {_name(file)}", "default") for name, file in (("A", compared.a), ("B", compared.b))]
    # Programs with different launches, such as an eager and a compiled one, have their modules in common.
    is_same = all(pair.same_launch for pair in compared.comparison.pairs)
    times = (compared.stages, compared.pairs)
    tables = (*times, compared.modules) if is_same else (compared.modules, *times)
    tables = (*tables, compared.verdicts, compared.differing, compared.figures)
    show_report(console, head, (render(table) for table in tables))


def _name(file: ResultFile) -> str:
    return f"{file.name} ({len(file.results)} points)" if file.axes else file.name
