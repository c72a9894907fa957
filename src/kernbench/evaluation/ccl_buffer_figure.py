"""Where rings lie: a message between two PEs, messages between all PEs of a cube, and a whole collective."""

from __future__ import annotations

from pathlib import Path

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from kernbench.evaluation import figure_style as style
from kernbench.evaluation.ccl_axes import size_axis, time_axis
from kernbench.evaluation.ccl_fabrics import INTERCUBE
from kernbench.evaluation.ccl_results import CclSweep
from kernbench.messages.queues import BufferKind

LOOKS: dict[BufferKind, tuple[str, str]] = {
    "tcm": (style.BLUE, "o"),
    "sram": (style.ORANGE, "s"),
    "hbm": (style.GREEN, "^"),
}


def draw_buffers(sweep: CclSweep, path: Path) -> None:
    """A panel for one sender, one for all PEs of a cube at once, and one for the default collective."""
    senders = sorted({point.senders for point in sweep.buffers})
    with style.drawing(path, 1.0 + 3.3 * (len(senders) + 1), 3.9, "Where the rings of queues lie") as figure:
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
        found = [p for p in sweep.buffers if (p.buffer_kind, p.senders) == (kind, senders)]
        sizes += [point.nbytes for point in found]
        axes.plot([p.nbytes for p in found], [p.latency_ns for p in found], color=colour, marker=marker)
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
