"""The resources of a machine: everything that can limit work, with the keys of the file that make it faster.

Critical paths, bounds and advice name a resource by its ``name``. A resource becomes 10 % faster if every rate and
latency at its ``places`` is scaled (see ``scaling``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from kernbench.common.values import value
from kernbench.common.yaml_document import path_text
from kernbench.topology.graph import Edge, Node
from kernbench.topology.hbm_spec import PRESETS, HbmTiming
from kernbench.topology.scaling import list_paced_entries, replace_entries, scale_machine
from kernbench.topology.spec import TopologySpec

GEMM, MATH, FETCH, STORE = "GEMM", "MATH", "fetch", "store"
DMA_SETUP, QUEUE_SETUP, TRANSLATION = "DMA set-up", "queue set-up", "translation"
LAUNCH, ISSUE, TILE_ISSUE = "kernel launch", "command issue", "tile issue"
CONTROL = "control path CPUs"
HBM, HBM_ACCESS, HBM_ROWS = "HBM", "HBM access", "HBM rows"
HBM_TURNS, HBM_REFRESH = "HBM turnarounds", "HBM refresh"
SRAM, SRAM_ACCESS = "SRAM", "SRAM access"
NOC, UCIE_LINKS, IO_LINKS, SIP_LINKS, HOST_LINK = "NoC", "UCIe links", "IO chiplet links", "SIP links", "host link"
WIRES = "wires"

PIPELINE = (HBM, SRAM, FETCH, GEMM, MATH, STORE)
"""The stages of a PE's tiles, in order; if two stages need equal time per tile, neither alone is the bottleneck"""

_ATTRS = "{}.components.{}.attrs.{}"
_TIMING = "cube.hbm.timing."


def _timings(*names: str) -> tuple[str, ...]:
    return tuple(f"{_TIMING}{name}_ns" for name in names)


_PLACES: dict[str, tuple[str, ...]] = {
    GEMM: ("pe.gemm.macs_per_ns",),
    MATH: ("pe.math",),
    FETCH: ("pe.tcm.read_bw_gbs",),
    STORE: ("pe.tcm.write_bw_gbs",),
    DMA_SETUP: ("pe.dma.setup_ns",),
    QUEUE_SETUP: ("pe.components.pe_ipcq.attrs",),
    TRANSLATION: ("pe.mmu.tlb_miss_ns",),
    LAUNCH: ("pe.components.pe_cpu.attrs.launch_ns",),
    ISSUE: ("pe.components.pe_cpu.attrs.issue_ns", "pe.components.pe_cpu.attrs.value_ns"),
    TILE_ISSUE: ("pe.components.pe_scheduler.attrs.issue_ns",),
    CONTROL: (
        "system.components.host.attrs",
        "sip.components.io_cpu.attrs",
        "cube.components.m_cpu.attrs",
        "pe.components.pe_cpu.attrs.overhead_ns",
    ),
    HBM: (*_timings("ccd_s", "ccd_l", "ccd_l_wr", "ccd_r"), "cube.links.xbar_to_hbm.bw_gbs"),
    HBM_ROWS: _timings("rc", "rp", "rcd", "rcd_write", "act", "row_bus", "column_bus", "rtp", "wr"),
    HBM_TURNS: _timings("rtw", "wtr", "cwl"),
    HBM_REFRESH: _timings("rfc"),
    HBM_ACCESS: ("cube.components.hbm_ctrl.attrs", *_timings("cl")),
    SRAM: ("cube.components.sram.attrs.bw_gbs", "cube.links.router_to_sram.bw_gbs"),
    SRAM_ACCESS: ("cube.components.sram.attrs.access_ns", "cube.components.sram.attrs.overhead_ns"),
    NOC: (
        "cube.noc",
        "cube.links.xbar_to_router",
        "cube.links.pe_to_xbar",
        "cube.links.router_to_ucie",
        "cube.links.router_to_m_cpu",
    ),
    UCIE_LINKS: ("sip.links.io_to_cube", "sip.links.cube_to_cube"),
    IO_LINKS: ("sip.links.io_internal",),
    SIP_LINKS: ("system.links.sip_to_sip",),
    HOST_LINK: ("system.links.host_to_switch", "system.links.switch_to_sip"),
    WIRES: ("ns_per_mm",),
}
_PASSED = {
    "noc_router": ("router", ("cube.components.noc_router.attrs",)),
    "xbar": ("crossbar", ("cube.components.xbar.attrs",)),
    "ucie": ("UCIe", ("cube.components.ucie.attrs", "sip.components.ucie.attrs")),
    "sip_port": ("SIP port", ("sip.components.sip_port.attrs",)),
    "io_noc": ("IO router", ("sip.components.io_noc.attrs",)),
    "pcie_ep": ("PCIe", ("sip.components.pcie_ep.attrs",)),
    "switch": ("switch", ("system.components.switch.attrs",)),
    "pe_dma": ("DMA", ("pe.components.pe_dma.attrs",)),
}
"""Components in transit: name of the resource, and the entries with the overhead and the rate limit of links"""
_LINKS = {
    "xbar_to_hbm": HBM,
    "router_to_sram": SRAM,
    "sip_to_sip": SIP_LINKS,
    "host_to_switch": HOST_LINK,
    "switch_to_sip": HOST_LINK,
    "io_internal": IO_LINKS,
    "io_to_cube": UCIE_LINKS,
    "cube_to_cube": UCIE_LINKS,
}
_ENTERED = {
    **{kind: f"{name} overhead" for kind, (name, _) in _PASSED.items()},
    "pe_ipcq": QUEUE_SETUP,
    "hbm_ctrl": HBM_ACCESS,
    "sram": SRAM_ACCESS,
    **dict.fromkeys(("host", "io_cpu", "m_cpu", "pe_cpu"), CONTROL),
}
BUILTIN_RESOURCES = (
    *_PLACES,
    *(f"{name} {quantity}" for name, _ in _PASSED.values() for quantity in ("overhead", "rate")),
)
"""Names of the resources of every machine"""
_BUILTIN = "builtin."


