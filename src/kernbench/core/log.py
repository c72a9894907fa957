"""The log: what parts of the machine did, when, and what made each begin when it did.

A *row* is what one part did: a record of the op-log, the issue of a command, a message of the control path, a request.
Rows are integers of 64 bits, ``WIDTH`` of them in a row, in one array; a row is known by the place of its first one.
Whoever carries a thing out opens its row once, in the order of beginnings, and closes it once. He also writes down the
*cause*: the row after which this one begins, and by which rule. What a row is about beside numbers (``WHAT``) belongs
to others.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable
from enum import IntEnum
from struct import Struct
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

# The columns. Times are in ps; -1 where there is none, or not yet.
PART, KIND, WHAT, LAUNCH, LINE, TILE, PARENT, START, READ, COMMIT, END, CAUSE, BY, LAST = range(14)
WIDTH = 14
NONE = -1
_ROWS = frozenset((PARENT, CAUSE, LAST))  # columns that refer to rows

Row: TypeAlias = int
"""The place of the first integer of a row; a row's number is that over ``WIDTH``"""
Cause: TypeAlias = "tuple[Row, By]"
"""What something begins after, and why"""


class Kind(IntEnum):
    """The kind of a row. The first ones are records of the op-log, which calls them by their ``label``."""

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
    CONTROL = 11  # a message of the control path, until its receiver has handled it, or goes on with it
    LAUNCH = 12  # a PE enters a kernel
    ISSUE = 13  # the CPU of a PE issues a command, a receive
    SEND = 14  # the DMA sends a message, until its last byte is delivered
    TILE_ISSUE = 15  # the scheduler issues a tile
    RAW = 16  # traffic without a program
    CREDIT = 17  # a slot of a queue goes back to a sender who waits for it
    TRANSLATION = 18  # the MMU walks the pages of a descriptor that its TLB lacks
    FENCE = 19  # the CPU of a PE issues a fence, until the kernel goes on

    @property
    def label(self) -> str:
        """Its name in the op-log."""
        return self.name.lower()


LAST_RECORD = Kind.MEMORY_READ


class By(IntEnum):
    """Why a row begins after its cause."""

    NOTHING = 0  # the first thing of a run
    ISSUE = 1  # the CPU has issued it
    OPERAND = 2  # what it works on is there; the program waited for that
    MEMORY = 3  # an earlier access to the same bytes is done
    MEMORY_RANGE = 4  # the same, where only the ranges that enclose the bytes were compared
    MEMORY_END = 5  # the same in the TCM, where the earlier command is over
    SPACE = 6  # scratch came free
    ENGINE = 7  # the engine was busy
    SLOT = 8  # the stage behind, or the pipeline, had no room
    SETUP = 9  # the DMA set up another descriptor
    QUEUE = 10  # a queue has taken the message
    MESSAGE = 11  # a message of a queue is there
    CREDIT = 12  # a slot of a queue came free
    POLL = 13  # the same, found by looking again
    ORDER = 14  # a message of the control path has been handled
    START = 15  # the common start of a launch
    BARRIER = 16  # all have come to a barrier
    KERNEL = 17  # the kernel has been entered; an earlier one on the PE is over
    HOST = 18  # the host submitted it, after what it had waited for
    LINK = 19  # of what is observed: a transfer is there
    BANK = 20  # likewise: the memory was busy with another turn
    TRANSLATION = 21  # the MMU has walked its pages
    FENCE = 22  # what the program had written is in memory

    @property
    def label(self) -> str:
        """Its name in reports."""
        return {By.MEMORY_RANGE: "memory by range", By.MEMORY_END: "memory"}.get(self, self.name.lower())


# For what writes a row of every message: to find a member in its Enum takes as long as half of the row.
BY_ISSUE, BY_OPERAND, BY_SETUP = By.ISSUE, By.OPERAND, By.SETUP
BY_QUEUE, BY_MESSAGE, BY_CREDIT = By.QUEUE, By.MESSAGE, By.CREDIT
ROOT: Cause = (NONE, By.NOTHING)


pack_row = Struct(f"{WIDTH}q").pack
"""Give the bytes of a row, from its integers: ``rows.frombytes(pack_row(...))`` opens it"""


class _Column:
    """A column of ``Columns``, copied from the log when it is first asked for."""

    def __init__(self, column: int, dtype: type[np.signedinteger[Any]] = np.int64) -> None:
        self._column = column
        self._dtype = dtype

    def __set_name__(self, _: type, name: str) -> None:
        self._name = name

    def __get__(self, columns: Columns, _: type) -> NDArray[Any]:
        found = columns.copy(self._column).astype(self._dtype, copy=False)
        found.flags.writeable = False
        columns.__dict__[self._name] = found  # which is found first from now on
        return found


