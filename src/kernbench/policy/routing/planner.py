"""The route of every transaction through the machine, from the coordinates of its ends.

- Inside a cube: a component is linked to a router, directly or through the xbar of its corner. Routes between two
  components of a corner use only the xbar. All other routes use routers, X first.
- From cube to cube: over UCIe ports, X first.
- To and from the IO chiplet: along the column (row) of the cube to the edge, the UCIe link there, ``io_noc``.
- From SIP to SIP: over scale-up ports, by the fewest hops, through the ``io_noc`` of each SIP on the way. Without a
  path of scale-up links: through the PCIe endpoints and the switch.
- From the host: switch, PCIe endpoint, ``io_noc``.

If a component of a PE has no links, routes to the component end at the DMA of that PE. Of the links to an extra part, a
route uses the one with the fewest hops; among equal links, the first. Extra parts never relay routes between other
components.

A component in transit may choose another route than the planned one: ``RouteChoices`` returns those with the fewest
hops. All hops count the same. Only links of the classes on the planned route are used. Transfers from SIP to SIP
therefore never leave the scale-up links for PCIe. Transfers within a SIP never cut through the IO chiplet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import pairwise, product

from kernbench.common.errors import TransportError
from kernbench.common.ids import HOST, SWITCH, io_ucie_id, pe_dma_id, router_id, sip_part, sip_port_id, ucie_id, xbar_id
from kernbench.topology.cube_plan import LINKED_PE_KINDS, corner_router, m_cpu_router, sram_router, ucie_router
from kernbench.topology.graph import Graph, Node
from kernbench.topology.grid import OPPOSITE, SIDES, Side
from kernbench.topology.spec import FabricLink, SipsSpec, fabric_links

NodePath = tuple[str, ...]
GridCell = tuple[int, int]


class CubeRoutes:
    """Routes between components of cubes in the same SIP."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._cube = graph.spec.cube
        self._mesh = graph.spec.sip.cube_mesh.grid
        self._edge = graph.spec.sip.io_chiplet.edge
        self._edge_cubes = graph.spec.sip.edge_cubes
        noc = self._cube.noc.grid
        self._m_cpu, self._sram = m_cpu_router(noc), sram_router(noc)
        self._beside: dict[str, GridCell] = {side: ucie_router(noc, side) for side in SIDES}
        self._beside |= {corner: corner_router(noc, corner) for corner in self._cube.pe_layout.corners}

    def between(self, src: Node, dst: Node) -> NodePath:
        """Return the route between two components of cubes in the same SIP, both ends included."""
        sip, at = src.cube_coord
        _, end = dst.cube_coord
        if at == end:
            return self._within(src, dst)
        route: list[str] = []
        here = src
        cubes = list(xy_cells(self._mesh.xy(at), self._mesh.xy(end)))
        for cell, next_cell in pairwise(cubes):
            side = side_towards(cell, next_cell)
            leave = self._graph.node(ucie_id(sip, self._mesh.index(*cell), side))
            route.extend(self._within(here, leave))
            here = self._graph.node(ucie_id(sip, self._mesh.index(*next_cell), OPPOSITE[side]))
        return (*route, *self._within(here, dst))

    def to_io(self, src: Node) -> NodePath:
        """Return the route from a component along its column (row) to the UCIe port that faces the IO chiplet."""
        return self.between(src, self._io_facing(src))

    def from_io(self, dst: Node) -> NodePath:
        """Return the route to a component from the UCIe port in its column (row) that faces the IO chiplet."""
        return self.between(self._io_facing(dst), dst)

    def _io_facing(self, node: Node) -> Node:
        sip, cube = node.cube_coord
        column_or_row = self._graph.spec.sip.io_ucie_of(cube)
        return self._graph.node(ucie_id(sip, self._edge_cubes[column_or_row], self._edge))

    def _within(self, src: Node, dst: Node) -> NodePath:
        """Return the route between two components of the same cube, both ends included."""
        if src.id == dst.id:
            return (src.id,)
        (up, first), (down, last) = self._stem(src), self._stem(dst)
        if up[-1] == down[-1] and up[-1] != src.id and up[-1] != dst.id:
            return (src.id, up[-1], dst.id)
        if down[-1] == src.id or up[-1] == dst.id:
            return (src.id, dst.id)
        sip, cube = src.cube_coord
        routers = [router_id(sip, cube, x, y) for x, y in xy_cells(first, last)]
        return tuple(dict.fromkeys((*up, *routers, *reversed(down))))

    def _stem(self, node: Node) -> tuple[NodePath, GridCell]:
        """Return the path from a component to its xbar, if it has one, and the cell of its router.

        The path of a router is the router alone.
        """
        if node.xy is not None:
            return (node.id,), node.xy
        corner = None
        if node.pe is not None:
            corner = self._cube.pe_layout.corner_of(node.pe)
        elif node.kind == "hbm_ctrl" and node.index is not None:
            corner = self._cube.corner_of_slice(node.index)
        if corner is not None:
            return (node.id, xbar_id(*node.cube_coord, corner)), self._beside[corner]
        if node.side is not None:
            return (node.id,), self._beside[node.side]
        return (node.id,), self._m_cpu if node.kind == "m_cpu" else self._sram


