"""Measure the utilisation of engines, links, memories and queues in a run, from its log and its links."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from kernbench.common.figures import figure
from kernbench.common.ids import HOST, SWITCH
from kernbench.common.units import ns_to_ps, ps_to_ns
from kernbench.common.values import value
from kernbench.components.pe_mmu import TLB_HITS, TLB_MISSES, PeMmuPart
from kernbench.core.clock import NEVER
from kernbench.engine.machine import Machine
from kernbench.engine.passed_launches import LINK_BUSY_PS, LINK_BYTES, PartCount, WorkSums
from kernbench.engine.queues import QueuePart
from kernbench.engine.recorder import TileAmounts
from kernbench.messages.requests import PeCoord
from kernbench.observe.works import ENGINE_OF, ENGINES, PE_ENGINES, Times, Works

NO_ENGINE = "no engine: CPU and waiting"
BUSIEST_LINKS = 32
BUSIEST_MEMORIES = 32
_MEMORIES = ("hbm_ctrl", "sram")


@value(kw_only=True)
class EngineUsage:
    """One type of engine over all PEs that used it.

    ``busy_ns`` is the union of the works' intervals, summed over PEs. ``occupancy`` is the busy time over the time of
    those PEs in the window. ``window_ns`` is the time from the first start to the last end.
    """

    engine: str = figure("the kind of engine")
    pes: int = figure("PEs that used it", default=0)
    records: int = figure("executed operations", default=0)
    busy_ns: float = figure("busy ns, summed over PEs")
    window_ns: float = figure(default=0.0)
    occupancy: float = figure("busy time over the time of those PEs", default=0.0)


@value
class LinkTraffic:
    """The traffic of a link; ``utilisation`` is its serialising time over the time of the run."""

    src: str = figure("from")
    dst: str = figure("to")
    nbytes: int = figure("bytes it carried, headers included")
    busy_ns: float = figure("busy ns")
    utilisation: float = figure("busy time over the time of the run")
    bw_gbs: float = figure("bandwidth")
    peak_fifo_bytes: int = figure("the peak occupancy of its FIFO")


@value(kw_only=True)
class Traffic:
    """Bytes on links, headers included: into and out of all HBM slices, to and from the host, and the busiest links."""

    hbm_in: int = figure("bytes into all HBM slices, headers included", column="traffic.hbm_in_bytes")
    hbm_out: int = figure("bytes out of all HBM slices, headers included", column="traffic.hbm_out_bytes")
    to_machine: int = figure("bytes from the host to the machine", column="traffic.to_machine_bytes")
    from_machine: int = figure("bytes from the machine to the host", column="traffic.from_machine_bytes")
    host_utilisation: float = figure("busy share of the host's link")
    busiest: tuple[LinkTraffic, ...]


@value(kw_only=True)
class MachineUse:
    """The components of a machine that worked, sent bytes or received bytes in a run.

    ``within`` is the cube if only one was used, else the SIP if only one was used, else empty; components outside cubes
    do not count. ``parts`` are types of components, classes of links and types of products, by their names in the
    machine's file.
    """

    sips: int
    cubes: int
    pes: int
    slices: int
    within: str
    parts: tuple[str, ...]


@value
class MemoryTraffic:
    """The bytes that links moved to and from a memory, headers included, and the utilisation of its busiest link."""

    memory: str = figure("the place")
    kind: str = figure("what it is")
    bytes_in: int = figure("bytes written, headers included")
    bytes_out: int = figure("bytes read, headers included")
    utilisation: float = figure("utilisation of its busiest link")


@value
class QueueUse:
    """The messages that a queue of a PE sent."""

    direction: str
    messages: int
    nbytes: int


@value
class QueueTraffic:
    """The messages that the queues of a PE sent; ``busy_ns`` is the time in which a message was in flight."""

    pe: PeCoord
    sent: tuple[QueueUse, ...]
    busy_ns: float

    @property
    def messages(self) -> int:
        """The number of messages of all queues of the PE."""
        return sum(use.messages for use in self.sent)

    @property
    def nbytes(self) -> int:
        """The bytes of all queues of the PE."""
        return sum(use.nbytes for use in self.sent)


@value
class TimeShare:
    """A share of a PE's kernel time, in which the same engines were busy: one, several (``A + B``), or none."""

    what: str
    ns: float


