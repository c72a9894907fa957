"""The plan of a cube: its components and links, computed once and copied for every cube of the machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from itertools import product

from kernbench.common.values import state, value
from kernbench.di.part import InnerAttrs
from kernbench.topology.cube_spec import CubeSpec
from kernbench.topology.fields import AddressWindow, ComponentSpec, ExtraPart, LinkSpec
from kernbench.topology.geometry import PE_FLOORPLAN, CubeGeometry, PointMm, manhattan_mm
from kernbench.topology.grid import FORWARD, SIDES, Corner, Grid, Side
from kernbench.topology.spec import TopologySpec

AnyComponent = ComponentSpec[InnerAttrs]
LINKED_PE_KINDS = ("pe_dma", "pe_cpu")
"""The builtin components of a PE that have a link, to the xbar of its corner"""
XBAR = "xbar"
"""The name by which links of a PE's extra parts refer to the xbar of the PE's corner"""


@value
class PlannedPart:
    """A component with its name in the cube and its position from the north-west corner of the cube."""

    name: str
    component: AnyComponent
    pos_mm: PointMm
    pe: int | None = None
    index: int | None = None
    xy: tuple[int, int] | None = None
    side: str | None = None
    window: AddressWindow | None = None


@value
class PlannedLink:
    """A directed link between two components of the plan; ``src`` and ``dst`` are the components' numbers in it."""

    src: int
    dst: int
    link: LinkSpec
    link_class: str
    length_mm: float
    fifo_bytes: int | None


@value
class CubePlan:
    """The components and links of a cube."""

    parts: tuple[PlannedPart, ...]
    links: tuple[PlannedLink, ...]


def ucie_router(noc: Grid, side: Side) -> tuple[int, int]:
    """Return the router at the middle of an edge: the same column for N and S, the same row for W and E."""
    x, y = noc.w // 2, noc.h // 2
    return {"N": (x, 0), "S": (x, noc.h - 1), "W": (0, y), "E": (noc.w - 1, y)}[side]


def corner_router(noc: Grid, corner: Corner) -> tuple[int, int]:
    """Return the router at a corner."""
    return (noc.w - 1 if "E" in corner else 0), (noc.h - 1 if "S" in corner else 0)


def m_cpu_router(noc: Grid) -> tuple[int, int]:
    """Return the router of the M_CPU, north-west of the middle."""
    return (noc.w - 1) // 2, (noc.h - 1) // 2


def sram_router(noc: Grid) -> tuple[int, int]:
    """Return the router of the SRAM, south-east of the middle."""
    return noc.w // 2, noc.h // 2


def names_in_cube(cube: CubeSpec) -> tuple[str, ...]:
    """Return the names that the plan gives to a cube's builtin components outside its PEs."""
    noc = cube.noc.grid
    routers = (_router_name(noc.xy(index)) for index in range(len(noc)))
    corners = (_xbar_name(corner) for corner in cube.pe_layout.corners)
    slices = (f"hbm{index}" for index in range(cube.hbm.slices))
    return (*routers, *(f"ucie_{side}" for side in SIDES), *corners, *slices, "m_cpu", "sram")


def plan_cube(spec: TopologySpec) -> CubePlan:
    """Return the plan of every cube of this machine."""
    size, noc = spec.cube.size_mm, spec.cube.noc.grid
    draft = _CubeDraft(spec, CubeGeometry(size.w, size.h, noc))
    _routers(draft, noc)
    for side in SIDES:
        _ucie(draft, noc, side)
    for corner in spec.cube.pe_layout.corners:
        _corner(draft, noc, corner)
    _middle(draft, noc)
    _extras(draft)
    return CubePlan(tuple(draft.parts), tuple(draft.links))


@state
class _CubeDraft:
    """A plan under construction."""

    spec: TopologySpec
    geometry: CubeGeometry
    parts: list[PlannedPart] = field(default_factory=list)
    links: list[PlannedLink] = field(default_factory=list)
    place: dict[str, int] = field(default_factory=dict)

    def add(self, part: PlannedPart) -> str:
        self.place[part.name] = len(self.parts)
        self.parts.append(part)
        return part.name

    def at(self, name: str) -> PointMm:
        """Return the position of a component."""
        return self.parts[self.place[name]].pos_mm

    @property
    def positions(self) -> list[PointMm]:
        """The positions of all components."""
        return [part.pos_mm for part in self.parts]

    def join(self, a: str, b: str, link: LinkSpec, link_class: str) -> None:
        """Link two components in both directions; without ``length_mm``, the positions give the length."""
        ends = self.place[a], self.place[b]
        derived = manhattan_mm(self.parts[ends[0]].pos_mm, self.parts[ends[1]].pos_mm)
        length = derived if link.length_mm is None else link.length_mm
        fifo = None if link.unbounded else self.spec.transport.fifo_of(link)
        for src, dst in (ends, ends[::-1]):
            self.links.append(PlannedLink(src, dst, link, link_class, length, fifo))


def _router_name(xy: tuple[int, int]) -> str:
    return f"r{xy[0]}_{xy[1]}"


def _xbar_name(corner: Corner) -> str:
    return f"xbar_{corner}"


