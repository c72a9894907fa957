"""The op-log of a machine: records, made on demand from rows of the log, and the lines that kernels print."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from kernbench.common.dtypes import Array
from kernbench.common.ids import cube_part, pe_part
from kernbench.common.units import ps_to_ns
from kernbench.common.values import state, value
from kernbench.core.clock import NEVER
from kernbench.core.log import (
    COMMIT,
    END,
    KIND,
    LAST_RECORD,
    NONE,
    PARENT,
    PART,
    READ,
    TILE,
    WHAT,
    WIDTH,
    By,
    Kind,
    Log,
    Row,
)
from kernbench.core.op_log import TILE_KINDS, OpLog, OpRecord, ReplayWork, Sharing, TileRecord
from kernbench.engine.hooks import Hooks, Printed
from kernbench.engine.recorder import ContentMaker, Recorder, is_composite, name_of
from kernbench.messages.commands import Operand
from kernbench.messages.requests import PeCoord
from kernbench.topology.graph import Graph

_LABELS = [kind.label for kind in Kind]
_TILE_KINDS = [int(kind) for kind in Kind if kind.label in TILE_KINDS]
_NOT_MADE = OpRecord(-1, "", "math", 0, 0)  # stands for a record that has not been read
_ORDERS: dict[int, Sharing] = {By.MEMORY: "bytes", By.MEMORY_END: "bytes", By.MEMORY_RANGE: "range"}


@state
class Sample:
    """The array of ``operand`` at ``time_ps``, when line ``line`` of a kernel on ``component`` prints the array.

    ``array`` is None until phase 2 has replayed up to that time.
    """

    time_ps: int
    operand: Operand
    component: str
    line: int
    array: Array | None = None

    @property
    def work(self) -> ReplayWork:
        """The work of phase 2 that fills ``array``."""
        return ReplayWork("memory_read", "print", (self.operand,))


class RecordViews(OpLog):
    """The records of ``log`` that have read their operands, in order of their read times.

    ``graph`` is the graph of the machine. At equal read times, records of tiles are sorted by part and kind, because
    the order of their rows is arbitrary. A sample is placed behind the records numbered so far.
    """

    __slots__ = (
        "_contents",
        "_graph",
        "_log",
        "_n_folded",
        "_n_made",
        "_n_numbered",
        "_next",
        "_open",
        "_order",
        "_samples",
        "_seq_of",
        "_unread",
    )

    def __init__(self, log: Log, contents: ContentMaker, graph: Graph) -> None:
        super().__init__()
        self._graph = graph
        self._log = log
        self._contents = contents
        self._next = 0
        self._n_made = 0
        self._order = array("q")  # the rows of records, by sequence number; -1 - n stands for sample n
        self._samples: list[Sample] = []
        self._unread = np.empty(0, np.int64)  # rows of records that have not read their operands
        self._open: list[tuple[OpRecord, Row]] = []
        self._n_numbered = self._n_folded = 0
        self._seq_of = array("q")  # sequence numbers by number of row, filled on demand: most readers need few

    @property
    def records(self) -> list[OpRecord]:
        """The records, brought up to date."""
        n = len(self)
        if self._n_made < n:
            for seq in range(n):
                self._view(seq)
        return self._records

    def __len__(self) -> int:
        self._bring_up_to_date()
        return len(self._order)

    def __getitem__(self, seq: int) -> OpRecord:
        """Return the record ``seq`` without making the other records."""
        return self._view(range(len(self))[seq])

    def sample(self, sample: Sample) -> Sample:
        """Append a sample whose operand is read now, and return it."""
        self._order.append(-1 - len(self._samples))
        self._samples.append(sample)
        return sample

    def replayed(self, seq: int) -> Array:
        """Return number, read time and commit time of the records from ``seq`` on that have work for phase 2."""
        self._bring_up_to_date()
        where, cells = np.array(self._order[seq:], np.int64), self._log.cells
        at = np.flatnonzero(where >= 0)
        at = at[cells(where[at] + TILE) < 0]
        whats = map(self._log.whats.__getitem__, cells(where[at] + WHAT).tolist())
        at = at[np.fromiter(map(self._contents.has_work, whats), np.bool_, at.size)]
        times_of = np.array((at + seq, cells(where[at] + READ), cells(where[at] + COMMIT)))
        sampled = np.flatnonzero(where < 0)
        if sampled.size:
            times = [self._samples[-1 - row].time_ps for row in where[sampled].tolist()]
            times_of = np.concatenate((times_of, (sampled + seq, times, times)), axis=1)
            times_of = times_of[:, times_of[0].argsort()]
        return times_of

    def commits(self, numbers: Sequence[int]) -> Array:
        """Return the commit times of the records ``numbers`` in ps; -1 while unknown."""
        where = np.asarray(self._order)[list(numbers)]
        times = self._log.cells(np.maximum(where, 0) + COMMIT)
        for at in np.flatnonzero(where < 0).tolist():
            times[at] = self._samples[-1 - where[at]].time_ps
        return times

    def works(self, numbers: Iterable[int]) -> Iterator[ReplayWork]:
        """Yield the work of phase 2 for the records ``numbers``."""
        rows, whats, order, resolve = self._log.rows, self._log.whats, self._order, self._contents.resolve
        for seq in numbers:
            row = order[seq]
            yield resolve(whats[rows[row + WHAT]]) if row >= 0 else self._samples[-1 - row].work

    def set_data(self, seq: int, data: Array | None) -> None:
        """Set the array of a sample, or release the data of a host write."""
        row = self._order[seq]
        if row < 0:
            self._samples[-1 - row].array = data
        else:
            self._contents.drop_array(self._log.whats[self._log.rows[row + WHAT]])
        if seq < len(self._records) and self._records[seq] is not _NOT_MADE:
            self._records[seq].data = data

    def tiles(self, seq: int) -> list[tuple[int, int]]:
        """Return (composite, number) of each record of a tile from ``seq`` on."""
        self._bring_up_to_date()
        cells, whats = self._log.cells, self._log.whats
        where = np.array(self._order[seq:], np.int64)
        at = np.flatnonzero(where >= 0)
        at = at[cells(where[at] + TILE) >= 0]
        at = at[np.isin(cells(where[at] + KIND), _TILE_KINDS)]
        composites = cells(where[at] + PARENT)
        at, composites = at[composites >= 0], composites[composites >= 0]
        records = zip(composites.tolist(), cells(composites + WHAT).tolist(), (at + seq).tolist(), strict=True)
        return [(self._number(composite), tile) for composite, subject, tile in records if is_composite(whats[subject])]

    def tile(self, seq: int) -> TileRecord:
        """Return the record ``seq`` of a tile."""
        row, log = self._order[seq], self._log
        _, kind, subject, _, _, tile, _, _, read, commit, *_ = log.rows[row : row + WIDTH]
        return TileRecord(_LABELS[kind], name_of(log.whats[subject]), log.tiles[tile], read, commit)  # type: ignore[arg-type]

    def place_of(self, record: OpRecord) -> str:
        """Return the name of a record's kernel line, or schedule step, for errors."""
        node = self._graph.node(record.component)
        return self._log.place(record.launch_id, record.line, None if node.pe is None else node.pe_coord)

    def _bring_up_to_date(self) -> None:
        self._log.catch_up()
        rows = self._log.rows
        if self._n_folded != self._log.gaps.n_rows:
            self._begin_anew()
        still_open = []
        for view, row in self._open:
            view.t_commit_ps, view.t_end_ps = rows[row + COMMIT], rows[row + END]
            if view.t_end_ps < 0:
                still_open.append((view, row))
        self._open = still_open
        first, self._next = self._next, len(rows)
        if first == self._next and not self._unread.size:
            return
        fresh = np.flatnonzero(self._log.column(KIND, first) <= LAST_RECORD) + first // WIDTH
        fresh = fresh[~self._log.gaps.contain(fresh)] * WIDTH
        unread = np.concatenate((self._unread, fresh))
        times = self._log.cells(unread + READ)
        self._unread = unread[times < 0]
        order = np.lexsort((self._tile_stages(unread), times))[self._unread.size :]
        self._order.frombytes(unread[order].tobytes())

    def _begin_anew(self) -> None:
        """Forget all records, since rows were folded: records have new numbers."""
        self._n_folded = self._log.gaps.n_rows
        self._records, self._next, self._n_made, self._n_numbered = [], 0, 0, 0
        self._order, self._seq_of, self._unread, self._open = array("q"), array("q"), np.empty(0, np.int64), []

    def _tile_stages(self, rows: Array) -> Array:
        """Return a number for the stage of each tile row; NEVER for other rows, which are in order already."""
        cells = self._log.cells
        return np.where(cells(rows + TILE) >= 0, cells(rows + PART) * len(Kind) + cells(rows + KIND), NEVER)

    def _number(self, row: Row) -> int:
        """Return the sequence number of the record of ``row``."""
        first, self._n_numbered = self._n_numbered, len(self._order)
        if first < self._n_numbered:
            self._seq_of.frombytes(np.full(self._log.n_rows - len(self._seq_of), NONE).tobytes())
            order = np.array(self._order[first:], np.int64)
            of_rows = np.flatnonzero(order >= 0)
            np.asarray(self._seq_of)[order[of_rows] // WIDTH] = of_rows + first
        return self._seq_of[row // WIDTH]

    def _view(self, seq: int) -> OpRecord:
        """Return record ``seq``, constructed at the first call."""
        if seq >= len(self._records):
            self._records += [_NOT_MADE] * (len(self._order) - len(self._records))
        record = self._records[seq]
        if record is _NOT_MADE:
            row = self._order[seq]
            record = self._records[seq] = self._view_of_row(seq, row) if row >= 0 else self._view_of_sample(seq, row)
            self._n_made += 1
            if record.t_end_ps < 0:
                self._open.append((record, row))
        return record

    def _view_of_sample(self, seq: int, row: Row) -> OpRecord:
        sample = self._samples[-1 - row]
        work, times = sample.work, (sample.time_ps,) * 4
        record = OpRecord(seq, sample.component, work.kind, *times, work.name, work.inputs, line=sample.line)
        record.data = sample.array
        return record

    def _view_of_row(self, seq: int, row: Row) -> OpRecord:
        log = self._log
        part, kind, number, launch, line, tile, parent, start, read, commit, end, _, by, _ = log.rows[row : row + WIDTH]
        subject = log.whats[number]
        label: Any = _LABELS[kind]
        work = ReplayWork(label, subject) if isinstance(subject, str) else self._contents.resolve(subject)
        return OpRecord(
            seq,
            log.parts[part],
            label,
            start,
            read,
            commit,
            end,
            work.name,
            work.inputs,
            work.output,
            work.params,
            log.kernels.get(launch, ""),
            launch,
            line,
            None if tile < 0 else log.tiles[tile],
            NONE if parent < 0 else self._number(parent),
            work.data,
            _ORDERS.get(by, ""),
        )


@value
class PrintedLine:
    """A line that PE ``pe`` printed at ``time_ns``, from ``line`` of its kernel."""

    time_ns: float
    pe: PeCoord
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.time_ns:.3f} ns {cube_part(self.pe[0], self.pe[1], f'pe{self.pe[2]}')}: {self.text}"


class Printer:
    """The lines that kernels print. With data, every printed array is a sample in the op-log; the replay fills it."""

    def __init__(self, op_log: RecordViews, hooks: Hooks, recorder: Recorder) -> None:
        self._log = op_log
        self._recorder = recorder
        self.unread_values = 0  # number of elements in printed arrays that were not shown yet
        self._lines: list[tuple[Printed, tuple[str | Sample, ...]]] = []
        hooks.printed.subscribe(self._add)

    def lines(self) -> tuple[PrintedLine, ...]:
        """Return all lines so far, in order of time; call this after a replay up to now."""
        self.unread_values = 0
        return tuple(
            PrintedLine(ps_to_ns(event.time_ps), event.pe, event.line, " ".join(map(_text, parts)))
            for event, parts in self._lines
        )

    def _add(self, event: Printed) -> None:
        self._lines.append((event, tuple(self._part(event, part) for part in event.parts)))

    def _part(self, event: Printed, part: Operand | str) -> str | Sample:
        if isinstance(part, str):
            return part
        if not self._recorder.keep_data:
            return _form(part)
        self.unread_values += prod(part.shape)
        source = Operand("tcm", event.pe, part.address, part.nbytes, part.shape, part.dtype)
        return self._log.sample(Sample(event.time_ps, source, pe_part(*event.pe, "pe_cpu"), event.line))


def _text(part: str | Sample) -> str:
    if isinstance(part, str):
        return part
    if part.array is None:  # the run stopped storing data before the array was read
        return _form(part.operand)
    return np.array2string(part.array, threshold=64, precision=6)


def _form(array: Operand) -> str:
    """Return dtype and shape of an array as a text that stands for its values."""
    return f"{array.dtype}{list(array.shape)}"
