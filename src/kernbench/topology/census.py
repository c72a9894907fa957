"""How many parts and links a machine will have: known from its counts, before any of them is made."""

from __future__ import annotations

from collections.abc import Iterable

from kernbench.common.values import value
from kernbench.topology.cube_spec import CubeSpec, HbmSpec, NocSpec, PeLayoutSpec
from kernbench.topology.extra import ExtraPart
from kernbench.topology.geometry import PE_FLOORPLAN
from kernbench.topology.grid import Grid
from kernbench.topology.pe_spec import PeSpec
from kernbench.topology.spec import CubeMeshSpec, IoChipletSpec, SipsSpec

PARTS_PER_PE = sum(map(len, PE_FLOORPLAN))


@value
class Census:
    """Parts and directed links."""

    parts: int = 0
    links: int = 0

    def __add__(self, other: Census) -> Census:
        return Census(self.parts + other.parts, self.links + other.links)

    def __mul__(self, times: int) -> Census:
        return Census(self.parts * times, self.links * times)

    @property
    def total(self) -> int:
        """Parts and links together."""
        return self.parts + self.links


def count_machine(
    sips: SipsSpec, mesh: CubeMeshSpec, chiplet: IoChipletSpec, noc: NocSpec, layout: PeLayoutSpec, hbm: HbmSpec
) -> dict[str, Census]:
    """Parts and links by the section of the file that most of them follow from; together all there are."""
    cubes = sips.count * len(mesh.grid)
    routers = Census(len(noc.grid), 2 * _pairs(noc.grid)) * cubes
    slices = Census(hbm.slices, 2 * hbm.slices) * cubes
    # A UCIe port a side, the M_CPU and the SRAM; an xbar a corner; of a PE the DMA and the CPU have a link.
    rest = Census(6, 12) + Census(1, 2) * len(layout.corners) + Census(PARTS_PER_PE, 4) * layout.pes
    return {
        "cube.noc": routers,
        "cube.hbm.slices": slices,
        "sip.cube_mesh": rest * cubes + _io_chiplet(mesh, chiplet) * sips.count,
        "system.sips": Census(2, 2) + _fabric(sips),
    }


def count_extras(sips: SipsSpec, mesh: CubeMeshSpec, cube: CubeSpec, pe: PeSpec) -> dict[str, Census]:
    """The same of extra parts, which come on top."""
    cubes = sips.count * len(mesh.grid)
    return {
        "cube.extra": _of_extras(cube.extra.values()) * cubes,
        "pe.extra": _of_extras(pe.extra.values()) * (cubes * cube.pe_layout.pes),
    }


def _of_extras(parts: Iterable[ExtraPart]) -> Census:
    return sum((Census(1, 2 * len(part.links)) for part in parts), Census())


def _pairs(grid: Grid) -> int:
    """How many entries of a grid are side by side."""
    return (grid.w - 1) * grid.h + grid.w * (grid.h - 1)


def _io_chiplet(mesh: CubeMeshSpec, chiplet: IoChipletSpec) -> Census:
    """The IO chiplet of a SIP without its scale-up ports, and the links between its cubes."""
    ucies = mesh.w if chiplet.edge in {"N", "S"} else mesh.h
    return Census(3, 6) + Census(1, 4) * ucies + Census(0, 2 * _pairs(mesh.grid))


def _fabric(sips: SipsSpec) -> Census:
    """The scale-up ports and their links."""
    grid, count = sips.grid, sips.count
    around = 2 * (grid.w > 1) + 2 * (grid.h > 1)
    ports = {"fully_connected": count * (count - 1), "mesh_2d_no_wrap": 2 * _pairs(grid), "switch": 0}
    found = ports.get(sips.topology, around * count)
    sending = found // 2 if sips.topology == "ring_1d_unidir" else found
    return Census(found, 2 * found + sending)
