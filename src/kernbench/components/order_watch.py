"""Accesses of one kernel that took place in another order than the program's: what the sanitizer is told of.

For a machine that lets them overtake each other (``pe.dma.ordering: relaxed``). A load takes place when it has read, a
store when it is in memory, a composite from its start to its end: of accesses that take place at once this says
nothing, they are races.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import TypeAlias

from kernbench.common.values import state, value
from kernbench.components.accesses_under_way import NOTHING, AccessFootprint, Footprints, PendingAccesses
from kernbench.components.footprint import ALL_ROWS
from kernbench.components.scoreboard import Scoreboard
from kernbench.core.clock import Clock
from kernbench.core.log import Row
from kernbench.engine.hooks import TookPlace
from kernbench.engine.recorder import Recorder
from kernbench.messages.commands import PeCommand
from kernbench.numerics.replay_extents import ByteRuns


@state(eq=False)
class Watched:
    """``command`` takes place from ``begin_ps`` to ``done_ps``; -1 while unknown."""

    command: PeCommand
    touched: AccessFootprint
    begin_ps: int = -1
    done_ps: int = -1
    met: list[Overlap] = field(default_factory=list)

    def took_place(self, writes: bool) -> TookPlace:
        """When it read or wrote."""
        return TookPlace(self.command, writes, self.begin_ps, self.done_ps)


@value(eq=False)
class Overlap:
    """Two commands that touch the same bytes."""

    earlier: Watched
    later: Watched

    @property
    def is_inverted(self) -> bool:
        """Whether the later one in the program was done before the earlier one took place."""
        first, second = self.earlier, self.later
        if first.done_ps < 0 or second.done_ps < 0:
            return False
        overtaken = second.done_ps < first.begin_ps
        # At one instant what is written is there before others read.
        return overtaken or (second.done_ps == first.begin_ps and not first.touched.writes)

    def inversion(self) -> Inversion | None:
        """What both touch, and who writes it; None: no byte that one of them writes."""
        first, second = self.earlier.touched, self.later.touched
        for some, writes, others, overwrites in (
            (first.writes, True, second.reads, False),
            (first.writes, True, second.writes, True),
            (first.reads, False, second.writes, True),
        ):
            address, nbytes = _common(some, others)
            if nbytes:
                return Inversion(self.earlier.took_place(writes), self.later.took_place(overwrites), address, nbytes)
        return None


@value
class Inversion:
    """The ``later`` of two commands took place first; both touch ``nbytes``, the first at ``address``."""

    earlier: TookPlace
    later: TookPlace
    address: int
    nbytes: int


Tell: TypeAlias = Callable[[Inversion], None]


class OrderWatch:
    """Lets accesses overlap, and tells of those that happened the wrong way round."""

    __slots__ = ("_accesses", "_board", "_clock", "_recorder", "_tell", "_watched")
    most_rows: float = ALL_ROWS  # what it tells of is exact

    def __init__(self, recorder: Recorder, board: Scoreboard, clock: Clock, tell: Tell) -> None:
        self._accesses = PendingAccesses()
        self._board = board
        self._recorder = recorder
        self._clock = clock
        self._tell = tell
        self._watched: dict[int, Watched] = {}

    def enter(self, command: PeCommand, touched: AccessFootprint) -> int:
        """Enter what ``command`` touches; it has to wait for nothing."""
        if touched is not NOTHING:
            self._board.at_end[command.serial] = self._ended
            watched = self._watched[command.serial] = Watched(command, touched)
            earlier = {each.earlier.command.serial for each in self._accesses.conflicts(touched)}
            for serial in sorted(earlier):
                meeting = Overlap(self._watched[serial], watched)
                meeting.earlier.met.append(meeting)
                watched.met.append(meeting)
            self._accesses.add(command, touched)
        return 0

    def started(self, serial: int, op: int) -> None:
        """As ``MemoryOrder`` says."""
        watched = self._watched.get(serial)
        if watched is None:
            return
        if op < 0:
            watched.begin_ps = self._clock.time
        else:
            self._recorder.when_done(op, lambda _: self._done(watched))

    def _ended(self, command: PeCommand, _: Row) -> None:
        watched = self._watched.pop(command.serial)
        self._accesses.remove(command.serial)
        if watched.done_ps < 0:
            self._done(watched)

    def _done(self, watched: Watched) -> None:
        watched.done_ps = self._clock.time
        if watched.begin_ps < 0:
            watched.begin_ps = watched.done_ps
        for meeting in watched.met:
            inversion = meeting.inversion() if meeting.is_inverted else None
            if inversion is not None:
                self._tell(inversion)


def _common(some: Footprints, others: Footprints) -> tuple[int, int]:
    if not some or not others:
        return 0, 0
    mine, theirs = (ByteRuns.of_boxes((x.low, x.run, x.steps) for x in given) for given in (some, others))
    return mine.common(theirs)
