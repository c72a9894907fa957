"""Phase 2: the op-log replayed with numpy, in the order of the hardware."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kernbench.common.dtypes import Array, DType
from kernbench.common.dtypes import dtype as dtype_named
from kernbench.common.errors import RunError, UnknownNameError
from kernbench.common.operators import ACCUMULATORS
from kernbench.core.op_log import OpLog, OpRecord, Work
from kernbench.messages.commands import NO_PARAMS, Operand
from kernbench.numerics.composites import NEVER, EntangledGroup, OpenComposite, OpenComposites, commit_event, read_event
from kernbench.numerics.compute import RULES
from kernbench.numerics.memory import MemoryStore
from kernbench.numerics.operands import OperandMemory

_NOBODY = -1
# An event is the number of its record times 4 and what happens: a commit; a read; a read that commits at its instant;
# a read whose commit is the next event, so that nothing can come between.
_COMMIT, _READ, _INSTANT, _AT_ONCE = range(4)
_SEQ, _READ_PS, _COMMIT_PS, _SAMPLED = range(4)  # the rows of the table of records under way
_BLOCK = 1 << 16  # events that are Python integers at a time


@dataclass(slots=True)
class ReplayStats:
    """Counts of the replay: operations that committed, and the bytes of their results.

    ``tiled``: how many of them were composites that had to be replayed tile by tile.
    """

    ops: int = 0
    nbytes: int = 0
    tiled: int = 0


class Replay:
    """Replays ``op_log`` into ``memory_store``, each record once: operands as at its read, the result at its commit.

    ``dtype_acc``: the type of sums (f32, f16, bf16); UnknownNameError for another.
    """

    __slots__ = (
        "_acc",
        "_horizon",
        "_log",
        "_memory",
        "_next",
        "_samples",
        "_seq",
        "_streams",
        "_under_way",
        "stats",
    )

    def __init__(self, op_log: OpLog, memory_store: MemoryStore, dtype_acc: DType | str = "f32") -> None:
        self._log = op_log
        self._memory = OperandMemory(memory_store)
        self._acc = dtype_named(dtype_acc)
        if self._acc not in ACCUMULATORS:
            raise UnknownNameError("accumulator dtype", self._acc.name, tuple(t.name for t in ACCUMULATORS))
        self._streams = OpenComposites(op_log, self._acc)
        self._next = 0
        self._horizon = 0
        # Records that have not committed, by number: number, read, commit (-1: not known), whether it has read.
        self._under_way = np.empty((4, 0), np.int64)
        self._samples: dict[int, tuple[Operand | None, Array]] = {}  # what will be written where, by record
        self._seq = _NOBODY  # the record being replayed
        self.stats = ReplayStats()

    @property
    def current(self) -> OpRecord | None:
        """The record being replayed, for who watches the store."""
        return None if self._seq == _NOBODY else self._log[self._seq]

    def replay(self, until_ps: int | None = None) -> None:
        """Bring memory to ``until_ps``, by default to the last time in the log; what is in flight then waits.

        RunError names the record that failed, or one that was logged for a time already replayed.
        """
        self._take_in()
        limit = NEVER if until_ps is None else read_event(until_ps)
        events, times = self._due(self._last_ps() if until_ps is None else until_ps)
        try:
            with np.errstate(all="ignore"):
                for at in range(0, len(events), _BLOCK):
                    self._run(events[at : at + _BLOCK], times[at : at + _BLOCK])
                self._advance(self._streams.groups, limit)
        except Exception as error:
            what = "" if self._seq == _NOBODY else f"{self._name(self._seq)}: "
            raise RunError(f"{what}{error}") from error
        self._seq = _NOBODY

    def _take_in(self) -> None:
        """Take in what the log has learned since the last replay."""
        log, table = self._log, self._under_way
        waiting = np.flatnonzero(table[_COMMIT_PS] < 0)
        if waiting.size:
            table[_COMMIT_PS, waiting] = log.commits(table[_SEQ, waiting].tolist())
        fresh = log.replayed(self._next)
        self._next, n = len(log), fresh.shape[1]
        if n:
            waiting = np.concatenate((waiting, np.arange(n) + table.shape[1]))
            fresh = np.concatenate((fresh, np.zeros((1, n), np.int64)))
            table = self._under_way = np.concatenate((table, fresh), axis=1)
        if waiting.size:
            self._check(table[:, waiting], n)

    def _check(self, learned: Array, n_fresh: int) -> None:
        """RunError when what is new should have been replayed before: the last ``n_fresh`` reads, and all commits."""
        commits = learned[:, _commits_apart(learned)]
        found = [(commits[_COMMIT_PS], commits[_SEQ])]
        fresh = learned[:, learned.shape[1] - n_fresh :]
        found.append((fresh[_READ_PS], fresh[_SEQ]))
        first = [(int(times.min()), int(seqs[times.argmin()])) for times, seqs in found if times.size]
        for time_ps, seq in sorted(first, key=lambda each: each[0]):
            if time_ps < self._horizon:
                raise RunError(f"{self._name(seq)} was logged for {time_ps} ps after a replay up to {self._horizon} ps")

    def _name(self, seq: int) -> str:
        record = self._log[seq]
        what = f"{record.kind} {record.name}".rstrip()
        where = f" of kernel {record.kernel!r}, {self._log.place_of(record)}" if record.kernel else ""
        return f"record {record.seq} ({what}) on {record.component}{where}"

    def _last_ps(self) -> int:
        """Return the last time of what is under way."""
        table = self._under_way
        reads, commits = table[_READ_PS, table[_SAMPLED] == 0], table[_COMMIT_PS, _commits_apart(table)]
        return max((int(times.max()) for times in (reads, commits) if times.size), default=self._horizon)

    def _due(self, until_ps: int) -> tuple[Array, Array]:
        """Take the events that are to happen, in order, and their times; at one instant commits come first.

        Reads at the very end stay behind, unless something that has to happen now comes after them: a commit at the
        same instant may be logged yet, and would come first.
        """
        self._horizon = max(self._horizon, until_ps)
        table = self._under_way
        seq, read_ps, commit_ps, sampled = table
        instant = (commit_ps == read_ps) & (sampled == 0)
        reads = (read_ps <= until_ps) & (sampled == 0)
        at_end = np.flatnonzero(reads & (read_ps == until_ps))
        last = np.flatnonzero(instant[at_end])
        reads[at_end[last[-1] + 1 if last.size else 0 :]] = False
        commits = _commits_apart(table) & (commit_ps <= until_ps)
        sampled |= reads
        self._under_way = table[:, ~(commits | (instant & reads))]
        kinds = np.where(instant[reads], _INSTANT, _READ)
        times = np.concatenate((commit_ps[commits], read_ps[reads]))
        events = np.concatenate((seq[commits] << 2, seq[reads] << 2 | kinds))
        order = np.argsort(times << 1 | (events & 3 != _COMMIT), kind="stable")
        events, times = events[order], times[order]
        if events.size > 1:
            at_once = np.flatnonzero((events[:-1] & 3 == _READ) & (events[:-1] ^ events[1:] == _READ))
            events[at_once] |= _AT_ONCE
            events, times = np.delete(events, at_once + 1), np.delete(times, at_once + 1)
        return events, times

    def _run(self, events: Array, times: Array) -> None:
        """Carry out events at their times."""
        log, memory, acc, samples, streams = self._log, self._memory, self._acc, self._samples, self._streams
        rules, plain, deposit, stats = RULES, NO_PARAMS, memory.deposit, self.stats
        works = log.works((events[events & 3 != _COMMIT] >> 2).tolist())
        for event, time_ps in zip(events.tolist(), times.tolist(), strict=True):
            self._seq = seq = event >> 2
            kind = event & 3
            if kind == _COMMIT:
                found = samples.pop(seq, None)
                if found is None:
                    self._close(streams.under_way(seq), commit_event(time_ps, seq))
                    continue
                output, array = found
                if streams.claimed:
                    self._advance(streams.using(output), commit_event(time_ps, seq))
            else:
                work = next(works)
                if work.params is not plain and work.params.tile_sizes is not None and kind != _INSTANT:
                    self._begin(seq, work, kind)
                    continue
                if streams.claimed:
                    array = self._read_beside(seq, work, kind, time_ps)
                else:  # unless it commits next, its operands may change before
                    array = rules[work.kind](work, memory, acc, kind == _READ)
                output = work.output
                if work.data is not None:
                    log.set_data(seq, None)  # it is in memory from now on, once
                if kind == _READ:
                    samples[seq] = output, array
                    continue
            if output is None:
                log.set_data(seq, array)
            else:
                deposit(output, array)
            stats.ops += 1
            stats.nbytes += array.nbytes

    def _begin(self, seq: int, work: Work, kind: int) -> None:
        """Begin a composite."""
        stream = self._streams.open(seq, work)
        if kind == _AT_ONCE:
            self._close(stream, self._commit_event(seq))

    def _read_beside(self, seq: int, work: Work, kind: int, time_ps: int) -> Array:
        """Compute while composites are under way: those that it shares bytes with have to be as far as it is."""
        streams, event = self._streams, read_event(time_ps, seq)
        behind = streams.writing(work.inputs if not work.params.epilogue else _operands(work))
        if behind:
            self._advance(behind, event)
        touched = [] if kind == _READ else streams.using(work.output)
        array = RULES[work.kind](work, self._memory, self._acc, kind == _READ or bool(touched))
        if touched:
            self._advance(touched, event if kind == _INSTANT else self._commit_event(seq))
        return array

    def _commit_event(self, seq: int) -> int:
        return commit_event(int(self._log.commits((seq,))[0]), seq)

    def _close(self, stream: OpenComposite | None, event: int) -> None:
        """End a composite: one operation if nobody came near it, else the rest of its tiles."""
        if stream is None:  # its read has failed
            return
        if stream.group.entangled or stream.tiles.begun:
            self._advance([stream.group], event)
        work, stats = stream.work, self.stats
        assert work.output is not None
        if stream.tiles.begun:
            stats.nbytes += work.output.nbytes
            stats.tiled += 1
        else:
            array = RULES[work.kind](work, self._memory, self._acc, False)
            self._memory.deposit(work.output, array)
            stats.nbytes += array.nbytes
        stats.ops += 1
        self._streams.close(stream)

    def _advance(self, groups: Sequence[EntangledGroup], limit: int) -> None:
        """Let composites catch up with the replay: their tiles' events before ``limit``."""
        current = self._seq
        for stream, tile in self._streams.advance(groups, limit):
            self._seq = stream.seq
            stream.tiles.step(stream.work, tile, self._memory)
        self._seq = current


def _commits_apart(table: Array) -> Array:
    """Return which records of a table have a commit that is known and is an event of its own."""
    apart: Array = (table[_COMMIT_PS] > table[_READ_PS]) | ((table[_SAMPLED] != 0) & (table[_COMMIT_PS] >= 0))
    return apart


def _operands(work: Work) -> tuple[Operand | float, ...]:
    """Return what a record reads, its epilogue included."""
    return work.inputs + tuple(e.operand for e in work.params.epilogue if isinstance(e.operand, Operand))
