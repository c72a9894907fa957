"""The order of a kernel's accesses to the same bytes: a later command starts when the earlier access is done.

The order matters for two accesses to overlapping bytes, at least one of which writes. A write is done when its bytes
are in memory (``t_commit`` of its record), a read when its bytes were read (``t_read``). A composite reads and writes
tile by tile, so its accesses are done when the composite ends. In the TCM, commands use separate bytes, since handles
are allocated. If a kernel names a TCM address itself (``Operand.by_address``), those bytes are compared with the bytes
of all commands in flight, whose accesses are done when the commands end.

On a machine with ``pe.dma.ordering: relaxed`` accesses may overtake each other. ``OrderWatch`` then notifies the
sanitizer of accesses that took place in another order than that of the program. A load takes place when it has read,
a store when it is in memory, a composite from its start to its end. Accesses that take place at the same time are
races, which this module does not report.

Sections, from top to bottom: bytes in the TCM, bytes in memory (``Footprint``) and their overlaps, an index of ranges,
accesses in flight, the two orders.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from dataclasses import field
from functools import partial
from itertools import product
from math import inf, prod
from typing import Generic, TypeAlias, TypeVar

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

T = TypeVar("T")


def names_tcm(command: Command) -> bool:
    """Return True if a command uses a TCM address that the kernel named: a send's source, or a receive's copy."""
    if command.op is MATH:
        return command.result.by_address
    return command.op is SEND and command.array.by_address


def tcm_meets(a: Command, b: Command) -> bool:
    """Return True if both commands touch the same bytes of the TCM and one of them writes."""
    return _meet(a.writes, b.reads + b.writes) or _meet(a.reads, b.writes)


def _meet(operands: Iterable[Operand], opposing: Iterable[Operand]) -> bool:
    extents = [extent for operand in opposing if operand.space == "tcm" for extent in bounds(operand)]
    return any(
        low < end and start < high
        for operand in operands
        if operand.space == "tcm"
        for low, high in bounds(operand)
        for start, end in extents
    )


MOST_ROWS = 64
"""The row limit above which two boxes are compared by their enclosing ranges"""
ALL_ROWS = inf
"""A limit for ``footprints`` that admits any number of rows"""


@state(eq=False)
class Footprint:
    """Runs of ``run`` bytes within ``[low, high)``, the first at ``low``.

    ``steps``: (repetitions, distance in bytes) of the runs, the longest distance first. ``exact``: False for a range
    that only encloses the touched bytes.
    """

    low: int
    high: int
    run: int
    steps: Dims = ()
    exact: bool = True


Footprints: TypeAlias = tuple[Footprint, ...]


@value(eq=False, guarded=False)
class AccessFootprint:
    """The bytes in memory that a command reads, and the bytes that it writes."""

    reads: Footprints = ()
    writes: Footprints = ()


NOTHING = AccessFootprint()


def footprints(
    segments: tuple[Segment, ...],
    shape: tuple[int, ...],
    itemsize: int,
    strides: tuple[int, ...] | None,
    most_rows: float = MOST_ROWS,
) -> Footprints:
    """Return the bytes of an array whose extent is in the physical ``segments``, in this order.

    If segments cut the array, its footprints are its rows. With more than ``most_rows`` rows, they are enclosing
    ranges.
    """
    run, dims = (0, ()) if strides is None else runs(shape, itemsize, strides)
    steps = tuple((n, abs(s)) for n, s in dims if s) if dims else ()
    if not steps:
        return tuple([Footprint(pa, pa + nbytes, nbytes) for pa, nbytes in segments])
    pieces = _join(segments)
    if len(pieces) == 1:
        pa, nbytes = pieces[0]
        return (Footprint(pa, pa + nbytes, run, steps),)
    if prod(n for n, _ in steps) > most_rows:
        return tuple(Footprint(pa, pa + nbytes, nbytes, exact=False) for pa, nbytes in pieces)
    rows = map(sum, product(*(range(0, n * stride, stride) for n, stride in steps)))
    return tuple(Footprint(low, high, high - low) for row in rows for low, high in _locate(pieces, row, row + run))


def footprint_of(access: Access) -> Footprint:
    """Return the footprint of one access."""
    reach = (access.rows - 1) * access.stride
    low, high = access.pa + min(reach, 0), access.pa + max(reach, 0) + access.row_bytes
    return Footprint(low, high, access.row_bytes, ((access.rows, abs(access.stride)),) if reach else ())


def _join(segments: tuple[Segment, ...]) -> list[Segment]:
    """Join segments that are adjacent in memory."""
    joined = [segments[0]]
    for pa, nbytes in segments[1:]:
        start, length = joined[-1]
        if start + length == pa:
            joined[-1] = start, length + nbytes
        else:
            joined.append((pa, nbytes))
    return joined


def _locate(segments: list[Segment], low: int, high: int) -> list[tuple[int, int]]:
    """Return the memory ranges of bytes ``low`` to ``high`` of the concatenated segments."""
    ranges: list[tuple[int, int]] = []
    base = 0
    for pa, nbytes in segments:
        end = base + nbytes
        if low < end:
            start = low if low > base else base
            ranges.append((pa + start - base, pa + (high if high < end else end) - base))
            if high <= end:
                break
        base = end
    return ranges


def overlap_kind(a: Footprint, b: Footprint) -> Sharing:
    """Return the overlap of two footprints: none, common bytes, or a common range that may exceed their bytes."""
    if a.low >= b.high or b.low >= a.high:
        return ""
    if not (a.exact and b.exact):
        return "range"
    if not (a.steps or b.steps):
        return "bytes"
    # Rows overlap if the row of ``a`` begins less than ``b.run`` behind, or ``a.run`` before, the row of ``b``.
    # With the steps of ``b`` counted from its last row, the distance is a sum of strides, each 0 to its count times.
    counts: dict[int, int] = {}
    for n, stride in (*a.steps, *b.steps):
        counts[stride] = counts.get(stride, 0) + n - 1
    low = b.low - a.low - a.run + 1 + (b.high - b.low - b.run)
    high = low + a.run + b.run - 2
    if len(counts) == 1:  # true for nearly all overlaps
        ((stride, count),) = counts.items()
        first, last = -(-low // stride), high // stride
        return "bytes" if first <= last and first <= count and last >= 0 else ""
    search = _SumSearch(sorted(counts.items(), reverse=True))
    overlaps = search.hits(0, low, high)
    return "range" if search.gave_up else "bytes" if overlaps else ""


class _SumSearch:
    """A search for a sum of k * stride within a range, with k from 0 to the count of each stride."""

    def __init__(self, counts: list[tuple[int, int]]) -> None:
        self._counts = counts
        self._spans = [0] * (len(counts) + 1)  # the largest sum of the strides from an index on
        for i in reversed(range(len(counts))):
            self._spans[i] = self._spans[i + 1] + counts[i][0] * counts[i][1]
        self._tries = 0

    @property
    def gave_up(self) -> bool:
        """Return True when there were too many rows to compare."""
        return self._tries > MOST_ROWS

    def hits(self, i: int, low: int, high: int) -> bool:
        """Return True if a sum of the strides from index ``i`` on is in ``[low, high]``."""
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
            if self.gave_up or self.hits(i + 1, low - k * stride, high - k * stride):
                return True
        return False


@state(eq=False)
class PendingAccess:
    """The bytes in memory that ``command`` reads, or the bytes that it writes.

    ``op``: the DMA operation of the access; -1 before the operation begins, and for a composite. ``waiting``: later
    commands that must not overtake this access, and the way in which their bytes were compared.
    """

    command: Command
    writes: bool
    footprints: Footprints
    op: int = -1
    waiting: list[tuple[Command, Sharing]] = field(default_factory=list)


class RangeIndex(Generic[T]):
    """An index of items by the address range that they cover, for thousands of disjoint items.

    Ranges whose lengths have the same number of bits are sorted together by their start, so a search goes back by one
    length only. ``ExtentIndex`` of the replay searches complete clusters, which is slow if many ranges touch.
    """

    __slots__ = ("_by_bits", "is_empty")

    def __init__(self) -> None:
        self.is_empty = True
        # By the bit length of the range length: the starts of ranges, and the end and item of each.
        self._by_bits: dict[int, tuple[list[int], list[tuple[int, T]]]] = {}

    def add(self, low: int, high: int, item: T) -> None:
        """Enter ``item``, which covers ``[low, high)``; the range must not be empty."""
        bits = (high - low).bit_length()
        group = self._by_bits.get(bits)
        if group is None:
            group = self._by_bits[bits] = ([], [])
            self.is_empty = False
        lows, items = group
        at = bisect_left(lows, low)
        lows.insert(at, low)
        items.insert(at, (high, item))

    def discard(self, low: int, high: int, item: T) -> None:
        """Remove an entry of ``add``, usually the last entry with its start."""
        bits, entered = (high - low).bit_length(), (high, item)
        lows, items = self._by_bits[bits]
        at = bisect_right(lows, low) - 1
        while items[at] != entered:
            at -= 1
        del lows[at], items[at]
        if not lows:
            del self._by_bits[bits]
            self.is_empty = not self._by_bits

    def find(self, low: int, high: int) -> list[T]:
        """Return the items that cover a byte of ``[low, high)``."""
        matches: list[T] = []
        for bits, (lows, items) in self._by_bits.items():
            first = bisect_left(lows, low + 2 - (1 << bits))  # among ranges shorter than 2 ** bits
            for end, item in items[first : bisect_left(lows, high, first)]:
                if end > low:
                    matches.append(item)
        return matches


_AccessIndex: TypeAlias = RangeIndex[tuple[PendingAccess, Footprint]]


class PendingAccesses:
    """The accesses of commands that are issued and have not ended, indexed by the addresses that they touch."""

    __slots__ = ("_by_serial", "_reads", "_writes")

    def __init__(self) -> None:
        self._by_serial: dict[int, tuple[PendingAccess, ...]] = {}
        self._reads: _AccessIndex = RangeIndex()
        self._writes: _AccessIndex = RangeIndex()

    def of(self, serial: int) -> tuple[PendingAccess, ...]:
        """Return the accesses of a command; empty if the command has ended or accesses nothing."""
        return self._by_serial.get(serial, ())

    def conflicts(self, touched: AccessFootprint) -> dict[PendingAccess, Sharing]:
        """Return the accesses that a command which touches these bytes must not overtake, and the overlaps."""
        conflicts: dict[PendingAccess, Sharing] = {}
        if not self._writes.is_empty:
            _compare((*touched.reads, *touched.writes), self._writes, conflicts)
        if touched.writes and not self._reads.is_empty:
            _compare(touched.writes, self._reads, conflicts)
        return conflicts

    def add(self, command: Command, touched: AccessFootprint) -> None:
        """Add the accesses of ``command``, which is issued."""
        accesses: tuple[PendingAccess, ...] = ()
        if touched.reads:
            accesses += (PendingAccess(command, False, touched.reads),)
        if touched.writes:
            accesses += (PendingAccess(command, True, touched.writes),)
        self._by_serial[command.serial] = accesses
        for access in accesses:
            index = self._writes if access.writes else self._reads
            for footprint in access.footprints:
                index.add(footprint.low, footprint.high, (access, footprint))

    def remove(self, serial: int) -> tuple[PendingAccess, ...]:
        """Remove and return the accesses of a command that has ended."""
        accesses = self._by_serial.pop(serial, ())
        for access in accesses:
            index = self._writes if access.writes else self._reads
            for footprint in access.footprints:
                index.discard(footprint.low, footprint.high, (access, footprint))
        return accesses


def _compare(footprints: Footprints, index: _AccessIndex, conflicts: dict[PendingAccess, Sharing]) -> None:
    """Enter the accesses that share bytes with ``footprints``, and the type of each overlap.

    An exact overlap is never replaced by an overlap of ranges.
    """
    for footprint in footprints:
        for access, other in index.find(footprint.low, footprint.high):
            if conflicts.get(access) != "bytes":
                how = overlap_kind(other, footprint)
                if how:
                    conflicts[access] = how


class MemoryOrder:
    """The order of a kernel's accesses on its PE. ``most_rows`` is its row limit for ``footprints``."""

    __slots__ = ("_accesses", "_board", "_recorder")
    most_rows: float

    def __init__(self, recorder: Recorder, board: Scoreboard) -> None:
        self._accesses = PendingAccesses()
        self._board = board
        self._recorder = recorder

    def enter(self, command: Command, touched: AccessFootprint) -> int:
        """Enter an issued command that touches these bytes; return the number of accesses that it waits for."""
        raise NotImplementedError

    def note_start(self, serial: int, op: int) -> None:
        """Note that DMA operation ``op`` carries out a command; -1: the first tile of a composite is issued."""
        raise NotImplementedError


