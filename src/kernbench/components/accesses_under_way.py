"""The accesses to memory of one kernel that are under way: which of them touch bytes that a later one touches."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import field
from typing import TypeAlias

from kernbench.common.values import state, value
from kernbench.components.footprint import Footprint, overlap_kind
from kernbench.core.op_log import Sharing
from kernbench.messages.commands import PeCommand

Footprints: TypeAlias = tuple[Footprint, ...]


@value(eq=False, guarded=False)
class AccessFootprint:
    """The bytes in memory that a command reads, and those that it writes."""

    reads: Footprints = ()
    writes: Footprints = ()


NOTHING = AccessFootprint()


@state(eq=False)
class PendingAccess:
    """What ``command`` reads, or writes, in memory.

    ``op``: the DMA's operation that does it; -1 before that has begun, and for a composite, which is done when it ends.
    ``waiting``: later commands that must not overtake it, and how their bytes were compared.
    """

    command: PeCommand
    writes: bool
    footprints: Footprints
    op: int = -1
    waiting: list[tuple[PeCommand, Sharing]] = field(default_factory=list)


@value(eq=False, guarded=False)
class Conflict:
    """An ``earlier`` access touches bytes of a later one: exactly, or as far as their ranges tell (``how``)."""

    earlier: PendingAccess
    how: Sharing


class PendingAccesses:
    """The accesses of the commands that have been issued and have not ended, by the addresses that they touch."""

    __slots__ = ("_by_serial", "_reads", "_writes")

    def __init__(self) -> None:
        self._by_serial: dict[int, tuple[PendingAccess, ...]] = {}
        self._reads = _ByAddress()
        self._writes = _ByAddress()

    def of(self, serial: int) -> tuple[PendingAccess, ...]:
        """Those of a command; none when it has ended, or has none."""
        return self._by_serial.get(serial, ())

    def conflicts(self, touched: AccessFootprint) -> list[Conflict]:
        """The accesses that a command which touches these bytes must not overtake."""
        found: dict[int, Conflict] = {}
        if self._writes.of_length:
            self._writes.meet((*touched.reads, *touched.writes), found)
        if touched.writes and self._reads.of_length:
            self._reads.meet(touched.writes, found)
        return list(found.values())

    def add(self, command: PeCommand, touched: AccessFootprint) -> None:
        """``command`` is issued."""
        accesses: tuple[PendingAccess, ...] = ()
        if touched.reads:
            accesses = (PendingAccess(command, False, touched.reads),)
            self._reads.add(accesses[0])
        if touched.writes:
            accesses = (*accesses, PendingAccess(command, True, touched.writes))
            self._writes.add(accesses[-1])
        self._by_serial[command.serial] = accesses

    def remove(self, serial: int) -> tuple[PendingAccess, ...]:
        """A command has ended: what it accessed."""
        accesses = self._by_serial.pop(serial, ())
        for access in accesses:
            (self._writes if access.writes else self._reads).remove(access)
        return accesses


class _ByAddress:
    """Accesses by where their footprints begin; those of about one length together, so that none is looked for far."""

    __slots__ = ("of_length",)

    def __init__(self) -> None:
        self.of_length: dict[int, _OfLength] = {}  # by the bits of the length

    def add(self, access: PendingAccess) -> None:
        for footprint in access.footprints:
            length = footprint.high - footprint.low
            bits = length.bit_length()
            near = self.of_length.get(bits)
            if near is None:
                near = self.of_length[bits] = _OfLength()
            near.longest = max(near.longest, length)
            at = bisect_left(near.lows, footprint.low)
            near.lows.insert(at, footprint.low)
            near.accesses.insert(at, (access, footprint))

    def remove(self, access: PendingAccess) -> None:
        for footprint in access.footprints:
            bits = (footprint.high - footprint.low).bit_length()
            near = self.of_length[bits]
            at = bisect_left(near.lows, footprint.low)
            while near.accesses[at][1] is not footprint:
                at += 1
            del near.lows[at], near.accesses[at]
            if not near.lows:
                del self.of_length[bits]

    def meet(self, footprints: Footprints, found: dict[int, Conflict]) -> None:
        """Enter what shares bytes with ``footprints``; what is exactly so stays, whatever ranges say."""
        for near in self.of_length.values():
            for mine in footprints:
                near.meet(mine, found)


class _OfLength:
    """Footprints of about one length, sorted by where they begin, with the accesses that they are of."""

    __slots__ = ("accesses", "longest", "lows")

    def __init__(self) -> None:
        self.longest = 0
        self.lows: list[int] = []
        self.accesses: list[tuple[PendingAccess, Footprint]] = []

    def meet(self, mine: Footprint, found: dict[int, Conflict]) -> None:
        """Enter what shares bytes with ``mine``."""
        lows, low = self.lows, mine.low
        for access, other in self.accesses[bisect_left(lows, low - self.longest + 1) : bisect_left(lows, mine.high)]:
            if other.high <= low:
                continue
            known = found.get(id(access))
            if known is None or known.how == "range":
                how = overlap_kind(other, mine)
                if how:
                    found[id(access)] = Conflict(access, how)
