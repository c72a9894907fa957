"""What bounds a run: the work given to each resource over its rate, and what the time beyond the largest was spent on.

Rates come from the topology, amounts of work from commands and transfers. A bound is that of the busiest instance of a
resource: a PE's matrix unit, an HBM slice, a link. The time beyond it is, part by part of the critical path, the time
in which that instance had nothing to do, and what it was busy for longer than its rate says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil

from kernbench.common.ids import pe_part
from kernbench.common.units import ps_to_ns
from kernbench.core.clock import NEVER
from kernbench.engine.hooks import Issued
from kernbench.messages.commands import DotCommand, GemmComposite, PeCommand
from kernbench.observe.critical_path_model import CriticalPath, Part
from kernbench.observe.trace_log import Exchange, TraceLog, Work
from kernbench.transport import Link

HOST_LINKS = frozenset(("host_to_switch", "switch_to_sip"))
Interval = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Bound:
    """The least time that ``resource`` needs: ``amount`` units at ``rate`` units a ns, of its busiest instance."""

    resource: str
    where: str
    amount: int
    unit: str
    rate: float

    @property
    def ps(self) -> int:
        """The time in ps."""
        return round(self.amount * 1000 / self.rate)

    @property
    def ns(self) -> float:
        """The time in ns."""
        return ps_to_ns(self.ps)


@dataclass(frozen=True, slots=True)
class Difference:
    """Time beyond the bound: the binding resource was idle while the critical path went through ``what``, or, for
    ``what`` that is no part of a path, busy for longer than its rate says."""

    what: str
    ps: int

    @property
    def ns(self) -> float:
        """In ns."""
        return ps_to_ns(self.ps)


@dataclass(frozen=True, slots=True)
class Roofline:
    """Bounds, the largest first, and what lies between it and the measured time; ``useful``: the part of the MACs that
    are of the matrices, not of the edges of tiles."""

    measured_ps: int
    bounds: tuple[Bound, ...]
    differences: tuple[Difference, ...]
    useful: float

    @property
    def binding(self) -> Bound | None:
        """What binds; None when nothing was done."""
        return self.bounds[0] if self.bounds else None

    @property
    def beyond(self) -> float:
        """How much longer than the bound it took, as a share of the bound."""
        bound = self.bounds[0].ps if self.bounds else 0
        return self.measured_ps / bound - 1 if bound else float("inf")


@dataclass(frozen=True, slots=True)
class Load:
    """The work given to one instance of a resource, and when it was busy."""

    bound: Bound
    busy: tuple[Interval, ...]


def roofline(log: TraceLog, path: CriticalPath, launch_id: int | None = None) -> Roofline:
    """The roofline of what ``path`` goes through: of one launch, or of everything in its time."""
    gathered = _Gatherer(log, path, launch_id)
    busiest = sorted(_busiest(gathered.loads()), key=lambda load: -load.bound.ps)
    macs = gathered.macs()
    return Roofline(
        path.ps,
        tuple(load.bound for load in busiest),
        _differences(path, busiest[0]) if busiest else (),
        macs.useful / macs.whole if macs.whole else 1.0,
    )


def _busiest(loads: Iterable[Load]) -> list[Load]:
    found: dict[str, Load] = {}
    for load in loads:
        best = found.get(load.bound.resource)
        if load.bound.ps and (best is None or load.bound.ps > best.bound.ps):
            found[load.bound.resource] = load
    return list(found.values())


def _differences(path: CriticalPath, load: Load) -> tuple[Difference, ...]:
    """They add up to the time of the path less the bound."""
    busy = _merged(load.busy, path)
    idle = dict.fromkeys(Part, 0)
    at = 0
    for step in path.steps:
        while at < len(busy) and busy[at][1] <= step.start_ps:
            at += 1
        idle[step.part] += step.ps - _covered(busy, at, step.start_ps, step.end_ps)
    longer = sum(end - start for start, end in busy) - load.bound.ps
    found = [Difference(f"{load.bound.resource}: slower than its rate", longer)] if longer else []
    return (*found, *(Difference(part, ps) for part, ps in idle.items() if ps))


def _merged(intervals: Iterable[Interval], path: CriticalPath) -> list[Interval]:
    """The union of intervals within a path, in order."""
    found: list[Interval] = []
    for start, end in sorted(intervals):
        begin, over = max(start, path.start_ps), min(end, path.end_ps)
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], over)
        elif begin < over:
            found.append((begin, over))
    return found


def _covered(busy: Sequence[Interval], at: int, start: int, end: int) -> int:
    """How much of a time is covered by intervals from number ``at`` on."""
    total = 0
    while at < len(busy) and busy[at][0] < end:
        total += max(0, min(busy[at][1], end) - max(busy[at][0], start))
        at += 1
    return total


@dataclass(slots=True)
class Macs:
    """Multiply-accumulates: of the matrices, and of whole tiles."""

    useful: int = 0
    whole: int = 0


@dataclass(slots=True)
class _Pile:
    """Work piled up on one instance."""

    amount: int = 0
    busy: list[Interval] = field(default_factory=list)


@dataclass(slots=True)
class _Gatherer:
    """Finds the loads within the time of a path; with a ``launch_id`` only what that launch did."""

    log: TraceLog
    path: CriticalPath
    launch_id: int | None
    _works: list[Work] = field(default_factory=list)
    _busy: dict[tuple[str, str], list[Interval]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        given = self.log.works if self.launch_id is None else self.log.works_of.get(self.launch_id, ())
        self._works = [each for each in given if each.end_ps < NEVER and self._within(each.start_ps)]
        for work in self._works:
            self._busy.setdefault((work.engine, work.node), []).append((work.start_ps, work.end_ps))

    def loads(self) -> Iterator[Load]:
        """The loads of all instances of all resources."""
        yield from self._compute()
        pe = self.log.machine.spec.pe
        yield from self._engine("TCM fetch", "fetch", "bytes", pe.tcm.read_bw_gbs)
        yield from self._engine("TCM store", "store", "bytes", pe.tcm.write_bw_gbs)
        yield from self._engine("MATH", "MATH", "bytes", pe.math.bytes_per_ns)
        yield from self._memories()
        yield from self._links()

    def macs(self) -> Macs:
        """Of all GEMMs."""
        total = Macs()
        for issued in self._issued():
            shape = _gemm_shape(issued.command)
            if shape is not None:
                total.useful += shape[0] * shape[1] * shape[2]
                total.whole += self._whole_macs(shape)
        return total

    def _issued(self) -> Iterator[Issued]:
        given = self.log.issued if self.launch_id is None else self.log.issued_of.get(self.launch_id, ())
        return (each for each in given if self._within(each.time_ps))

    def _within(self, when: int) -> bool:
        return self.path.start_ps <= when <= self.path.end_ps

    def _whole_macs(self, shape: tuple[int, int, int]) -> int:
        macs = 1
        for extent, size in zip(shape, self.log.machine.spec.pe.gemm.tile_sizes, strict=True):
            macs *= ceil(extent / size) * size
        return macs

    def _compute(self) -> Iterator[Load]:
        """MACs of whole tiles over the rate of their type; a PE that uses several types is counted by each."""
        gemm = self.log.machine.spec.pe.gemm
        piles: dict[tuple[str, float], _Pile] = {}
        for each in self._issued():
            shape = _gemm_shape(each.command)
            if shape is not None:
                assert isinstance(each.command, DotCommand | GemmComposite)
                unit = pe_part(*each.pe, "pe_gemm"), gemm.rate(each.command.a.dtype)
                piles.setdefault(unit, _Pile()).amount += self._whole_macs(shape)
        for (where, rate), pile in piles.items():
            busy = self._busy.get(("GEMM", where), ())
            yield Load(Bound("compute", where, pile.amount, "MACs", rate), tuple(busy))

    def _engine(self, resource: str, name: str, unit: str, rate: float) -> Iterator[Load]:
        """An engine whose time is that of its bytes; a start-up counts as the bytes that fit in it."""
        for (engine, node), intervals in self._busy.items():
            if engine == name:
                busy = sum(end - start for start, end in intervals)
                yield Load(Bound(resource, node, round(busy * rate / 1000), unit, rate), tuple(intervals))

    def _exchanges(self) -> Iterator[tuple[int, Exchange]]:
        """Accesses of memories with their operations: those of the launch, or all."""
        exchanges = self.log.exchanges
        ops = exchanges if self.launch_id is None else {work.op: None for work in self._works}
        for op in ops:
            yield from ((op, each) for each in exchanges.get(op, ()) if self._within(each.asked.injected_ps))

    def _memories(self) -> Iterator[Load]:
        machine = self.log.machine
        piles: dict[str, _Pile] = {}
        mine: set[int] = set()
        for op, exchange in self._exchanges():
            piles.setdefault(exchange.node, _Pile()).amount += exchange.access.nbytes
            mine.add(op)
        for turn in (turn for op in mine for turn in self.log.turns_of.get(op, ())):
            piles[turn.node].busy.append((turn.start_ps, turn.end_ps))
        cube = machine.spec.cube
        rates = {"hbm_ctrl": ("HBM", cube.slice_bw_gbs), "sram": ("SRAM", cube.sram_bw_gbs)}
        for node, pile in piles.items():
            found = rates.get(machine.graph.node(node).kind)
            if found is not None:
                yield Load(Bound(found[0], node, pile.amount, "bytes", found[1]), tuple(pile.busy))

    def _links(self) -> Iterator[Load]:
        """Bytes of all transfers, headers included."""
        graph = self.log.machine.graph
        arrivals: dict[Link, list[tuple[int, int]]] = {}
        for transfer in self.log.injected_between(self.path.start_ps, self.path.end_ps):
            if transfer.delivered_ps < NEVER:
                for link, offset in zip(transfer.route.links, transfer.route.offsets, strict=True):
                    arrivals.setdefault(link, []).append((transfer.injected_ps + offset, transfer.nbytes))
        for link, given in arrivals.items():
            host = graph.edge(link.src, link.dst).link_class in HOST_LINKS
            amount = sum(nbytes for _, nbytes in given)
            bound = Bound("host link" if host else "NoC", f"{link.src} → {link.dst}", amount, "bytes", link.bw_gbs)
            yield Load(bound, _in_turn(link, given))


def _in_turn(link: Link, arrivals: list[tuple[int, int]]) -> tuple[Interval, ...]:
    """When a link is busy if transfers use it whole and in turn: how they share it changes none of its idle time."""
    found: list[Interval] = []
    free_at = 0
    for when, nbytes in sorted(arrivals):
        start = max(when, free_at)
        free_at = start + link.serialise_ps(nbytes)
        found.append((start, free_at))
    return tuple(found)


def _gemm_shape(command: PeCommand) -> tuple[int, int, int] | None:
    """(m, k, n) of a product."""
    if isinstance(command, GemmComposite):
        return command.a.shape[0], command.a.shape[1], command.b.shape[1]
    if isinstance(command, DotCommand):
        m, n = command.dst.shape
        return m, command.a.shape[0 if command.trans_a else 1], n
    return None
