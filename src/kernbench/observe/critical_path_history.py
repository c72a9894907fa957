"""What one PE did in a run, by when it ended and by what it belonged to: what the walk along a critical path asks."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from kernbench.core.clock import NEVER
from kernbench.engine.hooks import Issued, QueueWaited
from kernbench.messages.requests import PeCoord
from kernbench.observe.trace_log import PLAN, Action, TraceLog, Work

ROUTE = ("DMA in", "fetch", "GEMM", "MATH", "store", "DMA out")
"""The engines that a tile passes, in order."""
TileKey = tuple[int, tuple[int, ...] | None]


@dataclass(slots=True)
class PeHistory:
    """The works of a PE, and the ``actions`` of its programs, which a place in a program counts.

    A send is over for its PE when its last byte is delivered: ``by_end`` has it there; ``by_injection`` when it left.
    ``plans`` go by their start.
    """

    by_end: dict[int, list[Work]] = field(default_factory=dict)
    by_dma_start: dict[int, list[Work]] = field(default_factory=dict)
    by_start: dict[int, list[Work]] = field(default_factory=dict)
    commands: dict[tuple[int, int], Work] = field(default_factory=dict)
    tiles: dict[TileKey, list[Work]] = field(default_factory=dict)
    plans: dict[int, Work] = field(default_factory=dict)
    by_injection: dict[int, Work] = field(default_factory=dict)
    actions: list[Action] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    issues: dict[tuple[int, int], int] = field(default_factory=dict)
    ends: list[int] = field(default_factory=list)

    def add(self, work: Work, end_ps: int) -> None:
        """Note something that ended at ``end_ps``."""
        self.by_end.setdefault(end_ps, []).append(work)
        if is_dma(work):
            self.by_dma_start.setdefault(work.start_ps, []).append(work)
        if work.whole is not None:
            self.tiles.setdefault((work.whole.op, work.tile), []).append(work)
            self.by_start.setdefault(work.start_ps, []).append(work)
        else:
            self.commands[work.launch_id, work.serial] = work
        if work.engine == PLAN:
            self.plans[work.start_ps] = work

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

    def acted(self, given: list[Action]) -> None:
        """Note what its programs did."""
        self.actions = given
        self.times = [_time(action) for action in given]
        for count, action in enumerate(given, start=1):
            if isinstance(action, Issued):
                self.issues[action.launch_id, action.command.serial] = count

    def actions_by(self, when: int) -> int:
        """How many actions there had been by then."""
        return bisect_right(self.times, when)

    def last_action_before(self, when: int) -> int:
        """When the last action before ``when`` was; -1 when there was none."""
        at = bisect_left(self.times, when)
        return self.times[at - 1] if at else -1

    def issue_of(self, launch_id: int, serial: int) -> int:
        """How many actions there had been with the issue of a command; 0: it is not known."""
        return self.issues.get((launch_id, serial), 0)


def histories(log: TraceLog) -> dict[PeCoord, PeHistory]:
    """What every PE did."""
    found: dict[PeCoord, PeHistory] = {}
    for work in log.works:
        history = found.setdefault(work.pe, PeHistory())
        if work.op in log.queues.messages:
            _add_send(log, history, work)
        elif work.end_ps < NEVER:
            history.add(work, work.end_ps)
    for pe, actions in log.actions_of.items():
        found.setdefault(pe, PeHistory()).acted(actions)
    for history in found.values():
        history.ends = sorted(history.by_end)
    return found


def _add_send(log: TraceLog, history: PeHistory, work: Work) -> None:
    """A send occupies its PE until the last byte is delivered."""
    for exchange in log.exchanges.get(work.op, ()):
        history.by_injection[exchange.asked.injected_ps] = work
        if exchange.asked.delivered_ps < NEVER:
            history.add(work, exchange.asked.delivered_ps)


def _time(action: Action) -> int:
    return action.end_ps if isinstance(action, QueueWaited) else action.time_ps


def is_dma(work: Work) -> bool:
    """Whether it is a descriptor of the DMA."""
    return work.engine in ("DMA in", "DMA out")


def rank(work: Work) -> int:
    """How far along the pipeline its engine is."""
    return ROUTE.index(work.engine) if work.engine in ROUTE else -1


def stages(works: Iterable[Work]) -> Iterator[Work]:
    """Those that occupy an engine for some time, without the plans they are parts of."""
    return (each for each in works if each.engine != PLAN and each.start_ps < each.end_ps)
