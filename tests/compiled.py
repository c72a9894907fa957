"""Machines for tests, compiled once in a process: nothing changes a Topology."""

from __future__ import annotations

from functools import cache, lru_cache

from kernbench.common.config import Document, apply_overrides, load_document
from kernbench.topology.builder import Topology, compile_topology, topology_file

SPREAD = "cube.hbm.refresh=spread"
"""For tests that compare times: with refresh of all banks they depend on when something begins."""


@cache
def packaged_topology() -> Document:
    """The packaged topology.yaml."""
    return load_document(topology_file("default"))


@lru_cache(maxsize=64)
def compiled(*overrides: str) -> Topology:
    """The packaged machine with overrides, as ``resolve_topology("default", overrides)`` makes it."""
    return compile_topology(apply_overrides(packaged_topology(), overrides))
