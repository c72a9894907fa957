"""Collect the activity of a run: work of PE engines by timeline row, busy times of memories, and link traffic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, TypeAlias

import numpy as np

from kernbench.common.values import state, value
from kernbench.core.clock import NEVER
from kernbench.engine.engine import GraphEngine
from kernbench.engine.requests import RequestHandle
from kernbench.messages.requests import PeCoord
from kernbench.observe.statistics import LinkTraffic
from kernbench.observe.trace import IPCQ, PE_ROWS
from kernbench.observe.trace_log import TraceLog
from kernbench.result.sections import NamedFigure
from kernbench.runtime_api.launch_report import launches_of
from kernbench.runtime_api.run_explanation import RunExplanation
from kernbench.topology.graph import Node
from kernbench.web.packing import IntArray, TimeSpans, merge_spans


@value(kw_only=True)
class ObservedRun:
    """A finished or interrupted run, and its observations.

    ``begin_ps``: start of the counted time, after the initialisation if that is not counted. ``end_ps``: end of the
    program, before the cleanup. ``links``: link loads at that time. ``figures``: figures of sections without a view of
    their own. ``notice``: a note for the reader about a failed run.
    """

    bench: str
    params: Mapping[str, Any]
    device: str
    status: str
    begin_ps: int
    end_ps: int
    links: Sequence[LinkTraffic]
    engine: GraphEngine
    log: TraceLog
    explanation: RunExplanation
    figures: Sequence[NamedFigure] = ()
    notice: str = ""

    def traffic(self) -> dict[int, TimeSpans]:
        """Return the busy times of each used link, by its index in the graph."""
        carried = self.log.seen.tables.carried()
        order = np.lexsort((carried.start, carried.link))
        used, first = np.unique(carried.link[order], return_index=True)
        parts = np.split(order, first[1:])
        return {
            int(link): TimeSpans(carried.start[part], carried.end[part], carried.nbytes[part])
            for link, part in zip(used, parts, strict=bool(used.size))
        }


CPU_ROW = PE_ROWS.index("cpu")
# The rows of the scheduler (complete commands with waits) and of the CPU (a complete kernel) are no engine work.
NOT_WORK = frozenset(("cpu", "scheduler"))
WORK_ROWS = tuple(row for row, name in enumerate(PE_ROWS) if name not in NOT_WORK)
ROWS_OF_KIND: Mapping[str, tuple[int, ...]] = {
    kind: tuple(PE_ROWS.index(name) for name in names)
    for kind, names in {
        "pe_cpu": ("cpu",),
        "pe_scheduler": ("scheduler",),
        "pe_dma": ("DMA in", "DMA out"),
        "pe_fetch_store": ("fetch", "store"),
        "pe_gemm": ("GEMM",),
        "pe_math": ("MATH",),
        "pe_ipcq": (IPCQ,),
    }.items()
}
"""The timeline rows of PE parts, by part kind; parts of other kinds have no row"""
_MEMORY_KINDS = frozenset(("hbm_ctrl", "sram"))

Label: TypeAlias = tuple[str, str, int]
"""The label of a span: its name, the kernel, the line of the kernel's source (0: none)"""


@state
class TimelineRow:
    """A row of a timeline: spans in any order, each with the number of its label."""

    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.starts)

    def add(self, start_ps: int, end_ps: int, label: int) -> None:
        """Add a span."""
        self.starts.append(start_ps)
        self.ends.append(end_ps)
        self.labels.append(label)

    def busy(self) -> TimeSpans:
        """Return the time that its spans cover."""
        return merge_spans(_column(self.starts), _column(self.ends))

    def numbers(self) -> IntArray:
        """Return its spans in time order: ps since the previous start, length in ps, label."""
        starts, ends = _column(self.starts), _column(self.ends)
        order = np.lexsort((ends, starts))
        starts = starts[order]
        return np.column_stack((np.diff(starts, prepend=0), ends[order] - starts, _column(self.labels)[order])).ravel()


@state
class Activity:
    """The rows of every active PE. ``labels``: labels by number."""

    rows: dict[PeCoord, list[TimelineRow]] = field(default_factory=dict)
    labels: dict[Label, int] = field(default_factory=dict)

    def row(self, pe: PeCoord, row: int) -> TimelineRow:
        """Return a row of a PE; create it on first use."""
        pe_rows = self.rows.get(pe)
        if pe_rows is None:
            pe_rows = self.rows[pe] = [TimelineRow() for _ in PE_ROWS]
        return pe_rows[row]

    def label(self, name: str, kernel: str, line: int) -> int:
        """Return the number of a label; assign one on first use."""
        return self.labels.setdefault((name, kernel, line), len(self.labels))


def collect_activity(log: TraceLog, handles: Sequence[RequestHandle], end_ps: int) -> Activity:
    """Collect the timelines of a run, with PEs in graph order. Work in flight at its end is cut off there."""
    activity = Activity()
    rows = {name: at for at, name in enumerate(PE_ROWS)}
    for handle in launches_of(handles):
        label = activity.label(handle.msg.title, "", 0)
        for report in handle.outcome.reports if handle.outcome is not None else ():
            if 0 < report.end_ps < NEVER and report.start_ps <= end_ps:
                activity.row(report.pe, CPU_ROW).add(report.start_ps, min(report.end_ps, end_ps), label)
    for work in log.seen.each_work():
        if work.start_ps > end_ps:
            continue
        label = activity.label(work.name, work.kernel, work.line)
        activity.row(work.pe, rows[work.engine]).add(work.start_ps, min(work.end_ps, end_ps), label)
    activity.rows = dict(sorted(activity.rows.items()))
    return activity


def is_memory(node: Node) -> bool:
    """Return True for a memory whose busy time is shown: an HBM slice, an SRAM, or an extra memory."""
    return node.kind in _MEMORY_KINDS or node.window is not None


def collect_memory_spans(log: TraceLog, end_ps: int) -> dict[int, TimeSpans]:
    """Collect the busy times of memories up to ``end_ps``, by index in the graph."""
    nodes = log.machine.graph.nodes
    rows = {node.id: TimelineRow() for node in nodes.values() if is_memory(node)}
    turns, parts = log.seen.turns, log.seen.columns.parts
    for memory, start, end in zip(turns.memory.tolist(), turns.start.tolist(), turns.end.tolist(), strict=True):
        if parts[memory] in rows and start < end_ps:
            rows[parts[memory]].add(start, min(end, end_ps), 0)
    return {at: rows[node].busy() for at, node in enumerate(nodes) if node in rows}


def merge_rows(rows: Sequence[TimelineRow]) -> Iterator[TimeSpans]:
    """Yield the busy time of each row of a PE, then the time with any busy engine."""
    busy = [row.busy() for row in rows]
    yield from busy
    work = [busy[row] for row in WORK_ROWS]
    yield merge_spans(np.concatenate([row.starts for row in work]), np.concatenate([row.ends for row in work]))


def _column(values: list[int]) -> IntArray:
    return np.array(values, dtype=np.int64)
