"""Files, figures and tables that need the engine of a run."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from kernbench.common.errors import InputError
from kernbench.core.observed import Carries
from kernbench.evaluation.figure_style import BLUE, INK, STYLE, VERMILLION, value_grid
from kernbench.evaluation.roofline_figure import roofline_figure
from kernbench.evaluation.timeline_figure import Bar, read_bars, timeline_figure
from kernbench.observe.op_log_io import op_log_table
from kernbench.observe.roofline_chart import roofline_charts
from kernbench.observe.trace import make_trace, process_of
from kernbench.observe.trace_filter import EVERYTHING, TraceFilter
from kernbench.observe.trace_io import write_trace
from kernbench.result.simulation import FinishedRun
from kernbench.result.table import arrow_table
from kernbench.runtime_api.launch_report import LaunchSplit

if TYPE_CHECKING:
    import pyarrow

    from kernbench.result.explanation import Explanation

MOST_LAUNCHES = 4


def write_timeline(live: FinishedRun, path: Path, keep: TraceFilter | None = None) -> None:
    """Write the timeline of a run for Perfetto."""
    assert live.log is not None, "an observed run has a log"
    write_trace(make_trace(live.log, live.engine.handles, keep or EVERYTHING), path)


def draw_run(live: FinishedRun, launches: Sequence[LaunchSplit]) -> Figure:
    """Draw a timeline of the engines of the PE with the longest kernel. Raises InputError for a run without kernels."""
    if not launches:
        raise InputError("timeline: the run has no kernel")
    longest = max(launches, key=lambda each: each.total_ns)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        write_timeline(live, file)
        bars = read_bars(file)
    return timeline_figure(bars, process_of(longest.slowest), _busiest_memory(bars))


def _busiest_memory(bars: Sequence[Bar]) -> str:
    served: dict[str, float] = {}
    for bar in bars:
        if bar.process == "memories":
            served[bar.row] = served.get(bar.row, 0.0) + bar.ns
    return max(served, key=lambda row: served[row], default="")


def draw_roofs(live: FinishedRun, title: str) -> Figure:
    """Draw the launches of a run in a roofline plot of the machine."""
    assert live.explanation is not None, "an observed run is explained"
    return roofline_figure(roofline_charts(live.engine.machine.graph, live.explanation.rooflines), title)


def draw_bounds(explanation: Explanation) -> Figure:
    """Draw the bounds of a run and of its longest launches as bars, each as a share of the measured time."""
    parts = [explanation, *sorted(explanation.longest_launches(), key=lambda each: -each.total_ns)[:MOST_LAUNCHES]]
    with rc_context(STYLE):
        figure = Figure(figsize=(6.4, 0.9 + sum(0.32 + 0.2 * len(each.bounds) for each in parts)), layout="constrained")
        FigureCanvasAgg(figure)
        heights = [max(1, len(each.bounds)) for each in parts]
        panels = figure.subplots(len(parts), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
        for panel, each in zip(panels, parts, strict=True):
            rows = each.bounds.rows
            colours = [VERMILLION if at == 0 else BLUE for at in range(len(rows))]
            panel.barh([row.resource for row in rows], [100 * row.ns / each.total_ns for row in rows], color=colours)
            panel.invert_yaxis()
            panel.axvline(100, color=INK, linewidth=0.8)
            panel.set_title(f"{each.name}: {each.total_ns:,.3f} ns", fontsize=9)
            value_grid(panel, "x")
        panels[-1].set_xlim(0, 105)
        panels[-1].set_xlabel("least time that a resource needs, % of the measured time")
    return figure


def svg_of(figure: Figure) -> str:
    """Return a figure as SVG, for a notebook."""
    made = io.StringIO()
    figure.savefig(made, format="svg")
    return made.getvalue().partition("<svg")[1] + made.getvalue().partition("<svg")[2]


def op_log_of(live: FinishedRun) -> pyarrow.Table:
    """Return the op-log as an Arrow table."""
    return op_log_table(live.engine.op_log)


def transfers_of(live: FinishedRun) -> pyarrow.Table:
    """Return the transfers as an Arrow table, ordered by start time."""
    assert live.log is not None, "an observed run has a log"
    seen = live.log.seen
    found, parts = seen.transfers, live.engine.machine.log.parts
    names = {each.value: each.name.lower() for each in Carries}
    columns = {
        "src": [parts[each] for each in found.src.tolist()],
        "dst": [parts[each] for each in found.dst.tolist()],
        "carries": [names[each] for each in found.what.tolist()],
        "nbytes": found.nbytes.tolist(),
        "start_ns": (found.start / 1000).tolist(),
        "end_ns": [each / 1000 if each >= 0 else None for each in found.end.tolist()],
        "zero_load_ns": (found.zero_load / 1000).tolist(),
    }
    return arrow_table(columns, _TRANSFERS)


_TRANSFERS = {
    "src": "from",
    "dst": "to",
    "carries": "the role of the transfer for its receiver",
    "nbytes": "bytes without headers",
    "start_ns": "the time of sending",
    "end_ns": "the arrival time of the last byte; empty in flight",
    "zero_load_ns": "the duration without contention",
}
