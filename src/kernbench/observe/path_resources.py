"""Divide the time of a critical path among the resources of the machine.

The time of an engine, a CPU or a memory belongs to that resource. The time of a transfer has two parts:

- The time up to the sum of the overheads of its route is divided in proportion to these overheads, among the components
  entered and the wires.
- The remaining time belongs to the slowest links of the route, which set its rate.

A link with a distant far end is no faster than the return of buffer space from there. The overhead of the far end then
sets the rate. Time in a queue belongs to the resource that the queue is for, and is reported separately.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from types import MappingProxyType
from typing import NamedTuple

from kernbench.common.units import ns_to_ps
from kernbench.common.values import value
from kernbench.observe.critical_path_model import PathPart, PathStep, Via
from kernbench.topology import resources as of
from kernbench.topology.graph import Graph
from kernbench.transport import Link, Route

_OWN: Mapping[PathPart, str] = MappingProxyType(
    {
        PathPart.CONTROL_QUEUE: of.CONTROL,
        PathPart.CONTROL_CPU: of.CONTROL,
        PathPart.LAUNCH: of.LAUNCH,
        PathPart.ISSUE: of.ISSUE,
        PathPart.TILE_ISSUE: of.TILE_ISSUE,
        PathPart.TRANSLATION: of.TRANSLATION,
        PathPart.DMA_SETUP: of.DMA_SETUP,
        PathPart.FETCH: of.FETCH,
        PathPart.GEMM: of.GEMM,
        PathPart.MATH: of.MATH,
        PathPart.STORE: of.STORE,
        PathPart.QUEUES: of.QUEUE_SETUP,
    }
)
_OF_BANKS: Mapping[PathPart, str] = MappingProxyType(
    {PathPart.TURNAROUND: of.HBM_TURNS, PathPart.ROWS: of.HBM_ROWS, PathPart.REFRESH: of.HBM_REFRESH}
)
TIE = 1.03
"""Links of a route with a bandwidth up to this factor of the route's slowest link count as equally slow"""
_QUEUES = frozenset((PathPart.MEMORY_QUEUE, PathPart.NETWORK_QUEUE, PathPart.CONTROL_QUEUE))


@value
class PathShare:
    """The time that a path spent in one of its parts, a PathPart, on ``resources``.

    Several resources tie: to speed up only one of them gains nothing. ``resources`` is empty if no key of the
    configuration changes the time.
    """

    part: str
    resources: tuple[str, ...]
    ps: int

    @property
    def resource(self) -> str:
        """The names of the resources, joined as text."""
        return join_words(self.resources)

    @property
    def says(self) -> str:
        """The part as text, with the resource if several resources can serve such a part."""
        return f"{self.part}: {self.resource}" if self.part in _SPLIT and self.resource else str(self.part)


_SPLIT = frozenset(
    (
        PathPart.HOST_TRANSFER,
        PathPart.DOWN,
        PathPart.UP,
        PathPart.BARRIER,
        PathPart.REQUEST,
        PathPart.RESPONSE,
        PathPart.MESSAGE,
        PathPart.DOORBELL,
        PathPart.CREDIT,
        PathPart.NETWORK_QUEUE,
    )
)


@value
class ResourceShare:
    """The time of a path on ``resources``, and the share ``queued_ps`` of it in their queues.

    Several resources tie: to speed up only one of them gains nothing.
    """

    resources: tuple[str, ...]
    ps: int
    queued_ps: int

    @property
    def resource(self) -> str:
        """The names of the resources, joined as text."""
        return join_words(self.resources)


def sum_resources(shares: Iterable[PathShare]) -> tuple[ResourceShare, ...]:
    """Return the time on each resource, the longest first."""
    spent: dict[tuple[str, ...], list[int]] = {}
    for share in shares:
        if share.resources:
            times = spent.setdefault(share.resources, [0, 0])
            times[0] += share.ps
            times[1] += share.ps if share.part in _QUEUES else 0
    totals = (ResourceShare(names, *times) for names, times in spent.items())
    return tuple(sorted(totals, key=lambda total: -total.ps))


