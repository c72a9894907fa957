"""The machine on the board, to scale: SIPs, IO chiplets, links between dies, and cubes, enlarged or small."""

from __future__ import annotations

from kernbench.common.ids import HOST, SWITCH, cube_part, sip_part
from kernbench.common.units import format_size
from kernbench.topology.drawing import style
from kernbench.topology.drawing.canvas import BOXES, UNDER, Canvas, center_rect
from kernbench.topology.drawing.shapes import CubeShapes, host_cables, lead_wire, scale_up_cables, shapes_of
from kernbench.topology.drawing.style import Paint
from kernbench.topology.geometry import PE_FLOORPLAN, MachineGeometry, PointMm, Rect
from kernbench.topology.graph import Graph, Node

_SHORT = {"pe_scheduler": "SCHED", "pe_fetch_store": "FETCH"}


def pe_rects(graph: Graph, shapes: CubeShapes, sip: int, cube: int) -> list[Rect]:
    """Return the outlines of the PEs of a cube; a PE is centred on its middle component."""
    middle = PE_FLOORPLAN[1][1]
    parts = (graph.node(cube_part(sip, cube, f"pe{pe}.{middle}")) for pe in range(graph.spec.pes_per_cube))
    return [center_rect(part.pos_mm, shapes.pe) for part in parts]


def hbm_rects(graph: Graph, shapes: CubeShapes, sip: int, cube: int) -> list[Rect]:
    """Return the outlines of the HBM slices of a cube."""
    slices = (graph.node(cube_part(sip, cube, f"hbm{k}")) for k in range(graph.spec.cube.hbm.slices))
    return [center_rect(node.pos_mm, shapes.hbm) for node in slices]


def draw_cube(canvas: Canvas, graph: Graph, sip: int, cube: int, outline: Rect) -> None:
    """Draw a cube with the names of all its components."""
    shapes = shapes_of(graph)
    nodes = [node for node in graph.nodes.values() if (node.sip, node.cube) == (sip, cube)]
    canvas.box(outline, style.CUBE, radius=0.03 * outline.w, width=1.4, level=UNDER)
    _wires(canvas, graph, nodes)
    for node in nodes:
        _part(canvas, shapes, node)
    for pe, rect in enumerate(pe_rects(graph, shapes, sip, cube)):
        _pe_name(canvas, outline, rect, f"PE {pe}")


def _wires(canvas: Canvas, graph: Graph, nodes: list[Node]) -> None:
    """Draw each pair of links inside the cube once; wires begin at routers and xbars, which come first in ``nodes``."""
    drawn: set[frozenset[str]] = set()
    inside = {node.id: node for node in nodes}
    for edge in (edge for node in nodes for edge in graph.out_edges(node.id)):
        ends = frozenset((edge.src, edge.dst))
        if edge.dst in inside and ends not in drawn:
            drawn.add(ends)
            path = lead_wire(inside[edge.src], inside[edge.dst])
            canvas.lines([path], style.link_colour(edge.link_class), 1.4)


def _part(canvas: Canvas, shapes: CubeShapes, node: Node) -> None:
    """Draw a component with its name."""
    if node.pe is not None:
        canvas.box(center_rect(node.pos_mm, shapes.pe_part), style.EXTRA if node.is_extra else style.PE_PART, width=0.6)
        short = _SHORT.get(node.kind, node.kind.removeprefix("pe_").upper())
        canvas.label(node.pos_mm, shapes.pe_part, short, largest=canvas.fitting(shapes.pe_part, "SCHED", 6.5))
        return
    size, paint, name = _look(shapes, node)
    canvas.box(center_rect(node.pos_mm, size), paint, radius=0.12 * min(size), width=1.0)
    if name:
        canvas.label(node.pos_mm, size, name)


