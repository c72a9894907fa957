"""A critical path: contiguous steps from the begin of something to its end, each with what it was spent on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from enum import StrEnum
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kernbench.common.units import ps_to_ns
from kernbench.common.values import state, value
from kernbench.messages.requests import PeCoord
from kernbench.transport import Link, Route


class PathPart(StrEnum):
    """The kinds of time on a path, in the order of a request's way."""

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
"""The way of a transfer; the links of one that packets waited for; the name of a part of the machine; None: nothing"""


@value
class PathStep:
    """From ``start_ps`` to ``end_ps`` the path goes through ``part``: for a line of the kernel on a PE, or neither.

    ``launch_id`` is that of the kernel, on a PE; ``request_id`` that of the request that the time is part of, -1 where
    that is a copy; ``via`` is what the path went through.
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
        """The length of the piece."""
        return self.end_ps - self.start_ps


@value(kw_only=True)
class KernelPlace:
    """A line of the kernel of a launch on a PE; 0: no line of it."""

    pe: PeCoord
    launch_id: int
    line: int


WaitedFor: TypeAlias = Literal["message", "slot", "memory order", "memory order by range", "fence", "memory", "link"]
"""A message of a queue, a slot of one; an earlier access to the same bytes, or to a range that encloses them; at a
fence, what was written before; a slice of HBM that was working on an access of another; a link that carried it"""


@value(kw_only=True)
class PathHop:
    """``waiting``, on the path, waited from ``start_ps`` to ``end_ps`` for what ``waited_for`` says.

    For a message of its queue ``direction``, which ``cause`` sent, or a slot there, which ``cause`` held: then the path
    goes from one kernel to another. Or for an access of ``cause``, another line of the same kernel, to the same bytes.
    Or at a fence for what ``cause``, likewise, wrote. Or for the memory, or link, ``direction``, which worked for
    ``cause``, another PE, among others.
    """

    waiting: KernelPlace
    cause: KernelPlace
    waited_for: WaitedFor
    direction: str
    start_ps: int
    end_ps: int

    @property
    def ps(self) -> int:
        """The length of the wait."""
        return self.end_ps - self.start_ps


@value
class Spent:
    """Time on one part."""

    part: PathPart
    ps: int


@value
class LineTime:
    """The time of a line of a kernel on a path, in all and by part."""

    line: int
    ps: int
    parts: tuple[Spent, ...]

    @property
    def ns(self) -> float:
        """In ns."""
        return ps_to_ns(self.ps)


@value
class CriticalPath:
    """The steps from ``start_ps`` to ``end_ps``, in the order of time and without a gap.

    ``hops``: where it goes from one kernel to another, by queues. ``launch_id``: of the launch it is the path of.
    """

    start_ps: int
    end_ps: int
    steps: tuple[PathStep, ...]
    hops: tuple[PathHop, ...] = ()
    launch_id: int = -1

    @property
    def ps(self) -> int:
        """All of it: the sum of the steps."""
        return self.end_ps - self.start_ps

    def encloses(self, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of some works, in ps, are wholly of its time: what starts as it ends comes after it.

        Its time is half-open. What ends later (or at -1: never) is no work of its time either: how much of it was done
        by then is not known.
        """
        begun: NDArray[np.bool_] = (self.start_ps <= starts) & (starts < self.end_ps)
        return begun & (ends >= 0) & (ends <= self.end_ps)

    @property
    def parts(self) -> tuple[Spent, ...]:
        """Time by part, in the order of a request's way; adds up to ``ps``."""
        return sum_by_part(self.steps)

    @property
    def lines(self) -> tuple[LineTime, ...]:
        """Time by line of its launch's kernel, in the order of lines; what belongs to no line is left out."""
        by_line: dict[int, list[PathStep]] = {}
        for step in self.steps:
            if step.line and step.launch_id == self.launch_id:
                by_line.setdefault(step.line, []).append(step)
        return tuple(
            LineTime(line, sum(step.ps for step in steps), sum_by_part(steps))
            for line, steps in sorted(by_line.items())
        )


def sum_by_part(steps: Iterable[PathStep]) -> tuple[Spent, ...]:
    """Time by part, without parts that took none."""
    ps_by_part = dict.fromkeys(PathPart, 0)
    for step in steps:
        ps_by_part[step.part] += step.ps
    return tuple(Spent(part, ps) for part, ps in ps_by_part.items() if ps)


class PathPlace(NamedTuple):
    """A place that a path comes to: a row at its end, at its begin, or where it had read or written its last byte; or
    a transfer, by its number, at its end."""

    number: int
    at: Literal["end", "start", "accessed", "transfer"] = "end"


MOST_STEPS = 4
"""The places that a walk may come to, for each row of the launches that it enters"""


@state
class PathChain:
    """A path that is being walked backwards: it has come to ``at_ps`` and does not go beyond ``floor_ps``.

    What it passes on a PE belongs to the launch ``launch_id``. ``through_kernels``: it goes on through a kernel that
    the PE was busy with before; that of one launch only says for how long. ``passed``: how many steps and hops there
    were when it came to the end of a request; ``entered``: how many steps when it went into an earlier kernel.
    ``rows_of``: the number of rows of each launch; ``n_places``: how many places of rows it has come to, and
    ``most_places``, how many it may.
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
    _places: set[PathPlace] = field(default_factory=set)  # those of this instant
    _launches: set[int] = field(default_factory=set)

    def come_to(self, place: PathPlace) -> bool:
        """Return True if the walk may go on at ``place``; else it ends, and what is left of its time is not traced.

        It may where time went back since the last place, or where this one is new at the instant. So a walk ends; that
        it comes to at most ``MOST_STEPS`` places of rows for each row of the launches that it enters is checked, too.
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
        """The path of a request that this one has passed, by its row; None where that goes, or may go, another way."""
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
        """Spend the time from ``when`` to where the path has come on ``part``; no step when that is none."""
        when = max(when, self.floor_ps)
        if when < self.at_ps:
            launch_id = -1 if pe is None else self.launch_id
            self.steps.append(PathStep(part, when, self.at_ps, pe, line, launch_id, self.launch_id, via))
            self.at_ps = when

    def finish(self, start_ps: int, end_ps: int, launch_id: int = -1) -> CriticalPath:
        """The path, whose sum is exact by construction: what is missing at its begin is waiting."""
        self.back_to(start_ps, PathPart.WAIT)
        return CriticalPath(start_ps, end_ps, tuple(reversed(self.steps)), tuple(reversed(self.hops)), launch_id)
