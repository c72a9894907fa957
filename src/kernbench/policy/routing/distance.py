"""How far a way is: what it costs an empty machine, and which cube is farthest."""

from __future__ import annotations

from kernbench.common.ids import HOST, cube_part
from kernbench.policy.routing.planner import RoutePlanner
from kernbench.topology.graph import Graph

Route = tuple[str, ...]


def head_ns(graph: Graph, route: Route) -> float:
    """Time of a head along a route with nothing in its way: nodes entered, links' own overheads, wires."""
    return sum(graph.hop_overhead_ns(edge) for edge in graph.edges_along(route))


def farthest_cube(graph: Graph, planner: RoutePlanner, sip: int, src: str = HOST) -> int:
    """The cube of a SIP whose M_CPU takes longest to reach from ``src``; the lowest number among equals."""

    def distance(cube: int) -> float:
        return head_ns(graph, planner.route(src, cube_part(sip, cube, "m_cpu")))

    return max(range(graph.spec.cubes_per_sip), key=lambda cube: (round(distance(cube), 6), -cube))
