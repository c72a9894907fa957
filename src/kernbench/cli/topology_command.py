"""``kernbench topology``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import rich_click as click
from rich.console import Console
from rich.table import Table

from kernbench.cli.console import facts, number, print_document, say, show, stdout, table, text
from kernbench.cli.options import debug_option, json_option, set_option, topology_option
from kernbench.common.errors import InputError
from kernbench.common.files import replacing, writable
from kernbench.common.late import late
from kernbench.common.units import format_size
from kernbench.topology.builder import Topology, resolve_topology
from kernbench.topology.export import LinkRow, clock_rows, link_rows, machine_rows, part_rows, to_dot, to_json
from kernbench.topology.hbm_export import preset_facts, preset_json, preset_named, timing_rows
from kernbench.topology.hbm_spec import marked

FORMATS = ("table", "json", "dot", "svg", "png")
PICTURES = "kernbench.topology.drawing.figure"


@click.command(name="topology")
@click.option("--format", "form", type=click.Choice(FORMATS), default="table", show_default=True, help="What to print.")
@click.option("--out", metavar="FILE", type=click.Path(dir_okay=False), help="Write to a file instead of stdout.")
@click.option("--timing", metavar="NAME", help="Print a named timing of HBM instead of a machine, for example hbm3.")
@topology_option
@set_option
@json_option
@debug_option
def command(
    form: str, out: str | None, timing: str | None, topology: str | None, overrides: tuple[str, ...], as_json: bool
) -> int:
    """The machine that a topology file describes: counts, parts, links, or a drawing to scale."""
    form = "json" if as_json else form
    if timing is not None:
        if form not in ("table", "json") or out is not None or topology is not None or overrides:
            raise InputError("--timing prints a timing by its name, as a table or JSON: it goes with --json alone")
        print_timing(timing, form)
        return 0
    if form == "png" and out is None and sys.stdout.isatty():
        raise InputError("a PNG is no text for a terminal; write it to a file with --out machine.png, or redirect it")
    machine = resolve_topology(topology, overrides)
    if form == "table" and out is None:
        print_tables(stdout(), machine)
        return 0
    content = RENDERERS[form](machine)
    if out is None and form == "json":
        print_document(content.decode().rstrip("\n"))
    elif out is None:
        shown = content if form == "png" else content.decode()  # text also for a stdout that takes text only
        click.echo(shown, nl=not content.endswith(b"\n") and form != "png")
    else:
        write_file(Path(out), content)
        say(f"wrote {out} ({format_size(len(content))})")
    return 0


def print_timing(name: str, form: str) -> None:
    """A named timing: where it comes from, and all its values."""
    preset = preset_named(name)
    if form == "json":
        print_document(preset_json(name, preset))
        return
    values = table("Values  (keys of cube.hbm.timing)", text("key"), number("value"), text("is"))
    for row in timing_rows(preset.timing):
        values.add_row(row.key, row.value, row.about)
    show(stdout(), facts(f"Timing {marked(name, assumed=preset.assumed)}", preset_facts(preset)), values)


def print_tables(console: Console, machine: Topology) -> None:
    """The machine in a few words, its parts and its links."""
    graph = machine.topology_obj
    parts = table("Parts", text("place"), text("kind"), text("implementation"), number("parts"), text("attributes"))
    rows = part_rows(graph)
    places = list(dict.fromkeys(row.place for row in rows))
    for part in sorted(rows, key=lambda row: places.index(row.place)):
        given = ", ".join(f"{name} {_value(value)}" for name, value in part.attrs.items() if value)
        parts.add_row(part.place, part.kind, part.impl, f"{part.parts:,}", given)
    links = table(
        "Links  (directed; a hop is the node entered, the wire and the link's own overhead)",
        text("class"),
        number("links"),
        number("GB/s"),
        number("length mm"),
        number("hop ns"),
        number("FIFO"),
    )
    for link in link_rows(graph):
        links.add_row(*_link_cells(link))
    show(console, facts("Machine", machine_rows(machine)), parts, links, *_clocks(machine))


def _clocks(machine: Topology) -> Iterator[Table]:
    """The numbers that clocks change, where there are clocks."""
    rows = clock_rows(machine)
    if rows:
        clocks = table("Clocks", text("key"), text("clock"), number("in the file"), number("at the clock"))
        for row in rows:
            clocks.add_row(row.path, row.clock, f"{row.given:g}", f"{row.clocked:.6g}")
        yield clocks


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _link_cells(link: LinkRow) -> tuple[str, ...]:
    fifo = "unbounded"
    if link.fifo_bytes is not None:
        fifo = " – ".join(dict.fromkeys(format_size(size) for size in link.fifo_bytes))
    return (
        link.link_class,
        f"{link.links:,}",
        f"{link.bw_gbs:g}",
        _range(link.length_mm),
        _range(link.hop_ns),
        fifo,
    )


def _range(ends: tuple[float, float]) -> str:
    return " – ".join(dict.fromkeys(f"{end:.4g}" for end in ends))


def _as_table(machine: Topology) -> bytes:
    console = stdout()
    with console.capture() as captured:
        print_tables(console, machine)
    return captured.get().encode()


def _picture(name: str) -> Callable[[Topology], bytes]:
    """A renderer of the drawing; matplotlib is loaded when it is called."""

    def render(machine: Topology) -> bytes:
        drawn = late(PICTURES, name)(machine)
        return drawn if isinstance(drawn, bytes) else str(drawn).encode()

    return render


RENDERERS: dict[str, Callable[[Topology], bytes]] = {
    "table": _as_table,
    "json": lambda machine: to_json(machine).encode(),
    "dot": lambda machine: to_dot(machine).encode(),
    "svg": _picture("to_svg"),
    "png": _picture("to_png"),
}


def write_file(path: Path, content: bytes) -> None:
    """Write all of a file or nothing. InputError when it cannot be written."""
    with replacing(writable(path)) as temporary:
        temporary.write_bytes(content)