def sum_causes(shares: Iterable[PathShare]) -> tuple[ResourceShare, ...]:
    """Return the time on each resource, and on each part of the path without a resource, the longest first."""
    all_shares = tuple(shares)
    causes = (ResourceShare((str(share.part),), share.ps, 0) for share in all_shares if not share.resources)
    return tuple(sorted((*sum_resources(all_shares), *causes), key=lambda total: -total.ps))


def divide_ties(totals: Iterable[ResourceShare]) -> tuple[ResourceShare, ...]:
    """Return the same time with one resource each: tied resources get equal parts."""
    spent: dict[str, list[int]] = {}
    for total in totals:
        n = len(total.resources)
        for at, name in enumerate(total.resources):
            times = spent.setdefault(name, [0, 0])
            for column, ps in enumerate((total.ps, total.queued_ps)):
                times[column] += ps * (at + 1) // n - ps * at // n
    divided = (ResourceShare((name,), *times) for name, times in spent.items())
    return tuple(sorted(divided, key=lambda part: -part.ps))


def join_words(words: Sequence[str]) -> str:
    """Return ``a, b and c``."""
    return " and ".join((", ".join(words[:-1]), words[-1])) if len(words) > 1 else "".join(words)


class PaceLimit(NamedTuple):
    """A rate in bytes per ns (GB/s), and the resource that limits it."""

    resource: str
    gbs: float


class _WayParts(NamedTuple):
    """The overheads of a route by resource, and the resources that set its rate ``gbs``."""

    overheads: list[tuple[str, int]]
    slowest: tuple[str, ...]
    gbs: float


