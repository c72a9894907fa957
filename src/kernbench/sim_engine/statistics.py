"""What a run did with the machine: how busy engines and links were. Read off the op-log and the links afterwards."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kernbench.common.units import ns_to_ps, ps_to_ns
from kernbench.sim_engine.machine import Machine
from kernbench.sim_engine.op_log import Kind, OpRecord

ENGINE_OF: dict[Kind, str] = {
    "dma_read": "DMA in",
    "dma_write": "DMA out",
    "fetch": "fetch",
    "gemm": "GEMM",
    "store": "store",
    "math": "MATH",
    "ipcq_copy": "queues",
}
"""Which engine of a PE a record occupies, in the order of the pipeline."""


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


def union_ps(intervals: Iterable[tuple[int, int]]) -> int:
    """Length of the union of (start, end) intervals."""
    total = 0
    covered = -1
    for start, end in sorted(intervals):
        total += max(0, end - max(start, covered))
        covered = max(covered, end)
    return total


def engine_usage(records: Iterable[OpRecord], start_ns: float, end_ns: float) -> tuple[EngineUsage, ...]:
    """Usage of every kind of engine by the records that lie between two times.

    A GEMM counts by its tiles where the log has them: the record of the whole command includes their waiting.
    """
    begin, end = ns_to_ps(start_ns), ns_to_ps(end_ns)
    spans: dict[str, dict[str, list[tuple[int, int]]]] = {engine: {} for engine in ENGINE_OF.values()}
    for record in records:
        engine = ENGINE_OF.get(record.kind)
        whole = record.kind == "gemm" and record.tile is None
        if engine is None or whole or record.t_start_ps < begin or record.t_end_ps > end or record.t_end_ps < 0:
            continue
        spans[engine].setdefault(record.component, []).append((record.t_start_ps, record.t_end_ps))
    return tuple(_usage(engine, units, end - begin) for engine, units in spans.items() if units)


def _usage(engine: str, units: dict[str, list[tuple[int, int]]], duration: int) -> EngineUsage:
    busy = sum(union_ps(intervals) for intervals in units.values())
    everything = [interval for intervals in units.values() for interval in intervals]
    window = max(end for _, end in everything) - min(start for start, _ in everything)
    return EngineUsage(
        engine=engine,
        pes=len(units),
        records=len(everything),
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
