"""Phase 2: the replay of the op-log with numpy, in the order of the hardware's reads and commits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernbench.common.dtypes import Array, DType
from kernbench.common.dtypes import dtype as dtype_named
from kernbench.common.errors import RunError, UnknownNameError
from kernbench.common.operators import ACCUMULATORS
from kernbench.common.values import state
from kernbench.core.op_log import OpLog, OpRecord, ReplayWork
from kernbench.messages.commands import NO_PARAMS, Operand
from kernbench.numerics.composites import NEVER, EntangledGroup, OpenComposite, OpenComposites, commit_event, read_event
from kernbench.numerics.compute import RULES
from kernbench.numerics.memory import MemoryStore
from kernbench.numerics.operands import OperandMemory

_NO_RECORD = -1
# An event is the number of its record times 4, plus its kind: a commit; a read; a read that commits at the same time;
# a read whose commit is the next event, so no other event is between them.
_COMMIT, _READ, _INSTANT, _AT_ONCE = range(4)
_SEQ, _READ_PS, _COMMIT_PS, _SAMPLED = range(4)  # the rows of the table of records in flight
_BLOCK = 1 << 16  # events that are converted to Python integers at a time


@state
class ReplayStats:
    """Counts of the replay: committed operations, and the bytes of their results.

    ``tiled`` counts the composites among them that were replayed tile by tile.
    """

    ops: int = 0
    nbytes: int = 0
    tiled: int = 0


class Replay:
    """The replay of ``op_log`` into ``memory_store``.

    Each record is replayed once: its operands are loaded at its read, its result is written at its commit.
    ``dtype_acc`` is the type of sums (f32, f16, bf16). Raises UnknownNameError for another type.
    """

    __slots__ = (
        "_acc",
        "_horizon",
        "_in_flight",
        "_log",
        "_memory",
        "_next",
        "_samples",
        "_seq",
        "_streams",
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
        # Records without a commit, by number: number, time of read, time of commit (-1: unknown), 1 after the read.
        self._in_flight = np.empty((4, 0), np.int64)
        self._samples: dict[
            int, tuple[Operand | None, Array]
        ] = {}  # output and array of uncommitted results, by record
        self._seq = _NO_RECORD  # the record being replayed
        self.stats = ReplayStats()

    @property
    def current(self) -> OpRecord | None:
        """The record that is replayed now, for observers of the store; None outside of a replay."""
        return None if self._seq == _NO_RECORD else self._log[self._seq]

    def replay(self, until_ps: int | None = None) -> None:
        """Replay up to ``until_ps``, by default the last time in the log; later commits stay in flight.

        Raises RunError, with the name of the record, if a record fails or was logged for a time already replayed.
        """
        self._read_log()
        limit = NEVER if until_ps is None else read_event(until_ps)
        events, times = self._due(self._last_ps() if until_ps is None else until_ps)
        try:
            with np.errstate(all="ignore"):
                for at in range(0, len(events), _BLOCK):
                    self._run(events[at : at + _BLOCK], times[at : at + _BLOCK])
                self._advance(self._streams.groups, limit)
        except Exception as error:
            prefix = "" if self._seq == _NO_RECORD else f"{self._name(self._seq)}: "
            raise RunError(f"{prefix}{error}") from error
        self._seq = _NO_RECORD

    def _read_log(self) -> None:
        """Add the records and commit times that were logged since the last replay."""
        log, table = self._log, self._in_flight
        waiting = np.flatnonzero(table[_COMMIT_PS] < 0)
        if waiting.size:
            table[_COMMIT_PS, waiting] = log.commits(table[_SEQ, waiting].tolist())
        fresh = log.replayed(self._next)
        self._next, n = len(log), fresh.shape[1]
        if n:
            waiting = np.concatenate((waiting, np.arange(n) + table.shape[1]))
            fresh = np.concatenate((fresh, np.zeros((1, n), np.int64)))
            table = self._in_flight = np.concatenate((table, fresh), axis=1)
        if waiting.size:
            self._check(table[:, waiting], n)

    def _check(self, learned: Array, n_fresh: int) -> None:
        """Raise RunError if a new event, of the last ``n_fresh`` reads or all commits, is before the replayed time."""
        commits = learned[:, _commits_apart(learned)]
        bounds = [(commits[_COMMIT_PS], commits[_SEQ])]
        fresh = learned[:, learned.shape[1] - n_fresh :]
        bounds.append((fresh[_READ_PS], fresh[_SEQ]))
        first = [(int(times.min()), int(seqs[times.argmin()])) for times, seqs in bounds if times.size]
        for time_ps, seq in sorted(first, key=lambda bound: bound[0]):
            if time_ps < self._horizon:
                raise RunError(f"{self._name(seq)} was logged for {time_ps} ps after a replay up to {self._horizon} ps")

    def _name(self, seq: int) -> str:
        record = self._log[seq]
        operation = f"{record.kind} {record.name}".rstrip()
        where = f" of kernel {record.kernel!r}, {self._log.place_of(record)}" if record.kernel else ""
        return f"record {record.seq} ({operation}) on {record.component}{where}"

    def _last_ps(self) -> int:
        """Return the last time of the events in flight."""
        table = self._in_flight
        reads, commits = table[_READ_PS, table[_SAMPLED] == 0], table[_COMMIT_PS, _commits_apart(table)]
        return max((int(times.max()) for times in (reads, commits) if times.size), default=self._horizon)

    def _due(self, until_ps: int) -> tuple[Array, Array]:
        """Remove the events up to ``until_ps``; return them in order, with times. At one time, commits precede reads.

        Reads at ``until_ps`` are not removed unless a required event follows them: a commit at that time, which would
        precede the reads, may still be logged.
        """
        self._horizon = max(self._horizon, until_ps)
        table = self._in_flight
        seq, read_ps, commit_ps, sampled = table
        instant = (commit_ps == read_ps) & (sampled == 0)
        reads = (read_ps <= until_ps) & (sampled == 0)
        at_end = np.flatnonzero(reads & (read_ps == until_ps))
        last = np.flatnonzero(instant[at_end])
        reads[at_end[last[-1] + 1 if last.size else 0 :]] = False
        commits = _commits_apart(table) & (commit_ps <= until_ps)
        sampled |= reads
        self._in_flight = table[:, ~(commits | (instant & reads))]
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
        """Execute events at their times."""
        log, memory, acc, samples, streams = self._log, self._memory, self._acc, self._samples, self._streams
        rules, plain, deposit, stats = RULES, NO_PARAMS, memory.deposit, self.stats
        works = log.works((events[events & 3 != _COMMIT] >> 2).tolist())
        for event, time_ps in zip(events.tolist(), times.tolist(), strict=True):
            self._seq = seq = event >> 2
            kind = event & 3
            if kind == _COMMIT:
                sample = samples.pop(seq, None)
                if sample is None:
                    self._close(streams.in_flight(seq), commit_event(time_ps, seq))
                    continue
                output, array = sample
                if streams.claimed:
                    self._advance(streams.using(output), commit_event(time_ps, seq))
            else:
                work = next(works)
                if work.params is not plain and work.params.tile_sizes is not None and kind != _INSTANT:
                    self._begin(seq, work, kind)
                    continue
                if streams.claimed:
                    array = self._read_beside(seq, work, kind, time_ps)
                else:  # its operands may change before the commit, unless that is the next event
                    array = rules[work.kind](work, memory, acc, kind == _READ)
                output = work.output
                if work.data is not None:
                    log.set_data(seq, None)  # from now on the data is only in memory
                if kind == _READ:
                    samples[seq] = output, array
                    continue
            if output is None:
                log.set_data(seq, array)
            else:
                deposit(output, array)
            stats.ops += 1
            stats.nbytes += array.nbytes

    def _begin(self, seq: int, work: ReplayWork, kind: int) -> None:
        """Begin a composite."""
        stream = self._streams.open(seq, work)
        if kind == _AT_ONCE:
            self._close(stream, self._commit_event(seq))

    def _read_beside(self, seq: int, work: ReplayWork, kind: int, time_ps: int) -> Array:
        """Compute a record while composites are in flight.

        Composites that write its inputs first advance to its read, and those that access its output to its commit.
        """
        streams, event = self._streams, read_event(time_ps, seq)
        groups = streams.writing(work.inputs if not work.params.epilogue else _operands(work))
        if groups:
            self._advance(groups, event)
        touched = [] if kind == _READ else streams.using(work.output)
        array = RULES[work.kind](work, self._memory, self._acc, kind == _READ or bool(touched))
        if touched:
            self._advance(touched, event if kind == _INSTANT else self._commit_event(seq))
        return array

    def _commit_event(self, seq: int) -> int:
        return commit_event(int(self._log.commits((seq,))[0]), seq)

    def _close(self, stream: OpenComposite | None, event: int) -> None:
        """Close a composite: compute it as one operation, or its remaining tiles if some were replayed."""
        if stream is None:  # its read failed
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
        """Execute the events of composites' tiles before ``limit``."""
        current = self._seq
        for stream, tile in self._streams.advance(groups, limit):
            self._seq = stream.seq
            stream.tiles.step(stream.work, tile, self._memory)
        self._seq = current


def _commits_apart(table: Array) -> Array:
    """Return a mask of the records whose commit has a known time and is an event separate from the read."""
    apart: Array = (table[_COMMIT_PS] > table[_READ_PS]) | ((table[_SAMPLED] != 0) & (table[_COMMIT_PS] >= 0))
    return apart


def _operands(work: ReplayWork) -> tuple[Operand | float, ...]:
    """Return the operands that a record reads, with those of its epilogue."""
    return work.inputs + tuple(e.operand for e in work.params.epilogue if isinstance(e.operand, Operand))