def _routers(draft: _CubeDraft, noc: Grid) -> None:
    cube = draft.spec.cube
    for xy in map(noc.xy, range(len(noc))):
        router, pos = cube.components.noc_router, draft.geometry.router(*xy)
        draft.add(PlannedPart(_router_name(xy), router, pos, xy=xy))
    link = cube.noc.link
    for index, side in product(range(len(noc)), FORWARD):
        neighbour = noc.neighbour(index, side)
        if neighbour is not None:
            draft.join(_router_name(noc.xy(index)), _router_name(noc.xy(neighbour)), link, "noc")


def _ucie(draft: _CubeDraft, noc: Grid, side: Side) -> None:
    cube = draft.spec.cube
    name = draft.add(PlannedPart(f"ucie_{side}", cube.components.ucie, draft.geometry.ucie(side), side=side))
    draft.join(_router_name(ucie_router(noc, side)), name, cube.links.router_to_ucie, "router_to_ucie")


def _middle(draft: _CubeDraft, noc: Grid) -> None:
    cube, near = draft.spec.cube, draft.geometry.near
    m_cpu, sram = m_cpu_router(noc), sram_router(noc)
    draft.add(PlannedPart("m_cpu", cube.components.m_cpu, near(m_cpu, towards="W")))
    draft.join(_router_name(m_cpu), "m_cpu", cube.links.router_to_m_cpu, "router_to_m_cpu")
    draft.add(PlannedPart("sram", cube.components.sram, near(sram, towards="E")))
    draft.join(_router_name(sram), "sram", cube.links.router_to_sram, "router_to_sram")


def _corner(draft: _CubeDraft, noc: Grid, corner: Corner) -> None:
    """Add the xbar of a corner, its slices and its PEs."""
    cube = draft.spec.cube
    name, pos = _xbar_name(corner), draft.geometry.xbar(corner)
    xbar = draft.add(PlannedPart(name, cube.components.xbar, pos, side=corner))
    draft.join(_router_name(corner_router(noc, corner)), xbar, cube.links.xbar_to_router, "xbar_to_router")
    for part in _slices(draft, corner):
        draft.join(xbar, draft.add(part), cube.links.xbar_to_hbm, "xbar_to_hbm")
    for part in _pe_parts(draft, corner):
        draft.add(part)
        if part.component.kind in LINKED_PE_KINDS:
            draft.join(xbar, part.name, cube.links.pe_to_xbar, "pe_to_xbar")


def _slices(draft: _CubeDraft, corner: Corner) -> Iterator[PlannedPart]:
    cube = draft.spec.cube
    count = cube.slices_per_corner
    first = cube.pe_layout.corners.index(corner) * count
    for place in range(count):
        pos = draft.geometry.hbm(corner, place, count)
        yield PlannedPart(f"hbm{first + place}", cube.components.hbm_ctrl, pos, index=first + place)


def _pe_parts(draft: _CubeDraft, corner: Corner) -> Iterator[PlannedPart]:
    layout, components = draft.spec.cube.pe_layout, dict(draft.spec.pe.components)
    count = layout.pe_per_corner
    first = layout.corners.index(corner) * count
    for place in range(count):
        centre = draft.geometry.pe(corner, place, count)
        for kind in (kind for row in PE_FLOORPLAN for kind in row):
            pos = draft.geometry.pe_part(corner, centre, kind, count)
            yield PlannedPart(f"pe{first + place}.{kind}", components[kind], pos, pe=first + place)


def _extras(draft: _CubeDraft) -> None:
    """Add the extra parts of the cube and of each PE, and then their links, which may join any two of them."""
    extra = draft.spec.cube.extra
    memories = {window.name: window for window in draft.spec.cube.extra_memories}
    for name, part in extra.items():
        near = next((draft.at(link.to) for link in part.links if link.to in draft.place), draft.at("sram"))
        pos = draft.geometry.free_place(near, draft.positions)
        draft.add(PlannedPart(name, part, pos, window=memories.get(name)))
    _join_extras(draft, extra, {})
    for pe in range(draft.spec.pes_per_cube):
        _extras_of_pe(draft, pe)


def _extras_of_pe(draft: _CubeDraft, pe: int) -> None:
    extra, layout = draft.spec.pe.extra, draft.spec.cube.pe_layout
    corner, count = layout.corner_of(pe), layout.pe_per_corner
    centre = draft.geometry.pe(corner, pe % count, count)
    memories = {window.name: window for window in draft.spec.pe.extra_memories}
    named = {name: f"pe{pe}.{name}" for name in (*LINKED_PE_KINDS, *extra)}
    for number, (name, part) in enumerate(extra.items()):
        pos = draft.geometry.beside_pe(corner, centre, number, count)
        draft.add(PlannedPart(named[name], part, pos, pe=pe, window=memories.get(name)))
    _join_extras(draft, extra, named | {XBAR: _xbar_name(corner)})


def _join_extras(draft: _CubeDraft, extra: Mapping[str, ExtraPart], named: Mapping[str, str]) -> None:
    """Add the links of extra parts. ``named`` maps names of the file to names of the plan where these differ."""
    for name, part in extra.items():
        for link in part.links:
            draft.join(named.get(name, name), named.get(link.to, link.to), link, f"{name}_to_{link.to}")
