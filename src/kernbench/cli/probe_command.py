"""``kernbench probe``."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from kernbench.cli.completion import complete_case
from kernbench.cli.console import print_json, say, show_progress, stdout
from kernbench.cli.options import output_options, set_option, topology_option, verbose_option
from kernbench.cli.probe_output import draw_memory, print_memory, print_reports
from kernbench.cli.session import INTERRUPTED
from kernbench.common.errors import InputError
from kernbench.common.files import writable
from kernbench.library.machines import compile_machine
from kernbench.library.probes import DEFAULT_SIZE, bytes_of, probe_machine
from kernbench.probe.memory_case import NAME as MEMORY

PICTURES = (".png", ".svg", ".pdf")


@click.command(name="probe")
@click.option(
    "--case",
    "names",
    metavar="NAME",
    multiple=True,
    shell_complete=complete_case,
    help="Run only this case, and list its hops and a range of sizes (repeatable).  [default: all but 'memory']",
)
@click.option(
    "--size", default=DEFAULT_SIZE, show_default=True, metavar="SIZE", help="Set the size of the single transaction."
)
@click.option(
    "--picture",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Draw the result of --case memory as png, svg or pdf.",
)
@topology_option
@set_option
@verbose_option
@output_options
def command(
    names: tuple[str, ...],
    size: str,
    picture: str | None,
    topology: str | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> int:
    """Measure predefined traffic: latency of one transaction and its parts, and bandwidth of a stream.

    The case memory runs only by name. It measures access patterns of one HBM slice, and latency over load.
    """
    nbytes = bytes_of(size, "--size")
    if picture is not None:
        _check_picture(picture, names)
        writable(picture)
    probe = probe_machine(compile_machine(topology, overrides), names or None, nbytes, show_progress())
    if picture is not None:
        draw_memory(probe.memory, picture)
        say(f"wrote {picture}")
    if as_json:
        print_json(probe.to_dict())
    else:
        if probe.memory:
            print_memory(stdout(), probe.machine.topology, probe.memory)
        if probe.reports or not probe.memory:
            print_reports(stdout(), probe)
    return 0 if probe.complete else INTERRUPTED


def _check_picture(picture: str, names: tuple[str, ...]) -> None:
    if MEMORY not in names:
        raise InputError(f"--picture draws the case memory: add --case {MEMORY}")
    if Path(picture).suffix not in PICTURES:
        raise InputError(f"--picture: found {picture}, must end in one of {', '.join(PICTURES)}")