def xy_cells(src: GridCell, dst: GridCell) -> Iterator[GridCell]:
    """Yield every cell of the route over a grid, X first, both ends included."""
    x, y = src
    yield x, y
    while x != dst[0]:
        x += 1 if dst[0] > x else -1
        yield x, y
    while y != dst[1]:
        y += 1 if dst[1] > y else -1
        yield x, y


def side_towards(src: GridCell, dst: GridCell) -> Side:
    """Return the side of ``src`` that faces ``dst``, a cell of the same row or column."""
    if src[0] != dst[0]:
        return "E" if dst[0] > src[0] else "W"
    return "S" if dst[1] > src[1] else "N"


class SipRoutes:
    """Shortest routes in the directed graph of SIPs; ties go to the first link by SIP and port."""

    def __init__(self, sips: SipsSpec) -> None:
        self._sips = sips
        self._distances: dict[int, dict[int, int]] = {}

    def between(self, src: int, dst: int, via_port: str | None = None) -> tuple[FabricLink, ...] | None:
        """Return the links from one SIP to another, or None if scale-up links do not lead there.

        ``via_port`` requests the port on that side. The request is ignored unless that port leads directly to ``dst``.
        """
        direct_links = (link for link in self._outgoing[src] if link.src.side == via_port and link.dst.sip == dst)
        direct = next(direct_links, None) if via_port is not None else None
        if direct is not None:
            return (direct,)
        distance = self._distance_to(dst)
        if src not in distance:
            return None
        links: list[FabricLink] = []
        while src != dst:
            step = next(link for link in self._outgoing[src] if distance.get(link.dst.sip) == distance[src] - 1)
            links.append(step)
            src = step.dst.sip
        return tuple(links)

    @cached_property
    def _outgoing(self) -> dict[int, list[FabricLink]]:
        links_by_src: dict[int, list[FabricLink]] = {sip: [] for sip in range(self._sips.count)}
        for link in fabric_links(self._sips):
            links_by_src[link.src.sip].append(link)
        return links_by_src

    @cached_property
    def _incoming(self) -> dict[int, list[int]]:
        sources_by_dst: dict[int, list[int]] = {sip: [] for sip in range(self._sips.count)}
        for link in fabric_links(self._sips):
            sources_by_dst[link.dst.sip].append(link.src.sip)
        return sources_by_dst

    def _distance_to(self, dst: int) -> dict[int, int]:
        """Return the number of hops to ``dst`` from every SIP that can reach it."""
        cached = self._distances.get(dst)
        if cached is not None:
            return cached
        distance, waiting = {dst: 0}, deque([dst])
        while waiting:
            sip = waiting.popleft()
            for before in self._incoming[sip]:
                if before not in distance:
                    distance[before] = distance[sip] + 1
                    waiting.append(before)
        self._distances[dst] = distance
        return distance