class PathDivider:
    """Divides the time of steps by resource. The components of links and routes are cached."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._links: dict[Link, str] = {}
        self._spaces: dict[Link, PaceLimit | None] = {}
        self._ways: dict[Route, _WayParts] = {}

    def share(self, steps: Iterable[PathStep]) -> tuple[PathShare, ...]:
        """Return the time of steps by part and resource, in the order of parts; it sums to the time of the steps."""
        parts = list(PathPart)
        ordered = sorted(self.divide(steps).items(), key=lambda item: parts.index(item[0][0]))
        return tuple(PathShare(part, resources, ps) for (part, resources), ps in ordered if ps)

    def divide(self, steps: Iterable[PathStep]) -> dict[tuple[PathPart, tuple[str, ...]], int]:
        """Return the time of steps by part and tied resources, unordered."""
        spent: dict[tuple[PathPart, tuple[str, ...]], int] = {}
        for (part, via), (head_ps, tail_ps) in _sum_steps(steps).items():
            for resources, ps in self._divide(part, via, head_ps, tail_ps):
                spent[part, resources] = spent.get((part, resources), 0) + ps
        return spent

    def resource_of(self, link: Link) -> str:
        """Return the name of the resource that a link belongs to."""
        resource = self._links.get(link)
        if resource is None:
            graph = self._graph
            edge, leaves = graph.edge(link.src, link.dst), graph.node(link.src)
            resource = self._links[link] = of.resource_of_link(edge, leaves, link.bw_gbs)
        return resource

    def pace_of(self, route: Route) -> float:
        """Return the sustained rate of a route in bytes per ns."""
        return self._way(route).gbs

    def slowest_links(self, route: Route) -> tuple[Link, ...]:
        """Return the slowest links of a route, several if they tie; none if the return of buffer space is slower."""
        slowest_gbs = min(link.bw_gbs for link in route.links)
        if slowest_gbs > TIE * self.pace_of(route):
            return ()
        return tuple(link for link in route.links if link.bw_gbs <= TIE * slowest_gbs)

    def pace_of_space(self, link: Link) -> PaceLimit | None:
        """Return the rate at which space returns in the FIFO behind a link; None if the link is slower than that.

        A packet occupies its space from its grant until it has left the FIFO. The component that occupies the space
        longest is the limiting resource.
        """
        if link not in self._spaces:
            size = link.figures.packet_bytes
            gbs = link.capacity // size * size * 1000 / (link.hop_ps + link.serialise_ps(size))
            longest = max(self._overheads_of(link), key=itemgetter(1))[0]
            self._spaces[link] = None if gbs > link.bw_gbs else PaceLimit(longest, gbs)
        return self._spaces[link]

    def _divide(self, part: PathPart, via: Via, head_ps: int, tail_ps: int) -> Iterator[tuple[tuple[str, ...], int]]:
        graph = self._graph
        match via:
            case Route():
                way = self._way(via)
                for resource, ps in _divide_overhead(way.overheads, head_ps):
                    yield (resource,), ps
                yield way.slowest, tail_ps
            case tuple():
                yield tuple(sorted({self.resource_of(link) for link in via})), head_ps
            case str() if part in _OF_BANKS:
                yield (_OF_BANKS[part],), head_ps
            case str() if part is PathPart.ACCESS:
                yield (of.resource_of_access(graph.node(via)),), head_ps
            case str() if part in (PathPart.SERVICE, PathPart.MEMORY_QUEUE):
                yield (of.resource_of_memory(graph.node(via)),), head_ps
            case _:
                yield (_OWN[part],) if part in _OWN else (), head_ps

    def _way(self, route: Route) -> _WayParts:
        """Return the overheads of a route, and its slowest resources: all of equally slow links, since these tie."""
        way_parts = self._ways.get(route)
        if way_parts is None:
            spaces = map(self.pace_of_space, route.links[:-1])
            limits = [limit for limit in spaces if limit is not None]
            limits += [PaceLimit(self.resource_of(link), link.bw_gbs) for link in route.links]
            gbs = min(limit.gbs for limit in limits)
            slowest = sorted({limit.resource for limit in limits if limit.gbs <= TIE * gbs})
            way_parts = self._ways[route] = _WayParts(self._find_overheads(route), tuple(slowest), gbs)
        return way_parts

    def _find_overheads(self, route: Route) -> list[tuple[str, int]]:
        """Return the overheads of a route by resource, summed over its links."""
        overheads = dict[str, int]()
        for link in route.links:
            for resource, ps in self._overheads_of(link):
                overheads[resource] = overheads.get(resource, 0) + ps
        return [(resource, ps) for resource, ps in overheads.items() if ps > 0]

    def _overheads_of(self, link: Link) -> tuple[tuple[str, int], ...]:
        """Return the overheads of a link: of the component at its end, of the link, and of its wire."""
        graph = self._graph
        edge = graph.edge(link.src, link.dst)
        wire_ps = ns_to_ps(graph.spec.wire_ns(edge.length_mm))
        own_ps = ns_to_ps(edge.overhead_ns)
        entered_ps = link.overhead_ps - wire_ps - own_ps
        entering = of.resource_of_entering(graph.node(link.dst))
        return (entering, entered_ps), (self.resource_of(link), own_ps), (of.WIRES, wire_ps)


def _divide_overhead(overheads: Sequence[tuple[str, int]], ps: int) -> Iterator[tuple[str, int]]:
    """Divide ``ps`` in proportion to ``overheads``, exactly."""
    total_ps, done_ps, divided_ps = sum(overhead_ps for _, overhead_ps in overheads), 0, 0
    for resource, overhead_ps in overheads:
        done_ps += overhead_ps
        share = ps * done_ps // total_ps - divided_ps
        divided_ps += share
        yield resource, share
    if not total_ps:
        yield of.WIRES, ps


def _sum_steps(steps: Iterable[PathStep]) -> dict[tuple[PathPart, Via], tuple[int, int]]:
    """Sum steps of the same part and ``via``: the time up to the overheads of a route, and the time beyond them."""
    sums: dict[tuple[PathPart, Via], tuple[int, int]] = {}
    for step in steps:
        ps, key = step.ps, (step.part, step.via)
        head_ps = ps
        if isinstance(step.via, Route):
            head_ps = 0 if step.part is PathPart.NETWORK_QUEUE else min(ps, step.via.total_overhead_ps)
        heads, tails = sums.get(key, (0, 0))
        sums[key] = heads + head_ps, tails + ps - head_ps
    return sums
