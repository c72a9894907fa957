"""Composites under way in the replay: they stay behind until somebody touches what they work on.

A composite that nobody disturbs is one operation at its commit. Whoever reads or writes bytes that it has yet to touch
makes it catch up first, tile by tile and up to that very event; so does a host that looks at memory.

Events are integers that sort as the hardware orders reads and commits: the time in ps, 1 for a read or 0 for a commit,
and the number of the record. At one instant commits come before reads, further ties go by number.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product
from operator import itemgetter
from typing import NamedTuple, TypeAlias

import numpy as np

from kernbench.common.dtypes import Array, DType
from kernbench.common.operators import EpilogueStep
from kernbench.core.op_log import OpLog, Tile, Work
from kernbench.messages.commands import MemoryRef, Operand
from kernbench.numerics.compute import combine
from kernbench.numerics.intervals import ByteRuns, ExtentIndex, bounds
from kernbench.numerics.memory import SPACES
from kernbench.numerics.operands import OperandMemory, window

TilePlace: TypeAlias = tuple[int, ...]
"""(row, column, step along K); of a panel, of its first tile, and then the number of tiles along each"""
NEVER = 1 << 128
"""Behind every event."""
_SEQ_BITS = 40
_READ = 1 << _SEQ_BITS
_PS_SHIFT = _SEQ_BITS + 1
_M, _K, _N = 0, 1, 2
_PLACE = (0, 2, 1)  # where a tile's index of m, k, n stands in (row, column, step)
_AXIS = (_M, _N, _K)  # and which of m, k, n stands there
_ONE = (1, 1, 1)
_FIRST = itemgetter(0)


def read_event(time_ps: int, seq: int = 0) -> int:
    """Return the event at which record ``seq`` reads its operands, by default the first read at ``time_ps``."""
    return time_ps << _PS_SHIFT | _READ | seq


def commit_event(time_ps: int, seq: int) -> int:
    """Return the event at which the result of record ``seq`` is in memory."""
    return time_ps << _PS_SHIFT | seq


@dataclass(frozen=True, slots=True)
class TilePart:
    """An operand of a composite, by the name that the records of its tiles give it.

    ``axes``: along which of m, k, n each of its axes lies.
    """

    name: str
    operand: Operand
    axes: tuple[int, ...]

    def window(self, tile: TilePlace, sizes: tuple[int, int, int]) -> Operand:
        """Return what ``tile``, or all tiles of a panel, use of it, where tiles are of ``sizes`` (m, k, n)."""
        count = tile[len(_PLACE) :] or _ONE
        first = tuple([tile[_PLACE[a]] * sizes[a] for a in self.axes])
        counts = zip(self.axes, first, self.operand.shape, strict=True)
        shape = tuple([min(count[_PLACE[a]] * sizes[a], n - at) for a, at, n in counts])
        return window(self.operand, first, shape)

    def tiles(self, panel: TilePlace) -> Iterator[tuple[TilePlace, list[TilePlace]]]:
        """Yield a tile for each window of a panel, and all tiles of the panel that use that window."""
        spans = [range(at, at + n) for at, n in zip(panel[: len(_PLACE)], panel[len(_PLACE) :] or _ONE, strict=True)]
        own = [span if _AXIS[place] in self.axes else span[:1] for place, span in enumerate(spans)]
        for tile in product(*own):
            shared = [span if _AXIS[place] not in self.axes else (tile[place],) for place, span in enumerate(spans)]
            yield tile, list(product(*shared))


def parts_of(work: Work) -> tuple[TilePart, ...]:
    """Return the operands of a composite: the inputs, those of the epilogue, and ``out``, the last."""
    assert work.output is not None
    names, axes = (("a", "b"), ((_M, _K), (_K, _N))) if work.kind == "gemm" else (None, ())
    found: list[TilePart] = []
    for n, x in enumerate(work.inputs):
        if isinstance(x, Operand):
            found.append(TilePart(names[n] if names else f"x{n}", x, axes[n] if axes else (_M, _N)))
    for n, step in enumerate(work.params.epilogue):
        if isinstance(step.operand, Operand):
            along = (_M, _N)[-len(step.operand.shape) :]  # a bias is a vector along the columns
            found.append(TilePart(f"epilogue{n}", step.operand, along))
    return (*found, TilePart("out", work.output, (_M, _N)))


@dataclass(slots=True, eq=False)
class OpenComposite:
    """Composite ``seq`` between its read and its commit; ``group``: it and those that it shares bytes with."""

    seq: int
    work: Work
    parts: tuple[TilePart, ...]
    tiles: TiledReplay
    group: EntangledGroup
    claims: list[_OperandClaim] = field(default_factory=list)
    known: int = 0


@dataclass(slots=True, eq=False)
class EntangledGroup:
    """Composites that have to advance together, since one works on what another one, or itself, writes."""

    members: list[OpenComposite] = field(default_factory=list)
    entangled: bool = False


@dataclass(slots=True, eq=False)
class _OperandClaim:
    """An operand of a composite under way; its exact bytes are worked out when somebody comes near."""

    stream: OpenComposite
    operand: Operand
    indexes: tuple[ExtentIndex[_OperandClaim], ...]
    runs: ByteRuns | None = None

    def meets(self, other: ByteRuns) -> bool:
        if self.runs is None:
            self.runs = ByteRuns.of(self.operand)
        return self.runs.common(other)[1] > 0


class Due(NamedTuple):
    """An event of a tile that has to happen now."""

    stream: OpenComposite
    tile: Tile


class OpenComposites:
    """The composites of ``op_log`` that are under way. Groups that its methods return have to ``advance``.

    ``written`` and ``claimed``: the spaces that they write to, and that they work on at all; most accesses are in
    others. They are to be asked first.
    """

    __slots__ = ("_acc", "_claims", "_log", "_next", "_open", "_tiles", "_writes", "claimed", "written")

    def __init__(self, op_log: OpLog, acc: DType) -> None:
        self._acc = acc
        self._log = op_log
        self._next = 0  # the first record that was not searched for tiles
        self._tiles: dict[int, list[int]] = {}  # numbers, by composite
        self._open: dict[int, OpenComposite] = {}
        # All that composites work on, and what they write.
        self._claims: dict[str, ExtentIndex[_OperandClaim]] = {space: ExtentIndex() for space in SPACES}
        self._writes: dict[str, ExtentIndex[_OperandClaim]] = {space: ExtentIndex() for space in SPACES}
        self.written: frozenset[str] = frozenset()
        self.claimed: frozenset[str] = frozenset()

    @property
    def groups(self) -> list[EntangledGroup]:
        """All of them."""
        return _groups(self._open.values())

    def open(self, seq: int, work: Work) -> OpenComposite:
        """Begin composite ``seq``: from now on, who touches its operands finds it."""
        parts = parts_of(work)
        *inputs, out = [part.operand for part in parts]
        stream = OpenComposite(seq, work, parts, TiledReplay(work, parts, self._acc), EntangledGroup())
        stream.group.members.append(stream)
        others = [*self.writing(inputs), *self.using(out)]
        self._claim(stream, out, self._claims[out.space], self._writes[out.space])
        self._note_spaces()
        stream.group.entangled = stream.group in self.writing(inputs)
        for operand in inputs:
            self._claim(stream, operand, self._claims[operand.space])
        self._open[seq] = stream
        self._entangle(stream.group, others)
        self._note_spaces()
        return stream

    def under_way(self, seq: int) -> OpenComposite | None:
        """Return the composite with that number; None when none is under way."""
        return self._open.get(seq)

    def close(self, stream: OpenComposite) -> None:
        """End a composite, which has done all it does."""
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
        """Take the events of tiles before ``limit``, in order, for each group on its own."""
        found: list[Due] = []
        for group in groups:
            due: list[tuple[int, OpenComposite, Tile]] = []
            for stream in group.members:
                self._learn(stream)
                due += [(event, stream, tile) for event, tile in stream.tiles.due(limit)]
            due.sort(key=_FIRST)
            found += [Due(stream, tile) for _, stream, tile in due]
        return found

    def _learn(self, stream: OpenComposite) -> None:
        """Tell a stream of tiles that the log has got since. The log is searched when somebody disturbs a composite."""
        first = min(self._open, default=stream.seq)
        for whole, tile in self._log.tiles(max(self._next, first)):
            if whole >= first:  # nobody will ask for those before
                self._tiles.setdefault(whole, []).append(tile)
        self._next = len(self._log)
        tiles = self._tiles.get(stream.seq, [])
        stream.tiles.learn(self._log, tiles[stream.known :])
        stream.known = len(tiles)

    def _claim(self, stream: OpenComposite, operand: Operand, *indexes: ExtentIndex[_OperandClaim]) -> None:
        claim = _OperandClaim(stream, operand, indexes)
        stream.claims.append(claim)
        for low, high in bounds(operand):
            for index in indexes:
                index.add(low, high, claim)

    def _entangle(self, group: EntangledGroup, others: Iterable[EntangledGroup]) -> None:
        for other in others:
            if other is not group:
                group.entangled = True
                group.members += other.members
                for stream in other.members:
                    stream.group = group


class TiledReplay:
    """Brings the effects of a composite about, event by event of its tiles; ``begun`` once one has been carried out."""

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

    def __init__(self, work: Work, parts: tuple[TilePart, ...], acc: DType) -> None:
        sizes = work.params.tile_sizes
        assert sizes is not None
        self._acc = acc
        self._sizes = sizes
        self._inputs = {part.name: part for part in parts[:-1]}
        self._out = parts[-1]
        # Arrays in TCM have no reads of their own: they are read when the tile is fetched.
        self._staged = tuple(part for part in parts[:-1] if part.operand.space == "tcm")
        steps = -(-parts[0].operand.shape[1] // sizes[_K]) if work.kind == "gemm" else 1
        self._last = steps - 1
        self._samples: dict[tuple[str, TilePlace], Array] = {}
        self._events: list[tuple[int, Tile]] = []
        self._next = 0
        self._uncommitted: list[int] = []
        self.begun = False

    def learn(self, log: OpLog, fresh: list[int]) -> None:
        """Take in tiles that ``log`` has got since, by number, and times that were not known before."""
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

    def due(self, limit: int) -> list[tuple[int, Tile]]:
        """Take the events before ``limit``, in order."""
        begin, self._next = self._next, bisect_left(self._events, limit, self._next, key=_FIRST)
        return self._events[begin : self._next]

    def step(self, work: Work, tile: Tile, memory: OperandMemory) -> None:
        """Carry out one event of a tile of the composite, which is ``work``."""
        self.begun = True
        if tile.kind == "dma_write":
            for each, _ in self._out.tiles(tile.tile):
                memory.deposit(self._out.window(each, self._sizes), self._result(work, each))
        elif tile.kind == "dma_read":
            self._sample_all(self._inputs[tile.name], tile.tile, memory)
        else:
            self._fetch(tile.tile, memory)

    def _sample(self, part: TilePart, tile: TilePlace, memory: OperandMemory) -> None:
        self._samples[part.name, tile] = memory.load(part.window(tile, self._sizes), private=True)

    def _sample_all(self, part: TilePart, panel: TilePlace, memory: OperandMemory) -> None:
        """Sample what all tiles of a panel use."""
        for tile, others in part.tiles(panel):
            self._sample(part, tile, memory)
            for other in others:
                self._samples[part.name, other] = self._samples[part.name, tile]

    def _fetch(self, tile: TilePlace, memory: OperandMemory) -> None:
        """Sample what lies in TCM."""
        for part in self._staged:
            if (part.name, tile) not in self._samples:
                self._sample(part, tile, memory)

    def _result(self, work: Work, tile: TilePlace) -> Array:
        """Return the output tile: one operation on all that was sampled for it, its steps along K put together."""
        shape = self._out.window(tile, self._sizes).shape
        return combine(work, list(self._args(work, tile)), self._steps(work, tile), shape, self._acc)

    def _args(self, work: Work, tile: TilePlace) -> Iterator[Array | float]:
        if work.kind == "gemm":
            for name, axis in (("a", 1), ("b", 0)):
                pieces = [self._samples.pop((name, (tile[0], tile[1], s))) for s in range(self._last + 1)]
                yield pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis)
            return
        for n, x in enumerate(work.inputs):
            yield self._samples.pop((f"x{n}", tile)) if isinstance(x, Operand) else x

    def _steps(self, work: Work, tile: TilePlace) -> list[EpilogueStep]:
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
    """Return the claims that ``operand`` meets: ranges first, bytes only where ranges do."""
    near: list[_OperandClaim] = []
    for low, high in bounds(operand):
        if not index.misses(low, high):
            near += index.find(low, high)
    if not near:
        return near
    runs = ByteRuns.of(operand)
    return [claim for claim in dict.fromkeys(near) if claim.meets(runs)]


def _groups(streams: Iterable[OpenComposite]) -> list[EntangledGroup]:
    """Return the groups of ``streams``, each once, in order."""
    return list(dict.fromkeys(stream.group for stream in streams))
