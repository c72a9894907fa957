"""The op-log: every command that moves data or computes. Phase 1 times the commands, phase 2 replays them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from kernbench.common.dtypes import Array
from kernbench.common.errors import RunError
from kernbench.common.units import ps_to_ns
from kernbench.common.values import state
from kernbench.messages.commands import NO_PARAMS, Operand, Params
from kernbench.messages.requests import HostBytes

RecordKind: TypeAlias = Literal[
    "dma_read", "dma_write", "gemm", "math", "ipcq_copy", "fetch", "store", "atomic", "memory_write", "memory_read"
]
Sharing: TypeAlias = Literal["", "bytes", "range"]
"""The overlap of two accesses: none; common bytes; common enclosing ranges, if there are too many rows to compare"""
COPIES = frozenset(("dma_read", "dma_write", "ipcq_copy", "fetch", "store"))
"""Kinds that move one operand, unchanged, to the output."""
TILE_KINDS = frozenset(("dma_read", "dma_write", "fetch"))
"""Kinds of tile records whose times are those at which a composite reads operands and writes its output."""


@state
class ReplayWork:
    """The work of phase 2 for a record. None without inputs and output. ``data``: the array that the host writes."""

    kind: RecordKind
    name: str
    inputs: tuple[Operand | float, ...] = ()
    output: Operand | None = None
    params: Params = NO_PARAMS
    data: Array | HostBytes | None = None


class TileRecord(NamedTuple):
    """The record of a move or a fetch for tile ``tile`` of a composite. A move has the operand's ``name``."""

    kind: RecordKind
    name: str
    tile: tuple[int, ...]
    read_ps: int
    commit_ps: int


@state
class OpRecord:
    """One command.

    Times are in ps, -1 while unknown. The command occupies its unit from ``t_start_ps`` to ``t_end_ps``. The command
    reads its operands at ``t_read_ps``. Its result is in memory at ``t_commit_ps``.

    - ``name``: the operator of a ``math``, the plan of a ``gemm``.
    - ``inputs``: operands and numbers, in the operator's order. A record without operands carries timing only and is
      not replayed: records of stages, and every record of a run without data.
    - ``tile``, ``parent``: the indices and the composite's record number, for records of stages.
    - ``data``: the array of a host write until it is replayed; the result of a ``memory_read`` after its replay.
    - ``line``: the line in the kernel's source, 0 outside kernels. ``launch_id`` is -1 outside kernels.
    - ``order``: the type of overlap, if the command's last wait was for an earlier access to the same bytes.
    """

    seq: int
    component: str
    kind: RecordKind
    t_start_ps: int
    t_read_ps: int
    t_commit_ps: int = -1
    t_end_ps: int = -1
    name: str = ""
    inputs: tuple[Operand | float, ...] = ()
    output: Operand | None = None
    params: Params = NO_PARAMS
    kernel: str = ""
    launch_id: int = -1
    line: int = 0
    tile: tuple[int, ...] | None = None
    parent: int = -1
    data: Array | HostBytes | None = field(default=None, compare=False, repr=False)
    order: Sharing = ""

    @property
    def t_start(self) -> float:
        """Start in ns."""
        return ps_to_ns(self.t_start_ps)

    @property
    def t_end(self) -> float:
        """End in ns."""
        return ps_to_ns(self.t_end_ps)

    @property
    def has_data(self) -> bool:
        """True if phase 2 has work for the record."""
        return self.output is not None or (self.kind == "memory_read" and bool(self.inputs))

    @property
    def work(self) -> ReplayWork:
        """The work of phase 2 for the record."""
        return ReplayWork(self.kind, self.name, self.inputs, self.output, self.params, self.data)


