"""The tile scheduler of a PE: it turns dots and composites into tiles and lets them into the pipeline.

One stage of the pipeline is the DMA, which streams tiles between memory and TCM.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from kernbench.common.ids import pe_part
from kernbench.common.values import state
from kernbench.components.access_plan import extent, plan
from kernbench.components.pe_dma import PeDma
from kernbench.components.pe_fetch_store import PeFetchStore
from kernbench.components.pe_gemm import PeGemm
from kernbench.components.pe_math import PeMath
from kernbench.components.pe_mmu import PeMmuPart
from kernbench.components.stage import OverlappingStage, Stage, StageUnit, Token
from kernbench.core.log import LAUNCH, LINE, NONE, By, Cause, Kind, Log, Row, pack_row
from kernbench.di.registry import register
from kernbench.engine.machine import Machine
from kernbench.engine.part import Component
from kernbench.engine.recorder import OpStarted, TileAmounts, TileMove
from kernbench.messages.commands import DOT, GEMM, Command
from kernbench.messages.requests import PeCoord
from kernbench.topology.graph import Node
from kernbench.topology.pe_spec import PeSchedulerAttrs
from kernbench.triton_emu.tile_plans import (
    STORED,
    AccumulatorUse,
    OperandWindow,
    Tile,
    dot_tiles,
    gemm_tiles,
    math_tiles,
)


@state
class TileWork:
    """The work of a token of the scheduler: the scheduler's plan, the tile, and its number in the log."""

    plan: Any
    tile: Tile
    number: int


class TileDma:
    """The reads and writes of the windows of tiles; addresses go through the PE's MMU."""

    def __init__(self, machine: Machine, coord: PeCoord, dma: PeDma) -> None:
        self._machine = machine
        self._coord = coord
        self._dma = dma
        self._mmu = machine.part(pe_part(*coord, "pe_mmu"), PeMmuPart)

    def read(self, token: Token, done: Callable[[Row], None]) -> None:
        """Stream in what the tile reads; call ``done(row)`` when the last of it is in TCM."""
        work = token.work
        missing = len(work.tile.reads)

        def on_window(row: Row) -> None:
            nonlocal missing
            missing -= 1
            if not missing:
                done(row)

        for window in work.tile.reads:
            self._move(work, window, True, on_window, token.cause)

    def write(self, token: Token, done: Callable[[Row], None]) -> None:
        """Stream out the output tile; call ``done(row)`` when it is acknowledged."""
        work = token.work
        self._move(work, work.tile.write, False, done, token.cause)

    def _move(
        self, work: TileWork, window: OperandWindow, reading: bool, done: Callable[[Row], None], cause: Cause
    ) -> None:
        machine = self._machine
        low, span = extent(window.shape, window.itemsize, window.strides)
        found = self._mmu.table.segments(window.va + low, span)
        segments = tuple((pa.encode(), nbytes) for pa, nbytes in found)
        targets = plan(machine.addresses, segments, window.shape, window.itemsize, window.strides)
        op = machine.next_op()
        begun = partial(self._open_row, op, work, window, reading, len(targets))
        descriptor = op, reading, targets, begun, partial(self._on_end, op, done)
        pages = self._mmu.pages(window.va, window.shape, window.itemsize, window.strides)
        if pages:
            whole, rows = work.plan.row, machine.log.rows
            launch, line = rows[whole + LAUNCH], rows[whole + LINE]
            self._mmu.walk(pages, launch, line, cause, partial(self._dma.start, *descriptor))
        else:
            self._dma.start(*descriptor, cause)

    def _open_row(
        self, op: int, work: TileWork, window: OperandWindow, reading: bool, accesses: int, start_ps: int, cause: Cause
    ) -> Row:
        what = TileMove(work.plan.op, window.name, work.tile.index, reading)
        reads, writes = (accesses, 0) if reading else (0, accesses)
        started = OpStarted(op, self._dma.node.id, what, start_ps, reads, writes, -1)
        return self._machine.begin_op(started, cause)

    def _on_end(self, op: int, done: Callable[[Row], None], _: Row) -> None:
        done(self._machine.end_op(op))


@state
class PipelinedCommand:
    """A command in the pipeline: tiles that have not been injected, how many are inside, whom to tell."""

    op: int
    command: Command
    tiles: Iterator[Tile]
    begun: Callable[[int, Cause], Row]
    done: Callable[[Row], None]
    row: Row = NONE
    inside: int = 0
    exhausted: bool = False


