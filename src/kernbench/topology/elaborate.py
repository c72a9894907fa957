"""The pass from a spec to a graph: a node for every component, a pair of directed edges for every wire.

``cube_plan`` plans a cube once, and every cube of the graph is a shifted copy of the plan. Time therefore grows with
the number of nodes, and all components of a place share their attrs.
"""

from __future__ import annotations

from dataclasses import field
from itertools import product

from kernbench.common.ids import HOST, SWITCH, cube_part, io_ucie_id, sip_part, sip_port_id, ucie_id
from kernbench.common.values import state
from kernbench.topology.cube_plan import AnyComponent, CubePlan, plan_cube
from kernbench.topology.fields import LinkSpec
from kernbench.topology.geometry import ChipletGeometry, MachineGeometry, PointMm, Rect, manhattan_mm, point
from kernbench.topology.graph import Edge, Graph, Node
from kernbench.topology.grid import FORWARD, OPPOSITE
from kernbench.topology.spec import TopologySpec, fabric_links, sip_ports


def elaborate(spec: TopologySpec) -> Graph:
    """Return the graph of a machine, in a fixed order: host and switch, then SIP by SIP, then scale-up links."""
    draft = _GraphDraft(spec, MachineGeometry(spec), plan_cube(spec))
    parts, links = spec.system.components, spec.system.links
    draft.add(HOST, parts.host, draft.geometry.host().centre)
    draft.add(SWITCH, parts.switch, draft.geometry.switch().centre)
    draft.join(HOST, SWITCH, links.host_to_switch, "host_to_switch")
    for sip in range(spec.num_sips):
        _sip(draft, sip)
    for link in fabric_links(spec.system.sips):
        src, dst = sip_port_id(link.src.sip, link.src.index), sip_port_id(link.dst.sip, link.dst.index)
        draft.connect(src, dst, links.sip_to_sip, "sip_to_sip")
    return Graph(spec, draft.nodes, tuple(draft.edges))


@state
class _GraphDraft:
    """A graph under construction."""

    spec: TopologySpec
    geometry: MachineGeometry
    cube: CubePlan
    nodes: dict[str, Node] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)

    def add(self, name: str, part: AnyComponent, pos: PointMm, **coordinates: int | str | None) -> str:
        self.nodes[name] = Node(name, part.kind, part.impl, part.attrs, pos, **coordinates)  # type: ignore[arg-type]
        return name

    def join(self, a: str, b: str, link: LinkSpec, link_class: str) -> None:
        """Link two nodes outside the cubes in both directions."""
        self.connect(a, b, link, link_class)
        self.connect(b, a, link, link_class)

    def connect(self, src: str, dst: str, link: LinkSpec, link_class: str) -> None:
        """Add one direction of a link outside the cubes."""
        entered = self.nodes[dst]
        derived = manhattan_mm(self.nodes[src].pos_mm, entered.pos_mm)
        length = derived if link.length_mm is None else link.length_mm
        overhead = entered.overhead_ns + link.overhead_ns + self.spec.wire_ns(length)
        fifo = None if link.unbounded else self.spec.transport.long_fifo_of(link, overhead)
        self.edges.append(
            Edge(src, dst, link.bw_gbs, length, link.overhead_ns, link_class, link.unbounded, fifo),
        )


def _sip(draft: _GraphDraft, sip: int) -> None:
    outline = draft.geometry.sip(sip)
    chiplet = draft.geometry.chiplet(outline)
    _io_chiplet(draft, sip, chiplet)
    _scale_up_ports(draft, sip, chiplet)
    _io_ucie(draft, sip, outline, chiplet)
    for cube in range(draft.spec.cubes_per_sip):
        _cube(draft, sip, cube, draft.geometry.cube_rect(outline, cube))
    _cube_mesh(draft, sip)
    _io_to_cubes(draft, sip)


def _io_chiplet(draft: _GraphDraft, sip: int, chiplet: ChipletGeometry) -> None:
    parts, links = draft.spec.sip.components, draft.spec.sip.links
    pcie = draft.add(sip_part(sip, "pcie_ep"), parts.pcie_ep, chiplet.at(0.5, 0.85), sip=sip)
    cpu = draft.add(sip_part(sip, "io_cpu"), parts.io_cpu, chiplet.at(0.2, 0.5), sip=sip)
    noc = draft.add(sip_part(sip, "io_noc"), parts.io_noc, chiplet.at(0.5, 0.5), sip=sip)
    draft.join(SWITCH, pcie, draft.spec.system.links.switch_to_sip, "switch_to_sip")
    draft.join(noc, pcie, links.io_internal, "io_internal")
    draft.join(noc, cpu, links.io_internal, "io_internal")


def _scale_up_ports(draft: _GraphDraft, sip: int, chiplet: ChipletGeometry) -> None:
    part, link = draft.spec.sip.components.sip_port, draft.spec.sip.links.io_internal
    ports = sip_ports(draft.spec.system.sips, sip)
    for port in ports:
        name, pos = sip_port_id(sip, port.index), chiplet.port(port, len(ports))
        draft.add(name, part, pos, sip=sip, index=port.index, side=port.side, peer=port.peer)
        draft.join(sip_part(sip, "io_noc"), name, link, "io_internal")


def _io_ucie(draft: _GraphDraft, sip: int, outline: Rect, chiplet: ChipletGeometry) -> None:
    part, link = draft.spec.sip.components.ucie, draft.spec.sip.links.io_internal
    for index, cube in enumerate(draft.spec.sip.edge_cubes):
        pos = chiplet.facing(draft.geometry.cube_rect(outline, cube))
        name = draft.add(io_ucie_id(sip, index), part, pos, sip=sip, index=index)
        draft.join(sip_part(sip, "io_noc"), name, link, "io_internal")


def _io_to_cubes(draft: _GraphDraft, sip: int) -> None:
    link, edge = draft.spec.sip.links.io_to_cube, draft.spec.sip.io_chiplet.edge
    for index, cube in enumerate(draft.spec.sip.edge_cubes):
        draft.join(io_ucie_id(sip, index), ucie_id(sip, cube, edge), link, "io_to_cube")


def _cube_mesh(draft: _GraphDraft, sip: int) -> None:
    grid, link = draft.spec.sip.cube_mesh.grid, draft.spec.sip.links.cube_to_cube
    for cube, side in product(range(len(grid)), FORWARD):
        neighbour = grid.neighbour(cube, side)
        if neighbour is not None:
            near, far = ucie_id(sip, cube, side), ucie_id(sip, neighbour, OPPOSITE[side])
            draft.join(near, far, link, "cube_to_cube")


def _cube(draft: _GraphDraft, sip: int, cube: int, rect: Rect) -> None:
    """Add a copy of the cube plan at ``rect``."""
    ids = [cube_part(sip, cube, part.name) for part in draft.cube.parts]
    for name, part in zip(ids, draft.cube.parts, strict=True):
        pos = point(rect.x + part.pos_mm[0], rect.y + part.pos_mm[1])
        component = part.component
        draft.nodes[name] = Node(
            name,
            component.kind,
            component.impl,
            component.attrs,
            pos,
            sip,
            cube,
            part.pe,
            part.index,
            part.xy,
            part.side,
            None,
            part.window,
        )
    for wire in draft.cube.links:
        link = wire.link
        draft.edges.append(
            Edge(
                ids[wire.src],
                ids[wire.dst],
                link.bw_gbs,
                wire.length_mm,
                link.overhead_ns,
                wire.link_class,
                link.unbounded,
                wire.fifo_bytes,
            )
        )
