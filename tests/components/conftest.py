"""The machine that tests of queues share: two cubes a SIP."""

from __future__ import annotations

import pytest

from compiled import compiled
from kernbench.topology.builder import Topology


@pytest.fixture(scope="package")
def topology() -> Topology:
    return compiled("sip.cube_mesh.w=2", "sip.cube_mesh.h=1")
