"""Figures of collective latency against size by fabric, and of the time outside the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from kernbench.evaluation import figure_style as style
from kernbench.evaluation.ccl_fabrics import INTERCUBE, KIB, TITLES, AlgorithmName, Fabric
from kernbench.evaluation.ccl_reference import SizeComparison
from kernbench.evaluation.ccl_results import CclSweep, CollectivePoint, CollectiveTime
from kernbench.evaluation.figure_style import size_axis, size_title, time_axis

FAMILIES = tuple(TITLES)
MEANING = {
    INTERCUBE: "bytes of a cube's row, of which all cubes of all SIPs are added",
    "sip_allreduce": "bytes of a SIP's tensor, on one PE",
}
CONTROL_SIZE = 4 * KIB
"""Size for which the control path is drawn, or the nearest simulated size"""
# Offsets separate curves that coincide.
SHRINK = 2.6
WIDTH = 0.38


def draw_latency(sweep: CclSweep, reference: Sequence[SizeComparison], path: Path) -> None:
    """Draw a panel per algorithm and number of SIPs: simulation, closed form, and a reference if it applies."""
    counts = sorted({fabric.sips for fabric in sweep.fabrics})
    rows = len(sweep.algorithms)
    title = "Latency of all-reduce against size"
    with style.drawing(path, 0.8 + 3.2 * len(counts), 0.9 + 2.9 * rows, title) as figure:
        panels = figure.subplots(rows, len(counts), squeeze=False, sharex="row", sharey="row")
        for row, algorithm in enumerate(sweep.algorithms):
            for column, sips in enumerate(counts):
                _latency_panel(panels[row][column], sweep, algorithm, sips)
                if algorithm == INTERCUBE and sweep.own.sips == sips:
                    _draw_reference(panels[row][column], reference)
            panels[row][0].set_ylabel("latency (µs)")
        families = dict.fromkeys(fabric.kind for fabric in sweep.fabrics)
        style.legend_above(figure, _latency_handles(list(families), bool(reference)), columns=6)


def _latency_panel(axes: Axes, sweep: CclSweep, algorithm: AlgorithmName, sips: int) -> None:
    sizes: list[int] = []
    same = [fabric for fabric in sweep.fabrics if fabric.sips == sips]
    for at, fabric in enumerate(same):
        curve = sweep.curve(algorithm, fabric)
        colour, marker = _look(fabric)
        sizes += [point.nbytes for point in curve]
        size = 4 + SHRINK * (len(same) - 1 - at)
        axes.plot(
            [point.nbytes for point in curve],
            [point.direct.latency_ns for point in curve],
            color=colour,
            marker=marker,
            markersize=size,
        )
        # The closed form covers the kernels. The control path is the same for all sizes.
        formed = [(p.nbytes, p.closed_ns + p.direct.control_ns) for p in curve if p.closed_ns is not None]
        axes.plot([x for x, _ in formed], [y for _, y in formed], color=colour, **style.THEORY)
    axes.set_title(f"{algorithm}, {sips} SIPs")
    time_axis(axes, close=True)
    size_axis(axes, sizes, MEANING[algorithm] if sips == _middle(sweep) else "")


def _middle(sweep: CclSweep) -> int:
    counts = sorted({fabric.sips for fabric in sweep.fabrics})
    return counts[len(counts) // 2]


def _draw_reference(axes: Axes, reference: Sequence[SizeComparison]) -> None:
    if not reference:
        return
    axes.plot(
        [point.nbytes for point in reference],
        [point.reference_ns for point in reference],
        color=style.BLACK,
        linestyle="none",
        marker="x",
        markersize=7,
        zorder=5,
    )
    for point in reference:
        axes.annotate(
            f"{point.error:+.0%}",
            (point.nbytes, point.reference_ns),
            (0, 8 if point.error < 0 else -15),
            textcoords="offset points",
            ha="center",
            fontsize=7.5,
            path_effects=style.halo(),
        )


def _latency_handles(kinds: Sequence[str], has_reference: bool) -> list[Artist]:
    handles: list[Artist] = [
        Line2D([], [], color=_colour(kind), marker=_marker(kind), label=TITLES[kind]) for kind in kinds
    ]
    handles.append(Line2D([], [], color=style.MUTED, label="closed form", **style.THEORY))
    if has_reference:
        mark = Line2D([], [], color=style.BLACK, linestyle="none", marker="x", label="reference (error of simulation)")
        handles.append(mark)
    return handles


def draw_control(sweep: CclSweep, path: Path) -> None:
    """Draw kernels and control path for direct launches and for calls by ranks."""
    size = nearest(sweep, CONTROL_SIZE)
    rows = len(sweep.algorithms)
    title = f"All-reduce of {size_title(size)}, launched directly and called by ranks"
    with style.drawing(path, 10.4, 0.8 + 2.5 * rows, title) as figure:
        panels = figure.subplots(rows, 1, squeeze=False)[:, 0]
        for axes, algorithm in zip(panels, sweep.algorithms, strict=True):
            fabrics = sweep.fabrics
            for at, fabric in enumerate(fabrics):
                point = next(candidate for candidate in sweep.curve(algorithm, fabric) if candidate.nbytes == size)
                _control_bars(axes, at, point)
            style.category_axis(axes, range(len(fabrics)), [fabric.title for fabric in fabrics])
            axes.set_title(algorithm)
            axes.set_ylabel("time (ns)")
            axes.margins(y=0.14)
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
            style.value_grid(axes)
        style.legend_above(figure, _control_handles(), columns=4)


def nearest(sweep: CclSweep, nbytes: int) -> int:
    """Return the size nearest to ``nbytes`` among the sizes of every collective."""
    return min(sweep.common_sizes, key=lambda size: abs(size - nbytes))


def _control_bars(axes: Axes, at: int, point: CollectivePoint) -> None:
    looks: tuple[tuple[CollectiveTime, float, str], ...] = (
        (point.direct, -WIDTH / 2, style.SKY),
        (point.distributed, WIDTH / 2, style.BLUE),
    )
    for timing, offset, colour in looks:
        axes.bar(at + offset, timing.kernel_ns, WIDTH * 0.92, color=colour)
        axes.bar(
            at + offset,
            timing.control_ns,
            WIDTH * 0.92,
            bottom=timing.kernel_ns,
            linewidth=1,
            **style.hollow(colour),
        )
        style.write_above(axes, at + offset, timing.latency_ns, f"+{timing.control_ns:.0f}")


def _control_handles() -> list[Artist]:
    return [
        Patch(color=style.SKY, label="kernels, direct"),
        Patch(color=style.BLUE, label="kernels, by ranks"),
        Patch(label="control path (+ns)", **style.hollow(style.MUTED)),
    ]


def _look(fabric: Fabric) -> tuple[str, str]:
    return _colour(fabric.kind), _marker(fabric.kind)


def _colour(kind: str) -> str:
    return style.PALETTE[_ORDER.index(kind) % len(style.PALETTE)]


def _marker(kind: str) -> str:
    return style.MARKERS[_ORDER.index(kind) % len(style.MARKERS)]


# The compared collectives are first, so they get the most distinct colours.
_ORDER = (
    "ring_1d",
    "torus_2d",
    "mesh_2d_no_wrap",
    *(kind for kind in FAMILIES if kind not in ("ring_1d", "torus_2d", "mesh_2d_no_wrap")),
)
