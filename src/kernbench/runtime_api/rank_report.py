"""Report programs of ranks: what does not shrink, the bubbles of pipelines, and the rows of uneven exchanges.

A bubble is time within a step of a pipeline in which no kernel of a rank runs and no message of it is in flight. The
step lasts from the begin of the first operator on any of its ranks to the end of the last launch. A collective that
waits for another rank does not count as a kernel: it counts while an engine of the rank works for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

import numpy as np

from kernbench.common.figures import figure
from kernbench.common.units import ps_to_ns
from kernbench.common.values import state, value
from kernbench.engine.engine import GraphEngine
from kernbench.engine.requests import RequestHandle
from kernbench.messages.requests import KernelLaunchMsg
from kernbench.observe.statistics import unions_ps
from kernbench.observe.works import ENGINE_OF, Times, Works
from kernbench.runtime_api.alike_work import ScalingReport


@value(kw_only=True)
class PipelineUse:
    """The steps of a pipeline: their time, and the bubbles of each of its ``ranks``."""

    name: str = figure("the schedule")
    ranks: tuple[int, ...] = figure("its ranks, in the order of stages")
    microbatches: int = figure("microbatches of a step")
    steps: int = figure("steps that have ended on all ranks")
    ns: float = figure("time of the steps, from the begin of the first operator to the end of the last launch, in ns")
    bubble_ns: tuple[float, ...] = figure("bubbles of each rank, in ns")

    @property
    def bubble_share(self) -> float:
        """The bubbles of all ranks as a share of their time."""
        return sum(self.bubble_ns) / (self.ns * len(self.ranks)) if self.ns else 0.0


@value(kw_only=True)
class ExchangeUse:
    """Calls of an all-to-all with split sizes: the rows that each rank sent and received."""

    name: str = figure("the line of the calls")
    calls: int = figure("calls of each rank")
    sent: tuple[int, ...] = figure("rows that each rank sent")
    received: tuple[int, ...] = figure("rows that each rank received")
    received_bytes: tuple[int, ...] = figure("bytes that each rank received")
    imbalance: float = figure("most rows that a rank sent or received, over the mean, in the worst call")


@value(kw_only=True)
class RanksReport:
    """The part of the time that more ranks do not shrink, and the pipelines and uneven exchanges of a program."""

    bubble_share: float = figure("bubbles of all pipelines, as a share of the time of their ranks", default=0.0)
    imbalance: float = figure("the largest imbalance of an exchange", default=0.0)
    scaling: ScalingReport | None = None
    pipelines: tuple[PipelineUse, ...] = ()
    exchanges: tuple[ExchangeUse, ...] = ()


@value
class PipelineKey:
    """A pipeline, for all of its ranks."""

    name: str
    ranks: tuple[int, ...]
    microbatches: int


@value
class _Block:
    """The part of a rank in an exchange: rows sent and received, and bytes received."""

    sent: int
    received: int
    received_bytes: int


@state
class RankNotes:
    """Record of the common work of ranks: steps of pipelines, messages, and exchanges with split sizes."""

    _steps: dict[PipelineKey, list[dict[int, range]]] = field(default_factory=dict)
    _receivers: dict[int, int] = field(default_factory=dict)
    _exchanges: dict[str, dict[tuple[tuple[int, ...], int], dict[int, _Block]]] = field(default_factory=dict)
    _calls: Counter[tuple[str, tuple[int, ...], int]] = field(default_factory=Counter)

    def note_step(self, pipeline: PipelineKey, rank: int, requests: range) -> None:
        """Note a step of a rank, by the numbers of the requests that were submitted meanwhile."""
        steps = self._steps.setdefault(pipeline, [])
        step = next((step for step in steps if rank not in step), None)
        if step is None:
            steps.append(step := {})
        step[rank] = requests

    def note_message(self, launch: int, receiver: int) -> None:
        """Note the launch by which a rank sends a message."""
        self._receivers[launch] = receiver

    def note_exchange(
        self, name: str, rank: int, ranks: tuple[int, ...], sent: int, received: int, received_bytes: int
    ) -> None:
        """Note the part of a rank in an exchange among ``ranks``: its rows, and the bytes that it receives."""
        number = self._calls[name, ranks, rank]
        self._calls[name, ranks, rank] += 1
        calls = self._exchanges.setdefault(name, {})
        calls.setdefault((ranks, number), {})[rank] = _Block(sent, received, received_bytes)

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to report."""
        return not self._steps and not self._exchanges

    def report(self, engine: GraphEngine, works: Works, scaling: ScalingReport | None = None) -> RanksReport:
        """Return the report at the end of a run; ``works``: those of its log."""
        pipelines: tuple[PipelineUse, ...] = ()
        if self._steps:
            busy = _BusyTimes.of(engine, works, self._receivers)
            pipelines = tuple(_measure(key, steps, engine.handles, busy) for key, steps in self._steps.items())
        exchanges = tuple(_sum_exchange(name, list(calls.values())) for name, calls in self._exchanges.items())
        rank_ns = sum(use.ns * len(use.ranks) for use in pipelines)
        return RanksReport(
            bubble_share=sum(sum(use.bubble_ns) for use in pipelines) / rank_ns if rank_ns else 0.0,
            imbalance=max((use.imbalance for use in exchanges), default=0.0),
            scaling=scaling,
            pipelines=pipelines,
            exchanges=exchanges,
        )


