"""Drawing of the default collective: SIPs and their links, and the cubes within a SIP."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, Patch, Rectangle

from kernbench.common.values import value
from kernbench.evaluation.ccl_fabrics import Fabric
from kernbench.result import figure_style as style
from kernbench.topology.grid import Grid

SIP_SIZE, PITCH = 1.0, 1.75
SIP_PAPER, CUBE_PAPER = "#EDF3F8", "#BFD7EA"
ROOT_PAPER = style.ORANGE
LINK, PASS = style.BLUE, style.VERMILLION
MARGIN = 0.75


@value
class Wire:
    """A link between neighbouring SIPs. ``around``: the link closes a row or a column."""

    a: int
    b: int
    around: bool
    vertical: bool


def draw_topologies(fabrics: Sequence[Fabric], cubes: Grid, root: int, path: Path) -> None:
    """Draw the largest fabric of each family, and the cubes of a SIP. ``root``: the cube that reaches other SIPs."""
    kinds = dict.fromkeys(fabric.kind for fabric in fabrics)
    largest = [max((f for f in fabrics if f.kind == kind), key=lambda f: f.sips) for kind in kinds]
    title = "Participants of an all-reduce over cubes and SIPs"
    with style.drawing(path, 10.4, 6.4, title) as figure:
        above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=(1, 1.15))[:, 0]
        for axes, fabric in zip(above.subplots(1, len(largest), squeeze=False)[0], largest, strict=True):
            _fabric_panel(axes, fabric, cubes, root)
        up, down = below.subplots(1, 2)
        _cube_panel(up, cubes, root, down=False)
        _cube_panel(down, cubes, root, down=True)
        below.legend(handles=_handles(), loc="outside lower center", ncols=4)


def wires(fabric: Fabric) -> tuple[Wire, ...]:
    """Return the links between SIPs: east and south of each SIP, and those that close a row or column."""
    grid, links = Grid(fabric.w, fabric.h), []
    closes = fabric.kind != "mesh_2d_no_wrap"
    for sip in range(fabric.sips):
        x, y = grid.xy(sip)
        for side, last, extent, vertical in (
            ("E", x == grid.w - 1, grid.w, False),
            ("S", y == grid.h - 1, grid.h, True),
        ):
            peer = grid.neighbour(sip, "E" if side == "E" else "S", wrap=closes)
            if peer is not None and extent > 1:
                links.append(Wire(sip, peer, last, vertical))
    return tuple(links)


def sip_position(fabric: Fabric, sip: int) -> tuple[float, float]:
    """Return the position of a SIP in the drawing. A long ring is folded into two rows."""
    if fabric.h == 1 and fabric.sips > 3:
        half = -(-fabric.sips // 2)
        x, y = (sip, 0) if sip < half else (fabric.sips - 1 - sip, 1)
        return x * PITCH, -y * PITCH
    x, y = Grid(fabric.w, fabric.h).xy(sip)
    return x * PITCH, -y * PITCH


def _fabric_panel(axes: Axes, fabric: Fabric, cubes: Grid, root: int) -> None:
    for wire in wires(fabric):
        _draw_wire(axes, fabric, wire)
    for sip in range(fabric.sips):
        _draw_sip(axes, sip_position(fabric, sip), cubes, root, f"SIP {sip}")
    xs, ys = zip(*(sip_position(fabric, sip) for sip in range(fabric.sips)), strict=True)
    axes.set_xlim(min(xs) - MARGIN, max(xs) + SIP_SIZE + MARGIN)
    axes.set_ylim(min(ys) - MARGIN, max(ys) + SIP_SIZE + MARGIN)
    axes.set_aspect("equal")
    axes.set_axis_off()
    below = axes.transAxes
    axes.text(0.5, 0.04, _what(fabric), transform=below, ha="center", va="top", fontsize=9.5, fontweight="bold")


def _what(fabric: Fabric) -> str:
    """Describe in words how the SIPs of a fabric exchange data."""
    if not fabric.two_dimensional:
        return f"{fabric.title}: one ring,\nreduce-scatter and all-gather"
    lines = "lines" if fabric.kind == "mesh_2d_no_wrap" else "rings"
    return f"{fabric.title}: reduce-scatter along {lines},\nrows first; all-gather in reverse"


def _draw_wire(axes: Axes, fabric: Fabric, wire: Wire) -> None:
    (ax, ay), (bx, by) = sip_position(fabric, wire.a), sip_position(fabric, wire.b)
    half = SIP_SIZE / 2
    a, b = (ax + half, ay + half), (bx + half, by + half)
    folded = fabric.h == 1 and fabric.sips > 3
    bend = 0.0
    if wire.around and not folded:
        # Draw outside the SIPs: above or below a row, left or right of a column.
        if wire.vertical:
            side = -1.0 if ax == 0 else 1.0
            a, b = (ax + half + side * half * 0.9, ay + half), (bx + half + side * half * 0.9, by + half)
            bend = -0.38 * side
        else:
            side = 1.0 if ay == 0 else -1.0
            a, b = (ax + half, ay + half + side * half * 0.9), (bx + half, by + half + side * half * 0.9)
            bend = 0.22 * side
    line = FancyArrowPatch(
        a, b, arrowstyle="-", connectionstyle=f"arc3,rad={bend}", color=LINK, linewidth=2.2, zorder=1
    )
    axes.add_patch(line)


def _draw_sip(axes: Axes, at: tuple[float, float], cubes: Grid, root: int, name: str) -> None:
    x0, y0 = at
    axes.add_patch(Rectangle(at, SIP_SIZE, SIP_SIZE, facecolor=SIP_PAPER, edgecolor=style.MUTED, linewidth=1, zorder=2))
    cell = SIP_SIZE / (max(cubes.w, cubes.h) + 1.9)
    left, top = x0 + (SIP_SIZE - cubes.w * cell) / 2, y0 + cell * cubes.h + 0.06
    for cube in range(len(cubes)):
        x, y = cubes.xy(cube)
        corner = (left + x * cell + 0.08 * cell, top - (y + 1) * cell + 0.08 * cell)
        colour = ROOT_PAPER if cube == root else CUBE_PAPER
        axes.add_patch(Rectangle(corner, 0.84 * cell, 0.84 * cell, facecolor=colour, linewidth=0, zorder=3))
    axes.text(x0 + SIP_SIZE / 2, y0 + SIP_SIZE - 0.03, name, ha="center", va="top", fontsize=7.5, zorder=4)


def _cube_panel(axes: Axes, cubes: Grid, root: int, *, down: bool) -> None:
    for cube in range(len(cubes)):
        x, y = cubes.xy(cube)
        colour = ROOT_PAPER if cube == root else CUBE_PAPER
        axes.add_patch(Rectangle((x + 0.14, -y - 0.86), 0.72, 0.72, facecolor=colour, edgecolor=style.MUTED, zorder=2))
        axes.text(x + 0.18, -y - 0.83, str(cube), ha="left", va="bottom", fontsize=7.5, zorder=3)
        axes.add_patch(Rectangle((x + 0.42, -y - 0.58), 0.16, 0.16, facecolor=style.INK, zorder=4))
    for a, b in _steps(cubes):
        (ax, ay), (bx, by) = (_middle(cubes, cube) for cube in ((b, a) if down else (a, b)))
        axes.add_patch(
            FancyArrowPatch(
                (ax, ay),
                (bx, by),
                arrowstyle="-|>",
                mutation_scale=11,
                shrinkA=7,
                shrinkB=7,
                color=PASS,
                linewidth=1.6,
                zorder=5,
            )
        )
    axes.set_xlim(0, cubes.w)
    axes.set_ylim(-cubes.h, 0)
    axes.set_aspect("equal")
    axes.set_axis_off()
    first = "before SIPs meet: rows add up to the east,\nthe last column to the south"
    axes.set_title("afterwards: the sum goes back the same ways" if down else first, fontsize=9.5)


def _steps(cubes: Grid) -> list[tuple[int, int]]:
    """Return the hops between cubes of the reduction towards the root cube."""
    east = [(cubes.index(x, y), cubes.index(x + 1, y)) for y in range(cubes.h) for x in range(cubes.w - 1)]
    south = [(cubes.index(cubes.w - 1, y), cubes.index(cubes.w - 1, y + 1)) for y in range(cubes.h - 1)]
    return east + south


def _middle(cubes: Grid, cube: int) -> tuple[float, float]:
    x, y = cubes.xy(cube)
    return x + 0.5, -y - 0.5


def _handles() -> list[Artist]:
    return [
        Line2D([], [], color=LINK, linewidth=2.2, label="links of SIPs, both ways"),
        Patch(color=CUBE_PAPER, label="cube: a row of the tensor"),
        Patch(color=ROOT_PAPER, label="root cube: works with those of the other SIPs"),
        Line2D([], [], color=style.INK, linestyle="none", marker="s", label="its PE 0, the one that works"),
    ]