@register("builtin.pe_scheduler", kind="pe_scheduler")
class PeScheduler(Component):
    """Injects a tile every ``issue_ns`` while fewer than ``tiles_in_flight`` are under way; retires them at the end.

    Streamed tiles land in buffers of their own, one for each tile in flight: the slots of the fetch stage.
    """

    Attrs = PeSchedulerAttrs

    def __init__(self, node: Node, machine: Machine) -> None:
        super().__init__(node, machine)
        attrs = self.attrs_as(PeSchedulerAttrs)
        here = node.pe_coord
        self._sizes = machine.spec.pe.gemm.tile_sizes
        self._issue_ps = attrs.issue_ps
        self._in_flight = attrs.tiles_in_flight
        self._gemm = machine.part(pe_part(*here, "pe_gemm"), PeGemm)
        self._math = machine.part(pe_part(*here, "pe_math"), PeMath)
        self._fetch_store = machine.part(pe_part(*here, "pe_fetch_store"), PeFetchStore)
        dma = TileDma(machine, here, machine.part(pe_part(*here, "pe_dma"), PeDma))
        self._issue = StageUnit(self.clock, machine.log, "issue", attrs.tiles_in_flight)
        self._dma_in = OverlappingStage("dma_in", attrs.tiles_in_flight, dma.read)
        self._dma_out = OverlappingStage("dma_out", attrs.tiles_in_flight, dma.write)
        self._plans: deque[PipelinedCommand] = deque()
        self._log_stages()

    def submit(
        self,
        op: int,
        command: Command,
        begun: Callable[[int, Cause], Row],
        done: Callable[[Row], None],
        cause: Cause,
        use: AccumulatorUse = STORED,
    ) -> None:
        """Run ``command`` after ``cause``. ``use``: where a dot accumulates.

        ``begun(now, cause)`` is called when its first tile is issued, and returns its row; ``done(row)`` when its last
        tile is over, whose last stage has that row.
        """
        self._plans.append(PipelinedCommand(op, command, self._tiles(command, use), begun, done))
        self._inject(cause)

    def _tiles(self, command: Command, use: AccumulatorUse) -> Iterator[Tile]:
        if command.op is DOT:
            return dot_tiles(command, self._sizes, use)
        return gemm_tiles(command, self._sizes) if command.op is GEMM else math_tiles(command, self._sizes)

    def _inject(self, cause: Cause) -> None:
        """Let tiles in, after ``cause``, while there is room."""
        while self._plans and self._in_flight:
            plan = self._plans[0]
            tile = next(plan.tiles, None)
            if tile is None:
                plan.exhausted = True
                self._plans.popleft()
                continue
            plan.inside += 1
            self._in_flight -= 1
            self._issue.put(self._token(plan, tile, cause))

    def _token(self, plan: PipelinedCommand, tile: Tile, cause: Cause) -> Token:
        """Make the token of a tile: its way, and its time in each timed stage; both are read from the end."""
        route: list[Stage] = [self._issue]
        times = [self._issue_ps]
        if tile.reads:
            route.append(self._dma_in)
        route.append(self._fetch_store.fetch)
        times.append(self._fetch_store.fetch_ps(tile.fetch_bytes))
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
        plan, row = token.work.plan, token.row
        plan.inside -= 1
        self._in_flight += 1
        self._inject((row, By.SLOT))
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
        for unit, component, kind in units:
            unit.open = _StageWriter(log, component.node.id, kind).open
        self._part = log.part(self.node.id)
        self._issue.open = self._open_issue

    def _open_issue(self, token: Token, start: int) -> Row:
        """Open the row of a tile that is issued; with the first one of a plan, also the plan's."""
        plan = token.work.plan
        if plan.row < 0:
            plan.row = plan.begun(start, token.cause)
        log = self.machine.log
        launch, line = log.rows[plan.row + LAUNCH], log.rows[plan.row + LINE]
        work, tile = token.work, token.work.tile
        element = plan.command.a.dtype if tile.macs else None
        amounts = TileAmounts(tile.fetch_bytes, tile.macs, element, sum(tile.math_bytes), tile.store_bytes)
        return log.open(
            self._part,
            Kind.TILE_ISSUE,
            start,
            token.cause,
            what=log.named(amounts),
            launch=launch,
            line=line,
            tile=work.number,
            parent=plan.row,
        )


class _StageWriter:
    """The writer of the rows of a stage's tiles."""

    def __init__(self, log: Log, component: str, kind: Kind) -> None:
        self._rows = log.rows
        self._part = log.part(component)
        self._kind = int(kind)
        self._what = log.named("stage")

    def open(self, token: Token, start: int) -> Row:
        """Open the row of a tile that begins."""
        rows, work, (after, by) = self._rows, token.work, token.cause
        whole, row = work.plan.row, len(rows)
        launch, line = rows[whole + LAUNCH], rows[whole + LINE]
        what, tile = self._what, work.number
        rows.frombytes(
            pack_row(self._part, self._kind, what, launch, line, tile, whole, start, -1, -1, -1, after, by, NONE)
        )
        return row
