"""The op-log: every command that moves data or computes, as phase 1 timed it and as phase 2 replays it."""

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

Kind: TypeAlias = Literal[
    "dma_read", "dma_write", "gemm", "math", "ipcq_copy", "fetch", "store", "atomic", "memory_write", "memory_read"
]
Sharing: TypeAlias = Literal["", "bytes", "range"]
"""What two accesses have in common: nothing; bytes; ranges that enclose them, where the rows are too many to compare"""
COPIES = frozenset(("dma_read", "dma_write", "ipcq_copy", "fetch", "store"))
"""Kinds that move one operand, unchanged, to the output."""
TILE_KINDS = frozenset(("dma_read", "dma_write", "fetch"))
"""Kinds of the records of tiles that say when a composite reads its operands and writes its output."""


@state
class Work:
    """The work of phase 2 for a record: nothing without inputs and output. ``data``: the array that the host writes."""

    kind: Kind
    name: str
    inputs: tuple[Operand | float, ...] = ()
    output: Operand | None = None
    params: Params = NO_PARAMS
    data: Array | HostBytes | None = None


class Tile(NamedTuple):
    """The record of a move or a fetch for tile ``tile`` of a composite; of a move, ``name`` is the operand's."""

    kind: Kind
    name: str
    tile: tuple[int, ...]
    read_ps: int
    commit_ps: int


@state
class OpRecord:
    """One command. Times in ps: it occupies its unit from ``t_start_ps`` to ``t_end_ps``, reads its operands at
    ``t_read_ps`` and its result is in memory at ``t_commit_ps``; -1 while unknown.

    ``name``: the operator of a ``math``, the plan of a ``gemm``. ``inputs``: operands and numbers, in the operator's
    order. A record without operands carries timing only and is not replayed: those of stages, which have ``tile``
    indices and the ``parent`` they are a part of, and every record of a run without data. ``data``: a host write's
    array until it is replayed, what a ``memory_read`` read once it is. ``line``: of the kernel's source, 0 outside
    kernels; ``launch_id`` is -1 there. ``order``: what it waited for last was an earlier access to the same bytes, so
    compared.
    """

    seq: int
    component: str
    kind: Kind
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
        """True when phase 2 has work for the record."""
        return self.output is not None or (self.kind == "memory_read" and bool(self.inputs))

    @property
    def work(self) -> Work:
        """Return the work of phase 2 for the record."""
        return Work(self.kind, self.name, self.inputs, self.output, self.params, self.data)


class OpLog:
    """``records`` in the order of their sequence numbers, which is the order in which commands read their operands.

    Phase 2 asks for numbers, times and work; who wants to see a record asks for that.
    """

    __slots__ = ("_records",)

    def __init__(self) -> None:
        self._records: list[OpRecord] = []

    @property
    def records(self) -> list[OpRecord]:
        """All of them."""
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
        """Return number, read and commit of the records from ``seq`` on that phase 2 has something to do for.

        Three rows; times in ps, -1 where they are not known yet.
        """
        found = [(r.seq, r.t_read_ps, r.t_commit_ps) for r in self.records[seq:] if r.has_data]
        return np.array(found, np.int64).reshape(-1, 3).T

    def commits(self, numbers: Sequence[int]) -> Array:
        """Return when the records of ``numbers`` commit, in ps; -1 where that is not known yet."""
        return np.array([self.records[seq].t_commit_ps for seq in numbers], np.int64)

    def works(self, numbers: Iterable[int]) -> Iterator[Work]:
        """Give what phase 2 does for the records of ``numbers``, one when it is asked for."""
        return (self.records[seq].work for seq in numbers)

    def set_data(self, seq: int, data: Array | None) -> None:
        """Give a read of memory what it has read, or let go of what the host writes."""
        self.records[seq].data = data

    def tiles(self, seq: int) -> list[tuple[int, int]]:
        """Return composite and number of each record from ``seq`` on that is a ``tile``."""
        return [
            (record.parent, record.seq)
            for record in self.records[seq:]
            if record.tile is not None and record.kind in TILE_KINDS
            if record.parent >= 0 and self.records[record.parent].params.tile_sizes is not None
        ]

    def tile(self, seq: int) -> Tile:
        """Return a record that is one of a tile."""
        record = self.records[seq]
        assert record.tile is not None
        return Tile(record.kind, record.name, record.tile, record.t_read_ps, record.t_commit_ps)

    def place_of(self, record: OpRecord) -> str:
        """Name the kernel's line of a record, as errors do."""
        return f"line {record.line}"

    def add(self, record: OpRecord) -> OpRecord:
        """Take ``record``, whose command reads its operands now, and give it its number."""
        record.seq = len(self._records)
        self._records.append(record)
        return record

    def begin(
        self,
        *,
        component: str,
        kind: Kind,
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
        """Open a new record; call it when the command reads its operands (at ``t_read_ps``).

        ``data`` is kept, not copied: the caller must not change it afterwards.
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
        """Commit a result that is in memory at ``t_commit_ps``; the command ends later, with its acknowledgement."""
        if t_commit_ps < record.t_read_ps:
            raise RunError(f"record {record.seq} commits at {t_commit_ps} ps, before it reads at {record.t_read_ps} ps")
        record.t_commit_ps = t_commit_ps

    def finish(self, record: OpRecord, t_end_ps: int, t_commit_ps: int | None = None) -> None:
        """Close ``record``: it ends at ``t_end_ps`` and commits at ``t_commit_ps``, by default then if not before.

        RunError: finished before, or a commit before the read.
        """
        if record.t_end_ps >= 0:
            raise RunError(f"record {record.seq} ({record.kind} on {record.component}) is finished twice")
        record.t_end_ps = t_end_ps
        if t_commit_ps is not None:
            self.commit(record, t_commit_ps)
        elif record.t_commit_ps < 0:
            self.commit(record, t_end_ps)