def union_ps(intervals: Iterable[tuple[int, int]]) -> int:
    """Return the length of the union of (start, end) intervals."""
    since, until = merge_spans(np.array([*intervals], np.int64).reshape(-1, 2))
    return int((until - since).sum())


def merge_spans(spans: Times) -> tuple[Times, Times]:
    """Merge (start, end) rows into pieces, in order, without overlap; return the begins and the ends of the pieces."""
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    since, until = spans[:, 0], np.maximum.accumulate(spans[:, 1])
    since[1:] = np.maximum(since[1:], until[:-1])  # the overlap counts for the earlier piece
    nonempty = since < until
    return since[nonempty], until[nonempty]


def unions_ps(groups: Times, starts: Times, ends: Times) -> dict[int, int]:
    """Return the length of the union of the intervals of each group."""
    if not len(groups):
        return {}
    order = np.lexsort((starts, groups))
    groups, starts, ends = groups[order], starts[order], ends[order]
    first = np.flatnonzero(np.diff(groups, prepend=groups[0] - 1))
    # Shift the groups one after another on one axis, so that no group overlaps another.
    shift = np.repeat(np.arange(len(first)) * (ends.max() - starts.min() + 1), np.diff(first, append=len(groups)))
    since, until = starts + shift, np.maximum.accumulate(ends + shift)
    since[1:] = np.maximum(since[1:], until[:-1])
    lengths = np.add.reduceat(np.maximum(until - since, 0), first)
    return dict(zip(groups[first].tolist(), lengths.tolist(), strict=True))


