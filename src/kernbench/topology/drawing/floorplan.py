"""One cube, drawn to scale: enlarged with names and wires, or small as one of many."""

from __future__ import annotations

from kernbench.common.ids import cube_part
from kernbench.common.units import format_size
from kernbench.topology.drawing import style
from kernbench.topology.drawing.canvas import UNDER, Canvas, centred
from kernbench.topology.geometry import PE_FLOORPLAN, Point, Rect
from kernbench.topology.graph import Graph, Node
from kernbench.topology.shapes import CubeShapes, led, shapes_of

_SHORT = {"pe_scheduler": "SCHED", "pe_fetch_store": "FETCH"}


def pe_rects(graph: Graph, shapes: CubeShapes, sip: int, cube: int) -> list[Rect]:
    """The outlines of the PEs of a cube; a PE is centred on the middle of its parts."""
    middle = PE_FLOORPLAN[1][1]
    parts = (graph.node(cube_part(sip, cube, f"pe{pe}.{middle}")) for pe in range(graph.spec.pes_per_cube))
    return [centred(part.pos_mm, shapes.pe) for part in parts]


def hbm_rects(graph: Graph, shapes: CubeShapes, sip: int, cube: int) -> list[Rect]:
    """The outlines of the HBM slices of a cube."""
    slices = (graph.node(cube_part(sip, cube, f"hbm{k}")) for k in range(graph.spec.cube.hbm.slices))
    return [centred(node.pos_mm, shapes.hbm) for node in slices]


def draw_cube(canvas: Canvas, graph: Graph, sip: int, cube: int, outline: Rect) -> None:
    """A cube with everything in it named."""
    shapes = shapes_of(graph)
    nodes = [node for node in graph.nodes.values() if (node.sip, node.cube) == (sip, cube)]
    canvas.box(outline, style.CUBE, radius=0.03 * outline.w, width=1.4, level=UNDER)
    _wires(canvas, graph, nodes)
    for node in nodes:
        _part(canvas, shapes, node)
    for pe, rect in enumerate(pe_rects(graph, shapes, sip, cube)):
        _pe_name(canvas, outline, rect, f"PE {pe}")


def _wires(canvas: Canvas, graph: Graph, nodes: list[Node]) -> None:
    """Each pair of links inside the cube once; routers and xbars come first, so wires begin at them."""
    drawn: set[frozenset[str]] = set()
    inside = {node.id: node for node in nodes}
    for edge in (edge for node in nodes for edge in graph.out_edges(node.id)):
        ends = frozenset((edge.src, edge.dst))
        if edge.dst in inside and ends not in drawn:
            drawn.add(ends)
            path = led(inside[edge.src], inside[edge.dst])
            canvas.lines([path], style.LINK_COLOURS[edge.link_class], 1.4)


def _part(canvas: Canvas, shapes: CubeShapes, node: Node) -> None:
    """A part with its name."""
    if node.pe is not None:
        canvas.box(centred(node.pos_mm, shapes.pe_part), style.PE_PART, width=0.6)
        short = _SHORT.get(node.kind, node.kind.removeprefix("pe_").upper())
        canvas.label(node.pos_mm, shapes.pe_part, short, largest=canvas.fitting(shapes.pe_part, "SCHED", 6.5))
        return
    size, paint, name = _look(shapes, node)
    canvas.box(centred(node.pos_mm, size), paint, radius=0.12 * min(size), width=1.0)
    if name:
        canvas.label(node.pos_mm, size, name)


def _look(shapes: CubeShapes, node: Node) -> tuple[Point, style.Paint, str]:
    """Size, paint and name of a part outside the PEs."""
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
    """The name of a PE between it and the edge of the cube."""
    gap = 0.017 * outline.h
    outward = rect.y - gap if rect.y < outline.centre[1] else rect.y + rect.h + gap
    canvas.text((rect.centre[0], outward), name, 7, bold=True, colour="#8f3f6b")
