"""The rules of a PE's engines, walked backwards: what a command or a tile waited for before it could begin.

Time is exact and every part of a PE acts at the instant at which it can, so whatever begins at t was made possible by
something that ended at t. The rules of the PE say what that can be: the engine before it; for a tile its stage before,
the tile before in that stage, a slot in the stage behind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from kernbench.engine.machine import Machine
from kernbench.messages.requests import PeCoord
from kernbench.observe.critical_path_history import PeHistory, is_dma, rank, stages
from kernbench.observe.critical_path_model import Chain, Part
from kernbench.observe.trace_log import PLAN, Work


@dataclass(frozen=True, slots=True)
class Ended:
    """The path comes from the end of a work; of a send, from the delivery of its last byte."""

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
class Leaving:
    """The message of a work left its PE."""

    work: Work


@dataclass(frozen=True, slots=True)
class Running:
    """A program of a PE goes on; the programs of the PE have done ``actions``."""

    actions: int


Place: TypeAlias = Ended | Starting | Issuing | Leaving | Running


@dataclass(slots=True)
class PeWalk:
    """Walks ``chain`` backwards on ``pe``."""

    machine: Machine
    histories: dict[PeCoord, PeHistory]
    chain: Chain
    pe: PeCoord

    @property
    def _here(self) -> PeHistory:
        return self.histories.setdefault(self.pe, PeHistory())

    def _message_left(self, work: Work) -> Place | None:
        """What held up a message before it left: the set-up of its descriptor, that of the one before, its slot."""
        begun = self.chain.at_ps - self.machine.spec.pe.descriptor_ps
        asked = work.start_ps + self.machine.component(work.node).overhead_ps
        before = self._here.by_injection.get(begun) if begun > asked else None
        if before is not None and before is not work:
            self.chain.back_to(begun, Part.DMA_SETUP, self.pe, work.line)
            return Leaving(before)
        self.chain.back_to(asked, Part.DMA_SETUP, self.pe, work.line)
        self.chain.back_to(work.start_ps, Part.QUEUES, self.pe, work.line)
        return Starting(work)

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
        setup_ps = self.machine.spec.pe.descriptor_ps
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
            issue_ps = self.machine.spec.pe.components.pe_scheduler.attrs.issue_ps
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
        issue_ps = self.machine.spec.pe.components.pe_scheduler.attrs.issue_ps
        tiles = self._here.tiles_begun_at(self.chain.at_ps)
        before = next((each for each in tiles if (each.op, each.tile) != (work.op, work.tile)), None)
        if before is None or not issue_ps:
            return self._issued_since(issue_ps)
        self.chain.back_to(self.chain.at_ps - issue_ps, Part.TILE_ISSUE, self.pe, before.line)
        return Issuing(before)

    def _issued_since(self, issue_ps: int) -> Place | None:
        """The scheduler has been issuing tiles, which found their engines busy, since a plan began or a tile left."""
        here = self._here
        most = self.machine.spec.pe.components.pe_scheduler.attrs.tiles_in_flight
        for count in range(1, most + 1 if issue_ps else 1):
            when = self.chain.at_ps - count * issue_ps
            plan = here.plans.get(when)
            left = next((each for each in stages(here.ended_at(when)) if each.whole is not None), None)
            place = Starting(plan) if plan is not None else Ended(left) if left is not None else None
            if place is not None:
                self.chain.back_to(when, Part.TILE_ISSUE, self.pe, place.work.line)
                return place
        return None
