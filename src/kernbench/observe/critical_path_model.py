"""Model of a critical path: contiguous steps from begin to end, each with the part that its time was spent on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from enum import StrEnum
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kernbench.common.figures import figure
from kernbench.common.units import ps_to_ns
from kernbench.common.values import state, value
from kernbench.messages.requests import PeCoord
from kernbench.transport import Link, Route


class PathPart(StrEnum):
    """The kinds of time on a path, in the order in which a request passes them."""

    HOST_TRANSFER = "host transfer"
    HOST_WAIT = "host program"
    DOWN = "control path down"
    CONTROL_QUEUE = "control path queue"
    CONTROL_CPU = "control path CPUs"
    FILL = "device fill"
    COMMON_START = "wait for the common start"
    EARLIER_KERNEL = "an earlier kernel on the PE"
    LAUNCH = "kernel launch"
    ISSUE = "command issue"
    TILE_ISSUE = "tile issue"
    TRANSLATION = "translation"
    DMA_SETUP = "DMA set-up"
    REQUEST = "request network"
    ACCESS = "memory access"
    MEMORY_QUEUE = "memory queue"
    TURNAROUND = "memory turnarounds"
    ROWS = "row misses"
    REFRESH = "memory refresh"
    SERVICE = "memory service"
    RESPONSE = "response network"
    NETWORK_QUEUE = "network queue"
    FETCH = "fetch"
    GEMM = "GEMM"
    MATH = "MATH"
    STORE = "store"
    QUEUES = "queues"
    MESSAGE = "message network"
    DOORBELL = "doorbell"
    CREDIT = "credit"
    POLL = "poll for a credit"
    BARRIER = "barrier"
    WAIT = "issue/wait"
    UNTRACED = "not traced further"
    RAW = "raw traffic"
    UP = "control path up"


Via: TypeAlias = Route | tuple[Link, ...] | str | None
"""What a step passes: the route of a transfer, the links that packets waited for, a component's name, or None"""


@value
class PathStep:
    """Time on a path from ``start_ps`` to ``end_ps``, spent on ``part``.

    ``pe``, ``line`` and ``launch_id`` name the PE, the line of the kernel and the launch, if the time belongs to one.
    ``request_id`` is the request that the time belongs to, -1 for copies. ``via`` is what the path passes.
    """

    part: PathPart
    start_ps: int
    end_ps: int
    pe: PeCoord | None = None
    line: int = 0
    launch_id: int = -1
    request_id: int = -1
    via: Via = None

    @property
    def ps(self) -> int:
        """The length of the step in ps."""
        return self.end_ps - self.start_ps


@value(kw_only=True)
class KernelPlace:
    """A line of the kernel of a launch on a PE; line 0 is no line."""

    pe: PeCoord
    launch_id: int
    line: int


WaitedFor: TypeAlias = Literal["message", "slot", "memory order", "memory order by range", "fence", "memory", "link"]
"""The reason for a wait:

- ``message``, ``slot``: a message of a queue, or a free slot in the queue
- ``memory order``: an earlier access to the same bytes
- ``memory order by range``: an earlier access to a range that encloses the bytes
- ``fence``: an earlier write of the kernel
- ``memory``: an HBM slice that served an access of another PE
- ``link``: a link that carried a transfer of another PE
"""


@value(kw_only=True)
class PathHop:
    """A wait on the path: ``waiting`` waited for ``cause`` from ``start_ps`` to ``end_ps``.

    - ``message``: ``cause`` sent the message that ``waiting`` received by queue ``direction``.
    - ``slot``: ``cause`` occupied the slot of queue ``direction``. With ``slot``, as with ``message``, the path enters
      another kernel.
    - ``memory order``: ``cause`` is another line of the same kernel, which accessed the same bytes.
    - ``fence``: ``cause`` is another line of the same kernel, which wrote.
    - ``memory``, ``link``: the component that ``direction`` names served other PEs, among them ``cause``.
    """

    waiting: KernelPlace
    cause: KernelPlace
    waited_for: WaitedFor
    direction: str
    start_ps: int
    end_ps: int

    @property
    def ps(self) -> int:
        """The length of the wait in ps."""
        return self.end_ps - self.start_ps


@value
class Spent:
    """Time spent on a part of a path, a PathPart."""

    part: str = figure("the part on the path")
    ps: int = figure()

    @property
    def ns(self) -> float:
        """The time in ns."""
        return ps_to_ns(self.ps)


@value
class LineTime:
    """The time of a line of a kernel on a path, as a sum and by part."""

    line: int
    ps: int
    parts: tuple[Spent, ...]

    @property
    def ns(self) -> float:
        """The time in ns."""
        return ps_to_ns(self.ps)


