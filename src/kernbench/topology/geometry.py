"""The positions of all components in mm: x to the east, y to the south, from the north-west corner of the board.

All positions are pure functions of the sizes in the spec. A cube's floorplan is in fractions of its sides. Routers are
in the middle and UCIe ports at the middle of each edge. Each corner has PEs along the north or south edge, and HBM
slices along the west or east edge. The xbar of a corner is between them and the corner router.
"""

from __future__ import annotations

from collections.abc import Collection

from kernbench.common.values import value
from kernbench.topology.grid import Corner, Grid, Side
from kernbench.topology.spec import SipPort, SipsSpec, TopologySpec

PointMm = tuple[float, float]

BOARD_GAP_MM = 12.0  # between SIPs: cables are not laid out
HOST_MM = (20.0, 6.0)
SWITCH_MM = (20.0, 4.0)
DEFAULT_CUBE_GAP_MM = 1.0
DEFAULT_IO_GAP_MM = 2.0

ROUTER_MARGIN = 0.275
XBAR_INSET = (0.205, 0.225)
UCIE_INSET = 0.03
PE_ARM = (0.03, 0.44)
PE_CENTRE, PE_HEIGHT = 0.1, 0.13
HBM_ARM = (0.265, 0.44)
HBM_CENTRE, HBM_WIDTH = 0.115, 0.16
NEAR_MIDDLE = 0.08

# Rows of a PE from the cube's edge inwards: the components with a link to the xbar face it.
PE_FLOORPLAN = (
    ("pe_gemm", "pe_math", "pe_mmu"),
    ("pe_tcm", "pe_fetch_store", "pe_scheduler"),
    ("pe_dma", "pe_cpu", "pe_ipcq"),
)


@value
class Rect:
    """A rectangle by its north-west corner and its sides."""

    x: float
    y: float
    w: float
    h: float

    @property
    def centre(self) -> PointMm:
        """The point in the middle of the rectangle."""
        return point(self.x + self.w / 2, self.y + self.h / 2)


def point(x: float, y: float) -> PointMm:
    """Return a position rounded to 1e-6 mm, without the noise of floating-point sums."""
    return round(x, 6), round(y, 6)


def manhattan_mm(a: PointMm, b: PointMm) -> float:
    """Return the length of a wire between two points in mm."""
    return round(abs(a[0] - b[0]) + abs(a[1] - b[1]), 6)


