"""Find races: pairs of accesses to the same bytes that nothing orders.

An access is ordered after another access if it started after the other had ended. A write ends when its acknowledgement
has arrived, or when a fence of its kernel has found the bytes in memory. A read ends when its data have arrived. Two
accesses race if their times and their bytes overlap and one of them writes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import TypeAlias

from kernbench.common.values import state, value
from kernbench.core.op_log import OpRecord
from kernbench.messages.commands import Operand
from kernbench.messages.requests import PeCoord
from kernbench.numerics.composites import TilePart, parts_of
from kernbench.numerics.intervals import ByteRuns, ExtentIndex, bounds

PeOf: TypeAlias = Callable[[str], PeCoord | None]
"""A function from a component to its PE, None outside PEs"""
SourceEnds: TypeAlias = Mapping[tuple[str, int, int], int]
"""The times when messages of queues have been read from their source, by component, start and address of the slot"""
FenceEnds: TypeAlias = Mapping[PeCoord, Sequence[int]]
"""The end times of the fences of each PE's kernels, in order"""


@state(eq=False)
class OperandUse:
    """The use of one operand of ``record`` for the duration of the command.

    ``part`` is the complete operand of a composite, None for other commands.
    """

    record: OpRecord
    operand: Operand
    writes: bool
    start_ps: int
    end_ps: int
    part: TilePart | None = None
    runs: ByteRuns | None = None

    def shared(self, other: OperandUse) -> tuple[int, int]:
        """Return the first address of the bytes that both touch, and their number."""
        return self.touched().common(other.touched())

    def touched(self) -> ByteRuns:
        """Return the touched bytes, computed at the first call."""
        if self.runs is None:
            self.runs = ByteRuns.of(self.operand)
        return self.runs


@value
class Race:
    """A race: ``later`` began before ``earlier`` had ended; both touch ``nbytes``, the first at ``address``."""

    earlier: OperandUse
    later: OperandUse
    address: int
    nbytes: int


def find_races(
    records: Iterable[OpRecord],
    host_reads: Iterable[OpRecord],
    pe_of: PeOf,
    source_ends: SourceEnds | None = None,
    fence_ends: FenceEnds | None = None,
    *,
    in_order: bool = False,
) -> Iterator[Race]:
    """Yield the races among finished ``records`` of an op-log; of two composites, the first pair of tiles.

    The accesses of a PE to its local TCM are left out, since the PE frees scratch only after the last use. Pairs of
    accesses of one PE are left out too if PEs preserve the order of their programs (``in_order``).
    """
    log = list(records)
    ends, fences = source_ends or {}, fence_ends or {}
    accesses = [a for record in (*log, *host_reads) for a in accesses_of(record, ends)]
    for access in accesses if fences else ():
        if access.writes and access.record.kind in ("dma_write", "atomic"):
            pe = pe_of(access.record.component)
            access.end_ps = _fence_ps(access, () if pe is None else fences.get(pe, ()))
    tiles: dict[int, list[OpRecord]] = {}
    for race in _meetings(_select_watched(accesses, pe_of)):
        if in_order and _same_pe(race, pe_of):
            continue
        pair = (race.earlier, race.later)
        if all(access.part is None for access in pair):
            yield race
            continue
        if not tiles:
            tiles = _tiles_of(log)
        closer = _meetings([tile for access in pair for tile in _of_tiles(access, tiles)])
        first = next(closer, None)
        if first is not None:
            yield first


def accesses_of(record: OpRecord, source_ends: SourceEnds) -> list[OperandUse]:
    """Return the operands that a finished command touches; tiles are part of their composite."""
    if record.t_end_ps < 0 or record.parent >= 0 or not (record.inputs or record.output):
        return []
    times = record.t_start_ps, record.t_end_ps
    if record.params.tile_sizes is not None and record.output is not None:
        return [
            OperandUse(record, part.operand, part.operand is record.output, *times, part)
            for part in parts_of(record.work)
        ]
    until = record.t_end_ps
    if record.kind == "ipcq_copy" and record.output is not None:
        until = source_ends.get((record.component, record.t_start_ps, record.output.address), until)
    # The first input of an atomic is the bytes that it changes, which are its output.
    read = record.inputs[1:] if record.kind == "atomic" else record.inputs
    uses = [OperandUse(record, x, False, record.t_start_ps, until) for x in read if isinstance(x, Operand)]
    return [*uses, OperandUse(record, record.output, True, *times)] if record.output is not None else uses


