"""Composites in flight during the replay: they are deferred until another record accesses their operands.

A composite without such an access is computed as one operation at its commit. Before an access to bytes that its tiles
still have to read or write, the composite is advanced to the event of the access, tile by tile. The same happens before
the host reads memory.

Events are integers, sorted as the hardware orders reads and commits. An event has the time in ps, 1 for a read or 0 for
a commit, and the number of the record. At the same time, commits precede reads; further ties are broken by number.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import field
from itertools import product
from operator import itemgetter
from typing import NamedTuple, TypeAlias

import numpy as np

from kernbench.common.dtypes import Array, DType
from kernbench.common.operators import EpilogueStep
from kernbench.common.values import state, value
from kernbench.core.op_log import OpLog, ReplayWork, TileRecord
from kernbench.messages.commands import MemoryRef, Operand
from kernbench.numerics.compute import combine
from kernbench.numerics.intervals import ByteRuns, ExtentIndex, bounds
from kernbench.numerics.memory import SPACES
from kernbench.numerics.operands import OperandMemory, window

TilePlace: TypeAlias = tuple[int, ...]
"""A tile: (row, column, step along K). A panel: those of its first tile, then the number of tiles along each"""
NEVER = 1 << 128
"""An event after every other event."""
_SEQ_BITS = 40
_READ = 1 << _SEQ_BITS
_PS_SHIFT = _SEQ_BITS + 1
_M, _K, _N = 0, 1, 2
_PLACE = (0, 2, 1)  # positions of m, k, n in (row, column, step)
_AXIS = (_M, _N, _K)  # the inverse: m, k or n at each position of (row, column, step)
_ONE = (1, 1, 1)
_FIRST = itemgetter(0)


def read_event(time_ps: int, seq: int = 0) -> int:
    """Return the event of the read of record ``seq``, by default an event before all reads at ``time_ps``."""
    return time_ps << _PS_SHIFT | _READ | seq


def commit_event(time_ps: int, seq: int) -> int:
    """Return the event of the commit of record ``seq``, after which its result is in memory."""
    return time_ps << _PS_SHIFT | seq


@value
class TilePart:
    """An operand of a composite, with its name in the records of tiles.

    ``axes`` names the dimension (m, k or n) of each of its axes.
    """

    name: str
    operand: Operand
    axes: tuple[int, ...]

    def window(self, tile: TilePlace, sizes: tuple[int, int, int]) -> Operand:
        """Return the window of the operand for a tile, or for a panel of tiles; ``sizes`` are (m, k, n) of a tile."""
        count = tile[len(_PLACE) :] or _ONE
        first = tuple([tile[_PLACE[a]] * sizes[a] for a in self.axes])
        counts = zip(self.axes, first, self.operand.shape, strict=True)
        shape = tuple([min(count[_PLACE[a]] * sizes[a], n - at) for a, at, n in counts])
        return window(self.operand, first, shape)

    def tiles(self, panel: TilePlace) -> Iterator[tuple[TilePlace, list[TilePlace]]]:
        """Yield, for each distinct window of a panel, its first tile and all tiles of the panel that use the window."""
        spans = [range(at, at + n) for at, n in zip(panel[: len(_PLACE)], panel[len(_PLACE) :] or _ONE, strict=True)]
        distinct = [span if _AXIS[place] in self.axes else span[:1] for place, span in enumerate(spans)]
        for tile in product(*distinct):
            shared = [span if _AXIS[place] not in self.axes else (tile[place],) for place, span in enumerate(spans)]
            yield tile, list(product(*shared))


def parts_of(work: ReplayWork) -> tuple[TilePart, ...]:
    """Return the operands of a composite: the inputs, those of the epilogue, and ``out``, the last."""
    assert work.output is not None
    names, axes = (("a", "b"), ((_M, _K), (_K, _N))) if work.kind == "gemm" else (None, ())
    parts: list[TilePart] = []
    for n, x in enumerate(work.inputs):
        if isinstance(x, Operand):
            parts.append(TilePart(names[n] if names else f"x{n}", x, axes[n] if axes else (_M, _N)))
    for n, step in enumerate(work.params.epilogue):
        if isinstance(step.operand, Operand):
            along = (_M, _N)[-len(step.operand.shape) :]  # a bias is a vector along the columns
            parts.append(TilePart(f"epilogue{n}", step.operand, along))
    return (*parts, TilePart("out", work.output, (_M, _N)))


@state(eq=False)
class OpenComposite:
    """Composite ``seq`` between its read and its commit; ``group`` contains it and composites with common bytes."""

    seq: int
    work: ReplayWork
    parts: tuple[TilePart, ...]
    tiles: TiledReplay
    group: EntangledGroup
    claims: list[_OperandClaim] = field(default_factory=list)
    learned: int = 0


@state(eq=False)
class EntangledGroup:
    """Composites that must advance together, because one accesses bytes that another one, or itself, writes."""

    members: list[OpenComposite] = field(default_factory=list)
    entangled: bool = False


@state(eq=False)
class _OperandClaim:
    """An operand of a composite in flight; its exact bytes are computed at the first access near it."""

    stream: OpenComposite
    operand: Operand
    indexes: tuple[ExtentIndex[_OperandClaim], ...]
    runs: ByteRuns | None = None

    def overlaps(self, other: ByteRuns) -> bool:
        if self.runs is None:
            self.runs = ByteRuns.of(self.operand)
        return self.runs.common(other)[1] > 0


class Due(NamedTuple):
    """An event of a tile that is due."""

    stream: OpenComposite
    tile: TileRecord


class OpenComposites:
    """The composites of ``op_log`` in flight. Callers ``advance`` the groups that the methods return.

    ``written`` are the memory spaces that composites write, ``claimed`` the spaces that they access. Callers check
    these first, because most accesses are in other spaces.
    """

    __slots__ = ("_acc", "_claims", "_log", "_next", "_open", "_tiles", "_writes", "claimed", "written")

    def __init__(self, op_log: OpLog, acc: DType) -> None:
        self._acc = acc
        self._log = op_log
        self._next = 0  # the first record that is not yet searched for tiles
        self._tiles: dict[int, list[int]] = {}  # numbers, by composite
        self._open: dict[int, OpenComposite] = {}
        # All operands of composites, and those that they write.
        self._claims: dict[str, ExtentIndex[_OperandClaim]] = {space: ExtentIndex() for space in SPACES}
        self._writes: dict[str, ExtentIndex[_OperandClaim]] = {space: ExtentIndex() for space in SPACES}
        self.written: frozenset[str] = frozenset()
        self.claimed: frozenset[str] = frozenset()

    @property
    def groups(self) -> list[EntangledGroup]:
        """The groups of all composites in flight."""
        return _groups(self._open.values())

    def open(self, seq: int, work: ReplayWork) -> OpenComposite:
        """Begin composite ``seq``; from now on ``writing`` and ``using`` find it by its operands."""
        parts = parts_of(work)
        *inputs, out = [part.operand for part in parts]
        stream = OpenComposite(seq, work, parts, TiledReplay(work, parts, self._acc), EntangledGroup())
        stream.group.members.append(stream)
        overlapping = [*self.writing(inputs), *self.using(out)]
        self._claim(stream, out, self._claims[out.space], self._writes[out.space])
        self._note_spaces()
        stream.group.entangled = stream.group in self.writing(inputs)
        for operand in inputs:
            self._claim(stream, operand, self._claims[operand.space])
        self._open[seq] = stream
        self._entangle(stream.group, overlapping)
        self._note_spaces()
        return stream

    def in_flight(self, seq: int) -> OpenComposite | None:
        """Return the composite ``seq``, or None if it is not in flight."""
        return self._open.get(seq)

    def close(self, stream: OpenComposite) -> None:
        """Remove a completed composite."""
        del self._open[stream.seq]
        stream.group.members.remove(stream)
        for claim in stream.claims:
            for low, high in bounds(claim.operand):
                for index in claim.indexes:
                    index.discard(low, high, claim)
        self._tiles.pop(stream.seq, None)
        self._note_spaces()

    def _note_spaces(self) -> None:
        self.written = frozenset(space for space in SPACES if not self._writes[space].is_empty)
        self.claimed = frozenset(space for space in SPACES if not self._claims[space].is_empty)

    def writing(self, operands: Iterable[Operand | float]) -> list[EntangledGroup]:
        """Return the groups with a composite that writes some bytes of ``operands``."""
        hit: list[_OperandClaim] = []
        for x in operands:
            if x.__class__ is Operand and x.space in self.written:
                hit += _find_overlapping(x, self._writes[x.space])
        return _groups([claim.stream for claim in hit]) if hit else []

    def using(self, operand: Operand | None) -> list[EntangledGroup]:
        """Return the groups with a composite that reads or writes some bytes of ``operand``."""
        if operand is None or operand.space not in self.claimed:
            return []
        hit = _find_overlapping(operand, self._claims[operand.space])
        return _groups([claim.stream for claim in hit]) if hit else []

    def advance(self, groups: Iterable[EntangledGroup], limit: int) -> list[Due]:
        """Remove and return the events of tiles before ``limit``; they are in order within each group."""
        events: list[Due] = []
        for group in groups:
            due: list[tuple[int, OpenComposite, TileRecord]] = []
            for stream in group.members:
                self._learn(stream)
                due += [(event, stream, tile) for event, tile in stream.tiles.due(limit)]
            due.sort(key=_FIRST)
            events += [Due(stream, tile) for _, stream, tile in due]
        return events

    def _learn(self, stream: OpenComposite) -> None:
        """Pass to a stream the tiles logged since the last call; only accesses near composites search the log."""
        first = min(self._open, default=stream.seq)
        for composite, tile in self._log.tiles(max(self._next, first)):
            if composite >= first:  # no earlier composite is in flight
                self._tiles.setdefault(composite, []).append(tile)
        self._next = len(self._log)
        tiles = self._tiles.get(stream.seq, [])
        stream.tiles.learn(self._log, tiles[stream.learned :])
        stream.learned = len(tiles)

    def _claim(self, stream: OpenComposite, operand: Operand, *indexes: ExtentIndex[_OperandClaim]) -> None:
        claim = _OperandClaim(stream, operand, indexes)
        stream.claims.append(claim)
        for low, high in bounds(operand):
            for index in indexes:
                index.add(low, high, claim)

    def _entangle(self, group: EntangledGroup, overlapping: Iterable[EntangledGroup]) -> None:
        for other in overlapping:
            if other is not group:
                group.entangled = True
                group.members += other.members
                for stream in other.members:
                    stream.group = group


class TiledReplay:
    """The execution of a composite by the events of its tiles; ``begun`` is True after the first event."""

    __slots__ = (
        "_acc",
        "_events",
        "_inputs",
        "_last",
        "_next",
        "_out",
        "_samples",
        "_sizes",
        "_staged",
        "_uncommitted",
        "begun",
    )

    def __init__(self, work: ReplayWork, parts: tuple[TilePart, ...], acc: DType) -> None:
        sizes = work.params.tile_sizes
        assert sizes is not None
        self._acc = acc
        self._sizes = sizes
        self._inputs = {part.name: part for part in parts[:-1]}
        self._out = parts[-1]
        # Arrays in TCM have no read records: the fetch of a tile reads them.
        self._staged = tuple(part for part in parts[:-1] if part.operand.space == "tcm")
        steps = -(-parts[0].operand.shape[1] // sizes[_K]) if work.kind == "gemm" else 1
        self._last = steps - 1
        self._samples: dict[tuple[str, TilePlace], Array] = {}
        self._events: list[tuple[int, TileRecord]] = []
        self._next = 0
        self._uncommitted: list[int] = []
        self.begun = False

    def learn(self, log: OpLog, fresh: list[int]) -> None:
        """Add the tiles with the record numbers ``fresh`` in ``log``, and commit times that were unknown before."""
        waiting, self._uncommitted = self._uncommitted, []
        for seq in (*waiting, *fresh):
            tile = log.tile(seq)
            if tile.kind == "dma_write" and tile.commit_ps < 0:
                self._uncommitted.append(seq)
            elif tile.kind == "dma_write":
                self._events.append((commit_event(tile.commit_ps, seq), tile))
            elif tile.kind == "dma_read" or self._staged:
                self._events.append((read_event(tile.read_ps, seq), tile))
        del self._events[: self._next]
        self._next = 0
        self._events.sort(key=_FIRST)

    def due(self, limit: int) -> list[tuple[int, TileRecord]]:
        """Remove and return the events before ``limit``, in order."""
        begin, self._next = self._next, bisect_left(self._events, limit, self._next, key=_FIRST)
        return self._events[begin : self._next]

    def step(self, work: ReplayWork, tile: TileRecord, memory: OperandMemory) -> None:
        """Execute an event of a tile of the composite ``work``."""
        self.begun = True
        if tile.kind == "dma_write":
            for place, _ in self._out.tiles(tile.tile):
                memory.deposit(self._out.window(place, self._sizes), self._result(work, place))
        elif tile.kind == "dma_read":
            self._sample_all(self._inputs[tile.name], tile.tile, memory)
        else:
            self._fetch(tile.tile, memory)

    def _sample(self, part: TilePart, tile: TilePlace, memory: OperandMemory) -> None:
        self._samples[part.name, tile] = memory.load(part.window(tile, self._sizes), private=True)

    def _sample_all(self, part: TilePart, panel: TilePlace, memory: OperandMemory) -> None:
        """Sample the windows of all tiles of a panel."""
        for tile, sharing in part.tiles(panel):
            self._sample(part, tile, memory)
            for other in sharing:
                self._samples[part.name, other] = self._samples[part.name, tile]

    def _fetch(self, tile: TilePlace, memory: OperandMemory) -> None:
        """Sample the operands in TCM."""
        for part in self._staged:
            if (part.name, tile) not in self._samples:
                self._sample(part, tile, memory)

    def _result(self, work: ReplayWork, tile: TilePlace) -> Array:
        """Compute the output tile as one operation on its samples, concatenated along K."""
        shape = self._out.window(tile, self._sizes).shape
        return combine(work, list(self._args(work, tile)), self._steps(work, tile), shape, self._acc)

    def _args(self, work: ReplayWork, tile: TilePlace) -> Iterator[Array | float]:
        if work.kind == "gemm":
            for name, axis in (("a", 1), ("b", 0)):
                pieces = [self._samples.pop((name, (tile[0], tile[1], s))) for s in range(self._last + 1)]
                yield pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis)
            return
        for n, x in enumerate(work.inputs):
            yield self._samples.pop((f"x{n}", tile)) if isinstance(x, Operand) else x

    def _steps(self, work: ReplayWork, tile: TilePlace) -> list[EpilogueStep]:
        steps: list[EpilogueStep] = []
        for n, step in enumerate(work.params.epilogue):
            if step.operand is None:
                steps.append((step.name,))
            elif isinstance(step.operand, Operand):
                steps.append((step.name, self._samples.pop((f"epilogue{n}", tile))))
            else:
                assert not isinstance(step.operand, MemoryRef), "a record has operands instead"
                steps.append((step.name, step.operand))
        return steps


def _find_overlapping(operand: Operand, index: ExtentIndex[_OperandClaim]) -> list[_OperandClaim]:
    """Return the claims that overlap ``operand``: compare ranges first, and bytes only if ranges overlap."""
    candidates: list[_OperandClaim] = []
    for low, high in bounds(operand):
        if not index.misses(low, high):
            candidates += index.find(low, high)
    if not candidates:
        return candidates
    runs = ByteRuns.of(operand)
    return [claim for claim in dict.fromkeys(candidates) if claim.overlaps(runs)]


def _groups(streams: Iterable[OpenComposite]) -> list[EntangledGroup]:
    """Return the distinct groups of ``streams``, in order."""
    return list(dict.fromkeys(stream.group for stream in streams))
