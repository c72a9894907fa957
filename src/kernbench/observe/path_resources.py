"""Divide the time of a critical path among the resources of the machine.

Time on an engine, a CPU or a memory is its own. The time of a transfer is, up to that of an empty way, the overhead of
the parts that it enters and of the wires, each as far as the way has of it; what is beyond that went by at the pace of
the slowest links. Time in a queue counts for what was waited for, and is told apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from kernbench.common.units import ns_to_ps, ps_to_ns
from kernbench.common.values import value
from kernbench.observe.critical_path_model import CriticalPath, PathPart, PathStep, Via
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
"""Links of a way that are so much faster than its slowest are as slow"""
_QUEUES = frozenset((PathPart.MEMORY_QUEUE, PathPart.NETWORK_QUEUE, PathPart.CONTROL_QUEUE))


@value
class PathShare:
    """The time that a path spent in one of its parts on ``resources``: one, or those that were as slow, of which none
    gains alone; none where no key changes it."""

    part: PathPart
    resources: tuple[str, ...]
    ps: int

    @property
    def resource(self) -> str:
        """The resources in words."""
        return join_words(self.resources)

    @property
    def ns(self) -> float:
        """The time in ns."""
        return ps_to_ns(self.ps)

    @property
    def says(self) -> str:
        """The part in words, with the resource where a part goes through several."""
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
    """The time of a path on ``resources``, one or those that tie, and of that in their queues."""

    resources: tuple[str, ...]
    ps: int
    queued_ps: int

    @property
    def resource(self) -> str:
        """The resources in words."""
        return join_words(self.resources)

    @property
    def ns(self) -> float:
        """The time in ns."""
        return ps_to_ns(self.ps)


def share_path(path: CriticalPath, graph: Graph) -> tuple[PathShare, ...]:
    """Return the time of a path by part and resource, in the order of parts; it adds up to that of the path."""
    return share_steps(path.steps, graph)


def share_steps(steps: Iterable[PathStep], graph: Graph) -> tuple[PathShare, ...]:
    """Return the time of some steps of a path by part and resource, likewise."""
    spent: dict[tuple[PathPart, tuple[str, ...]], int] = {}
    for (part, via), (head_ps, tail_ps) in _sum_steps(steps).items():
        for resources, ps in _divide(part, via, head_ps, tail_ps, graph):
            spent[part, resources] = spent.get((part, resources), 0) + ps
    parts = list(PathPart)
    ordered = sorted(spent.items(), key=lambda each: parts.index(each[0][0]))
    return tuple(PathShare(part, resources, ps) for (part, resources), ps in ordered if ps)


def sum_resources(shares: Iterable[PathShare]) -> tuple[ResourceShare, ...]:
    """Return the time on each resource, the longest first."""
    spent: dict[tuple[str, ...], list[int]] = {}
    for each in shares:
        if each.resources:
            times = spent.setdefault(each.resources, [0, 0])
            times[0] += each.ps
            times[1] += each.ps if each.part in _QUEUES else 0
    made = (ResourceShare(names, *times) for names, times in spent.items())
    return tuple(sorted(made, key=lambda each: -each.ps))


def sum_causes(shares: Iterable[PathShare]) -> tuple[ResourceShare, ...]:
    """Return the time on each resource, and on each part of the path that no resource has, the longest first."""
    given = tuple(shares)
    others = (ResourceShare((str(each.part),), each.ps, 0) for each in given if not each.resources)
    return tuple(sorted((*sum_resources(given), *others), key=lambda each: -each.ps))


def divide_ties(found: Iterable[ResourceShare]) -> tuple[ResourceShare, ...]:
    """Return the same time with one resource each: those that tie have equal parts of it."""
    spent: dict[str, list[int]] = {}
    for each in found:
        n = len(each.resources)
        for at, name in enumerate(each.resources):
            times = spent.setdefault(name, [0, 0])
            for column, ps in enumerate((each.ps, each.queued_ps)):
                times[column] += ps * (at + 1) // n - ps * at // n
    made = (ResourceShare((name,), *times) for name, times in spent.items())
    return tuple(sorted(made, key=lambda each: -each.ps))


def sum_most(shares: Iterable[PathShare]) -> dict[str, int]:
    """Return the most of a path's time that each resource can have: that in its queues included.

    In the queue of a slice with banks others wait for their data, rows, turns of direction and refreshes alike.
    """
    found = sum_resources(shares)
    most: dict[str, int] = {}
    for each in found:
        for name in each.resources:
            most[name] = most.get(name, 0) + each.ps
    queued = sum(each.queued_ps for each in found if each.resources == (of.HBM,))
    return most | {name: most.get(name, 0) + queued for name in _OF_BANKS.values() if queued or name in most}


def join_words(words: Sequence[str]) -> str:
    """Return ``a, b and c``."""
    return " and ".join((", ".join(words[:-1]), words[-1])) if len(words) > 1 else "".join(words)


def resource_of(link: Link, graph: Graph) -> str:
    """Return the name of the resource that a link of a wired machine is one of."""
    return of.resource_of_link(graph.edge(link.src, link.dst), graph.node(link.src), link.bw_gbs)


def _sum_steps(steps: Iterable[PathStep]) -> dict[tuple[PathPart, Via], tuple[int, int]]:
    """Add up steps through the same; of a way the time up to that of an empty one, and beyond it."""
    found: dict[tuple[PathPart, Via], tuple[int, int]] = {}
    for step in steps:
        ps, key = step.ps, (step.part, step.via)
        head_ps = ps
        if isinstance(step.via, Route):
            head_ps = 0 if step.part is PathPart.NETWORK_QUEUE else min(ps, step.via.total_overhead_ps)
        heads, tails = found.get(key, (0, 0))
        found[key] = heads + head_ps, tails + ps - head_ps
    return found


def _divide(
    part: PathPart, via: Via, head_ps: int, tail_ps: int, graph: Graph
) -> Iterator[tuple[tuple[str, ...], int]]:
    match via:
        case Route():
            for resource, ps in _divide_overhead(via, head_ps, graph):
                yield (resource,), ps
            yield _slowest(via, graph), tail_ps
        case Link():
            yield (resource_of(via, graph),), head_ps
        case str() if part in _OF_BANKS:
            yield (_OF_BANKS[part],), head_ps
        case str() if part is PathPart.ACCESS:
            yield (of.resource_of_access(graph.node(via)),), head_ps
        case str() if part in (PathPart.SERVICE, PathPart.MEMORY_QUEUE):
            yield (of.resource_of_memory(graph.node(via)),), head_ps
        case _:
            yield (_OWN[part],) if part in _OWN else (), head_ps


def _slowest(route: Route, graph: Graph) -> tuple[str, ...]:
    """Return the resources of the slowest links of a way: where several are as slow, none of them gains alone."""
    limit = TIE * route.bottleneck_gbs
    return tuple(dict.fromkeys(resource_of(link, graph) for link in route.links if link.bw_gbs <= limit))


def _divide_overhead(route: Route, ps: int, graph: Graph) -> Iterator[tuple[str, int]]:
    """Divide time on an empty way as the way is made of overheads, exactly."""
    made = _overheads(route, graph)
    whole, done, given = sum(each for _, each in made), 0, 0
    for resource, each in made:
        done += each
        share = ps * done // whole - given
        given += share
        yield resource, share
    if not whole:
        yield of.WIRES, ps


def _overheads(route: Route, graph: Graph) -> list[tuple[str, int]]:
    """Return what the overhead of a way is made of: entering its parts, links of their own overhead, wires."""
    found: dict[str, int] = {}
    for link in route.links:
        edge = graph.edge(link.src, link.dst)
        wire_ps = ns_to_ps(graph.spec.wire_ns(edge.length_mm))
        own_ps = ns_to_ps(edge.overhead_ns)
        entered_ps = link.overhead_ps - wire_ps - own_ps
        for resource, each in (
            (of.resource_of_entering(graph.node(link.dst)), entered_ps),
            (resource_of(link, graph), own_ps),
            (of.WIRES, wire_ps),
        ):
            found[resource] = found.get(resource, 0) + each
    return [(resource, each) for resource, each in found.items() if each > 0]
