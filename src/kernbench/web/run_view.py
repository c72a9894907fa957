"""A run in the form of the page: requests, traffic and engines by time bins, timelines, critical paths.

Time starts after the initialisation of the program. Requests, traffic and engines include the initialisation. A run
ends with its program. Later cleanup is in the list of requests only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from itertools import chain

from kernbench.common.errors import text_of
from kernbench.common.units import ns_to_ps
from kernbench.common.values import state
from kernbench.engine.requests import RequestHandle
from kernbench.messages.requests import PeCoord
from kernbench.observe.critical_path_model import PathPart
from kernbench.observe.path_resources import divide_ties, sum_resources
from kernbench.observe.roofline_chart import roofline_charts
from kernbench.observe.slices import SliceTime
from kernbench.observe.statistics import queue_traffic, sum_works
from kernbench.observe.trace import PE_ROWS, title_of
from kernbench.policy.address.phyaddr import AddressFormat
from kernbench.runtime_api.requests import purpose_of
from kernbench.runtime_api.run_explanation import LaunchExplanation, LineWait, RunExplanation, WaitPlace
from kernbench.topology.graph import Graph
from kernbench.web.activity import (
    ROWS_OF_KIND,
    WORK_ROWS,
    Activity,
    ObservedRun,
    collect_activity,
    collect_memory_spans,
    merge_rows,
)
from kernbench.web.packing import Pack, PageJson, SpanRows, TimeWindow, encode_rows, encode_varints

_PARTS: list[str] = list(PathPart)
SMALLEST_SHARE = 0.01
"""Smallest share of a path that the page shows for a resource"""
MOST_SLICES = 8
"""Most HBM slices of a path that the page shows, the busiest first"""


def view_paths(
    explained: RunExplanation, launches: Iterable[LaunchExplanation], pes: Mapping[PeCoord, int]
) -> list[PageJson]:
    """Return the critical paths of the run and of each of ``launches``; times in ps."""
    run_path = _path("run", -1, explained, pes)
    return [run_path, *(_launch(launch, pes) for launch in launches)]


def view_charts(graph: Graph, explained: RunExplanation, windows: Mapping[int, int]) -> list[PageJson]:
    """Return the rooflines of launches as charts. ``windows``: window numbers of the shown requests."""
    launches = [roofline for roofline in explained.rooflines if roofline[1] in windows]
    return [
        {
            "engine": chart.engine,
            "unit": chart.unit,
            "limits": list(chart.limits),
            "flat": [[roof.resource, roof.name, roof.rate] for roof in chart.engine_roofs],
            "sloped": [[roof.resource, roof.name, roof.rate] for roof in chart.memory_roofs],
            "points": [
                [windows[point.request_id], point.memory, point.intensity, point.rate, point.roof, point.most]
                for point in chart.points
            ],
        }
        for chart in roofline_charts(graph, launches)
    ]


def _launch(launch: LaunchExplanation, pes: Mapping[PeCoord, int]) -> PageJson:
    lines: list[PageJson] = [[line.line, line.says, round(line.path_ns * 1000)] for line in launch.lines]
    about: dict[str, PageJson] = {
        "program": launch.program.name,
        "unit": launch.program.unit,
        "pe_count": launch.pe_count,
        "lines": lines,
        "waits": [_wait(wait, pes) for wait in launch.waits],
    }
    return {**_path(launch.name, launch.request_id, launch, pes), **about}


def _wait(wait: LineWait, pes: Mapping[PeCoord, int]) -> PageJson:
    """Describe a wait: waiting kernel, cause, awaited kernel, count, time. A kernel is [PE, launch, line or empty]."""
    waiting, cause = _kernel(wait.waiting, pes), _kernel(wait.cause, pes)
    return [waiting, wait.what, cause, wait.count, round(wait.ns * 1000)]


def _kernel(place: WaitPlace, pes: Mapping[PeCoord, int]) -> PageJson:
    return [pes[place.pe], place.kernel, place.line_text]


def _path(
    name: str, request: int, explained: RunExplanation | LaunchExplanation, pes: Mapping[PeCoord, int]
) -> dict[str, PageJson]:
    """Describe the path of a run or a launch. A step is [part, start ps, end ps, PE or -1, line or 0]."""
    path, bounds, slices = explained.path, explained.roofline, explained.slices
    steps: list[PageJson] = [
        [_PARTS.index(step.part), step.start_ps, step.end_ps, -1 if step.pe is None else pes[step.pe], step.line]
        for step in path.steps
    ]
    return {
        "name": name,
        "request": request,
        "verdict": explained.verdict.sentence,
        "start_ps": path.start_ps,
        "end_ps": path.end_ps,
        "steps": steps,
        "spent": [[_PARTS.index(spent.part), spent.ps] for spent in path.parts],
        "resources": [
            [resource.resource, resource.ps, resource.queued_ps]
            for resource in divide_ties(sum_resources(explained.shares))
            if resource.ps >= SMALLEST_SHARE * path.ps
        ],
        "bounds": [
            [bound.resource, bound.where, bound.amount, bound.unit, bound.rate, bound.ps] for bound in bounds.bounds
        ],
        "differences": [[difference.what, difference.ps] for difference in bounds.differences],
        "slices": [_slice(served) for served in slices[:MOST_SLICES]],
        "n_slices": len(slices),
    }


def _slice(served: SliceTime) -> PageJson:
    """Describe a slice: its name, bus time in ps by cause, and the share of row hits."""
    spent = served.data_ps, served.rows_ps, served.turnarounds_ps, served.refresh_ps, served.groups_ps
    return [served.where, [*spent], served.hit_share]


BINS = 240
# Each launch has separate bins, so a launch of 1 % of a run has enough; thousands of launches have fewer each.
LEAST_BINS = 24
BINS_OF_LAUNCHES = 100 * BINS


def view_run(run: ObservedRun, pack: Pack) -> dict[str, PageJson]:
    """Describe the run for the page, times in ps. Long columns go into ``pack``."""
    return _RunView(run, pack).make()


@state
class _RunView:
    """Builds the parts of the view of one run."""

    run: ObservedRun
    pack: Pack
    explained: RunExplanation = field(init=False)
    launches: list[LaunchExplanation] = field(init=False)
    activity: Activity = field(init=False)
    traffic: SpanRows = field(init=False)
    busy: SpanRows = field(init=False)
    memories: SpanRows = field(init=False)

    def __post_init__(self) -> None:
        engine = self.run.engine
        self.explained = self.run.explanation
        self.launches = [launch for launch in self.explained.launches if launch.path.ps]
        self.activity = collect_activity(self.run.log, engine.handles, self.run.end_ps)
        self.traffic = SpanRows(self.run.traffic())
        self.busy = SpanRows(dict(enumerate(chain.from_iterable(map(merge_rows, self.activity.rows.values())))))
        self.memories = SpanRows(collect_memory_spans(self.run.log, self.run.end_ps))

    def make(self) -> dict[str, PageJson]:
        """Build the complete view."""
        engine = self.run.engine
        pes = {pe: at for at, pe in enumerate(engine.machine.graph.pes())}
        return {
            **self._about(),
            "rows": list(PE_ROWS),
            "work_rows": list(WORK_ROWS),
            "rows_of_kind": ROWS_OF_KIND,
            "active": [pes[pe] for pe in self.activity.rows],
            "requests": [self._request(handle) for handle in engine.handles],
            "links": self._links(),
            "queues": self._queues(pes),
            "timeline": self._timeline(),
            "windows": [self._window(at, *window) for at, window in enumerate(self._windows())],
            "parts": [str(part) for part in PathPart],
            **self._explain(pes),
        }

    def _explain(self, pes: Mapping[PeCoord, int]) -> dict[str, PageJson]:
        """Explain the time of the run. ``heaviest``: the window of the launch with most of the time, and its share."""
        windows = {launch.request_id: at for at, launch in enumerate(self.launches, start=1)}
        main = self.explained.main_launch
        return {
            "heaviest": [0 if main is None else windows.get(main.request_id, 0), self.explained.main_share],
            "paths": view_paths(self.explained, self.launches, pes),
            "charts": view_charts(self.run.engine.machine.graph, self.explained, windows),
        }

    def _about(self) -> dict[str, PageJson]:
        run, engine = self.run, self.run.engine
        return {
            "bench": run.bench,
            "params": {name: str(value) for name, value in run.params.items()},
            "device": run.device,
            "status": run.status,
            "sim_ps": run.end_ps - run.begin_ps,
            "begin_ps": run.begin_ps,
            "end_ps": run.end_ps,
            "events": engine.n_events,
            "transfers": engine.machine.network.n_transfers,
            "figures": [[figure.name, figure.value, figure.about] for figure in run.figures],
        }

    def _windows(self) -> Iterator[tuple[TimeWindow, int]]:
        """Yield the run, and each of its launches with its index among the requests."""
        yield TimeWindow("run", 0, self.run.end_ps, min(BINS, self.run.end_ps)), -1
        bins = max(LEAST_BINS, min(BINS, BINS_OF_LAUNCHES // max(1, len(self.launches))))
        places = {handle.request_id: at for at, handle in enumerate(self.run.engine.handles)}
        for launch in self.launches:
            path = launch.path
            yield TimeWindow(launch.name, path.start_ps, path.end_ps, min(bins, path.ps)), places[launch.request_id]

    def _request(self, handle: RequestHandle) -> PageJson:
        """Describe a request: [phase, name, SIP or -1, bytes, begun ps, ended ps or -1, error]."""
        purpose = purpose_of(handle.msg, AddressFormat(self.run.engine.spec.address.format))
        sip = -1 if purpose.sip is None else purpose.sip
        title = title_of(handle, self.run.engine.machine.passed)
        about: list[PageJson] = [purpose.phase, title, sip, purpose.nbytes, handle.begun_ps]
        if handle.outcome is None:
            return [*about, -1, ""]
        error = handle.outcome.error
        return [*about, handle.ended_ps, "" if error is None else text_of(error)]

    def _links(self) -> PageJson:
        """Describe links: [number, bytes, busy ps, peak bytes in its FIFO] for every used link."""
        number = {(edge.src, edge.dst): at for at, edge in enumerate(self.run.engine.machine.graph.edges)}
        return [
            [number[link.src, link.dst], link.nbytes, ns_to_ps(link.busy_ns), link.peak_fifo_bytes]
            for link in self.run.links
        ]

    def _queues(self, pes: Mapping[PeCoord, int]) -> PageJson:
        """Describe queues: [PE, busy ps, [direction, messages, bytes] per sending queue] for each sending PE."""
        engine = self.run.engine
        return [
            [pes[usage.pe], ns_to_ps(usage.busy_ns), [[use.direction, use.messages, use.nbytes] for use in usage.sent]]
            for usage in queue_traffic(engine.machine, sum_works(self.run.log.seen.works))
        ]

    def _timeline(self) -> PageJson:
        """Return the number of spans and their bytes in the section ``spans``, by PE and row."""
        content: list[bytes] = []
        index: list[PageJson] = []
        for rows in self.activity.rows.values():
            for row in rows:
                content.append(encode_varints(row.numbers()))
                index.append([len(row), len(content[-1])])
        self.pack.add("spans", b"".join(content))
        return {"labels": [list(label) for label in self.activity.labels], "index": index}

    def _window(self, number: int, window: TimeWindow, request: int) -> PageJson:
        """Describe a window.

        Its sections have bins: bytes by link; busy ps by PE and row (one more: any engine); busy ps by memory.
        """
        traffic, busy, memories = (rows.within(window) for rows in (self.traffic, self.busy, self.memories))
        n_rows = len(self.activity.rows) * (len(PE_ROWS) + 1)
        self.pack.add(f"traffic{number}", encode_rows(traffic.values()))
        self.pack.add(f"busy{number}", encode_rows(busy.get(row) for row in range(n_rows)))
        self.pack.add(f"memories{number}", encode_rows(memories.values()))
        return {
            "name": window.name,
            "request": request,
            "start_ps": window.start_ps,
            "end_ps": window.end_ps,
            "bins": window.bins,
            "links": list(traffic),
            "memories": list(memories),
        }
