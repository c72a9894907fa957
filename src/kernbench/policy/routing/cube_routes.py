"""Ways inside the cubes of one SIP, from coordinates alone.

A part hangs on a router, directly or behind its corner's xbar. Two parts of one corner meet at the xbar and never see
the mesh; everything else goes over routers, XY, and from cube to cube over UCIe ports, XY as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from kernbench.common.ids import router_id, ucie_id, xbar_id
from kernbench.topology.cube_plan import corner_router, m_cpu_router, sram_router, ucie_router
from kernbench.topology.graph import Graph, Node
from kernbench.topology.grid import OPPOSITE, SIDES, Side

NodePath = tuple[str, ...]
GridCell = tuple[int, int]


class CubeRoutes:
    """Routes between parts of cubes in the same SIP."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._cube = graph.spec.cube
        self._mesh = graph.spec.sip.cube_mesh.grid
        self._edge = graph.spec.sip.io_chiplet.edge
        self._edge_cubes = graph.spec.sip.edge_cubes
        noc = self._cube.noc.grid
        self._m_cpu, self._sram = m_cpu_router(noc), sram_router(noc)
        self._beside: dict[str, GridCell] = {side: ucie_router(noc, side) for side in SIDES}
        self._beside |= {corner: corner_router(noc, corner) for corner in self._cube.pe_layout.corners}

    def between(self, src: Node, dst: Node) -> NodePath:
        """From a part to another of the same SIP, both ends included."""
        sip, at = src.cube_coord
        _, end = dst.cube_coord
        if at == end:
            return self._within(src, dst)
        route: list[str] = []
        here = src
        cubes = list(xy_cells(self._mesh.xy(at), self._mesh.xy(end)))
        for cell, beyond in pairwise(cubes):
            side = side_towards(cell, beyond)
            leave = self._graph.node(ucie_id(sip, self._mesh.index(*cell), side))
            route.extend(self._within(here, leave))
            here = self._graph.node(ucie_id(sip, self._mesh.index(*beyond), OPPOSITE[side]))
        return (*route, *self._within(here, dst))

    def to_io(self, src: Node) -> NodePath:
        """From a part along its own column (row) to the UCIe port that faces the IO chiplet."""
        return self.between(src, self._io_facing(src))

    def from_io(self, dst: Node) -> NodePath:
        """From the UCIe port that faces the IO chiplet, in the part's own column (row), to the part."""
        return self.between(self._io_facing(dst), dst)

    def _io_facing(self, node: Node) -> Node:
        sip, cube = node.cube_coord
        column_or_row = self._graph.spec.sip.io_ucie_of(cube)
        return self._graph.node(ucie_id(sip, self._edge_cubes[column_or_row], self._edge))

    def _within(self, src: Node, dst: Node) -> NodePath:
        """From a part to another of the same cube, both ends included."""
        if src.id == dst.id:
            return (src.id,)
        (up, first), (down, last) = self._stem(src), self._stem(dst)
        if up[-1] == down[-1] and up[-1] != src.id and up[-1] != dst.id:
            return (src.id, up[-1], dst.id)
        if down[-1] == src.id or up[-1] == dst.id:
            return (src.id, dst.id)
        sip, cube = src.cube_coord
        routers = [router_id(sip, cube, x, y) for x, y in xy_cells(first, last)]
        return tuple(dict.fromkeys((*up, *routers, *reversed(down))))

    def _stem(self, node: Node) -> tuple[NodePath, GridCell]:
        """A part, with its xbar when it hangs on one, and the router behind; of a router, itself."""
        if node.xy is not None:
            return (node.id,), node.xy
        corner = None
        if node.pe is not None:
            corner = self._cube.pe_layout.corner_of(node.pe)
        elif node.kind == "hbm_ctrl" and node.index is not None:
            corner = self._cube.corner_of_slice(node.index)
        if corner is not None:
            return (node.id, xbar_id(*node.cube_coord, corner)), self._beside[corner]
        if node.side is not None:
            return (node.id,), self._beside[node.side]
        return (node.id,), self._m_cpu if node.kind == "m_cpu" else self._sram


def xy_cells(src: GridCell, dst: GridCell) -> Iterator[GridCell]:
    """Every cell of the way over a grid, X first, both ends included."""
    x, y = src
    yield x, y
    while x != dst[0]:
        x += 1 if dst[0] > x else -1
        yield x, y
    while y != dst[1]:
        y += 1 if dst[1] > y else -1
        yield x, y


def side_towards(src: GridCell, dst: GridCell) -> Side:
    """The side on which a neighbouring cell lies."""
    if src[0] != dst[0]:
        return "E" if dst[0] > src[0] else "W"
    return "S" if dst[1] > src[1] else "N"
