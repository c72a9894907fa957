"""The op-log of a machine: views of those rows of its log that are records, made when somebody looks."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

from kernbench.core.log import (
    COMMIT,
    END,
    KIND,
    LAST_RECORD,
    LAUNCH,
    NONE,
    READ,
    WHAT,
    WIDTH,
    By,
    Kind,
    Log,
    Row,
)
from kernbench.core.op_log import OpLog, OpRecord, Sharing
from kernbench.engine.record_content import ContentMaker, Moved, name_of
from kernbench.messages.commands import Command, LoadCommand
from kernbench.topology.graph import Graph

_LABELS = [kind.label for kind in Kind]
_INSIDE = frozenset((int(Kind.MATH), int(Kind.IPCQ_COPY)))  # of a schedule: what only scratch and slots see
_NOT_MADE = OpRecord(-1, "", "math", 0, 0)  # stands where nobody has looked yet
_ORDERS: dict[int, Sharing] = {By.MEMORY: "bytes", By.MEMORY_END: "bytes", By.MEMORY_RANGE: "range"}


class RecordViews(OpLog):
    """The records of ``log``, of the machine of ``graph``, that have read their operands by now, in that order."""

    __slots__ = ("_contents", "_graph", "_log", "_n_made", "_next", "_open", "_order", "_seq_of", "_unread")

    def __init__(self, log: Log, contents: ContentMaker, graph: Graph) -> None:
        super().__init__()
        self._graph = graph
        self._log = log
        self._contents = contents
        self._next = 0
        self._n_made = 0
        self._order: list[Row] = []  # the rows of records, by sequence number; of those added by hand NONE
        self._unread: list[Row] = []
        self._open: list[tuple[OpRecord, Row]] = []
        self._seq_of: dict[Row, int] = {}

    @property
    def records(self) -> list[OpRecord]:
        """All of them, brought up to date."""
        self._bring_up_to_date()
        if self._n_made < len(self._order):
            self._views(range(len(self._order)))
        return self._records

    def __len__(self) -> int:
        self._bring_up_to_date()
        return len(self._order)

    def since(self, seq: int, played: Collection[int] = ()) -> list[OpRecord]:
        """The records from ``seq`` on; of the launches ``played`` only loads and stores of tensors."""
        self._bring_up_to_date()
        rows, order = self._log.rows, self._order
        wanted: Iterable[int] = range(seq, len(order))
        if played:
            wanted = [
                each
                for each in wanted
                if order[each] < 0
                or rows[order[each] + LAUNCH] not in played
                or (rows[order[each] + KIND] not in _INSIDE and not self._brings_in(order[each]))
            ]
        return self._views(wanted)

    def _brings_in(self, row: Row) -> bool:
        """Whether a record is of a message that is read from its slot into scratch."""
        moved = self._log.whats[self._log.rows[row + WHAT]]
        return isinstance(moved, Moved) and isinstance(moved.what, LoadCommand) and moved.what.physical

    def add(self, record: OpRecord) -> OpRecord:
        """Take ``record``, whose command reads its operands now, and give it its number."""
        self._order.append(NONE)
        self._n_made += 1
        return super().add(record)

    def serial_of(self, record: OpRecord) -> int:
        """The number of a load or store in the program of its PE."""
        moved = self._log.whats[self._log.rows[self._order[record.seq] + WHAT]]
        assert isinstance(moved, Moved)
        assert isinstance(moved.what, Command)
        return moved.what.serial

    def place_of(self, record: OpRecord) -> str:
        """What errors call the line, or of a schedule the step, that a record is of."""
        node = self._graph.node(record.component)
        return self._log.place(record.launch_id, record.line, None if node.pe is None else node.pe_coord)

    def _bring_up_to_date(self) -> None:
        rows = self._log.rows
        still_open = []
        for view, row in self._open:
            view.t_commit_ps, view.t_end_ps = rows[row + COMMIT], rows[row + END]
            if view.t_end_ps < 0:
                still_open.append((view, row))
        self._open = still_open
        if self._next == len(rows) and not self._unread:
            return
        kinds = np.array(rows[self._next + KIND :: WIDTH])
        found = self._unread + (np.flatnonzero(kinds <= LAST_RECORD) * WIDTH + self._next).tolist()
        self._next = len(rows)
        times = np.array([rows[row + READ] for row in found])
        self._unread = [row for row, time in zip(found, times, strict=True) if time < 0]
        order = np.argsort(times, kind="stable")[len(self._unread) :]
        read = [found[at] for at in order.tolist()]
        self._seq_of.update(zip(read, range(len(self._order), len(self._order) + len(read)), strict=True))
        self._order += read
        self._records += [_NOT_MADE] * len(read)

    def _views(self, wanted: Iterable[int]) -> list[OpRecord]:
        """The records of these numbers."""
        found, records, order, rows = [], self._records, self._order, self._log.rows
        for seq in wanted:
            view = records[seq]
            if view is _NOT_MADE:
                row = order[seq]
                view = records[seq] = self._view(seq, rows[row : row + WIDTH])
                self._n_made += 1
                if view.t_end_ps < 0:
                    self._open.append((view, row))
            found.append(view)
        return found

    def _view(self, seq: int, values: list[int]) -> OpRecord:
        part, kind, number, launch, line, tile, parent, start, read, commit, end, _, by, _ = values
        log = self._log
        what = log.whats[number]
        inputs, output, params, data = self._contents.of(what)
        return OpRecord(
            seq,
            log.parts[part],
            _LABELS[kind],  # type: ignore[arg-type]
            start,
            read,
            commit,
            end,
            name_of(what),
            inputs,
            output,
            params,
            log.kernels.get(launch, ""),
            launch,
            line,
            None if tile < 0 else log.tiles[tile],
            -1 if parent < 0 else self._seq_of[parent],
            data,
            _ORDERS.get(by, ""),
        )
