"""The tile scheduler of a PE: it turns dots and composites into tiles and lets them into the pipeline."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from kernbench.common.dtypes import DType
from kernbench.common.ids import pe_part
from kernbench.components.pe_dma import PeDma
from kernbench.components.pe_fetch_store import PeFetchStore
from kernbench.components.pe_gemm import PeGemm
from kernbench.components.pe_math import PeMath
from kernbench.components.stage import OverlappingStage, Stage, StageUnit, Token
from kernbench.components.tile_dma import TileDma, TileWork
from kernbench.di.registry import register
from kernbench.engine.hooks import StageEnded, StageName
from kernbench.engine.machine import Component, Machine
from kernbench.messages.commands import DotCommand, GemmComposite, MathComposite
from kernbench.topology.attrs import PeSchedulerAttrs
from kernbench.topology.graph import Node
from kernbench.triton_emu.tile_plans import Tile, dot_tiles, gemm_tiles, math_tiles

TiledCommand = DotCommand | GemmComposite | MathComposite


@dataclass(slots=True)
class Plan:
    """A command in the pipeline: tiles that have not been injected, how many are inside, whom to tell."""

    op: int
    command: TiledCommand
    tiles: Iterator[Tile]
    begun: Callable[[int], None] | None
    done: Callable[[], None]
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
        self._issue = StageUnit(self.clock, "issue", attrs.tiles_in_flight)
        self._dma_in = OverlappingStage("dma_in", attrs.tiles_in_flight, dma.read)
        self._dma_out = OverlappingStage("dma_out", attrs.tiles_in_flight, dma.write)
        self._plans: deque[Plan] = deque()
        self._observe()

    def submit(self, op: int, command: TiledCommand, begun: Callable[[int], None], done: Callable[[], None]) -> None:
        """Run ``command``: ``begun(now)`` when its first tile is issued, ``done()`` when its last one has retired."""
        self._plans.append(Plan(op, command, self._tiles(command), begun, done))
        self._inject()

    def _tiles(self, command: TiledCommand) -> Iterator[Tile]:
        match command:
            case DotCommand():
                return dot_tiles(command, self._sizes)
            case GemmComposite():
                return gemm_tiles(command, self._sizes)
            case MathComposite():
                return math_tiles(command, self._sizes)

    def _inject(self) -> None:
        """Let tiles in while there is room."""
        while self._plans and self._in_flight:
            plan = self._plans[0]
            tile = next(plan.tiles, None)
            if tile is None:
                plan.exhausted = True
                self._plans.popleft()
                continue
            plan.inside += 1
            self._in_flight -= 1
            token = self._token(plan, tile)
            if plan.begun is not None:
                token.begun, plan.begun = partial(_begin, plan.begun), None
            self._issue.put(token)

    def _token(self, plan: Plan, tile: Tile) -> Token:
        """The way of a tile, and its time in each timed stage; both are read from the end."""
        route: list[Stage] = [self._issue]
        times = [self._issue_ps]
        if tile.reads:
            route.append(self._dma_in)
        route.append(self._fetch_store.fetch)
        times.append(self._fetch_store.fetch_ps(tile.fetch_bytes))
        if tile.gemm:
            route.append(self._gemm.unit)
            times.append(self._gemm.tile_ps(_element(plan.command)))
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
        return Token(TileWork(plan.op, tile, plan), route, len(route), times, len(times), self._retired, None)

    def _retired(self, token: Token) -> None:
        plan = token.work.plan
        plan.inside -= 1
        self._in_flight += 1
        self._inject()
        if plan.exhausted and not plan.inside:
            plan.done()

    def _observe(self) -> None:
        """Report every timed stage a tile has passed."""
        units: tuple[tuple[StageUnit, Component, StageName], ...] = (
            (self._fetch_store.fetch, self._fetch_store, "fetch"),
            (self._gemm.unit, self._gemm, "gemm"),
            (self._math.unit, self._math, "math"),
            (self._fetch_store.store, self._fetch_store, "store"),
        )
        for unit, component, name in units:
            unit.ended = _StageReporter(self.machine, component.node.id, name)


def _begin(begun: Callable[[int], None], _: Token, now: int) -> None:
    begun(now)


def _element(command: TiledCommand) -> DType:
    assert not isinstance(command, MathComposite)
    return command.a.dtype


class _StageReporter:
    """Emits what a stage has finished."""

    def __init__(self, machine: Machine, component: str, stage: StageName) -> None:
        self._log = machine.recorder.stage
        self._hook = machine.hooks.stage_ended
        self._component = component
        self._stage: StageName = stage

    def __call__(self, token: Token, start: int, end: int) -> None:
        work = token.work
        if isinstance(work, TileWork):  # a single MATH command has a record of its own
            event = StageEnded(work.op, self._component, self._stage, work.tile.index, start, end)
            log = self._log
            log(event)
            if self._hook.listeners:
                self._hook.emit(event)