OnRelease: TypeAlias = Callable[[Command, Cause], None]
"""Callback with a command and the access that it no longer waits for"""


class ProgramOrder(MemoryOrder):
    """The program order: accesses to the same bytes take place in program order, other accesses overlap freely.

    ``on_release(command, cause)`` is called once for each access that a command has to wait for.
    """

    __slots__ = ("_named", "_on_release", "_waiting_in_tcm")
    most_rows = MOST_ROWS

    def __init__(self, recorder: Recorder, board: Scoreboard, on_release: OnRelease) -> None:
        super().__init__(recorder, board)
        self._on_release = on_release
        self._named: dict[int, Command] = {}  # commands in flight that name addresses in the TCM
        self._waiting_in_tcm: dict[int, list[Command]] = {}  # commands that wait for the end of another, by its serial

    def enter(self, command: Command, touched: AccessFootprint) -> int:
        """Enter the accesses of ``command``; return the number of earlier accesses that it waits for."""
        waits = 0
        if touched is not NOTHING:
            for earlier, how in self._accesses.conflicts(touched).items():
                waits += self._wait(command, earlier, how)
            self._accesses.add(command, touched)
            self._board.at_end[command.serial] = self._on_end
        elif names_tcm(command):
            under_way = [pending for pending, _ in self._board.under_way.values() if pending.serial < command.serial]
            self._named[command.serial] = command
            self._board.at_end[command.serial] = self._on_end
            return self._wait_in_tcm(command, under_way)
        return waits + self._wait_in_tcm(command, self._named.values()) if self._named else waits

    def _wait(self, command: Command, earlier: PendingAccess, how: Sharing) -> int:
        if earlier.op >= 0:
            if self._recorder.is_done(earlier.op, earlier.writes):
                return 0
            if not earlier.waiting:
                self._recorder.when_done(earlier.op, partial(self._release, earlier))
        earlier.waiting.append((command, how))
        return 1

    def _wait_in_tcm(self, command: Command, earlier: Iterable[Command]) -> int:
        met = [
            candidate
            for candidate in earlier
            if candidate.serial not in command.after and tcm_meets(candidate, command)
        ]
        for other in met:
            self._waiting_in_tcm.setdefault(other.serial, []).append(command)
            self._board.at_end[other.serial] = self._on_end
        return len(met)

    def note_start(self, serial: int, op: int) -> None:
        """Release the commands that wait for a command's accesses, when operation ``op`` has done these accesses."""
        if op < 0:
            return
        for access in self._accesses.of(serial):
            access.op = op
            if access.waiting:
                self._recorder.when_done(op, partial(self._release, access))

    def _on_end(self, command: Command, row: Row) -> None:
        for access in self._accesses.remove(command.serial):
            if access.waiting:
                self._release(access, row)
        self._named.pop(command.serial, None)
        for waiter in self._waiting_in_tcm.pop(command.serial, ()):
            self._on_release(waiter, (row, By.MEMORY_END))

    def _release(self, access: PendingAccess, row: Row) -> None:
        waiting, access.waiting = access.waiting, []
        for waiter, how in waiting:
            self._on_release(waiter, (row, By.MEMORY_RANGE if how == "range" else By.MEMORY))


