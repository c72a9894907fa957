"""The skewed machine, and what a way through it takes, worked out from its file by the names of parts and links.

The project's graph, routes' times and closed forms are not asked: only which nodes a route passes, and the lengths of
wires that follow from positions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from operator import attrgetter
from pathlib import Path

from kernbench.policy.routing.planner import RoutePlanner
from kernbench.topology.builder import Topology, resolve_topology
from kernbench.topology.fields import LinkSpec

FILE = Path(__file__).parent / "data" / "skewed.yaml"

_OVERHEAD_OF = {
    "host": "system.components.host",
    "switch": "system.components.switch",
    "pcie_ep": "sip.components.pcie_ep",
    "io_noc": "sip.components.io_noc",
    "io_ucie": "sip.components.ucie",
    "sip_port": "sip.components.sip_port",
    "r": "cube.components.noc_router",
    "xbar": "cube.components.xbar",
    "ucie": "cube.components.ucie",
    "hbm": "cube.components.hbm_ctrl",
    "sram": "cube.components.sram",
    "pe_dma": "pe.components.pe_dma",
}
_CPUS = ("io_cpu", "m_cpu", "pe_cpu")  # their time is that of a message, not of its way
_LINK_BETWEEN = {
    ("host", "switch"): "system.links.host_to_switch",
    ("pcie_ep", "switch"): "system.links.switch_to_sip",
    ("sip_port", "sip_port"): "system.links.sip_to_sip",
    ("io_noc", "pcie_ep"): "sip.links.io_internal",
    ("io_cpu", "io_noc"): "sip.links.io_internal",
    ("io_noc", "sip_port"): "sip.links.io_internal",
    ("io_noc", "io_ucie"): "sip.links.io_internal",
    ("io_ucie", "ucie"): "sip.links.io_to_cube",
    ("ucie", "ucie"): "sip.links.cube_to_cube",
    ("r", "r"): "cube.noc.link",
    ("r", "xbar"): "cube.links.xbar_to_router",
    ("hbm", "xbar"): "cube.links.xbar_to_hbm",
    ("pe_dma", "xbar"): "cube.links.pe_to_xbar",
    ("pe_cpu", "xbar"): "cube.links.pe_to_xbar",
    ("r", "ucie"): "cube.links.router_to_ucie",
    ("r", "sram"): "cube.links.router_to_sram",
    ("m_cpu", "r"): "cube.links.router_to_m_cpu",
}


@cache
def skewed(*overrides: str) -> Topology:
    """The skewed machine with overrides."""
    return resolve_topology(FILE, overrides)


def kind_of(node: str) -> str:
    """What the name of a node says that it is: ``r`` for a router, ``io_ucie`` for a port of the IO chiplet …"""
    found = re.match(r"(r|hbm)\d|(.*?)(_[NSEW]+|_\d+)?$", node.rpartition(".")[2])
    assert found is not None
    return found[1] or found[2]


def overhead_ns(topology: Topology, node: str) -> float:
    """What entering a node adds to a way."""
    kind = kind_of(node)
    return 0.0 if kind in _CPUS else attrgetter(_OVERHEAD_OF[kind] + ".attrs.overhead_ns")(topology.spec)


def link_between(topology: Topology, src: str, dst: str) -> LinkSpec:
    """The class of the link between two nodes."""
    one, other = sorted((kind_of(src), kind_of(dst)))
    found: LinkSpec = attrgetter(_LINK_BETWEEN[one, other])(topology.spec)
    return found


@dataclass(frozen=True)
class Way:
    """A way alone on the machine: its head's time, of which ``wire_ns`` on wires, and its narrowest link.

    ``slack_ns``: how far rounding, per link, may take it.
    """

    head_ns: float
    wire_ns: float
    narrowest_gbs: float
    slack_ns: float

    def ns(self, nbytes: int) -> float:
        """From the start of the first byte to the arrival of the last."""
        return self.head_ns + nbytes / self.narrowest_gbs


def way(topology: Topology, src: str, dst: str) -> Way:
    """The way from one node to another."""
    graph, spec = topology.topology_obj, topology.spec
    nodes = RoutePlanner(graph).route(src, dst)
    head, wire, narrowest = 0.0, 0.0, float("inf")
    for a, b in pairwise(nodes):
        link = link_between(topology, a, b)
        length = graph.edge(a, b).length_mm if link.length_mm is None else link.length_mm
        head += overhead_ns(topology, b) + link.overhead_ns + length * spec.ns_per_mm
        wire += length * spec.ns_per_mm
        narrowest = min(narrowest, link.bw_gbs)
    return Way(head, wire, narrowest, 0.001 * len(nodes))


def set_up_ns(topology: Topology) -> float:
    """What the DMA of a PE takes for a descriptor."""
    return topology.spec.pe.dma.setup_ns
