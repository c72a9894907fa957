"""Bound the time of a run by each resource, its work divided by its rate, and divide the time beyond the largest bound.

Rates and times come from the topology, amounts of work from commands and transfers. The bound of a resource is that of
its busiest instance, for example a PE's matrix unit, an HBM slice, a CPU or a link. The time beyond the largest bound
has two parts. The first is the idle time of that instance, by part of the critical path. The second is the time for
which the instance was busy beyond its bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from math import prod
from operator import attrgetter
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from kernbench.common.figures import derived_after, figure
from kernbench.common.ids import HOST
from kernbench.common.units import ns_to_ps, ps_to_ns, transfer_ps
from kernbench.common.values import value
from kernbench.components.memory import Memory
from kernbench.components.sram import Sram
from kernbench.core.log import NONE, Kind
from kernbench.core.observed import Carries, Column
from kernbench.engine.recorder import MathSize, TileAmounts
from kernbench.messages.commands import Command, Opcode
from kernbench.messages.requests import PeCoord
from kernbench.observe.critical_path_model import CriticalPath, PathPart
from kernbench.observe.slices import SliceTime
from kernbench.observe.statistics import merge_spans
from kernbench.observe.trace_log import LogView
from kernbench.observe.works import Times, distinct
from kernbench.topology import resources as of
from kernbench.topology.hbm_refresh import slice_pace
from kernbench.transport import Link

WorkAmounts: TypeAlias = NDArray[np.float64]
"""Amounts of work, of a launch and of a share of those that passed in its place"""
Interval = tuple[int, int]
TIE = 0.03
"""Bounds that differ by less than this share tie"""
OVERLAP = 0.75
"""The share of the longer bound for which tied resources must be busy at the same time"""
BUSY = "ps busy"
"""The unit of a resource without a rate: its measured busy time, which is no bound on the work"""


@value
class Bound:
    """The least time that ``resource`` needs: ``amount`` units at ``rate`` units per ns, for its busiest instance.

    ``ps`` is that time, see ``bound_of``. ``tile_ps`` is the instance's median time for a tile, 0 for a resource that
    does not work on tiles.
    """

    resource: str = figure("the resource")
    where: str = figure("its busiest instance", default="")
    amount: int = figure("the work of that instance", default=0)
    unit: str = figure("of what", default="")
    rate: float = figure("work per ns", key="rate_per_ns", default=0.0)
    ps: int = figure(default=0)
    tile_ps: int = figure(optional=True, default=0)

    @property
    def ns(self) -> float:
        """The bound in ns."""
        return ps_to_ns(self.ps)


def bound_of(
    resource: str, where: str, amount: int, unit: str, rate: float, startup_ps: int = 0, tile_ps: int = 0
) -> Bound:
    """Return a bound: work divided by rate, plus the total start-up time of the instance's operations."""
    return Bound(resource, where, amount, unit, rate, round(amount * 1000 / rate) + startup_ps, tile_ps)


@value
class Difference:
    """Time of ``ps`` beyond the largest bound, and its cause ``what``.

    The cause is either a part of the critical path (the limiting resource was idle for ``ps`` of it), or a text, which
    says that this resource was busy for ``ps`` longer than its rate predicts.
    """

    what: str = figure("what it was spent on")
    ps: int = figure()

    @property
    def ns(self) -> float:
        """The time in ns."""
        return ps_to_ns(self.ps)


@value(kw_only=True)
class Roofline:
    """The bounds of a measured time, the largest first.

    - ``differences``: the time between the largest bound and the measured time
    - ``useful_macs``: the share of the MACs on matrix elements, not on the padding of edge tiles
    - ``ties``: groups of resources that took equally long, at the same time
    """

    measured_ps: int = 0
    ties: tuple[tuple[str, ...], ...] = ()
    useful_macs: float = 0.0
    bounds: tuple[Bound, ...] = ()
    differences: tuple[Difference, ...] = ()

    def tied_with(self, resource: str) -> tuple[str, ...]:
        """Return the group of resources that tie with ``resource``; without a tie, ``resource`` alone."""
        return next((group for group in self.ties if resource in group), (resource,))

    @property
    def largest(self) -> Bound | None:
        """The largest bound; None if nothing was done."""
        return self.bounds[0] if self.bounds else None

    @derived_after("measured_ps")
    def binding(self) -> str | None:
        """The resource of the largest bound."""
        return self.bounds[0].resource if self.bounds else None

    @derived_after("ties")
    def beyond(self) -> float:
        """The time beyond the bound, as a share of the bound."""
        bound = self.bounds[0].ps if self.bounds else 0
        return self.measured_ps / bound - 1 if bound else float("inf")


