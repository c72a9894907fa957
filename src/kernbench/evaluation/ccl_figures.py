"""Figures of collectives: latency by fabric and size, the control path, memories of queues, and rings beside theory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, TypeVar

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from kernbench.evaluation.ccl_fabrics import INTERCUBE, KIB, TITLES, AlgorithmName
from kernbench.evaluation.ccl_results import CclSweep, CollectivePoint, CollectiveTime, RingPoint, SizeComparison
from kernbench.messages.requests import BufferKind
from kernbench.result import figure_style as style
from kernbench.result.figure_style import size_axis, size_title, time_axis


class SizedPoint(Protocol):
    """A measurement for a size."""

    @property
    def nbytes(self) -> int:
        """The size in bytes."""


P = TypeVar("P", bound=SizedPoint)
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
        look = _look(fabric.kind)
        sizes += [point.nbytes for point in curve]
        size = 4 + SHRINK * (len(same) - 1 - at)
        _plot(axes, curve, lambda point: point.direct.latency_ns, markersize=size, **look)
        # The closed form covers the kernels. The control path is the same for all sizes.
        formed = [(p.nbytes, p.closed_ns + p.direct.control_ns) for p in curve if p.closed_ns is not None]
        axes.plot([x for x, _ in formed], [y for _, y in formed], color=look["color"], **style.THEORY)
    axes.set_title(f"{algorithm}, {sips} SIPs")
    time_axis(axes, close=True)
    counts = sorted({fabric.sips for fabric in sweep.fabrics})
    size_axis(axes, sizes, MEANING[algorithm] if sips == counts[len(counts) // 2] else "")


def _plot(axes: Axes, points: Sequence[P], read: Callable[[P], float], **look: Any) -> None:
    """Draw a figure of points over their sizes."""
    axes.plot([point.nbytes for point in points], [read(point) for point in points], **look)


def _draw_reference(axes: Axes, reference: Sequence[SizeComparison]) -> None:
    if not reference:
        return
    look = {"color": style.BLACK, "linestyle": "none", "marker": "x"}
    _plot(axes, reference, lambda point: point.reference_ns, markersize=7, zorder=5, **look)
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
    handles: list[Artist] = [Line2D([], [], label=TITLES[kind], **_look(kind)) for kind in kinds]
    handles.append(Line2D([], [], color=style.MUTED, label="closed form", **style.THEORY))
    if has_reference:
        mark = Line2D([], [], color=style.BLACK, linestyle="none", marker="x", label="reference (error of simulation)")
        handles.append(mark)
    return handles


def draw_control(sweep: CclSweep, path: Path) -> None:
    """Draw kernels and control path for direct launches and for calls by ranks."""
    size = min(sweep.common_sizes, key=lambda nbytes: abs(nbytes - CONTROL_SIZE))
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


def _control_bars(axes: Axes, at: int, point: CollectivePoint) -> None:
    looks: tuple[tuple[CollectiveTime, float, str], ...] = (
        (point.direct, -WIDTH / 2, style.SKY),
        (point.distributed, WIDTH / 2, style.BLUE),
    )
    for timing, offset, colour in looks:
        axes.bar(at + offset, timing.kernel_ns, WIDTH * 0.92, color=colour)
        upper = {"bottom": timing.kernel_ns, "linewidth": 1, **style.hollow(colour)}
        axes.bar(at + offset, timing.control_ns, WIDTH * 0.92, **upper)
        style.write_above(axes, at + offset, timing.latency_ns, f"+{timing.control_ns:.0f}")


def _control_handles() -> list[Artist]:
    return [
        Patch(color=style.SKY, label="kernels, direct"),
        Patch(color=style.BLUE, label="kernels, by ranks"),
        Patch(label="control path (+ns)", **style.hollow(style.MUTED)),
    ]


def _look(kind: str) -> style.CurveLook:
    return style.curve_look(_ORDER.index(kind))


# The compared collectives are first, so they get the most distinct colours.
_COMPARED = ("ring_1d", "torus_2d", "mesh_2d_no_wrap")
_ORDER = (*_COMPARED, *(kind for kind in TITLES if kind not in _COMPARED))


LOOKS: dict[BufferKind, style.CurveLook] = {
    "tcm": {"color": style.BLUE, "marker": "o"},
    "sram": {"color": style.ORANGE, "marker": "s"},
    "hbm": {"color": style.GREEN, "marker": "^"},
}


def draw_buffers(sweep: CclSweep, path: Path) -> None:
    """Draw three panels: one sender, all PEs of a cube at once, and the default collective."""
    senders = sorted({point.senders for point in sweep.buffers})
    with style.drawing(path, 1.0 + 3.3 * (len(senders) + 1), 3.9, "Memory of the queues' ring buffers") as figure:
        panels = figure.subplots(1, len(senders) + 1)
        for axes, count in zip(panels, senders, strict=False):
            messages = [point for point in sweep.buffers if point.senders == count]
            curves = {kind: [point for point in messages if point.buffer_kind == kind] for kind in LOOKS}
            time_axis(axes, "from the send to the sum (ns)", unit_ns=1)
            _plot_kinds(axes, curves, lambda point: point.latency_ns, "bytes of a message")
            axes.set_title("one message at a time" if count == 1 else f"{count} PEs of a cube at once")
            axes.set_ylim(8, 500)
        _collective_panel(panels[-1], sweep)
        kinds = {point.buffer_kind for point in sweep.buffers}
        handles = [Line2D([], [], label=kind.upper(), **look) for kind, look in LOOKS.items() if kind in kinds]
        style.legend_above(figure, handles, columns=3)


def _plot_kinds(axes: Axes, curves: Mapping[BufferKind, Sequence[P]], read: Callable[[P], float], label: str) -> None:
    for kind, curve in curves.items():
        _plot(axes, curve, read, **LOOKS[kind])
    size_axis(axes, [point.nbytes for curve in curves.values() for point in curve], label)


def _collective_panel(axes: Axes, sweep: CclSweep) -> None:
    fabric = next(p.fabric for p in sweep.collectives if p.buffer_kind != "tcm")
    curves = {kind: sweep.curve(INTERCUBE, fabric, kind) for kind in LOOKS}
    time_axis(axes, "latency (µs)", close=True)
    _plot_kinds(axes, curves, lambda point: point.direct.latency_ns, "bytes of a cube's row")
    axes.set_title(f"{INTERCUBE}, {fabric.title}")


SMALL_SLOTS: style.CurveLook = {"markerfacecolor": "white", "linestyle": ":"}
TERMS = (
    ("oracle_ns", "2(N−1)(L + m/B)", style.BLUE),
    ("ends_ns", "queues, DMA set-up, MATH", style.ORANGE),
    ("stalls_ns", "credits", style.VERMILLION),
    ("load_ns", "load", style.SKY),
    ("store_ns", "store", style.GREEN),
)


def draw_rings(sweep: CclSweep, path: Path) -> None:
    """Draw time against size for each number of ranks, then the terms of one ring as shares of the simulated time."""
    slots = sorted({point.slot_size for point in sweep.rings})
    with style.drawing(path, 10.4, 8.0, "Ring all-reduce over SIPs, beside its theory") as figure:
        upper, lower = figure.subfigures(2, 1, squeeze=False)[:, 0]
        left, right = upper.subplots(1, 2)
        largest = [point for point in sweep.rings if point.slot_size == slots[-1]]
        _time_panel(left, largest)
        _ratio_panel(right, sweep.rings)
        left.legend(handles=_time_handles(largest), loc="upper left", ncols=2, columnspacing=1.0)
        ranks = max(point.ranks for point in sweep.rings)
        panels = lower.subplots(1, len(slots), sharey=True, squeeze=False)[0]
        for axes, slot in zip(panels, reversed(slots), strict=True):
            _terms_panel(axes, [p for p in sweep.rings if (p.ranks, p.slot_size) == (ranks, slot)])
            axes.set_title(f"terms for N = {ranks}, {size_title(slot)} slots")
        panels[0].set_ylabel("share of the simulated time (%)")
        handles = [Patch(color=colour, label=label) for _, label, colour in TERMS]
        saved = Line2D([], [], linestyle="none", label="−n: saved by steps that overlap, off the first")
        lower.legend(handles=[*handles, saved], loc="outside lower center", ncols=len(TERMS) + 1, columnspacing=1.2)


def _time_panel(axes: Axes, points: Sequence[RingPoint]) -> None:
    time_axis(axes, "kernel (µs)")
    for at, ranks in enumerate(sorted({point.ranks for point in points})):
        curve = [point for point in points if point.ranks == ranks]
        _plot(axes, curve, lambda point: point.kernel_ns, **style.curve_look(at))
        _plot(axes, curve, lambda point: point.theory.oracle_ns, color=style.curve_look(at)["color"], **style.THEORY)
    size_axis(axes, [point.nbytes for point in points], "S, bytes of each rank")
    axes.set_title(f"time, {size_title(points[0].slot_size)} slots")


def _time_handles(points: Sequence[RingPoint]) -> list[Artist]:
    handles: list[Artist] = [
        Line2D([], [], label=f"N = {ranks}", **style.curve_look(at))
        for at, ranks in enumerate(sorted({point.ranks for point in points}))
    ]
    return [*handles, Line2D([], [], color=style.MUTED, label="2(N−1)(L + m/B)", **style.THEORY)]


def _ratio_panel(axes: Axes, points: Sequence[RingPoint]) -> None:
    """Draw the ratio of the simulated time to the theory with all its terms. The expected ratio is 1."""
    slots = sorted({point.slot_size for point in points})
    for at, ranks in enumerate(sorted({point.ranks for point in points})):
        for slot in slots:
            curve = [point for point in points if (point.ranks, point.slot_size) == (ranks, slot)]
            look = style.curve_look(at) if slot == slots[-1] else style.curve_look(at) | SMALL_SLOTS
            _plot(axes, curve, lambda point: 1 + point.beyond_theory, **look)
    axes.axhline(1, color=style.BLACK, linewidth=1)
    axes.set_title("simulated / theory with all terms")
    most = max(0.01, 1.1 * max(abs(point.beyond_theory) for point in points))
    axes.set_ylim(1 - most, 1 + most)
    size_axis(axes, [point.nbytes for point in points], "S, bytes of each rank")
    style.value_grid(axes, "both")
    looks: dict[int, style.CurveLook] = {slots[-1]: {}, **({slots[0]: SMALL_SLOTS} if len(slots) > 1 else {})}
    handles = [
        Line2D([], [], color=style.MUTED, marker="o", label=f"{size_title(slot)} slots", **look)
        for slot, look in looks.items()
    ]
    axes.legend(handles=handles, loc="upper right")


def _terms_panel(axes: Axes, points: Sequence[RingPoint]) -> None:
    """Draw stacked terms. The time saved by overlapping steps is subtracted from the first term."""
    for at, point in enumerate(points):
        bottom, terms = 0.0, asdict(point.theory)
        for name, _, colour in TERMS:
            value: float = terms[name]
            if name == "oracle_ns":
                value += point.theory.overlap_ns
            axes.bar(at, 100 * value / point.kernel_ns, 0.72, bottom=bottom, color=colour)
            bottom += 100 * value / point.kernel_ns
        saved = -100 * point.theory.overlap_ns / point.kernel_ns
        if saved > 0.5:
            style.write_above(axes, at, bottom, f"−{saved:.0f}")
    style.category_axis(axes, range(len(points)), [size_title(p.nbytes).replace(" ", "\n") for p in points])
    axes.axhline(100, color=style.BLACK, linewidth=1)
    axes.set_ylim(0, 115)
    style.value_grid(axes)