class RoutePlanner:
    """The planner of a machine's routes; callers cache the results."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._cubes = CubeRoutes(graph)
        self._sips = SipRoutes(graph.spec.system.sips)

    def route(self, src: str, dst: str, via_port: str | None = None) -> NodePath:
        """Return node ids from ``src`` to ``dst``, both included; the DMA of a PE stands for components without links.

        ``via_port`` ("E", "W", "N", "S") requests a scale-up port of the source's SIP. The request is ignored unless
        that port leads directly to the SIP of ``dst``. Raises TransportError if there is no route, and UnknownNameError
        for an unknown node.
        """
        start, end = self._find_linked(src), self._find_linked(dst)
        stems = product(self._stems(start), self._stems(end))
        route = min((self._join(leaving, entering, via_port) for leaving, entering in stems), key=len)
        missing = [pair for pair in pairwise(route) if not self._graph.has_edge(*pair)]
        if missing:
            raise TransportError(
                f"no route from {src} to {dst}: there is no link from {missing[0][0]} to {missing[0][1]}"
            )
        return route

    def _stems(self, node: Node) -> list[NodePath]:
        """Return the paths from an extra part over extra parts to builtin ones; a builtin part is its own path."""
        stems: list[NodePath] = []
        waiting: deque[NodePath] = deque([(node.id,)])
        visited = {node.id}
        while waiting:
            stem = waiting.popleft()
            if not self._graph.node(stem[-1]).is_extra:
                stems.append(stem)
                continue
            ends = [edge.dst for edge in self._graph.out_edges(stem[-1]) if edge.dst not in visited]
            visited.update(ends)
            waiting.extend((*stem, end) for end in ends)
        return stems

    def _join(self, leaving: NodePath, entering: NodePath, via_port: str | None) -> NodePath:
        """Join two stems by the route between their builtin ends."""
        way = self._between(self._graph.node(leaving[-1]), self._graph.node(entering[-1]), via_port)
        if len(leaving) == len(entering) == 1:
            return way
        return _without_detours([*leaving[:-1], *way, *reversed(entering[:-1])])

    def _between(self, src: Node, dst: Node, via_port: str | None) -> NodePath:
        if src.cube is not None and dst.cube is not None and src.sip == dst.sip:
            return self._cubes.between(src, dst)
        if src.id == dst.id:
            return (src.id,)
        return _without_detours([*self._to_hub(src), *self._hub_to_hub(src, dst, via_port), *self._from_hub(dst)])

    def _to_hub(self, node: Node) -> NodePath:
        """Return the route from a component to the ``io_noc`` of its SIP, or from the host to the switch."""
        if node.sip is None:
            return (HOST, SWITCH) if node.id == HOST else (SWITCH,)
        return (*self._cubes_to_io(node), sip_part(node.sip, "io_noc"))

    def _from_hub(self, node: Node) -> NodePath:
        """Return the reverse route of ``_to_hub``."""
        if node.sip is None:
            return (SWITCH, HOST) if node.id == HOST else (SWITCH,)
        return (sip_part(node.sip, "io_noc"), *self._io_to_cubes(node))

    def _cubes_to_io(self, node: Node) -> NodePath:
        if node.sip is None or node.cube is None:
            return (node.id,)
        port = io_ucie_id(node.sip, self._graph.spec.sip.io_ucie_of(node.cube))
        return (*self._cubes.to_io(node), port)

    def _io_to_cubes(self, node: Node) -> NodePath:
        if node.sip is None or node.cube is None:
            return (node.id,)
        port = io_ucie_id(node.sip, self._graph.spec.sip.io_ucie_of(node.cube))
        return (port, *self._cubes.from_io(node))

    def _hub_to_hub(self, src: Node, dst: Node, via_port: str | None) -> NodePath:
        """Return the route between hubs: ports and hubs of SIPs on the route, or PCIe endpoints and the switch."""
        if src.sip == dst.sip:
            return ()
        if src.sip is not None and dst.sip is not None:
            links = self._sips.between(src.sip, dst.sip, via_port)
            if links is not None:
                return tuple(stop for link in links for stop in _crossing(link))
        leave = () if src.sip is None else (sip_part(src.sip, "pcie_ep"),)
        enter = () if dst.sip is None else (sip_part(dst.sip, "pcie_ep"),)
        return (*leave, SWITCH, *enter)

    def _find_linked(self, node_id: str) -> Node:
        node = self._graph.node(node_id)
        if node.pe is None or node.is_extra or node.kind in LINKED_PE_KINDS:
            return node
        return self._graph.node(pe_dma_id(*node.pe_coord))


def _crossing(link: FabricLink) -> NodePath:
    """Return the ports at both ends of a scale-up link, and the hub of the receiving SIP."""
    src, dst = link.src, link.dst
    return sip_port_id(src.sip, src.index), sip_port_id(dst.sip, dst.index), sip_part(dst.sip, "io_noc")


def _without_detours(stops: Iterable[str]) -> NodePath:
    """Return the stops without loops back to an earlier stop, such as through the hub of a port and back."""
    route: dict[str, None] = {}
    for stop in stops:
        if stop in route:
            while next(reversed(route)) != stop:
                route.popitem()
        route[stop] = None
    return tuple(route)


LinkClasses = frozenset[str]


class RouteChoices:
    """The alternative routes of a machine's components in transit; callers cache the results."""

    def __init__(self, graph: Graph, planner: RoutePlanner) -> None:
        self._graph = graph
        self._planner = planner
        self._distances: dict[tuple[str, LinkClasses], dict[str, int]] = {}

    def instead_of(self, planned: NodePath) -> tuple[NodePath, ...]:
        """Return the alternatives to ``planned``, the route from a component to a destination.

        There is one alternative for each other link that begins a route with the fewest hops. An alternative joins the
        planned route at the first component from which the plan also has the fewest hops.
        """
        here, dst = planned[0], planned[-1]
        classes = frozenset(edge.link_class for edge in self._graph.edges_along(planned))
        next_nodes = (node for node in self._next(here, dst, classes) if node != planned[1])
        return tuple((here, *self._shortest(node, dst, classes)) for node in next_nodes)

    def _shortest(self, src: str, dst: str, classes: LinkClasses) -> NodePath:
        """Return a route with the fewest hops; it follows the plan as soon as the plan also has the fewest hops."""
        way: list[str] = []
        while True:
            planned = self._planner.route(src, dst)
            if len(planned) - 1 == self._distances_to(dst, classes)[src]:
                return (*way, *planned)
            way.append(src)
            src = next(self._next(src, dst, classes))

    def _next(self, here: str, dst: str, classes: LinkClasses) -> Iterator[str]:
        """Yield the components that are one hop nearer to ``dst``, in the order of the links."""
        distance = self._distances_to(dst, classes)
        for edge in self._graph.out_edges(here):
            if edge.link_class in classes and distance.get(edge.dst) == distance[here] - 1:
                yield edge.dst

    def _distances_to(self, dst: str, classes: LinkClasses) -> dict[str, int]:
        """Return the number of hops to ``dst`` over links of some classes, from every component that reaches it."""
        distances = self._distances.get((dst, classes))
        if distances is None:
            distances = self._distances[dst, classes] = {dst: 0}
            waiting = deque([dst])
            while waiting:
                node_id = waiting.popleft()
                for edge in self._graph.in_edges(node_id):
                    if edge.link_class in classes and edge.src not in distances:
                        distances[edge.src] = distances[node_id] + 1
                        waiting.append(edge.src)
        return distances
