"""Benchmarks of the simulator itself: `pytest benches`. Times are for a person to read; nothing here passes or fails by them."""

from __future__ import annotations

import pytest

from kernbench.topology.builder import Topology, resolve_topology


@pytest.fixture(scope="session")
def topology() -> Topology:
    """The packaged machine."""
    return resolve_topology("default")
