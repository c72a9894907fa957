"""Machines, configurations and edges for tests of collectives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from compiled import compiled
from kernbench.ccl.config import AlgorithmConfig
from kernbench.ccl.topologies import QueueEdge
from kernbench.common.config import read_model
from kernbench.messages.requests import PeCoord
from kernbench.topology.builder import Topology
from kernbench.topology.spec import SipsSpec, TopologySpec


def machine(*overrides: str) -> Topology:
    """The packaged machine with overrides."""
    return compiled(*overrides)


def sips(count: int, topology: str = "ring_1d", w: int | None = None, h: int | None = None) -> TopologySpec:
    """A machine of so many SIPs, of two cubes with four PEs each, joined in this way."""
    small = machine("sip.cube_mesh.w=2", "sip.cube_mesh.h=1", "cube.pe_layout.pe_per_corner=1").spec
    joined = read_model(SipsSpec, {"count": count, "topology": topology, "w": w, "h": h})
    return small.model_copy(update={"system": small.system.model_copy(update={"sips": joined})})


def config(**values: Any) -> AlgorithmConfig:
    """A configuration that says no more than this."""
    return AlgorithmConfig(**{"name": "test", "module": "m.test", "topology": "ring_1d", **values})


def by_source(edges: Iterable[QueueEdge]) -> dict[PeCoord, dict[str, PeCoord]]:
    """Where every direction of every PE leads; none is given twice."""
    found: defaultdict[PeCoord, dict[str, PeCoord]] = defaultdict(dict)
    for src, direction, dst in edges:
        assert direction not in found[src]
        found[src][direction] = dst
    return dict(found)
