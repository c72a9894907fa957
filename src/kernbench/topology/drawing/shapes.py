"""The sizes of blocks and the paths of wires and cables in every picture of a machine.

Cables between SIPs run over the board in right angles, through the gaps between the SIPs.
"""

from __future__ import annotations

from collections.abc import Iterator

from kernbench.common.ids import sip_part, sip_port_id
from kernbench.common.values import value
from kernbench.topology.cube_spec import CubeSpec
from kernbench.topology.geometry import CubeGeometry, MachineGeometry, PointMm, Rect, board_grid, manhattan_mm
from kernbench.topology.graph import Graph, Node
from kernbench.topology.grid import STEP, Side
from kernbench.topology.spec import FabricLink, SipPort, fabric_links


@value
class CubeShapes:
    """Sizes of the blocks of a cube in mm; their positions are in the graph."""

    geometry: CubeGeometry
    spec: CubeSpec

    @property
    def pe(self) -> PointMm:
        """The size of a PE."""
        return self.geometry.pe_size(self.spec.pe_layout.pe_per_corner)

    @property
    def pe_part(self) -> PointMm:
        """The size of each of the nine components of a PE."""
        return self.pe[0] / 3, self.pe[1] / 3

    @property
    def hbm(self) -> PointMm:
        """The size of an HBM slice."""
        return self.geometry.hbm_size(self.spec.slices_per_corner)

    @property
    def router(self) -> PointMm:
        """The size of a router: at most a third of the distance to the next router."""
        noc, geometry = self.spec.noc, self.geometry
        pitches = [manhattan_mm(geometry.router(0, 0), geometry.router(1, 0)) if noc.w > 1 else geometry.w]
        pitches.append(manhattan_mm(geometry.router(0, 0), geometry.router(0, 1)) if noc.h > 1 else geometry.h)
        side = min(0.32 * min(pitches), 0.06 * min(geometry.w, geometry.h))
        return side, side

    @property
    def xbar(self) -> PointMm:
        """The size of an xbar."""
        return 0.075 * self.geometry.w, 0.055 * self.geometry.h

    @property
    def middle(self) -> PointMm:
        """The size of the SRAM and of the M_CPU."""
        return 0.105 * self.geometry.w, 0.06 * self.geometry.h

    def ucie(self, side: str | None) -> PointMm:
        """Return the size of a UCIe port, long side along the edge."""
        along, across = 0.1, 0.05
        return (
            (along * self.geometry.w, across * self.geometry.h)
            if side in {"N", "S"}
            else (across * self.geometry.w, along * self.geometry.h)
        )


def shapes_of(graph: Graph) -> CubeShapes:
    """Return the shapes of every cube of a machine."""
    cube = graph.spec.cube
    return CubeShapes(CubeGeometry(cube.size_mm.w, cube.size_mm.h, cube.noc.grid), cube)


def lead_wire(hub: Node, part: Node) -> list[PointMm]:
    """Return the path of a wire that no block hides."""
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


# Distances of cables from the SIP's outline; they differ, so parallel cables stay apart.
DIRECT_LANE, COLUMN_WRAP_LANE, ROW_WRAP_LANE, CLOSING_LANE = 1.6, 3.2, 5.6, 3.6
BELOW_LANE, WRAP_BELOW_LANE, BUS_LANE, SIDE_LANE = 2.4, 4.0, 5.4, 6.8
BESIDE_OTHERS = 0.8
# Range of distances of the parallel cables in a fully connected machine.
LEVELS, LEVEL_COUNT = (1.6, 5.0), 6


@value
class Cable:
    """A scale-up cable: its path, and ``both_ways`` if it carries both directions."""

    path: tuple[PointMm, ...]
    both_ways: bool


@value
class _End:
    """An end of a cable at a SIP: its point, its direction, and the SIP's outline."""

    at: PointMm
    side: Side
    outline: Rect

    def out(self, lane: float) -> PointMm:
        """Return the point ``lane`` mm outside the outline, straight ahead of the end."""
        o = self.outline
        edge = {"E": o.x + o.w, "W": o.x, "N": o.y, "S": o.y + o.h}[self.side]
        dx, dy = STEP[self.side]
        return (edge + dx * lane, self.at[1]) if dx else (self.at[0], edge + dy * lane)


def scale_up_cables(graph: Graph) -> Iterator[Cable]:
    """Yield every scale-up cable once."""
    geometry, sips = MachineGeometry(graph.spec), graph.spec.system.sips
    links = list(fabric_links(sips))
    pairs = {(link.src, link.dst) for link in links}
    shown = [link for link in links if (link.dst, link.src) not in pairs or _first_of_pair(link)]
    for number, link in enumerate(shown):
        yield Cable(tuple(_lead_cable(geometry, graph, link, number)), (link.dst, link.src) in pairs)


def host_cables(graph: Graph) -> Iterator[tuple[PointMm, ...]]:
    """Yield the path from the switch to each PCIe endpoint: a bus above each row of SIPs, a trunk west of them."""
    geometry = MachineGeometry(graph.spec)
    switch, west = geometry.switch(), geometry.sip(0).x - SIDE_LANE - 1
    first = geometry.sip(0).y - BUS_LANE
    for sip in range(graph.spec.num_sips):
        outline = geometry.sip(sip)
        bus = outline.y - BUS_LANE
        start = (switch.centre[0], switch.y + switch.h)
        trunk = [] if bus == first else [(west, first), (west, bus)]
        yield (start, (start[0], first), *trunk, *_from_bus(graph, sip, outline, bus))


