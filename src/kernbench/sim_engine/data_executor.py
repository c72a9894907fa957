"""Phase 2: the op-log replayed with numpy, in the order of the hardware."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from kernbench.common.dtypes import DType
from kernbench.common.dtypes import dtype as dtype_named
from kernbench.common.errors import RunError, UnknownNameError
from kernbench.common.operators import ACCUMULATORS
from kernbench.sim_engine.memory_store import MemoryStore
from kernbench.sim_engine.op_log import OpLog, OpRecord
from kernbench.sim_engine.replay_operands import deposit
from kernbench.sim_engine.replay_ops import result

Array: TypeAlias = np.ndarray[Any, Any]
# An event is one integer that sorts as the replay order: time in ps, 1 for a read or 0 for a commit, sequence number.
# A record that commits at the instant it reads has a read only, and commits with it.
_SEQ_BITS = 40
_SEQ_MASK = (1 << _SEQ_BITS) - 1
_READ = 1 << _SEQ_BITS
_PS_SHIFT = _SEQ_BITS + 1


@dataclass(slots=True)
class ReplayStats:
    """What has been replayed: operations that committed, and the bytes of their results."""

    ops: int = 0
    nbytes: int = 0


class DataExecutor:
    """Replays ``op_log`` into ``memory_store``, each record once: operands as at its read, the result at its commit.

    ``dtype_acc``: the type of sums (f32, f16, bf16). ``current``: the record being replayed, for who watches the store.
    """

    __slots__ = (
        "_acc",
        "_horizon",
        "_log",
        "_next",
        "_pending",
        "_sampled",
        "_store",
        "_uncommitted",
        "current",
        "stats",
    )

    def __init__(self, op_log: OpLog, memory_store: MemoryStore, dtype_acc: DType | str = "f32") -> None:
        self._log = op_log
        self._store = memory_store
        self._acc = dtype_named(dtype_acc)
        if self._acc not in ACCUMULATORS:
            raise UnknownNameError("accumulator dtype", self._acc.name, tuple(t.name for t in ACCUMULATORS))
        self._next = 0
        self._horizon = 0
        self._pending: list[int] = []
        self._uncommitted: list[OpRecord] = []
        self._sampled: dict[int, Array] = {}
        self.current: OpRecord | None = None
        self.stats = ReplayStats()

    def replay(self, until_ps: int | None = None) -> None:
        """Bring memory to ``until_ps``, by default to the last time in the log; what is in flight then waits.

        RunError names the record that failed, or one that was logged for a time already replayed.
        """
        self._ingest()
        events = self._due(until_ps)
        try:
            with np.errstate(all="ignore"):
                self._run(events)
        except Exception as error:
            raise RunError(_failure(self.current, error)) from error
        self.current = None

    def _ingest(self) -> None:
        """Make events of what the log has learned since the last replay."""
        fresh = self._log.since(self._next)
        self._next += len(fresh)
        waiting, self._uncommitted = self._uncommitted, []
        for record in fresh:
            if record.has_data:
                self._pending.append(self._event(record, record.t_read_ps) | _READ)
                waiting.append(record)
        for record in waiting:
            if record.t_commit_ps < 0:
                self._uncommitted.append(record)
            elif record.t_commit_ps > record.t_read_ps or record.seq in self._sampled:
                self._pending.append(self._event(record, record.t_commit_ps))
            # Else it commits with its read, which is still to come.
        self._pending.sort()

    def _event(self, record: OpRecord, time_ps: int) -> int:
        if time_ps < self._horizon:
            raise RunError(f"{_name(record)} was logged for {time_ps} ps after a replay up to {self._horizon} ps")
        return time_ps << _PS_SHIFT | record.seq

    def _due(self, until_ps: int | None) -> list[int]:
        """Take the events to run.

        Reads at the very end stay behind, unless something that has to happen now comes after them: a commit at the
        same instant may be logged yet, and would come first.
        """
        pending = self._pending
        if until_ps is None:
            until_ps = pending[-1] >> _PS_SHIFT if pending else 0
        self._horizon = max(self._horizon, until_ps)
        n = bisect_left(pending, (until_ps + 1) << _PS_SHIFT)
        last_reads = until_ps << _PS_SHIFT | _READ
        while n and pending[n - 1] >= last_reads and not _instant(self._log[pending[n - 1] & _SEQ_MASK]):
            n -= 1
        self._pending = pending[n:]
        return pending[:n]

    def _run(self, events: list[int]) -> None:
        log, store, acc, sampled = self._log, self._store, self._acc, self._sampled
        for event, following in pairwise((*events, -1)):
            seq = event & _SEQ_MASK
            self.current = record = log[seq]
            if not event & _READ:
                if seq in sampled:
                    self._commit(record, sampled.pop(seq))
            elif seq == following & _SEQ_MASK or _instant(record):
                # Nothing happens between its read and its commit: the operands need not be kept.
                self._commit(record, result(record, store, acc, private=False))
            else:
                sampled[seq] = result(record, store, acc, private=True)

    def _commit(self, record: OpRecord, array: Array) -> None:
        if record.output is None:
            record.data = array
        else:
            deposit(self._store, record.output, array)
        self.stats.ops += 1
        self.stats.nbytes += array.nbytes


def _instant(record: OpRecord) -> bool:
    return record.t_commit_ps == record.t_read_ps


def _name(record: OpRecord) -> str:
    what = f"{record.kind} {record.name}".rstrip()
    where = f" of kernel {record.kernel!r}, line {record.line}" if record.kernel else ""
    return f"record {record.seq} ({what}) on {record.component}{where}"


def _failure(record: OpRecord | None, error: Exception) -> str:
    return f"{_name(record)}: {error}" if record is not None else str(error)
