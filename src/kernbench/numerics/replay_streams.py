"""Composites under way in the replay: they stay behind until somebody touches what they work on.

A composite that nobody disturbs is one matmul at its commit. Whoever reads or writes bytes that it has yet to touch
makes it catch up first, tile by tile and up to that very event; so does a host that looks at memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from operator import itemgetter
from typing import NamedTuple

from kernbench.common.dtypes import DType
from kernbench.common.values import state
from kernbench.core.op_log import OpLog, OpRecord
from kernbench.messages.operands import Operand
from kernbench.numerics.memory_store import SPACES
from kernbench.numerics.replay_extents import ByteRuns, ExtentIndex, bounds
from kernbench.numerics.replay_tiles import Part, TiledReplay, parts_of

_TILE_KINDS = frozenset(("dma_read", "dma_write", "fetch"))


@state(eq=False)
class Stream:
    """A composite between its read and its commit; ``group``: it and those that it shares bytes with."""

    record: OpRecord
    parts: tuple[Part, ...]
    tiles: TiledReplay
    group: Group
    claims: list[_Claim] = field(default_factory=list)
    known: int = 0


@state(eq=False)
class Group:
    """Composites that have to advance together, since one works on what another one, or itself, writes."""

    members: list[Stream] = field(default_factory=list)
    entangled: bool = False


@state(eq=False)
class _Claim:
    """An operand of a composite under way; its exact bytes are worked out when somebody comes near."""

    stream: Stream
    operand: Operand
    indexes: tuple[ExtentIndex[_Claim], ...]
    runs: ByteRuns | None = None

    def meets(self, other: ByteRuns) -> bool:
        if self.runs is None:
            self.runs = ByteRuns.of(self.operand)
        return self.runs.common(other)[1] > 0


class Due(NamedTuple):
    """An event of a tile that has to happen now."""

    stream: Stream
    tile: OpRecord


class Streams:
    """The composites of ``op_log`` that are under way. Groups that its methods return have to ``advance``.

    ``written`` and ``claimed``: the spaces that they write to, and that they work on at all; most accesses are in
    others. They are to be asked first.
    """

    __slots__ = ("_acc", "_claims", "_index", "_open", "_writes", "claimed", "written")

    def __init__(self, op_log: OpLog, acc: DType) -> None:
        self._acc = acc
        self._index = _TileIndex(op_log)
        self._open: dict[int, Stream] = {}
        # All that composites work on, and what they write.
        self._claims: dict[str, ExtentIndex[_Claim]] = {space: ExtentIndex() for space in SPACES}
        self._writes: dict[str, ExtentIndex[_Claim]] = {space: ExtentIndex() for space in SPACES}
        self.written: frozenset[str] = frozenset()
        self.claimed: frozenset[str] = frozenset()

    @property
    def groups(self) -> list[Group]:
        """All of them."""
        return _groups(self._open.values())

    def open(self, record: OpRecord) -> None:
        """Composite ``record`` begins: from now on, who touches its operands finds it."""
        parts = parts_of(record)
        *inputs, out = [part.operand for part in parts]
        stream = Stream(record, parts, TiledReplay(record, parts, self._acc), Group())
        stream.group.members.append(stream)
        others = [*self.writing(inputs), *self.using(out)]
        self._claim(stream, out, self._claims[out.space], self._writes[out.space])
        self._note_spaces()
        stream.group.entangled = stream.group in self.writing(inputs)
        for operand in inputs:
            self._claim(stream, operand, self._claims[operand.space])
        self._open[record.seq] = stream
        self._entangle(stream.group, others)
        self._note_spaces()

    def under_way(self, seq: int) -> Stream | None:
        """The composite with that number; None when none is under way."""
        return self._open.get(seq)

    def close(self, stream: Stream) -> None:
        """The composite is over and has done all it does."""
        del self._open[stream.record.seq]
        stream.group.members.remove(stream)
        for claim in stream.claims:
            for low, high in bounds(claim.operand):
                for index in claim.indexes:
                    index.discard(low, high, claim)
        self._index.forget(stream.record.seq)
        self._note_spaces()

    def _note_spaces(self) -> None:
        self.written = frozenset(space for space in SPACES if not self._writes[space].is_empty)
        self.claimed = frozenset(space for space in SPACES if not self._claims[space].is_empty)

    def writing(self, operands: Iterable[Operand | float]) -> list[Group]:
        """Groups with a composite that writes some bytes of ``operands``."""
        hit: list[_Claim] = []
        for x in operands:
            if x.__class__ is Operand and x.space in self.written:
                hit += _met(x, self._writes[x.space])
        return _groups([claim.stream for claim in hit]) if hit else []

    def using(self, operand: Operand | None) -> list[Group]:
        """Groups with a composite that reads or writes some bytes of ``operand``."""
        if operand is None or operand.space not in self.claimed:
            return []
        hit = _met(operand, self._claims[operand.space])
        return _groups([claim.stream for claim in hit]) if hit else []

    def advance(self, groups: Iterable[Group], limit: int) -> list[Due]:
        """The events of tiles before ``limit``, in order, for each group on its own."""
        found: list[Due] = []
        for group in groups:
            due: list[tuple[int, Stream, OpRecord]] = []
            for stream in group.members:
                self._learn(stream)
                due += [(event, stream, tile) for event, tile in stream.tiles.due(limit)]
            due.sort(key=itemgetter(0))
            found += [Due(stream, tile) for _, stream, tile in due]
        return found

    def _learn(self, stream: Stream) -> None:
        tiles = self._index.of(stream.record.seq, min(self._open, default=stream.record.seq))
        stream.tiles.learn(tiles[stream.known :])
        stream.known = len(tiles)

    def _claim(self, stream: Stream, operand: Operand, *indexes: ExtentIndex[_Claim]) -> None:
        claim = _Claim(stream, operand, indexes)
        stream.claims.append(claim)
        for low, high in bounds(operand):
            for index in indexes:
                index.add(low, high, claim)

    def _entangle(self, group: Group, others: Iterable[Group]) -> None:
        for other in others:
            if other is not group:
                group.entangled = True
                group.members += other.members
                for stream in other.members:
                    stream.group = group


class _TileIndex:
    """Records of tiles by composite. The log is searched only when a composite is replayed tile by tile."""

    __slots__ = ("_log", "_next", "_of")

    def __init__(self, op_log: OpLog) -> None:
        self._log = op_log
        self._next = 0
        self._of: dict[int, list[OpRecord]] = {}

    def of(self, seq: int, first_open: int) -> list[OpRecord]:
        """What is known of the tiles of ``seq``; nobody will ask for composites before ``first_open``."""
        self._next = max(self._next, first_open)
        for record in self._log.since(self._next):
            tiled = record.parent >= first_open and record.kind in _TILE_KINDS
            if tiled and self._log[record.parent].params.tile_sizes is not None:
                self._of.setdefault(record.parent, []).append(record)
        self._next = len(self._log)
        return self._of.get(seq, [])

    def forget(self, seq: int) -> None:
        """The composite is over."""
        self._of.pop(seq, None)


def _met(operand: Operand, index: ExtentIndex[_Claim]) -> list[_Claim]:
    """The claims that ``operand`` meets: ranges first, bytes only where ranges do."""
    near: list[_Claim] = []
    for low, high in bounds(operand):
        if not index.misses(low, high):
            near += index.find(low, high)
    if not near:
        return near
    runs = ByteRuns.of(operand)
    return [claim for claim in dict.fromkeys(near) if claim.meets(runs)]


def _groups(streams: Iterable[Stream]) -> list[Group]:
    """The groups of ``streams``, each once, in order."""
    return list(dict.fromkeys(stream.group for stream in streams))
