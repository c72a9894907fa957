"""The ways among which a part in transit may choose: the planned one, and those with the fewest hops.

A hop counts the same wherever it is. Only links of the classes that the planned way uses are counted: no transfer from
SIP to SIP leaves the scale-up links for PCIe, and none within a SIP takes the IO chiplet for a short cut.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from kernbench.policy.routing.cube_routes import Route
from kernbench.policy.routing.planner import RoutePlanner
from kernbench.topology.graph import Graph

LinkClasses = frozenset[str]


class RouteChoices:
    """Ways on from the parts of one machine; who uses them keeps them."""

    def __init__(self, graph: Graph, planner: RoutePlanner) -> None:
        self._graph = graph
        self._planner = planner
        self._distances: dict[tuple[str, LinkClasses], dict[str, int]] = {}

    def instead_of(self, planned: Route) -> tuple[Route, ...]:
        """The ways that may be taken instead of ``planned``, from a part to a destination.

        One for each other link that begins a way with the fewest hops. It goes on as is planned from the first part on
        where that has the fewest hops too.
        """
        here, dst = planned[0], planned[-1]
        classes = frozenset(edge.link_class for edge in self._graph.edges_along(planned))
        others = (each for each in self._next(here, dst, classes) if each != planned[1])
        return tuple((here, *self._shortest(each, dst, classes)) for each in others)

    def _shortest(self, src: str, dst: str, classes: LinkClasses) -> Route:
        """A way with the fewest hops: the planned one from the first part on where there is such a one."""
        way: list[str] = []
        while True:
            planned = self._planner.route(src, dst)
            if len(planned) - 1 == self._distances_to(dst, classes)[src]:
                return (*way, *planned)
            way.append(src)
            src = next(self._next(src, dst, classes))

    def _next(self, here: str, dst: str, classes: LinkClasses) -> Iterator[str]:
        """The parts that are one hop nearer, in the order of the links."""
        distance = self._distances_to(dst, classes)
        for edge in self._graph.out_edges(here):
            if edge.link_class in classes and distance.get(edge.dst) == distance[here] - 1:
                yield edge.dst

    def _distances_to(self, dst: str, classes: LinkClasses) -> dict[str, int]:
        """Hops to ``dst`` over links of some classes, from every part that they lead from."""
        found = self._distances.get((dst, classes))
        if found is None:
            found = self._distances[dst, classes] = {dst: 0}
            waiting = deque([dst])
            while waiting:
                near = waiting.popleft()
                for edge in self._graph.in_edges(near):
                    if edge.link_class in classes and edge.src not in found:
                        found[edge.src] = found[near] + 1
                        waiting.append(edge.src)
        return found
