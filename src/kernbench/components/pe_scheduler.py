"""The tile scheduler of a PE: it turns a dot into tiles and lets them into the pipeline."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kernbench.common.ids import pe_part
from kernbench.common.units import ns_to_ps
from kernbench.components.pe_fetch_store import PeFetchStore
from kernbench.components.pe_gemm import PeGemm
from kernbench.components.stage import StageUnit, Token
from kernbench.di.registry import register
from kernbench.messages.commands import DotCommand
from kernbench.sim_engine.component import Component
from kernbench.sim_engine.hooks import StageEnded
from kernbench.sim_engine.machine import Machine
from kernbench.topology.attrs import PeSchedulerAttrs
from kernbench.topology.graph import Node


@dataclass(frozen=True, slots=True)
class GemmTile:
    """A tile of a GEMM: its place in M, N and K (K runs fastest), and what it holds of each axis."""

    index: tuple[int, int, int]
    m: int
    n: int
    k: int
    last_k: bool


def gemm_tiles(m: int, n: int, k: int, tile: tuple[int, int, int]) -> Iterator[GemmTile]:
    """The tiles of an m × k by k × n product, row by row, for tile sizes (m, n, k); edge tiles hold less."""
    tm, tn, tk = tile
    last = -(-k // tk) - 1
    for i in range(-(-m // tm)):
        for j in range(-(-n // tn)):
            for s in range(last + 1):
                yield GemmTile(
                    (i, j, s), min(tm, m - i * tm), min(tn, n - j * tn), min(tk, k - s * tk), last_k=s == last
                )


@dataclass(slots=True)
class Plan:
    """A command in the pipeline: tiles that have not been injected, how many are inside, whom to tell."""

    op: int
    command: DotCommand
    tiles: Iterator[GemmTile]
    begun: Callable[[int], None]
    done: Callable[[], None]
    inside: int = 0
    exhausted: bool = False


@register("builtin.pe_scheduler", kind="pe_scheduler")
class PeScheduler(Component):
    """Injects a tile every ``issue_ns`` while fewer than ``tiles_in_flight`` are under way; retires them at the end."""

    Attrs = PeSchedulerAttrs

    def __init__(self, node: Node, machine: Machine) -> None:
        super().__init__(node, machine)
        attrs = self.attrs_as(PeSchedulerAttrs)
        self._issue_ps = ns_to_ps(attrs.issue_ns)
        self._in_flight = attrs.tiles_in_flight
        gemm = machine.spec.pe.gemm
        self._tile = (gemm.tile_m, gemm.tile_n, gemm.tile_k)
        assert node.sip is not None
        assert node.cube is not None
        assert node.pe is not None
        here = (node.sip, node.cube, node.pe)
        self._gemm = machine.part(pe_part(*here, "pe_gemm"), PeGemm)
        self._fetch_store = machine.part(pe_part(*here, "pe_fetch_store"), PeFetchStore)
        self._issue = StageUnit(self.clock, "issue", self._in_flight)
        self._plans: deque[Plan] = deque()
        if machine.hooks.stage_ended.listeners:
            self._observe()

    def submit(self, op: int, command: DotCommand, begun: Callable[[int], None], done: Callable[[], None]) -> None:
        """Run ``command``: ``begun(now)`` when its first tile is injected, ``done()`` when its last one is stored."""
        m, n = command.dst.shape
        k = command.a.shape[0 if command.trans_a else 1]
        self._plans.append(Plan(op, command, gemm_tiles(m, n, k, self._tile), begun, done))
        self._inject()

    def _inject(self) -> None:
        """Let tiles in while there is room."""
        while self._plans and self._in_flight:
            plan = self._plans[0]
            tile = next(plan.tiles, None)
            if tile is None:
                plan.exhausted = True
                self._plans.popleft()
                continue
            if not plan.inside and tile.index == (0, 0, 0):
                plan.begun(self.clock.time)
            plan.inside += 1
            self._in_flight -= 1
            self._issue.put(self._token(plan, tile))

    def _token(self, plan: Plan, tile: GemmTile) -> Token:
        command = plan.command
        element = command.a.dtype
        operands = (tile.m * tile.k + tile.k * tile.n) * element.itemsize
        stages = [self._gemm.unit, self._fetch_store.fetch, self._issue]
        times = [self._gemm.tile_ps(element), self._fetch_store.fetch_ps(operands), self._issue_ps]
        if tile.last_k:
            stages.insert(0, self._fetch_store.store)
            times.insert(0, self._fetch_store.store_ps(tile.m * tile.n * command.dst.dtype.itemsize))
        return Token(plan, tile.index, stages, times, self._retired)

    def _retired(self, token: Token) -> None:
        plan = token.work
        assert isinstance(plan, Plan)
        plan.inside -= 1
        self._in_flight += 1
        self._inject()
        if plan.exhausted and not plan.inside:
            plan.done()

    def _observe(self) -> None:
        """Report every stage a tile has passed."""
        for unit, component in (
            (self._fetch_store.fetch, self._fetch_store),
            (self._gemm.unit, self._gemm),
            (self._fetch_store.store, self._fetch_store),
        ):
            unit.ended = _StageReporter(self.machine, component.node.id, unit.name)


class _StageReporter:
    """Emits what a stage has finished."""

    def __init__(self, machine: Machine, component: str, stage: str) -> None:
        self._hook = machine.hooks.stage_ended
        self._component = component
        self._stage = stage

    def __call__(self, token: Token, start: int, end: int) -> None:
        plan = token.work
        assert isinstance(plan, Plan)
        self._hook.emit(StageEnded(plan.op, self._component, self._stage, token.index, start, end))  # type: ignore[arg-type]