@value
class Resource:
    """A component or rate that can limit work: its name in texts, and the entries of the file that make it faster."""

    name: str
    places: tuple[str, ...]


def find_resources(spec: TopologySpec) -> Mapping[str, Resource]:
    """Return the resources of a machine by name: builtin ones, then those of the user's memories and components."""
    places = dict(_PLACES)
    for name, of in _PASSED.values():
        places |= {f"{name} overhead": of, f"{name} rate": of}
    for place, part in (
        ("cube.components.hbm_ctrl", spec.cube.components.hbm_ctrl),
        ("cube.components.sram", spec.cube.components.sram),
    ):
        if not part.impl.startswith(_BUILTIN):
            places[_custom_name(place.rpartition(".")[2], part.impl)] = (f"{place}.attrs",)
    for section, extras in (("cube", spec.cube.extra), ("pe", spec.pe.extra)):
        for name, extra in extras.items():
            places[_custom_name(extra.kind or name, extra.impl)] = (f"{section}.extra.{name}",)
    return MappingProxyType({name: Resource(name, of) for name, of in places.items()})


def resource_of_memory(node: Node) -> str:
    """Return the name of the resource that serves the bytes of a memory."""
    if not node.is_extra and node.impl.startswith(_BUILTIN):
        return {"hbm_ctrl": HBM, "sram": SRAM}.get(node.kind, FETCH)
    return _custom_name(node.kind, node.impl)


def resource_of_access(node: Node) -> str:
    """Return the name of the resource that sets the latency of an access, without the time to transfer its bytes."""
    served = resource_of_memory(node)
    return {HBM: HBM_ACCESS, SRAM: SRAM_ACCESS}.get(served, served)


def resource_of_entering(node: Node) -> str:
    """Return the name of the resource that determines the latency of a packet that enters a component."""
    return _custom_name(node.kind, node.impl) if node.is_extra else _ENTERED.get(node.kind, node.kind)


def resource_of_link(edge: Edge, leaves: Node, bw_gbs: float) -> str:
    """Return the name of the resource of a link that carries ``bw_gbs``.

    If ``bw_gbs`` is less than the link's own bandwidth, the component that the link ``leaves`` is the resource.
    """
    if bw_gbs < edge.bw_gbs:
        return (
            leaves.kind
            if leaves.is_extra
            else f"{_PASSED[leaves.kind][0] if leaves.kind in _PASSED else leaves.kind} rate"
        )
    return _LINKS.get(edge.link_class, NOC)


def _custom_name(kind: str, impl: str) -> str:
    return f"{kind} ({impl})" if kind in ("hbm_ctrl", "sram") else kind


def speed_up(spec: TopologySpec, names: Iterable[str], factor: float) -> TopologySpec:
    """Return a machine in which the named resources are ``factor`` times as fast."""
    return scale_machine(spell_out(spec), _places(spec, names), factor)


def settings_of(spec: TopologySpec, names: Iterable[str], factor: float) -> tuple[str, ...]:
    """Return the changes of ``speed_up`` as ``--set`` texts; timings of banks form one text."""
    timings: list[str] = []
    settings: list[str] = []
    for entry in list_paced_entries(spell_out(spec), _places(spec, names), factor):
        path = path_text(entry.path)
        if entry.configured == entry.scaled:
            continue
        if path.startswith(_TIMING):
            timings.append(path.removeprefix(_TIMING))
        else:
            settings.append(f"{path}={entry.scaled:.6g}")
    if timings:
        timing = speed_up(spec, names, factor).cube.hbm.timing
        assert isinstance(timing, HbmTiming)
        other = ((name, number) for name, number in timing if number != dict(HbmTiming())[name])
        settings.append(f"cube.hbm.timing={{{', '.join(f'{name}: {number:.6g}' for name, number in other)}}}")
    return tuple(settings)


def _places(spec: TopologySpec, names: Iterable[str]) -> Iterator[str]:
    resources = find_resources(spec)
    for name in names:
        yield from resources[name].places if name in resources else ()


def spell_out(spec: TopologySpec) -> TopologySpec:
    """Return the same machine with the timing of banks and the access latency of slices written out as numbers."""
    hbm, banks = spec.cube.hbm, spec.cube.hbm.banks
    attrs = spec.cube.components.hbm_ctrl.attrs
    cl_ns = 0.0 if banks is None else banks.cl_ns
    updates: dict[tuple[str | int, ...], object] = {}
    if attrs.access_ns is None:
        updates["cube", "components", "hbm_ctrl", "attrs", "access_ns"] = hbm.access_ns(attrs) - cl_ns
    if banks is not None and isinstance(hbm.timing, str):
        updates["cube", "hbm", "timing"] = PRESETS[hbm.timing].timing
    return replace_entries(spec, updates)
