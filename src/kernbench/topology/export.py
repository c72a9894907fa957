"""A compiled machine as rows, as plain data and as Graphviz DOT. ``drawing`` has the pictures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from kernbench.common.units import format_size
from kernbench.common.values import value
from kernbench.common.yaml_document import path_text
from kernbench.topology.area import measure_area
from kernbench.topology.builder import Topology
from kernbench.topology.clocks import ClocksSpec, list_clocked_entries
from kernbench.topology.cube_spec import CubeSpec
from kernbench.topology.graph import Edge, Graph, Node
from kernbench.topology.hbm_spec import HbmSpec, HbmTiming
from kernbench.topology.spec import TopologySpec

_DOT_STYLE = {
    "host": "#4d4d4d",
    "switch": "#4d4d4d",
    "pcie_ep": "#8c6bb1",
    "io_cpu": "#d55e00",
    "io_noc": "#56b4e9",
    "ucie": "#e69f00",
    "sip_port": "#e69f00",
    "noc_router": "#56b4e9",
    "xbar": "#0072b2",
    "hbm_ctrl": "#009e73",
    "m_cpu": "#d55e00",
    "sram": "#66c2a5",
}
_DOT_OTHER = "#cc79a7"
OPS_PER_MAC = 2
_PLACES = ("system", "sip", "cube", "pe")


@value
class LinkRow:
    """The figures of a class of links: number, bandwidth, length, latency of a hop, FIFO."""

    link_class: str
    links: int
    bw_gbs: float
    length_mm: tuple[float, float]
    hop_ns: tuple[float, float]
    fifo_bytes: tuple[int, int] | None


@value
class PartRow:
    """The figures of a kind of component at its place (system, sip, cube, pe): class, number, attributes."""

    place: str
    kind: str
    impl: str
    parts: int
    attrs: dict[str, Any]


@value
class ClockRow:
    """A number of the file (``given``), the clock that scales the number, and its value at that clock."""

    path: str
    clock: str
    given: float
    clocked: float


def machine_rows(topology: Topology, *, banks: bool = True) -> list[tuple[str, str]]:
    """Return a short description of the machine as (name, value) rows; ``banks`` includes those of HBM banks."""
    spec = topology.spec
    sips, mesh, noc, hbm = spec.system.sips, spec.sip.cube_mesh, spec.cube.noc, spec.cube.hbm
    shape = f"{sips.topology} {sips.grid.w} x {sips.grid.h}" if sips.two_dimensional else sips.topology
    m, k, n = spec.pe.gemm.tile_sizes
    return [
        *([] if topology.name == topology.source else [("machine", topology.name)]),
        ("source", topology.source),
        ("digest", topology.digest[:12]),
        *_clock_rows(topology.configured.clocks),
        ("SIPs", f"{spec.num_sips}, {shape}"),
        ("cubes", f"{spec.num_cubes}, {mesh.w} x {mesh.h} a SIP, IO chiplet {spec.sip.io_chiplet.edge}"),
        ("PEs", f"{spec.num_pes}, {spec.pes_per_cube} a cube"),
        ("NoC", f"{noc.w} x {noc.h} routers a cube, {noc.link_bw_gbs:g} GB/s a link"),
        ("HBM", f"{hbm.slices} x {format_size(hbm.bytes_per_slice)} a cube; {spec.cube.slice_text}"),
        ("HBM access", _access_text(spec.cube)),
        *(bank_rows(topology) if banks else []),
        ("SRAM", f"{format_size(spec.cube.sram.bytes)} a cube"),
        ("TCM", f"{format_size(spec.pe.tcm.bytes)} a PE"),
        ("GEMM", f"tiles of {m} x {k} x {n}, {format_size(spec.pe.gemm.acc_bytes)} of accumulators a PE"),
        *_extra_rows(spec),
        *_area_rows(topology),
        ("graph", f"{len(topology.topology_obj.nodes)} nodes, {len(topology.topology_obj.edges)} directed links"),
    ]


def _area_rows(topology: Topology) -> Iterator[tuple[str, str]]:
    """Yield the areas and the powers of a machine; none if its energy is null."""
    area = measure_area(topology)
    if area is not None:
        texts: dict[str, list[str]] = {}
        for die in area.dies:
            dram = f", beside it {die.dram_mm2:,.0f} mm² of DRAM" if die.dram_mm2 else ""
            text = f"{die.dies} × {die.mm2:,.1f} mm², {die.full:.0%} of {die.size_mm2:,.0f} mm²{dram}"
            texts.setdefault(f"{die.kind.partition(' ')[0]} area", []).append(text)
        yield from ((label, "; ".join(entries)) for label, entries in texts.items())
        yield "power", area.power_text
        yield from (("fault", fault) for fault in area.faults)


def _clock_rows(clocks: ClocksSpec) -> Iterator[tuple[str, str]]:
    if clocks.changed:
        yield "clocks", f"{clocks} times those of the file; all figures here are at these clocks"


def clock_rows(topology: Topology) -> list[ClockRow]:
    """Return a row for every number of the file that a clock changes; none if all clocks are 1."""
    spec = topology.configured
    return [
        ClockRow(path_text(entry.path), entry.clock, entry.configured, entry.clocked)
        for entry in list_clocked_entries(spec, spec.clocks)
        if entry.configured != entry.clocked
    ]


def peak_text(spec: TopologySpec) -> str:
    """Return the peak compute rate of all PEs by element type; types of equal rate share an entry.

    The unit is TFLOPS for floats and TOPS for integers.
    """
    by_rate: dict[float, list[str]] = {}
    for dtype, rate in spec.pe.gemm.macs_per_ns.items():
        by_rate.setdefault(rate, []).append("f8" if dtype.startswith("f8") else dtype)
    peaks = ((dict.fromkeys(names), OPS_PER_MAC * rate * spec.num_pes / 1000) for rate, names in by_rate.items())
    return "; ".join(f"{', '.join(names)} {tera:,.0f}" for names, tera in peaks)


def _extra_rows(spec: TopologySpec) -> Iterator[tuple[str, str]]:
    for place, extra in (("cube", spec.cube.extra), ("PE", spec.pe.extra)):
        sizes = {name: f" {format_size(part.bytes)}" if part.bytes else "" for name, part in extra.items()}
        if extra:
            yield f"extra a {place}", ", ".join(f"{name}{size}" for name, size in sizes.items())


def _access_text(cube: CubeSpec) -> str:
    """Return the latency of an access as text, without the times to transfer its bytes and to open a row."""
    all_ns, banks = cube.hbm_access_ns, cube.hbm.banks
    if banks is None:
        return f"{all_ns:g} ns to the first byte"
    return f"{all_ns:g} ns to the first byte of an open row: controller {all_ns - banks.cl_ns:g}, CL {banks.cl_ns:g}"


def bank_rows(topology: Topology) -> list[tuple[str, str]]:
    """Return rows that describe the banks of a slice and the fields of its addresses; empty without banks."""
    hbm = topology.spec.cube.hbm
    return [] if hbm.banks is None else _bank_rows(hbm, hbm.banks)


def _bank_rows(hbm: HbmSpec, banks: HbmTiming) -> list[tuple[str, str]]:
    shape = f"{banks.stacks} stacks x {banks.groups} groups x {banks.banks} banks"
    size = f"rows of {format_size(banks.row_bytes)}, bursts of {banks.burst_bytes} B"
    timings = (
        f"{field.removesuffix('_ns')} {value:g}"
        for field, value in banks
        if field.endswith("_ns") and value is not None
    )
    sizes = {"pc": hbm.num_pcs, "stack": banks.stacks, "group": banks.groups, "bank": banks.banks}
    fields = [f"burst {banks.burst_bytes} B"]
    for entry in hbm.fields(banks):
        values = entry.values or sizes.get(entry.field)
        folded = f" ^ {entry.fold}" if entry.fold else ""
        fields.append(" ".join(filter(None, (entry.field, str(values or "")))) + folded)
    mapping = hbm.mapping if isinstance(hbm.mapping, str) else "fields" if hbm.mapping else "interleave"
    return [
        (
            "HBM banks",
            f"{hbm.timing_text}: {hbm.num_pcs} pseudo-channels of {banks.pc_gbs:g} GB/s, each {shape}; {size}",
        ),
        ("HBM ns", ", ".join(timings)),
        (
            "HBM queues",
            f"{hbm.queue} bursts a channel of {banks.pcs_per_channel}; writes from {banks.high:.0%} to {banks.low:.0%}",
        ),
        ("HBM refresh", f"{hbm.refresh_mode}: {banks.refresh_share:.1%} of the time"),
        ("HBM mapping", f"{mapping}, lowest first: {', '.join(fields)}"),
    ]


def part_rows(graph: Graph) -> list[PartRow]:
    """Return a row for each place and kind, in the order of the graph."""
    groups: dict[tuple[str, str, int], list[Node]] = {}
    for node in graph.nodes.values():
        # Components of a place share their attrs; extra parts of a kind may occur at several places.
        groups.setdefault((_PLACES[len(_cluster_of(node))], node.kind, id(node.attrs)), []).append(node)
    return [
        PartRow(place, kind, nodes[0].impl, len(nodes), nodes[0].attrs.model_dump())
        for (place, kind, _), nodes in groups.items()
    ]


def link_rows(graph: Graph) -> list[LinkRow]:
    """Return a row for each class of links, in the order of the graph."""
    groups: dict[str, list[Edge]] = {}
    for edge in graph.edges:
        groups.setdefault(edge.link_class, []).append(edge)
    return [_link_row(graph, edges) for edges in groups.values()]


def _link_row(graph: Graph, edges: list[Edge]) -> LinkRow:
    lengths = [edge.length_mm for edge in edges]
    hops = [round(graph.hop_overhead_ns(edge), 6) for edge in edges]
    fifos = [edge.fifo_bytes for edge in edges if edge.fifo_bytes is not None]
    fifo = (min(fifos), max(fifos)) if fifos else None
    first = edges[0]
    return LinkRow(
        first.link_class, len(edges), first.bw_gbs, (min(lengths), max(lengths)), (min(hops), max(hops)), fifo
    )


def machine_document(topology: Topology) -> dict[str, Any]:
    """Return the machine as plain data: ``source``, ``digest``, ``config``, ``nodes``, ``edges``.

    ``config`` is the configuration of the file. If the file has clocks, ``clocked_config`` is the configuration with
    the clocks applied, as in nodes and edges. ``assumed`` lists the paths of values that no public table has, if there
    are any. ``area`` has the areas and powers, unless the energy of the machine is null.
    """
    graph, configured, area = topology.topology_obj, topology.configured, measure_area(topology)
    clocked = {"clocked_config": topology.spec.model_dump(mode="json")} if configured.clocks.changed else {}
    return {
        "source": topology.source,
        "digest": topology.digest,
        "config": configured.model_dump(mode="json"),
        **clocked,
        **({"assumed": ["cube.hbm.timing"]} if topology.spec.cube.hbm.is_assumed else {}),
        **({} if area is None else {"area": area.to_dict()}),
        "nodes": [_node_fields(node) for node in graph.nodes.values()],
        "edges": [asdict(edge) for edge in graph.edges],
    }


def _node_fields(node: Node) -> dict[str, Any]:
    coordinates = {
        "sip": node.sip,
        "cube": node.cube,
        "pe": node.pe,
        "index": node.index,
        "xy": node.xy,
        "side": node.side,
        "peer": node.peer,
    }
    about = {"id": node.id, "kind": node.kind, "impl": node.impl, "pos_mm": node.pos_mm}
    present = {name: value for name, value in coordinates.items() if value is not None}
    if node.window is not None:
        present |= {"offset": node.window.offset, "bytes": node.window.nbytes}
    return about | present | {"attrs": node.attrs.model_dump(mode="json")}


def to_dot(topology: Topology) -> str:
    """Return the machine as Graphviz DOT: a cluster for each SIP, cube and PE, positions in points for ``neato -n``."""
    graph = topology.topology_obj
    head = ["digraph kernbench {", "  compound=true; node [shape=box, style=filled, fontname=Helvetica, fontsize=8];"]
    return "\n".join([*head, *_clusters(graph), *_dot_edges(graph), "}", ""])


def _clusters(graph: Graph) -> Iterator[str]:
    """Yield the nodes within the clusters of their SIP, cube and PE."""
    open_path: tuple[int, ...] = ()
    for node in sorted(graph.nodes.values(), key=_cluster_of):
        path = _cluster_of(node)
        shared = next((i for i, (a, b) in enumerate(zip(open_path, path, strict=False)) if a != b), None)
        common_depth = min(len(open_path), len(path)) if shared is None else shared
        yield from ("  " * depth + "}" for depth in range(len(open_path), common_depth, -1))
        yield from (_open_cluster(path[: depth + 1]) for depth in range(common_depth, len(path)))
        open_path = path
        yield "  " * (len(path) + 1) + _dot_node(node)
    yield from ("  " * depth + "}" for depth in range(len(open_path), 0, -1))


def _cluster_of(node: Node) -> tuple[int, ...]:
    coordinates = (node.sip, node.cube, node.pe)
    return tuple(c for c in coordinates if c is not None)


def _open_cluster(path: tuple[int, ...]) -> str:
    name = ("SIP", "cube", "PE")[len(path) - 1]
    identity = "_".join(str(c) for c in path)
    return "  " * len(path) + f'subgraph cluster_{identity} {{ label="{name} {path[-1]}"; color="#999999";'


def _dot_node(node: Node) -> str:
    x, y = node.pos_mm
    label = node.id.rpartition(".")[2]
    place = f'pos="{x * 28.35:.1f},{-y * 28.35:.1f}"'
    return f'"{node.id}" [label="{label}", fillcolor="{_DOT_STYLE.get(node.kind, _DOT_OTHER)}", {place}];'


def _dot_edges(graph: Graph) -> Iterator[str]:
    """Yield one line for each pair of opposite links, and an arrow for each link without an opposite."""
    for edge in graph.edges:
        paired = graph.has_edge(edge.dst, edge.src)
        if paired and edge.dst < edge.src:
            continue
        arrows = "both" if paired else "forward"
        about = f"{edge.link_class} {edge.bw_gbs:g} GB/s {edge.length_mm:g} mm"
        yield f'  "{edge.src}" -> "{edge.dst}" [dir={arrows}, tooltip="{about}"];'