class Columns:
    """The rows up to now, a read-only array a column, where rows refer to each other by number.

    To be asked until the run goes on.
    """

    part = _Column(PART)
    kind = _Column(KIND, np.int8)
    what = _Column(WHAT)
    launch = _Column(LAUNCH)
    line = _Column(LINE)
    tile = _Column(TILE)
    parent = _Column(PARENT)
    start = _Column(START)
    read = _Column(READ)
    commit = _Column(COMMIT)
    end = _Column(END)
    cause = _Column(CAUSE)
    by = _Column(BY, np.int8)
    last = _Column(LAST)

    def __init__(self, log: Log) -> None:
        self.parts = tuple(log.parts)
        self._log = log
        self._n_rows = log.n_rows

    def copy(self, column: int) -> NDArray[np.int64]:
        """Return a copy of a column."""
        found = self._log.column(column)[: self._n_rows]
        return found // WIDTH if column in _ROWS else found


class Log:
    """``rows``, and the tables that their numbers point into.

    ``rows`` grows in place: no view of it may be kept, or it could not.

    ``whats``: by ``WHAT``, a text, or what a record is made of; ``kernels``: the name of a launch's kernel;
    ``steps``: of one that is a schedule, what its step of a number is called on a PE; ``requests``: the row of a
    request. ``writers`` write what has happened but is not written; who reads all rows calls them first (``catch_up``).
    """

    __slots__ = (
        "_names",
        "_part_of",
        "_tile_of",
        "kernels",
        "parts",
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
        self.writers: list[Callable[[], None]] = []
        self._part_of: dict[str, int] = {}
        self._names: dict[Hashable, int] = {}
        self._tile_of: dict[tuple[int, ...], int] = {}

    def catch_up(self) -> None:
        """Write all that has happened."""
        for write in self.writers:
            write()

    @property
    def n_rows(self) -> int:
        """The number of rows."""
        return len(self.rows) // WIDTH

    def place(self, launch: int, line: int, pe: tuple[int, int, int] | None) -> str:
        """Name a line of the kernel of ``launch``: ``line 5``, of a schedule ``step 5 (send E, 64 f16)``."""
        step = self.steps.get(launch)
        return f"line {line}" if step is None or pe is None else step(line, pe)

    def part(self, name: str) -> int:
        """Return the number of a part, a new one at its first use."""
        found = self._part_of.get(name)
        if found is None:
            found = self._part_of[name] = len(self.parts)
            self.parts.append(name)
        return found

    def intern(self, text: Hashable) -> int:
        """Return the ``WHAT`` shared by all rows that are about ``text`` or an equal value."""
        found = self._names.get(text)
        if found is None:
            found = self._names[text] = self.about(text)
        return found

    def about(self, what: object) -> int:
        """Enter ``what`` for one row, and return its ``WHAT``."""
        self.whats.append(what)
        return len(self.whats) - 1

    def tile(self, index: tuple[int, ...]) -> int:
        """Return the number of a tile's indices."""
        found = self._tile_of.get(index)
        if found is None:
            found = self._tile_of[index] = len(self.tiles)
            self.tiles.append(index)
        return found

    def open(
        self,
        part: int,
        kind: Kind,
        start: int,
        cause: Cause,
        *,
        what: int = NONE,
        launch: int = NONE,
        line: int = 0,
        tile: int = NONE,
        parent: Row = NONE,
        read: int = NONE,
        end: int = NONE,
    ) -> Row:
        """Open a row that begins at ``start``. Writers of frequent rows enter them in ``rows`` without a call."""
        row = len(self.rows)
        after, by = cause
        self.rows.frombytes(
            pack_row(part, kind, what, launch, line, tile, parent, start, read, end, end, after, by, NONE)
        )
        return row

    def cause_of(self, request_id: int) -> Cause:
        """Return the cause of a request, the row after which the host submitted it. Its first rows have the same."""
        row = self.requests.get(request_id)
        return ROOT if row is None else (self.rows[row + CAUSE], By(self.rows[row + BY]))

    def close(self, row: Row, end: int, last: Row = NONE) -> None:
        """Close a row at ``end``; ``last``: the row that ended it, if it is made of others."""
        rows = self.rows
        rows[row + END], rows[row + LAST] = end, last
        if rows[row + COMMIT] < 0:
            rows[row + COMMIT] = end

    def column(self, column: int, first: Row = 0) -> NDArray[np.int64]:
        """Return a copy of a column as it is in ``rows``, from row ``first`` on."""
        return np.asarray(self.rows)[first + column :: WIDTH].copy()

    def cells(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the integers at some places of ``rows``."""
        found: NDArray[np.int64] = np.asarray(self.rows)[places]
        return found

    def columns(self) -> Columns:
        """Return all rows as arrays."""
        self.catch_up()
        return Columns(self)