@value
class Load:
    """The work of one instance of a resource.

    ``busy`` returns the intervals in which it was busy, in any order. ``pe`` is its PE, None outside PEs.
    """

    bound: Bound
    busy: Callable[[], Iterable[Interval]]
    pe: PeCoord | None = None

    def takes_as_long(self, other: Load) -> bool:
        """Return True if both loads take the same time, or, as stages, the same time per tile.

        Return False for different PEs, since PEs do not pass work to each other.
        """
        if self.pe is not None and other.pe is not None and self.pe != other.pe:
            return False
        first_ps, second_ps = self.bound.tile_ps, other.bound.tile_ps
        if not first_ps or not second_ps:
            first_ps, second_ps = self.bound.ps, other.bound.ps
        return min(first_ps, second_ps) >= (1 - TIE) * max(first_ps, second_ps)


def roofline(
    snapshot: LogView, path: CriticalPath, slices: Sequence[SliceTime], launch_id: int | None = None
) -> Roofline:
    """Return the roofline of ``path``: of one launch, or of all work in its time.

    ``slices`` is the work of slices with banks in that time.
    """
    gathered = _Gatherer(snapshot, path, slices, launch_id)
    busiest = sorted(_busiest(gathered.loads()), key=lambda load: -load.bound.ps)
    return Roofline(
        measured_ps=path.ps,
        ties=_find_ties(path, busiest),
        useful_macs=gathered.useful(),
        bounds=tuple(load.bound for load in busiest),
        differences=_differences(path, busiest[0]) if busiest else (),
    )


def _find_ties(path: CriticalPath, busiest: Sequence[Load]) -> tuple[tuple[str, ...], ...]:
    """Return the groups of resources that are busy for equally long, and at the same time.

    Resources that are busy one after the other do not tie: each of them saves time if it alone is faster. A resource
    busy for less than half of the time ties only as a stage of the tiles of a PE.
    """
    left = [load for load in busiest if 2 * load.bound.ps >= path.ps or load.bound.tile_ps]
    groups = []
    while left:
        first, *left = left
        as_long = [load for load in left if load.takes_as_long(first)]
        tied = [
            load for load in as_long if _overlap_ps(path, first, load) >= OVERLAP * max(first.bound.ps, load.bound.ps)
        ]
        left = [load for load in left if load not in tied]
        if tied:
            groups.append((first.bound.resource, *(load.bound.resource for load in tied)))
    return tuple(groups)


def _overlap_ps(path: CriticalPath, load: Load, other: Load) -> int:
    """Return the time in ps in which both loads were busy."""
    lengths = [
        int((until - since).sum())
        for since, until in (
            _merge(busy, path) for busy in (load.busy(), other.busy(), chain(load.busy(), other.busy()))
        )
    ]
    return lengths[0] + lengths[1] - lengths[2]


def _busiest(loads: Iterable[Load]) -> list[Load]:
    by_resource: dict[str, Load] = {}
    for load in loads:
        best = by_resource.get(load.bound.resource)
        if load.bound.ps and (best is None or load.bound.ps > best.bound.ps):
            by_resource[load.bound.resource] = load
    return list(by_resource.values())


def _differences(path: CriticalPath, load: Load) -> tuple[Difference, ...]:
    """Return the differences of a path from its bound; their sum is the time of the path less the bound."""
    since, until = _merge(load.busy(), path)
    done = np.concatenate(([0], np.cumsum(until - since)))

    def busy_before(when: Times) -> Times:
        begun = np.searchsorted(since, when, "right")
        before: Times = done[begun] - np.maximum(np.concatenate(([0], until))[begun] - when, 0)
        return before

    starts = np.array([step.start_ps for step in path.steps], np.int64)
    ends = np.array([step.end_ps for step in path.steps], np.int64)
    idle = dict.fromkeys(PathPart, 0)
    waited = (ends - starts) - (busy_before(ends) - busy_before(starts))
    for step, ps in zip(path.steps, waited.tolist(), strict=True):
        idle[step.part] += ps
    longer = int(done[-1]) - load.bound.ps
    differences = [Difference(f"{load.bound.resource}: slower than its rate", longer)] if longer else []
    return (*differences, *(Difference(part, ps) for part, ps in idle.items() if ps))


