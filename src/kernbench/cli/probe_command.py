"""``kernbench probe``."""

from __future__ import annotations

import rich_click as click

from kernbench.cli.console import print_json, stdout
from kernbench.cli.failures import INTERRUPTED
from kernbench.cli.options import debug_option, json_option, set_option, topology_option
from kernbench.cli.probe_output import print_reports, probe_document
from kernbench.cli.steps import show_steps
from kernbench.common.errors import InputError
from kernbench.common.units import parse_size
from kernbench.probe.cases import CASES, ProbeCase, find_case
from kernbench.probe.measure import probe_case
from kernbench.probe.report import NotHere, ProbeReport
from kernbench.topology.builder import Topology, resolve_topology


@click.command(name="probe")
@click.option("--case", "names", metavar="NAME", multiple=True, help="A case, with its hops and sweep.  [default: all]")
@click.option("--size", default="4KiB", show_default=True, metavar="SIZE", help="Bytes of the one transaction.")
@topology_option
@set_option
@json_option
@debug_option
def command(names: tuple[str, ...], size: str, topology: str | None, overrides: tuple[str, ...], as_json: bool) -> int:
    """Predefined traffic: the latency of one transaction and its parts, and the bandwidth of a stream."""
    cases = tuple(dict.fromkeys(find_case(name) for name in names)) or CASES
    nbytes = _size(size)
    machine = resolve_topology(topology, overrides)
    reports, code = _probe(machine, cases, nbytes, details=bool(names))
    if as_json:
        print_json(probe_document(machine, nbytes, reports, complete=not code))
    else:
        print_reports(stdout(), machine, nbytes, reports)
    return code


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
        with show_steps(len(cases)) as progress:
            for case in cases:
                progress.begin(case.name)
                reports.append(probe_case(machine, case, nbytes, details=details))
    except KeyboardInterrupt:
        return reports, INTERRUPTED
    return reports, 0
