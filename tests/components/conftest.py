"""The machine that tests of queues share: two cubes a SIP."""

from __future__ import annotations

import pytest

from kernbench.topology.builder import Topology, resolve_topology


@pytest.fixture(scope="package")
def topology() -> Topology:
    return resolve_topology("default", ("sip.cube_mesh.w=2", "sip.cube_mesh.h=1"))
