"""Bound the rows of a long run: fold the rows of launches that are over.

A launch is folded if one like it keeps its rows and stands for it in reports, as a sample stands for launches that
pass. Of each kind and name two launches keep their rows: the one closest to the mean, which stands for the others, and
the longest one, which reports describe. Nothing is folded while a run can still compute values, since phase 2 reads
rows; ``--keep`` bounds such a run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import field
from functools import partial

from kernbench.common.figures import figure
from kernbench.common.ids import sip_part
from kernbench.common.values import state, value
from kernbench.core.log import FoldedLaunch
from kernbench.engine.engine import GraphEngine
from kernbench.engine.passed_launches import LaunchKind
from kernbench.engine.requests import RequestHandle
from kernbench.messages.requests import KernelLaunchMsg
from kernbench.observe.statistics import sum_works
from kernbench.observe.works import Works
from kernbench.runtime_api.launch import Launch
from kernbench.runtime_api.launch_kinds import kind_of

PAUSE = 0.25
"""Rows between two attempts to fold, as a share of the limit: an attempt costs time in proportion to all rows"""
FIRST = 0.125
"""Rows before kinds of launches are determined, as a share of the limit: a kind costs 0.15 ms"""
MOST_RANGES = 8
"""Ranges of folded launches in a line of the report"""


@value(kw_only=True)
class FoldReport:
    """The rows of the log that a run has folded, and the limit beyond which it folds."""

    limit: int = figure("rows beyond which launches that are over are folded")
    rows: int = figure("rows of the log, with those that are folded")
    folded_rows: int = figure("rows that are folded")
    launches: tuple[int, ...] = figure("the launches of these rows, by request", column=False)

    def __str__(self) -> str:
        return self.describe(MOST_RANGES)

    def describe(self, most: int | None = None) -> str:
        """Return a sentence that lists the launches, at most so many ranges of their numbers."""
        n, ranges = len(self.launches), _list_ranges(self.launches)
        more = "" if most is None or len(ranges) <= most else f" and {len(ranges) - most} more ranges"
        return (
            f"log: {self.folded_rows:,} of {self.rows:,} rows folded (--log-rows), those of {n:,} launch"
            f"{'es' if n > 1 else ''} that others of their kind stand for: requests {', '.join(ranges[:most])}{more}"
        )


@state(eq=False)
class _Kind:
    """Launches of a name that are alike.

    ``ended``: those that are over and have rows. ``total_ps``: the time of all ``n_ended`` that are over.
    Times are those between begin and completion.
    """

    uses: LaunchKind = field(default_factory=LaunchKind)
    ended: list[RequestHandle] = field(default_factory=list)
    total_ps: int = 0
    n_ended: int = 0

    def add(self, handle: RequestHandle) -> None:
        """Add a launch that is over."""
        self.ended.append(handle)
        self.total_ps += handle.ended_ps - handle.begun_ps
        self.n_ended += 1

    def choose(self, needed: Collection[int]) -> list[RequestHandle]:
        """Return the launches that may be folded: not ``needed`` ones, the longest, and the one closest to the mean."""
        longest, typical = max(self.ended, key=lambda handle: handle.ended_ps - handle.begun_ps), self.typical
        return [
            handle
            for handle in self.ended
            if handle is not longest and handle is not typical and handle.request_id not in needed
        ]

    @property
    def typical(self) -> RequestHandle:
        """The launch whose time is closest to the mean of the kind."""
        mean_ps = self.total_ps / self.n_ended
        return min(self.ended, key=lambda handle: abs(handle.ended_ps - handle.begun_ps - mean_ps))


class LaunchFolder:
    """Folds launches of a run beyond ``most_rows`` rows of the log; None: never.

    ``list_samples``: returns launches whose rows must remain, since others pass in their place.
    """

    def __init__(
        self, engine: GraphEngine, most_rows: int | None, list_samples: Callable[[], Collection[int]] = frozenset
    ) -> None:
        self.most_rows = most_rows
        self._engine, self._list_samples = engine, list_samples
        self._kinds: dict[Hashable, _Kind] = {}
        self._next_rows = 0 if most_rows is None else most_rows

    @property
    def may_fold(self) -> bool:
        """True if the run has a limit and computes no values."""
        return self.most_rows is not None and not self._engine.enable_data

    @property
    def is_near_limit(self) -> bool:
        """True if launches may be folded that are submitted now.

        Launches submitted among the first rows are never folded, so that short runs need not determine kinds.
        """
        return self.may_fold and self._engine.machine.log.n_unfolded >= FIRST * (self.most_rows or 0)

    def note(self, launches: Sequence[Launch], handles: Sequence[RequestHandle]) -> None:
        """Note submitted launches. When they end, they or earlier ones are folded if there are too many rows."""
        if not self.is_near_limit:
            return
        access_bytes = self._engine.spec.cube.hbm.piece_bytes
        for launch, handle in zip(launches, handles, strict=True):
            key = kind_of(launch, access_bytes)
            if key is not None:
                kind = self._kinds.setdefault((handle.msg.title, _sip_of(handle), key), _Kind())
                handle.notify(partial(self._end, kind))

    def _end(self, kind: _Kind, handle: RequestHandle) -> None:
        """Add a launch that has ended to its kind, and fold launches if there are too many rows."""
        log, passed = self._engine.machine.log, self._engine.machine.passed
        launch = handle.request_id
        if self._ran_to_its_end(handle) and launch not in passed.launches and launch not in passed.extended:
            kind.add(handle)
        if self.most_rows is not None and log.n_unfolded > self._next_rows and self.may_fold:
            self.fold()
            self._next_rows = max(self.most_rows, log.n_unfolded + int(PAUSE * self.most_rows))

    def fold(self) -> None:
        """Fold the rows of launches that are over, except two of each kind."""
        machine = self._engine.machine
        # Queues look up the sender of a message in its row until the message is received.
        needed = {*self._list_samples(), *(message.launch for message in self._engine.unreceived())}
        ended = [kind for kind in self._kinds.values() if kind.ended]
        chosen = {handle.request_id: kind for kind in ended for handle in kind.choose(needed)}
        if not chosen:
            return
        works = {
            launch: sum_works(Works(log, log.columns(), machine.passed))
            for launch, log in machine.log.extract(chosen.keys())
        }
        on_device, handles = machine.log.on_device, self._engine.handles
        folded = machine.fold(
            [
                FoldedLaunch(launch, sip_part(_sip_of(handles[launch]), "io_cpu"), *on_device[launch])
                for launch in chosen
            ]
        )
        for launch in sorted(folded):
            machine.passed.fold(launch, chosen[launch].uses, works[launch])
        for kind in chosen.values():
            kind.ended = [handle for handle in kind.ended if handle.request_id not in folded]
            begin_ps, end_ps = on_device[kind.typical.request_id]
            kind.uses.samples[:] = [(kind.typical.request_id, end_ps - begin_ps)]

    def _ran_to_its_end(self, handle: RequestHandle) -> bool:
        has_ended = self._engine.machine.log.has_ended_on_device(handle.request_id)
        return has_ended and handle.outcome is not None and handle.outcome.error is None

    def report(self) -> FoldReport | None:
        """Return the report of a run; None if nothing is folded."""
        log = self._engine.machine.log
        if self.most_rows is None or not log.gaps:
            return None
        return FoldReport(
            limit=self.most_rows,
            rows=log.n_rows,
            folded_rows=log.gaps.n_rows,
            launches=tuple(sorted(self._engine.machine.passed.folded)),
        )


def _sip_of(handle: RequestHandle) -> int:
    assert isinstance(handle.msg, KernelLaunchMsg)
    return handle.msg.targets[0][0]


def _list_ranges(numbers: Sequence[int]) -> list[str]:
    """Return ascending numbers as texts, a run as a range: ``3``, ``5 to 9``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return [str(first) if first == last else f"{first} to {last}" for first, last in runs]
