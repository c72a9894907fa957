"""The op-log: every command that moves data or computes, as phase 1 timed it and as phase 2 replays it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import field
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from kernbench.common.errors import RunError
from kernbench.common.operators import Attributes
from kernbench.common.units import ps_to_ns
from kernbench.common.values import state, value
from kernbench.messages.operands import Operand
from kernbench.messages.requests import HostBytes

Kind: TypeAlias = Literal[
    "dma_read", "dma_write", "gemm", "math", "ipcq_copy", "fetch", "store", "atomic", "memory_write", "memory_read"
]
Sharing: TypeAlias = Literal["", "bytes", "range"]
"""What two accesses have in common: nothing; bytes; ranges that enclose them, where the rows are too many to compare"""
COPIES = frozenset(("dma_read", "dma_write", "ipcq_copy", "fetch", "store"))
"""Kinds that move one operand, unchanged, to the output."""


class Epilogue(NamedTuple):
    """A step on the accumulators of a composite GEMM: bias, add (operand), scale (number), relu, gelu, silu (None)."""

    name: str
    operand: Operand | float | None = None


@value(kw_only=True)
class OpParams(Attributes):
    """What a command takes beside operands: the operator's attributes, a GEMM's epilogue, a composite's tiles
    (m, k, n), and where the memory's elements go that an atomic finds."""

    epilogue: tuple[Epilogue, ...] = ()
    tile_sizes: tuple[int, int, int] | None = None
    old: Operand | None = None


NO_PARAMS = OpParams()


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
    params: OpParams = NO_PARAMS
    kernel: str = ""
    launch_id: int = -1
    line: int = 0
    tile: tuple[int, ...] | None = None
    parent: int = -1
    data: np.ndarray[Any, Any] | HostBytes | None = field(default=None, compare=False, repr=False)
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
        """Whether phase 2 has something to do for it."""
        return self.output is not None or (self.kind == "memory_read" and bool(self.inputs))


class OpLog:
    """``records`` in the order of their sequence numbers, which is the order in which commands read their operands."""

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

    def since(self, seq: int, played: Collection[int] = ()) -> list[OpRecord]:
        """The records from sequence number ``seq`` on; of the launches ``played`` only loads and stores of tensors."""
        return self.records[seq:]

    def serial_of(self, record: OpRecord) -> int:
        """The number of a load or store in the program of its PE."""
        return record.seq

    def place_of(self, record: OpRecord) -> str:
        """What errors call the line of the kernel that a record is of."""
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
        params: OpParams = NO_PARAMS,
        kernel: str = "",
        launch_id: int = -1,
        line: int = 0,
        tile: tuple[int, ...] | None = None,
        parent: int = -1,
        data: np.ndarray[Any, Any] | None = None,
    ) -> OpRecord:
        """A new open record, to be called when the command reads its operands (at ``t_read_ps``).

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
        """The result is in memory at ``t_commit_ps``, and the command ends later, when its acknowledgement is back."""
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
