"""How large the parts of a cube are drawn and how its wires are led: what every picture of a machine shares."""

from __future__ import annotations

from kernbench.common.values import value
from kernbench.topology.cube_spec import CubeSpec
from kernbench.topology.geometry import CubeGeometry, Point, manhattan_mm
from kernbench.topology.graph import Graph, Node


@value
class CubeShapes:
    """Sizes of the blocks of a cube in mm; where they stand comes from the graph."""

    geometry: CubeGeometry
    spec: CubeSpec

    @property
    def pe(self) -> Point:
        """A whole PE."""
        return self.geometry.pe_size(self.spec.pe_layout.pe_per_corner)

    @property
    def pe_part(self) -> Point:
        """One of the nine parts of a PE."""
        return self.pe[0] / 3, self.pe[1] / 3

    @property
    def hbm(self) -> Point:
        """An HBM slice."""
        return self.geometry.hbm_size(self.spec.slices_per_corner)

    @property
    def router(self) -> Point:
        """A router: a third of the way to the next one at most."""
        noc, geometry = self.spec.noc, self.geometry
        pitches = [manhattan_mm(geometry.router(0, 0), geometry.router(1, 0)) if noc.w > 1 else geometry.w]
        pitches.append(manhattan_mm(geometry.router(0, 0), geometry.router(0, 1)) if noc.h > 1 else geometry.h)
        side = min(0.32 * min(pitches), 0.06 * min(geometry.w, geometry.h))
        return side, side

    @property
    def xbar(self) -> Point:
        """An xbar."""
        return 0.075 * self.geometry.w, 0.055 * self.geometry.h

    @property
    def middle(self) -> Point:
        """The SRAM and the M_CPU."""
        return 0.105 * self.geometry.w, 0.06 * self.geometry.h

    def ucie(self, side: str | None) -> Point:
        """A UCIe port, long side along the edge."""
        along, across = 0.1, 0.05
        return (
            (along * self.geometry.w, across * self.geometry.h)
            if side in {"N", "S"}
            else (across * self.geometry.w, along * self.geometry.h)
        )


def shapes_of(graph: Graph) -> CubeShapes:
    """The shapes of every cube of a machine."""
    cube = graph.spec.cube
    return CubeShapes(CubeGeometry(cube.size_mm.w, cube.size_mm.h, cube.noc.grid), cube)


def led(hub: Node, part: Node) -> list[Point]:
    """A wire led so that no block hides it."""
    (x0, y0), (x1, y1) = hub.pos_mm, part.pos_mm
    if part.kind in {"hbm_ctrl", "xbar"}:
        return [(x0, y0), (x0, y1), (x1, y1)]
    if part.pe is not None or part.side in {"N", "S"}:
        between = y0 + (y1 - y0) * (0.5 if part.pe is not None else 0.2)
        return [(x0, y0), (x0, between), (x1, between), (x1, y1)]
    if part.side in {"W", "E"}:
        between = x0 + (x1 - x0) * 0.2
        return [(x0, y0), (between, y0), (between, y1), (x1, y1)]
    return [(x0, y0), (x1, y1)]