def sum_works(works: Works, begin_ps: int = 0, end_ps: int = NEVER) -> WorkSums:
    """Return the sums, by engine and part, of the works that began and ended between two times.

    The sums include the works of launches that passed: those of their samples count more often.
    """
    columns = works.columns
    starts, ends = columns.start[works.rows], columns.end[works.rows]
    numbers = np.flatnonzero((begin_ps <= starts) & (ends >= 0) & (ends <= end_ps))
    starts, ends = starts[numbers], ends[numbers]
    rows, n_parts = works.rows[numbers], len(columns.parts)
    groups = works.engine[numbers].astype(np.int64) * n_parts + columns.part[rows]
    numbers_of, places = np.unique(groups, return_inverse=True)
    first_ps, last_ps = np.full((2, len(numbers_of)), [[NEVER], [0]], np.int64)
    np.minimum.at(first_ps, places, starts)
    np.maximum.at(last_ps, places, ends)
    busy = dict.fromkeys(numbers_of.tolist(), 0.0) | unions_ps(groups, starts, ends)
    more = works.weights[numbers] - 1
    sampled = np.flatnonzero(more > 0)
    if len(sampled):
        launches = works.launch[numbers[sampled]].astype(np.int64)
        size = int(launches.max()) + 1
        of_launches = groups[sampled] * size + launches
        weight_of = dict(zip(of_launches.tolist(), more[sampled].tolist(), strict=True))
        for group, ps in unions_ps(of_launches, starts[sampled], ends[sampled]).items():
            busy[group // size] += weight_of[group] * ps
    return WorkSums(
        engine=numbers_of // n_parts,
        part=numbers_of % n_parts,
        records=np.bincount(places, 1 + more, minlength=len(numbers_of)),
        busy_ps=np.array([busy[number] for number in numbers_of.tolist()]),
        begin_ps=first_ps,
        end_ps=last_ps,
    )


def join_works(sums: Iterable[WorkSums]) -> WorkSums:
    """Return several sums as one."""
    nothing = WorkSums(*[np.empty(0, np.int64)] * len(WorkSums._fields))
    return WorkSums(*(np.concatenate(columns) for columns in zip(nothing, *sums, strict=True)))


def _select(sums: WorkSums, which: NDArray[np.bool_]) -> WorkSums:
    return WorkSums(*(column[which] for column in sums))


def engine_usage(sums: WorkSums, start_ns: float, end_ns: float) -> tuple[EngineUsage, ...]:
    """Return the usage of each type of engine between two times, in ns, by the sums of its works.

    For a command executed in tiles, its tiles are the works, since the work of the complete command includes waiting.
    """
    begin, end = ns_to_ps(start_ns), ns_to_ps(end_ns)
    inside = (begin <= sums.begin_ps) & (sums.end_ps <= end)
    of_engines = ((name, _select(sums, inside & (sums.engine == ENGINES.index(name)))) for name in PE_ENGINES)
    return tuple(_usage(name, of_engine, end - begin) for name, of_engine in of_engines if len(of_engine.engine))


def _usage(engine: str, sums: WorkSums, duration: int) -> EngineUsage:
    busy, pes = round(float(sums.busy_ps.sum())), len(set(sums.part.tolist()))
    return EngineUsage(
        engine=engine,
        pes=pes,
        records=round(float(sums.records.sum())),
        busy_ns=ps_to_ns(busy),
        window_ns=ps_to_ns(int(sums.end_ps.max() - sums.begin_ps.min())),
        occupancy=busy / (duration * pes) if duration else 0.0,
    )


def engine_shares(works: Works, parts: Collection[str], begin: int, end: int) -> tuple[TimeShare, ...]:
    """Return the time of a PE from ``begin`` to ``end``, in ps, by the engines that were busy, the longest first.

    ``parts`` are the components of the PE. Works that began in the interval count. The sum of all shares is the length
    of the interval.
    """
    columns, rows = works.columns, works.rows
    numbers = [number for number, part in enumerate(columns.parts) if part in parts]
    began = (begin <= columns.start[rows]) & (columns.start[rows] <= end) & (columns.end[rows] >= 0)
    selected = began & np.isin(columns.part[rows], numbers)
    steps: list[tuple[int, str, int]] = []
    for engine in PE_ENGINES:
        engine_rows = rows[selected & works.done_by(engine)]
        steps += [(start, engine, 1) for start in columns.start[engine_rows].tolist()]
        steps += [(min(stop, end), engine, -1) for stop in columns.end[engine_rows].tolist()]
    spent: dict[str, int] = {}
    active = dict.fromkeys(PE_ENGINES, 0)
    reached = begin
    for when, engine, change in sorted([*steps, (end, "", 0)]):
        state = " + ".join(name for name, count in active.items() if count) or NO_ENGINE
        spent[state] = spent.get(state, 0) + when - reached
        reached = when
        if engine:
            active[engine] += change
    longest_first = sorted(spent.items(), key=lambda item: -item[1])
    return tuple(TimeShare(engines, ps_to_ns(ps)) for engines, ps in longest_first if ps)


def link_traffic(machine: Machine) -> tuple[LinkTraffic, ...]:
    """Return each link that carried bytes, in the order of the machine's links; utilisation is since time 0.

    The links also carried the bytes of launches that passed.
    """
    now = machine.clock.time
    used = sorted((link for link in machine.network.links.values() if link.nbytes), key=lambda link: link.index)
    nbytes, busy_ps = (machine.passed.counts(name, len(machine.graph.edges)) for name in (LINK_BYTES, LINK_BUSY_PS))
    busy_ns = [link.busy_ns + ps_to_ns(int(busy_ps[link.index])) for link in used]
    return tuple(
        LinkTraffic(
            link.src,
            link.dst,
            link.nbytes + int(nbytes[link.index]),
            link_busy_ns,
            ns_to_ps(link_busy_ns) / now if now else 0.0,
            link.bw_gbs,
            link.peak_fifo_bytes,
        )
        for link, link_busy_ns in zip(used, busy_ns, strict=True)
    )


@value
class Translation:
    """Look-ups of pages in the TLBs of all PEs."""

    hits: int
    misses: int


def translation(machine: Machine) -> Translation | None:
    """Sum the look-ups of the TLBs; None on a machine without TLBs."""
    if not machine.spec.pe.mmu.tlb_entries:
        return None
    tlbs = [part.tlb for part in machine.components if isinstance(part, PeMmuPart) and part.tlb is not None]
    hits, misses = (machine.passed.part_counts().get(PartCount("pe_mmu", name), 0) for name in (TLB_HITS, TLB_MISSES))
    return Translation(hits + sum(tlb.hits for tlb in tlbs), misses + sum(tlb.misses for tlb in tlbs))


def traffic(machine: Machine, links: Sequence[LinkTraffic]) -> Traffic:
    """Sum the traffic of ``links`` of a machine."""
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


def memory_traffic(machine: Machine, links: Iterable[LinkTraffic]) -> tuple[MemoryTraffic, ...]:
    """Sum the traffic of memories over ``links``, the memories with most bytes first."""
    nodes, by_memory = machine.graph.nodes, dict[str, list[LinkTraffic]]()
    for link in links:
        for end in (link.src, link.dst):
            if nodes[end].kind in _MEMORIES or nodes[end].window is not None:
                by_memory.setdefault(end, []).append(link)
    rows = (
        MemoryTraffic(
            memory,
            nodes[memory].kind,
            sum(link.nbytes for link in attached if link.dst == memory),
            sum(link.nbytes for link in attached if link.src == memory),
            max(link.utilisation for link in attached),
        )
        for memory, attached in by_memory.items()
    )
    return tuple(sorted(rows, key=lambda row: -row.bytes_in - row.bytes_out)[:BUSIEST_MEMORIES])


def machine_use(machine: Machine, parts: Iterable[int], links: Iterable[LinkTraffic]) -> MachineUse:
    """Return the components used by ``links`` that carried bytes, and ``parts`` with rows in the log."""
    graph = machine.graph
    carried = [graph.edge(link.src, link.dst) for link in links]
    ends = (name for edge in carried for name in (edge.src, edge.dst))
    worked = (machine.log.parts[part] for part in parts)
    nodes = [graph.node(name) for name in dict.fromkeys([*ends, *worked])]
    sips = sorted({node.sip for node in nodes if node.sip is not None})
    cubes = {node.cube_coord for node in nodes if node.cube is not None}
    products = {str(work.element) for work in machine.log.whats if isinstance(work, TileAmounts) and work.macs}
    within = f"sip{sips[0]}" if len(sips) == 1 else ""
    return MachineUse(
        sips=len(sips),
        cubes=len(cubes),
        pes=len({node.pe_coord for node in nodes if node.pe is not None}),
        slices=sum(node.kind == "hbm_ctrl" for node in nodes),
        within="sip{}.cube{}".format(*min(cubes)) if len(cubes) == 1 else within,
        parts=tuple(sorted({node.kind for node in nodes} | {edge.link_class for edge in carried} | products)),
    )


def has_queue_traffic(machine: Machine) -> bool:
    """Return True if queues of PEs have sent messages."""
    return any(isinstance(part, QueuePart) and part.traffic for part in machine.components)


def queue_traffic(machine: Machine, sums: WorkSums) -> tuple[QueueTraffic, ...]:
    """Sum the messages that the queues of each PE sent since time 0, by PE; ``sums``: those of all works."""
    parts = [part for part in machine.components if isinstance(part, QueuePart) and part.traffic]
    sent = _select(sums, sums.engine == ENGINES.index(ENGINE_OF["ipcq_copy"]))
    busy: dict[int, int] = {}
    for number, ps in zip(sent.part.tolist(), sent.busy_ps.tolist(), strict=True):
        busy[number] = busy.get(number, 0) + round(ps)
    rows = (
        QueueTraffic(
            part.coord,
            tuple(QueueUse(direction, use.messages, use.nbytes) for direction, use in part.traffic.items()),
            ps_to_ns(busy.get(machine.log.part(part.node.id), 0)),
        )
        for part in parts
    )
    return tuple(sorted(rows, key=lambda row: row.pe))
