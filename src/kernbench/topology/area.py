"""Areas and powers of the dies of a machine: what its parts occupy, and what they draw while they do nothing.

Areas follow from capacities and rates of the file, without clocks. A user's class states the area and the static power
of each of its parts as the class attributes ``area_mm2`` and ``static_w``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from math import inf
from typing import Any, TypeAlias

from kernbench.common.dtypes import F16
from kernbench.common.errors import InputError
from kernbench.common.figures import figure, to_plain
from kernbench.common.values import value
from kernbench.di.part import Part, is_builtin
from kernbench.di.registry import REGISTRY
from kernbench.topology.builder import Topology
from kernbench.topology.energy_spec import ROW_BYTES, EnergySpec
from kernbench.topology.graph import Node
from kernbench.topology.spec import TopologySpec

MIB = 1 << 20
DieId: TypeAlias = tuple[int, int | None]
"""A die: its SIP, and its cube or None for the IO chiplet"""
CUBE, IO_CHIPLET = "cube", "IO chiplet"


@value
class PartArea:
    """The area of all parts of a kind on one die."""

    die: str = figure("the kind of die")
    kind: str = figure("the kind of part")
    parts: int = figure("how many there are on the die")
    mm2: float = figure("their area in mm²")


@value
class Die:
    """Equal dies: the areas of their parts in mm², their size, and the static power of each in W.

    ``dram_mm2``: the area of the DRAM beside each die.
    """

    kind: str = figure("the kind of die")
    dies: int = figure("how many there are")
    mm2: float = figure("area of its parts")
    size_mm2: float = figure("area of the die")
    dram_mm2: float = figure("area of the DRAM beside it")
    static_w: float = figure("static power of it and its DRAM")
    parts: tuple[PartArea, ...] = field(default=())

    @property
    def full(self) -> float:
        """The share of the die that its parts occupy; more than 1 if they do not fit."""
        return self.mm2 / self.size_mm2 if self.size_mm2 else 0.0


@value
class MachineArea:
    """The areas and powers of a machine, by kind of die; dies of a kind that differ are separate entries.

    ``peak_w``: the power of a SIP whose matrix units and slices work at their rates. ``faults``: the users' classes
    whose figures are no numbers, which count as 0.
    """

    dies: tuple[Die, ...]
    die_of: Mapping[DieId, Die]
    peak_w: float
    faults: tuple[str, ...]

    @property
    def mm2(self) -> float:
        """The area of the parts of all dies, without DRAM."""
        return sum(die.dies * die.mm2 for die in self.dies)

    @property
    def static_w(self) -> float:
        """The static power of all dies and their DRAM."""
        return sum(die.dies * die.static_w for die in self.dies)

    @property
    def power_text(self) -> str:
        """The power of a SIP as text: at peak, and without work."""
        idle_w = sum(die.static_w for (sip, _), die in self.die_of.items() if sip == 0)
        return f"{self.peak_w:,.0f} W a SIP at peak, {idle_w:,.1f} W of it static"

    def to_dict(self) -> dict[str, Any]:
        """Return the areas and powers as plain data."""
        dies = [{**to_plain(die), "full": die.full} for die in self.dies]
        return {"mm2": self.mm2, "static_w": self.static_w, "peak_w": self.peak_w, "dies": dies}


def measure_area(topology: Topology) -> MachineArea | None:
    """Return the areas and powers of a machine; None if its energy is null."""
    energy, spec = topology.spec.energy, topology.configured
    if energy is None:
        return None
    areas, faults = _Areas(spec, energy), dict[str, None]()
    users: dict[str, type[Part] | None] = {}  # the class of an implementation, None if it is builtin
    parts: dict[DieId, dict[str, list[float]]] = {}
    statics: dict[DieId, float] = {}
    for node in topology.topology_obj.nodes.values():
        if node.sip is None:
            continue
        die, mm2, static_w = (node.sip, node.cube), areas.of(node), 0.0
        if node.impl not in users:
            users[node.impl] = _find_users_class(node.impl)
        stated = users[node.impl]
        if stated is not None:
            mm2, static_w = _read_stated(stated, mm2, node, faults)
        of_kind = parts.setdefault(die, {}).setdefault(node.kind, [0, 0.0])
        of_kind[0], of_kind[1] = of_kind[0] + 1, of_kind[1] + mm2
        statics[die] = statics.get(die, 0.0) + static_w
    die_of: dict[DieId, Die] = {}
    counts: dict[Die, int] = {}
    for die, kinds in parts.items():
        shape = _describe_die(spec, energy, die[1] is not None, kinds, statics[die])
        counts[shape] = counts.get(shape, 0) + 1
        die_of[die] = shape
    dies = {shape: replace(shape, dies=count) for shape, count in counts.items()}
    die_of = {die: dies[shape] for die, shape in die_of.items()}
    return MachineArea(tuple(dies.values()), die_of, _find_peak(topology, energy, die_of), tuple(faults))


def _describe_die(
    spec: TopologySpec, energy: EnergySpec, is_cube: bool, kinds: Mapping[str, list[float]], static_w: float
) -> Die:
    """Return a die with parts by kind, as pairs (number, area in mm²). ``static_w``: the power that classes state."""
    label, size = (CUBE, spec.cube.size_mm) if is_cube else (IO_CHIPLET, spec.sip.io_chiplet.size_mm)
    areas = tuple(PartArea(label, kind, int(count), mm2) for kind, (count, mm2) in kinds.items())
    mm2, slices = sum(area.mm2 for area in areas), spec.cube.hbm.slices if is_cube else 0
    dram_mm2 = slices * spec.cube.slice_peak_gbs * energy.area_mm2["dram_gbs"]
    slice_w = energy.slice_static_w(spec.cube.hbm.bytes_per_slice, row_bytes_of(spec))
    static_w += mm2 * energy.static_w_per_mm2 + slices * slice_w
    return Die(label, 1, mm2, size.w * size.h, dram_mm2, static_w, areas)


def row_bytes_of(spec: TopologySpec) -> int:
    """Return the bytes of a row of HBM; those of ``ideal`` HBM are the rows of the estimate."""
    banks = spec.cube.hbm.banks
    return ROW_BYTES if banks is None else banks.row_bytes


class _Areas:
    """The areas of builtin parts of a machine in mm²."""

    def __init__(self, spec: TopologySpec, energy: EnergySpec) -> None:
        area, gemm = energy.area_mm2, spec.pe.gemm.macs_per_ns
        self._sram_per_mib = area["sram_per_mib"]
        self._of_kind = dict[str, float](area.items())
        self._of_kind |= {
            "sram": spec.cube.sram.bytes / MIB * self._sram_per_mib,
            "pe_tcm": spec.pe.tcm.bytes / MIB * self._sram_per_mib,
            # A unit without f16 is as large as one that multiplies f16 at the rate of its fastest type.
            "pe_gemm": gemm.get(F16.name, max(gemm.values())) * area["mac_per_ns"],
            "pe_math": spec.pe.math.bytes_per_ns * area["math_byte_per_ns"],
            "hbm_ctrl": spec.cube.slice_peak_gbs * area["hbm_gbs"],
        }

    def of(self, node: Node) -> float:
        """Return the area of a part; an extra memory is an SRAM of its size."""
        if node.is_extra:
            return 0.0 if node.window is None else node.window.nbytes / MIB * self._sram_per_mib
        return self._of_kind.get(node.kind, 0.0)


def _find_users_class(impl: str) -> type[Part] | None:
    """Return the user's class of an implementation; None for a builtin one, and for one of another registry."""
    try:
        part = REGISTRY.lookup(impl)
    except InputError:
        return None
    return None if is_builtin(part) else part


