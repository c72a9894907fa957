"""Report the collectives of a front end: bytes, time, bus bandwidth, and the time hidden behind other kernels."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import NamedTuple

from kernbench.common.figures import figure
from kernbench.common.units import ps_to_ns
from kernbench.common.values import state, value
from kernbench.engine.requests import RequestHandle
from kernbench.messages.requests import KernelLaunchMsg
from kernbench.runtime_api.requests import Work

_TWICE, _ONCE = ("all_reduce",), ("broadcast", "reduce", "send_recv")
"""Collectives whose bytes pass each link of a ring twice, and those whose bytes pass it once."""


@value(kw_only=True)
class CollectiveUse:
    """The calls of a collective by ranks. A call counts once, however many ranks make it.

    ``nbytes``: the bytes of a tensor, over all calls; of a collective with a block for each rank, those of all blocks.
    ``ns``: the time from the last rank's start to the end. ``bus_gbs``: the bandwidth of each link of a ring that moves
    these bytes in this time, as NCCL's tests define it. ``hidden``: the part of the time in which the SIP also ran
    other kernels.
    """

    name: str = figure("the collective")
    algorithm: str = figure("the algorithm that ran", default="")
    calls: int = figure("its calls")
    nbytes: int = figure("bytes of all calls", column=False)
    ns: float = figure("time of all calls, from the last rank's start, in ns")
    bus_gbs: float = figure("bus bandwidth in GB/s")
    hidden: float = figure("part of the time beside other kernels")


@value
class _Part:
    """A rank's part of a call."""

    name: str
    nbytes: int
    n_ranks: int
    handle: RequestHandle

    @property
    def bus_bytes(self) -> float:
        """The bytes that pass each link of a ring over the ranks."""
        if self.name in _ONCE:
            return self.nbytes
        return self.nbytes * (self.n_ranks - 1) / self.n_ranks * (2 if self.name in _TWICE else 1)


_Span = tuple[int, int]


@state
class CollectiveTallies:
    """The collectives that ranks have started, by call."""

    _calls: dict[Hashable, list[_Part]] = field(default_factory=dict)
    _counts: Counter[Hashable] = field(default_factory=Counter)

    def note(self, name: str, nbytes: int, n_ranks: int, place: Hashable, rank: int, work: Work | None) -> None:
        """Note a rank's part of a call. ``place``: the group, in which ranks call in the same order."""
        if work is not None and work.handles:
            number = self._counts[place, rank]
            self._counts[place, rank] += 1
            self._calls.setdefault((place, number), []).append(_Part(name, nbytes, n_ranks, work.handles[-1]))

    def uses(self, handles: Iterable[RequestHandle], since_ps: int) -> tuple[CollectiveUse, ...]:
        """Return the collectives that began after ``since_ps`` and have ended, the longest first."""
        by_name: dict[str, list[list[_Part]]] = {}
        for parts in self._ended(since_ps):
            by_name.setdefault(parts[0].name, []).append(parts)
        if not by_name:
            return ()
        kernels = _list_kernels(handles)
        return tuple(sorted((_sum(name, calls, kernels) for name, calls in by_name.items()), key=lambda use: -use.ns))

    def exposed_ps(self, handles: Iterable[RequestHandle], since_ps: int) -> int:
        """Return the time of these collectives in which their rank ran no other kernel, over all ranks."""
        calls = list(self._ended(since_ps))
        times = _measure(calls, _list_kernels(handles) if calls else {})
        return times.of_parts - times.hidden

    def _ended(self, since_ps: int) -> Iterator[list[_Part]]:
        for parts in self._calls.values():
            if all(_span_of(part.handle) is not None and part.handle.submitted_ps >= since_ps for part in parts):
                yield parts


class _CallTimes(NamedTuple):
    """Times in ps from the last rank's start: of calls, of all ranks' parts, and of parts beside other kernels."""

    of_calls: int
    of_parts: int
    hidden: int


def _measure(calls: Iterable[Sequence[_Part]], kernels: Mapping[int, Sequence[_Span]]) -> _CallTimes:
    ps = hidden_ps = part_ps = 0
    for parts in calls:
        spans = [span for part in parts if (span := _span_of(part.handle)) is not None]
        begin = max(start for start, _ in spans)
        ps += max(end for _, end in spans) - begin
        for part, (_, end) in zip(parts, spans, strict=True):
            sip = _sip_of(part.handle)
            part_ps += max(0, end - begin)  # a send may end before its peer starts
            hidden_ps += _measure_overlap(kernels.get(sip, ()), begin, end)
    return _CallTimes(ps, part_ps, hidden_ps)


def _sum(name: str, calls: Sequence[Sequence[_Part]], kernels: Mapping[int, Sequence[_Span]]) -> CollectiveUse:
    ps, part_ps, hidden_ps = _measure(calls, kernels)
    bus_bytes = sum(parts[0].bus_bytes for parts in calls)
    message = calls[0][0].handle.msg
    algorithm = message.algorithm if isinstance(message, KernelLaunchMsg) else None
    return CollectiveUse(
        name=name,
        algorithm=algorithm or "",
        calls=len(calls),
        nbytes=sum(parts[0].nbytes for parts in calls),
        ns=ps_to_ns(ps),
        bus_gbs=bus_bytes / ps_to_ns(ps) if ps else 0.0,
        hidden=hidden_ps / part_ps if part_ps else 0.0,
    )


def _span_of(handle: RequestHandle) -> _Span | None:
    """Return the first start and the last end of the kernels of a launch that has ended."""
    reports = () if handle.outcome is None else handle.outcome.reports
    if not reports:
        return None
    return min(report.start_ps for report in reports), max(report.end_ps for report in reports)


def _sip_of(handle: RequestHandle) -> int:
    message = handle.msg
    assert isinstance(message, KernelLaunchMsg), "a collective is a launch"
    return message.targets[0][0]


def _list_kernels(handles: Iterable[RequestHandle]) -> dict[int, list[_Span]]:
    """Return the times in which each SIP ran kernels that are no collectives, in order and apart."""
    by_sip: dict[int, list[_Span]] = {}
    for handle in handles:
        if isinstance(handle.msg, KernelLaunchMsg) and handle.msg.algorithm is None:
            span = _span_of(handle)
            if span is not None:
                by_sip.setdefault(_sip_of(handle), []).append(span)
    return {sip: _join(sorted(spans)) for sip, spans in by_sip.items()}


def _join(spans: Iterable[_Span]) -> list[_Span]:
    joined: list[_Span] = []
    for begin, end in spans:
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((begin, end))
    return joined


def _measure_overlap(spans: Sequence[_Span], begin: int, end: int) -> int:
    """Return the time between ``begin`` and ``end`` that ``spans`` cover; they are in order and apart."""
    total, at = 0, max(0, bisect_right(spans, (begin, begin)) - 1)
    while at < len(spans) and spans[at][0] < end:
        total += max(0, min(end, spans[at][1]) - max(begin, spans[at][0]))
        at += 1
    return total
