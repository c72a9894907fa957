"""Find the critical path of a request, and of a whole run, in the causes that the log records.

The log states for every row the row that caused it. A path goes from the end of a row to the row's begin, and from
there to the row's cause, until the begin of the run. The kind of a row says what its time was spent on. Recorded
transfers and memory accesses divide the time of a DMA or of a message further.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from kernbench.common.ids import pe_part
from kernbench.common.values import state
from kernbench.core.log import (
    BY,
    CAUSE,
    END,
    KIND,
    LAST,
    LAUNCH,
    LINE,
    NONE,
    PARENT,
    PART,
    READ,
    START,
    WHAT,
    WIDTH,
    By,
    Kind,
    Row,
)
from kernbench.engine.requests import RequestHandle
from kernbench.messages.control import Report
from kernbench.messages.requests import PeCoord
from kernbench.observe.critical_path_model import (
    CriticalPath,
    KernelPlace,
    PathChain,
    PathHop,
    PathPart,
    PathPlace,
    PathStep,
    WaitedFor,
)
from kernbench.observe.inside_dma import HOST_COPIES, InsideDma
from kernbench.observe.trace_log import LogView
from kernbench.transport import Route

OWN_PART: Mapping[Kind, PathPart] = MappingProxyType(
    {
        Kind.DMA_READ: PathPart.DMA_SETUP,
        Kind.DMA_WRITE: PathPart.DMA_SETUP,
        Kind.GEMM: PathPart.GEMM,
        Kind.MATH: PathPart.MATH,
        Kind.IPCQ_COPY: PathPart.QUEUES,
        Kind.FETCH: PathPart.FETCH,
        Kind.STORE: PathPart.STORE,
        Kind.ATOMIC: PathPart.DMA_SETUP,
        Kind.MEMORY_WRITE: PathPart.HOST_TRANSFER,
        Kind.MEMORY_READ: PathPart.HOST_TRANSFER,
        Kind.REQUEST: PathPart.WAIT,
        Kind.CONTROL: PathPart.CONTROL_CPU,
        Kind.LAUNCH: PathPart.LAUNCH,
        Kind.ISSUE: PathPart.ISSUE,
        Kind.SEND: PathPart.DMA_SETUP,
        Kind.TILE_ISSUE: PathPart.TILE_ISSUE,
        Kind.RAW: PathPart.RAW,
        Kind.CREDIT: PathPart.CREDIT,
        Kind.TRANSLATION: PathPart.TRANSLATION,
        Kind.FENCE: PathPart.ISSUE,
        Kind.PASSED: PathPart.UNTRACED,
    }
)
"""By kind of row, the part of a path that such a row begins with, before its bytes move"""
_OF_NO_PE = frozenset((PathPart.HOST_TRANSFER, PathPart.RAW))
_CONTROL = {"Report": PathPart.UP, "BarrierArrival": PathPart.BARRIER, "BarrierRelease": PathPart.BARRIER}
_MOVES = HOST_COPIES | {Kind.DMA_READ, Kind.DMA_WRITE, Kind.ATOMIC, Kind.SEND}
_MEMORY: dict[int, WaitedFor] = {
    By.MEMORY: "memory order",
    By.MEMORY_END: "memory order",
    By.MEMORY_RANGE: "memory order by range",
}


_MOST_NESTED = 16
"""Samples within each other, whose walks are nested calls"""
_NOWHERE = PathPlace(NONE)


class _WaitingLine(NamedTuple):
    """A line of a kernel that waited on a PE since ``since_ps``."""

    pe: PeCoord | None
    line: int
    since_ps: int


@state
class PathFinder:
    """Finds critical paths in a ``snapshot`` of a run with the requests ``handles``."""

    snapshot: LogView
    handles: Sequence[RequestHandle]
    _ends: list[tuple[int, Row]] = field(default_factory=list)  # ends of requests in ps, with their rows
    _samples: _SampleSteps = field(init=False)
    _run: PathChain | None = None  # the path of the whole run: it contains the paths of most requests

    def __post_init__(self) -> None:
        log = self.snapshot.log
        self._samples = _SampleSteps(self.snapshot)
        self._ends = sorted((log.rows[row + END], row) for row in log.requests.values() if log.rows[row + END] >= 0)

    def of_request(self, handle: RequestHandle) -> CriticalPath:
        """Return the path of a finished request, from its submission to its completion.

        The steps add up to the time between the two exactly.
        """
        row, times = self.snapshot.log.requests[handle.request_id], (self.begin_of(handle), handle.ended_ps)
        path = None if self._run is None else self._run.within(row, *times, handle.request_id)
        if path is None:
            chain = self._begin_chain(*times)
            self._walk(chain, row)
            path = chain.finish(*times, handle.request_id)
        return path

    def of_stopped(self, handle: RequestHandle, end_ps: int) -> CriticalPath:
        """Return the path of a request that had not completed at ``end_ps``.

        The walk starts at the row of the request that ended last.
        """
        begin_ps = self.begin_of(handle)
        chain = self._begin_chain(begin_ps, end_ps)
        last = self._last_row(end_ps, request_id=handle.request_id)
        if last is not None:
            chain.back_to(self._end(last), PathPart.WAIT)
            self._walk(chain, last)
        return chain.finish(begin_ps, end_ps, handle.request_id)

    def begin_of(self, handle: RequestHandle) -> int:
        """Return the begin of the time of a request, also of one that has not ended, in ps."""
        return self.snapshot.log.queued.get(handle.request_id, handle.submitted_ps)

    def of_run(self, begin_ps: int, end_ps: int) -> CriticalPath:
        """Return the path of a run between two times, also of a run that failed or was stopped.

        The walk starts at the request that ended last before ``end_ps``, or at the row that ended last if there is no
        such request.
        """
        self._run = chain = self._begin_chain(begin_ps, end_ps, through_kernels=True)
        last = self._last_request(end_ps)
        if last is None or (self._end(last) < end_ps and self._has_request_in_flight(end_ps)):
            last = self._last_row(end_ps)
            chain.back_to(end_ps if last is None else self._end(last), PathPart.WAIT)
        if last is not None:
            chain.back_to(self._end(last), PathPart.HOST_WAIT)
            self._walk(chain, last)
        chain.back_to(begin_ps, PathPart.HOST_WAIT)
        return chain.finish(begin_ps, end_ps)

    def _begin_chain(self, begin_ps: int, end_ps: int, *, through_kernels: bool = False) -> PathChain:
        return PathChain(begin_ps, end_ps, self.snapshot.rows_of_launches, through_kernels=through_kernels)

    def _end(self, row: Row) -> int:
        return self.snapshot.log.rows[row + END]

    def _last_request(self, when: int) -> Row | None:
        at = bisect_left(self._ends, (when + 1, 0))
        return self._ends[at - 1][1] if at else None

    def _has_request_in_flight(self, when: int) -> bool:
        """Return True if a request was submitted by ``when`` and ended later."""
        return any(handle.submitted_ps <= when < handle.ended_ps for handle in self.handles)

    def _last_row(self, when: int, before: Row | None = None, request_id: int | None = None) -> Row | None:
        """Find the row that ended last by ``when``.

        ``before`` limits the search to rows opened before that row, ``request_id`` to the rows of a request.
        """
        columns = self.snapshot.columns
        ends = columns.end[: None if before is None else before // WIDTH]
        fits = (ends >= 0) & (ends <= when)
        closed = np.flatnonzero(fits if request_id is None else fits & (columns.launch == request_id))
        return int(closed[np.lexsort((closed, ends[closed]))[-1]]) * WIDTH if closed.size else None

    def _walk(self, chain: PathChain, row: Row) -> None:
        """Walk from the end of a row to the begin of the chain."""
        walk = _Walk(self.snapshot, chain, self._samples)
        while row >= 0:
            first = walk.walk(PathPlace(row))
            if chain.at_ps <= chain.floor_ps:
                return
            # The host acted without a cause in the log: continue with the request that ended before. If the host
            # abandoned a kernel, the kernel had waited since the row that ended last on the machine.
            abandoned = walk.is_report(first)
            before = self._last_row(chain.at_ps, first) if abandoned else self._last_request(chain.at_ps - 1)
            if before is None:
                return
            row = before
            chain.back_to(self._end(row), PathPart.WAIT if abandoned else PathPart.HOST_WAIT)


def steps_of(snapshot: LogView, row: Row, begin_ps: int) -> tuple[PathStep, ...]:
    """Return the steps of a closed row, in order, from ``begin_ps`` to the end of the row.

    The row must be open at ``begin_ps``.
    """
    rows = snapshot.log.rows
    end_ps, launch_id = rows[row + END], rows[row + LAUNCH]
    chain = PathChain(begin_ps, end_ps, snapshot.rows_of_launches, launch_id)
    if begin_ps < end_ps:
        _Walk(snapshot, chain, _SampleSteps(snapshot)).walk_inside(PathPlace(row))
    return chain.finish(begin_ps, end_ps, launch_id).steps


@state
class _SampleSteps:
    """The steps of samples while they were on their devices, for all walks through a snapshot.

    ``_steps``: by launch, and by whether they are those of its simulated part alone.

    A sample may wait for a launch that passed, whose sample waits in turn. Beyond ``_MOST_NESTED`` samples within each
    other, or for a sample within itself, the time of a launch that passed is not divided.
    """

    snapshot: LogView
    _steps: dict[tuple[int, bool], tuple[PathStep, ...]] = field(default_factory=dict)
    _nested: int = 0

    def of_sample(self, launch: int) -> tuple[PathStep, ...]:
        """Return the steps of a simulated launch, in order."""
        log = self.snapshot.log
        row = log.requests[launch]
        return self._find((launch, False), row, *log.on_device[launch], log.rows[row + END])

    def of_part(self, launch: int, row: Row, end_ps: int) -> tuple[PathStep, ...]:
        """Return the steps of the simulated part of a launch, which led to ``row`` at ``end_ps``."""
        return self._find((launch, True), row, self.snapshot.log.on_device[launch][0], end_ps, end_ps)

    def _find(
        self, key: tuple[int, bool], row: Row, begin_ps: int, end_ps: int, row_end_ps: int
    ) -> tuple[PathStep, ...]:
        """Return the steps from ``begin_ps`` to ``end_ps`` that led to ``row``, which ended at ``row_end_ps``.

        Equal steps are joined.
        """
        if key in self._steps or self._nested == _MOST_NESTED:
            return self._steps.get(key, ())
        self._steps[key] = ()  # until it is known, for a sample within itself
        chain = PathChain(begin_ps, row_end_ps, self.snapshot.rows_of_launches)
        self._nested += 1
        _Walk(self.snapshot, chain, self).walk(PathPlace(row))
        self._nested -= 1
        joined: dict[PathStep, int] = {}
        for step in chain.finish(begin_ps, row_end_ps).steps:
            ps = min(step.end_ps, end_ps) - step.start_ps
            if ps > 0:
                place = replace(step, start_ps=0, end_ps=0)
                joined[place] = joined.get(place, 0) + ps
        self._steps[key] = tuple(replace(place, end_ps=ps) for place, ps in joined.items())
        return self._steps[key]


class _Walk:
    """Walks ``chain`` backwards through a ``snapshot``."""

    def __init__(self, snapshot: LogView, chain: PathChain, samples: _SampleSteps) -> None:
        self._snapshot = snapshot
        self._machine = snapshot.machine
        self._table = snapshot.log
        self._rows = snapshot.log.rows
        self._chain = chain
        self._dma = InsideDma(snapshot, chain)
        self._samples = samples

    def walk(self, place: PathPlace) -> Row:
        """Walk to the begin of the chain, or to a row without a cause; return the earliest row of the walk."""
        chain, following = self._chain, place
        while following.number >= 0 and chain.at_ps > chain.floor_ps:
            place = following
            chain.launch_id = self._rows[place.number + LAUNCH]
            if not chain.come_to(place):
                break
            following = self._pass(place)
        return place.number

    def _pass(self, place: PathPlace) -> PathPlace:
        """Walk over a row; return its cause or the row that ended it, _NOWHERE if it has neither."""
        row, rows = place.number, self._rows
        if place.at != "start":
            last = rows[row + LAST]
            kind = rows[row + KIND]
            if kind == Kind.REQUEST and self._chain.at_ps == rows[row + END]:
                self._chain.passed[row] = len(self._chain.steps), len(self._chain.hops)
            if place.at == "end" and last >= 0:
                return self._to_write(row, last) if kind == Kind.FENCE else PathPlace(last)
            return self.walk_inside(place)
        return self._to_cause(row)

    # The time inside a row.

    def walk_inside(self, place: PathPlace) -> PathPlace:
        """Walk to the begin of a row, or to the end of the row that delayed it."""
        row, kind = place.number, self._rows[place.number + KIND]
        if kind == Kind.IPCQ_COPY:  # from the slot of a message back to the departure from its sender
            sent = self._snapshot.send_of.get(row)
            return self._to_cause(row) if sent is None else self._to_begin(self._dma.walk(sent))
        if kind == Kind.CONTROL:
            part = _CONTROL.get(self._text(row), PathPart.DOWN)
            pe = self._pe(row) if part is PathPart.BARRIER else None
            line = 0 if pe is None else self._rows[row + LINE]
            before = self._dma.walk_control(row, part, pe, line)
            if before >= 0:
                return PathPlace(before)
            self._chain.back_to(self._rows[row + START], part, pe, line)
            return PathPlace(row, "start")
        if kind == Kind.PASSED:
            return self._to_begin(self._pass_sample(row))
        if kind in _MOVES:
            row = self._dma.walk(row, accessed=place.at == "accessed")
        return self._to_begin(row)

    def _pass_sample(self, row: Row) -> Row:
        """Divide the time of a launch that passed as that of its sample, or of its simulated part; return ``row``."""
        launch, begin_ps = self._rows[row + LAUNCH], self._rows[row + START]
        sample = self._machine.passed.sample_of(launch)
        if sample == launch:
            steps = self._samples.of_part(launch, self._rows[row + CAUSE], begin_ps)
        else:
            steps = self._samples.of_sample(sample)
        left_ps = sum(step.ps for step in steps)
        for step in reversed(steps):
            share = step.ps / left_ps
            left_ps -= step.ps
            when = self._chain.at_ps - round((self._chain.at_ps - begin_ps) * share)
            self._chain.back_to(when, step.part, step.pe, step.line, step.via)
        return row

    def _to_begin(self, row: Row) -> PathPlace:
        """Walk to the begin of a row over its first part (``OWN_PART``): for rows that move bytes, the DMA set-up."""
        part, pe = OWN_PART[Kind(self._rows[row + KIND])], self._pe(row)
        if part is PathPart.RAW and pe is None:
            part = PathPart.FILL
        if part in _OF_NO_PE:
            pe = None
        self._chain.back_to(self._rows[row + START], part, pe, self._rows[row + LINE] if pe is not None else 0)
        return PathPlace(row, "start")

    # The causes of rows.

    def _to_cause(self, row: Row) -> PathPlace:
        rows, chain = self._rows, self._chain
        cause, by = rows[row + CAUSE], rows[row + BY]
        if cause < 0:
            return _NOWHERE
        if rows[row + KIND] == Kind.LAUNCH and by in (By.KERNEL, By.CREDIT):
            chain.entered.append(len(chain.steps))
            if not chain.through_kernels:
                place = PathPlace(rows[row + PARENT])
                chain.back_to(rows[place.number + END], PathPart.EARLIER_KERNEL)
                return place
        match by:
            case By.SETUP | By.QUEUE:
                part = PathPart.DMA_SETUP if by == By.SETUP else PathPart.QUEUES
                chain.back_to(rows[cause + START], part, self._pe(cause), rows[cause + LINE])
                place = PathPlace(cause, "start")
            case By.START:
                last = self._snapshot.last_order(cause)
                chain.back_to(rows[last + END], PathPart.COMMON_START)
                place = PathPlace(last)
            case By.MEMORY | By.MEMORY_RANGE | By.MEMORY_END:
                self._note_hop(row, cause, _MEMORY[By(by)])
                place = PathPlace(cause, "end" if by == By.MEMORY_END else "accessed")
            case By.MESSAGE | By.OPERAND if rows[cause + KIND] == Kind.IPCQ_COPY:
                place = self._to_message(row, cause)
            case By.CREDIT | By.POLL:
                place = self._to_credit(row, cause)
            case _:
                place = PathPlace(cause)
        return place

    def _to_message(self, row: Row, message: Row) -> PathPlace:
        """Walk from the end of a wait for a message, over the time to decode it, to its arrival in the slot."""
        waiting = self._note_hop(row, message, "message", self._text(self._snapshot.send_of.get(message, message)))
        overhead_ps = 0
        if waiting.pe is not None:
            overhead_ps = self._machine.component(pe_part(*waiting.pe, "pe_ipcq")).overhead_ps
        self._chain.back_to(self._chain.at_ps - overhead_ps, PathPart.QUEUES, waiting.pe, waiting.line)
        return PathPlace(message)

    def _to_write(self, fence: Row, write: Row) -> PathPlace:
        """Walk from the end of a fence to the time when the last write that the fence waited for was in memory."""
        rows = self._rows
        waiting = _WaitingLine(self._pe(fence), rows[fence + LINE], rows[fence + READ])
        self._note_hop(fence, write, "fence", waiting=waiting)
        return PathPlace(write, "accessed" if rows[write + KIND] in (Kind.DMA_WRITE, Kind.ATOMIC) else "end")

    def _to_credit(self, row: Row, credit: Row) -> PathPlace:
        """Walk from the end of a wait for a slot to the time when the receiver freed the slot."""
        rows, chain, giver = self._rows, self._chain, self._rows[credit + CAUSE]
        if rows[row + KIND] == Kind.CONTROL:  # the kernel ended when its credits were back, and did not wait for a slot
            waiting = self._waiting(row)._replace(line=0)
        else:
            waiting = self._note_hop(row, giver, "slot", self._text(credit))
        chain.back_to(rows[credit + END], PathPart.POLL, waiting.pe, waiting.line)
        ends = self._pe(credit), self._pe(giver) if giver >= 0 else None
        chain.back_to(rows[credit + START], PathPart.CREDIT, waiting.pe, waiting.line, self._way(*ends))
        return PathPlace(credit, "start")

    def _way(self, a: PeCoord | None, b: PeCoord | None) -> Route | None:
        """Return the route between two PEs; None if they are the same, or if one is unknown."""
        if a is None or b is None or a == b:
            return None
        return self._machine.route(pe_part(*a, "pe_dma"), pe_part(*b, "pe_dma"))

    def _waiting(self, row: Row) -> _WaitingLine:
        """Return the line that waited until ``row`` began, with the begin of the wait.

        A command waits since its issue, the program since its previous issue.
        """
        rows, pe = self._rows, self._pe(row)
        itself, line = rows[row + KIND] in (Kind.ISSUE, Kind.CONTROL, Kind.FENCE), rows[row + LINE]
        issue = NONE if pe is None else self._snapshot.issue_before(pe, row, None if itself else line)
        since = min(rows[issue + END], self._chain.at_ps) if issue >= 0 else self._chain.at_ps
        return _WaitingLine(pe, rows[issue + LINE] if itself and issue >= 0 else line, since)

    def _note_hop(
        self, row: Row, cause: Row, waited_for: WaitedFor, direction: str = "", waiting: _WaitingLine | None = None
    ) -> _WaitingLine:
        """Record that the path enters another kernel, or an earlier line of the kernel; return the waiting line."""
        rows, waiting = self._rows, waiting or self._waiting(row)
        cause_pe = self._pe(cause) if cause >= 0 else None
        if waiting.pe is not None and cause_pe is not None:
            hop = PathHop(
                waiting=KernelPlace(pe=waiting.pe, launch_id=rows[row + LAUNCH], line=waiting.line),
                cause=KernelPlace(
                    pe=cause_pe, launch_id=rows[cause + LAUNCH], line=0 if waited_for == "slot" else rows[cause + LINE]
                ),
                waited_for=waited_for,
                direction=direction,
                start_ps=waiting.since_ps,
                end_ps=self._chain.at_ps,
            )
            self._chain.hops.append(hop)
        return waiting

    def _pe(self, row: Row) -> PeCoord | None:
        return self._snapshot.pes[self._rows[row + PART]]

    def is_report(self, row: Row) -> bool:
        """Return True if a row is the report of a component on an order."""
        return self._rows[row + KIND] == Kind.CONTROL and self._text(row) == Report.__name__

    def _text(self, row: Row) -> str:
        return str(self._table.whats[self._rows[row + WHAT]])
