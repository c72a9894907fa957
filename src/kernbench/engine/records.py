"""The op-log of a machine: views of those rows of its log that are records, made when somebody looks."""

from __future__ import annotations

from kernbench.core.log import (
    COMMIT,
    END,
    KIND,
    LAST_RECORD,
    READ,
    WIDTH,
    By,
    Kind,
    Log,
    Row,
)
from kernbench.core.op_log import OpLog, OpRecord, Sharing
from kernbench.engine.record_content import ContentMaker, name_of
from kernbench.topology.graph import Graph

_LABELS = [kind.label for kind in Kind]
_ORDERS: dict[int, Sharing] = {By.MEMORY: "bytes", By.MEMORY_END: "bytes", By.MEMORY_RANGE: "range"}


class RecordViews(OpLog):
    """The records of ``log``, of the machine of ``graph``, that have read their operands by now, in that order."""

    __slots__ = ("_contents", "_graph", "_log", "_next", "_open", "_seq_of", "_unread")

    def __init__(self, log: Log, contents: ContentMaker, graph: Graph) -> None:
        super().__init__()
        self._graph = graph
        self._log = log
        self._contents = contents
        self._next = 0
        self._unread: list[Row] = []
        self._open: list[tuple[OpRecord, Row]] = []
        self._seq_of: dict[Row, int] = {}

    @property
    def records(self) -> list[OpRecord]:
        """All of them, brought up to date."""
        rows = self._log.rows
        if self._next < len(rows) or self._unread or self._open:
            self._bring_up_to_date(rows)
        return self._records

    def place_of(self, record: OpRecord) -> str:
        """What errors call the line, or of a schedule the step, that a record is of."""
        node = self._graph.node(record.component)
        return self._log.place(record.launch_id, record.line, None if node.pe is None else node.pe_coord)

    def _bring_up_to_date(self, rows: list[int]) -> None:
        still_open = []
        for view, row in self._open:
            view.t_commit_ps, view.t_end_ps = rows[row + COMMIT], rows[row + END]
            if view.t_end_ps < 0:
                still_open.append((view, row))
        self._open = still_open
        fresh = range(self._next, len(rows), WIDTH)
        self._next = len(rows)
        found = [row for row in fresh if rows[row + KIND] <= LAST_RECORD]
        candidates = self._unread + found
        self._unread = [row for row in candidates if rows[row + READ] < 0]
        for row in sorted((row for row in candidates if rows[row + READ] >= 0), key=lambda row: rows[row + READ]):
            view = self._view(rows, row)
            self._seq_of[row] = view.seq
            if view.t_end_ps < 0:
                self._open.append((view, row))

    def _view(self, rows: list[int], row: Row) -> OpRecord:
        part, kind, number, launch, line, tile, parent, start, read, commit, end, _, by, _ = rows[row : row + WIDTH]
        log = self._log
        what = log.whats[number]
        inputs, output, params, data = self._contents.of(what)
        return self.add(
            OpRecord(
                -1,
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
        )
