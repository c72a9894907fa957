"""The order of a kernel's accesses to the same bytes: the later command starts when the earlier access is done.

Of two accesses to overlapping bytes one of which writes, the earlier is done when it is in memory (``t_commit`` of
its record) or when it has read (``t_read``); a composite, which does both tile by tile, when it ends. In the TCM
handles keep commands apart; where a kernel names an address itself (``Operand.by_address``), its bytes are compared
with those of all commands under way, which are done when they end.

On a machine that lets accesses overtake each other (``pe.dma.ordering: relaxed``) ``OrderWatch`` tells the sanitizer
of accesses that took place in another order than the program's. A load takes place when it has read, a store when it
is in memory, a composite from its start to its end: accesses that take place at once are races, and are not reported
here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import field
from functools import partial
from math import inf, prod
from typing import Protocol, TypeAlias

from kernbench.common.values import state, value
from kernbench.components.access_plan import Dims, runs
from kernbench.components.scoreboard import Scoreboard
from kernbench.core.clock import Clock
from kernbench.core.log import By, Cause, Row
from kernbench.core.op_log import Sharing
from kernbench.engine.address_map import Segment
from kernbench.engine.hooks import TookPlace
from kernbench.engine.recorder import Recorder
from kernbench.messages.commands import MATH, SEND, Command, Operand
from kernbench.messages.fabric import Access
from kernbench.numerics.intervals import ByteRuns, bounds


def names_tcm(command: Command) -> bool:
    """Whether it works on an address in the TCM that the kernel has named: a send's source, a receive's copy."""
    if command.op is MATH:
        return command.result.by_address
    return command.op is SEND and command.array.by_address


def tcm_meets(a: Command, b: Command) -> bool:
    """Whether both touch the same bytes of the TCM, and one of them writes."""
    return _meet(a.writes, b.reads + b.writes) or _meet(a.reads, b.writes)


def _meet(some: Iterable[Operand], others: Iterable[Operand]) -> bool:
    taken = [extent for each in others if each.space == "tcm" for extent in bounds(each)]
    return any(
        low < end and start < high
        for each in some
        if each.space == "tcm"
        for low, high in bounds(each)
        for start, end in taken
    )


MOST_ROWS = 64
"""Beyond so many rows two boxes are compared by the ranges that enclose them."""
ALL_ROWS = inf
"""For ``footprints``: as many rows as there are."""


@state(eq=False)
class Footprint:
    """Runs of ``run`` bytes within ``[low, high)``, the first at ``low``.

    ``steps``: how often runs repeat and how many bytes apart, the longest first. ``exact``: False for a range that
    only encloses what is touched.
    """

    low: int
    high: int
    run: int
    steps: Dims = ()
    exact: bool = True


def footprints(
    segments: tuple[Segment, ...],
    shape: tuple[int, ...],
    itemsize: int,
    strides: tuple[int, ...] | None,
    most_rows: float = MOST_ROWS,
) -> tuple[Footprint, ...]:
    """The bytes of an array whose extent lies in the physical ``segments``, in this order.

    Where segments cut it, row by row, but for more than ``most_rows`` the ranges that enclose them.
    """
    run, dims = (0, ()) if strides is None else runs(shape, itemsize, strides)
    steps = tuple((n, abs(s)) for n, s in dims if s) if dims else ()
    if not steps:
        return tuple([Footprint(pa, pa + nbytes, nbytes) for pa, nbytes in segments])
    pieces = _joined(segments)
    if len(pieces) == 1:
        pa, nbytes = pieces[0]
        return (Footprint(pa, pa + nbytes, run, steps),)
    if prod(n for n, _ in steps) > most_rows:
        return tuple(Footprint(pa, pa + nbytes, nbytes, exact=False) for pa, nbytes in pieces)
    return tuple(
        Footprint(low, high, high - low)
        for first in _row_starts(steps)
        for low, high in _placed(pieces, first, first + run)
    )


def footprint_of(access: Access) -> Footprint:
    """The bytes of one access."""
    reach = (access.rows - 1) * access.stride
    low, high = access.pa + min(reach, 0), access.pa + max(reach, 0) + access.row_bytes
    return Footprint(low, high, access.row_bytes, ((access.rows, abs(access.stride)),) if reach else ())


def overlap_kind(a: Footprint, b: Footprint) -> Sharing:
    """What two footprints have in common."""
    if a.low >= b.high or b.low >= a.high:
        return ""
    if not (a.exact and b.exact):
        return "range"
    if not (a.steps or b.steps):
        return "bytes"
    # Rows meet when that of ``a`` begins less than ``b.run`` behind, or ``a.run`` before, that of ``b``. With the
    # steps of ``b`` counted from its last row, the distance is a sum of whole steps, each from 0 up to its count.
    counts: dict[int, int] = {}
    for n, stride in (*a.steps, *b.steps):
        counts[stride] = counts.get(stride, 0) + n - 1
    low = b.low - a.low - a.run + 1 + (b.high - b.low - b.run)
    high = low + a.run + b.run - 2
    if len(counts) == 1:  # what nearly all have that meet at all
        ((stride, count),) = counts.items()
        first, last = -(-low // stride), high // stride
        return "bytes" if first <= last and first <= count and last >= 0 else ""
    search = _Search(sorted(counts.items(), reverse=True))
    found = search.hits(0, low, high)
    return "range" if search.given_up else "bytes" if found else ""


class _Search:
    """Is there a sum of k * stride, with k from 0 to the count of each stride, within a range?"""

    def __init__(self, counts: list[tuple[int, int]]) -> None:
        self._counts = counts
        self._spans = [0] * (len(counts) + 1)  # what the strides from one on add up to at most
        for i in reversed(range(len(counts))):
            self._spans[i] = self._spans[i + 1] + counts[i][0] * counts[i][1]
        self._tries = 0

    @property
    def given_up(self) -> bool:
        """Whether too many rows would have to be compared."""
        return self._tries > MOST_ROWS

    def hits(self, i: int, low: int, high: int) -> bool:
        """Whether a sum of the strides from ``i`` on lies in ``[low, high]``."""
        span = self._spans[i]
        if high < 0 or low > span:
            return False
        if low <= 0 or high >= span:
            return True
        stride, count = self._counts[i]
        rest = self._spans[i + 1]
        first, last = max(0, -((rest - low) // stride)), min(count, high // stride)
        if i + 1 == len(self._counts):
            return first <= last
        for k in range(first, last + 1):
            self._tries += 1
            if self.given_up or self.hits(i + 1, low - k * stride, high - k * stride):
                return True
        return False


def _joined(segments: tuple[Segment, ...]) -> list[Segment]:
    """Segments that follow each other in memory as one."""
    found = [segments[0]]
    for pa, nbytes in segments[1:]:
        start, length = found[-1]
        if start + length == pa:
            found[-1] = start, length + nbytes
        else:
            found.append((pa, nbytes))
    return found


def _row_starts(steps: Dims) -> list[int]:
    starts = [0]
    for n, stride in steps:
        starts = [start + k * stride for start in starts for k in range(n)]
    return starts


def _placed(segments: list[Segment], low: int, high: int) -> list[tuple[int, int]]:
    """Where bytes ``low`` to ``high`` of all segments put together lie."""
    found: list[tuple[int, int]] = []
    base = 0
    for pa, nbytes in segments:
        end = base + nbytes
        if low < end:
            start = low if low > base else base
            found.append((pa + start - base, pa + (high if high < end else end) - base))
            if high <= end:
                break
        base = end
    return found


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

    command: Command
    writes: bool
    footprints: Footprints
    op: int = -1
    waiting: list[tuple[Command, Sharing]] = field(default_factory=list)


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

    def add(self, command: Command, touched: AccessFootprint) -> None:
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


Released: TypeAlias = Callable[[Command, Cause], None]
"""Takes a command, and what it waited for and has to no more"""


class MemoryOrder(Protocol):
    """What a PE makes of the order of accesses; ``most_rows``: what it wants of ``footprints``."""

    @property
    def most_rows(self) -> float: ...

    def enter(self, command: Command, touched: AccessFootprint) -> int:
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
        self._named: dict[int, Command] = {}  # commands under way that name addresses in the TCM
        self._tcm: dict[int, list[Command]] = {}  # who waits for the end of a command, by its serial

    def enter(self, command: Command, touched: AccessFootprint) -> int:
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

    def _wait(self, command: Command, earlier: PendingAccess, how: Sharing) -> int:
        if earlier.op >= 0:
            if self._recorder.is_done(earlier.op, earlier.writes):
                return 0
            if not earlier.waiting:
                self._recorder.when_done(earlier.op, partial(self._release, earlier))
        earlier.waiting.append((command, how))
        return 1

    def _wait_in_tcm(self, command: Command, others: Iterable[Command]) -> int:
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

    def _ended(self, command: Command, row: Row) -> None:
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


@state(eq=False)
class Watched:
    """``command`` takes place from ``begin_ps`` to ``done_ps``; -1 while unknown."""

    command: Command
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

    def enter(self, command: Command, touched: AccessFootprint) -> int:
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

    def _ended(self, command: Command, _: Row) -> None:
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
