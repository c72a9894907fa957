"""The log: the actions of the machine's parts, their times, and the cause of each.

A *row* is one action of one part: an op-log record, the issue of a command, a control message, or a request. All rows
share one array of 64-bit integers, ``WIDTH`` integers per row. The index of a row's first integer identifies the row.

The part that carries out an action opens the action's row once, in order of start times, and closes the row once. That
part also writes the *cause*: the row after which this row begins, and the rule (``By``). Facts that are no numbers are
stored in tables beside the rows; the column ``WHAT`` is an index into these tables.
"""

from __future__ import annotations

import copy
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator
from enum import IntEnum
from functools import partial
from struct import Struct
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kernbench.common.values import value
from kernbench.core.folding import Gaps, release

# The columns. Times are in ps; -1 stands for none, or for a time that is not reached yet.
PART, KIND, WHAT, LAUNCH, LINE, TILE, PARENT, START, READ, COMMIT, END, CAUSE, BY, LAST = range(14)
WIDTH = 14
NONE = -1
_ROWS = frozenset((PARENT, CAUSE, LAST))  # columns that refer to rows

Row: TypeAlias = int
"""The index of a row's first integer; divided by ``WIDTH``, the row's number"""
Cause: TypeAlias = "tuple[Row, By]"
"""The row after which an action begins, and the rule"""


class Kind(IntEnum):
    """The kind of a row. Kinds up to ``MEMORY_READ`` are records of the op-log, which names them by ``label``."""

    DMA_READ = 0
    DMA_WRITE = 1
    GEMM = 2
    MATH = 3
    IPCQ_COPY = 4
    FETCH = 5
    STORE = 6
    ATOMIC = 7
    MEMORY_WRITE = 8
    MEMORY_READ = 9
    REQUEST = 10  # of the host, from its submission to its completion
    CONTROL = 11  # a message of the control path, until its receiver has handled it or continues because of it
    LAUNCH = 12  # a PE enters a kernel
    ISSUE = 13  # the CPU of a PE issues a command, a receive
    SEND = 14  # the DMA sends a message, until its last byte is delivered
    TILE_ISSUE = 15  # the scheduler issues a tile
    RAW = 16  # traffic without a program
    CREDIT = 17  # a slot of a queue returns to a sender that waits for it
    TRANSLATION = 18  # the MMU walks the pages of a descriptor that its TLB lacks
    FENCE = 19  # the CPU of a PE issues a fence, until the kernel continues
    PASSED = 20  # an IO_CPU lets the time of a launch pass, which is not simulated

    @property
    def label(self) -> str:
        """The kind's name in the op-log."""
        return self.name.lower()


LAST_RECORD = Kind.MEMORY_READ


class By(IntEnum):
    """The rule by which a row begins after its cause."""

    NOTHING = 0  # the first action of a run
    ISSUE = 1  # the CPU has issued the command
    OPERAND = 2  # an operand is available; the program waited for the operand
    MEMORY = 3  # an earlier access to the same bytes is done
    MEMORY_RANGE = 4  # like MEMORY, but only the ranges that enclose the bytes were compared
    MEMORY_END = 5  # like MEMORY, but in the TCM, where the earlier command has ended
    SPACE = 6  # scratch came free
    ENGINE = 7  # the engine was busy
    SLOT = 8  # the next stage, or the pipeline, had no free slot
    SETUP = 9  # the DMA set up another descriptor
    QUEUE = 10  # a queue has accepted the message
    MESSAGE = 11  # a message of a queue has arrived
    CREDIT = 12  # a slot of a queue came free
    POLL = 13  # like CREDIT, but detected by the next poll
    ORDER = 14  # a message of the control path has been handled
    START = 15  # the common start of a launch
    BARRIER = 16  # all PEs have reached a barrier
    KERNEL = 17  # the kernel has been entered; an earlier kernel on the PE is over
    HOST = 18  # the host submitted the request, after the requests that the host had waited for
    LINK = 19  # in observed tables only: a transfer has arrived
    BANK = 20  # in observed tables only: the memory was busy with another grant
    TRANSLATION = 21  # the MMU has walked the descriptor's pages
    FENCE = 22  # the program's earlier writes are in memory

    @property
    def label(self) -> str:
        """The rule's name in reports."""
        return {By.MEMORY_RANGE: "memory by range", By.MEMORY_END: "memory"}.get(self, self.name.lower())


