"""How the links of a machine are led over the board: a polyline in mm for each pair of opposite links."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernbench.topology.drawing.cables import host_cables, scale_up_cables
from kernbench.topology.geometry import MachineGeometry, Point
from kernbench.topology.graph import Edge, Graph, Node
from kernbench.topology.shapes import led

# Links that join two ports facing each other, or have no parts in their way.
_STRAIGHT = frozenset(("cube_to_cube", "io_to_cube", "noc"))


@dataclass(slots=True)
class Wires:
    """The ways of all links; ``of_edge`` has for each link the number of its way and whether it runs against it."""

    graph: Graph
    paths: list[tuple[Point, ...]] = field(default_factory=list)
    of_edge: list[tuple[int, bool]] = field(default_factory=list)
    _known: dict[tuple[str, str], int] = field(default_factory=dict)
    _cables: dict[frozenset[Point], tuple[Point, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        cables = [*host_cables(self.graph), *(cable.path for cable in scale_up_cables(self.graph))]
        self._cables = {frozenset((path[0], path[-1])): path for path in cables}
        self.of_edge = [self._place(edge) for edge in self.graph.edges]

    def _place(self, edge: Edge) -> tuple[int, bool]:
        found = self._known.get((edge.dst, edge.src))
        if found is not None:
            return found, True
        self._known[edge.src, edge.dst] = len(self.paths)
        self.paths.append(self._way(edge))
        return len(self.paths) - 1, False

    def _way(self, edge: Edge) -> tuple[Point, ...]:
        src, dst = self.graph.node(edge.src), self.graph.node(edge.dst)
        match edge.link_class:
            case "host_to_switch":
                return self._from_host()
            case "switch_to_sip":
                return self._host_cable(src, dst)
            case "sip_to_sip":
                return self._cable(src, dst)
            case "io_internal":
                return self._in_chiplet(src, dst)
            case straight if straight in _STRAIGHT:
                return (src.pos_mm, dst.pos_mm)
            case _:
                return tuple(led(src, dst))

    def _cable(self, src: Node, dst: Node) -> tuple[Point, ...]:
        found = self._cables.get(frozenset((src.pos_mm, dst.pos_mm)), (src.pos_mm, dst.pos_mm))
        return found if found[0] == src.pos_mm else tuple(reversed(found))

    def _from_host(self) -> tuple[Point, ...]:
        """From edge to edge: these two are large."""
        geometry = MachineGeometry(self.graph.spec)
        host, switch = geometry.host(), geometry.switch()
        return ((host.centre[0], host.y + host.h), (switch.centre[0], switch.y))

    def _host_cable(self, src: Node, dst: Node) -> tuple[Point, ...]:
        """It leaves from the switch's lower edge, below its middle."""
        ends_here = (path for path in self._cables.values() if path[-1] == dst.pos_mm)
        return next(ends_here, (src.pos_mm, dst.pos_mm))

    def _in_chiplet(self, src: Node, dst: Node) -> tuple[Point, ...]:
        """From the chiplet's NoC along its middle, then to the part."""
        (x0, y0), (x1, y1) = src.pos_mm, dst.pos_mm
        lying = self.graph.spec.sip.io_chiplet.edge in {"N", "S"}
        bend = (x1, y0) if lying else (x0, y1)
        return (src.pos_mm, bend, dst.pos_mm)
