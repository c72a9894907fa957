"""Benchmarks of the simulator itself: `pytest benches`. Nothing here passes or fails by a time."""

from __future__ import annotations

import pytest

from kernbench.topology.builder import Topology, resolve_topology


@pytest.fixture(scope="session")
def topology() -> Topology:
    """The packaged machine."""
    return resolve_topology("default")