@state(eq=False)
class WatchedCommand:
    """The interval in which ``command`` takes place, from ``begin_ps`` to ``done_ps``; -1 while unknown."""

    command: Command
    touched: AccessFootprint
    begin_ps: int = -1
    done_ps: int = -1
    overlaps: list[Overlap] = field(default_factory=list)

    def report(self, writes: bool) -> TookPlace:
        """Return the interval of the read, or of the write."""
        return TookPlace(self.command, writes, self.begin_ps, self.done_ps)


OnInversion: TypeAlias = Callable[[TookPlace, TookPlace, int, int], None]
"""Callback with two accesses in program order that took place in reverse order, and their common address and bytes"""


@value(eq=False)
class Overlap:
    """Two commands that touch the same bytes."""

    earlier: WatchedCommand
    later: WatchedCommand

    @property
    def is_inverted(self) -> bool:
        """Return True if the later command in program order was done before the earlier one took place."""
        first, second = self.earlier, self.later
        if first.done_ps < 0 or second.done_ps < 0:
            return False
        overtaken = second.done_ps < first.begin_ps
        # At one instant, written data are in memory before other commands read.
        return overtaken or (second.done_ps == first.begin_ps and not first.touched.writes)

    def tell(self, on_inversion: OnInversion) -> None:
        """Report the bytes that both commands access, if one of them writes. Report nothing if only ranges overlap."""
        first, second = self.earlier.touched, self.later.touched
        for first_bytes, writes, second_bytes, overwrites in (
            (first.writes, True, second.reads, False),
            (first.writes, True, second.writes, True),
            (first.reads, False, second.writes, True),
        ):
            address, nbytes = _find_common(first_bytes, second_bytes)
            if nbytes:
                on_inversion(self.earlier.report(writes), self.later.report(overwrites), address, nbytes)
                return


