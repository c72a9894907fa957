"""The compiled machine: nodes, directed edges, and queries on them.

A node carries its coordinates, so no code parses an id. Nodes and edges are in the order of construction, which is the
same in every run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from kernbench.common.errors import UnknownNameError, UnsupportedError
from kernbench.common.values import value
from kernbench.di.part import KINDS, InnerAttrs, PartAttrs
from kernbench.topology.cube_spec import SramAttrs
from kernbench.topology.fields import AddressWindow
from kernbench.topology.spec import TopologySpec


@value(guarded=False)
class Node:
    """A component of the machine; coordinates that do not apply are None.

    ``index`` numbers HBM slices, IO UCIe ports and scale-up ports. ``xy`` is a router's column and row. ``side`` is
    the direction of a UCIe or scale-up port, or the corner of an xbar. ``peer`` is the SIP beyond a scale-up port,
    ``window`` the addresses of an extra memory.
    """

    id: str
    kind: str
    impl: str
    attrs: InnerAttrs
    pos_mm: tuple[float, float]
    sip: int | None = None
    cube: int | None = None
    pe: int | None = None
    index: int | None = None
    xy: tuple[int, int] | None = None
    side: str | None = None
    peer: int | None = None
    window: AddressWindow | None = None

    @property
    def is_extra(self) -> bool:
        """True for a component of ``cube.extra`` or ``pe.extra``, whose kind is not builtin."""
        return self.kind not in KINDS

    @property
    def overhead_ns(self) -> float:
        """The latency of a packet that enters the component; 0 if no packet enters it."""
        return self.attrs.overhead_ns if isinstance(self.attrs, PartAttrs) else 0.0

    @property
    def rate_gbs(self) -> float | None:
        """The bandwidth limit of each link that leaves the component; None: no limit."""
        return self.attrs.rate_gbs if isinstance(self.attrs, PartAttrs) else None

    @property
    def cube_coord(self) -> tuple[int, int]:
        """The cube of the component, as (sip, cube). Raises UnsupportedError outside of cubes."""
        if self.sip is None or self.cube is None:
            raise UnsupportedError(f"{self.id} is in no cube")
        return self.sip, self.cube

    @property
    def pe_coord(self) -> tuple[int, int, int]:
        """The PE of the component, as (sip, cube, pe). Raises UnsupportedError outside of PEs."""
        if self.pe is None:
            raise UnsupportedError(f"{self.id} is in no PE")
        return *self.cube_coord, self.pe


@value(guarded=False)
class Edge:
    """A directed link.

    ``overhead_ns`` is the latency of the link itself, without that of the entered node. ``fifo_bytes`` is the size of
    the FIFO at the receiving end, None if ``unbounded``.
    """

    src: str
    dst: str
    bw_gbs: float
    length_mm: float
    overhead_ns: float
    link_class: str
    unbounded: bool
    fifo_bytes: int | None


@dataclass(frozen=True)
class Graph:
    """Nodes by id and directed edges, with their spec."""

    spec: TopologySpec
    nodes: Mapping[str, Node]
    edges: tuple[Edge, ...]

    def node(self, node_id: str) -> Node:
        """Return the node of an id. Raises UnknownNameError, which shows some ids."""
        node = self.nodes.get(node_id)
        if node is None:
            raise UnknownNameError(
                "part of the machine", node_id, tuple(list(self.nodes)[:8]), f"… {len(self.nodes)} in all"
            )
        return node

    def edge(self, src: str, dst: str) -> Edge:
        """Return the link from ``src`` to ``dst``. Raises UnknownNameError with all nodes that ``src`` has links to."""
        edge = self._by_ends.get((src, dst))
        if edge is None:
            raise UnknownNameError(f"link from {src} to", dst, tuple(e.dst for e in self.out_edges(src)))
        return edge

    def has_edge(self, src: str, dst: str) -> bool:
        """Return True if there is a link from ``src`` to ``dst``."""
        return (src, dst) in self._by_ends

    def edge_number(self, src: str, dst: str) -> int:
        """Return the index of a link in ``edges``."""
        return self._numbers[src, dst]

    @cached_property
    def extra_nodes(self) -> tuple[Node, ...]:
        """The nodes at ``cube.extra`` and ``pe.extra``."""
        return tuple(node for node in self.nodes.values() if node.is_extra)

    @cached_property
    def places(self) -> tuple[Node, ...]:
        """The first node of each kind and implementing class."""
        places: dict[tuple[str, str], Node] = {}
        for node in self.nodes.values():
            places.setdefault((node.kind, node.impl), node)
        return tuple(places.values())

    def out_edges(self, node_id: str) -> tuple[Edge, ...]:
        """Return the links that leave a node, in the order of construction."""
        return self._outgoing.get(node_id, ())

    def in_edges(self, node_id: str) -> tuple[Edge, ...]:
        """Return the links that enter a node, in the order of construction."""
        return self._incoming.get(node_id, ())

    def edges_along(self, route: tuple[str, ...]) -> tuple[Edge, ...]:
        """Return the links between successive nodes of a route."""
        return tuple(self.edge(src, dst) for src, dst in pairwise(route))

    def hop_overhead_ns(self, edge: Edge) -> float:
        """Return the latency of a hop for a head: overhead of the link, wire, and overhead of the entered node."""
        return edge.overhead_ns + self.spec.wire_ns(edge.length_mm) + self.nodes[edge.dst].overhead_ns

    def head_ns(self, route: tuple[str, ...]) -> float:
        """Return the uncontended latency of a head along a route."""
        return sum(self.hop_overhead_ns(edge) for edge in self.edges_along(route))

    def sram_bw_gbs(self, node_id: str) -> float:
        """Return the sustained bandwidth of an SRAM: its ``bw_gbs`` or, if that is null, of the fastest link to it.

        Raises UnsupportedError for any other component.
        """
        attrs = self.node(node_id).attrs
        if not isinstance(attrs, SramAttrs):
            raise UnsupportedError(f"{node_id} is no SRAM")
        return attrs.bw_gbs or max(edge.bw_gbs for edge in self.in_edges(node_id))

    def count_of_kinds(self) -> dict[str, int]:
        """Count the nodes of each kind."""
        return dict(Counter(node.kind for node in self.nodes.values()))

    def pes(self) -> Iterator[tuple[int, int, int]]:
        """Yield every PE as (sip, cube, pe), in order."""
        spec = self.spec
        for sip in range(spec.num_sips):
            for cube in range(spec.cubes_per_sip):
                yield from ((sip, cube, pe) for pe in range(spec.pes_per_cube))

    def local_slice(self, pe: int) -> int:
        """Return the HBM slice next to a PE of a cube."""
        return self.spec.cube.local_slice(pe)

    def corner_of_slice(self, index: int) -> str:
        """Return the corner of a cube whose xbar serves an HBM slice."""
        return self.spec.cube.corner_of_slice(index)

    @cached_property
    def _by_ends(self) -> dict[tuple[str, str], Edge]:
        return {(edge.src, edge.dst): edge for edge in self.edges}

    @cached_property
    def _numbers(self) -> dict[tuple[str, str], int]:
        return {(edge.src, edge.dst): number for number, edge in enumerate(self.edges)}

    @cached_property
    def _outgoing(self) -> dict[str, tuple[Edge, ...]]:
        return _group_by_end((edge.src, edge) for edge in self.edges)

    @cached_property
    def _incoming(self) -> dict[str, tuple[Edge, ...]]:
        return _group_by_end((edge.dst, edge) for edge in self.edges)


def _group_by_end(edges: Iterable[tuple[str, Edge]]) -> dict[str, tuple[Edge, ...]]:
    """Group links by an end; the links of each end stay in order."""
    groups: dict[str, list[Edge]] = {}
    for end, edge in edges:
        groups.setdefault(end, []).append(edge)
    return {end: tuple(of_end) for end, of_end in groups.items()}
