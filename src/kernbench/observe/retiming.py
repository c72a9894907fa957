"""Estimate the gain of faster resources: repeat a launch along its recorded causes, with new times.

Each row lasts as recorded, less the saving on the faster resource. It begins with the recorded delay after its cause,
and no earlier than the end of the other rows that it waits for:

- the previous row on its engine
- the previous stage of its tile
- for a report, the reports of all other PEs

Rows of a kind that last equally long, to the picosecond, share one mean: that of the first `EXACT` of them.

The gain is therefore limited by the other rows that a row waits for. Effects that the log does not record are ignored,
for example a different order of packets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kernbench.common.values import state
from kernbench.core.log import (
    BY,
    CAUSE,
    END,
    KIND,
    LAST,
    LAUNCH,
    NONE,
    PARENT,
    PART,
    START,
    TILE,
    WHAT,
    WIDTH,
    By,
    Kind,
    Row,
)
from kernbench.observe.critical_path import steps_of
from kernbench.observe.trace_log import LogView

FASTER = 1.1
"""The speed-up of a resource, the same as in advice"""
SAVED = 1 - 1 / FASTER
"""The part of its time that a faster resource saves"""
EXACT = 16
"""Rows of a kind and a duration that are each divided among resources"""
ResourceTimes: TypeAlias = NDArray[np.float64]
"""A time in ps per resource, for the case that this resource is faster"""
NewTime: TypeAlias = ResourceTimes | float
"""The same; a number if there is one resource, or if the time is the same for all"""
_IN_ORDER = frozenset((Kind.GEMM, Kind.MATH, Kind.FETCH, Kind.STORE, Kind.ISSUE, Kind.TILE_ISSUE, Kind.LAUNCH))
"""Kinds of rows that a component executes one after the other"""
_FROM_START = frozenset((By.SETUP, By.QUEUE))
_BY_ACCESS = frozenset((By.MEMORY, By.MEMORY_RANGE))


class _Need(NamedTuple):
    """A condition for the begin of a row: ``lag_ps`` after the end, or the begin, of another row."""

    row: Row
    lag_ps: int
    from_start: bool = False


@state
class Retiming:
    """The rows of launch ``launch_id``, with new times for each of ``resources`` made ``FASTER`` alone."""

    snapshot: LogView
    launch_id: int
    resources: Sequence[str]
    _rows: Sequence[int] = field(init=False)
    _places: Mapping[str, int] = field(init=False)
    _begin_ps: int = 0
    _later: Callable[[NewTime, NewTime], NewTime] = field(init=False)
    _durations: dict[tuple[int, int], list[NewTime]] = field(default_factory=dict)  # by kind and old duration
    _engines: dict[int, NewTime] = field(default_factory=dict)  # by kind: new time per ps of the engine
    _starts: dict[Row, NewTime] = field(default_factory=dict)
    _ends: dict[Row, NewTime] = field(default_factory=dict)
    _parts_end: dict[Row, NewTime] = field(default_factory=dict)  # by parent: the last end of its children
    _before: dict[tuple[int, int], Row] = field(default_factory=dict)  # by component and kind, the previous row
    _stages: dict[tuple[Row, int], Row] = field(default_factory=dict)  # by parent and tile, the previous stage
    _waiting: dict[Row, list[Row]] = field(default_factory=dict)  # messages, by the message handled before them
    # By receiver, type of message and launch:
    _handled: dict[tuple[int, int, int], list[Row]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._rows = self.snapshot.log.rows
        self._places = {name: place for place, name in enumerate(self.resources)}
        self._later = max if len(self.resources) == 1 else np.maximum

    def gains_ps(self) -> dict[str, int]:
        """Return the time in ps by which the launch ends earlier, for each resource if it alone is faster."""
        log = self.snapshot.log
        request = log.requests[self.launch_id]
        columns, end = self.snapshot.columns, self._rows[request + END]
        self._begin_ps = log.queued.get(self.launch_id, self._rows[request + START])
        meanwhile = np.flatnonzero((columns.end > self._begin_ps) & (columns.end <= end))
        for first in (meanwhile * WIDTH).tolist():
            ready = [first]
            while ready:  # each row is timed once
                row = ready.pop()
                handled = self._handled_before(row)
                if handled >= 0 and handled not in self._ends:
                    self._waiting.setdefault(handled, []).append(row)
                else:
                    self._time(row, handled)
                    ready += self._waiting.pop(row, [])
        gained = np.broadcast_to(self._rows[request + END] - self._end_of(request), len(self.resources))
        return dict(zip(self.resources, np.rint(gained).astype(int).tolist(), strict=True))

    def _handled_before(self, row: Row) -> Row:
        """Return the message that delayed message ``row`` at its CPU during the launch, NONE if none did."""
        before = self.snapshot.handled_before.get(row, NONE) if self._rows[row + KIND] == Kind.CONTROL else NONE
        return before if before >= 0 and self._rows[before + END] > self._begin_ps else NONE

    def _time(self, row: Row, handled: Row) -> None:
        """Compute the new times of a row.

        The rows that it waits for have new times already. ``handled``: for a message, the previous message at its CPU.
        """
        rows = self._rows
        kind, start, part = rows[row + KIND], rows[row + START], rows[row + PART]
        begin: NewTime | None = None
        for need in self._needs(row, start) if start >= self._begin_ps else ():
            ready = self._starts.get(need.row, rows[need.row + START]) if need.from_start else self._end_of(need.row)
            ready = ready + need.lag_ps
            begin = ready if begin is None else self._later(begin, ready)
        self._starts[row] = begin = start if begin is None else begin
        if rows[row + LAST] < 0:
            if handled >= 0:
                end = self._ends[handled] + self._spend(row, rows[handled + END])
            else:
                end = self._later(begin, self._begin_ps) + self._spend(row, max(start, self._begin_ps))
            self._ends[row] = end
            parent = rows[row + PARENT]
            if parent >= 0 and rows[row + END] <= rows[parent + END]:
                self._parts_end[parent] = self._later(self._parts_end.get(parent, end), end)
            if kind in _IN_ORDER:
                self._before[part, kind] = row
            if parent >= 0 and rows[row + TILE] >= 0:
                self._stages[parent, rows[row + TILE]] = row
        if kind == Kind.CONTROL:
            number = self.snapshot.control_of.get(row)
            if number is not None:
                key = int(self.snapshot.transfers.dst[number]), rows[row + WHAT], rows[row + LAUNCH]
                self._handled.setdefault(key, []).append(row)

    def _needs(self, row: Row, start: int) -> list[_Need]:
        """Return the conditions for the begin of a row: its cause, and the other recorded rows that it waits for."""
        rows, cause, by = self._rows, self._rows[row + CAUSE], self._rows[row + BY]
        needs = []
        if by == By.START:
            cause = self.snapshot.last_order(cause)
        if cause >= 0:
            # A row may begin before its cause ends, while bytes from memory are in flight: the lag is then negative.
            has_ended = rows[cause + END] >= 0 and (rows[cause + END] <= start or by in _BY_ACCESS)
            from_start = by in _FROM_START or not has_ended
            needs.append(_Need(cause, start - rows[cause + (START if from_start else END)], from_start))
        earlier = [self._before.get((rows[row + PART], rows[row + KIND]), NONE)] if rows[row + LAST] < 0 else []
        if rows[row + TILE] >= 0:
            earlier.append(self._stages.get((rows[row + PARENT], rows[row + TILE]), NONE))
        if by == By.ORDER and cause >= 0:
            earlier += self._handled.get((rows[row + PART], rows[cause + WHAT], rows[row + LAUNCH]), [])
        needs += [_Need(other, 0) for other in earlier if other >= 0 and other != cause and rows[other + END] <= start]
        return needs

    def _end_of(self, row: Row) -> NewTime:
        """Return the new ends of a row; a parent ends with the last of its children."""
        end = self._ends.get(row)
        if end is not None:
            return end
        rows, last = self._rows, self._rows[row + LAST]
        if row not in self._starts or last < 0 or last == row:
            return rows[row + END]
        end = self._end_of(last) + (rows[row + END] - rows[last + END])
        parts_end = self._parts_end.get(row)
        return end if parts_end is None else self._later(end, parts_end)

    def _spend(self, row: Row, begin_ps: int) -> NewTime:
        """Return the new duration of a row from ``begin_ps``.

        The complete time of an engine belongs to that engine. If resources tie, one faster resource saves nothing.
        """
        kind, time_ps = self._rows[row + KIND], self._rows[row + END] - begin_ps
        if not time_ps:
            return 0
        if kind in self._engines:
            return self._engines[kind] * time_ps
        alike = self._durations.setdefault((kind, time_ps), [])
        if len(alike) == EXACT:
            return alike[-1]
        saved_ps = [0.0] * len(self.resources)
        steps = steps_of(self.snapshot, row, begin_ps)
        for (_, resources), ps in self.snapshot.divider.divide(steps).items():
            if len(resources) == 1 and resources[0] in self._places:
                saved_ps[self._places[resources[0]]] += ps * SAVED
        new_ps = time_ps - (saved_ps[0] if len(saved_ps) == 1 else np.array(saved_ps))
        alike.append(new_ps)
        if len(alike) == EXACT:
            alike[:] = [sum(alike) / EXACT] * EXACT  # for all later ones
        if kind in _IN_ORDER:
            self._engines[kind] = new_ps / time_ps
        return new_ps
