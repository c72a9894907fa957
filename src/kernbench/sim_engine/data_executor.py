"""Phase 2: the op-log replayed with numpy, in the order of the hardware."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, TypeAlias

import numpy as np

from kernbench.common.dtypes import DType
from kernbench.common.dtypes import dtype as dtype_named
from kernbench.common.errors import RunError, UnknownNameError
from kernbench.common.operators import ACCUMULATORS
from kernbench.messages.operands import Operand
from kernbench.sim_engine.memory_store import MemoryStore
from kernbench.sim_engine.op_log import NO_PARAMS, OpLog, OpRecord
from kernbench.sim_engine.replay_events import NEVER, PS_SHIFT, READ, SEQ_MASK, is_instant, is_tiled
from kernbench.sim_engine.replay_operands import OperandMemory
from kernbench.sim_engine.replay_ops import RULES, result
from kernbench.sim_engine.replay_streams import Group, Stream, Streams

Array: TypeAlias = np.ndarray[Any, Any]


@dataclass(slots=True)
class ReplayStats:
    """What has been replayed: operations that committed, and the bytes of their results.

    ``tiled``: how many of them were composites that had to be replayed tile by tile.
    """

    ops: int = 0
    nbytes: int = 0
    tiled: int = 0


class DataExecutor:
    """Replays ``op_log`` into ``memory_store``, each record once: operands as at its read, the result at its commit.

    ``dtype_acc``: the type of sums (f32, f16, bf16). ``current``: the record being replayed, for who watches the store.
    """

    __slots__ = (
        "_acc",
        "_horizon",
        "_log",
        "_memory",
        "_next",
        "_pending",
        "_sampled",
        "_streams",
        "_uncommitted",
        "current",
        "stats",
    )

    def __init__(self, op_log: OpLog, memory_store: MemoryStore, dtype_acc: DType | str = "f32") -> None:
        self._log = op_log
        self._memory = OperandMemory(memory_store)
        self._acc = dtype_named(dtype_acc)
        if self._acc not in ACCUMULATORS:
            raise UnknownNameError("accumulator dtype", self._acc.name, tuple(t.name for t in ACCUMULATORS))
        self._streams = Streams(op_log, self._acc)
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
        limit = NEVER if until_ps is None else until_ps << PS_SHIFT | READ
        if until_ps is None:
            until_ps = self._pending[-1] >> PS_SHIFT if self._pending else self._horizon
        events = self._due(until_ps)
        try:
            with np.errstate(all="ignore"):
                self._run(events)
                self._advance(self._streams.groups, limit)
        except Exception as error:
            raise RunError(_failure(self.current, error)) from error
        self.current = None

    def _ingest(self) -> None:
        """Make events of what the log has learned since the last replay."""
        fresh = self._log.since(self._next)
        self._next += len(fresh)
        waiting, self._uncommitted = self._uncommitted, []
        # Almost all have an output, and a look at a field is quicker than the property.
        replayed = [record for record in fresh if record.output is not None or record.has_data]
        events = [record.t_read_ps << PS_SHIFT | READ | record.seq for record in replayed]
        for record in chain(waiting, replayed):
            commit_ps = record.t_commit_ps
            if commit_ps < 0:
                self._uncommitted.append(record)
            elif commit_ps > record.t_read_ps or record.seq in self._sampled:
                events.append(commit_ps << PS_SHIFT | record.seq)
            # Else it commits with its read, which is still to come.
        events.sort()
        if events and events[0] >> PS_SHIFT < self._horizon:
            name, time_ps = _name(self._log[events[0] & SEQ_MASK]), events[0] >> PS_SHIFT
            raise RunError(f"{name} was logged for {time_ps} ps after a replay up to {self._horizon} ps")
        self._pending += events
        self._pending.sort()

    def _due(self, until_ps: int) -> list[int]:
        """Take the events to run.

        Reads at the very end stay behind, unless something that has to happen now comes after them: a commit at the
        same instant may be logged yet, and would come first.
        """
        pending = self._pending
        self._horizon = max(self._horizon, until_ps)
        n = bisect_left(pending, (until_ps + 1) << PS_SHIFT)
        last_reads = until_ps << PS_SHIFT | READ
        while n and pending[n - 1] >= last_reads and not is_instant(self._log[pending[n - 1] & SEQ_MASK]):
            n -= 1
        self._pending = pending[n:]
        return pending[:n]

    def _run(self, events: list[int]) -> None:
        records, memory, acc = self._log.records, self._memory, self._acc
        sampled, streams, deposit, plain = self._sampled, self._streams, self._memory.deposit, NO_PARAMS
        stats = self.stats
        for event, following in pairwise((*events, -1)):
            seq = event & SEQ_MASK
            self.current = record = records[seq]
            if not event & READ:
                array = sampled.pop(seq, None)
                if array is None:
                    self._end_of(record, event)
                    continue
                if streams.claimed:
                    self._advance(streams.using(record.output), event)
            elif record.params is not plain and is_tiled(record):
                streams.open(record)
                continue
            elif streams.claimed:
                self._read_beside(record, event, following)
                continue
            elif seq == following & SEQ_MASK or record.t_commit_ps == record.t_read_ps:
                # Nothing happens between its read and its commit: the operands need not be kept.
                array = RULES[record.kind](record, memory, acc, False)
            else:
                sampled[seq] = RULES[record.kind](record, memory, acc, True)
                continue
            output = record.output  # as ``_commit``, which would be called for half of all events
            if output is None:
                record.data = array
            else:
                deposit(output, array)
            stats.ops += 1
            stats.nbytes += array.nbytes

    def _end_of(self, record: OpRecord, event: int) -> None:
        """The commit of a composite, or of a record that committed with its read: of that nothing is left."""
        stream = self._streams.under_way(record.seq)
        if stream is not None:
            self._close(stream, event)

    def _read_beside(self, record: OpRecord, event: int, following: int) -> None:
        """A read while composites are under way: those that it shares bytes with have to be as far as it is."""
        streams = self._streams
        behind = streams.writing(record.inputs if not record.params.epilogue else _operands(record))
        if behind:
            self._advance(behind, event)
        at_once = is_instant(record)
        if not at_once and record.seq != following & SEQ_MASK:
            self._sampled[record.seq] = result(record, self._memory, self._acc, private=True)
            return
        touched = streams.using(record.output)
        array = result(record, self._memory, self._acc, private=bool(touched))
        self._advance(touched, event if at_once else following)
        self._commit(record, array)

    def _close(self, stream: Stream, event: int) -> None:
        """The end of a composite: one operation if nobody came near it, else the rest of its tiles."""
        record = stream.record
        if stream.group.entangled or stream.tiles.begun:
            self._advance([stream.group], event)
        if stream.tiles.begun:
            assert record.output is not None
            self.stats.ops += 1
            self.stats.nbytes += record.output.nbytes
            self.stats.tiled += 1
        else:
            self._commit(record, result(record, self._memory, self._acc, private=False))
        self._streams.close(stream)

    def _advance(self, groups: Sequence[Group], limit: int) -> None:
        """Let composites catch up with the replay: their tiles' events before ``limit``."""
        current = self.current
        for stream, tile in self._streams.advance(groups, limit):
            self.current = stream.record
            stream.tiles.step(stream.record, tile, self._memory)
        self.current = current

    def _commit(self, record: OpRecord, array: Array) -> None:
        output, stats = record.output, self.stats
        if output is None:
            record.data = array
        else:
            self._memory.deposit(output, array)
        stats.ops += 1
        stats.nbytes += array.nbytes


def _operands(record: OpRecord) -> tuple[Operand | float, ...]:
    """What ``record`` reads, its epilogue included."""
    return record.inputs + tuple(e.operand for e in record.params.epilogue if isinstance(e.operand, Operand))


def _name(record: OpRecord) -> str:
    what = f"{record.kind} {record.name}".rstrip()
    where = f" of kernel {record.kernel!r}, line {record.line}" if record.kernel else ""
    return f"record {record.seq} ({what}) on {record.component}{where}"


def _failure(record: OpRecord | None, error: Exception) -> str:
    return f"{_name(record)}: {error}" if record is not None else str(error)