@value(eq=False)
class _BusyTimes:
    """Times in ps in which the machine works for a rank: an entry for each kernel, work of an engine, and message."""

    ranks: Times
    starts: Times
    ends: Times

    @staticmethod
    def of(engine: GraphEngine, works: Works, receivers: Mapping[int, int]) -> _BusyTimes:
        """Return the busy times of a run; ``receivers``: the receiving rank of a message, by the sender's launch."""
        launches = [handle for handle in engine.handles if isinstance(handle.msg, KernelLaunchMsg) and handle.done]
        passed = engine.machine.passed
        kernels = np.array(
            [
                time
                for handle in launches
                if not _is_collective(handle)
                for time in _kernel_times(handle, engine.handles[passed.sample_of(handle.request_id)])
            ],
            np.int64,
        ).reshape(-1, 3)
        collectives, receivers_of = (np.full(len(engine.handles) + 1, -1, np.int64) for _ in range(2))
        for handle in launches:
            if _is_collective(handle):
                collectives[handle.request_id] = _sip_of(handle)
        for launch, rank in receivers.items():
            receivers_of[launch] = rank
        start, end = (column[works.rows] for column in (works.columns.start, works.columns.end))
        sent = works.done_by(ENGINE_OF["ipcq_copy"])
        by_engine = (end >= 0) & (collectives[works.launch] >= 0)
        incoming = (end >= 0) & sent & (receivers_of[works.launch] >= 0)
        return _BusyTimes(
            np.concatenate([kernels[:, 0], collectives[works.launch][by_engine], receivers_of[works.launch][incoming]]),
            np.concatenate([kernels[:, 1], start[by_engine], start[incoming]]),
            np.concatenate([kernels[:, 2], end[by_engine], end[incoming]]),
        )

    def within(self, begin_ps: int, end_ps: int) -> Mapping[int, int]:
        """Return the busy time of each rank between two times, in ps."""
        inside = (self.starts < end_ps) & (self.ends > begin_ps)
        starts, ends = np.maximum(self.starts[inside], begin_ps), np.minimum(self.ends[inside], end_ps)
        return unions_ps(self.ranks[inside], starts, ends)


def _is_collective(handle: RequestHandle) -> bool:
    return isinstance(handle.msg, KernelLaunchMsg) and handle.msg.algorithm is not None


def _sip_of(handle: RequestHandle) -> int:
    assert isinstance(handle.msg, KernelLaunchMsg)
    return handle.msg.targets[0][0]


def _kernel_times(handle: RequestHandle, sample: RequestHandle) -> Iterator[tuple[int, int, int]]:
    """Yield the rank, the start and the end of each kernel of a launch.

    ``sample``: the launch itself, or if its time passed without a simulation, the one whose kernels stand for its own.
    """
    if sample.outcome is not None:
        later_ps, sip = handle.begun_ps - sample.begun_ps, _sip_of(handle)
        for report in sample.outcome.reports:
            if report.end_ps:
                yield sip, report.start_ps + later_ps, report.end_ps + later_ps


def _measure(
    key: PipelineKey, steps: Sequence[Mapping[int, range]], handles: Sequence[RequestHandle], busy: _BusyTimes
) -> PipelineUse:
    """Return the use of a pipeline by the steps that have ended on all ranks."""
    n_steps, total_ps, bubbles = 0, 0, dict.fromkeys(key.ranks, 0)
    for step in steps:
        launched = [handle for rank, numbers in step.items() for handle in _launched(rank, numbers, handles)]
        if step.keys() != set(key.ranks) or not launched or not all(handle.done for handle in launched):
            continue
        # A receive is launched early, maybe in the step before.
        begin = min((handle.begun_ps for handle in launched if not _is_collective(handle)), default=0)
        end = max(handle.ended_ps for handle in launched)
        n_steps, total_ps, busy_ps = n_steps + 1, total_ps + end - begin, busy.within(begin, end)
        for rank in key.ranks:
            bubbles[rank] += end - begin - busy_ps.get(rank, 0)
    return PipelineUse(
        name=key.name,
        ranks=key.ranks,
        microbatches=key.microbatches,
        steps=n_steps,
        ns=ps_to_ns(total_ps),
        bubble_ns=tuple(ps_to_ns(ps) for ps in bubbles.values()),
    )


def _launched(rank: int, numbers: range, handles: Sequence[RequestHandle]) -> Iterator[RequestHandle]:
    """Yield the launches of a rank among requests of all ranks."""
    for number in numbers:
        handle = handles[number]
        if isinstance(handle.msg, KernelLaunchMsg) and _sip_of(handle) == rank:
            yield handle


def _sum_exchange(name: str, calls: Sequence[Mapping[int, _Block]]) -> ExchangeUse:
    """Return the use of an exchange by all its calls: an entry of ``calls`` has the parts of the ranks of a call."""
    ranks = sorted({rank for blocks in calls for rank in blocks})
    of_rank = {rank: [blocks[rank] for blocks in calls if rank in blocks] for rank in ranks}
    return ExchangeUse(
        name=name,
        calls=max(len(blocks) for blocks in of_rank.values()),
        sent=tuple(sum(block.sent for block in of_rank[rank]) for rank in ranks),
        received=tuple(sum(block.received for block in of_rank[rank]) for rank in ranks),
        received_bytes=tuple(sum(block.received_bytes for block in of_rank[rank]) for rank in ranks),
        imbalance=max(_imbalance(list(blocks.values())) for blocks in calls),
    )


def _imbalance(blocks: Sequence[_Block]) -> float:
    """Return the most rows of a rank over the mean, of the rows sent or received, whichever is larger."""
    sides = ([block.sent for block in blocks], [block.received for block in blocks])
    return max((max(rows) * len(rows) / sum(rows) for rows in sides if sum(rows)), default=1.0)