def _read_stated(part: type[Part], mm2: float, node: Node, faults: dict[str, None]) -> tuple[float, float]:
    """Return the area and the static power that a user's class states, and note figures that are no numbers.

    A class at the place of a builtin kind that states no area has that of its kind, ``mm2``.
    """
    figures = {"area_mm2": 0.0 if node.is_extra else mm2, "static_w": 0.0}
    statements: dict[str, object] = {"area_mm2": part.area_mm2, "static_w": part.static_w}
    for name, stated in statements.items():
        if stated is None:
            continue
        if isinstance(stated, int | float) and not isinstance(stated, bool) and 0 <= stated < inf:
            figures[name] = float(stated)
        else:
            faults[f"{node.impl}: {name} is {stated!r}, must be a number, at least 0: it counts 0"] = None
    return figures["area_mm2"], figures["static_w"]


def _find_peak(topology: Topology, energy: EnergySpec, die_of: Mapping[DieId, Die]) -> float:
    """Return the power in W of a SIP whose matrix units and slices work at their rates.

    The units multiply the type that needs most power at its rate, with operands from TCM as the default tile has.
    """
    spec = topology.spec
    tile, sizes = spec.pe.gemm, spec.pe.gemm.tile_sizes
    fetched = {element.name: _bytes_per_mac(sizes, element.itemsize) for element in tile.operand_dtypes}
    unit_mw = max(
        rate * (energy.mac_pj[name] + fetched[name] * energy.tcm_pj_per_byte) for name, rate in tile.macs_per_ns.items()
    )
    rows = energy.row_pj(row_bytes_of(spec)) / row_bytes_of(spec)
    byte_pj = max(energy.hbm_read_pj_per_byte, energy.hbm_write_pj_per_byte) + energy.hbm_io_pj_per_byte + rows
    slice_mw = spec.cube.slice_peak_gbs * byte_pj
    dynamic_mw = spec.pes_per_sip * unit_mw + spec.cubes_per_sip * spec.cube.hbm.slices * slice_mw
    return dynamic_mw * 1e-3 + sum(die.static_w for (sip, _), die in die_of.items() if sip == 0)


def _bytes_per_mac(sizes: tuple[int, int, int], itemsize: int) -> float:
    """Return the bytes of operands that a tile fetches from TCM for each multiply-accumulate."""
    m, k, n = sizes
    return itemsize * (m * k + k * n) / (m * k * n)


def list_areas(area: MachineArea) -> Iterator[PartArea]:
    """Yield the areas by kind of part, the largest first on each kind of die."""
    for die in area.dies:
        yield from sorted((part for part in die.parts if part.mm2), key=lambda part: -part.mm2)
