"""The critical path through a kernel, walked backwards on a PE: what began when something else ended waited for it.

Time is exact and every part of a PE acts at the instant at which it can, so whatever begins at t was made possible by
something that ended at t. The rules of the PE say what that can be: the operands of a command, its issue by the
program, the engine before it; for a tile its stage before, the tile before in that stage, a slot in the stage behind.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from kernbench.common.ids import pe_part
from kernbench.common.units import ns_to_ps
from kernbench.messages.requests import PeCoord
from kernbench.sim_engine.critical_path_control import ControlIndex
from kernbench.sim_engine.critical_path_dma import walk_dma
from kernbench.sim_engine.critical_path_history import PeHistory, is_dma, rank, stages
from kernbench.sim_engine.critical_path_model import Chain, Part
from kernbench.sim_engine.machine import Machine
from kernbench.sim_engine.trace_log import PLAN, Exchange, Turn, Work

ENGINE_PARTS = {"fetch": Part.FETCH, "GEMM": Part.GEMM, "MATH": Part.MATH, "store": Part.STORE, "queues": Part.QUEUES}


@dataclass(frozen=True, slots=True)
class Ended:
    """The path comes from the end of a work."""

    work: Work


@dataclass(frozen=True, slots=True)
class Starting:
    """The path is where a work began, or waits to begin."""

    work: Work


@dataclass(frozen=True, slots=True)
class Issuing:
    """The scheduler began to issue the tile of a work."""

    work: Work


@dataclass(frozen=True, slots=True)
class Running:
    """The program of a PE goes on; it has issued ``issued`` commands."""

    issued: int


Place: TypeAlias = Ended | Starting | Issuing | Running


@dataclass(slots=True)
class KernelWalk:
    """Walks ``chain`` from the end of a kernel of ``launch_id`` on ``pe`` to its start, perhaps on another PE.

    ``starts``: when every PE began the kernel; ``turns_of``: of memories, by operation.
    """

    machine: Machine
    histories: dict[PeCoord, PeHistory]
    control: ControlIndex
    exchanges: dict[int, list[Exchange]]
    turns_of: dict[int, list[Turn]]
    chain: Chain
    launch_id: int
    starts: dict[PeCoord, int]
    pe: PeCoord
    _seen: set[tuple[int, int]] = field(default_factory=set)

    def walk(self) -> PeCoord:
        """Go to the start of the kernel; returns the PE where the path begins."""
        place: Place | None = self._end()
        while place is not None:
            place = self._step(place)
        return self.pe

    @property
    def _here(self) -> PeHistory:
        return self.histories.setdefault(self.pe, PeHistory())

    @property
    def _issued(self) -> int:
        """How many commands the program had issued by now."""
        return sum(each.time_ps <= self.chain.at_ps for each in self._here.issues.get(self.launch_id, ()))

    def _end(self) -> Place:
        last = self._command_ended()
        return Ended(last) if last is not None else Running(self._issued)

    def _step(self, place: Place) -> Place | None:
        if isinstance(place, Ended):
            return self._ended(place.work)
        found = self._cause(place)
        return found if found is not None else self._unexplained(place)

    def _cause(self, place: Place) -> Place | None:
        match place:
            case Running(issued):
                return None if self._launched(issued) else self._program(issued)
            case Starting(work):
                return self._tile_start(work) if work.whole is not None else self._command_start(work)
            case Issuing(work):
                return self._issue_start(work)
        return None

    def _unexplained(self, place: Place) -> Place | None:
        """Back to the last thing that ended before; None at the start of the kernel."""
        start = self.starts[self.pe]
        if self.chain.at_ps <= start:
            return None
        before = max(start, self._here.last_end_before(self.chain.at_ps), self._last_issue())
        line = place.work.line if isinstance(place, Starting | Issuing) else 0
        self.chain.back_to(before, Part.WAIT, self.pe, line)
        return None if before == start else self._resume()

    def _last_issue(self) -> int:
        times = [each.time_ps for each in self._here.issues.get(self.launch_id, ())]
        return max([each for each in times if each < self.chain.at_ps], default=-1)

    def _resume(self) -> Place:
        """Go on from whatever ended now."""
        ended = next(stages(self._here.ended_at(self.chain.at_ps)), None)
        return Ended(ended) if ended is not None else Running(self._issued)

    # What ended.

    def _ended(self, work: Work) -> Place | None:
        if work.engine == PLAN:
            return self._plan_ended(work)
        if is_dma(work):
            exchange = max(self.exchanges.get(work.op, ()), key=_answered, default=None)
            walk_dma(self.chain, work, exchange, self.turns_of.get(work.op, []), self.machine)
        else:
            self.chain.back_to(work.start_ps, ENGINE_PARTS.get(work.engine, Part.WAIT), self.pe, work.line)
        return Starting(work)

    def _plan_ended(self, plan: Work) -> Place | None:
        parts = [each for each in stages(self._here.ended_at(self.chain.at_ps)) if each.whole is plan]
        if parts:
            return Ended(max(parts, key=rank))
        self.chain.back_to(plan.start_ps, Part.WAIT, self.pe, plan.line)
        return Starting(plan)

    # The program.

    def _launched(self, issued: int) -> bool:
        """Whether the program has just been entered; if so, the path is at the kernel's start."""
        start = self.starts[self.pe]
        launch_ps = ns_to_ps(self.machine.spec.pe.components.pe_cpu.attrs.launch_ns)
        if issued or self.chain.at_ps != start + launch_ps:
            return False
        self.chain.back_to(start, Part.LAUNCH, self.pe)
        return True

    def _program(self, issued: int) -> Place | None:
        at = self.chain.at_ps
        issues = self._here.issues.get(self.launch_id, [])
        if issued and issues[issued - 1].time_ps == at:
            issue_ps = ns_to_ps(self.machine.spec.pe.components.pe_cpu.attrs.issue_ns)
            self.chain.back_to(at - issue_ps, Part.ISSUE, self.pe, issues[issued - 1].command.line)
            return Running(issued - 1)
        met = self._met()
        if met is not None:
            return met
        ended = self._command_ended()
        return Ended(ended) if ended is not None else None

    def _command_ended(self) -> Work | None:
        found = [
            each
            for each in self._here.ended_at(self.chain.at_ps)
            if each.whole is None and each.launch_id == self.launch_id and self._new(each)
        ]
        return max(found, key=lambda each: each.serial, default=None)

    def _new(self, work: Work) -> bool:
        """Whether the path has not been at the end of ``work``: what takes no time could lead back to itself."""
        if work.start_ps < work.end_ps:
            return True
        key = (work.op, work.end_ps)
        known = key in self._seen
        self._seen.add(key)
        return not known

    def _met(self) -> Place | None:
        """A barrier that has just ended: back to the PE that came last."""
        release = self.control.release_at(pe_part(*self.pe, "pe_cpu"), self.launch_id, self.chain.at_ps)
        if release is None:
            return None
        self.chain.back_to(release.transfer.injected_ps, Part.BARRIER, self.pe)
        arrival = self.control.arrival_at(release.src, self.launch_id, self.chain.at_ps)
        if arrival is None:
            return None
        self.chain.back_to(arrival.transfer.injected_ps, Part.BARRIER, self.pe)
        self.pe = next(pe for pe in self.starts if pe_part(*pe, "pe_cpu") == arrival.src)
        return Running(self._issued)

    # What began.

    def _command_start(self, work: Work) -> Place | None:
        here, at = self._here, self.chain.at_ps
        for serial in reversed(work.after):
            operand = here.commands.get((work.launch_id, serial))
            if operand is not None and operand.end_ps == at:
                return Ended(operand)
        issued = here.issue_of(work.launch_id, work.serial)
        if issued and here.issues[work.launch_id][issued - 1].time_ps == at:
            return Running(issued)
        return self._engine_busy(work)

    def _engine_busy(self, work: Work) -> Place | None:
        """What had the engine before: for the DMA the set-up of another descriptor."""
        here, at = self._here, self.chain.at_ps
        if is_dma(work):
            return self._set_up_before(work)
        if work.engine == PLAN:
            tile = next((each for each in stages(here.ended_at(at)) if each.whole is not None), None)
            return Ended(tile) if tile is not None else self._tile_issued_before(work)
        same = (each for each in stages(here.ended_at(at)) if each.engine == work.engine)
        return next((Ended(each) for each in same), None)

    def _set_up_before(self, work: Work) -> Place | None:
        spec = self.machine.spec.pe
        setup_ps = ns_to_ps(spec.dma.setup_ns + spec.mmu.tlb_hit_ns)
        other = self._here.dma_begun_at(self.chain.at_ps - setup_ps, work) if setup_ps else None
        if other is None:
            return None
        self.chain.back_to(other.start_ps, Part.DMA_SETUP, self.pe, other.line)
        return Starting(other)

    def _tile_start(self, work: Work) -> Place | None:
        ended = list(stages(self._here.ended_at(self.chain.at_ps)))
        before = [each for each in self._here.mates(work) if rank(each) < rank(work) and each in ended]
        if before:
            return Ended(max(before, key=rank))
        # Transfers leave in order: an earlier tile's may have held up this one's.
        if work.engine == "fetch":
            held = next((each for each in ended if each.whole is not None and each.engine == "DMA in"), None)
            if held is not None:
                return Ended(held)
        if is_dma(work):
            set_up = self._set_up_before(work)
            if set_up is not None:
                return set_up
        return self._occupied(work, ended)

    def _occupied(self, work: Work, ended: list[Work]) -> Place | None:
        """The engine was busy, or the tile had just been issued, or there was no slot behind."""
        if not is_dma(work):
            same = next((each for each in ended if each.engine == work.engine), None)
            if same is not None:
                return Ended(same)
        if self._here.is_first(work):
            issue_ps = ns_to_ps(self.machine.spec.pe.components.pe_scheduler.attrs.issue_ns)
            if self._could_issue(work, self.chain.at_ps - issue_ps):
                self.chain.back_to(self.chain.at_ps - issue_ps, Part.TILE_ISSUE, self.pe, work.line)
                return Issuing(work)
        behind = [each for each in ended if rank(each) > rank(work)]
        return Ended(min(behind, key=rank)) if behind else None

    def _could_issue(self, work: Work, when: int) -> bool:
        """Whether a tile's issue can have begun at ``when``: its plan began, a tile left, or one had been issued."""
        here = self._here
        assert work.whole is not None
        return (
            work.whole.start_ps == when
            or any(each.whole is not None for each in stages(here.ended_at(when)))
            or (when < self.chain.at_ps and any(each.tile != work.tile for each in here.tiles_begun_at(when)))
        )

    def _issue_start(self, work: Work) -> Place | None:
        assert work.whole is not None
        at = self.chain.at_ps
        if work.whole.start_ps == at:
            return Starting(work.whole)
        left = [each for each in stages(self._here.ended_at(at)) if each.whole is not None]
        return Ended(max(left, key=rank)) if left else self._tile_issued_before(work)

    def _tile_issued_before(self, work: Work) -> Place | None:
        """The scheduler was still issuing the tile before."""
        issue_ps = ns_to_ps(self.machine.spec.pe.components.pe_scheduler.attrs.issue_ns)
        tiles = self._here.tiles_begun_at(self.chain.at_ps)
        before = next((each for each in tiles if (each.op, each.tile) != (work.op, work.tile)), None)
        if before is None or not issue_ps:
            return None
        self.chain.back_to(self.chain.at_ps - issue_ps, Part.TILE_ISSUE, self.pe, before.line)
        return Issuing(before)


def _answered(exchange: Exchange) -> int:
    return exchange.answered.delivered_ps if exchange.answered is not None else -1
