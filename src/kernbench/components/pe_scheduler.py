"""The tile scheduler of a PE: it divides dots and composites into tiles and injects them into the pipeline.

One stage of the pipeline is the DMA, which streams tiles between memory and TCM. For a product by blocks the operands
are read as panels instead, into the part of the TCM that is reserved for the scheduler.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from itertools import chain
from math import inf
from typing import Any

from kernbench.common.ids import pe_part
from kernbench.common.operators import EPILOGUE
from kernbench.common.units import ns_to_ps, ps_to_ns
from kernbench.common.values import state
from kernbench.components.access_plan import extent, plan
from kernbench.components.pe_dma import PeDma
from kernbench.components.pe_fetch_store import PeFetchStore
from kernbench.components.pe_gemm import PeGemm
from kernbench.components.pe_math import PeMath
from kernbench.components.pe_mmu import PeMmuPart
from kernbench.components.pipeline import (
    PipelineReport,
    PipelineSizes,
    StageEnd,
    TileList,
    TileLists,
    TilePipeline,
    TileRun,
)
from kernbench.components.stage import Gate, OverlappingStage, Stage, StageUnit, Token
from kernbench.core.clock import RANK_STAGE, Clock
from kernbench.core.log import LAUNCH, LINE, NONE, By, Cause, Kind, Row
from kernbench.di.registry import register
from kernbench.engine.machine import Component, Machine
from kernbench.engine.recorder import MathSize, OpStarted, TileAmounts, TileMove
from kernbench.messages.commands import DOT, GEMM, ArrayPlace, Block, BlockChoice, Command, MemoryRef, Operand
from kernbench.messages.requests import PeCoord
from kernbench.topology.cube_spec import SramAttrs
from kernbench.topology.graph import Node
from kernbench.topology.hbm_spec import HbmCtrlAttrs
from kernbench.topology.pe_spec import PeSchedulerAttrs
from kernbench.triton_emu.block_sizes import BlockedProduct, BlockRoom, OperandReads
from kernbench.triton_emu.tile_plans import (
    STORED,
    AccumulatorUse,
    BlockStep,
    DotTiles,
    OperandPanel,
    OperandWindow,
    StepTiles,
    Tile,
    TileSizes,
    gemm_tiles,
    math_tiles,
    row_strides,
)


@state
class TileWork:
    """The work of a scheduler token: the plan, the tile, and the number of the tile in the log."""

    plan: Any
    tile: Tile
    number: int


class TileDma:
    """The reads and writes of tile windows. Addresses are translated by the PE's MMU."""

    def __init__(self, machine: Machine, coord: PeCoord, dma: PeDma) -> None:
        self._machine = machine
        self._coord = coord
        self._dma = dma
        self._mmu = machine.part(pe_part(*coord, "pe_mmu"), PeMmuPart)

    def read(self, token: Token, done: Callable[[Row], None]) -> None:
        """Stream in the windows of a tile. Call ``done(row)`` when the last window is in TCM."""
        work = token.work
        missing = len(work.tile.reads)

        def on_window(row: Row) -> None:
            nonlocal missing
            missing -= 1
            if not missing:
                done(row)

        for window in work.tile.reads:
            self.move(work.plan, work.tile.index, window, True, on_window, token.cause)

    def write(self, token: Token, done: Callable[[Row], None]) -> None:
        """Stream out the output tile. Call ``done(row)`` when the tile is acknowledged."""
        work = token.work
        self.move(work.plan, work.tile.index, work.tile.write, False, done, token.cause)

    def move(
        self,
        command: PipelinedCommand,
        index: tuple[int, ...],
        window: OperandWindow,
        reading: bool,
        done: Callable[[Row], None],
        cause: Cause,
    ) -> None:
        """Read or write ``window`` of tile ``index``. Call ``done(row)`` when the transfer is complete."""
        machine = self._machine
        low, span = extent(window.shape, window.itemsize, window.strides)
        located = self._mmu.table.segments(window.va + low, span)
        segments = tuple((pa.encode(), nbytes) for pa, nbytes in located)
        targets = plan(machine.addresses, segments, window.shape, window.itemsize, window.strides)
        op = machine.next_op()
        begun = partial(self._open_row, op, TileMove(command.op, window.name, index, reading), len(targets))
        descriptor = op, reading, targets, begun, partial(self._on_end, op, done)
        pages = self._mmu.pages(window.va, window.shape, window.itemsize, window.strides)
        if pages:
            row, rows = command.row, machine.log.rows
            launch, line = rows[row + LAUNCH], rows[row + LINE]
            self._mmu.walk(pages, launch, line, cause, partial(self._dma.start, *descriptor))
        else:
            self._dma.start(*descriptor, cause)

    def _open_row(self, op: int, move: TileMove, accesses: int, start_ps: int, cause: Cause) -> Row:
        reads, writes = (accesses, 0) if move.reading else (0, accesses)
        started = OpStarted(op, self._dma.node.id, move, start_ps, reads, writes, -1)
        return self._machine.begin_op(started, cause)

    def _on_end(self, op: int, done: Callable[[Row], None], _: Row) -> None:
        done(self._machine.end_op(op))


