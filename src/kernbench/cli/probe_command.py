"""``kernbench probe``."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from kernbench.cli.console import print_json, say, show_progress, stdout
from kernbench.cli.options import debug_option, json_option, set_option, topology_option
from kernbench.cli.probe_memory import draw_memory, memory_document, print_memory, probe_memory
from kernbench.cli.probe_output import print_reports, probe_document
from kernbench.cli.session import INTERRUPTED
from kernbench.common.errors import InputError
from kernbench.common.units import parse_size
from kernbench.library.progress import StepProgress
from kernbench.probe.cases import ProbeCase, cases_of, find_case
from kernbench.probe.measure import probe_case, refreshed_evenly
from kernbench.probe.memory_case import NAME as MEMORY
from kernbench.probe.report import NotHere, ProbeReport
from kernbench.topology.builder import Topology, resolve_topology

PICTURES = (".png", ".svg", ".pdf")


@click.command(name="probe")
@click.option("--case", "names", metavar="NAME", multiple=True, help="A case, with its hops and sweep.  [default: all]")
@click.option("--size", default="4KiB", show_default=True, metavar="SIZE", help="Bytes of the one transaction.")
@click.option("--picture", metavar="FILE", type=click.Path(dir_okay=False), help="Draw the case memory: png, svg, pdf.")
@topology_option
@set_option
@json_option
@debug_option
def command(
    names: tuple[str, ...],
    size: str,
    picture: str | None,
    topology: str | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> int:
    """Predefined traffic: the latency of one transaction and its parts, and the bandwidth of a stream.

    The case memory, by name only: patterns of accesses to one HBM slice, and latency over load.
    """
    nbytes = _size(size)
    if picture is not None:
        _check_picture(picture, names)
    machine = resolve_topology(topology, overrides)
    traffic, known = (name for name in names if name != MEMORY), cases_of(machine.topology_obj)
    cases = tuple(dict.fromkeys(find_case(name, known) for name in traffic)) if names else known
    memory = probe_memory(machine) if MEMORY in names else ()
    if picture is not None:
        draw_memory(memory, picture)
        say(f"wrote {picture}")
    measured = refreshed_evenly(machine)
    reports, code = _probe(measured, cases, nbytes, details=bool(names)) if cases else ([], 0)
    if as_json:
        document = probe_document(machine, nbytes, reports, complete=not code)
        print_json({**document, "memory": memory_document(memory)} if memory else document)
        return code
    if memory:
        print_memory(stdout(), machine, memory)
    if cases:
        print_reports(stdout(), machine, nbytes, reports)
    return code


def _check_picture(picture: str, names: tuple[str, ...]) -> None:
    if MEMORY not in names:
        raise InputError(f"--picture is of the case memory: give --case {MEMORY} too")
    if Path(picture).suffix not in PICTURES:
        raise InputError(f"--picture: found {picture}, must end in one of {', '.join(PICTURES)}")


def _size(text: str) -> int:
    try:
        nbytes = parse_size(int(text) if text.isdigit() else text)
    except ValueError as error:
        raise InputError(f"--size: {error}") from error
    if nbytes < 1:
        raise InputError(f"--size: found {text}, must be at least 1 byte")
    return nbytes


def _probe(
    machine: Topology, cases: tuple[ProbeCase, ...], nbytes: int, *, details: bool
) -> tuple[list[ProbeReport | NotHere], int]:
    """The reports of all cases and 0; interrupted, those that are finished and the code for that."""
    reports: list[ProbeReport | NotHere] = []
    try:
        with show_progress() as display:
            for at, case in enumerate(cases):
                display(StepProgress(case.name, at, len(cases)))
                reports.append(probe_case(machine, case, nbytes, details=details))
    except KeyboardInterrupt:
        return reports, INTERRUPTED
    return reports, 0