# Globals for code that writes a row per message: the look-up of an Enum member costs half as much as the row.
BY_ISSUE, BY_OPERAND, BY_SETUP = By.ISSUE, By.OPERAND, By.SETUP
BY_QUEUE, BY_MESSAGE, BY_CREDIT = By.QUEUE, By.MESSAGE, By.CREDIT
ROOT: Cause = (NONE, By.NOTHING)


_STRETCH = 1 << 16
"""Rows whose launches are looked up at a time"""
pack_row = Struct(f"{WIDTH}q").pack
"""Pack the integers of a row into bytes: ``rows.frombytes(pack_row(...))`` opens the row"""


class _LazyColumn:
    """A column of ``Columns``, copied from the log at its first use."""

    def __init__(self, column: int, dtype: type[np.signedinteger[Any]] = np.int64) -> None:
        self._column = column
        self._dtype = dtype

    def __set_name__(self, _: type, name: str) -> None:
        self._name = name

    def __get__(self, columns: Columns, _: type) -> NDArray[Any]:
        values = columns.copy(self._column, self._dtype)
        values.flags.writeable = False
        columns.__dict__[self._name] = values  # later look-ups find this entry first
        return values


class Columns:
    """The rows written so far, as one read-only array per column. Rows refer to each other by number.

    Read a column before the run continues: a column is copied at its first use. Indices have 32 bits.
    """

    part = _LazyColumn(PART, np.int32)
    kind = _LazyColumn(KIND, np.int8)
    what = _LazyColumn(WHAT, np.int32)
    launch = _LazyColumn(LAUNCH, np.int32)
    line = _LazyColumn(LINE, np.int32)
    tile = _LazyColumn(TILE, np.int32)
    parent = _LazyColumn(PARENT)
    start = _LazyColumn(START)
    read = _LazyColumn(READ)
    commit = _LazyColumn(COMMIT)
    end = _LazyColumn(END)
    cause = _LazyColumn(CAUSE)
    by = _LazyColumn(BY, np.int8)
    last = _LazyColumn(LAST)

    def __init__(self, log: Log) -> None:
        self.parts = tuple(log.parts)
        self._log = log
        self._n_rows = log.n_rows

    def copy(self, column: int, dtype: type[np.signedinteger[Any]] = np.int64) -> NDArray[Any]:
        """Return a new copy of a column, in which rows refer to each other by number."""
        values = self._log.column(column, dtype=dtype)[: self._n_rows]
        if column in _ROWS:
            values //= WIDTH
        return values