def _find_common(first: Footprints, second: Footprints) -> tuple[int, int]:
    if not first or not second:
        return 0, 0
    first_runs, second_runs = (ByteRuns.of_boxes((x.low, x.run, x.steps) for x in boxes) for boxes in (first, second))
    return first_runs.common(second_runs)


class OrderWatch(MemoryOrder):
    """An observer of the order: accesses overlap freely, and accesses in reverse program order are reported."""

    __slots__ = ("_clock", "_on_inversion", "_watched")
    most_rows = ALL_ROWS  # its reports are exact

    def __init__(self, recorder: Recorder, board: Scoreboard, clock: Clock, on_inversion: OnInversion) -> None:
        super().__init__(recorder, board)
        self._clock = clock
        self._on_inversion = on_inversion
        self._watched: dict[int, WatchedCommand] = {}

    def enter(self, command: Command, touched: AccessFootprint) -> int:
        """Enter the accesses of ``command``; return 0, the number of accesses to wait for."""
        if touched is not NOTHING:
            self._board.at_end[command.serial] = self._on_end
            watched = self._watched[command.serial] = WatchedCommand(command, touched)
            for serial in sorted({access.command.serial for access in self._accesses.conflicts(touched)}):
                overlap = Overlap(self._watched[serial], watched)
                overlap.earlier.overlaps.append(overlap)
                watched.overlaps.append(overlap)
            self._accesses.add(command, touched)
        return 0

    def note_start(self, serial: int, op: int) -> None:
        """Note when a command takes place: a composite from now on, another command when operation ``op`` is done."""
        watched = self._watched.get(serial)
        if watched is None:
            return
        if op < 0:
            watched.begin_ps = self._clock.time
        else:
            self._recorder.when_done(op, lambda _: self._on_done(watched))

    def _on_end(self, command: Command, _: Row) -> None:
        watched = self._watched.pop(command.serial)
        self._accesses.remove(command.serial)
        if watched.done_ps < 0:
            self._on_done(watched)

    def _on_done(self, watched: WatchedCommand) -> None:
        watched.done_ps = self._clock.time
        if watched.begin_ps < 0:
            watched.begin_ps = watched.done_ps
        for overlap in watched.overlaps:
            if overlap.is_inverted:
                overlap.tell(self._on_inversion)
