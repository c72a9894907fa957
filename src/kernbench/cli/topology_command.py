"""``kernbench topology``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

import rich_click as click
from rich.table import Table

from kernbench.cli.console import (
    document_text,
    facts,
    print_document,
    print_json,
    render,
    say,
    show,
    show_report,
    stdout,
)
from kernbench.cli.options import output_options, set_option, topology_option, verbose_option
from kernbench.common.errors import InputError
from kernbench.common.files import write_bytes
from kernbench.common.units import format_size
from kernbench.library.lists import describe_timing
from kernbench.library.machines import CompiledMachine, compile_machine
from kernbench.result.table import Table as Listing

FORMATS = ("table", "json", "dot", "svg", "png")


@click.command(name="topology")
@click.option(
    "--format", "form", type=click.Choice(FORMATS), default="table", show_default=True, help="Choose the output format."
)
@click.option("--out", metavar="FILE", type=click.Path(dir_okay=False), help="Write to FILE instead of stdout.")
@click.option("--timing", metavar="NAME", help="Print a named HBM timing, for example hbm3, instead of a machine.")
@topology_option
@set_option
@verbose_option
@output_options
def command(
    form: str, out: str | None, timing: str | None, topology: str | None, overrides: tuple[str, ...], as_json: bool
) -> int:
    """Show the machine of a topology file: counts, parts and links, or a drawing to scale."""
    form = "json" if as_json else form
    if timing is not None:
        if form not in ("table", "json") or out is not None or topology is not None or overrides:
            raise InputError("--timing prints a named timing as a table or JSON: it combines with --json only")
        print_timing(timing, as_json=form == "json")
        return 0
    if form == "png" and out is None and sys.stdout.isatty():
        raise InputError("a terminal cannot show a PNG; write it to a file with --out machine.png, or redirect stdout")
    ending = "" if out is None else PurePath(out).suffix.lower().removeprefix(".")
    if ending in FORMATS and ending != form:
        raise InputError(f"--out {out}: the format is {form}; give --format {ending}, or another file suffix")
    machine = compile_machine(topology, overrides)
    if form == "table" and out is None:
        head = f"{machine.name}: {machine.num_sips} SIPs, {machine.num_cubes} cubes, {machine.num_pes} PEs"
        show_report(stdout(), [(head, "bold")], machine_tables(machine))
        return 0
    content = RENDERERS[form](machine)
    if out is not None:
        write_bytes(out, content)
        say(f"wrote {out} ({format_size(len(content))})")
    elif form == "json":
        print_document(content.decode())
    else:
        shown = content if form == "png" else content.decode()  # decoded, because stdout may accept text only
        click.echo(shown, nl=not content.endswith(b"\n") and form != "png")
    return 0


def print_timing(name: str, *, as_json: bool) -> None:
    """Print a named timing: its source and all its values."""
    description = describe_timing(name)
    if as_json:
        print_json(description.to_dict())
        return
    show(stdout(), facts(f"Timing {description.title}", description.facts.items()), render(description.table))


def machine_tables(machine: CompiledMachine) -> list[Table]:
    """Return tables of the machine: a summary, clocked values, links, banks, areas and parts."""
    listings: tuple[Listing[Any], ...] = (machine.clocks, machine.links, machine.areas, machine.parts)
    clocks, links, areas, parts = (render(listing) for listing in listings)
    banks = facts("Banks", machine.banks.items())
    return [facts("Machine", machine.facts.items()), clocks, links, banks, areas, parts]


def _as_table(machine: CompiledMachine) -> bytes:
    console = stdout()
    with console.capture() as captured:
        show(console, *machine_tables(machine))
    return captured.get().encode()


RENDERERS: dict[str, Callable[[CompiledMachine], bytes]] = {
    "table": _as_table,
    "json": lambda machine: document_text(machine.to_dict()).encode(),
    "dot": lambda machine: machine.to_dot().encode(),
    "svg": lambda machine: machine.to_svg().encode(),
    "png": CompiledMachine.to_png,
}