def _from_bus(graph: Graph, sip: int, outline: Rect, bus: float) -> tuple[PointMm, ...]:
    x, y = graph.node(sip_part(sip, "pcie_ep")).pos_mm
    edge = graph.spec.sip.io_chiplet.edge
    if edge == "N":
        return ((x, bus), (x, y))
    side = outline.x + outline.w + SIDE_LANE if edge == "E" else outline.x - SIDE_LANE
    if edge == "S":
        below = outline.y + outline.h + BELOW_LANE / 2
        return ((side, bus), (side, below), (x, below), (x, y))
    return ((side, bus), (side, y), (x, y))


def _first_of_pair(link: FabricLink) -> bool:
    if link.src.side is None:
        return link.src.sip < link.dst.sip
    return link.src.side in {"E", "S"}


def _lead_cable(geometry: MachineGeometry, graph: Graph, link: FabricLink, number: int) -> Iterator[PointMm]:
    src, dst = _end(geometry, graph, link.src), _end(geometry, graph, link.dst)
    if link.src.side is None:
        yield from _lead_in_mesh(src, dst, number)
        return
    along_row, forward = link.src.side == "E", _goes_forward(src, dst, link.src.side)
    if along_row:
        below = BELOW_LANE if forward else WRAP_BELOW_LANE
        odd_row = board_grid(graph.spec.system.sips).xy(link.src.sip)[1] % 2 == 1
        leaves, enters = _lanes_along_row(src, dst, below, forward=forward, odd_row=odd_row)
    else:
        below, leaves = BELOW_LANE, DIRECT_LANE if forward else COLUMN_WRAP_LANE
        enters = leaves
    yield src.at
    yield from _between(src, dst, src.out(leaves), dst.out(enters), below, facing=forward and along_row)
    yield dst.at


def _lanes_along_row(src: _End, dst: _End, below: float, *, forward: bool, odd_row: bool) -> tuple[float, float]:
    """Return the distances of a cable from the outlines of its two SIPs.

    A cable that closes a ring passes the cables of all rows. A cable to the next row passes those of adjacent rows.
    """
    upwards, downwards = dst.outline.y < src.outline.y, dst.outline.y > src.outline.y
    if src.side not in {"E", "W"}:
        leaves = below
    elif forward:
        leaves = DIRECT_LANE
    elif upwards:
        leaves = CLOSING_LANE
    else:
        leaves = ROW_WRAP_LANE + (BESIDE_OTHERS if downwards and odd_row else 0.0)
    beside = CLOSING_LANE if upwards else DIRECT_LANE
    return leaves, beside if dst.side in {"E", "W"} else below


def _goes_forward(src: _End, dst: _End, side: Side) -> bool:
    """Return True for a link to the next SIP on the board, False for a link back to the other end or to another row."""
    if side == "E":
        return dst.outline.x > src.outline.x and dst.outline.y == src.outline.y
    return dst.outline.y > src.outline.y


def _between(src: _End, dst: _End, a: PointMm, b: PointMm, below: float, *, facing: bool) -> tuple[PointMm, ...]:
    """Return the corners of a cable from ``a``, in front of one end, to ``b``, in front of the other end.

    ``below`` is the distance below the row of ``a`` for a cable that passes SIPs of the row.
    """
    if src.side in {"E", "W"} and dst.side in {"E", "W"}:
        if facing and src.side != dst.side:
            return (a, (a[0], b[1]), b)
        y = src.outline.y + src.outline.h + below
        return (a, (a[0], y), (b[0], y), b)
    if src.side in {"E", "W"}:
        return (a, (a[0], b[1]), b)
    if dst.side in {"E", "W"}:
        return (a, (b[0], a[1]), b)
    beside = src.outline.x + src.outline.w + DIRECT_LANE + abs(a[1] - src.out(0)[1])
    return (a, (beside, a[1]), (beside, b[1]), b)


def _lead_in_mesh(src: _End, dst: _End, number: int) -> Iterator[PointMm]:
    """Yield the path of a cable of a fully connected machine: along its source's row, then along its target's row.

    Cables run on different levels.
    """
    level = LEVELS[0] + (LEVELS[1] - LEVELS[0]) * (number % LEVEL_COUNT) / LEVEL_COUNT
    beside = dst.outline.x - level - 1
    a, b = _up(src, level), _up(dst, level)
    yield src.at
    yield from a
    if a[-1][1] != b[-1][1]:
        yield from ((beside, a[-1][1]), (beside, b[-1][1]))
    yield from reversed(b)
    yield dst.at


def _up(end: _End, level: float) -> tuple[PointMm, ...]:
    """Return the path from a port to the cable's level beside the row: straight, or past the side of the SIP."""
    if end.side in {"N", "S"}:
        return (end.out(level),)
    x, y = end.out(level)
    return ((x, y), (x, end.outline.y - level))


def _end(geometry: MachineGeometry, graph: Graph, port: SipPort) -> _End:
    outline = geometry.sip(port.sip)
    side = geometry.chiplet(outline).leaves_by(port.side)
    return _End(graph.node(sip_port_id(port.sip, port.index)).pos_mm, side, outline)
