"""Observed tables beside the log: transfers, grants of memories (*turns*), packets on links.

A run has these tables only when an observer requests them. All are tables of integers, like the log. The transport
writes transfers and links; a memory writes its turns. Times are in ps, -1 while unknown. The tables show what happens
inside a row of the log.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable
from enum import IntEnum
from struct import Struct
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from kernbench.core.folding import Gaps, release
from kernbench.core.log import NONE, WIDTH, By, Log, Row

Column: TypeAlias = NDArray[np.int64]


class Carries(IntEnum):
    """The content of a transfer."""

    OTHER = 0
    CONTROL = 1  # a message of the control path
    REQUEST = 2  # the request of a read
    REPLY = 3
    WRITE = 4
    ACK = 5
    MESSAGE = 6  # a message of a queue, to its slot
    DOORBELL = 7  # the report of a memory that a message of a queue is in its slot


T = TypeVar("T")


class TransferFields(NamedTuple, Generic[T]):
    """One transfer, or one column of each field for many transfers, in order of their starts.

    - ``of``: the row of the log that the transfer belongs to. ``src`` and ``dst``: numbers of parts in the log.
    - ``what``: one of ``Carries``. ``route``: index into the routes of the network's watch.
    - ``cause``, ``by``: the transfer that this transfer answers, and ``LINK``. For a transfer that the row itself
      sends: NONE and ``NOTHING``.
    - ``zero_load``: the duration without contention. A delayed transfer ends later than ``start + zero_load``.
    - ``held_by``: the resource that delayed the last byte: a turn of the memory that supplied the byte, or a link,
      encoded by ``held_by_link``.
    - ``behind``: the turn or the transfer that occupied that resource. NONE if unknown: a FIFO was full, or the
      occupant went express.
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
    """The time of a turn in a slice with banks, by reason, in ps. ``TurnFields`` explains the fields."""

    bursts: int = 0
    hits: int = 0
    taken: int = 0
    opened: int = 0
    turned: int = 0
    rows: int = 0
    turning: int = 0
    refresh: int = 0


