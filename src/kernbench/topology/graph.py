"""The compiled machine: nodes, directed edges, and the questions asked about them.

A node carries its coordinates, so nobody takes an id apart. Order is that of construction, the same on every run.
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
    """A part of the machine; coordinates that do not apply are None.

    ``index`` numbers HBM slices, IO UCIe ports and scale-up ports; ``xy`` is a router's column and row; ``side`` is
    the direction of a UCIe or scale-up port, or the corner of an xbar; ``peer`` the SIP beyond a scale-up port;
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
        """True when it stands at ``cube.extra`` or ``pe.extra``: its kind is not a builtin one."""
        return self.kind not in KINDS

    @property
    def overhead_ns(self) -> float:
        """The time that a packet takes to enter; 0 for a part that none enters."""
        return self.attrs.overhead_ns if isinstance(self.attrs, PartAttrs) else 0.0

    @property
    def rate_gbs(self) -> float | None:
        """The bandwidth of each link out of it; None when it limits none."""
        return self.attrs.rate_gbs if isinstance(self.attrs, PartAttrs) else None

    @property
    def cube_coord(self) -> tuple[int, int]:
        """The cube it is in, as (sip, cube). UnsupportedError when it is in none."""
        if self.sip is None or self.cube is None:
            raise UnsupportedError(f"{self.id} is in no cube")
        return self.sip, self.cube

    @property
    def pe_coord(self) -> tuple[int, int, int]:
        """The PE it is a part of, as (sip, cube, pe). UnsupportedError when it is of none."""
        if self.pe is None:
            raise UnsupportedError(f"{self.id} is in no PE")
        return *self.cube_coord, self.pe


@value(guarded=False)
class Edge:
    """A directed link.

    ``overhead_ns`` is its own, beside that of the node it enters. ``fifo_bytes`` is the room at its far end, None when
    ``unbounded``.
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
    """Nodes by id and directed edges, with the spec they were elaborated from."""

    spec: TopologySpec
    nodes: Mapping[str, Node]
    edges: tuple[Edge, ...]

    def node(self, node_id: str) -> Node:
        """Return the node of this id. Raises UnknownNameError, which shows ids."""
        found = self.nodes.get(node_id)
        if found is None:
            raise UnknownNameError(
                "part of the machine", node_id, tuple(list(self.nodes)[:8]), f"… {len(self.nodes)} in all"
            )
        return found

    def edge(self, src: str, dst: str) -> Edge:
        """Return the link between two nodes. Raises UnknownNameError with the nodes that ``src`` has links to."""
        found = self._by_ends.get((src, dst))
        if found is None:
            raise UnknownNameError(f"link from {src} to", dst, tuple(e.dst for e in self.out_edges(src)))
        return found

    def has_edge(self, src: str, dst: str) -> bool:
        """Return True when a link joins the two nodes in this direction."""
        return (src, dst) in self._by_ends

    def edge_number(self, src: str, dst: str) -> int:
        """Return the place of a link among ``edges``."""
        return self._numbers[src, dst]

    @cached_property
    def extra_nodes(self) -> tuple[Node, ...]:
        """The nodes at ``cube.extra`` and ``pe.extra``."""
        return tuple(node for node in self.nodes.values() if node.is_extra)

    @cached_property
    def places(self) -> tuple[Node, ...]:
        """The first node of each kind and class."""
        found: dict[tuple[str, str], Node] = {}
        for node in self.nodes.values():
            found.setdefault((node.kind, node.impl), node)
        return tuple(found.values())

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
        """Return the time that a hop adds to a head's way: the link's own overhead, the wire, and the node entered."""
        return edge.overhead_ns + self.spec.wire_ns(edge.length_mm) + self.nodes[edge.dst].overhead_ns

    def head_ns(self, route: tuple[str, ...]) -> float:
        """Return the time of a head along a route with nothing in its way."""
        return sum(self.hop_overhead_ns(edge) for edge in self.edges_along(route))

    def sram_bw_gbs(self, node_id: str) -> float:
        """Return the bandwidth that an SRAM sustains: its own or, if it says none, that of the fastest link to it.

        Raises UnsupportedError for what is no SRAM.
        """
        attrs = self.node(node_id).attrs
        if not isinstance(attrs, SramAttrs):
            raise UnsupportedError(f"{node_id} is no SRAM")
        return attrs.bw_gbs or max(edge.bw_gbs for edge in self.in_edges(node_id))

    def count_of_kinds(self) -> dict[str, int]:
        """Count the nodes of each kind."""
        return dict(Counter(node.kind for node in self.nodes.values()))

    def count_of_links(self) -> dict[str, int]:
        """Count the directed links of each class."""
        return dict(Counter(edge.link_class for edge in self.edges))

    def pes(self) -> Iterator[tuple[int, int, int]]:
        """Yield every PE as (sip, cube, pe), in order."""
        spec = self.spec
        for sip in range(spec.num_sips):
            for cube in range(spec.cubes_per_sip):
                yield from ((sip, cube, pe) for pe in range(spec.pes_per_cube))

    def local_slice(self, pe: int) -> int:
        """Return the HBM slice next to a PE of a cube."""
        return self.spec.cube.local_slice(pe)

    def corner_of_pe(self, pe: int) -> str:
        """Return the corner of a cube where a PE stands."""
        return self.spec.cube.pe_layout.corner_of(pe)

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
    """Group links by an end, those of each end in order."""
    found: dict[str, list[Edge]] = {}
    for end, edge in edges:
        found.setdefault(end, []).append(edge)
    return {end: tuple(of_end) for end, of_end in found.items()}
