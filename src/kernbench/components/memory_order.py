"""The order of a kernel's accesses to the same bytes: the later command starts when the earlier access is done.

Of two accesses to overlapping bytes one of which writes, the earlier is done when it is in memory (``t_commit`` of its
record) or when it has read (``t_read``); a composite, which does both tile by tile, when it ends. In the TCM handles
keep commands apart; where a kernel names an address itself (``Operand.by_address``), its bytes are compared with those
of all commands under way, which are done when they end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol, TypeAlias

from kernbench.components.accesses_under_way import NOTHING, AccessFootprint, PendingAccess, PendingAccesses
from kernbench.components.footprint import MOST_ROWS
from kernbench.components.scoreboard import Scoreboard
from kernbench.components.tcm_use import names_tcm, tcm_meets
from kernbench.core.log import By, Cause, Row
from kernbench.core.op_log import Sharing
from kernbench.engine.recorder import Recorder
from kernbench.messages.commands import PeCommand

Released: TypeAlias = Callable[[PeCommand, Cause], None]
"""Takes a command, and what it waited for and has to no more"""


class MemoryOrder(Protocol):
    """What a PE makes of the order of accesses; ``most_rows``: what it wants of ``footprints``."""

    @property
    def most_rows(self) -> float: ...

    def enter(self, command: PeCommand, touched: AccessFootprint) -> int:
        """``command`` is issued and touches these bytes; returns how many earlier accesses it has to wait for."""
        ...

    def started(self, serial: int, op: int) -> None:
        """A command is given to the DMA as operation ``op``; -1: it is a composite, whose first tile is issued."""
        ...


class ProgramOrder:
    """Accesses to the same bytes happen in the order of the program; others overlap freely.

    ``released(command, cause)`` is called once for each access that a command has to wait for.
    """

    __slots__ = ("_accesses", "_board", "_named", "_recorder", "_released", "_tcm")
    most_rows: float = MOST_ROWS

    def __init__(self, recorder: Recorder, board: Scoreboard, released: Released) -> None:
        self._accesses = PendingAccesses()
        self._board = board
        self._recorder = recorder
        self._released = released
        self._named: dict[int, PeCommand] = {}  # commands under way that name addresses in the TCM
        self._tcm: dict[int, list[PeCommand]] = {}  # who waits for the end of a command, by its serial

    def enter(self, command: PeCommand, touched: AccessFootprint) -> int:
        """Enter what ``command`` touches; returns how many earlier accesses it has to wait for."""
        waits = 0
        if touched is not NOTHING:
            for conflict in self._accesses.conflicts(touched):
                waits += self._wait(command, conflict.earlier, conflict.how)
            self._accesses.add(command, touched)
            self._board.at_end[command.serial] = self._ended
        elif names_tcm(command):
            earlier = [each for each, _ in self._board.under_way.values() if each.serial < command.serial]
            self._named[command.serial] = command
            self._board.at_end[command.serial] = self._ended
            return self._wait_in_tcm(command, earlier)
        return waits + self._wait_in_tcm(command, self._named.values()) if self._named else waits

    def _wait(self, command: PeCommand, earlier: PendingAccess, how: Sharing) -> int:
        if earlier.op >= 0:
            if self._recorder.is_done(earlier.op, earlier.writes):
                return 0
            if not earlier.waiting:
                self._recorder.when_done(earlier.op, partial(self._release, earlier))
        earlier.waiting.append((command, how))
        return 1

    def _wait_in_tcm(self, command: PeCommand, others: Iterable[PeCommand]) -> int:
        met = [each for each in others if each.serial not in command.after and tcm_meets(each, command)]
        for other in met:
            self._tcm.setdefault(other.serial, []).append(command)
            self._board.at_end[other.serial] = self._ended
        return len(met)

    def started(self, serial: int, op: int) -> None:
        """As ``MemoryOrder`` says."""
        if op < 0:
            return
        for access in self._accesses.of(serial):
            access.op = op
            if access.waiting:
                self._recorder.when_done(op, partial(self._release, access))

    def _ended(self, command: PeCommand, row: Row) -> None:
        for access in self._accesses.remove(command.serial):
            if access.waiting:
                self._release(access, row)
        self._named.pop(command.serial, None)
        for waiter in self._tcm.pop(command.serial, ()):
            self._released(waiter, (row, By.MEMORY_END))

    def _release(self, access: PendingAccess, row: Row) -> None:
        waiting, access.waiting = access.waiting, []
        for waiter, how in waiting:
            self._released(waiter, (row, By.MEMORY_RANGE if how == "range" else By.MEMORY))