@state(eq=False)
class PipelinedCommand:
    """A command in the pipeline: the tiles not yet injected, the number of tiles inside, and the callbacks.

    For a product by blocks, ``tiles`` are those of one step, and ``steps`` are the steps for which nothing has been
    read. The panels of ``held`` are in TCM or in flight. ``source`` is set for tiles that may be scheduled, as long as
    none of them is injected. In ``inside``, all scheduled tiles together are one tile.
    """

    op: int
    command: Command
    tiles: Iterator[Tile]
    begun: Callable[[int, Cause], Row]
    done: Callable[[Row], None]
    row: Row = NONE
    inside: int = 0
    exhausted: bool = False
    steps: Iterator[BlockStep] | None = None
    held: deque[HeldStep] = field(default_factory=deque)
    source: DotTiles | StepTiles | None = None


@state(eq=False)
class HeldStep:
    """A step whose panels are being read. ``missing``: the number of panels not in TCM.

    ``begun``: tiles of the step are being injected.
    """

    step: BlockStep
    missing: int
    begun: bool = False


_STEPS_HELD = 2


class PanelBuffers:
    """The TCM of a scheduler, with the panels of products by blocks. Panels are read in the order of their use.

    At most two steps of a product have panels: the step that tiles fetch from, and the next step. The panels of the
    next product follow the last panels of a product, if there is room. ``on_ready(cause)`` is called when all panels
    of a step are in TCM.
    """

    def __init__(self, clock: Clock, nbytes: int, dma: TileDma, on_ready: Callable[[Cause], None]) -> None:
        self._clock = clock
        self._free = nbytes
        self._dma = dma
        self._on_ready = on_ready
        self._plans: deque[PipelinedCommand] = deque()  # plans with steps left to read
        self._next: BlockStep | None = None

    def add(self, plan: PipelinedCommand, cause: Cause) -> None:
        """Read the panels of ``plan`` after the panels of all earlier plans."""
        self._plans.append(plan)
        self._read(cause)

    def release(self, plan: PipelinedCommand, row: Row) -> None:
        """At the end of ``row``, free the panels that are not needed after the first step of ``plan``."""
        self._free += plan.held.popleft().step.freed
        self._read((row, By.SLOT))

    def write(self, plan: PipelinedCommand, result: OperandPanel, done: Callable[[Row], None], cause: Cause) -> None:
        """Write a part of the result, which occupies TCM until it is in memory; then call ``done(row)``."""
        nbytes = result[1].nbytes
        self._free -= nbytes

        def on_written(row: Row) -> None:
            self._free += nbytes
            self._read((row, By.SLOT))
            done(row)

        self._dma.move(plan, *result, False, on_written, cause)

    def _read(self, cause: Cause) -> None:
        """Read the panels of the next steps, after ``cause``, if there is room."""
        while self._plans:
            plan = self._plans[0]
            assert plan.steps is not None
            step = self._next = self._next or next(plan.steps, None)
            if step is None:
                plan.steps = None
                self._plans.popleft()
                continue
            if len(plan.held) == _STEPS_HELD or step.nbytes > self._free:
                return
            self._next = None
            self._free -= step.nbytes
            held = HeldStep(step, len(step.reads))
            plan.held.append(held)
            if plan.row < 0:
                plan.row = plan.begun(self._clock.time, cause)
            for read in step.reads:
                self._dma.move(plan, *read, True, partial(self._on_read, held), cause)

    def _on_read(self, held: HeldStep, row: Row) -> None:
        held.missing -= 1
        if not held.missing:
            self._on_ready((row, By.OPERAND))


