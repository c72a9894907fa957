"""The log: what parts of the machine did, when, and what made each begin when it did.

A *row* is what one part did: a record of the op-log, the issue of a command, a message of the control path, a request.
Rows are integers, ``WIDTH`` of them in a row, in one list; a row is known by the place of its first one. Whoever
carries a thing out opens its row once, in the order of beginnings, and closes it once. He also writes down the *cause*:
the row after which this one begins, and by which rule. What a row is about beside numbers (``WHAT``) belongs to others.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np

from kernbench.common.values import value

# The columns. Times are in ps; -1 where there is none, or not yet.
PART, KIND, WHAT, LAUNCH, LINE, TILE, PARENT, START, READ, COMMIT, END, CAUSE, BY, LAST = range(14)
WIDTH = 14
NONE = -1
_BLOCK = 2048  # rows that a cache holds while they become columns

Row: TypeAlias = int
"""The place of the first integer of a row; a row's number is that over ``WIDTH``"""
Cause: TypeAlias = "tuple[Row, By]"
"""What something begins after, and why"""


class Kind(IntEnum):
    """What a row is about. The first are the records of the op-log; ``label`` is what it calls them."""

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


@value
class Columns:
    """The rows up to now, a read-only array a column, where rows refer to each other by number."""

    parts: tuple[str, ...]
    part: np.ndarray[Any, Any]
    kind: np.ndarray[Any, Any]
    what: np.ndarray[Any, Any]
    launch: np.ndarray[Any, Any]
    line: np.ndarray[Any, Any]
    tile: np.ndarray[Any, Any]
    parent: np.ndarray[Any, Any]
    start: np.ndarray[Any, Any]
    read: np.ndarray[Any, Any]
    commit: np.ndarray[Any, Any]
    end: np.ndarray[Any, Any]
    cause: np.ndarray[Any, Any]
    by: np.ndarray[Any, Any]
    last: np.ndarray[Any, Any]


class Log:
    """``rows``, and the tables that their numbers point into.

    ``whats``: by ``WHAT``, a text, or what a record is made of; ``kernels``: the name of a launch's kernel;
    ``steps``: of one that is a schedule, what its step of a number is called on a PE; ``requests``: the row of a
    request.
    """

    __slots__ = ("_names", "_part_of", "_tile_of", "kernels", "parts", "requests", "rows", "steps", "tiles", "whats")

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.parts: list[str] = []
        self.whats: list[object] = []
        self.tiles: list[tuple[int, ...]] = []
        self.kernels: dict[int, str] = {}
        self.steps: dict[int, Callable[[int, tuple[int, int, int]], str]] = {}
        self.requests: dict[int, Row] = {}
        self._part_of: dict[str, int] = {}
        self._names: dict[Hashable, int] = {}
        self._tile_of: dict[tuple[int, ...], int] = {}

    def place(self, launch: int, line: int, pe: tuple[int, int, int] | None) -> str:
        """What is said of a line of the kernel of ``launch``: ``line 5``, of a schedule ``step 5 (send E, 64 f16)``."""
        step = self.steps.get(launch)
        return f"line {line}" if step is None or pe is None else step(line, pe)

    def part(self, name: str) -> int:
        """The number of a part."""
        found = self._part_of.get(name)
        if found is None:
            found = self._part_of[name] = len(self.parts)
            self.parts.append(name)
        return found

    def named(self, text: Hashable) -> int:
        """The ``WHAT`` of all rows that ``text``, or another equal value, says all of."""
        found = self._names.get(text)
        if found is None:
            found = self._names[text] = self.about(text)
        return found

    def about(self, what: object) -> int:
        """The ``WHAT`` of one row."""
        self.whats.append(what)
        return len(self.whats) - 1

    def tile(self, index: tuple[int, ...]) -> int:
        """The number of a tile's indices."""
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
        """A row that begins at ``start``. What there is most of its writer enters in ``rows`` without a call."""
        row = len(self.rows)
        after, by = cause
        self.rows += (part, kind, what, launch, line, tile, parent, start, read, end, end, after, by, NONE)
        return row

    def cause_of(self, request_id: int) -> Cause:
        """What the host submitted a request after: what is done for it at once begins after the same."""
        row = self.requests.get(request_id)
        return ROOT if row is None else (self.rows[row + CAUSE], By(self.rows[row + BY]))

    def close(self, row: Row, end: int, last: Row = NONE) -> None:
        """It ends; ``last``: the row that ended it, if it is made of others."""
        rows = self.rows
        rows[row + END], rows[row + LAST] = end, last
        if rows[row + COMMIT] < 0:
            rows[row + COMMIT] = end

    def columns(self) -> Columns:
        """All rows as arrays, valid until the run goes on."""
        rows = self.rows
        table = np.empty((WIDTH, len(rows) // WIDTH), np.int64)
        for at in range(0, table.shape[1], _BLOCK):
            block = np.array(rows[at * WIDTH : (at + _BLOCK) * WIDTH], np.int64)
            table[:, at : at + _BLOCK] = block.reshape(-1, WIDTH).T
        for column in (PARENT, CAUSE, LAST):
            table[column] //= WIDTH
        table.flags.writeable = False
        return Columns(tuple(self.parts), *table)
