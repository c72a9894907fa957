"""The drawing of a machine: the board to scale, an enlarged cube, and the figures of the links."""

from __future__ import annotations

import io
from pathlib import PurePath

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import ConnectionPatch

from kernbench.common.units import format_size
from kernbench.common.values import value
from kernbench.topology.builder import Topology
from kernbench.topology.drawing import style
from kernbench.topology.drawing.canvas import TEXT, Canvas, round_length
from kernbench.topology.drawing.system import draw_cube, draw_system
from kernbench.topology.export import LinkRow, link_rows
from kernbench.topology.geometry import MachineGeometry, Rect, board_grid
from kernbench.topology.graph import Graph

POINTS_PER_INCH = 72
CUBE_INCHES, MARGIN_INCHES = 6.2, 0.35
HEAD_INCHES, FOOT_INCHES = 0.95, 1.75
PAGE_INCHES, LARGEST_INCHES, READABLE_PT_PER_MM = 9.6, 20.0, 3.2
BOARD_MARGIN_MM = 9.0
FONT = "DejaVu Sans"
"""Font of the drawing; a browser without it uses Verdana, which has the same width"""


@value
class PageLayout:
    """Sizes of the figure in inches: the board on the left, the cube on the right, the heading above, links below."""

    board_w: float
    board_h: float

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of the figure."""
        w = self.board_w + CUBE_INCHES + 3 * MARGIN_INCHES
        return w, self.body_h + HEAD_INCHES + FOOT_INCHES

    @property
    def body_h(self) -> float:
        """The height of the two panels."""
        return max(self.board_h, CUBE_INCHES + 0.5)

    def place(self, x: float, y: float, w: float, h: float) -> tuple[float, float, float, float]:
        """Convert a rectangle in inches to matplotlib's fractions of the figure."""
        width, height = self.size
        return x / width, y / height, w / width, h / height


def draw(topology: Topology) -> Figure:
    """Draw a machine. Use ``to_svg`` or ``to_png`` for a file."""
    graph = topology.topology_obj
    view = _board_view(graph)
    layout = _layout(view)
    figure = Figure(figsize=layout.size, facecolor=style.PAPER)
    board = _board(figure, layout, view, graph)
    cube, zoomed = _cube(figure, layout, graph)
    _zoom_lines(figure, board, cube, zoomed)
    _heading(figure, layout, topology)
    _links(figure, layout, graph)
    return figure


def to_svg(topology: Topology) -> str:
    """Return the drawing as SVG, with identical text for identical machines."""
    with rc_context({"svg.hashsalt": "kernbench", "svg.fonttype": "none", "font.family": FONT}):
        figure, text = draw(topology), io.StringIO()
        FigureCanvasSVG(figure)
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": "kernbench"})
    return text.getvalue().replace(f"'{FONT}'", f"'{FONT}', Verdana, sans-serif")


def to_png(topology: Topology, dpi: int = 150) -> bytes:
    """Return the drawing as PNG."""
    with rc_context({"font.family": FONT}):
        figure, data = draw(topology), io.BytesIO()
        FigureCanvasAgg(figure)
        figure.savefig(data, format="png", dpi=dpi, metadata={"Software": "kernbench"})
    return data.getvalue()


def _board_view(graph: Graph) -> Rect:
    geometry = MachineGeometry(graph.spec)
    sips = [geometry.sip(sip) for sip in range(graph.spec.num_sips)]
    blocks = [*sips, geometry.host(), geometry.switch()]
    west, east = min(b.x for b in blocks), max(b.x + b.w for b in blocks)
    south = max(b.y + b.h for b in blocks)
    return Rect(west - BOARD_MARGIN_MM, -1.0, east - west + 2 * BOARD_MARGIN_MM, south + BOARD_MARGIN_MM + 1.0)


def _layout(view: Rect) -> PageLayout:
    """Return a layout in which the board has the height of the cube's panel or the width of a page.

    The board is larger if its text would be too small to read, up to a limit.
    """
    page = min((CUBE_INCHES + 0.5) / view.h, PAGE_INCHES / view.w)
    inches_per_mm = min(max(page, READABLE_PT_PER_MM / POINTS_PER_INCH), LARGEST_INCHES / max(view.w, view.h))
    return PageLayout(view.w * inches_per_mm, view.h * inches_per_mm)


def _board(figure: Figure, layout: PageLayout, view: Rect, graph: Graph) -> Canvas:
    left, bottom = MARGIN_INCHES, FOOT_INCHES + (layout.body_h - layout.board_h) / 2
    axes = figure.add_axes(layout.place(left, bottom, layout.board_w, layout.board_h))
    scale = min(layout.board_w / view.w, layout.board_h / view.h) * POINTS_PER_INCH
    canvas = Canvas(axes, view, scale)
    draw_system(canvas, graph)
    length = round_length(view.w / 5)
    canvas.scale_bar((view.x + 1.0, view.y + view.h - 2.5), length, 8, " · cables are not to scale")
    return canvas


