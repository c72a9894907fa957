"""What one PE did in a run, by when it ended and by what it belonged to: what the walk along a critical path asks."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from kernbench.messages.requests import PeCoord
from kernbench.sim_engine.clock import NEVER
from kernbench.sim_engine.hooks import Issued
from kernbench.sim_engine.trace_log import PLAN, TraceLog, Work

ROUTE = ("DMA in", "fetch", "GEMM", "MATH", "store", "DMA out")
"""The engines that a tile passes, in order."""
TileKey = tuple[int, tuple[int, ...] | None]


@dataclass(slots=True)
class PeHistory:
    """The works of a PE."""

    by_end: dict[int, list[Work]] = field(default_factory=dict)
    by_dma_start: dict[int, list[Work]] = field(default_factory=dict)
    by_start: dict[int, list[Work]] = field(default_factory=dict)
    commands: dict[tuple[int, int], Work] = field(default_factory=dict)
    tiles: dict[TileKey, list[Work]] = field(default_factory=dict)
    issues: dict[int, list[Issued]] = field(default_factory=dict)
    ends: list[int] = field(default_factory=list)

    def add(self, work: Work) -> None:
        """Note something that has ended."""
        self.by_end.setdefault(work.end_ps, []).append(work)
        if is_dma(work):
            self.by_dma_start.setdefault(work.start_ps, []).append(work)
        if work.whole is not None:
            self.tiles.setdefault((work.whole.op, work.tile), []).append(work)
            self.by_start.setdefault(work.start_ps, []).append(work)
        else:
            self.commands[work.launch_id, work.serial] = work

    def ended_at(self, when: int) -> list[Work]:
        """What ended at that moment."""
        return self.by_end.get(when, [])

    def last_end_before(self, when: int) -> int:
        """The last moment before ``when`` at which anything ended; -1 when there was none."""
        at = bisect_left(self.ends, when)
        return self.ends[at - 1] if at else -1

    def dma_begun_at(self, when: int, but: Work) -> Work | None:
        """A descriptor whose set-up began at that moment."""
        return next((each for each in self.by_dma_start.get(when, ()) if each is not but), None)

    def mates(self, work: Work) -> Iterator[Work]:
        """The other works of the same tile."""
        assert work.whole is not None
        return (each for each in self.tiles.get((work.whole.op, work.tile), ()) if each is not work)

    def tiles_begun_at(self, when: int) -> Iterator[Work]:
        """Tiles whose first stage began at that moment."""
        return (each for each in self.by_start.get(when, ()) if self.is_first(each))

    def is_first(self, work: Work) -> bool:
        """Whether nothing of its tile came before."""
        return all(rank(mate) >= rank(work) for mate in self.mates(work))

    def issue_of(self, launch_id: int, serial: int) -> int:
        """How many commands of a launch had been issued when this one was, itself included; 0: it is not known."""
        for count, each in enumerate(self.issues.get(launch_id, ()), start=1):
            if each.command.serial == serial:
                return count
        return 0


def histories(log: TraceLog) -> dict[PeCoord, PeHistory]:
    """What every PE did."""
    found: dict[PeCoord, PeHistory] = {}
    for work in log.works:
        if work.end_ps < NEVER:
            found.setdefault(work.pe, PeHistory()).add(work)
    for issued in log.issued:
        found.setdefault(issued.pe, PeHistory()).issues.setdefault(issued.launch_id, []).append(issued)
    for history in found.values():
        history.ends = sorted(history.by_end)
    return found


def is_dma(work: Work) -> bool:
    """Whether it is a descriptor of the DMA."""
    return work.engine in ("DMA in", "DMA out")


def rank(work: Work) -> int:
    """How far along the pipeline its engine is."""
    return ROUTE.index(work.engine) if work.engine in ROUTE else -1


def stages(works: Iterable[Work]) -> Iterator[Work]:
    """Those that occupy an engine for some time, without the plans they are parts of."""
    return (each for each in works if each.engine != PLAN and each.start_ps < each.end_ps)
