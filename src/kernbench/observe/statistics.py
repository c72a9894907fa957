"""What a run did with the machine: how busy engines and links were. Read off the op-log and the links afterwards."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from kernbench.common.ids import HOST, SWITCH
from kernbench.common.units import ns_to_ps, ps_to_ns
from kernbench.core.op_log import Kind, OpRecord
from kernbench.engine.machine import Machine
from kernbench.engine.queue_state import QueuePart
from kernbench.messages.requests import PeCoord

ENGINE_OF: dict[Kind, str] = {
    "dma_read": "DMA in",
    "dma_write": "DMA out",
    "fetch": "fetch",
    "gemm": "GEMM",
    "store": "store",
    "math": "MATH",
    "ipcq_copy": "ipcq",
}
"""Which engine of a PE a record occupies, in the order of the pipeline."""
Times: TypeAlias = NDArray[np.int64]
NO_ENGINE = "no engine: CPU and waiting"
BUSIEST_LINKS = 8


@dataclass(frozen=True, slots=True)
class EngineUsage:
    """One kind of engine over all PEs that used it. ``busy_ns``: union of the records' intervals, summed over PEs.

    ``occupancy``: busy time over the time of those PEs in the window. ``window_ns``: from first start to last end.
    """

    engine: str
    pes: int
    records: int
    busy_ns: float
    window_ns: float
    occupancy: float


@dataclass(frozen=True, slots=True)
class LinkTraffic:
    """What a link carried. ``utilisation``: serialising time over the time of the run."""

    src: str
    dst: str
    nbytes: int
    busy_ns: float
    utilisation: float
    bw_gbs: float
    peak_fifo_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes on links, headers included: into and out of all HBM slices, from and to the host; the busiest links."""

    hbm_in: int
    hbm_out: int
    to_machine: int
    from_machine: int
    host_utilisation: float
    busiest: tuple[LinkTraffic, ...]


@dataclass(frozen=True, slots=True)
class QueueUse:
    """What a queue of a PE has sent."""

    direction: str
    messages: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class QueueTraffic:
    """What the queues of a PE have sent. ``busy_ns``: some message of it was on its way to its slot."""

    pe: PeCoord
    sent: tuple[QueueUse, ...]
    busy_ns: float

    @property
    def messages(self) -> int:
        """By all its queues."""
        return sum(each.messages for each in self.sent)

    @property
    def nbytes(self) -> int:
        """By all its queues."""
        return sum(each.nbytes for each in self.sent)


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a PE's kernel time, by the engines that were busy: one, several at once (``A + B``), or none."""

    what: str
    ns: float


def union_ps(intervals: Iterable[tuple[int, int]]) -> int:
    """Length of the union of (start, end) intervals."""
    spans = np.array([*intervals], np.int64).reshape(-1, 2)
    return _union_ps(spans[:, 0], spans[:, 1])


def _union_ps(starts: Times, ends: Times) -> int:
    if not len(starts):
        return 0
    order = np.argsort(starts, kind="stable")
    since, until = starts[order], np.maximum.accumulate(ends[order])
    since[1:] = np.maximum(since[1:], until[:-1])  # what an earlier one covers is counted there
    return int(np.maximum(until - since, 0).sum())


def unions_ps(groups: Times, starts: Times, ends: Times) -> dict[int, int]:
    """Length of the union of the intervals of each group."""
    if not len(groups):
        return {}
    order = np.lexsort((starts, groups))
    groups, starts, ends = groups[order], starts[order], ends[order]
    first = np.flatnonzero(np.diff(groups, prepend=groups[0] - 1))
    # One after another on one axis, so that what lies before a group covers nothing of it.
    shift = np.repeat(np.arange(len(first)) * (ends.max() - starts.min() + 1), np.diff(first, append=len(groups)))
    since, until = starts + shift, np.maximum.accumulate(ends + shift)
    since[1:] = np.maximum(since[1:], until[:-1])
    lengths = np.add.reduceat(np.maximum(until - since, 0), first)
    return dict(zip(groups[first].tolist(), lengths.tolist(), strict=True))


def engine_usage(records: Iterable[OpRecord], start_ns: float, end_ns: float) -> tuple[EngineUsage, ...]:
    """Usage of every kind of engine by the records that lie between two times.

    A command that is done by tiles counts by these: the record of the whole command includes their waiting.
    """
    begin, end = ns_to_ps(start_ns), ns_to_ps(end_ns)
    units: dict[str, dict[str, tuple[list[int], list[int]]]] = {engine: {} for engine in ENGINE_OF.values()}
    for engine, record in _by_engine(records):
        start_ps, end_ps = record.t_start_ps, record.t_end_ps
        if begin <= start_ps and end_ps <= end:
            unit = units[engine].get(record.component)
            if unit is None:
                unit = units[engine][record.component] = ([], [])
            unit[0].append(start_ps)
            unit[1].append(end_ps)
    return tuple(_usage(engine, spans.values(), end - begin) for engine, spans in units.items() if spans)


