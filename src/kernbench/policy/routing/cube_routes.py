"""Ways inside the cubes of one SIP, from coordinates alone: X first, then Y.

A part hangs on a router, directly or behind its corner's xbar. Two parts of one corner meet at the xbar and never see
the mesh; everything else goes over routers, XY, and from cube to cube over UCIe ports, XY as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from kernbench.common.ids import router_id, ucie_id, xbar_id
from kernbench.topology.cube_plan import corner_router, m_cpu_router, sram_router, ucie_router
from kernbench.topology.graph import Graph, Node
from kernbench.topology.grid import OPPOSITE, SIDES, Corner, Side

Cell = tuple[int, int]


def xy_cells(src: Cell, dst: Cell) -> Iterator[Cell]:
    """Every cell of the way, both ends included."""
    x, y = src
    yield x, y
    while x != dst[0]:
        x += 1 if dst[0] > x else -1
        yield x, y
    while y != dst[1]:
        y += 1 if dst[1] > y else -1
        yield x, y


def side_towards(src: Cell, dst: Cell) -> Side:
    """The side on which a neighbouring cell lies."""
    if src[0] != dst[0]:
        return "E" if dst[0] > src[0] else "W"
    return "S" if dst[1] > src[1] else "N"


Route = tuple[str, ...]


class CubeRoutes:
    """Routes between parts of cubes in the same SIP."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._cube = graph.spec.cube
        self._noc = graph.spec.cube.noc.grid
        self._mesh = graph.spec.sip.cube_mesh.grid
        self._edge = graph.spec.sip.io_chiplet.edge
        self._known: dict[tuple[str, str], Route] = {}  # ways inside a cube, which many routes share

    def between(self, src: Node, dst: Node) -> Route:
        """From a part to another of the same SIP, both ends included."""
        sip, at = src.cube_coord
        _, end = dst.cube_coord
        route: list[str] = []
        here = src
        cubes = list(xy_cells(self._mesh.xy(at), self._mesh.xy(end)))
        for cell, beyond in pairwise(cubes):
            side = side_towards(cell, beyond)
            leave = self._graph.node(ucie_id(sip, self._mesh.index(*cell), side))
            route.extend(self.within(here, leave))
            here = self._graph.node(ucie_id(sip, self._mesh.index(*beyond), OPPOSITE[side]))
        return (*route, *self.within(here, dst))

    def to_io(self, src: Node) -> Route:
        """From a part along its own column (row) to the UCIe port that faces the IO chiplet."""
        return self.between(src, self._io_facing(src))

    def from_io(self, dst: Node) -> Route:
        """From the UCIe port that faces the IO chiplet, in the part's own column (row), to the part."""
        return self.between(self._io_facing(dst), dst)

    def within(self, src: Node, dst: Node) -> Route:
        """From a part to another of the same cube, both ends included."""
        found = self._known.get((src.id, dst.id))
        if found is None:
            found = self._known[src.id, dst.id] = self._planned(src, dst)
        return found

    def _planned(self, src: Node, dst: Node) -> Route:
        if src.id == dst.id:
            return (src.id,)
        up, down = self._stem(src), self._stem(dst)
        if up[-1] == down[-1] and up[-1] != src.id and up[-1] != dst.id:
            return (src.id, up[-1], dst.id)
        if down[-1] == src.id or up[-1] == dst.id:
            return (src.id, dst.id)
        sip, cube = src.cube_coord
        cells = xy_cells(self._router_of(src), self._router_of(dst))
        routers = (router_id(sip, cube, x, y) for x, y in cells)
        return tuple(dict.fromkeys((*up, *routers, *reversed(down))))

    def _io_facing(self, node: Node) -> Node:
        sip, cube = node.cube_coord
        column_or_row = self._graph.spec.sip.io_ucie_of(cube)
        return self._graph.node(ucie_id(sip, self._graph.spec.sip.edge_cubes[column_or_row], self._edge))

    def _stem(self, node: Node) -> Route:
        """A part and, when it hangs on one, its xbar."""
        sip, cube = node.cube_coord
        corner = self._corner_behind_xbar(node)
        return (node.id,) if corner is None else (node.id, xbar_id(sip, cube, corner))

    def _corner_behind_xbar(self, node: Node) -> Corner | None:
        if node.pe is not None:
            return self._cube.pe_layout.corner_of(node.pe)
        if node.kind == "hbm_ctrl" and node.index is not None:
            return self._cube.corner_of_slice(node.index)
        return None

    def _router_of(self, node: Node) -> Cell:
        """The router a part hangs on, or the router itself."""
        if node.xy is not None:
            return node.xy
        corner = self._corner_behind_xbar(node)
        if corner is None:
            corner = next((c for c in self._cube.pe_layout.corners if c == node.side), None)
        if corner is not None:
            return corner_router(self._noc, corner)
        side = next((s for s in SIDES if s == node.side), None)
        if side is not None:
            return ucie_router(self._noc, side)
        return m_cpu_router(self._noc) if node.kind == "m_cpu" else sram_router(self._noc)
