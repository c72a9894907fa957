"""Bytes under way on a machine: bandwidth times delay, from its specification.

A schedule goes on ahead by that much: less leaves gaps on the links, more makes what is needed wait behind what is not.
Delays are those of a way as long as half a die, without waiting.
"""

from __future__ import annotations

from kernbench.topology.fields import LinkSpec
from kernbench.topology.spec import TopologySpec


def hop_bytes(spec: TopologySpec) -> tuple[int, int, int]:
    """Return the bytes under way on a hop of a tree there and back: within a cube, between cubes, between SIPs."""
    pe, sip, system = spec.pe.components, spec.sip, spec.system
    ends = 2 * pe.pe_ipcq.attrs.overhead_ns + spec.pe.dma.setup_ns + spec.pe.math.startup_ns
    in_cube = ends + 2 * _across_cube_ns(spec)
    ucie, port = spec.cube.components.ucie.attrs.overhead_ns, sip.components
    between_cubes = 4 * ucie + 2 * _wire_ns(spec, sip.links.cube_to_cube)
    chiplet = port.ucie.attrs.overhead_ns + port.io_noc.attrs.overhead_ns + port.sip_port.attrs.overhead_ns
    between_sips = 2 * (2 * (ucie + chiplet) + _wire_ns(spec, system.links.sip_to_sip))
    own, cubes, sips = spec.cube.links.pe_to_xbar, sip.links.cube_to_cube, system.links.sip_to_sip
    return (
        int(in_cube * own.bw_gbs),
        int((in_cube + between_cubes) * min(own.bw_gbs, cubes.bw_gbs)),
        int((in_cube + between_sips) * min(own.bw_gbs, sips.bw_gbs)),
    )


def load_bytes(spec: TopologySpec) -> int:
    """Return the bytes under way from a PE's slice of HBM."""
    links = spec.cube.links
    delay = spec.pe.dma.setup_ns + 2 * spec.cube.components.xbar.attrs.overhead_ns
    delay += spec.cube.hbm_access_ns
    return int(delay * min(links.pe_to_xbar.bw_gbs, links.xbar_to_hbm.bw_gbs))


def _across_cube_ns(spec: TopologySpec) -> float:
    parts = spec.cube.components
    routers = (spec.cube.noc.w + spec.cube.noc.h) / 2
    wire = (spec.cube.size_mm.w + spec.cube.size_mm.h) / 2 * spec.ns_per_mm
    return 2 * parts.xbar.attrs.overhead_ns + routers * parts.noc_router.attrs.overhead_ns + wire


def _wire_ns(spec: TopologySpec, link: LinkSpec) -> float:
    return (link.length_mm or 0) * spec.ns_per_mm + link.overhead_ns