class OpLog:
    """``records`` by sequence number, which is the order in which commands read their operands.

    Phase 2 uses numbers, times and ``ReplayWork``. Other readers use the records themselves.
    """

    __slots__ = ("_records",)

    def __init__(self) -> None:
        self._records: list[OpRecord] = []

    @property
    def records(self) -> list[OpRecord]:
        """The records in order."""
        return self._records

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[OpRecord]:
        return iter(self.records)

    def __getitem__(self, seq: int) -> OpRecord:
        return self.records[seq]

    @property
    def open_records(self) -> tuple[OpRecord, ...]:
        """Records that have begun and not finished, in order."""
        return tuple(record for record in self.records if record.t_end_ps < 0)

    def since(self, seq: int) -> list[OpRecord]:
        """Return the records from sequence number ``seq`` on."""
        return self.records[seq:]

    def replayed(self, seq: int) -> Array:
        """Return number, read time and commit time of the records from ``seq`` on that have work for phase 2.

        The array has three rows. Times are in ps, -1 while unknown.
        """
        times = [(r.seq, r.t_read_ps, r.t_commit_ps) for r in self.records[seq:] if r.has_data]
        return np.array(times, np.int64).reshape(-1, 3).T

    def commits(self, numbers: Sequence[int]) -> Array:
        """Return the commit times of the records ``numbers`` in ps; -1 while unknown."""
        return np.array([self.records[seq].t_commit_ps for seq in numbers], np.int64)

    def works(self, numbers: Iterable[int]) -> Iterator[ReplayWork]:
        """Yield the work of phase 2 for the records ``numbers``."""
        return (self.records[seq].work for seq in numbers)

    def set_data(self, seq: int, data: Array | None) -> None:
        """Set the result of a read of memory, or release the data of a host write."""
        self.records[seq].data = data

    def tiles(self, seq: int) -> list[tuple[int, int]]:
        """Return (composite, number) of each record of a tile from ``seq`` on."""
        return [
            (record.parent, record.seq)
            for record in self.records[seq:]
            if record.tile is not None and record.kind in TILE_KINDS
            if record.parent >= 0 and self.records[record.parent].params.tile_sizes is not None
        ]

    def tile(self, seq: int) -> TileRecord:
        """Return the record ``seq`` of a tile."""
        record = self.records[seq]
        assert record.tile is not None
        return TileRecord(record.kind, record.name, record.tile, record.t_read_ps, record.t_commit_ps)

    def place_of(self, record: OpRecord) -> str:
        """Return the name of a record's kernel line, for errors."""
        return f"line {record.line}"

    def add(self, record: OpRecord) -> OpRecord:
        """Append ``record``, whose command reads its operands now, and assign its number."""
        record.seq = len(self._records)
        self._records.append(record)
        return record

    def begin(
        self,
        *,
        component: str,
        kind: RecordKind,
        t_start_ps: int,
        t_read_ps: int,
        name: str = "",
        inputs: tuple[Operand | float, ...] = (),
        output: Operand | None = None,
        params: Params = NO_PARAMS,
        kernel: str = "",
        launch_id: int = -1,
        line: int = 0,
        tile: tuple[int, ...] | None = None,
        parent: int = -1,
        data: Array | None = None,
    ) -> OpRecord:
        """Open a new record; call this when the command reads its operands (at ``t_read_ps``).

        ``data`` is not copied: the caller must not change the array afterwards.
        """
        record = OpRecord(
            seq=-1,
            component=component,
            kind=kind,
            t_start_ps=t_start_ps,
            t_read_ps=t_read_ps,
            name=name,
            inputs=inputs,
            output=output,
            params=params,
            kernel=kernel,
            launch_id=launch_id,
            line=line,
            tile=tile,
            parent=parent,
            data=data,
        )
        return self.add(record)

    def commit(self, record: OpRecord, t_commit_ps: int) -> None:
        """Commit a result that is in memory at ``t_commit_ps``; the command ends later, with its acknowledgement.

        Raises RunError if the commit precedes the read.
        """
        if t_commit_ps < record.t_read_ps:
            raise RunError(f"record {record.seq} commits at {t_commit_ps} ps, before it reads at {record.t_read_ps} ps")
        record.t_commit_ps = t_commit_ps

    def finish(self, record: OpRecord, t_end_ps: int, t_commit_ps: int | None = None) -> None:
        """Close ``record``: it ends at ``t_end_ps`` and commits at ``t_commit_ps``.

        Without ``t_commit_ps``, an uncommitted record commits at ``t_end_ps``. Raises RunError if the record is
        already finished, or if the commit precedes the read.
        """
        if record.t_end_ps >= 0:
            raise RunError(f"record {record.seq} ({record.kind} on {record.component}) is finished twice")
        record.t_end_ps = t_end_ps
        if t_commit_ps is not None:
            self.commit(record, t_commit_ps)
        elif record.t_commit_ps < 0:
            self.commit(record, t_end_ps)
