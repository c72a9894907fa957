"""The machine in the form that the page draws: parts as rectangles in mm, links as polylines, all data in columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from itertools import chain

from kernbench.common.ids import pe_part
from kernbench.common.values import state
from kernbench.topology.builder import DEFAULT_NAME, Topology
from kernbench.topology.drawing.shapes import CubeShapes, host_cables, lead_wire, scale_up_cables, shapes_of
from kernbench.topology.export import machine_rows
from kernbench.topology.geometry import HOST_MM, PE_FLOORPLAN, SWITCH_MM, MachineGeometry, PointMm, Rect
from kernbench.topology.graph import Edge, Graph, Node
from kernbench.transport import Link
from kernbench.web.activity import is_memory
from kernbench.web.packing import PageJson

# Link classes that join two facing ports, or cross no parts.
_STRAIGHT = frozenset(("cube_to_cube", "io_to_cube", "noc"))

# Rows with the path of the machine's file.
_NAMES = ("machine", "source")


@state
class Wires:
    """The polylines of all links. ``of_edge``: for each link, the number of its polyline and its direction."""

    graph: Graph
    paths: list[tuple[PointMm, ...]] = field(default_factory=list)
    of_edge: list[tuple[int, bool]] = field(default_factory=list)
    _known: dict[tuple[str, str], int] = field(default_factory=dict)
    _cables: dict[frozenset[PointMm], tuple[PointMm, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        cables = [*host_cables(self.graph), *(cable.path for cable in scale_up_cables(self.graph))]
        self._cables = {frozenset((path[0], path[-1])): path for path in cables}
        self.of_edge = [self._place(edge) for edge in self.graph.edges]

    def _place(self, edge: Edge) -> tuple[int, bool]:
        reverse = self._known.get((edge.dst, edge.src))
        if reverse is not None:
            return reverse, True
        self._known[edge.src, edge.dst] = len(self.paths)
        self.paths.append(self._way(edge))
        return len(self.paths) - 1, False

    def _way(self, edge: Edge) -> tuple[PointMm, ...]:
        src, dst = self.graph.node(edge.src), self.graph.node(edge.dst)
        match edge.link_class:
            case "host_to_switch":
                return self._from_host()
            case "switch_to_sip":
                return self._host_cable(src, dst)
            case "sip_to_sip":
                return self._cable(src, dst)
            case "io_internal":
                return self._in_chiplet(src, dst)
            case straight if straight in _STRAIGHT:
                return (src.pos_mm, dst.pos_mm)
            case _:
                return tuple(lead_wire(src, dst))

    def _cable(self, src: Node, dst: Node) -> tuple[PointMm, ...]:
        path = self._cables.get(frozenset((src.pos_mm, dst.pos_mm)), (src.pos_mm, dst.pos_mm))
        return path if path[0] == src.pos_mm else tuple(reversed(path))

    def _from_host(self) -> tuple[PointMm, ...]:
        """Draw a wire from edge to edge, because both parts are large."""
        geometry = MachineGeometry(self.graph.spec)
        host, switch = geometry.host(), geometry.switch()
        return ((host.centre[0], host.y + host.h), (switch.centre[0], switch.y))

    def _host_cable(self, src: Node, dst: Node) -> tuple[PointMm, ...]:
        """Draw a cable from the switch's lower edge, below its middle."""
        ends_here = (path for path in self._cables.values() if path[-1] == dst.pos_mm)
        return next(ends_here, (src.pos_mm, dst.pos_mm))

    def _in_chiplet(self, src: Node, dst: Node) -> tuple[PointMm, ...]:
        """Draw a wire from the chiplet's NoC along its middle, then to the part."""
        (x0, y0), (x1, y1) = src.pos_mm, dst.pos_mm
        lying = self.graph.spec.sip.io_chiplet.edge in {"N", "S"}
        bend = (x1, y0) if lying else (x0, y1)
        return (src.pos_mm, bend, dst.pos_mm)


PE_MIDDLE = PE_FLOORPLAN[1][1]
PACKAGE_MARGIN_MM = 0.8
PORT_MM = (1.3, 1.3)
DIGITS = 4


def view_machine(topology: Topology, wired: Mapping[tuple[str, str], Link] | None = None) -> dict[str, PageJson]:
    """Describe the machine for the page; lengths in mm, bandwidths in GB/s, times in ns.

    ``nodes`` and ``edges`` are in graph order, ``pes`` in the order of ``Graph.pes``. ``wired``: the links
    that a run used, with the bandwidths to which components may have limited them.
    """
    graph = topology.topology_obj
    kinds = list(graph.count_of_kinds())
    return {
        "digest": topology.digest,
        "facts": [("source", source_name(topology)), *(row for row in machine_rows(topology) if row[0] not in _NAMES)],
        "ns_per_mm": graph.spec.ns_per_mm,
        "slice_bw_gbs": graph.spec.cube.slice_bw_gbs,
        "kinds": kinds,
        "sips": _sips(graph),
        "nodes": _nodes(graph, kinds),
        "pes": _pes(graph),
        "edges": _edges(graph, wired or {}),
    }