def _find_places(rows: NDArray[np.int64], numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the places of numbers among ``rows``; NONE for others."""
    places = np.minimum(np.searchsorted(rows, numbers), len(rows) - 1)
    return np.where(rows[places] == numbers, places, NONE)


@value
class FoldedLaunch:
    """A launch whose rows are folded: from ``begin_ps`` to ``end_ps`` it was on the device of ``io_cpu``."""

    launch: int
    io_cpu: str
    begin_ps: int
    end_ps: int


class Log:
    """``rows``, and the tables that their numbers index.

    ``rows`` grows in place. Retain no view of ``rows``: an exported buffer prevents growth. Rows of ``gaps`` are
    folded: they are no rows any more, and only `condense` tells which rows stand for them.

    - ``whats``: by ``WHAT``, a text, or the fields of a record.
    - ``kernels``: by launch, the kernel's name.
    - ``steps``: by launch, for kernels that are schedules, a function that names a step on a PE.
    - ``requests``: by request id, the request's row.
    - ``on_device``: by launch on a SIP, the times in ps at which its IO_CPU acted on the order and on the last answer.
    - ``queued``: by launch that waited in the queue of its IO_CPU, the time in ps at which it began.
    - ``writers``: functions that write deferred rows. Readers of all rows call ``catch_up`` first.
    - ``n_folded_records``: the folded rows that are records of the op-log.
    - ``originals``: in a copy with fewer rows, the number of each row in the log of the run.
    """

    __slots__ = (
        "_names",
        "_part_of",
        "_tile_of",
        "gaps",
        "kernels",
        "n_folded_records",
        "on_device",
        "originals",
        "parts",
        "queued",
        "requests",
        "rows",
        "steps",
        "tiles",
        "whats",
        "writers",
    )

    def __init__(self) -> None:
        self.rows = array("q")
        self.parts: list[str] = []
        self.whats: list[object] = []
        self.tiles: list[tuple[int, ...]] = []
        self.kernels: dict[int, str] = {}
        self.steps: dict[int, Callable[[int, tuple[int, int, int]], str]] = {}
        self.requests: dict[int, Row] = {}
        self.on_device: dict[int, tuple[int, int]] = {}
        self.queued: dict[int, int] = {}
        self.writers: list[Callable[[], None]] = []
        self.gaps = Gaps()
        self.n_folded_records = 0
        self.originals: NDArray[np.int64] | None = None
        self._part_of: dict[str, int] = {}
        self._names: dict[Hashable, int] = {}
        self._tile_of: dict[tuple[int, ...], int] = {}

    def catch_up(self) -> None:
        """Call all ``writers``, so that every past action has its row."""
        for write in self.writers:
            write()

    @property
    def n_rows(self) -> int:
        """The number of rows."""
        return len(self.rows) // WIDTH

    @property
    def n_unfolded(self) -> int:
        """The number of rows that are not folded."""
        return self.n_rows - self.gaps.n_rows

    def is_folded(self, row: Row) -> bool:
        """Return True if a row is folded, so that its integers mean nothing."""
        return bool(self.gaps) and bool(self.gaps.contain(np.array([row // WIDTH]))[0])

    def fold(self, launches: Collection[FoldedLaunch]) -> set[int]:
        """Fold the rows of launches that are over, and return the launches.

        One row of kind ``PASSED`` stands for the rows of a launch on its device. Its other rows remain, and so do all
        rows of a launch that has an open row.
        """
        self.catch_up()
        table = np.asarray(self.rows).reshape(-1, WIDTH)  # a view, gone at the end of the function
        first = min(self.requests[folded.launch] for folded in launches) // WIDTH
        size = 2 + max(folded.launch for folded in launches)
        times = np.zeros((2, size), np.int64)  # by launch: begin and end on the device
        for folded in launches:
            times[:, folded.launch] = folded.begin_ps, folded.end_ps
        of = np.where(table[first:, LAUNCH] < size - 1, table[first:, LAUNCH], NONE)
        starts = table[first:, START]
        numbers = np.flatnonzero((starts >= times[0, of]) & (starts < times[1, of])) + first
        numbers = numbers[~self.gaps.contain(numbers) & (table[numbers, KIND] != Kind.REQUEST)]
        is_open = table[numbers, END] < 0
        numbers = numbers[~np.isin(table[numbers, LAUNCH], table[numbers[is_open], LAUNCH])]
        done, places, inverse = np.unique(table[numbers, LAUNCH], return_index=True, return_inverse=True)
        stand_ins = numbers[places]
        self.n_folded_records += int(((table[numbers, KIND] <= LAST_RECORD) & (table[numbers, READ] >= 0)).sum())
        io_cpus = {folded.launch: self.part(folded.io_cpu) for folded in launches}
        for launch, row in zip(done.tolist(), stand_ins.tolist(), strict=True):
            begin_ps, end_ps = times[:, launch].tolist()
            cause, by = table[row, [CAUSE, BY]].tolist()
            request = self.requests[launch]
            table[row] = (
                *(io_cpus[launch], Kind.PASSED, NONE, launch, 0, NONE, request),
                *(begin_ps, NONE, end_ps, end_ps, cause, by, NONE),
            )
        others = np.ones(len(numbers), np.bool_)
        others[places] = False
        if others.any():
            release(self.rows, WIDTH, self.gaps.add(numbers[others], stand_ins[inverse][others]))
        return set(done.tolist())

    def condense(self) -> Log:
        """Return a copy without folded rows, or the log itself if no row is folded. Rows have new numbers in it."""
        if not self.gaps:
            return self
        self.catch_up()
        renumber = self.gaps.renumber(self.n_rows)
        condensed = self._copy(self.gaps.list_rest(self.n_rows), renumber)
        requests = np.fromiter(self.requests.values(), np.int64, len(self.requests))
        rows = (renumber(requests // WIDTH) * WIDTH).tolist()
        condensed.requests = dict(zip(self.requests, rows, strict=True))
        return condensed

    def extract(self, launches: Collection[int]) -> Iterator[tuple[int, Log]]:
        """Yield launches, each with a copy of the log that has its rows only. References to other rows are NONE."""
        self.catch_up()
        first = min(self.requests[launch] for launch in launches) // WIDTH
        of = self.column(LAUNCH, first * WIDTH, np.int32)
        numbers = np.flatnonzero(np.isin(of, [*launches])) + first
        numbers = numbers[~self.gaps.contain(numbers)]
        of = of[numbers - first]
        order = np.argsort(of, kind="stable")
        launched, begins = np.unique(of[order], return_index=True)
        for launch, rows in zip(launched.tolist(), np.split(numbers[order], begins[1:]), strict=True):
            yield launch, self._copy(rows, partial(_find_places, rows))

    def divide(self, n_rows: int) -> Iterator[Log]:
        """Yield copies of the log that together have all of its rows, without folded ones: about ``n_rows`` in each.

        The rows of a launch are in one copy. References to rows of other copies are NONE. A short log is one piece.
        """
        self.catch_up()
        if self.n_rows <= n_rows and not self.gaps:
            yield self
            return
        # A column of the complete log would need as much memory as many pieces: look at a stretch at a time.
        stretches = [self._stretch(first) for first in range(0, self.n_rows, _STRETCH)]
        spans = [(min(of, default=NONE), max(of, default=NONE)) for of in stretches]
        n_of_launches: Counter[int] = sum(stretches, Counter())
        counts = np.cumsum([n_of_launches[launch] for launch in range(NONE, max(n_of_launches, default=NONE) + 1)])
        ends = np.flatnonzero(np.diff(counts // n_rows, append=NONE))  # of launches, one more than their numbers
        for begin, end in zip([NONE, *ends[:-1].tolist()], ends.tolist(), strict=True):
            parts = [
                self._rows_between(at * _STRETCH, begin, end)
                for at, (least, most) in enumerate(spans)
                if least < end and begin <= most
            ]
            rows = np.concatenate([np.empty(0, np.int64), *parts])
            if len(rows):
                yield self._copy(rows, partial(_find_places, rows))

    def _stretch(self, first: int) -> Counter[int]:
        """Return how many rows of each launch follow row number ``first``, up to the next stretch."""
        launches, counts = np.unique(self._launches_from(first), return_counts=True)
        return Counter(dict(zip(launches.tolist(), counts.tolist(), strict=True)))

    def _rows_between(self, first: int, begin: int, end: int) -> NDArray[np.int64]:
        """Return the numbers of the rows of a stretch that belong to launches from ``begin`` on and below ``end``."""
        of = self._launches_from(first)
        rows = np.flatnonzero((of >= begin) & (of < end)) + first
        return rows[~self.gaps.contain(rows)]

    def _launches_from(self, first: int) -> NDArray[np.int64]:
        return np.asarray(self.rows)[first * WIDTH + LAUNCH : (first + _STRETCH) * WIDTH : WIDTH].copy()

    def _copy(self, numbers: NDArray[np.int64], renumber: Callable[[NDArray[np.int64]], NDArray[np.int64]]) -> Log:
        """Return a copy with the rows ``numbers``, whose references are renumbered."""
        table = np.asarray(self.rows).reshape(-1, WIDTH)[numbers]
        for column in _ROWS:
            cells = table[:, column]
            table[:, column] = np.where(cells >= 0, np.maximum(renumber(cells // WIDTH) * WIDTH, NONE), NONE)
        copied = copy.copy(self)
        copied.rows = array("q")
        copied.rows.frombytes(table.view(np.uint8).ravel().data)
        copied.writers, copied.gaps, copied.originals = [], Gaps(), numbers
        return copied

    def has_ended_on_device(self, launch: int) -> bool:
        """Return True if the IO_CPU has all answers of a launch on its SIP."""
        begin_ps, end_ps = self.on_device.get(launch, (0, 0))
        return end_ps > begin_ps

    def place(self, launch: int, line: int, pe: tuple[int, int, int] | None) -> str:
        """Return the name of a kernel line of ``launch``: ``line 5``, or ``step 5 (send E, 64 f16)`` in a schedule."""
        step = self.steps.get(launch)
        return f"line {line}" if step is None or pe is None else step(line, pe)

    def part(self, name: str) -> int:
        """Return the number of a part; the first use of ``name`` assigns a new number."""
        number = self._part_of.get(name)
        if number is None:
            number = self._part_of[name] = len(self.parts)
            self.parts.append(name)
        return number

    def intern(self, text: Hashable) -> int:
        """Return the ``WHAT`` of ``text``, which all rows about an equal value share."""
        number = self._names.get(text)
        if number is None:
            number = self._names[text] = self.about(text)
        return number

    def about(self, subject: object) -> int:
        """Store ``subject`` for one row, and return its ``WHAT``."""
        self.whats.append(subject)
        return len(self.whats) - 1

    def tile(self, index: tuple[int, ...]) -> int:
        """Return the number that stands for a tile's indices."""
        number = self._tile_of.get(index)
        if number is None:
            number = self._tile_of[index] = len(self.tiles)
            self.tiles.append(index)
        return number

    def open(
        self,
        part: int,
        kind: Kind,
        start: int,
        cause: Cause,
        *,
        subject: int = NONE,
        launch: int = NONE,
        line: int = 0,
        tile: int = NONE,
        parent: Row = NONE,
        read: int = NONE,
        end: int = NONE,
    ) -> Row:
        """Open a row that begins at ``start``. Writers of frequent rows append to ``rows`` without this call."""
        row = len(self.rows)
        after, by = cause
        self.rows.frombytes(
            pack_row(part, kind, subject, launch, line, tile, parent, start, read, end, end, after, by, NONE)
        )
        return row

    def cause_of(self, request_id: int) -> Cause:
        """Return the cause of a request: the row after which the host submitted it, and the rule.

        The first rows that the request causes have the same cause.
        """
        row = self.requests.get(request_id)
        return ROOT if row is None else (self.rows[row + CAUSE], By(self.rows[row + BY]))

    def close(self, row: Row, end: int, last: Row = NONE) -> None:
        """Close a row at ``end``; ``last`` is the child row that ended a row with children."""
        rows = self.rows
        rows[row + END], rows[row + LAST] = end, last
        if rows[row + COMMIT] < 0:
            rows[row + COMMIT] = end

    def column(self, column: int, first: Row = 0, dtype: type[np.signedinteger[Any]] = np.int64) -> NDArray[Any]:
        """Return a copy of a column from row ``first`` on; references to rows are indices into ``rows``."""
        return np.asarray(self.rows)[first + column :: WIDTH].astype(dtype)

    def cells(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the integers at the indices ``places`` of ``rows``."""
        values: NDArray[np.int64] = np.asarray(self.rows)[places]
        return values

    def columns(self) -> Columns:
        """Return all rows as arrays, after ``catch_up``."""
        self.catch_up()
        return Columns(self)
