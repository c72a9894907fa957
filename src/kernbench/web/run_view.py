"""A run as the page shows it: requests, traffic and engines by bins of time, timelines, critical paths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kernbench.common.units import ns_to_ps
from kernbench.messages.requests import PeCoord
from kernbench.policy.address.phyaddr import AddressFormat
from kernbench.runtime_api.launch_report import launches_of, longest_of_each_name
from kernbench.runtime_api.phases import purpose_of
from kernbench.sim_engine.critical_path_model import Part
from kernbench.sim_engine.engine import RequestHandle
from kernbench.sim_engine.statistics import link_traffic
from kernbench.sim_engine.trace import PE_ROWS
from kernbench.web.activity import WORK_ROWS, Activity, activity_of, busy_rows
from kernbench.web.binning import Spans, Window
from kernbench.web.observer import ObservedRun
from kernbench.web.packing import Json, Pack, sparse, varints
from kernbench.web.paths_view import paths_view

BINS = 240
# Each has bins of its own, so that a launch of 1 % of a run is not a few bins wide.
MOST_LAUNCHES = 6


def run_view(run: ObservedRun, pack: Pack) -> dict[str, Json]:
    """The run for the page, times in ps; the long columns go into ``pack``."""
    return _RunView(run, pack).make()


def notice_of(run: ObservedRun) -> str:
    """What a reader has to know of a run that did not go well; empty when it did."""
    result = run.result
    if result.ok:
        return ""
    why = "" if result.error is None else f": {type(result.error).__name__}: {result.error}"
    return f"{result.bench}: {result.status}{why}"


@dataclass(slots=True)
class _RunView:
    """Makes the parts of the view from one run."""

    run: ObservedRun
    pack: Pack
    activity: Activity = field(init=False)
    busy: list[Spans] = field(init=False)
    traffic: dict[int, Spans] = field(init=False)

    def __post_init__(self) -> None:
        engine = self.run.engine
        self.activity = activity_of(engine.log, engine.handles)
        self.busy = [spans for rows in self.activity.rows.values() for spans in busy_rows(rows)]
        self.traffic = engine.traffic.by_link()

    def make(self) -> dict[str, Json]:
        """Everything."""
        engine = self.run.engine
        pes = {pe: at for at, pe in enumerate(engine.machine.graph.pes())}
        return {
            **self._about(),
            "rows": list(PE_ROWS),
            "work_rows": list(WORK_ROWS),
            "active": [pes[pe] for pe in self.activity.rows],
            "requests": [self._request(handle) for handle in engine.handles],
            "links": self._links(),
            "timeline": self._timeline(),
            "windows": [self._window(at, window) for at, window in enumerate(self._windows())],
            "parts": [str(part) for part in Part],
            "paths": self._paths(pes),
        }

    def _about(self) -> dict[str, Json]:
        result, engine = self.run.result, self.run.engine
        return {
            "bench": result.bench,
            "params": {name: str(value) for name, value in result.params.model_dump(mode="json").items()},
            "device": result.device,
            "status": str(result.status),
            "sim_ps": ns_to_ps(result.sim_ns),
            "end_ps": engine.machine.clock.time,
            "events": engine.n_events,
            "transfers": engine.machine.network.n_transfers,
        }

    def _windows(self) -> list[Window]:
        """All of the run with its cleaning up, and the longest launch of each name."""
        engine = self.run.engine
        launches = list(longest_of_each_name(launches_of(engine.handles)))[:MOST_LAUNCHES]
        found = [Window(each.msg.name or "launch", each.submitted_ps, each.ended_ps, BINS) for each, _ in launches]
        whole = Window("run", 0, engine.machine.clock.time, BINS)
        return [window for window in (whole, *found) if window.end_ps > window.start_ps]

    def _request(self, handle: RequestHandle) -> Json:
        """[phase, name, SIP or -1, bytes, submitted ps, ended ps or -1, error]."""
        purpose = purpose_of(handle.msg, AddressFormat(self.run.engine.spec.address.format))
        sip = -1 if purpose.sip is None else purpose.sip
        about: list[Json] = [purpose.phase, handle.msg.name, sip, purpose.nbytes, handle.submitted_ps]
        if handle.outcome is None:
            return [*about, -1, ""]
        error = handle.outcome.error
        return [*about, handle.ended_ps, "" if error is None else str(error)]

    def _links(self) -> Json:
        """[number, bytes, busy ps, most bytes in its FIFO] of every link that carried something."""
        machine = self.run.engine.machine
        number = {(edge.src, edge.dst): at for at, edge in enumerate(machine.graph.edges)}
        return [
            [number[link.src, link.dst], link.nbytes, ns_to_ps(link.busy_ns), link.peak_fifo_bytes]
            for link in link_traffic(machine)
        ]

    def _timeline(self) -> Json:
        """PE by PE and row by row, how many spans there are and how many bytes they take in the section ``spans``."""
        content: list[bytes] = []
        index: list[Json] = []
        for rows in self.activity.rows.values():
            for row in rows:
                content.append(varints(row.numbers()))
                index.append([len(row), len(content[-1])])
        self.pack.add("spans", b"".join(content))
        return {"labels": [list(label) for label in self.activity.labels], "index": index}

    def _window(self, number: int, window: Window) -> Json:
        """Its sections have bytes by link and bin, and busy ps by PE, row (one more: any engine) and bin."""
        edges = window.edges
        rows = {link: spans.within(edges) for link, spans in self.traffic.items()}
        used = {link: row for link, row in rows.items() if row.any()}
        self.pack.add(f"traffic{number}", b"".join(varints(sparse(row)) for row in used.values()))
        self.pack.add(f"busy{number}", b"".join(varints(sparse(spans.within(edges))) for spans in self.busy))
        return {
            "name": window.name,
            "start_ps": window.start_ps,
            "end_ps": window.end_ps,
            "bins": window.bins,
            "links": list(used),
        }

    def _paths(self, pes: Mapping[PeCoord, int]) -> Json:
        return paths_view(self.run, pes, MOST_LAUNCHES)
