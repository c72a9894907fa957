"""A matplotlib Axes measured in mm, with the shapes of the drawing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PatchCollection
from matplotlib.patches import FancyBboxPatch, Rectangle

from kernbench.topology.drawing.style import INK, PAPER, Paint
from kernbench.topology.geometry import PointMm, Rect, manhattan_mm

# Dimensions of a sans-serif font, as fractions of its size.
LETTER_WIDTH, LINE_HEIGHT = 0.72, 1.35
SMALLEST_PT = 4.2

# Drawn from the bottom up.
UNDER, WIRES, BOXES, TEXT = 1, 2, 3, 4


def center_rect(at: PointMm, size: PointMm) -> Rect:
    """Return the rectangle of this size around a point."""
    return Rect(at[0] - size[0] / 2, at[1] - size[1] / 2, *size)


class Canvas:
    """Shapes in mm; y grows to the south."""

    def __init__(self, axes: Axes, view: Rect, points_per_mm: float) -> None:
        self.axes, self.view, self.points_per_mm = axes, view, points_per_mm
        axes.set_xlim(view.x, view.x + view.w)
        axes.set_ylim(view.y + view.h, view.y)
        axes.set_aspect("equal")
        axes.axis("off")

    def box(self, rect: Rect, paint: Paint, *, radius: float = 0.0, width: float = 0.8, level: int = BOXES) -> None:
        """Draw a rectangle, with rounded corners if ``radius`` is not 0."""
        style = f"round,pad=0,rounding_size={radius}" if radius else "square,pad=0"
        shape = FancyBboxPatch((rect.x, rect.y), rect.w, rect.h, boxstyle=style, fc=paint.fill, ec=paint.line)
        shape.set(linewidth=width, zorder=level, mutation_aspect=1)
        self.axes.add_patch(shape)

    def boxes(self, rects: Iterable[Rect], paint: Paint, *, width: float = 0.5, level: int = BOXES) -> None:
        """Draw many plain rectangles of one style."""
        patches = [Rectangle((r.x, r.y), r.w, r.h) for r in rects]
        self.axes.add_collection(
            PatchCollection(patches, facecolor=paint.fill, edgecolor=paint.line, linewidth=width, zorder=level)
        )

    def lines(self, paths: Iterable[Sequence[PointMm]], colour: str, width: float, *, level: int = WIRES) -> None:
        """Draw many polylines of one style."""
        shape = LineCollection(list(paths), colors=colour, linewidths=width, zorder=level)
        shape.set(capstyle="round", joinstyle="round")
        self.axes.add_collection(shape)

    def arrow(self, path: Sequence[PointMm], colour: str) -> None:
        """Draw an arrowhead in the middle of the longest straight segment of a path."""
        a, b = max(pairwise(path), key=lambda ends: manhattan_mm(*ends))
        tip = (a[0] + 0.55 * (b[0] - a[0]), a[1] + 0.55 * (b[1] - a[1]))
        style = {"arrowstyle": "-|>", "color": colour, "lw": 0, "mutation_scale": 14}
        self.axes.annotate("", xy=tip, xytext=a, arrowprops=style, zorder=TEXT)

    def text(
        self,
        at: PointMm,
        words: str,
        size: float,
        *,
        colour: str = INK,
        bold: bool = False,
        align: Literal["left", "center"] = "center",
        rotated: bool = False,
    ) -> None:
        """Write words centred at a point, or from the point on with ``align="left"``; ``rotated`` writes upwards."""
        label = self.axes.text(*at, words, fontsize=size, color=colour, ha=align, va="center", zorder=TEXT)
        label.set_fontweight("bold" if bold else "normal")
        label.set_rotation(90.0 if rotated else 0.0)
        if align == "left":
            label.set_bbox({"facecolor": PAPER, "edgecolor": "none", "pad": 1.0})

    def fitting(self, size: PointMm, words: str, largest: float) -> float:
        """Return the font size in points, at most ``largest``, at which words fill a block; 0 if unreadable."""
        lines = words.split("\n")
        by_width = 0.92 * size[0] * self.points_per_mm / (LETTER_WIDTH * max(map(len, lines)))
        by_height = 0.92 * size[1] * self.points_per_mm / (LINE_HEIGHT * len(lines))
        size_pt = min(largest, by_width, by_height)
        return size_pt if size_pt >= SMALLEST_PT else 0.0

    def label(self, at: PointMm, size: PointMm, words: str, *, largest: float = 7.5, bold: bool = False) -> None:
        """Write words inside a block of this size, upwards in a slender block; omit words too small to read."""
        upright = size[1] > 1.5 * size[0]
        size_pt = self.fitting(size[::-1] if upright else size, words, largest)
        if size_pt:
            self.text(at, words, size_pt, bold=bold, rotated=upright)

    def pen(self, width: float) -> float:
        """Return a line width in points, thinner if a millimetre is small on the page."""
        return width * min(1.0, max(0.45, self.points_per_mm / 5.0))

    def scale_bar(self, at: PointMm, length_mm: float, size: float, remark: str = "") -> None:
        """Draw a scale bar of ``length_mm``, with its length and a remark beside it."""
        x, y = at
        tick = self.view.h * 0.006
        ends = [((x, y - tick), (x, y + tick)), ((x + length_mm, y - tick), (x + length_mm, y + tick))]
        self.lines([((x, y), (x + length_mm, y)), *ends], INK, 1.4, level=TEXT)
        self.text((x + length_mm + self.view.w * 0.012, y), f"{length_mm:g} mm{remark}", size, align="left")


def round_length(limit_mm: float) -> float:
    """Return the length of a scale bar: the largest of 1, 2, 5 times a power of ten up to ``limit_mm``."""
    power = 10.0 ** len(str(int(limit_mm))) / 10 if limit_mm >= 1 else 0.1
    return next(step * power for step in (5, 2, 1) if step * power <= limit_mm or step == 1)