@value
class CriticalPath:
    """The steps from ``start_ps`` to ``end_ps``, in the order of time and without a gap.

    ``hops`` are the waits at which the path goes from one kernel or line to another. ``launch_id`` is the launch that
    the path belongs to.
    """

    start_ps: int
    end_ps: int
    steps: tuple[PathStep, ...]
    hops: tuple[PathHop, ...] = ()
    launch_id: int = -1

    @property
    def ps(self) -> int:
        """The length of the path in ps, which is the sum of its steps."""
        return self.end_ps - self.start_ps

    def encloses(self, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask of the intervals, in ps, that the path contains completely.

        The time of a path is half-open: an interval that starts at the path's end is outside. An interval that ends
        after the path, or never (-1), is outside too, since the work done by the end of the path is unknown.
        """
        begun: NDArray[np.bool_] = (self.start_ps <= starts) & (starts < self.end_ps)
        return begun & (ends >= 0) & (ends <= self.end_ps)

    @property
    def parts(self) -> tuple[Spent, ...]:
        """Time by part, in the order in which a request passes them; the sum is ``ps``."""
        return sum_by_part(self.steps)

    @property
    def lines(self) -> tuple[LineTime, ...]:
        """Time by line of the launch's kernel, in the order of lines, without time that belongs to no line."""
        by_line: dict[int, list[PathStep]] = {}
        for step in self.steps:
            if step.line and step.launch_id == self.launch_id:
                by_line.setdefault(step.line, []).append(step)
        return tuple(
            LineTime(line, sum(step.ps for step in steps), sum_by_part(steps))
            for line, steps in sorted(by_line.items())
        )


def sum_by_part(steps: Iterable[PathStep]) -> tuple[Spent, ...]:
    """Return the time by part, without parts whose time is 0."""
    ps_by_part = dict.fromkeys(PathPart, 0)
    for step in steps:
        ps_by_part[step.part] += step.ps
    return tuple(Spent(part, ps) for part, ps in ps_by_part.items() if ps)


class PathPlace(NamedTuple):
    """A point that a path reaches: row or transfer ``number`` at a moment ``at``.

    The moment is the begin or the end of a row, the access of the row's last byte, or the end of a transfer.
    """

    number: int
    at: Literal["end", "start", "accessed", "transfer"] = "end"


MOST_STEPS = 4
"""The number of places that a walk may visit, per row of the launches that the walk enters"""


@state
class PathChain:
    """A path under construction, walked backwards in time from its end: at ``at_ps`` now, to stop at ``floor_ps``.

    - ``launch_id``: the launch to which the steps on a PE belong
    - ``through_kernels``: the path continues inside an earlier kernel of the PE; otherwise one step covers that kernel
    - ``passed``: the number of steps and hops before the end of each request, by row
    - ``entered``: the number of steps before each entry into an earlier kernel
    - ``rows_of``: the number of rows of each launch
    - ``n_places``, ``most_places``: the places of rows visited, and their limit
    """

    floor_ps: int
    at_ps: int
    rows_of: Mapping[int, int] = field(default_factory=dict)
    launch_id: int = -1
    through_kernels: bool = False
    steps: list[PathStep] = field(default_factory=list)
    hops: list[PathHop] = field(default_factory=list)
    passed: dict[int, tuple[int, int]] = field(default_factory=dict)
    entered: list[int] = field(default_factory=list)
    n_places: int = 0
    most_places: int = 0
    _instant_ps: int = -1
    _places: set[PathPlace] = field(default_factory=set)  # visited at this instant
    _launches: set[int] = field(default_factory=set)

    def come_to(self, place: PathPlace) -> bool:
        """Return True if the walk may continue at ``place``; otherwise mark the remaining time as not traced.

        The walk may continue if it has gone back in time since the last place, or if ``place`` is new at its time. A
        limit of ``MOST_STEPS`` places for each row of the entered launches also guarantees that the walk ends.
        """
        if self._instant_ps != self.at_ps:
            self._instant_ps = self.at_ps
            self._places.clear()
        if self.launch_id not in self._launches:
            self._launches.add(self.launch_id)
            self.most_places += MOST_STEPS * self.rows_of.get(self.launch_id, 0)
        if place.at != "transfer":
            self.n_places += 1
        if place in self._places or self.n_places > self.most_places:
            self.back_to(self.floor_ps, PathPart.UNTRACED)
            return False
        self._places.add(place)
        return True

    def within(self, row: int, start_ps: int, end_ps: int, launch_id: int) -> CriticalPath | None:
        """Return the path of a request as a part of this path, by the row of the request.

        Return None if the path of the request differs, or may differ, from this path.
        """
        n_steps, n_hops = self.passed.get(row, (len(self.steps), 0))
        steps: list[PathStep] = []
        for step in self.steps[n_steps:]:
            if step.end_ps <= start_ps:
                break
            steps.append(step if step.start_ps >= start_ps else replace(step, start_ps=start_ps))
        if not steps or steps[0].end_ps != end_ps or steps[-1].start_ps != start_ps:
            return None
        if any(n_steps <= n_entered <= n_steps + len(steps) for n_entered in self.entered):
            return None
        hops = [hop for hop in self.hops[n_hops:] if hop.end_ps > start_ps]
        return CriticalPath(start_ps, end_ps, tuple(reversed(steps)), tuple(reversed(hops)), launch_id)

    def back_to(self, when: int, part: PathPart, pe: PeCoord | None = None, line: int = 0, via: Via = None) -> None:
        """Add a step on ``part`` from ``when`` to the point reached, unless the step is empty."""
        when = max(when, self.floor_ps)
        if when < self.at_ps:
            launch_id = -1 if pe is None else self.launch_id
            self.steps.append(PathStep(part, when, self.at_ps, pe, line, launch_id, self.launch_id, via))
            self.at_ps = when

    def finish(self, start_ps: int, end_ps: int, launch_id: int = -1) -> CriticalPath:
        """Return the path. Its steps add up exactly, since time missing at the path's begin counts as waiting."""
        self.back_to(start_ps, PathPart.WAIT)
        return CriticalPath(start_ps, end_ps, tuple(reversed(self.steps)), tuple(reversed(self.hops)), launch_id)
