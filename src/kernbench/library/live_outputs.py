"""Files, figures and tables that need the engine of a run."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from kernbench.common.errors import InputError
from kernbench.core.observed import Carries
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


def write_timeline(live: FinishedRun, path: Path, keep: TraceFilter | None = None) -> None:
    """Write the timeline of a run for Perfetto."""
    assert live.log is not None, "an observed run has a log"
    write_trace(make_trace(live.log, live.engine.handles, keep or EVERYTHING), path)


def draw_run(live: FinishedRun, launches: Sequence[LaunchSplit]) -> Figure:
    """Draw a timeline of the engines of the PE with the longest kernel. Raises InputError for a run without kernels."""
    if not launches:
        raise InputError("timeline: the run has no kernel")
    longest = max(launches, key=lambda launch: launch.total_ns)
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


def svg_of(figure: Figure) -> str:
    """Return a figure as SVG, for a notebook."""
    text = io.StringIO()
    figure.savefig(text, format="svg")
    _, begin, content = text.getvalue().partition("<svg")
    return begin + content


def op_log_of(live: FinishedRun) -> pyarrow.Table:
    """Return the op-log as an Arrow table."""
    return op_log_table(live.engine.op_log)


def transfers_of(live: FinishedRun) -> pyarrow.Table:
    """Return the transfers as an Arrow table, ordered by start time."""
    assert live.log is not None, "an observed run has a log"
    transfers, parts = live.log.seen.transfers, live.engine.machine.log.parts
    names = {role.value: role.name.lower() for role in Carries}
    columns = {
        "src": [parts[part] for part in transfers.src.tolist()],
        "dst": [parts[part] for part in transfers.dst.tolist()],
        "carries": [names[role] for role in transfers.what.tolist()],
        "nbytes": transfers.nbytes.tolist(),
        "start_ns": (transfers.start / 1000).tolist(),
        "end_ns": [end_ps / 1000 if end_ps >= 0 else None for end_ps in transfers.end.tolist()],
        "zero_load_ns": (transfers.zero_load / 1000).tolist(),
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
