"""Ideal pipeline of a tiled GEMM: the least time that the configured machine needs.

Every constant comes from the topology, and every formula is the closed form of a component. For n equal tiles

    (n - 1) · longest stage + Σ stages

where Σ stages is the time of a single tile, latencies included, and a stage is the time that a tile occupies its unit.
Tiles at an edge are smaller, and only the last tile along K is stored and written. For such unequal tiles, the work of
a stage is the sum over its tiles. The earlier stages of the first tile precede this work, and the later stages of the
last tile follow it. Reads and writes share the HBM slice, so the slice is a stage too. The longest of these
times is the time of the pipeline.

With blocks (``blocked``), the DMA loads panels instead of tiles, at most two steps ahead. R is the time in which the
memory delivers the panels of a step. G and F are the times of the step's tiles in the matrix unit and at the TCM port.

    delivered(s) = max(delivered(s - 1), way to the memory + freed(s - 2)) + R(s)
    arrived(s)   = delivered(s) + way back
    gemm(s)      = max(gemm(s - 1), arrived(s) + issue + first fetch) + G(s)      fetch(s) likewise, with F
    freed(s)     = the end of the fetch of the last tile of s

The last tile is fetched at most ``stage_slots`` tiles before its multiplication.

After gemm(s) of the last step, the last tile is stored, and its row of tiles is written. Steps, edges, and data that
stay in TCM between blocks are those of the plan itself.

With ``refresh: spread``, the memory delivers its sustained bandwidth. With outages (``all-bank``), it delivers its
peak. Outages during a continuous transfer extend it, whenever it begins. The first period has no outage.

The ideal pipeline assumes any number of tiles in flight, unbounded buffers, and evenly used memory channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernbench.common.dtypes import DType
from kernbench.common.ids import hbm_id, pe_dma_id, pe_part
from kernbench.common.units import ns_to_ps, ps_to_ns, transfer_ps
from kernbench.common.values import value
from kernbench.components.pe_scheduler import PeScheduler
from kernbench.engine.machine import Machine
from kernbench.evaluation.gemm_shapes import GemmShape, GemmTile
from kernbench.kernels.gemm import BLOCKED, STAGED
from kernbench.messages.commands import Command, MemoryRef, Opcode, Params
from kernbench.topology.hbm_refresh import RefreshClock, slice_pace
from kernbench.triton_emu.block_sizes import BlockedProduct
from kernbench.triton_emu.tile_plans import Tile, TileSizes, block_steps

MEMORY = "HBM slice"


@value
class TileStep:
    """A tile at a stage, in ps.

    The tile occupies the unit for ``busy``, is in flight ``before`` and ``after``, and occupies the memory for
    ``memory``.
    """

    stage: str
    busy: int
    before: int = 0
    after: int = 0
    memory: int = 0

    @property
    def alone(self) -> int:
        """The total time of a tile alone."""
        return self.before + self.busy + self.after


@value
class _Go:
    """Continuous reads from time ``begin`` on: the time of their bytes, and the memory time within that time."""

    begin: int = 0
    busy: int = 0
    memory: int = 0

    def then(self, step: TileStep) -> _Go:
        return _Go(self.begin, self.busy + step.busy, self.memory + step.memory)

    def end_ps(self, outages: RefreshClock) -> int:
        return self.begin + max(self.busy, outages.out(self.memory))


TileSteps = Sequence[TileStep]
StepWork = Callable[[TileStep], int]


@value
class Floor:
    """A lower bound of the pipeline time from one stage. The stage is busy for ``busy_ns`` of that time."""

    stage: str
    ns: float
    busy_ns: float


@value(kw_only=True)
class Ideal:
    """The ideal time of a kernel and its terms: start and first command, loads of staged operands, pipeline.

    ``floors``: lower bounds by stage, the longest first; the longest is the pipeline time. ``gemm_ns``: time of all
    tiles in the matrix unit.
    """

    ns: float
    start_ns: float
    load_ns: float
    gemm_ns: float
    floors: tuple[Floor, ...]

    @property
    def longest(self) -> str:
        """The stages that limit the pipeline, several in case of a tie."""
        first = self.floors[0]
        ties = (floor.stage for floor in self.floors if (floor.ns, floor.busy_ns) == (first.ns, first.busy_ns))
        return " and ".join(ties)

    @property
    def utilisation(self) -> float:
        """The share of the ideal time during which the matrix unit is busy."""
        return self.gemm_ns / self.ns


class IdealPipeline:
    """The ideal pipeline of PE 0 of cube 0 of ``sip``, with operands of a ``dtype`` in the PE's own HBM slice."""

    def __init__(self, machine: Machine, dtype: DType, sip: int = 0) -> None:
        self._item, self._dtype = dtype.itemsize, dtype
        self._pe, self._pace = machine.spec.pe, slice_pace(machine.spec.cube)
        self._keeps_writes = machine.spec.cube.hbm.banks is not None
        self._gemm_ps = self._pe.gemm.tile_ps(dtype)
        self._access_ps = ns_to_ps(machine.spec.cube.hbm_access_ns)
        dma, memory = pe_dma_id(sip, 0, 0), hbm_id(sip, 0, machine.spec.cube.local_slice(0))
        self._memory, self._scheduler = memory, machine.part(pe_part(sip, 0, 0, "pe_scheduler"), PeScheduler)
        outward, back = machine.route(dma, memory), machine.route(memory, dma)
        self._there_ps, self._back_ps = outward.total_overhead_ps, back.total_overhead_ps
        self._there_gbs, self._back_gbs = outward.bottleneck_gbs, back.bottleneck_gbs
        self._header_bytes = machine.header_bytes

    def ideal(self, shape: GemmShape, variant: str) -> Ideal:
        """Return the ideal time of a product. ``variant``: whether A and B are loaded before the pipeline."""
        sizes = self.block_sizes(shape) if variant == BLOCKED else None
        if sizes is not None:
            return self._time_blocks(shape, sizes)
        load_a, load_b = STAGED[variant]
        loaded = (shape.m * shape.k * load_a + shape.k * shape.n * load_b) * self._item
        start = self._pe.components.pe_cpu.attrs.first_issue_ps
        load = self._read(loaded).alone if loaded else 0
        tiles = [self._steps(tile, not load_a, not load_b) for tile in shape.tiles(self._pe.gemm.tile_sizes)]
        floors = sorted(_floors(tiles, self._pace.clock), key=lambda floor: (-floor.ns, -floor.busy_ns))
        pipeline = ns_to_ps(floors[0].ns)
        return Ideal(
            ns=ps_to_ns(start + load + pipeline),
            start_ns=ps_to_ns(start),
            load_ns=ps_to_ns(load),
            gemm_ns=ps_to_ns(len(tiles) * self._gemm_ps),
            floors=tuple(floors),
        )

    def block_sizes(self, shape: GemmShape) -> TileSizes | None:
        """Return the block sizes that the machine uses for a product, or None if the product is streamed."""
        return self._scheduler.block_sizes(self._product(shape)[1], "auto", self._pe.gemm.acc_bytes)

    def _product(self, shape: GemmShape) -> tuple[Command, BlockedProduct]:
        a, b, out = (
            MemoryRef(va, extents, self._dtype)
            for va, extents in enumerate(((shape.m, shape.k), (shape.k, shape.n), (shape.m, shape.n)))
        )
        command = Command(Opcode.GEMM, "composite", 0, 0, (), (a, b), out, Params(block="auto"))
        return command, self._scheduler.product_of(command, dict.fromkeys((a, b, out), (self._memory,)))

    def _time_blocks(self, shape: GemmShape, sizes: TileSizes) -> Ideal:
        """Return the ideal time of a product by blocks."""
        command, product = self._product(shape)
        issue, gemm = self._pe.components.pe_scheduler.attrs.issue_ps, self._gemm_ps
        ahead = (self._pe.components.pe_scheduler.attrs.stage_slots + 1) * gemm
        busy = dict.fromkeys(("DMA in", "fetch", "GEMM", "store", "DMA out", MEMORY), 0)
        delivered = gemmed = fetched = freed = freed_before = end = 0
        reading = reads = _Go()
        memory, outages = 0, self._pace.clock
        for step in block_steps(command, self._pe.gemm.tile_sizes, sizes, keep_a=product.keeps_a):
            panels, tiles = self._read(step.nbytes), list(step.tiles)
            if step.reads:
                requested = freed_before + panels.before
                reading = (reading if delivered >= requested else _Go(requested)).then(panels)
                delivered = reading.end_ps(outages)
            arrived = delivered + self._back_ps + issue
            fetches, stores = ([port(tile) for tile in tiles] for port in (self._fetch_ps, self._store_ps))
            writes = [self._write(tile.result[1].nbytes) for tile in tiles if tile.result is not None]
            gemmed = max(gemmed, arrived + fetches[0]) + len(tiles) * gemm
            fetched = max(fetched, arrived) + sum(fetches)
            freed_before, freed = freed, max(fetched, gemmed - ahead)
            end = max(gemmed, fetched + gemm) + stores[-1] + (writes[-1].alone if writes else 0)
            reads = reads.then(panels)
            busy["fetch"] += sum(fetches)
            busy["GEMM"] += len(tiles) * gemm
            busy["store"] += sum(stores)
            busy["DMA out"] += sum(write.busy for write in writes)
            memory += panels.memory + sum(write.memory for write in writes)
        busy["DMA in"], busy[MEMORY] = reads.end_ps(outages), outages.out(memory)
        around = end - max(busy.values())
        floors = [Floor(stage, ps_to_ns(ps + around), ps_to_ns(ps)) for stage, ps in busy.items()]
        start = self._pe.components.pe_cpu.attrs.first_issue_ps
        return Ideal(
            ns=ps_to_ns(start + end),
            start_ns=ps_to_ns(start),
            load_ns=0.0,
            gemm_ns=ps_to_ns(busy["GEMM"]),
            floors=tuple(sorted(floors, key=lambda floor: -floor.ns)),
        )

    def _fetch_ps(self, tile: Tile) -> int:
        return self._pe.tcm.read_ps(tile.fetch_bytes)

    def _store_ps(self, tile: Tile) -> int:
        return self._pe.tcm.write_ps(tile.store_bytes)

    def _steps(self, tile: GemmTile, stream_a: bool, stream_b: bool) -> TileSteps:
        """Return the stages of one tile, with its time in each."""
        a, b = tile.rows * tile.steps * self._item, tile.steps * tile.columns * self._item
        streamed = a * stream_a + b * stream_b
        steps = [TileStep("issue", self._pe.components.pe_scheduler.attrs.issue_ps)]
        if streamed:
            steps.append(self._read(streamed))
        steps += [TileStep("fetch", self._pe.tcm.read_ps(a + b)), TileStep("GEMM", self._gemm_ps)]
        if tile.last:
            out = tile.rows * tile.columns * self._item
            steps += [TileStep("store", self._pe.tcm.write_ps(out)), self._write(out)]
        return steps

    def _read(self, nbytes: int) -> TileStep:
        """Return the read of a tile: set-up, request and access, data at the rate of memory or route, return."""
        memory = transfer_ps(nbytes, self._pace.gbs)
        request = self._there_ps + transfer_ps(self._header_bytes, self._there_gbs)
        before = self._pe.dma.setup_ps + request + self._access_ps
        busy = max(self._pace.clock.out(memory), transfer_ps(nbytes, self._back_gbs))
        return TileStep("DMA in", busy, before, self._back_ps, memory)

    def _write(self, nbytes: int) -> TileStep:
        """Return set-up and route; the data; access and acknowledgement. With banks, no write is waited for."""
        memory = 0 if self._keeps_writes else transfer_ps(nbytes, self._pace.gbs)
        before = self._pe.dma.setup_ps + self._there_ps
        after = self._access_ps + self._back_ps + transfer_ps(self._header_bytes, self._back_gbs)
        return TileStep("DMA out", max(memory, transfer_ps(nbytes, self._there_gbs)), before, after, memory)