def _look(shapes: CubeShapes, node: Node) -> tuple[PointMm, style.Paint, str]:
    """Return size, paint and name of a component outside the PEs."""
    if node.is_extra:
        size = f"\n{format_size(node.window.nbytes)}" if node.window is not None else ""
        return shapes.middle, style.EXTRA, f"{node.kind}{size}"
    sram = format_size(shapes.spec.sram.bytes)
    looks = {
        "noc_router": (shapes.router, style.ROUTER, ""),
        "xbar": (shapes.xbar, style.XBAR, "xbar"),
        "hbm_ctrl": (shapes.hbm, style.HBM, f"HBM {node.index}"),
        "ucie": (shapes.ucie(node.side), style.UCIE, "UCIe"),
        "m_cpu": (shapes.middle, style.CPU, "M_CPU"),
        "sram": (shapes.middle, style.SRAM, f"SRAM\n{sram}"),
    }
    return looks[node.kind]


def _pe_name(canvas: Canvas, outline: Rect, rect: Rect, name: str) -> None:
    """Write the name of a PE between the PE and the edge of the cube."""
    gap = 0.017 * outline.h
    outward = rect.y - gap if rect.y < outline.centre[1] else rect.y + rect.h + gap
    canvas.text((rect.centre[0], outward), name, 7, bold=True, colour="#8f3f6b")


# With more cubes, their PEs and slices would be too small to see.
DETAILED_CUBES = 128


def draw_system(canvas: Canvas, graph: Graph) -> None:
    """Draw the components outside the cubes with names, and the cubes with PEs and HBM slices as blocks."""
    geometry, shapes = MachineGeometry(graph.spec), shapes_of(graph)
    _host(canvas, graph, geometry)
    for sip in range(graph.spec.num_sips):
        outline = geometry.sip(sip)
        canvas.box(outline_with_margin(outline), style.SIP, radius=1.0, width=1.0, level=UNDER)
        _cubes(canvas, graph, shapes, sip)
        _chiplet(canvas, graph, sip)
        _die_links(canvas, graph, sip)
    _cables(canvas, graph)


def outline_with_margin(outline: Rect) -> Rect:
    """Return the package around the dies of a SIP."""
    return Rect(outline.x - 0.8, outline.y - 0.8, outline.w + 1.6, outline.h + 1.6)


def _host(canvas: Canvas, graph: Graph, geometry: MachineGeometry) -> None:
    for rect, name in ((geometry.host(), HOST), (geometry.switch(), SWITCH)):
        canvas.box(rect, style.HOST, radius=0.8, width=1.0)
        canvas.label(rect.centre, (rect.w, rect.h), name, largest=9, bold=True)
    host, switch = geometry.host(), geometry.switch()
    wire = ((host.centre[0], host.y + host.h), (switch.centre[0], switch.y))
    canvas.lines(
        [wire], style.LINK_COLOURS["host_to_switch"], canvas.pen(_width(graph.spec.system.links.host_to_switch.bw_gbs))
    )


def _cubes(canvas: Canvas, graph: Graph, shapes: CubeShapes, sip: int) -> None:
    geometry, spec = MachineGeometry(graph.spec), graph.spec
    outline = geometry.sip(sip)
    rects = [geometry.cube_rect(outline, cube) for cube in range(spec.cubes_per_sip)]
    canvas.boxes(rects, style.CUBE, width=0.9)
    if spec.num_cubes <= DETAILED_CUBES:
        cubes = range(spec.cubes_per_sip)
        canvas.boxes([r for cube in cubes for r in pe_rects(graph, shapes, sip, cube)], style.PE, width=0.4)
        canvas.boxes([r for cube in cubes for r in hbm_rects(graph, shapes, sip, cube)], style.HBM, width=0.4)
    for cube, rect in enumerate(rects):
        canvas.label(rect.centre, (0.45 * rect.w, 0.3 * rect.h), f"{cube}", largest=8)