def _fence_ps(access: OperandUse, fences: Sequence[int]) -> int:
    """Return when a write is surely in memory: at its end, or at the first end of a fence after the write began."""
    at = bisect_right(fences, access.start_ps)
    return access.end_ps if at == len(fences) else min(access.end_ps, fences[at])


def _same_pe(race: Race, pe_of: PeOf) -> bool:
    pe = pe_of(race.later.record.component)
    return pe is not None and pe == pe_of(race.earlier.record.component)


def _select_watched(accesses: list[OperandUse], pe_of: PeOf) -> list[OperandUse]:
    """Select the accesses that another component may disturb."""
    foreign = {
        a.operand.owner for a in accesses if a.operand.space == "tcm" and a.operand.owner != pe_of(a.record.component)
    }
    return [a for a in accesses if a.operand.space != "tcm" or a.operand.owner in foreign]


def _meetings(accesses: list[OperandUse]) -> Iterator[Race]:
    """Yield the races of each access with the accesses that are in flight at its start."""
    sweep = _AddressSweep()
    for access in sorted(accesses, key=lambda a: (a.start_ps, a.record.seq)):
        sweep.end_until(access.start_ps)
        for other in sweep.near(access):
            if other.record is access.record or _are_apart(other.record, access.record):
                continue
            address, nbytes = access.shared(other)
            if nbytes:
                yield Race(other, access, address, nbytes)
        sweep.begin(access)


class _AddressSweep:
    """The accesses in flight, by address."""

    def __init__(self) -> None:
        self._all: dict[str, ExtentIndex[OperandUse]] = {}
        self._writes: dict[str, ExtentIndex[OperandUse]] = {}
        self._ends: list[tuple[int, int, OperandUse]] = []
        self._begun = 0

    def near(self, access: OperandUse) -> list[OperandUse]:
        """Return the accesses that may race with ``access`` and whose ranges overlap, in the order of their start."""
        index = (self._all if access.writes else self._writes).get(access.operand.space)
        if index is None:
            return []
        met = [x for low, high in bounds(access.operand) for x in index.find(low, high)]
        return sorted(dict.fromkeys(met), key=lambda a: (a.start_ps, a.record.seq))

    def begin(self, access: OperandUse) -> None:
        self._begun += 1
        heappush(self._ends, (access.end_ps, self._begun, access))
        for index in self._indexes(access):
            for low, high in bounds(access.operand):
                index.add(low, high, access)

    def end_until(self, now_ps: int) -> None:
        while self._ends and self._ends[0][0] <= now_ps:
            access = heappop(self._ends)[2]
            for index in self._indexes(access):
                for low, high in bounds(access.operand):
                    index.discard(low, high, access)

    def _indexes(self, access: OperandUse) -> list[ExtentIndex[OperandUse]]:
        kinds = (self._all, self._writes) if access.writes else (self._all,)
        return [kind.setdefault(access.operand.space, ExtentIndex()) for kind in kinds]


def _are_apart(a: OpRecord, b: OpRecord) -> bool:
    """Return True for two tiles of one composite, and for two atomics, which a memory executes one after the other."""
    return (a.parent >= 0 and a.parent == b.parent) or a.kind == b.kind == "atomic"


def _tiles_of(log: list[OpRecord]) -> dict[int, list[OpRecord]]:
    """Return the records of tiles by composite."""
    tiles: dict[int, list[OpRecord]] = {}
    for record in log:
        if record.parent >= 0 and record.t_end_ps >= 0 and record.kind in ("dma_read", "dma_write", "fetch"):
            tiles.setdefault(record.parent, []).append(record)
    return tiles


def _of_tiles(access: OperandUse, tiles: dict[int, list[OpRecord]]) -> list[OperandUse]:
    """Divide an access into tiles, each at the time when the tile moves its window.

    An operand in TCM is read when tiles are fetched.
    """
    part, sizes = access.part, access.record.params.tile_sizes
    if part is None or sizes is None:
        return [access]
    staged = part.operand.space == "tcm"
    return [
        OperandUse(tile, part.window(tile.tile, sizes), access.writes, tile.t_start_ps, tile.t_end_ps)
        for tile in tiles.get(access.record.seq, ())
        if tile.tile is not None and (tile.kind == "fetch" if staged else tile.name == part.name)
    ]