def source_name(topology: Topology) -> str:
    """Return the name of the machine's file. The installation path of a packaged machine stays private."""
    if topology.name == DEFAULT_NAME:
        return "the packaged machine"
    return topology.name


def _sips(graph: Graph) -> PageJson:
    """Describe each SIP: its package, its IO chiplet and its cubes."""
    geometry = MachineGeometry(graph.spec)
    packages: list[PageJson] = []
    for sip in range(graph.spec.num_sips):
        outline = geometry.sip(sip)
        cubes = [_rect(geometry.cube_rect(outline, cube)) for cube in range(graph.spec.cubes_per_sip)]
        chiplet = geometry.chiplet(outline).rect
        margin = PACKAGE_MARGIN_MM
        package = Rect(outline.x - margin, outline.y - margin, outline.w + 2 * margin, outline.h + 2 * margin)
        packages.append({"package": _rect(package), "chiplet": _rect(chiplet), "cubes": cubes})
    return packages


def _nodes(graph: Graph, kinds: list[str]) -> PageJson:
    shapes, block = shapes_of(graph), _chiplet_block(graph)
    nodes = list(graph.nodes.values())
    sizes = [_size(shapes, block, node) for node in nodes]
    return {
        "id": [node.id for node in nodes],
        "kind": [kinds.index(node.kind) for node in nodes],
        "impl": _index([node.impl for node in nodes]),
        "x": [round(node.pos_mm[0], DIGITS) for node in nodes],
        "y": [round(node.pos_mm[1], DIGITS) for node in nodes],
        "w": [round(size[0], DIGITS) for size in sizes],
        "h": [round(size[1], DIGITS) for size in sizes],
        "sip": [_or_none(node.sip) for node in nodes],
        "cube": [_or_none(node.cube) for node in nodes],
        "pe": [_or_none(node.pe) for node in nodes],
        "overhead_ns": [node.overhead_ns for node in nodes],
        "memory": [int(is_memory(node)) for node in nodes],
    }


def _or_none(coordinate: int | None) -> int:
    """Return -1 for a coordinate that does not apply, because columns of the page contain numbers only."""
    return -1 if coordinate is None else coordinate


def _index(texts: list[str]) -> PageJson:
    names = list(dict.fromkeys(texts))
    at = {name: number for number, name in enumerate(names)}
    return {"names": names, "at": [at[text] for text in texts]}


def _chiplet_block(graph: Graph) -> PointMm:
    """Measure the drawn parts of an IO chiplet, long side along the chiplet."""
    size = graph.spec.sip.io_chiplet.size_mm
    long, short = min(7.0, 0.18 * size.w), min(1.7, 0.3 * size.h)
    return (long, short) if graph.spec.sip.io_chiplet.edge in {"N", "S"} else (short, long)


def _size(shapes: CubeShapes, block: PointMm, node: Node) -> PointMm:
    if node.pe is not None:
        return shapes.pe_part
    if node.is_extra:
        return shapes.middle
    if node.kind == "ucie":
        return shapes.ucie(node.side) if node.cube is not None else PORT_MM
    sizes = {
        "host": HOST_MM,
        "switch": SWITCH_MM,
        "sip_port": PORT_MM,
        "noc_router": shapes.router,
        "xbar": shapes.xbar,
        "hbm_ctrl": shapes.hbm,
        "m_cpu": shapes.middle,
        "sram": shapes.middle,
    }
    return sizes.get(node.kind, block)


def _pes(graph: Graph) -> PageJson:
    """Describe each PE: coordinates, outline, the HBM slice nearby."""
    w, h = shapes_of(graph).pe
    outlines: list[PageJson] = []
    for sip, cube, pe in graph.pes():
        x, y = graph.node(pe_part(sip, cube, pe, PE_MIDDLE)).pos_mm
        outlines.append([sip, cube, pe, *_rect(Rect(x - w / 2, y - h / 2, w, h)), graph.local_slice(pe)])
    return outlines


def _edges(graph: Graph, wired: Mapping[tuple[str, str], Link]) -> PageJson:
    wires, edges = Wires(graph), graph.edges
    number = {node: at for at, node in enumerate(graph.nodes)}
    return {
        "src": [number[edge.src] for edge in edges],
        "dst": [number[edge.dst] for edge in edges],
        "class": _index([edge.link_class for edge in edges]),
        "bw_gbs": [wired.get((edge.src, edge.dst), edge).bw_gbs for edge in edges],
        "length_mm": [round(edge.length_mm, DIGITS) for edge in edges],
        "hop_ns": [round(graph.hop_overhead_ns(edge), 6) for edge in edges],
        "fifo_bytes": [edge.fifo_bytes for edge in edges],
        "way": [way for way, _ in wires.of_edge],
        "against": [int(against) for _, against in wires.of_edge],
        "ways": [[round(length, DIGITS) for length in chain.from_iterable(path)] for path in wires.paths],
    }


def _rect(rect: Rect) -> list[float]:
    return [round(length, DIGITS) for length in (rect.x, rect.y, rect.w, rect.h)]