def _merge(intervals: Iterable[Interval], path: CriticalPath) -> tuple[Times, Times]:
    """Return intervals, clipped to a path and merged."""
    return merge_spans(np.array([*intervals], np.int64).reshape(-1, 2).clip(path.start_ps, path.end_ps))


_DESCRIPTORS = (Kind.DMA_READ, Kind.DMA_WRITE, Kind.ATOMIC)


class _Gatherer:
    """Finds the loads within a path, so that no load exceeds the path's time; with ``launch_id``, those of a launch."""

    def __init__(
        self, snapshot: LogView, path: CriticalPath, slices: Sequence[SliceTime], launch_id: int | None
    ) -> None:
        self._slices = slices
        self._snapshot = snapshot
        self._machine = snapshot.machine
        self._path = path
        self._launch_id = launch_id
        works = self._works = self._snapshot.works
        numbers = np.arange(len(works.rows)) if launch_id is None else works.of_launch(launch_id).astype(np.int64)
        rows = works.rows[numbers]
        start, end = works.columns.start[rows], works.columns.end[rows]
        self._enclosed: Times = numbers[path.encloses(start, end)]
        self._gemm = self._of_engine("GEMM")
        self._products = self._amounts(self._gemm, lambda work: work.macs if isinstance(work, TileAmounts) else 0)

    def _weigh(self, rows: Column, amounts: Times) -> WorkAmounts:
        """Return the amounts of ``rows``, in a run with those of the launches that passed in their place.

        They are fractions of the amounts of several launches, so only sums are rounded.
        """
        passed = self._machine.passed
        if self._launch_id is None:
            return amounts.astype(np.float64) if passed.is_empty else amounts * self._snapshot.weights_of(rows)
        more = passed.extension(self._launch_id) - 1
        return amounts * (1 + more * self._snapshot.are_on_device(rows)) if more else amounts.astype(np.float64)

    def _intervals(self, rows: Column, starts: Column, ends: Column) -> Iterator[Interval]:
        """Yield the intervals of ``rows``, in a run with those of the launches that passed in their place."""
        if self._launch_id is None or self._launch_id in self._machine.passed.extended:
            return self._snapshot.repeated(rows, starts, ends)
        return zip(starts.tolist(), ends.tolist(), strict=True)

    def loads(self) -> Iterator[Load]:
        """Yield the loads of engines, set-up, issue, CPUs, memories and links, mostly only the busiest instance."""
        pe = self._machine.spec.pe
        yield from self._compute()
        for name, resource, rate, bytes_of in (
            ("fetch", of.FETCH, pe.tcm.read_bw_gbs, _bytes_fetched),
            ("store", of.STORE, pe.tcm.write_bw_gbs, _bytes_stored),
        ):
            works = self._of_engine(name)
            yield from self._busiest(works, self._amounts(works, bytes_of), resource, "bytes", rate)
        works = self._of_engine("MATH")
        startup_ps = ns_to_ps(pe.math.startup_ns)
        yield from self._busiest(
            works, self._amounts(works, _bytes_computed), of.MATH, "bytes", pe.math.bytes_per_ns, startup_ps
        )
        parts = pe.components
        for resource, unit, ns, kinds in (
            (of.DMA_SETUP, "descriptors", pe.dma.setup_ns, _DESCRIPTORS),
            (of.DMA_SETUP, "messages", pe.dma.setup_ns, (Kind.SEND,)),
            (of.ISSUE, "commands", parts.pe_cpu.attrs.issue_ns, (Kind.ISSUE,)),
            (of.TILE_ISSUE, "tiles", parts.pe_scheduler.attrs.issue_ns, (Kind.TILE_ISSUE,)),
            (of.QUEUE_SETUP, "messages", parts.pe_ipcq.attrs.overhead_ns, (Kind.IPCQ_COPY,)),
        ):
            yield from self._services(resource, unit, ns_to_ps(ns), kinds)
        yield from self._control()
        yield from self._memories()
        yield from self._banks()
        yield from self._links()

    def _services(self, resource: str, unit: str, each_ps: int, kinds: Iterable[Kind]) -> Iterator[Load]:
        """Yield the load of the component that began most rows of some kinds; each row lasts ``each_ps``."""
        columns, path = self._snapshot.columns, self._path
        rows = self._snapshot.row_order.within(path.start_ps, path.end_ps)
        rows = rows[np.isin(columns.kind[rows], [*kinds])]
        if self._launch_id is not None:
            rows = rows[columns.launch[rows] == self._launch_id]
        start = columns.start[rows]
        rows = rows[path.encloses(start, start + each_ps)]
        yield from self._most_often(rows, columns.part[rows], columns.start[rows], (resource, unit), each_ps)

    def _control(self) -> Iterator[Load]:
        """Yield the load of each serial CPU of the control path, which spends its overhead on each message."""
        snapshot, columns = self._snapshot, self._snapshot.columns
        sent = snapshot.control[snapshot.control_order.within(self._path.start_ps, self._path.end_ps)]
        rows = snapshot.transfers.of[sent]
        enclosed = self._path.encloses(columns.start[rows], columns.end[rows])
        if self._launch_id is not None:
            enclosed &= columns.launch[rows] == self._launch_id
        rows, cpus = rows[enclosed], snapshot.transfers.dst[sent][enclosed]
        ends = columns.end[rows]
        for part in dict.fromkeys(cpus.tolist()):
            cpu = self._machine.component(columns.parts[part])
            if cpu.handles_serially:
                on_cpu, each_ps = cpus == part, cpu.overhead_ps
                begins = ends[on_cpu] - each_ps
                yield from self._most_often(rows[on_cpu], cpus[on_cpu], begins, (of.CONTROL, "messages"), each_ps)

    def _most_often(
        self, rows: Column, parts: Times, starts: Times, subject: tuple[str, str], each_ps: int
    ) -> Iterator[Load]:
        """Yield the load of the component that most often begins an operation of duration ``each_ps``.

        ``subject``: the resource, and the unit of its work.
        """
        if not len(parts) or not each_ps:
            return
        resource, unit = subject
        numbers, places = np.unique(parts, return_inverse=True)
        counts = np.rint(np.bincount(places, self._weigh(rows, np.ones(len(rows), np.int64))))
        most = int(np.argmax(counts))
        chosen = parts == numbers[most]

        def busy() -> Iterable[Interval]:
            return self._intervals(rows[chosen], starts[chosen], starts[chosen] + each_ps)

        where = self._snapshot.columns.parts[int(numbers[most])]
        yield Load(bound_of(resource, where, int(counts[most]), unit, 1000 / each_ps), busy, self._pe_of(where))

    def useful(self) -> float:
        """Return the share of the MACs of complete tiles that are on matrix elements."""
        return int(self._products.sum()) / (len(self._gemm) * self._tile_macs) if len(self._gemm) else 1.0

    @property
    def _tile_macs(self) -> int:
        return prod(self._machine.spec.pe.gemm.tile_sizes)

    def _of_engine(self, name: str) -> Times:
        works: Times = self._enclosed[self._works.done_by(name)[self._enclosed]]
        return works

    def _amounts(self, works: Times, amount_of: Callable[[object], int]) -> Times:
        """Return the amount of work of each of ``works``."""
        whats, about = self._machine.log.whats, self._works.about[works]
        amount: Times = np.zeros(len(whats), np.int64)
        for at in distinct(about, len(whats)):
            amount[at] = amount_of(whats[at])
        return amount[about]

    def _busiest(
        self, works: Times, amounts: Times, resource: str, unit: str, rate: float, startup_ps: int = 0
    ) -> Iterator[Load]:
        """Yield the load of the component with the largest amount of ``works``, the first of equals."""
        if not len(works):
            return
        columns, rows = self._works.columns, self._works.rows[works].astype(np.int64)
        parts = columns.part[rows]
        total = np.rint(np.bincount(parts, self._weigh(rows, amounts)))
        best = int(parts[np.argmax(total[parts])])
        best_rows = rows[parts == best]
        count = round(float(self._weigh(best_rows, np.ones(len(best_rows), np.int64)).sum()))

        def busy() -> Iterable[Interval]:
            return self._intervals(best_rows, columns.start[best_rows], columns.end[best_rows])

        where, tiles = columns.parts[best], best_rows[columns.tile[best_rows] >= 0]
        times = np.sort(columns.end[tiles] - columns.start[tiles])
        tile_ps = int(times[len(tiles) // 2]) if len(tiles) else 0
        bound = bound_of(resource, where, int(total[best]), unit, rate, count * startup_ps, tile_ps)
        yield Load(bound, busy, self._pe_of(where))

    def _pe_of(self, part: str) -> PeCoord | None:
        node = self._machine.graph.node(part)
        return None if node.pe is None else node.pe_coord

    def _compute(self) -> Iterator[Load]:
        """Yield a load per rate of the matrix unit: the MACs of complete tiles of the operand types with that rate."""
        gemm, whats = self._machine.spec.pe.gemm, self._machine.log.whats
        about = self._works.about[self._gemm]
        by_rate: dict[float, list[int]] = {}
        for at in distinct(about, len(whats)):
            tile = whats[at]
            assert isinstance(tile, TileAmounts)
            assert tile.element is not None
            by_rate.setdefault(gemm.rate(tile.element), []).append(at)
        for rate, tiles in by_rate.items():
            works = self._gemm[np.isin(about, tiles)]
            yield from self._busiest(works, np.full(len(works), self._tile_macs), of.GEMM, "MACs", rate)

    def _memories(self) -> Iterator[Load]:
        """Yield the load of each memory: the bytes accessed by the launch, or by all launches and copies.

        Writes that a slice may still hold in its write queue do not count.
        """
        snapshot, machine = self._snapshot, self._machine
        transfers, cube = snapshot.transfers, machine.spec.cube
        pace = slice_pace(cube)
        asks = snapshot.asks[snapshot.ask_order.within(self._path.start_ps, self._path.end_ps)]
        answers = snapshot.answers[asks]
        answered = np.where(answers >= 0, transfers.end[answers], NONE)
        asks = asks[self._path.encloses(transfers.start[asks], answered)]
        if self._launch_id is not None:
            row = transfers.of[asks]
            asks = asks[(row >= 0) & (snapshot.columns.launch[row] == self._launch_id)]
        reading = transfers.what[asks] == Carries.REQUEST
        nbytes = self._weigh(transfers.of[asks], transfers.nbytes[np.where(reading, snapshot.answers[asks], asks)])
        served = snapshot.turns_by_ask.within(asks[0], asks[-1] + 1) if len(asks) else asks
        served = served[np.isin(snapshot.turns.of[served], asks)]
        for part in dict.fromkeys(transfers.dst[asks].tolist()):
            node = snapshot.columns.parts[part]
            resource, memory = of.resource_of_memory(machine.graph.node(node)), machine.part(node, Memory)
            here, busy = transfers.dst[asks] == part, partial(self._turns, part, served)
            written, read = (round(float(nbytes[here & way].sum())) for way in (~reading, reading))
            if resource == of.HBM:
                amount = read + max(0, written - cube.write_queue_bytes)
                yield Load(bound_of(resource, node, amount, "bytes", pace.most_gbs(amount)), busy)
            elif isinstance(memory, Sram) and memory.serves_as_built:
                yield Load(bound_of(resource, node, read + written, "bytes", machine.graph.sram_bw_gbs(node)), busy)
            elif memory.serves_gbs is not None:
                yield Load(bound_of(resource, node, read + written, "bytes", memory.serves_gbs), busy)
            else:
                since, until = _merge(busy(), self._path)
                yield Load(bound_of(resource, node, int((until - since).sum()), BUSY, 1000.0), busy)

    def _banks(self) -> Iterator[Load]:
        """Yield the loads of the slices that were busy longest with row misses, with turnarounds and with refresh."""
        turns = self._snapshot.turns
        served = self._snapshot.turn_order.within(self._path.start_ps, self._path.end_ps)
        served = served[self._path.encloses(turns.start[served], turns.end[served])]
        for resource, ps_of in (
            (of.HBM_ROWS, attrgetter("rows_ps")),
            (of.HBM_TURNS, attrgetter("turnarounds_ps")),
            (of.HBM_REFRESH, attrgetter("refresh_ps")),
        ):
            most = max(self._slices, key=ps_of, default=None)
            if most is not None:
                memory = self._machine.log.part(most.where)
                busy = partial(self._turns, memory, served)
                yield Load(bound_of(resource, most.where, ps_of(most), BUSY, 1000.0), busy)

    def _turns(self, memory: int, served: Column) -> Iterator[Interval]:
        """Yield the intervals in which a memory worked on the turns ``served``."""
        turns = self._snapshot.turns
        chosen = served[turns.memory[served] == memory]
        rows = self._snapshot.transfers.of[turns.of[chosen]]
        return self._intervals(rows, turns.start[chosen], turns.end[chosen])

    def _links(self) -> Iterator[Load]:
        """Yield the loads of the busiest links, and of the busiest FIFOs behind links.

        The bytes are those of all transfers, headers included.
        """
        snapshot, transfers = self._snapshot, self._snapshot.transfers
        sent = snapshot.transfer_order.within(self._path.start_ps, self._path.end_ps)
        sent = sent[self._path.encloses(transfers.start[sent], transfers.end[sent])]
        weighed = self._weigh(self._rows_on_device(sent), transfers.nbytes[sent])
        by_route = np.bincount(transfers.route[sent], weighed, minlength=len(snapshot.routes))
        on_routes, links, last = snapshot.links_of_routes
        carried = by_route[on_routes]
        n_links = len(self._machine.graph.edges)
        amounts = np.rint(np.bincount(links, carried, minlength=n_links))
        # A transfer needs no buffer space at its destination.
        passed = np.rint(np.bincount(links[~last], carried[~last], minlength=n_links))
        names, resources, paces = snapshot.limits_of_links
        used = list(dict.fromkeys(links[carried > 0].tolist()))
        limited_by, gbs_of = resources[used].ravel(), paces[used].ravel()
        amount_of = np.column_stack((amounts[used], passed[used])).ravel()
        longest = amount_of / gbs_of
        for at in dict.fromkeys(limited_by[limited_by >= 0].tolist()):
            limited = np.flatnonzero(limited_by == at)
            most = limited[np.argmax(longest[limited])]
            resource, link = names[at], snapshot.link(used[most // 2])
            amount, gbs = int(amount_of[most]), float(gbs_of[most])
            bound = bound_of(resource, f"{link.src} → {link.dst}", amount, "bytes", gbs)
            busy = partial(self._in_sequence, link, gbs, sent)
            yield Load(bound, busy, self._pe_of(link.src) or self._pe_of(link.dst))

    def _rows_on_device(self, sent: Column) -> Column:
        """Return the rows of transfers; NONE for those from and to the host, which launches that pass have too."""
        transfers = self._snapshot.transfers
        is_host = [HOST in (route.links[0].src, route.links[-1].dst) for route in self._snapshot.routes]
        rows: Column = np.where(np.array(is_host, bool)[transfers.route[sent]], NONE, transfers.of[sent])
        return rows

    def _in_sequence(self, link: Link, gbs: float, sent: Column) -> Iterator[Interval]:
        """Yield the busy intervals of a link, as if transfers used it one after the other at the rate ``gbs``.

        The idle time is the same as with transfers that share the link.
        """
        free_at, transfers = 0, self._snapshot.transfers
        begins = {
            at: route.offsets[route.links.index(link)]
            for at, route in enumerate(self._snapshot.routes)
            if link in route.links
        }
        on_link = sent[np.isin(transfers.route[sent], [*begins])]
        offsets = np.array([begins.get(at, 0) for at in range(len(self._snapshot.routes))], np.int64)
        starts = transfers.start[on_link] + offsets[transfers.route[on_link]]
        # The end of an interval stands for the bytes, which keep their distance from the begin.
        intervals = self._intervals(self._rows_on_device(on_link), starts, starts + transfers.nbytes[on_link])
        for when, nbytes in sorted((start, end - start) for start, end in intervals):
            start = max(when, free_at)
            free_at = start + transfer_ps(nbytes, gbs)
            yield start, free_at


def _bytes_fetched(work: object) -> int:
    return work.fetch_bytes if isinstance(work, TileAmounts) else 0


def _bytes_stored(work: object) -> int:
    return work.store_bytes if isinstance(work, TileAmounts) else 0


def _bytes_computed(work: object) -> int:
    match work:
        case TileAmounts():
            return work.math_bytes
        case Command(op=Opcode.MATH):
            return work.widest_bytes
        case MathSize():
            return work.nbytes
        case _:
            return 0