class _ChosenSizes:
    """A cache of the block sizes chosen on a machine: most PEs of a launch need the same sizes."""

    def __init__(self) -> None:
        self._found: dict[tuple[BlockedProduct, BlockRoom, BlockChoice], TileSizes | None] = {}

    def of(self, product: BlockedProduct, room: BlockRoom, choice: BlockChoice) -> TileSizes | None:
        key = product, room, choice
        if key not in self._found:
            self._found[key] = product.choose(room, choice)
        return self._found[key]


@register("builtin.pe_scheduler", kind="pe_scheduler")
class PeScheduler(Component):
    """The tile scheduler. It injects a tile every ``issue_ns`` while fewer than ``tiles_in_flight`` are in flight.

    Streamed tiles have separate buffers, one for each tile in flight: the slots of the fetch stage.
    """

    Attrs = PeSchedulerAttrs

    def __init__(self, node: Node, machine: Machine) -> None:
        super().__init__(node, machine)
        attrs = self.attrs_as(PeSchedulerAttrs)
        here = node.pe_coord
        self._sizes = machine.spec.pe.gemm.tile_sizes
        self._issue_ps = attrs.issue_ps
        self._in_flight = self._most_in_flight = attrs.tiles_in_flight
        self._gemm = machine.part(pe_part(*here, "pe_gemm"), PeGemm)
        self._math = machine.part(pe_part(*here, "pe_math"), PeMath)
        self._fetch_store = machine.part(pe_part(*here, "pe_fetch_store"), PeFetchStore)
        dma = TileDma(machine, here, machine.part(pe_part(*here, "pe_dma"), PeDma))
        self._issue = StageUnit(self.clock, machine.log, "issue", attrs.tiles_in_flight)
        self._dma_in = OverlappingStage("dma_in", attrs.tiles_in_flight, dma.read)
        self._dma_out = OverlappingStage("dma_out", attrs.tiles_in_flight, dma.write)
        self._plans: deque[PipelinedCommand] = deque()
        self._dma_id = pe_part(*here, "pe_dma")
        self._room = BlockRoom(machine.spec.pe.gemm.acc_bytes, machine.spec.pe.tcm.scheduler_reserved_bytes)
        self._panels = PanelBuffers(self.clock, self._room.panels, dma, self._inject)
        self._panels_end = Gate(
            "panels_end", attrs.tiles_in_flight, lambda token, row: self._panels.release(token.work.plan, row)
        )
        self._units = self._fetch_store.store, self._gemm.unit, self._fetch_store.fetch, self._issue
        sizes = PipelineSizes(self._issue_ps, attrs.tiles_in_flight, attrs.stage_slots)
        self._tile_lists = machine.shared(TileLists, partial(TileLists, machine.log, sizes, amounts_of))
        units = self._fetch_store.store, self._math.unit, self._gemm.unit, self._fetch_store.fetch, self._issue
        for stage, unit in enumerate(units, RANK_STAGE + len(units) * machine.log.part(node.id)):
            unit.rank = stage
        components = [part.node.id for part in (self._fetch_store, self._gemm, self._fetch_store, self)]
        self._scheduled = TilePipeline(
            self.clock, machine.log, components, [unit.rank for unit in self._units], self._tile_lists, self._on_report
        )
        self._log_stages()

    def submit(
        self,
        op: int,
        command: Command,
        begun: Callable[[int, Cause], Row],
        done: Callable[[Row], None],
        cause: Cause,
        use: AccumulatorUse = STORED,
        steps: Iterator[BlockStep] | None = None,
    ) -> None:
        """Run ``command`` after ``cause``.

        ``use``: the accumulators of a dot. ``steps``: the steps of a product by blocks. ``begun(now, cause)`` is called
        when the first tile is issued, and returns the command's row. ``done(row)`` is called when the last tile is
        over; ``row`` is the row of that tile's last stage.
        """
        tiles = self._tiles(command) if steps is None and command.op is not DOT else iter(())
        plan = PipelinedCommand(op, command, tiles, begun, done, steps=steps)
        if command.op is DOT:
            plan.source = DotTiles(command, self._sizes, use)
        self._plans.append(plan)
        if steps is not None:
            self._panels.add(plan, cause)
        self._inject(cause)

    def product_of(self, command: Command, nodes: Mapping[MemoryRef, Sequence[str]]) -> BlockedProduct:
        """Return the parameters that decide the blocks of ``command``. Its memory operands are stored at ``nodes``."""
        a, b, out = command.a, command.b, command.out
        beside = {node for x in (a, b) if isinstance(x, MemoryRef) for node in nodes[x]} & {*nodes[out]}
        return BlockedProduct.of(
            (a, b),
            command.params.epilogue,
            self._sizes,
            (self._reads(a, nodes), self._reads(b, nodes)),
            macs_per_ns=self.machine.spec.pe.gemm.rate(a.dtype),
            write_ns=out.dtype.itemsize / min(map(self._rate_gbs, nodes[out])) if beside else 0.0,
        )

    def _reads(self, operand: ArrayPlace, nodes: Mapping[MemoryRef, Sequence[str]]) -> OperandReads:
        """Return the read rate and the latency of an operand, set by its slowest memory and the route from there."""
        if not isinstance(operand, MemoryRef):
            return OperandReads()
        machine, gbs, latency_ps = self.machine, inf, 0
        for node in nodes[operand]:
            forth, back = machine.route(self._dma_id, node), machine.route(node, self._dma_id)
            gbs = min(gbs, back.bottleneck_gbs, self._rate_gbs(node))
            way_ps = forth.latency_ps(machine.header_bytes) + back.total_overhead_ps
            latency_ps = max(latency_ps, machine.spec.pe.dma.setup_ps + way_ps + self._access_ps(node))
        step, pitch = sorted(map(abs, row_strides(operand)))
        reads = OperandReads(gbs, ps_to_ns(latency_ps), by_rows=abs(row_strides(operand)[1]) == step)
        hbm = machine.spec.cube.hbm
        attrs = [machine.graph.node(node).attrs for node in nodes[operand]]
        if hbm.banks is None or not any(isinstance(memory, HbmCtrlAttrs) for memory in attrs):
            return reads
        return reads.in_banks(pitch, hbm.banks.burst_bytes, hbm.round_bytes)

    def _access_ps(self, node: str) -> int:
        attrs, cube = self.machine.graph.node(node).attrs, self.machine.spec.cube
        if isinstance(attrs, HbmCtrlAttrs):
            return ns_to_ps(cube.hbm.access_ns(attrs))
        return attrs.access_ps if isinstance(attrs, SramAttrs) else 0

    def _rate_gbs(self, node: str) -> float:
        """Return the rate of a memory in GB/s, or infinity if it declares none."""
        attrs = self.machine.graph.node(node).attrs
        if isinstance(attrs, HbmCtrlAttrs):
            return self.machine.spec.cube.slice_bw_gbs
        return self.machine.graph.sram_bw_gbs(node) if isinstance(attrs, SramAttrs) else inf

    def block_sizes(self, product: BlockedProduct, block: Block, sums: int) -> TileSizes | None:
        """Return the block sizes of a product with ``sums`` bytes for its sums; None if the product is streamed."""
        room = replace(self._room, sums=sums)
        if isinstance(block, tuple):
            sizes = product.whole_tiles(block)
            return sizes if product.can_block(room) and product.fits(sizes, room) else None
        return None if block is None else self.machine.shared(_ChosenSizes).of(product, room, block)

    def line_of(self, product: BlockedProduct, block: Block, sizes: TileSizes) -> bool | None:
        """Return the operand whose panels along K are read once: A (True), B (False) or neither (None).

        Only a product that asks for the fewest bytes retains them.
        """
        return product.line_of(sizes, self._room) if block == "least" else None

    def _tiles(self, command: Command) -> Iterator[Tile]:
        return gemm_tiles(command, self._sizes) if command.op is GEMM else math_tiles(command, self._sizes)

    def _inject(self, cause: Cause) -> None:
        """Inject tiles, after ``cause``, while there is room."""
        while self._plans and self._in_flight and not self._scheduled.is_full:
            plan = self._plans[0]
            source, plan.source = plan.source, None
            if source is not None:
                listed = self._tile_list(plan.command, source) if self._in_flight == self._most_in_flight else None
                if listed is not None:
                    self.begin_list(plan, source, listed, cause)
                    continue
                plan.tiles = iter(source)
            tile = next(plan.tiles, None)
            if tile is None:
                if not self._begin_step(plan):
                    break
                continue
            if self._occupy_stages():
                plan.tiles = chain((tile,), plan.tiles)
                continue
            plan.inside += 1
            self._in_flight -= 1
            self._issue.put(self.make_token(plan, tile, cause))

    def _begin_step(self, plan: PipelinedCommand) -> bool:
        """Advance to the next tiles of the first plan, or to the next plan; return False if panels are missing."""
        following = next((held for held in plan.held if not held.begun), None)
        if following is None:
            if plan.steps is not None:
                return False
            plan.exhausted = True
            self._plans.popleft()
            return True
        if following.missing:
            return False
        following.begun = True
        plan.source = following.step.tiles
        return True

    def begin_list(self, plan: PipelinedCommand, source: DotTiles | StepTiles, listed: TileList, cause: Cause) -> None:
        """Let the tiles of a list enter by their schedule."""
        is_last = plan.steps is None and all(held.begun for held in plan.held)
        plan.inside += is_last
        self._scheduled.begin(plan, source, listed, cause, is_last=is_last)

    def _tile_list(self, command: Command, source: DotTiles | StepTiles) -> TileList | None:
        """Return the list of tiles if they may run by a precomputed schedule, else None."""
        cached, key = self._tile_lists.known, source.key
        if key not in cached:
            times = self._fetch_store.fetch_ps, self._gemm.tile_ps(command.a.dtype), self._fetch_store.store_ps
            cached[key] = self._tile_lists.make(command, source, times)
        return cached[key]

    def _on_report(self, run: TileRun, report: PipelineReport, tile: int, row: Row) -> None:
        """Handle the end ``row`` of a scheduled tile in a stage."""
        plan: PipelinedCommand = run.plan
        if report is PipelineReport.EXHAUSTED:
            if self._begin_step(plan):
                self._inject((row, By.SLOT))
        elif report is PipelineReport.RELEASE:
            self._panels.release(plan, row)
        elif report is PipelineReport.RESULT:
            plan.inside += 1
            self._write_result(plan, run.source.result_of(tile), row)
        elif report is PipelineReport.LAST:
            self._on_written(plan, row)
        elif plan.row < 0:
            plan.row = plan.begun(self.clock.time, run.first_cause)

    def _occupy_stages(self) -> bool:
        """Let the scheduled tiles that are in flight occupy the stages; return False if there are none."""
        coming, now = self._scheduled.leave(), self.clock.time
        for stage, unit in enumerate(self._units):
            unit.occupy([(now + x[0].end_ps, x) for x in coming if x[0].stage == stage], self._on_end)
        self._in_flight -= sum(end.retires for end, _, _ in coming)
        return bool(coming)

    def _on_end(self, scheduled: tuple[StageEnd, TileRun, int]) -> Row:
        """Return the row of a scheduled tile that ends in a stage. Inject a tile if the scheduled tile retires."""
        end, run, number = scheduled
        row = self._scheduled.row_of(run, number)
        if end.retires:
            self._in_flight += 1
            self._inject((row, By.SLOT))
        return row

    def make_token(self, plan: PipelinedCommand, tile: Tile, cause: Cause) -> Token:
        """Make the token of a tile, with its route and its times in the timed stages, last stage first."""
        route: list[Stage] = [self._issue]
        times = [self._issue_ps]
        if tile.reads:
            route.append(self._dma_in)
        route.append(self._fetch_store.fetch)
        times.append(self._fetch_store.fetch_ps(tile.fetch_bytes))
        if tile.ends_step:
            route.append(self._panels_end)
        if tile.macs:
            route.append(self._gemm.unit)
            times.append(self._gemm.tile_ps(plan.command.a.dtype))
        if tile.math_bytes:
            route.append(self._math.unit)
            times.append(sum(self._math.operation_ps(nbytes) for nbytes in tile.math_bytes))
        if tile.store_bytes:
            route.append(self._fetch_store.store)
            times.append(self._fetch_store.store_ps(tile.store_bytes))
        if tile.write is not None:
            route.append(self._dma_out)
        route.reverse()
        times.reverse()
        number = self.machine.log.tile(tile.index)
        return Token(TileWork(plan, tile, number), route, len(route), times, len(times), self._retire, None, cause)

    def _retire(self, token: Token) -> None:
        work, row = token.work, token.row
        self._in_flight += 1
        if work.tile.result is None:
            work.plan.inside -= 1
        else:
            self._write_result(work.plan, work.tile.result, row)
        self._inject((row, By.SLOT))
        self._end(work.plan, row)

    def _write_result(self, plan: PipelinedCommand, result: OperandPanel, row: Row) -> None:
        """Write a part of the result, which ``row`` has completed, as a part of ``plan``."""
        self._panels.write(plan, result, partial(self._on_written, plan), (row, By.OPERAND))

    def _on_written(self, plan: PipelinedCommand, row: Row) -> None:
        plan.inside -= 1
        self._end(plan, row)

    def _end(self, plan: PipelinedCommand, row: Row) -> None:
        if plan.exhausted and not plan.inside:
            plan.done(row)

    def _log_stages(self) -> None:
        """Log every timed stage of a tile."""
        log = self.machine.log
        units: tuple[tuple[StageUnit, Component, Kind], ...] = (
            (self._fetch_store.fetch, self._fetch_store, Kind.FETCH),
            (self._gemm.unit, self._gemm, Kind.GEMM),
            (self._math.unit, self._math, Kind.MATH),
            (self._fetch_store.store, self._fetch_store, Kind.STORE),
        )
        label = log.intern("stage")
        for unit, component, kind in units:
            unit.open = partial(self._open_row, log.part(component.node.id), kind, label)
        self._issue.open = partial(self._open_issue, log.part(self.node.id))

    def _open_issue(self, part: int, token: Token, start: int) -> Row:
        """Open the row of an issued tile. For the first tile of a plan, open also the row of the plan."""
        plan, tile = token.work.plan, token.work.tile
        if plan.row < 0:
            plan.row = plan.begun(start, token.cause)
        label = self.machine.log.intern(amounts_of(tile, plan.command))
        return self._open_row(part, Kind.TILE_ISSUE, label, token, start)

    def _open_row(self, part: int, kind: Kind, label: int, token: Token, start: int) -> Row:
        """Open the row of a tile that begins in a stage."""
        log, parent = self.machine.log, token.work.plan.row
        launch, line = log.rows[parent + LAUNCH], log.rows[parent + LINE]
        number, cause = token.work.number, token.cause
        return log.open(part, kind, start, cause, subject=label, launch=launch, line=line, tile=number, parent=parent)


def amounts_of(tile: Tile, command: Command) -> TileAmounts:
    """Return the bytes and operations of a tile of ``command``."""
    element = command.a.dtype if tile.macs else None
    math = _math_of(tile, command) if tile.math_bytes else ()
    return TileAmounts(tile.fetch_bytes, tile.macs, element, sum(tile.math_bytes), tile.store_bytes, math)


def _math_of(tile: Tile, command: Command) -> tuple[MathSize, ...]:
    """Return the MATH operations of a tile: the operator of an elementwise composite, and the steps of the epilogue."""
    out, first = command.out.dtype, () if tile.macs else ((command.name, command.srcs),)
    steps = [(EPILOGUE[step.name].name, (step.operand,)) for step in command.params.epilogue]
    sizes = []
    for (name, sources), nbytes in zip((*first, *steps), tile.math_bytes, strict=True):
        types = [out, *(x.dtype for x in sources if isinstance(x, Operand | MemoryRef))]
        widest = max(types, key=lambda dtype: dtype.itemsize)
        sizes.append(MathSize(name, nbytes, widest.name, nbytes // widest.itemsize, 0))
    return tuple(sizes)
