"""Figures of rings: ring time compared with its theory, and the cost of the memory type of the queues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from kernbench.evaluation import figure_style as style
from kernbench.evaluation.ccl_fabrics import INTERCUBE
from kernbench.evaluation.ccl_results import CclSweep, RingPoint
from kernbench.evaluation.figure_style import size_axis, size_title, time_axis
from kernbench.messages.requests import BufferKind

LOOKS: dict[BufferKind, tuple[str, str]] = {
    "tcm": (style.BLUE, "o"),
    "sram": (style.ORANGE, "s"),
    "hbm": (style.GREEN, "^"),
}


def draw_buffers(sweep: CclSweep, path: Path) -> None:
    """Draw three panels: one sender, all PEs of a cube at once, and the default collective."""
    senders = sorted({point.senders for point in sweep.buffers})
    with style.drawing(path, 1.0 + 3.3 * (len(senders) + 1), 3.9, "Memory of the queues' ring buffers") as figure:
        panels = figure.subplots(1, len(senders) + 1)
        for axes, count in zip(panels, senders, strict=False):
            _message_panel(axes, sweep, count)
            axes.set_title("one message at a time" if count == 1 else f"{count} PEs of a cube at once")
            axes.set_ylim(8, 500)
        _collective_panel(panels[-1], sweep)
        kinds = [kind for kind in LOOKS if kind in {point.buffer_kind for point in sweep.buffers}]
        handles: list[Artist] = [
            Line2D([], [], color=LOOKS[kind][0], marker=LOOKS[kind][1], label=kind.upper()) for kind in kinds
        ]
        style.legend_above(figure, handles, columns=3)


def _message_panel(axes: Axes, sweep: CclSweep, senders: int) -> None:
    time_axis(axes, "from the send to the sum (ns)", unit_ns=1)
    sizes: list[int] = []
    for kind, (colour, marker) in LOOKS.items():
        kind_points = [p for p in sweep.buffers if (p.buffer_kind, p.senders) == (kind, senders)]
        sizes += [point.nbytes for point in kind_points]
        axes.plot([p.nbytes for p in kind_points], [p.latency_ns for p in kind_points], color=colour, marker=marker)
    size_axis(axes, sizes, "bytes of a message")


def _collective_panel(axes: Axes, sweep: CclSweep) -> None:
    fabric = next(p.fabric for p in sweep.collectives if p.buffer_kind != "tcm")
    time_axis(axes, "latency (µs)", close=True)
    sizes: list[int] = []
    for kind, (colour, marker) in LOOKS.items():
        curve = sweep.curve(INTERCUBE, fabric, kind)
        sizes += [point.nbytes for point in curve]
        latencies = [point.direct.latency_ns for point in curve]
        axes.plot([point.nbytes for point in curve], latencies, color=colour, marker=marker)
    axes.set_title(f"{INTERCUBE}, {fabric.title}")
    size_axis(axes, sizes, "bytes of a cube's row")


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
        lower.legend(handles=_term_handles(), loc="outside lower center", ncols=len(TERMS) + 1, columnspacing=1.2)


def _time_panel(axes: Axes, points: Sequence[RingPoint]) -> None:
    time_axis(axes, "kernel (µs)")
    for at, ranks in enumerate(sorted({point.ranks for point in points})):
        curve = [point for point in points if point.ranks == ranks]
        sizes = [point.nbytes for point in curve]
        colour = style.PALETTE[at]
        axes.plot(sizes, [p.kernel_ns for p in curve], color=colour, marker=style.MARKERS[at])
        axes.plot(sizes, [p.theory.oracle_ns for p in curve], color=colour, **style.THEORY)
    size_axis(axes, [point.nbytes for point in points], "S, bytes of each rank")
    axes.set_title(f"time, {size_title(points[0].slot_size)} slots")


def _time_handles(points: Sequence[RingPoint]) -> list[Artist]:
    handles: list[Artist] = [
        Line2D([], [], color=style.PALETTE[at], marker=style.MARKERS[at], label=f"N = {ranks}")
        for at, ranks in enumerate(sorted({point.ranks for point in points}))
    ]
    return [*handles, Line2D([], [], color=style.MUTED, label="2(N−1)(L + m/B)", **style.THEORY)]


def _ratio_panel(axes: Axes, points: Sequence[RingPoint]) -> None:
    """Draw the ratio of the simulated time to the theory with all its terms. The expected ratio is 1."""
    slots = sorted({point.slot_size for point in points})
    for at, ranks in enumerate(sorted({point.ranks for point in points})):
        for slot in slots:
            curve = [point for point in points if (point.ranks, point.slot_size) == (ranks, slot)]
            axes.plot(
                [point.nbytes for point in curve],
                [1 + point.beyond_theory for point in curve],
                color=style.PALETTE[at],
                marker=style.MARKERS[at],
                markerfacecolor=style.PALETTE[at] if slot == slots[-1] else "white",
                linestyle="-" if slot == slots[-1] else ":",
            )
    axes.axhline(1, color=style.BLACK, linewidth=1)
    axes.set_title("simulated / theory with all terms")
    most = max(0.01, 1.1 * max(abs(point.beyond_theory) for point in points))
    axes.set_ylim(1 - most, 1 + most)
    size_axis(axes, [point.nbytes for point in points], "S, bytes of each rank")
    style.value_grid(axes, "both")
    handles: list[Artist] = [
        Line2D([], [], color=style.MUTED, marker="o", label=f"{size_title(slots[-1])} slots"),
    ]
    if len(slots) > 1:
        small = f"{size_title(slots[0])} slots"
        handles.append(
            Line2D([], [], color=style.MUTED, marker="o", markerfacecolor="white", linestyle=":", label=small)
        )
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


def _term_handles() -> list[Artist]:
    handles: list[Artist] = [Patch(color=colour, label=label) for _, label, colour in TERMS]
    handles.append(Line2D([], [], linestyle="none", label="−n: saved by steps that overlap, off the first"))
    return handles
