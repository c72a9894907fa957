"""Generated content of docs/machines.md: tables and drawings of the packaged machines.

``draw_machines.py`` generates each section between ``<!-- NAME -->`` and ``<!-- end -->``. The text outside of sections
is written by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kernbench.common.errors import InputError
from kernbench.common.units import format_size
from kernbench.topology.area import measure_area
from kernbench.topology.builder import Topology, packaged_machines, resolve_topology
from kernbench.topology.drawing.figure import to_svg
from kernbench.topology.export import peak_text

_COLUMNS = (
    "machine",
    "SIPs × cubes × PEs",
    "peak, TFLOPS (TOPS of i8)",
    "memory, GiB",
    "slice, GB/s: peak; sustained",
    "all slices, TB/s: peak; sustained",
    "TCM per PE",
    "links, GB/s: NoC; between cubes; between SIPs; to the host",
    "parts of a cube, mm²",
    "of the die",
    "peak W of a SIP",
)


def figure_name(machine: str) -> str:
    """Return the file name of a machine's drawing in docs/figures."""
    return f"machine_{machine}.svg"


def tabulate_machines() -> str:
    """Return the packaged machines as a Markdown table, one row each."""
    rows = [_COLUMNS, ("---",) * len(_COLUMNS), *(_row(resolve_topology(name)) for name in packaged_machines())]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _row(machine: Topology) -> tuple[str, ...]:
    spec, cube = machine.spec, machine.spec.cube
    slices = spec.num_cubes * cube.hbm.slices / 1000
    links, system = spec.sip.links, spec.system.links
    between_cubes = f"{links.cube_to_cube.bw_gbs:g}" if spec.cubes_per_sip > 1 else "–"
    between_sips = f"{system.sip_to_sip.bw_gbs:g}" if spec.num_sips > 1 else "–"
    area = measure_area(machine)
    assert area is not None, "packaged machines have energies"
    die = area.die_of[0, 0]
    return (
        f"`{machine.name}`",
        f"{spec.num_sips} × {spec.cubes_per_sip} × {spec.pes_per_cube} = {spec.num_pes}",
        peak_text(spec),
        f"{cube.hbm.timing_text} {spec.num_sips * spec.hbm_bytes_per_sip / 2**30:,.0f}",
        f"{cube.slice_peak_gbs:.4g}; {cube.slice_bw_gbs:.4g}",
        f"{slices * cube.slice_peak_gbs:.3g}; {slices * cube.slice_bw_gbs:.3g}",
        format_size(spec.pe.tcm.bytes),
        f"{cube.noc.link_bw_gbs:g}; {between_cubes}; {between_sips}; {system.host_to_switch.bw_gbs:g}",
        f"{die.mm2:.4g}",
        f"{die.full:.0%}",
        f"{area.peak_w:,.0f}",
    )


def fill_page(page: str, sections: Mapping[str, str]) -> str:
    """Return the page with regenerated sections. Raises InputError if the page lacks a section."""
    for name, content in sections.items():
        begin, end = f"<!-- {name} -->\n", "<!-- end -->"
        before, opening, remainder = page.partition(begin)
        _, closing, after = remainder.partition(end)
        if not opening or not closing:
            raise InputError(f"the page has no section <!-- {name} --> … {end}")
        page = f"{before}{begin}{content}\n{end}{after}"
    return page


def write_drawings(folder: Path) -> list[Path]:
    """Write the drawings of all packaged machines into a folder and return their paths."""
    paths = {name: folder / figure_name(name) for name in packaged_machines()}
    for name, path in paths.items():
        path.write_text(to_svg(resolve_topology(name)), encoding="utf-8")
    return list(paths.values())