@value
class CubeGeometry:
    """Positions within a cube, measured from the cube's north-west corner."""

    w: float
    h: float
    noc: Grid

    def router(self, x: int, y: int) -> PointMm:
        """Return the position of the router in column ``x`` of row ``y``."""
        return point(_spread(x, self.noc.w) * self.w, _spread(y, self.noc.h) * self.h)

    def xbar(self, corner: Corner) -> PointMm:
        """Return the position of the xbar of a corner."""
        return self._mirror(corner, *XBAR_INSET)

    def ucie(self, side: Side) -> PointMm:
        """Return the position of the UCIe port at the middle of an edge."""
        along = {"N": (0.5, UCIE_INSET), "S": (0.5, 1 - UCIE_INSET), "W": (UCIE_INSET, 0.5), "E": (1 - UCIE_INSET, 0.5)}
        x, y = along[side]
        return point(x * self.w, y * self.h)

    def pe(self, corner: Corner, place: int, of: int) -> PointMm:
        """Return the position of PE ``place`` of the ``of`` PEs of a corner."""
        counted = of - 1 - place if "E" in corner else place  # west to east in every corner
        return self._mirror(corner, _along(PE_ARM, counted, of), PE_CENTRE)

    def pe_size(self, of: int) -> PointMm:
        """Return width and height of a PE if ``of`` PEs share a corner."""
        return point(0.92 * (PE_ARM[1] - PE_ARM[0]) / of * self.w, PE_HEIGHT * self.h)

    def pe_part(self, corner: Corner, centre: PointMm, kind: str, of: int) -> PointMm:
        """Return the position of a component of the PE at ``centre``."""
        row, column = next((r, line.index(kind)) for r, line in enumerate(PE_FLOORPLAN) if kind in line)
        return self._pe_cell(corner, centre, row, column, of)

    def hbm(self, corner: Corner, place: int, of: int) -> PointMm:
        """Return the position of HBM slice ``place`` of the ``of`` slices of a corner."""
        counted = of - 1 - place if "S" in corner else place  # north to south in every corner
        return self._mirror(corner, HBM_CENTRE, _along(HBM_ARM, counted, of))

    def hbm_size(self, of: int) -> PointMm:
        """Return width and height of a slice if ``of`` slices share a corner."""
        return point(HBM_WIDTH * self.w, 0.88 * (HBM_ARM[1] - HBM_ARM[0]) / of * self.h)

    def near(self, router: tuple[int, int], *, towards: Side) -> PointMm:
        """Return a position beside a router near the middle: to its south-east (``E``) or north-west (``W``)."""
        x, y = self.router(*router)
        sign = 1 if towards == "E" else -1
        step_x = min(_pitch(self.noc.w) / 2, NEAR_MIDDLE) * self.w
        step_y = min(_pitch(self.noc.h) / 2, NEAR_MIDDLE) * self.h
        return point(x + sign * step_x, y + sign * step_y)

    def free_place(self, near: PointMm, occupied: Collection[PointMm]) -> PointMm:
        """Return the middle of the NoC cell that is nearest to ``near`` and not ``occupied``.

        If all cells are occupied, return the nearest of all.
        """
        columns, rows = range(max(1, self.noc.w - 1)), range(max(1, self.noc.h - 1))
        cells = [self.near((x, y), towards="E") for y in rows for x in columns]
        free = [cell for cell in cells if cell not in occupied]
        return min(free or cells, key=lambda cell: manhattan_mm(cell, near))

    def beside_pe(self, corner: Corner, centre: PointMm, number: int, of: int) -> PointMm:
        """Return the position of extra part ``number`` of the PE at ``centre``, inwards of the builtin components."""
        return self._pe_cell(corner, centre, len(PE_FLOORPLAN) + number // 3, number % 3, of)

    def _pe_cell(self, corner: Corner, centre: PointMm, row: int, column: int, of: int) -> PointMm:
        w, h = self.pe_size(of)
        h = -h if "S" in corner else h
        return point(centre[0] + (column - 1) * w / 3, centre[1] + (row - 1) * h / 3)

    def _mirror(self, corner: Corner, x: float, y: float) -> PointMm:
        """Return the position in ``corner`` that mirrors a position in the north-west corner."""
        return point((1 - x if "E" in corner else x) * self.w, (1 - y if "S" in corner else y) * self.h)


def _spread(index: int, count: int) -> float:
    return 0.5 if count == 1 else ROUTER_MARGIN + (1 - 2 * ROUTER_MARGIN) * index / (count - 1)


def _pitch(count: int) -> float:
    return 1 - 2 * ROUTER_MARGIN if count == 1 else (1 - 2 * ROUTER_MARGIN) / (count - 1)


def _along(arm: tuple[float, float], place: int, of: int) -> float:
    return arm[0] + (arm[1] - arm[0]) * (place + 0.5) / of


@value
class ChipletGeometry:
    """Positions in an IO chiplet with the outline ``rect`` on the side ``edge`` of the cubes.

    In the chiplet, ``u`` runs along that side and ``v`` away from the cubes, both from 0 to 1.
    """

    rect: Rect
    edge: Side

    def at(self, u: float, v: float) -> PointMm:
        """Return the position on the board of the point at ``u`` and ``v``."""
        r = self.rect
        x, y = {"N": (u, 1 - v), "S": (u, v), "W": (1 - v, u), "E": (v, u)}[self.edge]
        return point(r.x + x * r.w, r.y + y * r.h)

    def facing(self, cube: Rect) -> PointMm:
        """Return the position of the UCIe port for a cube: opposite its middle, within the chiplet."""
        x, y = cube.centre
        along = (x - self.rect.x) / self.rect.w if self.edge in {"N", "S"} else (y - self.rect.y) / self.rect.h
        return self.at(min(max(along, 0.04), 0.96), 0.1)

    def port(self, port: SipPort, count: int) -> PointMm:
        """Return the position of one of ``count`` scale-up ports: on the outer edge, or at an end of the chiplet.

        A port is on its own side of the chiplet. The port on the side of the cubes is at an end, beside the port there.
        """
        ends = self._ends()
        if port.side is None:
            middle = (count + 1) // 2  # the PCIe endpoint's place
            slot = port.index + (port.index >= middle)
            return self.at((slot + 0.5) / (count + 1), 1.0)
        if port.side == self.edge:
            return self.at(0.9, 1.0)
        return self.at(float(ends.index(port.side)), 0.5) if port.side in ends else self.at(1.0, 0.2)

    def leaves_by(self, side: Side | None) -> Side:
        """Return the direction in which a port's cable leaves the chiplet."""
        if side is None or side == self.edge:
            return self.edge
        return side if side in self._ends() else self._ends()[1]

    def _ends(self) -> tuple[Side, Side]:
        return ("W", "E") if self.edge in {"N", "S"} else ("N", "S")


@value
class MachineGeometry:
    """Outlines of SIPs, cubes and chiplets on the board."""

    spec: TopologySpec

    @property
    def cube(self) -> CubeGeometry:
        """The floorplan of every cube."""
        size = self.spec.cube.size_mm
        return CubeGeometry(size.w, size.h, self.spec.cube.noc.grid)

    def host(self) -> Rect:
        """Return the outline of the host, north of everything."""
        return Rect((self.board_width - HOST_MM[0]) / 2, 0.0, *HOST_MM)

    def switch(self) -> Rect:
        """Return the outline of the switch, between the host and the SIPs."""
        return Rect((self.board_width - SWITCH_MM[0]) / 2, HOST_MM[1] + BOARD_GAP_MM / 2, *SWITCH_MM)

    @property
    def board_width(self) -> float:
        """The width of a row of SIPs, or of the host or the switch if that is wider, in mm."""
        columns = board_grid(self.spec.system.sips).w
        width, _ = self.sip_size()
        return max(columns * (width + BOARD_GAP_MM) - BOARD_GAP_MM, HOST_MM[0], SWITCH_MM[0])

    def sip_size(self) -> PointMm:
        """Return width and height of a SIP: cubes and IO chiplet."""
        cubes_w, cubes_h = self._cubes_size()
        along, depth = self._chiplet_size()
        if self.spec.sip.io_chiplet.edge in {"N", "S"}:
            return point(max(cubes_w, along), cubes_h + self._io_gap() + depth)
        return point(cubes_w + self._io_gap() + depth, max(cubes_h, along))

    def sip(self, sip: int) -> Rect:
        """Return the outline of a SIP."""
        grid = board_grid(self.spec.system.sips)
        columns, (column, row) = grid.w, grid.xy(sip)
        width, height = self.sip_size()
        left = (self.board_width - columns * (width + BOARD_GAP_MM) + BOARD_GAP_MM) / 2
        top = self.switch().y + SWITCH_MM[1] + BOARD_GAP_MM
        x, y = left + column * (width + BOARD_GAP_MM), top + row * (height + BOARD_GAP_MM)
        return Rect(*point(x, y), width, height)

    def cube_rect(self, outline: Rect, cube: int) -> Rect:
        """Return the outline of a cube of the SIP with this outline."""
        size, gap = self.spec.cube.size_mm, self._cube_gap()
        column, row = self.spec.sip.cube_mesh.grid.xy(cube)
        left, top = self._cubes_corner(outline)
        x, y = left + column * (size.w + gap), top + row * (size.h + gap)
        return Rect(*point(x, y), size.w, size.h)

    def chiplet(self, outline: Rect) -> ChipletGeometry:
        """Return the IO chiplet of the SIP with this outline; the chiplet is centred along its edge of the SIP."""
        edge = self.spec.sip.io_chiplet.edge
        along, depth = self._chiplet_size()
        w, h = (along, depth) if edge in {"N", "S"} else (depth, along)
        x = {"W": outline.x, "E": outline.x + outline.w - w}.get(edge, outline.x + (outline.w - w) / 2)
        y = {"N": outline.y, "S": outline.y + outline.h - h}.get(edge, outline.y + (outline.h - h) / 2)
        return ChipletGeometry(Rect(*point(x, y), w, h), edge)

    def _cubes_corner(self, outline: Rect) -> PointMm:
        edge = self.spec.sip.io_chiplet.edge
        w, h = self._cubes_size()
        x = {"W": outline.x + outline.w - w, "E": outline.x}.get(edge, outline.x + (outline.w - w) / 2)
        y = {"N": outline.y + outline.h - h, "S": outline.y}.get(edge, outline.y + (outline.h - h) / 2)
        return x, y

    def _cubes_size(self) -> PointMm:
        mesh, size, gap = self.spec.sip.cube_mesh, self.spec.cube.size_mm, self._cube_gap()
        return mesh.w * (size.w + gap) - gap, mesh.h * (size.h + gap) - gap

    def _chiplet_size(self) -> PointMm:
        size = self.spec.sip.io_chiplet.size_mm
        return size.w, size.h

    def _cube_gap(self) -> float:
        length_mm = self.spec.sip.links.cube_to_cube.length_mm
        return DEFAULT_CUBE_GAP_MM if length_mm is None else length_mm

    def _io_gap(self) -> float:
        length_mm = self.spec.sip.links.io_to_cube.length_mm
        return DEFAULT_IO_GAP_MM if length_mm is None else length_mm


def board_grid(sips: SipsSpec) -> Grid:
    """Return the grid of SIPs on the board: the grid of a 2-D topology, else rows of at most four."""
    if sips.two_dimensional:
        return sips.grid
    columns = sips.count if sips.count <= 4 else -(-sips.count // -(-sips.count // 4))
    return Grid(columns, -(-sips.count // columns))
