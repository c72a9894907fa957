"""Bound a run by each resource: the work given to it over its rate, and what the time beyond the largest was spent on.

Rates come from the topology, amounts of work from commands and transfers. A bound is that of the busiest instance of a
resource: a PE's matrix unit, an HBM slice, a link. The time beyond it is, part by part of the critical path, the time
in which that instance had nothing to do, and what it was busy for longer than its rate says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from math import prod

import numpy as np
from numpy.typing import NDArray

from kernbench.common.units import ps_to_ns
from kernbench.common.values import value
from kernbench.core.log import NONE
from kernbench.core.observed import Carries, Column
from kernbench.engine.recorder import MathSize, TileAmounts
from kernbench.messages.commands import Command, Opcode
from kernbench.observe.critical_path_model import CriticalPath, PathPart
from kernbench.observe.trace_log import TraceLog
from kernbench.observe.works import Times
from kernbench.topology.cube_spec import SramAttrs
from kernbench.topology.hbm_refresh import slice_pace
from kernbench.topology.hbm_spec import HbmCtrlAttrs
from kernbench.transport import Link

HOST_LINKS = frozenset(("host_to_switch", "switch_to_sip"))
Interval = tuple[int, int]


@value
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


@value
class Difference:
    """Time beyond the bound: the binding resource was idle while the critical path went through ``what``, or, for
    ``what`` that is no part of a path, busy for longer than its rate says."""

    what: str
    ps: int

    @property
    def ns(self) -> float:
        """In ns."""
        return ps_to_ns(self.ps)


@value
class Roofline:
    """Bounds, the largest first, and what lies between it and the measured time; ``useful``: the part of the MACs that
    are of the matrices, not of the edges of tiles."""

    measured_ps: int
    bounds: tuple[Bound, ...]
    differences: tuple[Difference, ...]
    useful: float

    @property
    def binding(self) -> Bound | None:
        """The bound that binds; None when nothing was done."""
        return self.bounds[0] if self.bounds else None

    @property
    def beyond(self) -> float:
        """The time beyond the bound, as a share of the bound."""
        bound = self.bounds[0].ps if self.bounds else 0
        return self.measured_ps / bound - 1 if bound else float("inf")


@value
class Load:
    """The work given to one instance of a resource; ``busy`` finds when it was busy, in any order."""

    bound: Bound
    busy: Callable[[], Iterable[Interval]]


def roofline(log: TraceLog, path: CriticalPath, launch_id: int | None = None) -> Roofline:
    """The roofline of what ``path`` goes through: of one launch, or of everything in its time."""
    gathered = _Gatherer(log, path, launch_id)
    busiest = sorted(_busiest(gathered.loads()), key=lambda load: -load.bound.ps)
    return Roofline(
        path.ps,
        tuple(load.bound for load in busiest),
        _differences(path, busiest[0]) if busiest else (),
        gathered.useful(),
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
    found = [Difference(f"{load.bound.resource}: slower than its rate", longer)] if longer else []
    return (*found, *(Difference(part, ps) for part, ps in idle.items() if ps))


def _merge(intervals: Iterable[Interval], path: CriticalPath) -> tuple[Times, Times]:
    """Merge intervals within a path, piece by piece in order: where each piece begins and ends."""
    spans = np.array([*intervals], np.int64).reshape(-1, 2).clip(path.start_ps, path.end_ps)
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    since, until = spans[:, 0], np.maximum.accumulate(spans[:, 1])
    since[1:] = np.maximum(since[1:], until[:-1])
    there = since < until
    return since[there], until[there]


class _Gatherer:
    """Finds the loads of what a path ``encloses``, which are never more than there is time for; with a ``launch_id``
    only what that launch did."""

    def __init__(self, log: TraceLog, path: CriticalPath, launch_id: int | None) -> None:
        self._log = log
        self._seen = log.seen
        self._machine = log.machine
        self._path = path
        self._launch_id = launch_id
        works = self._works = self._seen.works
        mine = np.arange(len(works.rows)) if launch_id is None else works.of_launch(launch_id)
        rows = works.rows[mine]
        start, end = works.columns.start[rows], works.columns.end[rows]
        self._mine: Times = mine[path.encloses(start, end)]
        self._gemm = self._of_engine("GEMM")
        self._products = self._amounts(self._gemm, lambda what: what.macs if isinstance(what, TileAmounts) else 0)

    def loads(self) -> Iterator[Load]:
        """The busiest instance of each engine, the loads of all memories, and the busiest links."""
        pe = self._machine.spec.pe
        yield from self._compute()
        for name, resource, rate, bytes_of in (
            ("fetch", "TCM fetch", pe.tcm.read_bw_gbs, _bytes_fetched),
            ("store", "TCM store", pe.tcm.write_bw_gbs, _bytes_stored),
            ("MATH", "MATH", pe.math.bytes_per_ns, _bytes_computed),
        ):
            mine = self._of_engine(name)
            yield from self._busiest(mine, self._amounts(mine, bytes_of), resource, "bytes", rate)
        yield from self._memories()
        yield from self._links()

    def useful(self) -> float:
        """The part of the MACs of whole tiles that are of the matrices."""
        return int(self._products.sum()) / (len(self._gemm) * self._tile_macs) if len(self._gemm) else 1.0

    @property
    def _tile_macs(self) -> int:
        return prod(self._machine.spec.pe.gemm.tile_sizes)

    def _of_engine(self, name: str) -> Times:
        found: Times = self._mine[self._works.done_by(name)[self._mine]]
        return found

    def _amounts(self, works: Times, amount_of: Callable[[object], int]) -> Times:
        """Return the amount of each of some works."""
        whats = self._machine.log.whats
        found, which = np.unique(self._works.about[works], return_inverse=True)
        amounts: Times = np.array([amount_of(whats[at]) for at in found.tolist()], np.int64)[which]
        return amounts

    def _busiest(self, works: Times, amounts: Times, resource: str, unit: str, rate: float) -> Iterator[Load]:
        """The part that had most to do of ``works``, if any had; of equals, the one that comes first."""
        if not len(works):
            return
        columns, rows = self._works.columns, self._works.rows[works]
        parts, first, which = np.unique(columns.part[rows], return_index=True, return_inverse=True)
        total = np.zeros(len(parts), np.int64)
        np.add.at(total, which, amounts)
        best = np.lexsort((first, -total))[0]

        def busy() -> Iterable[Interval]:
            own = rows[which == best]
            return zip(columns.start[own].tolist(), columns.end[own].tolist(), strict=True)

        yield Load(Bound(resource, columns.parts[parts[best]], int(total[best]), unit, rate), busy)

    def _compute(self) -> Iterator[Load]:
        """MACs of whole tiles over the rate of their type; a PE that uses several types is counted by each."""
        gemm, whats = self._machine.spec.pe.gemm, self._machine.log.whats
        about = self._works.about[self._gemm]
        by_rate: dict[float, list[int]] = {}
        for at in np.unique(about).tolist():
            tile = whats[at]
            assert isinstance(tile, TileAmounts)
            assert tile.element is not None
            by_rate.setdefault(gemm.rate(tile.element), []).append(at)
        for rate, tiles in by_rate.items():
            mine = self._gemm[np.isin(about, tiles)]
            yield from self._busiest(mine, np.full(len(mine), self._tile_macs), "compute", "MACs", rate)

    def _memories(self) -> Iterator[Load]:
        """Bytes of the accesses of the launch, or of all, by memory; without writes that a slice may have kept back."""
        seen, machine = self._seen, self._machine
        transfers, cube = seen.transfers, machine.spec.cube
        pace = slice_pace(cube)
        answers = seen.answers[seen.asks]
        answered = np.where(answers >= 0, transfers.end[answers], NONE)
        asks = seen.asks[self._path.encloses(transfers.start[seen.asks], answered)]
        if self._launch_id is not None:
            of = transfers.of[asks]
            asks = asks[(of >= 0) & (seen.columns.launch[of] == self._launch_id)]
        reading = transfers.what[asks] == Carries.REQUEST
        nbytes = transfers.nbytes[np.where(reading, seen.answers[asks], asks)]
        served = np.isin(seen.turns.of, asks)
        for part in dict.fromkeys(transfers.dst[asks].tolist()):
            node = seen.columns.parts[part]
            attrs = machine.graph.node(node).attrs
            if isinstance(attrs, HbmCtrlAttrs | SramAttrs):
                in_hbm = isinstance(attrs, HbmCtrlAttrs)
                resource, kept = ("HBM", cube.write_queue_bytes) if in_hbm else ("SRAM", 0)
                here = transfers.dst[asks] == part
                written = int(nbytes[here & ~reading].sum())
                amount = int(nbytes[here & reading].sum()) + max(0, written - kept)
                rate = pace.most_gbs(amount) if in_hbm else machine.graph.sram_bw_gbs(node)
                yield Load(Bound(resource, node, amount, "bytes", rate), partial(self._turns, part, served))

    def _turns(self, memory: int, served: NDArray[np.bool_]) -> Iterator[Interval]:
        """Yield the intervals in which a memory worked on what it ``served``."""
        turns = self._seen.turns
        mine = served & (turns.memory == memory)
        return zip(turns.start[mine].tolist(), turns.end[mine].tolist(), strict=True)

    def _links(self) -> Iterator[Load]:
        """The busiest links, by the bytes of all transfers, headers included."""
        graph, network, transfers = self._machine.graph, self._machine.network, self._seen.transfers
        sent = np.flatnonzero(self._path.encloses(transfers.start, transfers.end))
        by_route = np.zeros(len(network.watch.routes), np.int64)
        np.add.at(by_route, transfers.route[sent], transfers.nbytes[sent])
        amounts: dict[Link, int] = {}
        for route in dict.fromkeys(transfers.route[sent].tolist()):
            for link in network.watch.routes[route].links:
                amounts[link] = amounts.get(link, 0) + int(by_route[route])
        busiest: dict[str, tuple[float, Link]] = {}
        for link, amount in amounts.items():
            resource = "host link" if graph.edge(link.src, link.dst).link_class in HOST_LINKS else "NoC"
            ns = amount / link.bw_gbs
            if resource not in busiest or ns > busiest[resource][0]:
                busiest[resource] = ns, link
        for resource, (_, link) in busiest.items():
            bound = Bound(resource, f"{link.src} → {link.dst}", amounts[link], "bytes", link.bw_gbs)
            yield Load(bound, partial(self._in_turn, link, sent))

    def _in_turn(self, link: Link, sent: Column) -> Iterator[Interval]:
        """Yield the time of a link if transfers use it whole and in turn: sharing it changes none of its idle time."""
        free_at, transfers = 0, self._seen.transfers
        begins = {
            at: route.offsets[route.links.index(link)]
            for at, route in enumerate(self._machine.network.watch.routes)
            if link in route.links
        }
        for when, nbytes in sorted(
            (start + begins[route], nbytes)
            for start, nbytes, route in zip(
                transfers.start[sent].tolist(),
                transfers.nbytes[sent].tolist(),
                transfers.route[sent].tolist(),
                strict=True,
            )
            if route in begins
        ):
            start = max(when, free_at)
            free_at = start + link.serialise_ps(nbytes)
            yield start, free_at


def _bytes_fetched(what: object) -> int:
    return what.fetch_bytes if isinstance(what, TileAmounts) else 0


def _bytes_stored(what: object) -> int:
    return what.store_bytes if isinstance(what, TileAmounts) else 0


def _bytes_computed(what: object) -> int:
    match what:
        case TileAmounts():
            return what.math_bytes
        case Command(op=Opcode.MATH):
            return what.widest_bytes
        case MathSize():
            return what.nbytes
        case _:
            return 0