def _floors(tiles: Sequence[TileSteps], outages: RefreshClock) -> list[Floor]:
    """Return a lower bound of the pipeline time from each stage, and from the memory that some stages share."""
    stages = [_floor(step.stage, tiles, _work_at(step.stage), outages) for step in tiles[-1]]
    memory = _floor(MEMORY, tiles, lambda step: step.memory, outages)
    return [*stages, memory] if memory.busy_ns else stages


def _work_at(stage: str) -> StepWork:
    return lambda step: step.busy if step.stage == stage else 0


def _floor(stage: str, tiles: Sequence[TileSteps], work: StepWork, outages: RefreshClock) -> Floor:
    """Return the time of all ``work``, plus the earlier stages of its first tile and the later stages of its last tile.

    Refresh outages extend the work of the memory.
    """
    working = [step for tile in tiles for step in tile if work(step)]
    busy = max(sum(map(work, working)), outages.out(sum(step.memory for step in working)))
    before, after = _before(tiles[0], work), _after(tiles[-1], work)
    return Floor(stage, ps_to_ns(before + busy + after), ps_to_ns(busy))


def _before(tile: TileSteps, work: StepWork) -> int:
    """Return the time of a tile before its work. For a tile without work, this is the total time."""
    passed = 0
    for step in tile:
        if work(step):
            return passed + step.before
        passed += step.alone
    return passed


def _after(tile: TileSteps, work: StepWork) -> int:
    """Return the time of a tile after its last work."""
    passed = 0
    for step in reversed(tile):
        if work(step):
            return passed + step.after
        passed += step.alone
    return passed
