"""File of trace events, the format that chrome://tracing and ui.perfetto.dev read.

Each line is one event. Times are in microseconds, with the decimals of picoseconds. Groups of tracks are processes,
lanes of tracks are threads, spans are complete events. Messages are flow events, which bind to the spans around them.
Counters are counter events of one process.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path
from typing import Any, TypeAlias

from kernbench.common.files import replacing
from kernbench.common.values import state
from kernbench.observe.trace_model import Counter, MessageArrow, Trace, Track, TrackGroup, TrackSpan

TraceEvent: TypeAlias = dict[str, Any]
"""A trace event, as in JSON"""
PS_PER_US = 1_000_000
COUNTERS = "power"
"""The name of the process of counters"""


def write_trace(trace: Trace, path: str | Path) -> int:
    """Write ``trace`` as JSON, completely or not at all; return the number of events.

    Equal traces give equal files.
    """
    count = 0
    with replacing(Path(path)) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        file.write('{"displayTimeUnit":"ns","traceEvents":[\n')
        for event in trace_events(trace):
            file.write(("," if count else "") + json.dumps(event, separators=(",", ":"), ensure_ascii=False) + "\n")
            count += 1
        file.write("]}\n")
    return count


def trace_events(trace: Trace) -> Iterator[TraceEvent]:
    """Yield the events of ``trace``: names first, then spans and flows in the order of time."""
    trace.assign_lanes()
    numbers = _TrackNumbers()
    timed: list[tuple[int, int, TraceEvent]] = []
    for track, spans in trace.tracks():
        lanes = 1 + max(span.lane for span in spans)
        yield from numbers.of_track(track, lanes)
        timed += ((span.start_ps, 1, _complete(span, numbers)) for span in spans)
    for number, flow in enumerate(trace.flows):
        leaves, arrives = _ends(flow, number, numbers)
        timed += [(flow.leaves_ps, 2, leaves), (flow.arrives_ps, 3, arrives)]
    if trace.counters:
        pid = numbers.of_counters()
        yield _name("process_name", pid, 0, name=COUNTERS)
        yield _name("process_sort_index", pid, 0, sort_index=pid)
        for counter in trace.counters:
            timed += ((when, 0, _sample(counter, when, number, pid)) for when, number in counter.samples)
    timed.sort(key=lambda entry: entry[:2])
    yield from (event for _, _, event in timed)


@state
class _TrackNumbers:
    """The number of each group's process and of each lane's thread, from one counter.

    Viewers also use the number of a process for its first thread, so no thread may have that number.
    """

    pids: dict[TrackGroup, int] = field(default_factory=dict)
    tids: dict[tuple[Track, int], int] = field(default_factory=dict)

    def of_track(self, track: Track, lanes: int) -> Iterator[TraceEvent]:
        """Number the lanes of a track; yield the events that name them."""
        pid = self.pids.get(track.place)
        if pid is None:
            pid = self.pids[track.place] = self._next()
            yield _name("process_name", pid, 0, name=track.place.name)
            yield _name("process_sort_index", pid, 0, sort_index=pid)
        for lane in range(lanes):
            tid = self.tids[track, lane] = self._next()
            yield _name("thread_name", pid, tid, name=f"{track.row} #{lane + 1}" if lanes > 1 else track.row)
            yield _name("thread_sort_index", pid, tid, sort_index=tid)

    def of_counters(self) -> int:
        """Return the number of the process of counters. No track may be numbered later."""
        return self._next()

    def _next(self) -> int:
        return len(self.pids) + len(self.tids) + 1

    def of(self, span: TrackSpan) -> tuple[int, int]:
        """Return the process and the thread of a span."""
        assert span.track is not None
        return self.pids[span.track.place], self.tids[span.track, span.lane]


def _name(metadata: str, pid: int, tid: int, **args: str | int) -> TraceEvent:
    return {"ph": "M", "name": metadata, "pid": pid, "tid": tid, "args": args}


def _complete(span: TrackSpan, numbers: _TrackNumbers) -> TraceEvent:
    pid, tid = numbers.of(span)
    assert span.track is not None
    event: TraceEvent = {
        "ph": "X",
        "name": span.name,
        "cat": span.track.row if span.track.place.group == 0 else span.track.place.name,
        "pid": pid,
        "tid": tid,
        "ts": _microseconds(span.start_ps),
        "dur": (span.end_ps - span.start_ps) / PS_PER_US,
    }
    facts = {word: value for word, value in span.facts if value != ""}
    return event | ({"args": facts} if facts else {})


def _sample(counter: Counter, when: int, number: float, pid: int) -> TraceEvent:
    return {
        "ph": "C",
        "name": counter.name,
        "pid": pid,
        "tid": 0,
        "ts": _microseconds(when),
        "args": {counter.unit: round(number, 6)},
    }


def _ends(flow: MessageArrow, number: int, numbers: _TrackNumbers) -> tuple[TraceEvent, TraceEvent]:
    common = {"name": flow.name, "cat": "message", "id": number + 1}
    ends: list[TraceEvent] = []
    for phase, span, when in (("s", flow.src, flow.leaves_ps), ("f", flow.dst, flow.arrives_ps)):
        pid, tid = numbers.of(span)
        ends.append({"ph": phase, **common, "pid": pid, "tid": tid, "ts": _microseconds(when)})
    ends[1]["bp"] = "e"  # bind to the enclosing span, not to the next span
    return ends[0], ends[1]


def _microseconds(ps: int) -> float:
    """Convert to µs. Viewers truncate to whole ns: if the nearest float is just below, return the next float."""
    us = ps / PS_PER_US
    return us if int(us * 1000) >= ps // 1000 else math.nextafter(us, math.inf)