class TurnFields(NamedTuple, Generic[T]):
    """One turn (a grant of a memory), or one column of each field for many turns.

    ``of`` is the transfer that requested the access. A turn begins by ``LINK`` after that transfer, or by ``BANK``
    after another turn. Turns of a slice with banks overlap: a turn begins when its bus is free of earlier turns.

    The other fields are 0 except in slices with banks. Times are in ps:

    - ``rows``, ``turning``, ``refresh``: shares of the turn's duration for row openings, bus turnarounds and refresh.
      The remainder is data transfer.
    - ``bursts``, ``hits``: numbers of served bursts, and of bursts that hit an open row.
    - ``taken``: the time for which all buses together were occupied, including work in the idle time before the turn.
    - ``turned``, ``opened``: shares of ``taken`` for turnarounds and, as an upper bound, for waits for rows.
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
    """Packets on links: the link of index ``link`` carried ``nbytes`` of ``transfer`` from ``start`` to ``end``."""

    transfer: Column
    link: Column
    start: Column
    end: Column
    nbytes: Column


TransferColumns: TypeAlias = TransferFields[Column]
TurnColumns: TypeAlias = TurnFields[Column]
_TRANSFER, _TURN, _CARRIED = (len(fields._fields) for fields in (TransferFields, TurnFields, LinkColumns))
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
    """Return the index of the link in ``held_by``; NONE if ``held_by`` stands for no link."""
    return -2 - held_by if held_by < NONE else NONE


class Observed:
    """The observed tables; the table of links exists only with ``links``."""

    __slots__ = (
        "_last_turns",
        "_transfer_gaps",
        "_transfers",
        "_turn_gaps",
        "_turns",
        "_turns_of",
        "links",
        "n_transfers",
    )

    def __init__(self, *, links: bool = False) -> None:
        self.n_transfers = 0
        self._transfers = array("q")
        self._turns = array("q")
        self.links: list[int] | None = [] if links else None
        self._last_turns: dict[Hashable, int] = {}  # the last turn of each server
        self._turns_of: dict[int, int] = {}  # the last turn of an access
        self._transfer_gaps, self._turn_gaps = Gaps(), Gaps()

    def open_transfer(
        self, way: tuple[int, int, int], nbytes: int, start: int, zero_load: int, about: tuple[Carries, Row, int]
    ) -> int:
        """Open a transfer and return its number. ``way``: (src, dst, route); ``about``: as for ``Watch``."""
        rows, (src, dst, route), (carries, of, cause) = self._transfers, way, about
        number, by = self.n_transfers, _NOTHING
        self.n_transfers = number + 1
        if cause >= 0:
            by = _LINK
            if of < 0:
                of = rows[cause * _TRANSFER]
        rows.frombytes(
            _pack_transfer(of, src, dst, nbytes, start, NONE, cause, by, zero_load, NONE, NONE, carries, route)
        )
        return number

    def redirect_transfer(self, number: int, route: int, zero_load: int) -> None:
        """Record that a transfer leaves its original route for another."""
        at = number * _TRANSFER
        self._transfers[at + _ZERO_LOAD], self._transfers[at + _ROUTE] = zero_load, route

    def close_transfer(self, number: int, end: int) -> bool:
        """Close a transfer whose last byte has arrived; return True if contention delayed the transfer."""
        rows, at = self._transfers, number * _TRANSFER
        rows[at + _END] = end
        return end > rows[at + _START] + rows[at + _ZERO_LOAD]

    def note_held(self, number: int, held_by: int, behind: int) -> None:
        """Record the resource that delayed the transfer, and the turn or transfer that occupied it (``behind``)."""
        at = number * _TRANSFER
        self._transfers[at + _HELD_BY], self._transfers[at + _BEHIND] = held_by, behind

    def open_turn(self, access: int, server: Hashable, start: int, end: int) -> None:
        """Open a turn: ``server`` of a memory serves the request of transfer ``access`` from ``start`` to ``end``.

        If the server's previous turn lasts until ``start`` or longer, that turn is the cause, and ends at ``start``.
        """
        turns, cause, by = self._turns, access, _LINK
        before = self._last_turns.get(server, NONE)
        if before >= 0 and turns[before * _TURN + _TURN_END] >= start:
            turns[before * _TURN + _TURN_END] = start
            cause, by = before, _BANK
        self._add_turn(access, server, (start, end, cause, by), _NO_BANKS)

    def open_turn_in_banks(
        self, access: int, server: Hashable, span: tuple[int, int], waited: bool, bank_time: BankTime
    ) -> None:
        """Open a turn of a ``server`` with banks, where turns overlap.

        ``span``: (start, end) in ps; ``waited``: the server's previous turn delayed this turn.
        """
        before = self._last_turns.get(server, NONE)
        cause, by = (before, _BANK) if waited and before >= 0 else (access, _LINK)
        self._add_turn(access, server, (*span, cause, by), bank_time)

    def cut_turn(self, access: int, span: tuple[int, int], bank_time: BankTime) -> None:
        """Shorten to ``span`` the last turn of an access to a slice with banks, unless it is folded."""
        turn = self._turns_of.get(access)
        if turn is None:
            return
        at = turn * _TURN
        self._turns[at + _TURN_START], self._turns[at + _TURN_END] = span
        self._turns[at + _BANK_TIME : at + _TURN] = array("q", bank_time)

    def _add_turn(self, access: int, server: Hashable, about: tuple[int, int, int, int], bank_time: BankTime) -> None:
        self._last_turns[server] = self._turns_of[access] = len(self._turns) // _TURN
        self._turns.frombytes(_pack_turn(access, self._transfers[access * _TRANSFER + _DST], *about, *bank_time))

    def transfer(self, number: int) -> TransferFields[int]:
        """Return a transfer; ``of`` is the index of a row's first integer."""
        at = number * _TRANSFER
        return TransferFields(*self._transfers[at : at + _TRANSFER])

    def row_of(self, number: int) -> Row:
        """Return the row of the log that a transfer belongs to."""
        return self._transfers[number * _TRANSFER]

    def turn(self, number: int) -> TurnFields[int]:
        """Return a turn."""
        at = number * _TURN
        return TurnFields(*self._turns[at : at + _TURN])

    def supplied_by(self, reply: int) -> tuple[int, int, int] | None:
        """Return the last turn that supplied a reply, the turn's end, and the turn that delayed that turn (or NONE).

        Return None if the reply's memory wrote no turn.
        """
        turn = self._turns_of.get(self._transfers[reply * _TRANSFER + _CAUSE])
        if turn is None:
            return None
        rows, at = self._turns, turn * _TURN
        return turn, rows[at + _TURN_END], rows[at + _TURN_CAUSE] if rows[at + _TURN_BY] == _BANK else NONE

    def last_turn(self, access: int) -> int:
        """Return the latest turn of the access that a transfer requested; NONE without a turn."""
        return self._turns_of.get(access, NONE)

    def fold(self, log: Log) -> Gaps:
        """Fold the transfers and turns that belong to folded rows of ``log``; return all folded transfers."""
        transfers, turns = self._tables()  # views, gone at the end of the function
        gaps, turn_gaps = self._transfer_gaps, self._turn_gaps
        rest = gaps.list_rest(self.n_transfers)
        of = transfers[rest, 0]
        over = rest[(of >= 0) & (transfers[rest, _END] >= 0) & log.gaps.concern(of // WIDTH)]
        if len(over):
            release(self._transfers, _TRANSFER, gaps.add(over, np.full(len(over), NONE)))
        rest = turn_gaps.list_rest(len(turns))
        over = rest[gaps.contain(turns[rest, 0])]
        if len(over):
            release(self._turns, _TURN, turn_gaps.add(over, np.full(len(over), NONE)))
        asked = np.fromiter(self._turns_of, np.int64, len(self._turns_of))
        for transfer in asked[gaps.contain(asked)].tolist():
            del self._turns_of[transfer]
        if self.links and gaps:
            carried = np.asarray(self.links, np.int64).reshape(-1, _CARRIED)
            self.links[:] = carried[~gaps.contain(carried[:, 0])].ravel().tolist()
        return gaps

    def condense(self, log: Log) -> Observed:
        """Return a copy without folded entries, for ``log.condense()``; the tables themselves if nothing is folded.

        Whatever was behind or because of a folded entry is so for an unknown reason.
        """
        if not log.gaps:
            return self
        transfers, turns = self._tables()
        of_row, of_transfer, of_turn = (
            gaps.renumber(n)
            for gaps, n in (
                (log.gaps, log.n_rows),
                (self._transfer_gaps, self.n_transfers),
                (self._turn_gaps, len(turns)),
            )
        )
        transfers = transfers[self._transfer_gaps.list_rest(self.n_transfers)]
        turns = turns[self._turn_gaps.list_rest(len(turns))]
        of, by_turn = transfers[:, 0], transfers[:, _HELD_BY] >= 0
        transfers[:, 0] = np.where(of >= 0, of_row(of // WIDTH) * WIDTH, of)
        transfers[:, _CAUSE] = of_transfer(transfers[:, _CAUSE])
        behind = transfers[:, _BEHIND]
        transfers[:, _BEHIND] = np.where(by_turn, of_turn(behind), of_transfer(behind))
        transfers[:, _HELD_BY] = np.where(by_turn, of_turn(transfers[:, _HELD_BY]), transfers[:, _HELD_BY])
        turns[:, 0] = of_transfer(turns[:, 0])
        by_bank, cause = turns[:, _TURN_BY] == _BANK, turns[:, _TURN_CAUSE]
        cause = np.where(by_bank, of_turn(cause), of_transfer(cause))
        turns[:, _TURN_BY] = np.where(cause < 0, _LINK, turns[:, _TURN_BY])
        turns[:, _TURN_CAUSE] = np.where(cause < 0, turns[:, 0], cause)
        condensed = Observed()
        condensed.fill(transfers, turns)
        if self.links is not None:
            carried = np.asarray(self.links, np.int64).reshape(-1, _CARRIED)
            carried[:, 0] = of_transfer(carried[:, 0])
            condensed.links = carried.ravel().tolist()
        return condensed

    def fill(self, transfers: NDArray[np.int64], turns: NDArray[np.int64]) -> None:
        """Store transfers and turns in empty tables, as arrays with a row each."""
        self.n_transfers = len(transfers)
        self._transfers.frombytes(transfers.tobytes())
        self._turns.frombytes(turns.tobytes())
        self._turns_of = dict(zip(turns[:, 0].tolist(), range(len(turns)), strict=True))

    def _tables(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return views of transfers and turns with a row each. While they exist, the tables cannot grow."""
        return np.asarray(self._transfers).reshape(-1, _TRANSFER), np.asarray(self._turns).reshape(-1, _TURN)

    def transfers(self) -> TransferColumns:
        """Return all transfers so far; ``of`` is the number of a row."""
        columns = _columns(self._transfers, _TRANSFER)
        columns[0] //= WIDTH
        return TransferFields(*columns)

    def turns(self) -> TurnColumns:
        """Return all turns so far. A turn in flight has the end that holds if no further access arrives."""
        return TurnFields(*_columns(self._turns, _TURN))

    def carried(self) -> LinkColumns:
        """Return the packets that links have carried so far, as columns."""
        return LinkColumns(*_columns(self.links or [], _CARRIED))


def _columns(rows: array[int] | list[int], width: int) -> NDArray[Any]:
    """Return the columns as a copy: a view would prevent ``rows`` from growing."""
    return np.asarray(rows, np.int64).reshape(-1, width).T.copy()
