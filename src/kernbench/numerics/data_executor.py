"""Phase 2: the op-log replayed with numpy, in the order of the hardware."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import chain, pairwise
from operator import attrgetter, itemgetter
from typing import Any, TypeAlias

import numpy as np

from kernbench.common.dtypes import DType
from kernbench.common.dtypes import dtype as dtype_named
from kernbench.common.errors import RunError, UnknownNameError
from kernbench.common.operators import ACCUMULATORS
from kernbench.common.values import state
from kernbench.core.op_log import NO_PARAMS, OpLog, OpRecord
from kernbench.messages.operands import Operand
from kernbench.numerics.memory_store import MemoryStore
from kernbench.numerics.replay_events import (
    NEVER,
    PS_SHIFT,
    READ,
    commit_event,
    is_instant,
    is_tiled,
    read_event,
)
from kernbench.numerics.replay_operands import OperandMemory
from kernbench.numerics.replay_ops import RULES, result
from kernbench.numerics.replay_streams import Group, Stream, Streams
from kernbench.numerics.schedule_plays import Plays
from kernbench.numerics.schedule_records import ScheduleRecords

Array: TypeAlias = np.ndarray[Any, Any]
_SEQ, _READ_PS, _COMMIT_PS = (attrgetter(name) for name in ("seq", "t_read_ps", "t_commit_ps"))


@state
class ReplayStats:
    """What has been replayed: operations that committed, and the bytes of their results.

    ``tiled``: how many of them were composites that had to be replayed tile by tile.
    """

    ops: int = 0
    nbytes: int = 0
    tiled: int = 0


class DataExecutor:
    """Replays ``op_log`` into ``memory_store``, each record once: operands as at its read, the result at its commit.

    ``dtype_acc``: the type of sums (f32, f16, bf16). ``plays``: schedules to play as a whole, if they can be, when they
    are replayed first: each is taken from there. ``current``: the record being replayed, for who watches the store.
    """

    __slots__ = (
        "_acc",
        "_commits",
        "_horizon",
        "_log",
        "_memory",
        "_next",
        "_reads",
        "_sampled",
        "_schedules",
        "_streams",
        "_uncommitted",
        "current",
        "stats",
    )

    def __init__(
        self,
        op_log: OpLog,
        memory_store: MemoryStore,
        dtype_acc: DType | str = "f32",
        plays: Plays | None = None,
    ) -> None:
        self._log = op_log
        self._memory = OperandMemory(memory_store)
        self._acc = dtype_named(dtype_acc)
        if self._acc not in ACCUMULATORS:
            raise UnknownNameError("accumulator dtype", self._acc.name, tuple(t.name for t in ACCUMULATORS))
        self._streams = Streams(op_log, self._acc)
        self._schedules = ScheduleRecords(plays or Plays())
        self._next = 0
        self._horizon = 0
        # What has not happened yet, in the order in which it will.
        self._reads: list[OpRecord] = []
        self._commits: list[OpRecord] = []
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
            last_ps = [record.t_read_ps for record in self._reads[-1:]]
            last_ps += [record.t_commit_ps for record in self._commits[-1:]]
            until_ps = max(last_ps, default=self._horizon)
        reads, commits = self._due(until_ps)
        try:
            with np.errstate(all="ignore"):
                self._run(reads, commits)
                self._advance(self._streams.groups, limit)
        except Exception as error:
            what = "" if self.current is None else f"{self._name(self.current)}: "
            raise RunError(f"{what}{error}") from error
        self.current = None

    def _ingest(self) -> None:
        """Take in what the log has learned since the last replay."""
        under_way = chain(self._reads, self._commits, self._uncommitted)
        fresh, ends = self._schedules.since(self._log, self._next, under_way)
        self._next = len(self._log)
        waiting, self._uncommitted = self._uncommitted + ends, []
        # Almost all have an output, and a look at a field is quicker than the property.
        reads = [record for record in fresh if record.output is not None or record.has_data]
        commits: list[OpRecord] = []
        for record in chain(waiting, reads):
            commit_ps = record.t_commit_ps
            if commit_ps > record.t_read_ps:
                commits.append(record)
            elif commit_ps < 0:
                self._uncommitted.append(record)
            elif record.seq in self._sampled:
                commits.append(record)
            # Else it commits with its read, which is still to come.
        if not reads and not commits:
            return
        _sort(reads, commits)
        self._check(reads, commits)
        if self._reads or self._commits:
            reads, commits = self._reads + reads, sorted(self._commits + commits, key=_SEQ)
            _sort(reads, commits)
        self._reads, self._commits = reads, commits

    def _check(self, reads: Sequence[OpRecord], commits: Sequence[OpRecord]) -> None:
        """RunError when what is new should have been replayed before."""
        first = [(record.t_commit_ps, record) for record in commits[:1]]
        first += [(record.t_read_ps, record) for record in reads[:1]]
        for time_ps, record in sorted(first, key=itemgetter(0)):
            if time_ps < self._horizon:
                raise RunError(
                    f"{self._name(record)} was logged for {time_ps} ps after a replay up to {self._horizon} ps"
                )

    def _name(self, record: OpRecord) -> str:
        what = f"{record.kind} {record.name}".rstrip()
        where = f" of kernel {record.kernel!r}, {self._log.place_of(record)}" if record.kernel else ""
        return f"record {record.seq} ({what}) on {record.component}{where}"

    def _due(self, until_ps: int) -> tuple[list[OpRecord], list[OpRecord]]:
        """Take the reads and the commits that are to happen.

        Reads at the very end stay behind, unless something that has to happen now comes after them: a commit at the
        same instant may be logged yet, and would come first.
        """
        reads, commits = self._reads, self._commits
        self._horizon = max(self._horizon, until_ps)
        n_reads = bisect_right(reads, until_ps, key=_READ_PS)
        while n_reads and reads[n_reads - 1].t_read_ps == until_ps and not is_instant(reads[n_reads - 1]):
            n_reads -= 1
        n_commits = bisect_right(commits, until_ps, key=_COMMIT_PS)
        self._reads, self._commits = reads[n_reads:], commits[n_commits:]
        return reads[:n_reads], commits[:n_commits]

    def _run(self, reads: Sequence[OpRecord], commits: Sequence[OpRecord]) -> None:
        """Both in the order of time; at one instant, commits come first."""
        memory, acc, sampled, streams = self._memory, self._acc, self._sampled, self._streams
        deposit, rules, plain, stats, moves = memory.deposit, RULES, NO_PARAMS, self.stats, self._schedules.moves
        coming = iter(commits)
        due = next(coming, None)
        for record, later in pairwise((*reads, None, None)):
            while due is not None and (record is None or due.t_commit_ps <= record.t_read_ps):
                self.current = due
                array = sampled.pop(due.seq, None)
                if array is None:
                    self._end_of(due)
                else:
                    output = due.output
                    if streams.claimed:
                        self._advance(streams.using(output), commit_event(due))
                    if output is None:
                        self._commit(due, array)
                    else:  # as ``_commit``, which would be called for half of all events
                        deposit(output, array)
                        stats.ops += 1
                        stats.nbytes += array.nbytes
                due = next(coming, None)
            if record is None:
                break
            self.current = record
            # If its commit is what happens next, the operands need not be kept.
            soon = due is record and (later is None or record.t_commit_ps <= later.t_read_ps)
            if record.params is not plain and is_tiled(record):
                streams.open(record)
            elif streams.claimed or record.seq in moves:
                self._read_beside(record, soon=soon)
            elif record.t_commit_ps == record.t_read_ps:
                self._commit(record, rules[record.kind](record, memory, acc, False))
            else:
                sampled[record.seq] = rules[record.kind](record, memory, acc, not soon)

    def _end_of(self, record: OpRecord) -> None:
        """The commit of a composite or a schedule, or of a record that committed with its read: of that nothing is
        left."""
        stream, end = self._streams.under_way(record.seq), self._schedules.ends.pop(record.seq, None)
        if stream is not None:
            self._close(stream, commit_event(record))
        elif end is not None:
            for operand, array in end.arrays:
                self._memory.deposit(operand, array)
            ops, nbytes = end.stats
            self.stats.ops += ops
            self.stats.nbytes += nbytes

    def _move(self, record: OpRecord) -> None:
        """A load or a store of a schedule: where its numbers come from, and where they go."""
        (place, value), event = self._schedules.moves.pop(record.seq), read_event(record)
        if record.kind == "dma_read":
            self._advance(self._streams.writing(record.inputs), event)
            array = result(record, self._memory, self._acc, private=True)
            place.team.give(place, value, array)
            self.stats.ops += 1
            self.stats.nbytes += array.nbytes
            return
        array = place.team.take(place, value)
        if is_instant(record):
            self._advance(self._streams.using(record.output), event)
            self._commit(record, array)
        else:
            self._sampled[record.seq] = array

    def _read_beside(self, record: OpRecord, *, soon: bool) -> None:
        """A read of a schedule, or while composites are under way: those that it shares bytes with have to be as far as
        it is.

        ``soon``: its commit is what happens next.
        """
        if record.seq in self._schedules.moves:
            self._move(record)
            return
        streams = self._streams
        event = read_event(record)
        behind = streams.writing(record.inputs if not record.params.epilogue else _operands(record))
        if behind:
            self._advance(behind, event)
        at_once = is_instant(record)
        if not at_once and not soon:
            self._sampled[record.seq] = result(record, self._memory, self._acc, private=True)
            return
        touched = streams.using(record.output)
        array = result(record, self._memory, self._acc, private=bool(touched))
        self._advance(touched, event if at_once else commit_event(record))
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


def _sort(reads: list[OpRecord], commits: list[OpRecord]) -> None:
    """Both by time; within an instant they stay as they are, in the order of their numbers."""
    reads.sort(key=_READ_PS)
    commits.sort(key=_COMMIT_PS)


def _operands(record: OpRecord) -> tuple[Operand | float, ...]:
    """What ``record`` reads, its epilogue included."""
    return record.inputs + tuple(e.operand for e in record.params.epilogue if isinstance(e.operand, Operand))
