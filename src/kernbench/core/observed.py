"""Tables beside the log, kept only when an observer asks: transfers, turns of memories, loads of links.

Tables of integers, like the log; their owners write them: the transport its transfers and links, a memory its turns.
Times are in ps, -1 while they are unknown. These rows refine the inside of a row of the log.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable
from enum import IntEnum
from struct import Struct
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from kernbench.core.log import NONE, WIDTH, By, Row

Column: TypeAlias = NDArray[np.int64]


class Carries(IntEnum):
    """The meaning of a transfer to its receiver."""

    OTHER = 0
    CONTROL = 1  # a message of the control path
    REQUEST = 2  # of a read
    REPLY = 3
    WRITE = 4
    ACK = 5
    MESSAGE = 6  # of a queue, to its slot
    DOORBELL = 7  # a memory tells of it


T = TypeVar("T")


class TransferFields(NamedTuple, Generic[T]):
    """A transfer, or a column each of many, in the order of their beginnings.

    ``of`` is a row of the log, of which it is a part, ``src`` and ``dst`` are parts there; ``what`` is one of
    ``Carries``, ``route`` counts those of the network's watch. It begins by ``LINK`` after a transfer that it answers,
    or by nothing: its row itself sends it. It ends at ``start + zero_load + held``. ``held_by`` says what its last byte
    waited for then: the turn of a memory that supplied it, or, as ``held_by_link`` says it, a link; ``behind`` is the
    turn, or the transfer, that had it, NONE where that is not known (a FIFO was full, or who had it had gone express).
    """

    of: T
    src: T
    dst: T
    nbytes: T
    start: T
    end: T
    cause: T
    by: T
    zero_load: T
    held_by: T
    behind: T
    what: T
    route: T


class BankTime(NamedTuple):
    """The time of a turn in a slice with banks, by reason, in ps; see ``TurnFields``."""

    bursts: int = 0
    hits: int = 0
    taken: int = 0
    opened: int = 0
    turned: int = 0
    rows: int = 0
    turning: int = 0
    refresh: int = 0


class TurnFields(NamedTuple, Generic[T]):
    """A turn of a memory, or a column each of many; ``of`` is the transfer that asked for the access.

    It begins by ``LINK`` after that, or by ``BANK`` after another turn. Those of a slice with banks overlap: one begins
    when its bus is free of the turns before it.

    The rest are 0 but for slices with banks. Of the turn's time ``rows`` went to opening rows, ``turning`` to turns of
    direction, ``refresh`` to that; what is left is data. ``bursts``, ``hits``: how many were served, and how many of
    open rows. ``taken``: of the time of all buses together, with what idle time before the turn was filled with;
    ``turned`` and, at most, ``opened`` of that were turns of direction and waiting for rows.
    """

    of: T
    memory: T
    start: T
    end: T
    cause: T
    by: T
    bursts: T
    hits: T
    taken: T
    opened: T
    turned: T
    rows: T
    turning: T
    refresh: T


class LinkColumns(NamedTuple):
    """Packets on links: ``link`` (its index) carried ``nbytes`` of ``transfer`` from ``start`` to ``end``."""

    transfer: Column
    link: Column
    start: Column
    end: Column
    nbytes: Column


TransferColumns: TypeAlias = TransferFields[Column]
TurnColumns: TypeAlias = TurnFields[Column]
_TRANSFER, _TURN, _CARRIED = (len(each._fields) for each in (TransferFields, TurnFields, LinkColumns))
_DST, _START, _END, _CAUSE, _ZERO_LOAD, _HELD_BY, _BEHIND, _ROUTE = map(
    TransferFields._fields.index, ("dst", "start", "end", "cause", "zero_load", "held_by", "behind", "route")
)
_NOTHING, _LINK, _BANK = (int(by) for by in (By.NOTHING, By.LINK, By.BANK))
_TURN_START, _TURN_END, _TURN_CAUSE, _TURN_BY, _BANK_TIME = map(
    TurnFields._fields.index, ("start", "end", "cause", "by", BankTime._fields[0])
)
_NO_BANKS = BankTime()
_pack_transfer, _pack_turn = Struct(f"{_TRANSFER}q").pack, Struct(f"{_TURN}q").pack


def held_by_link(index: int) -> int:
    """Return the value of ``held_by`` that stands for link ``index``."""
    return -2 - index


def link_of(held_by: int) -> int:
    """Return the index of the link in ``held_by``; NONE when it was none."""
    return -2 - held_by if held_by < NONE else NONE


class Observed:
    """The tables; that of links only with ``links``."""

    __slots__ = ("_last_turns", "_transfers", "_turns", "_turns_of", "links", "n_transfers")

    def __init__(self, *, links: bool = False) -> None:
        self.n_transfers = 0
        self._transfers = array("q")
        self._turns = array("q")
        self.links: list[int] | None = [] if links else None
        self._last_turns: dict[Hashable, int] = {}  # of each server
        self._turns_of: dict[int, int] = {}  # the last one of an access

    def open_transfer(
        self, way: tuple[int, int, int], nbytes: int, start: int, zero_load: int, about: tuple[Carries, Row, int]
    ) -> int:
        """Open a transfer and return its number. ``way``: its ends and its route; ``about``: as for ``Watch``."""
        rows, (src, dst, route), (what, of, cause) = self._transfers, way, about
        number, by = self.n_transfers, _NOTHING
        self.n_transfers = number + 1
        if cause >= 0:
            by = _LINK
            if of < 0:
                of = rows[cause * _TRANSFER]
        rows.frombytes(_pack_transfer(of, src, dst, nbytes, start, NONE, cause, by, zero_load, NONE, NONE, what, route))
        return number

    def redirect_transfer(self, number: int, route: int, zero_load: int) -> None:
        """Note that a transfer takes another route than it set out on."""
        at = number * _TRANSFER
        self._transfers[at + _ZERO_LOAD], self._transfers[at + _ROUTE] = zero_load, route

    def close_transfer(self, number: int, end: int) -> bool:
        """Close a transfer whose last byte is there; return True when something has held it up."""
        rows, at = self._transfers, number * _TRANSFER
        rows[at + _END] = end
        return end > rows[at + _START] + rows[at + _ZERO_LOAD]

    def note_held(self, number: int, held_by: int, behind: int) -> None:
        """Note what held the transfer up, and which transfer was in front (``behind``)."""
        at = number * _TRANSFER
        self._transfers[at + _HELD_BY], self._transfers[at + _BEHIND] = held_by, behind

    def open_turn(self, access: int, server: Hashable, start: int, end: int) -> None:
        """``server`` of a memory works from ``start`` to ``end`` on what transfer ``access`` has asked it for.

        It begins after the turn before it on that server, if that was in the way: one that was to go on is cut.
        """
        turns, cause, by = self._turns, access, _LINK
        before = self._last_turns.get(server, NONE)
        if before >= 0 and turns[before * _TURN + _TURN_END] >= start:
            turns[before * _TURN + _TURN_END] = start
            cause, by = before, _BANK
        self._add_turn(access, server, (start, end, cause, by), _NO_BANKS)

    def open_turn_in_banks(
        self, access: int, server: Hashable, span: tuple[int, int], waited: bool, took: BankTime
    ) -> None:
        """``server`` has banks, in which turns overlap. ``waited``: the turn before it was in the way."""
        before = self._last_turns.get(server, NONE)
        cause, by = (before, _BANK) if waited and before >= 0 else (access, _LINK)
        self._add_turn(access, server, (*span, cause, by), took)

    def cut_turn(self, access: int, span: tuple[int, int], took: BankTime) -> None:
        """Cut the last turn of an access in banks: it ends earlier than it was to."""
        at = self._turns_of[access] * _TURN
        self._turns[at + _TURN_START], self._turns[at + _TURN_END] = span
        self._turns[at + _BANK_TIME : at + _TURN] = array("q", took)

    def _add_turn(self, access: int, server: Hashable, about: tuple[int, int, int, int], took: BankTime) -> None:
        self._last_turns[server] = self._turns_of[access] = len(self._turns) // _TURN
        self._turns.frombytes(_pack_turn(access, self._transfers[access * _TRANSFER + _DST], *about, *took))

    def transfer(self, number: int) -> TransferFields[int]:
        """Return a transfer; ``of`` is the place of a row."""
        at = number * _TRANSFER
        return TransferFields(*self._transfers[at : at + _TRANSFER])

    def row_of(self, number: int) -> Row:
        """Return the row that a transfer is a part of."""
        return self._transfers[number * _TRANSFER]

    def turn(self, number: int) -> TurnFields[int]:
        """Return a turn."""
        at = number * _TURN
        return TurnFields(*self._turns[at : at + _TURN])

    def supplied_by(self, reply: int) -> tuple[int, int, int] | None:
        """Return the last turn that supplied a reply, its end, and the turn in its way; None: no turn is written."""
        turn = self._turns_of.get(self._transfers[reply * _TRANSFER + _CAUSE])
        if turn is None:
            return None
        rows, at = self._turns, turn * _TURN
        return turn, rows[at + _TURN_END], rows[at + _TURN_CAUSE] if rows[at + _TURN_BY] == _BANK else NONE

    def last_turn(self, access: int) -> int:
        """Return the last turn by now of the access that a transfer asked for; NONE without one."""
        return self._turns_of.get(access, NONE)

    def transfers(self) -> TransferColumns:
        """Return all transfers by now; ``of`` is the number of a row."""
        columns = _columns(self._transfers, _TRANSFER)
        columns[0] //= WIDTH
        return TransferFields(*columns)

    def turns(self) -> TurnColumns:
        """Return all turns by now; one under way has the end that it will have if no other access comes."""
        return TurnFields(*_columns(self._turns, _TURN))

    def carried(self) -> LinkColumns:
        """Return what links have carried by now, as columns."""
        return LinkColumns(*_columns(self.links or [], _CARRIED))


def _columns(rows: array[int] | list[int], width: int) -> NDArray[Any]:
    """Return a copy: rows of which there is a view could not grow."""
    return np.asarray(rows, np.int64).reshape(-1, width).T.copy()