def _by_engine(records: Iterable[OpRecord]) -> Iterator[tuple[str, OpRecord]]:
    """Finished records with the engine of a PE that each occupies; none for those of which others are parts."""
    given = list(records)
    wholes = {record.parent for record in given}
    for record in given:
        kind = record.kind
        engine = ENGINE_OF.get(kind)
        if engine is None or record.seq in wholes or record.t_end_ps < 0 or (kind == "gemm" and record.tile is None):
            continue
        yield engine, record


def engine_shares(records: Iterable[OpRecord], begin: int, end: int) -> tuple[Share, ...]:
    """The time from ``begin`` to ``end`` ps by which engines of a PE were busy, longest first; adds up to all of it."""
    steps: list[tuple[int, str, int]] = []
    for engine, record in _by_engine(records):
        steps += [(max(record.t_start_ps, begin), engine, 1), (min(record.t_end_ps, end), engine, -1)]
    spent: dict[str, int] = {}
    active = dict.fromkeys(ENGINE_OF.values(), 0)
    reached = begin
    for when, engine, change in sorted([*steps, (end, "", 0)]):
        state = " + ".join(each for each, count in active.items() if count) or NO_ENGINE
        spent[state] = spent.get(state, 0) + when - reached
        reached = when
        if engine:
            active[engine] += change
    longest_first = sorted(spent.items(), key=lambda item: -item[1])
    return tuple(Share(what, ps_to_ns(ps)) for what, ps in longest_first if ps)


def _usage(engine: str, spans: Collection[tuple[list[int], list[int]]], duration: int) -> EngineUsage:
    """``spans``: of each unit, when its records start and when they end, in ps."""
    units = [(np.array(starts, np.int64), np.array(ends, np.int64)) for starts, ends in spans]
    busy = sum(_union_ps(starts, ends) for starts, ends in units)
    window = max(int(ends.max()) for _, ends in units) - min(int(starts.min()) for starts, _ in units)
    return EngineUsage(
        engine=engine,
        pes=len(units),
        records=sum(len(starts) for starts, _ in units),
        busy_ns=ps_to_ns(busy),
        window_ns=ps_to_ns(window),
        occupancy=busy / (duration * len(units)) if duration else 0.0,
    )


def link_traffic(machine: Machine) -> tuple[LinkTraffic, ...]:
    """Every link that carried something, in the order of the machine's links; utilisation since time 0."""
    now = machine.clock.time
    used = sorted((link for link in machine.network.links.values() if link.nbytes), key=lambda link: link.index)
    return tuple(
        LinkTraffic(
            link.src,
            link.dst,
            link.nbytes,
            link.busy_ns,
            ns_to_ps(link.busy_ns) / now if now else 0.0,
            link.bw_gbs,
            link.peak_fifo_bytes,
        )
        for link in used
    )


def traffic(machine: Machine, links: tuple[LinkTraffic, ...] | None = None) -> Traffic:
    """What ``links`` of a machine carried; None: all of them, since time 0."""
    links = link_traffic(machine) if links is None else links
    nodes = machine.graph.nodes
    down = [link for link in links if link.src == HOST and link.dst == SWITCH]
    up = [link for link in links if link.src == SWITCH and link.dst == HOST]
    return Traffic(
        hbm_in=sum(link.nbytes for link in links if nodes[link.dst].kind == "hbm_ctrl"),
        hbm_out=sum(link.nbytes for link in links if nodes[link.src].kind == "hbm_ctrl"),
        to_machine=sum(link.nbytes for link in down),
        from_machine=sum(link.nbytes for link in up),
        host_utilisation=max((link.utilisation for link in [*down, *up]), default=0.0),
        busiest=tuple(sorted(links, key=lambda link: -link.utilisation)[:BUSIEST_LINKS]),
    )


def queue_traffic(machine: Machine, records: Iterable[OpRecord]) -> tuple[QueueTraffic, ...]:
    """What the queues of every PE have sent since time 0, by PE; empty when none did."""
    parts = [part for part in machine.components if isinstance(part, QueuePart) and part.carried]
    if not parts:
        return ()
    spans: dict[str, list[tuple[int, int]]] = {}
    for record in records:
        if record.kind == "ipcq_copy" and record.t_end_ps >= 0:
            spans.setdefault(record.component, []).append((record.t_start_ps, record.t_end_ps))
    found = (
        QueueTraffic(
            part.coord,
            tuple(QueueUse(direction, use.messages, use.nbytes) for direction, use in part.carried.items()),
            ps_to_ns(union_ps(spans.get(part.node.id, ()))),
        )
        for part in parts
    )
    return tuple(sorted(found, key=lambda each: each.pe))
