"""Two machines that differ in many ways, said as an architect does: how many of what, how fast, how far.

A machine of another design differs in dozens of keys. ``say_machines`` names what most of them come to, in the order in
which a machine is told; the table of ``kernbench compare`` has every key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from kernbench.common.units import format_size
from kernbench.evaluation.compare_inputs import ResultFigures
from kernbench.topology.hbm_spec import PRESETS

Configuration: TypeAlias = Mapping[str, Any]

MOST_NAMED = 8
"""So many parameters are named one by one"""


def say_machines(a: Iterable[ResultFigures], b: Iterable[ResultFigures]) -> str:
    """Return what differs between the machines of A and of B, as ``PEs 8 → 4; …``; nothing if no headline does."""
    ours, theirs = [each.configuration for each in a], [each.configuration for each in b]
    return "; ".join(_headlines(ours, theirs))


def _headlines(ours: Iterable[Configuration], theirs: Iterable[Configuration]) -> Iterator[str]:
    for label, describe in _HEADLINES:
        sides = [{_try_headline(describe, each) for each in side} for side in (ours, theirs)]
        if sides[0] != sides[1] and all(len(side) == 1 and "" not in side for side in sides):
            (one,), (other,) = sides
            yield f"{label} {one} → {other}"


def _try_headline(describe: Callable[[Configuration], str], configuration: Configuration) -> str:
    """Return a headline; nothing for a result without its keys, as of another version, or without such values."""
    try:
        return describe(configuration)
    except (KeyError, TypeError, ValueError):
        return ""


def _sips(c: Configuration) -> str:
    count = c["system.sips.count"]
    return f"{count} ({c['system.sips.topology']})" if count > 1 else f"{count}"


def _cubes(c: Configuration) -> str:
    return f"{c['sip.cube_mesh.w']} × {c['sip.cube_mesh.h']}"


def _pes(c: Configuration) -> str:
    return f"{c['cube.pe_layout.pe_per_corner'] * len(c['cube.pe_layout.corners'])}"


def _slice(c: Configuration) -> str:
    name, channels = c["cube.hbm.timing"], c["cube.hbm.num_pcs"]
    preset = PRESETS.get(name)
    peak = "" if preset is None else f" ({channels * preset.timing.pc_gbs:.4g} GB/s peak)"
    return f"{channels} channels of {name}{peak}"


def _clocks(c: Configuration) -> str:
    return ", ".join(f"{c[f'clocks.{domain}']:g}" for domain in ("pe", "noc", "io"))


def _rate(dtype: str) -> Callable[[Configuration], str]:
    return lambda c: f"{c[f'pe.gemm.macs_per_ns.{dtype}']:g}"


def _size(path: str) -> Callable[[Configuration], str]:
    return lambda c: format_size(c[path])


def _bandwidth(path: str) -> Callable[[Configuration], str]:
    return lambda c: f"{c[path]:g} GB/s"


def _between(path: str, *counts: str) -> Callable[[Configuration], str]:
    """Return the headline of links that machines have with more than one of what is counted."""
    return lambda c: f"{c[path]:g} GB/s" if any(c[count] > 1 for count in counts) else ""


def _time(path: str) -> Callable[[Configuration], str]:
    return lambda c: f"{c[path]:g} ns"


_HEADLINES: tuple[tuple[str, Callable[[Configuration], str]], ...] = (
    ("SIPs", _sips),
    ("cubes a SIP", _cubes),
    ("PEs a cube", _pes),
    ("MACs of f16 a ns and PE", _rate("f16")),
    ("a slice of HBM", _slice),
    ("bytes of a slice", _size("cube.hbm.bytes_per_slice")),
    ("TCM", _size("pe.tcm.bytes")),
    ("a link of the NoC", _bandwidth("cube.noc.link_bw_gbs")),
    ("a router", _time("cube.components.noc_router.attrs.overhead_ns")),
    ("from cube to cube", _between("sip.links.cube_to_cube.bw_gbs", "sip.cube_mesh.w", "sip.cube_mesh.h")),
    ("from SIP to SIP", _between("system.links.sip_to_sip.bw_gbs", "system.sips.count")),
    ("clocks of PEs, NoC, IO", _clocks),
    ("the host's link", _bandwidth("system.links.host_to_switch.bw_gbs")),
)