def _cube(figure: Figure, layout: PageLayout, graph: Graph) -> tuple[Canvas, Rect]:
    sip, cube, outline = _choose_zoom(graph)
    margin = 0.06 * max(outline.w, outline.h)
    side = max(outline.w, outline.h) + 2 * margin
    view = Rect(outline.centre[0] - side / 2, outline.centre[1] - side / 2, side, side)
    left = layout.board_w + 2 * MARGIN_INCHES
    bottom = FOOT_INCHES + (layout.body_h - CUBE_INCHES) / 2
    axes = figure.add_axes(layout.place(left, bottom, CUBE_INCHES, CUBE_INCHES))
    canvas = Canvas(axes, view, CUBE_INCHES / side * POINTS_PER_INCH)
    draw_cube(canvas, graph, sip, cube, outline)
    canvas.text((outline.x, outline.y - margin / 2), f"Cube {cube} of SIP {sip}", 10, bold=True, align="left")
    length = round_length(outline.w / 5)
    canvas.scale_bar((outline.x, outline.y + outline.h + margin / 2), length, 8)
    return canvas, outline


def _choose_zoom(graph: Graph) -> tuple[int, int, Rect]:
    """Return the cube to enlarge, which is the nearest to the panel on the right."""
    geometry = MachineGeometry(graph.spec)
    sip = min(board_grid(graph.spec.system.sips).w, graph.spec.num_sips) - 1
    cube = graph.spec.sip.cube_mesh.w - 1
    return sip, cube, geometry.cube_rect(geometry.sip(sip), cube)


def _zoom_lines(figure: Figure, board: Canvas, cube: Canvas, rect: Rect) -> None:
    """Draw lines from the cube on the board to its enlargement."""
    for y in (rect.y, rect.y + rect.h):
        line = ConnectionPatch((rect.x + rect.w, y), (rect.x, y), "data", "data", axesA=board.axes, axesB=cube.axes)
        line.set(color=style.MUTED, linewidth=0.8, linestyle=(0, (4, 3)), zorder=-1)
        figure.add_artist(line)
    board.lines([_ring(rect)], style.INK, 1.6, level=TEXT)


def _ring(rect: Rect) -> list[tuple[float, float]]:
    x, y, w, h = rect.x, rect.y, rect.w, rect.h
    return [(x, y), (x + w, y), (x + w, y + h), (x, y + h), (x, y)]


def _heading(figure: Figure, layout: PageLayout, topology: Topology) -> None:
    spec = topology.spec
    sips, mesh, hbm = spec.system.sips, spec.sip.cube_mesh, spec.cube.hbm
    shape = f"{sips.topology} {sips.grid.w} × {sips.grid.h}" if sips.two_dimensional else sips.topology
    words = (
        _format_count(spec.num_sips, "SIP") + (f" ({shape})" if spec.num_sips > 1 else ""),
        f"{_format_count(spec.cubes_per_sip, 'cube')} ({mesh.w} × {mesh.h}) a SIP",
        f"{_format_count(spec.pes_per_cube, 'PE')} a cube",
        f"{_format_count(spec.num_pes, 'PE')} in all",
        f"{spec.cube.hbm.timing_text} {hbm.slices} × {format_size(hbm.bytes_per_slice)} a cube, {spec.cube.slice_text}",
    )
    left, top = MARGIN_INCHES / layout.size[0], layout.size[1]
    figure.text(
        left,
        (top - 0.35) / top,
        f"kernbench · {PurePath(topology.name).name}",
        fontsize=16,
        fontweight="bold",
        color=style.INK,
        va="center",
    )
    figure.text(left, (top - 0.68) / top, "  ·  ".join(words), fontsize=9.5, color=style.MUTED, va="center")


def _format_count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _links(figure: Figure, layout: PageLayout, graph: Graph) -> None:
    """Write a legend entry for each link class, in columns."""
    order = {name: at for at, name in enumerate(style.LINK_COLOURS)}
    rows = sorted(link_rows(graph), key=lambda row: order.get(row.link_class, len(order)))
    per_column = 5
    columns = -(-len(rows) // per_column)
    width = (layout.size[0] - 2 * MARGIN_INCHES) / max(columns, 3)
    for number, row in enumerate(rows):
        column, line = divmod(number, per_column)
        _link_entry(figure, layout, MARGIN_INCHES + column * width, FOOT_INCHES - 0.35 - 0.27 * line, row)


def _link_entry(figure: Figure, layout: PageLayout, x: float, y: float, row: LinkRow) -> None:
    w, h = layout.size
    axes = figure.add_axes(layout.place(x, y - 0.05, 0.28, 0.1))
    axes.axis("off")
    axes.plot([0, 1], [0, 0], color=style.link_colour(row.link_class), linewidth=3.0, solid_capstyle="round")
    short, long = row.length_mm
    length = f"{short:.3g}" if f"{short:.3g}" == f"{long:.3g}" else f"{short:.3g}–{long:.3g}"
    figure.text((x + 0.38) / w, y / h, row.link_class, fontsize=8, fontweight="bold", color=style.INK, va="center")
    about = f"{row.bw_gbs:g} GB/s, {length} mm"
    figure.text((x + 1.65) / w, y / h, about, fontsize=8, color=style.INK, va="center")