def _chiplet(canvas: Canvas, graph: Graph, sip: int) -> None:
    geometry = MachineGeometry(graph.spec)
    outline = geometry.sip(sip)
    chiplet = geometry.chiplet(outline)
    canvas.box(chiplet.rect, style.CHIPLET, radius=0.5, width=1.0)
    along, across = max(chiplet.rect.w, chiplet.rect.h), min(chiplet.rect.w, chiplet.rect.h)
    long, short = min(7.0, 0.18 * along), min(1.7, 0.3 * across)
    block = (long, short) if chiplet.rect.w > chiplet.rect.h else (short, long)
    canvas.lines(_chiplet_wires(graph, sip), style.LINK_COLOURS["io_internal"], canvas.pen(1.1), level=BOXES)
    looks = {"pcie_ep": style.HOST, "io_cpu": style.CPU, "io_noc": style.ROUTER}
    for name, paint in looks.items():
        at = graph.node(sip_part(sip, name)).pos_mm
        canvas.box(center_rect(at, block), paint, radius=0.2, width=0.7)
        canvas.label(at, block, name, largest=6.5)
    canvas.label(chiplet.at(0.76, 0.78), block, "IO chiplet", largest=7)
    name = f"SIP {sip}"
    size = canvas.fitting((12, 3), name, 9)
    if size:
        canvas.text((outline.x - 0.6, outline.y - 2.6), name, size, bold=True, align="left")


def _chiplet_wires(graph: Graph, sip: int) -> list[list[PointMm]]:
    """Return the wires from the chiplet's NoC, along the middle of the chiplet, to each component."""
    noc = graph.node(sip_part(sip, "io_noc"))
    lying = graph.spec.sip.io_chiplet.edge in {"N", "S"}
    ends = [graph.node(edge.dst).pos_mm for edge in graph.out_edges(noc.id)]
    bends = [(x, noc.pos_mm[1]) if lying else (noc.pos_mm[0], y) for x, y in ends]
    return [[noc.pos_mm, bend, end] for bend, end in zip(bends, ends, strict=True)]


def _die_links(canvas: Canvas, graph: Graph, sip: int) -> None:
    """Draw UCIe between dies, as bridges over the gaps, and the scale-up ports."""
    nodes = [node for node in graph.nodes.values() if node.sip == sip]
    links = (edge for node in nodes for edge in graph.out_edges(node.id))
    ends = [(graph.node(e.src), graph.node(e.dst)) for e in links if e.link_class in {"cube_to_cube", "io_to_cube"}]
    canvas.boxes([_bridge(a, b) for a, b in ends if a.id < b.id], style.UCIE, width=0.7)
    ports = [center_rect(node.pos_mm, (1.3, 1.3)) for node in nodes if node.kind == "sip_port"]
    canvas.boxes(ports, Paint(style.VERMILLION, style.VERMILLION), width=0.5)


def _bridge(a: Node, b: Node) -> Rect:
    """Return the rectangle, 1 mm wide, between two ports that face each other."""
    (x0, y0), (x1, y1) = a.pos_mm, b.pos_mm
    if abs(x1 - x0) > abs(y1 - y0):
        return Rect(min(x0, x1), (y0 + y1) / 2 - 0.5, abs(x1 - x0), 1.0)
    return Rect((x0 + x1) / 2 - 0.5, min(y0, y1), 1.0, abs(y1 - y0))


def _cables(canvas: Canvas, graph: Graph) -> None:
    links = graph.spec.system.links
    colours = style.LINK_COLOURS
    canvas.lines(host_cables(graph), colours["switch_to_sip"], canvas.pen(_width(links.switch_to_sip.bw_gbs)))
    for cable in scale_up_cables(graph):
        canvas.lines([cable.path], colours["sip_to_sip"], canvas.pen(_width(links.sip_to_sip.bw_gbs)))
        if not cable.both_ways:
            canvas.arrow(cable.path, colours["sip_to_sip"])


def _width(bw_gbs: float) -> float:
    """Return a line width in points: wider for more bandwidth, within limits."""
    return min(max(0.7 + bw_gbs / 128.0, 0.8), 3.0)
